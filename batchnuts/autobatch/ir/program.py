"""The intermediate representation: labelled basic blocks over named variables.

    program    ::= graph function*                         (the graph is the main program)
    function   ::= name "(" variable* ")" "->" variable* graph
    graph      ::= block+                                  (the first block is the entry)
    block      ::= label ":" gate? op* terminator          (gate: a share, see `Block`)
    op         ::= variable* "=" primitive variable*       PrimOp
                 | variable "=" write variable variable variable   WriteRowOp
                 | assert variable                         AssertOp
                 | variable* "=" call name variable*       FunctionCallOp   (gone after lowering)
                 | push variable | pop variable            PushOp, PopOp    (there after lowering)
    terminator ::= goto label                              GotoOp
                 | branch variable label label             BranchOp
                 | push_goto label label                   PushGotoOp       (there after lowering)
                 | return                                  IndirectGotoOp

Everything is frozen, and blocks refer to each other by label, so a pass is a pure function from Program to Program.
Variable names are unique in the whole program: `fib.n` is `n` of function `fib`.

A variable is a stack of frames whose top frame is what ops read and write. `PushOp(x)` duplicates the top frame,
`PopOp(x)` drops it: [R] section 3.1's "push x = f(y)" is `PushOp(x)` followed by `PrimOp(x, f, y)`.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from batchnuts.autobatch.errors import CompileError, Source
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.tensor_type import TensorType as TensorType
from batchnuts.autobatch.language.shared import Shared


class VariableAllocation(enum.Enum):
    """Where a variable lives in the machine ([R] section 3.2)."""

    NULL = "null"
    """Never read: not stored."""
    TEMPORARY = "temporary"
    """Lives within one block only: not part of the machine's state."""
    REGISTER = "register"
    """One frame per lane."""
    FULL = "full"
    """A stack per lane; the top frame is cached beside it."""


RETURN_ADDRESS = "@"
"""The name under which machines store return addresses, as if they were a variable."""

STORED = (VariableAllocation.REGISTER, VariableAllocation.FULL)
"""The storage of variables that live from one block to another."""


@dataclass(frozen=True)
class Primitive:
    """A traceable function of one lane's arrays, returning a tuple with one array for each output variable.

    Two primitives are equal if their texts are: `call` is not part of a program's text.

    `batched` functions take and return arrays with a leading lane axis instead. `costly` marks an expensive operation
    (a gradient): schedules run it preferably when many lanes have arrived, and the profile counts it.
    """

    text: str
    call: Callable[..., tuple[Any, ...]] = field(compare=False)
    batched: bool = False
    costly: bool = False
    speculable: bool = field(default=False, compare=False)
    """Cheap, and harmless on lanes that do not need it: a branch around it may be taken out."""
    offset: int | None = field(default=None, compare=False)
    """c if the function is x -> x + c of one integer (or float) variable and an integer literal."""
    weak: bool = field(default=False, compare=False)
    """Its results are Python's integers, although it computes them from arrays: they join dtypes as literals do."""
    parts: tuple[frozenset[str], ...] = field(default=(), compare=False)
    """For each part of the expression that could be an op of its own, the variables that it reads."""
    rearranges: bool = field(default=False, compare=False)
    """Which inputs, if any, it passes on unchanged does not depend on their values."""
    of_language: bool = field(default=False, compare=False)
    """Whether it calls functions of this package alone, and so can be evaluated with arrays that have types only."""
    by_helpers: bool = field(default=False, compare=False)
    """Whether it would be so but for users' helpers, which consist of such functions (recordable_helpers.py)."""
    written: str = field(default="", compare=False)
    """The expression in the user's source, for messages, where `text` names what the compiler added."""
    shared: tuple[Shared, ...] = field(default=(), compare=False)
    """What it reads besides its inputs: arrays without a lane axis, the same for all lanes."""
    body: Expression | None = field(default=None, compare=False, repr=False)
    """What it computes, as data; None where only `call` can say: before types are known, and where it calls functions
    that are not the language's own."""
    record: Callable[..., Expression | None] | None = field(default=None, compare=False, repr=False)
    """What gives `emitted` for the types of its inputs; asked once, when bodies are recorded."""
    emitted: Expression | None = field(default=None, compare=False, repr=False)
    """What a costly primitive computes, for engines that make instructions of it. Array libraries call the function,
    which they differentiate and fuse themselves."""

    @property
    def recordable(self) -> bool:
        """Whether it can be evaluated with arrays that have types only."""
        return self.of_language or self.by_helpers

    def with_call(self, call: Callable[..., tuple[Any, ...]]) -> Primitive:
        """The primitive with another function, which nothing but itself describes."""
        return replace(self, call=call, body=None)


