"""All mistakes that are reported at a line: `MISTAKES`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from mistake import VECTORS, Mistake, statement
from mistakes_of_functions import FUNCTIONS

from batchnuts.autobatch import CompileError, TypeConflictError, UndefinedVariableError

UNSUPPORTED = (
    statement("try", "try:  # error\n    x = 1\nfinally:\n    x = 2", "a `try` .* Instead, test for the condition"),
    statement("with", "with open('a'):  # error\n    x = 1", "a `with` .* Instead, do the set-up outside"),
    statement("yield", "yield x  # error", "`.*yield x.*` cannot be batched .* Instead, write each value"),
    statement("yield value", "x = yield n  # error", "`.*yield n.*` cannot be batched .* Instead, write each value"),
    statement("global", "global y  # error\ny = 1", "a `global` .* Instead, pass the value in and return it"),
    statement("class", "class C:  # error\n    pass", "Instead, define the class outside"),
    statement(
        "an assertion's text", "assert n > 0, f'{n}'  # error", "an assertion message .* write a constant message"
    ),
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
    statement("negative write", "x = write(x, -2, n)  # error", r"counted from the front, .* write x = x; x\[-2\] = n"),
    statement(
        "starred field", "x, *n.y = n, n, n  # error", r"assignment to `\*n.y` .* Instead, assign to plain names"
    ),
    statement("bare expression", "x + 1  # error", r"the statement `x \+ 1`, whose value .* drop or assign it"),
    statement("print", "print(x)  # error", r"the statement `print\(x\)`, .* leave it out; .* executor='unbatched'"),
    statement(
        "a call", "f(n - 1)  # error", r"`f\(n - 1\)`, .* Instead, assign what it returns, .* changes no variable"
    ),
    statement("append", "y = [n]\ny.append(x)  # error", r"`y.append\(x\)`, .* an array of fixed length, with"),
    statement("update", "y = {'a': n}\ny.update(a=x)  # error", r"`y.update\(a=x\)`, .* Instead, make a new dict"),
    statement("range of nothing", "for y in range():  # error\n    x += y", "Instead, write range"),
    statement("loop target", "for x, y in range(3):  # error\n    pass", "Instead, unpack it in the loop's body"),
    statement("bare return", "if n > 1:\n    return  # error", "Instead, return what the caller needs"),
    Mistake("star parameters", "@batch\ndef f(*n):  # error\n    return n\n", "Instead, name each parameter"),
    Mistake("async", "@batch\nasync def f(n):  # error\n    return n\n", "found `async def`, expected `def`"),
    Mistake("lambda", "f = batch(lambda n: n + 1)  # error\n", "plain function: found a lambda, expected `def`. Write"),
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
    statement("element of a number", "x[0] = 1  # error", r"(?s)`x\[0\]` failed.*a number has no elements to assign"),
    statement(
        "element of a global",
        "TABLE[0] = 1  # error",
        r"not a variable of the function, .* copy it into one first: x = TABLE .* kept in a dict",
    ),
    statement("element of a field", "n.real[0] = 1  # error", r"Instead, write x = x._replace\(real=autobatch.write\("),
    statement("element of a call", "abs(n)[0] = 1  # error", r"Instead, give the array a name first"),
    statement(
        "slice", "y = np.zeros(3)\ny[0:2] = 1.0  # error", "whose index is not an integer, .* one element at a time"
    ),
    statement(
        "augmented slice", "y = np.zeros(3)\ny[:] += 1.0  # error", "whose index is not an integer, .* one element"
    ),
    statement("key", "y = {'a': n}\ny['a'] = 1  # error", r"a new dict of the same keys: y = \{\*\*y, 'a': value\}"),
    statement("mask", "y = np.zeros(3)\ny[y > 0.0] = 1.0  # error", "the index of an assigned element is an integer"),
    statement(
        "star among elements", "y = np.zeros(3)\ny[0], *x = n, n  # error", r"assignment to `\*x` .* Instead, assign"
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
        r"the elements of a dict are strings, .* its values\(\)",
    ),
    statement("for over what has no end", "for y in ENDLESS:  # error\n    x += y", "endless iterable"),
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
    statement(
        "two dtypes",
        "if n > 1:\n    x = 0.5  # error",
        "(?s)'x' is float64.* but int64.* at .*Make it float64 .*The *",
    ),
    statement(
        "two dtypes of arrays",
        "y = ops.cast(n, 'float64')\nif n > 1:\n    y = ops.cast(y, 'float32')  # error",
        r"(?s)'y' is float32.* here but float64.* at .*Make it float64 everywhere, .* where it is float32, [^*]*$",
    ),
    statement(
        "a number and a boolean",
        "y = True\nif n > 1:\n    y = 0  # error",
        "(?s)'y' is int64.*Make it int64 everywhere, .* where it is bool",
    ),
    statement(
        "two dtypes behind one that fits",
        "y = (0.5, n)\nif n > 1:\n    y = (n * 0.5, 0.5)  # error",
        "(?s)'y' is .*Make it float64 everywhere, .* where it is int64",
    ),
    statement(
        "a number and an array",
        "y = 0.0\nif n > 1:\n    y = np.zeros(3)  # error",
        r"(?s)'y' is float64\[3\] here but .* from the start, such as numpy.zeros\(\(3,\), 'float64'\)",
    ),
    statement(
        "two shapes", "y = np.zeros(2)\nif n > 1:\n    y = np.zeros(3)  # error", r"(?s)'y' is float64\[3\] .* for both"
    ),
    statement("two structures", "if n > 1:\n    x = (n, n)  # error", r"(?s)'x' is tuple\(.*\) here but int64.* one l"),
    statement(
        "another structure, and then its use",
        "y = (n, n)\ny = y[0]  # error\nx = y + 1",
        r"(?s)'y' is int64.* here but tuple\(int64\[\], int64\[\]\)",
    ),
    statement(
        "another length, and then its use",
        "y = (n, n)\ny = y + (1,)  # error\nx = y[2]",
        r"(?s)'y' is tuple\(.*\) here but tuple",
    ),
    statement(
        "another shape, and then its use", "x = ops.stack([x, x])  # error\nx = x[1]", r"(?s)'x' is int64\[2\] here"
    ),
    statement("a list that grows", "y = []\nfor i in range(n):\n    y = y + [i]  # error", "(?s)'y' is list.* one len"),
    statement("a shape of the lane", "y = np.zeros(n)  # error", "A shape must be known .* of the largest shape"),
    statement("an object", "y = slice(n)  # error", "found slice. Keep several values in a tuple, dict"),
    statement("None", "y = None  # error", "`None`: a variable holds arrays and numbers, found None. Use a number"),
    statement("a vector's condition", "if np.zeros(3) > n:  # error\n    x = n", "scalar boolean, found bool.*ops.any"),
    statement("a vector's truth", "y = np.zeros(3) + float(n)\nwhile y:  # error\n    x = n", "takes a scalar, not sh"),
    statement(
        "write: row",
        "y = np.zeros((3, 2))\ny = write(y, n, 1.0)  # error",
        r"is float64\[2\] and cannot hold float64\[\]",
    ),
    statement(
        "write: dtype",
        "y = np.zeros(3)\ny = write(y, n, n)  # error",
        "Cast with .*: the value to 'float64', or",
    ),
    statement("write: itself", "y = np.zeros(3)\ny[0] = y  # error", r"is float64\[\] and cannot hold float64\[3\]"),
    statement("write: two indices", "y = np.zeros((3, 3))\ny[0, 1] = n  # error", "Cast with .*: the value to"),
    statement("write: a number", "y = write(n, 0, 1)  # error", "a buffer is an array, found one number .int64."),
    statement("an expression's type", "return n > 1 and n  # error", "(?s)`n > 1 and n` is .*An expression has"),
    statement("a part's type", "x = (n and 0.5) + 1  # error", r"(?s)`n and 0.5` is float64.* here but int64"),
    statement("a bound's text", "for y in range(n * 1.5):  # error\n    x += y", r"`n \* 1.5` failed .*\n.* write int"),
    statement("a condition's text", "if np.zeros(3) + (n or 1):  # error\n    x = 1", r"`np.zeros\(3\) \+ \(n or 1\)`"),
    statement("a part's name", "x = ops.stack([n, n]) @ (n or 1)  # error", r"with .*`n or 1`: int64\[\]\."),
    statement("write: index", "y = np.zeros(3)\ny = write(y, 0.5, 1.0)  # error", "index must be an integer scalar"),
    statement(
        "write: indices", "y = np.zeros((3, 3))\ny = write(y, (n, n), 1.0)  # error", r"scalar, .*write x\[i, j\] ="
    ),
    statement("write: fields", "y = np.zeros(3)\ny = write(y, 0, (1.0, n))  # error", "structures must be equal"),
    statement("no array", "x = object()  # error", "a variable holds arrays and numbers, found object"),
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


def helper(name: str, body: str, inputs: tuple[Any, ...], message: str) -> Mistake:
    """A helper `h(n)` whose result's type depends on the values that it is given, or that changes what it is given."""
    text = f"def h(n):\n{body}@batch\ndef f(n):\n    x = n\n    return h(x)  # error\n"
    return Mistake(name, text, message, inputs=inputs, backends=("numpy",))


