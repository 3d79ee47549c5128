"""Programs that XLA compiled for TensorFlow, kept on disk from one process to the next (batchnuts/store).

TensorFlow itself stores programs in a folder, and reads it without a check that a file is whole: a damaged one is an
error or worse, and names of files have counters of the process in them. So it gets a folder of this process alone
(devices.keep_programs). A program's file is put there just before it is compiled, if it is in the store, where it was
checked; and a file that TensorFlow has written is taken into the store. The key is the program's graph, in which
functions are numbered in the order of their use, and whatever XLA's result depends on beside it. TensorFlow loads a
file only if it has translated the graph to what the file was compiled from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from batchnuts.autobatch.backends.tensorflow.environment import PROCESS
from batchnuts.store.entries import Entries
from batchnuts.store.folder import current
from batchnuts.store.identity import MOST_CONSTANT_BYTES, binaries, digest_of, surroundings

Result = TypeVar("Result")


class KeptProgram:
    """The program of one graph: which file TensorFlow may load it from."""

    def __init__(self, graph_def: Any, entries: Entries, folder: Path) -> None:
        number_functions(graph_def)
        self.key = digest_of("tensorflow", graph_def.SerializeToString(deterministic=True), _compiler())
        self._mark = f"kept_{self.key[:24]}"
        """Name of the function that is compiled; it is in the file that TensorFlow writes of it."""
        _rename(graph_def, dict.fromkeys(_called(graph_def.node), self._mark))
        self.graph = tf.Graph()
        """To be run in place of the one that was given."""
        with self.graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        self._entries = entries
        self._folder = folder

    def first_run(self, run: Callable[[], Result]) -> Result:
        """What `run` gives, which compiles the program, or has it loaded. It may be called twice."""
        content = self._entries.get(self.key)
        placed = self._place(content) if content is not None else None
        try:
            result = run()
        except Exception:  # if it was not because of that file, the error comes again
            if placed is None:
                raise
            self._entries.drop(self.key)
            with suppress(OSError):
                placed.unlink()
            _seen.discard(placed.name)
            result = run()
        self._take()
        return result

    def _place(self, content: bytes) -> Path | None:
        """The file where TensorFlow will look for it."""
        name, _, data = content.partition(b"\n")
        if not re.fullmatch(rb"[\w.-]+\.pb", name):
            return None
        path = self._folder / name.decode()
        try:
            path.write_bytes(data)
        except OSError:
            with suppress(OSError):
                path.unlink()
            return None
        _seen.add(path.name)
        return path

    def _take(self) -> None:
        """Keep the file that TensorFlow has written, if it has."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.suffix == ".pb" and path.name not in _seen:
                    data = path.read_bytes()
                    if self._mark.encode() in data:
                        _seen.add(path.name)
                        self._entries.put(self.key, path.name.encode() + b"\n" + data)
                        return


_seen: set[str] = set()
"""Names of files that came from the store, or were taken into it."""


def kept_program(graph: Any) -> KeptProgram | None:
    """The program of a graph that calls one function; None where nothing is kept, or not one with so large data."""
    entries = current()
    if entries is None or PROCESS.programs is None:
        return None
    try:
        graph_def = graph.as_graph_def()
    except ValueError:  # too large for such a message
        return None
    if len(_called(graph_def.node)) != 1 or graph_def.ByteSize() > MOST_CONSTANT_BYTES:
        return None
    try:
        return KeptProgram(graph_def, entries, Path(PROCESS.programs.name))
    except (ValueError, TypeError, OSError, tf.errors.OpError):  # a graph that cannot be read in again
        return None


# ---- graphs ---------------------------------------------------------------------------------------------------------


def number_functions(graph_def: Any) -> None:
    """Rename the functions of a graph by the order in which they are used, and leave out the others.

    TensorFlow's names end with a counter of all functions that the process has made. Some arguments of loops have that
    of the loop's condition in their names.
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
    _rename(graph_def, names)
    numbers = {_number(name): _number(new) for name, new in names.items()}
    for function in graph_def.library.function:
        _rename_arguments(function, lambda found: numbers.get(found[0], found[0]))


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


def _rename(graph_def: Any, names: dict[str, str]) -> None:
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


def _called(nodes: Sequence[Any]) -> set[str]:
    """The functions that nodes call."""
    return {node.attr["f"].func.name for node in nodes if "f" in node.attr and node.attr["f"].HasField("func")}


def _compiler() -> str:
    """All else that the result of XLA depends on."""
    variables = sorted((n, v) for n, v in os.environ.items() if n.startswith("TF_") and not n.startswith("TF_CPP_"))
    return digest_of(
        tf.version.VERSION,
        tf.version.GIT_VERSION,
        tf.version.COMPILER_VERSION,
        binaries(str(Path(tf.__file__).parent)),
        surroundings(),
        str(variables),
        str((PROCESS.small_loop_bytes, len(PROCESS.devices), tf.config.threading.get_intra_op_parallelism_threads())),
    )
