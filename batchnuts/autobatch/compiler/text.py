"""The text of a program: one op a line, readable as a diff."""

from __future__ import annotations

from batchnuts.autobatch.compiler.infer_types import show
from batchnuts.autobatch.compiler.ir import (
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
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    Terminator,
    VariableAllocation,
    WriteRowOp,
)


def show_op(op: Op | Terminator) -> str:
    """One op or terminator on one line."""
    match op:
        case PrimOp(vars_out, function, vars_in):
            name = "copy" if function is COPY else f"{{{function.text}}}"
            marks = " [batched]" * function.batched + " [costly]" * function.costly
            return f"{', '.join(vars_out)} = {name}{marks} {', '.join(vars_in)}".rstrip()
        case WriteRowOp(out, buffer, index, value):
            return f"{out} = write {buffer}, {index}, {value}"
        case AssertOp(cond, message):
            return f"assert {cond} {message!r}"
        case FunctionCallOp(vars_out, function, vars_in):
            return f"{', '.join(vars_out)} = call {function} {', '.join(vars_in)}".rstrip()
        case PushOp(var):
            return f"push {var}"
        case PopOp(var):
            return f"pop {var}"
        case GotoOp(label):
            return f"goto {label}"
        case BranchOp(cond, yes, no):
            return f"branch {cond} {yes} {no}"
        case PushGotoOp(resume, target):
            return f"push_goto {resume} {target}"
        case IndirectGotoOp():
            return "return"


def _show_block(block: Block) -> list[str]:
    gate = f" [gate {block.gate}]" if block.gate else ""
    return [f"  {block.label}:{gate}", *(f"    {show_op(op)}" for op in (*block.ops, block.terminator))]


def _show_function(function: Function) -> list[str]:
    head = f"{function.name}({', '.join(function.vars_in)}) -> {', '.join(function.vars_out)}"
    return [head, *(line for block in function.graph.blocks for line in _show_block(block))]


def show_program(program: Program, *, variables: bool = True) -> str:
    """The whole program: bodies in order, then each variable's type and allocation, where known."""
    lines = [line for function in program.all_functions() for line in [*_show_function(function), ""]]
    if variables and program.var_defs:
        lines.append("variables")
        shown = program.var_alloc or program.var_defs
        for variable in sorted(shown):
            allocation = program.var_alloc.get(variable)
            if allocation is VariableAllocation.NULL or variable not in program.var_defs:
                continue
            kind = f" {allocation.value}" if allocation else ""
            lines.append(f"  {variable}: {show(program.var_defs[variable])}{kind}")
    return "\n".join(lines).rstrip() + "\n"
