"""The Python entry: `sample_chains` and the types of its keywords."""
