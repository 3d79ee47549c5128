"""How the command line ends, in words for people and, where they are asked for, in a last line for programs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchnuts.process.signals import say

if TYPE_CHECKING:
    from batchnuts.progress.json_lines import JsonLines


def open_closed_streams() -> None:
    """Standard streams that were closed at the start (`>&-`) go nowhere.

    Else the first file that is opened gets the descriptor, and what a library prints there goes into it.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        os.open(os.devnull, os.O_RDWR)  # it gets the lowest one that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (until the process ends)


@dataclass
class Ending:
    """How the command ends: what is said of it on stderr and, with `--json`, in the last line."""

    lines: JsonLines | None = None
    content: dict[str, Any] = field(
        default_factory=lambda: {"path": None, "report": None, "resume": None, "reason": ""}
    )

    untouched: str = "no file was written"
    """What is said of files where no draws are saved."""

    def say(self, text: str) -> None:
        """Note why the command ends as it does."""
        say(text)
        self.content["reason"] = text

    def write(self, code: int) -> None:
        """The last line."""
        if self.lines is not None:
            event = "finished" if not code else "interrupted" if code > 128 else "failed"
            self.lines.write(event, {"exit_code": code, **self.content})
