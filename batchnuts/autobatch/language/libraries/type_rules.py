"""One more array library, of arrays that have a type and no values: each function of `ops` has a rule or a line here.

The language's own functions are evaluated with them when types are inferred.

The rules are those of the contract (`library.Library`): arrays of one call have one dtype already, elementwise
functions broadcast. A table of rules takes microseconds where a trace by JAX or TensorFlow takes milliseconds, and it
says the same: types, which inputs a result depends on, and which input it is.

What has no rule here raises NotTyped or another exception, and is then traced by the backend, which knows all and whose
errors are the user's. A Typed has Python's operators where all libraries agree what they mean, and no other attributes
of arrays, so that code which is not the language's own cannot take one for an array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from batchnuts.autobatch.language.c_functions import c_function
from batchnuts.autobatch.language.libraries.library import Array, Function


class NotTyped(Exception):
    """There is no rule for this."""


class Typed:
    """An array of a dtype and static shape; `reads`: numbers of the inputs that its values depend on."""

    __slots__ = ("reads", "static_dtype", "static_shape")
    __array_ufunc__ = None  # NumPy's functions raise TypeError for it

    def __init__(self, dtype: Any, shape: tuple[int, ...], reads: frozenset[int]) -> None:
        self.static_dtype = np.dtype(dtype)
        self.static_shape = shape
        self.reads = reads

    def __getitem__(self, parts: Any) -> Typed:
        """By integers, slices, None and `...` alone."""
        if not all(part is None or part is ... or isinstance(part, (int, slice)) for part in _tuple(parts)):
            raise NotTyped("its element")
        return _typed(self.static_dtype, _view(self)[parts].shape, self)

    def __bool__(self) -> bool:
        raise NotTyped("its value")

    def __eq__(self, other: object) -> bool:  # Python's containers ask, and would take it for another object
        raise NotTyped("its value")

    def __hash__(self) -> int:
        raise NotTyped("its value")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise NotTyped("its values")

    def __iter__(self) -> Any:
        raise NotTyped("its elements")


_NONE: frozenset[int] = frozenset()


def _tuple(parts: Any) -> tuple[Any, ...]:
    return parts if isinstance(parts, tuple) else (parts,)


def _view(x: Array) -> Any:
    """An array of its shape, without memory."""
    return np.broadcast_to(np.zeros((), bool), _shape(x))


def _operand(x: Any, dtype: np.dtype[Any]) -> Any:
    """An operand of Python's operator beside an array of that dtype, where all libraries give the result this dtype."""
    if isinstance(x, (Typed, np.ndarray, np.generic)):
        fits = _dtype(x) == dtype
    else:
        fits = (type(x) is int and dtype.kind in "iuf") or (type(x) is float and dtype.kind == "f")
    if not fits or dtype.kind not in "iufb":
        raise NotTyped("another dtype")
    return x


def _operators() -> None:
    """Give Typed Python's operators."""

    def make(kinds: str, dtype: Any) -> Any:
        def operate(x: Typed, y: Any) -> Typed:
            if x.static_dtype.kind not in kinds:
                raise NotTyped("another dtype")
            y = _operand(y, x.static_dtype)
            shape = np.broadcast_shapes(x.static_shape, _shape(y))
            return _typed(x.static_dtype if dtype is None else dtype, shape, x, y)

        return operate

    for name in ("add", "sub", "mul"):
        setattr(Typed, f"__{name}__", make("iuf", None))
        setattr(Typed, f"__r{name}__", make("iuf", None))
    for name in ("truediv", "rtruediv", "pow"):
        setattr(Typed, f"__{name}__", make("f", None))
    for name in ("and", "or", "xor", "rand", "ror", "rxor"):
        setattr(Typed, f"__{name}__", make("b", None))
    for name in ("lt", "le", "gt", "ge"):
        setattr(Typed, f"__{name}__", make("iuf", bool))
    for name, kinds in (("neg", "if"), ("invert", "biu")):
        setattr(Typed, f"__{name}__", _unary(kinds))


def _unary(kinds: str) -> Any:
    def operate(x: Typed) -> Typed:
        if x.static_dtype.kind not in kinds:
            raise NotTyped("another dtype")
        return _typed(x.static_dtype, x.static_shape, x)

    return operate


def _shape(x: Array) -> tuple[int, ...]:
    return x.static_shape if isinstance(x, Typed) else np.shape(x)


