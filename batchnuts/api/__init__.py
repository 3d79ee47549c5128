"""The Python entry: `sample_chains`, what is done with a result next, and the types of their keywords."""
