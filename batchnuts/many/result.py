"""What many fits give: each fit by its label, a table of all, and what was kept of them side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from batchnuts.files.groups import datasets_of
from batchnuts.many.data_sets import Label
from batchnuts.many.fit import GROUPS, QUANTILES, Fit, Row
from batchnuts.many.store import KINDS, Fits, StoreError, ZarrFits
from batchnuts.mcmc.output.datasets import to_arviz
from batchnuts.settings.schema import nearest, shown

if TYPE_CHECKING:
    import pandas
    import xarray


@dataclass(frozen=True, eq=False)
class ManyResult:
    """The fits of `sample_many`, as many as have ended.

    `result[label]` is ArviZ's object of one fit, as `sample_chains` gives it. `table` has a row for each: verdict,
    worst R-hat, least effective size, divergences, draws, seconds. `failed` says why there are no draws of some.
    `mean`, `sd`, `quantiles` and `posterior` have all fits along the dimension `fit`.
    """

    fits: Fits
    interrupted: bool = False
    """Whether the run was interrupted before its last fit."""
    notes: tuple[str, ...] = ()
    """What the run has to say, as what padding has cost."""

    @cached_property
    def rows(self) -> Mapping[int, Row]:
        """What is known of each fit, by number."""
        return dict(self.fits.rows())

    @cached_property
    def _numbers(self) -> Mapping[Label, int]:
        return {row.label: number for number, row in self.rows.items()}

    @property
    def labels(self) -> list[Label]:
        """The labels of all fits, in order."""
        return [row.label for row in self.rows.values()]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    def __contains__(self, label: Any) -> bool:
        return label in self._numbers

    def fit(self, label: Label) -> Fit:
        """A fit by its label, or by its number where that is no label. Raises KeyError."""
        key: Any = label.item() if isinstance(label, np.generic) else label
        number = self._numbers.get(key, key if key in self.rows else None)
        if number is None:
            hint = nearest(str(label), map(str, self.labels)) or f"; there are {len(self)}."
            raise KeyError(f"there is no fit {label!r}{hint}")
        return self.fits.get(number)

    def __getitem__(self, label: Label) -> Any:
        fit = self.fit(label)
        if fit.row.failed:
            raise StoreError(f"The fit {label!r} has failed: {fit.row.failed}")
        if not fit.groups:
            raise StoreError(f"The draws of the fit {label!r} were not kept: give keep=['draws'].")
        attributes = {"inference_library": "batchnuts", "seed": fit.row.seed, "warmup": fit.row.warmup}
        if fit.row.ended:
            attributes["sampling_ended"] = fit.row.ended
        return to_arviz(datasets_of({name: group.with_attrs(**attributes) for name, group in fit.groups.items()}))

    @property
    def failed(self) -> dict[Label, str]:
        """Why fits have failed, by label."""
        return {row.label: row.failed for row in self.rows.values() if row.failed}

    @property
    def ok(self) -> bool:
        """Whether all fits are there, and the verdict on each is good."""
        return not self.interrupted and all(row.ok for row in self.rows.values())

    @property
    def table(self) -> pandas.DataFrame:
        """A row for each fit, by label."""
        import pandas

        rows = pandas.DataFrame([asdict(row) for row in self.rows.values()], columns=[f.name for f in fields(Row)])
        return rows.drop(columns="digest").set_index("label")

    def __repr__(self) -> str:
        failed, ok = len(self.failed), sum(row.ok for row in self.rows.values())
        rest = len(self) - ok - failed
        parts = [f"{ok:,} ok"] + ([f"{rest:,} not ok"] if rest else []) + ([f"{failed:,} failed"] if failed else [])
        head = f"{len(self):,} fits{', interrupted' if self.interrupted else ''}: {', '.join(parts)}"
        first = [f"First failed, {label!r}: {why}" for label, why in self.failed.items()][:1]
        return "\n".join([head, *first, *self.notes])

    # ---- all fits side by side ---------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> xarray.Dataset:
        if name in KINDS:
            return self.summary(name)
        if name in GROUPS:
            return self.draws(name)
        raise AttributeError(f"ManyResult has no attribute {name!r}")

    def summary(self, kind: str) -> xarray.Dataset:
        """Of "mean", "sd", "quantiles" and "ranks" what was kept, (fit, ...). Raises StoreError where it was not."""
        coords = {"quantile": list(QUANTILES)} if kind == "quantiles" else {}
        return self._dataset(kind, coords, f"keep: {shown(kind)} was not kept, or all fits have failed.")

    def draws(self, group: str) -> xarray.Dataset:
        """A group of draws, (fit, chain, draw, ...): NaN, or 0 where there are no fractions, after a fit's own draws.

        It is in memory as a whole; a store is read lazily by `xarray.open_zarr(path, group="posterior")`.
        """
        coords = {"draws": ("fit", [row.draws for row in self.rows.values()])}
        missing = f"There are no draws of the group {group!r}: they were not kept, or all fits have failed."
        return self._dataset(group, coords, missing)

    def _dataset(self, group: str, coords: dict[str, Any], missing: str) -> xarray.Dataset:
        import xarray

        arrays = self.fits.stacked(group, list(self.rows))
        if not arrays:
            raise StoreError(missing)
        labels = self.fits.labels()
        dims = {dim for of_array, _ in arrays.values() for dim in of_array}
        named = {dim: names for dim, names in labels.items() if dim in dims}
        return xarray.Dataset(arrays, coords={"fit": self.labels, **coords, **named})


def open_many(path: str | os.PathLike[str]) -> ManyResult:
    """The fits that `sample_many(..., path=path)` has written; of a run that is under way, those that are there.

    Raises StoreError for what is no such store.
    """
    return ManyResult(ZarrFits.opened(path))
