"""Whether the passes of a loop are independent of each other, by what they read and write.

A variable from outside of the loop, which the loop writes, is
    a sum        if all that is done with it is to add:          total = total + f(i);  sums[g[i]] = sums[g[i]] + f(i)
    shared out   if each pass has elements of its own:           x[i] = f(i); y = g(x[i])
    private      if each pass writes it before it reads it:      eta = f(i); target += g(eta)
Otherwise passes depend on each other. That two passes do not write to one element is found when places are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from batchnuts.bridges.stan.mir import Expr, Stmt

TARGET = "target"


@dataclass
class Uses:
    """What is done with a variable in a loop's body, in the order of the text."""

    adds: int = 0
    """Times that something is added to it, or to an element."""
    writes: list[tuple[Expr, ...]] = field(default_factory=list)
    """Indices of elements that are written; none of the whole variable."""
    reads: list[tuple[Expr, ...]] = field(default_factory=list)
    reads_first: bool = False
    """Whether it may be read before it is written as a whole."""
    written: bool = False
    """Whether it has been written as a whole on every path so far."""
    in_loops: bool = False
    """Whether an element is written in a loop within."""


@dataclass(frozen=True)
class Loop:
    """What a loop does with variables from outside."""

    sums: frozenset[str]
    private: frozenset[str]
    written: frozenset[str]
    """All that it writes."""
    independent: bool


def analyzed(body: Sequence[Stmt], variable: str) -> Loop:
    """A loop over a variable."""
    uses: dict[str, Uses] = {}
    declared: set[str] = set()
    jumps = _walk(body, uses, declared, definite=True)
    outside = {name: use for name, use in uses.items() if name not in declared and name != variable}
    written = {name: use for name, use in outside.items() if use.adds or use.writes}
    sums = {name for name, use in written.items() if use.adds and not use.writes and not use.reads}
    whole = {name for name, use in written.items() if () in use.writes}
    private = {name for name in whole if not use_reads_first(written[name]) and not written[name].adds}
    shared_out = {
        name
        for name, use in written.items()
        if name not in sums and name not in whole and not use.adds and _is_shared_out(use, variable)
    }
    known = sums | private | shared_out
    return Loop(frozenset(sums), frozenset(private), frozenset(written), not jumps and known == written.keys())


def use_reads_first(use: Uses) -> bool:
    """Whether a pass may read what another one has written."""
    return use.reads_first or not use.written


def _is_shared_out(use: Uses, variable: str) -> bool:
    """Whether one axis has the same index in all writes and reads, by which passes have different elements.

    One write alone may be anywhere: that passes have different places is seen when these are known.
    """
    if not use.reads and len(use.writes) == 1 and not use.in_loops:
        return True
    first = use.writes[0]
    for axis, index in enumerate(first):
        if not _is_injective(index, variable):
            continue
        if all(len(other) > axis and other[axis] == index for other in (*use.writes, *use.reads)):
            return True
    return False


def _is_injective(index: Expr, variable: str) -> bool:
    """Whether it is the loop's variable, or that plus or minus a number."""
    if index.name != "IndexSingle":
        return False
    (place,) = index.arguments
    if place.kind == "FunApp" and place.name in ("Plus__", "Minus__"):
        left, right = place.arguments
        if right.kind == "LitInt":
            place = left
        elif left.kind == "LitInt":
            place = right
    return place.kind == "Var" and place.name == variable


def _walk(
    body: Sequence[Stmt], uses: dict[str, Uses], declared: set[str], definite: bool, in_loop: bool = False
) -> set[str]:
    """Note what statements do. Returns by which kinds of statements control leaves the body before its end.

    definite: whether they are executed in every pass. in_loop: whether they are in a loop within.
    """
    jumps: set[str] = set()
    for statement in body:
        match statement.kind:
            case "Decl":
                _read_all(_expressions(statement), uses)
                declared.add(statement.name)
            case "Assignment":
                _assign(statement, uses, definite, in_loop)
            case "TargetPE":
                _read_all([statement.value], uses)
                uses.setdefault(TARGET, Uses()).adds += 1
            case "Block" | "SList":
                jumps |= _walk(statement.body, uses, declared, definite, in_loop)
            case "For":
                _read_all(statement.arguments, uses)
                declared.add(statement.name)
                jumps |= _walk(statement.body, uses, declared, False, True) & {"Return"}
            case "IfElse":
                _read_all([statement.value], uses)
                jumps |= _branches(statement, uses, declared, definite, in_loop)
            case "While":
                _read_all([statement.value], uses)
                jumps |= _walk(statement.body, uses, declared, False, True) & {"Return"}
            case "Return" | "Break" | "Continue" as kind:
                return {*jumps, kind}
            case _:
                _read_all(statement.arguments, uses)
    return jumps


