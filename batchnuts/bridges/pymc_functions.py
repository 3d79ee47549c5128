"""Elementwise functions in JAX that PyTensor translates not at all, or so that values or gradients are wrong.

`erfcx` and `erfcinv` PyTensor takes from TensorFlow Probability for JAX, which cannot be imported beside a new JAX.
Normal distribution functions need them, so `pm.TruncatedNormal`, `pm.OrderedProbit` and others.

`betainc`: JAX has no slopes of it in its parameters, which truncated and hurdle distributions need.

`log1mexp`: PyTensor's formula for numbers far from 0 has an infinite slope near 0, where it is not chosen.

`softplus`: PyTensor's chooses among formulas, of which exp(x) overflows where another is chosen.

`expm1`: its slope is expm1(x) + 1 in JAX, which has no digits far below 0. `psi`, `tri_gamma`: JAX's derivatives of the
logarithm of the gamma function, from the second on, are those of positive numbers alone.

`clip`: XLA for processors computes a cheap array again in each loop that reads it, and rounds it differently there.
For a number that is zero but for rounding, as are the squared distances of points to themselves in `pm.gp.cov`, one
loop then finds that it was clipped and another that it was not: terms of the gradient that cancel do not. So which
numbers are clipped is found out of one array, which is there first.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

_TERMS = 12
_ASYMPTOTIC_FROM = {"float32": 5.0, "float64": 10.0}
"""Where that many terms of the asymptotic series are exact to rounding, and exp(x^2) erfc(x) is still finite."""


def clip(x: Any, lowest: Any, highest: Any) -> Any:
    """x clipped to the bounds; arrays, broadcast."""
    compared = lax.stop_gradient(jnp.asarray(x))
    if compared.ndim:  # an array that is indexed is not computed in the loop that reads it
        rows = lax.iota(np.int32, compared.shape[0])
        compared = compared.at[rows].get(mode="promise_in_bounds")
    return jnp.where(compared < lowest, lowest, jnp.where(compared > highest, highest, x))


@jax.custom_jvp  # type: ignore[untyped-decorator]
def erfcx(x: Any) -> Any:
    """exp(x^2) erfc(x), elementwise, in the dtype of x.

    For large x by its asymptotic series (Abramowitz and Stegun, 7.1.23), whose derivatives have no cancellation.
    """
    x = _floats(x)
    large, small = _sides(x)
    return jnp.where(
        x > _ASYMPTOTIC_FROM[x.dtype.name], _erfcx_of_large(large), jnp.exp(small**2) * special.erfc(small)
    )


@erfcx.defjvp  # type: ignore[untyped-decorator]
def _slope_of_erfcx(primals: Any, tangents: Any) -> tuple[Any, Any]:
    x = _floats(primals[0])
    large, small = _sides(x)
    slope = jnp.where(
        x > _ASYMPTOTIC_FROM[x.dtype.name],
        jax.jvp(_erfcx_of_large, (large,), (jnp.ones_like(large),))[1],
        2.0 * small * erfcx(small) - 2.0 / np.sqrt(np.pi),
    )
    return erfcx(x), tangents[0] * slope


def _floats(x: Any) -> Any:
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def _sides(x: Any) -> tuple[Any, Any]:
    """x where the asymptotic series is right, and where it is not; elsewhere another number of that side."""
    beyond = _ASYMPTOTIC_FROM[x.dtype.name]
    return jnp.where(x > beyond, x, beyond), jnp.where(x > beyond, 1.0, x)


def _erfcx_of_large(x: Any) -> Any:
    series = jnp.ones_like(x)
    for n in range(_TERMS, 0, -1):  # 1 - 1 / (2 x^2) (1 - 3 / (2 x^2) (1 - 5 / (2 x^2) (...)))
        series = 1.0 - (2 * n - 1) / (2.0 * x * x) * series
    return series / (x * np.sqrt(np.pi))


def erfcinv(x: Any) -> Any:
    """The inverse of erfc, elementwise: erfc(y) = 2 ndtr(-sqrt(2) y)."""
    return -special.ndtri(0.5 * x) * np.sqrt(0.5)


@jax.custom_jvp  # type: ignore[untyped-decorator]
def expm1(x: Any) -> Any:
    """exp(x) - 1, elementwise."""
    return jnp.expm1(x)


expm1.defjvps(lambda tangent, _, x: tangent * jnp.exp(x))


@jax.custom_jvp  # type: ignore[untyped-decorator]
def psi(x: Any) -> Any:
    """The digamma function, elementwise."""
    return special.digamma(x)


psi.defjvps(lambda tangent, _, x: tangent * tri_gamma(x))


def tri_gamma(x: Any) -> Any:
    """The derivative of psi, elementwise; of negative numbers by its reflection (DLMF 5.15.6)."""
    x = _floats(x)
    negative = x < 0
    reflected = jnp.where(negative, 1.0 - x, x)
    turned = np.pi / jnp.sin(np.pi * jnp.where(negative, x, 0.5))
    positive = special.polygamma(1, reflected)
    return jnp.where(negative, turned * turned - positive, positive)


@jax.custom_jvp  # type: ignore[untyped-decorator]
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), elementwise."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


softplus.defjvps(lambda tangent, _, x: tangent * jax.nn.sigmoid(x))


def log1mexp(x: Any) -> Any:
    """log(1 - exp(x)) for x < 0, elementwise: by two formulas, each of arguments at which its slope is finite."""
    x = _floats(x)
    near = x > -np.log(2.0)
    small, large = jnp.where(near, x, -1.0), jnp.where(near, -1.0, x)
    return jnp.where(near, jnp.log(-jnp.expm1(small)), jnp.log1p(-jnp.exp(large)))


@jax.custom_jvp  # type: ignore[untyped-decorator]
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function, elementwise with broadcasting, of one dtype."""
    return special.betainc(a, b, x)