def _reads(*arrays: Array) -> frozenset[int]:
    return _NONE.union(*[x.reads for x in arrays if isinstance(x, Typed)])


def _dtype(x: Array) -> np.dtype[Any]:
    return x.static_dtype if isinstance(x, Typed) else np.asarray(x).dtype


def _typed(dtype: Any, shape: tuple[int, ...], *arrays: Array) -> Typed:
    return Typed(dtype, shape, _reads(*arrays))


# How the rows of the table become rules


def _elementwise(dtype: Any = None, of_reals: bool = False) -> Any:
    """Of any number of arrays of one dtype, which is the result's unless it has one of its own.

    of_reals: of complex numbers the backend says what there is.
    """

    def rule(*arrays: Array) -> Typed:
        if of_reals and _dtype(arrays[0]).kind == "c":
            raise NotTyped("complex numbers")
        shape = np.broadcast_shapes(*map(_shape, arrays))
        return _typed(_dtype(arrays[0]) if dtype is None else dtype, shape, *arrays)

    return staticmethod(rule)


def _reduction(dtype: Any = None, of_some: bool = False) -> Any:
    """of_some: of nothing there is none."""

    def rule(x: Array, axis: Any, keepdims: bool) -> Typed:
        shape = _shape(x)
        axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
        gone = {_axis(number, len(shape)) for number in axes}
        if len(gone) != len(axes):
            raise NotTyped("an axis twice")
        if of_some and math.prod(shape) == 0:
            raise NotTyped("nothing to reduce")
        extents = [1 if i in gone else extent for i, extent in enumerate(shape) if keepdims or i not in gone]
        return _typed(_dtype(x) if dtype is None else dtype, tuple(extents), x)

    return staticmethod(rule)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise NotTyped("no such axis")
    return axis % rank


_operators()


