"""The settings of a run, and what follows from them alone."""
