"""A function inside a batched one, compiled as a function of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from batchnuts.autobatch.frontend.source import FunctionSource
from batchnuts.autobatch.language.functions import LaneFunction


class InnerFunction(LaneFunction):
    """A `def` or lambda inside a batched function; equal to itself when the program is read again.

    identity: the enclosing function, its name and place. settle: gives its source and the variables of the enclosing
    function that it reads, as known at the first call.
    """

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        settle: Callable[[], tuple[FunctionSource, tuple[str, ...]]],
        identity: tuple[Any, ...],
    ) -> None:
        self.__name__ = name
        self.identity = identity
        self._signature = signature
        self._settle = settle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InnerFunction) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def home(self) -> Any:
        """The function around it."""
        return self.identity[0]

    @functools.cached_property
    def _settled(self) -> tuple[FunctionSource, tuple[str, ...]]:
        return self._settle()

    @property
    def captured(self) -> tuple[str, ...]:
        """The variables of the function around it that it reads; each call passes them on."""
        return self._settled[1]

    @property
    @override
    def signature(self) -> inspect.Signature:
        return self._signature

    @property
    def source(self) -> FunctionSource:
        """Its syntax tree and what its names mean."""
        return self._settled[0]
