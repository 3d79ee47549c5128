"""Stan's functions, of NumPy's arrays or JAX's: tables by name."""
