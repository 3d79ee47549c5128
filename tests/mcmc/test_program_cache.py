"""What is compiled of a model is kept for its next run: how often, for how long, and that nothing old is ever used."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import threading
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import batchnuts
from batchnuts.autobatch import StackOverflowError
from batchnuts.autobatch.backends.tensorflow import session
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.mcmc.execution import program_cache
from batchnuts.mcmc.model import fingerprint
from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.starts.find_starts import check_at_starts
from batchnuts.mcmc.storage.draws import Draws, RunFailed
from batchnuts.mcmc.storage.progress import Progress

NUMPY: dict[str, Any] = {
    "chains": 2, "warmup": 3, "draws": 4, "step_size": 0.5, "backend": "numpy", "max_tree_depth": 2
}  # fmt: skip
"""With a step size that is given: another program would find the first one."""


def normal(scale: Any = 1.0, calls: list[Any] | None = None) -> Model:
    def log_density(q: Any) -> Any:
        if calls is not None:
            calls.append(q)
        return -0.5 * tf.reduce_sum((q / scale) ** 2)

    return Model.from_function(log_density, dimension=2, dtype="float64")


def run(model: Model, progress: Any = None, **settings: Any) -> Draws:
    return run_chains(model, *split_settings(NUMPY | settings), progress)


def assert_same(one: Draws, other: Draws) -> None:
    np.testing.assert_array_equal(one.position, other.position)
    np.testing.assert_array_equal(one.stats["n_steps"], other.stats["n_steps"])


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[VirtualMachine]]:
    """Those made since the test began."""
    made: list[weakref.ref[VirtualMachine]] = []
    make_machine = VirtualMachine.__init__

    def noted(self: VirtualMachine, *args: Any, **kwargs: Any) -> None:
        made.append(weakref.ref(self))
        make_machine(self, *args, **kwargs)

    monkeypatch.setattr(VirtualMachine, "__init__", noted)
    return made


@pytest.fixture
def four() -> Iterator[None]:
    """However many programs were kept before, four afterwards."""
    yield
    batchnuts.keep_programs(4)


def alive(machines: list[weakref.ref[VirtualMachine]]) -> int:
    gc.collect()
    return sum(machine() is not None for machine in machines)


def test_a_second_run_of_the_same_shape_makes_nothing(machines: list[Any]) -> None:
    model = normal()
    run(model, step_size=None)
    before = len(machines)
    assert before == 3, "the density, the first step size, the chains"
    again: list[dict[str, Any]] = [
        {"seed": 5, "draws": 3, "step_size": None},
        {"warmup": 0, "step_size": 0.3, "metric": "unit"},
    ]
    found = [run(model, **settings) for settings in again]
    assert len(machines) == before
    for settings, draws in zip(again, found, strict=True):
        assert_same(draws, run(normal(), **settings))


OTHER_PROGRAMS: list[dict[str, Any]] = [
    {"metric": "dense"},
    {"chains": 4},
    {"draws": 40},
    {"max_tree_depth": 3},
    {"target_acceptance": 0.6},
    {"expert": {"schedule": "earliest"}},
    {"leapfrogs_per_leaf": 2},
    {"divergence_threshold": 10.0},
    {"chunk_lanes": 1},
]


@pytest.mark.parametrize(
    "some", [OTHER_PROGRAMS[:3], pytest.param(OTHER_PROGRAMS[3:], marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_what_makes_other_programs(some: list[dict[str, Any]], machines: list[Any]) -> None:
    model = normal()
    fixed: dict[str, Any] = {"warmup": 0}
    run(model, **fixed)
    for settings in some:
        before = len(machines)
        run(model, **fixed | settings)
        assert len(machines) > before, settings
    assert_same(run(model, **fixed), run(normal(), **fixed))


@pytest.mark.parametrize("settings", [settings for settings in OTHER_PROGRAMS if "draws" not in settings], ids=str)
def test_what_makes_other_programs_is_of_the_shape(settings: dict[str, Any]) -> None:
    assert program_cache._shape(*split_settings(NUMPY | settings)) != program_cache._shape(*split_settings(NUMPY))


def test_every_setting_is_either_of_the_shape_or_of_no_program() -> None:
    """A setting that somebody adds makes other programs until it is known that it need not."""
    sampler, execution = split_settings({})
    shape = dict(program_cache._shape(sampler, execution))
    settings = {*type(sampler).model_fields, *type(execution).model_fields, *type(execution.expert).model_fields}
    settings -= {"expert"}
    hash(program_cache._shape(sampler, execution))
    assert settings >= program_cache.ANY_VALUE
    assert set(shape) == settings - program_cache.ANY_VALUE


def test_under_xla_nothing_is_traced_and_no_session_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = session.SessionProgram._make
    monkeypatch.setattr(session.SessionProgram, "_make", lambda self: [made.append(weakref.ref(self)), make(self)][1])
    traced: list[Any] = []
    model = normal(calls=traced)
    settings: dict[str, Any] = {"backend": "tensorflow", "chains": 2, "step_size": None}
    first = run(model, **settings)
    sessions = len(made)
    assert sessions == 3

    def graphs() -> int:
        return sum(tf.is_symbolic_tensor(q) for q in traced)

    before = graphs()
    assert before > 0
    assert_same(run(model, **settings), first)
    assert not np.array_equal(run(model, seed=9, **settings).position, first.position)
    assert (len(made), graphs()) == (sessions, before)
    traced.clear()
    del model
    gc.collect()
    assert [program() for program in made] == [None] * sessions, "and with them all that XLA has compiled"


def test_programs_go_with_their_model(machines: list[Any]) -> None:
    models = [normal(scale) for scale in (1.0, 2.0)]
    for model in models:
        run(model)
    assert alive(machines) > 0
    del model, models
    assert alive(machines) == 0


def test_of_many_models_the_last_few_are_kept(machines: list[Any], four: None) -> None:
    batchnuts.keep_programs(2)
    models = [normal(float(scale)) for scale in range(1, 4)]
    counts = []
    for model in models:
        run(model)
        counts.append(alive(machines))
    assert counts == [counts[0], *[2 * counts[0]] * 2]
    before = len(machines)
    run(models[-1])
    run(models[-2])
    assert len(machines) == before
    run(models[0])
    assert len(machines) == before + counts[0]
    run(models[-2])  # which was used after models[-1]
    assert len(machines) == before + counts[0]
    batchnuts.keep_programs(0)
    assert alive(machines) == 0
    run(models[0])
    assert alive(machines) == 0


def test_of_many_shapes_the_last_few_are_kept(machines: list[Any], four: None) -> None:
    batchnuts.keep_programs(2)
    model = normal()
    counts = []
    for chains in range(1, 4):
        run(model, chains=chains)
        counts.append(alive(machines))
    assert counts == [counts[0], *[2 * counts[0]] * 2]


@pytest.mark.parametrize("models", [-1, True, 2.0, "4"])
def test_how_many_to_keep_is_a_number(models: Any) -> None:
    with pytest.raises(ValueError, match="at least 0; found"):
        batchnuts.keep_programs(models)


@pytest.mark.parametrize("kind", ["array", pytest.param("variable", marks=pytest.mark.slow), "twin"])
def test_data_that_have_changed_are_seen_by_the_next_run(kind: str, machines: list[Any]) -> None:
    scale = np.array([1.0, 2.0])
    if kind == "twin":
        alone = normal(scale)

        def by_hand(q: Any) -> Any:
            return -0.5 * tf.reduce_sum((q / scale) ** 2, axis=1), -q / scale**2

        model = Model(
            name="twin", log_density=alone.log_density, dimension=2, dtype="float64", batched_value_and_gradient=by_hand
        )
    else:
        model = normal(tf.Variable(scale) if kind == "variable" else scale)
    settings = {"warmup": 0, "step_size": 0.2}
    before = run(model, **settings)
    scale[1] = 30.0
    if kind == "variable":
        model.log_density.__closure__[1].cell_contents.assign(scale)
    after, made = run(model, **settings), len(machines)
    assert not np.array_equal(after.position, before.position)
    np.testing.assert_allclose(after.position, run(normal(scale), **settings).position, rtol=1e-12)
    made = len(machines)
    run(model, **settings)
    assert len(machines) == made, "kept again"


SWITCH = {"on": 0.0, "rows": [[1.0], [2.0]]}


@dataclasses.dataclass
class Weights:
    scale: float = 0.0
    table: Any = None

    def of(self, x: Any) -> Any:
        return self.scale * x


def switched(q: Any) -> Any:
    return SWITCH["on"] * tf.nn.relu(q[0] - 50.0)


def with_a_hidden_part(part: Any, **options: Any) -> Model:
    """A density of which `part` is nothing where chains start."""
    return Model.from_function(lambda q: -0.5 * tf.reduce_sum(q * q) - part(q), dimension=2, dtype="float64", **options)


def hidden_parts() -> dict[str, tuple[Any, Any]]:
    """By what it is found through: a part of a density, and a change of it that shows only far away."""

    def far(q: Any) -> Any:
        return tf.nn.relu(q[0] - 50.0)

    numbers, array, weights, deep = [0.0], np.zeros(3), Weights(), {"a": (Weights(table=[np.zeros(2)]),)}
    namespace, variable = types.SimpleNamespace(scale=0.0), tf.Variable(0.0, dtype=tf.float64)
    defaulted = types.FunctionType((lambda q, scale=0.0: scale * q[0]).__code__, globals(), argdefs=(0.0,))

    @tf.function(autograph=False)
    def decorated(q: Any) -> Any:
        return numbers[0] * far(q)

    def change(where: Any, place: Any, value: Any) -> Any:
        return lambda: where.__setitem__(place, value)

    return {
        "list": (lambda q: numbers[0] * far(q), change(numbers, 0, 1.0)),
        "array": (lambda q: array[1] * far(q), change(array, 1, 1.0)),
        "global": (switched, lambda: SWITCH.update(on=SWITCH["on"] + 1.0)),
        "method": (lambda q: weights.of(far(q)), lambda: setattr(weights, "scale", 1.0)),
        "deep": (lambda q: deep["a"][0].table[0][1] * far(q), change(deep["a"][0].table[0], 1, 1.0)),
        "namespace": (lambda q: namespace.scale * far(q), lambda: setattr(namespace, "scale", 1.0)),
        "variable": (lambda q: variable * far(q), lambda: variable.assign(1.0)),
        "partial": (functools.partial(lambda n, q: n[0] * far(q), numbers), change(numbers, 0, 1.0)),
        "tf.function": (decorated, change(numbers, 0, 1.0)),
        "default": (lambda q: defaulted(far(q)[None]), lambda: setattr(defaulted, "__defaults__", (1.0,))),
        "code": (lambda q: weights.of(far(q)), lambda: setattr(Weights, "of", lambda self, x: x)),
    }


@pytest.mark.parametrize("through", hidden_parts())
def test_a_change_that_no_value_shows_is_seen(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The density has the same value and gradient wherever chains start."""
    monkeypatch.setattr(Weights, "of", Weights.of)  # put back afterwards
    part, change = hidden_parts()[through]
    model = with_a_hidden_part(part)
    settings = split_settings(NUMPY)
    at = np.zeros(2)
    kept = program_cache.borrow(model, density_library_of(model), *settings, at)
    program_cache.give_back(model, *settings, kept)
    assert program_cache.borrow(model, density_library_of(model), *settings, at) is kept
    program_cache.give_back(model, *settings, kept)
    change()
    assert program_cache.borrow(model, density_library_of(model), *settings, at) is not kept


