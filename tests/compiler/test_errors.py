"""Every mistake is named at the user's line (marked `# error`), with what to do about it."""

from __future__ import annotations

import linecache
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from from_source import load, marked_line

from batchnuts import autobatch
from batchnuts.autobatch import (
    CompileError,
    LaneInputError,
    TypeConflictError,
    UndefinedVariableError,
    UnsupportedSyntaxError,
    batch,
    ops,
)

INTS = (np.array([1, 2, 3]),)
FLOATS = (np.array([1.0, 2.0, 3.0]),)
VECTORS = (np.array([[1.0, 2.0], [3.0, 4.0]]),)


@dataclass(frozen=True)
class Mistake:
    name: str
    text: str
    """Defines a batched function `f`."""
    message: str
    kind: type[CompileError] = UnsupportedSyntaxError
    inputs: tuple[Any, ...] = INTS
    backends: tuple[str, ...] = ("numpy", "tensorflow")


def statement(name: str, lines: str, message: str) -> Mistake:
    """An unsupported statement in the middle of a function."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    rest = "import itertools\nTABLE = np.zeros(3)\nENDLESS = itertools.count()\n"
    return Mistake(name, f"@batch\ndef f(n):\n    x = n\n{body}    return x\n{rest}", message)


UNSUPPORTED = (
    statement("try", "try:  # error\n    x = 1\nfinally:\n    x = 2", "a `try` .* Instead, test for the condition"),
    statement("with", "with open('a'):  # error\n    x = 1", "a `with` .* Instead, do the set-up outside"),
    statement("yield", "yield x  # error", "`.*yield x.*` cannot be batched .* Instead, write each value"),
    statement("yield value", "x = yield n  # error", "`.*yield n.*` cannot be batched .* Instead, write each value"),
    statement("global", "global y  # error\ny = 1", "a `global` .* Instead, pass the value in and return it"),
    statement("class", "class C:  # error\n    pass", "Instead, define the class outside"),
    statement("an assertion's text", "assert n > 0, f'{n}'  # error", "an assertion's text .* write a constant text"),
    statement("raise", "raise ValueError  # error", "a `raise` .* Instead, assert what must hold"),
    statement("del", "del x  # error\nx = 1", "Instead, let the variable go out of use"),
    statement("import", "import math  # error", "Instead, import at the top of the module"),
    statement("match", "match n:  # error\n    case 1:\n        x = 2", "a `match` .* Instead, use if/elif/else"),
    statement(
        "walrus in a comprehension",
        "x = sum([(y := k) for k in range(2)])  # error",
        r"`\(y := k\)` within .* Instead, use a for",
    ),
    statement(
        "walrus in a lambda",
        "x = (lambda k: (y := k))(n)  # error",
        r"`\(y := k\)` within a lambda .* Instead, use a for",
    ),
    statement(
        "walrus twice", "x = (y := n) * 2 + (y := 3)  # error", "needs an earlier value of 'y'.* a statement of its own"
    ),
    statement("field", "n.real = 1  # error", r"assignment to a field .* Instead, x = x._replace"),
    statement("starred target", "x, *y = n, n, n  # error", r"assignment to `\*y` .* Instead, assign to plain names"),
    statement("bare expression", "print(x)  # error", r"the statement `print\(x\)`, whose value .* drop or assign it"),
    statement("range of nothing", "for y in range():  # error\n    x += y", "Instead, write range"),
    statement("loop target", "for x, y in range(3):  # error\n    pass", "Instead, take it apart in the loop's body"),
    statement("bare return", "if n > 1:\n    return  # error", "Instead, return what the caller needs"),
    Mistake("star parameters", "@batch\ndef f(*n):  # error\n    return n\n", "Instead, name each parameter"),
    Mistake("lambda", "f = batch(lambda n: n + 1)  # error\n", "is not a plain function: .* Write it with `def`"),
    Mistake(
        "keywords of a primitive",
        "@primitive(batched=True)\ndef p(n):\n    return n + 1\n@batch\ndef f(n):\n    return p(n=n)  # error\n",
        "keyword arguments of a declared primitive .* Instead, pass them by position",
    ),
)

ELEMENTS = (
    statement(
        "element of a list",
        "y = [n, n]\ny[0] = 1  # error",
        r"an element of an array can be assigned, not one of a list",
    ),
    statement("element of a number", "x[0] = 1  # error", "a number has no elements to assign"),
    statement(
        "element of a global",
        "TABLE[0] = 1  # error",
        r"no variable of the function, .* copy it into one first: x = TABLE",
    ),
    statement("element of a field", "n.real[0] = 1  # error", r"Instead, write x = x._replace\(real=autobatch.write\("),
    statement("element of a call", "abs(n)[0] = 1  # error", r"Instead, give the array a name first"),
    statement("slice", "y = np.zeros(3)\ny[0:2] = 1.0  # error", "whose index is no integer, .* one element at a time"),
    statement("augmented slice", "y = np.zeros(3)\ny[:] += 1.0  # error", "whose index is no integer, .* one element"),
    statement("key", "y = {'a': n}\ny['a'] = 1  # error", r"a new dict of the same keys: y = \{\*\*y, 'a': value\}"),
    statement("mask", "y = np.zeros(3)\ny[y > 0.0] = 1.0  # error", "the index of an assigned element is an integer"),
    statement(
        "star among elements", "y = np.zeros(3)\ny[0], *x = n, n  # error", r"assignment to `\*x` .* Instead, assign"
    ),
)

HELPERS = """
import collections
@batch
def g(a, b=2):
    return a + b
