"""Every kind of workload: its arrays, and what is computed of them, with the way to vectorize left open.

A computation is a function of `Tools`, which run one example's function for many; so all ways get the same code of one
example, and what surrounds it (the leapfrog steps) is the same too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from batchnuts.experiments.vectorizers import networks
from batchnuts.experiments.vectorizers.densities import DENSITIES
from batchnuts.experiments.vectorizers.registry import (
    ConvnetOptions,
    DensityOptions,
    LinearOptions,
    LstmJacobianOptions,
    LstmOptions,
    VggOptions,
)


class Tools(Protocol):
    """A way to vectorize."""

    def rows(self, function: Callable[..., Any], *rows: Any) -> Any:
        """`function` of one row of each tensor [n, ...], for all rows: outputs [n, ...]."""

    def jacobian(self, function: Callable[[Any], Any], x: Any) -> Any:
        """d function(x) / dx: [*output, *x]."""


Inputs = Mapping[str, NDArray[Any]]
Program = Callable[[Tools, Mapping[str, Any]], Any]
"""The outputs, of tools and inputs by name (as tensors)."""


@dataclass(frozen=True)
class Work:
    """A workload at one size."""

    inputs: Inputs
    """What is not computed: data and weights, by name."""
    units: float
    """How many units one call does; see Kind.unit."""
    program: Program
    """In TensorFlow."""
    by_hand: Callable[[Mapping[str, Any]], Any] | None
    """In TensorFlow, batched by a person."""
    in_jax: Callable[[], Program]
    """Imports JAX and gives its program."""


def linear(options: LinearOptions, size: int, rng: np.random.Generator) -> Work:
    """A product of one matrix with each of `size` vectors: two operations for each of its entries."""
    inputs = {"matrix": _normal(rng, options.width, options.width), "x": _normal(rng, size, options.width)}

    def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
        return tools.rows(lambda row: tf.linalg.matvec(tensors["matrix"], row), tensors["x"])

    def in_jax() -> Program:
        return lambda tools, tensors: tools.rows(lambda row: tensors["matrix"] @ row, tensors["x"])

    def by_hand(tensors: Mapping[str, Any]) -> Any:
        return tf.matmul(tensors["x"], tensors["matrix"], transpose_b=True)

    return Work(inputs, 2e-9 * size * options.width**2, program, by_hand, in_jax)


def _images(options: ConvnetOptions, size: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Random ones: what they show does not matter to speed."""
    return {
        **networks.convnet_weights(rng, options.filters, options.hidden),
        "image": rng.random((size, 28, 28, 1), np.float32),
        "label": rng.integers(0, networks.CLASSES, size).astype(np.int32),
    }


def convnet(options: ConvnetOptions, size: int, rng: np.random.Generator) -> Work:
    """Logits of `size` images."""

    def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
        return tools.rows(lambda image: networks.convnet(image[None], tensors)[0], tensors["image"])

    def in_jax() -> Program:
        from batchnuts.experiments.vectorizers import networks_jax

        return lambda tools, tensors: tools.rows(lambda image: networks_jax.convnet(image, tensors), tensors["image"])

    def by_hand(tensors: Mapping[str, Any]) -> Any:
        return networks.convnet(tensors["image"], tensors)

    return Work(_images(options, size, rng), size, program, by_hand, in_jax)


def convnet_gradients(options: ConvnetOptions, size: int, rng: np.random.Generator) -> Work:
    """The gradient of each image's loss by all weights, apart."""
    inputs = _images(options, size, rng)
    names = [name for name in inputs if name not in ("image", "label")]
    return _per_example_gradients(inputs, size, "convnet_loss", names, ("image", "label"))


def _per_example_gradients(inputs: Inputs, size: int, loss: str, names: list[str], examples: tuple[str, str]) -> Work:
    """Of a loss, in `networks` and `networks_jax`, of two `examples`, by the weights called `names`."""

    def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
        def gradient_of_example(first: Any, second: Any) -> Any:
            return _gradients(tensors, names, lambda weights: getattr(networks, loss)(first, second, weights))

        return tools.rows(gradient_of_example, *(tensors[name] for name in examples))

    def in_jax() -> Program:
        from batchnuts.experiments.vectorizers import networks_jax

        return _gradients_in_jax(getattr(networks_jax, loss), names, *examples)

    return Work(inputs, size, program, None, in_jax)


