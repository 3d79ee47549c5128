"""Convolutions, pooling, normalization: the images of all rows are one batch, where the weights are the same for all.

Where the weights differ between rows (as per-example gradients of weights do), patches are extracted once, and a
batched product remains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.pfor.errors import NoRule
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, merge, product, reshape, shape_of
from batchnuts.autobatch.pfor.values import Invariant, Stacked, Tensor, Value

IMAGES = """
    AvgPool AvgPool3D MaxPool MaxPool3D MaxPoolGrad MaxPoolGradGrad MaxPool3DGrad ResizeBilinear ResizeNearestNeighbor
    ResizeBilinearGrad LRN LRNGrad ExtractImagePatches Conv2D Conv3D DepthwiseConv2dNative Dilation2D
"""
IMAGES_WITHOUT_XLA = "Dilation2D"
BATCH_INPUTS = {
    "MaxPoolGrad": (0, 1, 2), "MaxPoolGradGrad": (0, 1, 2), "MaxPool3DGrad": (0, 1, 2), "LRNGrad": (0, 1, 2),
    "ResizeBilinearGrad": (0, 1),
}  # fmt: skip
"""Which inputs are images; all but the first of these only have to be a batch. Elsewhere: input 0."""


@converts(IMAGES, varying="the images", no_xla=IMAGES_WITHOUT_XLA)
def images(site: Site) -> list[Value]:
    """One batch of rows times images. Other inputs (filters, sizes) are the same for all rows."""
    batch = BATCH_INPUTS.get(site.op.type, (0,))
    site.only(*batch)
    return _as_one_batch(site, batch)


@converts("AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB", varying="the images")
def colors(site: Site) -> list[Value]:
    """The op takes any axes in front of an image's, or of a color's: merging rows with the first axis of one image
    would have a contrast that all rows have in common."""
    site.only(0)
    return site.emit_rows(*site.tensors())


def _as_one_batch(site: Site, batch: tuple[int, ...]) -> list[Value]:
    """The op on batches of rows times images; all outputs are such batches."""
    inputs = [merge(site.stacked(k), 2) if k in batch else site.tensor(k) for k in range(len(site.inputs))]
    lead = shape_of(site.stacked(batch[0]))[:2]
    results = site.emit(*inputs)
    return [Stacked(reshape(result, [*lead, *shape_of(result)[1:]])) for result in results]


@converts("AvgPoolGrad AvgPool3DGrad", varying="grad")
def average_pool_gradient(site: Site) -> list[Value]:
    """The first input is the shape of the images."""
    site.only(1)
    return [_gradient_of_images(site, 0, 1)]


@converts("Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput Conv3DBackpropInputV2", varying="out_backprop")
def image_gradient(site: Site) -> list[Value]:
    """With one filter for all rows: one batch."""
    site.only(2)
    return [_gradient_of_images(site, 0, 2)]


def _gradient_of_images(site: Site, sizes_at: int, gradient_at: int) -> Value:
    sizes = site.tensor(sizes_at)
    gradient = site.tensor(gradient_at)
    rows, images = shape_of(gradient)[:2]
    inputs = site.tensors()
    inputs[gradient_at] = merge(gradient, 2)
    constant = tf.get_static_value(sizes)
    lead = product([rows, images])
    inputs[sizes_at] = (
        tf.constant([lead, *constant[1:]], tf.int32)
        if constant is not None and isinstance(lead, int)
        else tf.concat([tf.reshape(tf.cast(lead, sizes.dtype), [1]), sizes[1:]], 0)
    )
    (result,) = site.emit(*inputs)
    return Stacked(reshape(result, [rows, images, *shape_of(result)[1:]]))


@converts("Conv2DBackpropFilter", varying="input out_backprop")
def filter_gradient(site: Site) -> list[Value]:
    """[rows, patch, filters] = patches' gradient: patches of every image, then one product per row."""
    site.only(0, 2)
    sizes = site.constant(1)
    if sizes is None or site.attr("data_format") != b"NHWC":
        raise NoRule
    height, width, channels, filters = (int(size) for size in sizes)
    if site.row_shape(0)[3] != channels:
        raise NoRule  # groups
    patches, gradient = _patches(site, height, width), site.stacked(2)
    rows, count, out_height, out_width, _ = shape_of(gradient)
    places = product([count, out_height, out_width])
    left = reshape(patches, [rows, places, height * width * channels])
    right = reshape(gradient, [rows, places, filters])
    return [Stacked(reshape(tf.matmul(left, right, transpose_a=True), [rows, height, width, channels, filters]))]


@converts("DepthwiseConv2dNativeBackpropFilter", varying="input out_backprop")
def depthwise_filter_gradient(site: Site) -> list[Value]:
    """[rows, patch, channels, times] = patches' gradient: one product per row and channel."""
    site.only(0, 2)
    sizes = site.constant(1)
    if sizes is None or site.attr("data_format") != b"NHWC":
        raise NoRule
    height, width, channels, times = (int(size) for size in sizes)
    patches, gradient = _patches(site, height, width), site.stacked(2)
    rows, count, out_height, out_width, _ = shape_of(gradient)
    places = product([count, out_height, out_width])
    left = reshape(patches, [rows, places, height * width, channels])
    right = reshape(gradient, [rows, places, channels, times])
    result = tf.einsum("rpkc,rpct->rkct", left, right)
    return [Stacked(reshape(result, [rows, height, width, channels, times]))]


