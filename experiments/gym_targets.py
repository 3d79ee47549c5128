"""All offline targets of the Inference Gym: `python -m batchnuts.experiments.gym_targets [NAME ...]` prints a table.

Of each target: dimension, number of parts, how far its log-density and gradient are from the target's own, and what a
short run takes until it is compiled. docs/results/gym.md is made by it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchnuts.bridges.inference_gym import offline_targets
from batchnuts.bridges.tfp import leaves

HEAD = (
    "| target | dimension | parts | value | gradient | compiled [s] | processors [s] |\n|---|---|---|---|---|---|---|"
)
RUN: dict[str, Any] = {
    "chains": 16, "warmup": 20, "draws": 10, "seed": 1, "cache": None, "progress": False, "max_tree_depth": 4
}  # fmt: skip
"""With short trajectories: what is measured is the start of a run, and some targets need a thousand steps a draw."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 where a target fails."""
    makers = offline_targets()
    parser = argparse.ArgumentParser(prog="python -m batchnuts.experiments.gym_targets", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(makers)}; default: all")
    names = parser.parse_args(argv).names or list(makers)
    if unknown := [name for name in names if name not in makers]:
        parser.error(f"there is no offline target {unknown[0]!r}; expected some of {', '.join(makers)}")
    print(HEAD, flush=True)
    failures = 0
    for name in names:
        try:
            print(f"| {name} | {' | '.join(row(makers[name]))} |", flush=True)
        except Exception as error:
            failures += 1
            print(f"| {name} | failed: {type(error).__name__}: {str(error).splitlines()[0]} | | | | | |", flush=True)
    return min(failures, 1)


def row(make: Callable[[], Any]) -> list[str]:
    """The cells that are printed of a target, after its name."""
    from batchnuts.api.sampling import sample_chains
    from batchnuts.mcmc.model.model import Model

    target = make()
    model = Model.from_inference_gym(target)
    value, gradient = differences(target, model)
    started = time.process_time()
    result = sample_chains(model, **RUN)
    processors = time.process_time() - started
    seconds = result["posterior"].attrs["compile_time"]
    return [
        str(model.dimension),
        str(len(model.variables)),
        f"{value:.0e}",
        f"{gradient:.0e}",
        f"{seconds:.1f}",
        f"{processors:.1f}",
    ]


def differences(target: Any, model: Any) -> tuple[float, float]:
    """Between the model's and the target's own log-density with Jacobian, relative; and between their gradients.

    Raises ArithmeticError where a value is not finite.
    """
    import tensorflow as tf

    def own(position: Any) -> Any:
        bijectors = [leaf.value for leaf in leaves(target.default_event_space_bijector)]
        shapes = [
            b.inverse_event_shape(leaf.value) for b, leaf in zip(bijectors, leaves(target.event_shape), strict=True)
        ]
        flat = tf.split(position, [int(np.prod(shape)) for shape in shapes])
        parts = [tf.reshape(part, shape) for part, shape in zip(flat, shapes, strict=True)]
        values = [b.forward(part) for b, part in zip(bijectors, parts, strict=True)]
        jacobian = sum(b.forward_log_det_jacobian(x, x.shape.rank) for b, x in zip(bijectors, parts, strict=True))
        alone = len(values) == 1 and not next(leaves(target.dtype)).path
        structure = values[0] if alone else tf.nest.pack_sequence_as(target.dtype, values)
        return target.unnormalized_log_prob(structure) + jacobian

    position = np.random.default_rng(5).uniform(-0.5, 0.5, model.dimension).astype(model.dtype)
    ours, expected = (_value_and_gradient(function, position) for function in (model.flat_log_density, own))
    if not all(np.isfinite(array).all() for array in (*ours, *expected)):
        raise ArithmeticError("the log-density or its gradient is not finite")
    value, gradient = (float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, expected, strict=True))
    return value, gradient


def _value_and_gradient(function: Callable[[Any], Any], position: Any) -> list[Any]:
    import tensorflow as tf

    x = tf.constant(position)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return [value.numpy(), tape.gradient(value, x).numpy()]


if __name__ == "__main__":
    sys.exit(main())
