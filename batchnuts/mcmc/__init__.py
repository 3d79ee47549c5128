"""NUTS for one chain, written in autobatch's language, and everything that runs it for thousands of chains."""
