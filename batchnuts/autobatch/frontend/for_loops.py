"""`for` over ranges, arrays, structures, enumerate and zip: a counted loop, or an unrolled one.

    for v in x:                      f._1 = copy f.x
        total += v                   f._2 = {0}
                            f.for:   f._3 = {_2 < len(_1)} f._1, f._2
                                     branch f._3 f.body f.done
                           f.body:   f.v, f._2 = {element(_1, _2), _2 + 1} f._1, f._2
                                     ...

Types are not known yet. If type inference finds something that the structure of the program depends on, it raises
`LearnedMore`, and the program is read again: for a tuple whose elements differ in type the loop is unrolled.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.frontend import expressions, known
from batchnuts.autobatch.frontend.builder import Builder, Loop
from batchnuts.autobatch.frontend.expression_rules import assert_that, branch
from batchnuts.autobatch.frontend.expressions import UNKNOWN
from batchnuts.autobatch.frontend.function_values import table
from batchnuts.autobatch.frontend.iterables import counted_down, sequence_of
from batchnuts.autobatch.frontend.loop_names import own_names, renamed
from batchnuts.autobatch.frontend.sequences import Count, Held, Known, Learned, LearnedMore, Sequence
from batchnuts.autobatch.frontend.targets import assign_target, outputs
from batchnuts.autobatch.frontend.translate import assign, atom, atom_name, translate
from batchnuts.autobatch.ir.program import BranchOp, GotoOp, Primitive, PrimOp
from batchnuts.autobatch.language import iteration, ops
from batchnuts.autobatch.language.functions import in_one_lane_code
from batchnuts.autobatch.language.pytree import flatten

MOST_COPIES = 64
"""The maximum number of copies of loop bodies that unrolling makes in one function."""


def for_statement(b: Builder, node: ast.For) -> None:
    """The rule for `for`, by what it runs over."""
    if (down := counted_down(b, node.iter)) is not None:
        node = ast.copy_location(ast.For(node.target, down, node.body, node.orelse), node)
    if isinstance(node.iter, ast.Call) and known.callee_of(b, node.iter) is range and not node.iter.keywords:
        over_range(b, node, node.iter)
    else:
        over_sequence(b, node)


def loop_body(b: Builder, statements: list[ast.stmt], loop: Loop) -> None:
    """Write the body of a loop, in the open block, and go on to its next round."""
    b.loops.append(loop)
    with b.block():
        translate(b, statements)
    b.loops.pop()
    b.end(GotoOp(loop.continue_label))


def close_loop(b: Builder, node: ast.For | ast.While, done: str, after: str) -> None:
    """Write the `else` of a loop, and start the block after it."""
    b.start(done)
    with b.block():
        translate(b, node.orelse)
    b.end(GotoOp(after))
    b.start(after)


def loop_key(b: Builder, node: ast.For, copies: tuple[Any, ...]) -> Hashable:
    """The identity of a loop in the user's source, in a copy of the bodies around it."""
    return (b.callee, node.iter.lineno, node.iter.col_offset, copies)


def rounds_known(b: Builder, node: ast.For) -> Learned | None:
    """What types have shown about a loop."""
    for copies in (b.copies, ()):
        learned = b.reading.learned.get(loop_key(b, node, copies))
        if isinstance(learned, Learned):
            return learned
    return None


# ---- ranges ---------------------------------------------------------------------------------------------------------


