"""The suite kills hand-made mutants: each breaks one rule, and some program shows it.

What is run is small: a few programs of the corpus and a few random ones, on NumPy. A mutant is killed by a result that
differs from plain Python, by an error, by a run that does not end, or by the verifier; one that `costs` only, by
numbers that differ from the true library's: executions of blocks, variables with stacks, pushes.
"""

from __future__ import annotations

import functools
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import mutants
import mutants_of_language
import mutants_of_machine
import mutants_of_passes
import numpy as np
import pytest
from from_source import load
from generator import lanes, program
from mutants import MUTANTS, Mutant
from programs import CASES

from batchnuts.autobatch import PushOp, StackOverflowError, VariableAllocation, pipeline
from batchnuts.autobatch.backends.numpy import NumpyBackend
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.runtime import stackless, virtual_machine
from batchnuts.autobatch.scheduling import policies

PROGRAMS = (
    "fibonacci",
    "swap_arguments",
    "collatz",
    "parallel_assignment",
    "gcd_with_temporary",
    "hanoi",
    "unpacks_results",
    "guarded_division",
    "calls_in_conditions",
    "same_argument",
    "loop_else",
    "squares",
    "recursive_record",
    "quicksort",
    "rotate_and_sum",
    "costly_after_uneven_work",
    "dataclass_fields",
    "early_return",
    "is_even",
    "exchange",
    "climb",
    "rounded_down",
    "known_at_first",
    "ackermann",
    "quadrature",
    "dot_of_rows",
    "mixed_structures",
    "counted_with_others",
    "insertion_sort",
    "before_and_after",
    "passes_functions",
    "inner_functions",
    "compares_structures",
)
SHOWN_BY = {
    "a_function_inside_reads_nothing_around_it": "inner_functions",
    "a_function_is_compiled_once": "passes_functions",
    "a_loop_that_may_not_run_runs": "counted_with_others",
    "a_negative_index_is_not_counted_from_the_end": "insertion_sort",
    "arguments_one_after_another": "exchange",
    "arm_sees_the_other": "collatz",
    "arms_exchanged": "collatz",
    "assigned_parameters_too": "rounded_down",
    "calls_not_masked": "calls_in_conditions",
    "costly_ignored": "costly_after_uneven_work",
    "drop_writes": "squares",
    "enumerate_begins_with_zero": "dot_of_rows",
    "everything_may_be_speculated": "dataclass_fields",
    "first_result_only": "unpacks_results",
    "frames_kept_at_a_jump": "climb",
    "in_place_though_live": "inner_functions",
    "inline_used_twice": "unpacks_results",
    "nothing_is_carried_to_the_next_copy": "mixed_structures",
    "one_round": "collatz",
    "pushes_always_read": "climb",
    "results_in_reverse": "hanoi",
    "sequential_copies": "exchange",
    "stale_originals": "loop_else",
    "tuples_of_one_length_are_equal": "compares_structures",
    "what_stands_before_sees_the_new_value": "before_and_after",
    "write_not_masked": "squares",
    "zip_goes_on_to_the_longest": "dot_of_rows",
}
"""Mutant -> a program that is known to show it, which is tried first: the others are the longer way."""
RANDOM_PROGRAMS = 12
SCHEDULES = ("earliest", "drain")
DEPTH = 32
"""Frames a stack holds; none of the programs needs more."""
LIMIT = 4000
"""Sweeps, and block executions under stackless, within which all of the programs end."""


@dataclass(frozen=True)
class Subject:
    """A program with its inputs, and what plain Python gives."""

    name: str
    function: Any
    inputs: tuple[Any, ...]
    expected: tuple[np.ndarray, ...]

    @property
    def leaves(self) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(leaf) for leaf in flatten(self.inputs)[0])


@pytest.fixture(scope="module")
def subjects() -> Iterator[tuple[Subject, ...]]:
    by_name = {case.name: case for case in CASES}
    chosen = [(name, by_name[name].function, by_name[name].inputs) for name in PROGRAMS]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(RANDOM_PROGRAMS):
            random = Random(seed)
            function = load(Path(folder), program(random)).main_program
            chosen.append((f"random program {seed}", function, lanes(random, 4)))
        yield tuple(
            Subject(name, function, inputs, tuple(flatten(function.run(*inputs, executor="unbatched"))[0]))
            for name, function, inputs in chosen
        )


class EndlessRunError(Exception):
    """A run takes more steps than the program can need."""


class LimitedTally(dict):
    """A tally that stops a run after LIMIT blocks."""

    def __setitem__(self, label: str, counts: tuple[int, int]) -> None:
        super().__setitem__(label, counts)
        if sum(times for times, _ in self.values()) > LIMIT:
            raise EndlessRunError


