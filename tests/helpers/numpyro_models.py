"""Models of NumPyro that several tests sample, and their data. Imported where NumPyro is installed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam

EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
Y = np.random.default_rng(0).normal(size=12)


def schools(errors: Any, y: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(errors)):
        with numpyro.handlers.reparam(config={"theta": LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, errors), obs=y)


def volatility(y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))

    def step(level: Any, value: Any) -> Any:
        level = numpyro.sample("level", dist.Normal(level, scale))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=value)
        return level, None

    scan(step, 0.0, y)


def matrices() -> None:
    numpyro.sample("weights", dist.Dirichlet(np.ones(4)))
    numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
    numpyro.sample("low", dist.Uniform(0, 2))
    ordered = dist.transforms.OrderedTransform()
    numpyro.sample("cuts", dist.TransformedDistribution(dist.Normal(0, 1).expand([3]).to_event(1), ordered))


def depends() -> None:
    """A support that another site gives."""
    low = numpyro.sample("low", dist.Uniform(0, 2))
    high = numpyro.sample("high", dist.Uniform(low, 5.0))
    numpyro.deterministic("width", high - low)


def masked(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("row", len(y)), numpyro.handlers.mask(mask=y > 0), numpyro.handlers.scale(scale=0.5):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def factor() -> None:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.factor("more", -(x**2))


def keyed() -> None:
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.deterministic("noisy", x + jax.random.normal(numpyro.prng_key()))


def circular() -> None:
    numpyro.sample("angle", dist.VonMises(0.5, 2.0))


MODELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "schools": (schools, (ERRORS, EFFECTS)),
    "scan": (volatility, (Y,)),
    "matrices": (matrices, ()),
    "dynamic support": (depends, ()),
    "mask and scale": (masked, (Y,)),
    "factor": (factor, ()),
    "prng_key": (keyed, ()),
    "von Mises": (circular, ()),
}
