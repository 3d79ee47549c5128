"""Type inference: a dtype and shape for every variable, from the types of the inputs, by abstract evaluation.

    type ::= unknown | weak literal type | tensor type        (joined upwards, per leaf of a structure)

Every op is evaluated abstractly as soon as all it reads has a type, and its results are joined into its outputs, until
nothing changes: the base case of a recursion gives its result a type, and the recursive case then agrees with it.
Python literals are weak: they stand for themselves while types are found, so that `x = 0` beside `x = x + y` takes
the dtype of `y`; what stays weak at the end becomes Python's own: int64, float64, bool.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from batchnuts.autobatch import ops
from batchnuts.autobatch.compiler.checks import drop_settled_checks
from batchnuts.autobatch.compiler.ir import (
    COPY,
    AssertOp,
    Block,
    BranchOp,
    Function,
    FunctionCallOp,
    Op,
    Primitive,
    PrimOp,
    Program,
    TensorType,
    WriteRowOp,
    reads,
)
from batchnuts.autobatch.compiler.text import show_type as show
from batchnuts.autobatch.compiler.tree import flatten, hashable, map_leaves
from batchnuts.autobatch.errors import BatchnutsError, CompileError, Source, TypeConflictError

WEAK_DTYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_WEAK_ORDER = ["int64", "float64", "complex128"]


@dataclass(frozen=True)
class AbstractResult:
    """What abstract evaluation of a primitive tells about one output variable.

    type: a structure of TensorTypes. sources: for each leaf, the index of the input leaf it passes on unchanged, or
    None for a computed one. used: the input leaves that the computed leaves depend on.
    """

    type: Any
    sources: tuple[int | None, ...]
    used: frozenset[int]


class Evaluator(Protocol):
    """What inference needs of a backend."""

    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        """The results of the primitive, one for each output variable, for arguments of these (structured) types.

        Weak leaves are handed to the function as Python numbers. Errors of the function propagate.
        """


class Remembering:
    """An Evaluator that traces each primitive once for the same argument types."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._known: dict[Any, tuple[AbstractResult, ...]] = {}
        self._traced: list[Primitive] = []

    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        """See Evaluator."""
        key = (id(function), hashable(arguments))
        if key not in self._known:
            self._known[key] = self._evaluator.evaluate(function, arguments)
            self._traced.append(function)  # alive, so that no other primitive gets its id
        return self._known[key]


class _Conflict(Exception):
    """Two leaf types that do not join."""


def join_leaves(old: TensorType, new: TensorType) -> TensorType:
    """The type of a variable that holds both; _Conflict where there is none."""
    if old == new:
        return old
    if old.shape != new.shape:
        raise _Conflict
    if old.dtype == new.dtype:
        return replace(old, weak=old.weak and new.weak)
    if old.weak and new.weak and "bool" not in (old.dtype, new.dtype):
        return max(old, new, key=lambda t: _WEAK_ORDER.index(t.dtype))
    for weak, strong in ((old, new), (new, old)):
        if weak.weak and not strong.weak and weak_fits(weak, strong):
            return strong
    raise _Conflict


def weak_fits(weak: TensorType, strong: TensorType) -> bool:
    """A literal may become any dtype of its own kind or a wider kind: int to int or float, float to float."""
    kinds = {"int64": "iufc", "float64": "fc", "complex128": "c", "bool": "b"}[weak.dtype]
    return weak.shape == strong.shape and _kind(strong.dtype) in kinds


def _kind(dtype: str) -> str:
    for prefix, kind in (("int", "i"), ("uint", "u"), ("float", "f"), ("bfloat", "f"), ("complex", "c")):
        if dtype.startswith(prefix):
            return kind
    return "b" if dtype == "bool" else "?"


def strengthen(type_: TensorType) -> TensorType:
    """The type itself, or for a weak one the dtype Python's numbers have."""
    return replace(type_, weak=False)


