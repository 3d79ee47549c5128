"""Ops that work element by element: the same op on the rows. Where shapes broadcast, ranks are aligned by unit axes."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import NoRule, Refused
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, reshape, shape_of, unsplit, with_axes
from batchnuts.autobatch.pfor.values import Invariant, ListHandle, OptionalValue, Stacked, Tensor, Value

UNARY = """
    Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0
    BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Bitcast Bucketize Ceil ComplexAbs Conj Cos Cosh
    Dawsn DebugGradientIdentity DeepCopy Digamma Elu Erf Erfc Erfinv Exp Expint Expm1 Floor FresnelCos FresnelSin Imag
    Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Ndtri Neg OnesLike PopulationCount
    PreventGradient Real Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign
    Spence Sqrt Square StopGradient Tan Tanh
"""
UNARY_WITHOUT_XLA = """
    BesselI0 BesselI1 BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Dawsn Expint
    FresnelCos FresnelSin Spence DebugGradientIdentity DeepCopy
"""
BROADCASTING = """
    Add AddV2 Atan2 BitwiseAnd BitwiseOr BitwiseXor Complex Div DivNoNan Equal FloorDiv FloorMod Greater
    GreaterEqual Igamma IgammaGradA Igammac LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul
    MulNoNan NextAfter NotEqual Polygamma Pow RandomGammaGrad RealDiv RightShift SelectV2 SquaredDifference Sub
    TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
"""
SAME_SHAPE = """
    ApproximateEqual EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad
    SoftplusGrad SoftsignGrad SqrtGrad TanhGrad
"""


@converts(UNARY, no_xla=UNARY_WITHOUT_XLA)
def one_input(site: Site) -> list[Value]:
    """f(rows) has the rows f(row)."""
    return [Stacked(_before_split(site, site.tensors()))]


@converts("Snapshot")
def computed_once(site: Site) -> list[Value]:
    """The rows themselves, taken out of the array by their numbers.

    XLA fuses the computation of an array into the loop of each array that reads it, unless the array is indexed: then
    it is computed first. This op itself costs XLA nothing.
    """
    rows = site.tensor(0)
    return [Stacked(tf.gather(rows, tf.range(shape_of(rows)[0])))]


@converts("ZerosLike")
def zeros(site: Site) -> list[Value]:
    """Zeros like a tensor, or like a list: the same number of elements, all zeros."""
    value = site.inputs[0]
    if isinstance(value, ListHandle):
        return [ListHandle(site.emit(value.tensor)[0], value.lengths)]
    if isinstance(value, OptionalValue):
        return [value.map(_zeros)]
    return site.emit_rows(site.tensor(0))


def _zeros(value: Value) -> Value:
    if not isinstance(value, (Invariant, Stacked)):
        raise Refused("the gradient of a gradient of a branch needs zeros in place of a list")
    return replace(value, tensor=tf.zeros_like(value.tensor))


@converts("Identity Cast")
def passed_on(site: Site) -> list[Value]:
    """Entry by entry; row numbers stay row numbers, unless the new dtype is too small for them."""
    value = site.inputs[0]
    if not isinstance(value, Stacked):  # a list
        return [value]
    (tensor,) = site.emit(value.tensor)
    exact = tensor.dtype in (tf.int32, tf.int64, value.tensor.dtype)
    return [Stacked(tensor, counts=value.counts and exact)]


@converts(BROADCASTING)
def broadcasting(site: Site) -> list[Value]:
    """Shapes of rows broadcast against each other from the right, so rows of lower rank get unit axes before them."""
    return [Stacked(_before_split(site, aligned(site)))]


def _before_split(site: Site, tensors: list[Tensor]) -> Tensor:
    """The op's output. Where the rows are what a convolution's batch was split into, the op runs on that batch and its
    output is split: TensorFlow fuses a convolution, a bias and an activation into one kernel if no op is between
    them."""
    varying = site.varying()
    source = unsplit(tensors[varying[0]]) if len(varying) == 1 else None
    if source is None or any(
        tensor.shape.rank is None or tensor.shape.rank >= source.shape.rank
        for k, tensor in enumerate(tensors)
        if k not in varying
    ):
        return site.emit(*tensors)[0]
    shape = tensors[varying[0]].shape
    (result,) = site.emit(*(source if k in varying else tensor for k, tensor in enumerate(tensors)))
    return reshape(result, [*shape[:2], *result.shape[1:]])


def aligned(site: Site) -> list[Tensor]:
    """The inputs, so that they broadcast as their rows would: [rows, 1, ..., 1, *shape], invariant ones unchanged."""
    rank = max(site.row_rank(k) for k in range(len(site.inputs)))
    return [with_axes(tensor, rank) if site.varies(k) else tensor for k, tensor in enumerate(site.tensors())]


@converts(SAME_SHAPE, no_xla="InvGrad")
def same_shape(site: Site) -> list[Value]:
    """These do not broadcast: invariant inputs are repeated."""
    return site.emit_rows(*(site.stacked(k) for k in range(len(site.inputs))))


@converts("Betainc")
def same_shape_or_scalars(site: Site) -> list[Value]:
    """All non-scalars have one shape, to which scalars are repeated."""
    largest = max(range(len(site.inputs)), key=site.row_rank)
    shape = tf.shape(site.stacked(largest))
    rank = site.row_rank(largest)
    return site.emit_rows(*(tf.broadcast_to(with_axes(site.stacked(k), rank), shape) for k in range(len(site.inputs))))


@converts("AddN")
def sum_of_many(site: Site) -> list[Value]:
    """Invariant inputs are added by broadcasting, in their order; lists are added element by element."""
    if site.op.outputs[0].dtype == tf.variant:
        lists = [value for value in site.inputs if isinstance(value, ListHandle)]
        if len(lists) != len(site.inputs) or any(value.lengths is not None for value in lists):
            raise Refused("lists of different kinds are added")
        return [ListHandle(*site.emit(*(value.tensor for value in lists)))]
    if len(site.varying()) == len(site.inputs):
        return site.emit_rows(*site.tensors())
    total, *others = site.tensors()
    for other in others:
        total = total + other
    return [Stacked(total)]


@converts("ClipByValue")
def clip(site: Site) -> list[Value]:
    """The bounds are scalars, or of the shape of the first input."""
    value, low, high = aligned(site)
    return [Stacked(tf.maximum(tf.minimum(value, high), low))]


@converts("Select")
def select_v1(site: Site) -> list[Value]:
    """The condition has the shape of the others, or is a scalar, or a vector of their first axis."""
    condition, rank = site.row_rank(0), site.row_rank(1)
    chosen, *others = aligned(site)
    if 0 < condition < rank:
        if condition != 1:
            raise NoRule
        value = site.tensor(0)
        lead = [tf.shape(value)[0]] if site.varies(0) else []
        chosen = tf.reshape(value, tf.stack([*lead, -1, *[1] * (rank - 1)]))
    if not (site.varies(1) or site.varies(2)):
        others[0] = site.stacked(1)
    return [Stacked(tf.where(chosen, *others))]
