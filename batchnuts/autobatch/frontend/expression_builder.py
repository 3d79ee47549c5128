"""Expressions to ops: a pure expression becomes one PrimOp; parts that need control flow become temporaries first.

        x = f(n - 1) + n // d                    f._2 = {n - 1} f.n
                                                 f._1 = call f f._2
                                          -->    f.x, f._check1 = {_1 + n // d} f._1, f.n, f.d
                                                 assert f._check1

All expressions are pure, so this order is as good as Python's. Parts without a defined result for some operands (an
integer divided by zero) give a check, which is asserted right after the op.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from batchnuts.autobatch.errors import CompileError, Source, UndefinedVariableError, UnsupportedSyntaxError
from batchnuts.autobatch.frontend import expressions, speculation, walrus
from batchnuts.autobatch.frontend.helpers import is_helper
from batchnuts.autobatch.frontend.hidden_state import Hidden, StateFinder, is_ours, needs_values, takes_seed
from batchnuts.autobatch.frontend.source import FunctionSource
from batchnuts.autobatch.frontend.unsupported import REWRITES
from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    BranchOp,
    GotoOp,
    Op,
    Primitive,
    PrimOp,
    Terminator,
    WriteRowOp,
    check_name,
)
from batchnuts.autobatch.language.arrays import tensor_library_of
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction, in_one_lane_code, sync, write
from batchnuts.autobatch.language.operators import Checks
from batchnuts.autobatch.language.pytree import flatten

Finish = Callable[[Any], tuple[Any, ...]]
"""Maps an expression's value to the values of the variables that it is assigned to."""


@dataclass
class OpenBlock:
    """A block that is still being written."""

    label: str
    ops: list[Op] = field(default_factory=list)
    terminator: Terminator | None = None
    gate: float = 0.0


def require_values(hidden: Hidden, values: tuple[Any, ...]) -> None:
    """Raise for a helper that is given arrays without values, and asks NumPy whether they are equal."""
    if tensor_library_of(*flatten(values)[0]) is not None:
        raise UnsupportedSyntaxError(
            f"`{hidden.text}` in {hidden.within!r} cannot take a value of the lane on this backend: arrays have no "
            "values while a program is traced, and NumPy then says False. Write ops.all(x == y).",
            hidden.source,
        )


