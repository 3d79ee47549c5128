"""`Model.from_jax`: a JAX function of any tree of arrays (dicts, lists, tuples, namedtuples, nested) as a Model."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import has_jax, tensor_library
from batchnuts.bridges.errors import NotInstalledError, failed
from batchnuts.mcmc.model.model import DType, Model, Parameter
from batchnuts.mcmc.model.variables import ModelError, Variable, checked_dims, checked_labels
from batchnuts.settings.schema import nearest, sentence, shown

Tree = Any

RADIUS = 2.0
"""Chains start within this distance of the example, in each unconstrained number."""

MOST_DENSE = 64
"""The maximum dimension of a transformation whose whole Jacobian matrix is computed."""

_FUNCTIONS = ("generated", "log_likelihood", "predictive", "prior")
_FIELDS = ("initializer", "observed_data", "constant_data", "of_data", "dims", "coords", *_FUNCTIONS)


@dataclass(frozen=True)
class Layout:
    """A tree's structure, and a name for each of its leaves: `mu`, `group.scale`, `layers.0.weights`."""

    structure: Any
    names: tuple[str, ...]
    """The names in JAX's order, which sorts the keys of dicts."""
    shapes: dict[str, tuple[int, ...]]
    """The shapes by name, in the user's order."""

    @property
    def size(self) -> int:
        """The number of numbers in all leaves."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def tree(self, values: Mapping[str, Any]) -> Tree:
        """The tree of arrays by name."""
        import jax

        return jax.tree.unflatten(self.structure, [values[name] for name in self.names])

    def by_name(self, tree: Tree) -> dict[str, Any]:
        """A tree's arrays by name. Raises ValueError for another structure."""
        import jax

        leaves, structure = jax.tree.flatten(tree)
        if structure != self.structure:
            raise ValueError(f"it gave the structure {structure}; expected {self.structure}")
        return dict(zip(self.names, leaves, strict=True))


def from_jax(
    log_density: Any,
    example: Tree,
    *,
    supports: Mapping[str, Parameter] | None = None,
    transform: Callable[[Tree], Tree] | None = None,
    inverse: Callable[[Tree], Tree] | None = None,
    log_jacobian: Callable[[Tree], Any] | None = None,
    name: str | None = None,
    dtype: DType = "float32",
    **fields: Any,
) -> Model:
    """`Model.from_jax`: a Model of a JAX function. Chains start within 2 of the example, in unconstrained numbers.

    transform: without its inverse the unconstrained tree has the example's shapes, and chains start within 2 of zero.
    log_jacobian: of the unconstrained tree, the logarithm of the Jacobian's determinant; without it automatic
    differentiation gives it, for transformations element by element, and for others of at most MOST_DENSE numbers.
    fields: those in _FIELDS.
    """
    title = name or str(getattr(log_density, "__name__", "model"))
    require_jax(title)
    if not callable(log_density):
        swapped = " The function comes first, the example second." if callable(example) else ""
        raise ModelError(f"Model {title!r}: log_density is {shown(log_density)}; expected a function.{swapped}")
    if unknown := sorted(fields.keys() - set(_FIELDS)):
        hint = nearest(unknown[0], _FIELDS)
        if unknown[0] == "data":
            hint = "; its functions read their data themselves. Those of Model.from_function take data as an argument"
        raise ModelError(sentence(f"Model {title!r}: there is no field {unknown[0]!r}{hint}"))
    from batchnuts.bridges.tracing import around

    values = layout_of(title, example, dtype)
    for role in _FUNCTIONS:
        if fields.get(role) is not None and not callable(fields[role]):
            raise ModelError(f"Model {title!r}: {role} is {shown(fields[role])}; expected a function.")
    if transform is not None:
        if supports:
            raise ModelError(f"Model {title!r}: give supports or a transform, not both.")
        change = _change_of(title, transform, inverse, log_jacobian, example, values, dtype)
        return _transformed(title, log_density, change, dtype, fields)
    for role, function in (("inverse", inverse), ("log_jacobian", log_jacobian)):
        if function is not None:
            raise ModelError(f"Model {title!r}: {role} belongs to a transform, which is not given.")
    if not isinstance(supports, Mapping | None):
        raise ModelError(f"Model {title!r}: supports is {shown(supports)}; expected supports by the name of a part.")
    declared = dict(supports or {})
    if unknown := sorted(declared.keys() - set(values.shapes)):
        hint = nearest(unknown[0], values.shapes) or f"; its parts are {', '.join(values.shapes)}"
        raise ModelError(
            sentence(f"Model {title!r}: supports has {unknown[0]!r}, which is not a part of the example{hint}")
        )
    dims = checked_dims(f"Model {title!r}", fields.pop("dims", None))
    coords = checked_labels(f"Model {title!r}", fields.get("coords"))
    variables = tuple(
        _variable(title, name, shape, declared.get(name), dims.get(name), coords)
        for name, shape in values.shapes.items()
    )
    model = Model(
        name=title,
        log_density=functools.partial(_of_tree, log_density, values),
        dimension=sum(variable.free for variable in variables),
        dtype=dtype,
        variables=variables,
        structured=True,
        library="jax",
        dims=dims,
        **{role: _on_tree(role, function, values) for role, function in fields.items()},
    )
    if model.initializer is None:
        numbers = {name: np.asarray(leaf, dtype) for name, leaf in values.by_name(example).items()}
        object.__setattr__(model, "initializer", functools.partial(around, model.unconstrain(numbers), RADIUS))
    return model


