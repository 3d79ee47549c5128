"""In which order the machine serves the blocks of a chain program, by what a gradient costs beside everything else.

While a gradient costs much (a regression on thousands of rows), control is drained until all chains wait for the
gradient: the policy `drain`. While it costs little, that wastes far more on control than it saves on gradients. Then
each sweep goes through the blocks of a trajectory in an order in which chains get on: a chain makes two leaves, and as
many merges as two leaves need on average and one more. What happens once per doubling or per transition waits until
a share of the chains is there.
"""

from __future__ import annotations

from typing import Any

from batchnuts.autobatch.compiler.ir import PrimOp, Program
from batchnuts.autobatch.compiler.schedule import Schedule, Slot, costly_blocks
from batchnuts.autobatch.runtime.abstract import TRACED_LANES
from batchnuts.mcmc.settings import ExecutionSettings

COSTLY_WORK = 400_000
"""Multiplications in one chain's gradient above which control is drained (docs/decisions/0009-chunks.md)."""

LEAF, RETURN, DOUBLE, MERGE = (f"build_subtree.{name}" for name in ("entry", "endwhile", "body", "resume"))
"""The blocks of a subtree: one leapfrog step; back to the caller; the call of a second half; the two halves joined."""

TRAJECTORY = (LEAF, RETURN, MERGE, RETURN, DOUBLE, LEAF, *(RETURN, MERGE) * 3, RETURN, DOUBLE)
"""The subtree's blocks in the order in which a sweep serves them."""

GATE = 0.2
"""Share of the chains that should wait for the end of a doubling, which costs as much as a merge, or of a transition,
which draws a momentum and writes a record."""


def choose_schedule(program: Program, execution: ExecutionSettings) -> str | Schedule:
    """The schedule that the settings ask for; `auto` is the one for cheap gradients in compiled runs that have them."""
    if execution.schedule == "auto" and is_compiled(execution) and not is_costly(program):
        return cheap_schedule(program)
    return execution.schedule


def is_compiled(execution: ExecutionSettings) -> bool:
    """Whether XLA compiles the whole machine."""
    return (execution.executor, execution.backend, execution.mode) == ("virtual_machine", "tensorflow", "xla")


def cheap_schedule(program: Program) -> Schedule:
    """The schedule of a chain program whose gradient is cheap."""
    rest = [label for label in program.graph.labels if label not in TRAJECTORY]
    gates = {"main.resume": GATE, "nuts_transition.endwhile": GATE}
    # a block that a lane comes to from a later one waits for the next sweep: so in the order of a transition
    order = ["main.resume", "nuts_transition.endwhile", "run_chain.body", "nuts_transition.body"]
    order += [label for label in rest if label not in order]
    once = [Slot(label, gates.get(label)) for label in order if label in rest]
    return Schedule([[*(Slot(label) for label in TRAJECTORY), *once]], policy="cheap")


def is_costly(program: Program) -> bool:
    """Whether the primitives declared costly are so costly that chains should wait for each other there.

    Counted in TensorFlow's graph of them, so it depends on nothing but the model.
    """
    work = [gradient_work(program, op) for b in costly_blocks(program) for op in program.graph.block(b).ops
            if isinstance(op, PrimOp) and op.function.costly]  # fmt: skip
    return sum(work) > COSTLY_WORK


def gradient_work(program: Program, op: PrimOp) -> float:
    """Multiplications in a primitive for one lane: of matrix products all, of anything else one for each element."""
    import tensorflow as tf

    lanes = TRACED_LANES if op.function.batched else 1
    types = [program.var_defs[v] for v in op.vars_in]
    specs = [tf.TensorSpec((lanes, *t.shape) if op.function.batched else t.shape, t.dtype) for t in types]
    traced = tf.function(lambda *values: op.function.call(*values), autograph=False).get_concrete_function(*specs)
    return _work(traced.graph) / lanes


def _work(graph: Any) -> float:
    """Multiplications in a graph and in the functions that it calls.

    A rough measure: a loop counts once, a branch with both arms, a call and its derivative up to three times.
    """
    total = 0.0
    for op in graph.get_operations():
        sizes = [s for t in op.outputs if (s := t.shape.num_elements()) is not None]
        total += sum(sizes) * _contracted(op)
        called = [a.func.name for a in op.node_def.attr.values() if a.HasField("func")]
        total += sum(_work(graph._get_function(name).graph) for name in called)
    return total


def _contracted(op: Any) -> int:
    """How many products each element of an op's result is summed from."""
    if op.type in ("Placeholder", "Const", "Identity"):
        return 0
    if op.type not in ("MatMul", "BatchMatMulV2", "BatchMatMul", "BatchMatMulV3"):
        return 1
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    extent = op.inputs[0].shape[-2 if transposed else -1]
    return int(extent) if extent is not None else 1
