"""JAX: regions are vectorized by `jax.vmap`; programs are compiled whole by XLA, or driven from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from typing_extensions import override

from batchnuts.autobatch.backends.abstract import (
    TRACED_LANES,
    StandIns,
    stand_in,
    trace_with_literals,
    type_of_value,
    without_lanes,
)
from batchnuts.autobatch.backends.backend import (
    Array,
    Backend,
    BlockStep,
    CompiledMachine,
    Interpreted,
    LaneCounts,
    MachineFunction,
    PartFunction,
    RowFunction,
    State,
    SweepPlan,
    sweep_on_host,
)
from batchnuts.autobatch.backends.expression_work import work_of
from batchnuts.autobatch.backends.jax.machine import JitMachine
from batchnuts.autobatch.backends.jax.products import vectorized
from batchnuts.autobatch.backends.jax.work_estimate import inputs_used, primitive_work
from batchnuts.autobatch.errors import OptionError
from batchnuts.autobatch.ir.program import COPY, Primitive, TensorType
from batchnuts.autobatch.language.libraries.jax import LIBRARY, with_64_bits
from batchnuts.autobatch.language.libraries.jax_programs import ByIdentity, Jitted
from batchnuts.autobatch.language.pytree import flatten, map_leaves, unflatten
from batchnuts.autobatch.passes.infer_types import AbstractResult

MODES = ("xla", "eager")


class JaxBackend(Backend, LaneCounts):
    """The `Backend` of JAX arrays.

    xla compiles the machine's whole loop; eager drives it from Python, with one compiled function for each region.
    JAX never raises for values, so inactive lanes are computed with whatever they hold. Programs have 64-bit dtypes
    whatever `jax_enable_x64` says, which stays as it is. NumPy's arrays are constants, and stay NumPy's until JAX
    computes with them.
    """

    name = "jax"

    def __init__(self, mode: str = "xla", style: str = "masking") -> None:
        if mode not in MODES:
            raise OptionError(f"mode must be one of {', '.join(MODES)} on JAX; found {mode!r}")
        if style != "masking":
            raise ValueError(
                f"style={style!r} computes as many rows as there are active lanes, but JAX compiles for a fixed number "
                "of rows. Use style='masking', or another backend."
            )
        self.mode = mode
        self.style = style

    # ---- type inference ---------------------------------------------------------------------------------------

    @override
    @with_64_bits
    def evaluate(self, function: Primitive, arguments: tuple[Any, ...]) -> tuple[AbstractResult, ...]:
        """Trace the function once; the jaxpr gives types, what is passed on unchanged, and what is used."""
        return trace_with_literals(self._trace, function, arguments)

    def _trace(self, function: Primitive, arguments: tuple[Any, ...], literals: StandIns) -> tuple[AbstractResult, ...]:
        lanes = (TRACED_LANES,) if function.batched else ()
        types = [leaf for t in arguments for leaf in flatten(t)[0]]
        places = [i for i, t in enumerate(types) if not (t.weak and not lanes)]
        results: list[tuple[Any, list[TensorType], tuple[int | None, ...]]] = []

        def call(*tracers: Any) -> list[Any]:
            by_index = dict(zip(places, tracers))
            position = {id(tracer): i for i, tracer in by_index.items()}
            leaves = iter([by_index[i] if i in by_index else stand_in(t, literals) for i, t in enumerate(types)])
            computed = []
            for value in function.call(*[map_leaves(lambda _: next(leaves), t) for t in arguments]):
                flat, tree = flatten(value)
                leaf_types = [_type(leaf) for leaf in flat]
                leaf_types = [without_lanes(t, *lanes) for t in leaf_types] if lanes else leaf_types
                results.append((tree, leaf_types, tuple(position.get(id(leaf)) for leaf in flat)))
                computed += [leaf for leaf in flat if isinstance(leaf, jax.Array) and id(leaf) not in position]
            return computed

        specs = [jax.ShapeDtypeStruct(lanes + types[i].shape, types[i].dtype) for i in places]
        jaxpr = jax.make_jaxpr(call)(*specs).jaxpr
        used = frozenset(places[i] for i in inputs_used(jaxpr, [True] * len(jaxpr.outvars)))
        used |= {i for i in range(len(types)) if i not in places}
        return tuple(AbstractResult(unflatten(tree, leaf_types), s, used) for tree, leaf_types, s in results)

    # ---- arrays -----------------------------------------------------------------------------------------------

    @override
    @with_64_bits
    def asarray(self, value: Any, dtype: str) -> Array:
        return lax.convert_element_type(value, dtype) if isinstance(value, jax.Array) else np.array(value, dtype)

    @override
    def to_numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    @override
    def full(self, shape: Sequence[int], value: Any, dtype: str) -> Array:
        return np.full(tuple(shape), value, dtype) if value else np.zeros(tuple(shape), dtype)

    @override
    @with_64_bits
    def cast(self, array: Any, dtype: str) -> Array:
        return LIBRARY.cast(array, dtype)

    @override
    @with_64_bits
    def where(self, mask: Any, new: Any, old: Any) -> Array:
        rank = max(len(new.shape), len(old.shape))
        return LIBRARY.where(mask.reshape((mask.shape[0],) + (1,) * (rank - 1)), new, old)

    @override
    @with_64_bits
    def count(self, mask: Any) -> Array:
        return jnp.sum(mask, dtype="int64")

    @override
    @with_64_bits
    def largest(self, values: Any, mask: Any) -> Array:
        return jnp.max(jnp.where(mask, values, 0))

    @override
    def waiting(self, pc: Any, halted: int) -> Array:
        indices = np.arange(halted + 1, dtype="int32")
        is_at = lax.eq(*jnp.broadcast_arrays(pc[:, None], indices))
        return jnp.sum(is_at, axis=0, dtype="int64")

    @override
    @with_64_bits
    def take_rows(self, memory: Any, rows: Any) -> Array:
        return jnp.asarray(memory).at[rows].get(mode="promise_in_bounds")

    @override
    @with_64_bits
    def put_rows(self, memory: Any, rows: Any, values: Any) -> Array:
        return jnp.asarray(memory).at[rows].set(values, mode="promise_in_bounds", unique_indices=True)

    @override
    @with_64_bits
    def write_rows(self, buffers: Any, mask: Any, rows: Any, values: Any) -> Array:
        # by a scatter; lanes that do not write get an index outside the buffers, which drops the row
        count, size = buffers.shape[0], buffers.shape[1]
        flat = jnp.reshape(jnp.asarray(buffers), (count * size, *buffers.shape[2:]))
        lanes = np.arange(count, dtype="int32")
        inside = lanes * np.int32(size) + lax.convert_element_type(rows, "int32")
        slots = LIBRARY.where(mask, inside, np.int32(count * size) + lanes)
        return jnp.reshape(flat.at[slots].set(values, mode="drop", unique_indices=True), buffers.shape)

    @override
    @with_64_bits
    def work(self, function: Primitive, inputs: tuple[TensorType, ...]) -> float | None:
        if self.mode != "xla":  # the cost of a dispatch is that of starting its functions
            return None
        if function is COPY:
            return 0.0
        return primitive_work(function, inputs) if function.body is None else work_of(function.body)

    @override
    def rows_to_compute(self, mask: Any) -> None:
        return None  # all of them

    # ---- programs ---------------------------------------------------------------------------------------------

    @override
    def vectorize(
        self, function: Callable[..., tuple[Any, ...]], inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]
    ) -> RowFunction:
        def one_lane(*values: Any) -> tuple[Array, ...]:
            return tuple(_as_type(result, type_) for result, type_ in zip(function(*values), outputs))

        return with_64_bits(vectorized(one_lane))

    @override
    def over_lanes(self, primitive: Primitive, outputs: tuple[TensorType, ...]) -> RowFunction:
        def over_rows(*values: Any) -> tuple[Array, ...]:
            return tuple(_as_type(result, type_) for result, type_ in zip(primitive.call(*values), outputs))

        return with_64_bits(over_rows)

    @override
    def as_one_op(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # compiled in mode eager; the other one compiles more than that at once
        return with_64_bits(jax.jit(function)) if self.mode == "eager" else function

    @override
    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.mode == "eager":
            return with_64_bits(function)
        if isinstance(function, PartFunction):
            return with_64_bits(Jitted(function.run, by=_of_part(function)))
        return with_64_bits(Jitted(function))

    @override
    def compile_machine(self, function: MachineFunction) -> CompiledMachine:
        if self.mode == "eager":
            return Interpreted(with_64_bits(function))
        return JitMachine(function)

    @override
    def sweep(self, plan: SweepPlan, state: State, budget: Any, leave_at: Any) -> tuple[State, Any]:
        # A host loop in eager mode, else one `lax.while_loop`.
        # Each block sits in a loop of its own of zero or one trip that carries only what the block changes: unlike a
        # conditional, that makes XLA copy neither stacks nor buffers. What no block changes is not carried at all.
        if self.mode == "eager":
            return sweep_on_host(self, plan, state, budget, leave_at)

        def goes_on(carried: tuple[State, Any]) -> Any:
            touched, sweeps_made = carried
            return (self.count(touched["pc"] < plan.halted) > leave_at) & (sweeps_made < budget)

        def next_sweep(carried: tuple[State, Any]) -> tuple[State, Any]:
            touched, sweeps_made = carried
            return self.one_sweep(plan, state, touched, _run_if_due), sweeps_made + 1

        touched = {name: jnp.asarray(state[name]) for name in plan.touches}
        touched, sweeps_made = lax.while_loop(goes_on, next_sweep, (touched, jnp.zeros_like(budget)))
        return {**state, **touched}, sweeps_made

    def one_sweep(
        self, plan: SweepPlan, state: State, touched: State, run_if_due: Callable[[BlockStep, Any, State], State]
    ) -> State:
        """The entries `touched` of the state after the next sweep, while it is traced."""
        current = {**state, **touched}
        due_at = plan.dues(current, self)
        runs: dict[int, Any] = {}
        served: dict[int, Any] = {}
        for step in plan.steps:
            block = step.index
            due, waiting = due_at(step, current["pc"])
            runs[block] = runs.get(block, 0) + lax.convert_element_type(due, "int64")
            served[block] = served.get(block, 0) + LIBRARY.where(due, waiting, np.int64(0))
            current = run_if_due(step, due, current)
        current["sweeps"] = current["sweeps"] + 1
        for name, counts in (("executions", runs), ("active", served)):
            current[name] = current[name] + jnp.stack([jnp.asarray(counts[block]) for block in range(plan.halted)])
        return {name: current[name] for name in touched}


def _of_part(part: PartFunction) -> ByIdentity:
    """The key by which the compiled programs of a part are found."""
    identity = part.identity
    result = (dict.fromkeys(part.gives, 0), 0 if part.may_fail else None)
    return ByIdentity(lambda types: identity.key(part.text(), types, lanes=part.lanes), result, identity.is_unchanged)


def _run_if_due(step: BlockStep, due: Any, state: State) -> State:
    """The state after the step, if it is due; a loop whose trip count is zero or one."""

    def once(carried: tuple[Any, State]) -> tuple[Any, State]:
        with jax.named_scope(step.label):
            after = step.run({**state, **carried[1]})
        return jnp.asarray(False), {name: jnp.asarray(after[name]) for name in step.touches}

    touched = {name: state[name] for name in step.touches}
    _, touched = lax.while_loop(lambda carried: carried[0], once, (due, touched))
    return {**state, **touched}


def _type(leaf: Any) -> TensorType:
    return TensorType(leaf.dtype.name, tuple(leaf.shape)) if isinstance(leaf, jax.Array) else type_of_value(leaf)


def _as_type(value: Any, type_: TensorType) -> Array:
    return LIBRARY.cast(value, type_.dtype)
