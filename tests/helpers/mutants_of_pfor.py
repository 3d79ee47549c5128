"""Mutants of pfor: axes, masks, rows that leave, rows of different lengths, gradients, effects; see `mutants`."""

from __future__ import annotations

import pytest
from mutants import killed_by, rewrite

from batchnuts.autobatch.pfor import flows, padding
from batchnuts.autobatch.pfor.converters import (
    branches,
    elementwise,
    gradients,
    indexing,
    lengths,
    loops,
    matmul,
    networks,
    ragged,
    random,
    reductions,
    shapes,
    slices,
    state,
)
from batchnuts.autobatch.pfor.site import Loop

OPS = "pfor/test_ops.py::test_as_the_sequential_loop"
CONTROL = "pfor/test_control.py"
LENGTHS = "pfor/test_lengths.py"
LOOP = "pfor/test_loop.py"
EFFECTS = "pfor/test_loop_effects.py"
RANDOM_MERGES = "pfor/test_random_graphs.py::test_random_bodies_of_ops_that_merge_rows"
OWN_GRADIENT = "pfor/test_applications.py::test_a_gradient_of_its_own_holds_for_a_tape_around_the_loop"


def control(name: str, masked: bool) -> str:
    return f"{CONTROL}::test_as_the_sequential_loop[{name}-{masked}]"


def of_lengths(name: str) -> str:
    return f"{LENGTHS}::test_as_the_sequential_loop[{name}]"


# ---- axes and layouts -----------------------------------------------------------------------------------------------


@killed_by("pfor reductions", f"{OPS}[Sum-(2,3,2)0]", cheap=True)
def axes_of_rows_in_front(patch: pytest.MonkeyPatch) -> None:
    """a sum goes over the axis before, as if there were no rows"""
    rewrite(patch, reductions.reduction, "np.atleast_1d(axes) % rank + 1", "np.atleast_1d(axes) % rank")


@killed_by("pfor shapes", f"{OPS}[ExpandDims-(2,3)1]", cheap=True)
def a_new_axis_before_the_last(patch: pytest.MonkeyPatch) -> None:
    """a new axis counted from the end is counted before it is there"""
    rewrite(patch, shapes.expand, "site.row_rank(0) + 1)", "site.row_rank(0))")


@killed_by("pfor matmul", f"{OPS}[BatchMatMulV2-(4,3)x(4,2)]", cheap=True)
def an_adjoint_is_a_transpose(patch: pytest.MonkeyPatch) -> None:
    """elements of an adjoint are not conjugated where the product is laid out again"""
    rewrite(patch, matmul._product, "tf.math.conj(x) if turn and conjugate and x.dtype.is_complex else x", "x")


@killed_by("pfor elementwise", f"{LOOP}::test_an_index_that_was_cast_to_less_is_one_no_more", cheap=True)
def a_cast_index_counts(patch: pytest.MonkeyPatch) -> None:
    """the loop's index cast to a dtype too small for it still counts as the index"""
    rewrite(patch, elementwise.passed_on, "value.counts and exact", "value.counts")


@killed_by("pfor indexing", f"{EFFECTS}::test_checks_in_the_body_are_those_of_all_iterations", cheap=True)
def the_index_takes_all(patch: pytest.MonkeyPatch) -> None:
    """taking by the loop's index takes all that is there, though there are fewer iterations"""
    rewrite(patch, indexing.first_rows, "return tensor[:count]", "return tensor")


@killed_by("pfor indexing", "pfor/test_slices.py::test_as_the_sequential_loop[from the end]", cheap=True)
def no_places_from_the_end(patch: pytest.MonkeyPatch) -> None:
    """a slice that begins at a negative place of the row's own is not counted from the end"""
    rewrite(patch, slices._index_rows, "tf.where(index < 0, index + extent, index)", "index")


@killed_by("pfor reductions", f"{LOOP}::test_a_segment_id_that_is_too_large_stays_out_of_other_rows")
def segments_of_the_next_row(patch: pytest.MonkeyPatch) -> None:
    """a segment id that is too large gets into the segments of the next row"""
    rewrite(
        patch,
        reductions.segments,
        "tf.where(segment_ids < count, segment_ids + first, total + segment_ids)",
        "segment_ids + first",
    )


@killed_by("pfor random", "pfor/test_random.py::test_every_iteration_draws_its_own[RandomUniform]", cheap=True)
def one_draw_for_all(patch: pytest.MonkeyPatch) -> None:
    """a random number counts as the same for all iterations"""
    rewrite(
        patch,
        random.draw,
        "site.emit_rows(_shape_with_rows(site, 0))",
        "[Stacked(site.loop.rows(drawn)) for drawn in site.emit(site.tensor(0))]",
    )


@killed_by("pfor networks", RANDOM_MERGES)
def a_contrast_of_all_rows(patch: pytest.MonkeyPatch) -> None:
    """images of one row are a batch with those of the others, of which a contrast takes one mean"""
    rewrite(
        patch,
        networks.colors,
        "return site.emit_rows(*site.tensors())",
        'return _as_one_batch(site, (0,)) if "Contrast" in site.op.type else site.emit_rows(*site.tensors())',
    )


# ---- branches -------------------------------------------------------------------------------------------------------


@killed_by("pfor branches", control("switch", True), control("switch", False), cheap=True)
def out_of_range_is_the_first(patch: pytest.MonkeyPatch) -> None:
    """an index out of range takes the first branch, not the last"""
    rewrite(patch, branches._branch_index, "branches - 1, tf.cast(chosen", "0, tf.cast(chosen")


NO_GRADIENT = f"{CONTROL}::test_a_branch_not_taken_gives_neither_value_nor_gradient"


