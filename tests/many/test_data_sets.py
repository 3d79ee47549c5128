"""Where data sets come from, and what is said of wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from fitted_models import mean_model

from batchnuts.many.data_sets import DataSet, Padding, data_sets, size_class
from batchnuts.mcmc.model.model import Model, ModelError


def labels_and_means(data: Any, **options: Any) -> dict[Any, float]:
    return {s.label: float(np.mean(s.data["y"])) for s in data_sets(mean_model(), data, **options)}


def test_arrays_lists_iterators_tables_and_folders_give_the_same_data_sets(tmp_path: Path) -> None:
    y = np.arange(15.0).reshape(3, 5)
    expected = {0: 2.0, 1: 7.0, 2: 12.0}
    ones = np.ones(5)
    as_list = [{"y": row, "mask": ones} for row in y]
    assert labels_and_means({"y": y, "mask": ones}) == expected
    assert labels_and_means({"mask": np.ones((3, 5)), "y": y.tolist()}) == expected
    assert labels_and_means(as_list) == expected
    assert labels_and_means(iter(as_list)) == expected
    table = pandas.DataFrame({"site": np.repeat(["c", "a", "b"], 5), "y": y.reshape(-1), "mask": 1.0})
    assert labels_and_means(table, by="site") == {"c": 2.0, "a": 7.0, "b": 12.0}
    for name, data in zip("xyz", as_list, strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps({k: v.tolist() for k, v in data.items()}))
    assert labels_and_means(tmp_path) == {"x": 2.0, "y": 7.0, "z": 12.0}
    assert labels_and_means(as_list, labels=["p", "q", "r"]) == {"p": 2.0, "q": 7.0, "r": 12.0}


def test_files_that_cannot_be_read_are_problems_of_their_fits(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.csv").write_text("y,mask\n1,1\n2,1\n")
    first, second = data_sets(mean_model(), str(tmp_path))
    assert "a.json cannot be read" in first.problem
    assert not second.problem
    np.testing.assert_array_equal(second.data["y"], [1, 2])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "found no data sets"),
        ({"y": np.zeros((3, 5)), "mask": np.ones((2, 5))}, {}, r"found \[2, 3\] fits along the first axes"),
        ({"y": np.zeros(5), "mask": np.ones(5)}, {}, "no array has an axis of fits"),
        ({"y": np.zeros((3, 5))}, {}, "data lack 'mask'"),
        ({"y": np.zeros((3, 5)), "mask": np.ones(5), "z": 1}, {}, "data have 'z'"),
        ({"y": np.zeros((3, 5, 2)), "mask": np.ones(5)}, {}, "data.y has 3 axes; expected 2"),
        ([1, 2], {"labels": ["a"]}, "found 1 for 2 data sets"),
        ([1, 2], {"labels": ["a", "a"]}, "found 'a' twice"),
        ([1, 2], {"labels": [1.5, 2]}, "expected texts or integers"),
        ([1, 2], {"by": "site"}, "data is a list, not a table"),
        ("/no/such/folder", {}, "is no folder that can be read"),
    ],
)
def test_wrong_data_are_refused(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        list(data_sets(mean_model(), data, **options))


def test_tables_need_their_columns() -> None:
    table = pandas.DataFrame({"site": [1, 1], "y": [0.0, 1.0]})
    with pytest.raises(ModelError, match="by: found None; expected the column that tells data sets apart"):
        data_sets(mean_model(), table)
    with pytest.raises(ModelError, match=r"by: found 'sit'.*did you mean 'site'"):
        data_sets(mean_model(), table, by="sit")
    with pytest.raises(ModelError, match="the table has no column 'mask'"):
        data_sets(mean_model(), table, by="site")


def test_digests_tell_data_sets_apart() -> None:
    contents: list[Any] = [
        {"y": [1, 2]}, {"y": [1, 3]}, {"z": [1, 2]}, {"y": [1.0, 2.0]}, {"y": np.ones((2, 1))}, {"y": np.ones((1, 2))},
        [1, 2], [[1, 2], [3]], [[1, 2], [4]], (1, 2, 3), "text", "texts", None, {"y": {"x": 1}}, {"y": object},
    ]  # fmt: skip
    digests = [DataSet(0, 0, content).digest for content in contents]
    assert len(set(digests)) == len(digests)
    assert digests[0] == DataSet(1, "a", {"y": np.array([1, 2])}).digest
    assert DataSet(0, 0, None, truth={"a": 1}).digest != DataSet(0, 0, None, held_out={"a": 1}).digest


def test_models_without_data_are_refused() -> None:
    with pytest.raises(ModelError, match="its functions take no data"):
        data_sets(Model.from_function(lambda x: x, dimension=1), [1])


def test_sizes_are_padded_to_classes_with_a_mask() -> None:
    classes = [size_class(n) for n in range(1, 200)]
    assert all(n <= c <= 1.5 * n for n, c in zip(range(1, 200), classes, strict=True))
    assert sorted(set(classes)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    padding = Padding(mean_model(), "mask")
    padded = padding({"y": np.array([1.0, 2, 3, 4, 5])})
    np.testing.assert_array_equal(padded["y"], [1, 2, 3, 4, 5, 5])
    np.testing.assert_array_equal(padded["mask"], [1, 1, 1, 1, 1, 0])
    padded = padding({"y": np.array([1.0, 2, 3]), "mask": np.array([True, False, True])})
    np.testing.assert_array_equal(padded["mask"], [1, 0, 1])
    assert padding.share == pytest.approx(1 - 8 / 9)
    with pytest.raises(ModelError, match="mask: found 'weights'"):
        Padding(mean_model(), "weights")
    with pytest.raises(ModelError, match="found no rows"):
        padding({"y": np.array([])})