@betainc.defjvp  # type: ignore[untyped-decorator]
def _slope_of_betainc(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """In x it is the density. In a and b, by the derivatives of a continued fraction, which converges fast for x below
    (a + 1) / (a + b + 2); beyond, by 1 - I(b, a, 1 - x)."""
    a, b, x = jnp.broadcast_arrays(*map(_floats, primals))
    inside = (x > 0) & (x < 1) & (a > 0) & (b > 0)
    a, b, x = jnp.where(inside, a, 1.0), jnp.where(inside, b, 1.0), jnp.where(inside, x, 0.5)
    swapped = x * (a + b + 2.0) > a + 1.0
    first, second = jnp.where(swapped, b, a), jnp.where(swapped, a, b)
    place = jnp.where(swapped, 1.0 - x, x)
    one, zero, sign = jnp.ones_like(a), jnp.zeros_like(a), jnp.where(swapped, -1.0, 1.0)
    in_first, in_second = (
        sign * jax.jvp(lambda p, q: _beta_fraction(p, q, place), (first, second), along)[1]
        for along in ((one, zero), (zero, one))
    )
    slopes = (
        jnp.where(swapped, in_second, in_first),
        jnp.where(swapped, in_first, in_second),
        jnp.exp((a - 1.0) * jnp.log(x) + (b - 1.0) * jnp.log1p(-x) - _log_beta(a, b)),
    )
    return betainc(*primals), sum(
        jnp.where(inside, slope, 0.0) * tangent for slope, tangent in zip(slopes, tangents, strict=True)
    )


def _beta_fraction(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function by its continued fraction (DLMF 8.17.22), by Lentz's method."""
    tiny = jnp.finfo(x.dtype).tiny ** 0.5

    def step(lentz: tuple[Any, Any], term: Any) -> tuple[tuple[Any, Any], Any]:
        numerator, denominator = lentz
        numerator, denominator = 1.0 + term / numerator, 1.0 / _away_from_0(1.0 + term * denominator, tiny)
        return (_away_from_0(numerator, tiny), denominator), numerator * denominator

    def two_terms(state: Any) -> Any:
        m, lentz, product = state
        lentz, even = step(lentz, jnp.where(m > 0, m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), 1.0))
        lentz, odd = step(lentz, -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)))
        return m + 1, lentz, product * even * odd

    # not until the value changes no more: for a whole b it ends before its derivative does
    terms = jnp.max(30.0 + 5.0 * jnp.sqrt(jnp.maximum(a, b)), initial=0.0)
    ones = jnp.ones_like(x)
    start = (jnp.zeros((), x.dtype), (tiny * ones, 0.0 * ones), tiny * ones)
    product = lax.while_loop(lambda state: state[0] < terms, two_terms, start)[2]
    return jnp.exp(a * jnp.log(x) + b * jnp.log1p(-x) - _log_beta(a, b)) / a * product


def _log_beta(a: Any, b: Any) -> Any:
    """The log of the beta function. JAX's betaln has half of its digits wrong at (30, 2) in float64."""
    return special.gammaln(a) + special.gammaln(b) - special.gammaln(a + b)


def _away_from_0(x: Any, tiny: Any) -> Any:
    return jnp.where(jnp.abs(x) < tiny, tiny, x)
