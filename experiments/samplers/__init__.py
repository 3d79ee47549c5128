"""The samplers that experiments compare: one module each, listed in `registry`, and what measures them."""
