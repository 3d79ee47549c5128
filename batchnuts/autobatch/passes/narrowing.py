"""Python's numbers combined with narrower dtypes: none is ever cast to a dtype that cannot hold it.

        f.y = {200}                               y: int64, a literal that meets nothing
        f.z = {y + n} f.y, f.n                    z: int64, computed
        f.x = {z}                        -->      f._check1 = {0 <= z <= 255} f.z
                                                  assert f._check1
                                                  f.x = copy f.z                         x: uint8

Weak types (see `infer_types`) stand for Python's numbers. One becomes an array of another dtype where it is assigned
beside arrays, passed on, returned, written to a buffer, or is an operand. Its possible values are followed through
copies, calls and arithmetic on such numbers alone: if all are known, one that does not fit is the user's mistake, at
the line that holds the number; if not, the lane checks it. Of floats only known ones are looked at: others become
infinite, as everywhere in IEEE 754.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import Source, TypeConflictError
from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    FunctionCallOp,
    Op,
    Primitive,
    PrimOp,
    Program,
    TensorType,
    WriteRowOp,
    check_name,
)
from batchnuts.autobatch.language import operators, ops
from batchnuts.autobatch.language.arrays import require_fits
from batchnuts.autobatch.language.pytree import flatten, leaf_names, map_leaves, unflatten
from batchnuts.autobatch.passes.drop_checks import Evaluator

Numbers = dict[Any, Source | None] | None
"""The Python numbers that a leaf may be, with the places they come from; None where they are not known."""

Types = Mapping[str, Any]

_MANY = 16
"""The maximum count of numbers followed for one leaf; more are treated as unknown."""

ADVICE = "Cast the arrays to a wider dtype with autobatch.ops.cast, or give the inputs one."


def possible_numbers(program: Program, types: Types, evaluator: Evaluator) -> dict[str, list[Numbers]]:
    """For each leaf of each variable, which Python numbers it may be; `types` says which are weak."""
    possible: dict[str, list[Numbers]] = {v: [None] * len(flatten(types[v])[0]) for v in program.vars_in}
    results = _Results(types, evaluator)

    def add(variable: str, numbers: list[Numbers]) -> bool:
        before = possible.get(variable)
        joined = numbers if before is None else [_either(a, b) for a, b in zip(before, numbers)]
        possible[variable] = joined
        return before is None or [n and n.keys() for n in before] != [n and n.keys() for n in joined]

    changed = True
    while changed:
        changed = False
        for op in (op for f in program.all_functions() for block in f.graph.blocks for op in block.ops):
            if isinstance(op, PrimOp) and all(v in possible for v in op.vars_in):
                for variable, numbers in zip(op.vars_out, results.of(op, [possible[v] for v in op.vars_in])):
                    changed |= add(variable, numbers)
            elif isinstance(op, FunctionCallOp):
                callee = program.function(op.function)
                pairs = [*zip(callee.vars_in, op.vars_in), *zip(op.vars_out, callee.vars_out)]
                for to, of in pairs:
                    if of in possible:
                        changed |= add(to, possible[of])
            elif isinstance(op, WriteRowOp) and op.buffer in types:
                changed |= add(op.var_out, [None] * len(flatten(types[op.buffer])[0]))
    return possible


def _either(a: Numbers, b: Numbers) -> Numbers:
    both = None if a is None or b is None else {**b, **a}
    return None if both is None or len(both) > _MANY else both


class _Results:
    """The possible numbers that primitives give."""

    def __init__(self, types: Types, evaluator: Evaluator) -> None:
        self.types = types
        self.evaluator = evaluator
        self.constants: dict[int, list[list[Any]]] = {}

    def of(self, op: PrimOp, operands: list[list[Numbers]]) -> list[list[Numbers]]:
        """For each output, the possible numbers of its leaves."""
        if op.function is COPY:
            return operands
        weak = [leaf.weak for v in op.vars_in for leaf in flatten(self.types[v])[0]]
        results = self.evaluator.evaluate(op.function, tuple(self.types[v] for v in op.vars_in))
        leaves: list[list[Any]] | None = None
        if not any(leaf.weak for result in results for leaf in flatten(result.type)[0]):
            pass  # arrays only
        elif op.vars_in and not any(weak):
            leaves = self._constants(op)
        elif all(weak):
            leaves = self._computed(op, [n for numbers in operands for n in numbers])
        if leaves is None:
            return [[None] * len(flatten(result.type)[0]) for result in results]
        return [[{n: op.source} if type(n) in (int, float) else None for n in numbers] for numbers in leaves]

    def _computed(self, op: PrimOp, operands: list[Numbers]) -> list[list[Any]] | None:
        """The results of Python numbers alone, if each operand can be one number only."""
        if not all(n is not None and len(n) == 1 for n in operands):
            return None
        leaves = iter([next(iter(n)) for n in operands if n])
        arguments = [map_leaves(lambda _: next(leaves), self.types[v]) for v in op.vars_in]
        with contextlib.suppress(Exception):  # it may fail, on a path that is never taken
            return [flatten(result)[0] for result in op.function.call(*arguments)]
        return None

    def _constants(self, op: PrimOp) -> list[list[Any]]:
        """The results that are Python numbers although all inputs are arrays."""
        if id(op) not in self.constants:
            seen: list[Any] = []

            def call(*values: Any) -> tuple[Any, ...]:
                seen[:] = results = op.function.call(*values)
                return tuple(results)

            self.evaluator.evaluate(op.function.with_call(call), tuple(self.types[v] for v in op.vars_in))
            self.constants[id(op)] = [flatten(result)[0] for result in seen]
        return self.constants[id(op)]


class Narrowing:
    """Adds to ops the checks they need; `types` are the inferred ones, weak ones among them."""

    def __init__(self, program: Program, types: Types, evaluator: Evaluator) -> None:
        self.program = program
        self.types = types
        self.evaluator = evaluator
        self.numbers = possible_numbers(program, types, evaluator)
        self.added_types: dict[str, Any] = {}
        """Types of the variables that were added."""
        every = [op for f in program.all_functions() for block in f.graph.blocks for op in block.ops]
        self.assigned = {v for op in every if isinstance(op, PrimOp) for v in op.vars_out}
        self.texts = {op.vars_out[0]: op.function.text for op in every if isinstance(op, PrimOp)}

    def checked(self, op: Op, casts: Iterable[tuple[str, str]] = ()) -> Iterator[Op]:
        """The op, with checks before and after it. casts: variables that it takes for another dtype.

        Raises TypeConflictError for a number that is known not to fit.
        """
        source = getattr(op, "source", None)
        for variable, dtype in casts:
            wanted = map_leaves(functools.partial(_with_dtype, dtype), self.types[variable])
            yield from self.before(variable, wanted, source)
        match op:
            case WriteRowOp(buffer=buffer, value=value) if buffer in self.types and value in self.types:
                yield from self.before(value, self.types[buffer], source)
                yield op
            case FunctionCallOp(vars_out, name, vars_in):
                callee = self.program.function(name)
                for parameter, argument in zip(callee.vars_in, vars_in):
                    if argument in self.types:
                        yield from self.before(argument, self.types[parameter], source)
                result_types = [self.types.get(v) for v in callee.vars_out]
                yield from self.after(op, vars_out, result_types, [self.numbers.get(v) for v in callee.vars_out])
            case PrimOp(vars_out, function, vars_in) if function is COPY:
                for out, variable in zip(vars_out, vars_in):
                    if variable in self.types:
                        yield from self.before(variable, self.types[out], source)
                yield op
            case PrimOp(vars_out, function, vars_in) if all(v in self.types for v in vars_in):
                results = self.evaluator.evaluate(function, tuple(self.types[v] for v in vars_in))
                operands = [self.numbers.get(v, []) for v in vars_in]
                numbers = _Results(self.types, self.evaluator).of(op, operands)
                yield from self.after(op, vars_out, [r.type for r in results], numbers)
            case _:
                yield op

    def before(self, variable: str, wanted: Any, source: Source | None) -> Iterator[Op]:
        """Checks that the variable's numbers fit the type they are taken for."""
        numbers = self.numbers.get(variable) or [None] * len(flatten(wanted)[0])
        for leaf in self.narrower(self.types[variable], wanted, numbers):
            yield from self.check(variable, leaf, flatten(wanted)[0][leaf].dtype, source)

    def after(self, op: Any, outs: tuple[str, ...], types: list[Any], numbers: list[Any]) -> Iterator[Op]:
        """The op, with checks of its results. types: what they have before they are those of the variables `outs`."""
        held: dict[str, str] = {}
        checks: list[Op] = []
        for out, type_, possible in zip(outs, types, numbers):
            if type_ is None or out not in self.types:
                continue
            wanted = self.types[out]
            narrower = self.narrower(type_, wanted, possible or [None] * len(flatten(wanted)[0]))
            if narrower:
                leaves, tree = flatten(wanted)
                for leaf in narrower:
                    leaves[leaf] = TensorType("int64", leaves[leaf].shape)
                held[out] = temporary = self.fresh(out, "held")
                self.added_types[temporary] = unflatten(tree, leaves)
                self.texts[temporary] = op.function.text if isinstance(op, PrimOp) else out.rpartition(".")[2]
                for leaf in narrower:
                    checks += self.check(temporary, leaf, flatten(wanted)[0][leaf].dtype, op.source)
        if not held:
            yield op
            return
        yield replace(op, vars_out=tuple(held.get(out, out) for out in outs))
        yield from checks
        yield PrimOp(tuple(held), COPY, tuple(held.values()), op.source)

    def narrower(self, type_: Any, wanted: Any, numbers: list[Numbers]) -> list[int]:
        """Leaves whose numbers, not known here, may not fit; TypeConflictError for a known one that does not."""
        leaves = []
        for i, (weak, strong) in enumerate(zip(flatten(type_)[0], flatten(wanted)[0])):
            if not weak.weak or weak.dtype == "bool":
                continue
            for number, where in (numbers[i] or {}).items():
                _refuse_outside(number, strong.dtype, where)
            integers = (
                weak.dtype == "int64" and np.dtype(strong.dtype).kind in "iu" if strong.dtype in _KNOWN else False
            )
            if numbers[i] is None and integers and strong.dtype != "int64":
                leaves.append(i)
        return leaves

    def check(self, variable: str, leaf: int, dtype: str, source: Source | None) -> tuple[Op, Op]:
        """The ops that stop the lanes on which an integer leaf of the variable does not fit the dtype."""
        limits = np.iinfo(dtype)
        identifier = variable.rpartition(".")[2]
        tree = flatten(self.added_types.get(variable, self.types.get(variable)))[1]
        path = leaf_names(identifier, tree)[leaf]
        lowest, most = int(limits.min), int(limits.max)
        text = f"{lowest} <= {path}" if dtype == "uint64" else f"{lowest} <= {path} <= {most}"
        held = self.fresh_check(variable)
        shown = self.texts.get(variable, path) if tree.kind is None else path
        message = f"the integer `{shown}` does not fit {dtype}, which holds {lowest} to {most}"
        function = Primitive(text, _within(leaf, lowest, most), speculable=True, of_language=True)
        return PrimOp((held,), function, (variable,), source), AssertOp(held, message, source)

    def fresh_check(self, like: str) -> str:
        """A new variable for a check, of type bool."""
        held = self.fresh(like, None)
        self.added_types[held] = TensorType("bool")
        return held

    def fresh(self, like: str, kind: str | None) -> str:
        """A new variable of the same function; without a kind, one for a check."""
        function = like.rpartition(".")[0]
        number = 1
        while True:
            name = f"{function}.{check_name(number) if kind is None else f'_{kind}{number}'}"
            if name not in self.assigned and name not in self.types and name not in self.added_types:
                self.assigned.add(name)
                return name
            number += 1


_KNOWN = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def _with_dtype(dtype: str, leaf: TensorType) -> TensorType:
    return replace(leaf, dtype=dtype)


def _within(leaf: int, lowest: int, most: int) -> Callable[..., tuple[Any, ...]]:
    def call(value: Any) -> tuple[Any, ...]:
        number = flatten(value)[0][leaf]
        from_lowest, to_most = operators.greater_equal(number, lowest), operators.less_equal(number, most)
        return (ops.logical_and(from_lowest, to_most),)

    return call


def _refuse_outside(number: Any, dtype: str, where: Source | None) -> None:
    try:
        require_fits(number, dtype)
    except OverflowError:
        if np.dtype(dtype).kind in "iu":
            limits = np.iinfo(dtype)
            raise TypeConflictError(
                f"the integer {number} meets {dtype} arrays, which hold {limits.min} to {limits.max}. {ADVICE}", where
            ) from None
        kind = "integer" if isinstance(number, int) else "float"
        most = np.finfo(dtype).max
        raise TypeConflictError(
            f"the {kind} {number} meets {dtype} arrays, which hold up to {most}. {ADVICE}", where
        ) from None
    except TypeError:  # a dtype that NumPy knows by name only
        return
