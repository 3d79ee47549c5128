"""Type inference: a dtype and shape for every variable, from the types of the inputs, by abstract evaluation.

    type ::= unknown | weak literal type | tensor type        (joined upwards, per leaf of a structure)

Every op is evaluated abstractly as soon as all it reads has a type; a variable's type is the join of what its
assignments give it now. This is repeated until nothing changes: the base case of a recursion gives its result a type,
and the recursive case then agrees with it. Python literals are weak: they stand for themselves while types are found,
so that `x = 0` beside `x = x + y` takes the dtype of `y`; what stays weak at the end becomes Python's own: int64,
float64, bool.

An op that makes an array of a literal (`ops.where(c, x, 1)`) gives another type once the literal has met its dtype, so
types do not only go up: two types that conflict on the way are an error only if they still do at the end. If they do,
and the variable is also assigned a literal, that literal may have had to have one of the dtypes around it from the
start: these are tried before the conflict is reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from typing_extensions import override

from batchnuts.autobatch.errors import BatchnutsError, CompileError, Source, TypeConflictError
from batchnuts.autobatch.frontend.sequences import Apart, LearnedMore
from batchnuts.autobatch.ir.printer import show_type as show
from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    Block,
    BranchOp,
    Function,
    FunctionCallOp,
    IndirectGotoOp,
    Op,
    Primitive,
    PrimOp,
    Program,
    TensorType,
    WriteRowOp,
    reads,
)
from batchnuts.autobatch.language import ops
from batchnuts.autobatch.language.functions import no_row
from batchnuts.autobatch.language.pytree import flatten, hashable, map_leaves
from batchnuts.autobatch.passes.drop_checks import drop_settled_checks
from batchnuts.autobatch.passes.join_types import (
    Conflict,
    NoArrayError,
    join_leaves,
    kind,
    rule_broken,
    weak_fits,
)
from batchnuts.autobatch.passes.mixed_numbers import MixedNumbers, has_mixed
from batchnuts.autobatch.passes.narrowing import ADVICE, Narrowing
from batchnuts.autobatch.passes.user_frames import deepest_frame, hint, message_of

WEAK_DTYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


@dataclass(frozen=True)
class AbstractResult:
    """The result of abstract evaluation of a primitive for one output variable.

    type: a structure of TensorTypes. sources: for each leaf, the index of the input leaf it passes on unchanged, or
    None for a computed one. used: the input leaves that the computed leaves depend on.
    """

    type: Any
    sources: tuple[int | None, ...]
    used: frozenset[int]


class Evaluator(Protocol):
    """The interface of a backend that inference needs."""

    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        """The results of the primitive, one for each output variable, for arguments of these (structured) types.

        Weak leaves are handed to the function as Python numbers. Errors of the function propagate.
        """


class Remembering(Evaluator):
    """An Evaluator that traces each primitive once for the same argument types."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._results: dict[Any, tuple[AbstractResult, ...]] = {}
        self._traced: list[Primitive] = []

    @override
    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        key = (id(function), hashable(arguments))
        if key not in self._results:
            self._results[key] = self._evaluator.evaluate(function, arguments)
            self._traced.append(function)  # alive, so that no other primitive gets its id
        return self._results[key]


def _weakened(result: AbstractResult) -> AbstractResult:
    return replace(result, type=map_leaves(lambda leaf: replace(leaf, weak=not leaf.shape), result.type))


def strengthen(type_: TensorType) -> TensorType:
    """The type itself, or for a weak one the dtype Python's numbers have."""
    return replace(type_, weak=False)


_ROUNDS = 50
"""Rounds after which types only go up, so that inference ends whatever the primitives do."""

_HINTS = 3
"""Variables whose literals may be given a dtype together."""

Hints = Mapping[str, str]
"""Dtypes that the literals of some variables have from the start."""


@dataclass(frozen=True)
class _Assignment:
    """The type that one place in the program gives a variable."""

    type: Any
    where: Source | None


