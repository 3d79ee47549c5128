"""How many gradients an unadjusted ensemble needs until its moments are right: an experiment before `sampler.start`.

    python -m batchnuts.sample --config radon.yaml sampler.chains=256 sampler.draws=150 output.unconstrained=true \
        output.path=radon.nc --force --quiet
    python docs/results/ensemble_start.py radon radon.nc [--integrator isokinetic|underdamped] [--steps 1000]

256 chains begin as those of a run do. Each step takes one gradient of every chain, at a position scaled by the
ensemble's own standard deviations. What is compared are means and second moments of the unconstrained numbers, with
those of the run: b2 is the squared error of E[x_i^2] over Var[x_i^2], averaged over i; of 256 independent draws it is
1/256 = 0.004. Step sizes follow the variance of the energy error of each step for each dimension, whose goal follows
the departure from equipartition E[-x_i d log p / dx_i] = 1 (arXiv 2601.16696, section 3).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray

from batchnuts.cli.config import build_model, load_config
from batchnuts.mcmc.model.model import Model

jax.config.update("jax_enable_x64", True)

GOAL = 0.1
"""Of the energy error's variance for each dimension, where equipartition is wrong by all of it."""
WORST = 0.02
"""Share of the chains that may be rejected, or be without a finite gradient, before the step is halved."""


def unit(vectors: Any) -> Any:
    """Vectors [chains, dimension] over their lengths."""
    return vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)


def isokinetic_kick(velocity: Any, force: Any, step: Any) -> tuple[Any, Any]:
    """Of unit velocities [chains, dimension]: the new ones, and the change of kinetic energy [chains].

    Exact for a constant force: Steeg and Galstyan, arXiv 2111.02434, written so that it does not overflow.
    """
    dimension = velocity.shape[1]
    size = jnp.linalg.norm(force, axis=1, keepdims=True)
    direction = force / jnp.maximum(size, 1e-300)
    delta = step * size / (dimension - 1)
    along, decay = jnp.sum(velocity * direction, axis=1, keepdims=True), jnp.exp(-delta)
    turned = direction * (1 - decay) * (1 + decay + along * (1 - decay)) + 2 * decay * velocity
    gained = delta - jnp.log(2.0) + jnp.log(1 + along + (1 - along) * decay**2)
    return unit(turned), (dimension - 1) * gained[:, 0]


def underdamped_kick(velocity: Any, force: Any, step: Any) -> tuple[Any, Any]:
    """Of normal velocities [chains, dimension]."""
    kicked = velocity + step * force
    return kicked, 0.5 * jnp.sum(kicked**2 - velocity**2, axis=1)


def isokinetic_refresh(key: Any, velocity: Any, step: Any, length: Any) -> Any:
    """Some noise in the direction: it is forgotten after `length`."""
    dimension = velocity.shape[1]
    noise = jnp.sqrt(jnp.expm1(2 * step / length) / dimension)
    return unit(velocity + noise * jax.random.normal(key, velocity.shape))


def underdamped_refresh(key: Any, velocity: Any, step: Any, length: Any) -> Any:
    """An Ornstein-Uhlenbeck process whose velocities are forgotten after `length`."""
    kept = jnp.exp(-step / length)
    return kept * velocity + jnp.sqrt(1 - kept**2) * jax.random.normal(key, velocity.shape)


KICKS = {"isokinetic": (isokinetic_kick, isokinetic_refresh), "underdamped": (underdamped_kick, underdamped_refresh)}


