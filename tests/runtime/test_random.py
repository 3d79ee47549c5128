"""random: published vectors, one stream per key on every backend, and statistical sanity."""

import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from array_libraries import HAS_JAX, as_jax, every_library, in_jax, needs_jax
from ways import one_in

from batchnuts.autobatch import ops, random
from batchnuts.autobatch.language import operators
from batchnuts.autobatch.pfor import vectorized_map

KEYS = random.lane_keys(2024, 6)


def five_times(word: Any) -> Any:
    return operators.multiply(ops.cast(word, "int64"), 5)


# Each function of one lane's key, and whether all libraries must agree on it exactly.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "bits": (random.bits, True),
    "bits odd": (lambda key: random.bits(key, 5), True),
    "bits matrix": (lambda key: random.bits(key, (2, 3)), True),
    "bits empty": (lambda key: random.bits(key, (0, 3)), True),
    "split": (random.split, True),
    "split to one": (lambda key: random.split(key, 1), True),
    "split to five": (lambda key: random.split(key, 5), True),
    "fold_in": (lambda key: random.fold_in(key, 7), True),
    "fold_in a negative": (lambda key: random.fold_in(key, -7), True),
    "fold_in a lane's own number": (lambda key: random.fold_in(key, five_times(key[0])), True),
    "key of a lane's own seed": (lambda key: random.key(ops.cast(key[0], "int32")), True),
    "uniform": (lambda key: random.uniform(key, (3, 2)), True),
    "uniform float64": (lambda key: random.uniform(key, (3, 2), "float64"), True),
    "bernoulli": (lambda key: random.bernoulli(key, 0.3, (7,)), True),
    "bernoulli per lane": (lambda key: random.bernoulli(key, random.uniform(key, 7), 7), True),
    "normal": (lambda key: random.normal(key, 100), False),
    "normal scalar": (random.normal, False),
    "normal float64": (lambda key: random.normal(key, (3, 2), "float64"), False),
    "normal of a child": (lambda key: random.normal(random.split(key)[1], (4,)), False),
}


def assert_agree(found: Any, expected: Any, exactly: bool) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if exactly:
        np.testing.assert_array_equal(found, expected)
    else:
        tolerance = 1e-5 if expected.dtype == np.float32 else 1e-13
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# The generator


# From the file kat_vectors of the Random123 distribution: rounds, counter, key, result.
KNOWN_ANSWERS = [
    (13, "00000000 00000000", "00000000 00000000", "9d1c5ec6 8bd50731"),
    (13, "ffffffff ffffffff", "ffffffff ffffffff", "fd36d048 2d17272c"),
    (13, "243f6a88 85a308d3", "13198a2e 03707344", "ba3e4725 f27d669e"),
    (20, "00000000 00000000", "00000000 00000000", "6b200159 99ba4efe"),
    (20, "ffffffff ffffffff", "ffffffff ffffffff", "1cb996fc bb002be7"),
    (20, "243f6a88 85a308d3", "13198a2e 03707344", "c4923a9c 483df7a0"),
    (32, "00000000 00000000", "00000000 00000000", "cee3d47e a23dfd5c"),
    (32, "ffffffff ffffffff", "ffffffff ffffffff", "6e2fe0d0 b1b76f82"),
    (32, "243f6a88 85a308d3", "13198a2e 03707344", "e2827716 c3c05cdf"),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "result"), KNOWN_ANSWERS)
@pytest.mark.parametrize(
    "as_array",
    [np.asarray, tf.constant, np.uint32, pytest.param(as_jax, marks=needs_jax)],
    ids=["numpy", "tensorflow", "scalars", "jax"],
)
def test_known_answers(as_array: Callable[..., Any], rounds: int, counter: str, key: str, result: str) -> None:
    def words(text: str) -> tuple[Any, Any]:
        first, second = (np.uint32(int(word, 16)) for word in text.split())
        return as_array(first), as_array(second)

    found = random.threefry2x32(words(key), words(counter), rounds)
    assert " ".join(f"{int(word):08x}" for word in found) == result