class Types:
    """The part of a `TensorLibrary` that has rules. It does not inherit: what has no rule raises NotTyped."""

    name = "types"

    exp = log = log1p = expm1 = sqrt = sin = cos = tan = tanh = _elementwise()
    sigmoid = softplus = erf = erfinv = gammaln = digamma = square = sign = _elementwise()
    floor = ceil = round = floor_divide = remainder = minimum = maximum = logaddexp = _elementwise(of_reals=True)
    negative = add = subtract = multiply = divide = power = _elementwise()
    bitwise_and = bitwise_or = bitwise_xor = left_shift = right_shift = _elementwise()
    isfinite = isnan = equal = not_equal = _elementwise(bool)
    less = less_equal = greater = greater_equal = _elementwise(bool, of_reals=True)
    logical_not = logical_and = logical_or = _elementwise(bool)
    any = all = _reduction(bool)
    sum = _reduction()
    mean = min = max = _reduction(of_some=True)

    def abs(self, x: Array) -> Typed:
        """The type of absolute values, which are real."""
        return _typed(np.zeros((), _dtype(x)).real.dtype, _shape(x), x)

    def dtype_of(self, x: Array) -> np.dtype[Any]:
        """The dtype."""
        return _dtype(x)

    def static_shape(self, x: Array) -> tuple[int, ...]:
        """The shape, which is known."""
        return _shape(x)

    def convert(self, x: Any, dtype: Any) -> Array:
        """A typed array of `dtype`: the same object if it has it already."""
        if not isinstance(x, Typed):
            return np.asarray(x, dtype=dtype)
        return x if x.static_dtype == dtype else _typed(dtype, x.static_shape, x)

    cast = convert

    def positive(self, x: Array) -> Array:
        """The same array."""
        return x

    def cumsum(self, x: Array, axis: int) -> Typed:
        """The type of sums up to each element."""
        _axis(axis, len(_shape(x)))
        return _typed(_dtype(x), _shape(x), x)

    def transpose(self, x: Array) -> Typed:
        """The type of transposed matrices."""
        *leading, rows, columns = _shape(x)
        return _typed(_dtype(x), (*leading, columns, rows), x)

    def where(self, condition: Array, x: Array, y: Array) -> Typed:
        """The type of a choice between `x` and `y`."""
        shape = np.broadcast_shapes(*map(_shape, (condition, x, y)))
        return _typed(_dtype(x), shape, condition, x, y)

    def matmul(self, x: Array, y: Array) -> Typed:
        """The type of a matrix product."""
        left, right = _shape(x), _shape(y)
        if not left or not right:
            raise NotTyped("a scalar")
        inner = right[-2] if len(right) > 1 else right[0]
        if left[-1] != inner or not inner:
            raise NotTyped("other extents")
        leading = np.broadcast_shapes(left[:-2], right[:-2])
        return _typed(_dtype(x), (*leading, *left[:-1][-1:], *(right[-1:] if len(right) > 1 else ())), x, y)

    def stack(self, arrays: Sequence[Array], axis: int) -> Typed:
        """The type of arrays along a new axis."""
        (shape,) = {_shape(x) for x in arrays}
        place = _axis(axis, len(shape) + 1)
        return _typed(_dtype(arrays[0]), (*shape[:place], len(arrays), *shape[place:]), *arrays)

    def concatenate(self, arrays: Sequence[Array], axis: int) -> Typed:
        """The type of arrays end to end."""
        shapes = [_shape(x) for x in arrays]
        place = _axis(axis, len(shapes[0]))
        (around,) = {(shape[:place], shape[place + 1 :]) for shape in shapes}
        total = sum(shape[place] for shape in shapes)
        return _typed(_dtype(arrays[0]), (*around[0], total, *around[1]), *arrays)

    def full_like(self, x: Array, value: Array) -> Typed:
        """The type of `value` in the shape of `x`."""
        if np.broadcast_shapes(_shape(x), _shape(value)) != _shape(x):
            raise NotTyped("a larger value")
        return _typed(_dtype(value), _shape(x), value)

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Typed:
        """The type in another shape."""
        return _typed(_dtype(x), _view(x).reshape(shape).shape, x)

    def split_last_axis(self, x: Array, shape: tuple[int, ...]) -> Typed:
        """The type with the last axis split."""
        return self.reshape(x, (*_shape(x)[:-1], *shape))

    def parts_of_last_axis(self, x: Array, sizes: Sequence[int]) -> list[Typed]:
        """The types of parts along the last axis."""
        return [_typed(_dtype(x), (*_shape(x)[:-1], size), x) for size in sizes]

    def item(self, x: Array, parts: tuple[Any, ...]) -> Typed:
        """The type of `x[parts]`."""
        fixed = [part is None or isinstance(part, (int, slice)) for part in parts]
        indices = [part for part, is_fixed in zip(parts, fixed) if not is_fixed]
        # one vector, or scalars: arrays of their shapes stand for them
        places = tuple(part if is_fixed else np.zeros(_shape(part), int)[()] for part, is_fixed in zip(parts, fixed))
        elements = _view(x)[places]
        return _typed(_dtype(x), elements.shape, x, *indices)

    def gather(self, x: Array, index: Array, axis: int) -> Typed:
        """The type of elements along `axis`."""
        shape, place = _shape(x), _axis(axis, len(_shape(x)))
        return _typed(_dtype(x), (*shape[:place], *_shape(index), *shape[place + 1 :]), x, index)

    def scatter_add(self, x: Array, index: Array, axis: int, extent: int) -> Typed:
        """The type of sums of elements by their indices along `axis`."""
        shape, place = _shape(x), _axis(axis, len(_shape(x)))
        if _shape(index) != shape[place : place + 1]:
            raise NotTyped("no vector of indices")
        return _typed(_dtype(x), (*shape[:place], extent, *shape[place + 1 :]), x, index)

    def bitcast(self, x: Array, dtype: np.dtype[Any]) -> Typed:
        """The type of the same bits in another dtype."""
        return _typed(dtype, _shape(x), x)

    def call_c(self, arrays: tuple[Array, ...], key: str) -> list[Typed]:
        """The types of its results."""
        function = c_function(key)
        function.refuse_others([(_dtype(x).name, _shape(x)) for x in arrays])
        return [_typed(np.dtype(dtype), shape, *arrays) for dtype, shape in function.outputs]

    def with_gradient(self, value: Array, x: Array, gradient: Array) -> Typed:
        """The type of the value."""
        if _shape(value) or (_dtype(x), _shape(x)) != (_dtype(gradient), _shape(gradient)):
            raise NotTyped("a gradient of another shape or dtype")
        return _typed(_dtype(value), (), value, x, gradient)

    def kernel(self, function: Function) -> Function:
        """The function itself."""
        return function

    def trace_of(self, x: Array) -> object | None:
        """The same object for every typed array: there are no inner functions here."""
        return self if isinstance(x, Typed) else None

    def __getattr__(self, name: str) -> Any:
        raise NotTyped(name)


LIBRARY = Types()
