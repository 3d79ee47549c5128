"""Compiled programs of a model are kept with the Model object, for the next run of the same shape.

A run borrows the programs of its model and settings, or makes new ones, and returns them when it has ended without an
error. So two concurrent runs have programs of their own, and programs in an unknown state after an error are not used
again. The programs are freed with the Model; over all models the last few are kept (`keep_programs`).

A density is traced once, with the contents of its closure: later changes do not affect the compiled program. Such a
change is detected when programs are borrowed: what the density reaches must be what it was (`fingerprint`), and so must
its value outside of compiled programs at the position where their first run began; otherwise they are dropped and it is
traced again.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from batchnuts.autobatch import BatchedFunction
from batchnuts.autobatch.machine import Identity, engine_infos
from batchnuts.disk_cache.folder import AUTO, VARIABLE, current, entries_of
from batchnuts.disk_cache.identity import digest_of
from batchnuts.mcmc.execution.density_identity import density_identity
from batchnuts.mcmc.execution.evaluation import Checked, make_evaluate, reached_by
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.kernel.isokinetic import make_isokinetic
from batchnuts.mcmc.kernel.metric import Metric, make_metric
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.kernel.step_size import make_first_step_size
from batchnuts.mcmc.model.data_argument import Leaves, leaves_of
from batchnuts.mcmc.model.density_expression import input_types
from batchnuts.mcmc.model.fingerprint import Fingerprint
from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.model.model_cache import ModelCache
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.process.signals import say
from batchnuts.settings.schema import SettingsError

ANY_VALUE = frozenset({"seed", "warmup", "start", "superchains", "init", "until", "draws", "step_size", "cluster"})
"""Settings that no program depends on; the length of buffers is checked separately."""

SAME = 1000
"""Two evaluations of one density may differ by this many units of rounding: sums may be added in another order."""

Shape: TypeAlias = tuple[tuple[str, Any], ...]

_lock = threading.Lock()
_last: OrderedDict[tuple[int, Shape], weakref.ref[ModelCache]] = OrderedDict()
"""Where programs are kept, the least recently used first: with the models, one cache for a model of several data."""
_limit = 4
_warned: set[Path] = set()
"""Folders of the disk cache of which it was said that they cannot be written."""


def check_disk_cache(setting: str | None, *, goes_on: bool = False) -> None:
    """Refuse a folder of `execution.cache` that cannot be written, and warn, once, where that of `auto` cannot.

    goes_on: of a run that goes on, whose settings cannot be changed: a warning in any case. Raises SettingsError.
    """
    entries = entries_of(setting)
    problem = None if entries is None else entries.problem()
    if entries is None or problem is None:
        return
    if setting != AUTO and not goes_on:
        raise SettingsError(
            f"execution.cache: found {setting!r}, where compiled programs cannot be cached ({problem}); expected auto, "
            "the path of a folder that you can write to, or null for no cache"
        )
    if entries.folder not in _warned:
        _warned.add(entries.folder)
        say(
            f"warning: compiled programs cannot be cached ({problem}), so the next start compiles again; set "
            f"{VARIABLE} to a folder that you can write to, or execution.cache to null."
        )


@dataclass
class Programs:
    """The programs of a run, for one model and settings of one shape."""

    value_and_gradient: Callable[..., Any]
    metric: Metric
    """Its parameters are those of the last run."""
    evaluate: BatchedFunction
    first_step_size: BatchedFunction
    isokinetic_langevin: BatchedFunction
    position: np.ndarray
    """[dimension]: where the first chain of their first run began."""
    data: Leaves
    """The arrays of the data of that run, if the density takes data."""
    values: list[np.ndarray]
    """What the density gave there, outside of compiled programs."""
    reached: Fingerprint
    """What it found around it, but for what it changes itself: a list in which it notes its calls, say."""
    runner: Runner | None = None
    """None until it is compiled."""
    rows: int = 0
    """The rows of the runner's buffers."""
    divergences: bool = False
    """Whether it records the ends of trajectories."""
    outlined: bool = False
    """Whether the density is machine code of its own (`DensityLibrary.in_machine_code`)."""
    identity: Identity | None = None
    """What the programs depend on, as `BatchedFunction.identity` says it; None: not known."""
    parameters: MetricParameters | None = None
    """The parameters to which the metric was set last."""

    def know(self, identity: Identity | None) -> None:
        """Set what programs depend on that will be compiled from now on."""
        self.identity = identity
        for program in (self.evaluate, self.first_step_size, self.isokinetic_langevin):
            program.identity = identity


def keep_programs(models: int) -> None:
    """Limit the compiled programs kept in memory to those of the last `models` pairs of a model and settings.

    They are 4 until this is called; 0 keeps none. A model's programs are freed with it in any case.

    Raises ValueError below 0.
    """
    global _limit
    if isinstance(models, bool) or not isinstance(models, int) or models < 0:
        raise ValueError(f"models must be an integer of at least 0; found {models!r}")
    _limit = models
    with _lock:
        dropped = _shorten()
    del dropped


