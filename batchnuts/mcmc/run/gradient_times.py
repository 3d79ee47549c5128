"""How long a gradient of every chain takes, for any number of chains: from the density's own times at a few widths.

The program that is timed evaluates the density and its gradient in every sweep, and does nothing else. NUTS takes more:
a sweep of the virtual machine has a cost of its own, and each lane one that grows with the dimension; in machine code
lanes alone have. These were measured once (docs/results/chains.md) and are added here; to time NUTS itself, one would
have to compile it for each width.

Times are of the processor, not of the clock: other programs of the machine do not count. They are kept on disk beside
compiled programs, where the density is known by what it computes: so a second run is not timed, and chooses as the
first one did.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import batch
from batchnuts.autobatch.machine import LaneProgram, engine_infos
from batchnuts.disk_cache.folder import current
from batchnuts.disk_cache.identity import digest_of, surroundings
from batchnuts.mcmc.execution.chunk_plan import chains_alone, divide, maximum_width
from batchnuts.mcmc.execution.density_identity import density_identity
from batchnuts.mcmc.execution.evaluation import Checked
from batchnuts.mcmc.execution.lane_program import lane_program
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.settings.run_settings import ExecutionSettings

WIDTHS = (1, 16, 128)
"""At which the density is timed; each takes a compilation, so where that is long two are enough. Between them times are
linear. A density in machine code is timed at the first alone: each lane computes its own, in the same time whatever the
others do."""

ENOUGH = 0.02
"""Seconds of a measurement."""

REPEATS = 3
"""The shortest of them counts."""

BUDGET = 1.0
"""Seconds: a width at which the measurement would take longer than this is left out."""

LONG_COMPILATION = 1.0
"""Seconds of a compilation from which on two widths are enough: the first, and the largest that there is time for."""


@dataclass(frozen=True)
class Beside:
    """Seconds of a sweep of NUTS beside the density: of itself, of each lane, and of each of its coordinates."""

    sweep: float
    lane: float
    coordinate: float


IN_STEP = Beside(50e-6, 1.5e-6, 0.005e-6)
"""Of machines whose lanes run blocks together."""

OWN_PACE = Beside(0.0, 0.2e-6, 0.004e-6)
"""Of machines whose lanes run each at its own pace. What a round takes is in the density's times."""

MANY = 2**62
"""Evaluations: more than are ever made."""


@dataclass(frozen=True)
class GradientTimes:
    """What a density with its gradient takes, in seconds of one processor for all lanes of a batch."""

    widths: tuple[int, ...]
    """Numbers of lanes, ascending."""
    seconds: tuple[float, ...]
    width: int
    """The maximum number of chains of a chunk."""
    alone: int
    """Up to how many chains of each thread run alone (chunk_plan.chains_alone)."""
    own_pace: bool
    """Whether lanes run each at its own pace."""

    def of(self, width: int) -> float:
        """Seconds at any width: linear between those measured, and in proportion to the width beyond the last."""
        last = self.widths[-1]
        if width > last:
            return self.seconds[-1] * width / last
        return float(np.interp(width, self.widths, self.seconds))

    def of_all_chains(self, chains: int, dimension: int, execution: ExecutionSettings, cores: int) -> float:
        """Seconds in which every one of some chains makes one gradient, as chunks on all cores."""
        chunking = divide(chains, execution, self.width, cores, self.alone)
        lanes, beside = chunking.lanes, OWN_PACE if self.own_pace else IN_STEP
        sweep = beside.sweep + (beside.lane + beside.coordinate * dimension) * lanes + self.of(lanes)
        return math.ceil(chunking.chunks / chunking.shards) * sweep


