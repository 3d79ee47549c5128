"""Cases of products, decompositions, transforms, networks and stateless random numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from op_cases import (
    COMPLEX,
    OWN,
    Given,
    case,
    complexes,
    composed,
    definite,
    floats,
    lower,
    positive,
    probability,
    small,
    steady,
    whole,
)

PRODUCTS = [
    *(
        case("MatMul", a=floats(*a), b=floats(*b), transpose_a=turn_a, transpose_b=turn_b)
        for m, k, n in ((3, 4, 2), (1, 4, 3), (3, 4, 1), (1, 4, 1), (3, 1, 2))
        for turn_a in (False, True)
        for turn_b in (False, True)
        for a, b in (((k, m) if turn_a else (m, k), (n, k) if turn_b else (k, n)),)
    ),
    *(
        case("BatchMatMulV2", COMPLEX, x=complexes(*x), y=complexes(*y), adj_x=turn_x, adj_y=turn_y)
        for turn_x in (False, True)
        for turn_y in (False, True)
        for x, y in (
            ((4, 3) if turn_x else (3, 4), (2, 4) if turn_y else (4, 2)),
            ((4, 3) if turn_x else (3, 4), (1, 4) if turn_y else (4, 1)),
        )
    ),
    case("BatchMatMul", x=floats(2, 3, 4), y=floats(2, 4, 2)),
    case("BatchMatMulV2", x=floats(2, 3, 4), y=floats(4, 2)),
    case("BatchMatMulV2", x=floats(3, 4), y=floats(2, 4, 2)),
    case("BatchMatMulV3", x=floats(5, 1, 3, 4), y=floats(2, 4, 2), Tout=OWN),
    case("Einsum", inputs=[floats(3, 4), floats(4, 2)], equation="ij,jk->ik"),
    case("Einsum", inputs=[floats(3, 3), floats(3)], equation="ij,j->"),
    case("Einsum", inputs=[floats(2, 3, 4), floats(4)], equation="...i,i->..."),
]


def absolute(*places: int) -> Any:
    """The outputs, of which some are known only up to signs, or phases."""
    return lambda result: [tf.abs(t) if k in places else t for k, t in enumerate(result)]


LINALG = [
    case("Cholesky", input=definite(3, 3)),
    case("CholeskyGrad", xla=False, l=lower(3, 3), grad=floats(3, 3)),
    case("Cross", a=floats(2, 3), b=floats(2, 3)),
    case(
        "Eig",
        ("float64",),
        xla=False,
        input=definite(3, 3),
        compute_v=False,
        Tout=tf.complex128,
        pick=lambda r: tf.sort(tf.math.real(r[0])),
    ),
    case("LogMatrixDeterminant", xla=False, ulps=1024, input=definite(3, 3)),
    case("Lu", xla=False, input=definite(3, 3)),
    case("MatrixDeterminant", xla=False, ulps=1024, input=definite(3, 3)),
    case("MatrixDiag", diagonal=floats(2, 3)),
    case("MatrixDiagPart", input=floats(2, 3, 3)),
    case("MatrixInverse", ulps=1024, input=definite(3, 3)),
    case("MatrixLogarithm", ("complex64",), xla=False, ulps=4096, input=definite(3, 3)),
    case("MatrixSetDiag", input=floats(3, 3), diagonal=floats(3)),
    case("MatrixSolve", ulps=1024, matrix=definite(3, 3), rhs=floats(3, 2)),
    case(
        "MatrixSolveLs",
        ("float64",),
        xla=False,
        ulps=4096,
        matrix=definite(3, 3),
        rhs=floats(3, 2),
        l2_regularizer=tf.constant(0.1, tf.float64),
    ),
    case("MatrixSquareRoot", ("float64",), xla=False, ulps=1 << 20, input=definite(3, 3)),
    case("Qr", ulps=1024, input=floats(4, 3), pick=absolute(0, 1)),
    case("SelfAdjointEigV2", ulps=4096, input=definite(3, 3), pick=absolute(1)),
    case("Svd", ulps=4096, input=floats(4, 3), pick=absolute(1, 2)),
    case("TridiagonalMatMul", superdiag=floats(1, 3), maindiag=floats(1, 3), subdiag=floats(1, 3), rhs=floats(3, 2)),
    case("TridiagonalSolve", ulps=1024, diagonals=positive(3, 4), rhs=floats(4, 2), partial_pivoting=False),
    case("BandedTriangularSolve", xla=False, ulps=1024, matrix=positive(2, 4), rhs=floats(4, 2)),
    *(
        case("MatrixTriangularSolve", ulps=1024, matrix=lower(3, 3), rhs=floats(3, n), adjoint=adjoint)
        for n in (1, 2)
        for adjoint in (False, True)
    ),
    case("MatrixTriangularSolve", ulps=1024, matrix=lower(2, 3, 3), rhs=floats(2, 3, 2)),
    case("MatrixBandPart", input=floats(2, 4, 4), num_lower=1, num_upper=0),
    *(
        case(f"MatrixDiag{version}", diagonal=floats(2, 3), k=0, num_rows=-1, num_cols=-1, padding_value=0.0)
        for version in ("V2", "V3")
    ),
    *(case(f"MatrixDiagPart{version}", input=floats(2, 3, 4), k=1, padding_value=0.0) for version in ("V2", "V3")),
    *(case(f"MatrixSetDiag{version}", input=floats(3, 3), diagonal=floats(2), k=1) for version in ("V2", "V3")),
    *(
        case(op, COMPLEX, ulps=1024, input=complexes(2, 3, 4))
        for op in ("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
    ),
    case("RFFT", ("float32",), ulps=1024, input=floats(2, 8), fft_length=[8]),
    case("RFFT2D", ("float32",), ulps=1024, input=floats(4, 8), fft_length=[4, 8]),
    case("RFFT3D", ("float32",), ulps=1024, input=floats(2, 4, 4), fft_length=[2, 4, 4]),
    case("IRFFT", ("complex64",), ulps=1024, input=complexes(2, 5), fft_length=[8]),
    case("IRFFT2D", ("complex64",), ulps=1024, input=complexes(4, 5), fft_length=[4, 8]),
    case("IRFFT3D", ("complex64",), ulps=1024, input=complexes(2, 4, 3), fft_length=[2, 4, 4]),
]

_ONES = [1, 1, 1, 1]
_POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
_POOL3 = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}
_F = ("float32",)


def image(*shape: int) -> Given:
    return floats(*shape)


NETWORKS = [
    case(
        "Conv2D",
        _F,
        ulps=1024,
        input=image(2, 5, 5, 3),
        filter=steady(floats(2, 2, 3, 4)),
        strides=_ONES,
        padding="SAME",
    ),
    case(
        "Conv3D",
        _F,
        ulps=1024,
        input=image(1, 4, 4, 4, 2),
        filter=steady(floats(2, 2, 2, 2, 3)),
        strides=[1] * 5,
        padding="VALID",
    ),
    case(
        "DepthwiseConv2dNative",
        _F,
        ulps=1024,
        input=image(2, 5, 5, 3),
        filter=steady(floats(2, 2, 3, 2)),
        strides=_ONES,
        padding="SAME",
    ),
    *(
        case(
            "Conv2DBackpropFilter",
            _F,
            ulps=1024,
            input=image(2, 5, 6, 3),
            filter_sizes=[2, 3, 3, 4],
            out_backprop=image(2, *out, 4),
            strides=strides,
            padding=padding,
            dilations=dilations,
        )
        for strides, padding, dilations, out in (
            (_ONES, "SAME", _ONES, (5, 6)),
            (_ONES, "VALID", _ONES, (4, 4)),
            ([1, 2, 2, 1], "SAME", _ONES, (3, 3)),
            ([1, 2, 2, 1], "VALID", _ONES, (2, 2)),
        )
    ),
    case(
        "Conv2DBackpropInput",
        _F,
        ulps=1024,
        input_sizes=[2, 5, 5, 3],
        filter=steady(floats(2, 2, 3, 4)),
        out_backprop=image(2, 5, 5, 4),
        strides=_ONES,
        padding="SAME",
    ),
    case(
        "Conv3DBackpropInputV2",
        _F,
        ulps=1024,
        input_sizes=[1, 4, 4, 4, 2],
        filter=steady(floats(2, 2, 2, 2, 3)),
        out_backprop=image(1, 3, 3, 3, 3),
        strides=[1] * 5,
        padding="VALID",
    ),
    case(
        "DepthwiseConv2dNativeBackpropFilter",
        _F,
        ulps=1024,
        input=image(2, 5, 5, 3),
        filter_sizes=[2, 2, 3, 2],
        out_backprop=image(2, 5, 5, 6),
        strides=_ONES,
        padding="SAME",
    ),
    case(
        "DepthwiseConv2dNativeBackpropInput",
        _F,
        ulps=1024,
        input_sizes=[2, 5, 5, 3],
        filter=steady(floats(2, 2, 3, 2)),
        out_backprop=image(2, 5, 5, 6),
        strides=_ONES,
        padding="SAME",
    ),
    *(
        case(f"{kind}Pool", _F, **{"input" if kind == "Max" else "value": image(2, 4, 4, 3)}, **_POOL)
        for kind in ("Max", "Avg")
    ),
    *(case(f"{kind}Pool3D", _F, input=image(1, 4, 4, 4, 2), **_POOL3) for kind in ("Max", "Avg")),
    case("AvgPoolGrad", _F, orig_input_shape=[2, 4, 4, 3], grad=image(2, 2, 2, 3), **_POOL),
    case("AvgPool3DGrad", _F, orig_input_shape=[1, 4, 4, 4, 2], grad=image(1, 2, 2, 2, 2), **_POOL3),
    case(
        "FusedBatchNorm",
        _F,
        ulps=1024,
        x=image(2, 4, 4, 3),
        scale=steady(positive(3)),
        offset=steady(floats(3)),
        mean=steady(floats(3)),
        variance=steady(positive(3)),
        is_training=False,
        pick=lambda r: r[0],
    ),
    case(
        "FusedBatchNormV2",
        _F,
        ulps=1024,
        x=image(2, 4, 4, 3),
        scale=steady(positive(3)),
        offset=steady(floats(3)),
        mean=steady(floats(3)),
        variance=steady(positive(3)),
        is_training=False,
        pick=lambda r: r[0],
    ),
    case(
        "FusedBatchNormV3",
        _F,
        ulps=1024,
        x=image(2, 4, 4, 3),
        scale=steady(positive(3)),
        offset=steady(floats(3)),
        mean=steady(floats(3)),
        variance=steady(positive(3)),
        is_training=False,
        pick=lambda r: r[0],
    ),
    case("ResizeBilinear", _F, ulps=1024, images=image(1, 4, 4, 3), size=[6, 6]),
    case("ResizeNearestNeighbor", _F, images=image(1, 4, 4, 3), size=[6, 6]),
    case("ResizeBilinearGrad", _F, ulps=1024, grads=image(1, 6, 6, 3), original_image=image(1, 4, 4, 3)),
    case("LRN", _F, ulps=1024, input=image(2, 4, 4, 8)),
    case(
        "ExtractImagePatches",
        _F,
        images=image(2, 4, 4, 3),
        ksizes=[1, 2, 2, 1],
        strides=_ONES,
        rates=_ONES,
        padding="SAME",
    ),
    case(
        "Dilation2D",
        _F,
        xla=False,
        input=image(2, 4, 4, 3),
        filter=steady(floats(2, 2, 3)),
        strides=_ONES,
        rates=_ONES,
        padding="SAME",
    ),
]

_raw = tf.raw_ops
_IMAGE = floats(2, 4, 4, 3)
_HALF = floats(2, 2, 2, 3)


def _norm_training(op: Any, **more: Any) -> Any:
    """Images and statistics, of which the op has its own."""
    part = more.get("exponential_avg_factor", 1.0)
    given = dict.fromkeys(("mean", "variance"), tf.constant([0.5, 1.0, 2.0] if part != 1.0 else [], tf.float32))

    def function(x: Any) -> Any:
        scale, offset = tf.constant([1.0, 2.0, 0.5]), tf.constant([0.1, -0.2, 0.3])
        return op(x=x, scale=scale, offset=offset, is_training=True, **given, **more)[:3]

    return function


def _norm_training_gradient(op: Any) -> Any:
    """By the formula's own derivative, through the op that has it."""

    def function(x: Any, weights: Any) -> Any:
        scale, offset = tf.constant([1.0, 2.0, 0.5]), tf.constant([0.1, -0.2, 0.3])
        with tf.GradientTape() as tape:
            tape.watch((x, scale, offset))
            y = op(x=x, scale=scale, offset=offset, mean=[], variance=[], is_training=True)[0]
            loss = tf.reduce_sum(weights * y)
        return tape.gradient(loss, (x, scale, offset))

    return function


