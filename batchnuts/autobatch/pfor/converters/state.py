"""Variables and checks. The order of iterations must not matter: a variable is read once and not written; or updated by
sums, which are added up first; or set to an invariant value."""

from __future__ import annotations

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import Refused, source_of
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, product, reshape, shape_of
from batchnuts.autobatch.pfor.values import Invariant, Stacked, Tensor, Value

_INSTEAD = "Move it out of the loop, or use pfor(..., sequential=True), which runs the iterations one after another"


def touch(site: Site, how: str) -> Tensor:
    """The variable of input 0, which this op reads or updates. Raises Refused where both happen in one loop."""
    if site.varies(0):
        raise Refused(f"which variable it is depends on the iteration. {_INSTEAD}")
    handle = site.tensor(0)
    before = site.loop.touched.setdefault(id(handle), (handle, how))[1]
    if before != how:
        raise Refused(
            f"the body both {before}s and {how}s this variable, so an iteration would see what others did. {_INSTEAD}"
        )
    return handle


@converts("ReadVariableOp", varying="none", always=True)
def read(site: Site) -> list[Value]:
    """Reads the variable once for all rows."""
    return [Invariant(tensor) for tensor in site.emit(touch(site, "read"))]


@converts("VarIsInitializedOp VariableShape", varying="none", always=True)
def about_variable(site: Site) -> list[Value]:
    """The op does not read the variable's value."""
    return [Invariant(tensor) for tensor in site.emit(*site.tensors())]


@converts("AssignAddVariableOp AssignSubVariableOp", varying="value", always=True)
def update(site: Site) -> list[Value]:
    """Updates the variable once, by the sum of all rows' changes."""
    handle = touch(site, "update")
    site.emit(handle, _sum_of_rows(site, 1))
    return []


def _sum_of_rows(site: Site, k: int) -> Tensor:
    mask = site.loop.mask
    value = site.tensor(k)
    if site.varies(k):
        if mask is not None:
            value = tf.where(tf.reshape(mask, [-1, *[1] * site.row_rank(k)]), value, tf.zeros_like(value))
        return tf.reduce_sum(value, axis=0)
    times = site.loop.count if mask is None else tf.reduce_sum(tf.cast(mask, tf.int32))
    return value * tf.cast(times, value.dtype)


@converts("ResourceScatterAdd ResourceScatterSub", varying="indices updates", always=True)
def scatter_update(site: Site) -> list[Value]:
    """Updates with all rows' indices and changes one after another: the order of a sum does not matter."""
    handle = touch(site, "update")
    indices, updates = site.stacked(1), site.stacked(2)
    if site.loop.mask is not None:
        mask = tf.reshape(site.loop.mask, [-1, *[1] * site.row_rank(2)])
        updates = tf.where(mask, updates, tf.zeros_like(updates))
    axes = 1 + site.row_rank(1)
    count = product(shape_of(indices))
    site.emit(handle, reshape(indices, [count]), reshape(updates, [count, *shape_of(updates)[axes:]]))
    return []


@converts("AssignVariableOp", varying="none", always=True)
def assign(site: Site) -> list[Value]:
    """Assigns an invariant value only."""
    handle = touch(site, "assign")
    if site.varies(1):
        raise Refused(f"the value assigned depends on the iteration. {_INSTEAD}")
    if site.loop.partial:
        raise Refused(f"whether the variable is assigned depends on the iteration. {_INSTEAD}")
    site.emit(handle, site.tensor(1))
    return []


@converts("Assert", varying="condition", always=True)
def check(site: Site) -> list[Value]:
    """Emits the assertion for all rows that get here."""
    holds = site.tensor(0)
    if site.varies(0):
        if site.loop.mask is not None:
            holds = holds | ~site.loop.mask
        holds = tf.reduce_all(holds)
    tf.raw_ops.Assert(condition=holds, data=[*site.tensors()[1:], _place(site)], summarize=site.attr("summarize"))
    return []


@converts("CheckNumerics", varying="any", always=True)
def check_numbers(site: Site) -> list[Value]:
    """Emits the check for all rows: those that are masked get the numbers of one that is not."""
    message = f"{site.attr('message').decode()} {_place(site)}"
    (checked,) = site.emit(site.tensor(0), message=message)
    return [Stacked(checked) if site.varies(0) else Invariant(checked)]


def _place(site: Site) -> str:
    """The line of a check, for the error's text: TensorFlow would name the lines that converted it."""
    source = source_of(site.op)
    return "" if source is None else f"(at {source.filename}:{source.line})"


@converts("NoOp", varying="none", always=True)
def nothing(site: Site) -> list[Value]:
    """Emits nothing."""
    return []


@converts("PlaceholderWithDefault", varying="input")
def default(site: Site) -> list[Value]:
    """The default: nothing is fed here."""
    return [Stacked(site.tensor(0))]
