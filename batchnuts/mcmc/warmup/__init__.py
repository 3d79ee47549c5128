"""Warmup: its windows, what is pooled over chains between them, which chains are left out, and when it is done."""
