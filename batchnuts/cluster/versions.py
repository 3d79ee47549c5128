"""What must be the same on all machines, and what differs.

This module is sent to workers as it is, since they may have another version of this package, or none: it imports
nothing of ours.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

FLAGS = "XLA_FLAGS"
"""Environment variable on which compiled programs depend."""

OF_MACHINES = ("python", "machine", FLAGS)
"""Names that are not those of packages."""


def own_versions(names: Iterable[str]) -> dict[str, str]:
    """By name: Python, the kind of machine, flags of XLA, and these packages; OF_MACHINES may be among them."""
    versions = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        FLAGS: " ".join(sorted(os.environ.get(FLAGS, "").split())),
    }
    for package in names:
        if package in OF_MACHINES:
            continue
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def differences(own: Mapping[str, str], by_worker: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each difference of workers, by address, from this machine."""
    by_text: dict[str, list[str]] = {}
    for address, reported in sorted(by_worker.items()):
        for name, mine in own.items():
            if (value := reported.get(name, "unknown")) != mine:
                by_text.setdefault(f"{name}: {mine or 'none'} here, {value or 'none'}", []).append(address)
    return [
        f"{text} on {addresses[0]}{f' and {len(addresses) - 1} more' if len(addresses) > 1 else ''}"
        for text, addresses in by_text.items()
    ]
