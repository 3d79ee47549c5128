"""Which view a run has."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from functools import partial

from batchnuts.progress.terminal import BarsView, SafeConsole
from batchnuts.progress.views import LinesView, NotebookView, View


def default_view(progress: bool | None) -> View:
    """For `sample_chains`: a view of the run; one that shows nothing where nobody looks.

    None: in a notebook, and where stderr is a terminal; True: everywhere.
    """
    if progress is False:
        return nullcontext()
    if _in_notebook():
        return NotebookView()
    return view_on_stderr(even_if_no_terminal=bool(progress))


def view_on_stderr(*, even_if_no_terminal: bool = True, own_descriptor: bool = False) -> View:
    """Bars where stderr is a terminal on which lines can be replaced; else plain lines, or nothing.

    own_descriptor: write to the terminal itself, while TensorFlow's import lets standard error pass through a filter of
    whole lines (process/quiet.py).
    """
    console = SafeConsole(stderr=True, force_jupyter=False)
    if console.is_terminal and not console.is_dumb_terminal:
        if own_descriptor:
            with suppress(OSError, ValueError, AttributeError):
                file = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, closefd=False)
                console = SafeConsole(file=file, force_jupyter=False)
        return BarsView(console)
    if console.is_terminal or even_if_no_terminal:
        return LinesView(partial(console.print, highlight=False, markup=False, soft_wrap=True))
    return nullcontext()


def _in_notebook() -> bool:
    """Whether IPython runs in a front end that shows more than text."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