@batch
def apply(h, x):
    return h(x) if x > 0 else x
@primitive(batched=True)
def p(n):
    return n + 1
PAIRS = ((1, g), (2, g))
PAIR = collections.namedtuple("PAIR", "first second")
TABLE = {"g": g}
"""


def functions(name: str, lines: str, message: str) -> Mistake:
    """A mistake with functions as values; `g(a, b=2)` and `apply(h, x)` are batched, `p(n)` a primitive."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return Mistake(name, f"{HELPERS}@batch\ndef f(n):\n    x = n\n{body}    return x\n", message)


FUNCTIONS = (
    Mistake(
        "ever another function",
        "@batch\ndef g(h, n):\n    return n if n < 0 else g(lambda y: h(y) + 1, n - 1)  # error\n"
        "@batch\ndef f(n):\n    return g(abs, n)\n",
        "the call of 'g' gives it yet another function .* more than 64 times. Pass on the function that was given",
    ),
    functions(
        "star: too many", "t = (n, n, n)\nx = g(*t)  # error", "call of 'g' does not fit its parameters .*too many pos"
    ),
    functions(
        "star: too few", "t = ()\nx = g(*t)  # error", "call of 'g' does not fit .* missing a required argument: 'a'"
    ),
    functions(
        "star: twice", "x = g(*(n, n), b=n)  # error", "call of 'g' does not fit .* multiple values for argument 'b'"
    ),
    functions("star: a number", "x = g(*n)  # error", "one number has no elements"),
    functions(
        "dict: unknown",
        "d = {'c': n}\nx = g(n, **d)  # error",
        "call of 'g' does not fit .* unexpected keyword argument 'c'",
    ),
    functions("dict: twice", "d = {'a': n}\nx = g(n, **d)  # error", "call of 'g' does not fit .* multiple values"),
    functions(
        "dict: a tuple", "d = (n, n)\nx = g(**d)  # error", "after \\*\\* stands a dict with the parameters' names"
    ),
    functions(
        "star: an array for all lanes",
        "v = np.zeros(1) + n\nx = int(p(*v))  # error",
        "which takes all lanes: index it",
    ),
    functions(
        "a function in a structure",
        "t = (g, n)  # error\nx = t[0](t[1])",
        "found the BatchedFunction 'g'. Functions are chosen when the program is compiled. .* a tuple or dict of",
    ),
    functions(
        "a function on one path",
        "if n > 1:\n    h = g\nx = h(n)  # error",
        "'h', which stands for a function within a block",
    ),
    functions(
        "in a loop", "for i in range(n):\n    h = g\nx = h(n)  # error", "choose the function before the `if` or loop"
    ),
    functions(
        "another function in the next iteration",
        "h = g\nfor i in range(n):\n    x = h(x)\n    h = p  # error",
        "use a name of its own in the loop",
    ),
    functions("a function and a number", "h = g\nh = 3  # error", "'h', which stands for a function, as a variable"),
    functions(
        "chosen by the lane",
        "h = g if n > 1 else p  # error\nx = h(n)",
        "found the B.* `if` and `else` with a call in each",
    ),
    functions(
        "a table by the lane", "x = PAIRS[n][1](n)  # error", "the index of a tuple .* Functions are chosen when the"
    ),
    functions("a list by the lane", "h = [g, p][n % 2]  # error\nx = h(n)", "index of a list .* a call in each"),
    functions(
        "a key by the lane",
        "x = TABLE['g' if n > 1 else 'h'](n)  # error",
        "found the text 'g'. Texts are chosen when .* write `if` and `else` around what they choose",
    ),
    functions(
        "a function in a namedtuple",
        "x = PAIR(g, n).first(n)  # error",
        "found the BatchedFunction 'g'|was called by plain one-lane code",
    ),
    functions(
        "a named function by the lane",
        "x = (h := g)(n) if n > 1 else n  # error",
        "found the BatchedFunction 'g'. Functions are chosen",
    ),
    functions(
        "a name for another function",
        "h = p\nx = h(n) + (h := g)(n)  # error",
        "the name stands for another function, .* a statement of its own",
    ),
    functions("too many functions", "a, b = g, p, g  # error\nx = a(n)", "found the BatchedFunction 'g'|cannot unpack"),
    functions("a function twice", "x = apply(*(g, n), **{'h': g})  # error", "multiple values for"),
    functions("a key that is not there", "x = TABLE['k'](n)  # error", "KeyError: 'k'"),
    functions("a function returned", "return g  # error", "the BatchedFunction 'g'.* return what it gives"),
    functions(
        "a range of the lane in a comprehension",
        "x = sum([g(v) for v in range(n)])  # error",
        "a call of `g` inside a comprehension .* a for loop, or a range known",
    ),
    functions(
        "a number assigned twice in a comprehension",
        "m = 3\nif n > 1:\n    m = 2\nx = sum([g(v) for v in range(m)])  # error",
        "a call of `g` inside a comprehension .* a for loop, or a range known",
    ),
    functions(
        "a number of Python's in a comprehension",
        "m = 0\nm += 2\nx = sum([g(v) for v in range(len((n, n)) + m)])  # error",
        "a call of `g` inside a comprehension .* a for loop, or a range known",
    ),
    functions(
        "a comprehension over a number", "x = sum([g(v) for v in n])  # error", "`n`: one number has no elements"
    ),
    functions(
        "a comprehension over a strict zip",
        "x = sum([g(u, v) for u, v in zip((n, n), (1, 2, 3), strict=True)])  # error",
        "of the lengths 2, 3",
    ),
    functions(
        "a comprehension of lane pairs",
        "x = sum([g(u, v) for u, v in ((n, 1, 2), (n, 3, 4))])  # error",
        "cannot unpack 3 values into 2 names",
    ),
    functions(
        "a table's function in a comprehension of the lane",
        "x = sum([TABLE['g'](k) for k in range(n)])  # error",
        "a call of `TABLE\\['g'\\]` inside a comprehension that goes by values of the lane",
    ),
    functions(
        "a test of the lane in a comprehension",
        "x = sum([g(1) for k in range(2) if k > n])  # error",
        "a call of `g` inside",
    ),
    functions(
        "a long comprehension", "x = sum([g(k) for k in range(65)])  # error", "more than 64 elements .* and a buffer"
    ),
    functions(
        "a long comprehension by types",
        "v = np.zeros(65) + n\nx = int(sum([g(y) for y in v]))  # error",
        "more than 64 elements .* and a buffer",
    ),
    functions("a set", "x = {g(k) for k in range(2)}  # error", "a set of values of the lane .* Instead, write a list"),
    functions(
        "in a mapped lambda",
        "x = sum(map(lambda k: g(k), range(2)))  # error",
        "a call of `g` inside a lambda .* a for loop",
    ),
    functions(
        "lambda: default",
        "h = lambda k=n: k  # error\nx = h()",
        "a lambda whose defaults are values .* read them in its body",
    ),
    functions(
        "lambda: endless",
        "h = lambda k: h(k - 1) if k > 0 else 0  # error\nx = h(n)",
        "a lambda that calls itself, 'h'",
    ),
    functions(
        "lambda: shadowed",
        "h = lambda k: k + n\nx = sum([h(n) for n in range(2)])  # error",
        "which reads 'n', where that na",
    ),
    functions(
        "lambda: too few", "h = lambda k, m: k if n > 1 else m\nx = h(n)  # error", "missing a required argument: 'm'"
    ),
    functions(
        "def: default",
        "def h(k=n):  # error\n    return k\nx = h()",
        "a default that is a value of the lane .* pass it with each",
    ),
    functions(
        "def: decorated", "@np.vectorize  # error\ndef h(k):\n    return k\nx = h(n)", "a decorator within .* outside"
    ),
    functions("def: star", "def h(*k):  # error\n    return k\nx = h(n)", "Instead, name each parameter"),
    functions(
        "def: nonlocal",
        "def h(k):\n    nonlocal x  # error\n    x = k\n    return k\nx = h(n)",
        "pass the value in and return",
    ),
    functions(
        "def: mistakes inside",
        "def h(k):\n    del k  # error\n    return n\nx = h(n)",
        "let the variable go out of use",
    ),
    functions(
        "def: argument",
        "def h(k):\n    return k + n\nx = apply(h, n)  # error",
        "'h', which reads n of the lane, as an arg",
    ),
    functions(
        "def: in another",
        "def h(k):\n    return k + n\ndef i(k):\n    return h(k)  # error\nx = i(n)",
        "'h', which reads n of the f",
    ),
    functions(
        "def: element of a variable around",
        "v = np.zeros(2)\ndef h(k):\n    v[0] = 1.0  # error\n    return k\nx = h(n)",
        "no var",
    ),
)

