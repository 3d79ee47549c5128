"""The text of a program: one op a line, readable as a diff, and all of what makes two programs equal.

    text      ::= function+ ["variables" variable*]
    function  ::= name "(" names ")" "->" names  (block | "in" owner)+
    block     ::= label ":" op* terminator                         (its owner is the last one named, else the function)
    op        ::= names "=" "{" expression "}" mark* names | names "=" "copy" names | names "=" "call" name names
                | name "=" "write" name "," name "," name | "assert" name string | "push" name | "pop" name
    mark      ::= "[batched]" | "[costly]" | "[variant" number "]"
    variable  ::= name ":" [type] ["null" | "temporary" | "register" | "full"] ["->" the name that it now has]
    type      ::= dtype ["*"] "[" numbers "]" | class "(" types ")" | class "(" name ":" type, ... ")"

Names are letters, digits, `_`, `.`, `#` and `@`; any other name stands in quotes. Within braces a backslash escapes.
`parse` reads the text back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

from batchnuts.autobatch.ir.expression import show_expression
from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    Block,
    BranchOp,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Op,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    TensorType,
    Terminator,
    WriteRowOp,
)
from batchnuts.autobatch.language.pytree import TreeDef, flatten

PLAIN_NAME = re.compile(r"[\w.@][\w.@#]*")
"""Names that need no quotes."""


def show_name(name: str) -> str:
    """A variable's, label's or function's name, in quotes where it has other than the usual characters."""
    return name if PLAIN_NAME.fullmatch(name) else repr(name)


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(show_name, names))


def show_braced(text: str) -> str:
    """A primitive's text in braces; characters that would end it early or break the line are escaped."""
    depth = 0
    balanced = True
    for character in text:
        depth += (character == "{") - (character == "}")
        balanced = balanced and depth >= 0
    specials = "\\" if balanced and depth == 0 else "\\{}"

    def escaped(character: str) -> str:
        if character in specials:
            return "\\" + character
        return character if character.isprintable() else repr(character)[1:-1]

    return "{" + "".join(map(escaped, text)) + "}"


def show_type(type_: Any) -> str:
    """A structured type: `float32[3]`, `Point(q: float64[2], p: float64[2])`, `tuple(int64[], bool[])`."""
    leaves, tree = flatten(type_)
    return _show_tree(tree, iter(map(str, leaves)))


def _show_tree(tree: TreeDef, leaves: Iterator[str]) -> str:
    if tree.kind is None:
        return next(leaves)
    parts = [_show_tree(child, leaves) for child in tree.children]
    if tree.kind not in (tuple, list):
        parts = [f"{_show_key(name)}: {part}" for name, part in zip(tree.names, parts)]
    return f"{tree.kind.__name__}({', '.join(parts)})"


def _show_key(key: Any) -> str:
    return key if isinstance(key, str) and key.isidentifier() else repr(key)


def show_op(op: Op | Terminator, variant: int = 1) -> str:
    """One op or terminator on one line; `variant` distinguishes different primitives with the same text."""
    match op:
        case PrimOp(vars_out, function, vars_in):
            name = "copy" if function is COPY else show_braced(function.text)
            marks = " [batched]" * function.batched + " [costly]" * function.costly
            marks += f" [variant {variant}]" if variant > 1 else ""
            return f"{_names(vars_out)} = {name}{marks} {_names(vars_in)}".strip()
        case WriteRowOp(out, buffer, index, value):
            return f"{show_name(out)} = write {_names((buffer, index, value))}"
        case AssertOp(cond, message):
            return f"assert {show_name(cond)} {message!r}"
        case FunctionCallOp(vars_out, function, vars_in):
            return f"{_names(vars_out)} = call {show_name(function)} {_names(vars_in)}".strip()
        case PushOp(var):
            return f"push {show_name(var)}"
        case PopOp(var):
            return f"pop {show_name(var)}"
        case GotoOp(label):
            return f"goto {show_name(label)}"
        case BranchOp(cond, yes, no):
            return f"branch {show_name(cond)} {show_name(yes)} {show_name(no)}"
        case PushGotoOp(resume, target):
            return f"push_goto {show_name(resume)} {show_name(target)}"
        case IndirectGotoOp():
            return "return"


def show_program(program: Program, expressions: bool = False) -> str:
    """The whole program: bodies in order, then for each variable its type, allocation and new name, where known.

    expressions: with what each primitive computes, as comments; in them %0, %1, ... are what the op reads, in order.
    """
    variants = Variants(expressions)
    lines = [line for function in program.all_functions() for line in [*_show_function(function, variants), ""]]
    variables = sorted({*program.var_defs, *program.var_alloc, *program.renamed})
    if variables:
        lines.append("variables")
        lines += [_show_variable(program, variable) for variable in variables]
    return "\n".join(lines).rstrip("\n") + "\n"