COPY = Primitive("copy", lambda *values: values, of_language=True)
"""Parallel copy, from any number of variables to as many."""


@dataclass(frozen=True)
class PrimOp:
    """vars_out = function(vars_in), all inputs read before any output is written."""

    vars_out: tuple[str, ...]
    function: Primitive
    vars_in: tuple[str, ...]
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class WriteRowOp:
    """var_out = buffer with row `index` (along its first axis) replaced by `value`; in place if var_out is buffer.

    Lanes on which the index lies outside stop, as by an AssertOp of `message`, also where nothing reads var_out.
    """

    var_out: str
    buffer: str
    index: str
    value: str
    source: Source | None = field(default=None, compare=False)

    @property
    def message(self) -> str:
        """What is said of a lane whose index lies outside."""
        name = identifier(self.buffer)
        unnamed = re.fullmatch(r"_\d+|return", name)  # a temporary, as of a row of a matrix, or what is returned
        return f"wrote outside of {'an array' if unnamed else repr(name)}: the index must lie within its first axis"


def identifier(variable: str) -> str:
    """A variable's name within its function; of a name without a function, as in programs by hand, all of it."""
    function, dot, rest = variable.partition(".")
    return rest if dot else function


@dataclass(frozen=True)
class AssertOp:
    """Stop the lanes on which the scalar boolean `cond_var` does not hold; the run then raises `message` at `source`.

    What comes after it in its block may still be computed for those lanes, with results that are discarded.
    """

    cond_var: str
    message: str
    source: Source | None = field(default=None, compare=False)


_CHECK = "_check"


def check_name(number: int) -> str:
    """The identifier of the n-th check that the language makes by itself in a function."""
    return f"{_CHECK}{number}"


def is_check(variable: str) -> bool:
    """Whether a variable of the program holds such a check, by its name."""
    return variable.rpartition(".")[2].startswith(_CHECK)


@dataclass(frozen=True)
class FunctionCallOp:
    """vars_out = the return variables of `function` called with vars_in."""

    vars_out: tuple[str, ...]
    function: str
    vars_in: tuple[str, ...]
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PushOp:
    """Duplicate the top frame of `var`; `source` is the call that needs the frame, or that will."""

    var: str
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PopOp:
    """Drop the top frame of `var`."""

    var: str


Op = PrimOp | WriteRowOp | AssertOp | FunctionCallOp | PushOp | PopOp


@dataclass(frozen=True)
class GotoOp:
    """Continue at `label`."""

    label: str


@dataclass(frozen=True)
class BranchOp:
    """Continue at `true_label` on lanes where the scalar boolean `cond_var` holds, else at `false_label`."""

    cond_var: str
    true_label: str
    false_label: str
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PushGotoOp:
    """Enter a function body at `target_label`; its IndirectGotoOp comes back to `resume_label`. `source`: the call."""

    resume_label: str
    target_label: str
    source: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class IndirectGotoOp:
    """Return: continue at the label on top of the return-address stack; at its bottom the lane halts."""


Terminator = GotoOp | BranchOp | PushGotoOp | IndirectGotoOp


@dataclass(frozen=True)
class Block:
    """Straight-line ops and one terminator. `owner` is the function whose body the block belongs to.

    `gate` in [0, 1] is the share of the live lanes that should wait at the block before it runs (see `sync`); it
    changes when lanes run the block, never what they compute.
    """

    label: str
    ops: tuple[Op, ...]
    terminator: Terminator
    owner: str = "main"
    gate: float = 0.0


@dataclass(frozen=True)
class ControlFlowGraph:
    """Blocks in order; the first is the entry, and the order is the priority of the `earliest` schedule."""

    blocks: tuple[Block, ...]

    @property
    def entry(self) -> str:
        """Label of the block where execution starts."""
        return self.blocks[0].label

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of all blocks, in order."""
        return tuple(block.label for block in self.blocks)

    def block(self, label: str) -> Block:
        """The block of that label; KeyError if there is none."""
        for block in self.blocks:
            if block.label == label:
                return block
        raise KeyError(label)


def _frozen_mapping() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Function:
    """A callable body. `vars_in` are the formal parameters, `vars_out` the return variables."""

    name: str
    vars_in: tuple[str, ...]
    vars_out: tuple[str, ...]
    graph: ControlFlowGraph
    source: Source | None = field(default=None, compare=False)
    written: Mapping[str, str] = field(default_factory=_frozen_mapping, compare=False)
    """For each variable that holds a part of an expression, that part in the user's source."""