class _Inference:
    def __init__(self, program: Program, evaluator: Evaluator, hints: Hints) -> None:
        self.program = program
        self.evaluator = evaluator
        self.hints = hints
        self.written = {v: text for function in program.functions for v, text in function.written.items()}
        self.types: dict[str, Any] = {}
        self.assignments: dict[str, dict[Hashable, _Assignment]] = {}
        """For each variable, by place, what it is assigned."""
        self.conflicts: dict[str, TypeConflictError] = {}
        """Variables whose assignments do not join with the present types."""
        self.met: dict[str, dict[str, None]] = {}
        """For each variable, the dtypes of the arrays that what it is assigned was computed from."""
        self.changed = False
        self.only_upwards = False

    def assign(self, variable: str, place: Hashable, new: Any, where: Source | None) -> None:
        """Note the assignment at a place of the program, and update the variable's type."""
        assignments = self.assignments.setdefault(variable, {})
        assignments[place] = _Assignment(new, where)
        old = self.types.get(variable)
        joined = old if self.only_upwards else None
        for assignment in assignments.values():
            try:
                joined = assignment.type if joined is None else map_leaves(join_leaves, joined, assignment.type)
            except (Conflict, ValueError):
                self.conflicts[variable] = self.conflict(variable, joined, assignment)
                return
        self.conflicts.pop(variable, None)
        joined = self.hinted(variable, joined)
        if joined != old:
            self.types[variable] = joined
            self.changed = True

    def hinted(self, variable: str, type_: Any) -> Any:
        dtype = self.hints.get(variable)
        if dtype is None or not isinstance(type_, TensorType) or not type_.weak:
            return type_
        strong = TensorType(dtype, type_.shape)
        return strong if weak_fits(type_, strong) else type_

    def conflict(self, variable: str, joined: Any, new: _Assignment) -> TypeConflictError:
        function, _, identifier = variable.partition(".")
        subject = f"the result of {function!r}" if identifier == "return" else f"variable {identifier!r}"
        before = next(iter(self.assignments[variable].values())).where
        rule = rule_broken(new.type, joined)
        if variable in self.written:
            subject = f"`{self.written[variable]}`"
            rule = rule.replace("A variable has", "An expression has").replace(", or use another variable", "")
        return TypeConflictError(
            f"{subject} is {show(new.type)} here but {show(joined)} at {before or 'the input'}\n{rule}", new.where
        )

    def other_hints(self) -> Iterator[Hints]:
        """Hints to try in turn where a variable that is also assigned a literal has a conflict."""
        for variable in self.conflicts:
            assigned = [a.type for a in self.assignments[variable].values() if isinstance(a.type, TensorType)]
            weak = [t for t in assigned if t.weak]
            if variable in self.hints or not weak:
                continue
            for dtype in dict.fromkeys([*self.met.get(variable, ()), *(t.dtype for t in assigned if not t.weak)]):
                if all(weak_fits(t, TensorType(dtype, t.shape)) for t in weak):
                    yield {**self.hints, variable: dtype}

    def evaluate(self, op: PrimOp) -> tuple[AbstractResult, ...]:
        try:
            return self.traced(op)
        except CompileError as error:
            for variable in op.vars_in:
                if variable in self.conflicts:  # so the type that it was traced with is only one of the variable's
                    raise self.conflicts[variable] from error
            raise

    def traced(self, op: PrimOp) -> tuple[AbstractResult, ...]:
        arguments = tuple(self.types[v] for v in op.vars_in)
        try:
            results = self.evaluator.evaluate(op.function, arguments)
            return tuple(map(_weakened, results)) if op.function.weak else results
        except BatchnutsError:
            raise
        except NoArrayError as error:
            raise CompileError(f"`{_written(op)}`: {error}", op.source) from error
        except OverflowError as error:
            raise TypeConflictError(
                f"`{_written(op)}`: {error}. {ADVICE}{deepest_frame(error, op.source)}", op.source
            ) from error
        except Exception as error:
            raise CompileError(
                f"`{_written(op)}` failed while it was traced for one lane with {self.shown(op, arguments)}.\n"
                f"{type(error).__name__}: {message_of(error)}{deepest_frame(error, op.source)}"
                f"{hint(error, op.source)}",
                op.source,
            ) from error

    def shown(self, op: PrimOp, types: tuple[Any, ...]) -> str:
        """The types of what an op reads, by the user's names and expressions."""
        named = [f"`{self.written[v]}`" if v in self.written else v.split(".", 1)[-1] for v in op.vars_in]
        return ", ".join(f"{name}: {show(t)}" for name, t in zip(named, types)) or "no inputs"

    def op(self, place: Hashable, op: Op) -> None:
        """Type what an op at that place assigns, if all it reads has a type."""
        if any(v not in self.types for v in reads(op)):
            return
        match op:
            case PrimOp():
                strong = [leaf.dtype for v in op.vars_in for leaf in flatten(self.types[v])[0] if not leaf.weak]
                for variable, result in zip(op.vars_out, self.evaluate(op)):
                    self.met.setdefault(variable, {}).update(dict.fromkeys(strong))
                    self.assign(variable, place, result.type, op.source)
            case WriteRowOp():
                self.write(place, op)
            case FunctionCallOp():
                callee = self.program.function(op.function)
                for parameter, argument in zip(callee.vars_in, op.vars_in):
                    self.assign(parameter, place, self.types[argument], op.source)
                for variable, returned in zip(op.vars_out, callee.vars_out):
                    if returned in self.types:
                        self.assign(variable, place, self.types[returned], op.source)

    def write(self, place: Hashable, op: WriteRowOp) -> None:
        buffer, value, index = (self.types[v] for v in (op.buffer, op.value, op.index))

        def check(rows: TensorType, row: TensorType) -> TensorType:
            fits = rows.shape[1:] == row.shape and (
                rows.dtype == row.dtype or (row.weak and weak_fits(row, TensorType(rows.dtype, row.shape)))
            )
            if not rows.shape or not fits:
                raise TypeConflictError(no_row(rows.dtype, rows.shape, row.dtype, row.shape), op.source)
            return rows

        if not isinstance(index, TensorType) or index.shape or kind(index.dtype) not in "iu":
            raise TypeConflictError(
                f"write: the index must be an integer scalar, found {show(index)}. For an element of a matrix, write "
                "x[i, j] = value.",
                op.source,
            )
        try:
            self.assign(op.var_out, place, map_leaves(check, buffer, value), op.source)
        except ValueError:
            raise TypeConflictError(
                f"write: the buffer is {show(buffer)} and the value {show(value)}; their structures must be equal.",
                op.source,
            ) from None

    def settle_block(self, block: Block, narrowing: Narrowing, mixed: MixedNumbers | None) -> Block:
        ops: list[Op] = []
        for op in block.ops:
            ops += mixed.checks(op, narrowing.fresh_check) if mixed else ()
            ops += narrowing.checked(*self.settle_weak(op))
        return replace(block, ops=tuple(ops))

    def mixed_numbers(self) -> MixedNumbers | None:
        """What variables that hold Python's integers and narrower ones may hold; None if there are none."""
        assigned = {v: [a.type for a in places.values()] for v, places in self.assignments.items()}
        mixed = has_mixed(self.types, assigned)
        return MixedNumbers(self.program, self.types, self.evaluator) if mixed else None

    def settle_weak(self, op: Op) -> tuple[Op, list[tuple[str, str]]]:
        """The op as it must run once its weak inputs are arrays of Python's dtypes; what it casts to which dtype.

        While types were found a weak input stood for a Python number. As an array it may meet another dtype: where
        the op then fails or gives another type, its weak inputs are cast to the dtype of its strong ones first.
        """
        if not isinstance(op, PrimOp) or any(v not in self.types for v in op.vars_in):
            return op, []
        arguments = tuple(self.types[v] for v in op.vars_in)
        leaves = [leaf for t in arguments for leaf in flatten(t)[0]]
        if op.function is COPY or not any(leaf.weak for leaf in leaves):
            return op, []
        wanted = [r.type for r in self.evaluate(op)]
        as_arrays = tuple(map_leaves(strengthen, t) for t in arguments)
        strong = [leaf.dtype for leaf in leaves if not leaf.weak]
        fits = self.gives(op.function, as_arrays, wanted)
        if (fits or len(set(strong)) > 1) and any(map(self.mixes, op.function.parts)):
            raise LearnedMore(op.source, Apart())
        if fits:
            return op, []
        weak = {v for v, t in zip(op.vars_in, arguments) if all(leaf.weak for leaf in flatten(t)[0])}
        if any(part <= weak for part in op.function.parts):  # Python's numbers are computed before they are cast
            raise LearnedMore(op.source, Apart())
        results = [leaf.dtype for t in wanted for leaf in flatten(t)[0]]
        for dtype in dict.fromkeys([*strong, *results]):
            function = _casting(op.function, arguments, dtype)
            if self.gives(function, as_arrays, wanted):
                return replace(op, function=function), [(v, dtype) for v in op.vars_in]
        raise TypeConflictError(
            f"`{_written(op)}` mixes incompatible dtypes: {self.shown(op, as_arrays)}. Cast with autobatch.ops.cast.",
            op.source,
        )

    def mixes(self, variables: frozenset[str]) -> bool:
        """Whether Python's numbers among the variables would give arrays among them another dtype, being arrays.

        Which fields of a structure that has both a part reads is not known here: such a structure is left out.
        """
        values = [[leaf for leaf in flatten(self.types[v])[0] if leaf.dtype != "bool"] for v in variables]
        leaves = [leaf for value in values if len({leaf.weak for leaf in value}) == 1 for leaf in value]
        numbers = {leaf.dtype for leaf in leaves if leaf.weak}
        arrays = {leaf.dtype for leaf in leaves if not leaf.weak} - {"int64", "float64"}
        return bool(arrays if "int64" in numbers else "float64" in numbers and {"f", "b"} & {d[0] for d in arrays})

    def gives(self, function: Primitive, arguments: tuple[Any, ...], wanted: list[Any]) -> bool:
        try:
            results = self.evaluator.evaluate(function, arguments)
            for result, expected in zip(results, wanted):
                joined = map_leaves(join_leaves, result.type, expected)
                if map_leaves(strengthen, joined) != map_leaves(strengthen, expected):
                    return False
        except Exception:  # any failure means: not with these dtypes
            return False
        return True

    def run(self, input_types: tuple[Any, ...]) -> None:
        """Infer types to the fixpoint. Each round passes over every op once."""
        for variable, type_ in zip(self.program.vars_in, input_types):
            self.assign(variable, "input", type_, None)
        rounds = 0
        self.changed = True
        while self.changed:
            self.changed = False
            self.only_upwards = rounds >= _ROUNDS
            rounds += 1
            for function in self.program.all_functions():
                for block in function.graph.blocks:
                    for i, op in enumerate(block.ops):
                        self.op((block.label, i), op)


