"""Comprehensions that call batched functions, written out: [f(k) for k in (1, 2)] is [f(1), f(2)].

How many elements there are must be known when the program is read. Constants tell it, `enumerate` and `zip` of them,
and a tuple's text; of `x` and `range(len(x))` types tell it, and the program is read again (`LearnedMore`).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import CompileError, UnsupportedSyntaxError
from batchnuts.autobatch.frontend import expressions, known
from batchnuts.autobatch.frontend.builder import Builder
from batchnuts.autobatch.frontend.iterables import as_sequence, held_sequence
from batchnuts.autobatch.frontend.loop_names import renamed
from batchnuts.autobatch.frontend.sequences import LearnedMore, Numbers
from batchnuts.autobatch.frontend.targets import assign_target
from batchnuts.autobatch.frontend.translate import purify
from batchnuts.autobatch.ir.program import Primitive, PrimOp
from batchnuts.autobatch.language import iteration
from batchnuts.autobatch.language.arrays import is_python_scalar
from batchnuts.autobatch.language.functions import in_one_lane_code
from batchnuts.autobatch.language.operators import Checks
from batchnuts.autobatch.language.pytree import map_leaves
from batchnuts.autobatch.parsing import copied, load

MOST_ELEMENTS = 64
"""The maximum number of elements of a comprehension that calls batched functions."""


@dataclass(frozen=True)
class Place:
    """An iterable or a test of a comprehension."""

    comprehension: ast.AST
    written: ast.expr
    """The user's text of it, in which the variables of the comprehension still stand."""
    rounds: tuple[int, ...]
    """The numbers of the rounds of the generators before."""


class _NotYet(Exception):
    """How many elements there are is not known before types are; the text is the variable that asks for it."""


def written_out(b: Builder, node: ast.expr) -> ast.expr:
    """The expression with lists in place of comprehensions that call batched functions.

    What only some lanes evaluate is left for later: it becomes an expression of its own.
    """
    place = next(known.comprehensions_with_calls(b, node), None)
    if place is None:
        return node
    try:
        parts: list[Any] = list(elements_of(b, place, place.generators, {}, ()))
    except _NotYet as asked:
        count = load(str(asked), place)
        return written_out(b, copied(node, {id(place): count}))
    display: ast.expr
    if isinstance(place, ast.DictComp):
        display = ast.Dict([key for key, _ in parts], [value for _, value in parts])
    elif isinstance(place, ast.SetComp):
        b.refuse(place, "a set of values of the lane", "write a list")
    else:
        display = ast.List(parts, ast.Load())
    return written_out(b, copied(node, {id(place): expressions.located(display, place)}))


def elements_of(
    b: Builder,
    node: Any,
    generators: list[ast.comprehension],
    values: Mapping[str, ast.expr],
    rounds: tuple[int, ...],
) -> Iterator[Any]:
    """The elements, with what they stand for in place of the comprehension's variables; _NotYet for some lengths.

    rounds: the numbers of the rounds of the generators before.
    """
    if not generators:
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        filled = [_filled(part, values) for part in parts]
        yield tuple(filled) if isinstance(node, ast.DictComp) else filled[0]
        return
    first, *others = generators
    count = 0
    for k, item in enumerate(items(b, _filled(first.iter, values), Place(node, first.iter, rounds))):
        inner, until = {**values, **bind(b, first.target, item, node)}, (*rounds, k)
        if all(test_holds(b, _filled(test, inner), Place(node, test, until)) for test in first.ifs):
            for part in elements_of(b, node, others, inner, until):
                count += 1
                if count > MOST_ELEMENTS:
                    form = f"a comprehension of more than {MOST_ELEMENTS} elements that calls a batched function"
                    b.refuse(node, form, "use a for loop and a buffer")
                yield part


def test_holds(b: Builder, test: ast.expr, place: Place) -> bool:
    """Whether a test of a comprehension holds."""
    if known.is_static(b, test):
        return bool(known.evaluate(b, test))
    return bool(known_numbers(b, test, lambda truth: (int(truth),), place)[0])


