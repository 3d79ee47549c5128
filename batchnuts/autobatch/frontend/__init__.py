"""From a Python function of one lane to control-flow graphs."""
