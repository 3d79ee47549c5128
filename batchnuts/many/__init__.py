"""Many fits in one run: one model for many data sets, each with its own warmup, stopping rule and verdict."""
