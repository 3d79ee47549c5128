"""Programs that JAX compiles, or loads from the disk where they were compiled before (batchnuts/disk_cache).

A program is its StableHLO text with all constants in it and without the places of the source, so what runs is always
what was traced here; only XLA's part of the work is left out. Its key has all else that XLA's result depends on.

Where who makes a program can say what it depends on, that is a second key (`key_by_identity`), whose entry is the first
one: then the program need not even be traced; nor lowered to StableHLO, where its trace says it (`identity_of_jaxpr`).

JAX's own persistent cache is a setting of the whole process, which belongs to the user, and does not replace a damaged
entry. A program that comes from it is not kept here: XLA cannot write one that it has read itself (what it writes can
be loaded, and fails when it is called; seen with jaxlib 0.10.2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax.experimental import serialize_executable

from batchnuts.autobatch.language.libraries.jax_flags import OPTIONS, compiled_with_options, options_in_force
from batchnuts.autobatch.language.libraries.jax_identity import identity_of_jaxpr
from batchnuts.disk_cache.entries import Entries
from batchnuts.disk_cache.folder import current
from batchnuts.disk_cache.identity import (
    MOST_CONSTANT_BYTES,
    binaries,
    digest_of,
    is_release,
    own_sources,
    surroundings,
)


def compiled(traced: Any, lowered: Any, cache: Entries | None, second_key: str | None = None) -> Any:
    """The executable of a traced and lowered program (jax.stages), which was traced with `keep_unused`.

    second_key: from `key_by_identity`, if it has one.
    """
    key = None
    if cache is not None:
        with suppress(Exception):  # interfaces of JAX that change: then its programs are not kept
            key = _key(traced, lowered)
    if cache is None or key is None:
        return compiled_with_options(lowered)
    content = cache.get(key)
    if content is not None:
        try:
            program = _loaded(content, jax.tree_util.tree_structure(lowered.args_info), lowered.out_tree)
        except Exception:  # sound, but this JAX does not take it
            cache.drop(key)
        else:
            _name(key, second_key, cache)
            return program
    before = _OF_JAX.requests, _OF_JAX.hits
    program = compiled_with_options(lowered)
    if not _is_new(*before):
        return program
    try:
        content, *_ = serialize_executable.serialize(program)
    except Exception:  # some programs cannot be kept
        return program
    if cache.put(key, content):
        _name(key, second_key, cache)
    return program


class _OfJax(threading.local):
    """What this thread has asked JAX's own cache for, and what it has found there."""

    requests = 0
    hits = 0


_OF_JAX = _OfJax()


def _count(event: str, **_: Any) -> None:
    _OF_JAX.requests += event == "/jax/compilation_cache/compile_requests_use_cache"
    _OF_JAX.hits += event == "/jax/compilation_cache/cache_hits"


jax.monitoring.register_event_listener(_count)


def _is_new(requests: int, hits: int) -> bool:
    """Whether XLA has just compiled a program: this process may also have had it, from JAX's cache.

    requests, hits: of this thread before.
    """
    asks = jax.config.jax_compilation_cache_dir is not None and jax.config.jax_enable_compilation_cache
    return _OF_JAX.hits == hits and (_OF_JAX.requests > requests or not asks)


def _name(key: str, second_key: str | None, cache: Entries) -> None:
    if second_key is not None:
        cache.put(second_key, key.encode())


def found(second_key: str, cache: Entries) -> bytes | None:
    """The content cached for the program with that key from `key_by_identity`; None if there is none."""
    key = cache.get(second_key)
    return None if key is None else cache.get(key.decode())


def load(content: bytes, arguments: Any, result: Any) -> Any | None:
    """The executable that takes and gives such trees; None where this JAX does not take what was kept."""
    structure = jax.tree_util.tree_structure
    try:
        if b"hybrid_" in content:  # eigenvalues on a GPU: only lowering the program begins what its kernels call
            return None
        if b"lapack_" in content:
            _begin_lapack()
        return _loaded(content, structure(arguments), structure(result))
    except Exception:
        return None


def _loaded(content: bytes, in_tree: Any, out_tree: Any) -> Any:
    return serialize_executable.deserialize_and_load(content, in_tree, out_tree)


@cache
def _begin_lapack() -> None:
    """Have JAX look up LAPACK's functions, as it does where it lowers a call of one: a program that is loaded without
    being lowered would call address 0."""
    matrix = jax.ShapeDtypeStruct((1, 1), np.float32)
    jax.jit(jax.numpy.linalg.cholesky).trace(matrix).lower(lowering_platforms=("cpu",))


