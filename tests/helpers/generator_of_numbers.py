"""Small programs on numbers at the edges of every dtype, as source text, from any `random.Random`.

`generator` keeps numbers small. Here inputs are the extremes of eight integer dtypes, zeros of both signs, infinities
and NaN; ranges end at the end of their dtype; literals may not fit what they meet; names are those that a compiler
uses itself; the entry function has array defaults; and values around the functions change between two runs.

A program's integers are of two kinds. A *typed* variable (t, s) has the dtype of the input `n`, as NumPy's scalars
have, and in narrow dtypes is Python's own integer on some lanes. A *plain* one (p, q) is made of Python's integers, as
the variable of a range is, and kept small.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")

NAMES = (
    "result",
    "_1",
    "_2",
    "check",
    "_check1",
    "main",
    "counter",
    "stop",
    "step",
    "value",
    "buffer",
    "index",
    "lane",
)
NAMES += ("self", "args", "out", "return_", "constant", "body", "done", "inputs", "depth", "pc", "_held1", "_constant1")
"""What users may call parameters and variables, and a compiler too."""

LITERALS = (
    0,
    1,
    2,
    3,
    7,
    100,
    127,
    128,
    200,
    255,
    256,
    300,
    40000,
    65535,
    70000,
    2**31 - 1,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
)


@dataclass
class _Body:
    """The entry function while it is written."""

    random: Random
    names: dict[str, str]
    """The name in the program, by what it holds."""
    short: bool
    """Whether the product of two inputs fits int64, in which Python's integers are computed."""
    narrow: bool
    """Whether it is of 16 bits or fewer, so that products of four fit."""
    divides: bool
    """Whether floats are divided, which backends round differently."""
    loops: int = 0

    def pick(self, *options: Any) -> Any:
        return self.random.choice(options)

    def small(self) -> int:
        return self.random.randint(0, 5)

    def literal(self) -> str:
        number = self.pick(*LITERALS) if self.random.random() < 0.3 else self.pick(0, 1, 2, 3, 7, 100)
        return str(-number if self.random.random() < 0.3 else number)

    def typed(self, depth: int = 1) -> str:
        """An integer of the dtype of the inputs."""
        name = self.pick("{n}", "{m}", "{t}", "{s}", "{buffer}[0]", "{buffer}[2]", "ops.sum({given} * {n})", "TABLE[1]")
        if depth == 0:
            return str(name)
        left, right = self.typed(depth - 1), self.pick(self.typed(depth - 1), self.literal())
        match self.pick("binary", "binary", "binary", "unary", "divided", "shifted", "extreme", "choice", "call"):
            case "binary":
                return f"({left} {self.pick('+', '-', '*', '&', '|', '^')} {right})"
            case "unary":
                return f"{self.pick('~', '+', 'abs')}({left})"
            case "divided":
                return f"({left} {self.pick('//', '%')} ({right} if {right} != 0 else {left} | 1))"
            case "shifted":
                return f"({left} {self.pick('<<', '>>')} {self.small()})"
            case "extreme":
                return f"{self.pick('min', 'max')}({left}, {self.typed(0)})"
            case "choice":
                return f"({left} if {self.condition()} else {self.typed(0)})"
        return f"helper({left})"

    def plain(self, depth: int = 1) -> str:
        """A Python integer, below about a thousand."""
        name = self.pick("{p}", "{q}", str(self.small()), "len({buffer})", "SETTINGS['plain']", "SETTINGS['list'][1]")
        if depth == 0:
            return str(name)
        left, right = self.plain(depth - 1), self.plain(depth - 1)
        return str(self.pick(f"({left} {self.pick('+', '-', '*')} {right}) % 97", f"min({left}, {right})", name))

    def real(self, depth: int = 1) -> str:
        """A float of the dtype of the inputs."""
        name = self.pick("{x}", "{y}", "{z}")
        if depth == 0:
            return str(name)
        left, right = self.real(depth - 1), self.pick(self.real(depth - 1), "2.0", "0.0", "-1.5", "3")
        match self.pick("binary", "binary", "divided", "unary", "choice"):
            case "divided" if self.divides:
                return f"({left} {self.pick('//', '%', '/')} {right})"
            case "binary" | "divided":
                return f"({left} {self.pick('+', '-', '*')} {right})"
            case "unary":
                return f"{self.pick('-', 'abs')}({left})"
        return f"({left} if {self.condition()} else {self.real(0)})"

    def condition(self) -> str:
        compared = self.pick("<", "<=", "==", "!=", ">", ">=")
        return str(
            self.pick(
                f"{self.typed(0)} {compared} {self.literal()}",
                f"{self.literal()} {compared} {self.typed(0)}",
                f"{self.typed(0)} {compared} {self.typed(0)}",
                f"{self.real(0)} {compared} {self.real(0)}",
                f"{self.typed(0)} in (1, {self.literal()})",
                f"{self.plain(0)} {compared} {self.plain(0)}",
            )
        )

    def statements(self, depth: int) -> list[str]:
        return [line for _ in range(self.random.randint(1, 3)) for line in self.statement(depth)]

    def indented(self, depth: int) -> list[str]:
        return ["    " + line for line in self.statements(depth - 1)]

    def statement(self, depth: int) -> list[str]:
        kinds = ["typed", "typed", "plain", "real", "write", "literal"] + (["if", "range", "range"] if depth else [])
        kinds += ["mixed"] if self.narrow else []
        match self.random.choice(kinds):
            case "typed":
                return [f"{self.pick('{t}', '{s}')} = {self.typed(2)}"]
            case "plain":
                return [f"{self.pick('{p}', '{q}')} = {self.plain(2)}"]
            case "real":
                return [f"{self.pick('{y}', '{z}')} = {self.real(2)}"]
            case "literal":
                # Python's own integer only so far: it does not wrap, and int64 would
                return [f"{{t}} = {self.typed(0)} if {self.condition()} else {self.literal()}", "{t} = {t} ^ {n} ^ {n}"]
            case "mixed":
                held, name = (
                    f"{self.typed(0)} if {self.condition()} else {self.pick(1, 7, 100, -3)}",
                    self.pick("t", "s"),
                )
                computed = (
                    f"{{{name}}} {self.pick('+', '-', '*', '% 11 *', '& 96 ^')} {self.pick(f'{{{name}}}', '7', '1')}"
                )
                return [f"{{{name}}} = {held}", f"{self.pick('{t}', '{s}')} = {computed}"]
            case "write":
                written = self.pick(self.typed(1), self.literal(), self.literal(), self.plain(0))
                return [f"{{buffer}} = write({{buffer}}, {self.random.randrange(3)}, {written})"]
            case "if":
                return [f"if {self.condition()}:", *self.indented(depth), "else:", *self.indented(depth)]
        return self.range(depth)

    def range(self, depth: int) -> list[str]:
        """A loop that the tenth round leaves; its bounds are near an input, and so may be near the end of the dtype."""
        n, step = self.pick("{n}", "{m}"), self.pick("1", "2", "3", "-1", "-2", "7")
        first, last = (f"{n} - {self.small()}", n) if step[0] != "-" else (n, f"{n} - {self.small()}")
        if self.pick(True, False):
            first, last = (n, f"{n} + {self.small()}") if step[0] != "-" else (f"{n} + {self.small()}", n)
        self.loops += 1
        i, rounds = f"i{self.loops}", f"rounds{self.loops}"
        use = self.pick(
            f"{{p}} = ({{p}} + {i} % 89) % 97",
            f"{{q}} = {i} * {i} % 97" if self.short else f"{{q}} = ({i} % 89) * ({i} // 3 % 97)",
            f"{{p}} = {{p}} + 1 if {i} > {n} else {{p}}",
            f"{{t}} = {{t}} ^ {n} if {i} == {n} else {{t}}",
        )
        leave = [f"    {rounds} += 1", f"    if {rounds} > 9:", "        break"]
        return [
            f"{rounds} = 0",
            f"for {i} in range({first}, {last}, {step}):",
            *leave,
            f"    {use}",
            *self.indented(depth),
        ]


