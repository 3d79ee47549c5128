"""A run for programs: one JSON object a line, whose keys are those of `Progress.as_dict` (storage/progress.py)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from batchnuts.mcmc.storage.progress import Progress
from batchnuts.progress.views import UPDATE_EVERY, LimitedView


class JsonLines(LimitedView):
    """Writes reports to a stream, and at the end how it ended. A stream that nobody reads any more ends nothing."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(UPDATE_EVERY)
        self._stream: TextIO | None = stream

    def show(self, progress: Progress, begins: bool) -> None:
        """Write one line, of whatever phase."""
        self.write("progress", progress.as_dict())

    def write(self, event: str, content: Mapping[str, Any]) -> None:
        """Write one line. Numbers that are not finite become null."""
        if self._stream is None:
            return
        line = json.dumps(_finite({"event": event, **content}), allow_nan=False)
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            give_up(self._stream)
            self._stream = None


def give_up(stream: TextIO) -> None:
    """Let what is in the buffer of a stream without a reader go: it would fail again when the process ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
