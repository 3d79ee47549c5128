"""Engines: the contract, where they are registered, and one of twenty lines that runs the corpus."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from programs import CASES, Case
from ways import one_in

from batchnuts.autobatch import OptionError, batch
from batchnuts.autobatch.engines import registry
from batchnuts.autobatch.engines.engine import EngineInfo, MachineOptions
from batchnuts.autobatch.engines.reference import ReferenceEngine, ReferenceMachine
from batchnuts.autobatch.engines.registry import engine_infos, engine_of, register
from batchnuts.autobatch.engines.sweep import NUMPY, SweepEngine
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.machine import LaneProgram
from batchnuts.autobatch.runtime import reference
from batchnuts.mcmc.execution.chunk_plan import is_compiled
from batchnuts.mcmc.settings.run_settings import ExecutionSettings


class LaneByLaneMachine(ReferenceMachine):
    """Runs one lane for each sweep of its budget."""

    def start(self, arguments: Any) -> dict[str, Any]:
        return {"arguments": tuple(flatten(arguments)[0]), "rows": ()}

    def advance(self, state: dict[str, Any], budget: int, leave_at: int = 0) -> dict[str, Any]:
        rows = state["rows"]
        while budget > 0 and self.lanes - len(rows) > leave_at:
            lane = [np.asarray(a)[[len(rows)]] for a in state["arguments"]]
            rows += (reference.execute(self.program, *lane, max_stack_depth=self.stack_depth),)
            budget -= 1
        return {**state, "rows": rows}

    def live(self, state: dict[str, Any]) -> np.ndarray:
        return np.arange(self.lanes) >= len(state["rows"])

    def results(self, state: dict[str, Any]) -> tuple[np.ndarray, ...]:
        return tuple(map(np.concatenate, zip(*state["rows"], strict=True)))


class LaneByLane(ReferenceEngine):
    info = EngineInfo("lane_by_lane", "one lane after another", packages=("numpy",), process_bytes=150_000_000)

    def refuses(self, compiled: Any) -> str | None:
        return "it has no output" if not compiled.with_calls.vars_out else None

    def machine(self, compiled: Any, arrays: Any, lanes: int, options: MachineOptions) -> ReferenceMachine:
        return LaneByLaneMachine(compiled.with_calls, lanes, options.stack_depth)


@pytest.fixture
def lane_by_lane(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "_ENGINES", dict(registry._ENGINES))
    register(LaneByLane())
    return "lane_by_lane"


@pytest.mark.parametrize(
    "case", [pytest.param(*p.values, id=p.values[0].name, marks=p.marks) for p in one_in(6, CASES)]
)
def test_an_engine_that_is_registered_runs_the_corpus(case: Case, lane_by_lane: str) -> None:
    ours = case.function.run(*case.inputs, backend=lane_by_lane)
    on_numpy = case.function.run(*case.inputs, backend="numpy")
    for found, expected in zip(flatten(ours)[0], flatten(on_numpy)[0], strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@batch
def triangle(n: Any) -> Any:
    return 0 if n == 0 else n + triangle(n - 1)


N = np.array([3, 0, 5])


def test_it_is_one_of_all(lane_by_lane: str) -> None:
    assert engine_infos()[lane_by_lane].title == "one lane after another"
    assert "lane_by_lane" not in {name for name, info in engine_infos().items() if info.profiles}
    with pytest.raises(OptionError, match="tensorflow, numpy, reference, lane_by_lane, or a Backend object"):
        triangle.run(N, backend="lane by lane")
    with pytest.raises(OptionError, match="found a second engine 'lane_by_lane'"):
        register(LaneByLane())


def test_it_can_be_driven_by_budgets(lane_by_lane: str) -> None:
    arrays = engine_of(lane_by_lane).arrays("eager", "auto")
    compiled = triangle.compiled(triangle.lane_types((N,)), arrays)
    machine = engine_of(lane_by_lane).machine(compiled, arrays, 3, MachineOptions())
    state = machine.advance(machine.start((N,)), 2)
    assert machine.live(state).tolist() == [False, False, True]
    assert machine.advance(state, 1, leave_at=1) == state
    assert machine.results(machine.advance(state, 9))[0].tolist() == [6, 0, 15]


def test_what_it_refuses_is_an_error_that_says_why(lane_by_lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneByLane, "refuses", lambda *_: "it counts; use backend='numpy'")
    said = "backend 'lane_by_lane' cannot run triangle: it counts; use backend='numpy'"
    with pytest.raises(OptionError, match=said):
        triangle.run(N, backend=lane_by_lane)
    with pytest.raises(OptionError, match="cannot run it: it counts"):
        LaneProgram(triangle, (N,), lane_by_lane, "eager").machine(3, 4)


def test_what_needs_more_than_it_has_says_so(lane_by_lane: str) -> None:
    with pytest.raises(OptionError, match="what the virtual machine runs; backend 'lane_by_lane' does not count it"):
        triangle.run(N, backend=lane_by_lane, profile=True)
    with pytest.raises(OptionError, match="'lane_by_lane' runs programs as a whole, expected one that can resume"):
        LaneProgram(triangle, (N,), lane_by_lane, "eager").machine(3, 4)


def test_an_array_engine_says_in_which_modes_it_is_compiled() -> None:
    compiled = {
        name: [m for m in ("xla", "graph", "eager") if info.is_compiled(m)] for name, info in engine_infos().items()
    }
    every = ["xla", "graph", "eager"]
    machine_code = {"native": every, "native_tensorflow": every, "native_numpy": every}
    assert compiled == {**machine_code, "jax": ["xla"], "tensorflow": ["xla"], "numpy": [], "reference": []}


class OneLaneAtATime(LaneByLaneMachine):
    """Gives back before its budget is spent."""

    def advance(self, state: dict[str, Any], budget: int, leave_at: int = 0) -> dict[str, Any]:
        return super().advance(state, min(budget, 1), leave_at)


def test_a_call_waits_for_all_lanes(lane_by_lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(engine: Any, compiled: Any, arrays: Any, lanes: int, options: MachineOptions) -> ReferenceMachine:
        return OneLaneAtATime(compiled.with_calls, lanes, options.stack_depth)

    monkeypatch.setattr(LaneByLane, "machine", machine)
    assert triangle.run(N, backend=lane_by_lane).tolist() == [6, 0, 15]


class Own(SweepEngine):
    """One with a mode of its own, whose machines are compiled and resume: on NumPy, here."""

    def arrays(self, mode: str, style: str) -> Any:
        assert mode == "own"
        return NUMPY.arrays("eager", style)


def test_an_engine_with_a_mode_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has that mode where another engine's is the default, and is divided into chunks as compiled ones are."""
    modes = {"modes": ("own",), "compiled_modes": ("own",)}
    info = EngineInfo("own", "an own engine", packages=("numpy",), process_bytes=10**8, resumes=True, **modes)
    monkeypatch.setattr(registry, "_ENGINES", dict(registry._ENGINES))
    register(Own(info, lambda: None))
    assert triangle.run(N, backend="own").tolist() == [6, 0, 15]
    with pytest.raises(OptionError, match="mode must be one of xla, graph, eager; found 'turbo'"):
        triangle.run(N, backend="own", mode="turbo")
    program = LaneProgram(triangle, (N,), "own", "xla")
    machine = program.machine(3, 8)
    state = machine.advance(machine.start((N,)), 5)
    resumed = machine.restore(machine.save(state), (N,))
    assert program.result(machine, machine.advance(resumed, 10**6)).tolist() == [6, 0, 15]
    assert is_compiled(ExecutionSettings.model_construct(backend="own", mode="xla", executor="virtual_machine"))