class _Inference:
    def __init__(self, program: Program, evaluator: Evaluator) -> None:
        self.program = program
        self.evaluator = evaluator
        self.types: dict[str, Any] = {}
        self.origin: dict[str, Source | None] = {}
        self.changed = False
        self.literals: dict[str, dict[int, Source | None]] = {}
        """Integer literals that a variable may hold, and where they were assigned."""

    def join(self, variable: str, new: Any, where: Source | None) -> None:
        old = self.types.get(variable)
        if old is None:
            self.types[variable], self.origin[variable] = new, where
            self.changed = True
            return
        try:
            joined = map_leaves(join_leaves, old, new)
        except (_Conflict, ValueError):
            function, _, identifier = variable.partition(".")
            what = f"the result of {function!r}" if identifier == "return" else f"variable {identifier!r}"
            before = self.origin[variable]
            raise TypeConflictError(
                f"{what} is {show(new)} here but {show(old)} at {before or 'the input'}\n"
                "A variable has one dtype and one shape on all paths. Cast with autobatch.ops.cast, or use a "
                "second variable.",
                where,
            ) from None
        if joined != old:
            self.types[variable] = joined
            self.changed = True

    def evaluate(self, op: PrimOp) -> tuple[AbstractResult, ...]:
        arguments = tuple(self.types[v] for v in op.vars_in)
        self.check_operands(op, arguments)
        try:
            return self.evaluator.evaluate(op.function, arguments)
        except BatchnutsError:
            raise
        except Exception as error:
            shown = ", ".join(f"{v.split('.', 1)[-1]}: {show(t)}" for v, t in zip(op.vars_in, arguments))
            mixed = isinstance(error, TypeError) and re.search("dtype|match type|has type|of type", str(error))
            hint = "\nIf dtypes are mixed here, cast with autobatch.ops.cast." if mixed else ""
            raise CompileError(
                f"`{op.function.text}` failed while it was traced for one lane with {shown or 'no inputs'}.\n"
                f"{type(error).__name__}: {error}{hint}",
                op.source,
            ) from error

    def op(self, op: Op) -> None:
        if any(v not in self.types for v in reads(op)):
            return
        match op:
            case PrimOp():
                for variable, result in zip(op.vars_out, self.evaluate(op)):
                    self.join(variable, result.type, op.source)
                self.note_literals(op)
            case WriteRowOp():
                self.write(op)
            case FunctionCallOp():
                callee = self.program.function(op.function)
                for parameter, argument in zip(callee.vars_in, op.vars_in):
                    self.join(parameter, self.types[argument], op.source)
                for variable, returned in zip(op.vars_out, callee.vars_out):
                    if returned in self.types:
                        self.join(variable, self.types[returned], op.source)

    def write(self, op: WriteRowOp) -> None:
        buffer, value, index = (self.types[v] for v in (op.buffer, op.value, op.index))

        def check(rows: TensorType, row: TensorType) -> TensorType:
            fits = rows.shape[1:] == row.shape and (
                rows.dtype == row.dtype or (row.weak and weak_fits(row, TensorType(rows.dtype, row.shape)))
            )
            if not rows.shape or not fits:
                raise TypeConflictError(
                    f"write: a row of {rows} cannot hold {row}. The value must have the buffer's dtype and its "
                    "shape without the first axis.",
                    op.source,
                )
            return rows

        if not isinstance(index, TensorType) or index.shape or _kind(index.dtype) not in "iu":
            raise TypeConflictError(f"write: the index must be an integer scalar, found {show(index)}.", op.source)
        try:
            self.join(op.var_out, map_leaves(check, buffer, value), op.source)
        except ValueError:
            raise TypeConflictError(
                f"write: the buffer is {show(buffer)} and the value {show(value)}; their structures must be equal.",
                op.source,
            ) from None

    def note_literals(self, op: PrimOp) -> None:
        """Remember integers that the op assigns, so that none is cast to a dtype that cannot hold it."""
        if op.function is COPY:
            for out, source in zip(op.vars_out, op.vars_in):
                self.literals.setdefault(out, {}).update(self.literals.get(source, {}))
        elif not op.vars_in:
            for out, value in zip(op.vars_out, op.function.call()):
                if type(value) is int:
                    self.literals.setdefault(out, {}).setdefault(value, op.source)

    def check_operands(self, op: PrimOp, arguments: tuple[Any, ...]) -> None:
        """Raise if an integer operand written in the expression fits none of the integer dtypes it may meet."""
        leaves = [leaf for t in arguments for leaf in flatten(t)[0]]
        integers = [np.iinfo(leaf.dtype) for leaf in leaves if _kind(leaf.dtype) in "iu"]
        if not integers or any(_kind(leaf.dtype) in "fc" for leaf in leaves):
            return
        for value in op.function.operands:
            if not any(limits.min <= value <= limits.max for limits in integers):
                raise TypeConflictError(
                    f"`{op.function.text}`: the integer {value} does not fit {integers[0].dtype}. Cast the arrays to a "
                    "wider dtype with autobatch.ops.cast, or give the inputs one.",
                    op.source,
                )

    def check_literals(self, variable: str, dtype: str) -> None:
        """Raise if the variable may hold an integer literal outside the dtype's range."""
        if _kind(dtype) not in "iu":
            return
        limits = np.iinfo(dtype)
        for value, where in self.literals.get(variable, {}).items():
            if not limits.min <= value <= limits.max:
                raise TypeConflictError(
                    f"the integer {value} meets {dtype} arrays, which hold {limits.min} to {limits.max}. "
                    "Cast the arrays to a wider dtype with autobatch.ops.cast, or give the inputs one.",
                    where,
                )

    def settle_block(self, block: Block) -> Block:
        return replace(block, ops=tuple(map(self.settle_weak, block.ops)))

    def settle_weak(self, op: Op) -> Op:
        """The op as it must run once its weak inputs are arrays of Python's dtypes.

        While types were found a weak input stood for a Python number. As an array it may meet another dtype: where
        the op then fails or gives another type, its weak inputs are cast to the dtype of its strong ones first.
        """
        if not isinstance(op, PrimOp) or any(v not in self.types for v in op.vars_in):
            return op
        arguments = tuple(self.types[v] for v in op.vars_in)
        leaves = [leaf for t in arguments for leaf in flatten(t)[0]]
        if op.function is COPY or not any(leaf.weak for leaf in leaves):
            return op
        wanted = [r.type for r in self.evaluate(op)]
        as_arrays = tuple(map_leaves(strengthen, t) for t in arguments)
        if self.gives(op.function, as_arrays, wanted):
            return op
        strong = [leaf.dtype for leaf in leaves if not leaf.weak]
        results = [leaf.dtype for t in wanted for leaf in flatten(t)[0]]
        for dtype in dict.fromkeys([*strong, *results]):
            function = _casting(op.function, arguments, dtype)
            if self.gives(function, as_arrays, wanted):
                for variable, type_ in zip(op.vars_in, arguments):
                    if isinstance(type_, TensorType) and type_.weak:
                        self.check_literals(variable, dtype)
                return replace(op, function=function)
        shown = ", ".join(f"{v.split('.', 1)[-1]}: {show(t)}" for v, t in zip(op.vars_in, as_arrays))
        raise TypeConflictError(
            f"`{op.function.text}` mixes dtypes that do not go together: {shown}. Cast with autobatch.ops.cast.",
            op.source,
        )

    def gives(self, function: Primitive, arguments: tuple[Any, ...], wanted: list[Any]) -> bool:
        try:
            results = self.evaluator.evaluate(function, arguments)
            for result, expected in zip(results, wanted):
                found = map_leaves(join_leaves, result.type, expected)
                if map_leaves(strengthen, found) != map_leaves(strengthen, expected):
                    return False
        except Exception:  # any failure means: not with these dtypes
            return False
        return True

    def run(self) -> None:
        """To the fixpoint. Each round passes over every op once; types only go up, so it ends."""
        self.changed = True
        while self.changed:
            self.changed = False
            for function in self.program.all_functions():
                for block in function.graph.blocks:
                    for op in block.ops:
                        self.op(op)


