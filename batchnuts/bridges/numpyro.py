"""`Model.from_numpyro`: a NumPyro model as a Model, whose variables are the unconstrained values of its latent sites.

NumPyro's own functions give the log-density and the values of sites (`numpyro.infer.util`), and run the user's function
each time that they are traced. What is known of sites beforehand (shapes, plates, observations) comes from one trace of
abstract values, in which nothing is computed.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.bridges.errors import failed
from batchnuts.bridges.named_values import NamedValues
from batchnuts.bridges.tracing import LIBRARY, can_be_traced, in_dtype, say_made_again, taking_data
from batchnuts.bridges.versions import NUMPYRO
from batchnuts.mcmc.model.data_argument import Remade
from batchnuts.mcmc.model.model import Data, DType, Model
from batchnuts.mcmc.model.named_parameters import NamedParameters
from batchnuts.mcmc.model.variables import ModelError, Variable, checked_dims, checked_labels
from batchnuts.process.signals import say
from batchnuts.settings.schema import nearest, shown

NUMPYRO.require()

import jax  # noqa: E402
import numpyro  # noqa: E402

with NUMPYRO.importing():
    from numpyro import distributions

    from batchnuts.bridges import numpyro_traces as traces
    from batchnuts.bridges.numpyro_sites import AxisNames, Sites, sites_of

OPTIONS = ("name", "dtype", "dims", "coords", "init_strategy")
"""Keywords that are not the model's."""


