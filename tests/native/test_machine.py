"""The machine whose lanes run through machine code: the corpus, stacks, faults, foreign primitives, and its states."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import BY_NAME, CASES, Case
from ways import NATIVE, ORACLE

from batchnuts.autobatch import LaneAssertionError, StackOverflowError, batch, ops, primitive, random
from batchnuts.autobatch.backends.registry import has_jax
from batchnuts.autobatch.language.pytree import flatten, map_leaves
from batchnuts.autobatch.language.shared import Shared
from batchnuts.autobatch.machine import LaneProgram, ResumableMachine
from batchnuts.autobatch.native import machine as native_machine
from batchnuts.autobatch.native.machine import NativeMachine
from batchnuts.autobatch.runtime.faults import LARGEST_STACK_DEPTH

RTOL = {"float32": 2e-6, "float64": 1e-13}

IN_XLA = [*(["jax"] if has_jax() else []), "tensorflow"]
"""Libraries whose programs call machine code."""

ENGINES = {"tensorflow": "native_tensorflow", "numpy": "native_numpy"}
"""By the library of foreign primitives; the others are `native`'s."""


def options_of(library: str) -> dict[str, str]:
    return {**NATIVE.options, "backend": ENGINES.get(library, "native")}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_corpus_agrees_with_plain_python(case: Case) -> None:
    found, tree = flatten(case.function.run(*case.inputs, **NATIVE.options))
    expected, expected_tree = flatten(case.function.run(*case.inputs, executor=ORACLE))
    assert tree == expected_tree
    dtypes = case.dtypes or tuple(leaf.dtype.name for leaf in expected)
    assert tuple(leaf.dtype.name for leaf in found) == dtypes
    for a, b, dtype in zip(found, expected, dtypes, strict=True):
        rtol = (case.rtol or RTOL[dtype]) if dtype in RTOL else 0
        np.testing.assert_allclose(a, b.astype(dtype), rtol=rtol, atol=rtol)
    order = np.roll(np.arange(len(flatten(case.inputs)[0][0])), 1)[::-1]
    permuted = case.function.run(*(map_leaves(lambda leaf: leaf[order], x) for x in case.inputs), **NATIVE.options)
    for a, b in zip(flatten(permuted)[0], found, strict=True):
        np.testing.assert_array_equal(a, b[order])


def machine_of(
    function: Any, *arguments: Any, depth: int = 4, limited: bool = False, library: str = "jax"
) -> tuple[LaneProgram, Any]:
    """A machine for these arguments [lanes, ...], whose stacks grow unless they are limited."""
    program = LaneProgram(function, arguments, ENGINES.get(library, "native"), "xla")
    lanes = len(flatten(arguments)[0][0])
    made = program.machine(lanes, depth, grows=not limited)
    assert isinstance(made, NativeMachine)
    return program, made


@batch
def depth_of(n: Any) -> Any:
    """Not a tail call: it needs a frame for each level."""
    if n == 0:
        return 0
    return depth_of(n - 1) + n % 2


