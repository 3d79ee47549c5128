"""TensorFlow's own folder of programs in tests, which processes of theirs share (conftest.py)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchnuts.autobatch.backends.tensorflow import cached_programs
from batchnuts.autobatch.backends.tensorflow.cached_programs import KeptProgram
from batchnuts.autobatch.backends.tensorflow.environment import PROCESS

_FOLDER = re.search(r"persistent_cache_directory=(\S+)", os.environ.get("TF_XLA_FLAGS", ""))

_marks: set[bytes] = set()
"""Of the programs made here."""


@contextmanager
def programs_kept() -> Iterator[None]:
    """Programs are kept as in a process that set it up, and files of ours are gone at the end."""
    assert _FOLDER is not None
    whole = KeptProgram.__init__

    def noted(program: KeptProgram, *arguments: object) -> None:
        whole(program, *arguments)  # type: ignore[arg-type]
        _marks.add(program.mark.encode())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PROCESS, "programs", SimpleNamespace(name=_FOLDER[1]))
        patch.setattr(KeptProgram, "__init__", noted)
        try:
            yield
        finally:
            forget_files()


def forget_files() -> None:
    """As in another process: TensorFlow's folder has no files of ours."""
    assert _FOLDER is not None
    for file in Path(_FOLDER[1]).glob("*.pb"):
        with suppress(FileNotFoundError):
            content = file.read_bytes()
            if file.name in cached_programs._seen or any(mark in content for mark in _marks):
                file.unlink()
    cached_programs._seen.clear()
