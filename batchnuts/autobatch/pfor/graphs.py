"""What TensorFlow knows about functions and graphs: the only module that uses its private interfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])


def not_by_autograph(function: Function) -> Function:
    """The function, not rewritten by autograph where a user's `tf.function` calls it."""
    plain: Function = tf.autograph.experimental.do_not_convert(function)
    return plain


def called(op: Any, attribute: str, k: int | None = None) -> Any:
    """The FuncGraph of a function that the op calls (the k-th, where the attribute is a list)."""
    named = op.get_attr(attribute) if k is None else op.get_attr(attribute)[k]
    return function_graph(op.graph, named.name)


def function_graph(graph: Any, name: str) -> Any:
    """The FuncGraph of a function by its name, as known to the graph or those around it."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(name)


def with_called(ops: Iterable[Any]) -> Iterator[Any]:
    """These ops, and those of the functions that they call, have for branches and bodies, and so on."""
    seen: set[str] = set()
    todo = list(ops)
    while todo:
        op = todo.pop()
        yield op
        for definition in op.op_def.attr:
            if definition.type not in ("func", "list(func)"):
                continue
            attribute = op.get_attr(definition.name)
            for function in attribute if isinstance(attribute, list) else [attribute]:
                if function.name and function.name not in seen:
                    seen.add(function.name)
                    todo.extend(function_graph(op.graph, function.name).get_operations())


def loop_parts(op: Any) -> tuple[Any, Any]:
    """The graphs of a While: its condition and its body."""
    return called(op, "cond"), called(op, "body")


def ops_on_list(*tensors: Any) -> Iterator[Any]:
    """What makes and uses the elements of the TensorList that these tensors stand for: ops with an `element_dtype`,
    also of lists that must be like it (sums with it, and what it is in a loop or around one)."""
    todo, seen = list(tensors), set()
    while todo:
        tensor = todo.pop()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        if _has_elements(tensor.op) and tensor is tensor.op.outputs[0] and tensor.op.type != "TensorListGetItem":
            yield tensor.op
        for op in tensor.consumers():
            if _has_elements(op) and op.inputs[0] is tensor:
                yield op
                if op.outputs[0].dtype == tf.variant and op.type != "TensorListGetItem":
                    todo.append(op.outputs[0])
        for op in (tensor.op, *tensor.consumers()):
            if op.type in ("Identity", "ZerosLike", "AddN", "AddV2"):
                todo.extend((*op.inputs, *op.outputs))
            elif op.type in ("While", "StatelessWhile"):
                _, body = loop_parts(op)
                for ends in zip(op.inputs, op.outputs, body.inputs, body.outputs):
                    if any(end is tensor for end in ends):
                        todo.extend(ends)
        todo.extend(outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor)


def _has_elements(op: Any) -> bool:
    return "element_dtype" in {attribute.name for attribute in op.op_def.attr}


def gradient_of(op: Any) -> Callable[..., list[Any]] | None:
    """The gradient that `tf.custom_gradient` registered for an op: (op, *upstream) -> one by each input, or None."""
    try:
        name = op.get_attr("_gradient_op_type").decode()
    except ValueError:
        return None
    from tensorflow.python.framework import ops

    gradient: Callable[..., list[Any]] = ops.gradient_registry.lookup(name)
    return gradient


def traced_in(graph: Any, function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    """A function of such tensors, traced as if the graph had called it: tensors of the graph become its captures."""
    with graph.as_default():
        return tf.function(lambda *tensors: _with_constants(function, tensors), autograph=False).get_concrete_function(
            *specs
        )


def traced(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    """A function of such tensors, for the graph that is being built or for none; `run_functions_eagerly` or not."""
    tracing = tf.function(lambda *tensors: _with_constants(function, tensors), autograph=False)
    tracing._omit_frequent_tracing_warning = True  # every call traces a function of its own
    return tracing.get_concrete_function(*specs)


def traced_apart(function: Callable[..., Any], specs: Sequence[tf.TensorSpec], xla: bool) -> Any:
    """A function of such tensors, traced as if no graph were being built, or only one that XLA compiles."""
    from tensorflow.python.ops.control_flow_ops import XLAControlFlowContext

    def within_xla(*tensors: Any) -> Any:
        context = XLAControlFlowContext()
        context.Enter()
        try:
            return function(*tensors)
        finally:
            context.Exit()

    with tf.init_scope():  # not around the trace: it stops the recording of gradients
        apart = tf.__internal__.FuncGraph("apart")
    with apart.as_default():
        return traced(within_xla if xla else function, specs)


def _with_constants(function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
    """A call of the function, in the graph that is made for it, where known integers of graphs around are constants.

    TensorFlow would make inputs of them and lose the shapes that follow from them: of the gradient of a slice, say,
    whose begin is computed in the graph around.
    """
    graph = tf.compat.v1.get_default_graph()
    capture = graph.capture
    constants: dict[int, tuple[Any, Any]] = {}
    """By the id of a tensor: the tensor, which keeps the id valid, and the constant."""

    def capture_or_copy(tensor: Any, name: Any = None, shape: Any = None) -> Any:
        if not _is_from_around(tensor, graph):
            return capture(tensor, name=name, shape=shape)
        if id(tensor) not in constants:
            value = tf.get_static_value(tensor)
            if value is None:
                return capture(tensor, name=name, shape=shape)
            with graph.as_default(), tf.control_dependencies(None):
                constants[id(tensor)] = tensor, tf.constant(value, tensor.dtype)
        return constants[id(tensor)][1]

    graph.capture = capture_or_copy
    try:
        return function(*tensors)
    finally:
        del graph.capture


def _is_from_around(tensor: Any, graph: Any) -> bool:
    """Whether a tensor is an integer, or a few of them, of another graph."""
    if not tf.is_symbolic_tensor(tensor) or tensor.graph is graph or tensor.dtype not in (tf.int32, tf.int64):
        return False
    shape = tensor.shape
    return shape.rank in (0, 1) and shape.is_fully_defined() and shape.num_elements() <= _FEW


_FEW = 32
"""Shapes and positions have fewer entries than this."""


@dataclass(frozen=True)
class Trace:
    """The trace of a function in a graph of its own."""

    graph: Any
    inputs: list[Any]
    """The tensors that it was called with."""
    result: Any
    """What it returned."""


_INSPECTED = "inspected"
"""The name of graphs that are not run."""


def for_inspection() -> bool:
    """Whether the graph being built is one of `trace_of`, or within one."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if getattr(graph, "name", None) == _INSPECTED:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


