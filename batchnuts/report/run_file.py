"""A run as a report takes it: the groups of its file, what was diagnosed, and what to do next."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.files.saving import OutputError, reason_of
from batchnuts.files.url import OutputLocation, Url, location_of
from batchnuts.mcmc.diagnostics.coefficient_parts import DiagnosticsError
from batchnuts.mcmc.diagnostics.diagnose import Diagnostics
from batchnuts.mcmc.diagnostics.kept_diagnostics import kept_diagnostics
from batchnuts.mcmc.diagnostics.summary_without_draws import diagnosed
from batchnuts.mcmc.diagnostics.verdict import Check, coefficients, diagnose_groups, judge, made_by
from batchnuts.mcmc.statistics.draw_blocks import DrawBlock
from batchnuts.mcmc.statistics.rank_normal import BLOCK
from batchnuts.mcmc.storage.stored_run import is_zarr, open_zarr, without_draws

if TYPE_CHECKING:
    import xarray

GROUPS = ("posterior", "sample_stats", "adaptation", "divergences", "unfinished", "summary", "progress", "diagnostics")
"""Those that a report looks at: others may be much larger than the draws (log_likelihood)."""

STATISTICS = ("acceptance_rate", "diverging", "energy", "n_steps", "step_size", "tree_depth")
"""Variables of the group sample_stats that a report needs."""

CHAINS_AT_ONCE = 64
"""Chains whose draws are read together where all of a store is looked through."""

BFMI_LIMIT = 0.3
"""Below it, energies change so slowly from draw to draw that the tails are hardly visited: the limit of ArviZ's and
Stan's warnings, after Betancourt 2016, "Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo"."""


class NotARun(BatchnutsError):
    """The file is not the output of a run of ours, or cannot be read."""


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The groups of a run, a file's in memory and a store's to be read when they are used, and the verdict on it."""

    path: OutputLocation
    groups: Mapping[str, xarray.Dataset]
    check: Check | None
    """None where there is no draw that every chain has."""
    blocks: Sequence[DrawBlock]
    """Draws [chain, draw, coefficients] of each variable; `names` has their coefficients in this order."""
    names: list[str]

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the group `posterior`, and those that only `sample_stats` has."""
        return {**self.groups["posterior"].attrs, **self.groups["sample_stats"].attrs}

    @property
    def chains(self) -> NDArray[np.int64]:
        """[chain]: their numbers."""
        return np.asarray(self.groups["posterior"]["chain"].values, np.int64)

    @cached_property
    def bfmi(self) -> float:
        """The value that `bfmi` gives of the run's energies."""
        return bfmi(self.statistic("energy"))

    def statistic(self, name: str) -> NDArray[Any]:
        """[chain, draw] of one of STATISTICS."""
        values: NDArray[Any] = self.groups["sample_stats"][name].transpose("chain", "draw").values
        return values


def read_run(path: str | os.PathLike[str]) -> FinishedRun:
    """Read the file, or Zarr store, of a run and judge its draws.

    Raises NotARun, with what was found and what was expected, for a path that is no such file, and DiagnosticsError
    for draws that are not finite.
    """
    file, kind = location_of(path), "netCDF"
    expected = "expected the netCDF file or Zarr store that python -m batchnuts.sample wrote"
    try:
        if isinstance(file, Url):
            if not is_zarr(file):
                raise NotARun(f"There is no Zarr store at {file}; {expected}. Check the URL.")
        elif file.is_dir() and not is_zarr(file):
            raise NotARun(f"{file} is a folder; {expected}. Give the path of the file in it.")
        elif not file.exists():
            raise NotARun(f"There is no file {file}; {expected}. Check the path and the current folder.")
        kind = "Zarr" if isinstance(file, Url) or is_zarr(file) else kind
        groups = _groups(file)
    except (NotARun, OutputError):
        raise
    except MemoryError:
        raise NotARun(f"The draws in {file} do not fit into memory; a report takes all of them at once.") from None
    except Exception as error:  # a damaged file can make any part of HDF5 and xarray fail
        raise NotARun(
            f"{file} cannot be read as {kind} ({reason_of(error)}); {expected}. If it is such a "
            "file, it is truncated or damaged: copy it again, or run again."
        ) from error
    if none := without_draws(file, groups):
        raise NotARun(none)
    _require_ours(file, groups, expected)
    try:
        return run_of(file, groups)
    except DiagnosticsError as error:
        raise DiagnosticsError(f"{file} cannot be diagnosed: {error}") from error


