"""What was found out of a model, kept with it: no part of it, and not in its copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelCache:
    """Each entry belongs to the module that fills it."""

    library: tuple[str | None] | None = None
    """What the density is written in (library_choice.py); None: not known yet."""
    traces: Any = None
    """Traces of its functions (quantities.py)."""
    programs: dict[Any, Any] = field(default_factory=dict)
    """Compiled programs, by what they depend on (mcmc/execution/program_cache.py)."""