def key_by_identity(*identity: str) -> str | None:
    """The second key of a program; None where it might not say all.

    identity: all that the program depends on beside the files of this package: its text, its arguments' types, and what
    functions compute that it calls (`identity_of`).
    """
    with suppress(Exception):  # interfaces of JAX that change, packages without files
        package = own_sources()
        if package is None or len(jax.devices()) > 1 or not is_release(jax.__version__, jax.__file__):
            return None
        return digest_of("jax by identity", *identity, package, np.__version__, *_process())
    return None


def _key(traced: Any, lowered: Any) -> str | None:
    """None for a program that cannot be kept: one that calls back into this process, has effects, or may have more than
    one device; and for one with large data, which would be in its text and twice in its entry."""
    size = sum(getattr(constant, "nbytes", 0) for constant in traced.jaxpr.consts)
    if traced.jaxpr.effects or len(jax.devices()) > 1 or size > MOST_CONSTANT_BYTES:
        return None
    text = lowered.compiler_ir("stablehlo").operation.get_asm(large_elements_limit=None, enable_debug_info=False)
    if "callback" in text:
        return None
    arguments = (lowered.in_tree, lowered.out_tree, traced.jaxpr.in_avals, traced.jaxpr.out_avals)
    weak = [a.weak_type for a in (*traced.jaxpr.in_avals, *traced.jaxpr.out_avals) if hasattr(a, "weak_type")]
    return digest_of("jax, compiled here", text, *map(str, arguments), str(weak), *_process())


def _process() -> tuple[str | bytes, ...]:
    """What XLA's result depends on beside a program."""
    device = jax.devices()[0]
    return (
        jax.__version__,
        jaxlib.version.__version__,
        binaries(str(Path(jaxlib.__file__).parent)),
        f"{device.platform} {device.device_kind} {device.client.platform_version}",
        str([(name, getattr(jax.config, name, None)) for name in sorted(jax.config.values)]),
        str(sorted(OPTIONS.items())),
        options_in_force(),
        surroundings(),
    )


@dataclass(frozen=True)
class ByIdentity:
    """How a function's programs are found without tracing it."""

    key_of: Callable[[str], str | None]
    """From a text of its arguments' types to a second key; None where that is not known."""
    result: Any
    """A tree like its result."""
    is_unchanged: Callable[[], bool]
    """Whether it still is the function of that key."""


class Jitted:
    """`jax.jit` of a function of arrays, whose programs are kept where a run keeps programs.

    Inside a traced program, and for arguments that are no arrays, it is `jax.jit` itself. on_identity: called with
    the identity of what is traced (jax_identity.py). by: how programs are found without a trace.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        on_identity: Callable[[str], None] | None = None,
        by: ByIdentity | None = None,
    ) -> None:
        self._on_identity = on_identity
        self._by = by
        self._jitted = jax.jit(function)
        self._all_arguments = jax.jit(function, keep_unused=True)
        self._programs: dict[Any, Any] = {}
        self._making = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        """The result of the function."""
        cache = current()
        if cache is None and not self._programs:
            return self._jitted(*arguments)
        leaves, tree = jax.tree_util.tree_flatten(arguments)
        if any(isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves):
            return self._jitted(*arguments)
        key = (tree, tuple((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves))
        program = self._programs.get(key)
        if program is None:
            with self._making:
                program = self._programs.get(key)
                if program is None:
                    program = self._programs[key] = self._program_for(arguments, cache, repr(key))
        return program(*arguments)

    def _program_for(self, arguments: tuple[Any, ...], cache: Entries | None, types: str) -> Any:
        if cache is None or len(jax.devices()) > 1:  # it may be called for arrays of each device
            return self._jitted
        by = self._by
        second_key = None if by is None else by.key_of(types)
        if by is not None and second_key is not None and (content := found(second_key, cache)) is not None:
            program = load(content, (arguments, {}), by.result)
            if program is not None:
                return program
        traced = self._all_arguments.trace(*arguments)
        if by is not None and second_key is not None and by.is_unchanged():  # else it is not what was traced
            return compiled(traced, traced.lower(), cache, second_key)
        second_key = None
        if (identity := identity_of_jaxpr(traced.jaxpr, traced.out_info)) is not None:
            if self._on_identity is not None:
                self._on_identity(identity)
            second_key = key_by_identity("function", identity, repr(jax.tree.structure(arguments)))
        if second_key is not None and (content := found(second_key, cache)) is not None:
            program = load(content, (arguments, {}), traced.out_info)
            if program is not None:
                return program
        return compiled(traced, traced.lower(), cache, second_key)
