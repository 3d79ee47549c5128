"""The sites of a NumPyro model, found in one trace, and the names of their axes.

Imported by numpyro.py, which first looks whether the library is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpyro import distributions

from batchnuts.bridges import numpyro_traces as traces
from batchnuts.bridges.errors import failed, names_in_files
from batchnuts.bridges.tracing import LIBRARY
from batchnuts.mcmc.model.model import DType
from batchnuts.mcmc.model.variables import RESERVED, ModelError
from batchnuts.settings.schema import nearest, sentence, shown


@dataclass(frozen=True)
class Site:
    """What is known of a site before any value is known."""

    name: str
    kind: str
    """"latent", "observed", "factor" or "deterministic"."""
    plates: tuple[tuple[str, int, int], ...] = ()
    """Names, dimensions (-1 the last) and sizes of the plates around it."""
    event_dims: int = 0
    event_names: tuple[str, ...] = ()
    """Names of the event axes: those of `infer={"event_dims": ...}`."""
    improper: bool = False


@dataclass(frozen=True)
class Sites:
    """The sites of a model, from one trace of it."""

    sites: list[Site]
    """In the model's order."""
    shapes: dict[str, tuple[int, ...]]
    """Shapes of the values of sites other than factors."""
    free: dict[str, tuple[int, ...]]
    """Shapes of the unconstrained values of latent sites."""
    values: dict[str, Any]
    """Values of observed sites: arrays, or JAX's tracers of what the model computes."""
    parts: dict[str, traces.Part]
    """Latent sites that are sampled in part; `shapes` and `free` are those of the part."""
    empty: dict[str, tuple[int, ...]]
    """Shapes of the unconstrained values of latent sites of which nothing is sampled. Keys of both are NumPyro's."""
    saved: dict[str, str]
    """By the name that a site has in NumPyro: its name in files, and here."""