def run_of(
    path: OutputLocation, groups: Mapping[str, xarray.Dataset], diagnostics: Diagnostics | None = None
) -> FinishedRun:
    """The run whose groups are those of the output. diagnostics: theirs, if they have been diagnosed already."""
    posterior, stats = groups["posterior"], groups["sample_stats"]
    run = made_by(posterior.attrs)
    if not posterior.sizes["draw"] or not posterior.sizes["chain"]:
        return FinishedRun(path, groups, None, [], [])
    if diagnostics is None and (cached := kept_diagnostics(groups)) is not None:
        blocks, names = coefficients(posterior, cached.names)
        if tuple(names) == cached.names:  # else they are of other variables
            return FinishedRun(path, groups, judge(cached, run), blocks, names)
    diagnostics = diagnostics or diagnose_groups(posterior, stats)
    return FinishedRun(path, groups, judge(diagnostics, run), *coefficients(posterior, diagnostics.names))


def _groups(file: OutputLocation) -> dict[str, xarray.Dataset]:
    """Those that a report looks at: of a file in memory, of a store to be read when they are used."""
    import xarray

    if isinstance(file, Url) or is_zarr(file):
        return {name: group for name, group in open_zarr(file).items() if name in GROUPS}
    groups = {}
    with _opened(file) as present:
        names = [name for name in GROUPS if name in present]
    for name in names:
        with xarray.open_dataset(file, group=name, engine="h5netcdf") as dataset:
            groups[name] = dataset.load()
    return groups


def damage_of(path: str | os.PathLike[str]) -> str | None:
    """Which array of a Zarr store cannot be read, and why; None if all can.

    Values of a store are read when they are used, so any part of a report can meet damage. All are read here, a few
    chains at a time.
    """
    file = location_of(path)
    if not is_zarr(file):
        return None
    for name, group in _groups(file).items():
        for variable, array in group.variables.items():
            try:
                for start in range(0, array.shape[0] if array.ndim else 1, CHAINS_AT_ONCE):
                    _ = array[start : start + CHAINS_AT_ONCE].values if array.ndim else array.values
            except Exception as error:  # of any codec
                return (
                    f"{file} cannot be read whole ({name}/{variable}: {reason_of(error)}); expected the store that "
                    "python -m batchnuts.sample wrote. It is damaged: copy it again, or run again."
                )
    return None


def _opened(file: os.PathLike[str]) -> Any:
    import h5netcdf

    return h5netcdf.File(file, "r")


def _require_ours(file: OutputLocation, groups: Mapping[str, xarray.Dataset], expected: str) -> None:
    def refuse(reason: str) -> None:
        raise NotARun(
            f"{file} is not the file of a run of batchnuts: {reason}; {expected}. batchnuts.check diagnoses the draws "
            "of other programs, once ArviZ has opened them."
        )

    if "summary" in groups and "posterior" not in groups:
        raise NotARun(
            f"{file} has a summary and no draws (output.draws: false), and a report shows draws; batchnuts.check "
            "diagnoses the summary."
        )
    missing = [name for name in ("posterior", "sample_stats") if name not in groups]
    if missing:
        refuse(f"it has no group {missing[0]!r}")
    library = groups["posterior"].attrs.get("inference_library")
    if library != "batchnuts":
        refuse(f"its attribute inference_library is {library!r}")
    for name in ("posterior", "sample_stats"):
        absent = [dim for dim in ("chain", "draw") if dim not in groups[name].dims]
        if absent:
            refuse(f"its group {name!r} has no dimension {absent[0]!r}")
    lacking = [name for name in STATISTICS if groups["sample_stats"].get(name) is None]
    if lacking:
        refuse(f"its group 'sample_stats' has no {lacking[0]!r}")
    if not groups["posterior"].data_vars:
        refuse("its group 'posterior' has no variable")