def program(random: Random, divides: bool = True) -> str:
    """The text of a module: `main_program(n, m, x, y)` and `change()`, which changes the values around it."""
    dtype = random.choice(INTEGERS)
    roles = ("n", "m", "x", "y", "given", "t", "s", "p", "q", "z", "buffer")
    names = dict(zip(roles, random.sample(NAMES, len(roles))))
    short, narrow = np.dtype(dtype).itemsize < 4 or dtype == "int32", np.dtype(dtype).itemsize < 4
    body = _Body(random, names, short, narrow, divides)
    starts = ["{t} = {n}", "{s} = {m}", "{p} = 1", "{q} = 0", "{z} = {x}", f'{{buffer}} = np.zeros(3, dtype="{dtype}")']
    lines = [*starts, *body.statements(2), *body.statements(2), "return {t}, {s}, {p}, {q}, {y}, {z}, {buffer}"]
    text = "".join(f"    {line.format_map(names)}\n" for line in lines)
    return f'''\
TABLE = np.array([3, 5], dtype="{dtype}")
DEFAULT = np.array([1, 0], dtype="{dtype}")
SETTINGS = {{"plain": 4, "list": [7, 8]}}
DTYPE = "{dtype}"


def change():
    TABLE[1], DEFAULT[0] = 9, 2
    SETTINGS["plain"] = 11
    SETTINGS["list"][1] = 12


@batch
def helper({names["n"]}, {names["m"]}=TABLE):
    return {names["n"]} ^ {names["m"]}[0]


@batch
def main_program({names["n"]}, {names["m"]}, {names["x"]}, {names["y"]}, {names["given"]}=DEFAULT):
{text}
'''


def lanes(random: Random, dtype: str, count: int) -> tuple[np.ndarray, ...]:
    """Inputs for the lanes of `main_program`, near what their dtypes hold."""
    limits = np.iinfo(dtype)
    edges = [limits.max, limits.max - 1, limits.max - 3, limits.min, limits.min + 1, limits.min + 4, 0, 1, 3, 100]
    floating = np.finfo(real := random.choice(FLOATS))
    specials = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.75, -2.5, float(floating.max), -float(floating.max)]
    integers = [np.array([random.choice(edges) for _ in range(count)], dtype=dtype) for _ in range(2)]
    floats = [np.array([random.choice(specials) for _ in range(count)], dtype=real) for _ in range(2)]
    return (*integers, *floats)