def test_counters_are_as_documented() -> None:
    key = random.key(0x0123456789ABCDEF)
    assert [int(word) for word in key] == [0x89ABCDEF, 0x01234567]

    def block(domain: int, number: int) -> list[int]:
        counter = np.uint32(number & 0xFFFFFFFF), np.uint32(domain << 30 | number >> 32)
        return [int(word) for word in random.threefry2x32((key[0], key[1]), counter)]

    words = random.bits(key, 5)
    assert [int(words[0]), int(words[3])] == block(0, 0)
    assert [int(words[1]), int(words[4])] == block(0, 1)
    assert random.split(key, 3)[2].tolist() == block(1, 2)
    assert random.fold_in(key, 3 << 40 | 9).tolist() == block(2, 3 << 40 | 9)
    lanes = random.lane_keys(0x0123456789ABCDEF, 2, first=2**32 + 1)
    assert lanes[1].tolist() == block(3, 2**32 + 2)


def test_derived_keys_and_blocks_never_meet() -> None:
    key = random.key(3)
    blocks = random.bits(key, 200).reshape(2, 100).T
    derived = [random.fold_in(key, number) for number in range(-50, 50)]
    everything = np.concatenate([blocks, random.split(key, 100), derived, random.lane_keys(3, 100)])
    assert len(np.unique(everything, axis=0)) == 400


# One stream per key


@pytest.mark.parametrize("name", one_in(3, FUNCTIONS))
def test_every_backend_draws_the_same(name: str) -> None:
    function, exactly = FUNCTIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = np.stack([function(key) for key in KEYS])
    lanes = tf.constant(KEYS)

    def vectorized(keys: tf.Tensor) -> Any:
        return vectorized_map(function, keys, fallback=False)

    assert_agree(tf.stack([function(key) for key in lanes]), expected, exactly)
    for compiled in (False, True):
        one = tf.function(function, jit_compile=compiled)
        all_lanes = tf.function(vectorized, jit_compile=compiled)
        assert_agree(one(lanes[3]), expected[3], exactly)
        assert_agree(all_lanes(lanes), expected, exactly)
        # In another place of another batch.
        assert_agree(all_lanes(lanes[3:5]), expected[3:5], exactly)


@needs_jax
@pytest.mark.parametrize("name", one_in(2, FUNCTIONS))
def test_jax_draws_the_same(name: str) -> None:
    function, exactly = FUNCTIONS[name]
    expected = np.stack([function(key) for key in KEYS])
    assert_agree(np.stack([function(as_jax(key)) for key in KEYS]), expected, exactly)
    assert_agree(in_jax(function, lanes=False)(KEYS[3]), expected[3], exactly)
    all_lanes = in_jax(function, lanes=True)
    assert_agree(all_lanes(KEYS), expected, exactly)
    assert_agree(all_lanes(KEYS[3:5]), expected[3:5], exactly)


@needs_jax
def test_the_cipher_is_one_operation_between_barriers() -> None:
    """One trace for all of its uses, whose words no kernel of jaxlib 0.12 takes in with what is around them."""
    import jax

    from batchnuts.autobatch.language.libraries.jax_flags import enable_x64

    def draws(seed: Any) -> Any:
        return random.normal(random.key(seed), 3) + random.normal(random.fold_in(random.key(seed), 1), 3)

    with enable_x64():
        text = jax.jit(draws).lower(np.int32(3)).as_text()
    bodies = text.count("func private @behind_barriers")
    assert text.count("stablehlo.optimization_barrier") == 2 * bodies
    assert 0 < bodies < text.count("call @behind_barriers")


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "own" not in name and "lane" not in name])
def test_leading_axes_of_keys_are_lanes(name: str) -> None:
    if name == "normal of a child":  # indexes the key's result by hand
        return
    function, exactly = FUNCTIONS[name]
    expected = np.stack([function(key) for key in KEYS])
    assert_agree(function(KEYS), expected, exactly=True)
    assert_agree(function(tf.constant(KEYS)), expected, exactly)
    assert_agree(function(KEYS.reshape(2, 3, 2)), expected.reshape(2, 3, *expected.shape[1:]), exactly=True)
    unknown = tf.function(function, input_signature=[tf.TensorSpec([None, 2], tf.uint32)])
    assert_agree(unknown(KEYS), expected, exactly)
    if HAS_JAX:
        assert_agree(function(as_jax(KEYS)), expected, exactly)


