"""Models of other libraries as a `Model`: one module for each, and `registry.py` for configs."""
