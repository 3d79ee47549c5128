"""Functions of PyTensor that it translates to JAX not at all, or so that XLA computes wrong gradients.

`erfcx` and `erfcinv` PyTensor takes from TensorFlow Probability for JAX, which cannot be imported beside a new JAX.
Normal distribution functions need them, so `pm.TruncatedNormal`, `pm.OrderedProbit` and others.

`clip`: XLA for processors computes a cheap array again in each loop that reads it, and rounds it differently there.
For a number that is zero but for rounding, as are the squared distances of points to themselves in `pm.gp.cov`, one
loop then finds that it was clipped and another that it was not: terms of the gradient that cancel do not. So which
numbers are clipped is found out of one array, which is there first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.scalar.basic import Clip
from pytensor.scalar.math import Erfcinv, Erfcx
from pytensor.tensor.elemwise import Elemwise

_TERMS = 12
_ASYMPTOTIC_FROM = {"float32": 5.0, "float64": 10.0}
"""Where that many terms of the asymptotic series are exact to rounding, and exp(x^2) erfc(x) is still finite."""


def clip(x: Any, lowest: Any, highest: Any) -> Any:
    """x between the bounds; arrays, broadcast."""
    compared = lax.stop_gradient(jnp.asarray(x))
    if compared.ndim:  # an array that is indexed is not computed in the loop that reads it
        rows = lax.iota(np.int32, compared.shape[0])
        compared = compared.at[rows].get(mode="promise_in_bounds")
    return jnp.where(compared < lowest, lowest, jnp.where(compared > highest, highest, x))


def erfcx(x: Any) -> Any:
    """exp(x^2) erfc(x), elementwise, in the dtype of x.

    For large x by its asymptotic series (Abramowitz and Stegun, 7.1.23), whose derivatives have no cancellation.
    """
    x = jnp.asarray(x)
    x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
    large = x > _ASYMPTOTIC_FROM[x.dtype.name]
    small, beyond = jnp.where(large, 1.0, x), jnp.where(large, x, _ASYMPTOTIC_FROM[x.dtype.name])
    series = jnp.ones_like(x)
    for n in range(_TERMS, 0, -1):  # 1 - 1 / (2 x^2) (1 - 3 / (2 x^2) (1 - 5 / (2 x^2) (...)))
        series = 1.0 - (2 * n - 1) / (2.0 * beyond * beyond) * series
    return jnp.where(large, series / (beyond * np.sqrt(np.pi)), jnp.exp(small * small) * special.erfc(small))


def erfcinv(x: Any) -> Any:
    """The inverse of erfc, elementwise: erfc(y) = 2 ndtr(-sqrt(2) y)."""
    return -special.ndtri(0.5 * x) * np.sqrt(0.5)


_OURS: dict[type, Callable[..., Any]] = {Clip: clip, Erfcx: erfcx, Erfcinv: erfcinv}


class InJax(Op):  # type: ignore[misc]
    """A function of this module in place of an elementwise op, whose results have `type`."""

    __props__ = ("of", "type")

    def __init__(self, of: type, type: Any) -> None:
        self.of = of
        self.type = type

    def make_node(self, *inputs: Variable) -> Apply:
        """See Op."""
        return Apply(self, [*inputs], [self.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """See Op; PyTensor computes what is constant."""
        output_storage[0][0] = np.asarray(_OURS[self.of](*inputs)).astype(self.type.dtype)


@jax_funcify.register(InJax)  # type: ignore[untyped-decorator]
def _translated(op: InJax, **_: Any) -> Callable[..., Any]:
    return _OURS[op.of]


def with_ours(outputs: list[Any]) -> list[Any]:
    """The same graphs with the functions of this module."""

    def ours(variable: Variable) -> Any:
        op = None if variable.owner is None else variable.owner.op
        if isinstance(op, MinibatchRandomVariable):
            return variable.owner.inputs[0]  # one draw of it is as any: `total_size` scales the density alone
        of = type(op.scalar_op) if isinstance(op, Elemwise) else None
        return InJax(of, variable.type)(*variable.owner.inputs) if of in _OURS else None

    while found := {variable: new for variable in ancestors(outputs) if (new := ours(variable)) is not None}:
        outputs = clone_replace(outputs, replace=found)  # the arguments of what is new stay as they were
    return outputs


def missing_function(error: BaseException) -> str:
    """The name of the function that PyTensor took from TensorFlow Probability when it raised the error, or empty."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "try_import_tfp_jax_op":
            return str(trace.tb_frame.f_locals["op"])
        trace = trace.tb_next
    return ""
