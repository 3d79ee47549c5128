"""Programs from their text: the inverse of `text.show_program`.

    parse(show_program(p)) == p        for every program; show_program(parse(text)) == text for every text it gave

The functions behind primitives are not in the text. They come from a program (`like`), or are compiled from the
expressions (`namespace`); a primitive that has neither says so when it is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from batchnuts.autobatch.ir.printer import show_type
from batchnuts.autobatch.ir.program import (
    AssertOp,
    Block,
    BranchOp,
    ControlFlowGraph,
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
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.text.primitives import Primitives
from batchnuts.autobatch.text.tokens import Line
from batchnuts.autobatch.text.types import Structures, read_type

_STATEMENTS = "an op, a terminator (goto, branch, push_goto, return) or a block's label"
_ALLOCATIONS = {allocation.value: allocation for allocation in VariableAllocation}


def parse(text: str, *, like: Program | None = None, namespace: Mapping[str, Any] | None = None) -> Program:
    """The program that a text stands for.

    like: a program whose primitives and structures' classes the text means; a primitive is recognized by its op, or
        else by its expression alone where all primitives with that expression are the same.
    namespace: what the names in expressions stand for besides the variables, which an expression names by the last
        part of their names: `{n - 1} fib.n`. Primitives that `like` lacks are compiled with it, and structures'
        classes are looked up in it.
    Raises ProgramTextError (a ValueError) with line, column, what was found and what was expected.
    """
    return _Parser(text, like, namespace).program()


@dataclass
class _OpenFunction:
    """A function whose blocks are being read."""

    name: str
    vars_in: tuple[str, ...]
    vars_out: tuple[str, ...]
    owner: str
    blocks: list[Block] = field(default_factory=list)

    def closed(self) -> Function:
        return Function(self.name, self.vars_in, self.vars_out, ControlFlowGraph(tuple(self.blocks)))


class _Parser:
    def __init__(self, text: str, like: Program | None, namespace: Mapping[str, Any] | None) -> None:
        types = like.var_defs if like else {}
        self.known_types = types
        self.structures = Structures((flatten(type_)[1] for type_ in types.values()), namespace)
        self.primitives = Primitives(like, namespace)
        lines = (Line(line, number) for number, line in enumerate(text.split("\n"), 1))
        self.lines = [line for line in lines if line.peek().kind != "end"]
        if not self.lines:
            Line("", 1).unexpected("a function, such as main(x) -> y")
        self.next = 0

    def line(self) -> Line | None:
        """The line to read next, None after the last one."""
        return self.lines[self.next] if self.next < len(self.lines) else None

    def fail_at_end(self, expected: str) -> NoReturn:
        """Raise about the line to read next, or the end of the text."""
        line = self.line()
        if line is not None:
            line.unexpected(expected)
        last = self.lines[-1]
        last.fail(len(last.text), f"found the end of the text, expected {expected}")

    def program(self) -> Program:
        functions: list[Function] = []
        while (line := self.line()) is not None and line.next_is("(", ahead=1):
            name = line.peek()
            if not functions and name.value != "main":
                line.fail(name.column, f"found function {name.value!r}, expected 'main': the first one is the program")
            if any(name.value == f.name for f in functions):
                line.fail(name.column, f"function {name.value!r} is declared here a second time")
            functions.append(self.function(line))
        if not functions:
            self.fail_at_end("a function, such as main(x) -> y")
        main, *others = functions
        types, allocation, renamed = self.variables() if self.line() else ({}, {}, {})
        return Program(main.graph, tuple(others), main.vars_in, main.vars_out, types, allocation, renamed)

    # ---- functions and blocks -------------------------------------------------------------------------------------

    def function(self, line: Line) -> Function:
        name = line.name("a function's name")
        line.expect("(")
        vars_in = line.names("a variable")
        line.expect(")")
        line.expect("->")
        vars_out = line.names("a variable")
        line.end()
        self.next += 1
        function = _OpenFunction(name, vars_in, vars_out, owner=name)
        while (block_line := self.line()) is not None and not block_line.next_is("(", ahead=1):
            if block_line.word("in") and not block_line.next_is(":", ahead=1):
                block_line.take()
                function.owner = block_line.name("the function whose body the next blocks belong to")
                block_line.end()
                self.next += 1
            elif block_line.word("variables") and block_line.peek(1).kind == "end":
                break
            else:
                function.blocks.append(self.block(block_line, function.owner))
        if not function.blocks:
            self.fail_at_end(f"the first block of function {name!r}, such as {name}.entry:")
        return function.closed()

    def block(self, line: Line, owner: str) -> Block:
        if not line.next_is(":", ahead=1):
            line.unexpected("a block's label and a colon, a function, or `variables`")
        label = line.name("a label")
        line.expect(":")
        gate = self.gate(line) if line.accept("[") else 0.0
        line.end()
        self.next += 1
        ops: list[Op] = []
        while (statement := self.line()) is not None:
            at_head = statement.next_is(":", ahead=1) or statement.next_is("(", ahead=1)
            if at_head or (statement.word("variables") and statement.peek(1).kind == "end"):
                break
            op = self.statement(statement)
            statement.end()
            self.next += 1
            if isinstance(op, Terminator):
                return Block(label, tuple(ops), op, owner, gate)
            ops.append(op)
        self.fail_at_end(f"the terminator of block {label!r}: goto, branch, push_goto or return")

    def gate(self, line: Line) -> float:
        """The share after `[gate`, up to the closing bracket."""
        if not line.word("gate"):
            line.unexpected("gate and a share, as in [gate 0.5]")
        line.take()
        share = line.peek()
        if not re.fullmatch(r"0\.\d+|1", share.value):
            line.unexpected("a share above 0 and up to 1, such as 0.5")
        line.take()
        line.expect("]")
        return float(share.value)

    # ---- ops -------------------------------------------------------------------------------------------------------

    def statement(self, line: Line) -> Op | Terminator:
        if line.next_is("=") or line.next_is("=", ahead=1) or line.next_is(",", ahead=1):
            return self.assignment(line)
        if line.peek().kind != "name":
            line.unexpected(_STATEMENTS)
        match line.peek().value:
            case "assert":
                line.take()
                condition = line.name("the variable to assert")
                if line.peek().kind != "string":
                    line.unexpected("the message, in quotes")
                return AssertOp(condition, line.take().value)
            case "push":
                line.take()
                return PushOp(line.name("a variable"))
            case "pop":
                line.take()
                return PopOp(line.name("a variable"))
            case "goto":
                line.take()
                return GotoOp(line.name("a label"))
            case "branch":
                line.take()
                condition = line.name("the variable to branch on")
                return BranchOp(condition, line.name("the label if it is true"), line.name("the label if it is false"))
            case "push_goto":
                line.take()
                return PushGotoOp(line.name("the label to come back to"), line.name("the label to go to"))
            case "return":
                line.take()
                return IndirectGotoOp()
        line.unexpected(_STATEMENTS)

    def assignment(self, line: Line) -> Op:
        out_column = line.peek().column
        vars_out = line.names("a variable")
        line.expect("=")
        if line.peek().kind == "braced":
            return self.primitive(line, vars_out)
        if not line.word("copy", "call", "write"):
            line.unexpected("a primitive in braces, copy, call or write")
        word = line.take()
        match word.value:
            case "copy":
                vars_in = line.names("a variable")
                if len(vars_in) != len(vars_out):
                    line.fail(word.column, f"found a copy from {len(vars_in)} variables to {len(vars_out)}")
                return PrimOp(vars_out, self.primitives.copy, vars_in)
            case "call":
                return FunctionCallOp(vars_out, line.name("a function's name"), line.names("a variable"))
            case _:
                names = line.names("a variable")
                if len(vars_out) != 1 or len(names) != 3:
                    line.fail(out_column, "expected x = write buffer, index, value")
                return WriteRowOp(vars_out[0], *names)

    def primitive(self, line: Line, vars_out: tuple[str, ...]) -> PrimOp:
        text = line.take()
        marks: dict[str, int] = {}
        while line.accept("["):
            token = line.peek()
            mark = line.name("a mark")
            if mark not in ("batched", "costly", "variant") or mark in marks:
                line.fail(token.column, f"found {token}, expected the mark batched, costly or variant, once")
            number = line.name("a number") if mark == "variant" else "1"
            if not number.isdecimal():
                line.fail(token.column, f"found variant {number!r}, expected a number")
            marks[mark] = int(number)
            line.expect("]")
        vars_in = line.names("a variable")
        flags = {"batched": "batched" in marks, "costly": "costly" in marks}
        return self.primitives.find(vars_out, text, vars_in, marks.get("variant", 1), line, **flags)

    # ---- variables -------------------------------------------------------------------------------------------------

    def variables(self) -> tuple[dict[str, Any], dict[str, VariableAllocation], dict[str, str]]:
        types: dict[str, Any] = {}
        allocations: dict[str, VariableAllocation] = {}
        renamed: dict[str, str] = {}
        seen: set[str] = set()
        head = self.lines[self.next]
        if not head.word("variables"):
            head.unexpected("a function or `variables`")
        for line in self.lines[self.next + 1 :]:
            token = line.peek()
            variable = line.name("a variable")
            if variable in seen:
                line.fail(token.column, f"variable {variable!r} is declared here a second time")
            seen.add(variable)
            line.expect(":")
            if not line.next_is("->") and not line.word(*_ALLOCATIONS) and line.peek().kind != "end":
                types[variable] = self.type_of(variable, line)
            if line.word(*_ALLOCATIONS):
                allocations[variable] = _ALLOCATIONS[line.take().value]
            if line.accept("->"):
                renamed[variable] = line.name("the variable's new name")
            line.end("null, temporary, register, full, or -> and a new name")
        return types, allocations, renamed

    def type_of(self, variable: str, line: Line) -> Any:
        """The type that comes next in the line; that of the program `like` itself where it reads the same."""
        start = line.peek().column
        type_ = self.known_types.get(variable)
        if type_ is not None and line.skip_text(start, show_type(type_)):
            return type_
        return read_type(line, self.structures)
