"""Loops inside the loop.

    condition      in general                                              under XLA, or with lists in the loop
    same           one loop, all rows take every trip (a single row too)   the same
    varies         the loop goes on with the rows that are still in it;    all rows take every trip until the last is
                   one that leaves puts its values in place                done; those that are done keep their values

A variable that changes in the same way for all rows still in the loop (its counter, say) stays one for all inside it;
the value that each row had when it left is kept separately. What the loop only reads stays outside it
(`values.Deferred`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.converters.branches import beside, safe, to_tensor
from batchnuts.autobatch.pfor.converters.lists import realign, to_rows, unpacked
from batchnuts.autobatch.pfor.errors import Refused
from batchnuts.autobatch.pfor.flows import condition_varies, loop_variables_vary, passed_through
from batchnuts.autobatch.pfor.graphs import loop_parts, ops_on_list
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Loop, Site, with_shape
from batchnuts.autobatch.pfor.values import (
    Deferred,
    Invariant,
    ListHandle,
    OptionalValue,
    Stacked,
    Tensor,
    Value,
    varies,
)


@dataclass(frozen=True)
class Variable:
    """A loop variable of the body."""

    vary: bool
    """Whether it has rows inside the loop."""
    unchanged: bool
    """Whether the loop gives it back as it was."""
    like: Tensor
    """The tensor in the graph of the loop's body."""

    @property
    def only_read(self) -> bool:
        """Whether each row has its own, which the loop never changes: it stays outside, and ops of the body take its
        parts."""
        return self.unchanged and self.vary and not self.is_list

    @property
    def only_added_to(self) -> bool:
        """Whether the body does nothing with it but add to it, as the gradient of what all trips use does."""
        users = _users(self.like)
        return len(users) == 1 and users[0].type in _SUMS and self.vary and not self.unchanged

    @property
    def is_list(self) -> bool:
        """Whether it is a TensorList (or a list of lists)."""
        return bool(self.like.dtype == tf.variant)


@converts("While StatelessWhile", always=True)
def loop(site: Site) -> list[Value]:
    """One loop where all rows take every trip; else rows leave it one by one, or keep their values once done."""
    unchanged = passed_through(site.op)
    _, body = loop_parts(site.op)
    vary = loop_variables_vary(site.op, [varies(value) for value in site.inputs])
    leave = condition_varies(site.op, vary) and not (site.loop.static_count == 1 and site.loop.mask is None)
    if leave:  # so lists that grow get different lengths
        lists = [tensor.dtype == tf.variant and k not in unchanged for k, tensor in enumerate(body.inputs)]
        vary = loop_variables_vary(site.op, [flag or is_list for flag, is_list in zip(vary, lists)])
    variables = [Variable(flag, k in unchanged, body.inputs[k]) for k, flag in enumerate(vary)]
    start = [_start(site, k, variable) for k, variable in enumerate(variables)]
    if not leave:
        return _together(site, variables, start)
    if any(
        isinstance(value, OptionalValue) and not variable.unchanged for value, variable in zip(site.inputs, variables)
    ):
        raise Refused(
            "a loop that iterations leave at different times puts another value into an Optional. Let the loop carry "
            "the value itself"
        )
    start = [
        Deferred(value.tensor, site.loop.count, tf.identity)
        if variable.only_read and isinstance(value, Stacked)
        else value
        for value, variable in zip(start, variables)
    ]
    # A list has the rows of all iterations in each of its elements, also one that is only read: its rows cannot leave.
    if site.loop.static or site.loop.mask is not None or any(v.is_list and v.vary for v in variables):
        return _masked(site, variables, start)
    return _shrinking(site, variables, start)


def _start(site: Site, k: int, variable: Variable) -> Value:
    """The value of a loop variable before the first trip."""
    value = site.inputs[k]
    if not variable.vary:
        return value
    if isinstance(value, OptionalValue):
        return value if variable.unchanged else unpacked(site.loop, value)
    if isinstance(value, ListHandle):
        return value
    if variable.is_list:
        return to_rows(site, k, _element_dtype(site, k), _element_shape(site, k))
    assert isinstance(value, (Invariant, Stacked))
    return Stacked(value.tensor if isinstance(value, Stacked) else site.loop.rows(value.tensor))


def _element_dtype(site: Site, k: int) -> tf.DType:
    """The dtype of elements of the list that is loop variable k, by an op that makes or uses the list."""
    for op in _ops_on(site, k):
        return op.get_attr("element_dtype")
    raise Refused("the elements of a list are not known")


def _element_shape(site: Site, k: int) -> tuple[int | None, ...] | None:
    """The shape of a row's elements of the list that is loop variable k, by an op that puts one in or takes one."""
    for op in _ops_on(site, k):
        if op.type in _OF_ELEMENT and (shape := _OF_ELEMENT[op.type](op)).is_fully_defined():
            return tuple(shape)
    return None


