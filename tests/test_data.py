"""A user's files as arrays for a density, and their faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchnuts
from batchnuts.cli.config import ConfigError, build_model, load_config
from batchnuts.cli.output_path import path_of_new_run
from batchnuts.files.saving import OutputError
from batchnuts.models.tables import DataError
from batchnuts.user_models.data import Column, read_columns

CSV = "y,floor,county,visits\n1.5,0,AITKIN,3\n2.5,1,ANOKA,4\n0.5,0,AITKIN,5\n"

NEAR = "id,t,same\n123456789,1234.001,0.1\n123456790,1234.002,0.1\n123456791,1234.003,0.1\n"
TEXTS = (
    "thousands,share,price,decimal,python,side\n"
    '"1,000",50%,$5,"1,5",1_000,north \n"2,000,000.5",7.5 %,$7.50,"-2,25",2_000, north\n'
)


DATES = "y,day,local,time\n1,2024-01-05,05.01.2024 10:30,07:30\n2,2024-02-05,06.01.2024 11:30,08:30:10\n"
CODES = "y,zip,padded,share,negative\n1,10001,007,0.5,-1\n2,02139,012,0.25,0\n"
DOSES = "y,dose,week\n1,high,10\n2,low,9\n3,mid,10\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def written(name: str, content: str = CSV) -> str:
    Path(name).write_text(content)
    return name


def as_other_file(name: str) -> str:
    """CSV's table in another format."""
    import pandas

    frame = pandas.read_csv(written("table.csv"))
    if name.endswith(".parquet"):
        frame.to_parquet(name)
    elif name.endswith(".npz"):
        np.savez(name, **{c: frame[c].to_numpy().astype(str if c == "county" else None) for c in frame})
    else:
        frame.to_feather(name)
    return name


@pytest.mark.parametrize("name", ["table.csv", "t.parquet", "t.feather", "t.arrow", "t.npz"])
def test_every_format_gives_the_same_columns(folder: Path, name: str) -> None:
    found = read_columns(written(name) if name.endswith(".csv") else as_other_file(name), None)
    assert list(found.arrays) == ["y", "floor", "county", "visits"]
    assert {k: a.dtype.name for k, a in found.arrays.items()} == {
        "y": "float32", "floor": "float32", "county": "int32", "visits": "float32"
    }  # fmt: skip
    assert found.arrays["county"].tolist() == [0, 1, 0]
    assert found.labels == {"county": ["AITKIN", "ANOKA"]}
    assert found.arrays["y"].tolist() == [1.5, 2.5, 0.5]


def test_columns_are_renamed_and_made_what_is_asked(folder: Path) -> None:
    columns = {"n": Column("visits", "integer"), "floor": Column("floor", "category"), "y": Column("y")}
    found = read_columns(written("table.csv"), columns, "float64")
    assert [found.arrays[name].dtype.name for name in columns] == ["int32", "int32", "float64"]
    assert found.labels == {"floor": ["0", "1"]}


