"""Comprehensions that call batched functions, written out: [f(k) for k in (1, 2)] is [f(1), f(2)].

How many elements there are must be known when the program is read. Constants tell it, `enumerate` and `zip` of them,
and a tuple's text; of `x` and `range(len(x))` types tell it, and the program is read again (`LearnedMore`).
"""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.errors import CompileError, UnsupportedSyntaxError
from batchnuts.autobatch.frontend import expressions
from batchnuts.autobatch.frontend.for_loops import ForLoopBuilder
from batchnuts.autobatch.frontend.function_values import COMPREHENSIONS, with_nodes
from batchnuts.autobatch.frontend.loop_names import renamed
from batchnuts.autobatch.frontend.sequences import LearnedMore, Numbers
from batchnuts.autobatch.ir.program import Primitive, PrimOp
from batchnuts.autobatch.language import iteration
from batchnuts.autobatch.language.arrays import is_python_scalar
from batchnuts.autobatch.language.builtins import python_len
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction, in_one_lane_code
from batchnuts.autobatch.language.operators import Checks
from batchnuts.autobatch.language.pytree import flatten, map_leaves
from batchnuts.autobatch.parsing import copied

MOST_ELEMENTS = 64
"""The maximum number of elements of a comprehension that calls batched functions."""

_DISPLAYS = (ast.Tuple, ast.List)


class _NotYet(Exception):
    """How many elements there are is not known before types are; the text is the variable that asks for it."""


