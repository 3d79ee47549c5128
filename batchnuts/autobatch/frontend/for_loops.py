"""`for` over arrays, structures, enumerate and zip: a counted loop, or an unrolled one.

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
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import CompileError, Source
from batchnuts.autobatch.frontend import expressions
from batchnuts.autobatch.frontend.calls import has_functions
from batchnuts.autobatch.frontend.loop_names import own_names, renamed
from batchnuts.autobatch.frontend.sequences import (
    Apart,
    Backwards,
    Count,
    Enumerate,
    Held,
    Known,
    Learned,
    LearnedMore,
    Numbers,
    Sequence,
    Zip,
)
from batchnuts.autobatch.frontend.targets import TargetBuilder
from batchnuts.autobatch.ir.program import BranchOp, GotoOp, Primitive, PrimOp
from batchnuts.autobatch.language import iteration, ops
from batchnuts.autobatch.language.functions import in_one_lane_code
from batchnuts.autobatch.language.pytree import flatten

MOST_COPIES = 64
"""The maximum number of copies of loop bodies that unrolling makes in one function."""


@dataclass(frozen=True)
class Loop:
    """A loop whose body is being read."""

    continue_label: str
    """Where `continue` goes."""
    break_label: str
    """Where `break` goes."""


@dataclass
class Reading:
    """What is found while a program is read, and what is known from earlier readings."""

    learned: dict[Hashable, Learned | Apart | Numbers] = field(default_factory=dict)
    """What types have shown, by loop and by an expression's place."""
    loops: dict[Hashable, tuple[str, Sequence]] = field(default_factory=dict)
    """Each loop whose number of iterations only types can give: its function's name, and what it runs over."""


