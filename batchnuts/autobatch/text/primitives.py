"""The functions behind a parsed program's primitives: those of another program, or compiled from the expressions."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import ProgramTextError
from batchnuts.autobatch.frontend import expressions, speculation
from batchnuts.autobatch.ir.printer import Variants, same_primitive, show_braced
from batchnuts.autobatch.ir.program import COPY, Primitive, PrimOp, Program, is_check
from batchnuts.autobatch.language.functions import PrimitiveFunction, in_one_lane_code
from batchnuts.autobatch.language.operators import Checks
from batchnuts.autobatch.parsing import parse
from batchnuts.autobatch.text.tokens import TEXT, Line, Token


@dataclass(frozen=True, eq=False)
class _WithoutCode:
    """What a primitive calls that was parsed without its function; equal to nothing but itself."""

    text: str

    def __call__(self, *_: Any) -> tuple[Any, ...]:
        raise ProgramTextError(
            f"the primitive {show_braced(self.text)} was read from text, which does not hold its function. To run the "
            "program, give parse(text, like=program) a program that has the primitive, or parse(text, "
            "namespace={...}) to compile it from its text."
        )


class Primitives:
    """Finds the Primitive of an op that was read; `like` and `namespace` as in `parse.parse`."""

    copy = COPY

    def __init__(self, like: Program | None, namespace: Mapping[str, Any] | None) -> None:
        self._like = like is not None
        self._by_op: dict[tuple[PrimOp, int], Primitive] = {}
        self._by_text: dict[Primitive, list[Primitive]] = {}
        self._namespace = None
        if namespace is not None:
            self._namespace = expressions.namespace_of({**vars(builtins), **namespace})
        variants = Variants()
        for op in _primitive_ops(like) if like else ():
            self._by_op.setdefault((op, variants.number(op)), op.function)
            same = self._by_text.setdefault(op.function, [])
            if not any(same_primitive(primitive, op.function) for primitive in same):
                same.append(op.function)
        self._without_code: dict[tuple[PrimOp, int], Primitive] = {}

    def find(
        self,
        vars_out: tuple[str, ...],
        token: Token,
        vars_in: tuple[str, ...],
        variant: int,
        line: Line,
        *,
        batched: bool,
        costly: bool,
    ) -> PrimOp:
        """The op with its function; fails at the primitive's place in the line."""
        missing = Primitive(token.value, _WithoutCode(token.value), batched, costly)
        op = PrimOp(vars_out, missing, vars_in)
        if (op, variant) in self._by_op:
            return PrimOp(vars_out, self._by_op[op, variant], vars_in)
        if variant > 1 and (self._like or self._namespace is not None):
            line.fail(token.column, f"found variant {variant}, which the program given as `like` lacks in this op")
        same = self._by_text.get(missing, [])
        if len(same) > 1:
            line.fail(
                token.column,
                f"{token} stands for {len(same)} different functions in the program given as `like`, and no op of "
                "that program has this primitive with these variables",
            )
        if same:
            return PrimOp(vars_out, same[0], vars_in)
        if self._namespace is not None:
            compiled = _compiled(token, vars_out, vars_in, self._namespace, line)
            return PrimOp(vars_out, replace(compiled, batched=batched, costly=costly), vars_in)
        if self._like:
            line.fail(
                token.column,
                f"found the primitive {token}, which the program given as `like` does not have. Give a namespace as "
                "well, to compile it from its text",
            )
        return PrimOp(vars_out, self._without_code.setdefault((op, variant), missing), vars_in)


def _primitive_ops(program: Program) -> list[PrimOp]:
    ops = [op for f in program.all_functions() for block in f.graph.blocks for op in block.ops]
    return [op for op in ops if isinstance(op, PrimOp) and op.function is not COPY]


def _compiled(
    token: Token, vars_out: tuple[str, ...], vars_in: tuple[str, ...], namespace: dict[str, Any], line: Line
) -> Primitive:
    """The primitive of an expression over the last parts of its variables' names.

    Outputs named like checks (`f._check1`), after the others, get what the expression's checks found.
    """
    outputs = len(vars_out)
    try:
        node = parse(token.value.strip(), "eval").body
    except SyntaxError as error:
        line.fail(token.column, f"{token} is no Python expression ({error.msg}), so it cannot be compiled")
    names = tuple(variable.rpartition(".")[2] for variable in vars_in)
    called = expressions.static_value(node, set(names), namespace)
    if callable(called):
        function = called.function if isinstance(called, PrimitiveFunction) else called
        return Primitive(token.value, lambda *values: _results(function, values, outputs, token.value))
    if len(set(names)) != len(names):
        line.fail(
            token.column,
            f"{token} reads variables whose names end alike ({', '.join(vars_in)}), so its names are ambiguous",
        )
    for unknown in expressions.unknown_names(node, set(names), namespace):
        line.fail(
            token.column,
            f"{token} names {unknown.id!r}, which is neither the end of one of the variables after it nor in the "
            "namespace",
        )
    pure = expressions.purify(node, lambda _: None, lambda _: None)
    compiled = expressions.compile_expression(pure, names, namespace, TEXT)
    count = len(compiled.checks)
    checked = 0 < count < outputs and all(is_check(v) for v in vars_out[-count:])

    def call(*values: Any) -> tuple[Any, ...]:
        checks = Checks(values)
        if checked:
            return (
                *_results(compiled.function, (*values, checks), outputs - count, token.value),
                *checks.results(count),
            )
        results = _results(compiled.function, (*values, checks), outputs, token.value)
        unchecked = [check for check, held in zip(compiled.checks, checks.results(count)) if held is not True]
        if unchecked:
            raise ValueError(
                f"{show_braced(token.value)} may fail on a lane ({unchecked[0].message}): give it one more output "
                "variable for each such check, and assert it"
            )
        return results

    def static(part: ast.AST) -> Any:
        return expressions.static_value(part, set(names), namespace)

    return Primitive(
        token.value,
        call,
        speculable=not count and speculation.is_speculable(node, static),
        offset=speculation.offset_of(node) if len(names) == 1 else None,
        rearranges=speculation.rearranges(node, static),
    )


def _results(function: Callable[..., Any], values: tuple[Any, ...], outputs: int, text: str) -> tuple[Any, ...]:
    reset = in_one_lane_code.set(True)
    try:
        with np.errstate(all="ignore"):
            result = function(*values)
    finally:
        in_one_lane_code.reset(reset)
    if outputs == 1:
        return (result,)
    if not isinstance(result, (tuple, list)) or len(result) != outputs:
        raise ValueError(f"{show_braced(text)} must give {outputs} results, a tuple, for its {outputs} variables")
    return tuple(result)