@pytest.mark.parametrize(
    ("content", "columns", "said"),
    [
        (CSV.replace("2.5", ""), None, r"column 'y': row 2 has no value \(1 in all\)"),
        (CSV.replace("2.5", "?"), None, "column 'y': row 2 has no value"),
        (CSV.replace("ANOKA", ""), None, "column 'county': row 2 has no value"),
        (CSV.replace("2.5", "2,5"), None, "cannot be read as .csv"),
        (CSV.replace("2.5", "two"), None, "column 'y': row 2 is 'two', which is not a number, among numbers"),
        (CSV.replace("2.5", "1e39"), None, r"column 'y': row 2 is 1e\+39; expected finite numbers of at most 3.4e\+38"),
        (CSV.replace("2.5", "inf"), None, "column 'y': row 2 is inf; expected finite numbers"),
        (CSV, {"n": Column("y", "integer")}, "column 'y': row 1 is 1.5; expected an integer"),
        (CSV, {"n": Column("county", "number")}, "column 'county': row 1 is 'AITKIN'; expected a number"),
        (CSV, {"n": Column("count")}, r"there is no column 'count'; did you mean 'county'\?$"),
        ("y,x\n", None, "there are column names but no rows"),
        ("", None, "cannot be read as .csv: No columns"),
        ("y,x, y\n1,2,3\n", None, "2 columns are called 'y'; give each a name of its own"),
        ("y,x, y\n1,2,3\n", {"n": Column("y")}, "2 columns are called 'y'"),
        ("y,x,y\n1,2,3\n", {"n": Column("y.1")}, "no column 'y.1'"),
        (
            "y,x\n1,1,000\n3,2,000\n",
            None,
            "row 1 has more cells than there are column names.*without thousands separators",
        ),
        (NEAR, ["id"], r"'id': 123456789 and 123456790 become the same number in float32, 123456792\. Set dtype: f"),
        (NEAR, ["id"], "float64, or ask for integers .as: integer., or subtract a constant from the column"),
        (NEAR, ["t"], "'t': 1234.003 becomes 1234.00305176 in float32, an error of 6.3% of the column's st"),
        (
            TEXTS,
            ["thousands"],
            "'thousands': its values look like numbers, but they are strings: row 1 is '1,000'.*as: c",
        ),
        (TEXTS, ["share"], "'share': its values look like numbers, but they are strings: row 1 is '50%'"),
        (TEXTS, ["price"], r"'price': its values look like numbers, but they are strings: row 1 is '\$5'"),
        (TEXTS, ["decimal"], "'decimal': its values look like numbers, but they are strings: row 1 is '1,5'"),
        (TEXTS, ["python"], "'python': its values look like numbers, but they are strings: row 1 is '1_000'"),
        (TEXTS, {"n": Column("python", "number")}, "row 1 is '1_000'; expected a number, not a string"),
        (CSV.replace("ANOKA", "NA "), None, "column 'county': row 2 has no value"),
        (CSV, {"n": {"column": "y", "like": "number"}}, "columns.n: unknown key 'like'; expected column and as"),
        (CSV, {"n": {"column": "y", "as": "factor"}}, "columns.n.as: found 'factor'; expected one of auto, number, in"),
        (CSV, {"n": {"column": 3}}, "columns.n.column: found 3; expected a name"),
        (CSV, {"n": 3}, "columns.n: found 3; expected a column's name, or {column: name, as: category}"),
        ("y;x\n1,5;2,0\n", None, "line 1 is 'y;x': its cells are separated by semicolons. Save it with commas"),
        ("y\tx\n1\t2\n", None, "its cells are separated by tabulators"),
        ("y|x\n1|2\n", None, "its cells are separated by bars"),
        (DATES, ["day"], "column 'day': its values are dates or times: row 1 is '2024-01-05'.*as: category"),
        (DATES, ["local"], "column 'local': its values are dates or times: row 1 is '05.01.2024 10:30'"),
        (DATES, ["time"], "column 'time': its values are dates or times: row 1 is '07:30'"),
        (CODES, ["zip"], "column 'zip': row 2 is '02139', which begins with a zero, as codes do.*as: category"),
        (CODES, ["padded"], "column 'padded': row 1 is '007', which begins with a zero"),
        (
            DOSES,
            {"d": {"column": "dose", "order": ["low", "mid"]}},
            "row 1 is 'high', which is not among its labels in",
        ),
        (DOSES, {"d": {"column": "dose", "order": ["low", "mid", "hihg"]}}, "did you mean 'hihg'"),
        (DOSES, {"d": {"column": "dose", "order": ["low", "low"]}}, "columns.d.order: found 'low' twice"),
        (DOSES, {"d": {"column": "dose", "order": "low"}}, "columns.d.order: found 'low'; expected a list of all lab"),
        (DOSES, {"d": {"column": "dose", "as": "integer", "order": ["low"]}}, "order: found labels with as: integer"),
        (CSV, {3: "y"}, "columns: found 3; expected a name"),
        (CSV, "y", "columns: found 'y'; expected a list of names, or columns by the names of arrays"),
        (CSV, ["y", 3], "columns: found 3 in the list; expected names of columns"),
    ],
)
def test_faults_name_column_and_row(folder: Path, content: str, columns: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"table.csv: .*{said}"):
        read_columns(written("table.csv", content), columns)


def test_numbers_that_keep_their_differences_are_read(folder: Path) -> None:
    written("table.csv", NEAR)
    assert read_columns("table.csv", ["same"]).arrays["same"].tolist() == [np.float32(0.1)] * 3
    assert read_columns("table.csv", ["id"], "float64").arrays["id"].tolist() == [123456789.0, 123456790.0, 123456791.0]


