"""Random numbers. Stateful ops draw for all rows at once: their shape grows. A stateless op whose seed is the same for
all rows gives all of them the same numbers, so it is never converted; with seeds that differ it runs once per row,
since only then are the bits those of the sequential loop."""

from __future__ import annotations

import tensorflow as tf

from batchnuts.autobatch.pfor.converters.shapes import fixed
from batchnuts.autobatch.pfor.errors import NoRule
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.rowwise import row_by_row
from batchnuts.autobatch.pfor.site import Site
from batchnuts.autobatch.pfor.values import Stacked, Tensor, Value

STATELESS = """
    StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomBinomial StatelessRandomGammaV2
    StatelessRandomGammaV3 StatelessRandomGetKeyCounter StatelessRandomNormal StatelessRandomNormalV2
    StatelessRandomPoisson StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessShuffle
    StatelessTruncatedNormal StatelessTruncatedNormalV2
"""
STATELESS_WITHOUT_XLA = """
    StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomPoisson StatelessShuffle
"""


def _shape_with_rows(site: Site, k: int) -> Tensor:
    shape = fixed(site, k, "the shape")
    constant, rows = tf.get_static_value(shape), site.loop.static_count
    if constant is not None and rows is not None:
        return tf.constant([rows, *constant], shape.dtype)
    return tf.concat([tf.cast(site.loop.count, shape.dtype)[None], shape], 0)


@converts("RandomUniform RandomStandardNormal TruncatedNormal", varying="none", always=True)
def draw(site: Site) -> list[Value]:
    """Draws numbers of a distribution without parameters."""
    return site.emit_rows(_shape_with_rows(site, 0))


@converts("RandomUniformInt", varying="none", always=True)
def draw_integers(site: Site) -> list[Value]:
    """Draws integers with bounds that are the same for all rows."""
    site.only(0)
    return site.emit_rows(_shape_with_rows(site, 0), *site.tensors()[1:])


@converts("RandomGamma RandomPoissonV2", varying="alpha, rate", always=True, no_xla="RandomGamma RandomPoissonV2")
def draw_by_parameter(site: Site) -> list[Value]:
    """Every parameter has draws of the shape given: [*shape, *shape of parameters]."""
    if not site.varies(1):
        return site.emit_rows(_shape_with_rows(site, 0), site.tensor(1))
    shape = fixed(site, 0, "the shape")
    rank = shape.shape[0]
    if rank is None:
        raise NoRule
    (drawn,) = site.emit(shape, site.tensor(1))
    return [Stacked(tf.transpose(drawn, [rank, *(k for k in range(drawn.shape.rank) if k != rank)]))]


@converts("Multinomial", varying="logits", always=True, no_xla="Multinomial")
def draw_classes(site: Site) -> list[Value]:
    """Draws from logits [rows * batch, classes]."""
    site.only(0)
    logits = site.stacked(0)
    sizes = tf.shape(logits)
    (drawn,) = site.emit(tf.reshape(logits, [-1, sizes[2]]), site.tensor(1))
    return [Stacked(tf.reshape(drawn, [sizes[0], sizes[1], -1]))]


@converts("RandomShuffle", varying="value", always=True, no_xla="RandomShuffle")
def shuffle(site: Site) -> list[Value]:
    """Puts every row in an order of its own: that of random numbers."""
    value = site.stacked(0)
    order = tf.argsort(tf.random.uniform(tf.shape(value)[:2]), axis=1)
    return [Stacked(tf.gather(value, order, axis=1, batch_dims=1))]


@converts(STATELESS, no_xla=STATELESS_WITHOUT_XLA)
def stateless(site: Site) -> list[Value]:
    """Runs the op once for each row."""
    return row_by_row(site)