MANY = (np.array([1, 60]),)

HELPERS = (
    helper(
        "a float for few values",
        "    return n / 8 if n > 50 else n\n",
        MANY,
        r"gave float64\[\] where int64\[\] was inferred: .* Return one type",
    ),
    helper(
        "a number for few booleans",
        "    return n if n > 50 else n > 9\n",
        MANY,
        r"gave int64\[\] where bool\[\] was inferred",
    ),
    helper(
        "a wider dtype for few values",
        "    return np.int64(2**40) if n > 50 else np.int32(7)\n",
        MANY,
        r"gave int64\[\] where int32\[\] was inferred",
    ),
    helper(
        "more digits for few values",
        "    return np.float64(n / 7) if n > 50 else np.float32(n)\n",
        MANY,
        r"gave float64\[\] where float32\[\] was inferred",
    ),
    helper("beyond int64", "    return 2**70 if n > 50 else n\n", MANY, f"gave {2**70} where int64"),
    helper("None for few values", "    return None if n > 50 else n\n", MANY, r"gave None where int64"),
    helper(
        "another shape for few values",
        "    return np.zeros(3 if n > 50 else 2)\n",
        MANY,
        r"gave float64\[3\] where float64\[2\] was inferred",
    ),
    helper(
        "another length for few values",
        "    return (n, n, n) if n > 50 else (n, n)\n",
        MANY,
        r"gave tuple\(array, array, array\) where tuple\(array, array\) was inferred",
    ),
    helper(
        "another structure for few values",
        "    return {'a': n} if n > 50 else (n,)\n",
        MANY,
        r"gave dict\(a=array\) where tuple\(array\) was inferred",
    ),
)

