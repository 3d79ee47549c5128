"""Which engine computes a Stan program's density: Stan's C function, or a translation of the program.

A translation is a function of JAX. Where its gradient can be recorded, it becomes machine code, and JAX is not needed
again; else XLA computes it, for many chains at once.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from batchnuts.autobatch import primitive
from batchnuts.autobatch.machine import Expression, as_function, missing, tensor_library
from batchnuts.bridges.stan.kept import Kept, keep, key_of, read
from batchnuts.bridges.stan.library import StanError, StanModel, build_id
from batchnuts.bridges.stan.translation import Translation
from batchnuts.mcmc.model.model import ModelError
from batchnuts.mcmc.settings.run_settings import ExecutionSettings

Engine = Literal["auto", "c", "jax"]
ENGINES: tuple[Engine, ...] = ("auto", "c", "jax")

CHEAP = 2e-6
"""Seconds of a gradient up to which the C function is taken at once: to import JAX and to record a translation takes
some seconds, in which it computes as many gradients as most runs need."""

COSTLY = 50e-6
"""Seconds of a gradient from which on XLA is tried, which takes seconds more to compile and gains by many chains."""

WIDTH = 128
"""Chains for which XLA is timed."""

TRIES, RUNS = 20, 3

SAME = 0.01
"""By how much a translation may differ from Stan, relative to its size: solvers of differential equations do by less,
and another density by more."""

_ANOTHER = "another density than Stan's own, which is an error of batchnuts: please report it"

Function = Callable[[Any], tuple[Any, Any]]
"""Of a position [dimension]: its log-density and the gradient."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The density to take."""

    translation: Translation | None
    """A function of JAX; None: the C function."""
    note: str
    """Why, for the run's summary."""


def choose(
    title: str,
    stan: StanModel,
    in_c: Function,
    source: str,
    mir: str,
    data: Mapping[str, Any],
    engine: Engine,
    double: bool = True,
) -> Choice:
    """How the density is computed; the choice is kept on disk (kept.py), since it depends on times.

    in_c: the C function, of a position [dimension] -> (value, gradient), in the language. double: whether positions are
    of float64. Raises ModelError where `engine: jax` is asked for what cannot be translated.
    """
    if engine == "c":
        return Choice(None, "")
    translation = Translation(mir, data, stan.dimension)
    if engine == "jax" and (needed := missing("jax")) is not None:
        raise ModelError(f"Model {title!r}: engine jax needs {needed}.")
    key = key_of(build_id(), source, mir, json.dumps(data), engine, str(double))
    if (kept := read(key)) is None:
        if missing("jax") is not None:
            return Choice(None, "JAX is not installed")
        if engine == "jax":
            kept = _translated(title, translation, stan, source, double)
        else:
            kept = _fastest(translation, stan, in_c, source, double)
        keep(key, kept)
    return Choice(translation.use(kept.gradient) if kept.translated else None, kept.note)


def _translated(title: str, translation: Translation, stan: StanModel, source: str, double: bool) -> Kept:
    """The translation, recorded where it can be. Raises ModelError where it is not Stan's density."""
    if not (why := _untranslatable(translation, source)):
        gradient = translation.recorded() if double else None
        why = _difference(gradient, stan) if gradient is not None else _timed(translation.in_jax(), stan)[1]
    if why:
        raise ModelError(f"Model {title!r} cannot be translated to JAX, because of {why}. Use engine c.")
    return Kept(True, "translated from Stan", gradient)


def _fastest(translation: Translation, stan: StanModel, in_c: Function, source: str, double: bool) -> Kept:
    """What takes least for a gradient, of what is Stan's density: C, machine code or XLA.

    A cheap program that prints stays with C, which alone prints.
    """
    position = _accepted(stan)
    if position is None:
        return Kept(False, "")
    by_c = _seconds(in_c, position)
    if by_c <= CHEAP or (by_c <= COSTLY and _prints(source)):
        return Kept(False, "")
    each = f"{_short(by_c)} each"
    if why := _untranslatable(translation, source):
        return Kept(False, f"{each}; not JAX, because of {why}")
    others = []
    if double and (gradient := translation.recorded()) is not None:
        if why := _difference(gradient, stan):
            return Kept(False, f"{each}; not JAX, because of {why}")
        by_code = _seconds(as_function(gradient), position, lambda *_: gradient)
        if by_code < by_c:
            return Kept(
                True, f"translated from Stan: {_short(by_code)} each, Stan's C function {_short(by_c)}", gradient
            )
        others = [f"machine code {_short(by_code)}"]
    if by_c > COSTLY:
        by_jax, why = _timed(translation.in_jax(), stan)
        if why:
            return Kept(False, f"{each}; not JAX, because of {why}")
        others = [*others, f"JAX {_short(by_jax)} with {WIDTH} chains on one core"]
        if by_jax < by_c:
            return Kept(True, f"translated from Stan: {others[-1]} each, Stan's C function {_short(by_c)}")
    return Kept(False, ", ".join([each, *others]))


def _prints(source: str) -> bool:
    """Whether a program has a `print`, which is no comment."""
    return re.search(r"\bprint\s*\(", re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)) is not None


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


def _accepted(stan: StanModel) -> Any:
    """A position that Stan does not reject, of some; None where it rejects them all."""
    for position in _positions(stan.dimension, TRIES):
        try:
            stan.log_density(position)
        except StanError:
            continue
        return position
    return None


def _seconds(function: Function, position: Any, record: Any = None) -> float:
    """Of the processor, for a gradient of one chain at this position, in machine code."""
    from batchnuts.mcmc.run.gradient_times import time_gradients

    costly = primitive(function, costly=True, record=record)
    return time_gradients(costly, position, ExecutionSettings.model_validate({"backend": "native"}), widths=(1,)).of(1)


def _difference(gradient: Expression, stan: StanModel) -> str:
    """What is wrong with what was recorded; empty where nothing is."""
    rows, function = _positions(stan.dimension, TRIES), as_function(gradient)
    values, gradients = zip(*map(function, rows), strict=True)
    return "" if _is_stans(stan, rows, values, gradients) else _ANOTHER


def _timed(translation: Callable[[Any], Any], stan: StanModel) -> tuple[float, str]:
    """Seconds of a gradient of one of WIDTH chains; and what is wrong with it, if it is not Stan's own."""
    import jax

    library = tensor_library("jax")
    rows = _positions(stan.dimension, WIDTH)
    positions = library.tensor(rows)
    compiled = library.compiled(jax.vmap(jax.value_and_grad(translation)))
    values, gradients = map(np.asarray, compiled(positions))
    if not _is_stans(stan, rows, values, gradients):
        return 0.0, _ANOTHER
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