LOOPS = (
    statement(
        "for over a number", "for y in n:  # error\n    x += y", r"`n`: one number has no elements; .* over range\(n\)"
    ),
    statement("for over a constant", "for y in 3:  # error\n    x += y", r"a loop cannot run over int"),
    statement(
        "for over a dict",
        "for y in {'a': n}:  # error\n    x += y",
        r"the elements of a dict are texts, .* its values\(\)",
    ),
    statement("for over what has no end", "for y in ENDLESS:  # error\n    x += y", "has no end"),
    statement(
        "strict zip", "for y, z in zip((n, n), (1, 2, 3), strict=True):  # error\n    x += y", "of the lengths 2, 3"
    ),
    statement(
        "strict zip of a range", "for y in zip(range(n), (1, 2), strict=True):  # error\n    x += 1", "drop `strict`"
    ),
    statement(
        "zip with a range from n",
        "for y in zip(range(n, 9), (1, 2)):  # error\n    x += 1",
        "add the start in the body",
    ),
    statement(
        "zip with steps", "for y in zip(range(0, n, 2), (1, 2)):  # error\n    x += 1", "compute the number in the body"
    ),
    statement("zip of what", "for y in zip((1, 2), (1, 2), strictly=True):  # error\n    x += 1", "Instead, write zip"),
    statement(
        "enumerate of what", "for y in enumerate((1, 2), begin=2):  # error\n    x += 1", "Instead, write enumerate"
    ),
    statement(
        "reversed zip", "for y in reversed(zip((n, 1), (1, 2))):  # error\n    x += 1", "reverse each sequence inside"
    ),
    statement(
        "reversed steps",
        "for y in reversed(range(0, n, 2)):  # error\n    x += 1",
        "Instead, write range.last, first - 1, -1",
    ),
    statement(
        "too few targets",
        "for y, z in ((n, 1, 2), (n, 3, 4)):  # error\n    x += y",
        "cannot unpack 3 values into 2 names",
    ),
    statement(
        "element as a loop's target",
        "y = np.zeros(3)\nfor y[0] in (1.0, 2.0):  # error\n    x += 1",
        "assign to plain names",
    ),
    statement(
        "too many copies",
        "for y in ((n, 0.5),) * 40 + ((1, 2, 3),) * 40:  # error\n    x += 1",
        "written out for each of 80 elements",
    ),
    statement(
        "a text after its loop",
        "for y in ('a', 'b'):  # error\n    x += 1\nx = y",
        "holds str and is read after the loop",
    ),
)

