"""`Model.from_pymc`: a PyMC model as a Model, whose variables are PyMC's value variables (`tau_log__`).

PyTensor translates the graphs of the log-density and of the values to JAX; PyMC has the functions for that.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.bridges.errors import names_in_files, place_in_users_code, text_of
from batchnuts.bridges.named_values import NamedValues
from batchnuts.bridges.tracing import LIBRARY, around, can_be_traced, in_dtype, say_made_again, say_none, taking_data
from batchnuts.bridges.versions import PYMC
from batchnuts.mcmc.model.data_argument import Remade
from batchnuts.mcmc.model.model import Data, DType, Model, NaturalScale
from batchnuts.mcmc.model.named_parameters import NamedParameters
from batchnuts.mcmc.model.variables import ModelError, Variable, checked_dims, checked_labels
from batchnuts.process.signals import say
from batchnuts.settings.schema import shown

PYMC.require()

import jax  # noqa: E402
import pymc  # noqa: E402


@contextmanager
def _users_settings() -> Iterator[None]:
    """Restores what imports of PyMC and PyTensor change for the whole process: JAX's 64 bits, and XLA's options, which
    they ask for a hundred processors."""
    flags = os.environ.get("XLA_FLAGS")
    with ThreadPoolExecutor(1) as another:  # where no `with jax.enable_x64(...)` of this thread is in force
        wide = another.submit(lambda: jax.config.jax_enable_x64).result()
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", wide)
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags


with _users_settings(), PYMC.importing():
    from pymc.backends.arviz import find_constants, find_observations
    from pymc.distributions.transforms import _default_transform
    from pymc.logprob.utils import replace_rvs_by_values
    from pymc.sampling.jax import get_jaxified_graph
    from pymc.util import get_default_varnames
    from pytensor.compile import SharedVariable
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.rewriting.utils import rewrite_graph
    from pytensor.graph.traversal import ancestors, graph_inputs
    from pytensor.tensor.random.type import RandomType

    from batchnuts.bridges.pymc_ops import missing_function, one_draw_for_all, translating, with_all_checks

JITTER = 1.0
"""Chains start within this distance of PyMC's initial point, in each unconstrained number, as its own do."""

TRIES = 100
"""The number of prior draws that show whether they lie where a transform is defined."""


_NOT_FOR_US = ("Explicitly requested dtype", "PyTensor could not link to a BLAS")
"""Begins of warnings: of JAX where a graph of float64 is computed in float32; of PyTensor about compiling in C."""


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for begin in _NOT_FOR_US:
            warnings.filterwarnings("ignore", message=begin, category=UserWarning)
        yield


@dataclass(frozen=True, eq=False)
class Translated:
    """A graph as a function of JAX: of value variables, and of keys for the random variables in it."""

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    keys: int = 0

    def __call__(self, values: Mapping[str, Any], seed: Any = None) -> dict[str, Any]:
        """Its outputs by name."""
        arrays = [jax.numpy.asarray(values[name]) for name in self.inputs]
        keys = [{"jax_state": key} for key in jax.random.split(seed, self.keys)] if self.keys else []
        with _without_warnings():
            results = self.function(*arrays, *keys)
        return dict(zip(self.outputs, results, strict=True))