def sites_of(title: str, bound: traces.Bound, dtype: DType) -> Sites:
    """The model's sites; raises ModelError where it cannot be sampled."""
    sites: list[Site] = []
    observed: dict[str, Any] = {}
    masks: dict[str, tuple[Any, tuple[int, ...]]] = {}

    def run(key: Any, _: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        with traces.WholePlates(title):
            trace = traces.first_trace(bound, key)
        sites[:] = [site for name, record in trace.items() if (site := _site(title, name, record)) is not None]
        for site in sites:
            if _is_rest_of_observed(site, trace) and (mask := _mask_of(trace[site.name]["fn"])) is not None:
                masks[site.name] = (mask, tuple(trace[site.name]["fn"].batch_shape))
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
    parts = _parts(bound, masks, dtype)
    empty = {name: free.pop(name) for name, part in parts.items() if not part.places}
    for name in empty:
        del shapes[name], parts[name]
    sites[:] = [_of_part(site, parts) for site in sites if site.name not in empty]
    for name, part in parts.items():
        for sizes in (shapes, free):
            sizes[name] = (len(part.places), *sizes[name][len(part.batch) :])
    if not free:
        listed = ", ".join(f"{site.name} ({site.kind})" for site in sites)
        raise ModelError(
            f"Model {title!r} has no latent site, so there is nothing to sample; "
            + (f"its sites are {listed}." if listed else "it has no `numpyro.sample` statement.")
        )
    for site in sites:
        if site.kind == "latent" and 0 in shapes[site.name]:
            raise ModelError(
                f"Model {title!r}: its site {site.name!r} has shape {shapes[site.name]}, so there is nothing to "
                "sample; leave it out."
            )
    names = names_in_files(title, "site", [*(site.name for site in sites), *empty])
    plates = names_in_files(title, "plate", [plate for site in sites for plate, *_ in site.plates])
    in_order = {names[site.name]: free[site.name] for site in sites if site.kind == "latent"}
    renamed = [
        replace(
            site, name=names[site.name], plates=tuple((plates[plate], dim, size) for plate, dim, size in site.plates)
        )
        for site in sites
    ]
    return Sites(
        renamed,
        {names[name]: shape for name, shape in shapes.items()},
        in_order,
        {names[name]: value for name, value in observed.items()},
        parts,
        empty,
        names,
    )


def _is_rest_of_observed(site: Site, trace: Mapping[str, Any]) -> bool:
    """Whether NumPyro made the site of `obs_mask`: then what its mask leaves out reaches nothing, while a latent site
    that a user masks may have a density elsewhere."""
    whole = site.name.removesuffix("_unobserved")
    others = (trace.get(name) for name in (whole, f"{whole}_observed"))
    value, observed = (None if beside is None else beside["type"] for beside in others)
    return site.kind == "latent" and site.name != whole and (value, observed) == ("deterministic", "sample")


def _mask_of(distribution: Any) -> Any:
    """The mask of a site's batch, or None."""
    while isinstance(distribution, distributions.ExpandedDistribution):
        distribution = distribution.base_dist
    return distribution._mask if isinstance(distribution, distributions.MaskedDistribution) else None


def _parts(bound: traces.Bound, masks: dict[str, tuple[Any, tuple[int, ...]]], dtype: DType) -> dict[str, traces.Part]:
    """The parts of these sites that are sampled. masks: with batch shapes; one that the model computes counts if it is
    computed of data alone."""
    computed = [name for name, (mask, _) in masks.items() if isinstance(mask, jax.core.Tracer)]
    concrete = {name: mask for name, (mask, _) in masks.items() if name not in computed}
    if computed:

        def run(key: Any, _: Any) -> list[Any]:
            trace = traces.first_trace(bound, key)
            return [_mask_of(trace[name]["fn"]) for name in computed]

        first, second = (LIBRARY.compiled(run)(traces.key_of(seed), np.zeros((), dtype)) for seed in (0, 1))
        same = [name for name, a, b in zip(computed, first, second, strict=True) if np.array_equal(a, b)]
        concrete |= {name: mask for name, mask in zip(computed, first, strict=True) if name in same}
    left = {name: np.broadcast_to(np.asarray(mask), masks[name][1]) for name, mask in concrete.items()}
    return {
        name: traces.Part(mask.shape, tuple(map(int, np.flatnonzero(mask))))
        for name, mask in left.items()
        if not mask.all()
    }


def _of_part(site: Site, parts: Mapping[str, traces.Part]) -> Site:
    """Elements of several plates have one axis."""
    return replace(site, plates=(), event_names=()) if site.name in parts else site


def _site(title: str, name: str, site: Mapping[str, Any]) -> Site | None:
    """One site of a trace, None where it is none to report; raises ModelError for one that cannot be sampled."""
    subject = f"Model {title!r}: its site {name!r}"
    plates = tuple((frame.name, frame.dim, frame.size) for frame in site.get("cond_indep_stack", ()))
    match site["type"]:
        case "param":
            raise ModelError(
                f"{subject} is a `numpyro.param`, which is to be optimized; give it a prior by `numpyro.sample`, or "
                "make it a constant."
            )
        case "mutable":
            raise ModelError(f"{subject} is a `numpyro.mutable`, whose value changes from call to call; leave it out.")
        case "deterministic":
            return Site(name, "deterministic", plates)
        case "sample":
            pass
        case _:
            return None
    distribution = site["fn"]
    if traces.is_factor(distribution):
        return Site(name, "factor")
    fields = (plates, distribution.event_dim, _names_in(site["infer"].get("event_dims", ())))
    if site["is_observed"]:
        _check_observed(subject, site)
        return Site(name, "observed", *fields)
    kind = type(traces.innermost(distribution)).__name__
    if distribution.support.is_discrete:
        raise ModelError(
            f"{subject} is a discrete latent variable ({kind}), which NUTS cannot sample; sum it out (a mixture is "
            "`dist.MixtureSameFamily`, a hidden Markov chain a `jax.lax.scan` of its forward algorithm in "
            "`numpyro.factor`), or observe it. NumPyro's enumeration is not supported."
        )
    if isinstance(traces.innermost(distribution), distributions.Delta):
        raise ModelError(f"{subject} has a delta distribution; use `numpyro.deterministic` for a value without noise.")
    return Site(name, "latent", *fields, isinstance(traces.innermost(distribution), distributions.ImproperUniform))


def _check_observed(subject: str, site: Mapping[str, Any]) -> None:
    """Raise ModelError for observations that are no array of numbers, and where value and distribution broadcast to a
    larger shape, as [8, 1] and [8] do to [8, 8].
    """
    data = site["value"]
    if hasattr(data, "to_numpy"):
        raise ModelError(f"{subject} has observations in a {_kind_of(data)}; pass its .to_numpy().")
    numbers = data.dtype.kind not in "OSUT" if hasattr(data, "dtype") else isinstance(data, (bool, int, float))
    if not numbers:
        kind = f"an array of dtype {data.dtype}" if hasattr(data, "dtype") else f"a {type(data).__name__}"
        raise ModelError(
            f"{subject} has observations that are not an array of numbers, but {kind}: {shown(data)}. Give an array of "
            "numbers, without strings, and without None for a missing one."
        )
    value, expected = np.shape(site["value"]), tuple(site["fn"].shape())
    try:
        both = np.broadcast_shapes(value, expected)
    except ValueError:
        both = None
    if both not in (value, expected):
        raise ModelError(
            f"{subject} has observations of shape {value}, but its distribution has shape {expected} (batch "
            f"{tuple(site['fn'].batch_shape)}, event {tuple(site['fn'].event_shape)}); give data of that shape, or "
            "correct plates and other data."
        )


class AxisNames:
    """Names of axes: a plate's where it runs along one, else those that the user gives, else ArviZ's."""

    def __init__(self, title: str, sites: Sites, dims: Mapping[str, Sequence[str]]) -> None:
        self._title, self._shapes = title, sites.shapes
        reported = {site.name: site for site in sites.sites if site.kind != "factor"}
        for name, axes in dims.items():
            if name not in reported:
                hint = nearest(name, reported) or f"; its sites are {', '.join(reported)}"
                raise ModelError(sentence(f"Model {title!r}: dims has {name!r}, which is not one of its sites{hint}"))
            if len(axes) != len(sites.shapes[name]):
                raise ModelError(
                    f"Model {title!r}: dims names {len(axes)} axes of {name!r}, which has shape {sites.shapes[name]}."
                )
        lengths: dict[str, int] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for name, site in reported.items():
            shape = sites.shapes[name]
            axes = list(dims.get(name) or _axes_of(site, shape))
            for axis, length in enumerate(shape):
                of_another = lengths.setdefault(axes[axis], length) != length
                if name in dims and (of_another or axes[axis] in RESERVED):
                    why = f"has {lengths[axes[axis]]} elements elsewhere" if of_another else "is an axis of all draws"
                    raise ModelError(
                        f"Model {title!r}: dims calls an axis of {name!r}, of length {length}, {axes[axis]!r}, which "
                        f"{why}. Choose another name."
                    )
                if of_another or axes[axis] in RESERVED:
                    axes[axis] = f"{name}_dim_{axis}"
            self._names[name] = tuple(axes)

    def of(self, name: str) -> tuple[str, ...]:
        """The names of a site's axes."""
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
                hint = f"; its axes are {', '.join(lengths)}" if lengths else "; no site has an axis"
                raise ModelError(
                    sentence(
                        f"Model {self._title!r}: coords has labels of {axis!r}, which is not an axis of a site"
                        f"{nearest(axis, lengths) or hint}"
                    )
                )
            length, name = lengths[axis]
            if len(labels) != length:
                raise ModelError(
                    f"Model {self._title!r}: coords has {len(labels)} labels of {axis!r}, but {name!r} has {length} "
                    "elements along it; give one label for each."
                )


def _names_in(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _axes_of(site: Site, shape: tuple[int, ...]) -> list[str]:
    """The axes by plates, whose dimensions count from a batch's last axis; of a deterministic site from the first."""
    axes = [f"{site.name}_dim_{axis}" for axis in range(len(shape))]
    events = site.event_dims
    if site.kind == "deterministic" and site.plates:
        events = len(shape) + min(dim for _, dim, _ in site.plates)
    for name, dim, size in site.plates:
        if 0 <= (axis := len(shape) - events + dim) < len(shape) and shape[axis] == size:
            axes[axis] = name
    named = site.event_names[: site.event_dims]
    for place, name in enumerate(named):
        axes[len(shape) - site.event_dims + place] = name
    return axes


def _advice_on(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What to give in place of an argument that JAX does not compute with; empty if there is none."""
    for where, value in (*enumerate(args), *kwargs.items()):
        if hasattr(value, "to_numpy"):
            return f" The argument {where!r} is a {_kind_of(value)}: pass its .to_numpy()."
        if isinstance(value, list):
            return f" The argument {where!r} is a list: pass numpy.array of it if it should be an array."
    return ""


def _kind_of(table: Any) -> str:
    """The class of a value of pandas or another library, as `Series of pandas`."""
    return f"{type(table).__name__} of {type(table).__module__.partition('.')[0]}"
