"""The pictures of a report: ranks and traces, energy, pairs and divergences, tuning; page.py has their sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.kernel.metric_estimates import of_all_chains
from batchnuts.mcmc.statistics.draw_blocks import rows_of, some_columns
from batchnuts.report import figures, summaries
from batchnuts.report.figures import Picture
from batchnuts.report.run_file import BFMI_LIMIT, FinishedRun


def worst(run: FinishedRun, most: int = summaries.WORST) -> list[int]:
    """The coefficients that have pictures: those of the worst R-hat, or the first ones where there is none.

    Where chains are stuck, first those in which they are furthest from the others.
    """
    assert run.check is not None
    diagnostics = run.check.diagnostics
    if not np.isfinite(diagnostics.deciding_rhat).any():
        return list(range(min(most, len(run.names))))
    order = [*diagnostics.furthest[: summaries.OF_STUCK_CHAINS], *diagnostics.worst_first().tolist()]
    return list(dict.fromkeys(order))[:most]


def draws_of_worst(run: FinishedRun) -> dict[int, NDArray[Any]]:
    """The draws [chain, draw] of the worst coefficients by index, worst first."""
    indices = worst(run)
    return dict(zip(indices, some_columns(run.blocks, indices), strict=True))


def of_parameters(run: FinishedRun, drawn: Mapping[int, NDArray[Any]]) -> list[tuple[str, list[Picture]]]:
    """For each of the worst, whose draws `drawn` has: its name, its rank plot and its trace plot."""
    parts = []
    for index, values in drawn.items():
        chains, draws = values.shape
        ranks = summaries.rank_curves(values, run.chains)
        chance = summaries.chance_of_ranks(draws, len(ranks.x))
        many = chains > summaries.SEPARATE_CHAINS
        lines = (
            "quantiles over chains, and the chains of lowest, middle and highest mean" if many else "one line per chain"
        )
        pictures = [
            figures.rank_plot(
                ranks,
                chance,
                f"Ranks: {lines}. Flat is good; nine tenths of chains lie between the dots if draws are independent.",
            ),
            figures.trace_plot(
                summaries.traces(values, run.chains), f"Trace: {lines}. Level and similar traces are good."
            ),
        ]
        parts.append((run.names[index], pictures))
    return parts


def of_energy(run: FinishedRun) -> list[Picture]:
    """Energy, acceptance and tree depth."""
    bfmi = run.bfmi
    if np.isnan(bfmi):
        words = "Too few draws of each chain for BFMI."
    else:
        wide = "narrower than energies: tails are hardly explored" if bfmi < BFMI_LIMIT else "about as wide as energies"
        words = f"BFMI {bfmi:.2f}: changes from draw to draw are {wide} (limit {BFMI_LIMIT})."
    depths, steps = summaries.counts_of(run.statistic("tree_depth")), run.statistic("n_steps")
    target = run.groups["adaptation"].attrs.get("target_acceptance") if "adaptation" in run.groups else None
    rate = run.statistic("acceptance_rate")
    return [
        figures.energy_plot(*summaries.energies(run.statistic("energy")), f"Energy. {words}"),
        figures.acceptance_plot(
            rate, None if target is None else float(target), f"Acceptance: mean {float(np.mean(rate)):.3f}."
        ),
        figures.depth_plot(
            *depths,
            f"Trees: {float(np.mean(steps)):.3g} leapfrog steps per draw on average, {int(steps.max())} at most.",
        ),
    ]


def of_pairs(run: FinishedRun, drawn: Mapping[int, NDArray[Any]]) -> tuple[str, list[Picture]]:
    """What was chosen, in words, and scatters of each two of three parameters, divergences marked.

    drawn: the draws of the worst by index; where some trajectories diverged, only rows of draws are read.
    """
    if len(run.names) < 2:
        return "The model has one coefficient, so there is no pair of them.", []
    diverging = run.statistic("diverging").astype(bool)
    chains, draws = diverging.shape
    flat, ends = np.flatnonzero(diverging), _ends(run)
    points = summaries.thinned(chains * draws, summaries.PAIR_POINTS)
    marked = flat[summaries.thinned(len(flat), summaries.MARKED_POINTS)] if len(flat) else flat
    rows = np.union1d(points, marked)
    if len(flat) and not diverging.all():
        sample = summaries.thinned(chains * draws, summaries.SAMPLE)
        sample = np.union1d(sample, flat[summaries.thinned(len(flat), summaries.SAMPLE)])
        rows = np.union1d(rows, sample)
        values = np.concatenate([rows_of(block, rows) for block in run.blocks], axis=1)
        compared = np.isin(rows, sample)
        order = [int(i) for i in summaries.most_different(values[compared], diverging.ravel()[sample])]
        with_ends = [i for i in order if ends is None or run.names[i] in ends]  # generated quantities have no ends
        chosen = (with_ends if len(with_ends) > 1 else order)[:3]
        columns = dict(zip(chosen, values[:, chosen].T, strict=True))
        words = f"Divergent draws: {len(flat)}; shown are the parameters in which these differ most from the others."
    else:
        chosen = list(drawn)[:3]
        columns = {index: drawn[index].ravel()[rows] for index in chosen}
        words = (
            "Every draw diverged." if len(flat) else "No draw diverged; shown are the parameters of the worst R-hat."
        )
    if ends is not None and len(flat) and all(run.names[i] in ends for i in chosen):
        words += " Marked: where divergent trajectories began and where they diverged (group divergences)."
    elif len(flat):
        words += " Marked: the draws of divergent trajectories."
    pictures = []
    for first, second in [(a, b) for n, a in enumerate(chosen) for b in chosen[n + 1 :]]:
        pair = np.stack([columns[first], columns[second]], axis=1).astype(np.float64)
        names = (run.names[first], run.names[second])
        caption = f"{names[1]} against {names[0]}, {len(points)} of {chains * draws} draws."
        marks = _marked(pair[np.searchsorted(rows, marked)], ends, names) if len(flat) else []
        pictures.append(figures.pair_plot(pair[np.searchsorted(rows, points)], marks, names, caption))
    return words, pictures


def _ends(run: FinishedRun) -> dict[str, NDArray[np.float64]] | None:
    """By coefficient, [divergence, 2]: where each began and where it diverged, if the file has it."""
    group = run.groups.get("divergences")
    if group is None or not group.sizes.get("divergence"):
        return None
    from batchnuts.mcmc.diagnostics.verdict import labelled_elements

    by_coefficient: dict[str, NDArray[np.float64]] = {}
    for variable, array in group.data_vars.items():
        axes = [dim for dim in array.dims if dim not in ("divergence", "point")]
        values = array.transpose("divergence", "point", *axes).values
        labels = labelled_elements(str(variable), [group[dim].values for dim in axes])
        by_coefficient.update(zip(labels, np.moveaxis(values.reshape(*values.shape[:2], -1), 2, 0), strict=True))
    return by_coefficient


def _marked(
    diverged: NDArray[np.float64], ends: dict[str, NDArray[np.float64]] | None, names: tuple[str, str]
) -> list[tuple[str, NDArray[np.float64]]]:
    """Points [point, 2] by what they are: where trajectories began and diverged, or the draws that diverged."""
    if ends is None or not set(names) <= set(ends):
        return [("diverged", diverged)]
    points = np.stack([ends[name] for name in names], axis=2).astype(np.float64)
    points = points[summaries.thinned(len(points), summaries.MARKED_POINTS)]
    parts = [(name, points[:, place]) for place, name in enumerate(("began", "diverged"))]
    return [(name, part[np.isfinite(part).all(axis=1)]) for name, part in parts]


def of_progress(run: FinishedRun) -> tuple[list[str], list[Picture]]:
    """Gradients and utilization over time, in words and pictures."""
    group = run.groups.get("progress")
    if group is None:
        return ["The file has no group 'progress', so speeds over time are not known."], []
    columns = [group[name].values.astype(float) for name in ("seconds", "useful_gradients", "executed_gradients")]
    speeds = summaries.speeds(group["phase"].values.astype(object).astype(str), *columns)
    if not speeds:
        return ["The run was too short for speeds over time."], []
    phases = ", ".join(f"{speed.phase} from {speed.edges[0]:.3g} s to {speed.edges[-1]:.3g} s" for speed in speeds)
    return [f"After the run began: {phases}; before that, it was compiled."], [
        figures.speed_plot(speeds, "Useful gradients per second. It drops when few chains are still running."),
        figures.utilization_plot(speeds, "Utilization: the share of executed gradients that some chain needed."),
    ]


def of_tuning(run: FinishedRun) -> tuple[list[str], list[Picture]]:
    """Step size and metric, of the draws and over warmup, in words and pictures."""
    words, pictures = _of_draws(run)
    group = run.groups.get("adaptation")
    windows = 0 if group is None else group.sizes.get("window", 0)
    if group is None or not windows:
        return [*words, "What they were during warmup is not in the file."], pictures
    if windows == 1:
        return [*words, "Warmup had one window, so they are from it."], pictures
    transitions = group["window_transitions"].values.astype(np.float64)
    steps = group["window_step_size"].values.astype(np.float64)
    ratios = np.sqrt(group["window_variance"].values / group["window_variance"].values[-1])
    words = [*words, f"Warmup had {windows} windows, each with the step size and metric from the one before."]
    over_warmup = [figures.step_sizes_plot(transitions, steps, "Step size after each window of warmup.")]
    if not (ratios == 1.0).all():
        over = np.quantile(ratios, summaries.BANDS, axis=1)
        caption = "Scales of the metric after each window, as shares of the last ones: quantiles over coefficients."
        over_warmup.append(figures.scales_over_warmup_plot(summaries.Curves(transitions, over, ()), caption))
    return words, [*over_warmup, *pictures]


def _of_draws(run: FinishedRun) -> tuple[list[str], list[Picture]]:
    group = run.groups.get("adaptation")
    steps = run.statistic("step_size")[:, -1].astype(np.float64)
    pictures = []
    if steps.min() == steps.max():
        words = [f"Step size {steps[0]:.4g}, of all chains."]
    else:
        words = [f"Step sizes, one per chain: {steps.min():.3g} to {steps.max():.3g}."]
        pictures.append(figures.step_size_plot(steps, "Step sizes over chains."))
    if group is None or "inverse_mass" not in group:
        return [*words, "The file has no group 'adaptation', so its metric is not known."], pictures
    mass = group["inverse_mass"].values.astype(np.float64)
    own = mass.ndim == 2
    scales = np.sqrt(of_all_chains(mass))
    names = [str(name) for name in group["coefficient"].values] if "coefficient" in group.coords else []
    words.append(f"Metric: {group.attrs.get('metric', 'not named in the file')}{', one per chain' * own}.")
    order = np.argsort(scales, kind="stable")
    if len(scales) > 1 and scales[order[0]] < scales[order[-1]]:
        low, high = int(order[0]), int(order[-1])
        has_names = len(names) == len(scales)
        ends = [f"{scales[i]:.3g}{f' ({names[i]})' if has_names else ''}" for i in (low, high)]
        words.append(f"Scales from {ends[0]} to {ends[1]}, of the unconstrained parameters.")
        pictures.append(figures.scales_plot(scales[order], "Scales that the metric gives the coefficients."))
    return words, pictures
