"""Storage of the draws during a run: the interface, and one implementation per module."""
