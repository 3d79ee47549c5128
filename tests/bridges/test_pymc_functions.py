"""Special functions of PyTensor as this bridge translates them, over their whole range, against mpmath."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from special_functions import OF_OPS, OF_PYMC, Special, exact, ulps

pytest.importorskip("pymc", reason="the extra pymc is not installed")
import jax
import pytensor.tensor as pt

import batchnuts.bridges.pymc as bridge

NAMES = {
    "erf", "erfc", "erfcinv", "erfcx", "erfinv", "expm1", "gammaln", "log", "log1mexp", "log1p", "psi", "sigmoid",
    "softplus", "tanh", "tri_gamma", "gammainc", "gammaincc", "betainc",
}  # fmt: skip
QUICK = {"erfcx", "expm1", "log1mexp", "psi", "softplus"}
FUNCTIONS = [special for special in [*OF_PYMC, *OF_OPS] if special.name in NAMES]


def test_the_table_has_all_of_them() -> None:
    assert {special.name for special in FUNCTIONS} == NAMES


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "special",
    [pytest.param(s, id=s.name, marks=[] if s.name in QUICK else [pytest.mark.slow]) for s in FUNCTIONS],
)
def test_values_and_slopes_are_exact_to_rounding(special: Special, dtype: str) -> None:
    wanted = exact(special, dtype)
    inputs = [pt.vector(f"x{k}", dtype=dtype) for k in range(len(wanted.arguments))]
    function = bridge._as_function(inputs, [getattr(pt, special.name)(*inputs)], dtype, checking=True)

    def both(*arrays: Any) -> Any:
        slopes = jax.grad(lambda *given: function(*given)[0].sum(), tuple(range(len(arrays))))
        return function(*arrays)[0], *slopes(*arrays)

    results = bridge.LIBRARY.compiled(both)(*map(bridge.LIBRARY.tensor, wanted.arguments))
    limits = [special.within[0], *[special.within[1]] * len(wanted.slopes)]
    for found, right, scale, limit in zip(results, [wanted.value, *wanted.slopes], wanted.scales, limits, strict=True):
        errors = ulps(found, right, scale, dtype)
        assert np.asarray(found).dtype == dtype
        assert errors.max() <= limit, [argument[errors.argmax()] for argument in wanted.arguments]