def infer_types(program: Program, input_types: tuple[Any, ...], evaluator: Evaluator) -> Program:
    """The program with `var_defs` giving every variable its (structured) type.

    Raises CompileError, with the user's line, for a primitive that fails on its types, TypeConflictError for two
    types in one variable, and CompileError for a recursion whose result never gets a type.
    """
    inference = _Inference(program, evaluator)
    for variable, type_ in zip(program.vars_in, input_types):
        inference.join(variable, type_, None)
    inference.run()
    for function in (*program.functions, program.main_function()):  # the user's own lines first
        _check_settled(function, inference)
        _check_conditions(function, inference)
    settled = {f.name: _map_blocks(f, inference.settle_block) for f in program.all_functions()}
    types = {variable: map_leaves(strengthen, t) for variable, t in inference.types.items()}
    settled = {name: _map_blocks(f, lambda b: drop_settled_checks(b, types, evaluator)) for name, f in settled.items()}
    for variable, type_ in types.items():
        if isinstance(type_, TensorType):
            inference.check_literals(variable, type_.dtype)
    return program.with_functions(settled).replace(var_defs=types)


def _map_blocks(function: Function, change: Callable[[Block], Block]) -> Function:
    return replace(function, graph=replace(function.graph, blocks=tuple(map(change, function.graph.blocks))))


def _check_settled(function: Function, inference: _Inference) -> None:
    for block in function.graph.blocks:
        for op in block.ops:
            if isinstance(op, FunctionCallOp) and any(v not in inference.types for v in op.vars_out):
                raise CompileError(
                    f"the recursion through {op.function!r} has no base case: every path to a return of "
                    f"{op.function!r} calls it again, so its result has no type (and a call would never end). "
                    "Add a path that returns without recursing.",
                    op.source,
                )


def _check_conditions(function: Function, inference: _Inference) -> None:
    for block in function.graph.blocks:
        for op in (*block.ops, block.terminator):
            if not isinstance(op, (AssertOp, BranchOp)):
                continue
            found = inference.types.get(op.cond_var)
            if found is not None and map_leaves(strengthen, found) != TensorType("bool"):
                raise TypeConflictError(
                    f"a condition must be a scalar boolean, found {show(found)}. Reduce it with ops.any or ops.all.",
                    op.source,
                )


def _casting(primitive: Primitive, types: tuple[Any, ...], dtype: str) -> Primitive:
    """The primitive with its weak input leaves cast to `dtype`, where they fit it."""

    def fit(value: Any, type_: TensorType) -> Any:
        return ops.cast(value, dtype) if type_.weak and weak_fits(type_, TensorType(dtype, type_.shape)) else value

    def call(*values: Any) -> tuple[Any, ...]:
        return primitive.call(*(map_leaves(fit, v, t) for v, t in zip(values, types)))

    return replace(primitive, call=call)
