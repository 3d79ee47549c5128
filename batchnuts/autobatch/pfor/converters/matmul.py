"""Products. The layout depends on which operands have rows, so that one product without a transpose is emitted where
possible.

rows    row of a   row of b    emitted
a       [m, k]     [k, n]      [rows*m, k] @ b                         one product
b       [m, k]     [k, 1]      [rows, k] @ a'                          one product: a vector of each row is a row;
                               a @ [rows, k, 1]                        of few rows under XLA: one product too
b       [m, k]     [k, n]      einsum, which lets the compiler choose
a, b    [1, k]     [k, 1]      sum(a * b)                              inner products
a, b    [m, 1]     [1, n]      a * b                                   outer products
a, b    otherwise              batched product
"""

from __future__ import annotations

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import NoRule
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, product, reshape, shape_of, with_axes
from batchnuts.autobatch.pfor.values import Stacked, Tensor, Value

FEW_ROWS = 32
"""With fewer rows, XLA's product of a matrix with their transpose takes 0.85 to 0.92 of the time of the product of the
rows with the matrix's transpose (768 x 768, float32, 2 to 16 rows, two cores); with 64 rows, 1.1 times."""


@converts("MatMul", varying="a b")
def matmul(site: Site) -> list[Value]:
    """The product of each row's matrices, laid out as few large products."""
    return [Stacked(_product(site, site.attr("transpose_a"), site.attr("transpose_b"), conjugate=False))]


@converts("BatchMatMul BatchMatMulV2 BatchMatMulV3", varying="x y")
def batch_matmul(site: Site) -> list[Value]:
    """A product of matrices is as above; with more axes in front, these broadcast."""
    adjoint_x, adjoint_y = site.attr("adj_x"), site.attr("adj_y")
    if site.op.type == "BatchMatMulV3" and site.op.outputs[0].dtype != site.op.inputs[0].dtype:
        raise NoRule  # integers summed in a wider dtype
    if site.row_rank(0) == site.row_rank(1) == 2:
        return [Stacked(_product(site, adjoint_x, adjoint_y, conjugate=True))]
    if not site.varies(1) and site.row_rank(1) == 2 and not adjoint_x:
        x, y = site.tensors()
        sizes = shape_of(x)
        flat = tf.matmul(reshape(x, [product(sizes[:-1]), sizes[-1]]), y, adjoint_b=adjoint_y)
        return [Stacked(reshape(flat, [*sizes[:-1], shape_of(flat)[1]]))]
    rank = max(site.row_rank(0), site.row_rank(1))
    x, y = (with_axes(site.tensor(k), rank) if site.varies(k) else site.tensor(k) for k in range(2))
    return [Stacked(tf.matmul(x, y, adjoint_a=adjoint_x, adjoint_b=adjoint_y))]


def _product(site: Site, turn_a: bool, turn_b: bool, *, conjugate: bool) -> Tensor:
    a, b = site.tensors()
    a_varies, b_varies = site.varies(0), site.varies(1)
    a_row, b_row = site.row_shape(0), site.row_shape(1)
    m, k = (a_row[1], a_row[0]) if turn_a else a_row
    n = b_row[0] if turn_b else b_row[1]

    def turned(x: Tensor, turn: bool) -> Tensor:
        """The elements of a transposed matrix: those of an adjoint are conjugated."""
        return tf.math.conj(x) if turn and conjugate and x.dtype.is_complex else x

    if a_varies and not b_varies:
        sizes = shape_of(a)
        if turn_a and 1 not in (m, k):
            a = tf.linalg.matrix_transpose(a)
            sizes = [sizes[0], sizes[2], sizes[1]]
        elif turn_a:
            sizes = [sizes[0], sizes[2], sizes[1]]
        flat = turned(reshape(a, [product(sizes[:2]), sizes[2]]), turn_a)
        result = _matmul(flat, b, turn_b, conjugate)
        return reshape(result, [*sizes[:2], shape_of(result)[1]])
    if b_varies and not a_varies:
        if n == 1:
            sizes = shape_of(b)
            flat = turned(reshape(b, [sizes[0], sizes[1] if not turn_b else sizes[2]]), turn_b)
            if site.static and not turn_a and (site.loop.static_count or FEW_ROWS) < FEW_ROWS:
                return tf.matmul(a, flat[:, :, None])
            # (a b)' = b' a': a's transpose is not the adjoint, so conjugates are taken by hand
            result = tf.matmul(flat, turned(a, turn_a), transpose_b=not turn_a)
            return reshape(result, [*shape_of(result), 1])
        first, second = "km" if turn_a else "mk", "rnk" if turn_b else "rkn"
        return tf.einsum(f"{first},{second}->rmn", turned(a, turn_a), turned(b, turn_b))
    if k == 1:
        rows = shape_of(a)[0]
        column = reshape(turned(a, turn_a), [rows, shape_of(a)[2 if turn_a else 1], 1])
        row = reshape(turned(b, turn_b), [rows, 1, shape_of(b)[1 if turn_b else 2]])
        return column * row
    if m == 1 and n == 1:
        rows = shape_of(a)[0]
        length = shape_of(a)[1 if turn_a else 2]
        left, right = reshape(turned(a, turn_a), [rows, length]), reshape(turned(b, turn_b), [rows, length])
        return tf.reduce_sum(left * right, axis=1)[:, None, None]
    if conjugate:
        return tf.matmul(a, b, adjoint_a=turn_a, adjoint_b=turn_b)
    return tf.matmul(a, b, transpose_a=turn_a, transpose_b=turn_b)


def _matmul(a: Tensor, b: Tensor, turn_b: bool, conjugate: bool) -> Tensor:
    return tf.matmul(a, b, adjoint_b=turn_b) if conjugate else tf.matmul(a, b, transpose_b=turn_b)


@converts("Einsum")
def einsum(site: Site) -> list[Value]:
    """A new letter for the rows, in front of each operand that has them and of the result."""
    equation = site.attr("equation").decode()
    if "->" not in equation:
        raise NoRule
    operands, result = equation.split("->")
    letter = next(c for c in "zyxwvutsrqponmlkjihgfedcbaZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in equation)
    # before an ellipsis too
    marked = [letter + labels if site.varies(k) else labels for k, labels in enumerate(operands.split(","))]
    return site.emit_rows(*site.tensors(), equation=f"{','.join(marked)}->{letter}{result}".encode())