def require_jax(title: str) -> None:
    """Raise NotInstalledError where JAX is not."""
    if not has_jax():
        raise NotInstalledError(f"Model {title!r} needs JAX, which is not installed: pip install 'batchnuts[jax]'.")


def _of_tree(function: Callable[..., Any], layout: Layout, values: Mapping[str, Any], *more: Any) -> Any:
    return function(layout.tree(values), *more)


def _tree_by_name(function: Callable[..., Any], layout: Layout, seed: Any) -> Any:
    return layout.by_name(function(seed))


def _on_tree(role: str, field: Any, layout: Layout) -> Any:
    """A field of a Model, whose functions of values by name call those of trees."""
    if role not in _FUNCTIONS or field is None:
        return field
    return functools.partial(_tree_by_name if role == "prior" else _of_tree, field, layout)


def _variable(
    title: str, name: str, shape: tuple[int, ...], declared: Any, dims: Any, coords: Mapping[str, Any]
) -> Variable:
    """A leaf as a variable: of a support, whose shape is the leaf's, where one is declared."""
    if declared is not None and not isinstance(declared, Parameter):
        hint = " (call it, as in `positive()`)" if inspect.isfunction(declared) else ""
        raise ModelError(
            f"Model {title!r}: supports[{name!r}] is {shown(declared)}{hint}; expected one such as `positive()`."
        )
    axes = tuple(dims) if dims is not None else declared.dims if declared is not None else None
    if declared is None:
        return Variable(name, shape, axes, {d: coords[d] for d in axes or () if d in coords})
    if declared.shape not in ((), shape):
        raise ModelError(
            f"Model {title!r}: supports[{name!r}] has shape {declared.shape}, but the example's is {shape}."
        )
    labels = {**declared.coords, **{d: coords[d] for d in axes or () if d in coords}}
    return Variable(name, shape, axes, labels, declared.support)


# The example


