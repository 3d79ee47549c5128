"""Batched functions inside a user's own traced program: under `jax.jit`, `vmap` and `scan`, or in a `tf.function`.

There a function's arguments have no values yet, so its machine becomes a part of the user's program: a loop over
sweeps, with stacks of a depth that is given beforehand. Faults of lanes are numbers in the result, since a compiled
program raises no errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from batchnuts.autobatch.api import BatchedFunction
from batchnuts.autobatch.backends.backend import Array, Backend
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.errors import CompileError, LaneInputError
from batchnuts.autobatch.ir.program import shared_arrays
from batchnuts.autobatch.language.arrays import tensor_library, tensor_library_of
from batchnuts.autobatch.language.pytree import flatten, hashable, map_leaves, unflatten
from batchnuts.autobatch.lru_cache import LruCache
from batchnuts.autobatch.runtime.faults import Fault, number_of
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.autobatch.scheduling.schedule import Schedule

KEPT = 16
"""Machines that such a function keeps, one for each number of lanes and types."""


def jax(
    function: BatchedFunction,
    *,
    max_stack_depth: int,
    max_sweeps: int | None = None,
    check: bool = True,
    schedule: str | Schedule = "auto",
) -> InsideFunction:
    """A batched function as a function of JAX arrays [lanes, ...], for use inside of JAX's transformations.

    It works under `jax.jit`, `vmap`, `jvp`, in `lax.scan` and the like, and can be exported. How many sweeps its loop
    makes depends on values, so it has a reverse-mode derivative (`grad`, `vjp`) only where these are bounded.

    max_stack_depth: frames that a lane's stacks hold; they cannot grow inside a program.
    max_sweeps: the machine goes at most that often over its blocks; a lane that has not ended then has a fault. The
        derivative makes every sweep three times, backward included, and keeps the machine's state 2 sqrt(max_sweeps)
        times. None: no bound, and no reverse-mode derivative.
    check: True: calls raise the error of the first lane that has one; that is only possible outside of a trace. False:
        calls give (result, faults), with faults int32 [lanes], 0 where all is well; `raise_faults` raises for them.
    Where the caller has 64-bit dtypes off, results of 64 bits become 32 bits wide, as all that JAX computes then.

    Raises TypeError for what is no batched function, ValueError for a depth or bound below 1. Calls raise as
    `BatchedFunction.run` does, and TypeError inside of a trace with check=True.
    """
    if max_sweeps is None:
        return InsideFunction(function, get_backend("jax", "xla"), max_stack_depth, check, schedule)
    get_backend("jax", "xla")  # where JAX is not installed, this says so
    from batchnuts.autobatch.backends.jax.reverse import BoundedJaxBackend

    backend = BoundedJaxBackend(_positive("max_sweeps", max_sweeps))
    return InsideFunction(function, backend, max_stack_depth, check, schedule, max_sweeps)


def tensorflow(
    function: BatchedFunction, *, max_stack_depth: int, check: bool = True, schedule: str | Schedule = "auto"
) -> InsideFunction:
    """A batched function as a function of tensors, for use inside of a `tf.function`, compiled by XLA or not.

    Its options are those of `jax`; it has no gradient.
    """
    return InsideFunction(function, get_backend("tensorflow", "xla"), max_stack_depth, check, schedule)


_NO_REVERSE = {
    "jax": "a batched function has no reverse-mode derivative (jax.grad, jax.vjp) here, since the number of its steps "
    "depends on values. Bound the number of sweeps, as autobatch.jax(..., max_sweeps=1000), or use forward mode "
    "(jax.jvp, jax.jacfwd).",
    "tensorflow": "a batched function has no gradient in TensorFlow, since the number of its steps depends on values. "
    "With JAX it can have one: autobatch.jax(..., max_sweeps=1000).",
}


_DERIVATIVES = {
    "forward-mode autodiff": "with max_sweeps there is a reverse-mode derivative, but no forward-mode one (jax.jvp, "
    "jax.jacfwd) except of the reverse-mode one: jax.hessian works. Create another one without max_sweeps for forward "
    "mode.",
    "closed-over value": "a batched function has a reverse-mode derivative with respect to its arguments only, and it "
    "reads a variable of the scope around it that is differentiated. Make that an argument of the batched function.",
}
"""What JAX's own messages mean here, by a part of each."""


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1; found {value!r}")
    return value


