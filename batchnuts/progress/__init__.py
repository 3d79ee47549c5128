"""Progress of a run for those who follow it: bars on a terminal, lines in a log, a notebook, JSON for programs."""
