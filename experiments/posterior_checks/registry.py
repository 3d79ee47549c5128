"""The samplers whose posteriors are checked, and those they are checked against; with their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from batchnuts.experiments.harness import config as harness
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.settings.schema import Settings


class BatchnutsOptions(Settings):
    """Options of `sampler: batchnuts`. All else is as the problem's config has it."""

    backend: Literal["auto", "jax", "tensorflow"] = Field("jax", description="as execution.backend")
    mode: Literal["xla", "graph"] = Field(
        "xla", description="as execution.expert.mode, of jax and tensorflow; graph: of tensorflow"
    )


class NumpyroOptions(Settings):
    """Options of `sampler: numpyro`: its NUTS with a diagonal metric, all chains under one vmap."""

    chains: int = Field(16, ge=2, description="number of chains")
    warmup: int = Field(1000, ge=1, description="transitions that adapt each chain; not kept")
    draws: int = Field(2500, ge=MINIMUM_DRAWS, description="kept, per chain")
    target_acceptance: float = Field(0.9, gt=0.0, lt=1.0, description="of each chain's adaptation")
    max_tree_depth: int = Field(10, ge=1, le=20, description="a trajectory doubles at most this many times")
    dtype: Literal["float32", "float64"] = Field("float64", description="precision of all arithmetic")


@dataclass(frozen=True)
class Registered(harness.Registered):
    """A sampler's options, and its module. Ours is judged; the others are references, or shown beside it."""

    module: str
    """Has `prepare(task, config, model) -> Sampling`; imports its library only there."""

    @property
    def ours(self) -> bool:
        """Whether it is batchnuts."""
        return self.module == "ours"


REGISTRY: Mapping[str, Registered] = {
    "batchnuts": Registered(BatchnutsOptions, "ours"),
    "numpyro": Registered(NumpyroOptions, "numpyro_nuts"),
}