NAMES = (
    statement("undefined name", "x = nowhere + 1  # error", "name 'nowhere' is not defined"),
    statement("undefined function", "x = max(n, nowhere(n))  # error", "name 'nowhere' is not defined"),
    statement("on one path", "if n > 1:\n    y = 1\nx = y  # error", "'y' of 'f' may be read here .* every path"),
    statement("after a loop", "for i in range(n):\n    x = i\nx = i  # error", "'i' of 'f' may be read here"),
    statement("before its loop", "while n > 1:\n    n = n - y  # error\n    y = 1", "'y' of 'f' may be read here"),
    statement("in a condition", "if n > 1:\n    y = True\nif y:  # error\n    x = 1", "'y' of 'f' may be read here"),
    statement("augmented", "y += 1  # error", "'y' of 'f' may be read here"),
    statement(
        "not the safe reader",
        "if n > 1:\n    y = 1\n    while n > 3:\n        n = n - y\nx = y  # error",
        "'y' of 'f' may be read here",
    ),
    statement(
        "argument of a call", "if n > 1:\n    y = 1\nwhile n > 0:\n    n = f(y)  # error", "'y' of 'f' may be read here"
    ),
)

TYPES = (
    statement("two dtypes", "if n > 1:\n    x = 0.5  # error", "(?s)'x' is float64.* here but int64.* at .*Cast"),
    statement("two shapes", "if n > 1:\n    x = np.zeros(3)  # error", r"(?s)'x' is float64\[3\] here but .*Cast"),
    statement("two structures", "if n > 1:\n    x = (n, n)  # error", r"(?s)'x' is tuple\(.*\) here but int64"),
    statement("a vector's condition", "if np.zeros(3) > n:  # error\n    x = n", "scalar boolean, found bool.*ops.any"),
    statement("a vector's truth", "y = np.zeros(3) + float(n)\nwhile y:  # error\n    x = n", "takes a scalar, not sh"),
    statement("write: row", "y = np.zeros((3, 2))\ny = write(y, n, 1.0)  # error", "write: a row of .* cannot hold"),
    statement("write: dtype", "y = np.zeros(3)\ny = write(y, n, n)  # error", "must have the buffer's dtype"),
    statement("write: index", "y = np.zeros(3)\ny = write(y, 0.5, 1.0)  # error", "index must be an integer scalar"),
    statement("write: fields", "y = np.zeros(3)\ny = write(y, 0, (1.0, n))  # error", "structures must be equal"),
    statement("no array", "x = object()  # error", "failed while it was traced for one lane"),
    Mistake(
        "results that differ",
        "@batch\ndef f(n):\n    if n > 1:\n        return n\n    return 0.5  # error\n",
        "the result of 'f' is float64.* here but int64",
    ),
    Mistake(
        "arguments that differ",
        "@batch\ndef g(a):\n    return a\n"
        "@batch\ndef f(n):\n    x = g(n)\n    y = g(np.zeros(2))  # error\n    return x, y\n",
        r"variable 'a' is float64\[2\] here but int64",
    ),
    Mistake(
        "unpacking too few",
        "@batch\ndef g(a):\n    return a, a, a\n@batch\ndef f(n):\n    x, y = g(n)  # error\n    return x\n",
        "cannot unpack 3 values into 2 names",
    ),
)

CALLS = (
    ("too many", "g(n, n, n)", r"call of 'g' does not fit its parameters \(a, b\): too many positional"),
    ("too few", "g(n)", r"call of 'g' does not fit its parameters \(a, b\): missing a required argument: 'b'"),
    ("unknown keyword", "g(n, n, c=n)", r"call of .g. does not fit its parameters .a, b.: got an unexpected keyword"),
    ("twice", "g(n, a=n)", r"call of 'g' does not fit its parameters \(a, b\): multiple values for argument 'a'"),
)


def of_kind(kind: type[CompileError], mistakes: tuple[Mistake, ...]) -> list[Mistake]:
    return [Mistake(m.name, m.text, m.message, kind, m.inputs, m.backends) for m in mistakes]


