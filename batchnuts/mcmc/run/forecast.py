"""The peak memory of a run and the size of its file, computed from settings before anything is compiled.

A run's memory is the process with its libraries, what stays (the draws), and the largest of what is needed for a while:
chains in their machines, sums over draws, a variable on its way to the disk, the diagnostics of some coefficients.
Constants of processes and of the machine were measured (docs/results/forecast.md); all else follows from shapes.
Log-likelihoods and predictions count as one number for each observation, generated quantities where the model names
their axes. Not included, because their sizes are known only when a model's functions are traced: other generated
quantities, the temporary arrays of a density, and the group `divergences` of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchnuts.autobatch.machine import engine_infos, processors
from batchnuts.files.saving import OVERHEAD, short_bytes
from batchnuts.mcmc.diagnostics.coefficient_parts import diagnostics_bytes
from batchnuts.mcmc.diagnostics.summary_without_draws import PROBABILITIES
from batchnuts.mcmc.execution.attempt import ROOM
from batchnuts.mcmc.execution.chunk_plan import ALONE, MAX_WIDTH, buffer_rows, divide
from batchnuts.mcmc.kernel.sample_statistics import draw_bytes
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.settings.superchains import count_superchains
from batchnuts.mcmc.statistics.running_summary import COVARIANCES, summary_bytes
from batchnuts.mcmc.statistics.window_moments import moments_bytes
from batchnuts.mcmc.storage.streamed import CHAINS_BYTES, IN_MEMORY, QUEUE, most_rows
from batchnuts.mcmc.warmup.windows import likely_transitions, windows_of
from batchnuts.process.memory import machine_memory
from batchnuts.settings.schema import in_words

LIBRARIES_OF_FILE, LIBRARIES_OF_STORE = 55_000_000, 105_000_000
"""Bytes of h5netcdf and rich, with which the command line writes a netCDF file and its summary; and of what a Zarr
store or a summary of draws needs: xarray with pandas, zarr, rich. A report, and results in Python, need this, too."""

VECTORS, VECTORS_OF_FRAME = {"nuts": 27, "walnuts": 34}, 5
"""Vectors of the position's size that a chain has in the machine, besides those of each frame of its stack."""

COPIES_OF_LAYOUT = 4
"""Copies of the part of a block that is laid out and written: positions, values, statistics, bytes of a file."""


@dataclass(frozen=True)
class Size:
    """What a forecast depends on besides settings: the numbers of one draw.

    dimension: of a position. values: elements of all variables. generated: of what is generated. transformed: of
    variables with a support, which are computed from a position. of_data: elements of log-likelihoods and predictions.
    largest: elements of the largest variable.
    """

    dimension: int
    dtype: str
    values: int
    generated: int = 0
    transformed: int = 0
    of_data: int = 0
    largest: int = 1

    @classmethod
    def of(cls, model: Model, content: Content | None = None) -> Size:
        """The size of a model, if it is saved so (default: all of it)."""
        saved = content or Content()
        model = saved.computed(model)
        variables, observed = model.variables, model.observed_data
        observations = sum(int(np.size(array)) for _, array in observed.values())
        lengths = {name: len(labels) for name, labels in model.labels().items()}
        not_generated = {
            *observed,
            *model.constant_data,
            *model.ground_truth,
            *(variable.name for variable in variables),
        }
        generated = [
            dims
            for name, dims in model.dims.items()
            if name not in not_generated and set(dims) <= lengths.keys() and saved.has(name)
        ]
        return cls(
            model.dimension,
            model.dtype,
            sum(variable.size for variable in variables if saved.has(variable.name)) if model.reports_variables else 0,
            sum(math.prod(lengths[dim] for dim in dims) for dims in generated) if model.gives("generated") else 0,
            sum(variable.size for variable in variables if not variable.is_real and model.reports_variables),
            observations * sum(map(model.gives, ("log_likelihood", "predictive"))),
            max(variable.size for variable in variables),
        )

    @classmethod
    def at_least(cls, dimension: int, dtype: str) -> Size:
        """The size where nothing but the dimension is known."""
        return cls(dimension, dtype, dimension)


