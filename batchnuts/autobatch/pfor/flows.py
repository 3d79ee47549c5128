"""Which tensors of a graph vary between iterations, known before anything is converted: what loops need to know.

    varies(outputs) = some input of the op varies, or it draws random numbers        [forward, to a fixpoint in loops]

It may report 'varies' for a tensor that turns out invariant, which is then repeated for every row. Shapes vary only
where rows have different lengths (`values.Padded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchnuts.autobatch.pfor.graphs import called, in_order, loop_parts

SHAPES = {"Shape", "ShapeN", "Size", "Rank", "TensorListElementShape", "TensorListLength"}
DRAWS = {
    "RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "RandomGamma", "RandomPoissonV2",
    "Multinomial", "RandomShuffle",
}  # fmt: skip


def outputs_vary(graph: Any, inputs: Sequence[bool]) -> list[bool]:
    """For each output of a graph, whether it varies if these inputs do."""
    varies = {tensor.ref(): flag for tensor, flag in zip(graph.inputs, inputs)}
    arguments = {tensor.op.name for tensor in graph.inputs}
    of_lengths: set[Any] = set()
    """Tensors that may have rows of different lengths."""
    for op in in_order(graph):
        if op.name in arguments:
            continue
        varying = [varies[tensor.ref()] for tensor in op.inputs]
        from_lengths = any(tensor.ref() in of_lengths for tensor in op.inputs)
        if from_lengths or _makes_lengths(op, varying):
            of_lengths |= {tensor.ref() for tensor in op.outputs if not tensor.shape.is_fully_defined()}
        flags = [True] * len(op.outputs) if from_lengths else _op_outputs(op, varying)
        varies.update((tensor.ref(), flag) for tensor, flag in zip(op.outputs, flags))
    return [varies[tensor.ref()] for tensor in graph.outputs]


def _makes_lengths(op: Any, inputs: list[bool]) -> bool:
    """Whether the outputs of the op may have rows of different lengths."""
    if op.type == "StridedSlice":
        return inputs[2] and not op.outputs[0].shape.is_fully_defined()
    return op.type in ("Where", "Unique", "UniqueWithCounts") and inputs[0]


def _op_outputs(op: Any, inputs: list[bool]) -> list[bool]:
    if op.type in SHAPES:
        return [False] * len(op.outputs)
    if op.type in DRAWS:
        return [True] * len(op.outputs)
    if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        return outputs_vary(called(op, "f"), inputs)
    if op.type == "IdentityN":
        return inputs
    if op.type in ("While", "StatelessWhile"):
        return loop_outputs_vary(op, inputs)
    if op.type in ("If", "StatelessIf", "Case", "StatelessCase"):
        branches = [outputs_vary(graph, inputs[1:]) for graph in branches_of(op)]
        return [inputs[0] or any(flags) for flags in zip(*branches)]
    return [any(inputs)] * len(op.outputs)


def branches_of(op: Any) -> list[Any]:
    """The graphs of a conditional, the first one for index 0: of an If, that for False."""
    if op.type in ("If", "StatelessIf"):
        return [called(op, "else_branch"), called(op, "then_branch")]
    return [called(op, "branches", k) for k in range(len(op.get_attr("branches")))]


def loop_variables_vary(op: Any, inputs: Sequence[bool]) -> list[bool]:
    """For each loop variable, whether it varies among the iterations of the outer loop that are still in this one."""
    _, body = loop_parts(op)
    flags = list(inputs)
    while True:
        after = [old or new for old, new in zip(flags, outputs_vary(body, flags))]
        if after == flags:
            return flags
        flags = after


def condition_varies(op: Any, variables: Sequence[bool]) -> bool:
    """Whether iterations of the outer loop leave this one at different times."""
    condition, _ = loop_parts(op)
    return outputs_vary(condition, variables)[0]


def loop_outputs_vary(op: Any, inputs: Sequence[bool]) -> list[bool]:
    """The outputs that vary: those of variables that do; all that the loop changes, where iterations leave at
    different times."""
    flags = loop_variables_vary(op, inputs)
    if not condition_varies(op, flags):
        return flags
    unchanged = passed_through(op)
    return [flag or k not in unchanged for k, flag in enumerate(flags)]


def passed_through(op: Any) -> set[int]:
    """The loop variables that the body gives back as they were."""
    _, body = loop_parts(op)
    unchanged = set()
    for k, (argument, returned) in enumerate(zip(body.inputs, body.outputs)):
        tensor = returned
        while tensor is not argument and tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        if tensor is argument:
            unchanged.add(k)
    return unchanged
