"""What the compiler makes of a function, kept on disk: a later start reads it, and runs no pass (decision 58).

Only of functions that say what they depend on (`BatchedFunction.identity`). An entry has both programs and their costs,
but not the functions that primitives call: these are made of the user's expressions and what surrounds them. On a start
that finds the machine's executable too, none of them is called. Where one is, for a machine of another size say, the
function is compiled after all, and must give the programs that were read.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from batchnuts.autobatch.backends.abstract import TRACED_LANES
from batchnuts.autobatch.backends.backend import Backend, Identity
from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.printer import same_function, show_program
from batchnuts.autobatch.ir.program import COPY, PrimOp, Program, shared_arrays
from batchnuts.autobatch.passes.record_expressions import emitted_of
from batchnuts.autobatch.pipeline import CompiledFunction
from batchnuts.autobatch.runtime.costly_work import costly_work
from batchnuts.disk_cache.folder import current

Compile = Callable[[], CompiledFunction]

_COPY = "copy"
"""What stands for the primitive of that name, of which there is one object."""

_BUILTINS = ("dict", "frozenset", "list", "tuple")
"""Classes that an entry may name beside those of this package."""


def read_or_compile(
    compile_it: Compile, name: str, types: Any, backend: Backend, identity: Identity
) -> CompiledFunction:
    """Read the compiled function from the disk; where it is not there, call `compile_it` and keep the result.

    name: of the function. types: of one lane's arguments.
    """
    entries = current()
    target = (type(backend).__name__, backend.name, backend.mode, backend.style)
    key = None
    if entries is not None:
        parts = (name, repr(types), repr(target), sys.version)
        key = identity.key("compiled function", *parts, lanes=TRACED_LANES)
    if entries is None or key is None:
        return compile_it()
    content = entries.get(key)
    if content is not None:
        try:
            return _with_emitted(replace(read(content, compile_it, lambda: entries.drop(key)), key=key), identity)
        except Exception:  # sound, but of something that this version does not read
            entries.drop(key)
    compiled = compile_it()
    compiled = replace(compiled, costly_work=costly_work(compiled.lowered, backend))
    if not identity.is_unchanged() or (entry := _as_entry(_without_emitted(compiled, identity))) is None:
        return compiled
    entries.put(key, entry)
    return replace(compiled, key=key)


def _without_emitted(compiled: CompiledFunction, identity: Identity) -> CompiledFunction:
    """Without the expression of the costly primitive, if the entry serves whatever that computes."""
    return compiled if identity.record is None else _with_expressions(compiled, lambda op, types: None)


def _with_emitted(compiled: CompiledFunction, identity: Identity) -> CompiledFunction:
    """With that expression, as this process knows it."""
    record = identity.record

    def emitted(op: PrimOp, types: Mapping[str, Any]) -> Expression | None:
        inputs, outputs = (tuple(types[v] for v in variables) for variables in (op.vars_in, op.vars_out))
        return emitted_of(replace(op.function, record=record), inputs, outputs)

    return compiled if record is None else _with_expressions(compiled, emitted)


def _with_expressions(
    compiled: CompiledFunction, emitted: Callable[[PrimOp, Mapping[str, Any]], Expression | None]
) -> CompiledFunction:
    """With other expressions of the costly primitives."""
    types, graph = compiled.lowered.var_defs, compiled.lowered.graph

    def changed(op: Any) -> Any:
        if not isinstance(op, PrimOp) or not op.function.costly:
            return op
        return replace(op, function=replace(op.function, emitted=emitted(op, types)))

    blocks = tuple(replace(block, ops=tuple(map(changed, block.ops))) for block in graph.blocks)
    return replace(compiled, lowered=replace(compiled.lowered, graph=replace(graph, blocks=blocks)))


def _as_entry(compiled: CompiledFunction) -> bytes | None:
    """The entry; None for what cannot be written, or would not be the same program when it is read."""
    if shared_arrays(compiled.lowered):  # objects of this process
        return None
    try:
        content = write(compiled)
        restored = read(content, lambda: compiled)
    except Exception:  # a structure of a user's own class
        return None
    return content if _texts(restored) == _texts(compiled) else None


def _texts(compiled: CompiledFunction) -> tuple[str, str]:
    """The texts of both programs."""
    return show_program(compiled.lowered, expressions=True), show_program(compiled.with_calls, expressions=True)


def write(compiled: CompiledFunction) -> bytes:
    """The entry. Raises what pickle raises for what it cannot write."""
    file = io.BytesIO()
    _Writer(file, _calls_of(compiled)[1]).dump(compiled)
    return file.getvalue()


def read(content: bytes, compile_it: Compile, drop: Callable[[], None] = lambda: None) -> CompiledFunction:
    """Read an entry; `compile_it` is called where one of its primitives is. Raises for what is none.

    drop: called where `compile_it` gives other programs, before BatchnutsError is raised.
    """
    compiled: CompiledFunction

    @functools.cache
    def calls() -> list[Callable[..., Any]]:
        recompiled = compile_it()
        if _texts(recompiled) != _texts(compiled):
            drop()
            raise BatchnutsError(
                "A compiled program cached on disk differs from the one that the compiler makes now. It was deleted: "
                "run again."
            )
        return _calls_of(recompiled)[0]

    compiled = _Reader(io.BytesIO(content), lambda number: _DeferredCall(calls, number)).load()
    if not isinstance(compiled, CompiledFunction):
        raise TypeError(f"found {type(compiled).__name__}")
    return compiled


def _primitives(program: Program) -> Iterator[PrimOp]:
    for function in program.all_functions():
        for block in function.graph.blocks:
            yield from (op for op in block.ops if isinstance(op, PrimOp) and op.function is not COPY)


def _calls_of(compiled: CompiledFunction) -> tuple[list[Callable[..., Any]], dict[int, int]]:
    """The functions that primitives call, in the order of their first use, and the number of each by its id.

    Those that equal ops call and that do the same have one number: programs are printed by it.
    """
    calls: list[Callable[..., Any]] = []
    numbers: dict[int, int] = {}
    alike: dict[PrimOp, list[int]] = {}
    for op in (*_primitives(compiled.lowered), *_primitives(compiled.with_calls)):
        call = op.function.call
        earlier = alike.setdefault(op, [])
        if id(call) not in numbers:
            matches = [number for number in earlier if same_function(calls[number], call)]
            numbers[id(call)] = matches[0] if matches else len(calls)
            if not matches:
                calls.append(call)
        earlier.append(numbers[id(call)])
    return calls, numbers


class _DeferredCall:
    """Stands for a primitive's function that was not read; compiles when it is called."""

    def __init__(self, calls: Callable[[], list[Callable[..., Any]]], number: int) -> None:
        self._calls = calls
        self._number = number

    def __call__(self, *values: Any) -> Any:
        return self._calls()[self._number](*values)


def frozen_mapping(entries: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    """Make a frozen mapping, which an entry has as a call of this: pickle cannot name its class."""
    return MappingProxyType(entries)


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: dict[int, int]) -> None:
        super().__init__(file, protocol=5)
        self._numbers = numbers

    def reducer_override(self, obj: Any) -> Any:
        return (frozen_mapping, (dict(obj),)) if isinstance(obj, MappingProxyType) else NotImplemented

    def persistent_id(self, obj: Any) -> str | int | None:
        return _COPY if obj is COPY else self._numbers.get(id(obj))


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, deferred: Callable[[int], _DeferredCall]) -> None:
        super().__init__(file)
        self._deferred = functools.cache(deferred)

    def persistent_load(self, pid: Any) -> Any:
        return COPY if pid == _COPY else self._deferred(pid)

    def find_class(self, module: str, name: str) -> Any:
        if "." not in name and (module.partition(".")[0] == "batchnuts" or module == "builtins"):  # no `os.system`
            resolved = super().find_class(module, name)
            if resolved is frozen_mapping or name in _BUILTINS or (isinstance(resolved, type) and module != "builtins"):
                return resolved
        raise pickle.UnpicklingError(f"{module}.{name} is not a class of batchnuts")