class ExpressionBuilder:
    """The blocks of one function under construction; `self.current` is the one that receives the next op."""

    def __init__(
        self, name: str, source: FunctionSource, functions: Mapping[str, Any], captured: Sequence[str]
    ) -> None:
        """functions: those that parameters stand for. captured: parameters in addition to those of the `def`."""
        self.name = name
        self.source = source
        arguments = source.tree.args
        if arguments.vararg or arguments.kwarg:
            self.refuse(source.tree, "*args and **kwargs", "name each parameter")
        self.parameters = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        assigned = expressions.assigned_names(source.tree)
        for name in functions.keys() & assigned:
            kind = "None" if functions[name] is None else "a function"
            rewrite = f"use another name: value = 0.0 if {name} is None else {name}, say" if kind == "None" else ""
            form = f"a parameter {name!r} that is given {kind} and assigned"
            self.refuse(source.tree, form, rewrite or "use another name")
        self.parameters = [p for p in self.parameters if p not in functions] + list(captured)
        self.locals = set(self.parameters) | assigned
        self.around = {**source.namespace, **functions}
        self.namespace = expressions.namespace_of(self.around)
        self.user_names = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)} | self.locals
        """Identifiers of the user, global ones too: none of ours may shadow them."""
        self.blocks: list[OpenBlock] = []
        self.label_counts: dict[str, int] = {}
        self.temporaries = 0
        self.held: dict[str, ast.expr] = {}
        """The parts of the user's expressions that temporaries hold."""
        self.checks = 0
        self.state_finder = StateFinder()
        self.needing_values: dict[int, Hidden | None] = {}
        """By the id of a helper: a function it calls that gives wrong results for arrays without values."""
        self.current = self.start(self.new_label("entry"))

    # ---- blocks -----------------------------------------------------------------------------------------------

    def new_label(self, kind: str) -> str:
        """A label of the function that is not used yet: `fib.while`, `fib.while.2`."""
        count = self.label_counts[kind] = self.label_counts.get(kind, 0) + 1
        return f"{self.name}.{kind}" if count == 1 else f"{self.name}.{kind}.{count}"

    def start(self, label: str) -> OpenBlock:
        """Open a new block."""
        self.current = OpenBlock(label)
        self.blocks.append(self.current)
        return self.current

    def end(self, terminator: Terminator) -> None:
        """Close the current block; statements after a return, break or continue fall into an unreachable one."""
        if self.current.terminator is None:
            self.current.terminator = terminator

    def emit(self, op: Op) -> None:
        """Append an op to the current block."""
        if self.current.terminator is not None:
            self.start(self.new_label("unreachable"))
        self.current.ops.append(op)

    def variable(self, identifier: str) -> str:
        """The program's name of a local variable."""
        return f"{self.name}.{identifier}"

    def temporary(self) -> str:
        """A fresh local variable."""
        self.temporaries += 1
        while f"_{self.temporaries}" in self.user_names:
            self.temporaries += 1
        identifier = f"_{self.temporaries}"
        self.locals.add(identifier)
        return identifier

    def fresh(self, base: str, number: int | None = None) -> str:
        """A name like `base` (with that number, if it is free) that is not defined yet."""
        number = number or 1
        while (name := f"{base}_{number}") in self.user_names or name in self.locals or name in self.namespace:
            number += 1
        return name

    def check(self) -> str:
        """A fresh local variable for a check."""
        self.checks += 1
        while check_name(self.checks) in self.user_names:
            self.checks += 1
        return check_name(self.checks)

    # ---- errors -----------------------------------------------------------------------------------------------

    def refuse(self, node: ast.AST, form: str, rewrite: str) -> NoReturn:
        """Raise for an unsupported construct, with the rewrite."""
        raise UnsupportedSyntaxError(
            f"{form} cannot be batched in function {self.name!r}. Instead, {rewrite}.", self.source.at(node)
        )

    # ---- expressions ------------------------------------------------------------------------------------------

    def static(self, node: ast.AST) -> Any:
        """The Python object a name or attribute chain stands for at compile time, or `expressions.UNKNOWN`."""
        return expressions.static_value(node, self.locals, self.namespace)

    def compute(self, outs: tuple[str, ...], node: ast.expr, finish: Finish, where: Source) -> None:
        """outs = finish(the value of a pure expression), followed by the checks that the expression asks for."""
        names = expressions.names_read(node, self.locals)
        for name in expressions.unknown_names(node, self.locals, self.namespace):
            raise UndefinedVariableError(self.unknown(name.id), self.source.at(name))
        self.refuse_hidden_state(node)
        read = expressions.constants_read(node, self.locals, self.namespace)
        needing = next(filter(None, (self.needs_values(value) for _, value in read)), None)
        compiled = expressions.compile_expression(node, names, self.namespace, self.source.filename)
        evaluate, count = compiled.function, len(compiled.checks)

        def call(*values: Any) -> tuple[Any, ...]:
            if needing is not None:
                require_values(needing, values)
            checks = Checks(values)
            token = in_one_lane_code.set(True)
            try:
                with np.errstate(all="ignore"):
                    return (*finish(evaluate(*values, checks)), *checks.results(count))
            finally:
                in_one_lane_code.reset(token)

        function = Primitive(
            expressions.text_of(node),
            call,
            weak=expressions.is_bound(node),
            parts=() if self.is_apart(where) else self.parts(node),
            speculable=not count and speculation.is_speculable(node, self.static),
            offset=speculation.offset_of(node) if len(names) == 1 else None,
            rearranges=speculation.rearranges(node, self.static),
            of_language=speculation.is_of_language(node, self.static),
            written=expressions.as_written(node, self.held),
        )
        held = tuple(self.variable(self.check()) for _ in range(count))
        inputs = tuple(map(self.variable, names))
        self.emit(PrimOp((*outs, *held), function, inputs, where))
        for variable, check in zip(held, compiled.checks):
            self.emit(AssertOp(variable, check.message, self.source.at(check.node)))

    def parts(self, node: ast.expr) -> tuple[frozenset[str], ...]:
        """For each part of a pure expression that could be an op, the variables that it computes with.

        For x[i] these are the index's; those of an index within the part do not count.
        """
        inner = [part for part in expressions.outside_scopes(node) if part is not node and expressions.is_part(part)]
        operands = [expressions.operands_read(part, self.locals) for part in inner]
        return tuple(frozenset(map(self.variable, names)) for names in operands if names)

    def names_read(self, node: ast.AST) -> tuple[str, ...]:
        """The local variables that an expression reads."""
        return expressions.names_read(node, self.locals)

    def is_apart(self, where: Source) -> bool:
        """Whether the parts of the expression at that place become ops of their own."""
        raise NotImplementedError

    def unknown(self, name: str) -> str:
        """The message for an undefined name."""
        if name in self.source.unset:
            return (
                f"name {name!r} has no value yet: the enclosing function assigns it later. Assign it before this "
                "function is first run."
            )
        return f"name {name!r} is not defined: neither assigned in {self.name!r} nor found in its module."

    def evaluate(self, node: ast.expr) -> Any:
        """The value of an expression that `is_static`."""
        for name in expressions.unknown_names(node, self.locals, self.namespace):
            raise UndefinedVariableError(self.unknown(name.id), self.source.at(name))
        self.refuse_hidden_state(node)
        compiled = expressions.compile_expression(node, (), self.namespace, self.source.filename)
        try:
            return compiled.function(Checks())
        except Exception as error:
            raise CompileError(
                f"`{expressions.text_of(node)}` failed when the compiler evaluated it: {type(error).__name__}: {error}",
                self.source.at(node),
            ) from error

    def assign(self, identifier: str, node: ast.expr) -> None:
        """identifier = node."""
        node = self.in_order(node)
        out = self.variable(identifier)
        where = self.source.at(node)
        match node:
            case ast.Name(id=name) if name in self.locals:
                self.emit(PrimOp((out,), COPY, (self.variable(name),), where))
            case ast.NamedExpr(target=target, value=value):
                self.assign(target.id, value)
                if target.id != identifier:
                    self.emit(PrimOp((out,), COPY, (self.variable(target.id),), where))
            case ast.Call() if isinstance(self.static(node.func), LaneFunction):
                self.call(out, node, self.static(node.func))
            case ast.Call() if self.static(node.func) is write:
                self.write_row(out, node)
            case ast.Call() if isinstance(self.static(node.func), PrimitiveFunction):
                self.declared_primitive(out, node, self.static(node.func))
            case ast.IfExp():
                yes, no, after = (self.new_label(k) for k in ("then", "else", "endif"))
                self.branch(node.test, yes, no)
                for label, value in ((yes, node.body), (no, node.orelse)):
                    self.start(label)
                    self.assign(identifier, value)
                    self.end(GotoOp(after))
                self.start(after)
            case ast.BoolOp():
                later = ast.Tuple(node.values[1:], ast.Load())
                if identifier == "return" or identifier in expressions.names_read(later, self.locals):
                    self.assign(identifier, ast.copy_location(ast.Name(self.atom(node), ast.Load()), node))
                    return
                after = self.new_label("endbool")
                for value in node.values[:-1]:
                    more = self.new_label("bool")
                    self.assign(identifier, value)
                    test = ast.copy_location(ast.Name(identifier, ast.Load()), value)
                    self.branch(test, *((more, after) if isinstance(node.op, ast.And) else (after, more)))
                    self.start(more)
                self.assign(identifier, node.values[-1])
                self.end(GotoOp(after))
                self.start(after)
            case ast.Compare() if expressions.must_stop_early(node):
                self.assign(identifier, self.links(node))
            case _:
                self.compute((out,), self.purify(node), lambda value: (value,), where)

    def links(self, node: ast.Compare) -> ast.BoolOp:
        """`a < b < c` as `a < b and b < c`, with b evaluated once, now."""
        middle = ast.copy_location(ast.Name(self.atom(node.comparators[0]), ast.Load()), node.comparators[0])
        first = ast.Compare(node.left, node.ops[:1], [middle])
        rest = ast.Compare(middle, node.ops[1:], node.comparators[1:])
        both = ast.BoolOp(ast.And(), [ast.copy_location(first, node), ast.copy_location(rest, node)])
        return ast.copy_location(both, node)

    def atom(self, node: ast.expr) -> str:
        """The identifier of a local holding the expression's value."""
        if isinstance(node, ast.Name) and node.id in self.locals:
            return node.id
        if isinstance(node, ast.NamedExpr):
            self.assign(node.target.id, node.value)
            return node.target.id
        identifier = self.temporary()
        self.held[identifier] = node
        self.assign(identifier, node)
        return identifier

    def purify(self, node: ast.expr) -> ast.expr:
        """The expression with everything that is not a pure array expression replaced by temporaries."""
        node = self.in_order(node)
        apart, within = self.is_apart(self.source.at(node)), False

        def needs_variable(inner: ast.expr) -> bool:
            nonlocal within
            is_part = within and apart and expressions.is_part(inner) and bool(self.names_read(inner))
            within = True
            return is_part or self.needs_variable(inner)

        def take_out(inner: ast.expr) -> ast.expr | None:
            if type(inner) in REWRITES:
                self.refuse(inner, f"`{ast.unparse(inner)}`", REWRITES[type(inner)])
            self.refuse_decorated(inner)
            if isinstance(inner, ast.Call) and self.static(inner.func) is sync:
                self.refuse(inner, "`sync` within an expression", "write it as a statement of its own")
            if not needs_variable(inner):
                return None
            return ast.copy_location(ast.Name(self.atom(inner), ast.Load()), inner)

        def in_nested_scope(inner: ast.expr) -> None:
            callee = self.static(inner.func) if isinstance(inner, ast.Call) else None
            over_lanes = isinstance(callee, PrimitiveFunction) and callee.batched
            if isinstance(callee, LaneFunction) or over_lanes or callee is write:
                called = ast.unparse(inner).split("(")[0]
                self.refuse(inner, f"a call of `{called}` inside a lambda or comprehension", "use a for loop")

        return expressions.purify(node, take_out, in_nested_scope)

    def in_order(self, node: ast.expr) -> ast.expr:
        """The expression reading variables as they are now, where it does so before it assigns them by `:=`."""
        if not walrus.has_walrus(node):
            return node
        if (hidden := walrus.hidden_walrus(node)) is not None:
            form = f"`{ast.unparse(hidden)}` within a lambda or comprehension"
            self.refuse(hidden, form, "use a for loop, or assign in a statement of its own")
        if (twice := walrus.assigned_twice(node)) is not None:
            form = f"`{ast.unparse(twice)}`, where the same expression needs an earlier value of {twice.target.id!r},"
            self.refuse(twice, form, "assign in a statement of its own")
        saved: dict[str, str] = {}
        places = {place: name for place, name in walrus.reads_before(node).items() if name in self.locals}
        for name in dict.fromkeys(places.values()):
            saved[name] = self.temporary()
            self.assign(saved[name], ast.copy_location(ast.Name(name, ast.Load()), node))
        return walrus.with_names(node, {place: saved[name] for place, name in places.items()})

    def refuse_hidden_state(self, node: ast.expr) -> None:
        """Raise for hidden state (see StateFinder): what gives another value each time, as random numbers do."""
        for part, value in expressions.constants_read(node, self.locals, self.namespace):
            hidden = self.state_finder.find(value, expressions.text_of(part))
            if hidden is not None:
                self.refuse_hidden(part, hidden)
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            if not call.args and not call.keywords and takes_seed(self.static(call.func)):
                self.refuse_hidden(call, Hidden(expressions.text_of(call), random=True))

    def needs_values(self, value: Any) -> Hidden | None:
        """A function that a helper or primitive calls and that gives wrong results for arrays without values."""
        if not (is_helper(value) or isinstance(value, PrimitiveFunction)):
            return None
        if id(value) not in self.needing_values:
            self.needing_values[id(value)] = StateFinder(needs_values).find(value, "")
        return self.needing_values[id(value)]

    def refuse_hidden(self, node: ast.AST, hidden: Hidden) -> NoReturn:
        """Raise for hidden state that a name leads to, at the code that reads it."""
        within = f" in {hidden.within!r}" if hidden.within else ""
        form = f"`{hidden.text}`{within}, whose random numbers do not belong to a lane,"
        rewrite = "draw with autobatch.random from a key that the lane has"
        if not hidden.random:
            form = f"`{hidden.text}`{within}, which is called once, when the program is compiled, and not by each lane,"
            rewrite = "give what it gives as an argument"
        if hidden.source is None:
            self.refuse(node, form, rewrite)
        reader = self.source.at(node)
        place = f" in function {self.name!r}, which reaches it from {reader.filename}:{reader.line}"
        text = f"{form} cannot be batched{'' if is_ours(reader.filename) else place}. Instead, {rewrite}."
        raise UnsupportedSyntaxError(text, hidden.source)

    def refuse_decorated(self, node: ast.expr) -> None:
        """Raise for a call of a decorated batched function: the decorator would call it as plain Python does."""
        callee = self.static(node.func) if isinstance(node, ast.Call) else None
        if not isinstance(callee, LaneFunction) and isinstance(getattr(callee, "__wrapped__", None), LaneFunction):
            called = expressions.text_of(node.func) if isinstance(node, ast.Call) else ""
            form = f"a call of `{called}`, which a decorator above @batch has wrapped,"
            self.refuse(node, form, f"decorate under another name: decorated = decorator({called}), without the `@`")

    def is_static(self, node: ast.expr) -> bool:
        """Whether an expression can be evaluated at compile time: it reads no variable and calls nothing batched."""
        parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
        return not expressions.names_read(node, self.locals) and not any(map(self.needs_variable, parts))

    def needs_variable(self, node: ast.expr) -> bool:
        """Whether an expression must be taken out of the one around it."""
        if isinstance(node, ast.NamedExpr):
            return True
        if isinstance(node, (ast.IfExp, ast.BoolOp)) or expressions.must_stop_early(node):
            return bool(expressions.names_read(node, self.locals)) or walrus.has_walrus(node)
        if not isinstance(node, ast.Call):
            return False
        callee = self.static(node.func)
        return callee is write or callee is sync or isinstance(callee, (LaneFunction, PrimitiveFunction))

    def call(self, out: str, node: ast.Call, callee: LaneFunction) -> None:
        """out = a call of a batched function."""
        raise NotImplementedError

    def declared_primitive(self, out: str, node: ast.Call, callee: PrimitiveFunction) -> None:
        """out = a call of a function declared with `primitive`."""
        raise NotImplementedError

    def write_row(self, out: str, node: ast.Call) -> None:
        """out = write(buffer, index, value)."""
        if node.keywords or len(node.args) != 3:
            self.refuse(node, "`write` with other than three positional arguments", "write(buffer, index, value)")
        if expressions.is_literal_integer(node.args[1]) and ast.literal_eval(node.args[1]) < 0:
            text = [ast.unparse(part) for part in node.args]
            form = f"`{expressions.text_of(node)}`, whose index is counted from the front,"
            self.refuse(node, form, f"write x = {text[0]}; x[{text[1]}] = {text[2]}")
        buffer, index, value = (self.variable(self.atom(a)) for a in node.args)
        self.emit(WriteRowOp(out, buffer, index, value, self.source.at(node)))

    # ---- conditions -------------------------------------------------------------------------------------------

    def branch(self, test: ast.expr, yes: str, no: str) -> None:
        """End the current block by going to `yes` where the test holds and to `no` elsewhere."""
        test = self.in_order(test)
        match test:
            case ast.BoolOp(op=op, values=values):
                for value in values[:-1]:
                    more = self.new_label("bool")
                    self.branch(value, *((more, no) if isinstance(op, ast.And) else (yes, more)))
                    self.start(more)
                self.branch(values[-1], yes, no)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.branch(operand, no, yes)
            case ast.Compare() if expressions.must_stop_early(test):
                self.branch(self.links(test), yes, no)
            case _ if self.is_static(test):
                self.end(GotoOp(yes if self.evaluate(test) else no))
            case _:
                condition = self.variable(self.temporary())
                where = self.source.at(test)
                self.compute((condition,), expressions.truth_of(self.purify(test)), lambda value: (value,), where)
                self.end(BranchOp(condition, yes, no, where))