def from_numpyro(
    model: Any,
    *args: Any,
    name: str | None = None,
    dtype: DType = "float32",
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    init_strategy: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Model:
    """`Model.from_numpyro`: a Model of one of NumPyro. Axes have the names of plates; `dims` names others.

    Draws of the prior are made by running the model, unless it has factors or a prior that cannot be drawn. dtype:
    NumPyro computes in it, whatever `jax_enable_x64` says. init_strategy: by default uniform on (-2, 2) in
    unconstrained space, as NumPyro does. A model's own argument with the name of an option is bound beforehand, by
    functools.partial. Also refused are `numpyro.param`, models without a latent site, and data that do not fit dtype.
    """
    title = name or _name_of(model)
    _refuse_others(model)
    _check_arguments(title, model, args, kwargs)
    options: dict[str, Any] = {"dtype": dtype, "dims": dims, "coords": coords, "init_strategy": init_strategy}
    remade = _remade(model, args, kwargs, {"name": title, **options})
    _check_data(title, args, kwargs, dtype)
    _check_numbers(title, {f"the variable {key!r}": value for key, value in _around(model).items()}, dtype)
    args, kwargs = _copied(args, kwargs)
    bound: traces.Bound = (model, args, kwargs)
    sites = sites_of(title, bound, dtype)
    users = traces.Users(model, sites.parts, sites.empty, sites.saved)
    bound = (users, args, kwargs)
    names = AxisNames(title, sites, checked_dims(f"Model {title!r}", dims))
    names.check_labels(checked_labels(f"Model {title!r}", coords))
    seed = np.zeros(2, "uint32")
    zeros = {traces.free_name(name): np.zeros(shape, dtype) for name, shape in sites.free.items()}
    functions: dict[str, Any] = {}
    if any(site.kind == "observed" for site in sites.sites):
        functions["log_likelihood"] = functools.partial(traces.log_likelihood, *bound)
        predictive = functools.partial(traces.predictive, *bound)

        def predict(seed: Any, *values: Any) -> Any:
            return predictive(dict(zip(zeros, values, strict=True)), seed)

        if can_be_traced(title, "posterior predictive draws", predict, seed, *zeros.values()):
            functions["predictive"] = predictive
            functions["of_data"] = _computed_of_data(bound, sites, zeros, seed)
    improper = [site.name for site in sites.sites if site.improper]
    if improper:
        say(f"Model {title!r}: there will be no prior draws, since the prior of {improper[0]!r} is improper.")
    elif not any(site.kind == "factor" for site in sites.sites):
        prior = functools.partial(traces.prior, *bound)
        if can_be_traced(title, "prior draws", lambda seed, _: prior(seed), seed, np.zeros((), dtype)):
            functions["prior"] = functools.partial(in_dtype, prior, dtype)
    if not any(site.kind in ("observed", "factor") for site in sites.sites):
        say(f"Model {title!r}: no site is observed and there is no factor, so its draws are from the prior.")
    reported = [site.name for site in sites.sites if site.kind in ("latent", "deterministic")]
    return Model(
        name=title,
        log_density=functools.partial(traces.log_density, *bound),
        dimension=sum(array.size for array in zeros.values()),
        dtype=dtype,
        variables=tuple(Variable(name, array.shape) for name, array in zeros.items()),
        structured=True,
        reports_variables=False,
        natural_scale=lambda: functools.partial(traces.natural_scale, *bound),
        library="jax",
        initializer=None if init_strategy is None else _initializer(title, bound, init_strategy, dtype),
        observed_data=_observed_data(bound, sites, names, dtype),
        remade=remade,
        parameters=_parameters(bound, sites, dtype),
        generated=functools.partial(traces.constrained, *bound),
        dims={name: names.of(name) for name in reported},
        coords=checked_labels(f"Model {title!r}", coords),
        **functions,
    )


def _parameters(bound: traces.Bound, sites: Sites, dtype: DType) -> NamedParameters | None:
    """Those of a model under the names of its latent sites; None where some of a site is observed."""
    if sites.parts or sites.empty:
        return None
    free = {traces.free_name(name): shape for name, shape in sites.free.items()}
    own = {in_files: name for name, in_files in sites.saved.items()}
    forward = functools.partial(traces.unconstrained_values, bound, [own[name] for name in sites.free])
    values = NamedValues(tuple(sites.free), free, dtype, forward, functools.partial(traces.constrained, *bound))
    return values.parameters({name: sites.shapes[name] for name in sites.free})


def _copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with copies of their arrays: JAX remembers constants of a failed trace by their identity, with the
    values and the precision that they had, and would use these for the user's own arrays from then on."""
    copies: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree_util.tree_map(
        lambda leaf: np.array(leaf) if type(leaf) is np.ndarray else leaf, (args, kwargs)
    )
    return copies


def _remade(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> Remade | None:
    """How the model is made of other arguments that are arrays, or dicts with arrays; None where it has none of these,
    or where an argument has no name."""
    try:
        bound = inspect.signature(model).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    given: dict[str, Any] = bound.kwargs  # what can be given by keyword alone
    kinds = bound.signature.parameters
    for name, value in zip(kinds, bound.args):
        if kinds[name].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            return None
        given[name] = value
    example = {name: np.asarray(_at(given, place)) for name, place in _places(given).items()}
    if not example or any(name in options for name in given):
        return None
    made_of = functools.partial(_made_of, model, given, options)
    return Remade(example, made_of, functools.partial(_of_argument, made_of, given, options))


def _made_of(model: Any, given: Mapping[str, Any], options: Mapping[str, Any], data: Mapping[str, Any]) -> Model:
    """The model with other arrays among its arguments."""
    return from_numpyro(model, **_with(given, data), **options)


def _places(given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Where the arrays among the arguments are, by their names: an argument, or an entry of a dict, by its key. An
    entry with the name of an argument, or of an entry before it, is left out."""
    places: dict[str, tuple[str, ...]] = {name: (name,) for name, value in given.items() if _is_array(value)}
    for name, value in given.items():
        if type(value) is dict:
            entries = {key: (name, key) for key, entry in value.items() if isinstance(key, str) and _is_array(entry)}
            places = {**{key: place for key, place in entries.items() if key not in given}, **places}
    return places


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, jax.Array))


def _at(given: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    return functools.reduce(operator.getitem, place, given)


def _with(given: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with other arrays in their places."""
    whole, places = dict(given), _places(given)
    for name, value in data.items():
        argument, *key = places[name]
        whole[argument] = {**whole[argument], key[0]: value} if key else value
    return whole


def _of_argument(
    made_of: Callable[[Mapping[str, Any]], Model],
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    data: Mapping[str, NDArray[Any]],
) -> Model | None:
    """The model whose functions take the arrays among its arguments; None where it decides by their numbers."""
    if options["init_strategy"] is not None:
        say_made_again(options["name"], "its init_strategy may depend on them")
        return None
    made = made_of(data)
    assert isinstance(made.log_density, functools.partial), "as from_numpyro makes it"
    users: traces.Users = made.log_density.args[0]
    if users.parts or users.empty:
        say_made_again(options["name"], "they decide which elements of its sites are observed")
        return None
    roles = [role for role in _OF_DRAWS if getattr(made, role) is not None]
    return taking_data(
        made, data, {role: functools.partial(_with_arrays, _OF_DRAWS[role], users, given) for role in roles}
    )


_OF_DRAWS: Mapping[str, Callable[..., Any]] = {
    "log_density": traces.log_density,
    "generated": traces.constrained,
    "log_likelihood": traces.log_likelihood,
    "predictive": traces.predictive,
}
"""The functions of a draw."""


def _with_arrays(function: Callable[..., Any], users: traces.Users, given: Mapping[str, Any], *arguments: Any) -> Any:
    """One of them whose last argument is arrays by name, in place of those that were given."""
    *own, data = arguments
    return function(users, (), _with(given, data), *own)


def _name_of(model: Any) -> str:
    inner = _users_function(model)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _users_function(model: Any) -> Any:
    """The user's function in handlers and partials around it."""
    while True:
        inner = getattr(model, "fn", None) or getattr(model, "func", None) or getattr(model, "__wrapped__", None)
        if not callable(inner):
            return model
        model = inner


# What is not a model


def _refuse_others(model: Any) -> None:
    if isinstance(model, str):
        raise ModelError(
            f"The NumPyro model is the string {model!r}; expected the function itself. (A config names one, as "
            "`model: {numpyro: package.module:function}`.)"
        )
    if isinstance(model, (numpyro.infer.MCMC, numpyro.infer.mcmc.MCMCKernel)):
        raise ModelError(
            f"The NumPyro model is a {type(model).__name__}, which is a sampler; expected the function that it samples."
        )
    if isinstance(model, type(jax.jit(lambda: 0))):
        raise ModelError(
            "The NumPyro model is wrapped in jax.jit, which hides its sites; give the function itself: batchnuts "
            "compiles it."
        )
    if isinstance(model, distributions.Distribution):
        raise ModelError(
            f"The NumPyro model is the distribution {type(model).__name__}; expected a function, as "
            f"`lambda: numpyro.sample('x', distribution)`."
        )
    if not callable(model):
        called = " (give the function, without calling it)" if model is None else ""
        raise ModelError(
            f"The NumPyro model is {shown(model)}{called}; expected a function with `numpyro.sample` statements."
        )


def _check_arguments(title: str, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    function = _users_function(model)
    target = model if isinstance(model, functools.partial) else function
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return
    clashing = [option for option in OPTIONS if option in signature.parameters]
    if isinstance(model, functools.partial):
        clashing = [option for option in clashing if option not in model.keywords]
    if clashing:
        raise ModelError(
            f"Model {title!r}: its argument {clashing[0]!r} has the name of an option of from_numpyro; bind it "
            f"beforehand: functools.partial({title}, {clashing[0]}=...)."
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((key for key in kwargs if key not in signature.parameters), "")
        reason = str(error)
        if unknown:
            reason = f"it has no argument {unknown!r}{nearest(unknown, (*signature.parameters, *OPTIONS))}"
        elif any(map(_is_key, args)):
            reason += "; leave out the key: a run takes its random numbers from a seed, sample_chains(..., seed=1)"
        raise ModelError(f"Model {title!r} takes {signature}, but the arguments given do not fit: {reason}.") from None


def _is_key(value: Any) -> bool:
    """Whether a value is a key of jax.random, in the new style or [2] of uint32."""
    if not isinstance(value, jax.Array):
        return False
    of_new_style = bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))
    return of_new_style or (value.dtype == np.uint32 and value.shape == (2,))


def _check_data(title: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], dtype: DType) -> None:
    """Raise ModelError for arguments that are masked arrays, whose masks JAX does not know, and as `_check_numbers`."""
    flat = jax.tree_util.tree_flatten_with_path((args, dict(kwargs)))[0]
    for path, leaf in flat:
        if isinstance(leaf, np.ma.MaskedArray):
            raise ModelError(
                f"Model {title!r}: the argument {_place(path)} is a masked array, whose mask NumPyro ignores. Give "
                "`y.filled(0.0)` and `~y.mask`, and leave out missing observations with numpyro.handlers.mask, "
                "or impute them with `obs_mask`."
            )
    _check_numbers(title, {f"the argument {_place(path)}": leaf for path, leaf in flat}, dtype)


def _check_numbers(title: str, data: Mapping[str, Any], dtype: DType) -> None:
    """Raise ModelError for numbers that JAX without 64 bits would silently wrap or turn into infinity."""
    for name, leaf in data.items():
        kind = getattr(getattr(leaf, "dtype", None), "kind", "")
        if dtype == "float64" or not isinstance(leaf, (np.ndarray, np.generic, jax.Array)) or kind not in "iuf":
            continue
        array = np.asarray(leaf)
        if array.dtype.itemsize < 8 and array.dtype != np.uint32:
            continue
        with np.errstate(over="ignore"):
            narrow = array.astype("float32" if kind == "f" else "int32")
        changed = (narrow != array) if kind != "f" else np.isinf(narrow) & np.isfinite(array)
        if changed.any():
            raise ModelError(
                f"Model {title!r}: {name} ({array.dtype}) has {array[changed].flat[0]}, which "
                f"does not fit into {narrow.dtype}; rescale it, or set dtype='float64'."
            )


def _around(model: Any) -> dict[str, Any]:
    """The variables outside of itself that a model's function reads, of a closure or a module.

    Not by `inspect.getclosurevars`, which takes attributes for variables of the module, and fails on closures whose
    variables have no value yet.
    """
    function = inspect.unwrap(model) if callable(model) else model
    if not inspect.isfunction(function):
        return {}
    read = {i.argval for i in dis.get_instructions(function) if i.opname == "LOAD_GLOBAL"}
    variables = {name: value for name, value in function.__globals__.items() if name in read}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it has no value yet
            variables[name] = cell.cell_contents
    return variables


def _place(path: tuple[Any, ...]) -> str:
    """The text for an argument, by its name or number."""
    key = path[1]
    return repr(getattr(key, "key", getattr(key, "idx", key)))


# What is computed beforehand


def _observed_data(bound: traces.Bound, sites: Sites, names: AxisNames, dtype: DType) -> Data:
    """The observations by name, with the names of their axes; without those that depend on latent sites."""
    values = {site.name: sites.values[site.name] for site in sites.sites if site.kind == "observed"}
    computed = sorted(name for name, value in values.items() if isinstance(value, jax.core.Tracer))
    if computed:  # within the model, of data
        originals = {saved: name for name, saved in sites.saved.items()}

        def run(key: Any, _: Any) -> list[Any]:
            trace = traces.first_trace(bound, key)
            return [trace[originals[name]]["value"] for name in computed]

        compiled = LIBRARY.compiled(run)
        first, second = (compiled(traces.key_of(seed), np.zeros((), dtype)) for seed in (0, 1))
        for name, value, again in zip(computed, first, second, strict=True):
            values[name] = value
            if not np.array_equal(value, again, equal_nan=True):
                del values[name]
    return {name: (names.of(name), np.asarray(value)) for name, value in values.items()}


def _computed_of_data(
    bound: traces.Bound, sites: Sites, zeros: dict[str, NDArray[Any]], seed: NDArray[Any]
) -> frozenset[str]:
    """The deterministic sites that change where the observations change."""
    names = [site.name for site in sites.sites if site.kind == "deterministic"]

    def drawn_again(seed: Any, *values: Any) -> list[Any]:
        return traces.drawn_again(*bound, dict(zip(zeros, values, strict=True)), names, seed)

    depends = LIBRARY.dependent(drawn_again, seed, *zeros.values()) if names else []
    return frozenset(name for name, does in zip(names, depends, strict=True) if does)


def _initializer(
    title: str, bound: traces.Bound, strategy: Any, dtype: DType
) -> Callable[[np.random.Generator, int], Any]:
    """Starts by one of NumPyro's strategies: unconstrained values by name [chains, ...]."""
    if not callable(strategy):
        raise ModelError(
            f"Model {title!r}: init_strategy is {shown(strategy)}; expected one of numpyro.infer.init_to_*."
        )

    def start_of(key: Any, _: Any) -> dict[str, Any]:
        with traces.HANDLERS:
            trace = traces.first_trace(bound, key, strategy)
            latent = [name for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]]
            values = bound[0].sampled({name: traces.unconstrained(trace[name]) for name in latent})
            return {traces.free_name(name): value for name, value in values.items()}

    many = LIBRARY.compiled(jax.vmap(start_of, in_axes=(0, None)))

    def starts(rng: np.random.Generator, chains: int) -> dict[str, NDArray[Any]]:
        keys = rng.integers(0, 2**32, size=(chains, 2), dtype="uint32")
        try:
            values = many(keys, np.zeros((), dtype))
        except Exception as error:
            raise failed(title, "its init_strategy", error) from error
        return {name: np.asarray(value) for name, value in values.items()}

    return starts
