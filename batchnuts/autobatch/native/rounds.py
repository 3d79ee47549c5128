"""Rounds of a machine within one program of XLA: a loop that computes a primitive and calls the lanes' machine code.

    while go:  results = primitive(inputs of all lanes)
               inputs, go = serve(results)          writes results to the lanes that wait for them, runs all lanes until
                                                    they wait, and reads the inputs of the next evaluation

Python, and its lock, are met once for many rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.backends.backend import Backend, Identity, MachineFunction, State
from batchnuts.autobatch.ir.program import PrimOp
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.language.shared import PREFIX
from batchnuts.autobatch.lru_cache import LruCache
from batchnuts.autobatch.native.context import Context, Loaded
from batchnuts.autobatch.native.functions import declared
from batchnuts.autobatch.native.layout import PC, WAITING, Layout
from batchnuts.autobatch.native.library_calls import Calls, calls_of
from batchnuts.autobatch.native.sizes import SizeReader
from batchnuts.autobatch.native.types import I1, I8, I32, I64, POINTER, integer
from batchnuts.autobatch.native.xla_call import MOST


def serve_name(number: int) -> str:
    """The function that serves lanes which wait at the end of that segment."""
    return f"serve_{number}"


def emit_serve(
    module: ir.Module,
    number: int,
    op: PrimOp,
    types: Mapping[str, TensorType],
    layout: Layout,
    run_lanes: ir.Function,
    halted: int,
) -> None:
    """serve(context, results of the primitive, inputs for the next evaluation and whether there is one)."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 3), serve_name(number))
    pointer, given, wanted = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    context, size = Loaded(b, pointer), SizeReader(b)
    sizes = {v: types[v].size * np.dtype(types[v].dtype).itemsize for v in (*op.vars_out, *op.vars_in)}

    def arrays(pointers: Any, count: int) -> list[Any]:
        return [b.load(b.gep(pointers, [integer(i)], source_etype=POINTER), typ=POINTER) for i in range(count)]

    sources, targets = arrays(given, len(op.vars_out)), arrays(wanted, len(op.vars_in) + 1)
    move = declared(b, "llvm.memcpy.p0.p0.i64", ir.VoidType(), POINTER, POINTER, I64, I1)
    waits_here = ir.Constant(I32, number + 1)

    def field(lane: Any, name: str) -> Any:
        block, entries = (context.row, layout.fields) if name in layout.fields else (context.buffers_of, layout.buffers)
        return b.gep(block(lane), [size(entries[name][0])], inbounds=True, source_etype=I8)

    def copy(target: Any, source: Any, count: int) -> None:
        b.call(move, [target, source, size(count), ir.Constant(I1, 0)])

    def row_of(array: Any, lane: Any, count: int) -> Any:
        return b.gep(array, [b.mul(lane, size(count))], inbounds=True, source_etype=I8)

    def scatter(lane: Any) -> None:
        waiting = field(lane, WAITING)
        with b.if_then(b.icmp_signed("==", b.load(waiting, typ=I32), waits_here)):
            for variable, source in zip(op.vars_out, sources):
                copy(field(lane, f"value:{variable}"), row_of(source, lane, sizes[variable]), sizes[variable])
            b.store(ir.Constant(I32, 0), waiting)

    context.each_lane(scatter)
    b.call(run_lanes, [pointer])
    live, here, elsewhere = counts = [b.alloca(I64) for _ in range(3)]
    for count in counts:
        b.store(integer(0), count)

    def gather(lane: Any) -> None:
        waiting, pc = b.load(field(lane, WAITING), typ=I32), b.load(field(lane, PC), typ=I32)
        is_here = b.icmp_signed("==", waiting, waits_here)
        waits = b.icmp_signed("!=", waiting, ir.Constant(I32, 0))
        is_live = b.icmp_signed("!=", pc, ir.Constant(I32, halted))
        for count, truth in ((live, is_live), (here, is_here), (elsewhere, b.and_(waits, b.not_(is_here)))):
            b.store(b.add(b.load(count, typ=I64), b.zext(truth, I64)), count)
        for variable, target in zip(op.vars_in, targets):
            copy(row_of(target, lane, sizes[variable]), field(lane, f"value:{variable}"), sizes[variable])

    context.each_lane(gather)
    left = b.sub(b.load(context.entry(Context.ROUNDS_LEFT), typ=I64), integer(1))
    b.store(left, context.entry(Context.ROUNDS_LEFT))
    evaluations = context.entry(Context.EVALUATIONS)
    b.store(b.add(b.load(evaluations, typ=I64), integer(1)), evaluations)
    leave_at = b.load(context.entry(Context.LEAVE_AT), typ=I64)
    go = b.and_(b.icmp_signed(">", left, integer(0)), b.icmp_signed(">", b.load(live, typ=I64), leave_at))
    go = b.and_(go, b.icmp_signed("==", b.load(elsewhere, typ=I64), integer(0)))
    go = b.and_(go, b.icmp_signed(">", b.load(here, typ=I64), integer(0)))
    b.store(b.zext(go, I32), targets[-1])
    b.ret_void()