PATHS = (
    (
        "if n > 1:\n    y = 1\nelif n > -3:\n    y = 2\nif n > 9:\n    x = 1\nx = y  # error",
        "when `n > 1` (line 8) is false and `n > -3` (line 10) is false, no assignment",
    ),
    ("if n > 1 and x < 3:\n    y = 1\nx = y  # error", "when `n > 1` (line 8) is false, no assignment"),
    (
        "for i in range(n):\n    y = i\nx = y  # error",
        "when the `for` loop of line 8 has no iteration left, no assignment",
    ),
    ("for i in ():\n    y = i\nx = y  # error", "when the `for` loop of line 8 has no iteration left, no assignment"),
    (
        "for i, k in enumerate(range(n)):\n    y = i\nx = i  # error",
        "when the `for` loop of line 8 has no iteration left, no",
    ),
    (
        "for i in (n, n):\n    if i > 1:\n        break\n    y = i\nx = y  # error",
        "when `i > 1` (line 9) is true, no assignment",
    ),
    ("while n > 1:\n    n -= 1\n    y = n\nx = y  # error", "when `n > 1` (line 8) is false, no assignment"),
    ("if n > 1 and (y := x) > 2:\n    x = 0\nx = y  # error", "when `n > 1` (line 8) is false, no assignment"),
    ("if n > 1:\n    return 0\nx = y  # error\ny = 1", "when `n > 1` (line 8) is false, no assignment"),
    ("x = y  # error\ny = 1", "before it is assigned: always, no assignment"),
    ("if f(n) > 1:\n    y = 1\nx = y  # error", "when the condition of line 8 is false, no assignment"),
    ("if n > 1:\n    x = 2\nelse:\n    y = 1\nx = y  # error", "when `n > 1` (line 8) is true, no assignment"),
)


@pytest.mark.parametrize(("lines", "message"), PATHS)
def test_an_undefined_variable_names_the_path(lines: str, message: str, tmp_path: Path) -> None:
    module = load(tmp_path, statement("path", lines, "").text)
    with pytest.raises(UndefinedVariableError) as caught:
        module.f.run(*INTS, backend="numpy")
    assert message in str(caught.value)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


RETURNS = (
    Mistake(
        "never returns",
        "@batch\ndef f(n):  # error\n    while True:\n        n = n + 1\n",
        "function 'f' never returns: every path through it ends in a loop",
    ),
    Mistake(
        "a callee that never returns",
        "@batch\ndef g(n):  # error\n    while True:\n        n = n + 1\n@batch\ndef f(n):\n    return g(n)\n",
        "function 'g' never returns",
    ),
    Mistake(
        "an unreachable base case",
        "@batch\ndef f(n):\n    if False:\n        return 0\n    return f(n - 1) + 1  # error\n    return 1\n",
        "the recursion through 'f' has no base case",
    ),
    Mistake(
        "no return on a path",
        "@batch\ndef f(n):  # error\n    if n > 1:\n        return n\n",
        "'f' can reach its end without returning a value. Add a return",
    ),
    Mistake(
        "no return after a loop",
        "@batch\ndef f(n):  # error\n    while n > 1:\n        return n\n",
        "'f' can reach its end without returning a value. Add a return",
    ),
    Mistake(
        "no base case",
        "@batch\ndef f(n):\n    return f(n - 1) + 1  # error\n",
        "the recursion through 'f' has no base case.*Add a path that returns without recursing",
    ),
    Mistake(
        "no base case in a mutual recursion",
        "@batch\ndef g(n):\n    return f(n)\n@batch\ndef f(n):\n    return g(n - 1) * 2  # error\n",
        "the recursion through 'g' has no base case",
    ),
)

MISTAKES = (
    *UNSUPPORTED,
    *of_kind(CompileError, ELEMENTS),
    *of_kind(CompileError, LOOPS),
    *of_kind(CompileError, FUNCTIONS),
    *of_kind(UndefinedVariableError, NAMES),
    *of_kind(CompileError, TYPES),
    *of_kind(CompileError, RETURNS),
    *(
        Mistake(
            f"call with {name}",
            f"@batch\ndef g(a, b):\n    return a + b\n@batch\ndef f(n):\n    return {call}  # error\n",
            message,
            CompileError,
        )
        for name, call, message in CALLS
    ),
)

CASES = [(mistake, backend) for mistake in MISTAKES for backend in mistake.backends]


@pytest.mark.parametrize(("mistake", "backend"), CASES, ids=[f"{m.name}-{backend}" for m, backend in CASES])
def test_names_the_line_and_the_remedy(mistake: Mistake, backend: str, tmp_path: Path) -> None:
    module = load(tmp_path, mistake.text)
    with pytest.raises(mistake.kind, match=mistake.message) as caught:
        module.f.run(*mistake.inputs, backend=backend, mode="eager")
    source = caught.value.source
    assert source is not None
    assert source.line == marked_line(module)
    assert Path(source.filename) == Path(str(module.__file__))
    assert source.text.endswith("# error")
    assert str(caught.value).startswith(f"{source.filename}:{source.line}:{source.column + 1}\n")


def test_a_type_conflict_names_both_places(tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "@batch\ndef f(n):\n    x = n  # first\n    if n > 1:\n        x = 0.5  # error\n    return x\n",
    )
    with pytest.raises(TypeConflictError) as caught:
        module.f.run(*INTS, backend="numpy")
    text = str(caught.value)
    assert f"{module.__file__}:{marked_line(module, '# first')}:9" in text
    assert f"{module.__file__}:{marked_line(module)}:13" in text
    assert "float64*[] here but int64[] at" in text


