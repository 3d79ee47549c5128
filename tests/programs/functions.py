"""Functions as values: by other names, in tables, as arguments, inside other functions; star arguments."""

from __future__ import annotations

import functools

from batchnuts.autobatch import batch, ops, primitive
from programs.case import Case, floats, ints


@batch
def square(x):
    return x * x


@batch
def halve(x, by=2.0):
    return x / by


@primitive(batched=True)
def plus_one(x):
    return x + 1.0


@batch
def halvings(x):
    """A recursion."""
    return 0 if abs(x) < 1.0 else 1 + halvings(x * 0.5)


TABLE = {"square": square, "halve": halve, "one": plus_one, "down": ops.floor}
STEPS = (square, halve)
KIND = "down"
AT_LEAST_ONE = functools.partial(ops.maximum, 1.0)


@batch
def by_name(x, n):
    f = square
    g = TABLE["halve"] if KIND == "down" else TABLE["square"]
    h = ops.exp
    total = f(x) + TABLE[KIND](g(x)) + STEPS[1](x) + (g if KIND == "up" else f)(x) + plus_one(x)
    for _ in range(n):
        inner = g
        total = inner(total) + h(-abs(x))
    return total, TABLE["one"](x)


@batch
def applied(function, x, n):
    """A function among the parameters, through a recursion."""
    if n <= 0:
        return x
    return applied(function, function(x), n - 1)


@batch
def with_default(x, function=halve, *, scale=1.0):
    return function(x) * scale


PAIR = (square, halve)


@batch
def in_variables(x, n):
    """Functions in tuples, dicts and lists of the function's own, taken apart, passed by stars, named by `:=`."""
    a, (b, k) = square, (halve, n + 1)
    b, a = a, b
    c, d = PAIR
    steps, table = (square, halve, ops.exp), {"a": square, "b": [halve, lambda y: y + 1.0]}
    total = a(x) + b(x) * k + c(x) + d(x) + steps[0](x) + steps[2](-abs(x)) + table["b"][0](x) + table["b"][1](x)
    starred = applied(*(square, x, 2)) + applied(**{"function": halve, "x": x, "n": n}) + composed(*PAIR, x)
    named = (f := square)(x) + f(x + 1.0)
    if n > 1:
        e, m = halve, n
        named += e(x) * m
    for step in steps:
        total += step(x * 0.5)
    shifts = [lambda y, k=k: y + k for k in range(3)]
    y = {"low": x, "high": total}
    y = {**y, "low": starred}
    return total, starred, named, sum([h(x) for h in shifts]), y["low"]


@batch
def composed(f, g, x):
    return f(g(x))


@batch
def passes_functions(x, n):
    a = applied(halve, x, n)
    b = applied(function=square, x=x * 0.5, n=n % 3)
    c = applied(ops.sin, x, n) + composed(square, plus_one, x) + composed(plus_one, square, x)
    d = composed(lambda y: y * 0.5, AT_LEAST_ONE, x)
    return a, b, c, d, with_default(x), with_default(x, square, scale=2.0)


@batch
def in_comprehensions(x, n):
    """Batched calls in comprehensions over what is known, nested, with conditions, over functions and pairs."""
    values = [halvings(x * k) for k in (1, 2, 4) if k != 2]
    pairs = [[i * 10 + halvings(x + j) for j in range(i)] for i in range(3)]
    named = {name: f(x) for name, f in (("a", square), ("b", halve))}
    total = sum(n * a * halvings(b * x) for a, b in ((1, 2.0), (2, 3.0)))
    return values[0] + values[1] * 2, pairs[2][0] + pairs[1][0], named["a"] - named["b"], total


@batch
def elements_of_lanes(x, v, n):
    """Batched calls in comprehensions whose length types tell: arrays, tuples, ranges, enumerate, zip, tests."""
    squares = sum([square(v[k]) for k in range(len(v))]) + sum([halve(v[k]) for k in range(v.shape[0] - 1, 0, -1)])
    both = sum(square(y) * y for y in (x, n + 1.0, halvings(x) * 0.5))
    joined = [i * square(y) + halve(z) for i, (y, z) in enumerate(zip(v, reversed(v)), n)]
    rows = [sum([square(y) for y in row if len(row) > 1]) for row in (v, v[1:], v[:1], (x, n * 0.5))]
    pairs = sum([square(p[0]) - p[1] for p in zip(v[:2], (1, 2))]) + sum(
        [halve(*p) for p in ((x, 2.0), (n * 0.5, 4.0))]
    )
    late = sum([halvings(y) for y in v]) if n > 1 else 0
    if all(square(y) < 9.0 for y in v):
        late += 10
    return squares, both, joined, rows, pairs, late


@batch
def functions_by_constants(x, n):
    """Functions that a comprehension's variables choose, within other comprehensions and beneath their own names."""
    m = 3
    named = [TABLE[name](x) for name in ("square", "one")] + [STEPS[i](x) for i in range(len(STEPS))]
    weighted = sum([i * h(x) for i, h in enumerate(STEPS)]) + sum([w * h(x) for w, h in zip((1, 2), STEPS)])
    chosen = sum([(square if k else halve)(x) for k in range(2)]) + sum([square(x + k) for k in range(m)])
    inner = sum([square(sum([n * 0.5 + j for j in range(k)]) + 0.5) for k in range(3)])
    hidden = sum([square((lambda x: x + y)(1.0)) for y in (n * 0.5, x)])
    total = 0.0
    for h in STEPS:
        few = 2
        total += sum([h(k + x) for k in range(few)])
    return named[0] + named[1] + named[3], weighted, chosen, inner, hidden, total


@batch
def point(x, y, scale=1.0, *, shift=0.0):
    return (x - y) * scale + shift


