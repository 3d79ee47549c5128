"""Rules of expressions that control flow makes, and of names: choices, `and`, `or`, chained comparisons, `:=`.

    x = a if n > 0 else b            branch on n > 0: f.x = copy f.a in one block, f.x = copy f.b in the other

Each gets the identifier of the variable that it assigns. All other expressions are pure (`translate.py`) or calls
(`calls.py`).
"""

from __future__ import annotations

import ast

from batchnuts.autobatch.errors import Source
from batchnuts.autobatch.frontend import expressions, known, walrus
from batchnuts.autobatch.frontend.builder import Builder
from batchnuts.autobatch.frontend.translate import assign, atom_name, compute, pure, purify, simplified
from batchnuts.autobatch.ir.program import COPY, AssertOp, BranchOp, GotoOp, PrimOp
from batchnuts.autobatch.parsing import load


def name(b: Builder, identifier: str, node: ast.Name) -> None:
    """A variable, which is copied, or a constant."""
    if node.id in b.locals:
        b.emit(PrimOp((b.variable(identifier),), COPY, (b.variable(node.id),), b.source.at(node)))
    else:
        pure(b, identifier, node)


def named(b: Builder, identifier: str, node: ast.NamedExpr) -> None:
    """An assignment, and a copy of what it assigned."""
    assign(b, node.target.id, node.value)
    if node.target.id != identifier:
        b.emit(PrimOp((b.variable(identifier),), COPY, (b.variable(node.target.id),), b.source.at(node)))


def choice(b: Builder, identifier: str, node: ast.IfExp) -> None:
    """`if`-`else`: a block for each."""
    yes, no, after = (b.new_label(kind) for kind in ("then", "else", "endif"))
    branch(b, node.test, yes, no)
    for label, value in ((yes, node.body), (no, node.orelse)):
        b.start(label)
        assign(b, identifier, value)
        b.end(GotoOp(after))
    b.start(after)


def and_or(b: Builder, identifier: str, node: ast.BoolOp) -> None:
    """`and`, `or`: the variable gets one operand after another, until one decides."""
    later = ast.Tuple(node.values[1:], ast.Load())
    if identifier == "return" or identifier in b.names_read(later):  # operands read its value; none reads `return`
        assign(b, identifier, atom_name(b, node))
        return
    after = b.new_label("endbool")
    for value in node.values[:-1]:
        more = b.new_label("bool")
        assign(b, identifier, value)
        test = load(identifier, value)
        branch(b, test, *((more, after) if isinstance(node.op, ast.And) else (after, more)))
        b.start(more)
    assign(b, identifier, node.values[-1])
    b.end(GotoOp(after))
    b.start(after)


def comparison(b: Builder, identifier: str, node: ast.Compare) -> None:
    """A comparison, pure unless it is a chain that must stop where a link does not hold."""
    if expressions.must_stop_early(node):
        assign(b, identifier, _links(b, node))
    else:
        pure(b, identifier, node)


def _links(b: Builder, node: ast.Compare) -> ast.BoolOp:
    """`a < b < c` as `a < b and b < c`, with b evaluated once, now."""
    middle = atom_name(b, node.comparators[0])
    first = ast.Compare(node.left, node.ops[:1], [middle])
    rest = ast.Compare(middle, node.ops[1:], node.comparators[1:])
    both = ast.BoolOp(ast.And(), [ast.copy_location(first, node), ast.copy_location(rest, node)])
    return ast.copy_location(both, node)


def branch(b: Builder, test: ast.expr, yes: str, no: str) -> None:
    """End the current block by going to `yes` where the test holds and to `no` elsewhere."""
    test = simplified(b, test)
    match test:
        case ast.BoolOp(op=op, values=values):
            for value in values[:-1]:
                more = b.new_label("bool")
                branch(b, value, *((more, no) if isinstance(op, ast.And) else (yes, more)))
                b.start(more)
            branch(b, values[-1], yes, no)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            branch(b, operand, no, yes)
        case ast.Compare() if expressions.must_stop_early(test):
            branch(b, _links(b, test), yes, no)
        case _ if known.is_static(b, test):
            b.end(GotoOp(yes if known.evaluate(b, test) else no))
        case _:
            condition = b.variable(b.temporary())
            where = b.source.at(test)
            compute(b, (condition,), expressions.truth_of(purify(b, test)), where)
            b.end(BranchOp(condition, yes, no, where))


def assert_that(b: Builder, test: ast.expr, message: str, where: Source) -> None:
    """Stop the lanes on which a pure condition does not hold."""
    held = b.variable(b.temporary())
    compute(b, (held,), test, b.source.at(test))
    b.emit(AssertOp(held, message, where))


def in_order(b: Builder, node: ast.expr) -> ast.expr:
    """The expression reading variables as they are now, where it does so before it assigns them by `:=`: a rewrite."""
    if not walrus.has_walrus(node):
        return node
    if (hidden := walrus.hidden_walrus(node)) is not None:
        form = f"`{ast.unparse(hidden)}` within a lambda or comprehension"
        b.refuse(hidden, form, "use a for loop, or assign in a statement of its own")
    if (twice := walrus.assigned_twice(node)) is not None:
        form = f"`{ast.unparse(twice)}`, where the same expression needs an earlier value of {twice.target.id!r},"
        b.refuse(twice, form, "assign in a statement of its own")
    saved: dict[str, str] = {}
    places = {place: variable for place, variable in walrus.reads_before(node).items() if variable in b.locals}
    for variable in dict.fromkeys(places.values()):
        saved[variable] = b.temporary()
        assign(b, saved[variable], load(variable, node))
    return walrus.with_names(node, {place: saved[variable] for place, variable in places.items()})
