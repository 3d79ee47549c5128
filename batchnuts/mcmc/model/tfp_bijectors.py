"""A bijector of TensorFlow Probability as a support: any object with its interface."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import library_of, tensor_library_of
from batchnuts.mcmc.model.supports import Array, Shape, Support, SupportError


def is_bijector(candidate: Any) -> bool:
    """Whether an object, not a class, has the interface of TensorFlow Probability's bijectors."""
    return (
        not isinstance(candidate, type)
        and hasattr(candidate, "forward_log_det_jacobian")
        and hasattr(candidate, "inverse")
    )


@dataclass(frozen=True, eq=False)
class Bijector(Support):
    """The image of the real numbers under a bijector, which computes with the arrays of its own library.

    Its `forward` and `forward_log_det_jacobian` take arrays with leading axes, as those of TensorFlow Probability do.
    """

    bijector: Any

    kind: ClassVar[str] = "bijector"

    @property
    @override
    def library(self) -> str:
        """The backend of its arrays: "tensorflow", or "jax" for those of the JAX substrate."""
        return "jax" if ".substrates.jax" in type(self.bijector).__module__ else "tensorflow"

    @override
    def free(self, shape: Shape) -> int:
        return math.prod(self._unconstrained_shape(shape))

    def _unconstrained_shape(self, shape: Shape) -> Shape:
        """The shape of the real numbers in one chain."""
        try:
            unconstrained = tuple(int(extent) for extent in self.bijector.inverse_event_shape(shape))
            constrained = tuple(int(extent) for extent in self.bijector.forward_event_shape(unconstrained))
        except Exception as error:
            raise SupportError(f"has shape {shape}, which its bijector rejects: {str(error).splitlines()[0]}") from None
        if constrained != tuple(shape):
            raise SupportError(f"has shape {shape}, but its bijector makes arrays of shape {constrained}")
        return unconstrained

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        unconstrained_shape = self._unconstrained_shape(shape)
        unconstrained = library_of(x).split_last_axis(x, unconstrained_shape)
        value = self.bijector.forward(unconstrained)
        log_jacobian = self.bijector.forward_log_det_jacobian(unconstrained, event_ndims=len(unconstrained_shape))
        if tensor_library_of(x) is None:
            return np.asarray(value), np.asarray(log_jacobian)
        return value, log_jacobian

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        x = np.asarray(self.bijector.inverse(value))
        if not np.isfinite(x).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
            raise SupportError(
                f"has a value whose inverse under its bijector is {x[place]}; expected one in the bijector's range"
            )
        lead = value.shape[: value.ndim - len(shape)]
        return x.reshape(*lead, self.free(shape))

    @override
    def coordinates(self, shape: Shape) -> NDArray[np.bool_]:
        """All elements, where there are as many as real numbers; otherwise none, since it is not known which ones."""
        return np.full(shape, self.free(shape) == math.prod(shape))
