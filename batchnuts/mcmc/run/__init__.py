"""Whole runs: their phases, one after the other, and what they will take. The only room that knows all others."""
