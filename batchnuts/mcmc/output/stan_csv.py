"""A run's draws as Stan's CSV files, one for each chain, for tools that read CmdStan's output.

Columns are CmdStan's (https://mc-stan.org/docs/cmdstan-guide/stan_csv_apdx.html): statistics of the sampler, then the
elements of each variable, `theta.2.1`, the first index fastest. Names and values that CmdStan has and a run lacks are
left out.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.files.groups import AnyGroup, Group, Values, dataset_in
from batchnuts.files.saving import OutputError, check_path, reason_of
from batchnuts.process.atomic import replacing

GROUPS = ("posterior", "log_likelihood", "posterior_predictive")
"""Groups whose variables are columns."""

_STATISTICS = {
    "lp": "lp__",
    "acceptance_rate": "accept_stat__",
    "step_size": "stepsize__",
    "tree_depth": "treedepth__",
    "n_steps": "n_leapfrog__",
    "diverging": "divergent__",
    "energy": "energy__",
}
"""Stan's names of statistics, in the order of its columns."""

REMEDY = "Give --force to replace what is there, or another output.path"

_VERSION = "# sampler_version = batchnuts"
"""How a line begins that CmdStan's files do not have."""

_ROWS = 1024
"""Draws that are made text at once."""


def stan_csv_path(output: Path, chain: int) -> Path:
    """The file of a chain beside a run's output, numbered from 1 as CmdStan's are: `run_1.csv` beside `run.nc`."""
    return output.with_name(f"{output.stem}_{chain + 1}.csv")


def stan_csv_files(output: Path) -> list[Path]:
    """The files of that form which are there."""
    form = re.compile(rf"{re.escape(output.stem)}_[1-9]\d*\.csv")
    return sorted(path for path in output.parent.iterdir() if form.fullmatch(path.name))


def refuse_existing(found: Sequence[Path], remedy: str = REMEDY) -> None:
    """Raise OutputError where there are files that would be replaced."""
    if found:
        more = len(found) - 1
        these = f"{found[0]} and {more} more exist and are" if more else f"{found[0]} exists and is"
        raise OutputError(f"{these} not overwritten. {remedy}.")


def to_stan_csv(result: Any, path: str | os.PathLike[str], *, replace: bool = False) -> list[Path]:
    """Write the draws of a result to Stan's CSV files, and give the files: `run_1.csv`, ... for the path `run.csv`.

    result: of `sample_chains` or `open_run`, or another InferenceData, DataTree or mapping of groups to datasets, with
    `posterior` and `sample_stats`. replace: whether files of these names are replaced; those that batchnuts wrote of
    further chains are deleted then.
    Raises OutputError for another result, and where files cannot be written.
    """
    groups = {
        name: dataset
        for name in ("sample_stats", "adaptation", *GROUPS)
        if (dataset := dataset_in(result, name)) is not None
    }
    if lacking := [name for name in ("posterior", "sample_stats") if name not in groups]:
        raise OutputError(
            f"to_stan_csv takes the result of sample_chains, or of open_run; found {type(result).__name__} without a "
            f"group {lacking[0]!r}."
        )
    location = check_path(path, force=True, key="path")
    return write_stan_csv(groups, location, replace=replace, remedy="Set replace=True, or another path")


def write_stan_csv(
    groups: Mapping[str, AnyGroup], output: Path, *, replace: bool = False, remedy: str = REMEDY
) -> list[Path]:
    """Write the draws of each chain to its file beside the output, and give the files.

    replace: whether files of these names may be replaced; those that batchnuts wrote of further chains are deleted
    then. Raises OutputError where a file cannot be written.
    """
    if not replace:
        refuse_existing(stan_csv_files(output), remedy)
    samples = {
        name: group if isinstance(group, Group) else Group.of_dataset(group)
        for name, group in groups.items()
        if name in ("sample_stats", "adaptation", *GROUPS)
    }
    blocks = list(_blocks(samples))
    labels = samples["sample_stats"].labels("chain")
    chains = (labels if labels.dtype.kind in "iu" else np.arange(len(labels))).tolist()
    paths = [stan_csv_path(output, chain) for chain in chains]
    path = output
    try:
        for row, (chain, path) in enumerate(zip(chains, paths, strict=True)):
            with replacing(path) as raw:
                text = io.TextIOWrapper(raw, encoding="utf-8", newline="\n", write_through=True)
                _write_chain(text, samples, blocks, row, chain, output)
                text.detach()
        for path in set(stan_csv_files(output)) - set(paths):
            if _is_ours(path):
                path.unlink()
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {reason_of(error)}.") from error
    return paths


def _is_ours(path: Path) -> bool:
    """Whether a file was written here."""
    with path.open("rb") as file:
        return any(line.startswith(_VERSION.encode()) for line in itertools.islice(file, 10))


@dataclass(frozen=True, eq=False)
class _Block:
    """The columns of one variable."""

    names: Sequence[str]
    values: Values
    """[chain, draw, *shape]"""

    def rows(self, chain: int, part: slice) -> NDArray[Any]:
        """[draws, columns] of one chain, the first index fastest."""
        values = np.asarray(self.values[chain, part])
        if values.dtype.kind == "b":
            values = values.astype(np.int8)
        return values.transpose(0, *range(values.ndim - 1, 0, -1)).reshape(len(values), len(self.names))


