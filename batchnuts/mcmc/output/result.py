"""The type of a run's result, for editors and type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import xarray


class Result(Protocol):
    """ArviZ's object with the groups of a run: InferenceData of ArviZ 0.x, xarray.DataTree of 1.x.

    Groups are read as attributes or by name, `result.posterior["mu"]`, `result["posterior"]["mu"]`; further ones, as
    `log_likelihood`, are there where the model has functions for them.
    """

    attrs: Any
    posterior: xarray.Dataset
    sample_stats: xarray.Dataset

    def __getitem__(self, group: str) -> Any: ...

    def __getattr__(self, group: str) -> Any: ...