def items(b: Builder, over: ast.expr, place: Place) -> Iterable[ast.expr]:
    """An expression for each element of what a comprehension runs over."""
    over = written_out(b, _filled(over, {name: ast.Constant(n) for name, n in b.numbers.items()}))
    if isinstance(over, known.DISPLAYS) and not any(isinstance(e, ast.Starred) for e in over.elts):
        return over.elts
    joined = joined_elements(b, over, place)
    if joined is not None:
        return joined
    if known.is_static(b, over):
        value = known.evaluate(b, over)
        elements = value if isinstance(value, (dict, str)) else iteration.elements(as_sequence(b, value, place.written))
        return map(b.constant, elements)  # one after another: there may be too many
    is_range = known.callee_of(b, over) is range
    if isinstance(over, ast.Call) and is_range and not over.keywords and 1 <= len(over.args) <= 3:
        bounds = ast.Tuple(over.args, ast.Load())
        return map(ast.Constant, known_numbers(b, bounds, lambda values: range(*values), place))
    held = over.id if isinstance(over, ast.Name) else held_sequence(b, over)
    length = ast.Call(ast.Name(expressions.LENGTH, ast.Load()), [ast.Name(held, ast.Load())], [])
    numbers = known_numbers(b, length, range, place)
    return [ast.Subscript(ast.Name(held, ast.Load()), ast.Constant(k), ast.Load()) for k in numbers]


def joined_elements(b: Builder, over: ast.expr, place: Place) -> Iterable[ast.expr] | None:
    """The elements of enumerate, zip and reversed of other iterables; None for everything else."""
    function = known.callee_of(b, over)
    if not isinstance(over, ast.Call) or any(isinstance(a, ast.Starred) for a in over.args):
        return None
    keywords = {k.arg: k.value for k in over.keywords}

    def inner(i: int) -> Iterable[ast.expr]:
        return items(b, over.args[i], Place(place.comprehension, over.args[i], (*place.rounds, i)))

    if function is enumerate and over.args and keywords.keys() <= {"start"}:
        start = keywords.get("start", over.args[1] if len(over.args) > 1 else ast.Constant(0))
        counted = (expressions.formula(f"start + {i}", over, start=start) for i in itertools.count())
        return (ast.Tuple([folded(b, i), e], ast.Load()) for e, i in zip(inner(0), counted))
    if function is zip and keywords.keys() <= {"strict"} and all(known.is_static(b, v) for v in keywords.values()):
        groups = [[*itertools.islice(inner(i), MOST_ELEMENTS + 1)] for i in range(len(over.args))]
        lengths = [len(group) for group in groups]
        if any(known.evaluate(b, v) for v in keywords.values()) and len(set(lengths)) > 1:
            message = f"zip(..., strict=True) of sequences of the lengths {', '.join(map(str, lengths))}"
            raise CompileError(f"`{expressions.text_of(place.written)}`: {message}.", b.source.at(place.written))
        return [ast.Tuple(list(group), ast.Load()) for group in zip(*groups)]
    if function is reversed and len(over.args) == 1 and not keywords:
        return [*inner(0)][::-1]
    return None


def folded(b: Builder, node: ast.expr) -> ast.expr:
    """The expression, or its value if that is known."""
    return b.constant(known.evaluate(b, node)) if known.is_static(b, node) else node