def _show_function(function: Function, variants: Variants) -> list[str]:
    head = f"{show_name(function.name)}({_names(function.vars_in)}) -> {_names(function.vars_out)}".rstrip()
    lines = [head]
    owner = function.name
    for block in function.graph.blocks:
        if block.owner != owner:
            owner = block.owner
            lines.append(f"  in {show_name(owner)}")
        lines += _show_block(block, variants)
    return lines


def _show_block(block: Block, variants: Variants) -> list[str]:
    ops: list[str] = []
    for op in block.ops:
        ops.append(show_op(op, variants.number(op) if isinstance(op, PrimOp) else 1))
        if variants.expressions and isinstance(op, PrimOp) and op.function.body is not None:
            ops += [f"  # {line}" for line in show_expression(op.function.body)]
    gate = f" [gate {np.format_float_positional(block.gate, trim='-')}]" if block.gate else ""
    return [f"  {show_name(block.label)}:{gate}", *(f"    {line}" for line in [*ops, show_op(block.terminator)])]


def _show_variable(program: Program, variable: str) -> str:
    line = f"  {show_name(variable)}:"
    if variable in program.var_defs:
        line += f" {show_type(program.var_defs[variable])}"
    if variable in program.var_alloc:
        line += f" {program.var_alloc[variable].value}"
    if variable in program.renamed:
        line += f" -> {show_name(program.renamed[variable])}"
    return line


class Variants:
    """Numbers primitives that stand in equal ops of one program and yet compute with different functions.

    expressions: whether what they compute is shown.
    """

    def __init__(self, expressions: bool = False) -> None:
        self.expressions = expressions
        self._functions: dict[PrimOp, list[Primitive]] = {}

    def number(self, op: PrimOp) -> int:
        """1 for the first function that is seen in such an op, 2 for the second..."""
        functions = self._functions.setdefault(op, [])
        for number, other in enumerate(functions, 1):
            if same_primitive(other, op.function):
                return number
        functions.append(op.function)
        return len(functions)


def same_primitive(a: Primitive, b: Primitive) -> bool:
    """Whether two primitives of one text can be seen to be the same function."""
    if a.body is not None and b.body is not None:
        return a.body == b.body
    return same_function(a.call, b.call)


def same_function(a: Any, b: Any, assumed: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Whether two functions (or two values of their closures) can be seen to do the same.

    That is: one object, or equal code over equal values; `assumed` are pairs (of ids) that are being compared already.
    False where it cannot be seen.
    """
    if a is b or (id(a), id(b)) in assumed:
        return True
    if type(a) is not type(b):
        return False
    assumed |= {(id(a), id(b))}
    match a:
        case FunctionType():
            ours, theirs = ((f.__defaults__, f.__kwdefaults__, _closure(f)) for f in (a, b))
            names = _global_names(a.__code__)
            return (
                _same_code(a.__code__, b.__code__)
                and all(a.__globals__.get(name) is b.__globals__.get(name) for name in names)
                and same_function(ours, theirs, assumed)
            )
        case tuple() | list():
            return len(a) == len(b) and all(same_function(x, y, assumed) for x, y in zip(a, b))
        case dict():
            return a.keys() == b.keys() and all(same_function(a[key], b[key], assumed) for key in a)
        case Primitive():
            return a == b and same_function(a.call, b.call, assumed)
        case bool() | int() | float() | str() | TreeDef() | TensorType():
            return bool(a == b)
    return False


def _closure(function: FunctionType) -> tuple[Any, ...]:
    def contents(cell: CellType) -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # still empty
            return cell

    return tuple(map(contents, function.__closure__ or ()))


def _same_code(a: CodeType, b: CodeType) -> bool:
    """Whether two code objects are equal except for the lines that they stand at."""
    parts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_argcount", "co_kwonlyargcount", "co_flags")
    if any(getattr(a, part) != getattr(b, part) for part in parts) or len(a.co_consts) != len(b.co_consts):
        return False
    for x, y in zip(a.co_consts, b.co_consts):
        codes = isinstance(x, CodeType) and isinstance(y, CodeType)
        if not (_same_code(x, y) if codes else type(x) is type(y) and repr(x) == repr(y)):
            return False
    return True


def _global_names(code: CodeType) -> set[str]:
    inner = (_global_names(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*inner)