def layout_of(title: str, example: Tree, dtype: DType) -> Layout:
    """The structure, names and shapes of a tree of real numbers. Raises ModelError where it is none."""
    import jax

    for path, leaf in jax.tree_util.tree_flatten_with_path(example, is_leaf=lambda node: node is None)[0]:
        if leaf is None:  # which JAX leaves out
            raise ModelError(
                f"Model {title!r}: the part {_named_path('', path) or 'position'!r} of its example is None; expected a "
                "real number or an array of them."
            )
    named = _leaves(example, "")
    if not named:
        raise ModelError(
            f"Model {title!r}: its example {shown(example)} has no numbers, so there is nothing to sample; expected a "
            'number, an array, or a tree of them, as {"mu": 0.0, "theta": np.zeros(8)}.'
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for name, leaf in named:
        if name in shapes:
            raise ModelError(f"Model {title!r}: two parts of its example are called {name!r}; rename one of them.")
        shapes[name] = _checked(title, name, leaf, dtype)
    paths, structure = jax.tree_util.tree_flatten_with_path(example)
    # in JAX's order, by the identity of paths: names are made from the same keys
    ordered = tuple(_named_path("", path) or "position" for path, _ in paths)
    return Layout(structure, ordered, shapes)


def _leaves(tree: Tree, prefix: str) -> list[tuple[str, Any]]:
    """Leaves with their names, in the order in which the user wrote them: JAX would sort dicts."""
    import jax

    children, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    if len(children) == 1 and not children[0][0]:
        return [(prefix or "position", tree)]
    if isinstance(tree, Mapping):
        order = {key: place for place, key in enumerate(tree)}
        children.sort(key=lambda child: order.get(getattr(child[0][0], "key", None), 0))
    return [leaf for path, child in children for leaf in _leaves(child, _named_path(prefix, path))]


def _named_path(prefix: str, path: tuple[Any, ...]) -> str:
    """A name for a path of keys: its parts with dots between them; indices alone get the name `position`."""
    parts = [prefix] if prefix else []
    for key in path:
        part = next((getattr(key, field) for field in ("key", "name", "idx") if hasattr(key, field)), key)
        parts += ["position"] * (not parts and isinstance(part, int)) + [str(part)]
    return ".".join(parts)


def _checked(title: str, name: str, leaf: Any, dtype: DType) -> tuple[int, ...]:
    """The shape of a leaf; raises ModelError for one that is no array of finite real numbers."""
    subject = f"Model {title!r}: the part {name!r} of its example"
    expected = "expected a real number or an array of real numbers"
    try:
        array = np.asarray(leaf)
    except Exception:
        raise ModelError(f"{subject} is {shown(leaf)}; {expected}.") from None
    kind = array.dtype.kind
    if array.dtype.name == "bfloat16":
        kind = "f"
    if kind in "biu" and not (isinstance(leaf, int) and not isinstance(leaf, bool)):
        raise ModelError(
            f"{subject} has dtype {array.dtype}, but discrete parameters cannot be sampled; sum them out, or "
            f"{expected}, as 0.0."
        )
    if kind not in "fiu":
        raise ModelError(f"{subject} is {shown(leaf)}; {expected}.")
    with np.errstate(over="ignore"):
        numbers = array.astype(dtype)
    if not np.isfinite(numbers).all():
        raise ModelError(f"{subject} is not finite in {dtype}; {expected}, at which the density is finite.")
    return tuple(array.shape)


# A transformation of the user's


@dataclass(frozen=True)
class _Change:
    """A transformation of the user's, with its Jacobian and the layouts of both trees."""

    transform: Callable[[Tree], Tree]
    inverse: Callable[[Tree], Tree] | None
    log_jacobian: Callable[[Mapping[str, Any]], Any]
    """The log-Jacobian, a function of unconstrained arrays by name."""
    free: Layout
    """The layout of the unconstrained tree."""
    values: Layout
    """The layout of the tree of values."""
    start: NDArray[Any]
    """Where chains start: [dimension], unconstrained."""

    def __call__(self, unconstrained: Mapping[str, Any]) -> Tree:
        """The tree of values."""
        return self.transform(self.free.tree(_plain(unconstrained)))


def _plain(unconstrained: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by the names of leaves, from those by the names of variables."""
    return {name[len(_FREE) + 1 : -1]: value for name, value in unconstrained.items()}


_FREE = "unconstrained"


def _free_name(name: str) -> str:
    return f"{_FREE}({name})"


def _change_of(
    title: str,
    transform: Any,
    inverse: Any,
    log_jacobian: Any,
    example: Tree,
    values: Layout,
    dtype: DType,
) -> _Change:
    """Check the functions on the example; raises ModelError."""
    library: Any = tensor_library("jax")
    for role, function in (("transform", transform), ("inverse", inverse), ("log_jacobian", log_jacobian)):
        if function is not None and not callable(function):
            raise ModelError(f"Model {title!r}: {role} is {shown(function)}; expected a function.")
    numbers = {name: np.asarray(leaf, dtype) for name, leaf in values.by_name(example).items()}
    vector = np.concatenate([numbers[name].reshape(-1) for name in values.shapes])
    free, start = values, np.zeros(values.size, dtype)
    if inverse is not None:
        try:
            back = library.call(lambda x: inverse(values.tree(_cut(x, values))), library.tensor(vector))
        except Exception as error:
            raise failed(title, "its inverse, given the example,", error) from error
        free = layout_of(title, back, dtype)
        leaves = free.by_name(back)
        start = np.concatenate([np.asarray(leaves[name], dtype).reshape(-1) for name in free.shapes])
    flat = functools.partial(_flat, transform, free, values)
    at = library.tensor(start)
    try:
        (length,) = library.result_shapes(flat, at)
    except ValueError as error:
        raise ModelError(f"Model {title!r}: its transform does not fit the example: {error}.") from error
    except Exception as error:
        raise failed(title, "its transform, given a tree of real numbers,", error) from error
    if inverse is not None:
        round_trip = np.asarray(library.call(flat, at))
        if not np.allclose(round_trip, vector, rtol=1e-3, atol=1e-3):
            raise ModelError(
                f"Model {title!r}: its transform, applied to its inverse of the example, gives "
                f"{shown(round_trip.tolist())}; expected the example, {shown(vector.tolist())}."
            )
    if log_jacobian is not None:
        of_tree: Callable[[Mapping[str, Any]], Any] = functools.partial(_given_log_jacobian, log_jacobian, free)
    elif length != free.size:
        raise ModelError(
            f"Model {title!r}: its transform makes {length} numbers from {free.size}, so its Jacobian is not square; "
            "give log_jacobian, a function of the unconstrained tree."
        )
    elif _is_elementwise(flat, start):
        of_tree = functools.partial(_elementwise_log_jacobian, flat, free)
    elif length <= MOST_DENSE:
        of_tree = functools.partial(_dense_log_jacobian, flat, free)
    else:
        raise ModelError(
            f"Model {title!r}: the elements of its transform depend on each other, and a determinant of {length} x "
            f"{length} would be computed for each gradient; give log_jacobian, a function of the unconstrained tree."
        )
    return _Change(transform, inverse, of_tree, free, values, start)


def _side_by_side(leaves: Mapping[str, Any], layout: Layout) -> Any:
    import jax.numpy as jnp

    return jnp.concatenate([jnp.reshape(leaves[name], -1) for name in layout.shapes])


def _flat(transform: Callable[[Tree], Tree], free: Layout, values: Layout, x: Any) -> Any:
    """A transformation of a vector to a vector."""
    return _side_by_side(values.by_name(transform(free.tree(_cut(x, free)))), values)


def _cut(x: Any, layout: Layout) -> dict[str, Any]:
    """A vector's parts by name."""
    parts, start = {}, 0
    for name, shape in layout.shapes.items():
        stop = start + math.prod(shape)
        parts[name] = x[start:stop].reshape(shape)
        start = stop
    return parts


def _is_elementwise(flat: Callable[[Any], Any], start: NDArray[Any]) -> bool:
    """Whether each result depends only on the number at its own place: then J v = (J 1) v for any v."""
    import jax

    library: Any = tensor_library("jax")
    rng = np.random.default_rng(0)

    def both(x: Any, direction: Any) -> tuple[Any, Any]:
        return (jax.jvp(flat, (x,), (x * 0 + 1,))[1] * direction, jax.jvp(flat, (x,), (direction,))[1])

    compiled = library.compiled(both)
    for _ in range(2):
        x = library.tensor((start + rng.uniform(-1, 1, start.size)).astype(start.dtype))
        direction = library.tensor(rng.uniform(1, 2, start.size).astype(start.dtype))
        expected, actual = map(np.asarray, compiled(x, direction))
        if not np.allclose(actual, expected, rtol=1e-4, atol=1e-6):
            return False
    return True


def _given_log_jacobian(log_jacobian: Callable[[Tree], Any], free: Layout, leaves: Mapping[str, Any]) -> Any:
    return log_jacobian(free.tree(leaves))


def _elementwise_log_jacobian(flat: Callable[[Any], Any], free: Layout, leaves: Mapping[str, Any]) -> Any:
    import jax
    import jax.numpy as jnp

    x = _side_by_side(leaves, free)
    return jnp.sum(jnp.log(jnp.abs(jax.jvp(flat, (x,), (jnp.ones_like(x),))[1])))


def _dense_log_jacobian(flat: Callable[[Any], Any], free: Layout, leaves: Mapping[str, Any]) -> Any:
    import jax
    import jax.numpy as jnp

    return jnp.linalg.slogdet(jax.jacfwd(flat)(_side_by_side(leaves, free)))[1]


def _transformed(
    title: str, log_density: Callable[[Tree], Any], change: _Change, dtype: DType, fields: dict[str, Any]
) -> Model:
    """A Model whose variables are the unconstrained leaves, and which reports the values."""
    from batchnuts.bridges.tracing import around

    prior = fields.pop("prior", None)
    if prior is not None and change.inverse is None:
        raise ModelError(f"Model {title!r}: its prior gives values, so the transform needs its inverse.")
    generated = fields.pop("generated", None)
    fields.setdefault("initializer", functools.partial(around, change.start, RADIUS))
    dims = {name: _axes(name, shape) for name, shape in change.values.shapes.items()} | dict(
        fields.pop("dims", None) or {}
    )
    rest: dict[str, Any] = {
        role: functools.partial(_of_values, field, change) if role in _FUNCTIONS and field is not None else field
        for role, field in fields.items()
    }
    return Model(
        name=title,
        log_density=functools.partial(_of_change, log_density, change),
        dimension=change.free.size,
        dtype=dtype,
        variables=tuple(Variable(_free_name(name), shape) for name, shape in change.free.shapes.items()),
        structured=True,
        reports_variables=False,
        natural_scale=lambda: functools.partial(_natural_scale, log_density, change),
        library="jax",
        generated=functools.partial(_reported, generated, change),
        prior=None if prior is None else functools.partial(_prior_of_change, prior, change),
        dims=dims,
        **rest,
    )


def _axes(name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{axis}" for axis in range(len(shape)))


def _of_change(log_density: Callable[[Tree], Any], change: _Change, unconstrained: Mapping[str, Any]) -> Any:
    return log_density(change(unconstrained)) + change.log_jacobian(_plain(unconstrained))


def _natural_scale(
    log_density: Callable[[Tree], Any], change: _Change, unconstrained: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    tree = change(unconstrained)
    return change.values.by_name(tree), log_density(tree)


def _of_values(function: Callable[..., Any], change: _Change, unconstrained: Mapping[str, Any], *more: Any) -> Any:
    return function(change(unconstrained), *more)


def _reported(generated: Callable[[Tree], Any] | None, change: _Change, unconstrained: Mapping[str, Any]) -> Any:
    tree = change(unconstrained)
    further = {} if generated is None else generated(tree)
    return {**change.values.by_name(tree), **further}


def _prior_of_change(prior: Callable[[Any], Tree], change: _Change, seed: Any) -> dict[str, Any]:
    assert change.inverse is not None
    leaves = change.free.by_name(change.inverse(prior(seed)))
    return {_free_name(name): leaf for name, leaf in leaves.items()}
