"""JAX. Imported when its first array is seen.

**64 bits.** Every function of the library runs with JAX's 64-bit dtypes on, whatever the user's `jax_enable_x64` says,
and leaves that setting alone. Called outside of JAX's transformations, functions of `ops` and `random` therefore have
the dtypes that NumPy has. A transformation (`jit`, `vmap`, `grad`) that is entered while 64 bits are off is JAX's own
affair: it rounds its arguments, constants and cotangents to 32 bits before and after these functions. Who traces
programs of 64 bits enters `enable_x64()` around the whole trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import partial_eval
from typing_extensions import override

from batchnuts.autobatch.language.libraries.jax_c_functions import call_c
from batchnuts.autobatch.language.libraries.jax_flags import compile_small_loops_whole, enable_x64
from batchnuts.autobatch.language.libraries.jax_identity import identity_of, identity_of_jaxpr
from batchnuts.autobatch.language.libraries.jax_indices import refuse_indices_outside
from batchnuts.autobatch.language.libraries.jax_primitives import expm1, once, with_gradient, without_reverse
from batchnuts.autobatch.language.libraries.jax_programs import Jitted
from batchnuts.autobatch.language.libraries.library import Array, Function, Traced
from batchnuts.autobatch.language.libraries.tensors import Formulas
from batchnuts.autobatch.language.libraries.type_rules import NotTyped


def _as_users(function: Function, *arrays: Array) -> Function:
    """A user's function with the dtypes that JAX has by itself for such arguments: without 64 bits, unless they have
    them. So an array that it makes is float32 where the arguments are.

    While JAX traces, the NumPy arrays that the function reads become constants of a trace of its own, and copies of
    them those of ours: JAX remembers what dtype it took a NumPy array for, by the array's identity and whether or not
    64 bits are on, as long as a program holds it (0.10 to 0.12). The user's next program would find float64 as float32.
    """

    def narrow(*arguments: Any) -> Any:
        with enable_x64(any(array.dtype.itemsize == 8 for array in arrays)):
            if not any(isinstance(argument, jax.core.Tracer) for argument in arguments):
                return function(*arguments)
            traced, shapes = jax.make_jaxpr(lambda *operands: function(*operands), return_shape=True)(*arguments)
        copies = [np.array(c) if isinstance(c, np.ndarray) or _is_weak(c) else c for c in traced.consts]
        run = jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(_without_weak_types(traced.jaxpr), copies))
        return jax.tree.unflatten(jax.tree.structure(shapes), run(*jax.tree.leaves(arguments)))

    return narrow


def _is_weak(constant: Any) -> bool:
    return not isinstance(constant, jax.core.Tracer) and bool(getattr(constant, "weak_type", False))


def _without_weak_types(jaxpr: Any) -> Any:
    """The same in which no type is weak, as those of Python's numbers are.

    It is lowered with 64 bits on. Where JAX lowers a primitive by a function (`bessel_i0e`), two weak float32 make a
    float64 then.
    """

    def fixed(atom: Any) -> Any:
        if isinstance(atom, jax.extend.core.Literal) and getattr(atom.aval, "weak_type", False):
            return jax.extend.core.Literal(atom.aval.dtype.type(atom.val), atom.aval.update(weak_type=False))
        return atom

    def fixed_equation(equation: Any) -> Any:
        params = {**equation.params, "weak_type": False} if "weak_type" in equation.params else equation.params
        return equation.replace(invars=[*map(fixed, equation.invars)], params=params)

    return jaxpr.replace(eqns=[*map(fixed_equation, jaxpr.eqns)])


def with_64_bits(function: Function) -> Function:
    """The function with JAX's 64-bit dtypes on while it runs."""

    @functools.wraps(function)
    def wide(*arguments: Any, **options: Any) -> Any:
        if jax.config.jax_enable_x64:
            return function(*arguments, **options)
        with enable_x64():
            return function(*arguments, **options)

    return wide


