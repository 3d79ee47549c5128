"""Mutants of what is done with users' helpers, labels and models of other libraries; see `mutants`."""

from __future__ import annotations

from typing import Any

import pytest
from mutants import killed_by, replace_everywhere, rewrite

from batchnuts.autobatch import inside
from batchnuts.autobatch.backends.jax import uses
from batchnuts.autobatch.frontend import hidden_state, source
from batchnuts.autobatch.ir import verify
from batchnuts.autobatch.language import arrays, builtins, operators, pytree
from batchnuts.autobatch.passes import eliminate, flatten_structures, infer_types
from batchnuts.autobatch.passes.infer_types import _Inference
from batchnuts.autobatch.runtime import results
from batchnuts.mcmc.model import check_model, variables
from batchnuts.mcmc.storage.layout import Layout

MISTAKE = "compiler/test_errors.py::test_names_the_line_and_the_remedy"
MIXED = "runtime/test_narrowing.py::test_a_variable_that_may_be_pythons_integer_never_wraps_where_python_does_not"
HIDDEN = "compiler/test_hidden_state.py::test_a_random_number_is_refused_wherever_it_is_reached"
REACHES = "compiler/test_hidden_state_of_programs.py::test_programs_that_reach_hidden_state_are_refused"
UNREAD = "compiler/test_language.py::test_a_store_outside_of_an_array_that_is_not_read_is_an_error"
HIGHER_ORDER = "runtime/test_inside_derivatives.py::test_derivatives_of_higher_order"
OF_PYTHON = "mcmc/test_starts.py::test_a_function_of_python_that_fails_is_named_with_its_line"

# ---- helpers --------------------------------------------------------------------------------------------------------


@killed_by("users helpers", f"{MISTAKE}[a float for few values-numpy]")
def results_are_cut_to_the_inferred_type(patch: pytest.MonkeyPatch) -> None:
    """a helper's float is cut to the integer that was inferred"""
    patch.setattr(results, "_holds", lambda dtype, array, weak: True)


@killed_by("users helpers", f"{HIDDEN}[a helper]")
def helpers_may_draw_random_numbers(patch: pytest.MonkeyPatch) -> None:
    """only what a batched function itself calls is looked at"""
    patch.setattr(hidden_state.StateFinder, "_in", lambda self, value: iter(()))


@killed_by("users helpers", REACHES)
def helpers_of_helpers_may_draw(patch: pytest.MonkeyPatch) -> None:
    """only what a helper itself calls is looked at"""
    rewrite(patch, hidden_state.StateFinder._function, "yield from self._in(value)", "yield from ()")


@killed_by("users helpers", REACHES)
def partials_may_draw(patch: pytest.MonkeyPatch) -> None:
    """what a partial calls or is given is not looked at"""
    patch.setattr(hidden_state.StateFinder, "_partial", lambda self, value: iter(()))


@killed_by("users helpers", REACHES)
def objects_by_other_names_may_draw(patch: pytest.MonkeyPatch) -> None:
    """attributes are followed only where code names the object"""
    patch.setattr(hidden_state.StateFinder, "_of_names", lambda self: iter(()))


@killed_by("users helpers", REACHES)
def inherited_methods_may_draw(patch: pytest.MonkeyPatch) -> None:
    """what operators call is looked for in the object's own class"""
    rewrite(patch, hidden_state.StateFinder._object, "filter(_is_of_user, kind.__mro__)", "(kind,)")


@killed_by("users helpers", REACHES)
def properties_may_draw(patch: pytest.MonkeyPatch) -> None:
    """a property is a value like others"""
    patch.setattr(hidden_state, "_of_property", lambda value: value)


@killed_by("users helpers", f"{MIXED}[of_one_expression-numpy]")
def pythons_integers_wrap_as_arrays(patch: pytest.MonkeyPatch) -> None:
    """a variable that is Python's integer on some lanes wraps there in the dtype of the others"""
    patch.setattr(infer_types, "has_mixed", lambda types, assigned: False)


@killed_by("users helpers", f"{UNREAD}[stores_and_returns]")
def a_store_that_nothing_reads_may_lie_anywhere(patch: pytest.MonkeyPatch) -> None:
    """of a write whose array is not read afterwards nothing is left"""
    rewrite(patch, eliminate._drop_dead, "result += [must_hold, inside]", "result += []")


@killed_by("users helpers", "compiler/test_names.py::test_every_door_refuses[a variable-lower]")
def bodies_may_share_variables(patch: pytest.MonkeyPatch) -> None:
    """a variable may be one of two bodies"""
    rewrite(patch, verify.check_names, "owner != function.name", "False")


@killed_by("users helpers", f"{MISTAKE}[a wider dtype for few values-numpy]")
def integers_wrap_in_the_inferred_dtype(patch: pytest.MonkeyPatch) -> None:
    """a helper's integer wraps in the narrower dtype that was inferred"""
    patch.setattr(
        results, "_holds", lambda dtype, array, weak: dtype.kind in results._HELD_BY.get(array.dtype.kind, "")
    )


@killed_by("users helpers", f"{MISTAKE}[another length for few values-numpy]")
def a_longer_structure_is_cut(patch: pytest.MonkeyPatch) -> None:
    """the third of three results is dropped where two were inferred"""
    rewrite(patch, flatten_structures._on_leaves, "returned != inferred", "len(returned) != len(inferred)")


