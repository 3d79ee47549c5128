"""Data that a model's functions take as an argument, so that one compiled program serves many data sets (many/).

    data ::= array | dict | tuple | list | namedtuple | dataclass       (of data: a structure of arrays)

All data sets of a model have one structure. A program is compiled for the types of its arrays; another data set of the
same types is another value of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import TensorType, TreeDef, flatten, leaf_names, parts, unflatten
from batchnuts.mcmc.model.variables import Data, ModelError
from batchnuts.settings.schema import nearest, shown

INTEGERS = {"float32": "int32", "float64": "int64"}
"""The dtype of integers beside floats of a dtype, as JAX has them."""


@dataclass(frozen=True, eq=False)
class Remade:
    """The data of a model of another library, which is made again for other data: its functions take none."""

    example: Mapping[str, NDArray[Any]]
    """The data that it was made with, arrays by name."""
    make: Callable[[Mapping[str, NDArray[Any]]], Any]
    """Gives the model of other data, all of these names."""
    of_argument: Callable[[Mapping[str, NDArray[Any]]], Any] | None = None
    """Gives the model whose functions take data, all of these names, as an argument: for many data sets of the same
    types. Where the library's model decides by numbers in them, None."""
    declares_types: bool = False
    """Whether the library checks data by types that the model declares; else they have the dtypes of the example."""
    lengths: Mapping[str, str] = field(default_factory=dict)
    """By names of data, those of the data that are declared as the lengths of their first axes."""

    def whole(self, owner: str, data: Any) -> dict[str, NDArray[Any]]:
        """Data, some of the example's names, and those of the example that they lack.

        Raises ModelError for other names, and for numbers that the dtypes do not hold.
        """
        if not isinstance(data, Mapping):
            raise ModelError(f"{owner}: data is {shown(data)}; expected some of {', '.join(self.example)} by name.")
        for name in data:
            if name not in self.example:
                hint = nearest(str(name), self.example) or f"; its data are {', '.join(self.example)}."
                raise ModelError(f"{owner}: data has {name!r}, which is none of its data{hint}")
        if self.declares_types:
            return {**self.example, **data}
        cast = {name: _cast(f"{owner}: data.{name}", value, self.example[name].dtype) for name, value in data.items()}
        return {**self.example, **cast}


Leaves = tuple[NDArray[Any], ...]
"""The arrays of a data set, depth first."""


def leaves_of(data: Any) -> Leaves:
    """The arrays of data that were checked; none where there are no data."""
    return () if data is None else tuple(flatten(data)[0])


def types_of(data: Any) -> tuple[TensorType, ...]:
    """Their types."""
    return tuple(TensorType(leaf.dtype.name, leaf.shape) for leaf in leaves_of(data))


def with_leaves(data: Any, leaves: Sequence[Any]) -> Any:
    """Data with other arrays, of any library, in place of its own."""
    return unflatten(flatten(data)[1], leaves)


def checked_argument(owner: str, data: Any, dtype: str) -> Any:
    """Data with NumPy's arrays: numbers with a fraction are of the model's dtype, integers have as many bits.

    Raises ModelError for what is no structure of numbers.
    """
    leaves, tree = flatten(_structure(data))
    if not leaves:
        raise ModelError(f"{owner}: data is {shown(data)}; expected an array, or a structure of arrays.")
    named = zip(leaf_names("data", tree), leaves, strict=True)
    return unflatten(tree, [_array(f"{owner}: {name}", leaf, dtype) for name, leaf in named])


def _structure(data: Any) -> Any:
    """Data in which lists of numbers are arrays, as they are for users."""
    if isinstance(data, dict):
        return {name: _structure(value) for name, value in data.items()}
    if isinstance(data, list) and not any(isinstance(part, np.ndarray) or _is_structure(part) for part in data):
        return np.asarray(data) if all(np.ndim(part) == np.ndim(data[0]) for part in data) else data
    return data


def _is_structure(part: Any) -> bool:
    return parts(part) is not None and not isinstance(part, list)


def fitted_argument(owner: str, example: Any, data: Any, dtype: str) -> Any:
    """Another data set, in the order and with the dtypes of the example; its arrays may have other lengths.

    Raises ModelError for another structure, another number of axes, and what are no numbers.
    """
    tree = flatten(example)[1]
    return unflatten(tree, list(_fitted(owner, "data", tree, data, iter(leaves_of(example)), dtype)))


