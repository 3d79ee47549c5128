"""The compiler: from a Python function of one lane to programs that the executors run. Passes are pure functions."""