def infer_types(program: Program, input_types: tuple[Any, ...], evaluator: Evaluator) -> Program:
    """The program with `var_defs` giving every variable its (structured) type, without checks that types settle.

    Raises CompileError, with the user's line, for a primitive that fails on its types, TypeConflictError for two
    types in one variable, and CompileError for a function that never returns or a recursion without a base case.
    """
    inference = _infer(program, input_types, evaluator, {})
    for function in (*program.functions, program.main_function()):  # the user's own lines first
        _check_settled(function, inference)
        _check_conditions(function, inference)
    narrowing = Narrowing(program, inference.types, evaluator)
    settle = functools.partial(inference.settle_block, narrowing=narrowing, mixed=inference.mixed_numbers())
    settled = {f.name: _map_blocks(f, settle) for f in program.all_functions()}
    types = {variable: map_leaves(strengthen, t) for variable, t in (inference.types | narrowing.added_types).items()}
    settled = {name: _map_blocks(f, lambda b: drop_settled_checks(b, types, evaluator)) for name, f in settled.items()}
    return program.with_functions(settled).replace(var_defs=types)


def _infer(program: Program, input_types: tuple[Any, ...], evaluator: Evaluator, hints: Hints) -> _Inference:
    """The inference at its fixpoint, without conflicts; raises the first one if no hint resolves it."""
    inference = _Inference(program, evaluator, hints)
    inference.run(input_types)
    if not inference.conflicts:
        return inference
    for more in inference.other_hints() if len(hints) < _HINTS else ():
        try:
            return _infer(program, input_types, evaluator, more)
        except CompileError:  # the first conflict is the one to report
            continue
    raise next(iter(inference.conflicts.values()))


