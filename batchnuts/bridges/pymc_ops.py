"""How PyTensor translates graphs to JAX for this bridge: where it does otherwise than PyMC, or not at all.

**Functions** are those of `pymc_functions`. **Gradients of what is not chosen** stay zero (`slopes`). **Checks of
parameters**, which PyTensor leaves out, make a log-density -inf, as in PyMC. All of it holds only for graphs that this
bridge translates, and also within their scans.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc.sampling.jax  # noqa: F401  # registers its translations, which ours replace
from pymc.logprob.utils import CheckParameterValue
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.raise_op import Assert, CheckAndRaise
from pytensor.scalar.basic import (
    Abs,
    Add,
    Cast,
    Clip,
    Composite,
    Expm1,
    Identity,
    Maximum,
    Minimum,
    Neg,
    ScalarOp,
    Second,
    Sign,
    Sub,
    Switch,
)
from pytensor.scalar.math import BetaInc, Erfcinv, Erfcx, Log1mexp, Psi, Softplus, TriGamma
from pytensor.tensor.elemwise import Elemwise

from batchnuts.bridges.pymc_functions import betainc, clip, erfcinv, erfcx, expm1, log1mexp, psi, softplus, tri_gamma
from batchnuts.bridges.slopes import zero_stays_zero

_OURS: dict[type, Callable[..., Any]] = {
    BetaInc: betainc,
    Clip: clip,
    Erfcinv: erfcinv,
    Erfcx: erfcx,
    Expm1: expm1,
    Log1mexp: log1mexp,
    Psi: psi,
    Softplus: softplus,
    TriGamma: tri_gamma,
}


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _checked(otherwise: float, value: Any, valid: Any) -> Any:
    """value where the scalar `valid` is true; its gradient is that of value everywhere, as PyMC's is."""
    return jnp.where(valid, value, otherwise)


@_checked.defjvp  # type: ignore[untyped-decorator]
def _slope_of_checked(otherwise: float, primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _checked(otherwise, *primals), tangents[0]


def _check(op: CheckAndRaise, node: Apply) -> Callable[..., Any]:
    """What PyTensor leaves out: a log-density that is -inf for invalid parameters, and NaN for what PyMC cannot compute
    at all, where it raises an error."""
    if not node.outputs[0].dtype.startswith("float"):
        return lambda value, *_: value
    otherwise = -np.inf if getattr(op, "can_be_replaced_by_ninf", False) else np.nan

    def check(value: Any, *conditions: Any) -> Any:
        valid = functools.reduce(jnp.logical_and, [jnp.asarray(c, bool) for c in conditions], jnp.asarray(True))
        return _checked(otherwise, jnp.asarray(value), valid)

    return check


_translating: ContextVar[bool | None] = ContextVar("translating", default=None)
"""Whether PyTensor translates for this bridge with checks of parameters, or without; None: it does for others."""


def _translate_as_ours(of: type) -> None:
    """Have PyTensor translate ops of a type by this module where this bridge asks for it, also within scans."""
    theirs = jax_funcify.dispatch(of)

    def translated(op: Any, node: Any = None, **options: Any) -> Any:
        checking = _translating.get()
        if checking is None:
            return theirs(op, node=node, **options)
        if of is Elemwise:
            return _with_zeros(op.scalar_op, node, theirs(op, node=node, **options))
        if of is Composite:
            return _one_by_one(op)
        if of in _OURS:
            return _OURS[of]
        return _check(op, node) if checking else lambda value, *_: value

    jax_funcify.register(of)(translated)


_WITH_FINITE_SLOPES = (Abs, Add, Cast, Clip, Composite, Identity, Maximum, Minimum, Neg, Second, Sign, Sub, Switch)


def _with_zeros(op: ScalarOp, node: Apply, function: Callable[..., Any]) -> Callable[..., Any]:
    real = all(output.dtype.startswith("float") for output in node.outputs)
    return zero_stays_zero(function) if real and not isinstance(op, _WITH_FINITE_SLOPES) else function


def _one_by_one(composite: Composite) -> Callable[..., Any]:
    """The functions that PyTensor fused into one, each on whole arrays: `clip` needs these, and gradients between."""
    graph = composite.fgraph
    steps = [(_with_zeros(node.op, node, jax_funcify(node.op, node=node)), node) for node in graph.toposort()]

    def called(*inputs: Any) -> Any:
        values = dict(zip(graph.inputs, inputs, strict=True))

        def value_of(variable: Any) -> Any:
            return variable.data.item() if isinstance(variable, Constant) else values[variable]

        for function, node in steps:
            values[node.outputs[0]] = function(*map(value_of, node.inputs))
        results = [value_of(output) for output in graph.outputs]
        return results[0] if len(results) == 1 else results

    return called


for _of in (*_OURS, CheckParameterValue, Assert, Composite, Elemwise):
    _translate_as_ours(_of)


@contextmanager
def translating(checking: bool) -> Iterator[None]:
    """A context in which PyTensor translates by this module. checking: parameters, as PyMC does (`check_bounds`)."""
    token = _translating.set(checking)
    try:
        yield
    finally:
        _translating.reset(token)


def one_draw_for_all(outputs: list[Any]) -> list[Any]:
    """The same graphs without `pm.Minibatch` in what is drawn: one draw of it is as any, since `total_size` scales the
    density alone."""

    def draws(variable: Any) -> bool:
        return variable.owner is not None and isinstance(variable.owner.op, MinibatchRandomVariable)

    while replacements := {variable: variable.owner.inputs[0] for variable in ancestors(outputs) if draws(variable)}:
        outputs = clone_replace(outputs, replace=replacements)  # the arguments of what is new stay as they were
    return outputs


def with_all_checks(densities: list[Any]) -> list[Any]:
    """Log-densities that are -inf also where a check fails for which PyMC raises an error instead (bounds of
    `pm.Censored` out of order, the parameters of a quantile function)."""

    def conditions(density: Any) -> list[Any]:
        checks = [v.owner for v in ancestors([density]) if v.owner and isinstance(v.owner.op, CheckParameterValue)]
        return [valid for check in checks if not check.op.can_be_replaced_by_ninf for valid in check.inputs[1:]]

    pairs = [(density, conditions(density)) for density in densities]
    return [CheckParameterValue("", True)(density, *valid) if valid else density for density, valid in pairs]


def missing_function(error: BaseException) -> str:
    """The name of the function that PyTensor took from TensorFlow Probability when it raised the error, or empty."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "try_import_tfp_jax_op":
            return str(trace.tb_frame.f_locals["op"])
        trace = trace.tb_next
    return ""
