"""How a user's function was compiled: its source with blocks beside each line, its variables, and the effect of each
pass."""

from __future__ import annotations

import dataclasses
import inspect
import linecache
import os
from collections.abc import Mapping, Sequence
from typing import Any

from batchnuts.autobatch.errors import Source
from batchnuts.autobatch.ir.printer import show_type
from batchnuts.autobatch.ir.program import Function, PrimOp, Program, VariableAllocation
from batchnuts.autobatch.ir.summary import Summary, summarize
from batchnuts.autobatch.language.pytree import flatten, leaf_names

_PLACES = {
    VariableAllocation.FULL: "full: a stack per lane",
    VariableAllocation.REGISTER: "register: one value per lane",
    VariableAllocation.TEMPORARY: "temporary: within one block",
    VariableAllocation.NULL: "null: never read",
}


def explain_passes(name: str, passes: Mapping[str, Program]) -> str:
    """The report on one function; `passes` holds the program after each pass, in order, by the pass's name.

    The first is the program as it was written, the last one the program that the virtual machine runs.
    """
    programs = list(passes.values())
    written, final = programs[0], programs[-1]
    typed = next(program for program in programs if program.var_defs)
    types = ", ".join(show_type(typed.var_defs[v]) for v in typed.vars_in)
    parts = [f"{name}({types}) -> {', '.join(show_type(typed.var_defs[v]) for v in typed.vars_out)}"]
    parts += [_source(function, final) for function in written.functions if function.source is not None]
    parts += ["Blocks\n" + _blocks(final), "Variables\n" + _variables(typed, final)]
    parts.append("Passes (what is left after each; changes in brackets)\n" + pass_table(passes))
    return "\n\n".join(parts) + "\n"


# ---- source -------------------------------------------------------------------------------------------------------


def _source(function: Function, final: Program) -> str:
    """The function's lines, each with the blocks of the final program that come from it."""
    source = function.source
    assert source is not None
    blocks: dict[int, dict[str, None]] = {}
    for block in final.graph.blocks:
        for op in (*block.ops, block.terminator):
            place: Source | None = getattr(op, "source", None)
            if place is not None and place.filename == source.filename:
                blocks.setdefault(place.line, {})[block.label] = None
    lines = inspect.getblock(linecache.getlines(source.filename)[source.line - 1 :])
    numbered = {source.line + i: line.rstrip() for i, line in enumerate(lines)}
    width = min(100, max(map(len, numbered.values())))
    shown = [f"{os.path.basename(source.filename)}: {function.name}"]
    for number, line in numbered.items():
        labels = ", ".join(blocks.get(number, ()))
        shown.append(f"{number:6}  {line:{width}}  {'| ' + labels if labels else ''}".rstrip())
    return "\n".join(shown)


# ---- blocks and variables --------------------------------------------------------------------------------------------


def _blocks(final: Program) -> str:
    rows: list[tuple[str, ...]] = [("block", "primitives", "copies", "pushes", "pops", "")]
    for block in final.graph.blocks:
        alone = summarize(final.replace(graph=dataclasses.replace(final.graph, blocks=(block,))))
        costly = [op.function.text for op in block.ops if isinstance(op, PrimOp) and op.function.costly]
        counts = map(str, (alone.primitives, alone.copies, alone.pushes + alone.return_addresses, alone.pops))
        rows.append((block.label, *counts, f"costly: {', '.join(costly)}" if costly else ""))
    return _table(rows)


def _variables(typed: Program, final: Program) -> str:
    """Each variable of the user's, leaf by leaf, with its type and where it lives now."""
    rows = []
    eliminated = 0
    for variable, type_ in sorted(typed.var_defs.items()):
        members, tree = flatten(type_)
        for leaf, member in zip(leaf_names(variable, tree), members):
            final_name = final.renamed.get(leaf, leaf)
            place = final.var_alloc.get(final_name)
            if place is None:
                eliminated += 1
                if any(part.startswith("_") for part in leaf.split(".")):
                    continue
            shared = f" (as {final_name})" if final_name != leaf else ""
            rows.append((leaf, str(member), "no longer there" if place is None else _PLACES[place] + shared))
    note = f"\n  {eliminated} of these, and of temporaries that are not shown, were eliminated." if eliminated else ""
    return _table([("variable", "type", "where it lives"), *rows], numbers=False) + note


# ---- passes -------------------------------------------------------------------------------------------------------


_COLUMNS = {"return_addresses": "return pushes"}


def pass_table(passes: Mapping[str, Program]) -> str:
    """One row per pass: the counts of its result, and by how much each one changed."""
    summaries = [summarize(program) for program in passes.values()]
    fields = [f.name for f in dataclasses.fields(Summary)]
    fields = [f for f in fields if any(getattr(s, f) for s in summaries)]
    rows = [("after", *(_COLUMNS.get(f, f) for f in fields))]
    previous: Summary | None = None
    for name, summary in zip(passes, summaries):
        rows.append((name, *(_change(previous, summary, field) for field in fields)))
        previous = summary
    return _table(rows)


def _change(previous: Summary | None, current: Summary, field: str) -> str:
    value, old = getattr(current, field), None if previous is None else getattr(previous, field)
    if value is None:
        return "-"
    return str(value) if old is None or old == value else f"{value} ({value - old:+d})"


def _table(rows: Sequence[tuple[Any, ...]], *, numbers: bool = True) -> str:
    """Columns under their heads; the first one left-aligned, numbers right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def cell(i: int, text: str) -> str:
        right = numbers and i > 0 and rows[0][i] != ""
        return text.rjust(widths[i]) if right else text.ljust(widths[i])

    return "\n".join("  " + "  ".join(cell(i, text) for i, text in enumerate(row)).rstrip() for row in rows)