def borrow(
    model: Model,
    density_library: DensityLibrary,
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    position: np.ndarray,
    checked: Checked | None = None,
) -> Programs:
    """The programs for such settings, exclusively until they are returned.

    position [dimension]: where the first chain begins, for new ones. checked: what a check found there, just before.
    """
    key = _shape(sampler, execution)
    with _lock:
        _last.pop((id(model.cache), key), None)
        programs: Programs | None = model.cache.programs.pop(key, None)
    reached = reached_by(model) if checked is None else checked.reached
    if (
        programs is not None
        and all(reached.get(place) == digest for place, digest in programs.reached.items())
        and _are_same(_evaluated(model, density_library, programs.position, programs.data), programs.values)
    ):
        programs.know(_identity(model, density_library, key, execution, position, checked, programs.value_and_gradient))
        return programs
    data = leaves_of(model.data)
    values = _evaluated(model, density_library, position, data, checked)
    reached_after = reached_by(model)
    if checked is not None and reached_after != reached:
        # the check was perhaps its first call, which makes what later ones use
        checked = None
        values = _evaluated(model, density_library, position, data)
        reached, reached_after = reached_after, reached_by(model)
    settled = {place: digest for place, digest in reached.items() if reached_after.get(place) == digest}
    by_xla, chains = execution.expert.mode == "xla", sampler.chain_count
    density = value_and_gradient(model, density_library, xla=by_xla, chains=chains)
    metric = make_metric(sampler.metric, model.dimension, model.dtype, sampler.metric_rank)
    evaluate, first_step_size = make_evaluate(density), make_first_step_size(density, model.dtype, metric)
    isokinetic = make_isokinetic(density, model.dimension, model.dtype, metric)
    programs = Programs(density, metric, evaluate, first_step_size, isokinetic, position.copy(), data, values, settled)
    programs.outlined = density_library.in_machine_code
    programs.know(_identity(model, density_library, key, execution, position, checked, programs.value_and_gradient))
    return programs


def _identity(
    model: Model,
    density_library: DensityLibrary,
    settings: Shape,
    execution: ExecutionSettings,
    position: np.ndarray,
    checked: Checked | None,
    density: Any,
) -> Identity | None:
    """What the programs depend on beside the files of this package: the density as it is, and the settings.

    density: the primitive that computes it, with its gradient.
    """
    by_xla = (info := engine_infos()[execution.backend]).keeps_programs and info.is_compiled(execution.expert.mode)
    if execution.expert.executor != "virtual_machine" or not by_xla or current() is None:
        return None
    # TensorFlow's programs call one trace of the density; JAX traces it for each, and a twin is traced for each
    by_one_trace = density_library.backend == "tensorflow" and model.batched_value_and_gradient is None
    traced = density.function if by_one_trace else None
    other_settings = repr([(name, value) for name, value in settings if name != "cache"])
    if density_library.in_machine_code:  # an outlined function, which the chains' code calls
        others = repr([(name, value) for name, value in settings if name not in ("cache", "chains")])
        of_any = digest_of(model.dtype, repr(input_types(model)), others)
        return Identity(
            lambda _: of_any, density_library.library.key_by_identity, by_lanes=False, record=density.record
        )

    def current_identity(lanes: int, alone: str | None = None) -> str | None:
        identity = density_identity(model, density_library, position, [lanes], alone, traced)
        return None if identity is None else digest_of(identity, other_settings)

    def first_identity(lanes: int) -> str | None:
        return current_identity(lanes, None if checked is None else checked.identity)

    by_lanes = model.batched_value_and_gradient is not None
    return Identity(current_identity, density_library.library.key_by_identity, first_identity, by_lanes=by_lanes)


def give_back(model: Model, sampler: SamplerSettings, execution: ExecutionSettings, programs: Programs) -> None:
    """Keep the programs for the next run."""
    key = _shape(sampler, execution)
    with _lock:
        model.cache.programs[key] = programs
        _last.pop((id(model.cache), key), None)
        _last[id(model.cache), key] = weakref.ref(model.cache)
        dropped = _shorten()
    del dropped  # not under the lock


def _shorten() -> list[Programs | None]:
    """The entries to drop: all but the last few."""
    for dead in [place for place, cache in _last.items() if cache() is None]:
        del _last[dead]
    dropped = []
    while len(_last) > _limit:
        (_, key), cache = _last.popitem(last=False)
        if (owner := cache()) is not None:
            dropped.append(owner.programs.pop(key, None))
    return dropped


def _shape(sampler: SamplerSettings, execution: ExecutionSettings) -> Shape:
    values = sampler.model_dump(exclude=set(ANY_VALUE))
    values["metric"] = METRIC_KINDS[sampler.metric].program or sampler.metric
    executed = execution.model_dump(exclude={*ANY_VALUE, "expert"})
    return (*values.items(), *executed.items(), *execution.expert.model_dump().items())


def _evaluated(
    model: Model, density_library: DensityLibrary, position: np.ndarray, data: Leaves, checked: Checked | None = None
) -> list[np.ndarray]:
    """Log-density and gradient at one position [dimension], of the density and of its twin, if it has one.

    data: the arrays of data that the density takes. checked: what a check found of the density there.
    """
    library = density_library.library
    if checked is None:
        arrays = map(library.tensor, (position, *data))
        values = [*library.differentiated(model.flat_log_density)(*arrays)]
    else:
        values = [checked.log_density, checked.gradient]
    if model.batched_value_and_gradient is not None:
        values += library.compiled(model.batched_value_and_gradient)(library.tensor(position[None]))
    return [np.asarray(array) for array in values]


def _are_same(values: list[np.ndarray], earlier: list[np.ndarray]) -> bool:
    def same(array: np.ndarray, reference: np.ndarray) -> bool:
        if array.shape != reference.shape:
            return False
        size = np.abs(reference[np.isfinite(reference)]).max(initial=0.0)
        return np.allclose(array, reference, rtol=0.0, atol=SAME * np.finfo(reference.dtype).eps * size, equal_nan=True)

    return all(map(same, values, earlier))
