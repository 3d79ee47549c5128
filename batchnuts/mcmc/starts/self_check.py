"""`Model.check`: what can be wrong in a model and still be sampled, tried at some positions before a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import ops
from batchnuts.mcmc.execution.evaluation import ProgramGradients, make_evaluate, not_finite
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.model.check_model import check_density
from batchnuts.mcmc.model.findings import Finding, ModelCheck
from batchnuts.mcmc.model.improper import refuse_improper
from batchnuts.mcmc.model.library_choice import DensityLibrary, density_library_of
from batchnuts.mcmc.model.lost_observations import lost_observations
from batchnuts.mcmc.model.model import Model, ModelError, NaturalScale
from batchnuts.mcmc.model.quantities import check_quantities, has_quantities
from batchnuts.mcmc.model.supports import UnitVector
from batchnuts.mcmc.model.variables import Variable
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.settings.schema import in_words

STARTS = 64
"""Initial positions that are tried."""

ENOUGH_STARTS = 0.1
"""Share of initial positions at which a density must be finite: with a tenth, one of 30,000 chains finds no start in as
many tries as a run makes."""

TRIED = 4
"""Positions at which derivatives are compared."""

MOST_ELEMENTS = 400
"""The most elements of a variable, or of a model of another library, whose Jacobian matrix is computed."""

INDEPENDENT = 1e-4
"""Share of a row's length that is left when what earlier rows explain of it is taken away; less is rounding."""

ROUNDING = 64.0
"""How far two log-densities of the same values may differ, in units of rounding of the largest."""

TOO_UNCERTAIN = 0.3
"""A difference of two log-densities with this rounding, or a larger one, shows nothing."""

AGREEMENT = 10.0
"""How far values and gradients may differ, relative to the largest, in square roots of the unit of rounding: sums are
made in another order, and a decomposition of a matrix may multiply that by its condition."""


def check(model: Model, seed: int = 0) -> ModelCheck:
    """Compare what must agree, at initial positions of this seed, on the library that a run would take.

    - starts: the log-density and its gradient are finite at enough initial positions.
    - repeated: the log-density is the same when it is evaluated again.
    - Jacobian: of each support, with the determinant that automatic differentiation gives. Another library's model has
      its own in its log-density: of all of its transformations together.
    - batch: values and gradients of many chains together (by a twin, if there is one) with those of each alone.
    - gradient: with finite differences of the log-density.
    - functions of draws: that they can be traced, and fit.

    Raises ModelError for a model that cannot be sampled at all.
    """
    rng = np.random.default_rng(seed)
    positions = model.initial_positions(rng, STARTS)
    density_library = density_library_of(model, positions[0])
    *_, at_start = check_density(model, positions, density_library)
    refuse_improper(model, density_library, positions, at_start)
    execution = ExecutionSettings.model_validate({"backend": density_library.backend})
    program = make_evaluate(value_and_gradient(model, density_library))
    log_density, gradient = ProgramGradients(model, program, execution).evaluate(positions)
    finite = ~not_finite(log_density, gradient)
    reasons = [] if finite.all() else lost_observations(model, positions[~finite])
    findings = [_starts(finite, log_density, reasons)]
    findings += [_jacobian(variable, density_library, rng) for variable in model.variables if not variable.is_real]
    if finite.any():
        chosen = np.flatnonzero(finite)[:TRIED]
        positions_tried, values, gradients = positions[chosen], log_density[chosen], gradient[chosen]
        findings.append(_repeated(model, density_library, positions_tried[0]))
        if model.natural_scale is not None:
            certain = np.argsort(np.where(finite, np.abs(log_density), np.inf))[: len(chosen)]
            findings.append(_jacobian_of_library(model, density_library, model.natural_scale(), positions[certain]))
        findings.append(_batch(model, density_library, positions_tried, values, gradients))
        findings.append(_gradient(model, density_library, positions_tried, gradients, rng))
    if has_quantities(model) or model.of_data:
        findings.append(_quantities(model, density_library, positions[0]))
    return ModelCheck(tuple(findings))


def _starts(finite: NDArray[np.bool_], log_density: NDArray[Any], reasons: list[str]) -> Finding:
    """All other positions are drawn again before a run, which so many finite ones let expect to succeed."""
    count, total = int(finite.sum()), len(finite)
    message = f"{count} of {total} initial positions have a finite log-density and gradient"
    if 0 < count < total:
        message += ", and a run draws the others again"
    if (unknown := int(np.isnan(log_density).sum())) and not reasons:
        message += (
            f"; at {unknown} the log-density is not a number: if a scale may be negative there, declare it with "
            "batchnuts.positive()"
        )
    return Finding("starts", count >= ENOUGH_STARTS * total, ". ".join([message, *reasons]).removesuffix("."))