def test_lane_keys_depend_on_seed_and_lane_only() -> None:
    keys = random.lane_keys(5, 8)
    assert keys.dtype == np.uint32
    assert keys.shape == (8, 2)
    np.testing.assert_array_equal(random.lane_keys(5, 3), keys[:3])
    np.testing.assert_array_equal(random.lane_keys(5, 3, first=5), keys[5:])
    assert not np.array_equal(random.lane_keys(6, 8), keys)
    with pytest.raises(TypeError, match="float"):
        random.lane_keys(1.5, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lane_keys of -1 lanes from lane 0 on; expected numbers of at least 0"):
        random.lane_keys(1, -1)


def test_integers_fold_in_by_value() -> None:
    key = KEYS[0]
    for value in (0, 1, -1, 2**31 - 1, -(2**31)):
        expected = random.fold_in(key, value)
        for dtype in (np.int32, np.int64):
            np.testing.assert_array_equal(random.fold_in(key, dtype(value)), expected)
            for as_array in (tf.constant, as_jax) if HAS_JAX else (tf.constant,):
                found = random.fold_in(as_array(key), as_array(np.array(value, dtype)))
                np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(random.fold_in(key, np.uint64(2**61)), random.fold_in(key, 2**61))
    np.testing.assert_array_equal(random.fold_in(tf.constant(key), 2**61), random.fold_in(key, 2**61))
    np.testing.assert_array_equal(random.key(tf.constant(-1)), random.key(-1))
    np.testing.assert_array_equal(random.key(2**64 - 1), random.key(-1))


@every_library
def test_errors(as_array: Callable[..., Any]) -> None:
    key = as_array(KEYS[0])
    for wrong in (as_array(np.ones(3, np.uint32)), as_array(np.ones(2, np.int64)), as_array(np.uint32(1)), 7):
        with pytest.raises(ValueError, match=r"a key is a uint32 array of shape \[2\], found (uint32|int64|int)\b"):
            random.bits(wrong)
    with pytest.raises(TypeError, match="integer"):
        random.fold_in(key, as_array(1.5))
    with pytest.raises(ValueError, match="64 bits"):
        random.key(2**64)
    with pytest.raises(ValueError, match="float32 or float64"):
        random.normal(key, (2,), "float16")
    with pytest.raises(ValueError, match=r"pass shape=\(3,\)"):
        random.bernoulli(key, as_array(np.ones(3)))


# Distributions


@pytest.mark.parametrize(("dtype", "smallest"), [("float32", 2.0**-24), ("float64", 2.0**-53)])
def test_uniform_is_open_and_exact_at_both_ends(dtype: str, smallest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for word, expected in ((0, smallest), (0xFFFFFFFF, 1 - smallest)):
        # Whatever the cipher gives, the smallest and the largest words must stay inside.
        monkeypatch.setattr(
            random, "_blocks", lambda key, domain, count, word=word: (np.full(count, word, np.uint32),) * 2
        )
        assert random.uniform(KEYS[0], (), dtype) == expected
        assert np.isfinite(random.normal(KEYS[0], (), dtype))
        assert not random.bernoulli(KEYS[0], 0.0)
        assert random.bernoulli(KEYS[0], 1.0)
        compiled = tf.function(lambda key: random.uniform(tf.identity(key), (4,), dtype), jit_compile=True)
        np.testing.assert_array_equal(compiled(tf.constant(KEYS[0])), np.full(4, expected, dtype))


# The seeds are fixed, so these never fail by chance; the threshold is what chance would meet once in a thousand runs of
# the whole table (Bonferroni).
SAMPLE = 40_000
TESTS = 12


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_distributions_by_kolmogorov_smirnov(seed: int, dtype: str) -> None:
    one, other = random.split(random.key(seed))
    assert scipy.stats.kstest(random.uniform(one, SAMPLE, dtype), "uniform").pvalue > 1e-3 / TESTS
    assert scipy.stats.kstest(random.normal(other, SAMPLE, dtype), "norm").pvalue > 1e-3 / TESTS


def test_first_draws_of_many_lanes_are_uniform() -> None:
    # The lanes' streams start from keys that differ in few bits: across lanes they must look as random as along one.
    keys = random.lane_keys(11, SAMPLE)
    for values in (random.uniform(keys), random.uniform(random.fold_in(keys, np.arange(SAMPLE)), 2)[:, 1]):
        assert scipy.stats.kstest(values, "uniform").pvalue > 1e-3 / 2


def test_streams_are_uncorrelated() -> None:
    size = 20_000
    key = random.key(17)
    streams = [
        random.normal(key, size),
        *(random.normal(child, size) for child in random.split(key, 3)),
        *(random.normal(random.fold_in(key, data), size) for data in range(3)),
        *(random.normal(lane, size) for lane in random.lane_keys(17, 3)),
        random.normal(random.key(18), size),
    ]
    streams.append(np.roll(streams[0], 1))
    pairs = list(itertools.combinations(range(len(streams)), 2))
    correlation = np.corrcoef(streams)
    threshold = scipy.stats.norm.isf(1e-3 / 2 / len(pairs)) / np.sqrt(size)
    assert max(abs(correlation[pair]) for pair in pairs) < threshold


def test_each_bit_is_fair() -> None:
    words = random.bits(random.key(23), SAMPLE)
    counts = np.unpackbits(words.view(np.uint8)).reshape(SAMPLE, 32).sum(0)
    z = (counts - SAMPLE / 2) / np.sqrt(SAMPLE / 4)
    assert np.abs(z).max() < scipy.stats.norm.isf(1e-3 / 2 / 32)


@pytest.mark.parametrize("probability", [0.001, 0.3, 0.5, 0.9])
def test_bernoulli_mean(probability: float) -> None:
    hits = random.bernoulli(random.key(29), probability, SAMPLE)
    assert hits.dtype == bool
    assert scipy.stats.binomtest(int(hits.sum()), SAMPLE, probability).pvalue > 1e-3 / 4


def test_bernoulli_does_not_depend_on_the_dtype_of_its_probability() -> None:
    expected = random.bernoulli(KEYS[1], 0.25, 1000)
    np.testing.assert_array_equal(random.bernoulli(KEYS[1], np.float32(0.25), 1000), expected)
    np.testing.assert_array_equal(random.bernoulli(tf.constant(KEYS[1]), tf.constant(0.25), 1000), expected)


def test_a_key_unpacks() -> None:
    left, right = random.split(KEYS[0])
    assert left.shape == right.shape == (2,)
    assert not np.array_equal(left, right)


COMPILED = """
import numpy as np
from batchnuts.autobatch import batch, ops, random

@batch
def walk(key, n):
    if n <= 0:
        return 0.0
    return ops.log(ops.abs(random.normal(random.fold_in(key, n)))) + walk(key, n - 1)

total = walk.run(random.lane_keys(0, 256), np.arange(256) % 5, backend="jax", mode="xla")
assert np.isfinite(total).all()
"""


@needs_jax
@pytest.mark.slow
def test_jax_compiles_random_numbers_within_minutes(tmp_path: Path) -> None:
    """At XLA's own level of optimization, where jaxlib 0.12 never ended without the barriers (decision 33)."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    subprocess.run([sys.executable, "-W", "ignore", str(script)], env=environment, check=True, timeout=120)
