"""A batched function compiled as the settings of a run say."""

from __future__ import annotations

from typing import Any

from batchnuts.autobatch import BatchedFunction
from batchnuts.autobatch.machine import LaneProgram
from batchnuts.mcmc.settings.run_settings import ExecutionSettings


def lane_program(function: BatchedFunction, arguments: tuple[Any, ...], execution: ExecutionSettings) -> LaneProgram:
    """The function compiled for one lane's types of an example of its arguments; CompileError if it cannot be
    batched."""
    return LaneProgram(function, arguments, execution.backend, execution.expert.mode, execution.expert.style)
