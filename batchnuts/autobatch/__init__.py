"""autobatch: write a program for one lane, recursion and all, and run it for thousands.

from batchnuts import autobatch

@autobatch.batch
def fib(n):
    if n <= 1:
        return 1
    return fib(n - 2) + fib(n - 1)

fib(numpy.array([3, 7, 4, 5]))          # array([3, 21, 5, 8])
"""

from batchnuts.autobatch import ops, random
from batchnuts.autobatch.api import BatchedFunction, batch, get_backend
from batchnuts.autobatch.compiler.allocate import allocate
from batchnuts.autobatch.compiler.callables import primitive, sync, write
from batchnuts.autobatch.compiler.check import MalformedProgramError
from batchnuts.autobatch.compiler.ir import (
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
from batchnuts.autobatch.compiler.lower import lower_function_calls
from batchnuts.autobatch.compiler.parse import parse
from batchnuts.autobatch.compiler.schedule import Schedule, Slot
from batchnuts.autobatch.compiler.summary import Summary, summarize
from batchnuts.autobatch.compiler.text import show_program
from batchnuts.autobatch.errors import (
    BatchnutsError,
    CompileError,
    LaneAssertionError,
    LaneInputError,
    ProgramTextError,
    StackOverflowError,
    TypeConflictError,
    UndefinedVariableError,
    UnsupportedSyntaxError,
)
from batchnuts.autobatch.prepare import PreparedProgram, prepare
from batchnuts.autobatch.runtime import stackless, virtual_machine
from batchnuts.autobatch.runtime.profile import Profile, profile

__all__ = [
    "COPY",
    "AssertOp",
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
    "Slot",
    "StackOverflowError",
    "Summary",
    "TensorType",
    "TypeConflictError",
    "UndefinedVariableError",
    "UnsupportedSyntaxError",
    "VariableAllocation",
    "WriteRowOp",
    "allocate",
    "batch",
    "get_backend",
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
    "virtual_machine",
    "write",
]
