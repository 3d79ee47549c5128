"""Primitives that an array library computes, for lanes that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from batchnuts.autobatch.backends.backend import Backend, Identity
from batchnuts.autobatch.ir.program import PrimOp, TensorType
from batchnuts.autobatch.language.shared import bound
from batchnuts.autobatch.native.rounds import make_loop
from batchnuts.autobatch.runtime.regions import one_lane


class Foreign:
    """One primitive at its place in a program, by a backend. types: of the program's variables.

    in_loops: whether rounds may be made without Python.
    """

    def __init__(
        self,
        op: PrimOp,
        types: Mapping[str, TensorType],
        backend: Backend,
        lanes: int,
        identity: Identity | None = None,
        in_loops: bool = True,
    ) -> None:
        self.op = op
        self.costly = op.function.costly
        self.types = types
        self.backend = backend
        self.lanes = lanes
        self.shared = tuple(array.name for array in op.function.shared)
        outputs = tuple(types[v] for v in op.vars_out)
        inputs = tuple(types[v] for v in op.vars_in)
        function: Callable[..., Any]
        if op.function.batched:
            function = backend.over_lanes(op.function, outputs)
        else:
            run = one_lane((op,), op.vars_in, op.vars_out, types)
            if inputs:
                function = backend.vectorize(run, inputs, outputs)
            else:
                function = backend.vectorize(lambda _: run(), (TensorType("bool"),), outputs)
        self.all_at_once = backend.mode != "eager"
        """Whether all lanes of a machine are computed, so that a compiled function has one shape."""
        function = self._with_shared(function)
        self._function = backend.compile(function) if self.all_at_once else function
        self.loop = make_loop(function, op, types, lanes, backend, identity) if in_loops else None
        """Rounds of the machine that are served without Python (rounds.py)."""

    def _with_shared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.shared:
            return function

        def run(*arrays: Any) -> Any:
            rows, shared = arrays[: -len(self.shared)], arrays[-len(self.shared) :]
            with bound(self.shared, shared):
                return function(*rows)

        return run

    def __call__(
        self, lanes: np.ndarray, read: Callable[[str], np.ndarray], shared: Callable[[str], Any]
    ) -> dict[str, np.ndarray]:
        """The results for lanes [k] by variable, [k, ...]; read: a variable of all lanes [lanes, ...]."""
        backend = self.backend

        def given(variable: str) -> Any:
            array = read(variable)
            rows = array.copy() if self.all_at_once else array[lanes]
            return backend.asarray(rows, self.types[variable].dtype)

        inputs = [given(v) for v in self.op.vars_in]
        if not inputs:
            count = self.lanes if self.all_at_once else len(lanes)
            inputs = [backend.asarray(np.ones(count, bool), "bool")]
        results = self._function(*inputs, *map(shared, self.shared))
        chosen = lanes if self.all_at_once else slice(None)
        return {v: backend.to_numpy(array)[chosen] for v, array in zip(self.op.vars_out, results, strict=True)}
