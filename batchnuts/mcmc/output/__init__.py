"""The draws of a run as groups of arrays, whole or while they come in."""
