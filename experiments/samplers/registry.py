"""The samplers that experiments compare, one module each: ours, the reference's, and the alternatives.

A module has `prepare(task, problem)` (see `task.Sampler`) and imports its library only there, so that configs are
checked, and a missing library is reported, without any of them. Each sampler's options stand in `REGISTRY`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import Field, model_validator

from batchnuts.autobatch.machine import engine_infos
from batchnuts.experiments.harness import config
from batchnuts.experiments.samplers.task import Sampler
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, ExpertSettings
from batchnuts.settings.schema import Settings


class OursOptions(ExpertSettings):
    """Options of `sampler: batchnuts`: those of a config's `execution` and `execution.expert`, and which density."""

    backend: Literal["tensorflow", "jax", "native", "numpy"] = Field(  # decided, so that rows have it
        "tensorflow",
        description="array library that runs the program and differentiates the density; native: machine code, with "
        "gradients by JAX",
    )
    chunk_lanes: int | None = Field(None, ge=1, description="chains that run together as one batch")
    max_stack_depth: int | None = Field(None, ge=1, le=1000, description="frames of each variable's stack")
    style: Literal["auto"] = Field("auto", exclude=True, description="experiments compare no styles")
    density: Literal["batched", "single"] = Field(
        "batched", description="batched: the model's hand-batched density; single: one chain's, vectorized by us"
    )

    @model_validator(mode="after")
    def _known_mode(self) -> OursOptions:
        if self.mode == "graph" and self.backend == "jax":
            raise ValueError(
                "mode: found 'graph', which only TensorFlow has; on the backend jax expected 'xla' or 'eager'"
            )
        if self.backend == "numpy" and "mode" in self.model_fields_set:
            raise ValueError(f"mode: found {self.mode!r}, which has no effect on backend numpy; leave it out")
        return self

    @property
    def execution(self) -> ExecutionSettings:
        """The settings of a run; experiments measure how long compiling takes, so no programs are kept."""
        left_out = {"mode"} if len(engine_infos()[self.backend].modes) == 1 else set()  # rows have it all the same
        expert = self.model_dump(include=set(ExpertSettings.model_fields) - left_out)
        others = self.model_dump(include={"backend", "chunk_lanes", "max_stack_depth"})
        return ExecutionSettings.model_validate({**others, "cache": None, "expert": expert})


class NoOptions(Settings):
    """The options of a sampler that has none."""


class LimitOptions(Settings):
    """Options of `sampler: leapfrog_limit`."""

    leapfrogs_per_transition: int = Field(
        32, ge=1, description="leapfrogs that every chain takes, a multiple of leapfrogs_per_leaf"
    )
    chunk_lanes: int | None = Field(None, ge=1, description="chains in one batch, at most; null: no bound")
    shards: int = Field(1, ge=1, description="threads that take turns at the batches; each has one at least")


class UnrolledOptions(Settings):
    """Options of `sampler: tfp_unrolled`."""

    mode: Literal["xla", "graph"] = Field("xla", description="how TensorFlow runs it")


class AutobatchedOptions(Settings):
    """Options of `sampler: tfp_autobatched`, the reference implementation of [R]."""

    executor: Literal["virtual_machine", "stackless"] = Field(
        "virtual_machine", description="[R]'s program-counter or local static autobatching"
    )
    mode: Literal["xla", "eager"] = Field("xla", description="how TensorFlow runs it; stackless needs eager")
    trajectories_per_step: int | None = Field(
        None, ge=1, description="trajectories batched together; null: all of a run, which keeps only its last draw"
    )


class BlackjaxOptions(Settings):
    """Options of `sampler: blackjax`."""

    chunk_lanes: int | None = Field(None, ge=1, description="chains under one vmap, at most; null: all of them")
    processes: int | None = Field(
        None, ge=1, description="processes, each on a core of its own, that take turns at the chunks, one each at least"
    )

    @model_validator(mode="after")
    def _together(self) -> BlackjaxOptions:
        if (self.chunk_lanes is None) != (self.processes is None):
            raise ValueError("found one of chunk_lanes and processes; expected both, or neither")
        return self


class StanOptions(Settings):
    """Options of `sampler: stan`."""

    processes: int = Field(1, ge=1, description="chains that run at the same time, each in its own process")


class StanliOptions(Settings):
    """Options of `sampler: stanli`."""

    cores: int = Field(1, ge=1, description="chains that run at the same time, each on a thread of its own")


class NutpieOptions(Settings):
    """Options of `sampler: nutpie`."""

    cores: int = Field(1, ge=1, description="chains that run at the same time, each on a thread of its own")


@dataclass(frozen=True)
class Registered(config.Registered):
    """A sampler's options, the module that has it, and what a user installs to get it."""

    module: str
    library: str | None = None
    """The module whose import shows that the library is there; None: batchnuts itself needs it."""
    role: Literal["ours", "peer", "limit"] = "peer"
    """A peer is what a user would take in place of ours; the limit draws nothing."""

    @property
    def ours(self) -> bool:
        """Whether it is batchnuts."""
        return self.role == "ours"

    def load(self) -> Sampler:
        """Import the sampler's module."""
        return cast(Sampler, importlib.import_module(f"batchnuts.experiments.samplers.{self.module}"))


REGISTRY: dict[str, Registered] = {
    "batchnuts": Registered(OursOptions, "ours", role="ours"),
    "leapfrog_limit": Registered(LimitOptions, "leapfrog_limit", role="limit"),
    "tfp_unrolled": Registered(UnrolledOptions, "tfp_unrolled"),
    "tfp_autobatched": Registered(AutobatchedOptions, "tfp_autobatched"),
    "blackjax": Registered(BlackjaxOptions, "blackjax_sharded", "blackjax"),
    "numpyro": Registered(NoOptions, "numpyro_vectorized", "numpyro"),
    "stan": Registered(StanOptions, "stan", "stan"),
    "stanli": Registered(StanliOptions, "stanli", "stanli"),
    "nutpie": Registered(NutpieOptions, "nutpie_numba", "nutpie"),
}
