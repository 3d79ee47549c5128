"""The group `summary` of a run whose draws were not kept, and the diagnostics that it gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.diagnostics.diagnose import Diagnostics
from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.statistics.late_chains import late_by_moments
from batchnuts.mcmc.statistics.nested_rhat import nested_of_moments
from batchnuts.mcmc.statistics.rounding import rounding_of, vary_beyond_rounding
from batchnuts.mcmc.statistics.running_summary import RunningSummary, StatisticsTotals
from batchnuts.mcmc.statistics.stuck_chains import evidence_of_moments, stuck_of

if TYPE_CHECKING:
    import xarray

PROBABILITIES = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)
"""The probabilities of the quantiles that are saved."""

ESTIMATORS = {
    "mean": "of all draws",
    "sd": "of all draws, divided by their number minus 1",
    "covariance": "of all draws, divided by their number minus 1",
    "quantiles": "KLL sketch of Apache DataSketches; rank_error: of ranks, as a share of all draws, 99% confidence",
    "ess_mean": "effective sample size of the mean, by replicated batch means (Argon and Andradottir 2006)",
    "mcse_mean": "sd / sqrt(ess_mean)",
    "mcse_sd": "replicated batch means of squared distances from the mean, delta method",
    "r_hat": "of chains' halves and their moments, not of ranks (Gelman et al., Bayesian Data Analysis, 2013)",
    "nested_r_hat": "of moments, not of ranks (Margossian et al. 2024)",
    "r_hat_limit": "1.01, or what the larger R-hat of all coefficients exceeds by chance with probability 0.01",
}
"""What the variables are; kept as attributes."""


def summary_group(
    running: RunningSummary,
    totals: StatisticsTotals,
    names: Sequence[str],
    chains: NDArray[np.int64],
    superchains: int,
    attributes: Mapping[str, Any],
    may_be_constant: NDArray[np.bool_] | None = None,
) -> xarray.Dataset:
    """What is known of coefficients of these names, of chains with the numbers `chains` [chains].

    superchains: how many the chains of the run form. may_be_constant [coefficients]: which are left out where they do
    not vary but for rounding, or are not finite (generated quantities).
    """
    import xarray

    moments, variance, precision = running.moments, running.variance, running.precision()
    included, not_finite = np.ones(len(names), bool), np.zeros(len(names), bool)
    low, high = running.range()
    if may_be_constant is not None:
        not_finite = may_be_constant & ~np.isfinite(variance) & (running.total > 1)
        varies = (variance > 0) & vary_beyond_rounding(low, high, running.dtype)
        included = ~may_be_constant | (np.isfinite(variance) & varies)
    of_each: dict[str, NDArray[Any]] = {
        "mean": running.pooled_mean,
        "sd": np.sqrt(variance) if running.total > 1 else np.full(len(names), np.nan),
        "mcse_mean": precision.of_mean,
        "mcse_sd": precision.of_sd,
        "ess_mean": precision.effective_size,
        "r_hat": running.rhat(),
        "minimum": low,
        "maximum": high,
    }
    superchain = superchain_of(int(chains.max()) + 1, superchains)[chains]
    if 1 < len(np.unique(superchain)) < len(chains):
        nested = nested_of_moments(moments, superchain, running.count)
        of_each["nested_r_hat"], noise = nested.rhat, nested.noise
    else:
        noise = running.rhat_noise()
    half = running.whole_segments // 2 * running.length
    stuck = stuck_of([evidence_of_moments(moments.of(included), running.count, half)], len(chains), int(included.sum()))
    entries: dict[str, tuple[Any, ...]] = {name: ("coefficient", values[included]) for name, values in of_each.items()}
    entries["r_hat_limit"] = ("coefficient", noise.limits(int(included.sum()))[included])
    entries["persistence"] = ("coefficient", stuck.persistence)
    entries["quantiles"] = (("quantile", "coefficient"), running.quantiles(PROBABILITIES)[:, included])
    if (covariance := running.covariance) is not None:
        entries["covariance"] = (("coefficient", "other"), covariance[np.ix_(included, included)])
    entries["chain_mean"] = (("chain", "coefficient"), moments.mean[included].T)
    entries["chain_sd"] = (("chain", "coefficient"), np.sqrt(moments.variance[included].T))
    entries["stuck"] = ("chain", stuck.mask)
    late = np.isfinite(late_by_moments(moments.mean[included], moments.variance[included], int(included.sum())))
    entries["late"] = ("chain", late & ~stuck.mask)
    entries |= {name: ("chain", sums) for name, sums in totals.sums.items()}
    entries["acceptance_rate"] = ("chain", totals.sums["acceptance_rate"] / max(totals.count, 1))
    entries["tree_depth"] = ("depth", totals.depths)
    labels = np.array(names)[included]
    described = {
        name: (dims, values, {"estimator": ESTIMATORS[name]} if name in ESTIMATORS else {})
        for name, (dims, values) in entries.items()
    }
    return xarray.Dataset(
        described,
        coords={
            "coefficient": labels,
            "quantile": list(PROBABILITIES),
            "chain": chains,
            "depth": np.arange(len(totals.depths)),
            **({"other": labels} if covariance is not None else {}),
        },
        attrs={
            **attributes,
            "superchains": superchains,
            "draws": running.count,
            "rank_error": running.rank_error,
            "bfmi": totals.bfmi,
            "not_finite": json.dumps(np.array(names)[not_finite].tolist()),
            "log_density_rounding": rounding_of(totals.log_density[:, None]),
        },
    )


def diagnosed(summary: xarray.Dataset) -> Diagnostics:
    """The diagnostics of such a group."""
    quantiles = summary["quantiles"].values
    low, high = (quantiles[PROBABILITIES.index(p)] for p in (0.05, 0.95))
    names = ("mean", "sd", "mcse_mean", "mcse_sd", "ess_mean", "r_hat")
    columns = {name: np.asarray(summary[name].values, np.float64) for name in names} | {"5%": low, "95%": high}
    varies = columns["sd"] > 0
    for name in ("mcse_mean", "mcse_sd", "ess_mean", "r_hat"):
        columns[name] = np.where(varies, columns[name], np.nan)
    nested = np.where(varies, summary["nested_r_hat"].values, np.nan) if "nested_r_hat" in summary else None
    superchain = superchain_of(int(summary["chain"].values.max()) + 1, int(summary.attrs["superchains"]))
    return Diagnostics(
        names=tuple(str(name) for name in summary["coefficient"].values),
        columns=columns,
        chains=summary.sizes["chain"],
        draws=int(summary.attrs["draws"]),
        divergences=int(summary["diverging"].values.sum()),
        reached_max_treedepth=int(summary["reached_max_treedepth"].values.sum()),
        rounding=float(summary.attrs["log_density_rounding"]),
        not_finite=dict.fromkeys(json.loads(summary.attrs.get("not_finite", "[]"))),
        nested=nested,
        superchains=len(np.unique(superchain[summary["chain"].values])),
        limits=np.asarray(summary["r_hat_limit"].values, np.float64) if "r_hat_limit" in summary else None,
        persistence=None if nested is None else np.asarray(summary["persistence"].values, np.float64),
        stuck=_numbers(summary, "stuck"),
        late=_numbers(summary, "late"),
        running=True,
    )


def _numbers(summary: xarray.Dataset, name: str) -> tuple[int, ...]:
    """The numbers of chains of which a variable is true; none in a file of before it was saved."""
    if name not in summary:
        return ()
    return tuple(summary["chain"].values[summary[name].values.astype(bool)].tolist())
