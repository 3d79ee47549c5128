"""How draws are laid out as groups of variables: any block of them alone, so that a run can be saved in parts.

Nothing here depends on which other draws there are: the variables of draw n of chain i are the same, to the last bit,
in a block of one draw and among all. (Random numbers of predictions have a key for each chain and draw.)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.quantities import PRIOR_DRAWS, Arrays, Between, LeftOutError, Quantities, has_quantities
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.mcmc.storage.draws import WindowRecords, statistics
from batchnuts.process.signals import say

Entry = tuple[tuple[str, ...], NDArray[Any], dict[str, Any]]
"""Dimensions, values and attributes of a variable, as xarray takes them."""

Entries = dict[str, Entry]
"""The variables of a group, by name."""

SAMPLES = ("chain", "draw")

GROUP_OF_FUNCTION = {"generated": "posterior", "log_likelihood": "log_likelihood", "predictive": "posterior_predictive"}
"""The group into which what a function gives is put."""


class Layout:
    """Lays out the draws of one run as they are saved. execution: with the backend decided. between: see Quantities."""

    def __init__(
        self, model: Model, content: Content, execution: ExecutionSettings, seed: int, between: Between | None = None
    ) -> None:
        self.model = model = content.computed(model)
        self.content = content
        self._quantities = Quantities(model, execution, seed, between) if has_quantities(model) else None
        """None after one of the model's functions has failed, or nobody waits for them, too."""
        self.left_out: str | None = None
        """Why there is nothing of what is computed from draws, or only of some."""

    def of_other(self, model: Model, seed: int) -> Layout:
        """The same for the model with other data of the same types (`Model.with_data`), and another seed."""
        other = copy.copy(self)
        other.model, other.left_out = self.content.computed(model), None
        other._quantities = None if self._quantities is None else self._quantities.of_other(other.model, seed)
        return other

    def of_draws(
        self,
        position: NDArray[Any],
        stats: Mapping[str, NDArray[Any]],
        chains: NDArray[np.int64],
        draws: NDArray[np.int64],
    ) -> dict[str, Entries]:
        """By group: `posterior`, `sample_stats`, what functions of the model give, `unconstrained_posterior` if asked
        for.

        Of draws with the numbers `draws` [rows] of `chains` [n], at position [n, rows, dimension] with statistics [n,
        rows]; those that are not saved are left out. Where a function of the model fails, its groups are left out,
        with a line on stderr.
        """
        saved = self.content.kept(draws)
        if not saved.all():
            position, draws = position[:, saved], draws[saved]
            stats = {name: array[:, saved] for name, array in stats.items()}
        computed = self._computed(position, chains, draws)
        own = self.values(position) if self.model.reports_variables or "posterior" not in computed else {}
        groups: dict[str, Entries] = {
            "posterior": own | computed.pop("posterior", {}),
            "sample_stats": {name: (SAMPLES, array, {}) for name, array in stats.items()},
            **computed,
        }
        if self.content.unconstrained:
            groups["unconstrained_posterior"] = self._cast(_free(position, self.model))
        return groups

    def of_unfinished(
        self,
        position: NDArray[Any],
        stats: Mapping[str, NDArray[Any]],
        done: NDArray[np.int64],
        draws: NDArray[np.int64],
    ) -> Entries:
        """The group `unfinished` of such a block: NaN where a chain has made no more than `done` [n] draws."""
        saved = self.content.kept(draws)
        missing = draws[None, saved] >= done[:, None]
        valid_position = np.where(missing[:, :, None], np.nan, position[:, saved]).astype(position.dtype)
        entries = self.values(valid_position)
        for name, array in stats.items():
            values = np.where(missing, np.nan, array[:, saved].astype(np.float64))
            # A parameter may have the name of a statistic; the file keeps both.
            entries[name if name not in entries else f"sample_stats_{name}"] = (SAMPLES, values, {})
        return entries

    def of_warmup(self, windows: Sequence[WindowRecords], max_tree_depth: int) -> dict[str, Entries]:
        """The groups `warmup_posterior` and `warmup_sample_stats`: one window after the other, NaN where a chain was
        left behind. max_tree_depth: the limit in warmup."""
        names = windows[0].records
        records = {name: np.concatenate([window.records[name] for window in windows], axis=1) for name in names}
        missing = np.concatenate(
            [np.arange(window.records["lp"].shape[1]) >= window.done[:, None] for window in windows], axis=1
        )
        position = np.where(missing[:, :, None], np.nan, records["position"]).astype(records["position"].dtype)
        numbers = np.arange(missing.shape[1])
        saved = self.content.kept(numbers)
        chains, some_left = np.arange(len(position)), bool(missing[:, saved].any())
        own: Entries = {}
        if not self.model.reports_variables:
            own = self._computed(position[:, saved], chains, numbers[saved]).get("posterior", {})
        own = own or self.values(position[:, saved])
        stats = {}
        for name, array in statistics(records, max_tree_depth).items():
            values = array[:, saved]
            stats[name] = np.where(missing[:, saved], np.nan, values.astype(np.float64)) if some_left else values
        return {
            "warmup_posterior": own,
            "warmup_sample_stats": {name: (SAMPLES, array, {}) for name, array in stats.items()},
        }

    def of_divergences(self, points: NDArray[Any]) -> Entries:
        """The values of what the model calls its variables, at both points [n, 2, dimension] of each divergence."""
        computed = {}
        if not self.model.reports_variables and points.size:
            computed = self._computed(points, np.zeros(len(points), np.int64), np.arange(points.shape[1]))
        entries = computed.get("posterior") or self.values(points)
        return {
            name: (("divergence", "point", *dims[2:]), array, attributes)
            for name, (dims, array, attributes) in entries.items()
        }

    def of_prior(self) -> dict[str, Entries]:
        """The groups `prior` and `prior_predictive`, if the model has such functions."""
        quantities = self._quantities
        if quantities is None or self.model.prior is None:
            return {}
        drawn = self._tried(lambda: quantities.of_prior(PRIOR_DRAWS))
        if drawn is None:
            return {}
        values, computed = drawn
        own = values if self.model.reports_variables else {}
        others = {k: v for k, v in computed.get("generated", {}).items() if k not in self.model.of_data}
        groups = {"prior": self._chosen(self._entries({**own, **others}, (1, PRIOR_DRAWS)))}
        if "predictive" in computed:
            groups["prior_predictive"] = self._entries(computed["predictive"], (1, PRIOR_DRAWS))
        return groups

    def values(self, position: NDArray[Any]) -> Entries:
        """The variables that are saved, at positions [chain, draw, dimension]."""
        with np.errstate(all="ignore"):  # of chains that have no such draw
            values = self.model.constrain(position)
        return self._chosen(
            self._cast(
                {
                    variable.name: (
                        (*SAMPLES, *variable.axis_names),
                        np.asarray(values[variable.name]),
                        {} if variable.is_real else {"support": variable.support.kind},
                    )
                    for variable in self.model.variables
                }
            )
        )

    def _computed(
        self, position: NDArray[Any], chains: NDArray[np.int64], draws: NDArray[np.int64]
    ) -> dict[str, Entries]:
        """What the model's functions make of positions [chain, draw, dimension], by group."""
        quantities = self._quantities
        if quantities is None or not position.size:
            return {}
        shape, flat = position.shape[:2], position.reshape(-1, position.shape[2])
        chain, draw = (array.reshape(-1) for array in np.broadcast_arrays(chains[:, None], draws[None, :]))
        of_posterior = self._tried(lambda: quantities.of_posterior(flat, chain, draw))
        groups = {}
        for role, arrays in (of_posterior or {}).items():
            entries = self._entries(arrays, shape, {"generated": 1} if role == "generated" else {})
            groups[GROUP_OF_FUNCTION[role]] = self._chosen(entries) if role == "generated" else entries
        return groups

    def _tried(self, compute: Callable[[], Any]) -> Any:
        """The result of `compute`; None, from now on, where a function of the model fails."""
        try:
            return compute()
        except (ModelError, MemoryError, LeftOutError) as error:
            lacking = "There is not enough memory for what is computed from draws."
            self.left_out = str(error or lacking)
            say(f"{self.left_out} The draws are kept without it.")
            self._quantities = None
            return None

    def _entries(self, arrays: Arrays, shape: tuple[int, ...], attributes: dict[str, Any] | None = None) -> Entries:
        return self._cast(entries_of(self.model, arrays, shape, attributes))

    def _cast(self, entries: Entries) -> Entries:
        return {
            name: (dims, self.content.cast(array), attributes) for name, (dims, array, attributes) in entries.items()
        }

    def _chosen(self, entries: Entries) -> Entries:
        return {name: entry for name, entry in entries.items() if self.content.has(name)}


def entries_of(
    model: Model, arrays: Arrays, shape: tuple[int, ...], attributes: dict[str, Any] | None = None
) -> Entries:
    """The entries of arrays [chains * draws, ...], in the order of the model's `dims`. shape: (chains, draws)."""
    order = {name: place for place, name in enumerate(model.dims)}
    return {
        name: (
            (*SAMPLES, *model.dims_of(name, array.shape[1:])),
            array.reshape(*shape, *array.shape[1:]),
            attributes or {},
        )
        for name, array in sorted(arrays.items(), key=lambda item: order.get(item[0], len(order)))
    }


def _free(position: NDArray[Any], model: Model) -> Entries:
    """The real numbers that make each variable, of positions [chain, draw, dimension]."""
    entries: Entries = {}
    start = 0
    for variable in model.variables:
        part = position[..., start : start + variable.free]
        start += variable.free
        if variable.is_real:
            dims = (*SAMPLES, *variable.axis_names)
            entries[variable.name] = (dims, part.reshape(*part.shape[:2], *variable.shape), {})
        elif not variable.shape:
            entries[variable.name] = (SAMPLES, part[..., 0], {})
        else:
            entries[variable.name] = ((*SAMPLES, f"{variable.name}_unconstrained"), part, {})
    return entries
