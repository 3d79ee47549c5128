"""Execution of a chain program for all chains: runners, chunks of chains on threads, and the cache of compiled
programs."""
