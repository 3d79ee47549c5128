"""Rules of statements: each writes its ops and blocks; `for` has a file of its own.

if n <= 1:                       fib.entry:  fib._1 = {n <= 1} fib.n
    return 1                                 branch fib._1 fib.then fib.endif
                         -->     fib.then:   fib.return = {1}
                                             return
                                 fib.endif:  ...
"""

from __future__ import annotations

import ast
import contextlib
import inspect
from typing import Any

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.frontend import expressions, known
from batchnuts.autobatch.frontend.builder import Builder, Loop
from batchnuts.autobatch.frontend.expression_rules import assert_that, branch
from batchnuts.autobatch.frontend.for_loops import close_loop, loop_body
from batchnuts.autobatch.frontend.function_values import hold
from batchnuts.autobatch.frontend.targets import assign_target, evaluated, refuse_target
from batchnuts.autobatch.frontend.translate import assign, purify, translate
from batchnuts.autobatch.frontend.unsupported import REWRITES, instead_of_unused
from batchnuts.autobatch.ir.program import GotoOp, IndirectGotoOp
from batchnuts.autobatch.language.functions import is_share, sync

_BATCH = "batchnuts.autobatch.api"


def nothing(b: Builder, node: ast.Pass) -> None:
    """`pass`."""


def return_statement(b: Builder, node: ast.Return) -> None:
    """`return`, of a value."""
    if node.value is None:
        b.refuse(node, "a return without a value", "return what the caller needs")
    assign(b, "return", node.value)
    b.end(IndirectGotoOp())


def assignment(b: Builder, node: ast.Assign) -> None:
    """target = value, and target = target = value."""
    value = node.value
    if len(node.targets) > 1:
        value = evaluated(b, value)
    for target in node.targets:
        assign_target(b, target, value)


def annotated_assignment(b: Builder, node: ast.AnnAssign) -> None:
    """target: type = value, or no value, which means nothing."""
    if node.value is not None:
        assign_target(b, node.target, node.value)


def augmented_assignment(b: Builder, node: ast.AugAssign) -> None:
    """target += value, for a target that is neither a name nor an element: these stand for simpler statements."""
    refuse_target(b, node.target)


def break_statement(b: Builder, node: ast.Break) -> None:
    """`break`."""
    b.end(GotoOp(b.loops[-1].break_label))


def continue_statement(b: Builder, node: ast.Continue) -> None:
    """`continue`."""
    b.end(GotoOp(b.loops[-1].continue_label))


def definition(b: Builder, node: ast.FunctionDef) -> None:
    """`def` inside this function."""
    for decorator in node.decorator_list:
        function = known.static(b, decorator)
        if (getattr(function, "__module__", ""), getattr(function, "__name__", "")) != (_BATCH, "batch"):
            b.refuse(decorator, "a decorator within a batched function", "define the function outside")
    hold(b, node.name, known.inner_function(b, node, node.args), node)


def expression_statement(b: Builder, node: ast.Expr) -> None:
    """A constant, as documentation; `sync(...)`; `(x := value)`. The value of any other expression would be lost."""
    match node.value:
        case ast.Constant():
            pass
        case ast.Call() as call if known.callee_of(b, call) is sync:
            gather(b, call)
        case ast.NamedExpr(target=target, value=value):
            assign(b, target.id, value)
        case value if type(value) in REWRITES:
            b.refuse(node, f"`{ast.unparse(value)}`", REWRITES[type(value)])
        case value:
            form = f"the statement `{ast.unparse(value)}`, whose value is not used,"
            b.refuse(node, form, instead_of_unused(value))


def gather(b: Builder, call: ast.Call) -> None:
    """`sync(fraction)`: a new block that lanes enter together."""
    where = b.source.at(call)
    try:
        bound = inspect.signature(sync).bind(*call.args, **{str(k.arg): k.value for k in call.keywords}).arguments
    except TypeError as error:
        raise CompileError(f"`sync` takes one argument, the fraction: {error}.", where) from None
    fraction: Any = 1.0
    if (node := bound.get("fraction")) is not None:
        if isinstance(node, ast.Starred) or not known.is_static(b, node):
            form = f"the fraction `{ast.unparse(node)}` of `sync`, which is not known at compile time,"
            b.refuse(node, form, "write a number")
        fraction = known.evaluate(b, node)
    if not is_share(fraction):
        raise CompileError(f"the fraction of `sync` is {fraction!r}; write a number in (0, 1].", where)
    label = b.new_label("sync")
    b.end(GotoOp(label))
    b.start(label).gate = float(fraction)


def assert_statement(b: Builder, node: ast.Assert) -> None:
    """`assert`: lanes stop on which it does not hold."""
    message = f"assertion failed: {expressions.text_of(node.test)}"
    if node.msg is not None:
        if not known.is_static(b, node.msg):
            b.refuse(node.msg, "an assertion message made from values of the lane", "write a constant message")
        message += f" ({known.evaluate(b, node.msg)})"
    if known.is_static(b, node.test) and known.evaluate(b, node.test):
        return
    assert_that(b, expressions.truth_of(purify(b, node.test)), message, b.source.at(node))


def if_statement(b: Builder, node: ast.If) -> None:
    """`if`, `elif`, `else`; where the test is known, only the branch that is taken."""
    yes, no, after = (b.new_label(kind) for kind in ("then", "else", "endif"))
    branch(b, node.test, yes, no)
    holds = bool(known.evaluate(b, node.test)) if known.is_static(b, node.test) else None
    for label, statements, always in ((yes, node.body, holds is True), (no, node.orelse, holds is False)):
        b.start(label)
        if always or holds is None:  # what Python never runs may be written for other constants
            with contextlib.nullcontext() if always else b.block():
                translate(b, statements)
        b.end(GotoOp(after))
    b.start(after)


def while_statement(b: Builder, node: ast.While) -> None:
    """`while`, with its `else`."""
    header, body, done, after = (b.new_label(kind) for kind in ("while", "body", "done", "endwhile"))
    b.end(GotoOp(header))
    b.start(header)
    branch(b, node.test, body, done)
    b.start(body)
    loop_body(b, node.body, Loop(header, after))
    close_loop(b, node, done, after)