def from_pymc(
    model: Any,
    *,
    name: str | None = None,
    dtype: DType | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Model:
    """`Model.from_pymc`: a Model of one of PyMC 5 or 6. Chains start within 1 of PyMC's initial point.

    The prior is drawn unless there are potentials. Random variables that PyTensor cannot draw with JAX have no
    predictions, and a line says so. After `pm.set_data` make another model.
    """
    title = name or str(getattr(model, "name", "") or "pymc")
    _refuse_others(model)
    values = list(model.value_vars)
    _check(title, model)
    dtype = _dtype_of(title, values, dtype)
    point = _initial_point(title, model)
    names = tuple(value.name for value in values)
    shapes = {name: np.shape(point[name]) for name in names}
    reported = list(get_default_varnames(model.unobserved_value_vars, include_transformed=False))
    names_in_files(title, "variable", [variable.name for variable in [*reported, *model.observed_RVs]])
    functions: dict[str, Any] = _of_draws(title, model, reported, dtype, {})
    density = functions.pop("log_density")
    zeros = [np.asarray(point[name], dtype) for name in names]
    seed = np.zeros(2, "uint32")
    if (predictive := functions.pop("predictive", None)) is not None:

        def predict(seed: Any, *arrays: Any) -> Any:
            return predictive(dict(zip(names, arrays, strict=True)), seed)

        if can_be_traced(title, "posterior predictive draws", predict, seed, *zeros):
            functions["predictive"] = predictive
    if not model.potentials:
        prior = _drawn(title, "prior draws", [], lambda: _unconstrained(model), names, dtype)
        if prior is not None and can_be_traced(
            title, "prior draws", lambda seed, _: prior({}, seed), seed, np.zeros((), dtype)
        ):
            functions["prior"] = functools.partial(in_dtype, functools.partial(prior, {}), dtype)
            _refuse_outside(title, model, functions)
    owner = f"Model {title!r}"
    given_dims = {n: tuple(axes) for n, axes in model.named_vars_to_dims.items()} | checked_dims(owner, dims)
    labels = {dim: list(ticks) for dim, ticks in model.coords.items() if ticks is not None} | checked_labels(
        owner, coords
    )
    observed_variables = set(model.observed_RVs)
    generated = functions["generated"]
    return Model(
        name=title,
        of_data=frozenset(v.name for v in model.deterministics if not observed_variables.isdisjoint(ancestors([v]))),
        log_density=functools.partial(_scalar, density),
        dimension=sum(array.size for array in zeros),
        dtype=dtype,
        variables=tuple(Variable(name, shapes[name]) for name in names),
        structured=True,
        reports_variables=False,
        natural_scale=functools.partial(_natural_scale, title, model, reported, dtype),
        library="jax",
        initializer=functools.partial(around, np.concatenate([array.reshape(-1) for array in zeros]), JITTER),
        observed_data=_data(find_observations(model), given_dims),
        constant_data=_data(find_constants(model), given_dims),
        parameters=_parameters(title, model, generated, dict(zip(names, zeros, strict=True)), dtype),
        remade=_remade(model, {"name": title, "dtype": dtype, "dims": dims, "coords": coords}),
        dims={v.name: given_dims.get(v.name, _axes(v.name, v.ndim)) for v in reported},
        coords=labels,
        **functions,
    )


def _of_draws(
    title: str, model: Any, reported: list[Any], dtype: DType, arrays: Mapping[Any, Any]
) -> dict[str, Translated]:
    """The functions of a draw that the model has. arrays: inputs of graphs in place of data containers."""
    translated = functools.partial(_translated, title, model=model, dtype=dtype, arrays=arrays)
    functions = {
        "log_density": translated("log-density", outputs=with_all_checks([model.logp()]), names=("log_density",)),
        "generated": translated("variables", outputs=reported),
    }
    if model.observed_RVs:
        names = tuple(variable.name for variable in model.observed_RVs)
        pointwise = with_all_checks(model.logp(vars=model.observed_RVs, sum=False))
        functions["log_likelihood"] = translated("log-likelihood", outputs=pointwise, names=names)
        inputs = [*model.value_vars, *arrays.values()]
        predictive = _drawn(
            title, "posterior predictive draws", inputs, lambda: _with_inputs(_replaced(model), arrays), names, dtype
        )
        if predictive is not None:
            functions["predictive"] = predictive
    return functions


def _with_inputs(graphs: list[Any], arrays: Mapping[Any, Any]) -> list[Any]:
    replaced: list[Any] = clone_replace(graphs, replace=dict(arrays)) if arrays else graphs
    return replaced


def _remade(model: Any, options: Mapping[str, Any]) -> Remade | None:
    """How the model is made of other values of its data containers; None where it has none."""
    containers = {variable.name: variable for variable in model.data_vars if hasattr(variable, "get_value")}
    if not containers:
        return None
    example = {name: np.asarray(variable.get_value()) for name, variable in containers.items()}
    return Remade(example, functools.partial(_made_of, model, options), functools.partial(_of_argument, model, options))


def _made_of(model: Any, options: Mapping[str, Any], data: Mapping[str, Any]) -> Model:
    """The model with other values in its data containers, which have their own again afterwards."""
    before = {variable.name: variable.get_value() for variable in model.data_vars if variable.name in data}
    try:
        pymc.set_data(dict(data), model=model)
        return from_pymc(model, **options)
    finally:
        pymc.set_data(before, model=model)


def _of_argument(model: Any, options: Mapping[str, Any], data: Mapping[str, NDArray[Any]]) -> Model | None:
    """The model whose functions take the values of its data containers; None where it decides by these."""
    made = _made_of(model, options, data)
    containers = {variable.name: variable for variable in model.data_vars if variable.name in data}
    arrays = {
        containers[name]: containers[name].type.clone(shape=array.shape)(name=name) for name, array in data.items()
    }
    if _decide_shapes(model, arrays):
        say_made_again(made.name, "shapes of its random variables depend on values of data containers")
        return None
    reported = list(get_default_varnames(model.unobserved_value_vars, include_transformed=False))
    try:
        found = _of_draws(made.name, model, reported, made.dtype, arrays)
    except ModelError as error:
        say_made_again(made.name, str(error))
        return None
    functions: dict[str, Any] = {role: function for role, function in found.items() if getattr(made, role) is not None}
    functions["log_density"] = functools.partial(_scalar, found["log_density"])
    return taking_data(made, data, {role: functools.partial(_with_arrays, of) for role, of in functions.items()})


def _decide_shapes(model: Any, arrays: Mapping[Any, Any]) -> bool:
    """Whether the shapes of random variables depend on values of data containers, not on their shapes alone."""
    shapes = _with_inputs([variable.shape for variable in model.basic_RVs], arrays)
    simple = [rewrite_graph(shape, include=("ShapeOpt", "canonicalize")) for shape in shapes]
    return not set(arrays.values()).isdisjoint(graph_inputs(simple))


def _with_arrays(function: Callable[..., Any], values: Mapping[str, Any], *arguments: Any) -> Any:
    """A function of a draw and of the values of data containers, which come last."""
    *seed, data = arguments
    return function({**values, **data}, *seed)


def _scalar(density: Translated, values: Mapping[str, Any]) -> Any:
    return density(values)["log_density"]


def _natural_scale(title: str, model: Any, reported: list[Any], dtype: DType) -> NaturalScale:
    """Free random variables, and the log-density without PyMC's Jacobians."""
    free = {variable.name for variable in model.free_RVs}
    graphs = [variable for variable in reported if variable.name in free]
    natural = _translated(title, "variables", model, graphs, dtype)
    density = _density(title, model, model.logp(jacobian=False), dtype)
    return lambda values: (natural(values), _scalar(density, values))


def _parameters(
    title: str, model: Any, generated: Translated, zeros: Mapping[str, NDArray[Any]], dtype: DType
) -> NamedParameters | None:
    """Those of a model under the names of its free random variables, on their own scale; None where PyTensor cannot
    translate a transform."""
    variables = [model.values_to_rvs[value] for value in model.value_vars]
    given = {variable: variable.type(name=variable.name) for variable in variables}
    names = tuple(variable.name for variable in variables)
    try:
        with _without_warnings():
            graphs = clone_replace(_unconstrained(model), replace=given)
        function = _as_function([*given.values()], graphs, dtype, model.check_bounds)
    except Exception as error:
        say(
            f"Model {title!r}: initial values and files of earlier runs need its value variables "
            f"(`unconstrained=True`), since PyTensor cannot translate its transforms to JAX: {_reason(error)}."
        )
        return None
    forward = functools.partial(_in_order, Translated(function, names, tuple(zeros)))

    def natural(*arrays: Any) -> Any:
        return generated(dict(zip(zeros, arrays, strict=True)))

    shapes = LIBRARY.result_shapes(natural, *zeros.values())
    free = {name: array.shape for name, array in zeros.items()}
    return NamedValues(names, free, dtype, forward, generated).parameters({name: shapes[name] for name in names})


def _in_order(translated: Translated, values: Mapping[str, Any]) -> list[Any]:
    return [*translated(values).values()]


def _axes(name: str, ndim: int) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{axis}" for axis in range(ndim))


def _data(data: Mapping[str, Any], dims: Mapping[str, Sequence[str]]) -> Data:
    arrays = {name: np.asarray(value) for name, value in data.items()}
    return {
        name: (tuple(dims[name]) if len(dims.get(name, ())) == array.ndim > 0 else _axes(name, array.ndim), array)
        for name, array in arrays.items()
    }


# What is not a model, or cannot be sampled


def _refuse_others(model: Any) -> None:
    if isinstance(model, pymc.Model):
        return
    if isinstance(model, str):
        raise ModelError(
            f"The PyMC model is the string {model!r}; expected a pymc.Model. (A config names one, or a function that "
            "makes one, as `model: {pymc: package.module:name}`.)"
        )
    if isinstance(model, type) or not callable(model):
        raise ModelError(
            f"The PyMC model is {shown(model)}; expected a pymc.Model, as `with pymc.Model() as model:` has."
        )
    name = getattr(model, "__name__", type(model).__name__)
    raise ModelError(f"The PyMC model is the function {name}; expected a pymc.Model: call it, as in `{name}()`.")


def _check(title: str, model: Any) -> None:
    if discrete := [value for value in model.value_vars if value in set(model.discrete_value_vars)]:
        names = ", ".join(repr(model.values_to_rvs[value].name) for value in discrete)
        raise ModelError(
            f"Model {title!r}: its variable {names} is discrete, which NUTS cannot sample; sum it out "
            "(`pm.Mixture`, or `pymc_extras.marginalize`), or observe it."
        )
    if not model.free_RVs:
        observed = ", ".join(v.name for v in model.observed_RVs) or "none"
        raise ModelError(
            f"Model {title!r} has no free random variable, so there is nothing to sample; its observed variables: "
            f"{observed}."
        )


def _dtype_of(title: str, values: list[Any], asked: DType | None) -> DType:
    dtypes = sorted({str(value.dtype) for value in values})
    own: DType = "float64" if "float64" in dtypes else "float32"
    if asked == "float64" and own == "float32":
        raise ModelError(
            f"Model {title!r} was made with PyTensor's floatX = float32, so it cannot be computed in float64; make it "
            "with floatX = float64, or leave dtype out."
        )
    return asked or own


def _initial_point(title: str, model: Any) -> dict[str, NDArray[Any]]:
    try:
        with _without_warnings():
            point: dict[str, NDArray[Any]] = model.initial_point()
    except Exception as error:
        raise ModelError(f"Model {title!r}: PyMC finds no initial point: {text_of(error)}.") from error
    for name, array in point.items():
        if not np.isfinite(array).all():
            raise ModelError(f"Model {title!r}: {_not_finite(model, name, array)}")
    return point


def _not_finite(model: Any, name: str, point: NDArray[Any]) -> str:
    """The message about a number of PyMC's initial point that is not finite, by a value variable's name."""
    variable = model.values_to_rvs[next(value for value in model.value_vars if value.name == name)]
    initval = model.rvs_to_initial_values.get(variable)
    if initval is None or isinstance(initval, str):
        return f"PyMC's initial point is not finite at {variable.name!r}; give it an `initval`."
    numbers = np.asarray(initval.eval() if hasattr(initval, "eval") else initval)
    place = tuple(int(i) for i in np.argwhere(~np.isfinite(point))[0]) if numbers.shape == point.shape else ()
    where = f" at {list(place)}" if place else ""
    number = numbers[place] if place or not numbers.shape else numbers.tolist()
    transform = type(model.rvs_to_transforms[variable]).__name__
    return (
        f"the `initval` of {variable.name!r} is {number}{where}, outside its support (its transform {transform} is not "
        "finite there); expected a value inside, not at its edge."
    )


# Graphs


def _as_function(inputs: list[Any], outputs: list[Any], dtype: DType, checking: bool) -> Callable[..., Any]:
    """A graph as a function of JAX. PyTensor makes its constants arrays of JAX at once: of the model's dtype."""

    def make(_: Any) -> Callable[..., Any]:
        with _without_warnings(), translating(checking):
            function: Callable[..., Any] = get_jaxified_graph(inputs=inputs, outputs=one_draw_for_all(outputs))
        return function

    function: Callable[..., Any] = LIBRARY.call(make, LIBRARY.tensor(np.zeros((), dtype)))
    return function


def _density(title: str, model: Any, log_density: Any, dtype: DType) -> Translated:
    return _translated(title, "log-density", model, with_all_checks([log_density]), dtype, ("log_density",))


def _translated(
    title: str,
    subject: str,
    model: Any,
    outputs: list[Any],
    dtype: DType,
    names: tuple[str, ...] = (),
    arrays: Mapping[Any, Any] = MappingProxyType({}),
) -> Translated:
    """A graph of value variables without random ones, whose outputs have these names, or their own; raises ModelError
    for one that PyTensor cannot translate. arrays: further inputs, in place of data containers."""
    inputs = [*model.value_vars, *arrays.values()]
    try:
        function = _as_function(inputs, _with_inputs(outputs, arrays), dtype, model.check_bounds)
    except Exception as error:
        remedy = ""
        if isinstance(error, NotImplementedError):
            remedy = " Write it with PyTensor's operations, or register a translation (pytensor.link.jax.jax_funcify)."
        if "RandomType" in str(error):
            remedy = " It depends on random numbers (pm.Minibatch, say): NUTS needs a density that stays the same."
        raise ModelError(
            f"Model {title!r}: PyTensor cannot translate its {subject} to JAX: {_reason(error)}"
            f"{place_in_users_code(error)}.{remedy}"
        ) from error
    return Translated(function, tuple(v.name for v in inputs), names or tuple(v.name for v in outputs))


def _drawn(
    title: str, group: str, inputs: list[Any], make: Callable[[], list[Any]], names: tuple[str, ...], dtype: DType
) -> Translated | None:
    """A graph with random variables, each with a key of its own; None, with a line, for one that has no translation."""
    try:
        with _without_warnings():
            outputs = make()
        shared = [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable)]
        generators = list(dict.fromkeys(v for v in shared if isinstance(v.type, RandomType)))
        fresh = [generator.type() for generator in generators]
        graphs = clone_replace(outputs, replace=dict(zip(generators, fresh, strict=True)))
        function = _as_function([*inputs, *fresh], graphs, dtype, checking=True)
    except Exception as error:
        say_none(title, group, _reason(error), "", __name__)
        return None
    return Translated(function, tuple(value.name for value in inputs), names, len(fresh))