@dataclass(frozen=True)
class Forecast:
    """The parts of a run's peak memory, and its file, all in bytes."""

    libraries: int
    """The process before it makes draws, and what it imports to write and judge them."""
    records: int
    """Draws and statistics, to the end."""
    values: int
    """What is computed from the draws: variables with a support, generated quantities, log-likelihoods, predictions."""
    sampling: int
    """While chains run: their state in the machine, records of a warmup window, copies of draws at interim analyses,
    blocks of draws on their way to a Zarr store."""
    metric: int
    """While the metric is estimated."""
    moments: int
    """While means and variances are summed."""
    writing: int
    """While a variable goes to the disk."""
    diagnostics: int
    """While the summary is computed."""
    file: int
    """On the disk."""
    file_at_least: int
    """The part of `file` that is certain: variables and statistics."""
    checkpoint: int
    """On the disk beside it, until the run ends: the records of draws that are in memory."""

    @property
    def lasting(self) -> int:
        """Bytes of memory that draws take in any case, however few coefficients are looked at together."""
        return self.libraries + self.records + self.values

    @property
    def stages(self) -> dict[str, int]:
        """Bytes that are needed for a while, besides what stays, by what needs them; one at a time."""
        return {
            "chains in the machine": self.sampling,
            "estimates of the metric": self.metric,
            "means and variances of draws": self.moments,
            "writing the file": self.writing,
            "diagnostics": self.diagnostics,
        }

    @property
    def peak(self) -> int:
        """Bytes of memory at most, at one time."""
        return self.lasting + max(self.stages.values())

    def __str__(self) -> str:
        stage, most = max(self.stages.items(), key=lambda item: item[1])
        checkpoint = f", and {short_bytes(self.checkpoint)} of checkpoints until it ends" if self.checkpoint else ""
        values = f", values computed from them {short_bytes(self.values)}" if self.values else ""
        return (
            f"memory: about {short_bytes(self.peak)} (libraries and compiled programs {short_bytes(self.libraries)}, "
            f"draws {short_bytes(self.records)}{values}, at most at a time: {stage} {short_bytes(most)})\n"
            f"disk: about {short_bytes(self.file)}{checkpoint}"
        )


def forecast(
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    size: Size,
    *,
    content: Content | None = None,
    streamed: bool = False,
    checkpoints: bool = False,
    backend: str = "jax",
) -> Forecast:
    """The forecast of a run with its summary. Where the number of chains is chosen, that of the smallest one.

    content: what is saved. streamed: whether draws go to a Zarr store while chains run. checkpoints: whether some are
    written. backend: the one that will run it.
    """
    content = content or Content()
    streamed = streamed or not content.draws
    chains, draws, item = sampler.fewest_chains, sampler.draws, np.dtype(size.dtype).itemsize
    record_bytes = draw_bytes(size.dimension, size.dtype, content.divergences)
    window = _longest_window(sampler, chains)
    records, samples, saved = chains * draws * record_bytes, chains * draws, chains * content.length(draws)
    if streamed:
        sampling, keeps_records = _streaming_bytes(chains, draws, record_bytes, size), sampler.until is not None
    else:
        sampling, keeps_records = 0, True
    checks = 0
    if sampler.until is not None:  # what it looks at in float64, and blocks of records (storage/memory.py) joined
        checks = samples * size.values * 8 + (records if draws > ROOM else 0)
    computed = size.generated + size.of_data
    dtype = content.dtype or size.dtype
    values = saved * (size.transformed + computed) * item
    on_disk = size.values + computed + (size.dimension if content.unconstrained else 0)
    statistics = draw_bytes(0, size.dtype)
    coefficients = max(1, size.values + size.generated)
    diagnostics = diagnostics_bytes(chains, content.length(draws), coefficients, np.dtype(dtype).itemsize)
    summary = 0
    if not content.draws:
        saved, diagnostics = 0, 0
        sampling += summary_bytes(chains, draws, coefficients, np.dtype(dtype).itemsize)
        summary = 8 * (coefficients * (len(PROBABILITIES) + 10 + 2 * chains) + min(coefficients, COVARIANCES) ** 2)
    kept = 0
    if content.warmup:
        nested, ensemble = count_superchains(sampler) < chains, sampler.begins_with_ensemble(size.dimension)
        kept = chains * likely_transitions(sampler.warmup, chains, nested=nested, ensemble=ensemble)
    kept_bytes = kept * draw_bytes(size.dimension, size.dtype)
    return Forecast(
        libraries=engine_infos()[backend].process_bytes
        + (LIBRARIES_OF_STORE if streamed or not content.draws else LIBRARIES_OF_FILE),
        records=(records if keeps_records else 0) + 2 * kept_bytes,  # as records, and as they are laid out
        values=0 if streamed else values,
        sampling=_machine_bytes(sampler, execution, size, record_bytes, window)
        + max(checks + sampling, window * chains * record_bytes),
        metric=METRIC_KINDS[sampler.metric].estimate_matrices * 8 * size.dimension**2,
        moments=moments_bytes(chains, window, size.dimension),
        writing=0 if streamed else saved * size.largest * item,
        diagnostics=diagnostics,
        file=OVERHEAD + summary + (saved + kept) * (on_disk * np.dtype(dtype).itemsize + statistics),
        file_at_least=OVERHEAD + summary + saved * (size.values * np.dtype(dtype).itemsize + statistics),
        checkpoint=(records if checkpoints and not streamed else 0) + (kept_bytes if checkpoints else 0),
    )