def _norm_gradient(op: Any, extra: int) -> Any:
    """In inference: mean and variance are given."""

    def function(gradient: Any, x: Any) -> Any:
        scale, mean, variance = (
            tf.constant([1.0, 2.0, 0.5]),
            tf.constant([0.1, -0.2, 0.3]),
            tf.constant([1.0, 0.5, 2.0]),
        )
        spaces = {f"reserve_space_{k}": value for k, value in enumerate((mean, variance, mean)[: 2 + extra], 1)}
        return op(y_backprop=gradient, x=x, scale=scale, is_training=False, **spaces)[:3]

    return function


_LEADS = ((), (2,), (2, 2))
"""Of images in axes before theirs."""

NETWORK_GRADIENTS = [
    composed(
        "MaxPoolGrad",
        lambda x, g: _raw.MaxPoolGrad(orig_input=x, orig_output=_raw.MaxPool(input=x, **_POOL), grad=g, **_POOL),
        _IMAGE,
        _HALF,
    ),
    composed(
        "MaxPoolGradGrad",
        lambda x, g: _raw.MaxPoolGradGrad(orig_input=x, orig_output=_raw.MaxPool(input=x, **_POOL), grad=g, **_POOL),
        _IMAGE,
        _IMAGE,
    ),
    composed(
        "MaxPool3DGrad",
        lambda x, g: _raw.MaxPool3DGrad(orig_input=x, orig_output=_raw.MaxPool3D(input=x, **_POOL3), grad=g, **_POOL3),
        floats(1, 4, 4, 4, 2),
        floats(1, 2, 2, 2, 2),
    ),
    composed(
        "LRNGrad",
        lambda g, x: _raw.LRNGrad(input_grads=g, input_image=x, output_image=_raw.LRN(input=x)),
        floats(2, 4, 4, 8),
        floats(2, 4, 4, 8),
    ),
    composed("FusedBatchNormGrad", _norm_gradient(_raw.FusedBatchNormGrad, 0), _IMAGE, _IMAGE),
    composed("FusedBatchNormGradV2", _norm_gradient(_raw.FusedBatchNormGradV2, 0), _IMAGE, _IMAGE),
    composed("FusedBatchNormGradV3", _norm_gradient(_raw.FusedBatchNormGradV3, 1), _IMAGE, _IMAGE),
    composed("FusedBatchNorm", _norm_training(_raw.FusedBatchNorm), _IMAGE),
    composed("FusedBatchNormV2", _norm_training(_raw.FusedBatchNormV2, exponential_avg_factor=0.25), _IMAGE),
    composed("FusedBatchNormV3", _norm_training(_raw.FusedBatchNormV3, exponential_avg_factor=0.25), _IMAGE),
    composed("FusedBatchNormGradV2", _norm_training_gradient(_raw.FusedBatchNormV2), _IMAGE, _IMAGE),
    composed("FusedBatchNormGradV3", _norm_training_gradient(_raw.FusedBatchNormV3), _IMAGE, _IMAGE),
    *(case("AdjustContrastv2", _F, images=floats(*lead, 4, 4, 3), contrast_factor=0.7) for lead in _LEADS),
    *(case("AdjustHue", _F, images=probability(*lead, 4, 4, 3), delta=0.1) for lead in _LEADS),
    *(case("AdjustSaturation", _F, images=probability(*lead, 4, 4, 3), scale=0.7) for lead in _LEADS),
    *(case(op, _F, images=probability(*lead, 3)) for op in ("RGBToHSV", "HSVToRGB") for lead in ((), (5,), (2, 4, 4))),
]

