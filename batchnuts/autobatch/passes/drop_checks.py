"""Checks that the language makes by itself: dropped where types alone show that they hold.

        f.x, f._check1 = {n // d} f.n, f.d          with d: float64
        assert f._check1                     -->    f.x = {n // d} f.n, f.d

A check depends on operands that are variables (see `frontend.on_lanes`). Once their types are known, it may turn out
to be a constant: floats divide by zero, `len(x)` is a number. A constant that does not hold is the user's mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from batchnuts.autobatch.errors import CompileError, LaneAssertionError
from batchnuts.autobatch.ir.program import AssertOp, Block, Op, Primitive, PrimOp, TensorType, is_check


class Evaluator(Protocol):
    """Abstract evaluation, as in `infer_types`."""

    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """One result with a `type` for each output."""


def drop_settled_checks(block: Block, types: Mapping[str, Any], evaluator: Evaluator) -> Block:
    """The block without the checks that hold on every lane; `types` are those at run time.

    Raises CompileError at the user's line for a check that holds on none.
    """
    asserted = {op.cond_var: op for op in block.ops if isinstance(op, AssertOp) and is_check(op.cond_var)}
    settled: set[str] = set()
    ops: list[Op] = []
    for op in block.ops:
        if isinstance(op, PrimOp) and any(v in asserted for v in op.vars_out) and all(v in types for v in op.vars_in):
            results = evaluator.evaluate(op.function, tuple(types[v] for v in op.vars_in))
            constant = {
                i: asserted[v]
                for i, (v, result) in enumerate(zip(op.vars_out, results))
                if v in asserted and isinstance(result.type, TensorType) and result.type.weak
            }
            if constant:
                op = _without(op, constant)
                _try(op, tuple(types[v] for v in op.vars_in), evaluator)
                settled |= {check.cond_var for check in constant.values()}
        if not (isinstance(op, AssertOp) and op.cond_var in settled):
            ops.append(op)
    return replace(block, ops=tuple(ops))


class _DoesNotHold(LaneAssertionError):
    """A check of Python's own numbers that fails: on every lane, unless NumPy's lanes made those numbers."""

    def __init__(self, check: AssertOp) -> None:
        super().__init__(f"{check.source}\n{check.message}." if check.source else f"{check.message}.")
        self.check = check


def _try(op: PrimOp, arguments: tuple[Any, ...], evaluator: Evaluator) -> None:
    try:
        evaluator.evaluate(op.function, arguments)
    except _DoesNotHold as error:
        raise CompileError(f"{error.check.message}, on every lane.", error.check.source) from None


def _without(op: PrimOp, constant: Mapping[int, AssertOp]) -> PrimOp:
    primitive = op.function

    def call(*values: Any) -> tuple[Any, ...]:
        results = primitive.call(*values)
        for i, check in constant.items():
            if not isinstance(results[i], bool):
                raise LaneAssertionError(f"{check.message}: its operands' types depend on their values.")
            if not results[i]:
                raise _DoesNotHold(check)
        return tuple(result for i, result in enumerate(results) if i not in constant)

    outputs = tuple(v for i, v in enumerate(op.vars_out) if i not in constant)
    return replace(op, vars_out=outputs, function=primitive.with_call(call))
