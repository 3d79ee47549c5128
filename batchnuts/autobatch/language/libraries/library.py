"""The contract: what `ops`, the operators, indexing and random numbers need of an array library.

The functions here are elementary. Their callers find the library, the common dtype and the meaning of Python's numbers:

- The arrays of one call have one dtype already (the condition of `where` is bool). At least one is the library's own;
  others may be NumPy's. The result has that dtype, that of comparisons and `is...` is bool.
- Elementwise functions broadcast.
- Outside its domain a function gives NaN or infinity as IEEE 754 has it, without a warning or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = Any
Function = Callable[..., Array]


@dataclass(frozen=True)
class Traced:
    """What a library knows of a function that it has traced for some arrays."""

    shapes: Any
    """The shapes of its result, as `TensorLibrary.result_shapes` gives them."""
    identity: str | None = None
    """The identity of what was traced (`TensorLibrary.identity_of`)."""
    again: Function | None = None
    """Computes what was traced, for arrays of the same shapes and dtypes; known where the identity is."""
    expression: Any = None
    """What was traced, as an expression (ir/expression.py), where that is known."""


class Library(Protocol):
    """What every library has, NumPy too."""

    name: str
    """The library's name as users write it: "NumPy", "TensorFlow", "JAX"."""

    # Values

    def dtype_of(self, x: Array) -> np.dtype[Any]:
        """The dtype of an array, as NumPy's."""

    def static_shape(self, x: Array) -> tuple[int | None, ...] | None:
        """The shape as far as it is known before values are; None if not even the rank is."""

    def convert(self, x: Any, dtype: Any) -> Array:
        """An array of this library, or anything that NumPy makes an array of, as an array of `dtype`."""

    def cast(self, x: Array, dtype: Any) -> Array:
        """The array in another dtype, as a new value: a fraction is dropped, integers wrap."""

    # Functions of one array, elementwise. Reals only: exp to isnan. Any number: square, abs, sign. Floats: the others

    exp: Function
    log: Function
    log1p: Function
    expm1: Function
    sqrt: Function
    sin: Function
    cos: Function
    tan: Function
    tanh: Function
    sigmoid: Function
    softplus: Function
    erf: Function
    erfinv: Function
    gammaln: Function
    digamma: Function
    isfinite: Function
    isnan: Function
    positive: Function
    square: Function
    abs: Function
    sign: Function
    floor: Function
    ceil: Function
    round: Function

    # Functions of two, elementwise. `minimum` and `maximum` give NaN if either is; of bools they are `and` and `or`

    minimum: Function
    maximum: Function
    logaddexp: Function
    """log(exp(x) + exp(y)) of real numbers; finite gradients where both are infinite, halves at a tie."""
    multiply: Function
    not_equal: Function

    # Bits, of integers and bools; the amount of a shift lies in [0, width of the dtype)

    bitwise_and: Function
    bitwise_or: Function
    bitwise_xor: Function
    left_shift: Function
    right_shift: Function

    # Truths, of bools

    logical_not: Function
    logical_and: Function
    logical_or: Function

    # Reductions: (x, axis, keepdims); axis: an integer, a tuple, or None for all

    any: Function
    all: Function
    sum: Function
    mean: Function
    min: Function
    max: Function

    # Along an axis of floats, and matrices in the last two axes

    cumsum: Function
    """(x, axis): sums up to each element."""

    transpose: Function
    """Matrices [..., n, k] with the last two axes exchanged."""

    def cholesky(self, x: Array) -> Array:
        """The lower triangular factor of symmetric matrices [..., n, n]."""

    def solve_triangular(self, matrix: Array, b: Array, lower: bool, transposed: bool) -> Array:
        """The solution x [..., n, k] of `matrix @ x = b`; of its transpose where `transposed`."""

    def scan(
        self, step: Function, carry: list[Array], rows: list[Array], length: int
    ) -> tuple[list[Array], list[Array]]:
        """`step(carry, rows of one trip)` gives lists of the next carry and of what is stacked; `length` trips."""

    # Arrays

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        """`x` where `condition` is true, else `y`, elementwise with broadcasting."""

    matmul: Function
    """Matrix product of two arrays as NumPy has it; ValueError for a scalar."""
    stack: Function
    """(arrays, axis): arrays of one shape along a new axis."""
    concatenate: Function
    """(arrays, axis): arrays end to end along an axis they have."""
    reshape: Function
    """(x, shape): another shape of the same size; one extent may be -1."""

    def full_like(self, x: Array, value: Array) -> Array:
        """`value` broadcast to the shape of `x`, in its own dtype."""

    def split_last_axis(self, x: Array, shape: tuple[int, ...]) -> Array:
        """`x` [..., size of shape] as [..., *shape]; leading extents may be unknown."""

    def parts_of_last_axis(self, x: Array, sizes: Sequence[int]) -> list[Array]:
        """`x` [..., n] as arrays [..., size], one after another; n is the sum of the sizes."""

    def bitcast(self, x: Array, dtype: np.dtype[Any]) -> Array:
        """The bits of `x` read as another dtype of the same size."""

    # Operators on arrays of one dtype, elementwise. Integers wrap

    add: Function
    subtract: Function
    divide: Function
    """The quotient of floats."""
    floor_divide: Function
    """Rounded down; what an integer divided by zero gives is open."""
    remainder: Function
    """With the divisor's sign, a zero too."""
    power: Function
    """An integer's exponent is not negative."""
    negative: Function

    equal: Function
    less: Function
    less_equal: Function
    greater: Function
    greater_equal: Function

    # Elements

    def item(self, x: Array, parts: tuple[Any, ...]) -> Array:
        """`x[parts]`, a part for each axis: an integer, a slice, an integer array inside the axis; None for a new one.

        Of the arrays either one is a vector and no integer stands beside it, or all are scalars.
        """

    def gather(self, x: Array, index: Array, axis: int) -> Array:
        """The elements of `x` along `axis` at an integer scalar or vector of indices, all inside."""

    def scatter_add(self, x: Array, index: Array, axis: int, extent: int) -> Array:
        """Zeros with `extent` along `axis`, to whose elements at an integer vector of indices, all inside, those of `x`
        are added: the transpose of `gather`."""

    def call_c(self, arrays: tuple[Array, ...], key: str) -> list[Array]:
        """The results of the function of C that has that key (c_functions.py)."""

    def with_gradient(self, value: Array, x: Array, gradient: Array) -> Array:
        """The scalar `value`, whose derivative with respect to `x` is said to be `gradient`, an array like x, whatever
        it was computed of."""

    # Programs

    def kernel(self, function: Function) -> Function:
        """A long function of uint32 arrays, elementwise with broadcasting: traced once, its results computed once.

        A compiler that fuses it with its readers must not compute it again for each of them.
        """