def test_texts_may_be_asked_for_as_categories_without_the_spaces_around_them(folder: Path) -> None:
    asked = {"n": {"column": "thousands", "as": "category"}, "side": "side"}
    found = read_columns(Path(written("table.csv", TEXTS)), asked)
    assert found.labels == {"n": ["1,000", "2,000,000.5"], "side": ["north"]}
    assert str(found) == "n: category (2 labels), side: category (1 label)"


def test_blanks_around_names_are_no_part_of_them(folder: Path) -> None:
    found = read_columns(written("table.csv", ' y ,"county ", x\t\n1,A,2\n'), None)
    assert list(found.arrays) == ["y", "county", "x"]
    with pytest.raises(DataError, match="2 columns are called 'y'"):
        read_columns(written("table.csv", "y ,y\n1,2\n"), None)


def test_codes_with_zeros_in_front_keep_them(folder: Path) -> None:
    asked = {
        "zip": {"column": "zip", "as": "category"},
        "padded": {"column": "padded", "as": "integer"},
        "share": "share",
    }
    found = read_columns(written("table.csv", CODES), asked)
    assert found.labels == {"zip": ["02139", "10001"]}
    assert found.arrays["zip"].tolist() == [1, 0]
    assert found.arrays["padded"].tolist() == [7, 12]
    assert found.arrays["share"].tolist() == [0.5, 0.25]
    found = read_columns("table.csv", {"p": {"column": "padded", "as": "number"}, "n": "negative"})
    assert found.arrays["p"].tolist() == [7.0, 12.0]
    assert found.arrays["n"].tolist() == [-1.0, 0.0]
    dates = read_columns(written("table.csv", DATES), {"day": {"column": "day", "as": "category"}})
    assert dates.labels["day"] == ["2024-01-05", "2024-02-05"]


def test_the_order_of_categories_can_be_given(folder: Path) -> None:
    """Also with labels of which the file has none."""
    asked: dict[str, Any] = {
        "dose": {"column": "dose", "order": ["none", "low", "mid", "high"]},
        "week": Column("week", "category", ("9", "10")),
        "day": {"column": "week", "as": "category", "order": [10, 9]},
    }
    found = read_columns(written("table.csv", DOSES), asked)
    assert found.labels == {"dose": ["none", "low", "mid", "high"], "week": ["9", "10"], "day": ["10", "9"]}
    assert [found.arrays[name].tolist() for name in asked] == [[3, 1, 2], [1, 0, 1], [0, 1, 0]]


def test_two_columns_of_one_name_may_be_left_out(folder: Path) -> None:
    found = read_columns(written("table.csv", "y,x, y\n1,2,3\n"), {"n": Column("x")})
    np.testing.assert_array_equal(found.arrays["n"], [2.0])