@pytest.mark.parametrize("backend", ["numpy", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_the_next_run_samples_the_density_that_has_changed(backend: str) -> None:
    wall = [0.0]
    model = with_a_hidden_part(lambda q: wall[0] * 20.0 * tf.nn.relu(q[0] - 0.5))
    settings = {"backend": backend, "chains": 60, "warmup": 0, "step_size": 0.5, "draws": 3, "max_tree_depth": 2}
    assert run(model, **settings).position[:, -1, 0].max() > 1.5
    wall[0] = 1.0
    assert run(model, **settings).position[:, -1, 0].max() < 1.5


def test_what_the_density_changes_itself_is_no_change() -> None:
    calls: list[Any] = []
    weights = Weights()

    def counted(q: Any) -> Any:
        calls.append(q)
        weights.table = len(calls)
        return weights.of(q[0])

    model = with_a_hidden_part(counted)
    settings = split_settings(NUMPY)
    kept = program_cache.borrow(model, density_library_of(model), *settings, np.zeros(2))
    program_cache.give_back(model, *settings, kept)
    assert program_cache.borrow(model, density_library_of(model), *settings, np.zeros(2)) is kept
    program_cache.give_back(model, *settings, kept)
    weights.scale = 1.0
    assert program_cache.borrow(model, density_library_of(model), *settings, np.zeros(2)) is not kept


def test_what_a_density_makes_when_it_is_checked_is_compared() -> None:
    """Its first call makes the part that the user changes between runs."""
    made: dict[str, float] = {}

    def part(q: Any) -> Any:
        return made.setdefault("scale", 0.0) * tf.nn.relu(q[0] - 50.0)

    model, settings, at = with_a_hidden_part(part), split_settings(NUMPY), np.zeros((1, 2))
    density_library = density_library_of(model)
    made.clear()  # the density's library was found by a call
    kept: list[Any] = []
    for changes in ({}, {}, {"scale": 1.0}):
        made.update(changes)
        checked = check_at_starts(model, density_library, lambda attempt: at, at)
        kept.append(program_cache.borrow(model, density_library, *settings, at[0], checked))
        program_cache.give_back(model, *settings, kept[-1])
    assert [programs is kept[0] for programs in kept] == [True, True, False]


def test_large_arrays_are_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "MOST_BYTES", 1000)
    monkeypatch.setattr(fingerprint, "SOME", 10)
    array = np.zeros(1000)

    def reads() -> Any:
        return array

    before = fingerprint.fingerprint(reads)
    array[1] = 1.0
    assert fingerprint.fingerprint(reads) == before
    array[100] = 1.0
    assert fingerprint.fingerprint(reads) != before


def test_of_this_package_it_is_read_what_functions_hold_and_not_their_code() -> None:
    """A bridge's function has a user's within it."""
    array = np.zeros(3)

    def users(x: Any) -> Any:
        return x + array

    def wrapped(x: Any) -> Any:
        return users(x)

    def other(x: Any) -> Any:
        return 2 * users(x)

    for function in (wrapped, other):
        function.__module__, function.__qualname__ = "batchnuts.bridges.made_up", "of_bridge"
    before = fingerprint.fingerprint(wrapped)
    assert fingerprint.fingerprint(other) == before
    array[1] = 1.0
    assert fingerprint.fingerprint(wrapped) != before


def test_what_refers_to_itself_and_what_there_is_much_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "MOST_OBJECTS", 50)
    ring: list[Any] = []
    ring.append(ring)
    many = [[k] for k in range(1000)]

    def reads() -> Any:
        return ring, many, reads

    assert fingerprint.fingerprint(reads) == fingerprint.fingerprint(reads)
    assert fingerprint.fingerprint(None, np.sin, len) == fingerprint.fingerprint(None, np.sin, len)