@killed_by("users helpers", f"{MISTAKE}[changed in place-numpy]")
def helpers_may_write_what_they_are_given(patch: pytest.MonkeyPatch) -> None:
    """a helper that changes its argument changes a variable"""
    replace_everywhere(patch, arrays.read_only, lambda value: value)


@killed_by("users helpers", f"{MISTAKE}[is True-numpy]")
def values_of_lanes_are_objects(patch: pytest.MonkeyPatch) -> None:
    """`is` compares the objects that hold values of a lane"""
    rewrite(patch, operators.identical, "if all(", "if not all(")


@killed_by("users helpers", f"{MISTAKE}[isinstance-numpy]")
def the_class_of_a_value_is_the_librarys(patch: pytest.MonkeyPatch) -> None:
    """isinstance of a value of a lane answers for the backend's class"""
    patch.setattr(builtins, "_is_of_arrays", lambda kind: False)


@killed_by("users helpers", "compiler/test_source.py::test_a_file_that_changed_since_its_import_is_noticed")
def a_file_is_what_was_imported(patch: pytest.MonkeyPatch) -> None:
    """a function is compiled from the text that its file has by now"""
    patch.setattr(source, "_is_made_of", lambda filename, code: True)


@killed_by("users helpers", f"{MISTAKE}[another structure, and then its use-numpy]")
def the_use_is_named(patch: pytest.MonkeyPatch) -> None:
    """the use of a variable is named where an assignment changed its type"""
    rewrite(patch, _Inference.evaluate, "if variable in self.conflicts:", "if False:")


@killed_by("users helpers", "runtime/test_executors.py::test_agrees_with_plain_python")
def checks_of_a_dataclass_meet_types(patch: pytest.MonkeyPatch) -> None:
    """a dataclass is made of types, or of all lanes, by its own __post_init__"""
    rewrite(patch, pytree._container, "instance = object.__new__(kind)", "instance = kind(children[0], children[1])")


# ---- inside of users' programs --------------------------------------------------------------------------------------


@killed_by("users inside", f"{HIGHER_ORDER}[data]")
def a_cotangent_of_zero_is_no_use(patch: pytest.MonkeyPatch) -> None:
    """a value is taken for unused where its cotangent is zero, as it is at a mode"""
    rewrite(patch, uses._only_if_used, "(use > 0 for use in of_uses)", "(jnp.abs(c) > 0 for c in of_results)")


@killed_by("users inside", f"{HIGHER_ORDER}[converted arms]")
def all_is_used(patch: pytest.MonkeyPatch) -> None:
    """what comes to a value that nothing reads is passed on"""
    rewrite(patch, uses._only_if_used, "use > 0 for", "use > -1 for")


@killed_by("users inside", f"{HIGHER_ORDER}[unused arm, in reverse]")
def arguments_where_not_used(patch: pytest.MonkeyPatch) -> None:
    """the derivative of a derivative takes arguments that were not used"""
    rewrite(patch, uses._only_if_used, "where_used(v, lax.stop_gradient(v))", "v")


@killed_by("users inside", f"{HIGHER_ORDER}[converted arms]")
def both_arms_are_used(patch: pytest.MonkeyPatch) -> None:
    """a select has both arms used"""
    rewrite(patch, uses._ops, "if function.call is SELECT.call:", "if False:")


@killed_by("users inside", "runtime/test_inside.py::test_a_fault_is_named_whatever_was_traced_after_it")
def faults_have_one_number(patch: pytest.MonkeyPatch) -> None:
    """a fault is named by the list of the program that was traced last"""
    patch.setattr(inside, "number_of", lambda fault: 1)


# ---- labels and models ----------------------------------------------------------------------------------------------


@killed_by("users models", "mcmc/test_model.py::test_labels_can_be_stored")
def labels_stay_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """labels of several kinds are kept, which no file holds"""
    patch.setattr(variables, "_labels", lambda owner, given: list(given))


@killed_by("users models", "mcmc/test_quantities.py::test_draws_of_the_prior_have_nothing_that_is_computed_of_data")
def the_prior_has_the_data(patch: pytest.MonkeyPatch) -> None:
    """draws of the prior have what is computed of the data"""
    rewrite(patch, Layout.of_prior, "if k not in self.model.of_data", "")


@killed_by("users models", f"{OF_PYTHON}[3-the start of chain 0]")
def callbacks_are_taken_for_tracing(patch: pytest.MonkeyPatch) -> None:
    """a function of Python that fails is reported as an error of XLA"""
    patch.setattr(check_model, "_CALLBACK", "no such words")


@killed_by(
    "users models",
    "bridges/test_numpyro.py::test_deterministic_sites_of_observed_ones_are_computed_again",
)
def deterministic_sites_stay(patch: pytest.MonkeyPatch) -> None:
    """predictions keep what a draw's data gave deterministic sites"""
    from batchnuts.bridges import numpyro_traces

    def with_deterministic(model: Any, *args: Any, **options: Any) -> Any:
        return true(model, *args, **{**options, "return_deterministic": True})

    true = numpyro_traces.infer.constrain_fn
    patch.setattr(numpyro_traces.infer, "constrain_fn", with_deterministic)