def _branches(statement: Stmt, uses: dict[str, Uses], declared: set[str], definite: bool, in_loop: bool) -> set[str]:
    """Of what both branches write as a whole, the statement does."""
    before = {name for name, use in uses.items() if use.written}
    wrote: list[set[str]] = []
    jumps: set[str] = set()
    for branch in statement.body:
        jumps |= _walk([branch], uses, declared, definite, in_loop)
        wrote.append({name for name, use in uses.items() if use.written} - before)
        for name in wrote[-1]:
            uses[name].written = False
    if len(wrote) == 2:
        for name in wrote[0] & wrote[1]:
            uses[name].written = definite
    return jumps


def _assign(statement: Stmt, uses: dict[str, Uses], definite: bool, in_loop: bool) -> None:
    use = uses.setdefault(statement.name, Uses())
    if (term := added(statement)) is not None:
        _read_all([term[0], *(e for index in statement.indices for e in index.arguments)], uses)
        use.adds += 1
        return
    _read_all([statement.value, *(e for index in statement.indices for e in index.arguments)], uses)
    use.writes.append(statement.indices)
    use.in_loops |= in_loop
    if not statement.indices and definite:
        use.written = True


def added(statement: Stmt) -> tuple[Expr, bool] | None:
    """What a statement adds to its variable or element, and whether it is subtracted; None for other statements."""
    value = statement.value
    if value is None or value.kind != "FunApp" or value.name not in ("Plus__", "Minus__"):
        return None
    left, right = value.arguments
    if _is_itself(left, statement) and not _mentions(right, statement.name):
        return right, value.name == "Minus__"
    if value.name == "Plus__" and _is_itself(right, statement) and not _mentions(left, statement.name):
        return left, False
    return None


def _is_itself(expression: Expr, statement: Stmt) -> bool:
    if not statement.indices:
        return expression.kind == "Var" and expression.name == statement.name
    base, *indices = expression.arguments if expression.kind == "Indexed" else (expression,)
    return base.kind == "Var" and base.name == statement.name and tuple(indices) == statement.indices


def _mentions(expression: Expr, name: str) -> bool:
    return any(part.kind == "Var" and part.name == name for part in parts(expression))


def parts(expression: Expr) -> Iterator[Expr]:
    """An expression and all that it consists of."""
    yield expression
    for argument in expression.arguments:
        yield from parts(argument)


def _expressions(statement: Stmt) -> list[Expr | None]:
    return [statement.value, *statement.arguments, *statement.type.sizes]


def _read_all(expressions: Sequence[Expr | None], uses: dict[str, Uses]) -> None:
    for expression in expressions:
        if expression is not None:
            _read(expression, uses)


def _read(expression: Expr, uses: dict[str, Uses]) -> None:
    if expression.kind == "Var":
        _note_read(expression.name, (), uses)
        return
    if expression.kind == "Indexed" and expression.arguments[0].kind == "Var":
        base, *indices = expression.arguments
        _note_read(base.name, tuple(indices), uses)
        for index in indices:
            _read_all(index.arguments, uses)
        return
    if expression.kind == "FunApp" and expression.name == TARGET:
        _note_read(TARGET, (), uses)
    if expression.library == "UserDefined" and expression.name.endswith("_lp"):
        uses.setdefault(TARGET, Uses()).adds += 1
    _read_all(expression.arguments, uses)


def _note_read(name: str, indices: tuple[Expr, ...], uses: dict[str, Uses]) -> None:
    use = uses.setdefault(name, Uses())
    use.reads.append(indices)
    use.reads_first |= not use.written