def _together(*arrays: Array) -> list[Array]:
    """Arrays broadcast to one shape: what is beneath jax.numpy wants that done."""
    shapes = {np.shape(array) for array in arrays}
    if len(shapes) == 1:
        return list(arrays)
    shape = np.broadcast_shapes(*shapes)
    return [array if np.shape(array) == shape else jnp.broadcast_to(array, shape) for array in arrays]


def _elementwise(function: Function) -> Any:
    return staticmethod(lambda *arrays: function(*_together(*arrays)))


def _reduction(function: Function) -> Any:
    return staticmethod(lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims))


def _depends(function: Function, x: Array) -> bool:
    """Whether a function has one result, which depends on its argument other than through `stop_gradient`.

    Raises IndexError for a constant index outside of an axis.
    """
    closed = jax.make_jaxpr(function)(x)
    refuse_indices_outside(closed)
    jaxpr = closed.jaxpr
    if len(jaxpr.outvars) != 1:
        return False
    reached = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        variables = [v for v in equation.invars if isinstance(v, jax.extend.core.Var)]
        if equation.primitive.name != "stop_gradient" and not reached.isdisjoint(variables):
            reached.update(equation.outvars)
    (result,) = jaxpr.outvars
    return isinstance(result, jax.extend.core.Var) and result in reached


def _shape(leaf: Any) -> tuple[int, ...]:
    return tuple(leaf.shape)


def _replay(closed: Any, results: Any) -> Function:
    """What was traced, as a function; results: the tree of its results."""
    run = jax.extend.core.jaxpr_as_fun(closed)
    return lambda *operands: jax.tree.unflatten(jax.tree.structure(results), run(*operands))


_SMALL_INTEGERS = range(-8, 9)
"""Exponents that a few products are as accurate for as a logarithm."""

_OUTSIDE = ("as_callers", "from_caller", "untransformed", "without_reverse")
"""Functions of the library that are not run with 64 bits on."""


