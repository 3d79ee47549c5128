"""Python functions to control-flow graphs.

One `def` becomes one Function: statements become blocks, each pure expression becomes one PrimOp over the variables
it reads, and what needs control flow inside an expression (calls of batched functions, `a if c else b`, `and`, `or`)
is taken out into temporaries first. All expressions are pure, so this order is as good as Python's.

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
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from batchnuts.autobatch.compiler import expressions, facts
from batchnuts.autobatch.compiler.callables import (
    LaneFunction,
    PrimitiveFunction,
    in_one_lane_code,
    is_share,
    sync,
    write,
)
from batchnuts.autobatch.compiler.cfg import call_graph, simplify
from batchnuts.autobatch.compiler.ir import (
    COPY,
    Block,
    BranchOp,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Op,
    Primitive,
    PrimOp,
    Program,
    Terminator,
    WriteRowOp,
)
from batchnuts.autobatch.compiler.refusals import KEYWORDS, REWRITES
from batchnuts.autobatch.compiler.source import FunctionSource, read_function
from batchnuts.autobatch.errors import CompileError, UndefinedVariableError, UnsupportedSyntaxError


@dataclass
class _OpenBlock:
    label: str
    ops: list[Op] = field(default_factory=list)
    terminator: Terminator | None = None
    gate: float = 0.0


@dataclass(frozen=True)
class _Loop:
    again: str
    """Where `continue` goes."""
    after: str
    """Where `break` goes."""


class _FunctionBuilder:
    """Builds the blocks of one function; `self.current` is the block that receives the next op."""

    def __init__(self, name: str, source: FunctionSource, callee_name: Callable[[LaneFunction], str]) -> None:
        self.name = name
        self.source = source
        self.callee_name = callee_name
        arguments = source.tree.args
        if arguments.vararg or arguments.kwarg:
            self.refuse(source.tree, "*args and **kwargs", "name each parameter")
        self.parameters = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        self.locals = set(self.parameters) | expressions.assigned_names(source.tree)
        self.namespace = expressions.with_lane_builtins(source.namespace)
        self.blocks: list[_OpenBlock] = []
        self.label_counts: dict[str, int] = {}
        self.temporaries = 0
        self.loops: list[_Loop] = []
        self.current = self.start(self.new_label("entry"))

    # ---- blocks -----------------------------------------------------------------------------------------------

    def new_label(self, kind: str) -> str:
        count = self.label_counts[kind] = self.label_counts.get(kind, 0) + 1
        return f"{self.name}.{kind}" if count == 1 else f"{self.name}.{kind}.{count}"

    def start(self, label: str) -> _OpenBlock:
        self.current = _OpenBlock(label)
        self.blocks.append(self.current)
        return self.current

    def end(self, terminator: Terminator) -> None:
        """Close the current block; statements after a return, break or continue fall into an unreachable one."""
        if self.current.terminator is None:
            self.current.terminator = terminator

    def emit(self, op: Op) -> None:
        if self.current.terminator is not None:
            self.start(self.new_label("unreachable"))
        self.current.ops.append(op)

    def variable(self, identifier: str) -> str:
        return f"{self.name}.{identifier}"

    def temporary(self) -> str:
        self.temporaries += 1
        while f"_{self.temporaries}" in self.locals:
            self.temporaries += 1
        identifier = f"_{self.temporaries}"
        self.locals.add(identifier)
        return identifier

    # ---- errors -----------------------------------------------------------------------------------------------

    def refuse(self, node: ast.AST, what: str, rewrite: str) -> NoReturn:
        raise UnsupportedSyntaxError(
            f"{what} cannot be batched in function {self.name!r}. Instead, {rewrite}.", self.source.at(node)
        )

    # ---- expressions ------------------------------------------------------------------------------------------

    def static(self, node: ast.AST) -> Any:
        """The Python object a name or attribute chain stands for at compile time, or `expressions.UNKNOWN`."""
        return expressions.static_value(node, self.locals, self.namespace)

    def primitive(self, node: ast.expr, finish: Callable[[Any], tuple[Any, ...]]) -> tuple[Primitive, tuple[str, ...]]:
        """The traceable function of a pure expression, and the variables it reads."""
        names = expressions.names_read(node, self.locals)
        for name in expressions.unknown_names(node, self.locals, self.namespace):
            raise UndefinedVariableError(
                f"name {name.id!r} is not defined: neither assigned in {self.name!r} nor found in its module.",
                self.source.at(name),
            )
        evaluate = expressions.compile_expression(node, names, self.namespace, self.source.filename)
        text = expressions.text_of(node)

        def call(*values: Any) -> tuple[Any, ...]:
            token = in_one_lane_code.set(True)
            try:
                return finish(evaluate(*values))
            finally:
                in_one_lane_code.reset(token)

        function = Primitive(
            text,
            call,
            operands=expressions.integer_operands(node),
            speculable=facts.is_speculable(node, self.static),
            offset=facts.offset_of(node) if len(names) == 1 else None,
        )
        return function, tuple(map(self.variable, names))

    def assign(self, identifier: str, node: ast.expr) -> None:
        """identifier = node."""
        out = self.variable(identifier)
        where = self.source.at(node)
        match node:
            case ast.Name(id=name) if name in self.locals:
                self.emit(PrimOp((out,), COPY, (self.variable(name),), where))
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
                pure = self.purify(node)
                function, inputs = self.primitive(pure, lambda value: (value,))
                self.emit(PrimOp((out,), function, inputs, where))

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
        identifier = self.temporary()
        self.assign(identifier, node)
        return identifier

    def purify(self, node: ast.expr) -> ast.expr:
        """The expression with all that is more than a pure array expression replaced by temporaries."""
        needs_variable = self.needs_variable

        def take_out(inner: ast.expr) -> ast.expr | None:
            if type(inner) in REWRITES:
                self.refuse(inner, f"`{ast.unparse(inner)}`", REWRITES[type(inner)])
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

    def is_static(self, node: ast.expr) -> bool:
        """Whether an expression can be evaluated at compile time: it reads no variable and calls nothing batched."""
        parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
        return not expressions.names_read(node, self.locals) and not any(map(self.needs_variable, parts))

    def needs_variable(self, node: ast.expr) -> bool:
        if isinstance(node, (ast.IfExp, ast.BoolOp)) or expressions.must_stop_early(node):
            return bool(expressions.names_read(node, self.locals))
        if not isinstance(node, ast.Call):
            return False
        callee = self.static(node.func)
        return callee is write or callee is sync or isinstance(callee, (LaneFunction, PrimitiveFunction))

    def call(self, out: str, node: ast.Call, callee: LaneFunction) -> None:
        arguments = self.bind(node, callee)
        name = self.callee_name(callee)
        inputs = tuple(self.variable(self.atom(a)) for a in arguments)
        where = self.source.at(node)
        if name == self.name and out == self.variable("return"):
            # its own result goes through a temporary, so that no frame of `return` beneath the top is ever read
            held = self.variable(self.temporary())
            self.emit(FunctionCallOp((held,), name, inputs, where))
            self.emit(PrimOp((out,), COPY, (held,), where))
        else:
            self.emit(FunctionCallOp((out,), name, inputs, where))

    def bind(self, node: ast.Call, callee: LaneFunction) -> list[ast.expr]:
        """The argument expressions in the order of the callee's parameters, defaults filled in."""
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            self.refuse(node, "star arguments in a call of a batched function", "write the arguments out")
        signature = inspect.signature(callee.python_function)
        try:
            given = signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords}).arguments
        except TypeError as error:
            name = getattr(callee, "__name__", "function")
            raise CompileError(
                f"the call of {name!r} does not fit its parameters {signature}: {error}.", self.source.at(node)
            ) from None
        arguments = []
        for parameter in signature.parameters.values():
            if parameter.name in given:
                arguments.append(given[parameter.name])
            else:
                hidden = f"__default_{self.callee_name(callee)}_{parameter.name}"
                self.namespace[hidden] = parameter.default
                arguments.append(ast.copy_location(ast.Name(hidden, ast.Load()), node))
        return arguments

    def declared_primitive(self, out: str, node: ast.Call, callee: PrimitiveFunction) -> None:
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            self.refuse(node, "keyword or star arguments of a declared primitive", "pass them by position")
        inputs = tuple(self.variable(self.atom(a)) for a in node.args)
        name = getattr(callee, "__name__", "primitive")
        function = Primitive(name, lambda *args: (callee.function(*args),), callee.batched, callee.costly)
        self.emit(PrimOp((out,), function, inputs, self.source.at(node)))

    def write_row(self, out: str, node: ast.Call) -> None:
        if node.keywords or len(node.args) != 3:
            self.refuse(node, "`write` with other than three positional arguments", "write(buffer, index, value)")
        buffer, index, value = (self.variable(self.atom(a)) for a in node.args)
        self.emit(WriteRowOp(out, buffer, index, value, self.source.at(node)))

    # ---- conditions -------------------------------------------------------------------------------------------

    def branch(self, test: ast.expr, yes: str, no: str) -> None:
        """End the current block by going to `yes` where the test holds and to `no` elsewhere."""
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
                function, _ = self.primitive(test, lambda value: (value,))
                self.end(GotoOp(yes if function.call()[0] else no))
            case _:
                condition = self.temporary()
                truth = expressions.truth_of(self.purify(test))
                function, inputs = self.primitive(truth, lambda value: (value,))
                where = self.source.at(test)
                self.emit(PrimOp((self.variable(condition),), function, inputs, where))
                self.end(BranchOp(self.variable(condition), yes, no, where))

    # ---- statements -------------------------------------------------------------------------------------------

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
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
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                left = ast.copy_location(ast.Name(target.id, ast.Load()), target)
                self.assign_target(target, ast.copy_location(ast.BinOp(left, op, value), node))
            case ast.AugAssign(target=target):
                self.refuse_target(target)
            case ast.If():
                self.if_statement(node)
            case ast.While():
                self.while_statement(node)
            case ast.For():
                self.for_statement(node)
            case ast.Break():
                self.end(GotoOp(self.loops[-1].after))
            case ast.Continue():
                self.end(GotoOp(self.loops[-1].again))
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call() as call) if self.static(call.func) is sync:
                self.gather(call)
            case ast.Expr(value=value) if type(value) in REWRITES:
                self.refuse(node, f"`{ast.unparse(value)}`", REWRITES[type(value)])
            case ast.Expr(value=value):
                what = f"the statement `{ast.unparse(value)}`, whose value is not used,"
                self.refuse(node, what, "drop or assign it")
            case _:
                keyword = KEYWORDS.get(type(node), type(node).__name__.lower())
                self.refuse(node, f"a `{keyword}` statement", REWRITES.get(type(node), "rewrite it with if and while"))

    def gather(self, call: ast.Call) -> None:
        """`sync(fraction)`: a new block that lanes enter together."""
        where = self.source.at(call)
        try:
            given = inspect.signature(sync).bind(*call.args, **{str(k.arg): k.value for k in call.keywords}).arguments
        except TypeError as error:
            raise CompileError(f"`sync` takes one argument, the fraction: {error}.", where) from None
        fraction: Any = 1.0
        if (node := given.get("fraction")) is not None:
            if isinstance(node, ast.Starred) or not self.is_static(node):
                self.refuse(node, f"the fraction `{ast.unparse(node)}` of `sync`, which is not known at compile time,",
                            "write a number")  # fmt: skip
            (fraction,) = self.primitive(node, lambda value: (value,))[0].call()
        if not is_share(fraction):
            raise CompileError(f"the fraction of `sync` is {fraction!r}; write a number in (0, 1].", where)
        label = self.new_label("sync")
        self.end(GotoOp(label))
        self.start(label).gate = float(fraction)

    def refuse_target(self, target: ast.expr) -> NoReturn:
        match target:
            case ast.Subscript():
                self.refuse(target, "assignment to an element", "x = autobatch.write(x, index, value)")
            case ast.Attribute():
                self.refuse(target, "assignment to a field", "x = x._replace(field=value) or dataclasses.replace")
            case _:
                self.refuse(target, f"assignment to `{ast.unparse(target)}`", "assign to plain names")

    def assign_target(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name(id=identifier):
                self.assign(identifier, value)
            case ast.Tuple() | ast.List():
                pattern = expressions.Pattern.of(target, self.refuse_target)
                pure = self.purify(value)
                function, inputs = self.primitive(pure, pattern.take_apart)
                # of a name that is there twice the last one counts
                last = {name: i for i, name in enumerate(pattern.names)}
                kept = [n if last[n] == i else self.temporary() for i, n in enumerate(pattern.names)]
                outs = tuple(map(self.variable, kept))
                self.emit(PrimOp(outs, function, inputs, self.source.at(target)))
            case _:
                self.refuse_target(target)

    def if_statement(self, node: ast.If) -> None:
        yes, no, after = (self.new_label(kind) for kind in ("then", "else", "endif"))
        self.branch(node.test, yes, no)
        for label, statements in ((yes, node.body), (no, node.orelse)):
            self.start(label)
            self.body(statements)
            self.end(GotoOp(after))
        self.start(after)

    def while_statement(self, node: ast.While) -> None:
        again, body, done, after = (self.new_label(kind) for kind in ("while", "body", "done", "endwhile"))
        self.end(GotoOp(again))
        self.start(again)
        self.branch(node.test, body, done)
        self.loop_body(node, _Loop(again, after), body, done)

    def for_statement(self, node: ast.For) -> None:
        if not isinstance(node.target, ast.Name):
            self.refuse(node.target, "a loop target other than a plain name", "take it apart in the loop's body")
        if not (isinstance(node.iter, ast.Call) and self.static(node.iter.func) is range and not node.iter.keywords):
            self.refuse(node.iter, "a for loop over anything but range(...)", "loop over range(n) and index")
        if not 1 <= len(node.iter.args) <= 3 or any(isinstance(a, ast.Starred) for a in node.iter.args):
            self.refuse(node.iter, "range with other than one to three arguments", "write range(start, stop, step)")
        start, stop_bound, step = expressions.range_bounds(node.iter)
        if isinstance(step, ast.Constant) and step.value == 0:
            self.refuse(step, "a range with step 0", "give a step other than zero")
        if not node.orelse and self.has_one_element(node.iter):
            self.assign(node.target.id, start)
            once = self.new_label("endfor")
            self.loops.append(_Loop(again=once, after=once))
            self.body(node.body)
            self.loops.pop()
            self.end(GotoOp(once))
            self.start(once)
            return
        again, body, done, after = (self.new_label(kind) for kind in ("for", "body", "done", "endfor"))
        # temporaries, since the body may assign what a bound was computed from
        start, stop = expressions.as_bound(start), self.atom(expressions.as_bound(stop_bound))
        if not expressions.is_literal_integer(step):
            step = ast.copy_location(ast.Name(self.atom(expressions.as_bound(step)), ast.Load()), step)
        counter = self.temporary()
        # the counter takes the dtype of the bound it is compared with
        self.assign(counter, expressions.formula("start + (stop - stop)", node.iter, start=start, stop=stop))
        self.end(GotoOp(again))
        self.start(again)
        inside = expressions.range_test(counter, stop, step, node.iter)
        self.branch(inside, body, done)
        self.start(body)
        pair = expressions.formula("(counter, counter + step)", node.iter, counter=counter, step=step)
        both = ast.copy_location(ast.Tuple([node.target, ast.Name(counter, ast.Store())], ast.Store()), node.target)
        self.assign_target(both, pair)
        self.loop_body(node, _Loop(again, after), None, done)

    def has_one_element(self, call: ast.Call) -> bool:
        """Whether a range(...) is known at compile time to have one element."""
        if not self.is_static(call):
            return False
        bounds = [self.primitive(a, lambda value: (value,))[0].call()[0] for a in call.args]
        return all(type(b) is int for b in bounds) and len(range(*bounds)) == 1

    def loop_body(self, node: ast.While | ast.For, loop: _Loop, body: str | None, done: str) -> None:
        if body is not None:
            self.start(body)
        self.loops.append(loop)
        self.body(node.body)
        self.loops.pop()
        self.end(GotoOp(loop.again))
        self.start(done)
        self.body(node.orelse)
        self.end(GotoOp(loop.after))
        self.start(loop.after)

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
        )