def bfmi(energy: NDArray[Any]) -> float:
    """Estimated Bayesian fraction of missing information, of all chains together; NaN for fewer than 10 draws each.

    energy [chain, draw]. E[(E_n - E_(n-1))^2] / Var(E), Betancourt 2016, equation for E-BFMI. Chains are pooled since
    the variance within one short chain says little.
    """
    chains, draws = energy.shape
    if draws < 10:
        return float("nan")
    mean, spread, changes = float(energy.mean(dtype=np.float64)), 0.0, 0.0
    step = max(1, BLOCK // draws)
    for start in range(0, chains, step):
        values = energy[start : start + step].astype(np.float64) - mean
        spread += float(np.einsum("cd,cd->", values, values))
        steps = np.diff(values, axis=1)
        changes += float(np.einsum("cd,cd->", steps, steps))
    return (changes / (chains * (draws - 1))) / (spread / (chains * draws)) if spread > 0 else float("nan")


def next_steps(run: FinishedRun) -> list[str]:
    """What to do next, in words; empty where the draws can be used as they are."""
    attributes = run.attributes
    steps = list(run.check.advice) if run.check is not None else []
    if run.check is None:
        steps.append(
            "The run was interrupted before every chain had a draw; the draws so far are in the group 'unfinished', "
            "which is biased towards fast chains. Run again, for longer."
        )
    if reason := attributes.get("left_out"):
        steps.append(f"Some groups are missing: {reason} To have them, run again.")
    if attributes.get("warmup_agreed") == 0:
        steps.append("Warmup had not settled when it ended: raise sampler.warmup.maximum, or reparametrize the model.")
    if outliers := attributes.get("outlier_chains"):
        steps.append(
            f"{'Chains' if ',' in str(outliers) else 'Chain'} {shortened(str(outliers))} stayed far from all others in "
            "warmup, and did not count for the step size and metric: sampler.warmup.restart=true restarts such "
            "chains near others."
        )
    if late := attributes.get("late_chains"):
        steps.append(
            f"{'Chains' if ',' in str(late) else 'Chain'} {shortened(str(late))} had not reached the others when "
            "warmup ended: make warmup longer."
        )
    if run.check is not None and run.check.divergences and "divergences" not in run.groups:
        steps.append("output.divergences=true also saves where each divergent trajectory began and where it diverged.")
    if run.check is not None and run.bfmi < BFMI_LIMIT:
        steps.append(
            f"Energies change slowly from draw to draw (BFMI below {BFMI_LIMIT}), so the tails are hardly explored: "
            "reparametrize what has heavy tails or scales of its own (non-centred parameters)."
        )
    return steps


def shortened(text: str, most: int = 200) -> str:
    """A text, cut to so many characters."""
    return text if len(text) <= most else f"{text[:most].rsplit(',', 1)[0]} and more"


def verdict_of(run: FinishedRun) -> dict[str, Any]:
    """The verdict for programs; docs/report.md lists the keys. Numbers that cannot be computed are None."""
    sizes = run.groups["posterior"].sizes
    return {"file": str(run.path)} | _verdict(
        run.check, run.attributes, int(sizes["chain"]), int(sizes["draw"]), next_steps(run)
    )


def verdict_at_end(
    path: OutputLocation, groups: Mapping[str, xarray.Dataset], chains: int, draws: int
) -> tuple[dict[str, Any], Diagnostics | None]:
    """The same of a run that has just ended, with so many draws of each chain, and what was diagnosed. Of draws that
    were not kept it has `min_ess_mean`, for means, and is empty where there are none."""
    if "posterior" in groups:
        run = run_of(path, groups)
        return verdict_of(run), None if run.check is None else run.check.diagnostics
    if "summary" not in groups:
        return {}, None
    summary = groups["summary"]
    check = judge(diagnosed(summary), made_by(summary.attrs))
    return _verdict(check, summary.attrs, chains, draws, list(check.advice)), check.diagnostics


def _verdict(
    check: Check | None, attributes: Mapping[str, Any], chains: int, draws: int, advice: list[str]
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "model": str(attributes.get("model", "")),
        "ok": check is not None and check.ok,
        "converged": None if check is None else check.diagnostics.converged,
        "worst_rhat": None,
        "rhat_limit": None,
        "nested": None,
        "min_ess_bulk": None,
        "divergences": None,
        "chains": chains,
        "draws": draws,
        "interrupted": bool(attributes.get("interrupted", 0)),
        "stuck_chains": [],
        "late_chains": [],
        "not_finite": {},
        "advice": advice,
    }
    if check is not None:
        diagnostics = check.diagnostics
        size = "ess_bulk" if "ess_bulk" in diagnostics.columns else "ess_mean"
        content |= {
            "worst_rhat": _named_value(diagnostics, diagnostics.worst, check.worst_rhat),
            "rhat_limit": diagnostics.limit,
            "nested": diagnostics.nested is not None,
            f"min_{size}": _named_value(diagnostics, _least(diagnostics.columns[size]), check.min_ess),
            "divergences": check.divergences,
            "stuck_chains": list(diagnostics.stuck),
            "late_chains": list(diagnostics.late),
            "not_finite": dict(diagnostics.not_finite),
        }
    return content


def _least(values: NDArray[np.float64]) -> int | None:
    return int(np.nanargmin(values)) if np.isfinite(values).any() else None


def _named_value(diagnostics: Diagnostics, index: int | None, value: float) -> dict[str, Any] | None:
    """The number of the verdict and the coefficient that has it."""
    if np.isnan(value):
        return None
    return {"name": None if index is None else diagnostics.names[index], "value": value}