def _sequences(options: LstmOptions, size: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {
        **networks.lstm_weights(rng, options.features, options.units),
        "tokens": _normal(rng, size, options.longest, options.features),
        "length": rng.integers(1, options.longest + 1, size).astype(np.int32),
    }


def lstm(options: LstmOptions, size: int, rng: np.random.Generator) -> Work:
    """Last states of `size` sequences. Tokens past a sequence's end do not count."""
    inputs = _sequences(options, size, rng)

    def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
        return tools.rows(
            lambda tokens, length: networks.lstm(tokens, length, tensors), tensors["tokens"], tensors["length"]
        )

    def in_jax() -> Program:
        from batchnuts.experiments.vectorizers import networks_jax

        return lambda tools, tensors: tools.rows(
            lambda tokens, length: networks_jax.lstm(tokens, length, tensors), tensors["tokens"], tensors["length"]
        )

    def by_hand(tensors: Mapping[str, Any]) -> Any:
        return networks.lstm_by_hand(tensors["tokens"], tensors["length"], tensors)

    return Work(inputs, float(inputs["length"].sum()), program, by_hand, in_jax)


def lstm_gradients(options: LstmOptions, size: int, rng: np.random.Generator) -> Work:
    """The gradient of each sequence's loss by all weights, apart."""
    inputs = _sequences(options, size, rng)
    return _per_example_gradients(inputs, size, "lstm_loss", ["cell", "bias"], ("tokens", "length"))


def lstm_jacobian(options: LstmJacobianOptions, size: int, rng: np.random.Generator) -> Work:
    """The Jacobian of `size` outputs with respect to all tokens of one sequence."""
    inputs = {
        **networks.lstm_weights(rng, options.features, options.units),
        "readout": _normal(rng, size, options.units),
        "tokens": _normal(rng, options.tokens, options.features),
    }

    def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
        def readout(tokens: Any) -> Any:
            return tf.linalg.matvec(tensors["readout"], networks.lstm(tokens, options.tokens, tensors))

        return tools.jacobian(readout, tensors["tokens"])

    def in_jax() -> Program:
        from batchnuts.experiments.vectorizers import networks_jax

        return lambda tools, tensors: tools.jacobian(
            lambda tokens: tensors["readout"] @ networks_jax.lstm(tokens, options.tokens, tensors), tensors["tokens"]
        )

    return Work(inputs, size, program, None, in_jax)


def vgg_jacobian(options: VggOptions, size: int, rng: np.random.Generator) -> Work:
    """The Jacobian of `size` outputs with respect to all pixels of one image."""
    weights = networks.vgg_weights(rng, options.side, options.filters, size)
    inputs = {**weights, "image": rng.random((options.side, options.side, 3), np.float32)}

    def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
        return tools.jacobian(
            lambda image: networks.vgg(image, {name: tensors[name] for name in weights}), tensors["image"]
        )

    def in_jax() -> Program:
        from batchnuts.experiments.vectorizers import networks_jax

        return lambda tools, tensors: tools.jacobian(
            lambda image: networks_jax.vgg(image, {name: tensors[name] for name in weights}), tensors["image"]
        )

    return Work(inputs, size, program, None, in_jax)


def density(options: DensityOptions, size: int, rng: np.random.Generator) -> Work:
    """Leapfrog steps of `size` lanes: the last gradients, and the sum of log-densities on the way."""
    target = DENSITIES[options.name]
    data = target.data(rng)
    inputs = {**data, "q": 0.1 * _normal(rng, size, target.dimension), "p": _normal(rng, size, target.dimension)}

    def leapfrogs(tensors: Mapping[str, Any], value_and_gradient: Callable[[Any], Any], loop: Any) -> Any:
        def step(q: Any, p: Any, gradient: Any, total: Any) -> Any:
            p = p + 0.5 * options.step_size * gradient
            q = q + options.step_size * p
            value, gradient = value_and_gradient(q)
            return q, p + 0.5 * options.step_size * gradient, gradient, total + value

        value, gradient = value_and_gradient(tensors["q"])
        _, _, gradient, total = loop(options.steps, step, (tensors["q"], tensors["p"], gradient, value))
        return gradient, total

    def differentiated(function: Callable[..., Any], tensors: Mapping[str, Any]) -> Callable[[Any], Any]:
        def value_and_gradient(q: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(q)
                value = function(q, tensors)
            return value, tape.gradient(value, q)

        return value_and_gradient

    def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
        single = differentiated(target.single, tensors)
        return leapfrogs(tensors, lambda q: tools.rows(single, q), _loop)

    def by_hand(tensors: Mapping[str, Any]) -> Any:
        return leapfrogs(tensors, differentiated(target.by_hand, tensors), _loop)

    def in_jax() -> Program:
        import jax

        from batchnuts.experiments.vectorizers import densities_jax

        def loop(steps: int, step: Callable[..., Any], start: Any) -> Any:
            return jax.lax.fori_loop(0, steps, lambda _, state: step(*state), start)

        def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
            single = jax.value_and_grad(lambda q: densities_jax.DENSITIES[options.name](q, tensors))
            return leapfrogs(tensors, lambda q: tools.rows(single, q), loop)

        return program

    return Work(inputs, size * (options.steps + 1), program, by_hand, in_jax)


def _loop(steps: int, step: Callable[..., Any], start: Any) -> Any:
    _, *state = tf.while_loop(
        lambda k, *_: k < steps, lambda k, *state: (k + 1, *step(*state)), (0, *start), maximum_iterations=steps
    )
    return state


def _normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def _gradients(tensors: Mapping[str, Any], names: list[str], loss: Callable[[Any], Any]) -> Any:
    """Gradients of the loss by the inputs named, in this order."""
    with tf.GradientTape() as tape:
        tape.watch([tensors[name] for name in names])
        value = loss(tensors)
    return tape.gradient(value, [tensors[name] for name in names])


def _gradients_in_jax(loss: Callable[..., Any], names: list[str], *rows: str) -> Program:
    import jax

    def program(tools: Tools, tensors: Mapping[str, Any]) -> Any:
        weights = [tensors[name] for name in names]

        def gradient_of_example(*row: Any) -> Any:
            return jax.grad(lambda weights: loss(*row, dict(zip(names, weights, strict=True))))(weights)

        return tools.rows(gradient_of_example, *(tensors[name] for name in rows))

    return program


WORKLOADS: Mapping[str, Callable[[Any, int, np.random.Generator], Work]] = {
    "linear": linear,
    "convnet": convnet,
    "lstm": lstm,
    "convnet_gradients": convnet_gradients,
    "lstm_gradients": lstm_gradients,
    "lstm_jacobian": lstm_jacobian,
    "vgg_jacobian": vgg_jacobian,
    "density": density,
}
