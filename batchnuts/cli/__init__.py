"""The command line `python -m batchnuts.sample`: configs, what is known before a run, and how it ends."""