_SEED = small(2)


def _by_key(op: Any, **attributes: Any) -> Any:
    def function(seed: Any) -> Any:
        key, counter = _raw.StatelessRandomGetKeyCounter(seed=seed)
        return op(shape=[3], key=key, counter=counter, alg=1, **attributes)

    return function


def _shuffled(seed: Any) -> Any:
    key, counter = _raw.StatelessRandomGetKeyCounter(seed=seed)
    return _raw.StatelessShuffle(value=tf.range(5), key=key, counter=counter, alg=1)


def _gamma(seed: Any, alpha: Any) -> Any:
    key, counter = _raw.StatelessRandomGetKeyCounter(seed=seed)
    return _raw.StatelessRandomGammaV3(shape=[3], key=key, counter=counter, alg=1, alpha=alpha)


_ZERO, _THOUSAND = tf.constant(0), tf.constant(1000)
RANDOM_BY_KEY = [
    composed("StatelessRandomUniformV2", _by_key(_raw.StatelessRandomUniformV2), _SEED, ulps=0),
    composed("StatelessRandomNormalV2", _by_key(_raw.StatelessRandomNormalV2), _SEED, ulps=0),
    composed("StatelessTruncatedNormalV2", _by_key(_raw.StatelessTruncatedNormalV2), _SEED, ulps=0),
    composed("StatelessRandomUniformFullIntV2", _by_key(_raw.StatelessRandomUniformFullIntV2, dtype=tf.uint32), _SEED),
    composed(
        "StatelessRandomUniformIntV2", _by_key(_raw.StatelessRandomUniformIntV2, minval=_ZERO, maxval=_THOUSAND), _SEED
    ),
    composed("StatelessShuffle", _shuffled, _SEED, xla=False),
    composed("StatelessRandomGammaV3", _gamma, _SEED, positive(3), xla=False, ulps=0),
]