def _streaming_bytes(chains: int, draws: int, record: int, size: Size) -> int:
    """Bytes of draws that are not written yet (incomplete blocks, waiting ones, one that is laid out), and of sums."""
    rows = max(1, most_rows(chains * record, draws))
    blocks = (IN_MEMORY + QUEUE + 1) * rows * chains * record
    sums = chains * size.dimension * (8 + 2 * np.dtype(size.dtype).itemsize)
    return blocks + sums + COPIES_OF_LAYOUT * CHAINS_BYTES


def _longest_window(sampler: SamplerSettings, chains: int) -> int:
    """The transitions of the longest window of warmup."""
    return max((window.transitions for window in windows_of(sampler.warmup, chains)), default=0)


def _machine_bytes(sampler: SamplerSettings, execution: ExecutionSettings, size: Size, record: int, window: int) -> int:
    """Bytes of the states of all chunks, and for each thread the one that its machine makes, and a host copy."""
    chains, divergences = sampler.fewest_chains, record > draw_bytes(size.dimension, size.dtype)
    rows = buffer_rows(max(sampler.draws, window), chains, size.dimension, size.dtype, execution, divergences)
    frames = max(sampler.max_tree_depth, sampler.max_tree_depth_warmup or 0) + 1
    vectors = VECTORS[sampler.transition] + VECTORS_OF_FRAME * (execution.max_stack_depth or frames)
    vectors += METRIC_KINDS[sampler.metric].vectors
    lane = rows * record + vectors * size.dimension * np.dtype(size.dtype).itemsize
    chunking = divide(chains, execution, MAX_WIDTH, processors(), ALONE)
    return lane * chunking.lanes * (chunking.chunks + 2 * chunking.shards)


def memory_problem(
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    size: Size,
    *,
    content: Content | None = None,
    streamed: bool = False,
    backend: str = "jax",
) -> str | None:
    """Why a run does not fit into this machine's memory, with the settings that help most; None if it does.

    Memory is reserved only when it is written to, so the system would kill such a run midway, with all its draws. What
    other programs use now does not count: they may end before. With `sampler.until` draws alone count, since sampling
    may end long before its last draw.
    """

    memory = machine_memory()
    saved = content or Content()

    def of(
        sampler: SamplerSettings, size: Size = size, content: Content = saved, streamed: bool = streamed
    ) -> Forecast:
        return forecast(sampler, execution, size, content=content, streamed=streamed, backend=backend)

    def needs(estimate: Forecast) -> int:
        return estimate.peak if sampler.until is None else max(estimate.lasting, estimate.metric)

    def fits(*changed: Any, **others: Any) -> bool:
        return needs(of(*changed, **others)) <= memory

    estimate = of(sampler)
    if needs(estimate) <= memory:
        return None
    has = f"this machine has {short_bytes(memory)}"
    if estimate.metric > max(memory, estimate.records):
        return (
            f"sampler.metric: a dense metric of {size.dimension} coordinates takes {short_bytes(estimate.metric)} to "
            f"estimate, and {has}; write sampler.metric: low_rank"
        )
    draws = _most(lambda n: fits(sampler.model_copy(update={"draws": n})), sampler.draws)
    chains = 0
    if sampler.chains != "auto":
        chains = _most(lambda n: fits(sampler.model_copy(update={"chains": n})), sampler.fewest_chains)
    remedies = []
    if not streamed and fits(sampler, streamed=True):
        remedies.append("set output.format: zarr, so that draws are written while chains run")
    if saved.draws and sampler.until is None and fits(sampler, content=replace(saved, draws=False)):
        remedies.append("set output.draws: false, which keeps a summary of them")
    if saved.divergences and fits(sampler, content=replace(saved, divergences=False)):
        remedies.append("set output.divergences: false")
    if saved.warmup and fits(sampler, content=replace(saved, warmup=False)):
        remedies.append("set output.warmup: false")
    if size.dtype == "float64" and fits(sampler, replace(size, dtype="float32")):
        remedies.append("use float32 in the model")
    if draws:
        remedies.append(f"set sampler.draws to at most {draws}")
    if chains:
        remedies.append(f"set sampler.chains to at most {chains}")
    if sampler.until is None and draws:
        remedies.append(f"stop early with sampler.until, at no more than {draws} draws")
    draw = in_words(size.dimension, "number")
    return (
        f"sampler.chains x sampler.draws: {sampler.fewest_chains} x {sampler.draws} draws of {draw} or more take about "
        f"{short_bytes(needs(estimate))} of memory ({short_bytes(estimate.records)} for draws), and {has}; "
        f"{', or '.join(remedies) or 'use a smaller model or a larger machine'}"
    )


def _most(fits: Callable[[int], bool], bound: int) -> int:
    """The largest number below the bound that fits, to two digits; 0 if none does."""
    low, high = 0, bound
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    digit: int = 10 ** max(len(str(low)) - 2, 0)
    return low // digit * digit
