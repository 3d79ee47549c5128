"""What `Model.check` gives: a finding for each comparison."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One comparison: whether it came out as it should, and what was found, as a sentence."""

    name: str
    ok: bool
    said: str


@dataclass(frozen=True, repr=False)
class ModelCheck:
    """The findings of `Model.check`; `print` shows all. `ok` is True if every comparison came out as it should."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether all came out as they should."""
        return all(finding.ok for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{'ok' if f.ok else 'NOT OK'}  {f.name}: {f.said}" for f in self.findings)

    def __repr__(self) -> str:
        return str(self)
