"""Regions of memory that do not overlap, told to LLVM: alias scopes, where places are read when code runs.

With fixed places LLVM sees that two fields of a lane's row are apart. With places that it does not know, a loop over
several of them would begin with a comparison of each pair.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir


class Regions:
    """Those of a function by name: no byte is of two. Pointers are marked, and what is computed from them."""

    def __init__(self, module: ir.Module, names: Iterable[str]) -> None:
        domain = module.add_metadata(["regions"])
        scopes = {name: module.add_metadata([name, domain]) for name in names}
        self._own = {name: module.add_metadata([scope]) for name, scope in scopes.items()}
        self._others = {
            name: module.add_metadata([scope for other, scope in scopes.items() if other != name]) for name in scopes
        }

    def mark(self, pointer: Any, name: str) -> Any:
        """The pointer, as one into that region."""
        pointer.region = (self._own[name], self._others[name])
        return pointer


class Allocations:
    """Regions that are made one after another: each access says that it is in none of the earlier ones."""

    MOST = 100
    """Others are told nothing: each has a list of all before it."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._domain = module.add_metadata(["allocations"])
        self._scopes: list[Any] = []

    def mark(self, pointer: Any) -> Any:
        """The pointer, as one into a region of its own."""
        if len(self._scopes) < self.MOST:
            scope = self._module.add_metadata([f"allocation {len(self._scopes)}", self._domain])
            others = self._module.add_metadata(self._scopes)
            pointer.region = (self._module.add_metadata([scope]), others)
            self._scopes.append(scope)
        return pointer


def moved(pointer: Any, source: Any) -> Any:
    """The pointer, as one into the region of another, if that has one."""
    if region := getattr(source, "region", None):
        pointer.region = region
    return pointer


def accessed(instruction: Any, pointer: Any) -> Any:
    """A load or store through a pointer, with its region."""
    if region := getattr(pointer, "region", None):
        own, others = region
        instruction.set_metadata("alias.scope", own)
        instruction.set_metadata("noalias", others)
    return instruction
