"""Programs that XLA compiled for TensorFlow, kept on disk from one process to the next (batchnuts/disk_cache).

TensorFlow itself stores programs in a folder, and reads it without a check that a file is whole: a damaged one is an
error or worse, and names of files have counters of the process in them. So it gets a folder of this process alone
(devices.prepare_disk_cache). A program's file is put there just before it is compiled, if it is in the disk cache,
where it was checked; and a file that TensorFlow has written is taken into the cache. The key is the program's graph, in
which functions are numbered in the order of their use, and whatever XLA's result depends on beside it. TensorFlow loads
a file only if it has translated the graph to what the file was compiled from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from batchnuts.autobatch.backends.tensorflow.environment import PROCESS
from batchnuts.autobatch.language.libraries.tensorflow_graphs import number_functions, rename_functions
from batchnuts.autobatch.language.libraries.tensorflow_identity import compiler
from batchnuts.disk_cache.entries import Entries
from batchnuts.disk_cache.folder import current
from batchnuts.disk_cache.identity import MOST_CONSTANT_BYTES, digest_of

Result = TypeVar("Result")


class KeptProgram:
    """The program of one graph: which file TensorFlow may load it from.

    graph_def: calls one function, which has the program's mark for a name. names: the new name of each node that was
    renamed, by the old one.
    """

    def __init__(
        self, key: str, graph_def: Any, entries: Entries, folder: Path, names: dict[str, str] | None = None
    ) -> None:
        self.key = key
        self.mark = _mark(key)
        """Name of the function that is compiled; it is in the file that TensorFlow writes of it."""
        self.graph = tf.Graph()
        """The graph to run in place of the one that was given."""
        with self.graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        self.names = names or {}
        self._entries = entries
        self._folder = folder

    @classmethod
    def of_graph(cls, graph_def: Any, entries: Entries, folder: Path) -> KeptProgram:
        """Make it from a graph that calls one function; `graph_def` is changed in place."""
        names = number_functions(graph_def)
        key = digest_of(
            "tensorflow", graph_def.SerializeToString(deterministic=True), compiler(), settings_of_process()
        )
        rename_functions(graph_def, dict.fromkeys(_called(graph_def.node), _mark(key)))
        return cls(key, graph_def, entries, folder, names)

    def first_run(self, run: Callable[[], Result]) -> Result:
        """Call `run`, which compiles the program or has it loaded, and give its result. It may be called twice."""
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
                    if self.mark.encode() in data:
                        _seen.add(path.name)
                        self._entries.put(self.key, path.name.encode() + b"\n" + data)
                        return


_seen: set[str] = set()
"""Names of files that came from the disk cache, or were taken into it."""


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
        return KeptProgram.of_graph(graph_def, entries, Path(PROCESS.programs.name))
    except (ValueError, TypeError, OSError, tf.errors.OpError):  # a graph that cannot be read in again
        return None


def known_program(key: str, graph: bytes) -> KeptProgram | None:
    """The program that had this key and this graph; None where nothing is kept. Raises for what is no graph."""
    entries = current()
    if entries is None or PROCESS.programs is None:
        return None
    return KeptProgram(key, graph_pb2.GraphDef.FromString(graph), entries, Path(PROCESS.programs.name))


def _mark(key: str) -> str:
    return f"kept_{key[:24]}"


def _called(nodes: Sequence[Any]) -> set[str]:
    """The functions that nodes call."""
    return {node.attr["f"].func.name for node in nodes if "f" in node.attr and node.attr["f"].HasField("func")}


def settings_of_process() -> str:
    """What the result of XLA depends on that TensorFlow does not read from the environment."""
    return str(tf.config.threading.get_intra_op_parallelism_threads())