def _reason(error: Exception) -> str:
    if name := missing_function(error):
        return (
            f"PyTensor has {name} from TensorFlow Probability for JAX, which is incompatible with JAX {jax.__version__}"
        )
    return text_of(error)


def _replaced(model: Any) -> list[Any]:
    """Observed random variables, given the value variables of the free ones."""
    free = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    transforms = {rv: model.rvs_to_transforms[rv] for rv in model.free_RVs}
    graphs: list[Any] = replace_rvs_by_values(model.observed_RVs, rvs_to_values=free, rvs_to_transforms=transforms)
    return graphs


def _unconstrained(model: Any) -> list[Any]:
    """Free random variables, transformed as their value variables are, in the order of these."""
    graphs = []
    for value in model.value_vars:
        rv = model.values_to_rvs[value]
        transform = model.rvs_to_transforms[rv]
        graphs.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
    return graphs


def _refuse_outside(title: str, model: Any, functions: dict[str, Any]) -> None:
    """Take out the prior, with a line, where its draws lie outside of what a transform that the user chose allows:
    PyMC draws `Normal(..., transform=ordered)` without regard to the order."""
    values = [value for value in model.value_vars if _is_users_transform(model, model.values_to_rvs[value])]
    if not values:
        return
    draws = LIBRARY.compiled(jax.vmap(functions["prior"]))(np.arange(2 * TRIES, dtype="uint32").reshape(TRIES, 2))
    for value in values:
        if np.isnan(draws[value.name]).any():
            variable = model.values_to_rvs[value]
            kind = type(model.rvs_to_transforms[variable]).__name__
            say(
                f"Model {title!r}: there will be no prior draws, since PyMC draws {variable.name!r} without "
                f"regard to its transform {kind}."
            )
            del functions["prior"]
            return


def _is_users_transform(model: Any, variable: Any) -> bool:
    """Whether a variable has another transform than its distribution's default."""
    transform = model.rvs_to_transforms[variable]
    op = variable.owner.op
    return transform is not None and type(transform) is not type(_default_transform(op, variable))
