"""The settings `sampler.until`: when sampling ends before all draws are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from batchnuts.settings.schema import Settings

CONDITIONS = ("ess_bulk", "ess_tail", "rhat")
"""What must hold of the draws; all of those that are set, on all parameters that are looked at. How each is judged, and
its words: `stopping/conditions.py`."""

LIMITS = ("seconds", "gradients")
"""What ends sampling in any case."""


@dataclass(frozen=True)
class Condition:
    """What a condition asks for, and what was found when it was looked at last.

    `name`: one of CONDITIONS; with `rhat` also `stuck_chains` and `persistence`, once the others hold
    (stuck_chains.py). `found`: the worst of the coefficients that were looked at, NaN before that; `wanted`: what sizes
    must reach, and what all others must not exceed.
    """

    name: str
    found: float
    wanted: float
    met: bool = False

    def __str__(self) -> str:
        """In short: `ess_bulk 231/400`; `?` where nothing is known."""
        digits = {"rhat": 4, "persistence": 2}.get(self.name, 0)
        found = "?" if math.isnan(self.found) else f"{self.found:.{digits}f}"
        return f"{self.name} {found}/{self.wanted:.{digits}f}"


class Until(Settings):
    """When sampling ends: once all of `ess_bulk`, `ess_tail` and `rhat` that are set hold, or at a limit."""

    ess_bulk: float | None = Field(
        None, ge=1.0, le=1e12, description="bulk effective sample size, over all chains, to reach"
    )
    ess_tail: float | None = Field(
        None, ge=1.0, le=1e12, description="effective sample size in the tails (5% and 95% quantiles) to reach"
    )
    rhat: float | None = Field(
        None,
        gt=1.0,
        le=100.0,
        description="R-hat must be below this number; nested R-hat where chains form superchains",
    )
    seconds: float | None = Field(
        None, gt=0.0, le=1e9, description="sampling ends after this many seconds in any case; warmup does not count"
    )
    gradients: float | None = Field(
        None,
        ge=1.0,
        le=1e18,
        description="sampling ends in any case when its draws have taken this many gradients; warmup does not count",
    )
    parameters: list[str] | None = Field(
        None,
        min_length=1,
        description="names of the parameters that must meet the conditions, e.g. mu or theta[3]; null: all of them",
    )

    @model_validator(mode="after")
    def _has_conditions(self) -> Self:
        set_here = [name for name in (*CONDITIONS, *LIMITS) if getattr(self, name) is not None]
        if not set_here:
            raise ValueError(f"nothing ends sampling; set at least one of {', '.join((*CONDITIONS, *LIMITS))}, or null")
        if self.parameters is not None and not set(set_here) & set(CONDITIONS):
            raise ValueError(
                f"parameters are named, but no condition uses them; set at least one of {', '.join(CONDITIONS)}"
            )
        return self

    @property
    def conditions(self) -> tuple[str, ...]:
        """Those of CONDITIONS that are set."""
        return tuple(name for name in CONDITIONS if getattr(self, name) is not None)