_OF_ELEMENT: dict[str, Callable[[Any], tf.TensorShape]] = {
    "TensorListSetItem": lambda op: op.inputs[2].shape,
    "TensorListPushBack": lambda op: op.inputs[1].shape,
    "TensorListGetItem": lambda op: op.outputs[0].shape,
    "TensorListPopBack": lambda op: op.outputs[1].shape,
    "TensorListStack": lambda op: op.outputs[0].shape[1:],
    "TensorListFromTensor": lambda op: op.inputs[0].shape[1:],
}
"""The shape of an element of the list that an op works on."""


def _ops_on(site: Site, k: int) -> Iterator[Any]:
    _, body = loop_parts(site.op)
    return ops_on_list(site.op.inputs[k], body.inputs[k])


def _most_trips(site: Site) -> Any:
    """maximum_iterations of the tf.while_loop that made the op, if it had one: XLA needs it for gradients.

    Elsewhere the loop's own count, which is among its variables and its condition, does.
    """
    if not site.static:
        return None
    _, body = loop_parts(site.op)
    if len(body.inputs) > 1 and body.inputs[1].op.name.rsplit("/", 1)[-1].startswith("maximum_iterations"):
        value = tf.get_static_value(site.op.inputs[1])
        if value is not None and int(value) >= 0:
            return int(value)
    return None


def _pack(values: Sequence[Value]) -> list[Tensor]:
    """The tensors of values; for a list whose rows have different lengths, its lengths, too."""
    packed = []
    for value in values:
        if _stays_outside(value):
            continue
        assert not isinstance(value, OptionalValue)
        packed.append(value.tensor)
        if isinstance(value, ListHandle) and value.lengths is not None:
            packed.append(value.lengths)
    return packed


def _stays_outside(value: Value) -> bool:
    """Whether it is only read, or a tf.Variable's handle, which must be known in the loop for the same variable."""
    is_variable = isinstance(value, Invariant) and bool(value.tensor.dtype == tf.resource)
    return is_variable or isinstance(value, (Deferred, OptionalValue))


def _unpack(tensors: Sequence[Tensor], like: Sequence[Value]) -> list[Value]:
    """The values of packed tensors, of the same kinds as `like`."""
    rest = iter(tensors)
    values: list[Value] = []
    for value in like:
        if _stays_outside(value):
            values.append(value)
            continue
        tensor = next(rest)
        if isinstance(value, ListHandle):
            values.append(ListHandle(tensor, next(rest) if value.lengths is not None else None))
        else:
            values.append(Stacked(tensor) if isinstance(value, Stacked) else Invariant(tensor))
    return values


def _coerced(loop: Loop, value: Value, like: Value) -> Value:
    """A value after a trip as one of the kind that it had before."""
    if isinstance(like, (Deferred, OptionalValue)):
        return like
    if isinstance(value, Deferred):
        value = value.rows()
    if isinstance(like, ListHandle):
        if isinstance(value, OptionalValue):
            value = unpacked(loop, value)
        tensor = value.tensor
        lengths = value.lengths if isinstance(value, ListHandle) else None
        if like.lengths is None and lengths is not None:
            raise Refused("the length of a list depends on the iteration of the loop around")
        if like.lengths is not None and lengths is None:
            lengths = like.lengths
        return ListHandle(tensor, lengths)
    if isinstance(like, Stacked):
        return Stacked(to_tensor(loop, value, True))
    if not isinstance(value, Invariant):
        raise Refused("a number of elements that depends on the iteration is carried through a loop")
    return value


def _shapes(values: Sequence[Value], variables: Sequence[Variable], rows: int | None) -> list[tf.TensorShape]:
    """The shape invariants of `_pack`: what stays the same about shapes from trip to trip."""
    shapes = []
    for value, variable in zip(values, variables):
        if isinstance(value, Stacked):
            shapes.append(tf.TensorShape([rows]).concatenate(variable.like.shape))
        elif isinstance(value, ListHandle):
            shapes.append(tf.TensorShape(None))
            if value.lengths is not None:
                shapes.append(tf.TensorShape([rows]))
        elif not _stays_outside(value):
            shapes.append(variable.like.shape)
    return shapes


# ---- all rows take every trip -----------------------------------------------------------------------------------