def compiled(subject: Subject) -> Any:
    """Again each time: the functions' own caches would hide what a mutant does."""
    return pipeline.compile_function(subject.function, subject.function.lane_types(subject.inputs), NumpyBackend())


def machine_run(subject: Subject, lowered: Any, policy: str, depth: int) -> tuple[Any, dict[str, Any]]:
    made = policies.make_schedule(lowered, policy)
    count = len(subject.leaves[0])
    machine = virtual_machine.VirtualMachine(lowered, NumpyBackend(), count, depth, made)
    state = machine.advance(machine.start(subject.leaves), LIMIT)
    if not machine.is_finished(state):
        raise EndlessRunError
    machine.check_faults(state)
    return machine, state


def assert_expected(found: tuple[Any, ...], subject: Subject) -> None:
    for a, b in zip(found, subject.expected, strict=True):
        np.testing.assert_array_equal(a, b)


def run_all(subject: Subject) -> None:
    """Raises if anything about the program's results is wrong."""
    both = compiled(subject)
    for policy in SCHEDULES:
        machine, state = machine_run(subject, both.lowered, policy, DEPTH)
        assert_expected(machine.results(state), subject)
    found = stackless.execute(both.with_calls, NumpyBackend(), None, *subject.leaves, tally=LimitedTally())
    assert_expected(found, subject)
    if subject.name == "fibonacci":
        assert_overflow_is_seen(subject, both.lowered)


def assert_overflow_is_seen(subject: Subject, lowered: Any) -> None:
    try:
        machine_run(subject, lowered, "earliest", 2)
    except StackOverflowError:
        return
    raise AssertionError("the overflow went unnoticed")


def costs(subject: Subject) -> dict[str, Any]:
    """What a run takes, apart from its results."""
    lowered = compiled(subject).lowered
    executions = {p: int(machine_run(subject, lowered, p, DEPTH)[1]["executions"].sum()) for p in SCHEDULES}
    stacked = sorted(v for v, a in lowered.var_alloc.items() if a is VariableAllocation.FULL)
    pushes = sum(isinstance(op, PushOp) for block in lowered.graph.blocks for op in block.ops)
    return {"executions": executions, "stacked": stacked, "pushes": pushes}


@pytest.fixture(scope="module")
def true_costs(subjects: tuple[Subject, ...]) -> Callable[[str], dict[str, Any]]:
    """By name of the subject, found when they are asked for: few mutants are seen by them alone."""
    by_name = {subject.name: subject for subject in subjects}
    return functools.cache(lambda name: costs(by_name[name]))


def how_killed(mutant: Mutant, subject: Subject, true: dict[str, Any] | None) -> str | None:
    """Why this program shows the mutant, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run_all(subject)
            if mutant.costs and (found := costs(subject)) != true:
                return f"costs {found} instead of {true}"
    except Exception as error:
        innermost = traceback.extract_tb(error.__traceback__)[-1]
        own = tuple(m.__file__ for m in (mutants, mutants_of_language, mutants_of_machine, mutants_of_passes))
        if innermost.filename in own:  # the mutant itself is broken
            raise
        return f"{type(error).__name__}: {' '.join(str(error).split())[:60]}"
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{m.where}: {m.name}" for m in MUTANTS])
def test_a_mutant_is_killed(
    mutant: Mutant,
    subjects: tuple[Subject, ...],
    true_costs: Callable[[str], dict[str, Any]],
) -> None:
    for subject in sorted(subjects, key=lambda one: one.name != SHOWN_BY.get(mutant.option)):
        true = true_costs(subject.name) if mutant.costs else None
        with pytest.MonkeyPatch.context() as patch:
            mutant.patch(patch)
            reason = how_killed(mutant, subject, true)
        if reason is not None:
            print(f"{mutant.where}: {mutant.name}: killed by {subject.name}: {reason}")
            return
    pytest.fail(f"no program notices the mutant of {mutant.where}: {mutant.name}")


def test_the_true_library_passes(subjects: tuple[Subject, ...]) -> None:
    """Else the mutants would be killed by whatever is wrong without them."""
    for subject in subjects:
        run_all(subject)


def test_there_are_enough_mutants() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    places = {
        "lower",
        "masking",
        "allocate",
        "dataflow",
        "coalesce",
        "schedule",
        "invert",
        "tail_calls",
    }
    assert places <= {mutant.where for mutant in MUTANTS}
    assert set(SHOWN_BY) <= {mutant.option for mutant in MUTANTS}
    assert set(SHOWN_BY.values()) <= set(PROGRAMS)