def build_program(root: LaneFunction) -> Program:
    """The Program whose main graph calls `root` once; every batched function it can reach is in `functions`.

    Variables have no types yet. Raises UnsupportedSyntaxError, UndefinedVariableError or CompileError at the line.
    """
    names: dict[LaneFunction, str] = {}
    todo: list[LaneFunction] = []

    def callee_name(callee: LaneFunction) -> str:
        if callee not in names:
            base = getattr(callee, "__name__", "function")
            same = sum(1 for name in ("main", *names.values()) if name.split("#")[0] == base)
            names[callee] = base if same == 0 else f"{base}#{same + 1}"
            todo.append(callee)
        return names[callee]

    root_name = callee_name(root)
    functions = []
    while todo:
        callee = todo.pop(0)
        functions.append(_FunctionBuilder(names[callee], read_function(callee.python_function), callee_name).build())
    parameters = functions[0].vars_in
    inputs = tuple("main." + p.split(".", 1)[1] for p in parameters)
    call = FunctionCallOp(("main.result",), root_name, inputs, functions[0].source)
    main = ControlFlowGraph((Block("main.entry", (call,), IndirectGotoOp()),))
    program = Program(main, tuple(functions), inputs, ("main.result",))
    return without_dead_functions(simplify(program))


def without_dead_functions(program: Program) -> Program:
    """The program without functions that only unreachable code called."""
    reached = call_graph(program)["main"]
    return program.replace(functions=tuple(f for f in program.functions if f.name in reached))