@dataclass(frozen=True)
class Program:
    """The unit that passes transform and executors run.

    var_defs maps each variable to its TensorType (before structures are flattened: to a structure of them; before
    type inference: to nothing). var_alloc is empty until allocation. `functions` is empty after lowering. `renamed`
    maps each variable that coalescing merged into another to the name it now has.
    """

    graph: ControlFlowGraph
    functions: tuple[Function, ...]
    vars_in: tuple[str, ...]
    vars_out: tuple[str, ...]
    var_defs: Mapping[str, Any] = field(default_factory=_frozen_mapping)
    var_alloc: Mapping[str, VariableAllocation] = field(default_factory=_frozen_mapping)
    renamed: Mapping[str, str] = field(default_factory=_frozen_mapping)

    def main_function(self) -> Function:
        """The main graph as a Function, so that passes can treat all bodies alike."""
        return Function("main", self.vars_in, self.vars_out, self.graph)

    def all_functions(self) -> tuple[Function, ...]:
        """Main first, then the others."""
        return (self.main_function(), *self.functions)

    def function(self, name: str) -> Function:
        """The function of that name; KeyError if there is none."""
        for function in self.all_functions():
            if function.name == name:
                return function
        raise KeyError(name)

    def replace(self, **changes: Any) -> Program:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def with_functions(self, functions: Mapping[str, Function]) -> Program:
        """A copy whose bodies (main included) are those of `functions`, by name."""
        main = functions["main"]
        rest = tuple(functions[f.name] for f in self.functions)
        return replace(self, graph=main.graph, vars_in=main.vars_in, vars_out=main.vars_out, functions=rest)


def reads(op: Op) -> tuple[str, ...]:
    """The variables whose top frame an op reads; a push reads the frame it duplicates, a pop reads nothing."""
    match op:
        case PrimOp() | FunctionCallOp():
            return op.vars_in
        case WriteRowOp():
            return (op.buffer, op.index, op.value)
        case AssertOp():
            return (op.cond_var,)
        case PushOp(var):
            return (var,)
        case PopOp():
            return ()


def writes(op: Op) -> tuple[str, ...]:
    """The variables whose top frame an op replaces."""
    match op:
        case PrimOp() | FunctionCallOp():
            return op.vars_out
        case WriteRowOp():
            return (op.var_out,)
        case AssertOp() | PushOp() | PopOp():
            return ()


def terminator_reads(terminator: Terminator) -> tuple[str, ...]:
    """The variables that a terminator reads."""
    return (terminator.cond_var,) if isinstance(terminator, BranchOp) else ()


def shared_arrays(program: Program) -> tuple[Shared, ...]:
    """What its primitives read besides their inputs, in the order of their first use.

    Raises CompileError for two of one name.
    """
    by_name: dict[str, Shared] = {}
    for function in program.all_functions():
        for op in (op for block in function.graph.blocks for op in block.ops if isinstance(op, PrimOp)):
            for array in op.function.shared:
                if by_name.setdefault(array.name, array) is not array:
                    raise CompileError(f"two shared arrays of the program are named {array.name!r}", op.source)
    return tuple(by_name.values())


def mentioned(program: Program) -> frozenset[str]:
    """The variables of a program: those that its ops, terminators, parameters and results name."""
    return frozenset().union(*map(mentioned_in, program.all_functions()))


def mentioned_in(function: Function) -> frozenset[str]:
    """The variables of one body, its parameters and results among them; an op that is none of the IR names none."""
    variables = {*function.vars_in, *function.vars_out}
    for block in function.graph.blocks:
        variables |= {*terminator_reads(block.terminator)}
        for op in block.ops:
            if isinstance(op, Op):
                variables |= {op.var} if isinstance(op, (PushOp, PopOp)) else {*reads(op), *writes(op)}
    return frozenset(variables)


def fresh_name(wanted: str, taken: Container[str]) -> str:
    """The wanted name of a variable or block, with the smallest number that makes it unique if it is taken."""
    names = itertools.chain([wanted], (f"{wanted}.{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def jump_labels(terminator: Terminator) -> tuple[str, ...]:
    """The labels a terminator names as places to go next; for a PushGotoOp the callee's entry only."""
    match terminator:
        case GotoOp(label):
            return (label,)
        case BranchOp():
            return (terminator.true_label, terminator.false_label)
        case PushGotoOp():
            return (terminator.target_label,)
        case IndirectGotoOp():
            return ()
