"""The executors, and the backends they run on."""