def test_the_reference_takes_no_machine_from_the_cache() -> None:
    function = batch(triangle.python_function)
    for lanes in range(1, 4):
        function.run(np.arange(lanes), executor="reference")
    function.run(N, backend="numpy")
    function.run(N, backend=NUMPY.arrays("eager", "auto"))
    assert len(function._machines) == 1, "a Backend object is the same as its name"


def test_a_state_with_an_entry_missing_is_refused() -> None:
    machine = LaneProgram(triangle, (N,), "numpy", "eager").machine(3, 8)
    saved = machine.save(machine.start((N,)))
    del saved["pc"]
    with pytest.raises(ValueError, match="what was saved has no pc, which this machine's state has"):
        machine.restore(saved, (N,))


SAMPLED_BY_ITS_OWN = """
from batchnuts.autobatch.engines.engine import EngineInfo
from batchnuts.autobatch.engines.registry import register
from batchnuts.autobatch.engines.sweep import NUMPY, SweepEngine

class Own(SweepEngine):
    def arrays(self, mode, style):
        return NUMPY.arrays("eager", style)

register(Own(EngineInfo("own", "an engine of one's own", ("numpy",), 10**8, resumes=True), lambda: None))
import batchnuts

model = batchnuts.Model.from_function(lambda q: -0.5 * (q * q).sum(), dimension=2)
small = dict(chains=4, draws=5, warmup=0, step_size=0.5, max_tree_depth=2, seed=1, progress=False)
own, numpy = (batchnuts.sample_chains(model, backend=name, **small) for name in ("own", "numpy"))
assert (own["posterior"]["position"].values == numpy["posterior"]["position"].values).all()
assert own["posterior"].attrs["backend"] == "own"
try:
    batchnuts.sample_chains(model, backend="owm")
except batchnuts.BatchnutsError as error:
    assert "jax, tensorflow, numpy, own; did you mean 'own'?" in str(error), error
else:
    raise SystemExit("an unknown engine was accepted")
"""


def test_chains_are_sampled_on_an_engine_that_is_registered_first() -> None:
    """Before `batchnuts.mcmc` is imported, as docs/add_an_engine.md says."""
    done = subprocess.run([sys.executable, "-c", SAMPLED_BY_ITS_OWN], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