def test_the_caret_stands_under_the_mistake(tmp_path: Path) -> None:
    module = load(tmp_path, "@batch\ndef f(n):\n    x = n + nowhere\n    return x\n")
    with pytest.raises(UndefinedVariableError) as caught:
        module.f.run(*INTS, backend="numpy")
    _, line, caret, *_ = str(caught.value).splitlines()
    assert line[caret.index("^") :] == "nowhere"


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_the_users_own_exception_is_the_cause(backend: str, tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "class Mine(Exception):\n    pass\n"
        "def helper(n):\n    raise Mine('what I meant')\n"
        "@batch\ndef f(n):\n    return n + helper(n)  # error\n",
    )
    with pytest.raises(CompileError, match=r"(?s)`n \+ helper\(n\)` failed .* n: int64.*Mine: what I meant") as caught:
        module.f.run(*INTS, backend=backend, mode="eager")
    assert isinstance(caught.value.__cause__, module.Mine)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_a_failing_helper_is_named_with_its_own_line(backend: str, tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "def inner(n):\n    raise ValueError('too far in')  # raised\n"
        "def helper(n):\n    return ops.exp(inner(n))\n"
        "@batch\ndef f(n):\n    return n + helper(n)  # error\n",
    )
    with pytest.raises(CompileError) as caught:
        module.f.run(*INTS, backend=backend, mode="eager")
    line = marked_line(module, "# raised")
    assert f"It was raised in 'inner', {module.__file__}:{line}:\n    raise ValueError" in str(caught.value)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


@pytest.mark.parametrize("call", ["math.sqrt(n)", "branches(n)", "np.sin(n)"])
def test_a_function_that_tensorflow_cannot_trace_says_what_to_use(call: str, tmp_path: Path) -> None:
    text = "import math\ndef branches(n):\n    return n if n > 0 else -n\n"
    module = load(tmp_path, f"{text}@batch\ndef f(n):\n    return {call}  # error\n")
    with pytest.raises(CompileError, match=r"Use batchnuts\.autobatch\.ops or a function of TensorFlow") as caught:
        module.f.run(*INTS, mode="eager")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)
    module.f.run(*INTS, backend="numpy")


AROUND = "TABLE = (1, 2, 3)\nVECTOR = np.arange(3)\nMATRIX = np.zeros((2, 2))\n"
OF_THE_LANE = {
    "[k for k in TABLE if k > n][0]": "a condition within a comprehension or lambda must be known",
    "sum(k for k in TABLE if k > n)": "use a `for` loop, or ops.where",
    "sum([k if k > n else 0 for k in TABLE])": "a condition within a comprehension",
    "sum((k > n) and 1 or 0 for k in TABLE)": "a condition within a comprehension",
    "sum(i for i in range(n))": "the end of a range within an expression must be known",
    "f'{n}' == '1'": "what a text or hash is made of must be known",
    "str(n) == '1'": "what a text or hash is made of",
    "'%s' % n == '1'": "what a text or hash is made of",
    "'{}'.format(n) == '1'": "what a text or hash is made of",
    "repr(n) == '1'": "what a text or hash is made of",
    "hash(n)": "what a text or hash is made of",
    "len({n, 1})": "what a text or hash is made of",
    "len({n: 1})": "what a text or hash is made of",
    "len(set((n, 1)))": "what a text or hash is made of",
    "len(frozenset(VECTOR + n))": "what a text or hash is made of",
    "bin(n) == '0b1'": "what a text or hash is made of",
    "'a' * n == 'a'": "a str times a lane's number has no length",
    "complex(n, 1)": "use autobatch.ops, or the backend's own function",
    "sum(map(lambda v: v if v > 2 else 0, VECTOR + n))": "a condition within a comprehension or lambda must be known",
    "sum(map(lambda v: v and 1, VECTOR + n))": "use a `for` loop, or ops.where",
    "sum(map(lambda v: v if v > n else 0, VECTOR))": "a condition within a comprehension or lambda",
    "sum(filter(lambda v: v > 2, VECTOR + n))": r"what filter\(\) asks must be known .* a `for` loop, or ops.where",
    "sum(filter(lambda v: v > n, VECTOR))": r"what filter\(\) asks must be known",
    "sum(filter(None, VECTOR + n))": r"what filter\(\) asks must be known",
    "sorted(VECTOR + n)": r"what sorted\(\) compares must be known .* swap elements in a loop",
    "sorted((n, 1))[0]": r"what sorted\(\) compares must be known",
    "sorted(TABLE, key=lambda v: v * n)": r"what sorted\(\) compares must be known",
    "n in range(n)": "the end of a range within an expression",
    "TABLE.index(n)": "what is looked up in a tuple must be known .* compare with each element",
    "TABLE.count(n)": "what is looked up in a tuple",
    "{1: 2}.get(n, 0)": "what is looked up in a dict",
    "TABLE[n]": "the index of a tuple must be known .* ops.stack",
    "{1: 2}[n]": r"the index of a dict .* ops.stack\(tuple\(values.values\(\)\)\)",
    "'abc'[n] == 'a'": "Texts are chosen when the program is compiled: write `if` and `else`",
    "round(float(n), n)": r"the number of digits of round\(\)",
    "round(2.5, n)": r"the number of digits of round\(\)",
    "(VECTOR + n)[[0, 9]]": "is outside an axis of 3 elements",
    "(VECTOR + n)[[0.5, 1]]": "an index must be an integer, not float64",
    "(MATRIX + n)[[0, 1], 1]": "one array of indices at a time",
    "(MATRIX + n)[[0, 1], [1, 0]]": "one array of indices at a time",
}


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
@pytest.mark.parametrize("expression", OF_THE_LANE)
def test_what_must_be_known_is_refused_on_every_backend(expression: str, backend: str, tmp_path: Path) -> None:
    module = load(tmp_path, f"{AROUND}@batch\ndef f(n):\n    return {expression}  # error\n")
    with pytest.raises(CompileError, match=OF_THE_LANE[expression]) as caught:
        module.f.run(*INTS, backend=backend, mode="eager")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