def _map_blocks(function: Function, change: Callable[[Block], Block]) -> Function:
    return replace(function, graph=replace(function.graph, blocks=tuple(map(change, function.graph.blocks))))


def _check_settled(function: Function, inference: _Inference) -> None:
    for block in function.graph.blocks:
        for op in block.ops:
            if not (isinstance(op, FunctionCallOp) and any(v not in inference.types for v in op.vars_out)):
                continue
            callee = inference.program.function(op.function)
            if not any(isinstance(b.terminator, IndirectGotoOp) for b in callee.graph.blocks):
                raise CompileError(
                    f"function {op.function!r} never returns: every path through it ends in a loop without an exit. "
                    "Add a break, a condition or a return to the loop.",
                    callee.source,
                )
            if any(v not in inference.types for v in op.vars_in):
                continue  # an argument has no type: the call that gives it is the one to name
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
            type_ = inference.types.get(op.cond_var)
            if type_ is not None and map_leaves(strengthen, type_) != TensorType("bool"):
                raise TypeConflictError(
                    f"a condition must be a scalar boolean, found {show(type_)}. Reduce it with ops.any or ops.all.",
                    op.source,
                )


def _written(op: PrimOp) -> str:
    return op.function.written or op.function.text


def _casting(primitive: Primitive, types: tuple[Any, ...], dtype: str) -> Primitive:
    """The primitive with its weak input leaves cast to `dtype`, where they fit it."""

    def fit(value: Any, type_: TensorType) -> Any:
        return ops.cast(value, dtype) if type_.weak and weak_fits(type_, TensorType(dtype, type_.shape)) else value

    def call(*values: Any) -> tuple[Any, ...]:
        return primitive.call(*(map_leaves(fit, v, t) for v, t in zip(values, types)))

    return primitive.with_call(call)
