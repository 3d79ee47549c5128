"""Mistakes in functions inside, as values and as arguments."""

from __future__ import annotations

from mistake import Mistake

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
        "the call of 'g' passes it yet another function .* more than 64 times. Pass on the function that it received",
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
    functions("dict: a tuple", "d = (n, n)\nx = g(**d)  # error", "\\*\\* takes a dict with the parameters' names"),
    functions(
        "star: an array for all lanes",
        "v = np.zeros(1) + n\nx = int(p(*v))  # error",
        "which takes all lanes: index it",
    ),
    functions(
        "a function in a structure",
        "t = (g, n)  # error\nx = t[0](t[1])",
        "found the function 'g'. Functions must be known when the program is compiled. .* a tuple or dict of",
    ),
    functions(
        "a function on one path",
        "if n > 1:\n    h = g\nx = h(n)  # error",
        "'h', which stands for a function only within an earlier block",
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
        "found the function 'g'.* `if` and `else` with a call in each",
    ),
    functions(
        "a table by the lane",
        "x = PAIRS[n][1](n)  # error",
        r"`PAIRS\[n\]`, a function chosen by a value of the lane, .* write `if` and `else` with a call in each",
    ),
    functions(
        "a list by the lane", "h = [g, p][n % 2]  # error\nx = h(n)", "a function chosen by a value .* a call in each"
    ),
    functions(
        "a key by the lane",
        "x = TABLE['g' if n > 1 else 'h'](n)  # error",
        "`TABLE.*`, a function chosen by a value of the lane, .* Instead, write `if` and `else` with a call in each",
    ),
    functions(
        "a function in a namedtuple",
        "x = PAIR(g, n).first(n)  # error",
        "found the function 'g'|was called by plain one-lane code",
    ),
    functions(
        "a named function by the lane",
        "x = (h := g)(n) if n > 1 else n  # error",
        "found the function 'g'. Functions must be known",
    ),
    functions(
        "a name for another function",
        "h = p\nx = h(n) + (h := g)(n)  # error",
        "the name stands for another function, .* a statement of its own",
    ),
    functions("too many functions", "a, b = g, p, g  # error\nx = a(n)", "found the function 'g'|cannot unpack"),
    functions("a function twice", "x = apply(*(g, n), **{'h': g})  # error", "multiple values for"),
    functions("a key that is not there", "x = TABLE['k'](n)  # error", "KeyError: 'k'"),
    functions("a function returned", "return g  # error", "the function 'g'.* return its result"),
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
        "a call of `TABLE\\['g'\\]` inside a comprehension over values of the lane",
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
        "def: in a structure",
        "def h(k):\n    return k\nt = (h, n)  # error",
        "found the function 'h'. Functions must be known",
    ),
    functions(
        "def: in another",
        "def h(k):\n    return k + n\ndef i(k):\n    return h(k)  # error\nx = i(n)",
        "'h', which reads n of the f",
    ),
    functions(
        "def: element of a variable around",
        "v = np.zeros(2)\ndef h(k):\n    v[0] = 1.0  # error\n    return k\nx = h(n)",
        "not a var",
    ),
)