class TensorLibrary(Library, Protocol):
    """What a library has besides whose arrays are traced: Python does not know their values."""

    # Functions

    def tensor(self, x: Array) -> Array:
        """An array of NumPy or of this library as one of this library."""

    def call(self, function: Function, *tensors: Array) -> Any:
        """The result of a user's function of tensors."""

    def untransformed(self, function: Function) -> Function:
        """A function of ours that the library traces as it stands, where it rewrites the code of users' functions."""

    def from_caller(self, x: Array) -> Array:
        """An argument with the dtype that it says it has."""

    def as_callers(self, x: Array) -> Array:
        """A program's result in the widest dtype that the caller computes with: JAX may have those of 32 bits only."""

    def without_reverse(self, function: Function, message: str) -> Function:
        """The same function of arrays to a tuple of arrays; its reverse-mode derivative raises TypeError with the
        message."""

    def compiled(self, function: Function) -> Function:
        """A user's function, made once for many calls with arrays of a few shapes; as `call` otherwise.

        It may be compiled when it is first called, if it can be traced, and has then the constants of that time.
        """

    def result_shapes(self, function: Function, *tensors: Array) -> Any:
        """The shapes of a user's function's arrays, in the structure (of dicts) of its result; it is traced only.

        Raises IndexError for a constant index outside of an axis where the library would say nothing of it.
        """

    def traced(self, function: Function, *tensors: Array) -> Traced:
        """A function of such arrays, traced as it stands: one that itself makes a `call` of the user's.

        Raises IndexError as `result_shapes`.
        """

    def differentiated(
        self, function: Function, on_identity: Callable[[str], None] | None = None
    ) -> Callable[..., tuple[Any, Array | None]]:
        """`value_and_gradient` of a function in the same way; for arrays whose values are known.

        on_identity: called with the `identity_of` of both, where a call finds it out by the way. Raises IndexError as
        `result_shapes`.
        """

    def value_and_gradient(self, function: Function, x: Array, *others: Array) -> tuple[Any, Array | None]:
        """The value of a function of a float array, and of others, and its gradient, which has the shape of x.

        The gradient is None where the value is no float scalar, or is known not to depend on x.
        """

    def recorded_gradient(self, function: Function, x: Array, *others: Array) -> tuple[Array, Array]:
        """`value_and_gradient` of a function of this library, written down by the recording of x (recording.py).

        Raises NotTyped where what it computes cannot be written down, and whatever the function raises.
        """

    # Tracing

    def traced_once(self, function: Function, xla: bool) -> Function:
        """The same function of arrays, of which the library keeps what is costly to make again for each program.

        xla: whether XLA will compile these programs.
        """

    def identity_of(self, function: Function, *arrays: Array) -> str | None:
        """What a function computes of such arrays, as hexadecimal digits that no other function has; None: not known.

        Of two functions with one identity the derivatives may differ.
        """

    def key_by_identity(self, *identity: str) -> str | None:
        """The key of something on disk that depends on what these texts say, on this package, the library and the
        processor; None where that might not be all."""

    def trace_of(self, x: Array) -> object | None:
        """What records the operations on `x`, to tell a value of an inner function from one of ours; None: nothing."""
