"""Python functions to control-flow graphs.

One `def` becomes one Function: statements become blocks here, expressions become ops in `expression_builder`.

    def fib(n):                      fib(fib.n) -> fib.return
        if n <= 1:                     fib.entry:  fib._1 = {n <= 1} fib.n
            return 1                               branch fib._1 fib.then fib.endif
        left = fib(n - 2)      -->     fib.then:   fib.return = {1}
        return left + fib(n - 1)                   return
                                       fib.endif:  fib._2 = {n - 2} fib.n
                                                   fib.left = call fib fib._2
                                                   ...
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
from collections.abc import Callable
from typing import Any

from batchnuts.autobatch.errors import CompileError, Source
from batchnuts.autobatch.frontend import expressions
from batchnuts.autobatch.frontend.calls import Callee
from batchnuts.autobatch.frontend.comprehensions import ComprehensionBuilder
from batchnuts.autobatch.frontend.for_loops import Loop, Reading
from batchnuts.autobatch.frontend.in_place import Rewriter
from batchnuts.autobatch.frontend.inner_function import InnerFunction
from batchnuts.autobatch.frontend.sequences import Known
from batchnuts.autobatch.frontend.source import FunctionSource, read_function
from batchnuts.autobatch.frontend.unsupported import KEYWORDS, REWRITES, instead_of_unused
from batchnuts.autobatch.ir.cfg import without_dead_code
from batchnuts.autobatch.ir.program import (
    AssertOp,
    Block,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Program,
)
from batchnuts.autobatch.language.functions import LaneFunction, is_share, sync

MOST_VERSIONS = 64
"""How many versions of a function may be compiled for different function arguments."""


class _FunctionBuilder(ComprehensionBuilder):
    """The statements of one function."""

    def __init__(
        self,
        name: str,
        callee: Callee,
        name_of: Callable[[Callee, ast.AST, FunctionSource], str],
        reading: Reading,
    ) -> None:
        function = callee.function
        if isinstance(function, InnerFunction):
            source, captured = function.source, function.captured
        else:
            source, captured = read_function(function.python_function), ()
        super().__init__(name, source, dict(callee.function_arguments), captured)
        self.callee = callee
        self.name_of = name_of
        self.reading = reading
        self.defaults = {}
        self.visible = {}
        self.unsettled = set()
        self.numbers = {}
        self.asked = {}
        self.loops: list[Loop] = []
        self.bodies: list[list[ast.stmt]] = []
        own = lambda name: name in self.locals and name not in captured  # noqa: E731
        self.in_place = Rewriter(self.temporary, own, self.refuse)

    # ---- statements -------------------------------------------------------------------------------------------

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(value=ast.expr()) | ast.Assign() | ast.AugAssign():
                named = self.functions_named(node.value)  # type: ignore[arg-type]
                if named is not node.value:
                    node = copy.copy(node)
                    node.value = named
        simpler = self.in_place.simpler(node)
        if simpler is not None:
            self.body(simpler)
            return
        match node:
            case ast.Return(value=None):
                self.refuse(node, "a return without a value", "return what the caller needs")
            case ast.Return(value=ast.expr() as value):
                self.assign("return", value)
                self.end(IndirectGotoOp())
            case ast.Assign(targets=[target], value=value):
                self.assign_target(target, value)
            case ast.Assign(targets=targets, value=value):
                held = self.temporary()
                self.assign(held, value)
                for target in targets:
                    self.assign_target(target, ast.copy_location(ast.Name(held, ast.Load()), value))
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self.assign_target(target, value)
            case ast.AugAssign(target=target):
                self.refuse_target(target)
            case ast.If():
                self.if_statement(node)
            case ast.While():
                self.while_statement(node)
            case ast.For():
                self.for_statement(node)
            case ast.Break():
                self.end(GotoOp(self.loops[-1].break_label))
            case ast.Continue():
                self.end(GotoOp(self.loops[-1].continue_label))
            case ast.Assert():
                self.assert_statement(node)
            case ast.FunctionDef():
                self.define(node)
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call() as call) if self.static(call.func) is sync:
                self.gather(call)
            case ast.Expr(value=ast.NamedExpr(target=target, value=value)):
                self.assign(target.id, value)
            case ast.Expr(value=value) if type(value) in REWRITES:
                self.refuse(node, f"`{ast.unparse(value)}`", REWRITES[type(value)])
            case ast.Expr(value=value):
                form = f"the statement `{ast.unparse(value)}`, whose value is not used,"
                self.refuse(node, form, instead_of_unused(value))
            case _:
                keyword = KEYWORDS.get(type(node), type(node).__name__.lower())
                self.refuse(node, f"a `{keyword}` statement", REWRITES.get(type(node), "rewrite it with if and while"))

    def gather(self, call: ast.Call) -> None:
        """`sync(fraction)`: a new block that lanes enter together."""
        where = self.source.at(call)
        try:
            bound = inspect.signature(sync).bind(*call.args, **{str(k.arg): k.value for k in call.keywords}).arguments
        except TypeError as error:
            raise CompileError(f"`sync` takes one argument, the fraction: {error}.", where) from None
        fraction: Any = 1.0
        if (node := bound.get("fraction")) is not None:
            if isinstance(node, ast.Starred) or not self.is_static(node):
                form = f"the fraction `{ast.unparse(node)}` of `sync`, which is not known at compile time,"
                self.refuse(node, form, "write a number")
            fraction = self.evaluate(node)
        if not is_share(fraction):
            raise CompileError(f"the fraction of `sync` is {fraction!r}; write a number in (0, 1].", where)
        label = self.new_label("sync")
        self.end(GotoOp(label))
        self.start(label).gate = float(fraction)

    def assert_statement(self, node: ast.Assert) -> None:
        message = f"assertion failed: {expressions.text_of(node.test)}"
        if node.msg is not None:
            if not self.is_static(node.msg):
                self.refuse(node.msg, "an assertion's text made from values of the lane", "write a constant text")
            message += f" ({self.evaluate(node.msg)})"
        if self.is_static(node.test) and self.evaluate(node.test):
            return
        self.assert_that(expressions.truth_of(self.purify(node.test)), message, self.source.at(node))

    def assert_that(self, test: ast.expr, message: str, where: Source) -> None:
        """Stop the lanes on which a pure condition does not hold."""
        held = self.variable(self.temporary())
        self.compute((held,), test, lambda value: (value,), self.source.at(test))
        self.emit(AssertOp(held, message, where))

    def if_statement(self, node: ast.If) -> None:
        yes, no, after = (self.new_label(kind) for kind in ("then", "else", "endif"))
        self.branch(node.test, yes, no)
        holds = bool(self.evaluate(node.test)) if self.is_static(node.test) else None
        for label, statements, always in (
            (yes, node.body, holds is True),
            (no, node.orelse, holds is False),
        ):
            self.start(label)
            if always or holds is None:  # what Python never runs may be written for other constants
                with contextlib.nullcontext() if always else self.block():
                    self.body(statements)
            self.end(GotoOp(after))
        self.start(after)

    def while_statement(self, node: ast.While) -> None:
        header, body, done, after = (self.new_label(kind) for kind in ("while", "body", "done", "endwhile"))
        self.end(GotoOp(header))
        self.start(header)
        self.branch(node.test, body, done)
        self.loop_body(node, Loop(header, after), body, done)

    def for_statement(self, node: ast.For) -> None:
        if not (isinstance(node.iter, ast.Call) and self.static(node.iter.func) is range and not node.iter.keywords):
            self.over_sequence(node)
            return
        if not isinstance(node.target, ast.Name):
            self.refuse(node.target, "a loop target other than a plain name", "take it apart in the loop's body")
        if not 1 <= len(node.iter.args) <= 3 or any(isinstance(a, ast.Starred) for a in node.iter.args):
            self.refuse(node.iter, "range with other than one to three arguments", "write range(start, stop, step)")
        start, stop_bound, step = expressions.range_bounds(node.iter)
        if isinstance(step, ast.Constant) and step.value == 0:
            self.refuse(step, "a range with step 0", "give a step other than zero")
        if self.is_static(node.iter) and self.chooses_functions(node):
            self.write_out(node, Known(tuple(self.evaluate(node.iter)), expressions.text_of(node.iter)), None)
            return
        if not node.orelse and self.has_one_element(node.iter):
            self.assign(node.target.id, start)
            once = self.new_label("endfor")
            self.loops.append(Loop(continue_label=once, break_label=once))
            self.body(node.body)
            self.loops.pop()
            self.end(GotoOp(once))
            self.start(once)
            return
        header, body, done, after = (self.new_label(kind) for kind in ("for", "body", "done", "endfor"))
        # temporaries, since the body may assign what a bound was computed from
        stop = self.atom(expressions.as_bound(stop_bound))
        if not expressions.is_literal_integer(step):
            step = ast.copy_location(ast.Name(self.atom(expressions.as_bound(step)), ast.Load()), step)
            nonzero = expressions.formula("step != zero", node.iter, step=step, zero=ast.Constant(0))
            self.assert_that(nonzero, "range() with a step of 0", self.source.at(step))
        counter = self.temporary()
        self.assign(counter, expressions.as_bound(start))
        self.end(GotoOp(body if self.certainly_runs(node) else header))
        self.start(header)
        inside = expressions.range_test(counter, stop, step, node.iter)
        self.branch(inside, body, done)
        self.start(body)
        following = expressions.range_next(counter, stop, step, node.iter)
        pair = ast.copy_location(ast.Tuple([ast.Name(counter, ast.Load()), following], ast.Load()), node.iter)
        ast.fix_missing_locations(pair)
        both = ast.copy_location(ast.Tuple([node.target, ast.Name(counter, ast.Store())], ast.Store()), node.target)
        self.assign_target(both, pair)
        self.loop_body(node, Loop(header, after), None, done)

    def has_one_element(self, call: ast.Call) -> bool:
        """Whether a range(...) is known at compile time to have one element."""
        if not self.is_static(call):
            return False
        bounds = [self.evaluate(a) for a in call.args]
        return all(type(b) is int for b in bounds) and len(range(*bounds)) == 1

    def loop_body(self, node: ast.While | ast.For, loop: Loop, body: str | None, done: str) -> None:
        if body is not None:
            self.start(body)
        self.loops.append(loop)
        with self.block():
            self.body(node.body)
        self.loops.pop()
        self.end(GotoOp(loop.continue_label))
        self.start(done)
        with self.block():
            self.body(node.orelse)
        self.end(GotoOp(loop.break_label))
        self.start(loop.break_label)

    def build(self) -> Function:
        self.body(self.source.tree.body)
        self.end(GotoOp(f"{self.name}.no_return"))
        self.start(f"{self.name}.no_return")
        self.end(IndirectGotoOp())
        blocks = tuple(
            Block(b.label, tuple(b.ops), b.terminator or IndirectGotoOp(), self.name, b.gate) for b in self.blocks
        )
        return Function(
            self.name,
            tuple(map(self.variable, self.parameters)),
            (self.variable("return"),),
            ControlFlowGraph(blocks),
            self.source.at(self.source.tree),
            {self.variable(name): expressions.as_written(part, self.held) for name, part in self.held.items()},
        )


def build_program(root: LaneFunction, reading: Reading | None = None) -> Program:
    """The Program whose main graph calls `root` once; every batched function it can reach is in `functions`.

    reading: what is known about its loops, and where new findings are noted.

    Variables have no types yet. Raises UnsupportedSyntaxError, UndefinedVariableError or CompileError at the line.
    """
    reading = reading or Reading()
    names: dict[Callee, str] = {}
    todo: list[Callee] = []

    def name_of(callee: Callee, node: ast.AST | None = None, source: FunctionSource | None = None) -> str:
        if callee not in names:
            base = getattr(callee.function, "__name__", "function")
            if source is not None and sum(existing.function == callee.function for existing in names) >= MOST_VERSIONS:
                raise CompileError(
                    f"the call of {base!r} gives it yet another function as argument: it would be compiled more than "
                    f"{MOST_VERSIONS} times. Pass on the function that was given, not a new one in each call.",
                    source.at(node) if node is not None else None,
                )
            same = sum(1 for name in ("main", *names.values()) if name.split("#")[0] == base)
            names[callee] = base if same == 0 else f"{base}#{same + 1}"
            todo.append(callee)
        return names[callee]

    root_name = name_of(Callee(root))
    functions = []
    while todo:
        callee = todo.pop(0)
        functions.append(_FunctionBuilder(names[callee], callee, name_of, reading).build())
    parameters = functions[0].vars_in
    inputs = tuple("main." + p.split(".", 1)[1] for p in parameters)
    call = FunctionCallOp(("main.return",), root_name, inputs, functions[0].source)
    main = ControlFlowGraph((Block("main.entry", (call,), IndirectGotoOp()),))
    program = Program(main, tuple(functions), inputs, ("main.return",))
    return without_dead_code(program)