def _refuse_first_tensorflow() -> None:
    """Raise TypeError inside of a graph of TensorFlow 1, in which `==` compares tensors by identity."""
    import tensorflow as tf

    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise TypeError(
            "a batched function was called while a graph of TensorFlow 1 was built (tf.Graph().as_default(), or "
            "tf.compat.v1.disable_eager_execution). Call it in a tf.function that eager code calls."
        )


class InsideFunction:
    """A batched function that is called inside of a traced program; `jax` and `tensorflow` make it."""

    def __init__(
        self,
        function: BatchedFunction,
        backend: Backend,
        max_stack_depth: int,
        check: bool,
        schedule: str | Schedule,
        max_sweeps: int | None = None,
    ) -> None:
        if not isinstance(function, BatchedFunction):
            raise TypeError(f"{function!r} is not a batched function; decorate it with @autobatch.batch")
        self.function = function
        self.max_stack_depth = _positive("max_stack_depth", max_stack_depth)
        self.max_sweeps = max_sweeps
        self.check = check
        self.schedule = schedule
        self._backend = backend
        self._library = tensor_library(backend.name)
        self._programs: LruCache[Callable[..., tuple[Array, ...]]] = LruCache(KEPT)
        self._faults: dict[int, Fault] = {}
        # not `_call`: `tf.function` copies the attributes of what it is given over its own, which has such a method
        self._untransformed = self._library.untransformed(self._as_traced)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The result for all lanes, or (result, faults); arguments by position or name, as of the batched function."""
        try:
            return self._untransformed(*arguments, **named)
        except Exception as error:
            meant = [meaning for part, meaning in _DERIVATIVES.items() if self.max_sweeps and part in str(error)]
            if not meant:
                raise
            raise TypeError(f"{self.function.__name__}: {meant[0]}") from error  # type: ignore[attr-defined]

    def _as_traced(self, *arguments: Any, **named: Any) -> Any:
        if self._backend.name == "tensorflow":
            _refuse_first_tensorflow()
        bound, inputs = self.function.bound_arguments(partial(map_leaves, self._stand_in), arguments, named)
        leaves = [
            leaf
            for argument, value in zip(bound, inputs.values)
            for leaf in flatten(map_leaves(self._on_lanes, argument, value))[0]
        ]
        *results, faults = self._program(inputs.types, inputs.lanes)(*leaves)
        if not self.check:
            results = self._without_faults(results, faults, leaves)
        result_type = self.function.compiled(inputs.types, self._backend).result_type
        result = unflatten(flatten(result_type)[1], [self._library.as_callers(r) for r in results])
        if not self.check:
            return result, faults
        if self._library.trace_of(faults) is not None:
            raise TypeError(
                f"{self.function.__name__}: errors of lanes cannot be raised inside a traced program. Create it "  # type: ignore[attr-defined]
                "with check=False, which returns (result, faults), and check the faults outside."
            )
        self.raise_faults(faults)
        return result

    def raise_faults(self, faults: Any) -> None:
        """Raise the error of the first lane whose entry in the faults of a call is not 0.

        faults: int32 [lanes], or with more axes, from `jax.vmap`: lanes are then counted along all of them. A fault
            has the same number whatever the types of the arguments, and in each process.

        Raises TypeError inside of a trace, and ValueError for a fault that no call traced in this process can have.
        """
        if self._library.trace_of(faults) is not None:
            raise TypeError(
                "raise_faults was called inside of a traced program, where faults have no values. Return them with the "
                "results, and call it outside."
            )
        numbers = np.asarray(faults).reshape(-1)
        if not numbers.any():
            return
        number = int(numbers[np.flatnonzero(numbers)[0]])
        if number not in self._faults:
            raise ValueError(
                f"{self.function.__name__}: no fault of this function has the number {number}, as far as it was traced "  # type: ignore[attr-defined]
                "in this process. Trace a call of this object first, by jax.eval_shape or .get_concrete_function for "
                "example, with arguments of the same types."
            )
        raise self._faults[number].error(numbers != 0, self.max_stack_depth, can_grow=False)

    def _program(self, types: tuple[Any, ...], lanes: int) -> Callable[..., tuple[Array, ...]]:
        """The function of the leaves of all lanes that gives the results' leaves and the faults."""
        key = (hashable(types), lanes)
        function = self._programs.get(key)
        if function is None:
            program = self.function.compiled(types, self._backend).lowered
            if shared := shared_arrays(program):
                raise CompileError(
                    f"the program reads the shared array {shared[0].name!r}, whose value would be compiled into yours "
                    "and never change there. Make it an argument of the function."
                )
            results = len(program.vars_out)
            if self._backend.name == "jax":
                from batchnuts.autobatch.backends.jax.indices import with_narrow_indices

                program = with_narrow_indices(program)
            if self.max_sweeps is not None:
                from batchnuts.autobatch.backends.jax import uses

                program = uses.with_uses(program)
            machine = VirtualMachine(program, self._backend, lanes, self.max_stack_depth, self.schedule)

            def run(*leaves: Array) -> tuple[Array, ...]:
                state = machine.run_inside(dict(zip(machine.program.vars_in, leaves)), self.max_sweeps)
                return (*machine.outputs(state), self._numbered(machine.code.faults, state["fault"]))

            function = self._backend.compile(run)
            if self.max_sweeps is None:
                function = self._library.without_reverse(function, _NO_REVERSE[self._backend.name])
            else:
                function = uses.differentiated(function, results)
            self._programs.put(key, function)
        return function

    def _numbered(self, possible_faults: Sequence[Fault], faults: Array) -> Array:
        """Faults [lanes], which a machine numbers from 1 on in its own order, by numbers that other machines share."""
        numbers = {number_of(fault): fault for fault in possible_faults}
        self._faults.update(numbers)
        table = np.array([0, *map(number_of, possible_faults)], "int32")
        return self._library.gather(self._library.tensor(table), faults, 0)

    def _without_faults(self, results: list[Array], faults: Array, leaves: Sequence[Array]) -> list[Array]:
        """The results [lanes, ...], where floats of lanes with a fault are NaN; leaves: the arguments [lanes, ...]."""
        library = self._library

        def is_float(array: Array) -> bool:
            return library.dtype_of(array).kind == "f"

        def without(result: Array) -> Array:
            if self.max_sweeps is not None:
                from batchnuts.autobatch.backends.jax.faulty_lanes import with_nan_in_reverse

                return with_nan_in_reverse(result, faults, *filter(is_float, leaves))
            if self._backend.name == "jax":
                from batchnuts.autobatch.backends.jax.faulty_lanes import with_nan

                return with_nan(result, faults)
            faulty = library.not_equal(faults, library.tensor(np.zeros((), "int32")))
            axes = len(library.static_shape(result) or ()) - 1
            nan = library.tensor(np.asarray(np.nan, library.dtype_of(result)))
            return library.where(library.reshape(faulty, (-1, *[1] * axes)), nan, result)

        return [without(result) if is_float(result) else result for result in results]

    def _stand_in(self, leaf: Any) -> Any:
        """An array of the same shape and dtype, in place of one whose values are not known."""
        if tensor_library_of(leaf) is None:
            return leaf
        shape = self._library.static_shape(leaf)
        extents = [n for n in shape or () if isinstance(n, int)]  # not None, and no symbol of `jax.export`
        if shape is None or len(extents) < len(shape):
            of_one = (
                " jax.vmap of a call for one lane can be exported for any number."
                if self._backend.name == "jax"
                else ""
            )
            raise LaneInputError(
                f"an argument has the shape {shape}; the number of lanes and all extents must be known.{of_one}"
            )
        return np.broadcast_to(np.zeros((), self._library.dtype_of(leaf)), extents)

    def _on_lanes(self, leaf: Any, stood_in: np.ndarray) -> Array:
        """An argument's leaf as [lanes, ...]."""
        if tensor_library_of(leaf) is None:
            return np.array(stood_in)
        leaf = self._library.from_caller(leaf)
        return leaf if tuple(leaf.shape) == stood_in.shape else self._library.full_like(stood_in, leaf)
