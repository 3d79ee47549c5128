"""Experiments: scripts that measure or draw what a paper claims, one file each.

Import it as `batchnuts.experiments`. Figures 6 and 7 of Radul, Patton, Maclaurin, Hoffman, Saurous, "Automatically
Batching Control-Intensive Programs for Modern Accelerators" (MLSys 2020), belong here.
"""

if __name__ == "experiments":
    raise ImportError("Import batchnuts.experiments: the top-level folder is the same package under its source path.")
