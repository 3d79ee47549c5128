"""The text of Fibonacci after every pass, kept in tests/golden; `pytest --update-golden` rewrites it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs import CASES, fibonacci, is_even


def test_fibonacci_after_every_pass(check_golden: Callable[..., None]) -> None:
    check_golden("fibonacci", fibonacci, ("int64",))


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
    changed = fibonacci.dump("int64", after="frontend").replace("n <= 1", "n < 1")
    with pytest.raises(AssertionError, match=r"(?s)-.*\{n <= 1\}.*\+.*\{n < 1\}.*--update-golden"):
        check_golden_text("fibonacci.frontend", changed)


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
    (case,) = [case for case in CASES if case.name == name]
    types = case.function.lane_types(case.inputs)
    check_golden_text(f"language.{name}", case.function.dump(*types, after="frontend", backend="numpy"))
