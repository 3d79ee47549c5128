"""What a sampler needs from a model: its log-density for one chain, and the names and starts of its positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import ops
from batchnuts.autobatch.machine import library_of
from batchnuts.mcmc.model.data_argument import (
    Remade,
    checked_argument,
    data_groups,
    fitted_argument,
    replaced,
    types_of,
    with_leaves,
)
from batchnuts.mcmc.model.declarations import Parameter, declared_variables
from batchnuts.mcmc.model.failures import ends_nothing
from batchnuts.mcmc.model.findings import ModelCheck
from batchnuts.mcmc.model.from_libraries import FromLibraries, later
from batchnuts.mcmc.model.model_cache import ModelCache
from batchnuts.mcmc.model.named_parameters import NamedParameters, arrays_by_name
from batchnuts.mcmc.model.supports import SupportError
from batchnuts.mcmc.model.users_initializer import INITIALIZER, initialized
from batchnuts.mcmc.model.variables import (
    Data,
    Labels,
    ModelError,
    Variable,
    check_axes,
    check_bounds,
    check_group,
    checked_data,
    checked_dims,
    checked_labels,
    refuse_unknown_names,
)
from batchnuts.mcmc.model.wrapping import how_to_wrap
from batchnuts.settings.schema import in_words, nearest, shown

__all__ = ["DType", "Data", "Model", "ModelError", "Parameter", "Variable"]

DType = Literal["float32", "float64"]

NaturalScale = Callable[[Any], tuple[Mapping[str, Any], Any]]
"""A function of a dict of the variables' values: the parameters in their natural scale, by name, and the log-density of
these, without a Jacobian."""

DATA_GROUPS = ("observed_data", "constant_data", "ground_truth")
"""Fields of a Model that are stored with the draws, as groups of the same names."""


_MOST_SHOWN = 20
"""Variables that `repr` names."""


@dataclass(frozen=True, eq=False)
class OfDraw:
    """All that is computed of a draw, by one function of its flat position and a seed: name -> array by role."""

    function: Callable[..., Mapping[str, Mapping[str, Any]]]
    roles: frozenset[str]
    """Of "generated", "log_likelihood" and "predictive": those that are used of its results."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Model(FromLibraries):
    """A log-density of some variables.

    `variables`: their names, shapes and supports, in order (default: one real vector called `position`). The sampler's
    position is a flat vector of `dimension` real numbers, from which their values are made (`constrain`).

    `log_density`: a function of ONE chain's values, without a batch axis, to a scalar of the model's dtype, known up
    to a constant. Where `structured` is true it takes a dict from each variable's name to its value, and is the density
    of these values: the Jacobians of their supports are added here. Otherwise it takes the flat position, and all
    variables are real. It is written with TensorFlow, JAX or `batchnuts.autobatch.ops`, so that it can be
    differentiated.

    `reports_variables`: whether the variables are reported. False for models of other libraries, which make parameters
    of the variables themselves: then `generated` gives all parameters. `natural_scale`: what makes a NaturalScale of
    such a model, with which `check` compares the Jacobians of the other library.

    `batched_value_and_gradient`: an optional twin of the density, batched by hand for speed: positions
    [lanes, dimension] -> (log_density [lanes], gradient [lanes, dimension]). It must agree with `flat_log_density`.

    `initializer`: an optional (rng, chains) -> positions [chains, dimension], or a dict of values [chains, *shape]; see
    `initial_positions`.

    `observed_data`, `constant_data`: name -> array, or (dims, array), stored with the draws. So is `ground_truth`, what
    is known of a quantity of the posterior: arrays whose first axis is `statistic`.

    What is computed from draws, each by a function of one draw, batched over all (quantities.py): `generated`, of a
    dict of values to a dict of further quantities; `log_likelihood`, to the log-density of each observation;
    `predictive`, of values and a seed to data like those observed; `prior`, of a seed to a dict of values. The seed is
    an array of two 32-bit integers, a key for `jax.random`, `batchnuts.autobatch.random`, and TensorFlow's stateless
    functions. `dims` and `coords` name the axes of their results, and label them; results come in the order of `dims`.
    (`from_function` names the axes of variables by `dims`, too.)
    `of_draw`: in place of `generated`, `log_likelihood` and `predictive`, all of them at once. `parameters`: names by
    which another library's parameters may be given in place of variables. `rejection`: what that library says of a
    position [dimension] at which it has no density; nothing where it has one.
    `of_data`: names of generated quantities that are computed from the data: draws of the prior have none of these.

    `data`: an array, or a dict or other structure of arrays, that all of these functions take as a last argument.
    `with_data` gives the same model of other data, whose compiled programs are the
    same. Then `observed_data` may be names of its entries; the others are stored as constant data.

    `remade`: how `with_data` makes a model of another library again for other data, where its functions take none.

    `library`: what `log_density` is written in, "jax" or "tensorflow", where that is known; None: it is found out.
    `computed_by`: what a run's summary says of who computes it, if that is neither a library nor written with `ops`.

    The density is traced once, and its compiled programs are kept with the model for later runs. So values of its
    closure, arrays for example, must not change; if they have changed when a run begins, it is traced again, as far as
    the change can be detected (docs/model_details.md).

    Raises ModelError where these contradict each other.
    """

    name: str
    log_density: Callable[[Any], Any]
    dimension: int
    dtype: DType = "float32"
    variables: tuple[Variable, ...] = ()
    structured: bool = False
    reports_variables: bool = True
    natural_scale: Callable[[], NaturalScale] | None = None
    batched_value_and_gradient: Callable[[Any], tuple[Any, Any]] | None = None
    initializer: Callable[[np.random.Generator, int], Any] | None = None
    observed_data: Data = field(default_factory=dict)
    constant_data: Data = field(default_factory=dict)
    ground_truth: Data = field(default_factory=dict)
    generated: Callable[[Any], Any] | None = None
    log_likelihood: Callable[[Any], Any] | None = None
    predictive: Callable[[Any, Any], Any] | None = None
    prior: Callable[[Any], Any] | None = None
    of_draw: OfDraw | None = None
    parameters: NamedParameters | None = None
    rejection: Callable[[NDArray[Any]], str] | None = None
    of_data: frozenset[str] = frozenset()
    data: Any = None
    remade: Remade | None = None
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coords: Labels = field(default_factory=dict)
    library: Literal["jax", "tensorflow"] | None = None
    computed_by: str = ""

    cache: ModelCache = field(default_factory=ModelCache, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.log_density):
            raise ModelError(
                f"Model {self.name!r}: log_density is {self.log_density!r}; expected a function."
                f"{how_to_wrap(self.log_density)}"
            )
        if self.initializer is not None and not callable(self.initializer):
            raise ModelError(
                f"Model {self.name!r}: its initializer is a {type(self.initializer).__name__}; expected {INITIALIZER}."
                " One that always returns the same array is `lambda rng, chains: array`."
            )
        for role in ("generated", "log_likelihood", "predictive", "prior"):
            function = getattr(self, role)
            if function is not None and not callable(function):
                raise ModelError(f"Model {self.name!r}: {role} is {function!r}; expected a function.")
        if isinstance(self.dimension, bool) or not isinstance(self.dimension, int) or self.dimension < 1:
            raise ModelError(
                f"Model {self.name!r}: dimension is {self.dimension!r}; expected an integer of at least 1."
            )
        if self.dtype not in ("float32", "float64"):
            raise ModelError(f"Model {self.name!r}: dtype is {self.dtype!r}; expected 'float32' or 'float64'.")
        owner = f"Model {self.name!r}"
        object.__setattr__(self, "dims", checked_dims(owner, self.dims))
        if self.data is not None:
            object.__setattr__(self, "data", checked_argument(owner, self.data, self.dtype))
            observed, constant = data_groups(owner, self.data, self.observed_data, self.constant_data)
            object.__setattr__(self, "observed_data", observed)
            object.__setattr__(self, "constant_data", constant)
            if self.batched_value_and_gradient is not None:
                raise ModelError(f"{owner}: a density whose data are an argument has no batched_value_and_gradient.")
        if not self.variables:
            flat = Variable("position", (self.dimension,), self.dims.get("position"))  # type: ignore[arg-type]
            object.__setattr__(self, "variables", (flat,))
        names = [variable.name for variable in self.variables]
        if len(set(names)) != len(names):
            raise ModelError(f"Model {self.name!r}: two variables share a name; the variables are {', '.join(names)}.")
        total = sum(variable.free for variable in self.variables)
        if total != self.dimension:
            layout = ", ".join(f"{variable.name}{list(variable.shape)}" for variable in self.variables)
            raise ModelError(
                f"Model {self.name!r}: its variables ({layout}) are made of {in_words(total, 'real number')} together, "
                f"but its dimension is {self.dimension}."
            )
        if not self.structured and not self.is_real:
            constrained = next(variable.name for variable in self.variables if not variable.is_real)
            raise ModelError(
                f"Model {self.name!r}: variable {constrained!r} has a support, so its log_density takes a dict of "
                "values; set structured=True."
            )
        check_bounds(owner, self.variables, self.dtype)
        object.__setattr__(self, "coords", checked_labels(owner, self.coords))
        if not isinstance(self.of_data, (frozenset, set, list, tuple)):
            raise ModelError(f"{owner}: of_data is {shown(self.of_data)}; expected a set of names.")
        object.__setattr__(self, "of_data", frozenset(self.of_data))
        labels = self.labels()
        check_group(owner, {v.name: (v.axis_names, v.shape) for v in self.variables}, labels)
        for group in DATA_GROUPS:
            data = checked_data(f"{owner}: {group}", getattr(self, group), self.dims)
            object.__setattr__(self, group, data)
            arrays = {key: (dims, np.shape(array)) for key, (dims, array) in data.items()}
            check_group(f"{owner}: {group}", arrays, labels, of_draws=False)
        if not self.reports_variables and not self.gives("generated"):
            raise ModelError(f"Model {self.name!r}: its variables are not reported, so it needs `generated`.")
        if self.reports_variables:
            check_axes(owner, self.variables, self.dims, self.coords)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "cache"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, cache=ModelCache())

    @classmethod
    def from_function(
        cls,
        log_density: Callable[[Any], Any],
        *,
        dimension: int | None = None,
        variables: Mapping[str, Parameter | Sequence[int]] | None = None,
        name: str | None = None,
        dtype: DType = "float32",
        **fields: Any,
    ) -> Model:
        """Make a model from a user's function: of a flat vector (give `dimension`), or of a dict (give `variables`).

        `variables` maps names to supports or shapes, e.g. `{"mu": real(), "tau": positive(), "theta": [8]}`; a shape
        stands for real numbers. `fields` are the others of a Model: `initializer`, `observed_data`, `generated`, ...
        Raises ModelError unless exactly one of `dimension` and `variables` is given, and for unknown fields.
        """
        title = name or str(getattr(log_density, "__name__", "model"))
        if unknown := sorted(fields.keys() - _FIELDS):
            near = nearest(unknown[0], sorted(_FIELDS | {"dimension", "variables", "name", "dtype"}))
            raise ModelError(f"Model {title!r}: there is no field {unknown[0]!r}{near or '.'}")
        if (dimension is None) == (variables is None):
            raise ModelError(
                "Give exactly one of dimension (for a flat position) and variables (for a dict of arrays)."
            )
        if variables is None:
            assert dimension is not None
            return cls(
                name=title, log_density=log_density, dimension=dimension, dtype=dtype, **fields
            )._with_known_names()
        layout = declared_variables(title, variables, checked_dims(f"Model {title!r}", fields.get("dims")))
        total = sum(variable.free for variable in layout)
        all_fields = {**fields, "variables": layout, "structured": True}
        return cls(name=title, log_density=log_density, dimension=total, dtype=dtype, **all_fields)._with_known_names()

    def _with_known_names(self) -> Model:
        """Itself; raises ModelError where dims or coords have other names, unless those may be a function's results."""
        if self.prior is None and not any(map(self.gives, ("generated", "log_likelihood", "predictive"))):
            refuse_unknown_names(f"Model {self.name!r}", self.dims, self.coords, self.axes())
        return self

    def gives(self, role: str) -> bool:
        """Whether a draw gives anything in a role: "generated", "log_likelihood" or "predictive"."""
        return getattr(self, role) is not None or (self.of_draw is not None and role in self.of_draw.roles)

    def without(self, roles: Collection[str]) -> Model:
        """The model whose draws give nothing in these roles; "prior": nor anything of the prior."""
        if not any(map(self.gives, roles)) and not ("prior" in roles and self.prior is not None):
            return self
        functions: dict[str, Any] = dict.fromkeys(roles)
        if self.of_draw is not None:
            functions["of_draw"] = replace(self.of_draw, roles=self.of_draw.roles.difference(roles))
        return replace(self, **functions)

    @property
    def is_real(self) -> bool:
        """Whether no variable has a support: then a position holds the values themselves."""
        return all(variable.is_real for variable in self.variables)

    @property
    def size(self) -> int:
        """Number of elements of all values in one chain."""
        return sum(variable.size for variable in self.variables)

    @property
    def value_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what `unconstrain` takes, by name."""
        if self.parameters is not None:
            return dict(self.parameters.shapes)
        return {variable.name: variable.shape for variable in self.variables}

    def constrain(self, position: Any) -> dict[str, Any]:
        """The values at flat positions [..., dimension]: name -> array [..., *shape].

        Takes arrays of NumPy, TensorFlow and JAX (inside traced code too) and gives back the same kind.
        """
        return self._constrain(position)[0]

    def unconstrain(self, values: Mapping[str, Any]) -> NDArray[Any]:
        """Inverse of `constrain` in NumPy: name -> array [..., *shape], to positions [..., dimension]; where there are
        `parameters`, of their values, or of those of the variables.

        Raises ModelError for a missing or unknown name, a shape that does not end as declared, or a value outside of
        its support.
        """
        try:
            return self._unconstrain(values)
        except SupportError as error:
            raise ModelError(f"Model {self.name!r}: {error}.") from None

    def values_at(self, positions: NDArray[Any]) -> dict[str, NDArray[Any]] | None:
        """What `unconstrain` takes, at positions [n, dimension] in NumPy: name -> array [n, *shape]; None where
        another library does not tell."""
        if self.parameters is None:
            return {name: np.asarray(array) for name, array in self.constrain(positions).items()}
        if (constrained := self.parameters.constrained) is None:
            return None
        rows = [constrained(row) for row in positions.astype("float64")]
        return {name: np.stack([row[name] for row in rows]) for name in self.parameters.shapes}

    def _unconstrain(self, values: Mapping[str, Any]) -> NDArray[Any]:
        shapes = {variable.name: variable.shape for variable in self.variables}
        if self.parameters is not None and (set(values) != set(shapes) or set(values) == set(self.parameters.shapes)):
            return self.parameters.positions(values).astype(self.dtype)
        arrays, _ = arrays_by_name(values, shapes, self.dtype)
        rows = []
        for variable in self.variables:
            try:
                row = variable.support.unconstrain(arrays[variable.name], variable.shape)
            except SupportError as error:
                raise SupportError(f"{variable.name!r} {error}") from None
            rows.append(row.astype(self.dtype))
        return np.concatenate(rows, axis=-1)

    def elements(self, position: NDArray[Any]) -> NDArray[Any]:
        """The values at positions [..., dimension] side by side: [..., size], in the order of `element_names`."""
        if self.is_real:
            return position
        with np.errstate(all="ignore"):
            values = self.constrain(position)
        lead = position.shape[:-1]
        return np.concatenate([values[v.name].reshape(*lead, v.size) for v in self.variables], axis=-1)

    @ends_nothing
    def flat_log_density(self, position: Any, *leaves: Any) -> Any:
        """The log-density of one chain's flat position [dimension]: that of its values, and the supports' Jacobians.

        leaves: arrays in place of those of the data, if the density takes data.
        """
        data = self.data_argument(*leaves)
        if not self.structured:
            return self.log_density(position, *data)
        values, log_jacobian = self._constrain(position)
        density = self.log_density(values, *data)
        if log_jacobian is None or not _can_be_added(density, log_jacobian):  # the check says what it should be
            return density
        return density + log_jacobian

    def data_argument(self, *leaves: Any) -> tuple[Any, ...]:
        """What its functions take after their other arguments: the data, if any; leaves: as of `flat_log_density`."""
        if self.data is None:
            return ()
        return (with_leaves(self.data, leaves) if leaves else self.data,)

    def with_data(self, data: Any) -> Model:
        """The same model of other data, a structure like its own. Arrays may have other lengths; programs are compiled
        once for all data of the same shapes. Raises ModelError for another structure, and a model without data."""
        owner = f"Model {self.name!r}"
        if self.remade is not None:
            made: Model = self.remade.make(self.remade.whole(owner, data))
            return made
        if self.data is None:
            raise ModelError(f"{owner}: its functions take no data; make it with data=..., an example of its data.")
        fitted = fitted_argument(owner, self.data, data, self.dtype)
        other = object.__new__(type(self))
        groups = {group: replaced(getattr(self, group), fitted) for group in ("observed_data", "constant_data")}
        other.__dict__.update(self.__dict__, data=fitted, **groups)
        if types_of(fitted) != types_of(self.data):
            other.__dict__.update(cache=ModelCache())
            for group in groups:
                arrays = {key: (dims, np.shape(array)) for key, (dims, array) in getattr(other, group).items()}
                check_group(f"{owner}: {group}", arrays, other.labels(), of_draws=False)
        return other

    def _constrain(self, position: Any) -> tuple[dict[str, Any], Any]:
        """Values by name, and the sum of their log-Jacobians [...]; None where all are real."""
        values: dict[str, Any] = {}
        total = None
        parts = library_of(position).parts_of_last_axis(position, [variable.free for variable in self.variables])
        for variable, part in zip(self.variables, parts, strict=True):
            value, log_jacobian = variable.support.constrain(part, variable.shape)
            values[variable.name] = value
            if log_jacobian is not None:
                total = log_jacobian if total is None else total + log_jacobian
        return values, total

    def initial_positions(self, rng: np.random.Generator, chains: int) -> NDArray[Any]:
        """Starting points [chains, dimension] in the model's dtype: `initializer`'s, or uniform on (-2, 2) as in Stan.

        An initializer may give positions, or values by name.

        Raises ModelError where an initializer's result has another shape or holds NaN or infinity.
        """
        if self.initializer is None:
            return rng.uniform(-2.0, 2.0, size=(chains, self.dimension)).astype(self.dtype)
        return initialized(self.name, self.initializer, rng, (chains, self.dimension), self.dtype, self._unconstrain)

    def __repr__(self) -> str:
        """One line: data and functions would fill pages of a notebook."""
        shapes = self.value_shapes
        named = [f"{name}{list(shape) if shape else ''}" for name, shape in list(shapes.items())[:_MOST_SHOWN]]
        more = f", and {len(shapes) - _MOST_SHOWN} more" if len(shapes) > _MOST_SHOWN else ""
        size = f"{self.dimension} number{'s' * (self.dimension != 1)}"
        return f"<Model {self.name!r} of {size}, {self.dtype}: {', '.join(named)}{more}>"

    def element_names(self) -> list[str]:
        """A name for each element of the values, in order: `mu`, `theta[0]`, `theta[1]`, `matrix[0, 1]`, ...

        Where an axis has coordinate labels, they stand in place of the index: `beta[age]`.
        """
        return [name for variable in self.variables for name in variable.element_names()]

    def free_names(self) -> list[str]:
        """A name for each number of the flat position: `mu`, `unconstrained(tau)`, `unconstrained(theta)[0]`, ..."""
        if self.parameters is not None and self.parameters.free_names:
            return list(self.parameters.free_names)
        return [name for variable in self.variables for name in variable.free_names()]

    def dims_of(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Names of the axes of an array [*shape] of that name which is computed from one draw.

        Those of `dims`; else of the data or variable of that name, or the first of observed data, as of a likelihood;
        else ArviZ's. Raises ModelError where `dims` or `coords` do not fit the shape.
        """
        axes, declared = self.axes(), tuple(self.dims[name]) if name in self.dims else None
        if declared is not None and len(declared) != len(shape):
            raise ModelError(f"Model {self.name!r}: {name!r} has shape {shape}, but its dims are {declared}.")
        dims = declared or axes.get(name, ())
        if name in self.observed_data and np.shape(self.observed_data[name][1])[: len(shape)] == tuple(shape):
            dims = dims[: len(shape)]
        if len(dims) != len(shape):
            dims = tuple(f"{name}_dim_{axis}" for axis in range(len(shape)))
        labels = self.labels()
        for dim, length in zip(dims, shape, strict=True):
            if dim in labels and len(labels[dim]) != length:
                raise ModelError(
                    f"Model {self.name!r}: {name!r} has {length} elements along {dim!r}, which has {len(labels[dim])} "
                    "labels."
                )
        return dims

    def axes(self) -> dict[str, tuple[str, ...]]:
        """The names of axes, by the name of a variable or of data."""
        data = {**self.ground_truth, **self.constant_data, **self.observed_data}
        return {v.name: v.axis_names for v in self.variables} | {key: tuple(dims) for key, (dims, _) in data.items()}

    def labels(self) -> dict[str, list[Any]]:
        """The labels of axes, by their names."""
        of_variables = {dim: list(names) for v in self.variables for dim, names in v.coords.items()}
        return of_variables | {dim: list(names) for dim, names in self.coords.items()}

    def check(self, seed: int = 0) -> ModelCheck:
        """Try the model at initial positions of this seed, before it is sampled; takes seconds to compile programs.

        It compares Jacobians and the gradient with derivatives found otherwise, and many chains together with one
        alone; starts must be finite, and functions of draws must fit. Returns a ModelCheck: `ok` says whether all is
        so, and `print` shows each finding. Raises ModelError for a model that cannot be sampled at all.
        """
        model_check: ModelCheck = later("batchnuts.mcmc.starts.self_check", "check")(self, seed)
        return model_check

    def varies(self) -> NDArray[np.bool_]:
        """[size]: which elements are not the same for all positions, as zeros of a triangular matrix are."""
        return np.concatenate([variable.varies for variable in self.variables])


_FIELDS = frozenset(
    {
        "initializer", "observed_data", "constant_data", "ground_truth", "batched_value_and_gradient",
        "generated", "log_likelihood", "predictive", "prior", "of_data", "data", "dims", "coords",
    }
)  # fmt: skip
"""Fields of a Model that `from_function` passes on."""


def _can_be_added(density: Any, log_jacobian: Any) -> bool:
    """Whether a user's density is a scalar of the Jacobian's dtype."""
    try:
        return ops.static_shape(density) == () and ops.dtype_of(density) == ops.dtype_of(log_jacobian)
    except (TypeError, ValueError):
        return False