def step_of(model: Model, integrator: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A step of all chains, compiled: refresh, half a kick, drift, half a kick, refresh; and the density's gradient."""
    kick, refresh = KICKS[integrator]
    value_and_gradient = jax.vmap(jax.value_and_grad(lambda x: model.flat_log_density(x.astype(model.dtype)) * 1.0))

    @jax.jit
    def step(key: Any, state: tuple[Any, ...], size: Any, length: Any, scale: Any) -> tuple[Any, ...]:
        position, velocity, value, gradient = state
        first, second = jax.random.split(key)
        moving = refresh(first, velocity, size / 2, length)
        moving, gained = kick(moving, gradient * scale, size / 2)
        arrived = position + size * scale * moving
        new_value, new_gradient = value_and_gradient(arrived)
        moving, more = kick(moving, new_gradient * scale, size / 2)
        moving = refresh(second, moving, size / 2, length)
        error = gained + more - (new_value - value)
        fine = jnp.isfinite(error) & (jnp.abs(error) < 1e3) & jnp.isfinite(new_gradient).all(axis=1)
        chosen = [
            jnp.where(fine.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(
                (arrived, moving, new_value, new_gradient), (position, -velocity, value, gradient), strict=True
            )
        ]
        return (*chosen, jnp.where(fine, error, 0.0), fine)

    return step, jax.jit(value_and_gradient)


def main() -> None:
    """Print moments' errors as the ensemble goes on, and after how many gradients b2 was first below 0.01."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("run", help="a run with output.unconstrained")
    parser.add_argument("--integrator", choices=KICKS, default="isokinetic")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=256)
    asked = parser.parse_args()
    model = build_model(load_config(f"{asked.config}.yaml").model)
    with xarray.open_dataset(asked.run, group="unconstrained_posterior") as group:
        columns = [array.values.reshape(array.shape[0] * array.shape[1], -1) for array in group.data_vars.values()]
    true = np.concatenate(columns, axis=1)
    step, value_and_gradient = step_of(model, asked.integrator)
    position = jnp.asarray(model.initial_positions(np.random.default_rng(0), asked.chains), jnp.float64)
    value, gradient = value_and_gradient(position)
    dimension, isokinetic = model.dimension, asked.integrator == "isokinetic"
    too_wide = jnp.mean(-position * gradient, axis=0) > 1  # by equipartition; else chains begin outward
    velocity = unit(gradient * jnp.where(too_wide, 1.0, -1.0))
    state = (position, velocity * (1.0 if isokinetic else np.sqrt(dimension)), value, gradient)
    size, length = 0.01 * (np.sqrt(dimension) if isokinetic else 1.0), np.inf
    scale, key, first = jnp.ones(dimension), jax.random.PRNGKey(0), None
    for number in range(1, asked.steps + 1):
        key, own = jax.random.split(key)
        *state, error, fine = step(own, tuple(state), size, length, scale)
        position, gradient = np.asarray(state[0]), np.asarray(state[3])
        departure = np.mean((1 - np.mean(-(position - position.mean(axis=0)) * gradient, axis=0)) ** 2)
        errors = np.asarray(error)[np.asarray(fine)]
        wanted, found = GOAL * min(departure, 1e3) ** (3 / 8), np.var(errors) / dimension
        is_fine = np.mean(np.asarray(fine)) >= 1 - WORST
        size *= np.clip((wanted / max(found, 1e-30)) ** (1 / 6), 0.3, 3.0) if is_fine else 0.5
        scale = jnp.asarray(position.std(axis=0))
        length = np.sqrt(dimension) if isokinetic else 1.0
        squares = np.mean((np.mean(position**2, axis=0) - np.mean(true**2, axis=0)) ** 2 / np.var(true**2, axis=0))
        means = np.mean((position.mean(axis=0) - true.mean(axis=0)) ** 2 / true.var(axis=0))
        first = number if first is None and squares < 0.01 else first
        if number % max(asked.steps // 10, 1) == 0:
            print(f"{number}: step {size:.3g}, 1 - E {departure:.2g}, b1 {means:.2g}, b2 {squares:.2g}", flush=True)
    print(f"{asked.config}, {asked.integrator}: b2 below 0.01 after {first} gradients of each chain")


if __name__ == "__main__":
    main()