@batch
def star_arguments(x, v, n):
    """Arguments from tuples, arrays and dicts, beside others, with defaults left."""
    t = (x, 2.0)
    first = point(*t) + point(x, *(v[0], 3.0)) + point(*v) + point(*t, *[0.5], shift=x)
    named = {"y": x * 2.0, "shift": v[1]}
    second = point(x, **named) + point(**{"x": 1.0, "y": x}, scale=2.0) + point(*t, **{"scale": v[0]})
    third = plus_one(*(x,)) + composed(square, halve, *(x,)) if n > 1 else applied(square, *(x, n))
    return first, second, third


@batch
def lambdas(x, n):
    """Lambdas in variables: late values, conditions of the lane, calls, within each other and in a comprehension."""
    double = lambda y: y * 2.0  # noqa: E731
    choose = lambda y, k=3: halve(y) if n > k else double(y) + n  # noqa: E731
    a = choose(x)
    n += 4
    b = choose(x, k=2) + sum([double(x + k) for k in range(2)])
    c = sum(map(double, (x, 1.0))) + (lambda p, q: square(p) if q > x else q)(x, 0.25)
    return a, b, c, applied(double, x, 2)


@batch
def inner_functions(x, n):
    """`def` inside: variables of the function around it as they are at the call, recursion, defaults, loops."""
    scale = 1.0

    def down(k, step=1):
        if k <= 0:
            return scale * x
        return down(k - step) + n

    def both(k):
        doubled = down_twice(k) if k > 2 else k
        return doubled + 1

    def down_twice(k):
        while k > 3:
            k -= 2
        return k

    a = down(n)
    scale = 0.5
    b = down(n, step=2) + down(k=1)
    total = 0
    for i in range(n):

        def plus(k):
            return k + i  # noqa: B023

        total += plus(both(i))
    return a, b, total, applied(both, n, 2)


def negated(x):
    return -x


def third(x):
    return x / 3.0


SCALED = functools.partial(halve, by=4.0)
BY_KEY = {"a": negated, "b": third}
NUMBERS = {"a": 2.0, "b": -1.0}
WITH_SQUARES = True


@batch
def first_of_two(functions, x):
    first, second = functions
    return first(second(x))


@batch
def with_or_without(x, scale=None, shift=None):
    value = x if scale is None else x * scale
    if shift is None:
        return value
    return value + shift


@batch
def tables_of_plain_functions(x, n):
    """Plain functions and batched ones in loops, by negative indices, by a loop's number and by keys."""
    for h in (negated, third, square):
        x = h(x)
    for i in range(2):
        x = STEPS[i](x) + (third, negated)[i](x) * i
    for key in BY_KEY:
        x = BY_KEY[key](x) + NUMBERS[key]
    return STEPS[-1](x) + (negated, third)[-2](x), n


@batch
def partial_functions(x, n):
    h = functools.partial(halve, by=8.0)
    twice = functools.partial(square)
    return SCALED(x) + h(x), SCALED(x, by=1.0) if n > 1 else twice(x), applied(SCALED, x, n)


@batch
def tuples_of_functions(x, n):
    return first_of_two((square, halve), x), first_of_two((third, square), x) if n > 1 else first_of_two(STEPS, x)


@batch
def function_of_a_constant(x):
    """What is not chosen may be written for other constants."""
    if WITH_SQUARES:
        h = square
    else:
        h = unknown_to_all  # noqa: F821
    return h(x)


@batch
def maps(x, n):
    a, b = map(halve, (x, 3.0 * x))
    total = sum(map(negated, (a, b)))
    for y in map(halve, (a, b), (2.0, 4.0)):
        total += y
    return total, list(map(square, [x, a]))[1] if n > 1 else a


@batch
def absent_arguments(x, n):
    left_out = with_or_without(x) + with_or_without(x, shift=2.0)
    return left_out, with_or_without(x, None, x) if n > 1 else with_or_without(x, x, None)


@batch
def starred_targets(x, v, n):
    first, *rest = (x, n, 2.0 * x, 4.0)
    *before, last = v
    a, (*b, c), d = n, (x, 1.0, 2.0), *v[:1]
    one, *none = (x,)
    return first * rest[1] + rest[2], before[0] + last * len(before), a + b[1] * c + d, one + len(none)


CASES = (
    Case(tables_of_plain_functions, (floats(0.5, -2.0), ints(0, 3))),
    Case(partial_functions, (floats(0.5, -2.0), ints(0, 3))),
    Case(tuples_of_functions, (floats(0.5, -2.0), ints(0, 3))),
    Case(function_of_a_constant, (floats(0.5, -2.0),)),
    Case(maps, (floats(0.5, -2.0), ints(0, 3))),
    Case(absent_arguments, (floats(0.5, -2.0), ints(0, 3))),
    Case(starred_targets, (floats(0.5, -2.0), floats([1, 2, 3], [0.5, -4, 2]), ints(1, 2))),
    Case(by_name, (floats(0.5, -2.0), ints(0, 3))),
    Case(in_variables, (floats(0.5, -2.0), ints(0, 3))),
    Case(passes_functions, (floats(0.5, -2.0, 3.0), ints(0, 2, 4))),
    Case(in_comprehensions, (floats(0.5, -7.0), ints(2, 3))),
    Case(elements_of_lanes, (floats(0.5, -7.0), floats([1, 2.5], [0.5, -4]), ints(1, 2))),
    Case(functions_by_constants, (floats(0.5, -7.0), ints(2, 3))),
    Case(star_arguments, (floats(0.5, -2.0), floats([1, 2], [0.5, -1]), ints(1, 2))),
    Case(lambdas, (floats(0.5, -2.0), ints(0, 5))),
    Case(inner_functions, (floats(0.5, -2.0, 1.0), ints(0, 5, 3))),
)
