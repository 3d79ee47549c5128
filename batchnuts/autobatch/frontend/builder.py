"""One function on its way from Python's syntax to blocks: what is known by now, and the operations of all rules.

A rule is a plain function that translates one kind of syntax. It gets the `Builder`, emits ops into its open block, and
leaves the parts of the syntax to the rules for these: `translate` and `assign` (see `translate.py`) look them up in the
builder's `Rules`. The tables themselves are in `build.py`, which sees all rules.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from batchnuts.autobatch.errors import UnsupportedSyntaxError
from batchnuts.autobatch.frontend import expressions
from batchnuts.autobatch.frontend.hidden_state import Hidden, StateFinder
from batchnuts.autobatch.frontend.in_place import Rewriter
from batchnuts.autobatch.frontend.inner_function import InnerFunction
from batchnuts.autobatch.frontend.sequences import Apart, Learned, Numbers, Sequence
from batchnuts.autobatch.frontend.source import FunctionSource, read_function
from batchnuts.autobatch.ir.program import Op, Terminator, check_name
from batchnuts.autobatch.language.functions import LaneFunction
from batchnuts.autobatch.parsing import parameter_names


@dataclass(frozen=True)
class Rules:
    """What translates which syntax: a function of the builder for each class of nodes."""

    statements: Mapping[type[ast.stmt], Callable[[Builder, Any], None]]
    """Each translates a statement of its class; the language has no other statements."""
    expressions: Mapping[type[ast.expr], Callable[[Builder, str, Any], None]]
    """Each assigns an expression of its class to a variable; the other classes are pure."""
    rewrites: tuple[Callable[[Builder, ast.expr], ast.expr], ...]
    """Each maps an expression to a simpler one of the same value; they are applied in this order, before the rules."""


@dataclass(frozen=True)
class Callee:
    """A batched function, specialized to the functions that are passed to it as arguments."""

    function: LaneFunction
    function_arguments: tuple[tuple[str, Any], ...] = ()
    """Parameters and the functions, or None, that they stand for."""


@dataclass
class Reading:
    """What is found while a program is read, and what is known from earlier readings."""

    learned: dict[Hashable, Learned | Apart | Numbers] = field(default_factory=dict)
    """What types have shown, by loop and by an expression's place."""
    loops: dict[Hashable, tuple[str, Sequence]] = field(default_factory=dict)
    """Each loop whose number of iterations only types can give: its function's name, and what it runs over."""


@dataclass
class OpenBlock:
    """A block that is still being written."""

    label: str
    ops: list[Op] = field(default_factory=list)
    terminator: Terminator | None = None
    gate: float = 0.0


@dataclass(frozen=True)
class Loop:
    """A loop whose body is being read."""

    continue_label: str
    """Where `continue` goes."""
    break_label: str
    """Where `break` goes."""


