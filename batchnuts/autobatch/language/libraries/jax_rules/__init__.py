"""Rules for JAX's primitives: what each records, as functions of the language (jax_recording.py)."""
