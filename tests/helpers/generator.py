"""Whole programs as source text, from any `random.Random`: a seeded one, or one that hypothesis steers and shrinks.

A program is one to three functions of the same parameters (a, b: integers; x: float; v: two floats; left: fuel) that
call themselves and each other. An `int` function gives an integer and is called inside expressions, conditions and
arguments; a `record` function gives a namedtuple. Fuel bounds the recursion, counters bound the loops, and every
variable is defined from the start. Integers are kept small by remainders, and floats are multiples of 1/16 of at most
64, so that every backend computes them exactly.

`d` is an array that nothing reads. In programs with strays its elements are stored outside of it on some lanes, which
Python refuses for these lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

HEAD = '''\
class Record(NamedTuple):
    i: object
    x: object
    v: object


def grid(x):
    """x on the grid of exact floats."""
    return ops.floor(ops.minimum(ops.maximum(x, -64.0), 64.0) * 16.0) / 16.0

'''

INTEGERS, FLOATS, VECTORS = ("a", "b", "c"), ("x", "y"), ("v", "u")
PARAMETERS = "a, b, x, v, left"
STARTS = (
    "c = b - a",
    "y = grid(x * 0.5)",
    "u = v[::-1]",
    'w = np.zeros(3, dtype="int64")',
    "d = np.zeros((2, 3))",
    "p = (a % 5, (x, b % 7))",
    "r = Record(c, y, u)",
)
"""How the other variables of every function start: `w` is a buffer, `p` and `r` are structures."""

INTEGER_FORMS = ["name", "sum", "product", "bits", "extreme", "choice", "chain", "divided", "part", "call", "call"]

CALLS = 3
"""Call sites in one body."""


@dataclass
class _Body:
    """One function while it is written."""

    name: str
    kind: str
    functions: dict[str, str]
    random: Random
    strays: bool = False
    """Whether stores may lie outside of their array."""
    calls: int = 0
    loops: int = 0
    """How many loops are open."""
    counters: int = 0
    lines: list[str] = field(default_factory=list)

    def pick(self, *options: Any) -> Any:
        return self.random.choice(options)

    def literal(self) -> str:
        return str(self.random.randint(-4, 9))

    # ---- expressions ------------------------------------------------------------------------------------------

    def call(self, kind: str) -> str | None:
        """A call of some function of that kind, while there are call sites left."""
        callees = [name for name, of in self.functions.items() if of == kind]
        if not callees or self.calls >= CALLS:
            return None
        self.calls += 1
        fuel = "left - 2" if self.loops else self.pick("left - 1", "left - 1", "left // 2")
        vector = self.pick("v", self.vector(0))
        arguments = ", ".join((self.integer(1), self.integer(0), self.float(0), vector, fuel))
        return f"{self.random.choice(callees)}({arguments})"

    def integer(self, depth: int) -> str:
        if depth == 0:
            return self.pick(*INTEGERS, self.literal())
        left, right = self.integer(depth - 1), self.integer(depth - 1)
        match self.pick(
            "name", "sum", "product", "bits", "extreme", "choice", "chain", "divided", "part", "call", "call"
        ):
            case "sum":
                return f"({left} {self.pick('+', '-')} {right}) % 97"
            case "product":
                return f"{left} * {right} % 61"
            case "bits":
                return f"({left} {self.pick('&', '|', '^')} {right})"
            case "extreme":
                return f"{self.pick('min', 'max')}({left}, abs({right}))"
            case "choice":
                return f"({left} if {self.condition(depth - 1)} else {right})"
            case "chain":
                return f"({left} {self.pick('and', 'or')} {right})"
            case "divided":
                return f"({left} {self.pick('//', '%')} ({right}) if {right} else {left})"
            case "part":
                return self.pick("p[0]", "p[1][1]", "r.i", f"w[{left} % 3]", f"int({self.float(0)})")
            case "call":
                return self.call("int") or left
        return left

    def float(self, depth: int) -> str:
        if depth == 0:
            return self.pick(*FLOATS, "0.25", "-1.5", "p[1][0]", "r.x")
        left, right = self.float(depth - 1), self.float(depth - 1)
        match self.pick("sum", "product", "extreme", "choice", "integer", "element"):
            case "sum":
                return f"grid({left} {self.pick('+', '-')} {right})"
            case "product":
                return f"grid({left} * {right})"
            case "extreme":
                return f"{self.pick('min', 'max')}({left}, {right})"
            case "choice":
                return f"({left} if {self.condition(0)} else {right})"
            case "integer":
                return f"float({self.integer(0)}) * 0.25"
        return self.pick("v[0]", "u[1]", "v[a % 2]", "grid(ops.sum(u))")

    def vector(self, depth: int) -> str:
        name = self.pick(*VECTORS, "r.v")
        if depth == 0:
            return name
        other = self.pick(*VECTORS)
        match self.pick("sum", "scaled", "turned", "where", "stacked"):
            case "sum":
                return f"grid({name} {self.pick('+', '-')} {other})"
            case "scaled":
                return f"grid({name} * {self.float(0)})"
            case "turned":
                return f"{name}[::-1]"
            case "where":
                return f"ops.where({name} > {self.float(0)}, {name}, -{other})"
        return f"ops.stack([{self.float(0)}, {self.float(0)}])"

    def condition(self, depth: int) -> str:
        match self.pick("int", "int", "float", "vector", "number", "not", "and", "or", "chained"):
            case "float":
                return f"{self.float(depth)} {self.pick('<', '<=', '>')} {self.float(0)}"
            case "vector":
                return f"{self.pick('ops.any', 'ops.all')}({self.pick(*VECTORS)} > {self.float(0)})"
            case "number":
                return f"{self.integer(depth)} % 3"
            case "not":
                return f"not {self.pick(*INTEGERS)} {self.pick('<', '==')} {self.integer(depth)}"
            case "chained":
                return f"{self.integer(0)} <= {self.integer(depth)} < {self.pick(*INTEGERS)} + 9"
            case "and" | "or" as word if depth:
                return f"({self.condition(depth - 1)} {word} {self.condition(depth - 1)})"
        return f"{self.integer(depth)} {self.pick('<', '<=', '==', '!=', '>')} {self.integer(0)}"

    def result(self) -> str:
        if self.kind == "int":
            return f"{self.integer(1)} % 101"
        return f"Record({self.integer(1)} % 101, {self.float(1)}, {self.vector(1)})"

    # ---- statements -------------------------------------------------------------------------------------------

    def statements(self, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            lines += self.statement(depth)
        return lines

    def indented(self, depth: int) -> list[str]:
        return ["    " + line for line in self.statements(depth - 1)]

    def loop_body(self, depth: int) -> list[str]:
        self.loops += 1
        lines = self.indented(depth)
        self.loops -= 1
        return lines

    def statement(self, depth: int) -> list[str]:
        kinds = ["int", "int", "float", "vector", "augmented", "swap", "structure", "structure", "write"]
        kinds += ["call", "call", "return"]
        kinds += ["element", "element", "walrus", *["unread"] * (5 if self.strays else 1)]
        kinds += ["if", "if", "for", "while", "each", "each", "self-loop"] if depth else []
        kinds += ["leave", "leave"] if self.loops else []
        target = self.pick(*INTEGERS)
        match self.random.choice(kinds):
            case "int":
                return [f"{target} = {self.integer(2)}"]
            case "float":
                return [f"{self.pick(*FLOATS)} = {self.float(2)}"]
            case "vector":
                return [f"{self.pick(*VECTORS)} = {self.vector(1)}"]
            case "augmented":
                return [f"{target} {self.pick('+', '-', '^')}= {self.integer(1)} % 13"]
            case "swap":
                return [self.pick(*SWAPS)]
            case "structure":
                return [self.structure()]
            case "write":
                return [f"w = write(w, {self.integer(1)} % 3, {self.integer(1)})"]
            case "element":
                return [self.element()]
            case "unread":
                return [self.unread()]
            case "walrus":
                return self.walrus(target, depth)
            case "call":
                return self.call_statement(target)
            case "return":
                return [f"if {self.condition(1)}:", f"    return {self.result()}"]
            case "leave":
                return [f"if {self.condition(0)}:", f"    {self.pick('break', 'continue')}"]
            case "if":
                lines = [f"if {self.condition(1)}:", *self.indented(depth)]
                if self.pick(True, False):
                    lines += [f"elif {self.condition(0)}:", *self.indented(depth)]
                if self.pick(True, False):
                    lines += ["else:", *self.indented(depth)]
                return lines
            case "self-loop":
                return self.pick(*SELF_LOOPS)
            case "each":
                return self.each(depth, target)
            case loop:
                return self.loop(loop, depth, target)

    def loop(self, kind: str, depth: int, target: str) -> list[str]:
        self.counters += 1
        counter = f"k{self.counters}"
        if kind == "for":
            bounds = self.pick("3", "1, 3", "2, -2, -2", f"{target} % 4", f"0, {target} % 3, 1")
            lines = [f"for {counter} in range({bounds}):", *self.loop_body(depth), f"    {target} += {counter}"]
        else:
            test = self.pick(f"{counter} < 3 and {self.condition(0)}", f"{counter} < {target} % 3")
            lines = [f"{counter} = 0", f"while {test}:", f"    {counter} += 1", *self.loop_body(depth)]
        if self.pick(True, False, False):
            lines += ["else:", *self.indented(depth)]
        return lines

    def element(self) -> str:
        """An element assigned, or an array that gets a second name."""
        return self.pick(
            f"w[{self.integer(1)} % 3] = {self.integer(1)}",
            f"w[{self.integer(0)} % 3] += {self.integer(0)} % 13",
            "w[-1], w[b % 2] = w[b % 2], w[-1]",
            f"u[a % 2] = {self.float(1)}",
            f"v[{self.pick('0', '-1', 'b % 2')}] = grid(v[0] - {self.float(0)})",
            "v[0], v[1] = v[1], v[0]",
            "u = v",
            "v += u - u",
        )

    def unread(self) -> str:
        """A store into an array that is not read afterwards."""
        index = f"{self.integer(1)} % {self.pick(3, 4, 5) if self.strays else 3}"
        return self.pick(
            f"d[{self.pick('0', 'b % 2')}, {index} - {self.pick(3, 0)}] = {self.float(0)}",
            f"w = write(w, {index}, {self.integer(0)})" if not self.strays else f"d[1] = write(d[1], {index}, 0.5)",
            f"d[{self.pick('a % 2', '-1')}] = r.x * np.ones(3)",
            f"d[a % {self.pick(2, 3) if self.strays else 2}][1] = {self.float(0)}",
        )

    def walrus(self, target: str, depth: int) -> list[str]:
        """An assignment within an expression, whose variable stands before and after it."""
        other = self.pick(*INTEGERS)
        if not depth:
            return [f"{target} = ({other} * 2 + ({other} := {self.integer(0)} % 53) * {other}) % 97"]
        test = f"{self.condition(0)} {self.pick('and', 'or')} ({other} := {self.integer(1)} % 53) > {self.integer(0)}"
        return [f"if {test}:", *self.indented(depth)]

    def each(self, depth: int, target: str) -> list[str]:
        """A loop over arrays or structures."""
        self.counters += 1
        e, k = f"e{self.counters}", f"k{self.counters}"
        head, use = self.pick(
            (f"for {e} in v:", f"y = grid(y + {e})"),
            (f"for {e} in w:", f"{target} = ({target} + {e}) % 97"),
            (f"for {k}, ({e}, y) in enumerate(zip(v, u), {target} % 3):", f"x = grid(x + {k} * {e} - y)"),
            (f"for {k}, {e} in zip(range({target} % 5), w):", f"{target} = ({target} + {k} * {e}) % 97"),
            (f"for {e} in ({target}, 3, b):", f"c = (c + {e}) % 97"),
            (f"for {e} in (b, {target}):", f"c = (c * 2 + {e}) % 97"),
            (f"for {k}, {e} in enumerate((a, x, v)):", f"y = grid(y - ops.sum({e} * 0.25) + {k})"),
            (f"for {e}, {k} in ((x, v), (y, u)):", f"x = grid(ops.sum({k}) - {e})"),
            (f"for {k} in reversed(range({target} % 4)):", f"c = (c * 3 + {k}) % 97"),
            (f"for {k} in range(len(u)):", f"u[{k}] = grid(u[{k}] + {k})"),
        )
        lines = [head, f"    {use}", *self.loop_body(depth)]
        if self.pick(True, False, False):
            lines += ["else:", *self.indented(depth)]
        return lines

    def structure(self) -> str:
        return self.pick(
            f"p = ({self.integer(1)}, ({self.float(0)}, {self.integer(0)}))",
            "a, (x, b) = p",
            f"r = r._replace(i={self.integer(0)}, v={self.vector(0)})",
            f"r = Record(r.i + 1, {self.float(1)}, r.v)",
            "c, y = r.i % 50, r.x",
        )

    def call_statement(self, target: str) -> list[str]:
        """A call whose result is bound; what stands before it is live across it if it is read later."""
        if self.pick(True, False):
            call = self.call("record")
            if call is not None:
                return [f"r = {call}", self.pick(f"{target} = r.i", "x, v = r.x, r.v", "p = (r.i, (r.x, a))")]
        call = self.call("int")
        return [f"{target} = {call}" if call is not None else f"{target} = {self.integer(1)}"]


SWAPS = ("a, b = b, a", "a, b, c = b, c, a", "(a, (b, c)) = (c, (a, b))", "x, y = y, x", "v, u = u, v", "a = c = b")
SELF_LOOPS = (
    ["while a % 5 != 0:", "    a = a + 1"],
    ["while b > 3:", "    b = b // 2"],
    ["while c > 2 and x < 40.0:", "    c, x = c - 2, grid(x + 0.5)"],
)
"""Loops whose body is one block."""


def program(random: Random, strays: bool = False) -> str:
    """The text of a program; its function `main_program` takes PARAMETERS.

    strays: whether it stores elements outside of arrays, on some lanes.
    """
    functions = {f"f{i}": random.choice(("int", "record")) for i in range(random.randint(1, 3))}
    parts = [HEAD]
    for name, kind in functions.items():
        body = _Body(name, kind, functions, random, strays)
        lines = body.statements(2) + body.statements(1)
        base = "(a - b) % 11" if kind == "int" else "Record(a - b, x, v)"
        head = ["if left <= 0:", f"    return {base}", "a, b = a % 101, b % 101", *STARTS]
        text = "".join(f"    {line}\n" for line in (*head, *lines, f"return {body.result()}"))
        parts.append(f"@batch\ndef {name}({PARAMETERS}):\n{text}\n")
    parts.append("main_program = f0\n")
    return "\n".join(parts)


def lanes(random: Random, count: int) -> tuple[np.ndarray, ...]:
    """Inputs for the lanes of `main_program`."""

    def integers(low: int, high: int) -> np.ndarray:
        return np.array([random.randint(low, high) for _ in range(count)])

    def sixteenths(*shape: int) -> np.ndarray:
        size = int(np.prod((count, *shape)))
        return np.array([random.randint(-40, 40) / 16 for _ in range(size)]).reshape(count, *shape)

    return integers(-9, 9), integers(-9, 9), sixteenths(), sixteenths(2), integers(0, 3)
