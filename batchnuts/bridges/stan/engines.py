"""Which engine computes a Stan program's density: Stan's C function, or JAX with a translation of the program."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from batchnuts.autobatch.machine import missing, tensor_library
from batchnuts.bridges.stan.kept import Kept, keep, key_of, read
from batchnuts.bridges.stan.library import StanError, StanModel, build_id
from batchnuts.bridges.stan.translation import Translation
from batchnuts.mcmc.model.model import ModelError

Engine = Literal["auto", "c", "jax"]
ENGINES: tuple[Engine, ...] = ("auto", "c", "jax")

CHEAP = 50e-6
"""Seconds of a gradient up to which the C function is taken at once: to trace and compile a translation takes seconds,
in which it computes as many gradients as most runs need."""

WIDTH = 128
"""Chains for which both are timed."""

TRIES, RUNS = 20, 3

SAME = 0.01
"""By how much a translation may differ from Stan, relative to its size: solvers of differential equations do by less,
and another density by more."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The density to take."""

    translation: Translation | None
    """A function of JAX; None: the C function."""
    note: str
    """Why, for the run's summary."""


def choose(
    title: str, stan: StanModel, source: str, mir: str, data: Mapping[str, Any], engine: Engine, double: bool = True
) -> Choice:
    """How the density is computed; a choice that depends on times is kept on disk (kept.py).

    double: whether positions are of float64. Raises ModelError where `engine: jax` is asked for what cannot be
    translated.
    """
    if engine == "c":
        return Choice(None, "")
    translation = Translation(mir, data, stan.dimension)
    if engine == "jax":
        if (needed := missing("jax")) is not None:
            raise ModelError(f"Model {title!r}: engine jax needs {needed}.")
        key = key_of(build_id(), source, mir, json.dumps(data), engine) if double else None
        if (kept := read(key)) is None:
            why = _untranslatable(translation, source) or _timed(translation.in_jax(), stan)[1]
            if why:
                raise ModelError(f"Model {title!r} cannot be translated to JAX, because of {why}. Use engine c.")
            kept = Kept(True, "translated from Stan", translation.recorded() if double else None)
            keep(key, kept)
        return Choice(translation.use(kept.gradient), kept.note)
    seconds = _seconds_of_c(stan)
    if seconds is None or seconds <= CHEAP:
        return Choice(None, "")
    if missing("jax") is not None:
        return Choice(None, f"{_short(seconds)} each; JAX is not installed")
    key = key_of(build_id(), source, mir, json.dumps(data), engine)
    if (kept := read(key)) is None:
        kept = _compared(translation, stan, source, seconds)
        keep(key, kept)
    return Choice(translation.use(kept.gradient), kept.note) if kept.translated else Choice(None, kept.note)


def _compared(translation: Translation, stan: StanModel, source: str, seconds: float) -> Kept:
    """Which of the two is faster, if the translation is Stan's density. seconds: of a gradient by the C function."""
    if why := _untranslatable(translation, source):
        return Kept(False, f"{_short(seconds)} each; not JAX, because of {why}")
    by_jax, why = _timed(translation.in_jax(), stan)
    if why:
        return Kept(False, f"{_short(seconds)} each; not JAX, because of {why}")
    compared = f"{_short(by_jax)} each with {WIDTH} chains on one core, Stan's C function {_short(seconds)}"
    if by_jax >= seconds:
        return Kept(False, compared)
    return Kept(True, f"translated from Stan: {compared}", translation.recorded())


def _short(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} us" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


def _untranslatable(translation: Translation, source: str) -> str:
    """What stands in the way of a density in JAX; empty where nothing does."""
    from batchnuts.bridges.stan.lanes import NotTranslated, NotVectorized
    from batchnuts.bridges.stan.mir import NotRead

    try:
        translation.in_jax()
    except NotTranslated as error:
        named = re.search(r"the function (\w+)$", str(error))
        return f"{error}{'' if named is None else line_of(source, named[1])}"
    except (NotRead, NotVectorized) as error:
        return f"a program that is not read ({error})"
    except Exception as error:  # of a part of the language that nobody has tried
        return f"an error of batchnuts, {type(error).__name__}: {error}; please report it"
    return ""


def line_of(source: str, name: str) -> str:
    """`, in line 12`, where a program calls the function; empty where it does not by that name."""
    name = re.sub(r"_l?u?p[dm]f$", "", name)
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(rf"\b{re.escape(name)}(_\w+)?\s*\(", line):
            return f", in line {number}"
    return ""


def _positions(dimension: int, count: int) -> Any:
    return np.random.default_rng(0).uniform(-0.5, 0.5, (count, dimension))


def _seconds_of_c(stan: StanModel) -> float | None:
    """Of a gradient; None where none of some positions has one."""
    fastest = None
    for position in _positions(stan.dimension, TRIES):
        try:
            begin = time.perf_counter()
            stan.log_density(position)
            took = time.perf_counter() - begin
        except StanError:
            continue
        fastest = took if fastest is None else min(fastest, took)
    return fastest


def _timed(translation: Callable[[Any], Any], stan: StanModel) -> tuple[float, str]:
    """Seconds of a gradient of one of WIDTH chains; and what is wrong with it, if it is not Stan's own."""
    import jax

    library = tensor_library("jax")
    rows = _positions(stan.dimension, WIDTH)
    positions = library.tensor(rows)
    compiled = library.compiled(jax.vmap(jax.value_and_grad(translation)))
    values, gradients = map(np.asarray, compiled(positions))
    if not _is_stans(stan, rows, values, gradients):
        return 0.0, "another density than Stan's own, which is an error of batchnuts: please report it"
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(positions))
        times.append(time.perf_counter() - begin)
    return min(times) / WIDTH, ""


def _is_stans(stan: StanModel, rows: Any, values: Any, gradients: Any) -> bool:
    """Whether log-densities, up to a constant, and gradients are Stan's at some positions that it does not reject."""
    differences = []
    for row, value, gradient in zip(rows[:TRIES], values, gradients):
        try:
            expected, slope = stan.log_density(row)
        except StanError:
            continue
        if not np.linalg.norm(gradient - slope) <= SAME * (np.linalg.norm(slope) + SAME):
            return False
        differences.append((value - expected, abs(expected)))
    if not differences:
        return True
    shifts, sizes = np.array(differences).T
    return bool(np.ptp(shifts) <= SAME * max(1.0, sizes.max()))