LENGTHS = (
    Mistake(
        "unpacking what depends on the lane",
        "def h(n):\n    return [n] * int(n)\n@batch\ndef f(n):\n    x, y = h(n)  # error\n    return x + y\n",
        "cannot unpack 5 values into 2 names",
        inputs=(np.array([2, 5]),),
        backends=("numpy",),
    ),
    Mistake(
        "unpacking one number",
        "@batch\ndef f(n):\n    x, y = n  # error\n    return x + y\n",
        "cannot unpack one number into 2 names",
    ),
)

IN_PLACE = (
    helper("changed in place", "    n -= 1.0\n    return n\n", VECTORS, "read-only, since a change in place would"),
    helper("sorted in place", "    n.sort()\n    return n\n", VECTORS, "read-only, since a change in place would"),
)

OBJECTS = (
    statement("a builtin as the result", "return abs  # error", "found the function 'abs'"),
    statement("is True", "x = (n > 2) is True  # error", "`is` compares objects, .* write `b` or `not b`"),
    statement("is not of two", "if n is not x:  # error\n    x = 1", "`is` compares objects, .* numbers with =="),
    statement("isinstance", "x = isinstance(n, (int, np.integer))  # error", "Ask for its dtype"),
    statement("isinstance of a union", "x = isinstance(n, int | float)  # error", "Ask for its dtype"),
    statement("type", "x = type(n) == int  # error", "Ask for its dtype"),
)

OPERANDS = (
    statement("bits of a float", "x = n | (n * 0.5)  # error", "`|` takes integers and .*, found int64 and float64"),
    statement("bits of a constant", "x = n & 1.5  # error", "`&` takes integers and booleans, .* Cast with ops.cast"),
    statement("bits by a function", "x = ops.bitwise_or(n, 1.5)  # error", "bitwise_or takes integers and booleans"),
    statement("square of a boolean", "x = ops.square(n > 1)  # error", "square takes integers and floats, found bool"),
    statement("bits of a boolean", "x = ops.left_shift(n > 1, n > 2)  # error", "left_shift takes integers, .* bool"),
    statement("products of booleans", "x = ops.dot(n > 1, n > 2)  # error", "multiply takes integers .* bool and bool"),
    statement("sums of a number", "x = ops.cumsum(n)  # error", "cumsum takes an array, found one number"),
    statement("a shift by a float", "x = n << 1.5  # error", "`<<` takes integers and .*, found int64 and float64"),
    statement("all bits of a float", "x = ~(n * 0.5)  # error", "`~` takes integers and booleans, found float64"),
    statement("arrays in tuples", "x = (n, TABLE) == (1, TABLE + n)  # error", r"elements of tuples, .* reduce it"),
    statement("arrays in a tuple", "x = n in (TABLE + n, 1)  # error", "elements of tuples, .* takes a scalar"),
    statement("a tuple in a dict", "x = {(1, 2): 3}.get((n, n), 0)  # error", "looked up in a dict must be known"),
    statement("a modulus", "x = pow(n, 2, 5)  # error", r"pow with a modulus .* write pow\(a, b\), and `% m`"),
    statement("a base", "x = int(n, 2)  # error", r"int\(\) can't convert non-string with explicit base"),
    statement("indices of take", "x = ops.take(TABLE, n)  # error", r"index of ops.take must be known .* write x\[i\]"),
    statement(
        "indices of take in a list",
        "x = ops.take(TABLE, indices=[n, 0])  # error",
        r"index of ops.take must be known .* write x\[i\]",
    ),
    *(
        replace(statement(f"numpy.{name}", f"x = np.{call}  # error", message), backends=("tensorflow",))
        for name, call, message in (
            ("array_equal", "array_equal(n, n)", r"array_equal cannot take a value of the lane .* write ops.all"),
            ("array_equiv", "array_equiv((n, n), 1)", r"array_equiv cannot take a value of the lane .* write ops.all"),
            ("isscalar", "isscalar(n)", r"isscalar cannot take a value of the lane .* write np.ndim\(x\) == 0"),
        )
    ),
)

MISTAKES = (
    *UNSUPPORTED,
    *of_kind(TypeConflictError, HELPERS),
    *of_kind(CompileError, LENGTHS),
    *of_kind(CompileError, IN_PLACE),
    *of_kind(CompileError, OBJECTS),
    *of_kind(CompileError, OPERANDS),
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
