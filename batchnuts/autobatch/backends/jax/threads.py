"""Threads of JAX that each drive a machine.

By itself JAX hands a program for the processor to a thread of its own, which runs one after another. Asked to run it in
the thread that calls, it runs as many at once as there are threads.
"""

from __future__ import annotations

import importlib.util
import os
import sys

_IN_CALLERS_THREAD = "JAX_CPU_ENABLE_ASYNC_DISPATCH"
"""Environment variable that JAX reads when it is imported; a setting of the same name holds until the first array."""


def use_own_threads(shards: int) -> bool:
    """Have JAX run programs in the threads that call them; returns whether there are at least two.

    JAX is not imported; where it has computed before, which it does not tell, nothing changes.
    """
    if shards < 2:
        return False
    os.environ.setdefault(_IN_CALLERS_THREAD, "0")
    if "jax" in sys.modules:
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
    return True


_PLUGINS = ("jax_plugins", "libtpu")
"""Packages one of which is installed where JAX can compute on another device."""

_PLATFORMS = ("JAX_PLATFORMS", "PJRT_NAMES_AND_LIBRARY_PATHS")
"""Environment variables that name other devices."""


def has_accelerator() -> bool:
    """Whether JAX computes on another device than the processor. JAX is imported only where that is possible."""
    asked = any(os.environ.get(name, "cpu") != "cpu" for name in _PLATFORMS)
    if "jax" not in sys.modules and not asked and not any(map(importlib.util.find_spec, _PLUGINS)):
        return False
    import jax

    return bool(jax.default_backend() != "cpu")


def prepare_disk_cache() -> None:
    """Do nothing: JAX needs no preparation."""
