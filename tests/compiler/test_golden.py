"""Programs as text, kept in tests/golden: one before and after each pass, and what the frontend makes of constructs.

`pytest --update-golden` rewrites them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from programs import BY_NAME, fibonacci, is_even

from batchnuts.autobatch import batch, show_program


@batch
def quotient_and_remainder(a, b):
    if a < b:
        return 0, a
    quotient, remainder = quotient_and_remainder(a - b, b)
    return quotient + 1, remainder


@batch
def quotients(n):
    """Of the first call's results one is read by nobody."""
    sevenths, _ = quotient_and_remainder(n, 7)
    thirds, rest = quotient_and_remainder(sevenths, 3)
    return thirds + rest


CHANGED_BY: dict[str, Any] = {
    "frontend": fibonacci,
    "infer_types": fibonacci,
    "flatten_structures": BY_NAME["dataclass_fields"].function,
    "eliminate": BY_NAME["dead_code"].function,
    "self_tail_calls": BY_NAME["gcd_by_tail_call"].function,
    "inline": BY_NAME["gcd"].function,
    "if_convert": BY_NAME["collatz"].function,
    "duplicate_tails": BY_NAME["exchange"].function,
    "record_expressions": BY_NAME["gcd"].function,
    "lower": fibonacci,
    "eliminate_lowered": quotients,
    "allocate": fibonacci,
    "invert": fibonacci,
    "coalesce": fibonacci,
    "tail_calls": is_even,
}
"""For each pass a short program that it changes."""


def before_and_after(function: Any, types: tuple[Any, ...], name: str) -> tuple[str, str]:
    """The text that a pass is given (the frontend: the source) and what it gives."""
    passes = function.passes(*types)
    number = [*passes].index(name)
    before = show_program([*passes.values()][number - 1]) if number else inspect.getsource(function.function)
    return before.strip(), show_program(passes[name], expressions=name == "record_expressions").strip()


@pytest.mark.parametrize("name", CHANGED_BY)
def test_before_and_after_a_pass(name: str, check_golden_text: Callable[[str, str], None]) -> None:
    function = CHANGED_BY[name]
    types = ("int64",) * len(inspect.signature(function.function).parameters)
    case = BY_NAME.get(function.__name__)
    before, after = before_and_after(function, case.function.lane_types(case.inputs) if case else types, name)
    assert before != after, f"{name} changes nothing in {function.__name__}: choose another program"
    check_golden_text(f"pass.{name}", f"==== before {name}\n{before}\n\n==== after {name}\n{after}\n")


def test_every_pass_has_a_golden() -> None:
    assert [*CHANGED_BY] == [*fibonacci.passes("int64")]


def test_dump_gives_the_same_text_again() -> None:
    first = is_even.dump("int64", after="eliminate_lowered")
    assert first == is_even.dump("int64", after="eliminate_lowered")
    assert "is_odd.n" in first


def test_dump_names_the_passes_it_knows() -> None:
    with pytest.raises(ValueError, match="no pass 'typo'; the passes are frontend, infer_types"):
        fibonacci.dump("int64", after="typo")


def test_a_failing_golden_shows_a_diff(check_golden_text: Callable[[str, str], None], request) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("the file would be overwritten")
    dot_of_rows = BY_NAME["dot_of_rows"]
    text = dot_of_rows.function.dump(*dot_of_rows.function.lane_types(dot_of_rows.inputs), after="frontend")
    line = next(line for line in text.splitlines() if "{" in line)
    with pytest.raises(AssertionError, match=rf"(?s)-{re.escape(line)}.*--update-golden"):
        check_golden_text("language.dot_of_rows", text.replace(f"{line}\n", ""))


READ_AS = (
    "dot_of_rows",
    "mixed_structures",
    "variable_after_loop",
    "elements_of_matrices",
    "guarded",
    "before_and_after",
    "star_arguments",
    "passes_functions",
    "in_comprehensions",
    "lambdas",
    "inner_functions",
)


@pytest.mark.parametrize("name", READ_AS)
def test_what_the_frontend_makes_of_it(name: str, check_golden_text: Callable[[str, str], None]) -> None:
    """Loops over structures, assigned elements, := and functions as values: what simpler statements stand for them."""
    case = BY_NAME[name]
    types = case.function.lane_types(case.inputs)
    check_golden_text(f"language.{name}", case.function.dump(*types, after="frontend", backend="numpy"))