def test_stacks_grow_where_they_are() -> None:
    """Deeper than any other lane, and deeper than stacks began: nothing runs again from the start."""
    n = np.array([3, 60_000, 17, 0])
    program, machine = machine_of(depth_of, n)
    state = machine.run((n,))
    machine.check_faults(state)
    np.testing.assert_array_equal(program.result(machine, state), (n + 1) // 2)
    _, profile = depth_of.run(n, profile=True, **NATIVE.options)
    assert profile.total.active < 4 * (n + 2).sum(), "each level ran once"
    (run,) = profile.runs
    assert (run.restarts, run.call_depth) == (0, 60_001)


@batch
def endless(x: Any) -> Any:
    """No base case is ever reached, and nothing says how deep it goes."""
    if x < 0:
        return x
    return 1 + endless(x * 0.5)


def test_stacks_grow_to_a_depth_of_a_hundred_thousand_where_that_is_asked_for() -> None:
    assert depth_of.run(np.array([100_000]), max_stack_depth=100_010, **NATIVE.options).tolist() == [50_000]


def test_a_recursion_without_end_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stacks have grown where they were, as far as they may: to begin with deeper ones would change nothing."""
    begun: list[int] = []
    start = NativeMachine.start

    def noted(machine: NativeMachine, arguments: Any) -> Any:
        begun.append(machine.stack_depth)
        return start(machine, arguments)

    monkeypatch.setattr(NativeMachine, "start", noted)
    with pytest.raises(StackOverflowError, match=f"holds {LARGEST_STACK_DEPTH} frames.*may also be infinite"):
        endless.run(np.array([1.0]), **NATIVE.options)
    assert len(begun) == 1


def test_a_limit_is_the_users() -> None:
    n = np.array([2, 9, 30])
    with pytest.raises(StackOverflowError, match=r"lane 1 recursed too deep in 'depth_of'.* holds 8 frames \(2 of 3"):
        depth_of.run(n, max_stack_depth=8, **NATIVE.options)


@batch
def root(x: Any) -> Any:
    assert x >= 0, "of a negative number"
    return ops.sqrt(x)


def test_an_assertion_names_the_lane_and_the_place() -> None:
    with pytest.raises(LaneAssertionError, match=r"(?s)test_machine.py.*assert x >= 0.*lane 2: .*of a negative number"):
        root.run(np.array([4.0, 0.0, -1.0]), **NATIVE.options)


# ---- foreign primitives ----------------------------------------------------------------------------------------------

factor = Shared("factor_of_native_test", np.array(3.0))
calls: list[int] = []


@primitive(costly=True)
def cubed(x: Any) -> Any:
    """Of Python's: there is no expression of a costly primitive."""
    calls.append(1)
    return x * x * x


@primitive(batched=True, shared=(factor,))
def scaled(x: Any, by: Any) -> Any:
    return x * by


@batch
def sum_of_cubes(n: Any, x: Any) -> Any:
    if n == 0:
        return x * 0
    return cubed(x + n) + sum_of_cubes(n - 1, x) + scaled(x)


N, X = np.array([3, 0, 5, 2]), np.array([0.5, 1.0, -1.0, 2.0])
EXPECTED = [sum((x + k) ** 3 for k in range(1, n + 1)) + 3 * n * x for n, x in zip(N, X, strict=True)]


@pytest.fixture(params=["numpy", *IN_XLA])
def library(request: pytest.FixtureRequest) -> str:
    """The array library of foreign primitives."""
    return str(request.param)


def test_foreign_primitives_are_computed_for_all_lanes_that_wait(library: str) -> None:
    np.testing.assert_allclose(sum_of_cubes.run(N, X, **options_of(library)), EXPECTED)
    factor.value = np.array(-1.0)
    try:
        changed = sum_of_cubes.run(N, X, **options_of(library))
    finally:
        factor.value = np.array(3.0)
    np.testing.assert_allclose(changed, np.array(EXPECTED) - 4 * N * X)


@primitive(batched=True, costly=True, shared=(factor,))
def costly_scaled(x: Any, by: Any) -> Any:
    return x * by


@batch
def scaled_twice(x: Any) -> Any:
    y = costly_scaled(x)
    if y > 0:
        y = costly_scaled(y)
    return y + scaled(x)


def test_shared_arrays_are_read_by_both_kinds(library: str) -> None:
    """By machine code, and by what an array library computes; with the values at the start of a run."""
    np.testing.assert_allclose(scaled_twice.run(X, **options_of(library)), [6.0, 12.0, -6.0, 24.0])
    factor.value = np.array(2.0)
    try:
        np.testing.assert_allclose(scaled_twice.run(X, **options_of(library)), [3.0, 6.0, -4.0, 12.0])
    finally:
        factor.value = np.array(3.0)


@primitive(costly=True)
def sum_and_doubled(values: Any) -> Any:
    return sum(values), tuple(2 * value for value in values)


@batch
def sum_of_many(values: Any) -> Any:
    total, doubled = sum_and_doubled(values)
    return total + sum(doubled)


@pytest.mark.parametrize(
    ("library", "count", "in_xla"),
    [
        *[
            pytest.param("jax", n, n < 62, marks=pytest.mark.skipif(not has_jax(), reason=""))
            for n in (60, 61, 62, 200)
        ],
        ("tensorflow", 62, False),
    ],
)
def test_a_primitive_of_many_values_may_be_called_from_python(library: str, count: int, in_xla: bool) -> None:
    """The handler of calls has room for 64 operands: all results, the handle and `go`."""
    values = tuple(np.array([k, -k], float) for k in range(count))
    program, machine = machine_of(sum_of_many, values, library=library)
    assert [foreign.loop is not None for foreign in machine.foreign.values()] == [in_xla]
    total = program.result(machine, machine.run((values,)))
    np.testing.assert_array_equal(total, 3 * np.sum(values, axis=0))


@pytest.mark.parametrize("metric", ["diag", "dense", "low_rank"])
@pytest.mark.parametrize(("transition", "leapfrogs"), [("nuts", 1), ("nuts", 3), ("walnuts", 1)])
def test_of_a_chain_only_the_gradient_is_foreign(transition: str, metric: str, leapfrogs: int) -> None:
    """Whatever else had no expression would end each turn of a lane."""
    from batchnuts.mcmc.kernel.make_transition import make_transition
    from batchnuts.mcmc.kernel.metric import make_metric
    from batchnuts.mcmc.settings.run_settings import split_settings

    @primitive(costly=True)
    def density(x: Any, data: Any) -> Any:
        return -0.5 * ops.sum(x * x), -x

    chosen = {"transition": transition, "metric": metric, "leapfrogs_per_leaf": leapfrogs}
    made = make_transition(density, split_settings(chosen)[0], "float64", make_metric(metric, 3, "float64", 2))
    ones = np.ones((2, 3))
    _, machine = machine_of(made, random.lane_keys(1, 2), ones, np.zeros(2), ones, np.ones(2), ones)
    assert {foreign.op.function.text for foreign in machine.foreign.values()} == {"density"}


def test_costly_evaluations_are_counted(library: str) -> None:
    program, machine = machine_of(sum_of_cubes, N, X, library=library)
    state = machine.run((N, X))
    counts = machine.counts(state)
    assert counts.costly.useful == N.sum()
    assert counts.costly.executed == (N.sum() if library == "numpy" else 4 * max(N))
    np.testing.assert_allclose(program.result(machine, state), EXPECTED)


@pytest.mark.parametrize(
    ("in_xla", "budget"), [(name, n) for name in IN_XLA for n in ((1, 2, 3, 100) if name == "jax" else (1, 100))]
)
def test_rounds_within_xla_give_what_rounds_from_python_give(
    in_xla: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the budget, down to single rounds, and without the call as well."""
    found = []
    for has_call in (True, False):
        if not has_call:
            monkeypatch.setattr("batchnuts.autobatch.native.foreign.make_loop", lambda *_: None)
        program, machine = machine_of(sum_of_cubes, N, X, library=in_xla)
        assert all((foreign.loop is not None) == has_call for foreign in machine.foreign.values())
        state = machine.start((N, X))
        while machine.count_live(state):
            state = machine.advance(state, budget)
        found.append((program.result(machine, state), int(state["sweeps"]), int(state["evaluated"])))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][2] == found[1][2]


@primitive(costly=True)
def of_every_size(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return a + b[0], 2 * b, ~c, d + 1, e - 1


@batch
def repeated(a: Any, b: Any, c: Any, d: Any, e: Any, n: Any) -> Any:
    while n > 0:
        a, b, c, d, e = of_every_size(a, b, c, d, e)
        n -= 1
    return a, b, c, d, e


def test_values_of_any_size_go_through(library: str) -> None:
    n = np.arange(5)
    others = n * 0.5, np.ones((5, 3)), n % 2 == 0, n.astype("int8"), n.astype("int32")
    for dtypes in (("float64", "float64"), ("float32", "float64"), ("float32", "float32")):
        values = [others[0].astype(dtypes[0]), others[1].astype(dtypes[1]), *others[2:]]
        if dtypes[0] != dtypes[1]:
            values[0] = values[0].astype(dtypes[1])
            values[4] = values[4].astype("int64")
        found = repeated.run(*values, n, **options_of(library))
        expected = repeated.run(*values, n, executor=ORACLE)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_a_machine_is_left_when_few_lanes_are_live(library: str) -> None:
    _, machine = machine_of(sum_of_cubes, N, X, library=library)
    state = machine.start((N, X))
    assert machine.count_live(state) == 4
    state = machine.advance(state, 10**9, leave_at=2)
    assert 0 < machine.count_live(state) <= 2


# ---- states ----------------------------------------------------------------------------------------------------------


def stepped(machine: ResumableMachine, state: Any, steps: int) -> Any:
    for _ in range(steps):
        state = machine.advance(state, 1)
    return state


@batch
def walk(key: Any, n: Any) -> Any:
    """A recursion with vectors on its stack."""
    key, own = random.split(key)
    step = random.normal(own, (3,))
    if n <= 1:
        return step
    return 0.5 * walk(key, n - 1) + step * walk(own, n // 3)


KEYS, LENGTHS = random.lane_keys(1, 6), np.array([2, 9, 1, 5, 12, 7])


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes are left after a few blocks."""
    monkeypatch.setattr(native_machine, "BLOCKS", 3)


@pytest.mark.usefixtures("short_turns")
def test_a_state_that_was_saved_goes_on_bit_for_bit() -> None:
    """In another machine whose stacks began elsewhere, too; what was given is left alone."""
    program, machine = machine_of(walk, KEYS, LENGTHS, depth=1)
    whole = program.result(machine, machine.run((KEYS, LENGTHS)))
    state = stepped(machine, machine.start((KEYS, LENGTHS)), 4)
    saved = machine.save(state)
    before = {name: array.copy() for name, array in saved.items()}
    _, other = machine_of(walk, KEYS, LENGTHS, depth=2)
    for each in (machine, other):
        rest = each.restore(saved, (KEYS, LENGTHS))
        while each.count_live(rest):
            rest = each.advance(rest, 1)
        np.testing.assert_array_equal(program.result(each, rest), whole)
    for name, array in machine.save(state).items():
        np.testing.assert_array_equal(array, before[name])


def test_what_does_not_fit_is_refused() -> None:
    _, machine = machine_of(walk, KEYS, LENGTHS)
    saved = machine.save(machine.start((KEYS, LENGTHS)))
    with pytest.raises(ValueError, match="this machine's state has no value:other"):
        machine.restore({**saved, "value:other": np.zeros(6)}, (KEYS, LENGTHS))
    with pytest.raises(ValueError, match="what was saved has no pc"):
        machine.restore({name: array for name, array in saved.items() if name != "pc"}, (KEYS, LENGTHS))
    with pytest.raises(ValueError, match=r"pc is int32\[2\] there, and int32\[6\]"):
        machine.restore({**saved, "pc": saved["pc"][:2]}, (KEYS, LENGTHS))
    with pytest.raises(KeyError, match=r"the state has no value:walk\.nothing"):
        machine.write(machine.start((KEYS, LENGTHS)), {"walk.nothing": np.zeros(6)})


@pytest.mark.usefixtures("short_turns")
def test_lanes_move_and_start_again() -> None:
    """Lanes of one state go on in another, whose stacks are not as deep; lanes that have halted start again."""
    program, machine = machine_of(walk, KEYS, LENGTHS, depth=1)
    whole = program.result(machine, machine.run((KEYS, LENGTHS)))
    ahead, fresh = stepped(machine, machine.start((KEYS, LENGTHS)), 5), machine.start((KEYS, LENGTHS))
    moved = machine.move(fresh, np.array([0, 2]), ahead, np.array([4, 1]))
    while machine.count_live(moved):
        moved = machine.advance(moved, 1)
    result = program.result(machine, moved)
    np.testing.assert_array_equal(result, whole[[4, 1, 1, 3, 4, 5]])
    again = machine.restart(moved, np.array([0, 2]), (KEYS, LENGTHS))
    assert machine.count_live(again) == 2
    while machine.count_live(again):
        again = machine.advance(again, 1)
    np.testing.assert_array_equal(program.result(machine, again), whole)


def test_variables_are_read_and_written() -> None:
    n = np.array([5, 6])
    program, machine = machine_of(depth_of, n)
    state = machine.write(machine.start((n,)), {"main.n": np.array([8, 2])})
    np.testing.assert_array_equal(machine.read(state, "main.n"), [8, 2])
    while machine.count_live(state):
        state = machine.advance(state, 10)
    np.testing.assert_array_equal(program.result(machine, state), [4, 1])


# ---- the code --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fibonacci", "dot_of_rows"])
def test_the_instructions_of_two_programs(name: str, check_golden_text: Any) -> None:
    """Before LLVM's passes, which differ between processors."""
    case = BY_NAME[name]
    program = LaneProgram(case.function, case.inputs, "native", "xla")
    machine = program.machine(2, 4)
    assert isinstance(machine, NativeMachine)
    check_golden_text(f"native.{name}", machine.native.text)


def test_machine_code_is_made_once_for_any_number_of_lanes_and_any_depth() -> None:
    function = BY_NAME["fibonacci"].function
    made = [LaneProgram(function, (np.arange(n),), "native", "xla").machine(n, depth) for n, depth in ((2, 4), (9, 30))]
    assert len({id(machine.native) for machine in made if isinstance(machine, NativeMachine)}) == 1


# ---- where it cannot run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["a symbol", "no package"])
def test_the_array_engine_runs_where_machine_code_cannot(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one warning that says why, and what to do, if llvmlite is there."""
    from batchnuts.autobatch.engines import native
    from batchnuts.autobatch.engines.registry import engine_on
    from batchnuts.autobatch.native import compile as compile_module

    native.is_available.cache_clear()
    try:
        if what == "a symbol":
            monkeypatch.setattr(compile_module, "C_FUNCTIONS", ("fmod", "no_such_function"))
            with pytest.warns(RuntimeWarning, match=r"C library has no no_such_function.*virtual machine.*Reinstall"):
                assert not native.is_available()
        else:
            monkeypatch.setattr(native.importlib.util, "find_spec", lambda _: None)
        assert engine_on("jax", "xla", "auto", "auto", "virtual_machine") == "jax"
    finally:
        native.is_available.cache_clear()


def test_it_is_taken_where_nothing_else_is_asked_for() -> None:
    from batchnuts.autobatch.engines.registry import engine_on

    usual = {"library": "tensorflow", "mode": "xla", "style": "auto", "schedule": "auto", "executor": "virtual_machine"}
    assert engine_on(**usual) == "native_tensorflow"
    if has_jax():
        assert engine_on(**{**usual, "library": "jax"}) == "native"
    assert engine_on(**{**usual, "library": "numpy"}) == "native_numpy"
    others = {
        "mode": "eager",
        "style": "masking",
        "schedule": "drain",
        "executor": "stackless",
    }
    for name, value in others.items():
        asked = {**usual, name: value}
        assert engine_on(**asked) == asked["library"], name


@pytest.mark.parametrize("what", ["no handler", "no answer", "a wrong answer"])
def test_tensorflow_runs_its_own_machine_where_its_programs_cannot_call(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another version, say. Machine code is then there for those who ask for it, and driven from Python."""
    from batchnuts.autobatch.engines.registry import engine_on
    from batchnuts.autobatch.native import tensorflow_call

    def fail(*_: Any) -> Any:
        raise AttributeError("no such function")

    if what == "no handler":
        monkeypatch.setattr(tensorflow_call, "_register", fail)
    elif what == "no answer":
        monkeypatch.setattr(tensorflow_call, "call", fail)
    else:
        monkeypatch.setattr(tensorflow_call, "call", lambda _handle, operands, _: [operands[0] + 1])
    tensorflow_call.works.cache_clear()
    try:
        assert engine_on("tensorflow", "xla", "auto", "auto", "virtual_machine") == "tensorflow"
        np.testing.assert_allclose(sum_of_cubes.run(N, X, **options_of("tensorflow")), EXPECTED)
    finally:
        tensorflow_call.works.cache_clear()


FORKED = """
import multiprocessing
import numpy as np
from batchnuts.autobatch import batch

@batch
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)

def called(first):
    return fibonacci.run(np.arange(first, first + 2000) % 15, backend="native").sum()

if __name__ == "__main__":
    whole = called(0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(called, [0, 15]) == [whole, whole])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_threads_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "forked.py").write_text(FORKED)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "forked.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "True\n", ended.stderr