def over_range(b: Builder, node: ast.For, call: ast.Call) -> None:
    """Write a loop over range(...)."""
    if not isinstance(node.target, ast.Name):
        b.refuse(node.target, "a loop target other than a plain name", "unpack it in the loop's body")
    if not 1 <= len(call.args) <= 3 or any(isinstance(a, ast.Starred) for a in call.args):
        b.refuse(call, "range with other than one to three arguments", "write range(start, stop, step)")
    start, stop_bound, step = expressions.range_bounds(call)
    if isinstance(step, ast.Constant) and step.value == 0:
        b.refuse(step, "a range with step 0", "give a step other than zero")
    if known.is_static(b, call) and chooses_functions(b, node):
        write_out(b, OverSequence(node, Known(tuple(known.evaluate(b, call)), expressions.text_of(call)), None))
        return
    rounds = rounds_of_range(b, call)
    if not node.orelse and rounds == 1:  # no loop: every lane runs the body, as a part of the function's
        assign(b, node.target.id, start)
        once = b.new_label("endfor")
        b.loops.append(Loop(continue_label=once, break_label=once))
        translate(b, node.body)
        b.loops.pop()
        b.end(GotoOp(once))
        b.start(once)
        return
    header, body, done, after = (b.new_label(kind) for kind in ("for", "body", "done", "endfor"))
    # temporaries, since the body may assign what a bound was computed from
    stop = atom(b, expressions.as_bound(stop_bound))
    if not expressions.is_literal_integer(step):
        step = atom_name(b, expressions.as_bound(step))
        nonzero = expressions.formula("step != zero", call, step=step, zero=ast.Constant(0))
        assert_that(b, nonzero, "range() with a step of 0", b.source.at(step))
    counter = b.temporary()
    assign(b, counter, expressions.as_bound(start))
    b.end(GotoOp(body if (certainly_runs(b, node, call) if rounds is None else rounds > 0) else header))
    b.start(header)
    branch(b, expressions.range_test(counter, stop, step, call), body, done)
    b.start(body)
    following = expressions.range_next(counter, stop, step, call)
    pair = expressions.located(ast.Tuple([ast.Name(counter, ast.Load()), following], ast.Load()), call)
    both = ast.copy_location(ast.Tuple([node.target, ast.Name(counter, ast.Store())], ast.Store()), node.target)
    assign_target(b, both, pair)
    loop_body(b, node.body, Loop(header, after))
    close_loop(b, node, done, after)


def rounds_of_range(b: Builder, call: ast.Call) -> int | None:
    """The number of rounds of a range(...) of integers that are known when the program is read."""
    bounds: list[Any] = [known.evaluate(b, a) for a in call.args] if known.is_static(b, call) else [None]
    return len(range(*bounds)) if all(type(bound) is int for bound in bounds) else None


def certainly_runs(b: Builder, node: ast.For, call: ast.Call) -> bool:
    """Whether a loop over range(...) makes a round on every lane, as types know of range(len(x))."""
    match call.args:
        case [ast.Call(func=function, args=[ast.Name(id=name)], keywords=[])]:
            if known.static(b, function) is b.namespace.get("len") and name in b.locals:
                b.reading.loops[loop_key(b, node, b.copies)] = b.name, Held(name)
                learned = rounds_known(b, node)
                return learned is not None and learned.rounds > 0
    return False


# ---- sequences ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OverSequence:
    """A loop over anything but a range."""

    node: ast.For
    sequence: Sequence
    learned: Learned | None
    """What types have shown about it."""


def over_sequence(b: Builder, node: ast.For) -> None:
    """Write a loop over a sequence."""
    sequence, learned = sequence_of(b, node.iter), rounds_known(b, node)
    loop = OverSequence(node, sequence, learned)
    constants = [part.value for part in sequence.parts() if isinstance(part, Known)]
    if (learned is not None and not learned.alike) or not all(map(_of_numbers, constants)):
        write_out(b, loop)
        return
    if sequence.held():
        b.reading.loops[loop_key(b, node, b.copies)] = b.name, sequence
    header, body, done, after = (b.new_label(kind) for kind in ("for", "body", "done", "endfor"))
    counter = b.temporary()
    assign(b, counter, expressions.located(ast.Constant(0), node.iter))
    b.end(GotoOp(body if makes_a_round(sequence, learned) else header))
    b.start(header)
    round_test(b, loop, counter, body, done)
    b.start(body)
    outs, take_apart = outputs(b, node.target)

    def step(values: dict[str, Any]) -> tuple[Any, ...]:
        return (*take_apart(sequence.item(values, values[counter])), values[counter] + 1)

    text = f"{sequence.text(counter)}, {counter} + 1"
    round_op(b, loop, (*outs, b.variable(counter)), text, step, counter)
    loop_body(b, node.body, Loop(header, after))
    close_loop(b, node, done, after)