@killed_by("pfor branches", f"{NO_GRADIENT}[True-_root]")
def rows_are_not_made_harmless(patch: pytest.MonkeyPatch) -> None:
    """a branch computes with rows that do not take it"""
    rewrite(patch, branches.safe, "tf.where(beside(mask, tensor), tensor, spare)", "tensor")


@killed_by("pfor branches", f"{CONTROL}::test_a_branch_that_no_iteration_takes_gives_no_gradient_either")
def gradient_of_no_row(patch: pytest.MonkeyPatch) -> None:
    """a branch that no iteration takes has a gradient by what all have in common"""
    rewrite(patch, branches.safe, "tf.stop_gradient(value.tensor)", "value.tensor + 0")


@killed_by("pfor branches", f"{CONTROL}::test_nor_by_the_row_that_it_computes_with", cheap=True)
def gradient_of_the_spare_row(patch: pytest.MonkeyPatch) -> None:
    """a branch that no iteration takes has a gradient by the row that it computes with"""
    rewrite(patch, branches.safe, "tf.stop_gradient(tf.gather(tensor, first[None]))", "tf.gather(tensor, first[None])")


@killed_by("pfor site", f"{EFFECTS}::test_updates_in_a_branch_of_a_branch[True]")
def the_inner_mask_alone(patch: pytest.MonkeyPatch) -> None:
    """in a branch of a branch, rows count that the outer one leaves out"""
    rewrite(patch, Loop.masked, "mask if self.mask is None else mask & self.mask", "mask")


# ---- loops ----------------------------------------------------------------------------------------------------------


@killed_by("pfor loops", control("loop_in_a_branch", False), control("loop_of_own_length", False), cheap=True)
def rows_are_not_gathered(patch: pytest.MonkeyPatch) -> None:
    """what a loop only reads: as many rows as are left, from the first one on"""
    rewrite(
        patch,
        loops._shrinking,
        "settle=lambda tensor: tf.gather(tensor, ids)",
        "settle=lambda tensor: tensor[: tf.size(ids)]",
    )


@killed_by("pfor loops", control("loop_of_own_length", True), cheap=True)
def done_rows_go_on(patch: pytest.MonkeyPatch) -> None:
    """rows that are done go on changing"""
    rewrite(patch, loops._choose, "tf.where(beside(mask, old), new, old)", "new")


@killed_by("pfor loops", control("gradient_of_own_loop", False), cheap=True)
def changes_of_done_rows(patch: pytest.MonkeyPatch) -> None:
    """what a trip adds is added to rows that are done, too"""
    rewrite(
        patch,
        loops._zero_else,
        "return tf.where(beside(mask, tensor), tensor, tf.zeros([], tensor.dtype))",
        "return tensor",
    )


@killed_by("pfor flows", control("trips_of_own_loops_in_a_shared_loop", False), cheap=True)
def ends_are_the_same(patch: pytest.MonkeyPatch) -> None:
    """what a loop that rows leave at different times changes is taken to be the same for all"""
    rewrite(patch, flows.loop_outputs_vary, "flag or k not in unchanged", "flag")


# ---- rows of different lengths --------------------------------------------------------------------------------------


@killed_by("pfor lengths", of_lengths("sum of a mask"), cheap=True)
def padding_is_summed(patch: pytest.MonkeyPatch) -> None:
    """a sum counts the padding"""
    rewrite(
        patch,
        padding.filled,
        "tf.where(real(value.tensor, value.lengths), value.tensor, tf.constant(neutral, value.tensor.dtype))",
        "value.tensor",
    )


@killed_by("pfor lengths", of_lengths("mean of a mask"), cheap=True)
def padding_is_counted(patch: pytest.MonkeyPatch) -> None:
    """a mean divides by the longest length"""
    rewrite(patch, lengths.reduction, "value.lengths * others", "shape_of(value.tensor)[1] * others")


@killed_by("pfor lengths", of_lengths("largest"), cheap=True)
def zero_is_the_lowest(patch: pytest.MonkeyPatch) -> None:
    """the largest of a row is at least zero"""
    rewrite(patch, lengths._neutral, "lowest if", "0 if")


@killed_by("pfor lengths", f"{LENGTHS}::test_gradients_from_outside", cheap=True)
def padding_is_what_was_there(patch: pytest.MonkeyPatch) -> None:
    """what comes after the end of a slice stays as it was, and its logarithm may be none"""
    rewrite(patch, padding.cut_to, "tf.stop_gradient(tensor[:, :1])", "tensor")


@killed_by("pfor lengths", of_lengths("lists of different lengths"), cheap=True)
def lists_run_on(patch: pytest.MonkeyPatch) -> None:
    """after the end of a list come the entries of the next one, where it has too few"""
    rewrite(patch, ragged._indices, "index < end[..., None]", "index < default")


# ---- effects and gradients of their own -----------------------------------------------------------------------------


@killed_by("pfor state", f"{EFFECTS}::test_updates_are_added_up_first[False]")
def updated_once(patch: pytest.MonkeyPatch) -> None:
    """an update that is the same for all iterations is made once"""
    rewrite(patch, state._sum_of_rows, "value * tf.cast(times, value.dtype)", "value")


@killed_by("pfor state", f"{EFFECTS}::test_what_has_no_right_result_is_refused_at_its_line")
def read_while_updated(patch: pytest.MonkeyPatch) -> None:
    """a variable may be read and updated by one body"""
    rewrite(patch, state.touch, "if before != how:", "if False:")


@killed_by(
    "pfor gradients",
    f"{OWN_GRADIENT}[a penalty in a branch-True]",
)
def gradients_of_rows_left_out(patch: pytest.MonkeyPatch) -> None:
    """the gradient of a function's own by what all have in common sums rows that do not take its branch"""
    rewrite(patch, gradients._for_input, "if site.loop.mask is not None:", "if False:")
