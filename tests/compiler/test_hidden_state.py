"""Random numbers and times that belong to no lane are refused by name, wherever a batched function reaches them."""

from __future__ import annotations

import datetime
import functools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from from_source import load, marked_line
from generator_of_hidden_state import HEAD, RANDOM, STATE

from batchnuts import BatchnutsError, Model, autobatch, sample_chains
from batchnuts.autobatch import UnsupportedSyntaxError, ops

REACHED = {
    "directly": "@batch\ndef f(x):\n    return x + HIDDEN  # error\n",
    "in a condition": "@batch\ndef f(x):\n    if HIDDEN > 0:  # error\n        x = -x\n    return x\n",
    "in a range": "@batch\ndef f(x):\n    for k in range(int(HIDDEN)):  # error\n        x = -x\n    return x\n",
    "in a lambda": "@batch\ndef f(x):\n    h = lambda y: y + HIDDEN  # error\n    return h(x)\n",
    "in a comprehension": "@batch\ndef f(x):\n    return sum([HIDDEN for k in (0, 1)]) + x  # error\n",
    "in an inner function": "@batch\ndef f(x):\n    def g(y):\n        return y + HIDDEN  # error\n    return g(x)\n",
    "in a called one": "@batch\ndef g(x):\n    return x + HIDDEN  # error\n@batch\ndef f(x):\n    return g(x)\n",
    "a helper": "def h(x):\n    return x + HIDDEN  # error\n@batch\ndef f(x):\n    return h(x)\n",
    "a helper's helper": (
        "def g(x):\n    return HIDDEN  # error\ndef h(x):\n    return x + g(x)\n@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a function inside a helper": (
        "def h(x):\n    def g():\n        return HIDDEN  # error\n    return x + g()\n"
        "@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a helper's comprehension": (
        "def h(x):\n    return x + sum([HIDDEN for k in (0, 1)])  # error\n@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a lambda outside": "h = lambda x: x + HIDDEN  # error\n@batch\ndef f(x):\n    return h(x)\n",
    "a closure": (
        "def make(g):\n    return lambda x: x + g()\ndef g():\n    return HIDDEN  # error\nh = make(g)\n"
        "@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a default": (
        "def g():\n    return HIDDEN  # error\ndef h(x, g=g):\n    return x + g()\n@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a partial": (
        "def g(scale, x):\n    return scale * x + HIDDEN  # error\nh = functools.partial(g, 2.0)\n"
        "@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a table": ("def g(x):\n    return x + HIDDEN  # error\nTABLE = [g]\n@batch\ndef f(x):\n    return TABLE[0](x)\n"),
    "a table of a helper": (
        "def g(x):\n    return x + HIDDEN  # error\nTABLE = {'g': g}\ndef h(x):\n    return TABLE['g'](x)\n"
        "@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a wrapped helper": (
        "def twice(g):\n    @functools.wraps(g)\n    def wrapped(x):\n        return 2 * g(x)\n    return wrapped\n"
        "@twice\ndef h(x):\n    return x + HIDDEN  # error\n@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a method": (
        "class Noise:\n    def draw(self, x):\n        return x + HIDDEN  # error\n    def of(self, x):\n"
        "        return self.draw(x)\nNOISE = Noise()\n@batch\ndef f(x):\n    return NOISE.of(x)\n"
    ),
    "a callable object": (
        "class Noise:\n    def __call__(self, x):\n        return x + HIDDEN  # error\nNOISE = Noise()\n"
        "@batch\ndef f(x):\n    return NOISE(x)\n"
    ),
    "an object's making": (
        "class Noise:\n    def __init__(self, x):\n        self.x = x + HIDDEN  # error\ndef h(x):\n"
        "    return Noise(x).x\n@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a primitive": "@primitive\ndef h(x):\n    return x + HIDDEN  # error\n@batch\ndef f(x):\n    return h(x)\n",
    "a batched primitive's helper": (
        "def g(x):\n    return x + HIDDEN  # error\n@primitive(batched=True)\ndef h(x):\n    return g(x)\n"
        "@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a helper that is given": (
        "def h(x):\n    return x + HIDDEN  # error\ndef apply(g, x):\n    return g(x)\n"
        "@batch\ndef f(x):\n    return apply(h, x)\n"
    ),
}


def refused(folder: Path, text: str, message: str, backend: str = "numpy") -> None:
    module = load(folder, HEAD + text)
    with pytest.raises(UnsupportedSyntaxError, match=message) as caught:
        module.f.run(np.array([1.0, 2.0]), backend=backend, mode="eager")
    assert str(caught.value).startswith(f"{module.__file__}:{marked_line(module)}:")


@pytest.mark.parametrize("place", REACHED)
def test_a_random_number_is_refused_wherever_it_is_reached(place: str, tmp_path: Path) -> None:
    refused(tmp_path, REACHED[place].replace("HIDDEN", "np.random.normal()"), r"`np\.random\.normal`.*" + RANDOM[4:])


@pytest.mark.parametrize("place", ["directly", "a helper", "a method", "a primitive"])
@pytest.mark.parametrize("state", STATE)
def test_all_that_changes_by_itself_is_refused(state: str, place: str, tmp_path: Path) -> None:
    expression, message = STATE[state]
    refused(tmp_path, REACHED[place].replace("HIDDEN", expression), message)


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import time", "time.time()"),
        ("import numpy.random", "numpy.random.normal()"),
        ("import numpy.random as r", "r.normal()"),
        ("from numpy import random as r", "r.normal()"),
        ("from random import gauss", "gauss(0, 1)"),
        ("from datetime import datetime as d, date", "d.now().hour"),
    ],
)
def test_imports_within_a_helper_are_followed(imports: str, call: str, tmp_path: Path) -> None:
    text = f"def h(x):\n    {imports}\n    return x + {call}  # error\n@batch\ndef f(x):\n    return h(x)\n"
    refused(tmp_path, text, "cannot be batched in function 'f', which reaches it from")


def test_a_generator_in_an_object_or_as_an_argument(tmp_path: Path) -> None:
    text = """
class Noise:
    def __init__(self):
        self.generator = np.random.default_rng(1)
    def draw(self, x):
        return x + self.generator.normal()  # error
NOISE = Noise()
@batch
def f(x):
    return NOISE.draw(x)
"""
    refused(tmp_path, text, r"`self.generator.normal` in 'draw'.*" + RANDOM[4:])
    given = "def h(x, g):\n    return x + g.normal()\n@batch\ndef f(x):\n    return h(x, GENERATOR)  # error\n"
    refused(tmp_path, given, "`GENERATOR`.*" + RANDOM[4:])
    partial = "def g(g, x):\n    return g.normal() + x\nh = functools.partial(g, GENERATOR)\n"
    refused(tmp_path, partial + "@batch\ndef f(x):\n    return h(x)  # error\n", RANDOM)


@pytest.mark.parametrize(
    ("alias", "call"),
    [("np.random", "it.normal()"), ("np", "it.random.normal()"), ("GENERATOR", "it.normal()"), ("time", "it.time()")],
)
def test_modules_and_generators_by_another_name(alias: str, call: str, tmp_path: Path) -> None:
    local = f"def h(x):\n    it = {alias}\n    return x + {call}\n@batch\ndef f(x):\n    return h(x)\n"
    given = (
        f"def g(it, x):\n    return x + {call}\ndef h(x):\n"
        f"    return g({alias}, x)\n@batch\ndef f(x):\n    return h(x)\n"
    )
    for text in (local, given):
        with pytest.raises(UnsupportedSyntaxError, match="which reaches it from"):
            load(tmp_path, HEAD + text).f.run(np.array([1.0, 2.0]), backend="numpy", mode="eager")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_backend_refuses(backend: str, tmp_path: Path) -> None:
    refused(tmp_path, REACHED["a helper"].replace("HIDDEN", "np.random.normal()"), RANDOM, backend)


EQUAL = {
    "a helper": (
        "def h(x):\n    return x if np.array_equal(x, x) else -x  # error\n@batch\ndef f(x):\n    return h(x)\n"
    ),
    "a second call": (
        "def g(x):\n    return x * np.array_equal(x, x)  # error\ndef h(x):\n    return g(x)\n"
        "@batch\ndef f(x):\n    if x > 0:\n        return h(x)\n    return g(x)\n"
    ),
    "a primitive": (
        "@primitive\ndef h(x):\n    return x if np.array_equiv(x, x) else -x  # error\n"
        "@batch\ndef f(x):\n    return h(x)\n"
    ),
}


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("place", EQUAL)
def test_equality_that_numpy_cannot_tell_of_traced_arrays_is_refused(place: str, backend: str, tmp_path: Path) -> None:
    """NumPy says False of them; its own arrays it does compare."""
    module = load(tmp_path, HEAD + EQUAL[place])
    x = np.array([1.0, -2.0])
    np.testing.assert_array_equal(module.f.run(x, backend="numpy"), [1.0, -2.0])
    with pytest.raises(UnsupportedSyntaxError, match=r"(?s)`np.array_equ.*` in .* Write ops.all\(x == y\)") as caught:
        module.f.run(x, backend=backend, mode="eager")
    assert str(caught.value).startswith(f"{module.__file__}:{marked_line(module)}:")


SEEDED = np.random.default_rng(3).normal(size=2)
STARTED = time.time() * 0.0
SPACE = SimpleNamespace(random=lambda x: x + 1.0)


def of_a_seed(x):
    return x + np.random.default_rng(0).normal() * 0.0 + random.Random(1).random() * 0.0 + SEEDED[0] * 0.0


def names_alike(x):
    normal = secrets_of = uuid_of = x
    return SPACE.random(normal) + 0.0 * secrets_of + 0.0 * uuid_of


def checks_types(x):
    return x + 1.0 if not isinstance(x, (np.random.Generator, random.Random, datetime.datetime)) else x


def reads_files_and_environment(x):
    return x + float(os.environ.get("NO_SUCH_NUMBER", 1.0))


def recursive(x, n=2):
    return x + 1.0 if n == 0 else recursive(x, n - 1)


def sleeps(x):
    time.sleep(0.0)
    return x + 1.0


def shadows(x):
    return (lambda time: time + 1.0)(x)


class Noise:
    """Some methods are of no lane; helpers call the others."""

    shift = 1.0

    def sample(self):
        return np.random.normal()  # noqa: NPY002

    def of(self, x):
        return x + self.shift

    def __repr__(self):
        return f"Noise at {time.time()}"


NOISES = {"a": [Noise()], "b": Noise()}


def has_other_methods(x):
    return NOISES["a"][0].of(x)


def makes_an_object(x):
    made = Noise()
    return made.of(x) if isinstance(made, Noise) else x


@pytest.mark.parametrize(
    "helper",
    [
        has_other_methods,
        makes_an_object,
        of_a_seed,
        names_alike,
        checks_types,
        reads_files_and_environment,
        recursive,
        sleeps,
        shadows,
        functools.partial(recursive, n=1),
    ],
)
def test_what_is_the_same_each_time_is_not_refused(helper: Callable[..., Any]) -> None:
    @autobatch.batch
    def f(x):
        return helper(x) + STARTED

    x = np.array([1.0, 2.0])
    found = f.run(x, backend="numpy")
    np.testing.assert_array_equal(found, f.run(x, executor="unbatched"))


def test_random_numbers_of_a_key_are_not_refused() -> None:
    def noise(key):
        return autobatch.random.normal(key)

    @autobatch.batch
    def f(key):
        return noise(key)

    assert f.run(autobatch.random.lane_keys(0, 3), backend="numpy").shape == (3,)


def noisy_density(x):
    return -0.5 * ops.sum(x * x) + np.random.normal()  # noqa: NPY002  # density


def quiet_density(x):
    return -0.5 * ops.sum(x * x)


def equal_density(x):
    return -0.5 * ops.sum(x * x) if np.array_equal(x, x) else ops.sum(x)


@pytest.mark.parametrize(
    ("density", "said"),
    [
        (noisy_density, r"(?s)hidden_state.py:.*`np.random.normal` in 'noisy_density', .* batched. Inst"),
        (equal_density, r"(?s)hidden_state.py:.*`np.array_equal`"),
    ],
)
def test_a_density_is_refused_whose_programs_are_on_disk(density, said, tmp_path: Path) -> None:
    """What the compiler makes of a run serves all densities in machine code: it does not look at them again."""
    for log_density in (quiet_density, density):
        model = Model(name="noisy", log_density=log_density, dimension=2)
        run = functools.partial(sample_chains, model, chains=2, warmup=10, draws=2, cache=str(tmp_path))
        if log_density is quiet_density:
            run()
            continue
        with pytest.raises(BatchnutsError, match=said):
            run()


def test_a_density_is_refused() -> None:
    model = Model(name="noisy", log_density=noisy_density, dimension=2)
    with pytest.raises(
        BatchnutsError, match=r"(?s)hidden_state.py:.*`np.random.normal` in 'noisy_density', .* batched. Inst"
    ):
        sample_chains(model, chains=2, warmup=10, draws=2)
