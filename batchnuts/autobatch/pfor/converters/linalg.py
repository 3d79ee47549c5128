"""Decompositions, solvers, diagonals, transforms: ops on batches of matrices or vectors, which get one more batch
axis."""

from __future__ import annotations

import tensorflow as tf

from batchnuts.autobatch.pfor.converters.shapes import fixed
from batchnuts.autobatch.pfor.errors import NoRule
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, reshape, shape_of, with_axes
from batchnuts.autobatch.pfor.values import Stacked, Value

BATCHED = """
    Cholesky CholeskyGrad Cross Eig LogMatrixDeterminant Lu MatrixDeterminant MatrixDiag MatrixDiagPart
    MatrixInverse MatrixLogarithm MatrixSetDiag MatrixSolve MatrixSquareRoot Qr SelfAdjointEigV2 Svd
    TridiagonalMatMul TridiagonalSolve FFT FFT2D FFT3D IFFT IFFT2D IFFT3D
"""
WITHOUT_XLA = """
    CholeskyGrad Eig LogMatrixDeterminant Lu MatrixLogarithm MatrixSquareRoot MatrixDeterminant
"""


@converts(BATCHED, no_xla=WITHOUT_XLA)
def batched(site: Site) -> list[Value]:
    """The op takes any axes in front of its matrices or vectors; all inputs must have them."""
    return site.emit_rows(*(site.stacked(k) for k in range(len(site.inputs))))


@converts("MatrixTriangularSolve", varying="matrix rhs")
def triangular_solve(site: Site) -> list[Value]:
    """One matrix for all rows is solved once: the right-hand sides of all rows are put side by side."""
    if site.varies(0) or site.row_rank(0) != 2 or site.row_rank(1) != 2:
        rank = max(site.row_rank(0), site.row_rank(1))
        return site.emit_rows(*(with_axes(site.stacked(k), rank) for k in range(2)))
    matrix, sides = site.tensors()
    count, size, columns = shape_of(sides)
    if columns == 1:
        (solved,) = site.emit(matrix, tf.transpose(reshape(sides, [count, size])))
        return [Stacked(tf.transpose(solved)[..., None])]
    (solved,) = site.emit(matrix, reshape(tf.transpose(sides, [1, 0, 2]), [size, count * columns]))
    return [Stacked(tf.transpose(reshape(solved, [size, count, columns]), [1, 0, 2]))]


@converts("MatrixSolveLs", varying="matrix rhs", no_xla="MatrixSolveLs")
def least_squares(site: Site) -> list[Value]:
    """Rows are one more batch axis; the regularizer is the same for all rows."""
    site.only(0, 1)
    return site.emit_rows(site.stacked(0), site.stacked(1), site.tensor(2))


@converts("MatrixBandPart", varying="input")
def band(site: Site) -> list[Value]:
    """The widths are the same for all rows."""
    site.only(0)
    return site.emit_rows(*site.tensors())


@converts("MatrixDiagV2 MatrixDiagV3", varying="diagonal")
def to_diagonals(site: Site) -> list[Value]:
    """Which diagonals, how large and what is around them are the same for all rows."""
    site.only(0)
    return site.emit_rows(*site.tensors())


@converts("MatrixDiagPartV2 MatrixDiagPartV3", varying="input")
def from_diagonals(site: Site) -> list[Value]:
    """Which diagonals are taken, and how they are padded, is the same for all rows."""
    site.only(0)
    return site.emit_rows(*site.tensors())


@converts("MatrixSetDiagV2 MatrixSetDiagV3", varying="input diagonal")
def set_diagonals(site: Site) -> list[Value]:
    """Which diagonals are set is the same for all rows."""
    site.only(0, 1)
    return site.emit_rows(site.stacked(0), site.stacked(1), site.tensor(2))


@converts("RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D", varying="input")
def real_transform(site: Site) -> list[Value]:
    """The length is the same for all rows."""
    return site.emit_rows(site.tensor(0), fixed(site, 1, "the length of the transform"))


@converts("BandedTriangularSolve", varying="matrix rhs", no_xla="BandedTriangularSolve")
def banded_solve(site: Site) -> list[Value]:
    """Rows are one more batch axis."""
    if site.row_rank(0) != site.row_rank(1):
        raise NoRule
    return site.emit_rows(site.stacked(0), site.stacked(1))
