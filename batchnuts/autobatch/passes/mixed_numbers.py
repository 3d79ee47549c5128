"""Variables that hold Python's integers on some lanes, and integer arrays of a narrower dtype on others.

        k = 100
        if n > 1:                                 n: int8
            k = n                                 k: int8, which is Python's 100 where n <= 1
        return k + k                      -->     f._check1 = {k + k} f.k            200 in Python, -56 in int8
                                                  assert f._check1

A variable has one dtype, so a lane does not know whether its integer is Python's, which does not wrap, or an array's,
which does. Where all that an expression reads may be Python's own, it is computed in int64, too, and the lanes stop on
which that gives another result. An expression that only has such a part is taken apart (`frontend.sequences.Apart`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from batchnuts.autobatch.frontend.sequences import Apart, LearnedMore
from batchnuts.autobatch.ir.dataflow import Analysis, solve
from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    Block,
    Function,
    FunctionCallOp,
    Op,
    Primitive,
    PrimOp,
    Program,
    TensorType,
    writes,
)
from batchnuts.autobatch.language import operators, ops
from batchnuts.autobatch.language.pytree import flatten, map_leaves, unflatten
from batchnuts.autobatch.passes.drop_checks import Evaluator

Numbers = frozenset[int] | None
"""The integers of Python's that a leaf may be: none if it is empty, any if it is None."""

Facts = Mapping[str, tuple[Numbers, ...]]
"""For each variable that some path has assigned, the integers that its leaves may be."""

_NEVER: Numbers = frozenset()
_MANY = 16
"""The maximum count of integers followed for one leaf; more are any."""

_WEAK = TensorType("int64", (), weak=True)


def _either(a: Numbers, b: Numbers) -> Numbers:
    both = None if a is None or b is None else a | b
    return None if both is None or len(both) > _MANY else both


def _joined(a: Facts, b: Facts) -> dict[str, tuple[Numbers, ...]]:
    both = {**a, **b}
    for variable in a.keys() & b.keys():
        both[variable] = tuple(map(_either, a[variable], b[variable]))
    return both


def _is_narrow(type_: TensorType) -> bool:
    """Whether it is a scalar of an integer dtype in which Python's arithmetic may wrap."""
    return not type_.weak and not type_.shape and "int" in type_.dtype and type_.dtype != "int64"


def _as_held(number: int, type_: TensorType) -> Any:
    """An integer of Python's as a variable of that type holds it."""
    return number if type_.weak else np.dtype(type_.dtype).type(number)


