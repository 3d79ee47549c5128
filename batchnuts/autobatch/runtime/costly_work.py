"""How much the costly primitives of a program compute: the schedule `auto` and the widths of chunks go by it."""

from __future__ import annotations

from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.ir.program import PrimOp, Program
from batchnuts.autobatch.scheduling.policies import costly_blocks


def costly_work(program: Program, backend: Backend) -> float | None:
    """Multiplications and elements of a lowered program's costly primitives for one lane, all of them once.

    Counted in the primitives' graphs, so it depends only on the program. None where the backend cannot count them.
    """
    total = 0.0
    for label in costly_blocks(program):
        for op in program.graph.block(label).ops:
            if isinstance(op, PrimOp) and op.function.costly:
                work = backend.work(op.function, tuple(program.var_defs[v] for v in op.vars_in))
                if work is None:
                    return None
                total += work
    return total