class Loop:
    """Rounds until `serve` says that there is no other, as one program of XLA's that is kept on disk.

    function: the primitive over all lanes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        op: PrimOp,
        types: Mapping[str, TensorType],
        lanes: int,
        backend: Backend,
        calls: Calls,
        identity: Identity | None,
    ) -> None:
        self.inputs = tuple(f"input:{i}" for i in range(len(op.vars_in)))
        results = [TensorType(types[v].dtype, (lanes, *types[v].shape)) for v in op.vars_in]
        results.append(TensorType("int32", (1,)))

        def advance(state: State) -> tuple[State, Any]:
            shared = [array for name, array in state.items() if name.startswith(PREFIX)]

            def round_(*values: Any) -> Sequence[Any]:
                *given, go = values
                # it depends on its last result, so each round has its call
                return calls.call(state["handle"], [*function(*given, *shared), go], results)

            *last, go = calls.repeat(round_, [*(state[name] for name in self.inputs), state["go"]])
            return dict(zip(self.inputs, last, strict=True)), go[0]

        function_of_state = MachineFunction(advance, self.inputs, lambda: _text(op, types), lanes, identity)
        self._program = backend.compile_machine(function_of_state)

    def _state(
        self, handle: np.ndarray, inputs: Sequence[np.ndarray], shared: Mapping[str, Any], rounds: bool = True
    ) -> State:
        go = np.array([rounds], np.int32)
        return {"handle": handle, "go": go, **dict(zip(self.inputs, inputs, strict=True)), **shared}

    def compile(self, inputs: Sequence[np.ndarray], shared: Mapping[str, Any]) -> None:
        """Compile it for such arrays: no round is made."""
        self._program(self._state(np.zeros(2, np.uint64), inputs, shared, rounds=False))

    def trace(self, inputs: Sequence[np.ndarray], shared: Mapping[str, Any]) -> None:
        """Do the Python part of compiling."""
        self._program.trace(self._state(np.zeros(2, np.uint64), inputs, shared))

    def run(self, handle: np.ndarray, inputs: Sequence[np.ndarray], shared: Mapping[str, Any]) -> None:
        """Run it. handle: as for `Calls.call`. shared: the primitive's shared arrays, by their entries of a state."""
        self._program(self._state(handle, inputs, shared))


def make_loop(
    function: Callable[..., Any],
    op: PrimOp,
    types: Mapping[str, TensorType],
    lanes: int,
    backend: Backend,
    identity: Identity | None,
) -> Loop | None:
    """The loop of a primitive; None where the backend's library has no such call, or for no inputs or too many."""
    operands, results = len(op.vars_out) + 2, len(op.vars_in) + 1  # with the handle and `go`
    calls = calls_of(backend)
    if calls is None or not op.vars_in or max(operands, results) > MOST:
        return None
    if identity is None:
        return Loop(function, op, types, lanes, backend, calls, None)
    identity = identity.alone()  # the loop depends on the primitive, and not on the program around it
    text = identity.key(_text(op, types), lanes=lanes)
    if text is None:
        return Loop(function, op, types, lanes, backend, calls, identity)
    key = (text, lanes, backend.name)
    return _loops.get(key) or _loops.put(key, Loop(function, op, types, lanes, backend, calls, identity))


_loops: LruCache[Loop] = LruCache(16)
"""Several programs evaluate one density."""


def _text(op: PrimOp, types: Mapping[str, TensorType]) -> str:
    return f"rounds\n{op.function.text}\n{[str(types[v]) for v in (*op.vars_in, *op.vars_out)]}"
