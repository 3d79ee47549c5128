"""What stands after `in`, as a `Sequence`: what is not known when the program is read is evaluated into variables."""

from __future__ import annotations

import ast
from typing import Any

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.frontend import expressions, known
from batchnuts.autobatch.frontend.builder import Builder
from batchnuts.autobatch.frontend.function_values import plain_calls
from batchnuts.autobatch.frontend.sequences import Backwards, Count, Enumerate, Held, Known, Sequence, Zip
from batchnuts.autobatch.frontend.translate import assign, atom, compute, purify
from batchnuts.autobatch.language import iteration


def sequence_of(b: Builder, node: ast.expr) -> Sequence:
    """The sequence that an expression after `in` gives; what is not known yet is evaluated now, into variables."""
    node = plain_calls(b, node)
    function = known.callee_of(b, node)
    if isinstance(node, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.args):
        if function is enumerate:
            return enumerated(b, node)
        if function is zip:
            return zipped(b, node)
        if function is reversed and len(node.args) == 1:
            return backwards(b, node)
        if function is range and not known.is_static(b, node):
            return counted(b, node)
    if known.is_static(b, node):
        value = known.evaluate(b, node)
        value = tuple(value) if type(value) is dict else value  # of its keys, which are known
        return Known(as_sequence(b, value, node), expressions.text_of(node))
    return Held(held_sequence(b, node))


def held_sequence(b: Builder, node: ast.expr) -> str:
    """A variable with what an expression gives, which no assignment changes."""
    held = b.temporary()
    if isinstance(node, ast.Name) or known.needs_variable(b, node):
        assign(b, held, node)
    else:
        where = b.source.at(node)
        compute(b, (b.variable(held),), purify(b, node), where, lambda value: (as_sequence(b, value, node),))
    return held


def as_sequence(b: Builder, value: Any, node: ast.expr) -> Any:
    """The value as something that a loop runs over; raises CompileError at the node where it is not."""
    try:
        return iteration.as_sequence(value)
    except TypeError as error:
        raise CompileError(f"`{expressions.text_of(node)}`: {error}.", b.source.at(node)) from None


def enumerated(b: Builder, node: ast.Call) -> Sequence:
    """The sequence of `enumerate(...)`."""
    arguments: dict[str, ast.expr] = dict(zip(("iterable", "start"), node.args))
    arguments |= {str(k.arg): k.value for k in node.keywords}
    if "iterable" not in arguments or arguments.keys() - {"iterable", "start"} or len(node.args) > 2:
        b.refuse(node, f"`{expressions.text_of(node)}`", "write enumerate(x) or enumerate(x, start)")
    inner = sequence_of(b, arguments["iterable"])
    start: int | str = 0
    if "start" in arguments:
        number = known.evaluate(b, arguments["start"]) if known.is_static(b, arguments["start"]) else None
        if type(number) is int:
            start = number
        else:
            start = b.temporary()
            assign(b, start, expressions.as_bound(arguments["start"]))
    return Enumerate(inner, start)


def zipped(b: Builder, node: ast.Call) -> Sequence:
    """The sequence of `zip(...)`."""
    strict: Any = False
    for keyword in node.keywords:
        if keyword.arg != "strict" or not known.is_static(b, keyword.value):
            b.refuse(node, f"`{expressions.text_of(node)}`", "write zip(x, y), or zip(x, y, strict=True)")
        strict = known.evaluate(b, keyword.value)
    sequence = Zip(tuple(sequence_of(b, a) for a in node.args), bool(strict))
    if strict and any(isinstance(part, Count) for part in sequence.parts()):
        form = "a strict zip with a range whose end is a number of the lane"
        b.refuse(node, form, "assert that the lengths agree, and drop `strict`")
    return sequence if sequence.all else Known((), "()")


def backwards(b: Builder, node: ast.Call) -> Sequence:
    """The sequence of `reversed(...)`."""
    inner = sequence_of(b, node.args[0])
    if isinstance(inner, Known):
        return Known(inner.value[::-1], expressions.text_of(node))
    if not isinstance(inner, Held):
        form = f"`{expressions.text_of(node)}`"
        b.refuse(node, form, "reverse each sequence inside, or loop over range(n) and count down from the last")
    return Backwards(inner)


def counted_down(b: Builder, node: ast.expr) -> ast.Call | None:
    """`range` counting down, for `reversed(range(n))` up to a number of the lane."""
    if not (isinstance(node, ast.Call) and known.callee_of(b, node) is reversed and len(node.args) == 1):
        return None
    call = node.args[0]
    if not isinstance(call, ast.Call) or known.callee_of(b, call) is not range or known.is_static(b, call):
        return None
    if not 1 <= len(call.args) <= 2 or not expressions.is_literal_integer(expressions.range_bounds(call)[0]):
        form = f"`{expressions.text_of(node)}`, whose start or step is not a literal,"
        b.refuse(node, form, "write range(last, first - 1, -1)")
    return expressions.counted_down(call)


def counted(b: Builder, node: ast.Call) -> Sequence:
    """The sequence of a `range` beside other sequences."""
    if not 1 <= len(node.args) <= 2 or node.keywords:
        form = f"`{expressions.text_of(node)}` inside enumerate or zip"
        b.refuse(node, form, "zip with range(n), and compute the number in the body")
    start, stop, _ = expressions.range_bounds(node)
    first = known.evaluate(b, start) if known.is_static(b, start) else None
    if type(first) is not int:
        form = f"a range that starts at a number of the lane, `{expressions.text_of(node)}`, inside enumerate or zip"
        b.refuse(node, form, "zip with range(n), and add the start in the body")
    return Count(first, atom(b, expressions.as_bound(stop)))
