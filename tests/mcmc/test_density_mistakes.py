"""Mistakes in a density that JAX would compute with, or name in its own words: the message has the user's line."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from ways import rotating

import batchnuts
from batchnuts import interval, positive
from batchnuts.autobatch import ops
from batchnuts.mcmc.model.model import Model, ModelError

SCHOOL = np.array([1, 2, 3, 4])
SERIES = pd.Series([1.0, 2.0])
HERE = re.escape(str(Path(__file__).resolve())) + r":\d+"

jitted = jax.jit(lambda a: a[SCHOOL])


def squares(x: Any) -> Any:
    return -0.5 * ops.sum(x * x)


OUTSIDE = (
    rf"IndexError: .*the index 4.* outside an axis of 4 elements; indices count from 0, so expected 0 to 3 at {HERE}"
)


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (lambda a: ops.take(a, SCHOOL), OUTSIDE),
        (lambda a: ops.take(a, -SCHOOL), "the index -1 .*is outside an axis of 4 elements"),
        (lambda a: a[SCHOOL], OUTSIDE),
        (lambda a: a[-SCHOOL - 1], r"the index -5 \(element \[3\] of the indices\)"),
        (lambda a: a[jnp.asarray(SCHOOL)], OUTSIDE),
        (lambda a: a[4], OUTSIDE),
        (lambda a: a[-5], "the index -5 is outside an axis of 4 elements"),
        (lambda a: a[None][:, SCHOOL], OUTSIDE),
        (lambda a: (a[:, None] * a)[SCHOOL - 1, SCHOOL], OUTSIDE),
        (jitted, OUTSIDE),
    ],
)
def test_a_constant_index_outside_of_an_axis(of: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Model.from_function(lambda p: squares(p["a"]) + squares(of(p["a"])), variables={"a": [4]}).check()


@pytest.mark.parametrize(
    "of",
    [
        lambda a: a[SCHOOL - 1],
        lambda a: a[-SCHOOL],
        lambda a: a[SCHOOL.astype("uint8") - 1],
        lambda a: jnp.tile(a, 100)[(SCHOOL + 200).astype("uint8")],
        lambda a: a[SCHOOL % 2 == 0],
        lambda a: a[np.tril_indices(4)[0]],
        lambda a: a[2:9],
        lambda a: a.at[SCHOOL].get(mode="clip"),
        lambda a: a.at[4].get(mode="clip"),
        lambda a: a.at[SCHOOL].get(mode="fill", fill_value=0.0),
        lambda a: jnp.take(a, SCHOOL, mode="wrap"),
        lambda a: jnp.take(a, SCHOOL, mode="clip"),
        lambda a: a.at[SCHOOL].set(0.0),
        lambda a: jax.ops.segment_sum(a, SCHOOL, num_segments=4),
        lambda a: a[jnp.clip(jnp.arange(9), 0, 3)],
    ],
)
def test_indices_that_are_inside_or_handled_are_not_refused(of: Callable[[Any], Any]) -> None:
    from batchnuts.autobatch.language.libraries.jax import LIBRARY

    LIBRARY.result_shapes(of, np.ones(4, "float32"))


def branches(p: Any) -> Any:
    if p["mu"] > 0:
        return squares(p["mu"])
    return -squares(p["mu"])


@pytest.mark.parametrize(
    ("density", "message"),
    [
        (branches, rf"TracerBoolConversionError: Attempted boolean .* at {HERE}\. A Python `if`.*ops\.where\(.*\)\.$"),
        (lambda p: -(float(p["mu"]) ** 2), rf"ConcretizationTypeError.* at {HERE}\. NumPy's functions, float\(\)"),
        (lambda p: squares(SERIES - p["mu"]), rf"failed at {HERE}: `SERIES` is a pandas Series.*`SERIES.to_numpy\(\)`"),
        (lambda p: jnp.sum(jnp.exp(p["mu"]) * SERIES), rf"failed at {HERE}: `SERIES` is a pandas Series"),
        (lambda p: squares(p["muu"]), rf"KeyError: 'muu' at {HERE}\. The model's parameters are mu, tau; .* 'mu'\?$"),
        (lambda mu, tau: squares(mu), rf"'tau' at {HERE}\. One dict has the values of all variables: mu, tau\.$"),
    ],
)
def test_the_message_has_the_line_and_the_remedy(density: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        Model.from_function(density, variables={"mu": [], "tau": positive()}).check()
    assert "\n" not in str(caught.value)
    assert "libraries/jax.py" not in str(caught.value)


@pytest.mark.parametrize(
    ("density", "more", "message"),
    [
        (lambda p: 0.0 * p["mu"], {}, "does not depend on 'mu': .*its posterior is improper"),
        (lambda p: ops.sum((np.zeros(0) - p["mu"]) ** 2), {}, "does not depend on 'mu'"),
        (lambda p: squares(p["mu"]), {"muu": positive()}, r"does not depend on 'muu'.* leave it out of the model\.$"),
        (lambda p: squares(p["mu"]), {"tau": positive()}, "does not depend on 'tau': it"),
        (lambda p: squares(p["mu"]) + squares(p["b"][:2]), {"b": [3]}, r"does not depend on 'b\[2\]'"),
        (lambda p: squares(p["mu"]), {"w": interval(0, 1)}, None),
        (lambda p: ops.where(ops.abs(p["mu"]) < 3.0, 0.0 * p["mu"], -float("inf")), {}, None),
        (lambda p: squares(p["mu"] - p["t"] * 0.0) - ops.where(p["mu"] > 1, p["t"], 0.0) ** 2, {"t": []}, None),
    ],
)
def test_a_parameter_that_the_density_does_not_use(
    density: Callable[[Any], Any], more: dict[str, Any], message: str | None
) -> None:
    from batchnuts.mcmc.model.check_model import check_density
    from batchnuts.mcmc.model.improper import refuse_improper
    from batchnuts.mcmc.model.library_choice import density_library_of

    model = Model.from_function(density, variables={"mu": [], **more})
    at = np.full((1, model.dimension), 0.5, "float32")
    *_, gradient = check_density(model, at, density_library_of(model))
    if message is None:
        refuse_improper(model, density_library_of(model), at, gradient)
        return
    with pytest.raises(ModelError, match=message):
        model.check()


class Abandoned(BaseException):
    """What is no Exception, as some libraries have it."""


def left(how: BaseException) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise how

    return function


ROLES = ("density", "initializer", "generated", "log_likelihood", "predictive", "prior", "batched_value_and_gradient")


LEAVING: dict[str, BaseException] = {
    "exit": SystemExit(0),
    "exit with words": SystemExit("enough"),
    "of a generator": GeneratorExit(),
    "abandoned": Abandoned("elsewhere"),
}


@pytest.mark.parametrize(("role", "how"), rotating({role: role for role in ROLES}, LEAVING, always=0))
def test_code_of_a_model_ends_no_program(role: str, how: BaseException) -> None:
    """With an exit code of 0, and without a word."""
    functions = {role: left(how)}
    density = functions.pop("density", lambda p: -0.5 * p["mu"] ** 2)
    data = {"observed_data": {"y": (("row",), np.zeros(2))}}
    with pytest.raises(ModelError, match=rf"{type(how).__name__}: {how}(; )?a model's code may raise errors") as caught:
        batchnuts.sample_chains(
            Model.from_function(density, variables={"mu": []}, **data, **functions), chains=2, draws=3, warmup=3
        )
    assert re.search(HERE, str(caught.value)) or role == "batched_value_and_gradient"
    with suppress(ModelError):
        assert not Model.from_function(density, variables={"mu": []}, **data, **functions).check().ok


def test_an_interrupt_in_code_of_a_model_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        Model.from_function(left(KeyboardInterrupt()), dimension=2).check()
