"""What each kind of metric is, for all who need to know: the one place where a kind is entered.

Its form in the sampler is in `kernel/metric.py`, its estimate from draws in `kernel/metric_estimates.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class MetricKind:
    """One value of `sampler.metric`."""

    name: str
    meaning: str
    """The clause about it in the setting's description."""
    is_adapted: bool = True
    """Whether warmup estimates it."""
    has_directions: bool = False
    """Whether it has eigenvectors: it is then one for all chains."""
    is_limited: bool = False
    """Whether `sampler.metric_rank` bounds the number of these."""
    estimate_matrices: int = 0
    """Matrices of float64, [dimension, dimension], that an estimate makes."""
    vectors: int = 0
    """Vectors [dimension] of a chain in the machine, more than with `diag`."""
    program: str | None = None
    """The kind whose program runs it, with other values; None: its own."""


METRIC_KINDS: Mapping[str, MetricKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            MetricKind("diag", "a scale for each coordinate"),
            MetricKind("dense", "all correlations", has_directions=True, estimate_matrices=8, vectors=12),
            MetricKind("low_rank", "the strongest of them", has_directions=True, is_limited=True),
            MetricKind("unit", "keeps the identity", is_adapted=False, program="diag"),
        )
    }
)
