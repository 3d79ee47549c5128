"""What code outside of `batchnuts.autobatch` uses of it besides the language, under public names.

Machines that are driven step by step (lane_program.py; what one does: runtime/machine.py), threads that drive them
(own_threads.py), array libraries, structures of arrays, expressions, and machine code made of these. Such code imports
the public names of `batchnuts.autobatch`, `autobatch.pfor` and this module, and nothing beneath them
(tests/test_structure.py).
"""

from __future__ import annotations

from typing import Any

from batchnuts.autobatch.backends.backend import Identity
from batchnuts.autobatch.backends.registry import has_jax, missing
from batchnuts.autobatch.engines.engine import EngineInfo
from batchnuts.autobatch.engines.registry import (
    engine_infos,
    engine_on,
    engine_with,
    is_family,
    preferred_backend,
)
from batchnuts.autobatch.environment import processors
from batchnuts.autobatch.expression_library import LIBRARY as EXPRESSIONS
from batchnuts.autobatch.frontend.hidden_state import depends_on_arguments_alone
from batchnuts.autobatch.ir.evaluate import as_function
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.lane_program import LaneProgram
from batchnuts.autobatch.language.arrays import library_of, tensor_library, tensor_library_of
from batchnuts.autobatch.language.c_functions import CFunction, registered
from batchnuts.autobatch.language.libraries.library import TensorLibrary, Traced
from batchnuts.autobatch.language.libraries.type_rules import NotTyped
from batchnuts.autobatch.language.pytree import TreeDef, flatten, leaf_names, map_leaves, parts, unflatten
from batchnuts.autobatch.own_threads import prepare_disk_cache, use_own_threads
from batchnuts.autobatch.passes.differentiate import expression_of_gradient, expression_of_library
from batchnuts.autobatch.passes.record_expressions import NotRecorded, recorded
from batchnuts.autobatch.runtime.machine import CostlyRuns, Machine, MachineCounts, ResumableMachine, State
from batchnuts.autobatch.runtime.stackless import Tally
from batchnuts.autobatch.scheduling.policies import COSTLY_WORK

__all__ = [
    "COSTLY_WORK",
    "EXPRESSIONS",
    "CFunction",
    "CostlyRuns",
    "EngineInfo",
    "Expression",
    "Identity",
    "LaneProgram",
    "Machine",
    "MachineCounts",
    "NotRecorded",
    "NotTyped",
    "ResumableMachine",
    "State",
    "Tally",
    "TensorLibrary",
    "TensorType",
    "Traced",
    "TreeDef",
    "as_function",
    "begin_code",
    "depends_on_arguments_alone",
    "engine_infos",
    "engine_on",
    "engine_with",
    "expression_of_gradient",
    "expression_of_library",
    "flatten",
    "for_jax",
    "has_jax",
    "is_family",
    "leaf_names",
    "library_of",
    "machine_code",
    "map_leaves",
    "missing",
    "parts",
    "preferred_backend",
    "prepare_disk_cache",
    "processors",
    "recorded",
    "registered",
    "tensor_library",
    "tensor_library_of",
    "unflatten",
    "use_own_threads",
]


def begin_code(expression: Expression) -> None:
    """Let LLVM make machine code of an expression in the background, for a machine that will soon call it."""
    from batchnuts.autobatch.native.outlined import outlined  # LLVM is optional

    outlined(expression)


def machine_code(module: Any) -> Any:
    """Functions of an `llvmlite.ir.Module`, kept on disk where a run asks for that: `address(name)` is where one is."""
    from batchnuts.autobatch.native.compile import code_of

    return code_of(module)


def for_jax(function: CFunction) -> str:
    """Make a function of C known to JAX; the name of its target (`CFunction.for_xla`)."""
    from batchnuts.autobatch.native import c_calls

    return c_calls.for_jax(function)
