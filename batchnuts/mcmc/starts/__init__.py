"""Where chains start, and what a run takes from an earlier one."""
