from datetime import UTC, date, datetime

import numpy as np
import pytest
import xarray

from batchnuts.mcmc.model.declarations import real
from batchnuts.mcmc.model.model import Model, ModelError, Variable


def structured():
    return Model.from_function(lambda parts: parts["mu"], variables={"mu": [], "theta": [2, 3]}, name="m")


def test_unflatten_and_flatten_are_inverse():
    model = structured()
    position = np.arange(4 * 5 * 7, dtype=np.float32).reshape(4, 5, 7)
    parts = model.constrain(position)
    assert {name: part.shape for name, part in parts.items()} == {"mu": (4, 5), "theta": (4, 5, 2, 3)}
    np.testing.assert_array_equal(model.unconstrain(parts), position)
    assert model.element_names()[:3] == ["mu", "theta[0, 0]", "theta[0, 1]"]


def test_unflatten_takes_tensors_eagerly_and_traced_with_free_axes():
    import tensorflow as tf

    model = structured()
    position = np.arange(3 * 7, dtype=np.float32).reshape(3, 7)
    want = model.constrain(position)
    traced = tf.function(model.constrain, input_signature=[tf.TensorSpec([None, 7], tf.float32)])
    for parts in (model.constrain(tf.constant(position)), traced(position)):
        for name, array in want.items():
            np.testing.assert_array_equal(parts[name].numpy(), array)
    one = model.constrain(tf.constant(position[0]))
    assert one["mu"].shape == []
    assert one["theta"].shape == [2, 3]


def test_flat_log_density_gives_a_dict_only_to_structured_functions():
    assert structured().flat_log_density(np.arange(7.0)) == 0.0
    flat = Model.from_function(lambda q: q[1], dimension=2)
    assert flat.flat_log_density(np.arange(2.0)) == 1.0


def test_initial_positions_default_and_own():
    model = Model.from_function(lambda q: q[0], dimension=3, dtype="float64")
    rng = np.random.default_rng(0)
    start = model.initial_positions(rng, 500)
    assert start.shape == (500, 3)
    assert start.dtype == np.float64
    assert -2 <= start.min() < -1.9
    assert 1.9 < start.max() <= 2

    def own(result):
        return Model(name="m", log_density=lambda q: q, dimension=3, initializer=lambda rng, chains: result)

    assert own(np.zeros((2, 3))).initial_positions(rng, 2).dtype == np.float32
    with pytest.raises(ModelError, match=r"returned positions of shape \(3, 2\); expected \(2, 3\)"):
        own(np.zeros((3, 2))).initial_positions(rng, 2)
    with pytest.raises(ModelError, match="returned a position that is not finite for chain 1"):
        own(np.array([[0, 0, 0], [0, np.nan, 0]])).initial_positions(rng, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dimension": 0}, "dimension is 0; expected an integer of at least 1"),
        ({"dimension": 3, "dtype": "float16"}, "dtype is 'float16'"),
        ({"dimension": 3, "log_density": 1}, "expected a function"),
        ({"dimension": 3, "variables": (Variable("a", (2,)),)}, r"\(a\[2\]\) are made of 2 real numbers together"),
        ({"dimension": 3, "variables": (Variable("a"),)}, r"\(a\[\]\) are made of 1 real number together"),
        ({"dimension": 2, "variables": (Variable("a"), Variable("a"))}, "two variables share a name"),
        (
            {"dimension": 5, "variables": (Variable("a", (2,), ("d",)), Variable("b", (3,), ("d",)))},
            "axis 'd' has length 2 in 'a' and 3 in 'b'",
        ),
        ({"dimension": 1, "observed_data": {"y": (("row",), np.zeros((2, 2)))}}, r"observed_data\['y'\] has shape"),
        (
            {"dimension": 1, "observed_data": {"y": (("x", "y"), np.zeros((1, 2)))}},
            "observed_data: 'y' is the name of an array and",
        ),
        ({"dimension": 2, "variables": (Variable("a", (2,), ("a",)),)}, "'a' is the name of an array and of an axis"),
        (
            {"dimension": 2, "observed_data": {"y": ("day", np.ones(2))}, "coords": {"day": ["a", "b", "c"]}},
            "axis 'day' has length 2 in 'y', and 3 labels in coords; give a label for each element",
        ),
        (
            {"dimension": 2, "observed_data": {"day": ("day", np.ones(2))}, "coords": {"day": ["a", "b"]}},
            "'day' is an array, and coords has labels of that axis; leave one of them out",
        ),
        (
            {"dimension": 3, "variables": (Variable("a", (2,), ("i",)), Variable("i"))},
            "'i' is the name of an array and of an axis, of 'a'; .* Rename one of them",
        ),
        (
            {"dimension": 2, "variables": (Variable("a", (2,), ("i",)),), "dims": {"a": ["k"]}},
            r"dims\['a'\] is \('k',\), but the variable's own dims are \('i',\); leave one of them out",
        ),
        (
            {"dimension": 2, "variables": (Variable("a", (2,), ("i",)),), "coords": {"i": ["x", "x"]}},
            "several elements along 'i' have the label 'x' .coords.; give each a label of its own",
        ),
        ({"dimension": 1, "dims": {1: "x"}}, "dims has the name 1; expected a string"),
        ({"dimension": 1, "coords": {1: ["x"]}}, "coords has the name 1; expected a string"),
        ({"dimension": 1, "observed_data": {1: [1.0]}}, "observed_data has the name 1; expected a string"),
    ],
)
def test_contradictions_are_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        Model(**{"name": "m", "log_density": lambda q: q, **arguments})


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        (["a", "b"], ["a", "b"]),
        ((1, 2.5), [1, 2.5]),
        (np.array(["2020", "2021"], "datetime64[Y]"), list(np.array(["2020", "2021"], "datetime64[Y]"))),
        ([datetime(2020, 1, 2), datetime(2021, 1, 2)], [datetime(2020, 1, 2), datetime(2021, 1, 2)]),
        (
            [datetime(2020, 1, 2, tzinfo=UTC), datetime(2020, 1, 2)],
            ["2020-01-02 00:00:00+00:00", "2020-01-02 00:00:00"],
        ),
        ([date(2020, 1, 2), date(2021, 1, 2)], ["2020-01-02", "2021-01-02"]),
        ([1, "other"], ["1", "other"]),
        (xarray.DataArray(["a", "b"]), ["a", "b"]),
        (np.array([b"a", b"b"]), ["a", "b"]),
        ([1 + 2j, 2**70], ["(1+2j)", str(2**70)]),
    ],
)
def test_labels_can_be_stored(labels, kept, tmp_path):
    variable = Variable("a", (2,), ("k",), {"k": labels})
    assert variable.coords == {"k": kept}
    model = Model(name="m", log_density=lambda q: q, dimension=2, variables=(variable,))
    array = xarray.DataArray([1.0, 2.0], dims="k", coords={"k": model.labels()["k"]}, name="a")
    array.to_netcdf(tmp_path / "a.nc")
    assert list(map(str, xarray.open_dataarray(tmp_path / "a.nc")["k"].values.astype(array["k"].dtype))) == list(
        map(str, array["k"].values)
    )