def gradient_times(
    model: Model, density_library: DensityLibrary, checked: Checked, execution: ExecutionSettings
) -> GradientTimes:
    """The times of a model's density, measured by `time_gradients` where it was checked, or kept from before."""
    entries, position = current(), checked.position
    key = None if entries is None else _key(model, density_library, checked, execution)
    if entries is not None and key is not None and (content := entries.get(key)) is not None:
        parsed: dict[str, Any] = json.loads(content)
        widths, seconds = tuple(parsed.pop("widths")), tuple(parsed.pop("seconds"))
        return GradientTimes(widths, seconds, **parsed)
    widths = WIDTHS[:1] if density_library.in_machine_code else WIDTHS
    times = time_gradients(value_and_gradient(model, density_library), position, execution, widths)
    if entries is not None and key is not None:
        entries.put(key, json.dumps(asdict(times)).encode())
    return times


def _key(model: Model, density_library: DensityLibrary, checked: Checked, execution: ExecutionSettings) -> str | None:
    """What the times depend on; None where the density cannot be known."""
    density = density_identity(model, density_library, checked.position, WIDTHS, checked.identity)
    if density is None:
        return None
    packages = [f"{name} {version(name)}" for name in ("batchnuts", *engine_infos()[density_library.backend].packages)]
    engine_and_mode = execution.backend, execution.expert.mode
    return digest_of("times of a gradient, 4", density, repr((engine_and_mode, WIDTHS)), *packages, surroundings())


def time_gradients(
    value_and_gradient: Callable[[Any], Any],
    position: NDArray[Any],
    execution: ExecutionSettings,
    widths: tuple[int, ...] = WIDTHS,
) -> GradientTimes:
    """Measure a density, a primitive of the language, in batches of lanes that are all at a position [dimension].

    execution: with the backend decided, of a compiled machine. widths: numbers of lanes, ascending. Raises whatever the
    density raises.
    """

    @batch
    def evaluations(position: Any, count: Any) -> Any:
        """Evaluate one after another, each somewhere else: a compiler must not move them out of the loop."""
        while count > 0:
            _, gradient = value_and_gradient(position)
            position = position + 1e-12 * gradient
            count -= 1
        return position

    def arguments(lanes: int) -> tuple[Any, ...]:
        return np.tile(position, (lanes, 1)), np.full(lanes, MANY, "int64")

    program = lane_program(evaluations, arguments(1), execution)
    first, *others = widths
    seconds, compilation = _of_one_evaluation(program, arguments(first))
    measured = {first: seconds}

    def there_is_time(lanes: int) -> bool:
        widest = max(measured)
        return REPEATS * measured[widest] * lanes / widest <= BUDGET

    if compilation > LONG_COMPILATION:
        others = [lanes for lanes in others if there_is_time(lanes)][-1:]
    for lanes in others:
        if not there_is_time(lanes):
            break
        measured[lanes], _ = _of_one_evaluation(program, arguments(lanes))
    own_pace = program.engine.info.own_pace
    return GradientTimes(
        tuple(measured), tuple(measured.values()), maximum_width(program), chains_alone(program), own_pace
    )


def _of_one_evaluation(program: LaneProgram, arguments: tuple[Any, ...]) -> tuple[float, float]:
    """Processor seconds in which the machine with these arguments evaluates the density once for all lanes; and seconds
    that compiling it takes."""
    lanes = len(arguments[0])
    machine = program.machine(lanes, stack_depth=1)
    state = machine.start(arguments)

    def measure(sweeps: int) -> tuple[float, float]:
        """Seconds, and evaluations for all lanes: one in each sweep, or as many as lanes make at their own pace."""
        began = time.process_time()
        after = machine.advance(state, sweeps)
        machine.count_live(after)
        return time.process_time() - began, machine.counts(after).costly.executed / lanes

    began = time.perf_counter()
    measure(1)
    compilation = time.perf_counter() - began
    sweeps = 1
    while (measured := measure(sweeps))[0] < ENOUGH:
        sweeps *= 2
    several = [measured, *(measure(sweeps) for _ in range(REPEATS - 1))]
    return min(seconds / evaluations for seconds, evaluations in several), compilation
