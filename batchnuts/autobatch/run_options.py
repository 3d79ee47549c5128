"""How a call of a batched function is to run: the options of `BatchedFunction.run`, checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchnuts.autobatch.backends.backend import MODES, Backend
from batchnuts.autobatch.backends.registry import with_style
from batchnuts.autobatch.engines.engine import Engine
from batchnuts.autobatch.engines.registry import AUTO, engine_infos, engine_of, preferred_backend
from batchnuts.autobatch.engines.sweep import ON_BACKEND
from batchnuts.autobatch.errors import OptionError
from batchnuts.autobatch.scheduling.policies import POLICIES
from batchnuts.autobatch.scheduling.schedule import Schedule

EXECUTORS = ("virtual_machine", "stackless", "unbatched", "reference")


@dataclass(frozen=True)
class RunOptions:
    """How a call is to run: the options of `BatchedFunction.run`. Raises OptionError for unknown ones."""

    executor: str = "virtual_machine"
    backend: str | Backend = AUTO
    mode: str = "xla"
    style: str = "auto"
    schedule: str | Schedule = "auto"
    max_stack_depth: int | None = None

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise OptionError(f"executor must be one of {', '.join(EXECUTORS)}; found {self.executor!r}")
        if self.mode not in MODES:
            raise OptionError(f"mode must be one of {', '.join(MODES)}; found {self.mode!r}")
        if isinstance(self.schedule, str) and self.schedule not in POLICIES:
            raise OptionError(f"schedule must be one of {', '.join(POLICIES)}, or a Schedule; found {self.schedule!r}")
        depth = self.max_stack_depth
        if depth is not None and (isinstance(depth, bool) or not isinstance(depth, (int, np.integer)) or depth < 1):
            raise OptionError(f"max_stack_depth must be at least 1, or None to let stacks grow; found {depth!r}")
        info = engine_infos().get(self.backend) if isinstance(self.backend, str) else None
        if info is not None and info.own_pace and (self.mode, self.schedule) != ("xla", "auto"):
            option = f"mode={self.mode!r}" if self.mode != "xla" else f"schedule={self.schedule!r}"
            raise OptionError(
                f"{option} has no effect on backend {self.backend!r}, where each lane runs at its own pace, as one "
                f"program; leave it out, or take backend='jax', 'tensorflow' or 'numpy'"
            )

    def engine(self) -> Engine:
        """The engine that runs the machine. Raises OptionError for an unknown one."""
        if self.executor in ("unbatched", "reference"):  # of the first, for types only
            return engine_of("reference")
        if hasattr(self.backend, "style"):
            return ON_BACKEND
        return engine_of(preferred_backend(self.mode, self.style) if self.backend == AUTO else self.backend)

    def arrays(self) -> Backend:
        """The array library to compile for."""
        engine = self.engine()
        if isinstance(self.backend, str) or engine is not ON_BACKEND:
            return engine.arrays(engine.info.mode_of(self.mode), self.style)
        return with_style(self.backend, self.style)