def _repeated(model: Model, density_library: DensityLibrary, position: NDArray[Any]) -> Finding:
    """The log-density [] at one position, from two functions that are traced one after the other."""
    library = density_library.library
    values = [float(np.asarray(library.compiled(_untraced(model))(library.tensor(position)))) for _ in range(2)]
    differ = abs(values[0] - values[1])
    same = differ <= AGREEMENT * math.sqrt(np.finfo(model.dtype).eps) * max(abs(values[0]), 1e-30)
    message = f"two evaluations at one position differ by {differ:.2g}"
    if not same:
        message += (
            ": the log-density depends on something other than its argument (a counter, random numbers, the time), "
            "which a run reads once, when it is compiled"
        )
    return Finding("repeated", same, message)


def _untraced(model: Model) -> Callable[[Any], Any]:
    """The log-density as a function that was never traced."""
    return lambda position: model.flat_log_density(position)


def _jacobian(variable: Variable, density_library: DensityLibrary, rng: np.random.Generator) -> Finding:
    """At one position, in double precision: log |det| of the derivatives of as many elements as there are numbers."""
    name = f"Jacobian of {variable.name}"
    if isinstance(variable.support, UnitVector):
        return Finding(name, True, "none to compare: a unit vector has one degree of freedom fewer than elements")
    if int(_independent(variable).sum()) != variable.free:
        return Finding(name, True, "not compared: which elements determine the others is not known")
    if variable.size > MOST_ELEMENTS:
        return Finding(name, True, f"not compared: more than {MOST_ELEMENTS} elements")
    library = density_library.library
    x = library.tensor(rng.uniform(-1, 1, variable.free))

    def row(x: Any, weights: Any) -> Any:
        return library.value_and_gradient(lambda y: ops.sum(_elements(variable, y) * weights), x)[1]

    rows = library.compiled(row)
    matrix = np.stack([np.asarray(rows(x, library.tensor(unit))) for unit in np.eye(variable.size)])
    # the volume of the image: of matrices that determine each other, as those of a simplex, by the first rows
    log_volume = _log_volume(matrix[_independent(variable)])
    declared = float(np.asarray(library.compiled(lambda x: variable.support.constrain(x, variable.shape)[1])(x)))
    ok = math.isclose(log_volume, declared, rel_tol=1e-6, abs_tol=1e-6)
    return Finding(name, ok, f"log |det| is {declared:.6g}, by automatic differentiation {log_volume:.6g}")


def _elements(variable: Variable, x: Any) -> Any:
    return ops.reshape(variable.support.constrain(x, variable.shape)[0], variable.size)


def _independent(variable: Variable) -> NDArray[np.bool_]:
    """[size]: which elements determine the others; as many as there are real numbers."""
    return variable.support.coordinates(variable.shape).reshape(-1)


def _log_volume(matrix: NDArray[Any]) -> float:
    return float(np.linalg.slogdet(matrix)[1])


def _jacobian_of_library(
    model: Model, density_library: DensityLibrary, natural: NaturalScale, tried: NDArray[Any]
) -> Finding:
    """At positions [n, dimension]: how much the log-density there is above that of the values in the natural scale,
    beside log |det| of the derivatives of these values, in the model's dtype.

    A constant does not count: both log-densities are known up to one, and so is the volume of symmetric matrices, say.
    """
    name, library = "Jacobian", density_library.library

    def values_of(x: Any) -> Any:
        values, _ = natural(model.constrain(x))
        return ops.concatenate([ops.reshape(value, -1) for value in values.values()])

    def log_densities(x: Any) -> tuple[Any, Any]:
        return model.flat_log_density(x), natural(model.constrain(x))[1]

    def row(x: Any, weights: Any) -> Any:
        return library.value_and_gradient(lambda y: ops.sum(values_of(y) * weights), x)[1]

    if len(tried) < 2:
        return Finding(name, True, "not compared: that takes two initial positions with a finite log-density")
    positions = [library.tensor(x) for x in tried]
    (size,) = library.result_shapes(values_of, positions[0])
    if size > MOST_ELEMENTS:
        return Finding(name, True, f"not compared: more than {MOST_ELEMENTS} elements")
    densities = np.array(
        [[float(np.asarray(d)) for d in pair] for pair in map(library.compiled(log_densities), positions)]
    )
    largest = float(np.abs(densities).max())
    rounding = ROUNDING * float(np.finfo(model.dtype).eps) * (1 + size + largest)
    if not rounding < TOO_UNCERTAIN:
        hidden = f"rounding of a log-density of {largest:.1g} in {model.dtype} is too large"
        return Finding(name, True, f"not compared: {hidden}")
    rows, units = library.compiled(row), [library.tensor(unit) for unit in np.eye(size, dtype=model.dtype)]
    log_volumes = []
    for x in positions:
        matrix = np.stack([np.asarray(rows(x, unit), "float64") for unit in units])
        chosen = list(range(size)) if size == model.dimension else _first_independent(matrix)
        if len(chosen) != model.dimension:
            message = f"the values have {in_words(len(chosen), 'independent element')}; expected {model.dimension}"
            return Finding(name, True, f"not compared: at an initial position, {message}")
        log_volumes.append(_log_volume(matrix[chosen]))
    differences = densities[:, 0] - densities[:, 1] - log_volumes
    worst = float(np.abs(differences - differences[0]).max())
    message = "what is added to the log-density of the values, and log |det| by automatic differentiation, differ by"
    return Finding(name, worst <= 2 * rounding, f"{message} {worst:.1g} at most, apart from a constant")