class Builder:
    """The state of one function's translation; `current` is the block that receives the next op."""

    def __init__(
        self,
        name: str,
        callee: Callee,
        rules: Rules,
        name_of: Callable[[Callee, ast.AST, FunctionSource], str],
        reading: Reading,
    ) -> None:
        """name_of: gives a callee its name in the program; called with the place of the call and its source."""
        self.name = name
        self.callee = callee
        self.rules = rules
        self.name_of = name_of
        self.reading = reading
        function = callee.function
        captured: tuple[str, ...] = ()
        if isinstance(function, InnerFunction):
            self.source, captured = function.source, function.captured
        else:
            self.source = read_function(function.python_function)

        # ---- blocks
        self.blocks: list[OpenBlock] = []
        self.loops: list[Loop] = []
        self.label_counts: dict[str, int] = {}
        self.current = self.start(self.new_label("entry"))

        # ---- names
        tree = self.source.tree
        if tree.args.vararg or tree.args.kwarg:
            self.refuse(tree, "*args and **kwargs", "name each parameter")
        functions = dict(callee.function_arguments)
        assigned = expressions.assigned_names(tree)
        for parameter in functions.keys() & assigned:
            kind = "None" if functions[parameter] is None else "a function"
            form = f"a parameter {parameter!r} that is given {kind} and assigned"
            example = f": value = 0.0 if {parameter} is None else {parameter}, say" if kind == "None" else ""
            self.refuse(tree, form, f"use another name{example}")
        self.parameters = [*(p for p in parameter_names(tree.args) if p not in functions), *captured]
        self.locals = set(self.parameters) | assigned
        self.around = {**self.source.namespace, **functions}
        self.namespace = expressions.namespace_of(self.around)
        self.user_names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | self.locals
        """Identifiers of the user, global ones too: none of ours may shadow them."""
        self.temporaries = 0
        self.held: dict[str, ast.expr] = {}
        """The parts of the user's expressions that temporaries hold."""
        self.checks = 0
        self.defaults: dict[tuple[LaneFunction, str], str] = {}
        """Names of constants: the defaults of parameters of functions."""
        is_own = lambda name: name in self.locals and name not in captured  # noqa: E731
        self.in_place = Rewriter(self.temporary, is_own, self.refuse)

        # ---- what names stand for
        self.visible: dict[str, tuple[Any, int]] = {}
        """Names that stand for functions (or syntax of lambdas), and in how many loops they were bound."""
        self.unsettled: set[str] = set()
        """Names that stood for a function in a block that has ended."""
        self.numbers: dict[str, int] = {}
        """Variables that are assigned once, a number known by now."""
        self.expanding = 0
        """How many lambdas are being expanded within each other."""

        # ---- what is written out
        self.copies: tuple[Any, ...] = ()
        """Which copies of which loops' bodies are being written."""
        self.copies_written = 0
        self.bodies: list[list[ast.stmt]] = []
        """The copies that are being written, each around the next."""
        self.asked: dict[Hashable, int] = {}
        """How often the length of the sequence at a place was asked for."""

        # ---- hidden state
        self.state_finder = StateFinder()
        self.needing_values: dict[int, Hidden | None] = {}
        """By the id of a helper: a function it calls that gives wrong results for arrays without values."""

    def refuse(self, node: ast.AST, form: str, rewrite: str) -> NoReturn:
        """Raise for an unsupported construct, with the rewrite."""
        raise UnsupportedSyntaxError(
            f"{form} cannot be batched in function {self.name!r}. Instead, {rewrite}.", self.source.at(node)
        )

    # ---- blocks -----------------------------------------------------------------------------------------------------

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

    # ---- names ------------------------------------------------------------------------------------------------------

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

    def fresh(self, base: str, number: int = 1) -> str:
        """A name like `base` (with that number, if it is free) that is not defined yet."""
        while (name := f"{base}_{number}") in self.user_names or name in self.locals or name in self.namespace:
            number += 1
        return name

    def check(self) -> str:
        """A fresh local variable for a check."""
        self.checks += 1
        while check_name(self.checks) in self.user_names:
            self.checks += 1
        return check_name(self.checks)

    def constant(self, value: Any) -> ast.expr:
        """An expression that denotes a constant."""
        if type(value) in (int, float, bool):
            return ast.Constant(value)
        name = self.fresh("constant")
        self.namespace[name] = value
        return ast.Name(name, ast.Load())

    def names_read(self, node: ast.AST) -> tuple[str, ...]:
        """The local variables that an expression reads."""
        return expressions.names_read(node, self.locals)

    def statements(self) -> list[ast.stmt]:
        """The function's statements, and those of the copies that are being written."""
        return [*self.source.tree.body, *(statement for body in self.bodies for statement in body)]

    # ---- scopes -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Statements that not every lane runs: what their names stand for, functions or numbers, is forgotten after."""
        visible, numbers = dict(self.visible), dict(self.numbers)
        yield
        for name in [n for n, held in self.visible.items() if visible.get(n) != held]:
            del self.visible[name]
            self.namespace.pop(name, None)
            self.unsettled.add(name)
            self.locals.add(name)
        self.numbers = numbers

    @contextlib.contextmanager
    def hiding(self, node: ast.AST) -> Iterator[None]:
        """A context in which names that a comprehension and those inside it bind mean nothing else."""
        bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        locals_, unsettled = self.locals, self.unsettled
        self.locals, self.unsettled = locals_ | bound, unsettled - bound
        try:
            yield
        finally:
            self.locals, self.unsettled = locals_, unsettled
