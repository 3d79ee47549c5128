"""autobatch: write a program for one lane, recursion and all, and run it for thousands.

    from batchnuts import autobatch

    @autobatch.batch
    def fib(n):
        if n <= 1:
            return 1
        return fib(n - 2) + fib(n - 1)

    fib(numpy.array([3, 7, 4, 5]))          # array([3, 21, 5, 8])

What such a function may contain: docs/language.md.
"""

from batchnuts.autobatch.api import BatchedFunction, batch
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.errors import (
    AssertionWarning,
    BatchnutsError,
    CompileError,
    LaneAssertionError,
    LaneInputError,
    OptionError,
    ProgramTextError,
    StackOverflowError,
    SweepLimitError,
    TypeConflictError,
    UndefinedVariableError,
    UnsupportedSyntaxError,
)
from batchnuts.autobatch.inside import jax, tensorflow
from batchnuts.autobatch.ir.printer import show_program
from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    Block,
    BranchOp,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    TensorType,
    VariableAllocation,
    WriteRowOp,
)
from batchnuts.autobatch.ir.summary import Summary, summarize
from batchnuts.autobatch.ir.verify import MalformedProgramError
from batchnuts.autobatch.language import ops, random
from batchnuts.autobatch.language.functions import primitive, sync, write
from batchnuts.autobatch.language.shared import Shared
from batchnuts.autobatch.passes.allocate import allocate
from batchnuts.autobatch.passes.lower import lower_function_calls
from batchnuts.autobatch.prepare import PreparedProgram, prepare
from batchnuts.autobatch.profiling.profile import Profile, profile
from batchnuts.autobatch.runtime import stackless, virtual_machine
from batchnuts.autobatch.scheduling.schedule import Schedule, Slot
from batchnuts.autobatch.text.parser import parse

__all__ = [
    "COPY",
    "AssertOp",
    "AssertionWarning",
    "BatchedFunction",
    "BatchnutsError",
    "Block",
    "BranchOp",
    "CompileError",
    "ControlFlowGraph",
    "Function",
    "FunctionCallOp",
    "GotoOp",
    "IndirectGotoOp",
    "LaneAssertionError",
    "LaneInputError",
    "MalformedProgramError",
    "OptionError",
    "PopOp",
    "PreparedProgram",
    "PrimOp",
    "Primitive",
    "Profile",
    "Program",
    "ProgramTextError",
    "PushGotoOp",
    "PushOp",
    "Schedule",
    "Shared",
    "Slot",
    "StackOverflowError",
    "Summary",
    "SweepLimitError",
    "TensorType",
    "TypeConflictError",
    "UndefinedVariableError",
    "UnsupportedSyntaxError",
    "VariableAllocation",
    "WriteRowOp",
    "allocate",
    "batch",
    "get_backend",
    "jax",
    "lower_function_calls",
    "ops",
    "parse",
    "prepare",
    "primitive",
    "profile",
    "random",
    "show_program",
    "stackless",
    "summarize",
    "sync",
    "tensorflow",
    "virtual_machine",
    "write",
]
