"""Random numbers for one-lane programs: counter-based, keyed, the same bits on every backend.

The generator is Threefry-2x32 with 20 rounds (J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011), a keyed bijection of 64-bit counters. A key is a uint32[2] array and an ordinary variable of the
program: the numbers that a lane draws depend on its own key and on nothing else.

**Counters.** Every function below evaluates the cipher under the caller's key on counters (c0, c1) of its own domain:

    bits 31-30 of c1   domain         the other 62 bits (bits 29-0 of c1, then c0)
    0                  bits           number of the block of two words; all distributions are made from these
    1                  split          number of the new key
    2                  fold_in        the integer folded in
    3                  lane_keys      number of the lane

The cipher is a bijection for a given key, so the keys that `split`, `fold_in` and `lane_keys` derive from one key are
all different, and none of them equals a block of that key's own bits. As with every keyed generator, use a key once:
two distributions drawn with one key are made from the same bits.

**Agreement.** Keys and bits agree exactly between NumPy, TensorFlow and JAX (eager, traced, compiled, vectorized), and
so do `uniform` and `bernoulli`, which only scale them by powers of two; `normal` agrees to the precision of erfinv.

The functions take a key of shape [2]. Leading axes, as in [lanes, 2], are kept in front of the result, for code that is
already written over lanes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchnuts.autobatch.language import operators, ops
from batchnuts.autobatch.language.arrays import is_array, library_of
from batchnuts.autobatch.language.libraries.library import Library

Array = ops.Array
Shape = int | Sequence[int]

_BITS, _SPLIT, _FOLD_IN, _LANES = (domain << 30 for domain in range(4))

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
"""Rotation distances of Threefry-2x32, used in turn; from the Random123 library that goes with the paper."""

_PARITY = 0x1BD11BDA
"""The constant in the third word of the key schedule, from Threefish."""


# The cipher


def threefry2x32(key: tuple[Array, Array], counter: tuple[Array, Array], rounds: int = 20) -> tuple[Array, Array]:
    """The Threefry-2x32 cipher: two uint32 words for each counter, elementwise with broadcasting.

    key, counter: pairs of uint32 arrays. rounds: 20 is the authors' default, with a margin over the smallest number
    without known statistical flaws.
    """
    words = (*key, *counter)
    first, second = _kernel(library_of(*words), rounds)(*words)  # type: ignore[arg-type]  # mypy: a Protocol as Hashable
    return first, second


@functools.cache
def _kernel(library: Library, rounds: int) -> Callable[..., Any]:
    """The cipher on arrays of the library: a hundred operations and as many constants, traced once."""
    return library.kernel(functools.partial(_cipher, library, rounds=rounds))


def _cipher(library: Library, k0: Any, k1: Any, c0: Any, c1: Any, *, rounds: int) -> tuple[Any, Any]:
    def rotate_left(x: Any, distance: int) -> Any:
        left, right = np.uint32(distance), np.uint32(32 - distance)
        return library.bitwise_or(library.left_shift(x, left), library.right_shift(x, right))

    schedule = (k0, k1, library.bitwise_xor(library.bitwise_xor(k0, k1), np.uint32(_PARITY)))
    with np.errstate(over="ignore"):  # addition modulo 2**32 is meant; NumPy warns about it where a scalar is involved
        x0, x1 = c0 + schedule[0], c1 + schedule[1]
        for number in range(rounds):
            x0 = x0 + x1
            x1 = library.bitwise_xor(rotate_left(x1, _ROTATIONS[number % 8]), x0)
            if number % 4 == 3:
                injection = number // 4 + 1
                x0 = x0 + schedule[injection % 3]
                x1 = x1 + (schedule[(injection + 1) % 3] + np.uint32(injection))
    return x0, x1


def _key_words(key: Array) -> tuple[Any, Any]:
    """The two words of a key, each of shape [..., 1] to broadcast against a row of counters."""
    shape = ops.static_shape(key) if is_array(key) else None
    dtype = None if shape is None else ops.dtype_of(key)
    if not shape or shape[-1] != 2 or dtype not in (np.uint32, np.int32):
        kind = type(key).__name__ if shape is None else f"{np.dtype(dtype).name}{list(shape)}"
        raise ValueError(
            f"a key is a uint32 array of shape [2], found {kind}. Pass random.lane_keys(seed, lanes) as an argument, "
            "and use random.split or random.fold_in for more"
        )
    if dtype == np.int32:  # as TensorFlow's functions take their seeds
        key = ops.bitcast(key, "uint32")
    if len(shape) == 1:
        return key[0:1], key[1:2]
    return key[..., 0:1], key[..., 1:2]


def _integer_words(value: Array) -> tuple[Any, Any]:
    """Low and high word of an integer modulo 2**64, each uint32 of shape [..., 1]."""
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{value} does not fit into 64 bits")
        value = np.uint64(value % 2**64)
    if ops.dtype_of(value).kind not in "biu":
        raise TypeError(f"an integer is needed here, not {ops.dtype_of(value)}")
    words = ops.cast(value, "int64")[..., None]
    low, high = ops.bitwise_and(words, 0xFFFFFFFF), ops.bitwise_and(ops.right_shift(words, 32), 0xFFFFFFFF)
    return ops.cast(low, "uint32"), ops.cast(high, "uint32")


def _payload(domain: int, value: Array) -> tuple[Any, Any]:
    """The counter that carries 62 bits of an integer in the given domain."""
    low, high = _integer_words(value)
    return low, ops.bitwise_or(ops.bitwise_and(high, 0x3FFFFFFF), domain)


def _blocks(key: Array, domain: int, count: int) -> tuple[Any, Any]:
    """Blocks 0 to count-1 of a domain: two words, each of shape [..., count]."""
    return threefry2x32(_key_words(key), (np.arange(count, dtype=np.uint32), np.full(1, domain, np.uint32)))


# Keys


def key(seed: Array) -> Array:
    """The key of a 64-bit seed: uint32[2], the low word first. Different seeds modulo 2**64 give different keys.

    ValueError for a Python integer outside [-2**63, 2**64), TypeError for what is no integer.
    """
    return ops.concatenate(_integer_words(seed), axis=-1)


def split(key: Array, n: int = 2) -> Array:
    """`n` new keys, uint32[n, 2]. Key i does not depend on n. `left, right = split(key)` unpacks it."""
    return ops.stack(_blocks(key, _SPLIT, n), axis=-1)


def fold_in(key: Array, data: Array) -> Array:
    """A new key from a key and an integer scalar (a counter, an index), uint32[2].

    Integers that agree modulo 2**62 give the same key, whatever their dtypes; others give different ones.
    """
    return ops.concatenate(threefry2x32(_key_words(key), _payload(_FOLD_IN, data)), axis=-1)


def lane_keys(seed: int, lanes: int, first: int = 0) -> np.ndarray[Any, Any]:
    """Keys for the lanes first, ..., first+lanes-1 of a run: NumPy uint32[lanes, 2], made on the host.

    The key of lane i depends on `seed` and i only, so lanes may be added, chunked or run alone.

    Raises TypeError for what is no integer, ValueError for numbers of lanes below 0.
    """
    seed, lanes, first = map(operator.index, (seed, lanes, first))
    if lanes < 0 or first < 0:
        raise ValueError(f"lane_keys of {lanes} lanes from lane {first} on; expected numbers of at least 0")
    numbers = np.arange(first, first + lanes, dtype=np.uint64)
    low, high = threefry2x32(_key_words(key(seed)), _payload(_LANES, numbers))
    return np.concatenate([low, high], axis=-1)


# Numbers


def _shaped(values: Any, shape: tuple[int, ...]) -> Any:
    """`values` [..., size of shape] with the last axis spread over `shape`."""
    return library_of(values).split_last_axis(values, shape)


def _shape_tuple(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(extent) for extent in shape)


def bits(key: Array, shape: Shape = ()) -> Array:
    """Uniform random words: uint32 of the static shape `shape`.

    Half as many blocks as words: in row-major order the first words of all blocks, then their second words. So the
    words depend on the size asked for; a longer draw does not continue a shorter one of the same key.
    """
    shape = _shape_tuple(shape)
    size = int(np.prod(shape))
    words = ops.concatenate(_blocks(key, _BITS, (size + 1) // 2), axis=-1)
    return _shaped(words[..., :size], shape)


def _centred(key: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Uniform numbers on (-1, 1) in steps of 2**-22 (float32) or 2**-51 (float64), centred on 0 and never on it."""
    if dtype == np.float32:
        # By way of int32: processors convert signed integers faster, and 23 bits fit.
        words = ops.cast(ops.cast(ops.right_shift(bits(key, shape), 9), "int32"), "float32")
        return operators.multiply(operators.subtract(words, 2.0**22 - 0.5), 2.0**-22)
    if dtype == np.float64:
        blocks = _blocks(key, _BITS, int(np.prod(shape)))
        first, second = (ops.cast(ops.right_shift(word, 6), "float64") for word in blocks)
        high = operators.multiply(operators.subtract(first, 2.0**25), 2.0**26)
        return _shaped(operators.multiply(operators.add(high, operators.add(second, 0.5)), 2.0**-51), shape)
    raise ValueError(f"random numbers are float32 or float64, not {dtype}")


