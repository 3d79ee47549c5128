"""How the command line ends, in words for people and, where they are asked for, in a last line for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchnuts.stopping import say

if TYPE_CHECKING:
    from batchnuts.progress.json_lines import JsonLines


@dataclass
class Ending:
    """How the command ends: what is said of it on stderr and, with `--json`, in the last line."""

    lines: JsonLines | None = None
    content: dict[str, Any] = field(
        default_factory=lambda: {"path": None, "report": None, "resume": None, "reason": ""}
    )

    untouched: str = "no file was written"
    """What there is where no draws are saved."""

    def say(self, text: str) -> None:
        """Why it ends as it does."""
        say(text)
        self.content["reason"] = text

    def write(self, code: int) -> None:
        """The last line."""
        if self.lines is not None:
            event = "finished" if not code else "interrupted" if code > 128 else "failed"
            self.lines.write(event, {"exit_code": code, **self.content})