def makes_a_round(sequence: Sequence, learned: Learned | None) -> bool:
    """Whether every lane makes the first round."""
    if any(isinstance(part, Count) for part in sequence.parts()):
        return False
    if sequence.held():
        return learned is not None and learned.rounds > 0
    return bool(sequence.length(_no_length))


def round_test(b: Builder, loop: OverSequence, counter: str, yes: str, no: str) -> None:
    """Branch to `yes` where the loop has another iteration, else to `no`."""
    sequence = loop.sequence

    def test(values: dict[str, Any]) -> tuple[Any, ...]:
        k = values[counter]
        tests = sequence.bounds(values, k)
        rounds = sequence.length(lambda v: iteration.length(values[v]))
        if rounds is not None:
            tests.insert(0, k < rounds)
        result = tests[0]
        for further in tests[1:]:
            result = ops.logical_and(result, further)
        return (result,)

    lengths = [f"len({variable})" for variable in sequence.held()]
    lengths += [str(len(part.value)) for part in sequence.parts() if isinstance(part, Known)]
    few = lengths[0] if len(lengths) == 1 else f"min({', '.join(lengths)})"
    texts = [f"{counter} < {few}"] if lengths else []
    texts += [f"{p.text(counter)} < {p.stop}" for p in sequence.parts() if isinstance(p, Count)]
    condition = b.variable(b.temporary())
    round_op(b, loop, (condition,), " and ".join(texts), test, counter)
    b.end(BranchOp(condition, yes, no, b.source.at(loop.node.iter)))


def round_op(
    b: Builder,
    loop: OverSequence,
    outs: tuple[str, ...],
    text: str,
    function: Callable[[dict[str, Any]], tuple[Any, ...]],
    *others: str,
) -> None:
    """outs = function of the variables that the sequence reads, and of others, by their identifiers."""
    node, sequence, learned = loop.node, loop.sequence, loop.learned
    names = tuple(dict.fromkeys([*(name for part in sequence.parts() for name in part.reads()), *others]))
    key = loop_key(b, node, b.copies)
    where = b.source.at(node.iter)

    def call(*operands: Any) -> tuple[Any, ...]:
        values = dict(zip(names, operands))
        token = in_one_lane_code.set(True)
        try:
            rounds = sequence.length(lambda v: iteration.length(values[v]))
            if learned is not None and rounds is not None and rounds != learned.rounds:
                raise LearnedMore(key, Learned(rounds, learned.alike))
            with np.errstate(all="ignore"):
                return function(values)
        except iteration.NotAlike:
            assert rounds is not None
            raise LearnedMore(key, Learned(rounds, alike=False)) from None
        except (TypeError, ValueError) as error:
            raise CompileError(f"`{expressions.text_of(node.iter)}`: {error}.", where) from error
        finally:
            in_one_lane_code.reset(token)

    primitive = Primitive(text, call, of_language=True)
    b.emit(PrimOp(outs, primitive, tuple(map(b.variable, names)), where))


# ---- bodies written out ---------------------------------------------------------------------------------------------


def write_out(b: Builder, loop: OverSequence) -> None:
    """Write the loop unrolled."""
    node, sequence, learned = loop.node, loop.sequence, loop.learned
    held = bool(sequence.held())
    rounds = learned.rounds if learned is not None else None if held else sequence.length(_no_length)
    if rounds is None or held:  # asks for the lengths, or checks that they are still the same
        key = loop_key(b, node, b.copies)

        def ask(values: dict[str, Any]) -> tuple[Any, ...]:
            length = sequence.length(lambda v: iteration.length(values[v]))
            if rounds is None:
                raise LearnedMore(key, Learned(length or 0, alike=False))
            return (length,)

        round_op(b, loop, (b.variable(b.temporary()),), f"rounds of {expressions.text_of(node.iter)}", ask)
    if rounds is None:
        return
    b.copies_written += rounds
    if b.copies_written > MOST_COPIES:
        form = f"a loop whose body is written out for each of {rounds} elements of different types or kinds"
        b.refuse(node.iter, f"{form} (at most {MOST_COPIES} in one function)", "loop over arrays")
    write_rounds(b, loop, rounds)