def _fitted(
    owner: str, name: str, tree: TreeDef, data: Any, examples: Iterator[NDArray[Any]], dtype: str
) -> Iterator[NDArray[Any]]:
    """The arrays of data, in the order of the tree. examples: those of the example."""
    if tree.kind is None:
        like, array = next(examples), _array(f"{owner}: {name}", data, dtype)
        if array.ndim != like.ndim:
            raise ModelError(
                f"{owner}: {name} is {array.dtype}{list(array.shape)}; expected {like.dtype} with {like.ndim} axes, as "
                f"in the data that the model was made with, {list(like.shape)}."
            )
        yield _cast(f"{owner}: {name}", array, like.dtype)
        return
    apart = parts(data)
    if apart is None or not isinstance(data, dict if tree.kind is dict else tree.kind):
        raise ModelError(
            f"{owner}: {name} is {_kind(data)}; expected {tree}, as in the data that the model was made with."
        )
    given = dict(zip(*apart, strict=True))
    for key in tree.names:
        if key not in given:
            raise ModelError(f"{owner}: {name} lacks {key!r}{nearest(str(key), map(str, given)) or '.'}")
    for key in given:
        if key not in tree.names:
            hint = nearest(str(key), map(str, tree.names)) or "."
            raise ModelError(f"{owner}: {name} has {key!r}, which the data that the model was made with lack{hint}")
    for key, child in zip(tree.names, tree.children, strict=True):
        yield from _fitted(owner, f"{name}.{key}", child, given[key], examples, dtype)


def _cast(name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers in a dtype: floats are rounded to it, integers and booleans must be the same numbers."""
    if isinstance(value, np.ma.MaskedArray):
        raise ModelError(f"{name} is a masked array, whose mask would be ignored; expected an array without one.")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise ModelError(f"{name} is {shown(value)}; expected an array of numbers.") from error
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        raise ModelError(f"{name} is {shown(value)}; expected an array of {dtype}.")
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
    if dtype.kind != "f" and (different := np.flatnonzero(cast != array)).size:
        found = array.reshape(-1)[different[0]]
        raise ModelError(f"{name} has {found.item()!r}; expected {dtype}, as in the data that the model was made with.")
    return cast


def _kind(data: Any) -> str:
    return f"an array of shape {data.shape}" if isinstance(data, np.ndarray) else f"a {type(data).__name__}"


def _array(name: str, leaf: Any, dtype: str) -> NDArray[Any]:
    try:
        array = np.asarray(leaf)
    except Exception as error:  # of a sequence whose parts have several lengths
        raise ModelError(f"{name} is {shown(leaf)}; expected an array of numbers.") from error
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, dtype).reshape(array.shape)
    if array.dtype.kind in "iu":
        integers = np.ascontiguousarray(array, INTEGERS[dtype]).reshape(array.shape)
        if (integers != array).any():
            raise ModelError(f"{name} is {shown(leaf)}, which {integers.dtype} does not hold; the model is of {dtype}.")
        return integers
    if array.dtype.kind == "b":
        return np.ascontiguousarray(array).reshape(array.shape)
    raise ModelError(f"{name} is {shown(leaf)}; expected an array of numbers.")


def data_groups(owner: str, data: Any, observed: Any, constant: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What the groups observed_data and constant_data of a model are made of, whose functions take data.

    observed: names of entries of the data, which are then a dict; or arrays by name. All other entries are constant
    data. Raises ModelError for names that the data do not have.
    """
    entries = data if isinstance(data, dict) else {}
    if isinstance(observed, (str, bytes)) or not isinstance(observed, Mapping):
        names = [observed] if isinstance(observed, str) else list(observed)
        for name in names:
            if name not in entries:
                raise ModelError(
                    f"{owner}: observed_data names {shown(name)}, which its data do not have"
                    f"{nearest(str(name), map(str, entries)) or '.'}"
                )
        observed = {name: entries[name] for name in names}
    others = {
        name: value
        for name, value in entries.items()
        if name not in observed
        and name not in (constant or {})
        and isinstance(name, str)
        and isinstance(value, np.ndarray)
    }
    return observed, {**(constant or {}), **others}


def replaced(group: Data, data: Any) -> Data:
    """A group of data, name -> (dims, array), with the entries that another data set has."""
    entries = data if isinstance(data, dict) else {}
    return {name: (dims, entries.get(name, array)) for name, (dims, array) in group.items()}
