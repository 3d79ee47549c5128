"""The text of NUTS for a 10-d Gaussian after every pass, kept in tests/golden; `pytest --update-golden` rewrites it."""

from __future__ import annotations

from collections.abc import Callable

from mcmc_models import gaussian_primitive

from batchnuts.mcmc.nuts import NutsOptions, make_nuts


def test_nuts_after_every_pass(check_golden: Callable[..., None]) -> None:
    nuts_transition = make_nuts(gaussian_primitive(10, "float32")[0], NutsOptions())
    vector = "float32[10]"
    check_golden("nuts", nuts_transition, ("uint32[2]", vector, "float32", vector, "float32", vector))
