"""Python functions to control-flow graphs: which rule translates which syntax, and the program that calls a function.

One `def` becomes one Function: statements become blocks, expressions become ops.

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

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.frontend import calls, comprehensions, expression_rules, expressions, for_loops, statements
from batchnuts.autobatch.frontend.builder import Builder, Callee, Reading, Rules
from batchnuts.autobatch.frontend.function_values import plain_calls, with_lambdas
from batchnuts.autobatch.frontend.source import FunctionSource
from batchnuts.autobatch.frontend.translate import translate
from batchnuts.autobatch.ir.cfg import without_dead_code
from batchnuts.autobatch.ir.program import (
    Block,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Program,
)
from batchnuts.autobatch.language.functions import LaneFunction

MOST_VERSIONS = 64
"""How many versions of a function may be compiled for different function arguments."""

RULES = Rules(
    statements={
        ast.AnnAssign: statements.annotated_assignment,
        ast.Assert: statements.assert_statement,
        ast.Assign: statements.assignment,
        ast.AugAssign: statements.augmented_assignment,
        ast.Break: statements.break_statement,
        ast.Continue: statements.continue_statement,
        ast.Expr: statements.expression_statement,
        ast.For: for_loops.for_statement,
        ast.FunctionDef: statements.definition,
        ast.If: statements.if_statement,
        ast.Pass: statements.nothing,
        ast.Return: statements.return_statement,
        ast.While: statements.while_statement,
    },
    expressions={
        ast.BoolOp: expression_rules.and_or,
        ast.Call: calls.call,
        ast.Compare: expression_rules.comparison,
        ast.IfExp: expression_rules.choice,
        ast.Name: expression_rules.name,
        ast.NamedExpr: expression_rules.named,
    },
    # lambdas twice: what a comprehension's variable stands for may be one
    rewrites=(with_lambdas, plain_calls, comprehensions.written_out, with_lambdas, expression_rules.in_order),
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
                    f"the call of {base!r} passes it yet another function as an argument: it would be compiled more "
                    f"than {MOST_VERSIONS} times. Pass on the function that it received, not a new one in each call.",
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
        functions.append(build_function(Builder(names[callee], callee, RULES, name_of, reading)))
    parameters = functions[0].vars_in
    inputs = tuple("main." + p.split(".", 1)[1] for p in parameters)
    call = FunctionCallOp(("main.return",), root_name, inputs, functions[0].source)
    main = ControlFlowGraph((Block("main.entry", (call,), IndirectGotoOp()),))
    program = Program(main, tuple(functions), inputs, ("main.return",))
    return without_dead_code(program)


def build_function(b: Builder) -> Function:
    """The blocks of a function's statements, in the order in which they were opened."""
    translate(b, b.source.tree.body)
    b.end(GotoOp(f"{b.name}.no_return"))
    b.start(f"{b.name}.no_return")
    b.end(IndirectGotoOp())
    blocks = tuple(
        Block(block.label, tuple(block.ops), block.terminator or IndirectGotoOp(), b.name, block.gate)
        for block in b.blocks
    )
    return Function(
        b.name,
        tuple(map(b.variable, b.parameters)),
        (b.variable("return"),),
        ControlFlowGraph(blocks),
        b.source.at(b.source.tree),
        {b.variable(name): expressions.as_written(part, b.held) for name, part in b.held.items()},
    )