class ComprehensionBuilder(ForLoopBuilder):
    """The comprehensions of one function."""

    asked: dict[Hashable, int]
    """How often the length of the sequence at a place was asked for."""

    @override
    def in_order(self, node: ast.expr) -> ast.expr:
        return super().in_order(self.written_out(self.plain_calls(self.with_lambdas(node))))

    # ---- numbers ----------------------------------------------------------------------------------------------------

    @override
    def assign_target(self, target: ast.expr, value: ast.expr) -> None:
        """Assign to a target, and remember the number of a variable that is assigned once."""
        super().assign_target(target, value)
        if isinstance(target, ast.Name) and self.is_static(value) and self.is_assigned_once(target.id):
            calls = [part for part in ast.walk(value) if isinstance(part, ast.Call)]
            if all(self.static(call.func) is python_len for call in calls):  # other calls are not made twice
                number = self.evaluate(value)
                if type(number) is int:
                    self.numbers[target.id] = number

    def is_assigned_once(self, name: str) -> bool:
        """Whether a variable is no parameter and is assigned in one place only."""
        statements = [*self.source.tree.body, *(s for body in self.bodies for s in body)]
        stores = [
            part
            for statement in statements
            for part in ast.walk(statement)
            if isinstance(part, ast.Name) and part.id == name and not isinstance(part.ctx, ast.Load)
        ]
        return name not in self.parameters and len(stores) == 1

    @override
    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Statements that not every lane runs: numbers of their variables are forgotten after them, too."""
        before = dict(self.numbers)
        with super().block():
            yield
        self.numbers = before

    # ---- what is written out ----------------------------------------------------------------------------------------

    def written_out(self, node: ast.expr) -> ast.expr:
        """The expression with lists in place of comprehensions that call batched functions.

        What only some lanes evaluate is left for later: it becomes an expression of its own.
        """
        place = next(self.places(node), None)
        if place is None:
            return node
        try:
            parts: list[Any] = list(self.elements_of(place, place.generators, {}, ()))
        except _NotYet as asked:
            count = ast.copy_location(ast.Name(str(asked), ast.Load()), place)
            return self.written_out(with_nodes(node, {id(place): count}))
        display: ast.expr
        if isinstance(place, ast.DictComp):
            display = ast.Dict([key for key, _ in parts], [value for _, value in parts])
        elif isinstance(place, ast.SetComp):
            self.refuse(place, "a set of values of the lane", "write a list")
        else:
            display = ast.List(parts, ast.Load())
        return self.written_out(with_nodes(node, {id(place): expressions.located(display, place)}))

    def places(self, node: ast.AST) -> Iterator[Any]:
        """The comprehensions to be written out, outermost ones, that every lane evaluates."""
        choosing = isinstance(node, (ast.IfExp, ast.BoolOp, ast.Compare)) and self.needs_variable(node)
        if choosing or isinstance(node, ast.Lambda):
            return
        if isinstance(node, COMPREHENSIONS):
            if self.has_calls(node):
                yield node
            return
        for child in ast.iter_child_nodes(node):
            yield from self.places(child)

    @override
    def needs_flow(self, body: ast.expr) -> bool:
        return super().needs_flow(body) or any(True for _ in self.places(body))

    def has_calls(self, node: Any) -> bool:
        """Whether a comprehension calls batched functions, or its variables may stand for some."""
        with self.hiding(node):
            inside = [part for part in ast.walk(node) if isinstance(part, ast.comprehension)]
            over = [self.constants_of(generator.iter) for generator in inside]
            if self.calls_batched(node) or any(map(_has_functions, over)):
                return True
            names = [n for c in ast.walk(node) if isinstance(c, ast.Call) for n in ast.walk(c.func)]
            return any(isinstance(name, ast.Name) and _has_functions([self.static(name)]) for name in names)

    def constants_of(self, node: ast.expr) -> list[Any]:
        """The constants that an iterable is made of; iterators are left alone, since they can be read only once."""
        if isinstance(node, ast.Call) and self.static(node.func) in (enumerate, zip, reversed):
            return [value for argument in node.args for value in self.constants_of(argument)]
        if isinstance(node, _DISPLAYS):
            return [value for element in node.elts for value in self.constants_of(element)]
        if next(expressions.unknown_names(node, self.locals, self.namespace), None) or not self.is_static(node):
            return []
        value = self.evaluate(node)
        return [] if isinstance(value, Iterator) else [value]

    @contextlib.contextmanager
    def hiding(self, node: ast.AST) -> Iterator[None]:
        """A context in which names that a comprehension and those inside it bind mean nothing else."""
        bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        locals_, unsettled = self.locals, self.unsettled
        self.locals, self.unsettled = locals_ | bound, unsettled - bound
        try:
            yield
        finally:
            self.locals, self.unsettled = locals_, unsettled

    # ---- elements ---------------------------------------------------------------------------------------------------

    def elements_of(
        self,
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
        for k, item in enumerate(self.items(node, _filled(first.iter, values), first.iter, rounds)):
            inner = {**values, **self.bind(first.target, item, node)}
            if all(self.holds(node, _filled(test, inner), test, (*rounds, k)) for test in first.ifs):
                for part in self.elements_of(node, others, inner, (*rounds, k)):
                    count += 1
                    if count > MOST_ELEMENTS:
                        form = f"a comprehension of more than {MOST_ELEMENTS} elements that calls a batched function"
                        self.refuse(node, form, "use a for loop and a buffer")
                    yield part

    def holds(self, node: ast.AST, test: ast.expr, written: ast.expr, rounds: tuple[int, ...]) -> bool:
        """Whether a test of a comprehension holds."""
        if self.is_static(test):
            return bool(self.evaluate(test))
        return bool(self.known_numbers(node, test, lambda truth: (int(truth),), written, rounds)[0])

    def items(self, node: ast.AST, over: ast.expr, written: ast.expr, rounds: tuple[int, ...]) -> Iterable[ast.expr]:
        """An expression for each element of what a comprehension runs over; `written` is the user's text of it."""
        over = self.written_out(_filled(over, {name: ast.Constant(n) for name, n in self.numbers.items()}))
        if isinstance(over, _DISPLAYS) and not any(isinstance(e, ast.Starred) for e in over.elts):
            return over.elts
        joined = self.joined(node, over, written, rounds)
        if joined is not None:
            return joined
        if self.is_static(over):
            value = self.evaluate(over)
            elements = list(value) if isinstance(value, (dict, str)) else self.elements(value, written)
            return map(self.hidden, elements)  # one after another: there may be too many
        if (
            isinstance(over, ast.Call)
            and self.static(over.func) is range
            and not over.keywords
            and 1 <= len(over.args) <= 3
        ):
            bounds = ast.Tuple(over.args, ast.Load())
            return map(ast.Constant, self.known_numbers(node, bounds, lambda values: range(*values), written, rounds))
        held = over.id if isinstance(over, ast.Name) else self.held_sequence(over)
        length = ast.Call(ast.Name(expressions.LENGTH, ast.Load()), [ast.Name(held, ast.Load())], [])
        numbers = self.known_numbers(node, length, range, written, rounds)
        return [ast.Subscript(ast.Name(held, ast.Load()), ast.Constant(k), ast.Load()) for k in numbers]

    def joined(
        self, node: ast.AST, over: ast.expr, written: ast.expr, rounds: tuple[int, ...]
    ) -> Iterable[ast.expr] | None:
        """The elements of enumerate, zip and reversed of other iterables; None for everything else."""
        function = self.static(over.func) if isinstance(over, ast.Call) else None
        if not isinstance(over, ast.Call) or any(isinstance(a, ast.Starred) for a in over.args):
            return None
        keywords = {k.arg: k.value for k in over.keywords}

        def inner(i: int) -> Iterable[ast.expr]:
            return self.items(node, over.args[i], over.args[i], (*rounds, i))

        if function is enumerate and over.args and keywords.keys() <= {"start"}:
            start = keywords.get("start", over.args[1] if len(over.args) > 1 else ast.Constant(0))
            counted = (expressions.formula(f"start + {i}", over, start=start) for i in itertools.count())
            return (ast.Tuple([self.folded(i), e], ast.Load()) for e, i in zip(inner(0), counted))
        if function is zip and keywords.keys() <= {"strict"} and all(map(self.is_static, keywords.values())):
            groups = [[*itertools.islice(inner(i), MOST_ELEMENTS + 1)] for i in range(len(over.args))]
            lengths = [len(group) for group in groups]
            if any(map(self.evaluate, keywords.values())) and len(set(lengths)) > 1:
                message = f"zip(..., strict=True) of sequences of the lengths {', '.join(map(str, lengths))}"
                raise CompileError(f"`{expressions.text_of(written)}`: {message}.", self.source.at(written))
            return [ast.Tuple(list(group), ast.Load()) for group in zip(*groups)]
        if function is reversed and len(over.args) == 1 and not keywords:
            return [*inner(0)][::-1]
        return None

    def elements(self, value: Any, written: ast.expr) -> Sequence[Any]:
        """The elements of a constant."""
        return iteration.elements(self.as_sequence(value, written))

    def folded(self, node: ast.expr) -> ast.expr:
        """The expression, or its value if that is known."""
        return self.hidden(self.evaluate(node)) if self.is_static(node) else node

    def held_sequence(self, node: ast.expr) -> str:
        """A variable with the elements of what an expression gives."""
        held = self.temporary()
        if self.needs_variable(node):
            self.assign(held, node)
        else:
            pure = self.purify(node)
            self.compute((self.variable(held),), pure, lambda v: (self.as_sequence(v, node),), self.source.at(node))
        return held

    def known_numbers(
        self, node: ast.AST, expression: ast.expr, numbers: Any, written: ast.expr, rounds: tuple[int, ...]
    ) -> Sequence[int]:
        """`numbers` of the expression's value, which types tell; raises _NotYet where they have not been asked yet.

        In the run, the program asks again, which costs nothing, and finds that the answer is still the same.
        """
        key: Hashable = (self.callee, written.lineno, written.col_offset, self.copies, rounds)
        self.asked[key] = self.asked.get(key, 0) + 1
        key = key, self.asked[key]
        learned = self.reading.learned.get(key)
        pure = self.purify(expressions.located(expression, written))
        self.refuse_hidden_state(pure)
        names = expressions.names_read(pure, self.locals)
        function = expressions.compile_expression(pure, names, self.namespace, self.source.filename).function
        refusal = self.refusal_of_calls(node)
        where = self.source.at(written)

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

        out = self.temporary()
        text = f"elements of {expressions.text_of(written)}"
        self.emit(PrimOp((self.variable(out),), Primitive(text, ask), tuple(map(self.variable, names)), where))
        if not isinstance(learned, Numbers):
            raise _NotYet(out)
        return learned.numbers

    def bind(self, target: ast.expr, item: ast.expr, node: ast.AST) -> dict[str, ast.expr]:
        """target = item: what each name of a comprehension's target stands for."""
        item = expressions.located(item, target)
        if isinstance(target, ast.Name):
            bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            bound |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
            if isinstance(item, ast.Constant) or (isinstance(item, ast.Name) and item.id not in bound):
                return {target.id: item}
            if self.is_static(item):
                return {target.id: self.hidden(self.evaluate(item))}
        elif isinstance(target, _DISPLAYS) and isinstance(item, _DISPLAYS) and len(item.elts) == len(target.elts):
            pairs = zip(target.elts, item.elts)
            return {name: value for t, i in pairs for name, value in self.bind(t, i, node).items()}
        if not isinstance(target, ast.Name):
            pattern = expressions.Pattern.of(target, lambda part: self.refuse(part, "this target", "use plain names"))
            if self.is_static(item):
                try:
                    values = pattern.take_apart(self.evaluate(item), self.source.at(target))
                except TypeError as error:  # one object
                    raise CompileError(f"`{ast.unparse(target)}`: {error}.", self.source.at(target)) from None
                return {name: self.hidden(value) for name, value in zip(pattern.names, values)}
        names = {n.id: self.fresh(n.id) for n in ast.walk(target) if isinstance(n, ast.Name)}
        self.locals |= set(names.values())
        self.assign_target(renamed(target, names), item)
        return {name: ast.Name(fresh, ast.Load()) for name, fresh in names.items()}

    def refusal_of_calls(self, node: ast.AST) -> CompileError:
        """The error for calls within a comprehension that goes by values of the lane."""
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        call = next((part for part in calls if self.calls_batched(part)), node)
        called = f"a call of `{ast.unparse(call.func)}`" if isinstance(call, ast.Call) else "a call"
        return UnsupportedSyntaxError(
            f"{called} inside a comprehension that goes by values of the lane cannot be batched in function "
            f"{self.name!r}. Instead, use a for loop, or a range known at compile time.",
            self.source.at(call),
        )


def _perturbed(number: Any) -> Any:
    """Another number than a number of Python's; arrays as they are."""
    if not is_python_scalar(number):
        return number
    return not number if isinstance(number, bool) else number + 1


def _has_functions(value: Any) -> bool:
    """Whether a constant holds functions that the program itself calls; arrays and ranges are not searched."""
    containers: tuple[Any, ...] = (tuple, list, set, frozenset, type({}.items()), type({}.values()))
    parts = [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, containers) else []
    leaves = [leaf for part in parts for leaf in flatten(part)[0]]
    return any(isinstance(leaf, (LaneFunction, PrimitiveFunction)) or _has_functions(leaf) for leaf in leaves)


def _filled(node: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    """A copy with expressions in place of names that it reads."""
    places = [load for load in expressions.free_loads(node) if load.id in values]
    return with_nodes(node, {id(load): expressions.located(copied(values[load.id]), load) for load in places})
