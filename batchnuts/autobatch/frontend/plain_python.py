"""A batched function as plain Python of one lane, with the meaning that it has when it is compiled.

Almost always that is the user's function itself. Where it assigns elements of arrays (`x[i] = v`), or changes arrays by
`x += v`, its statements are those of `frontend.in_place`, at the lines where the user's stand.
"""

from __future__ import annotations

import ast
import dis
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from batchnuts.autobatch.errors import UnsupportedSyntaxError
from batchnuts.autobatch.frontend import expressions
from batchnuts.autobatch.frontend.in_place import ROW, WRITE, Rewriter
from batchnuts.autobatch.frontend.source import FunctionSource, read_function
from batchnuts.autobatch.language.functions import write
from batchnuts.autobatch.language.indexing import row_of_plain_array
from batchnuts.autobatch.parsing import copied, parameter_names

_HIDDEN = {WRITE: write, ROW: row_of_plain_array}
_IN_PLACE = 13
"""The argument of the first in-place operator among those of BINARY_OP."""


def plain_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or one that does the same without changing an array in place.

    Raises UnsupportedSyntaxError for an assignment to elements that the language leaves out, CompileError where such
    a function has no source.
    """
    code = function.__code__
    if not any(map(_changes_in_place, _codes(code))):
        return function
    source = read_function(function)
    tree = _Rewrite(source).function(copied(source.tree))
    tree.name, tree.decorator_list = f"@{tree.name}", []
    free = [ast.arg(name) for name in (*code.co_freevars, *_HIDDEN)]
    maker = ast.FunctionDef("maker", ast.arguments([], free, None, [], [], None, []), [tree], [])
    ast.copy_location(maker, tree)
    module = ast.fix_missing_locations(ast.Module([maker], []))
    compiled = compile(module, source.filename, "exec", dont_inherit=True)
    (rewritten,) = [inner for inner in _codes(compiled) if inner.co_name == tree.name]
    cells = {
        **dict(zip(code.co_freevars, function.__closure__ or ())),
        **{k: types.CellType(v) for k, v in _HIDDEN.items()},
    }
    result = types.FunctionType(
        rewritten.replace(co_name=code.co_name, co_qualname=code.co_qualname),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[name] for name in rewritten.co_freevars),
    )
    result.__kwdefaults__ = function.__kwdefaults__
    return result


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _changes_in_place(code: types.CodeType) -> bool:
    return any(
        instruction.opname in ("STORE_SUBSCR", "STORE_SLICE")
        or (instruction.opname == "BINARY_OP" and (instruction.arg or 0) >= _IN_PLACE)
        for instruction in dis.get_instructions(code)
    )


class _Rewrite(ast.NodeTransformer):
    """Applies the Rewriter to every assignment of a function and of those inside it."""

    def __init__(self, source: FunctionSource) -> None:
        self.source = source
        self.numbers = itertools.count(1)
        self.rewriter: Rewriter | None = None

    def function(self, tree: ast.FunctionDef) -> ast.FunctionDef:
        outer = self.rewriter
        own = {*parameter_names(tree.args), *expressions.assigned_names(tree)}

        def refuse(node: ast.AST, form: str, rewrite: str) -> NoReturn:
            text = f"{form} cannot be batched in function {tree.name!r}. Instead, {rewrite}."
            raise UnsupportedSyntaxError(text, self.source.at(node))

        self.rewriter = Rewriter(lambda: f"@{next(self.numbers)}", own.__contains__, refuse)
        tree.body = [replacement for statement in tree.body for replacement in self.statements(statement)]
        self.rewriter = outer
        return tree

    def statements(self, statement: ast.stmt) -> list[ast.stmt]:
        visited = self.visit(statement)
        return visited if isinstance(visited, list) else [visited]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self.function(node)

    def simpler(self, node: ast.stmt) -> Any:
        assert self.rewriter is not None
        return self.rewriter.simpler(node) or self.generic_visit(node)

    visit_Assign = visit_AnnAssign = visit_AugAssign = simpler