def _blocks(samples: Mapping[str, Group]) -> Iterator[_Block]:
    stats, taken = samples["sample_stats"].arrays, set(_STATISTICS.values())
    for ours, name in _STATISTICS.items():
        if ours in stats:
            yield _Block([name], stats[ours].ordered("chain", "draw"))
    for group in GROUPS:
        for own, array in samples[group].arrays.items() if group in samples else ():
            name = f"{group}_{own}" if own in taken else own
            taken.add(name)
            values = array.ordered("chain", "draw", *(dim for dim in array.dims if dim not in ("chain", "draw")))
            if np.dtype(values.dtype).kind in "biuf":
                yield _Block(_names(name, values.shape[2:]), values)


def _names(name: str, shape: tuple[int, ...]) -> list[str]:
    """The columns of a variable, the first index fastest."""
    return [".".join([name, *(str(i + 1) for i in reversed(index))]) for index in np.ndindex(shape[::-1])]


def _write_chain(
    text: io.TextIOWrapper, samples: Mapping[str, Group], blocks: Sequence[_Block], row: int, chain: int, output: Path
) -> None:
    stats = samples["sample_stats"]
    for line in _settings(stats.attrs, stats.length("draw"), chain, output):
        text.write(f"# {line}\n")
    text.write(",".join(name for block in blocks for name in block.names) + "\n")
    for line in _adaptation(samples.get("adaptation"), row):
        text.write(f"# {line}\n")
    for start in range(0, stats.length("draw"), _ROWS):
        parts = [block.rows(row, slice(start, start + _ROWS)).astype(str) for block in blocks]
        text.writelines(f"{','.join(line)}\n" for line in zip(*(column for part in parts for column in part.T)))
    # of all chains, which run together; CmdStan's readers know these words alone
    warmup, sampling = (float(stats.attrs.get(f"{phase}_time", np.nan)) for phase in ("warmup", "sampling"))
    text.write(f"# \n#  Elapsed Time: {warmup:.3f} seconds (Warm-up)\n")
    text.write(f"#                {sampling:.3f} seconds (Sampling)\n")
    text.write(f"#                {warmup + sampling:.3f} seconds (Total)\n# \n")


def _settings(attrs: Mapping[str, Any], draws: int, chain: int, output: Path) -> Iterator[str]:
    """The lines in front of the draws, in CmdStan's form; its defaults where a run has nothing of the kind."""
    config = json.loads(attrs.get("config", "{}"))
    sampler, saved = config.get("sampler", {}), config.get("output", {})
    yield "stan_version_major = 2"  # the version whose form this is: readers ask for it
    yield "stan_version_minor = 36"
    yield "stan_version_patch = 0"
    yield f"model = {attrs.get('model', 'model')}"
    yield f"{_VERSION.removeprefix('# ')} {attrs.get('inference_library_version', '')}"
    yield "method = sample (Default)"
    yield "  sample"
    yield f"    num_samples = {attrs.get('draws_complete', draws)}"
    yield f"    num_warmup = {attrs.get('warmup', 0)}"
    yield "    save_warmup = false"
    yield f"    thin = {saved.get('thin', 1)}"
    yield "    adapt"
    yield "      engaged = true"
    yield f"      delta = {sampler.get('target_acceptance', 0.8)}"
    yield "    algorithm = hmc (Default)"
    yield "      hmc"
    yield "        engine = nuts (Default)"
    yield "          nuts"
    yield f"            max_depth = {sampler.get('max_tree_depth', 10)}"
    yield f"        metric = {'diag_e' if sampler.get('metric', 'diag') in ('diag', 'unit') else 'dense_e'}"
    yield "        stepsize = 1 (Default)"
    yield f"id = {chain + 1}"
    yield "random"
    yield f"  seed = {attrs.get('seed', 0)}"
    yield "output"
    yield f"  file = {os.path.basename(stan_csv_path(output, chain))}"


def _adaptation(group: Group | None, row: int) -> Iterator[str]:
    """The lines between the columns' names and the draws: step size and metric."""
    if group is None or "step_size" not in group.arrays:
        return
    yield "Adaptation terminated"
    yield f"Step size = {np.asarray(group.arrays['step_size'].values)[row]}"
    inverse_mass = np.asarray(group.arrays["inverse_mass"].values)
    if "chain" in group.arrays["inverse_mass"].dims:
        inverse_mass = inverse_mass[row]
    if "metric_eigenvectors" not in group.arrays:
        yield "Diagonal elements of inverse mass matrix:"
        yield ", ".join(map(str, inverse_mass))
        return
    directions, values = (
        np.asarray(group.arrays[name].values) for name in ("metric_eigenvectors", "metric_eigenvalues")
    )
    scale = np.sqrt(inverse_mass)
    correlation = np.eye(len(scale)) + (directions * (values - 1)) @ directions.T
    yield "Elements of inverse mass matrix:"
    for line in scale[:, None] * correlation * scale:
        yield ", ".join(map(str, line))