@pytest.mark.parametrize(
    ("phase", "stop"),
    [("compile", KeyboardInterrupt), ("warmup", KeyboardInterrupt), ("sampling", KeyboardInterrupt),
     pytest.param("sampling", ZeroDivisionError, marks=pytest.mark.slow)],
)  # fmt: skip
def test_an_interrupted_run_leaves_nothing_behind(phase: str, stop: type[BaseException], machines: list[Any]) -> None:
    def report(progress: Progress) -> None:
        if progress.phase == phase:
            raise stop

    model = normal()
    if stop is KeyboardInterrupt:
        found = run(model, report)
        assert found.interrupted or (phase == "sampling" and found.done.min() == found.settings.draws)
    else:
        with pytest.raises(RunFailed) as raised:  # after its first draw
            run(model, report)
        assert isinstance(raised.value.cause, stop)
    before = len(machines)
    assert_same(run(model, seed=1), run(normal(), seed=1))
    if stop is KeyboardInterrupt and phase != "compile":
        assert len(machines) == 2 * before, "only the other model's"


def test_a_fault_on_a_lane_leaves_nothing_behind() -> None:
    model = normal()
    short: dict[str, Any] = {"max_stack_depth": 1, "step_size": 1e6, "warmup": 0}
    run(model, **short)
    with pytest.raises(StackOverflowError):
        run(model, **short | {"step_size": 0.01})
    assert_same(run(model, **short), run(normal(), **short))


def test_runs_at_once_have_programs_of_their_own() -> None:
    model, threads = normal(), 2
    alone = [run(normal(), seed=seed) for seed in range(threads)]
    together = threading.Barrier(threads)

    def one(seed: int) -> Draws:
        together.wait(60)
        return run(model, seed=seed)

    for _ in range(2):
        with ThreadPoolExecutor(threads) as pool:
            for seed, found in enumerate(pool.map(one, range(threads))):
                assert_same(found, alone[seed])
    assert len(program_cache._programs_of(model)) == 1


def test_nothing_of_the_last_run_is_kept_but_the_programs() -> None:
    model = normal()
    draws = weakref.ref(run(model).position.base)
    gc.collect()
    assert draws() is None


def test_a_copy_of_a_model_has_programs_of_its_own() -> None:
    model = normal()
    run(model)
    assert model.cache.programs
    assert not copy.copy(model).cache.programs
    assert_same(run(copy.copy(model)), run(model))