_TABLE = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)))
VARIABLES = [
    composed(
        "ResourceGather", lambda i: _raw.ResourceGather(resource=_TABLE.handle, indices=i, dtype=tf.float32), small(2)
    ),
    composed(
        "ResourceGatherNd",
        lambda i: _raw.ResourceGatherNd(resource=_TABLE.handle, indices=i, dtype=tf.float32),
        small(3, 2),
        xla=False,
    ),
]

RANDOM = [
    case("StatelessRandomUniform", ulps=0, shape=[3], seed=_SEED),
    case("StatelessRandomNormal", ulps=0, shape=[3], seed=_SEED),
    case("StatelessTruncatedNormal", ulps=0, shape=[3], seed=_SEED),
    case("StatelessRandomUniformInt", shape=[3], seed=_SEED, minval=tf.constant(0), maxval=tf.constant(1000)),
    case("StatelessRandomUniformFullInt", shape=[3], seed=_SEED, dtype=tf.int32),
    case("StatelessRandomGetKeyCounter", seed=_SEED),
    case("StatelessRandomPoisson", xla=False, shape=[3], seed=_SEED, lam=positive(3), dtype=tf.int32),
    case(
        "StatelessRandomBinomial",
        xla=False,
        shape=[3],
        seed=_SEED,
        counts=whole(),
        probs=tf.constant(0.5),
        dtype=tf.int32,
        dtypes=("float32",),
    ),
    case("StatelessRandomGammaV2", ulps=0, xla=False, shape=[3], seed=_SEED, alpha=positive(3)),
    case("StatelessMultinomial", logits=floats(2, 3), num_samples=4, seed=_SEED),
    case(
        "StatelessParameterizedTruncatedNormal",
        ulps=0,
        shape=[3],
        seed=_SEED,
        means=floats(),
        stddevs=positive(),
        minvals=tf.constant(-9.0, tf.float64),
        maxvals=tf.constant(9.0, tf.float64),
        dtypes=("float64",),
    ),
]

CASES = [*PRODUCTS, *LINALG, *NETWORKS, *NETWORK_GRADIENTS, *RANDOM, *RANDOM_BY_KEY, *VARIABLES]