def known_numbers(
    b: Builder, expression: ast.expr, numbers: Callable[[Any], Sequence[int]], place: Place
) -> Sequence[int]:
    """`numbers` of the expression's value, which types tell; raises _NotYet where they have not been asked yet.

    In the run, the program asks again, which costs nothing, and finds that the answer is still the same.
    """
    written = place.written
    key: Hashable = (b.callee, written.lineno, written.col_offset, b.copies, place.rounds)
    b.asked[key] = b.asked.get(key, 0) + 1
    key = key, b.asked[key]
    learned = b.reading.learned.get(key)
    pure = purify(b, expressions.located(expression, written))
    known.refuse_hidden_state(b, pure)
    names = b.names_read(pure)
    function = expressions.compile_expression(pure, names, b.namespace, b.source.filename).function
    refusal = refusal_of_calls(b, place.comprehension)
    where = b.source.at(written)

    def ask(*values: Any) -> tuple[Any, ...]:
        token = in_one_lane_code.set(True)
        try:
            with np.errstate(all="ignore"):
                result = function(*values, Checks(values))
                # a number of Python's stands for any number here: the answer must not depend on it
                perturbed = function(*(map_leaves(_perturbed, v) for v in values), Checks(values))
            parts = result if isinstance(result, tuple) else (result,)
            if not all(type(part) in (int, bool) for part in parts) or result != perturbed:
                raise refusal
            answer = Numbers(tuple(numbers(result)[: MOST_ELEMENTS + 1]))
        except (TypeError, ValueError) as error:
            raise CompileError(f"`{expressions.text_of(written)}`: {error}.", where) from error
        finally:
            in_one_lane_code.reset(token)
        if answer != learned:
            raise LearnedMore(key, answer)
        return (len(answer.numbers),)

    out = b.temporary()
    text = f"elements of {expressions.text_of(written)}"
    b.emit(PrimOp((b.variable(out),), Primitive(text, ask), tuple(map(b.variable, names)), where))
    if not isinstance(learned, Numbers):
        raise _NotYet(out)
    return learned.numbers


def bind(b: Builder, target: ast.expr, item: ast.expr, node: ast.AST) -> dict[str, ast.expr]:
    """target = item: what each name of a comprehension's target stands for."""
    item = expressions.located(item, target)
    if isinstance(target, ast.Name):
        bound = expressions.bound_in(node)
        if isinstance(item, ast.Constant) or (isinstance(item, ast.Name) and item.id not in bound):
            return {target.id: item}
        if known.is_static(b, item):
            return {target.id: b.constant(known.evaluate(b, item))}
    elif isinstance(target, known.DISPLAYS) and isinstance(item, known.DISPLAYS) and len(item.elts) == len(target.elts):
        pairs = zip(target.elts, item.elts)
        return {name: value for t, i in pairs for name, value in bind(b, t, i, node).items()}
    if not isinstance(target, ast.Name):
        pattern = expressions.Pattern.of(target, lambda part: b.refuse(part, "this target", "use plain names"))
        if known.is_static(b, item):
            try:
                values = pattern.take_apart(known.evaluate(b, item), b.source.at(target))
            except TypeError as error:  # one object
                raise CompileError(f"`{ast.unparse(target)}`: {error}.", b.source.at(target)) from None
            return {name: b.constant(value) for name, value in zip(pattern.names, values)}
    names = {n.id: b.fresh(n.id) for n in ast.walk(target) if isinstance(n, ast.Name)}
    b.locals |= set(names.values())
    assign_target(b, renamed(target, names), item)
    return {name: ast.Name(fresh, ast.Load()) for name, fresh in names.items()}


def refusal_of_calls(b: Builder, node: ast.AST) -> CompileError:
    """The error for calls within a comprehension that goes by values of the lane."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    call = next((part for part in calls if known.calls_batched(b, part)), node)
    called = f"a call of `{ast.unparse(call.func)}`" if isinstance(call, ast.Call) else "a call"
    return UnsupportedSyntaxError(
        f"{called} inside a comprehension over values of the lane cannot be batched in function "
        f"{b.name!r}. Instead, use a for loop, or a range known at compile time.",
        b.source.at(call),
    )


def _perturbed(number: Any) -> Any:
    """Another number than a number of Python's; arrays as they are."""
    if not is_python_scalar(number):
        return number
    return not number if isinstance(number, bool) else number + 1


def _filled(node: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    """A copy with expressions in place of names that it reads."""
    places = [name for name in expressions.free_loads(node) if name.id in values]
    return copied(node, {id(name): expressions.located(copied(values[name.id]), name) for name in places})
