"""Cases of the ops that work element by element, most of them made from the converters' own lists."""

from __future__ import annotations

import inspect

import tensorflow as tf
from op_cases import (
    BOOL,
    COMPLEX,
    FLOATS,
    INTS,
    Case,
    case,
    complexes,
    flags,
    floats,
    positive,
    probability,
    signed,
    unit,
    whole,
)

from batchnuts.autobatch.pfor.converters import elementwise

UNIT = {"Acos", "Asin", "Atanh", "Erfinv"}
POSITIVE = {
    "Acosh",
    "BesselK0",
    "BesselK0e",
    "BesselK1",
    "BesselK1e",
    "BesselY0",
    "BesselY1",
    "Dawsn",
    "Digamma",
    "Expint",
    "Lgamma",
    "Log",
    "Log1p",
    "Ndtri",
    "Rsqrt",
    "Spence",
    "Sqrt",
    "FresnelCos",
    "FresnelSin",
}
INTEGER = {"Invert", "PopulationCount"}
OF_COMPLEX = {"Angle", "ComplexAbs", "Conj", "Imag", "Real"}
OF_PROBABILITY = {"Ndtri"}


def unary() -> list[Case]:
    found = []
    for op in elementwise.UNARY.split():
        no_xla = op in elementwise.UNARY_WITHOUT_XLA.split()
        first = next(iter(inspect.signature(getattr(tf.raw_ops, op)).parameters))
        more = {"message": "x"} if op == "PreventGradient" else {}
        if op in ("Bitcast", "Bucketize"):
            continue
        if op in INTEGER:
            dtypes, make = INTS, whole
        elif op in OF_COMPLEX:
            dtypes, make = COMPLEX[:1] if op != "Conj" else COMPLEX, complexes
        elif op == "LogicalNot":
            dtypes, make = BOOL, flags
        else:
            dtypes, make = FLOATS, floats
            make = unit if op in UNIT else probability if op in OF_PROBABILITY else positive if op in POSITIVE else make
        if op == "Acosh":
            found.append(case(op, FLOATS, x=whole(2, 3)))
            continue
        found.append(case(op, dtypes, xla=not no_xla, ulps=512, **{first: make(2, 3)}, **more))
    found += [
        case("Bitcast", ("float32", "int32"), input=whole(2, 3), type=tf.uint32),
        case("Bucketize", input=floats(2, 3), boundaries=[-1.0, 0.0, 1.0]),
        case("Cast", INTS, x=whole(2, 3), DstT=tf.float32),
        case("Cast", FLOATS, x=floats(2, 3), DstT=tf.int32),
        case("Cast", BOOL, x=flags(3), DstT=tf.float64),
        case("Identity", (*FLOATS, *INTS, *BOOL), input=whole(3)),
        case("IdentityN", input=[floats(3), floats(2, 2)]),
        case("Neg", INTS, x=signed(4)),
        case("Snapshot", (*FLOATS, *INTS, *BOOL), input=whole(2, 3)),
        case("Square", COMPLEX, x=complexes(4)),
    ]
    return found


BINARY_INTS = {
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "LeftShift",
    "RightShift",
    "FloorDiv",
    "TruncateDiv",
    "TruncateMod",
}
BINARY_BOOL = {"LogicalAnd", "LogicalOr"}
BINARY_POSITIVE = {
    "Igamma",
    "IgammaGradA",
    "Igammac",
    "Pow",
    "RandomGammaGrad",
    "Xlogy",
    "Xlog1py",
    "Atan2",
    "NextAfter",
}
NAMES = {"Igamma": "a x", "IgammaGradA": "a x", "Igammac": "a x", "Zeta": "x q", "Polygamma": "a x",
         "RandomGammaGrad": "alpha sample", "NextAfter": "x1 x2", "Atan2": "y x"}  # fmt: skip
SHAPES = [((2, 3), (2, 3)), ((3,), (2, 3)), ((2, 1), (3,)), ((), (3,)), ((2, 3), ())]


def broadcasting() -> list[Case]:
    found = []
    for op in elementwise.BROADCASTING.split():
        if op in ("SelectV2", "Complex", "Polygamma", "Zeta"):
            continue
        dtypes, make = FLOATS, floats
        if op in BINARY_INTS:
            dtypes, make = INTS, whole
        elif op in BINARY_BOOL:
            dtypes, make = BOOL, flags
        elif op in BINARY_POSITIVE:
            make = positive
        elif op in ("FloorMod", "Mod", "Equal", "NotEqual", "Maximum", "Less"):
            dtypes, make = ("float32", "int32"), signed
        left, right = NAMES.get(op, "x y").split()
        for first, second in SHAPES:
            arguments = {left: make(*first), right: make(*second)}
            found.append(case(op, dtypes, ulps=4096, **arguments))
    for first, second in SHAPES[:3]:
        found += [
            case("Complex", ("float32",), real=floats(*first), imag=floats(*second)),
            case("Polygamma", ulps=4096, a=whole(*first), x=positive(*second)),
            case("Zeta", ulps=4096, x=whole(*first, dtype="float64"), q=positive(*second, dtype="float64")),
            case("SelectV2", condition=flags(*first), t=floats(*second), e=floats(2, 3)),
            case("SelectV2", condition=flags(2, 3), t=floats(*first), e=floats(*second)),
        ]
    found += [
        case("Betainc", ulps=4096, a=positive(2, 3), b=positive(2, 3), x=probability(2, 3)),
        case("Betainc", ulps=4096, a=positive(), b=positive(2, 3), x=probability()),
        case("AddV2", COMPLEX, x=complexes(3), y=complexes(2, 3)),
        case("Mul", INTS, x=signed(3), y=signed(2, 3)),
        case("Sub", INTS, x=signed(3), y=signed(2, 3)),
    ]
    return found


GRADIENTS = {"EluGrad": "gradients outputs", "LeakyReluGrad": "gradients features", "Relu6Grad": "gradients features",
             "ReluGrad": "gradients features", "SeluGrad": "gradients outputs", "SoftplusGrad": "gradients features",
             "SoftsignGrad": "gradients features", "ApproximateEqual": "x y"}  # fmt: skip


def same_shape() -> list[Case]:
    found = []
    for op in elementwise.SAME_SHAPE.split():
        left, right = GRADIENTS.get(op, "y dy").split()
        found.append(case(op, xla=op != "InvGrad", ulps=512, **{left: positive(2, 3), right: positive(2, 3)}))
    return found


OTHERS = [
    case("AddN", inputs=[floats(2, 3), floats(2, 3), floats(2, 3)]),
    case(
        "ClipByValue",
        t=floats(2, 3),
        clip_value_min=-0.5 * tf.ones([], tf.float64),
        clip_value_max=positive(),
        dtypes=("float64",),
    ),
    case("Select", condition=flags(2, 3), x=floats(2, 3), y=floats(2, 3)),
    case("Select", condition=flags(), x=floats(2, 3), y=floats(2, 3)),
    case("Select", condition=flags(2), x=floats(2, 3), y=floats(2, 3)),
    case("OnesLike", INTS, x=whole(3)),
    case("ZerosLike", (*FLOATS, *INTS), x=whole(2, 3)),
]

CASES = [*unary(), *broadcasting(), *same_shape(), *OTHERS]
