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
from batchnuts.autobatch.api import BatchedFunction, batch
from batchnuts.autobatch.compiler.callables import primitive, write
from batchnuts.autobatch.compiler.ir import (
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

__all__ = [
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
    "PopOp",
    "PrimOp",
    "Primitive",
    "Program",
    "ProgramTextError",
    "PushGotoOp",
    "PushOp",
    "StackOverflowError",
    "TensorType",
    "TypeConflictError",
    "UndefinedVariableError",
    "UnsupportedSyntaxError",
    "VariableAllocation",
    "WriteRowOp",
    "batch",
    "lower_function_calls",
    "ops",
    "parse",
    "primitive",
    "random",
    "show_program",
    "write",
]
