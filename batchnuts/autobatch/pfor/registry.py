"""Converters by op type.

A converter gives the outputs of one op for all rows, given the values of its inputs (`site.Site`). It is called where
some input has rows; with `always`, also where none has. What it may raise: NoRule (run this op row by row), Refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from batchnuts.autobatch.pfor.errors import LEFT_OUT
from batchnuts.autobatch.pfor.site import Site
from batchnuts.autobatch.pfor.values import Value

Convert = Callable[[Site], list[Value]]


@dataclass(frozen=True)
class Converter:
    """How one type of op is run for all rows at once."""

    op: str
    family: str
    """The module of `pfor.converters` that has it."""
    convert: Convert
    varying: str
    """Which inputs may have rows: 'any', or their names in op_def, with spaces between."""
    xla: bool
    """Whether XLA has the op."""
    always: bool
    """Whether it converts the op also where no input has rows, as of an op that calls functions or has effects."""


REGISTRY: dict[str, Converter] = {}


def converts(
    ops: str | Iterable[str], *, varying: str = "any", no_xla: str = "", always: bool = False
) -> Callable[[Convert], Convert]:
    """Register a converter of some op types, given as words or one by one; `no_xla` names those that XLA lacks."""
    names = ops.split() if isinstance(ops, str) else list(ops)
    without = no_xla.split()
    if set(without) - set(names):
        raise ValueError(f"no_xla names ops that are not registered here: {sorted(set(without) - set(names))}")

    def register(convert: Convert) -> Convert:
        family = convert.__module__.rsplit(".", 1)[-1]
        for name in names:
            if name in REGISTRY:
                raise ValueError(f"op {name} has a converter already, in {REGISTRY[name].family}")
            REGISTRY[name] = Converter(name, family, convert, varying, name not in without, always)
        return convert

    return register


LENGTHS: dict[str, Convert] = {}
"""Converters of ops that can handle rows of different lengths (`values.Padded`), tried before the others."""


def on_lengths(ops: str) -> Callable[[Convert], Convert]:
    """Register a converter that is called where an input has rows of different lengths, or their shapes.

    NoRule leaves it to the ordinary converter, which gets no value of different lengths: the op is then refused.
    """

    def register(convert: Convert) -> Convert:
        for name in ops.split():
            if name in LENGTHS:
                raise ValueError(f"op {name} has a converter for different lengths already")
            LENGTHS[name] = convert
        return convert

    return register


def table() -> str:
    """All converters as a Markdown table: op, which inputs may vary, XLA."""

    def xla(entry: Converter) -> str:
        return "left out" if entry.op in LEFT_OUT else "yes" if entry.xla else "no"

    lines = ["| op | family | inputs that may vary | XLA |", "|---|---|---|---|"]
    for name in sorted(REGISTRY):
        entry = REGISTRY[name]
        lines.append(f"| {name} | {entry.family} | {entry.varying} | {xla(entry)} |")
    return "\n".join(lines) + "\n"
