"""Graphs of TensorFlow's as messages: what one computes, without names; and the same names in each process.

TensorFlow puts counters of the process into names: of functions, at the end or within; of captured tensors; of
arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_NAMES = frozenset(
    ["_class", "_gradient_op_type", "_user_specified_name", "backward_function_name", "forward_function_name"]
)
"""Attributes that only name something: the results of a compiler do not depend on them."""


def description(graph_def: Any) -> Iterator[str | bytes]:
    """Parts, one after another, that say all of what a graph computes.

    Nodes and arguments are known by their place, and functions by the order of their use.
    """
    return _Description(graph_def).parts()


class _Description:
    def __init__(self, graph_def: Any) -> None:
        self._nodes = graph_def.node
        self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._numbers: dict[str, int] = {}
        """The numbers of the functions that were met."""

    def parts(self) -> Iterator[str | bytes]:
        yield from self._of_nodes(self._nodes, places_of(self._nodes))
        described = 0
        while described < len(self._numbers):
            yield from self._of_function(self._functions[list(self._numbers)[described]])
            described += 1

    def _of_function(self, function: Any) -> Iterator[str | bytes]:
        signature = function.signature
        arguments = [argument.name for argument in signature.input_arg]
        places = places_of(function.node_def, arguments)
        types = [argument.type for argument in signature.input_arg], [result.type for result in signature.output_arg]
        results = [_with_place(function.ret[result.name], places) for result in signature.output_arg]
        yield repr(("function", types, results, sorted(_with_place(x, places) for x in function.control_ret.values())))
        yield from self._of_attributes(function.attr)
        for number in sorted(function.arg_attr):
            yield f"argument {number}"
            yield from self._of_attributes(function.arg_attr[number].attr)
        yield from self._of_nodes(function.node_def, places)

    def _of_nodes(self, nodes: Any, places: Mapping[str, int]) -> Iterator[str | bytes]:
        for node in nodes:
            op = self._number(node.op) if node.op in self._functions else node.op
            yield repr((op, node.device, [_with_place(name, places) for name in node.input]))
            yield from self._of_attributes(node.attr)

    def _of_attributes(self, attributes: Any) -> Iterator[str | bytes]:
        for name in sorted(attributes.keys() - _NAMES):
            yield name
            yield from self._of_value(attributes[name])

    def _of_value(self, value: Any) -> Iterator[str | bytes]:
        kind = value.WhichOneof("value")
        functions = [value.func] if kind == "func" else list(value.list.func) if kind == "list" else []
        if functions:
            for function in functions:
                yield self._number(function.name)
                yield from self._of_attributes(function.attr)
        elif kind == "s" and value.s.decode("latin1") in self._functions:
            yield self._number(value.s.decode("latin1"))
        else:
            yield value.SerializeToString(deterministic=True)

    def _number(self, name: str) -> str:
        """The number of a function; its name where it is not in the graph."""
        if name not in self._functions:
            return name
        return f"function {self._numbers.setdefault(name, len(self._numbers))}"


def places_of(nodes: Any, arguments: Sequence[str] = ()) -> dict[str, int]:
    """The number of each argument and node, by name."""
    return {name: number for number, name in enumerate((*arguments, *(node.name for node in nodes)))}


def _with_place(tensor: str, places: Mapping[str, int]) -> tuple[bool, int, str]:
    """The name of a node's output, or of a node that must run before, with a number in place of the node."""
    node = _node_of(tensor)
    return tensor.startswith("^"), places[node], tensor.removeprefix("^")[len(node) :]


def number_functions(graph_def: Any) -> dict[str, str]:
    """Rename the functions of a graph by the order in which they are used, and leave out the others.

    Nodes of captured tensors are numbered, too; of those outside of functions, the new names by the old ones are given.
    """
    by_name = {function.signature.name: function for function in graph_def.library.function}
    names: dict[str, str] = {}

    def visit(nodes: Any) -> None:
        for node in nodes:
            for name in _names_in(node):
                if name in by_name and name not in names:
                    names[name] = f"function_{len(names)}"
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
        _rename_arguments(function, lambda match: numbers.get(match[0], match[0]))
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
            for name in _NAMES:
                node.attr.pop(name, None)
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
    numbered = [argument.name for argument in function.signature.input_arg if _UNUSED.search(argument.name)]
    renamed = {name: _UNUSED.sub(new, name) for name in numbered}
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
    captured = [node.name for node in nodes if node.name.isdecimal()]
    names = {name: f"captured_{number}" for number, name in enumerate(captured)}
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
    """The node in the name of one of its outputs, or of a node that must run before."""
    return tensor.removeprefix("^").partition(":")[0]


def renamed(tensor: str, names: dict[str, str]) -> str:
    """The name of an output of a node that may have another one now."""
    node = _node_of(tensor)
    return tensor.replace(node, names[node], 1) if node in names else tensor
