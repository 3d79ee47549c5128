"""What a gradient costs beside everything else, as far as it decides how chains are divided."""

from __future__ import annotations

from batchnuts.autobatch.compiler.ir import PrimOp, Program
from batchnuts.autobatch.compiler.schedule import costly_blocks
from batchnuts.autobatch.runtime.backend import Backend
from batchnuts.mcmc.settings import ExecutionSettings

COSTLY_WORK = 400_000
"""Multiplications and elements of one chain's gradient above which its matrices want to be wide (decisions/0009)."""


def is_compiled(execution: ExecutionSettings) -> bool:
    """Whether XLA compiles the whole machine."""
    return (execution.executor, execution.backend, execution.mode) == ("virtual_machine", "tensorflow", "xla")


def is_costly(program: Program, backend: Backend) -> bool:
    """Whether the primitives declared costly do so much that wide chunks pay.

    Counted in their graph, so it depends on nothing but the model.
    """
    total = 0.0
    for label in costly_blocks(program):
        for op in program.graph.block(label).ops:
            if isinstance(op, PrimOp) and op.function.costly:
                work = backend.work(op.function, tuple(program.var_defs[v] for v in op.vars_in))
                total += work.products + work.elements if work is not None else 0.0
    return total > COSTLY_WORK
