"""Random integer programs, drawn as source text: all executors agree with plain Python."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from from_source import load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

VARIABLES = ("a", "b", "c")
LANES = 4

SETTINGS = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


@st.composite
def expressions(draw: Any, depth: int = 2) -> str:
    """An integer expression, small enough in value not to overflow."""
    kind = draw(st.sampled_from(("name", "constant", "operator", "conditional", "builtin", "guarded", "chain")))
    if depth == 0 or kind == "name":
        return draw(st.sampled_from(VARIABLES))
    if kind == "constant":
        return str(draw(st.integers(-5, 9)))
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    if kind == "operator":
        return f"({left} {draw(st.sampled_from('+-*&|^'))} {right}) % 97"
    if kind == "builtin":
        return f"{draw(st.sampled_from(('min', 'max')))}({left}, abs({right}))"
    if kind == "guarded":
        return f"({left} // {right} if {right} else {left})"
    test = draw(conditions(depth - 1))
    if kind == "chain":
        return f"({left} {draw(st.sampled_from(('and', 'or')))} {right})"
    return f"({left} if {test} else {right})"


@st.composite
def conditions(draw: Any, depth: int = 1) -> str:
    left, right = draw(expressions(depth)), draw(expressions(0))
    test = f"{left} {draw(st.sampled_from(('<', '<=', '==', '!=', '>')))} {right}"
    form = draw(st.sampled_from(("plain", "plain", "not", "and", "or", "chain")))
    if form == "not":
        return f"not {test}"
    if form == "chain":
        return f"{draw(expressions(0))} <= {test}"
    if form != "plain":
        return f"({test} {form} {draw(expressions(0))} % 3)"
    return test


@st.composite
def statements(draw: Any, depth: int, in_loop: bool, loops: int = 0) -> list[str]:
    """A few statements as lines; loops are bounded, every variable is always defined."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kinds = ["assign", "assign", "augmented", "parallel", "call"]
        kinds += ["if", "if", "for", "while"] if depth else []
        kinds += ["leave"] if in_loop else []
        kinds += ["return"]
        kind = draw(st.sampled_from(kinds))
        target = draw(st.sampled_from(VARIABLES))

        def indented(inside: bool, loops: int = loops) -> list[str]:
            return ["    " + line for line in draw(statements(depth - 1, inside, loops))]

        match kind:
            case "assign":
                lines.append(f"{target} = {draw(expressions())}")
            case "augmented":
                lines.append(f"{target} {draw(st.sampled_from('+-^'))}= {draw(expressions(1))}")
            case "parallel":
                one, two = draw(expressions(1)), draw(expressions(1))
                other = draw(st.sampled_from([v for v in VARIABLES if v != target]))
                lines.append(f"{target}, {other} = {one}, {two}")
            case "call":
                # the recursion's depth shrinks, and at most two calls lie outside loops
                if not loops and "f(" not in "".join(lines):
                    lines.append(f"{target} = f({draw(expressions(1))}, {draw(expressions(1))}, c, left - 1)")
            case "if":
                lines += [f"if {draw(conditions())}:", *indented(in_loop)]
                if draw(st.booleans()):
                    lines += ["else:", *indented(in_loop)]
            case "for":
                start, stop, step = draw(st.sampled_from(((0, 3, 1), (2, -2, -1), (0, 0, 1), (1, 6, 2))))
                bound = draw(st.sampled_from((str(stop), f"{target} % 4")))
                lines += [f"for i{depth} in range({start}, {bound}, {step}):", *indented(True, loops + 1)]
                lines += [f"    {target} += i{depth}"]
                if draw(st.booleans()):
                    lines += ["else:", *indented(in_loop, loops)]
            case "while":
                lines += [f"k{depth} = 0", f"while k{depth} < 3 and {draw(conditions())}:", f"    k{depth} += 1"]
                lines += indented(True, loops + 1)
            case "leave":
                lines += [f"if {draw(conditions())}:", f"    {draw(st.sampled_from(('break', 'continue')))}"]
            case "return":
                lines += [f"if {draw(conditions())}:", f"    return {draw(expressions(1))}"]
    return lines or ["pass"]


@st.composite
def programs(draw: Any) -> str:
    body = draw(statements(2, False))
    bound = [f"{v} = {v} % 101" for v in VARIABLES]  # keeps values small through the recursion
    lines = ["if left <= 0:", "    return a - b", *bound, *body, f"return {draw(expressions())} % 1009"]
    return "@batch\ndef f(a, b, c, left):\n" + "".join(f"    {line}\n" for line in lines)


lanes = st.lists(st.tuples(*[st.integers(-9, 9)] * 3, st.integers(0, 3)), min_size=LANES, max_size=LANES)


def check(text: str, rows: list[tuple[int, ...]], *ways: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        program = load(Path(folder), text).f
        inputs = tuple(np.array(column) for column in zip(*rows, strict=True))
        expected = [program.function(*map(int, row)) for row in rows]
        for way in ways:
            np.testing.assert_array_equal(program.run(*inputs, **way), expected, err_msg=f"{way}\n{text}")


@settings(max_examples=150, **SETTINGS)
@given(programs(), lanes)
def test_numpy_agrees_with_plain_python(text: str, rows: list[tuple[int, ...]]) -> None:
    check(
        text,
        rows,
        {"backend": "numpy", "schedule": "earliest"},
        {"backend": "numpy", "schedule": "drain"},
        {"backend": "numpy", "executor": "stackless"},
    )


@settings(max_examples=8, **SETTINGS)
@given(programs(), lanes)
def test_tensorflow_agrees_with_plain_python(text: str, rows: list[tuple[int, ...]]) -> None:
    check(text, rows, {"mode": "eager"}, {"executor": "stackless"})
