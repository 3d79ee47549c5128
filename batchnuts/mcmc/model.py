"""What a sampler needs from a model: its log-density for one chain, and the names and starts of its positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.autobatch.machine import library_of

DType = Literal["float32", "float64"]
Data = Mapping[str, tuple[tuple[str, ...], NDArray[Any]]]

_INITIALIZER = (
    "a function of NumPy's random generator and the number of chains that gives positions [chains, dimension]"
)

_RESERVED = frozenset({"chain", "draw"})


def how_to_wrap(given: Any) -> str:
    """What to do with a distribution in place of a model or a density; empty for anything else."""
    if not callable(getattr(given, "log_prob", None)):
        return ""
    kinds = " ".join(kind.__name__ for kind in type(given).__mro__)
    if "Sequential" in kinds:
        wrapped = '`lambda p: distribution.log_prob([p["a"], p["b"]])` with `variables={"a": [], "b": []}`, say'
    elif "JointDistribution" in kinds:
        wrapped = "`lambda p: distribution.log_prob(**p)` with `variables`, the shapes of its parts by name"
    else:
        wrapped = (
            "`distribution.log_prob` for a flat position, or `lambda p: distribution.log_prob(**p)` with `variables` "
            "for one with named parts"
        )
    return (
        f" A distribution has one: give Model.from_function {wrapped}; parts with a support need their bijector and "
        "its log-Jacobian."
    )


class ModelError(BatchnutsError):
    """A model that contradicts itself, or that cannot be sampled as it is declared."""


@dataclass(frozen=True)
class Variable:
    """One named part of the flat position.

    `shape` is its shape in one chain, `dims` the names of its axes (default `<name>_dim_<i>`, ArviZ's convention), and
    `coords` the labels along an axis, by the axis's name. Raises ModelError for a shape with no elements, for a
    name or an axis called `chain` or `draw` (the output file needs these), and for labels of the wrong count.
    """

    name: str
    shape: tuple[int, ...] = ()
    dims: tuple[str, ...] | None = None
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name or self.name in _RESERVED:
            raise ModelError(f"A variable cannot be called {self.name!r}; choose a name other than chain and draw.")
        if any(length < 1 for length in self.shape):
            raise ModelError(f"Variable {self.name!r} has shape {self.shape}; every axis needs at least one element.")
        if self.dims is None:
            object.__setattr__(self, "dims", tuple(f"{self.name}_dim_{axis}" for axis in range(len(self.shape))))
        dims = self.axis_names
        if len(dims) != len(self.shape) or len(set(dims)) != len(dims) or _RESERVED & set(dims):
            raise ModelError(
                f"Variable {self.name!r} of shape {self.shape} has dims {dims}; expected one distinct name per axis, "
                f"none of them chain or draw."
            )
        for dim, labels in self.coords.items():
            if dim not in dims or len(labels) != self.shape[dims.index(dim)]:
                raise ModelError(
                    f"Variable {self.name!r} has {len(labels)} coordinate labels for {dim!r}; its axes are "
                    f"{dict(zip(dims, self.shape, strict=True))}."
                )

    @property
    def axis_names(self) -> tuple[str, ...]:
        """`dims`, which is never None once the variable is made."""
        return self.dims or ()

    @property
    def size(self) -> int:
        """Number of elements in one chain."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A log-density and the layout of its position.

    `log_density`: a function of ONE chain's position, without a batch axis, to a scalar of the model's dtype, known up
    to a constant. The position is a flat vector of shape [dimension], or, where `structured` is true, a dict from each
    variable's name to its array. It is written with TensorFlow operations, so that it can be differentiated.

    `variables`: the layout of the flat position, in order (default: one vector called `position`).

    `batched_value_and_gradient`: an optional twin of the density, batched by hand for speed: positions
    [lanes, dimension] -> (log_density [lanes], gradient [lanes, dimension]). It must agree with `log_density`.

    `initializer`: an optional (rng, chains) -> positions [chains, dimension]; see `initial_positions`.

    `observed_data`, `constant_data`: name -> (dims, array), stored with the draws.

    The density is traced once, and its compiled programs are kept with the model for later runs. So values of its
    closure, arrays for example, must not change; if they have changed when a run begins, it is traced again, as far as
    the change can be detected (docs/add_a_model.md).

    Raises ModelError where these contradict each other.
    """

    name: str
    log_density: Callable[[Any], Any]
    dimension: int
    dtype: DType = "float32"
    variables: tuple[Variable, ...] = ()
    structured: bool = False
    batched_value_and_gradient: Callable[[Any], tuple[Any, Any]] | None = None
    initializer: Callable[[np.random.Generator, int], Any] | None = None
    observed_data: Data = field(default_factory=dict)
    constant_data: Data = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.log_density):
            raise ModelError(
                f"Model {self.name!r}: log_density is {self.log_density!r}; expected a function."
                f"{how_to_wrap(self.log_density)}"
            )
        if self.initializer is not None and not callable(self.initializer):
            raise ModelError(
                f"Model {self.name!r}: its initializer is a {type(self.initializer).__name__}; expected {_INITIALIZER}."
                " One that always gives the same array is `lambda rng, chains: array`."
            )
        if isinstance(self.dimension, bool) or not isinstance(self.dimension, int) or self.dimension < 1:
            raise ModelError(
                f"Model {self.name!r}: dimension is {self.dimension!r}; expected an integer of at least 1."
            )
        if self.dtype not in ("float32", "float64"):
            raise ModelError(f"Model {self.name!r}: dtype is {self.dtype!r}; expected 'float32' or 'float64'.")
        if not self.variables:
            object.__setattr__(self, "variables", (Variable("position", (self.dimension,)),))
        names = [variable.name for variable in self.variables]
        if len(set(names)) != len(names):
            raise ModelError(f"Model {self.name!r}: two variables share a name; the variables are {', '.join(names)}.")
        total = sum(variable.size for variable in self.variables)
        if total != self.dimension:
            layout = ", ".join(f"{variable.name}{list(variable.shape)}" for variable in self.variables)
            raise ModelError(
                f"Model {self.name!r}: its variables ({layout}) hold {total} numbers together, "
                f"but its dimension is {self.dimension}."
            )
        lengths: dict[str, tuple[str, int]] = {}
        for variable in self.variables:
            for dim, length in zip(variable.axis_names, variable.shape, strict=True):
                owner, known = lengths.setdefault(dim, (variable.name, length))
                if known != length:
                    raise ModelError(
                        f"Model {self.name!r}: axis {dim!r} has length {known} in {owner!r} and {length} in "
                        f"{variable.name!r}."
                    )
        for group in ("observed_data", "constant_data"):
            for key, (dims, array) in getattr(self, group).items():
                if np.ndim(array) != len(dims):
                    raise ModelError(
                        f"Model {self.name!r}: {group}[{key!r}] has shape {np.shape(array)} but dims {tuple(dims)}."
                    )

    def __getstate__(self) -> dict[str, Any]:
        # compiled programs (mcmc/execution/program_cache.py) are not part of a model: a copy has none
        return {name: value for name, value in self.__dict__.items() if name != "_programs"}

    @classmethod
    def from_function(
        cls,
        log_density: Callable[[Any], Any],
        *,
        dimension: int | None = None,
        variables: Mapping[str, Sequence[int]] | None = None,
        name: str | None = None,
        dtype: DType = "float32",
    ) -> Model:
        """Make a model from a user's function: of a flat vector (give `dimension`), or of a dict (give `variables`).

        `variables` maps names to shapes, e.g. `{"mu": [], "theta": [8]}`. Raises ModelError unless exactly one of
        `dimension` and `variables` is given.
        """
        if (dimension is None) == (variables is None):
            raise ModelError(
                "Give exactly one of dimension (for a flat position) and variables (for a dict of arrays)."
            )
        title = name or str(getattr(log_density, "__name__", "model"))
        if variables is None:
            assert dimension is not None
            return cls(name=title, log_density=log_density, dimension=dimension, dtype=dtype)
        if not isinstance(variables, Mapping) or not all(isinstance(s, Sequence) for s in variables.values()):
            raise ModelError(
                f"Model {title!r}: variables is {variables!r}; expected names with their shapes, as in "
                '{"mu": [], "theta": [8]}.'
            )
        if not variables:
            raise ModelError(f"Model {title!r}: variables is empty; expected at least one name and its shape.")
        layout = tuple(Variable(key, tuple(shape)) for key, shape in variables.items())
        total = sum(variable.size for variable in layout)
        return cls(name=title, log_density=log_density, dimension=total, dtype=dtype, variables=layout, structured=True)

    def unflatten(self, position: Any) -> dict[str, Any]:
        """Cut flat positions [..., dimension] into a dict of name -> array [..., *shape].

        Takes arrays of NumPy, TensorFlow and JAX (inside traced code too) and gives back the same kind.
        """
        library = library_of(position)
        parts: dict[str, Any] = {}
        start = 0
        for variable in self.variables:
            stop = start + variable.size
            parts[variable.name] = library.split_last_axis(position[..., start:stop], variable.shape)
            start = stop
        return parts

    def flatten(self, parts: Mapping[str, Any]) -> NDArray[Any]:
        """Inverse of `unflatten` in NumPy: name -> array [..., *shape], to positions [..., dimension].

        Raises ModelError for a missing or unknown name, or a shape that does not end as declared.
        """
        names = [variable.name for variable in self.variables]
        if set(parts) != set(names):
            raise ModelError(f"Model {self.name!r}: got values for {sorted(parts)}; expected {sorted(names)}.")
        rows = []
        for variable in self.variables:
            array = np.asarray(parts[variable.name], dtype=self.dtype)
            lead = array.ndim - len(variable.shape)
            if lead < 0 or array.shape[lead:] != variable.shape:
                raise ModelError(
                    f"Model {self.name!r}: {variable.name!r} has shape {array.shape}; expected it to end with "
                    f"{variable.shape}."
                )
            rows.append(array.reshape(*array.shape[:lead], variable.size))
        return np.concatenate(rows, axis=-1)

    def flat_log_density(self, position: Any) -> Any:
        """`log_density` of one chain's flat position [dimension], whichever form the user's function takes."""
        return self.log_density(self.unflatten(position) if self.structured else position)

    def initial_positions(self, rng: np.random.Generator, chains: int) -> NDArray[Any]:
        """Starting points [chains, dimension] in the model's dtype: `initializer`'s, or uniform on (-2, 2) as in Stan.

        Raises ModelError where an initializer's result has another shape or holds NaN or infinity.
        """
        if self.initializer is None:
            return rng.uniform(-2.0, 2.0, size=(chains, self.dimension)).astype(self.dtype)
        try:
            given = self.initializer(rng, chains)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"Model {self.name!r}: its initializer, called with a random generator and {chains} chains, failed "
                f"with {type(error).__name__}: {error}. Expected {_INITIALIZER}."
            ) from error
        positions = self._as_numbers(given)
        if positions.shape != (chains, self.dimension):
            raise ModelError(
                f"Model {self.name!r}: its initializer gave positions of shape {positions.shape}; expected "
                f"{(chains, self.dimension)}, one row per chain."
            )
        if not np.isfinite(positions).all():
            chain = int(np.argwhere(~np.isfinite(positions))[0, 0])
            raise ModelError(f"Model {self.name!r}: its initializer gave chain {chain} a position that is not finite.")
        return positions

    def _as_numbers(self, given: Any) -> NDArray[Any]:
        """What an initializer gave, as an array of the model's dtype; raises ModelError where it is none of numbers."""
        try:
            array = np.asarray(given)
            if array.dtype.kind not in "biuf":
                raise TypeError
        except (TypeError, ValueError):  # of rows of different lengths
            named = " A dict of named parts is made positions by model.flatten." if isinstance(given, Mapping) else ""
            raise ModelError(
                f"Model {self.name!r}: its initializer gave a {type(given).__name__} that is no array of real numbers. "
                f"Expected {_INITIALIZER}.{named}"
            ) from None
        with np.errstate(over="ignore"):  # a number that is too large is reported as not finite
            return array.astype(self.dtype)

    def coefficient_names(self) -> list[str]:
        """A name for each number of the flat position, in order: `mu`, `theta[0]`, `theta[1]`, `matrix[0, 1]`, ...

        Where an axis has coordinate labels, they stand in place of the index: `beta[age]`.
        """
        names: list[str] = []
        for variable in self.variables:
            if not variable.shape:
                names.append(variable.name)
                continue
            labels = [
                list(variable.coords.get(dim, range(length)))
                for dim, length in zip(variable.axis_names, variable.shape, strict=True)
            ]
            names.extend(
                f"{variable.name}[{', '.join(str(axis[i]) for axis, i in zip(labels, index, strict=True))}]"
                for index in np.ndindex(*variable.shape)
            )
        return names