def _together(site: Site, variables: list[Variable], start: list[Value]) -> list[Value]:
    condition, body = loop_parts(site.op)

    def goes_on(*tensors: Tensor) -> Tensor:
        (value,) = site.convert_part(condition, _unpack(tensors, start), site.loop)
        assert isinstance(value, Invariant | Stacked)
        return tf.reshape(value.tensor, [])  # a single row's may vary

    def trip(*tensors: Tensor) -> list[Tensor]:
        values = site.convert_part(body, _unpack(tensors, start), site.loop)
        return _pack([_coerced(site.loop, value, like) for value, like in zip(values, start)])

    results = tf.while_loop(
        goes_on,
        trip,
        _pack(start),
        shape_invariants=_shapes(start, variables, site.loop.static_count),
        maximum_iterations=_most_trips(site),
        parallel_iterations=site.attr("parallel_iterations"),
    )
    return _unpack(results, start)


# ---- rows that are done wait ------------------------------------------------------------------------------------


def _masked(site: Site, variables: list[Variable], start: list[Value]) -> list[Value]:
    condition, body = loop_parts(site.op)
    rows = site.loop.static_count
    counted = [
        ListHandle(value.tensor, tf.fill(site.loop.count[None], _length(site, k)))
        if isinstance(value, ListHandle) and value.lengths is None and _grows(variable)
        else value
        for k, (value, variable) in enumerate(zip(start, variables))
    ]
    noted = [k for k, variable in enumerate(variables) if not (variable.vary or variable.unchanged)]
    """Variables that have one value for all rows inside, and different values when rows leave."""
    for k in noted:
        if variables[k].like.dtype == tf.variant:
            raise Refused("how long a list gets depends on the iteration")

    def still_in(values: Sequence[Value], where: Loop) -> Tensor:
        (value,) = site.convert_part(condition, values, where)
        tensor = to_tensor(site.loop, value, True)
        return tf.reshape(tensor, [-1])

    active = still_in(counted, site.loop)
    if site.loop.mask is not None:
        active = active & site.loop.mask
    notes = [to_tensor(site.loop, counted[k], True) for k in noted]

    def goes_on(active: Tensor, *_: Tensor) -> Tensor:
        return tf.reduce_any(active)

    def trip(active: Tensor, *tensors: Tensor) -> list[Tensor]:
        before = _unpack(tensors[len(noted) :], counted)
        where = site.loop.masked(active)
        inputs = [
            value if variable.only_added_to else _harmless(value, active)  # a sum does not mix rows
            for value, variable in zip(before, variables)
        ]
        values = site.convert_part(body, inputs, where)
        after = [_coerced(site.loop, value, like) for value, like in zip(values, counted)]
        choose = _choose if site.static else _choose_changes
        held = [
            Stacked(choose(active, new.tensor, old.tensor))
            if isinstance(new, Stacked) and isinstance(old, Stacked)
            else new
            for new, old in zip(after, before)
        ]
        new_notes = [
            _choose(active, to_tensor(site.loop, after[k], True), note) for k, note in zip(noted, tensors[: len(noted)])
        ]
        return [active & still_in(held, where), *new_notes, *_pack(held)]

    results = tf.while_loop(
        goes_on,
        trip,
        [active, *notes, *_pack(counted)],
        shape_invariants=[
            tf.TensorShape([rows]),
            *(tf.TensorShape([rows]).concatenate(variables[k].like.shape) for k in noted),
            *_shapes(counted, variables, rows),
        ],
        maximum_iterations=_most_trips(site),
        parallel_iterations=site.attr("parallel_iterations"),
    )
    outputs = _unpack(results[1 + len(noted) :], counted)
    for k, note in zip(noted, results[1:]):
        outputs[k] = Stacked(note)
    for k, value in enumerate(outputs):
        if isinstance(value, Deferred):
            outputs[k] = value.rows()
        if isinstance(value, ListHandle) and value.lengths is not None:
            outputs[k] = realign(value, _element_dtype(site, k))
    return outputs


def _harmless(value: Value, active: Tensor) -> Value:
    """The value that is `safe` for rows that have left; of what is only read, made once an op uses it."""
    if isinstance(value, Deferred):
        return replace(value, settle=lambda tensor: _harmless(Stacked(tensor), active).tensor)  # type: ignore[union-attr]
    return safe(value, active) if isinstance(value, (Stacked, OptionalValue)) else value