METHODS = {
    "a method": (
        "    @batch  # error\n    def f(self, n):",
        "f.run(INPUT)",
        "method 'f' of class 'Model' .* its `self` is",
    ),
    "a property": ("    @property  # error\n    @batch\n    def f(self):", "f", "method 'f' of class 'Model'"),
    "a classmethod": ("    @classmethod  # error\n    @batch\n    def f(cls, n):", "f(INPUT)", "its `cls` is no array"),
    "a classmethod's run": (
        "    @classmethod  # error\n    @batch\n    def f(cls, n):",
        "f.run(INPUT, backend='numpy')",
        "method 'f' of class 'Model' .* its `cls` is no array",
    ),
    "a classmethod's run without more": (
        "    @classmethod  # error\n    @batch\n    def f(cls):",
        "f.run(INPUT, backend='numpy')",
        "its `cls` is no array",
    ),
    "above a classmethod": ("    @batch  # error\n    @classmethod\n    def f(cls, n):", "f", "found a classmethod.*"),
    "above a staticmethod": ("    @batch  # error\n    @staticmethod\n    def f(n):", "f", "Put @staticmethod above"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_batched_method_is_refused_at_its_line(name: str, tmp_path: Path) -> None:
    head, use, message = METHODS[name]
    text = f"INPUT = np.array([1])\nclass Model:\n{head}\n        return 1\ndef use():\n    return Model().{use}\n"
    with pytest.raises(UnsupportedSyntaxError, match=message) as caught:
        load(tmp_path, text).use()
    source = caught.value.source
    assert source is not None
    assert source.text.endswith("# error")


def test_a_static_method_may_be_batched(tmp_path: Path) -> None:
    module = load(tmp_path, "class Model:\n    @staticmethod\n    @batch\n    def f(n):\n        return n\n")
    assert module.Model.f.run(*INTS, backend="numpy").tolist() == [1, 2, 3]


NO_FUNCTIONS = {
    "@batch  # error\nclass C:\n    pass\n": "found the class 'C'",
    "f = batch(len)  # error\n": "found a builtin_function_or_method. Write a `def` that calls it",
    "f = batch(batch)\nf = batch(f)  # error\n": "found one that is batched already",
    "import functools\nf = batch(functools.partial(pow, 2))  # error\n": "found a partial",
    "f = batch(3)  # error\n": "found a int",
    "@batch  # error\n@primitive\ndef f(n):\n    return n\n": "found a primitive",
}


@pytest.mark.parametrize("text", NO_FUNCTIONS)
def test_only_functions_are_batched(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSyntaxError, match=NO_FUNCTIONS[text]) as caught:
        load(tmp_path, text)
    source = caught.value.source
    assert source is not None
    assert source.text.endswith("# error")


@pytest.mark.parametrize("wraps", ["    @functools.wraps(f)\n", ""], ids=["wraps", "bare"])
def test_recursion_under_a_decorator_above_batch(wraps: str, tmp_path: Path) -> None:
    text = f"import functools\ndef traced(f):\n{wraps}    def call(*a):\n        return f(*a)\n    return call\n"
    body = "    return 1 if n < 1 else n * f(n - 1)  # error\n"
    module = load(tmp_path, f"{text}@traced\n@batch\ndef f(n):\n{body}")
    with pytest.raises(CompileError, match=r"decorator above @batch.* another name") as caught:
        module.f(*INTS)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


def test_a_decorator_beneath_batch_is_refused_at_its_line(tmp_path: Path) -> None:
    text = "import functools\ndef traced(f):\n    return functools.wraps(f)(lambda *a: f(*a))\n"
    module = load(tmp_path, f"{text}@batch  # error\n@traced\ndef f(n):\n    return n\n")
    with pytest.raises(CompileError, match="is wrapped by another decorator") as caught:
        module.f.run(*INTS, backend="numpy")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


def test_dicts_whose_keys_stand_in_another_order(tmp_path: Path) -> None:
    body = "    d = {'a': n, 'b': n}\n    if n > 1:\n        d = {'b': n, 'a': 2}  # error\n    return d\n"
    module = load(tmp_path, f"@batch\ndef f(n):\n{body}")
    with pytest.raises(TypeConflictError, match="Write the keys in the same order") as caught:
        module.f.run(*INTS, backend="numpy")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


def test_a_closure_variable_without_a_value_yet(tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "def make(when):\n    @batch\n    def f(n):\n        return n + late  # error\n"
        "    if when == 'early':\n        f.run(np.array([1]), backend='numpy')\n    late = 2\n    return f\n",
    )
    with pytest.raises(UndefinedVariableError, match="name 'late' has no value yet") as caught:
        module.make("early")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)
    assert module.make("late").run(*INTS, backend="numpy").tolist() == [3, 4, 5]


def test_a_literal_that_settles_late_is_no_conflict() -> None:
    @batch
    def late(n):
        x = 0
        z = 0.0
        for _ in range(n):
            z = ops.where(n > 2, x, 1)
            x = x + 0.5
        return x, z

    @batch
    def through_where(y, n):
        x = 0
        for _ in range(n):
            x = ops.where(n > 2, x, 1)
            x = x + y
        return x

    for backend in ("numpy", "tensorflow"):
        x, z = late.run(*INTS, backend=backend, mode="eager")
        assert x.tolist() == [0.5, 1.0, 1.5]
        assert z.tolist() == [1.0, 1.0, 1.0]
        total = through_where.run(np.ones(3, "float32"), *INTS, backend=backend, mode="eager")
        assert total.dtype == "float32"
        assert total.tolist() == [2.0, 2.0, 3.0]


def test_arithmetic_of_two_booleans_says_what_to_write(tmp_path: Path) -> None:
    module = load(tmp_path, "@batch\ndef f(n):\n    return (n > 1) + (n > 2)  # error\n")
    for backend in ("numpy", "tensorflow"):
        with pytest.raises(CompileError, match=r"Write int\(a\) \+ int\(b\)"):
            module.f.run(*INTS, backend=backend, mode="eager")


# ---- where source is found ------------------------------------------------------------------------------------------

CELL = "@batch\ndef f(n):\n    if n > 1:\n        return n\n    return n + wrong\n"


@pytest.mark.parametrize("filename", ["<ipython-input-1-0>", "/tmp/ipykernel_1/2.py", "<python-input-3>"])
def test_source_of_a_cell_or_prompt_is_found(filename: str) -> None:
    """Notebooks and Python 3.13's prompt register the text of what they run in linecache."""
    linecache.cache[filename] = (len(CELL), None, CELL.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"batch": batch, "__name__": "__main__"}
    exec(compile(CELL, filename, "exec"), namespace)
    with pytest.raises(UndefinedVariableError, match="name 'wrong' is not defined") as caught:
        namespace["f"].run(*INTS, backend="numpy")
    assert str(caught.value).startswith(f"{filename}:5:16\n    {CELL.splitlines()[4]}\n")
    namespace["wrong"] = 5
    assert namespace["f"].run(*INTS, backend="numpy").tolist() == [6, 2, 3]


def test_source_from_standard_input_is_a_clear_error() -> None:
    program = (
        "import numpy as np\nfrom batchnuts.autobatch import batch, CompileError\n@batch\ndef f(n):\n    return n\n"
        "try:\n    f.run(np.array([1]), backend='numpy')\nexcept CompileError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot find the source of 'f'")
    assert "standard input" in done.stdout


@pytest.mark.parametrize("new", ["x = 1\n", "@batch\ndef other(n):\n    return n\n", "@batch\ndef f(n:\n"])
def test_a_file_that_changed_since_its_import_is_noticed(new: str, tmp_path: Path) -> None:
    module = load(tmp_path, "@batch\ndef f(n):\n    return n\n")
    path = Path(str(module.__file__))
    head = path.read_text().split("@batch")[0]
    path.write_text(head + new)
    linecache.checkcache(str(path))
    with pytest.raises(CompileError, match="has changed since Python read it"):
        module.f.run(*INTS, backend="numpy")


def test_a_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(n):\n    return n\n", namespace)
    with pytest.raises(CompileError, match=r"cannot find the source of 'f' .* define it in a file") as caught:
        batch(namespace["f"]).run(*INTS)
    assert caught.value.source is None


def test_a_mistake_is_found_again_at_the_next_call(tmp_path: Path) -> None:
    module = load(tmp_path, "@batch\ndef f(n):\n    del n  # error\n    return 1\n")
    for _ in range(2):
        with pytest.raises(UnsupportedSyntaxError):
            module.f.run(*INTS, backend="numpy")


# ---- arguments ------------------------------------------------------------------------------------------------------


@batch
def add(a, b):
    return a + b


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), np.zeros(4)), "different numbers of lanes: 3 in 'a' and 4 in 'b'. Their first axes must agree"),
        ((np.zeros(3),), "add: missing a required argument: 'b'"),
        ((np.zeros(3), np.zeros(3), np.zeros(3)), "add: too many positional arguments"),
        ((np.zeros(3), np.array(1.0)), r"argument 'b' has an array without a lane axis; give shape \[lanes, ...\]"),
        ((np.zeros(3), np.array(["a", "b", "c"])), "argument 'b' holds <U1, expected numbers or booleans"),
    ],
)
@pytest.mark.parametrize("executor", ["virtual_machine", "stackless", "unbatched"])
def test_arguments_that_do_not_fit(arguments: tuple[Any, ...], message: str, executor: str) -> None:
    with pytest.raises(LaneInputError, match=message):
        add.run(*arguments, executor=executor, backend="numpy")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"executor": "turbo"}, "executor must be one of virtual_machine, .*, unbatched, reference; found 'turbo'"),
        ({"backend": "turbo"}, "backend must be one of tensorflow, jax, numpy, or a Backend object; found 'turbo'"),
        ({"mode": "turbo"}, "mode must be one of xla, graph, eager; found 'turbo'"),
        ({"schedule": "turbo"}, "schedule must be one of auto, earliest, most_active.* found 'turbo'"),
    ],
)
def test_unknown_options(option: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add.run(np.zeros(2), np.zeros(2), **option)


def test_a_batched_primitive_called_by_one_lane_code_is_refused() -> None:
    @autobatch.primitive(batched=True)
    def double(x):
        return x * 2.0

    def helper(x):
        return double(x) + 1.0

    @autobatch.batch
    def program(x):
        y = helper(x)
        return y

    with pytest.raises(autobatch.CompileError, match="call it directly in the batched function"):
        program.run(np.ones(3), backend="numpy")


def test_a_list_of_numbers_is_no_array_of_lanes() -> None:
    @autobatch.batch
    def program(n):
        return n + 1

    with pytest.raises(autobatch.LaneInputError, match=r"numpy\.array\(n\)"):
        program.run([3, 7], backend="numpy")