def write_rounds(b: Builder, loop: OverSequence, rounds: int) -> None:
    """Write the body once for each of this number of iterations."""
    node, sequence = loop.node, loop.sequence
    has_count = any(isinstance(part, Count) for part in sequence.parts())
    done, after = b.new_label("done"), b.new_label("endfor")
    starts = [b.new_label("round") for _ in range(rounds)]
    own, assigned = own_names(node, b.statements()), expressions.assigned_names(node)
    outer = b.copies
    b.end(GotoOp([*starts, done][0]))
    for k, start in enumerate(starts):
        b.start(start)
        if has_count:
            body = b.new_label("body")
            counter = b.temporary()
            assign(b, counter, expressions.located(ast.Constant(k), node.iter))
            round_test(b, replace(loop, learned=None), counter, body, done)
            b.start(body)
        new_names = {name: b.fresh(name, k + 1) for name in sorted(own)}
        target = renamed(node.target, new_names)
        b.copies = (*outer, (node.lineno, node.col_offset, k))
        item = expressions.located(sequence.in_round(k, b.constant), node.iter)
        constants = set(bind_round(b, target, item))
        b.locals |= set(new_names.values()) - constants
        number = sequence.value[k] if isinstance(sequence, Known) else None
        if isinstance(node.target, ast.Name) and type(number) is int and node.target.id not in assigned:
            b.numbers[target.id] = number
        following = [*starts, done][k + 1]
        b.bodies.append([renamed(statement, new_names) for statement in node.body])
        loop_body(b, b.bodies[-1], Loop(following, after))
        b.bodies.pop()
    b.copies = outer
    close_loop(b, node, done, after)


def chooses_functions(b: Builder, node: ast.For) -> bool:
    """Whether the body takes functions out of constants by the loop's variable."""
    target = node.target.id if isinstance(node.target, ast.Name) else None
    parts = [part for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Subscript)]
    by_target = [part for part in parts if isinstance(part.slice, ast.Name) and part.slice.id == target]
    return any(known.has_functions(table(b, part.value)) for part in by_target)


def bind_round(b: Builder, target: ast.expr, item: ast.expr) -> Iterator[str]:
    """target = item, of a round that is known; gives the names that are bound to constants."""
    value = known.static(b, item)
    if isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (tuple, list)) and not _of_numbers(value):
            item = expressions.located(ast.Tuple([b.constant(part) for part in value], ast.Load()), item)
        fits = isinstance(item, ast.Tuple) and len(target.elts) == len(item.elts)
        if isinstance(item, ast.Tuple) and fits and not any(isinstance(t, ast.Starred) for t in target.elts):
            for t, i in zip(target.elts, item.elts):
                yield from bind_round(b, t, i)
            return
    if isinstance(target, ast.Name) and value is not UNKNOWN and not _of_numbers([value]):
        if target.id in b.locals:
            form = f"a loop variable {target.id!r} that holds {type(value).__name__} and is read after the loop"
            b.refuse(target, form, "use it in the loop only")
        b.namespace[target.id] = value
        yield target.id
        return
    b.locals |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    assign_target(b, target, item)


def _no_length(variable: str) -> int:
    raise KeyError(variable)


def _of_numbers(value: Any) -> bool:
    """Whether a constant holds nothing but numbers and arrays of numbers."""
    if isinstance(value, range):
        return True
    return all(
        isinstance(leaf, (bool, int, float, complex))
        or (hasattr(leaf, "dtype") and hasattr(leaf, "shape") and getattr(leaf.dtype, "kind", "f") in "biufc")
        for leaf in flatten(value)[0]
    )