def _choose(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows of `new` where the mask is set, else of `old`."""
    return tf.where(beside(mask, old), new, old)


def _choose_changes(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`_choose`, but of old + change only the change is selected. XLA fuses sum and selection, and is faster without
    this."""
    op = _source(new).op
    terms = [_source(tensor) for tensor in op.inputs] if op.type in _SUMS else []
    changes = [tensor for tensor in terms if tensor is not old]
    if len(changes) == len(terms) - 1 and all(_alike(tensor.shape[1:], old.shape[1:]) for tensor in changes):
        return tf.add_n([old, *(_zero_else(mask, tensor) for tensor in changes)])
    return _choose(mask, new, old)


_SUMS = ("AddV2", "AddN")


def _alike(first: tf.TensorShape, second: tf.TensorShape) -> bool:
    """Whether two shapes are known and equal, so that nothing is broadcast."""
    return bool(first.is_fully_defined() and first == second)


def _zero_else(mask: Tensor, tensor: Tensor) -> Tensor:
    """Rows of a tensor where the mask is set, else 0. Of an outer product, which is larger, its factors are chosen."""
    factors = list(tensor.op.inputs) if tensor.op.type == "Mul" else []
    if factors and all(factor.shape[:1] == tensor.shape[:1] and factor.shape != tensor.shape for factor in factors):
        first, second = (tf.where(beside(mask, factor), factor, tf.zeros([], factor.dtype)) for factor in factors)
        return first * second
    return tf.where(beside(mask, tensor), tensor, tf.zeros([], tensor.dtype))


def _source(tensor: Tensor) -> Tensor:
    """The tensor before ops that only pass it on."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _users(tensor: Tensor) -> list[Any]:
    """The ops that take a tensor, past those that only pass it on."""
    users = []
    for op in tensor.consumers():
        users.extend(_users(op.outputs[0]) if op.type == "Identity" else [op])
    return users


def _grows(variable: Variable) -> bool:
    """Whether the body pushes to the list."""
    return any(
        user.type == "TensorListPushBack" and _source(user.inputs[0]) is _source(variable.like)
        for user in _users(variable.like)
    )


def _length(site: Site, k: int) -> Tensor:
    """The number of elements before the first trip of the list that is loop variable k."""
    if site.op.inputs[k].op.type == "EmptyTensorList":
        return tf.constant(0)
    if site.loop.static:  # XLA does not report the length of a list, only its maximum
        raise Refused("a list that has elements already grows in a loop that iterations leave at different times")
    value = site.inputs[k]
    assert isinstance(value, (Invariant, ListHandle))
    return tf.raw_ops.TensorListLength(input_handle=value.tensor)


# ---- the loop goes on with fewer rows ---------------------------------------------------------------------------


def _shrinking(site: Site, variables: list[Variable], start: list[Value]) -> list[Value]:
    condition, body = loop_parts(site.op)
    changed = [k for k, variable in enumerate(variables) if not variable.unchanged]

    def loop_of(ids: Tensor) -> Loop:
        return site.loop.subset(tf.size(ids))

    def still_in(values: Sequence[Value], where: Loop) -> Tensor:
        (value,) = site.convert_part(condition, values, where)
        return tf.reshape(to_tensor(where, value, True), [-1])

    def kept_rows(values: Sequence[Value], rows: Tensor) -> list[Value]:
        assert not any(
            isinstance(value, (ListHandle, OptionalValue)) for value in values
        )  # see `loop`: these take every trip
        return [Stacked(tf.gather(value.tensor, rows)) if isinstance(value, Stacked) else value for value in values]

    alive = tf.cast(tf.where(still_in(start, site.loop))[:, 0], tf.int32)
    results = [to_tensor(site.loop, start[k], True) for k in changed]

    def goes_on(ids: Tensor, *_: Tensor) -> Tensor:
        return tf.size(ids) > 0

    def trip(ids: Tensor, *tensors: Tensor) -> list[Tensor]:
        where = loop_of(ids)
        like = [
            replace(value, settle=lambda tensor: tf.gather(tensor, ids)) if isinstance(value, Deferred) else value
            for value in start
        ]
        values = site.convert_part(body, _unpack(tensors[len(changed) :], like), where)
        after = [_coerced(where, value, before) for value, before in zip(values, like)]
        goes = still_in(after, where)
        leaving, staying = (tf.cast(tf.where(flag)[:, 0], tf.int32) for flag in (~goes, goes))
        places = tf.gather(ids, leaving)[:, None]
        placed = [
            tf.tensor_scatter_nd_update(result, places, tf.gather(to_tensor(where, after[k], True), leaving))
            for k, result in zip(changed, tensors)
        ]
        return [tf.gather(ids, staying), *placed, *_pack(kept_rows(after, staying))]

    final = tf.while_loop(
        goes_on,
        trip,
        [alive, *results, *_pack(kept_rows(start, alive))],
        shape_invariants=[
            tf.TensorShape([None]),
            *(tf.TensorShape([None]).concatenate(variables[k].like.shape) for k in changed),
            *_shapes(start, variables, None),
        ],
        maximum_iterations=_most_trips(site),
        parallel_iterations=site.attr("parallel_iterations"),
    )
    values: list[Value] = [value.rows() if isinstance(value, Deferred) else value for value in start]
    for k, result in zip(changed, final[1:]):
        values[k] = Stacked(with_shape(result, (site.loop.static_count, *result.shape[1:])))
    return values