class ForLoopBuilder(TargetBuilder):
    """The `for` loops of one function; its statements are the subclass's."""

    reading: Reading
    loops: list[Loop]
    copies: tuple[Any, ...] = ()
    """Which copies of which loops' bodies are being written."""
    copies_written: int = 0
    bodies: list[list[ast.stmt]]
    """The copies that are being written, each around the next."""

    def body(self, statements: list[ast.stmt]) -> None:
        """Write statements."""
        raise NotImplementedError

    def for_statement(self, node: ast.For) -> None:
        """Write a loop."""
        raise NotImplementedError

    def rounds_known(self, node: ast.For) -> Learned | None:
        """What types have shown about a loop."""
        for copies in (self.copies, ()):
            learned = self.reading.learned.get((*self.loop_key(node), copies))
            if isinstance(learned, Learned):
                return learned
        return None

    def is_apart(self, where: Source) -> bool:
        """Whether types say that the parts of the expression there are to be ops."""
        return where in self.reading.learned

    def loop_key(self, node: ast.For) -> tuple[Hashable, ...]:
        """The identity of a loop in the user's source."""
        return (self.callee, node.iter.lineno, node.iter.col_offset)

    def certainly_runs(self, node: ast.For) -> bool:
        """Whether a loop over range(...) makes a round on every lane."""
        call = node.iter
        assert isinstance(call, ast.Call)
        if self.is_static(call):
            bounds = [self.evaluate(a) for a in call.args]
            return all(type(b) is int for b in bounds) and len(range(*bounds)) > 0
        match call.args:
            case [ast.Call(func=function, args=[ast.Name(id=name)], keywords=[])]:
                if self.static(function) is self.namespace.get("len") and name in self.locals:
                    self.reading.loops[(*self.loop_key(node), self.copies)] = self.name, Held(name)
                    learned = self.rounds_known(node)
                    return learned is not None and learned.rounds > 0
        return False

    # ---- what a loop runs over --------------------------------------------------------------------------------------

    def sequence(self, node: ast.expr) -> Sequence:
        """The sequence that an expression after `in` gives; what is not known yet is evaluated now, into variables."""
        node = self.plain_calls(node)
        function = self.static(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and not any(isinstance(a, ast.Starred) for a in node.args):
            if function is enumerate:
                return self.enumerated(node)
            if function is zip:
                return self.zipped(node)
            if function is reversed and len(node.args) == 1:
                return self.backwards(node)
            if function is range and not self.is_static(node):
                return self.count(node)
        if self.is_static(node):
            value = self.evaluate(node)
            value = tuple(value) if type(value) is dict else value  # of its keys, which are known
            return Known(self.as_sequence(value, node), expressions.text_of(node))
        held = self.temporary()
        if isinstance(node, ast.Name) or self.needs_variable(node):
            self.assign(held, node)
        else:
            finish: Callable[[Any], tuple[Any]] = lambda value: (self.as_sequence(value, node),)  # noqa: E731
            self.compute((self.variable(held),), self.purify(node), finish, self.source.at(node))
        return Held(held)

    def as_sequence(self, value: Any, node: ast.expr) -> Any:
        """The value as something that a loop runs over; raises CompileError at the node where it is not."""
        try:
            return iteration.as_sequence(value)
        except TypeError as error:
            raise CompileError(f"`{expressions.text_of(node)}`: {error}.", self.source.at(node)) from None

    def enumerated(self, node: ast.Call) -> Sequence:
        """The sequence of `enumerate(...)`."""
        arguments: dict[str, ast.expr] = dict(zip(("iterable", "start"), node.args))
        arguments |= {str(k.arg): k.value for k in node.keywords}
        if "iterable" not in arguments or arguments.keys() - {"iterable", "start"} or len(node.args) > 2:
            self.refuse(node, f"`{expressions.text_of(node)}`", "write enumerate(x) or enumerate(x, start)")
        inner = self.sequence(arguments["iterable"])
        start: int | str = 0
        if "start" in arguments:
            static = self.evaluate(arguments["start"]) if self.is_static(arguments["start"]) else None
            if type(static) is int:
                start = static
            else:
                start = self.temporary()
                self.assign(start, expressions.as_bound(arguments["start"]))
        return Enumerate(inner, start)

    def zipped(self, node: ast.Call) -> Sequence:
        """The sequence of `zip(...)`."""
        strict: Any = False
        for keyword in node.keywords:
            if keyword.arg != "strict" or not self.is_static(keyword.value):
                self.refuse(node, f"`{expressions.text_of(node)}`", "write zip(x, y), or zip(x, y, strict=True)")
            strict = self.evaluate(keyword.value)
        sequence = Zip(tuple(self.sequence(a) for a in node.args), bool(strict))
        if strict and any(isinstance(part, Count) for part in sequence.parts()):
            form = "a strict zip with a range whose end is a number of the lane"
            self.refuse(node, form, "assert that the lengths agree, and drop `strict`")
        return sequence if sequence.all else Known((), "()")

    def backwards(self, node: ast.Call) -> Sequence:
        """The sequence of `reversed(...)`."""
        inner = self.sequence(node.args[0])
        if isinstance(inner, Known):
            return Known(inner.value[::-1], expressions.text_of(node))
        if not isinstance(inner, Held):
            form = f"`{expressions.text_of(node)}`"
            self.refuse(node, form, "reverse each sequence inside, or loop over range(n) and count down from the last")
        return Backwards(inner)

    def counted_down(self, node: ast.expr) -> ast.Call | None:
        """`range` counting down, for `reversed(range(n))` up to a number of the lane."""
        if not (isinstance(node, ast.Call) and self.static(node.func) is reversed and len(node.args) == 1):
            return None
        call = node.args[0]
        if not isinstance(call, ast.Call) or self.static(call.func) is not range or self.is_static(call):
            return None
        if not 1 <= len(call.args) <= 2 or not expressions.is_literal_integer(expressions.range_bounds(call)[0]):
            form = f"`{expressions.text_of(node)}`, which starts at or goes by a number that is no literal,"
            self.refuse(node, form, "write range(last, first - 1, -1)")
        return expressions.counted_down(call)

    def count(self, node: ast.Call) -> Sequence:
        """The sequence of a `range` beside other sequences."""
        if not 1 <= len(node.args) <= 2 or node.keywords:
            form = f"`{expressions.text_of(node)}` inside enumerate or zip"
            self.refuse(node, form, "zip with range(n), and compute the number in the body")
        start, stop, _ = expressions.range_bounds(node)
        first = self.evaluate(start) if self.is_static(start) else None
        if type(first) is not int:
            form = (
                f"a range that starts at a number of the lane, `{expressions.text_of(node)}`, inside enumerate or zip"
            )
            self.refuse(node, form, "zip with range(n), and add the start in the body")
        return Count(first, self.atom(expressions.as_bound(stop)))

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def over_sequence(self, node: ast.For) -> None:
        """Write a `for` loop over anything but a range."""
        if (counted := self.counted_down(node.iter)) is not None:
            self.for_statement(ast.copy_location(ast.For(node.target, counted, node.body, node.orelse), node))
            return
        sequence = self.sequence(node.iter)
        learned = self.rounds_known(node)
        constants = [part.value for part in sequence.parts() if isinstance(part, Known)]
        if (learned is not None and not learned.alike) or not all(map(_of_numbers, constants)):
            self.write_out(node, sequence, learned)
            return
        if sequence.held():
            self.reading.loops[(*self.loop_key(node), self.copies)] = self.name, sequence
        header, body, done, after = (self.new_label(kind) for kind in ("for", "body", "done", "endfor"))
        counter = self.temporary()
        self.assign(counter, expressions.located(ast.Constant(0), node.iter))
        self.end(GotoOp(body if self.makes_a_round(sequence, learned) else header))
        self.start(header)
        self.round_test(node, sequence, learned, counter, body, done)
        self.start(body)
        outs, take_apart = self.outputs(node.target)

        def step(values: dict[str, Any]) -> tuple[Any, ...]:
            return (*take_apart(sequence.item(values, values[counter])), values[counter] + 1)

        text = f"{sequence.text(counter)}, {counter} + 1"
        self.round_op((*outs, self.variable(counter)), text, step, node, sequence, learned, counter)
        self.loops.append(Loop(header, after))
        with self.block():
            self.body(node.body)
        self.loops.pop()
        self.end(GotoOp(header))
        self.close(node, done, after)

    def makes_a_round(self, sequence: Sequence, learned: Learned | None) -> bool:
        """Whether every lane makes the first round."""
        if any(isinstance(part, Count) for part in sequence.parts()):
            return False
        if sequence.held():
            return learned is not None and learned.rounds > 0
        return bool(sequence.length(_no_length))

    def round_test(
        self, node: ast.For, sequence: Sequence, learned: Learned | None, counter: str, yes: str, no: str
    ) -> None:
        """Branch to `yes` where the loop has another iteration, else to `no`."""

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
        condition = self.variable(self.temporary())
        self.round_op((condition,), " and ".join(texts), test, node, sequence, learned, counter)
        self.end(BranchOp(condition, yes, no, self.source.at(node.iter)))

    def round_op(
        self,
        outs: tuple[str, ...],
        text: str,
        function: Callable[[dict[str, Any]], tuple[Any, ...]],
        node: ast.For,
        sequence: Sequence,
        learned: Learned | None,
        *others: str,
    ) -> None:
        """outs = function of the variables that the sequence reads, and of others, by their identifiers."""
        names = tuple(dict.fromkeys([*(name for part in sequence.parts() for name in part.reads()), *others]))
        key = (*self.loop_key(node), self.copies)
        where = self.source.at(node.iter)

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
        self.emit(PrimOp(outs, primitive, tuple(map(self.variable, names)), where))

    def close(self, node: ast.For, done: str, after: str) -> None:
        """Write the `else` of a loop, and start the block after it."""
        self.start(done)
        with self.block():
            self.body(node.orelse)
        self.end(GotoOp(after))
        self.start(after)

    # ---- bodies written out -----------------------------------------------------------------------------------------

    def write_out(self, node: ast.For, sequence: Sequence, learned: Learned | None) -> None:
        """Write the loop unrolled."""
        held = bool(sequence.held())
        rounds = learned.rounds if learned is not None else None if held else sequence.length(_no_length)
        if rounds is None or held:  # asks for the lengths, or checks that they are still the same

            def ask(values: dict[str, Any]) -> tuple[Any, ...]:
                length = sequence.length(lambda v: iteration.length(values[v]))
                if rounds is None:
                    raise LearnedMore((*self.loop_key(node), copies), Learned(length or 0, alike=False))
                return (length,)

            copies = self.copies
            out = self.variable(self.temporary())
            self.round_op((out,), f"rounds of {expressions.text_of(node.iter)}", ask, node, sequence, learned)
        if rounds is None:
            return
        self.copies_written += rounds
        if self.copies_written > MOST_COPIES:
            form = f"a loop whose body is written out for each of {rounds} elements of different types or kinds"
            self.refuse(node.iter, f"{form} (at most {MOST_COPIES} in one function)", "loop over arrays")
        self.write_rounds(node, sequence, rounds)

    def write_rounds(self, node: ast.For, sequence: Sequence, rounds: int) -> None:
        """Write the body once for each of this number of iterations."""
        done, after = self.new_label("done"), self.new_label("endfor")
        starts = [self.new_label("round") for _ in range(rounds)]
        own = own_names(node, [*self.source.tree.body, *(s for body in self.bodies for s in body)])
        outer, self.copies = self.copies, self.copies
        self.end(GotoOp([*starts, done][0]))
        for k, start in enumerate(starts):
            self.start(start)
            if any(isinstance(part, Count) for part in sequence.parts()):
                body = self.new_label("body")
                counter = self.temporary()
                self.assign(counter, expressions.located(ast.Constant(k), node.iter))
                self.round_test(node, sequence, None, counter, body, done)
                self.start(body)
            new_names = {name: self.fresh(name, k + 1) for name in sorted(own)}
            target = renamed(node.target, new_names)
            self.copies = (*outer, (node.lineno, node.col_offset, k))
            item = expressions.located(sequence.in_round(k, self.hidden), node.iter)
            constants = set(self.bind_round(target, item, node))
            self.locals |= set(new_names.values()) - constants
            number = sequence.value[k] if isinstance(sequence, Known) else None
            if isinstance(target, ast.Name) and type(number) is int and not self.assigns(node, node.target):
                self.numbers[target.id] = number
            following = [*starts, done][k + 1]
            self.loops.append(Loop(following, after))
            self.bodies.append([renamed(statement, new_names) for statement in node.body])
            with self.block():
                self.body(self.bodies[-1])
            self.bodies.pop()
            self.loops.pop()
            self.end(GotoOp(following))
        self.copies = outer
        self.close(node, done, after)

    @staticmethod
    def assigns(node: ast.For, target: ast.expr) -> bool:
        """Whether the body of a loop assigns its variable."""
        return isinstance(target, ast.Name) and target.id in expressions.assigned_names(node)

    def chooses_functions(self, node: ast.For) -> bool:
        """Whether the body takes functions out of constants by the loop's variable."""
        target = node.target.id if isinstance(node.target, ast.Name) else None
        parts = [part for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Subscript)]
        by_target = [part for part in parts if isinstance(part.slice, ast.Name) and part.slice.id == target]
        return any(has_functions(self.table(part.value)) for part in by_target)

    def bind_round(self, target: ast.expr, item: ast.expr, node: ast.For) -> Iterator[str]:
        """target = item, of a round that is known; gives the names that are bound to constants."""
        value = self.static(item)
        if isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (tuple, list)) and not _of_numbers(value):
                item = expressions.located(ast.Tuple([self.hidden(part) for part in value], ast.Load()), item)
            fits = isinstance(item, ast.Tuple) and len(target.elts) == len(item.elts)
            if isinstance(item, ast.Tuple) and fits and not any(isinstance(t, ast.Starred) for t in target.elts):
                for t, i in zip(target.elts, item.elts):
                    yield from self.bind_round(t, i, node)
                return
        if isinstance(target, ast.Name) and value is not expressions.UNKNOWN and not _of_numbers([value]):
            if target.id in self.locals:
                form = f"a loop's variable {target.id!r} that holds {type(value).__name__} and is read after the loop"
                self.refuse(target, form, "use it in the loop only")
            self.namespace[target.id] = value
            yield target.id
            return
        self.locals |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        self.assign_target(target, item)


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
