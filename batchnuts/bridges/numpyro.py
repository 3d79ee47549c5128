"""`Model.from_numpyro`: a NumPyro model as a Model, whose variables are the unconstrained values of its latent sites.

NumPyro's own functions give the log-density and the values of sites (`numpyro.infer.util`), and run the user's function
each time that they are traced. What is known of sites beforehand (shapes, plates, observations) comes from one trace of
abstract values, in which nothing is computed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.bridges.tracing import LIBRARY, can_be_traced, in_dtype
from batchnuts.bridges.users import NUMPYRO, failed, refuse_names
from batchnuts.mcmc.model import Data, DType, Model
from batchnuts.mcmc.variables import ModelError, Variable
from batchnuts.settings.schema import nearest, shown
from batchnuts.stopping import say

NUMPYRO.require()

import jax  # noqa: E402
import numpyro  # noqa: E402

with NUMPYRO.importing():
    from numpyro import distributions

    from batchnuts.bridges import numpyro_traces as traces

OPTIONS = ("name", "dtype", "dims", "coords", "init_strategy")
"""Keywords that are not the model's."""

_RESERVED = frozenset({"chain", "draw"})


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
    """Make a model of a NumPyro model and the arguments with which it is called.

    Reported are its latent sites and its deterministic ones, under their names. Axes have the names of plates; `dims`
    names others, by the name of a site, and `coords` labels axes (of a plate, by its name). Observed sites give the
    observed data, pointwise log-likelihoods and posterior predictions; draws of the prior are made by running the
    model, unless it has factors or a prior that cannot be drawn.

    dtype: NumPyro computes in it, whatever `jax_enable_x64` says. init_strategy: one of `numpyro.infer.init_to_*`;
    default: uniform on (-2, 2) in unconstrained space, as NumPyro does. A model's own argument with the name of such an
    option is bound beforehand, by functools.partial.

    Raises ModelError for models that cannot be sampled: discrete latent sites, subsamples, `numpyro.param`, no latent
    site, wrong arguments, data that do not fit, and what the model itself raises.
    """
    title = name or _name_of(model)
    _refuse_others(model)
    _check_arguments(title, model, args, kwargs)
    _check_data(title, args, kwargs, dtype)
    bound: traces.Bound = (model, args, kwargs)
    found = _found_sites(title, bound, dtype)
    names = _AxisNames(title, found, dict(dims or {}))
    names.check_labels(coords or {})
    seed = np.zeros(2, "uint32")
    zeros = {traces.free_name(name): np.zeros(shape, dtype) for name, shape in found.free.items()}
    functions: dict[str, Any] = {}
    if any(site.kind == "observed" for site in found.sites):
        functions["log_likelihood"] = functools.partial(traces.log_likelihood, *bound)
        predictive = functools.partial(traces.predictive, *bound)

        def predict(seed: Any, *values: Any) -> Any:
            return predictive(dict(zip(zeros, values, strict=True)), seed)

        if can_be_traced(title, "posterior predictive draws", predict, seed, *zeros.values()):
            functions["predictive"] = predictive
    improper = [site.name for site in found.sites if site.improper]
    if improper:
        say(f"Model {title!r}: there will be no draws of the prior, since that of {improper[0]!r} is improper.")
    elif not any(site.kind == "factor" for site in found.sites):
        prior = functools.partial(traces.prior, *bound)
        if can_be_traced(title, "draws of the prior", lambda seed, _: prior(seed), seed, np.zeros((), dtype)):
            functions["prior"] = functools.partial(in_dtype, prior, dtype)
    if not any(site.kind in ("observed", "factor") for site in found.sites):
        say(f"Model {title!r}: no site is observed and there is no factor, so its draws are those of the prior.")
    reported = [site.name for site in found.sites if site.kind in ("latent", "deterministic")]
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
        observed_data=_observed_data(title, bound, found, names, dtype),
        generated=functools.partial(traces.constrained, *bound),
        dims={name: names.of(name) for name in reported},
        coords=dict(coords or {}),
        **functions,
    )


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
            f"The NumPyro model is the text {model!r}; expected the function itself. (A config names one, as "
            "`model: {numpyro: package.module:function}`.)"
        )
    if isinstance(model, (numpyro.infer.MCMC, numpyro.infer.mcmc.MCMCKernel)):
        raise ModelError(
            f"The NumPyro model is a {type(model).__name__}, which is a sampler; expected the function that it samples."
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
    given = model if isinstance(model, functools.partial) else function
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        return
    taken = [option for option in OPTIONS if option in signature.parameters]
    if isinstance(model, functools.partial):
        taken = [option for option in taken if option not in model.keywords]
    if taken:
        raise ModelError(
            f"Model {title!r}: its argument {taken[0]!r} has the name of an option of from_numpyro; bind it "
            f"beforehand: functools.partial({title}, {taken[0]}=...)."
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((key for key in kwargs if key not in signature.parameters), "")
        said = str(error)
        if unknown:
            said = f"it has no argument {unknown!r}{nearest(unknown, (*signature.parameters, *OPTIONS))}"
        elif any(map(_is_key, args)):
            said += "; leave out the key: a run takes its random numbers from a seed, sample_chains(..., seed=1)"
        raise ModelError(f"Model {title!r} takes {signature}, but the arguments given do not fit: {said}.") from None


def _is_key(value: Any) -> bool:
    """Whether it is a key of jax.random, in the new style or [2] of uint32."""
    if not isinstance(value, jax.Array):
        return False
    of_new_style = bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))
    return of_new_style or (value.dtype == np.uint32 and value.shape == (2,))