def _first_independent(matrix: NDArray[Any]) -> list[int]:
    """Numbers of the first rows of a matrix [size, dimension] of which no row is a combination of those before it.

    Of a simplex these are all elements but the last, of triangular and symmetric matrices those of a triangle, and of a
    correlation matrix's factor those below the diagonal: the elements of which such densities are, as a rule.
    """
    chosen: list[int] = []
    basis = np.zeros((0, matrix.shape[1]))
    for number, row in enumerate(matrix):
        length = float(np.linalg.norm(row))
        if not length > 0 or len(chosen) == matrix.shape[1]:
            continue
        residual = row / length
        for _ in range(2):  # once more, for what rounding left
            residual = residual - basis.T @ (basis @ residual)
        remaining = float(np.linalg.norm(residual))
        if remaining > INDEPENDENT:
            chosen.append(number)
            basis = np.vstack([basis, residual / remaining])
    return chosen


def _batch(
    model: Model,
    density_library: DensityLibrary,
    positions: NDArray[Any],
    values: NDArray[Any],
    gradients: NDArray[Any],
) -> Finding:
    library = density_library.library
    alone = library.differentiated(model.flat_log_density)
    results = [alone(library.tensor(x)) for x in positions]
    one_by_one = (np.array([np.asarray(v) for v, _ in results]), np.stack([np.asarray(g) for _, g in results]))
    worst = max(_distance(a, b) for a, b in zip((values, gradients), one_by_one, strict=True))
    by_hand = " (by hand)" if model.batched_value_and_gradient is not None else ""
    message = f"many chains together{by_hand} and one alone differ by {worst:.1g} at most, relative to the largest"
    return Finding("batch", worst <= AGREEMENT * math.sqrt(np.finfo(model.dtype).eps), message)


def _distance(values: NDArray[Any], reference: NDArray[Any]) -> float:
    return float(np.abs(values - reference).max() / max(np.abs(reference).max(), 1e-30))


def _gradient(
    model: Model,
    density_library: DensityLibrary,
    positions: NDArray[Any],
    gradients: NDArray[Any],
    rng: np.random.Generator,
) -> Finding:
    """Along random directions: central differences with two steps, whose difference shows how good they are."""
    library = density_library.library
    density = library.compiled(model.flat_log_density)

    def value(x: NDArray[Any]) -> float:
        return float(np.asarray(density(library.tensor(x.astype(model.dtype)))))

    worst, bad = 0.0, 0
    for x, gradient in zip(positions.astype("float64"), gradients.astype("float64"), strict=True):
        direction = rng.normal(size=len(x))
        direction /= np.linalg.norm(direction)
        expected = float(gradient @ direction)
        step = float(np.finfo(model.dtype).eps) ** (1 / 3) * max(1.0, float(np.abs(x).max()))
        coarse, fine = (_slope(value, x, direction, h) for h in (2 * step, step))
        rounding = 4 * float(np.finfo(model.dtype).eps) * abs(value(x)) / step
        # 4/3 of the fine one and -1/3 of the coarse one: what is left is of the fourth order
        slope = (4 * fine - coarse) / 3
        uncertain = abs(fine - coarse) + rounding + 1e-3 * float(np.linalg.norm(gradient))
        deviation = abs(slope - expected)
        bad += deviation > 2 * uncertain
        worst = max(worst, deviation / max(float(np.linalg.norm(gradient)), rounding, 1e-30))
    message = f"differs from finite differences by a relative error of at most {worst:.1g}"
    if bad:
        message += (
            f"; more than their error at {bad} of {len(positions)} positions: is the log-density smooth, and is its "
            "gradient defined by hand?"
        )
    return Finding("gradient", not bad, message)


def _slope(value: Callable[[NDArray[Any]], float], x: NDArray[Any], direction: NDArray[Any], step: float) -> float:
    return (value(x + step * direction) - value(x - step * direction)) / (2 * step)


def _quantities(model: Model, density_library: DensityLibrary, position: NDArray[Any]) -> Finding:
    try:
        check_quantities(model, density_library, position, whole=False)  # a run may leave some out
    except ModelError as error:
        return Finding("functions of draws", False, str(error))
    return Finding("functions of draws", True, "traced, and their results fit")
