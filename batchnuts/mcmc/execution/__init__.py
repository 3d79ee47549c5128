"""What runs a chain program for all chains: runners, chunks of chains on threads, and what is compiled for them."""