class _MakesVariable(Exception):
    """A function that is traced makes a variable."""


def trace_of(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Trace:
    """A call of the function, for inspection: it costs a third of making a `tf.function` that can be run.

    Raises what the function raises, and what TensorFlow does where it makes another variable each time.
    """

    def notice(_: Any, **options: Any) -> Any:
        raise _MakesVariable

    graph = tf.__internal__.FuncGraph(_INSPECTED)
    try:
        with graph.as_default(), tf.variable_creator_scope(notice):
            inputs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
            return Trace(graph, inputs, function(*inputs))
    except _MakesVariable:  # perhaps one that it keeps, which `tf.function` creates outside its graph
        return _trace_of_function(function, specs)


def _trace_of_function(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Trace:
    traces: list[Trace] = []

    def call(*inputs: Any) -> None:
        traces.append(Trace(tf.compat.v1.get_default_graph(), list(inputs), function(*inputs)))

    graph = tf.function(call, autograph=False).get_concrete_function(*specs).graph
    return next(trace for trace in traces if trace.graph is graph)


def is_visible(tensor: Any) -> bool:
    """Whether an op created now may use a tensor: a number, or one of the present graph or an enclosing one."""
    if isinstance(tensor, tf.__internal__.EagerTensor):
        return True
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if tensor.graph is graph:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def in_order(graph: Any) -> list[Any]:
    """The ops of a graph, each after those it needs. They mostly are in this order already, except for loops to which a
    gradient was added: these get inputs that were created after them."""
    done: set[str] = set()
    order = []
    for op in graph.get_operations():
        todo = [op]
        while todo:
            last = todo[-1]
            before = [tensor.op for tensor in last.inputs] + list(last.control_inputs)
            missing = [needed for needed in before if needed.name not in done]
            if missing and last.name not in done:
                todo.extend(missing)
                continue
            todo.pop()
            if last.name not in done:
                done.add(last.name)
                order.append(last)
    return order


def put_in_place(tensor: Any, part: Any, begin: Any) -> Any:
    """The tensor, with a part of it, starting at these positions, replaced. For XLA only."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_dynamic_update_slice(tensor, part, begin)


def compiled_by_xla() -> bool:
    """Whether the graph being built is inside a tf.function(jit_compile=True)."""
    from tensorflow.python.ops import control_flow_util

    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