def _patches(site: Site, height: int, width: int) -> Tensor:
    """[rows * images, out height, out width, height * width * channels]: the entries that each filter position sees."""
    images = merge(site.stacked(0), 2)
    strides, rates = site.attr("strides"), site.attr("dilations")
    padding: Any = site.attr("padding").decode()
    if padding == "EXPLICIT":
        around = np.reshape(site.attr("explicit_paddings"), (4, 2))
        images, padding = tf.pad(images, around), "VALID"
    if padding == "SAME":
        images, padding = _padded(images, (height, width), strides, rates), "VALID"
    parts = []
    sizes = shape_of(images)
    spans = [
        ((sizes[1] - (height - 1) * rates[1] - 1) // strides[1]) * strides[1] + 1,
        ((sizes[2] - (width - 1) * rates[2] - 1) // strides[2]) * strides[2] + 1,
    ]
    for y in range(height):
        for x in range(width):
            top, left = y * rates[1], x * rates[2]
            parts.append(images[:, top : top + spans[0] : strides[1], left : left + spans[1] : strides[2], :])
    return tf.concat(parts, -1)


def _padded(images: Tensor, filter_sizes: tuple[int, int], strides: list[int], rates: list[int]) -> Tensor:
    """The images with the zeros around them that TensorFlow's SAME puts: as few as possible, the odd one at the end."""
    around: list[Any] = [(0, 0)]
    for axis, size in zip((1, 2), filter_sizes):
        extent = shape_of(images)[axis]
        if not isinstance(extent, int):
            raise NoRule
        out = -(-extent // strides[axis])
        total = max((out - 1) * strides[axis] + (size - 1) * rates[axis] + 1 - extent, 0)
        around.append((total // 2, total - total // 2))
    return tf.pad(images, [*around, (0, 0)])


@converts("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", varying="x")
def batch_norm(site: Site) -> list[Value]:
    """With the statistics given (inference), rows do not see each other: one batch. In training each has its own."""
    site.only(0)
    if site.attr("is_training"):
        return _batch_norm_of_rows(site)
    (first, *others) = site.emit(merge(site.tensor(0), 2), *site.tensors()[1:])
    lead = shape_of(site.tensor(0))[:2]
    return [Stacked(reshape(first, [*lead, *shape_of(first)[1:]])), *(Invariant(statistic) for statistic in others)]


def _channels_last(site: Site, k: int) -> list[int]:
    """The axes of rows of images, without the channels'. Raises NoRule where these are not the last."""
    if site.attr("data_format") not in (b"NHWC", b"NDHWC"):
        raise NoRule
    return list(range(1, site.row_rank(k)))


def _moments(value: Tensor, axes: list[int], dtype: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Deviations from the mean, and [rows, channels] mean and variance."""
    value = tf.cast(value, dtype)
    mean = tf.reduce_mean(value, axes, keepdims=True)
    deviation = value - mean
    return deviation, tf.squeeze(mean, axes), tf.reduce_mean(deviation * deviation, axes)


def _beside(vector: Tensor, like: Tensor) -> Tensor:
    """Statistics [rows, channels] with unit axes between."""
    rows, channels = shape_of(vector)
    return reshape(vector, [rows, *[1] * (like.shape.rank - 2), channels])


def _batch_norm_of_rows(site: Site) -> list[Value]:
    """Images, statistics (of the variance an unbiased estimate), and what the op's gradient takes."""
    axes = _channels_last(site, 0)
    value, scale, offset, running_mean, running_variance = site.tensors()
    deviation, mean, variance = _moments(value, axes, scale.dtype)
    images = deviation * _beside(tf.math.rsqrt(variance + site.attr("epsilon")), value) * scale + offset
    count = tf.cast(product([shape_of(value)[axis] for axis in axes]), scale.dtype)
    unbiased = variance * (count / tf.maximum(count - 1.0, 1.0))
    new = [mean, unbiased]
    part = float(site.attr("exponential_avg_factor"))
    if part != 1.0:
        new = [(1.0 - part) * old + part * current for old, current in zip((running_mean, running_variance), new)]
    outputs = [tf.cast(images, value.dtype), *new, mean, variance]
    spare = [site.loop.rows(tf.zeros([0], scale.dtype)) for _ in site.op.outputs[5:]]
    return [Stacked(output) for output in (*outputs, *spare)]


@converts("FusedBatchNormGradV3 FusedBatchNormGradV2 FusedBatchNormGrad", varying="y_backprop x")
def batch_norm_gradient(site: Site) -> list[Value]:
    """y = scale (x - mean) / sqrt(variance + epsilon) + offset, differentiated by hand for each row: in inference with
    the statistics given, in training with the row's own."""
    if set(site.varying()) - {0, 1} and not (site.attr("is_training") and not site.varies(2)):
        raise NoRule
    axes = _channels_last(site, 1)
    gradient, value = site.stacked(0), site.stacked(1)
    scale, mean, variance = site.tensors()[2:5]
    into = tf.cast(gradient, scale.dtype)
    of_offset = tf.reduce_sum(into, axes)
    if site.attr("is_training"):
        deviation, _, variance = _moments(value, axes, scale.dtype)
        inverse = _beside(tf.math.rsqrt(variance + site.attr("epsilon")), value)
        whitened = deviation * inverse
        of_scale = tf.reduce_sum(into * whitened, axes)
        count = tf.cast(product([shape_of(value)[axis] for axis in axes]), scale.dtype)
        of_value = scale * inverse * (into - (_beside(of_offset, value) + whitened * _beside(of_scale, value)) / count)
    else:
        inverse = tf.math.rsqrt(variance + site.attr("epsilon"))
        of_value = into * scale * inverse
        of_scale = tf.reduce_sum(into * (tf.cast(value, scale.dtype) - mean) * inverse, axes)
    spare = [site.loop.rows(tf.zeros([0], scale.dtype)) for _ in range(2)]
    return [Stacked(output) for output in (tf.cast(of_value, gradient.dtype), of_scale, of_offset, *spare)]