class JaxLibrary(Formulas):
    """The `TensorLibrary` of JAX: arrays, and what stands for them while JAX traces.

    NumPy's arrays are constants, and stay NumPy's until a function takes them.
    """

    name = "JAX"

    def __init__(self) -> None:
        for name in dir(self):
            if not name.startswith("_") and name not in _OUTSIDE and callable(function := getattr(self, name)):
                setattr(self, name, with_64_bits(function))

    @override
    def dtype_of(self, x: Array) -> np.dtype[Any]:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            raise TypeError(
                "found an array of JAX keys, which hold no numbers. Pass jax.random.key_data(keys), and turn a lane's "
                "words into a key with jax.random.wrap_key_data"
            )
        dtype: np.dtype[Any] = np.dtype(x.dtype)
        return dtype

    @override
    def static_shape(self, x: Array) -> tuple[int | None, ...] | None:
        return tuple(x.shape)

    @override
    def convert(self, x: Any, dtype: Any) -> Array:
        """An array of `dtype` that is not weak in JAX's own sense."""
        return lax.convert_element_type(x, dtype) if isinstance(x, jax.Array) else np.asarray(x, dtype=dtype)

    cast = convert

    exp = staticmethod(lax.exp)
    log = staticmethod(lax.log)
    log1p = staticmethod(lax.log1p)
    expm1 = staticmethod(expm1)
    sqrt = staticmethod(lax.sqrt)
    sin = staticmethod(lax.sin)
    cos = staticmethod(lax.cos)
    tan = staticmethod(lax.tan)
    tanh = staticmethod(lax.tanh)
    sigmoid = staticmethod(lax.logistic)
    softplus = staticmethod(jax.nn.softplus)
    erf = staticmethod(lax.erf)
    erfinv = staticmethod(lax.erf_inv)
    gammaln = staticmethod(lax.lgamma)
    digamma = staticmethod(lax.digamma)
    isfinite = staticmethod(lax.is_finite)
    isnan = staticmethod(lambda x: lax.ne(x, x))
    positive = staticmethod(lambda x: x)
    square = staticmethod(lambda x: lax.mul(x, x))
    sign = staticmethod(lax.sign)
    floor = staticmethod(lax.floor)
    ceil = staticmethod(lax.ceil)
    round = staticmethod(lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN))

    @override
    def abs(self, x: Array) -> Array:
        if x.dtype.kind != "f":
            return x if x.dtype.kind in "ub" else lax.abs(x)
        # the gradient at 0 is 0, as TensorFlow has it; JAX's own is 1
        return lax.abs(self.where(x == 0, np.zeros((), x.dtype), x))

    add = _elementwise(lax.add)
    subtract = _elementwise(lax.sub)
    multiply = _elementwise(lax.mul)
    divide = _elementwise(lax.div)
    truncated_remainder = _elementwise(lax.rem)
    negative = staticmethod(lax.neg)

    equal = _elementwise(lax.eq)
    not_equal = _elementwise(lax.ne)
    less = _elementwise(lax.lt)
    less_equal = _elementwise(lax.le)
    greater = _elementwise(lax.gt)
    greater_equal = _elementwise(lax.ge)

    bitwise_and = logical_and = _elementwise(lax.bitwise_and)
    bitwise_or = logical_or = _elementwise(lax.bitwise_or)
    bitwise_xor = _elementwise(lax.bitwise_xor)
    left_shift = _elementwise(lax.shift_left)
    logical_not = staticmethod(lax.bitwise_not)

    @override
    def right_shift(self, x: Array, y: Array) -> Array:
        shift = lax.shift_right_arithmetic if x.dtype.kind == "i" else lax.shift_right_logical
        return shift(*_together(x, y))

    # Division and powers

    def _floor_divide_integers(self, x: Array, y: Array) -> Array:
        return jnp.floor_divide(x, y)

    def _remainder_of_integers(self, x: Array, y: Array) -> Array:
        return jnp.remainder(x, y)

    @override
    def power(self, x: Array, y: Array) -> Array:
        """The power; of integers by repeated squares, since XLA reads an integer exponent modulo 64.

        JAX's derivative of order n + 1 of `x ** n` at 0 is NaN, but for an n that is a constant integer to it.
        """
        if x.dtype.kind not in "iu" and isinstance(y, np.ndarray) and not y.ndim and y in _SMALL_INTEGERS:
            return lax.integer_pow(jnp.asarray(x), int(y.real))
        x, y = _together(x, y)
        if x.dtype.kind not in "iu":
            return lax.pow(x, y)

        def one_digit(_: Any, carried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            base, exponent, result = carried
            odd = (exponent & exponent.dtype.type(1)) == 1
            half = lax.shift_right_logical(exponent, lax.full_like(exponent, 1))
            return base * base, half, self.where(odd, result * base, result)

        start = jnp.asarray(x), jnp.asarray(y), lax.full_like(x, 1)
        if not isinstance(y, np.ndarray):
            return lax.fori_loop(0, 8 * x.dtype.itemsize, one_digit, start)[2]
        for digit in range(int(y.max(initial=0)).bit_length()):
            start = one_digit(digit, start)
        return start[2]

    # Reductions

    any = _reduction(jnp.any)
    all = _reduction(jnp.all)
    mean = _reduction(jnp.mean)
    min = _reduction(jnp.min)
    max = _reduction(jnp.max)

    @override
    def sum(self, x: Array, axis: Any, keepdims: bool) -> Array:
        """The sum in the dtype of `x`: JAX alone would widen small integers."""
        return jnp.sum(x, axis=axis, dtype=x.dtype, keepdims=keepdims)

    def _matrix_product(self, x: Array, y: Array) -> Array:
        # On GPUs JAX by itself multiplies float32 with the precision of 10 bits.
        return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)

    def _total(self, arrays: Sequence[Array]) -> Array:
        return functools.reduce(lax.add, arrays)

    # Along an axis, and matrices

    cumsum = staticmethod(jnp.cumsum)
    transpose = staticmethod(lambda x: jnp.swapaxes(x, -1, -2))
    cholesky = staticmethod(jnp.linalg.cholesky)

    @override
    def solve_triangular(self, matrix: Array, b: Array, lower: bool, transposed: bool) -> Array:
        return lax.linalg.triangular_solve(
            jnp.asarray(matrix), jnp.asarray(b), left_side=True, lower=lower, transpose_a=transposed
        )

    @override
    def scan(
        self, step: Function, carry: list[Array], rows: list[Array], length: int
    ) -> tuple[list[Array], list[Array]]:
        after, stacked = lax.scan(lambda carry, rows: step(carry, rows), carry, rows, length)
        return after, stacked

    # Arrays

    where = _elementwise(lax.select)
    stack = staticmethod(jnp.stack)
    concatenate = staticmethod(jnp.concatenate)
    reshape = staticmethod(jnp.reshape)
    bitcast = staticmethod(lax.bitcast_convert_type)

    @override
    def full_like(self, x: Array, value: Array) -> Array:
        return jnp.broadcast_to(value, x.shape)

    @override
    def parts_of_last_axis(self, x: Array, sizes: Sequence[int]) -> list[Array]:
        return [x[..., end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]

    @override
    def split_last_axis(self, x: Array, shape: tuple[int, ...]) -> Array:
        return jnp.reshape(x, (*x.shape[:-1], *shape))

    @override
    def gather(self, x: Array, index: Array, axis: int) -> Array:
        return jnp.take(x, index, axis=axis, mode="clip")

    @override
    def scatter_add(self, x: Array, index: Array, axis: int, extent: int) -> Array:
        rows = jnp.moveaxis(x, axis, 0)
        return jnp.moveaxis(jnp.zeros((extent, *rows.shape[1:]), x.dtype).at[index].add(rows), 0, axis)

    call_c = staticmethod(call_c)
    with_gradient = staticmethod(with_gradient)

    # Programs

    @override
    def kernel(self, function: Function) -> Function:
        """The function traced once for given shapes, its arguments and results behind barriers.

        Else LLVM would merge the kernel with what is around it. jaxlib 0.12 never ends compiling one in which the
        rounds of a cipher meet what goes into them, a conversion from int64 say, and what reads them, a logarithm.
        """

        def behind_barriers(*words: Array) -> tuple[Array, ...]:
            inside = lax.optimization_barrier(tuple(jnp.asarray(word, np.uint32) for word in words))
            results: tuple[Array, ...] = lax.optimization_barrier(tuple(function(*inside)))
            return tuple(map(once.bind, results))

        return with_64_bits(jax.jit(behind_barriers))

    # Functions

    @override
    def tensor(self, x: Array) -> Array:
        # what jnp.asarray does to NumPy's arrays is a program, which is compiled
        return jax.device_put(np.array(x)) if isinstance(x, np.ndarray) else jnp.asarray(x)

    @override
    def call(self, function: Function, *tensors: Array) -> Any:
        """What the function gives; 64-bit dtypes are on if an argument has one, whatever `jax_enable_x64` says."""
        return _as_users(function, *tensors)(*tensors)

    untransformed = staticmethod(lambda function: function)

    @override
    def from_caller(self, x: Array) -> Array:
        """The argument, converted outside of `enable_x64`.

        Where derivatives are taken at NumPy's float64, the tracer says float32 and holds NumPy's array.
        """
        return jnp.array(x, copy=True) if isinstance(x, jax.core.Tracer) else x

    @override
    def as_callers(self, x: Array) -> Array:
        """The result, converted outside of `enable_x64`."""
        return lax.convert_element_type(x, jax.dtypes.canonicalize_dtype(x.dtype))

    @override
    def without_reverse(self, function: Function, message: str) -> Function:
        def barred(x: Array) -> Array:
            return without_reverse.bind(x, message=message) if jnp.issubdtype(x.dtype, jnp.inexact) else x

        return lambda *arrays: tuple(map(barred, function(*arrays)))

    @override
    def value_and_gradient(self, function: Function, x: Array, *others: Array) -> tuple[Any, Array | None]:
        """The value and gradient by reverse mode, with dtypes as in `call`."""
        users = _as_users(function, x)
        value, pull_back = jax.vjp(lambda x: users(x, *others), x)
        if value.shape or value.dtype.kind != "f":
            return value, None
        return value, pull_back(lax.full_like(value, 1))[0]

    @override
    def recorded_gradient(self, function: Function, x: Array, *others: Array) -> tuple[Array, Array]:
        from batchnuts.autobatch.language.libraries.jax_recording import record

        given = [jax.ShapeDtypeStruct(array.static_shape, array.static_dtype) for array in (x, *others)]
        closed = jax.make_jaxpr(functools.partial(self.value_and_gradient, function))(*given)
        if len(closed.jaxpr.outvars) != 2:
            raise NotTyped("a gradient that is known to be none")
        value, gradient = record(closed, x, *others)
        return value, gradient

    @override
    def compiled(self, function: Function, on_identity: Callable[[str], None] | None = None) -> Function:
        """The function, jitted: each operation by itself would be compiled too, which takes longer.

        on_identity: see `differentiated`.
        """
        jitted = Jitted(lambda *tensors: _as_users(function, *tensors)(*tensors), on_identity)

        def call(*tensors: Array) -> Any:
            try:
                return jitted(*tensors)
            except jax.errors.ConcretizationTypeError:  # it branches on values
                return self.call(function, *tensors)

        return with_64_bits(call)

    @override
    def result_shapes(self, function: Function, *tensors: Array) -> Any:
        closed, results = jax.make_jaxpr(lambda *operands: self.call(function, *operands), return_shape=True)(*tensors)
        refuse_indices_outside(closed)
        return jax.tree.map(_shape, results)

    @override
    def traced(self, function: Function, *tensors: Array) -> Traced:
        closed, results = jax.make_jaxpr(lambda *operands: function(*operands), return_shape=True)(*tensors)
        refuse_indices_outside(closed)
        identity = identity_of_jaxpr(closed, results)
        return Traced(jax.tree.map(_shape, results), identity, None if identity is None else _replay(closed, results))

    def dependent(self, function: Function, *tensors: Array) -> list[bool]:
        """For each result of a function whether its first argument is needed to compute it."""
        with enable_x64():
            jaxpr = jax.make_jaxpr(lambda *operands: self.call(function, *operands))(*tensors).jaxpr
        count = len(jaxpr.outvars)
        return [partial_eval.dce_jaxpr(jaxpr, [i == k for i in range(count)])[1][0] for k in range(count)]

    @override
    def differentiated(
        self, function: Function, on_identity: Callable[[str], None] | None = None
    ) -> Callable[..., tuple[Any, Array | None]]:
        """`value_and_gradient`, jitted; a function that cannot be traced or gives no array runs as it stands."""
        jitted = self.compiled(functools.partial(self.value_and_gradient, function), on_identity)
        sound: set[Any] = set()
        """Shapes and dtypes for which the value is a scalar that depends on x."""

        def both(x: Array, *others: Array) -> tuple[Any, Array | None]:
            def of_x(x: Array) -> Any:
                return _as_users(function, x)(x, *others)

            if (x.shape, x.dtype) not in sound:
                try:
                    depends = _depends(of_x, x)
                except (jax.errors.ConcretizationTypeError, TypeError):  # as it stands, the error is the user's own
                    depends = True
                    value = of_x(x)
                    if isinstance(value, np.ndarray | np.generic | float | int):  # JAX's array was made NumPy's
                        raise
                    if not isinstance(value, jax.Array):
                        return value, None
                if not depends:
                    return of_x(x), None
                sound.add((x.shape, x.dtype))
            value, gradient = jitted(x, *others)
            return value, gradient

        return with_64_bits(both)

    @override
    def traced_once(self, function: Function, xla: bool) -> Function:
        """The function itself: tracing takes JAX a fraction of the time that compiling does."""
        return function

    @override
    def identity_of(self, function: Function, *arrays: Array) -> str | None:
        """The identity of the function's trace."""
        return identity_of(lambda *operands: _as_users(function, *operands)(*operands), *arrays)

    @override
    def key_by_identity(self, *identity: str) -> str | None:
        from batchnuts.autobatch.language.libraries.jax_programs import key_by_identity

        return key_by_identity(*identity)

    @override
    def trace_of(self, x: Array) -> object | None:
        return getattr(x, "_trace", None)


compile_small_loops_whole()
LIBRARY = JaxLibrary()