@pytest.mark.parametrize("given", [{"y": np.ones(3)}, {"y": ("site", [1.0, 1.0, 1.0])}, {"y": (("site",), np.ones(3))}])
def test_data_may_be_given_with_the_names_of_their_axes_or_without(given):
    model = Model.from_function(lambda q: q, dimension=1, observed_data=given, dims={"y": "site"})
    dims, array = model.observed_data["y"]
    assert dims == ("site",)
    np.testing.assert_array_equal(array, np.ones(3))
    assert Model.from_function(lambda q: q, dimension=1, observed_data={"y": np.ones(2)}).observed_data["y"][0] == (
        "y_dim_0",
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (np.ma.masked_greater([1, 2, 30], 9), [1.0, 2.0, np.nan]),
        ([["site"], [1.0, 2.0]], [1.0, 2.0]),
        (np.array(["a", "b"], object), ["a", "b"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_data_are_stored_as_a_file_can_hold_them(given, found):
    model = Model.from_function(lambda q: q, dimension=1, observed_data={"y": given})
    np.testing.assert_array_equal(model.observed_data["y"][1], found)


@pytest.mark.parametrize("given", [[[1.0, 2.0], [3.0]], (("site", None), np.ones((1, 1))), {1: 2}])
def test_data_that_are_no_arrays_are_refused(given):
    with pytest.raises(ModelError, match=r"observed_data\['y'\] is .*; expected an array of numbers or strings"):
        Model.from_function(lambda q: q, dimension=1, observed_data={"y": given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"variables": {1: []}}, "A variable is called 1; expected a string as its name"),
        ({"variables": {"a": real(2, dims=1)}}, r"Variable 'a' has dims \(1,\); expected a name for each axis"),
        ({"variables": {"a": real(2, coords=3)}}, "Variable 'a': coords is 3; expected labels by the name of an axis"),
        (
            {"variables": {"a": real(3, dims="i", coords={"i": ["x", "x", "y"]})}},
            "Variable 'a': several elements along 'i' have the label 'x'",
        ),
        (
            {"dimension": 2, "dims": {"c": ["x"]}},
            "dims has 'c', which is not one of its variables, data or quantities; expected n",
        ),
        ({"dimension": 2, "dims": {"positoin": ["x"]}}, "dims has 'positoin', which .* did you mean 'position'"),
        (
            {"dimension": 2, "coords": {"zz": [1, 2]}},
            "coords has labels of 'zz', which is not one of its axes; its axes are posi",
        ),
    ],
)
def test_names_that_mean_nothing_are_refused(given, message):
    with pytest.raises(ModelError, match=message):
        Model.from_function(lambda q: q, **given)


def test_dims_name_axes_of_variables_that_have_no_names_of_their_own():
    model = Model.from_function(lambda p: 0.0, variables={"a": [2]}, dims={"a": "k"}, coords={"k": ["x", "y"]})
    assert model.variables[0].dims == ("k",)
    assert Model.from_function(lambda q: 0.0, dimension=1, dims={"position": ["k"]}).variables[0].dims == ("k",)


def test_bad_variables_are_refused():
    for arguments in ({"name": "chain"}, {"name": "a", "shape": (0,)}, {"name": "a", "shape": (2,), "dims": ("draw",)}):
        with pytest.raises(ModelError):
            Variable(**arguments)
    with pytest.raises(ModelError, match="3 coordinate labels"):
        Variable("a", (2,), ("k",), {"k": [1, 2, 3]})
    with pytest.raises(ModelError, match="of_data is 'ratio'; expected a set of names"):
        Model.from_function(lambda q: q, dimension=1, of_data="ratio")
    with pytest.raises(ModelError, match="exactly one"):
        Model.from_function(lambda q: q)
    with pytest.raises(ModelError, match="variables is empty"):
        Model.from_function(lambda q: q, variables={})
