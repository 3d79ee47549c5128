"""Graphs of TensorFlow's as messages, with the same names in each process.

TensorFlow's names of functions end with a counter of all functions that the process has made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def number_functions(graph_def: Any) -> dict[str, str]:
    """Rename the functions of a graph by the order in which they are used, and leave out the others.

    TensorFlow's names end with a counter of all functions that the process has made. Some arguments of loops have that
    of the loop's condition in their names; captured tensors become nodes that are named by another counter. Gives the
    new names of such nodes, by the old ones, in the graph outside of functions.
    """
    by_name = {function.signature.name: function for function in graph_def.library.function}
    names: dict[str, str] = {}

    def visit(nodes: Any) -> None:
        for node in nodes:
            for name in _names_in(node):
                if name in by_name and name not in names:
                    names[name] = f"{re.sub(r'_[0-9]+$', '', name)}_{len(names)}"
                    visit(by_name[name].node_def)

    visit(graph_def.node)
    functions = [by_name[name] for name in names]
    del graph_def.library.gradient[:]
    del graph_def.library.registered_gradients[:]
    del graph_def.library.function[:]
    graph_def.library.function.extend(functions)
    rename_functions(graph_def, names)
    numbers = {_number(name): _number(new) for name, new in names.items()}
    captured = _rename_captured(graph_def.node, [])
    for function in graph_def.library.function:
        _rename_arguments(function, lambda found: numbers.get(found[0], found[0]))
        _rename_captured(function.node_def, [function.ret, function.control_ret])
    return captured


def _names_in(node: Any) -> Iterator[str]:
    """Names that a node has where functions are named, in a fixed order."""
    yield node.op
    for attribute in sorted(node.attr):
        value = node.attr[attribute]
        match value.WhichOneof("value"):
            case "func":
                yield value.func.name
            case "list":
                yield from (function.name for function in value.list.func)
            case "s":  # the name of a gradient
                yield value.s.decode("latin1")


def rename_functions(graph_def: Any, names: dict[str, str]) -> None:
    """Give functions other names, wherever they are named."""
    for function in graph_def.library.function:
        function.signature.name = names.get(function.signature.name, function.signature.name)
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            node.attr.pop("_gradient_op_type", None)  # by a counter too, and of no use to a compiler
            node.op = names.get(node.op, node.op)
            for value in node.attr.values():
                match value.WhichOneof("value"):
                    case "func":
                        value.func.name = names.get(value.func.name, value.func.name)
                    case "list":
                        for function in value.list.func:
                            function.name = names.get(function.name, function.name)
                    case "s":
                        name = value.s.decode("latin1")
                        value.s = names.get(name, name).encode("latin1")


def _number(name: str) -> str:
    return name.rpartition("_")[2]


def _rename_arguments(function: Any, new: Callable[[re.Match[str]], str]) -> None:
    """Within a function, the names of arguments that contain a counter; `new` gives what is put in its place."""
    found = [argument.name for argument in function.signature.input_arg if _UNUSED.search(argument.name)]
    renamed = {name: _UNUSED.sub(new, name) for name in found}
    if not renamed:
        return
    for argument in function.signature.input_arg:
        argument.name = renamed.get(argument.name, argument.name)
    for node in function.node_def:
        if not renamed.keys().isdisjoint(node.input):
            node.input[:] = [renamed.get(name, name) for name in node.input]
    for result, source in function.ret.items():
        function.ret[result] = renamed.get(source, source)


_UNUSED = re.compile(r"(?<=_)[0-9]+(?=___redundant_placeholder)")
"""The counter in the name of an argument that a loop's condition does not use."""


def _rename_captured(nodes: Any, results: Sequence[Any]) -> dict[str, str]:
    """Number the nodes whose name is a number, in their order; the new names. results: maps from names to outputs."""
    found = [node.name for node in nodes if node.name.isdecimal()]
    names = {name: f"captured_{number}" for number, name in enumerate(found)}
    if not names or not {node.name for node in nodes}.isdisjoint(names.values()):
        return {}
    for node in nodes:
        node.name = names.get(node.name, node.name)
        if any(_node_of(name) in names for name in node.input):
            node.input[:] = [renamed(name, names) for name in node.input]
    for ends in results:
        for result, source in ends.items():
            ends[result] = renamed(source, names)
    return names


def _node_of(tensor: str) -> str:
    """The node in the name of one of its outputs, or of what must run after it."""
    return tensor.removeprefix("^").partition(":")[0]


def renamed(tensor: str, names: dict[str, str]) -> str:
    """The name of an output of a node that may have another one now."""
    node = _node_of(tensor)
    return tensor.replace(node, names[node], 1) if node in names else tensor