def _advice_on(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What to give in place of an argument that JAX does not compute with; empty if there is none."""
    for where, value in (*enumerate(args), *kwargs.items()):
        if hasattr(value, "to_numpy"):
            return f" The argument {where!r} is a {_kind_of(value)}: give .to_numpy() of it."
        if isinstance(value, list):
            return f" The argument {where!r} is a list: give numpy.array of it, if it is to be an array."
    return ""


def _check_data(title: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], dtype: DType) -> None:
    """Raise ModelError for numbers that JAX without 64 bits would silently wrap or turn into infinity."""
    if dtype == "float64":
        return
    for path, leaf in jax.tree_util.tree_flatten_with_path((args, dict(kwargs)))[0]:
        kind = getattr(getattr(leaf, "dtype", None), "kind", "")
        if not isinstance(leaf, (np.ndarray, np.generic, jax.Array)) or kind not in "iuf":
            continue
        array = np.asarray(leaf)
        if array.dtype.itemsize < 8 and array.dtype != np.uint32:
            continue
        with np.errstate(over="ignore"):
            narrow = array.astype("float32" if kind == "f" else "int32")
        changed = (narrow != array) if kind != "f" else np.isinf(narrow) & np.isfinite(array)
        if changed.any():
            key = path[1]
            where = repr(getattr(key, "key", getattr(key, "idx", key)))
            raise ModelError(
                f"Model {title!r}: the argument {where} ({array.dtype}) has {array[changed].flat[0]}, which does not "
                f"fit into {narrow.dtype}; rescale it, or set dtype='float64'."
            )


def _kind_of(table: Any) -> str:
    """Of pandas or another library: `Series of pandas`."""
    return f"{type(table).__name__} of {type(table).__module__.partition('.')[0]}"


# Its sites


@dataclass(frozen=True)
class Site:
    """What is known of a site before any value is."""

    name: str
    kind: str
    """"latent", "observed", "factor" or "deterministic"."""
    plates: tuple[tuple[str, int], ...] = ()
    """Names and dimensions (-1 the last) of the plates around it."""
    event_dims: int = 0
    event_names: tuple[str, ...] = ()
    """Of `infer={"event_dims": ...}`."""
    improper: bool = False


@dataclass(frozen=True)
class Found:
    """What one trace of a model tells."""

    sites: list[Site]
    """In the model's order."""
    shapes: dict[str, tuple[int, ...]]
    """Of their values, but for factors."""
    free: dict[str, tuple[int, ...]]
    """Of the unconstrained values of latent sites."""
    values: dict[str, Any]
    """Of observed sites: arrays, or JAX's tracers of what the model computes."""


def _found_sites(title: str, bound: traces.Bound, dtype: DType) -> Found:
    """The model's sites; raises ModelError where it cannot be sampled."""
    sites: list[Site] = []
    observed: dict[str, Any] = {}

    def run(key: Any, _: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        with traces.WholePlates(title):
            trace = traces.first_trace(bound, key)
        sites[:] = [site for name, found in trace.items() if (site := _site(title, name, found)) is not None]
        observed.update({site.name: trace[site.name]["value"] for site in sites if site.kind == "observed"})
        free = {site.name: traces.unconstrained(trace[site.name]) for site in sites if site.kind == "latent"}
        return {site.name: trace[site.name]["value"] for site in sites if site.kind != "factor"}, free

    try:
        shapes, free = LIBRARY.result_shapes(run, traces.key_of(0), np.zeros((), dtype))
    except ModelError as error:  # raised again, since JAX adds a remark on its own frames below the message
        raise ModelError(str(error)) from None
    except Exception as error:
        of_types = isinstance(error, TypeError) and not isinstance(error, jax.errors.ConcretizationTypeError)
        advice = _advice_on(*bound[1:]) if of_types else ""
        raise failed(title, "running it to find its sites", error, advice) from error
    if not free:
        known = ", ".join(f"{site.name} ({site.kind})" for site in sites)
        raise ModelError(
            f"Model {title!r} has no latent site, so there is nothing to sample; "
            + (f"its sites are {known}." if known else "it has no `numpyro.sample` statement.")
        )
    names = [*(site.name for site in sites), *(plate for site in sites for plate, _ in site.plates)]
    refuse_names(title, "site", names, "; `handlers.scope(..., divider='.')` makes names without")
    in_order = {site.name: free[site.name] for site in sites if site.kind == "latent"}
    return Found(sites, shapes, in_order, observed)


def _site(title: str, name: str, site: Mapping[str, Any]) -> Site | None:
    """One site of a trace, None where it is none to report; raises ModelError for one that cannot be sampled."""
    here = f"Model {title!r}: its site {name!r}"
    plates = tuple((frame.name, frame.dim) for frame in site.get("cond_indep_stack", ()))
    match site["type"]:
        case "param":
            raise ModelError(
                f"{here} is a `numpyro.param`, which is to be optimized; give it a prior by `numpyro.sample`, or make "
                "it a constant."
            )
        case "mutable":
            raise ModelError(f"{here} is a `numpyro.mutable`, whose value changes from call to call; leave it out.")
        case "deterministic":
            return Site(name, "deterministic", plates)
        case "sample":
            pass
        case _:
            return None
    distribution = site["fn"]
    if traces.is_factor(distribution):
        return Site(name, "factor")
    known = (plates, distribution.event_dim, tuple(site["infer"].get("event_dims", ())))
    if site["is_observed"]:
        _check_observed(here, site)
        return Site(name, "observed", *known)
    kind = type(traces.innermost(distribution)).__name__
    if distribution.support.is_discrete:
        raise ModelError(
            f"{here} is a discrete latent variable ({kind}), which NUTS cannot sample; sum it out (a mixture is "
            "`dist.MixtureSameFamily`, a hidden Markov chain a `jax.lax.scan` of its forward algorithm in "
            "`numpyro.factor`), or observe it. NumPyro's enumeration is not taken over."
        )
    if isinstance(traces.innermost(distribution), distributions.Delta):
        raise ModelError(f"{here} has a delta distribution; use `numpyro.deterministic` for a value without noise.")
    return Site(name, "latent", *known, isinstance(traces.innermost(distribution), distributions.ImproperUniform))


def _check_observed(here: str, site: Mapping[str, Any]) -> None:
    """Raise ModelError for observations that are no array of numbers, and where value and distribution blow each other
    up, as [8, 1] and [8] do to [8, 8].
    """
    given = site["value"]
    if hasattr(given, "to_numpy"):
        raise ModelError(f"{here} has observations in a {_kind_of(given)}; give .to_numpy() of it.")
    numbers = given.dtype.kind not in "OSUT" if hasattr(given, "dtype") else isinstance(given, (bool, int, float))
    if not numbers:
        found = f"an array of dtype {given.dtype}" if hasattr(given, "dtype") else f"a {type(given).__name__}"
        raise ModelError(
            f"{here} has observations that are no array of numbers, but {found}: {shown(given)}. Give an array of "
            "numbers, without texts and without None for a missing one."
        )
    value, expected = np.shape(site["value"]), tuple(site["fn"].shape())
    try:
        both = np.broadcast_shapes(value, expected)
    except ValueError:
        both = None
    if both not in (value, expected):
        raise ModelError(
            f"{here} has observations of shape {value}, but its distribution has shape {expected} (batch "
            f"{tuple(site['fn'].batch_shape)}, event {tuple(site['fn'].event_shape)}); give data of that shape, or "
            "correct plates and other data."
        )


class _AxisNames:
    """Names of axes: a plate's where it runs along one, else those that the user gives, else ArviZ's."""

    def __init__(self, title: str, found: Found, given: dict[str, Sequence[str]]) -> None:
        self._title, self._shapes = title, found.shapes
        reported = {site.name: site for site in found.sites if site.kind != "factor"}
        for name, axes in given.items():
            if name not in reported:
                hint = nearest(name, reported) or f"; its sites are {', '.join(reported)}"
                raise ModelError(f"Model {title!r}: dims has {name!r}, which is no site of it{hint}.")
            if len(axes) != len(found.shapes[name]):
                raise ModelError(
                    f"Model {title!r}: dims names {len(axes)} axes of {name!r}, which has shape {found.shapes[name]}."
                )
        lengths: dict[str, int] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for name, site in reported.items():
            shape = found.shapes[name]
            axes = list(given.get(name) or _axes_of(site, shape))
            for axis, length in enumerate(shape):
                if lengths.setdefault(axes[axis], length) != length or axes[axis] in _RESERVED:
                    axes[axis] = f"{name}_dim_{axis}"
            self._names[name] = tuple(axes)

    def of(self, name: str) -> tuple[str, ...]:
        """Of a site's axes."""
        return self._names[name]

    def check_labels(self, coords: Mapping[str, Sequence[Any]]) -> None:
        """Raise ModelError for labels of an axis that no site has, and for more or fewer than it has elements."""
        lengths = {
            axis: (length, name)
            for name, axes in self._names.items()
            for axis, length in zip(axes, self._shapes[name], strict=True)
        }
        for axis, labels in coords.items():
            if axis not in lengths:
                known = f"; its axes are {', '.join(lengths)}" if lengths else "; no site has an axis"
                raise ModelError(
                    f"Model {self._title!r}: coords has labels of {axis!r}, which is no axis of a site"
                    f"{nearest(axis, lengths) or known}."
                )
            length, name = lengths[axis]
            if len(labels) != length:
                raise ModelError(
                    f"Model {self._title!r}: coords has {len(labels)} labels of {axis!r}, but {name!r} has {length} "
                    "elements along it; give one label for each."
                )


def _axes_of(site: Site, shape: tuple[int, ...]) -> list[str]:
    """By plates, whose dimensions count from the last axis of a batch; of a deterministic site from the first axis."""
    axes = [f"{site.name}_dim_{axis}" for axis in range(len(shape))]
    events = site.event_dims
    if site.kind == "deterministic" and site.plates:
        events = len(shape) + min(dim for _, dim in site.plates)
    for name, dim in site.plates:
        if 0 <= (axis := len(shape) - events + dim) < len(shape):
            axes[axis] = name
    named = site.event_names[: site.event_dims]
    for place, name in enumerate(named):
        axes[len(shape) - site.event_dims + place] = name
    return axes


# What is computed beforehand


def _observed_data(title: str, bound: traces.Bound, found: Found, names: _AxisNames, dtype: DType) -> Data:
    """The observations by name, with the names of their axes; without those that depend on latent sites."""
    values = {site.name: found.values[site.name] for site in found.sites if site.kind == "observed"}
    computed = sorted(name for name, value in values.items() if isinstance(value, jax.core.Tracer))
    if computed:  # within the model, of data
        compiled = LIBRARY.compiled(lambda key, _: [traces.first_trace(bound, key)[name]["value"] for name in computed])
        first, other = (compiled(traces.key_of(seed), np.zeros((), dtype)) for seed in (0, 1))
        for name, one, two in zip(computed, first, other, strict=True):
            values[name] = one
            if not np.array_equal(one, two, equal_nan=True):
                del values[name]
    return {name: (names.of(name), np.asarray(value)) for name, value in values.items()}


def _initializer(
    title: str, bound: traces.Bound, strategy: Any, dtype: DType
) -> Callable[[np.random.Generator, int], Any]:
    """Starts by one of NumPyro's strategies: unconstrained values by name [chains, ...]."""
    if not callable(strategy):
        raise ModelError(
            f"Model {title!r}: init_strategy is {shown(strategy)}; expected one of numpyro.infer.init_to_*."
        )

    def one(key: Any, _: Any) -> dict[str, Any]:
        with traces.HANDLERS:
            trace = traces.first_trace(bound, key, strategy)
            latent = [name for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]]
            return {traces.free_name(name): traces.unconstrained(trace[name]) for name in latent}

    many = LIBRARY.compiled(jax.vmap(one, in_axes=(0, None)))

    def starts(rng: np.random.Generator, chains: int) -> dict[str, NDArray[Any]]:
        keys = rng.integers(0, 2**32, size=(chains, 2), dtype="uint32")
        try:
            found = many(keys, np.zeros((), dtype))
        except Exception as error:
            raise failed(title, "its init_strategy", error) from error
        return {name: np.asarray(value) for name, value in found.items()}

    return starts
