"""The command line: `python -m batchnuts.sample --config logreg.yaml [key.path=value ...]`.

Exit codes: 0 done, 1 the run failed, 2 the command line or the config is wrong, or names an output that cannot be
written or a data file that is missing; 130 interrupted by Ctrl-C, 143 by
SIGTERM, 129 by SIGHUP.
Slow imports come after signals are handled, TensorFlow and ArviZ after everything that can be checked without them.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

from batchnuts.cli.ending import open_closed_streams
from batchnuts.cli.main import main
from batchnuts.process.signals import StopSignals

FEWER_COLLECTIONS = (200_000, 20, 100)
"""Thresholds of Python's garbage collector. Imports and traces make a million objects that stay; by its own thresholds
it goes through them again and again, which takes a tenth of a short run (decisions/0034-programs-on-disk.md). A start
that finds its programs on disk makes fewer than these (decisions/0071-start-of-a-process.md)."""

OWN_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment variables, unless the user has set them. JAX factors matrices with SciPy's OpenBLAS, which gives each of
many small ones to all cores and waits for them busily, while our threads have the cores: ten times the time for the
packaged Gaussian process. OpenBLAS reads it when it is loaded, with NumPy."""


def program() -> None:
    """The process's command line: `main`, and then its end."""
    open_closed_streams()
    gc.set_threshold(*FEWER_COLLECTIONS)
    for name, value in OWN_THREADS.items():
        os.environ.setdefault(name, value)
    stop = StopSignals("saving the draws")
    with stop:
        code = main(stop=stop)
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        if stop.first is not None:
            os._exit(code)  # without waiting for unneeded compilation that is still running
    sys.exit(code)


if __name__ == "__main__":
    program()
