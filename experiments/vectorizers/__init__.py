"""What loop vectorizers are compared on, listed in `registry`, and the ways to run it for many."""
