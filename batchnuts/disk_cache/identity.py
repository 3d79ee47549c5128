"""What machine code depends on beside the program: the processor, and the libraries that made it."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import batchnuts

MOST_CONSTANT_BYTES = 1 << 26
"""The most bytes of constants of a program that is kept. They are part of what its key is made of, and of what is
stored."""

_ENDS = 1 << 16
"""Bytes read at both ends of a library: the build's own number is in the first ones, its tables in the last."""

_OF_PROCESSOR = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
)  # fmt: skip
"""Lines of /proc/cpuinfo, on x86 and on ARM."""

_VARIABLES = ("XLA_FLAGS", "NPROC", "PJRT_NPROC", "LIBTPU_INIT_ARGS")
"""Environment variables that a compiler of XLA's reads."""


def digest_of(*parts: str | bytes) -> str:
    """One key for all parts, in this order: 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def surroundings() -> str:
    """The processor, its number of cores for this process, and the compiler's environment variables."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    variables = [f"{name}={os.environ.get(name)}" for name in _VARIABLES]
    return "\n".join([_processor(), f"cores: {cores}", *variables])


@functools.cache
def _processor() -> str:
    """The processor's model and features. Where the system does not list them, this one machine."""
    lines = [platform.system(), platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first, _, _ = file.read().partition("\n\n")
        lines += [line for line in first.splitlines() if line.partition(":")[0].strip() in _OF_PROCESSOR]
    except OSError:
        pass
    if len(lines) == 2:
        lines += [platform.node(), platform.processor(), platform.version()]
    return "\n".join(lines)


@functools.cache
def binaries(folder: str) -> str:
    """The libraries of machine code in a package's folder, by name, size, time and the bytes at their ends."""
    return digest_of(*(part for path in _libraries(Path(folder)) for part in _identity_of(path)))


def _libraries(folder: Path) -> Iterable[Path]:
    return sorted(
        path for path in folder.iterdir() if ".so" in path.suffixes or path.suffix in (".pyd", ".dll", ".dylib")
    )


def _identity_of(path: Path) -> tuple[str, bytes, bytes]:
    status = path.stat()
    with path.open("rb") as file:
        first = file.read(_ENDS)
        file.seek(max(0, status.st_size - _ENDS))
        last = file.read(_ENDS)
    return f"{path.name} {status.st_size} {status.st_mtime_ns}", first, last


def sources(folder: str, since: float) -> str | None:
    """The Python files beneath a package's folder, by place and content, if they are those that this process has read.

    since: when it began to read them, as `time.time()`. None if a file has changed since then, or if there are none.
    """
    tree = os.walk(folder)  # pathlib takes four times as long
    files = sorted(os.path.join(place, name) for place, _, names in tree for name in names if name.endswith(".py"))
    for path in files:
        status = os.stat(path)
        if max(status.st_mtime, status.st_ctime) >= since:
            return None
    return _contents(folder, tuple(files)) if files else None


def own_sources() -> str | None:
    """The Python files of this package; None where they may not be what this process runs."""
    return sources(str(Path(batchnuts.__file__).parent), batchnuts.BEGAN)


def is_release(version: str, file: str | None) -> bool:
    """Whether an installed package is a release, identified by its version alone. file: of its `__init__`."""
    return "dev" not in version and "-packages" in str(file)


@functools.cache
def _contents(folder: str, files: tuple[str, ...]) -> str:
    return digest_of(*(part for path in files for part in (os.path.relpath(path, folder), Path(path).read_bytes())))
