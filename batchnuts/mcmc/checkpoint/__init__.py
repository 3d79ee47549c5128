"""A run's state on disk: written while it runs, and read by the run that goes on from there."""
