"""The contract of an engine: what it is called, what it refuses, and the machine that it makes of a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from batchnuts.autobatch.backends.backend import MODES, Backend, Identity
from batchnuts.autobatch.errors import OptionError
from batchnuts.autobatch.pipeline import CompiledFunction
from batchnuts.autobatch.runtime.machine import Machine
from batchnuts.autobatch.scheduling.schedule import Schedule


@dataclass(frozen=True)
class EngineInfo:
    """What all others need to know of an engine, without importing what it runs on."""

    name: str
    """What options call it: `f.run(backend=...)`, `execution.backend`."""
    title: str
    """What sentences call it."""
    packages: tuple[str, ...]
    """Distributions on whose versions its numbers depend, beside batchnuts; the first one is its own."""
    process_bytes: int
    """Memory of a process that has imported it and compiled a run of a small model."""
    modes: tuple[str, ...] = ("eager",)
    """The values of the option `mode` that it has. Where there is only one, that is taken whatever is asked for."""
    compiled_modes: tuple[str, ...] = ()
    """Those in which a machine is one compiled program, so that Python does not drive its blocks."""
    keeps_programs: bool = False
    """Whether XLA compiles those programs, which are kept on disk (batchnuts/disk_cache)."""
    dependents: tuple[str, ...] = ()
    """Packages whose import in a user's module tells that this engine will be needed; empty where none does."""
    resumes: bool = False
    """Whether its machines are resumable (runtime/machine.py), as the sampler needs them."""
    own_pace: bool = False
    """Whether each lane runs at its own pace, so that a machine of several costs hardly more than one for each."""
    profiles: bool = False
    """Whether its machines count what a profile needs."""
    differentiates: bool = False
    """Whether log-densities are written in its array library: JAX's and TensorFlow's alone, so far."""
    gradients: str = ""
    """Of one that does not differentiate: the engine whose library computes its gradients; empty: any library's do."""
    family: str = ""
    """The name of engines that differ in `gradients` alone, which is that of one of them: it stands for the one whose
    library a log-density is written in. Empty: there are no others."""
    where: str = ""
    """Of a library that gives gradients: the function that chooses between two arrays by a condition."""

    def mode_of(self, option: str) -> str:
        """The mode in which it runs where this one is asked for: its only one, or that, which `arrays` then checks.

        Raises OptionError for what is no mode of any engine.
        """
        if len(self.modes) > 1:
            return option
        if option not in (*MODES, *self.modes):
            raise OptionError(f"mode must be one of {', '.join(MODES)}; found {option!r}")
        return self.modes[0]

    def is_compiled(self, mode: str) -> bool:
        """Whether a machine is one compiled program where this mode is asked for."""
        return self.mode_of(mode) in self.compiled_modes


@dataclass(frozen=True)
class MachineOptions:
    """How a machine is to be made, besides its lanes. Engines that know nothing of one of them ignore it."""

    stack_depth: int | None = None
    """The limit that the user has set; None lets stacks grow."""
    expected_depth: int | None = None
    """Where stacks grow: a depth from which it pays to begin."""
    schedule: str | Schedule = "auto"
    profiled: bool = False
    """Whether the state also records what a profile needs."""
    ends_early: bool = False
    """Lanes start and halt soon, instead of waiting for others: for callers that restart lanes which have halted."""
    identity: Identity | None = None
    """What the program depends on beside its text, its inputs' types and the files of this package, if that is
    known."""
    extents: tuple[int, ...] = ()
    """Extents of arrays in which other programs may differ that are otherwise the same: code that serves all of
    them need not be made again."""


class Threads(Protocol):
    """The support of an array library for host threads that each drive a machine; a module of its backend."""

    def use_own_threads(self, shards: int) -> bool:
        """Have programs run in so many threads at once; returns whether there are at least two."""

    def has_accelerator(self) -> bool:
        """Whether the library computes elsewhere than on the processor. It is imported, and looks for devices."""

    def prepare_disk_cache(self) -> None:
        """Have what the library compiles kept on disk where a run asks for that (batchnuts/disk_cache)."""


class Engine(ABC):
    """One way to run programs. It is registered in one place (`registry.register`)."""

    info: EngineInfo

    @abstractmethod
    def arrays(self, mode: str, style: str) -> Backend:
        """The array library that types a program's primitives, and on which `stackless` runs it.

        Raises OptionError for a mode or style that it does not have, ImportError for a library that is not installed.
        """

    def refuses(self, compiled: CompiledFunction) -> str | None:
        """Why it cannot run a program, as the end of a sentence and with what to do; None where it can."""
        return None

    @abstractmethod
    def machine(self, compiled: CompiledFunction, arrays: Backend, lanes: int, options: MachineOptions) -> Machine:
        """A machine for a number of lanes; arrays: what the program was compiled for."""

    def threads(self) -> Threads | None:
        """Its library's support of threads; None where it computes in the thread that calls. Imports the library."""
        return None