class MixedNumbers:
    """What the variables of a program may hold, given their inferred types, weak ones among them."""

    def __init__(self, program: Program, types: Mapping[str, Any], evaluator: Evaluator) -> None:
        self.types = {v: flatten(t)[0] for v, t in types.items()}
        self.structures = types
        self.evaluator = evaluator
        self.program = program
        self.before: dict[int, Facts] = {}
        """By the op's id, the facts before it."""
        self.results: dict[str, tuple[Numbers, ...]] = {}
        """The facts of each parameter and result of a function."""
        self._follow({v: tuple(map(self._initial, self.types[v])) for v in program.vars_in if v in self.types})

    @staticmethod
    def _initial(type_: TensorType) -> Numbers:
        return None if type_ == _WEAK else _NEVER

    def _follow(self, inputs: Facts) -> None:
        self.results = dict(inputs)
        previous: Facts | None = None
        while previous != self.results:
            previous = dict(self.results)
            for function in self.program.all_functions():
                self._follow_function(function)

    def _follow_function(self, function: Function) -> None:
        def transfer(block: Block, facts: Facts) -> Facts:
            after = dict(facts)
            for op in block.ops:
                self.before[id(op)] = dict(after)
                after |= self._assigned(op, after)
            return after

        boundary = {v: self.results[v] for v in function.vars_in if v in self.results}
        analysis = Analysis[Facts](forward=True, boundary=boundary, bottom={}, merge=_joined, transfer=transfer)
        at_end = solve(function.graph, analysis, through_calls=False).at_end.values()
        for facts in at_end:
            self.results = _joined(self.results, {v: facts[v] for v in function.vars_out if v in facts})

    def _assigned(self, op: Op, facts: Facts) -> Facts:
        """The facts of an op's outputs, given the facts before it."""
        if isinstance(op, FunctionCallOp):
            callee = self.program.function(op.function)
            arguments = {p: facts[a] for p, a in zip(callee.vars_in, op.vars_in) if a in facts}
            self.results = _joined(self.results, arguments)
            return {out: self.results[v] for out, v in zip(op.vars_out, callee.vars_out) if v in self.results}
        if isinstance(op, PrimOp) and op.function is COPY:
            return {out: facts[v] for out, v in zip(op.vars_out, op.vars_in) if v in facts}
        if isinstance(op, PrimOp) and all(v in facts for v in op.vars_in):
            return self._computed(op, facts)
        return {v: tuple(_NEVER for _ in self.types[v]) for v in writes(op) if v in self.types}

    def _computed(self, op: PrimOp, facts: Facts) -> Facts:
        operands = [n for v in op.vars_in for n in facts[v]]
        try:
            results = self.evaluator.evaluate(op.function, self._as_pythons(op, facts))
        except Exception:  # it fails on Python's numbers: then lanes hold none
            return {v: tuple(_NEVER for _ in self.types[v]) for v in op.vars_out}
        are_pythons = [[leaf == _WEAK for leaf in flatten(result.type)[0]] for result in results]
        values: list[Numbers] = [None] * sum(map(len, are_pythons))
        if any(map(any, are_pythons)) and all(operands) and (combinations := self._combinations(operands)):
            values = [_NEVER] * len(values)
            for numbers in combinations:
                values = list(map(_either, values, self._values(op, numbers, len(values))))
        each = iter(values)
        return {
            v: tuple(number if weak else _NEVER for weak, number in zip(leaves, each))
            for v, leaves in zip(op.vars_out, are_pythons)
        }

    @staticmethod
    def _combinations(operands: list[Numbers]) -> list[tuple[int, ...]]:
        choices = [sorted(n) for n in operands if n is not None]
        products = (
            list(itertools.islice(itertools.product(*choices), _MANY + 1)) if len(choices) == len(operands) else []
        )
        return products if len(products) <= _MANY else []

    def _values(self, op: PrimOp, numbers: tuple[int, ...], count: int) -> list[Numbers]:
        """The results for Python's integers."""
        arguments = self._arguments(op, numbers, lambda number, _: number)
        try:
            leaves = [leaf for result in op.function.call(*arguments) for leaf in flatten(result)[0]]
        except Exception:  # on a path that is never taken
            return [_NEVER] * count
        return [frozenset({leaf}) if type(leaf) is int else None for leaf in leaves]

    def _arguments(self, op: PrimOp, numbers: tuple[int, ...], of_type: Callable[[int, TensorType], Any]) -> list[Any]:
        """What an op reads where its leaves are these integers."""
        each = iter(numbers)
        return [map_leaves(lambda t: of_type(next(each), t), self.structures[v]) for v in op.vars_in]

    def _as_pythons(self, op: PrimOp, facts: Facts) -> tuple[Any, ...]:
        """The types of what an op reads where all that may be Python's is."""
        types = []
        for v in op.vars_in:
            leaves, tree = flatten(self.structures[v])
            mixed = [_WEAK if n is None or n else leaf for n, leaf in zip(facts[v], leaves)]
            types.append(unflatten(tree, mixed))
        return tuple(types)

    # ---- checks -----------------------------------------------------------------------------------------------------

    def checks(self, op: Op, fresh: Callable[[str], str]) -> Iterator[Op]:
        """What stops the lanes on which an op depends on whether an integer is Python's own. `fresh` names a check.

        Raises LearnedMore where the op is to be taken apart.
        """
        facts = self.before.get(id(op), {})
        if not isinstance(op, PrimOp) or op.function is COPY or not all(v in facts for v in op.vars_in):
            return
        mixed = {v for v in op.vars_in if any(map(self._is_mixed, facts[v], self.types[v]))}
        if not mixed or op.function.batched or op.function.costly:
            return
        pythons = {v for v in op.vars_in if all(n is None or n for n in facts[v])}
        if not pythons.issuperset(op.vars_in):
            if any(part <= pythons and part & mixed for part in op.function.parts):
                raise LearnedMore(op.source, Apart())
            return
        if self._never_differs(op, facts):
            return
        narrow = next(leaf.dtype for v in op.vars_in for leaf in self.types[v] if _is_narrow(leaf))
        check = fresh(op.vars_out[0])
        text = op.function.written or op.function.text
        yield PrimOp((check,), self._same_in_int64(op), op.vars_in, op.source)
        message = (
            f"`{text}` wraps in {narrow}, and does not where the integers are Python's own: write numpy.{narrow}(...) "
            "for those, or cast the arrays to a wider dtype"
        )
        yield AssertOp(check, message, op.source)

    @staticmethod
    def _is_mixed(numbers: Numbers, type_: TensorType) -> bool:
        return (numbers is None or bool(numbers)) and _is_narrow(type_)

    def _never_differs(self, op: PrimOp, facts: Facts) -> bool:
        """Whether all integers are known, and the results are the same."""
        combinations = self._combinations([n for v in op.vars_in for n in facts[v]])
        same = self._same_in_int64(op)
        for numbers in combinations:
            try:
                held = self._arguments(op, numbers, _as_held)
                if not same.call(*held)[0]:
                    return False
            except Exception:  # a number that does not fit, or a division by zero: lanes will tell
                return False
        return bool(combinations)

    def _same_in_int64(self, op: PrimOp) -> Primitive:
        """Whether an op gives the same of integers of narrow dtypes and of int64."""
        function = op.function
        types = tuple(self.structures[v] for v in op.vars_in)

        def widened(value: Any, type_: TensorType) -> Any:
            return ops.cast(value, "int64") if _is_narrow(type_) else value

        def beyond(values: tuple[Any, ...]) -> Any:
            """Whether an integer is beyond int64, and so an array's."""
            result: Any = False
            for leaf, type_ in zip(flatten(values)[0], flatten(types)[0]):
                if _is_narrow(type_) and type_.dtype == "uint64":
                    result = ops.logical_or(result, operators.less(ops.cast(leaf, "int64"), 0))
            return result

        def call(*values: Any) -> tuple[Any, ...]:
            narrow = function.call(*values)
            wide = function.call(*(map_leaves(widened, v, t) for v, t in zip(values, types)))
            same: Any = True
            for a, b in zip(*(flatten(tuple(results))[0] for results in (narrow, wide))):
                equal = operators.equal(a, b)
                equal = ops.logical_or(equal, ops.logical_and(operators.not_equal(a, a), operators.not_equal(b, b)))
                same = ops.logical_and(same, ops.all(equal))
            return (ops.logical_or(beyond(values), same),)

        text = f"same_in_int64({function.text})"
        return replace(function.with_call(call), text=text, parts=(), offset=None, weak=False)


def has_mixed(types: Mapping[str, Any], assigned: Mapping[str, list[Any]]) -> bool:
    """Whether some variable of a narrow integer dtype is also assigned Python's integers; `assigned`: types of each."""
    for variable, type_ in types.items():
        for i, leaf in enumerate(flatten(type_)[0]):
            if _is_narrow(leaf) and any(flatten(t)[0][i] == _WEAK for t in assigned.get(variable, ())):
                return True
    return False