def uniform(key: Array, shape: Shape = (), dtype: Any = "float32") -> Array:
    """Uniform numbers on the open interval (0, 1), of the given shape and dtype (float32 or float64).

    They are the midpoints of 2**23 (float32) or 2**52 (float64) equal cells, all exact: never 0 or 1, symmetric about
    1/2, the smallest 2**-24 or 2**-53.
    """
    centred = _centred(key, _shape_tuple(shape), ops.dtype_named(dtype))
    return operators.add(operators.multiply(centred, 0.5), 0.5)


def normal(key: Array, shape: Shape = (), dtype: Any = "float32") -> Array:
    """Standard normal numbers of the given shape and dtype (float32 or float64), as sqrt(2) erfinv(2 u - 1).

    u is `uniform` of the same key, so the largest magnitude is 5.3 in float32 and 8.2 in float64. The argument of
    erfinv is exact; the relative error is that of erfinv, in float32 below 1e-6 (1e-5 under XLA), in the tails as well.
    """
    centred = _centred(key, _shape_tuple(shape), ops.dtype_named(dtype))
    return operators.multiply(ops.erfinv(centred), math.sqrt(2.0))


def bernoulli(key: Array, probability: Array = 0.5, shape: Shape = ()) -> Array:
    """True with the given probability, independently for each element: bool of shape `shape`.

    `probability` broadcasts against `shape` (ValueError if it would enlarge it). It is compared in float64 with the
    midpoints of 2**32 cells whatever its dtype, so 0 is never true, 1 always, and the outcome is the same everywhere.
    """
    shape = _shape_tuple(shape)
    wanted: Any = ops.static_shape(probability)
    if wanted is not None and None not in wanted and np.broadcast_shapes(wanted, shape) != shape:
        raise ValueError(f"probability of shape {wanted} needs more numbers than shape={shape}; pass shape={wanted}")
    cells = ops.cast(bits(key, shape), "float64")
    midpoints = operators.multiply(operators.add(cells, 0.5), 2.0**-32)
    return operators.less(midpoints, ops.cast(probability, "float64"))