@pytest.mark.parametrize(
    ("name", "dtype", "said"),
    [
        ("no.csv", "float32", "there is no such file"),
        ("t.xls", "float32", "the ending '.xls' is not known; expected one of .csv, .parquet"),
        (3, "float32", "path is 3; expected the path of a file"),
        ("no.csv", "int32", "dtype is 'int32'; expected 'float32' or 'float64'"),
    ],
)
def test_files_that_cannot_be_read(folder: Path, name: Any, dtype: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_columns(name, dtype=dtype)


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.npz"])
def test_damaged_files(folder: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: cannot be read as"):
        read_columns(written(name, "no such thing"), None)


MODULE = """
from batchnuts.autobatch import ops

def density(p, data):
    mean = ops.take(p["a"], data["county"]) + p["b"] * data["floor"]
    return ops.sum(-0.5 * (data["y"] - mean) ** 2) - 0.5 * ops.sum(p["a"] ** 2) - p["b"] ** 2

def generated(p, data):
    return {"mean": ops.take(p["a"], data["county"])}

def effects(p, data):
    return {"effect": p["a"] * 2.0}

def without(p):
    return -p["b"] ** 2
"""
CONFIG = """
model:
  target: TARGET:density
  variables: {a: {shape: [county]}, b: []}
  generated: generated
  data: {path: table.csv, columns: {y: y, floor: floor, county: {column: county, as: category}}, observed: [y]}
"""


def config(module: str, text: str = CONFIG) -> Any:
    written("table.csv")
    Path(f"{module}.py").write_text(MODULE)
    Path("c.yaml").write_text(text.replace("TARGET", module))
    return load_config("c.yaml")


def test_a_config_gives_the_columns_to_the_functions(folder: Path) -> None:
    loaded = config("with_columns")
    model = build_model(loaded.model)
    assert model.dimension == 3
    assert model.element_names() == ["a[AITKIN]", "a[ANOKA]", "b"]
    p = {"a": np.array([1.0, 2.0], "float32"), "b": np.float32(0.5)}
    expected = -0.5 * ((1.5 - 1) ** 2 + 0 + (0.5 - 1) ** 2) - 0.5 * 5 - 0.25
    np.testing.assert_allclose(model.log_density(p), expected, rtol=1e-6)
    assert model.generated is not None
    assert model.generated(p)["mean"].tolist() == [1.0, 2.0, 1.0]
    assert list(model.observed_data) == ["y"]
    assert set(model.constant_data) == {"floor", "county"}
    Path("again.yaml").write_text(loaded.to_yaml())
    assert load_config("again.yaml").model == loaded.model
    with pytest.raises(ConfigError, match=r"output.path: found './table.csv'; expected a path that ends in .nc or"):
        load_config("c.yaml", ["output.path=./table.csv"])
    as_other_file("t.feather")
    Path("c.yaml").write_text(Path("c.yaml").read_text().replace("table.csv", "t.feather"))
    read = {"the config": "c.yaml", "model.data": "./t.feather", "model.target": "with_columns.py"}
    for name, path in read.items():
        forced = load_config("c.yaml", [f"output.path={path}"]).decided(zarr=False, file=0)
        with pytest.raises(OutputError, match=rf"the run reads it \({name}\)"):
            path_of_new_run(forced, force=True)


def test_labels_of_categories_name_axes_of_what_is_generated(folder: Path) -> None:
    text = CONFIG.replace("generated: generated", "generated: effects\n  dims: {effect: [county]}")
    made = build_model(
        config("with_dims", text.replace("as: category}", "as: category, order: [ANOKA, AITKIN, X]}")).model
    )
    assert made.element_names() == ["a[ANOKA]", "a[AITKIN]", "a[X]", "b"]
    small: dict[str, Any] = {"warmup": 0, "step_size": 0.5, "max_tree_depth": 1}
    result = batchnuts.sample_chains(made, chains=2, draws=3, backend="numpy", progress=False, **small)
    assert result["posterior"]["effect"].dims == ("chain", "draw", "county")
    assert result["posterior"]["effect"]["county"].values.tolist() == ["ANOKA", "AITKIN", "X"]


def test_a_target_may_be_named_by_its_file(folder: Path) -> None:
    text = CONFIG.replace("TARGET:density", "by_file.py:density").replace("generated: gen", "generated: by_file.py:gen")
    loaded = config("by_file", text)
    assert loaded.model.target == "by_file:density"
    assert build_model(loaded.model).name == "by_file:density"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("variables: {a: {shape: [county]}, b: []}", "variables: {county: {shape: [county]}, b: []}"),
            "model.variables.county: a category of the data is called 'county' too.*county_index: {column: county",
        ),
        (("density\n", "without\n"), r"model.target: without takes \(p\); expected an argument `data`"),
        (("shape: [county]", "shape: [state]"), "model.variables.a.shape: found 'state', but the data have county"),
        (("observed: [y]", "observed: [z]"), "model.data.observed: found 'z', which is not a column"),
        (("as: category", "as: factor"), "columns.county.as: found 'factor'; expected one of auto, number, integer"),
        (("as: category", "like: category"), "columns.county: unknown key 'like'; expected column and as"),
        (("path: table.csv, ", ""), "model.data.path: this key is required"),
        (("observed:", "observe:"), "model.data.observe: unknown key; did you mean 'observed'"),
    ],
)
def test_mistakes_in_a_config_are_named(folder: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in CONFIG
    with pytest.raises(ConfigError, match=said):
        build_model(config("with_mistakes", CONFIG.replace(*change)).model)
