"""What a dispatch of each block costs, estimated without running it: what a schedule is made from.

    cost = DISPATCH + LANES (PRODUCT products + ELEMENT elements)

in microseconds on one core. The factors were fitted to runs of the sampler, compiled by XLA for the processor, under
seven schedules (docs/decisions/0019-gates-of-dear-blocks.md); what is moved to and from stacks then costs nothing that
could be told from the rest. On other hardware, and on backends where each operation costs more, only their ratios
count, and these roughly.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchnuts.autobatch.compiler.ir import Block, PrimOp, Program
from batchnuts.autobatch.compiler.sweeps import LANES
from batchnuts.autobatch.runtime.backend import Backend, Work

DISPATCH = 1.7
"""Microseconds that a block costs however little it does."""
PRODUCT = 1e-5
"""Microseconds of a multiplication within a product of matrices."""
ELEMENT = 1.1e-4
"""Microseconds of an element that an operation computes."""


def block_costs(program: Program, backend: Backend) -> dict[str, float]:
    """By label; see above. Empty where the backend cannot tell what primitives do."""
    return costs_of(block_work(program, backend))


def block_work(program: Program, backend: Backend) -> dict[str, Work]:
    """What the primitives of each block do for one lane, by label. Empty where the backend cannot tell."""
    found: dict[str, Work] = {}
    for block in program.graph.blocks:
        work = _work(program, block, backend)
        if work is None:
            return {}
        found[block.label] = work
    return found


def costs_of(work: Mapping[str, Work]) -> dict[str, float]:
    """By label; see above."""
    return {label: DISPATCH + LANES * (PRODUCT * w.products + ELEMENT * w.elements) for label, w in work.items()}


def _work(program: Program, block: Block, backend: Backend) -> Work | None:
    total = Work()
    for op in block.ops:
        if isinstance(op, PrimOp):
            found = backend.work(op.function, tuple(program.var_defs[v] for v in op.vars_in))
            if found is None:
                return None
            total += found
    return total
