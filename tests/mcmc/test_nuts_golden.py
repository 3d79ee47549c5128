"""The text of NUTS for a 10-d Gaussian, lowered and at the end; `pytest --update-golden` rewrites tests/golden."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mcmc_models import gaussian_primitive

from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts


@pytest.mark.parametrize("name", ["lower", "tail_calls"])
def test_nuts_after_a_pass(name: str, check_golden_text: Callable[[str, str], None]) -> None:
    nuts_transition = make_nuts(gaussian_primitive(10, "float32")[0], NutsOptions())
    vector = "float32[10]"
    types = ("uint32[2]", vector, "float32", vector, "float32", vector, "int64")
    check_golden_text(f"nuts.{name}", nuts_transition.dump(*types, after=name))
