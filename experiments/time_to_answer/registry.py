"""The samplers whose time to an answer is measured, with their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from batchnuts.experiments.harness import config as harness
from batchnuts.settings.schema import Settings


class BatchnutsOptions(Settings):
    """Options of `sampler: batchnuts`: its command line. All else is as the problem's config and settings have it."""

    backend: Literal["auto", "jax", "tensorflow"] = Field("auto", description="as execution.backend")
    until: bool = Field(
        True, description="sampler.until ends the run; false: fixed numbers of draws, doubled as those of the peers"
    )
    draws: int = Field(20, ge=4, description="without until: per chain, in the first run")


class PeerOptions(Settings):
    """The options of every peer."""

    chains: int = Field(4, ge=2, description="number of chains")
    warmup: int = Field(1000, ge=1, description="transitions that adapt each chain; not kept")
    draws: int = Field(
        250, ge=4, description="per chain, in the first run; doubled until there are as many as are asked for"
    )
    target_acceptance: float | None = Field(
        None, gt=0.0, lt=1.0, description="of each chain's adaptation; null: as the problem's config has it"
    )


class NumpyroOptions(PeerOptions):
    """Options of `sampler: numpyro`: its NUTS on a NumPyro model, in float32, NumPyro's default."""

    warmup: int = Field(500, ge=1, description="as in the examples of its documentation")
    chain_method: Literal["parallel", "vectorized", "sequential"] = Field(
        "parallel", description="of its MCMC; parallel: a device for each chain, on the processor's cores"
    )


class BlackjaxOptions(PeerOptions):
    """Options of `sampler: blackjax`: window adaptation and NUTS of each chain, under one vmap."""


class NutpieOptions(PeerOptions):
    """Options of `sampler: nutpie`: on a PyMC model, compiled by Numba; a thread for each chain."""

    warmup: int = Field(400, ge=1, description="its own default")


class StanOptions(PeerOptions):
    """Options of `sampler: stan`: PyStan on a Stan program."""


class StanliOptions(PeerOptions):
    """Options of `sampler: stanli`: on a Stan program, without a C++ compiler; a thread for each chain."""


class WalnutpieOptions(PeerOptions):
    """Options of `sampler: walnutpie`: WALNUTS on a PyMC model compiled by Numba; a thread for each chain."""

    warmup: int = Field(1000, ge=50, description="at most; it ends by itself")


_IN_PYMC = (
    "correlated_gaussian", "eight_schools", "logistic_regression", "radon", "item_response", "gaussian_process",
    "horseshoe",
)  # fmt: skip
"""The packaged models of `scripts.pymc_models`."""

_IN_STAN = (
    "correlated_gaussian", "neal_funnel", "eight_schools", "logistic_regression", "radon", "item_response",
    "stochastic_volatility", "gaussian_process", "hidden_markov", "horseshoe", "lotka_volterra",
)  # fmt: skip
"""Those of `scripts.stan_programs`."""


@dataclass(frozen=True)
class Registered(harness.Registered):
    """A sampler's options, and how it is run."""

    library: str
    """The package that it needs."""
    needs: tuple[str, ...]
    """The modules that must be there."""
    script: str = ""
    """A module of `scripts`, which a process runs; empty: our own command line."""
    compiles_for_draws: bool = False
    """Another number of draws is another program to compile."""
    compiles_for_goal: bool = False
    """It chooses the number of chains by the goal, and another number is another program to compile."""
    suffix: str = ".npz"
    """The suffix of the file of draws."""
    models: tuple[str, ...] | None = None
    """The packaged models that are written for it; None: all."""
    takes_stan_programs: bool = False
    """It also runs a user's own Stan program."""

    @property
    def ours(self) -> bool:
        """Whether it is batchnuts."""
        return not self.script


REGISTRY: Mapping[str, Registered] = {
    "batchnuts": Registered(BatchnutsOptions, "batchnuts", (), compiles_for_goal=True, suffix=".nc"),
    "numpyro": Registered(NumpyroOptions, "NumPyro", ("numpyro",), "numpyro_script", compiles_for_draws=True),
    "blackjax": Registered(
        BlackjaxOptions, "BlackJAX", ("blackjax", "numpyro"), "blackjax_script", compiles_for_draws=True
    ),
    "nutpie": Registered(
        NutpieOptions, "nutpie", ("nutpie", "pymc", "numba"), "nutpie_script", suffix=".nc", models=_IN_PYMC
    ),
    "walnutpie": Registered(
        WalnutpieOptions, "walnutpie", ("walnutpie", "nutpie", "pymc", "numba"), "walnutpie_script", models=_IN_PYMC
    ),
    "stan": Registered(StanOptions, "PyStan", ("stan",), "stan_script", models=_IN_STAN),
    "stanli": Registered(
        StanliOptions, "stanli", ("stanli",), "stanli_script", models=_IN_STAN, takes_stan_programs=True
    ),
}
