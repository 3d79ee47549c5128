import random

import numpy as np
import pytest

from batchnuts.models import tables
from batchnuts.models.tables import DataError, read_labelled


@pytest.fixture
def file(tmp_path):
    """Write a data file (text, or keyword arrays of an .npz, or one array) and give its path."""

    def write(name, text=None, array=None, **arrays):
        path = tmp_path / name
        if text is not None:
            path.write_text(text, encoding="utf-8")
        elif array is not None:
            np.save(path, array)
        else:
            np.savez(path, **arrays)
        return str(path)

    return write


def test_csv(file):
    path = file("a.csv", "\ufeffage, dose ,sick\n1,2.5,0\n\n3,-4e1,1\n")
    table = read_labelled(path, None, None)
    assert table.names == ("age", "dose")
    np.testing.assert_array_equal(table.features, [[1, 2.5], [3, -40]])
    np.testing.assert_array_equal(table.labels, [0, 1])
    table = read_labelled(file("b.csv", "y,a,text,b\n1,2,hello,3\n"), "y", ["b", "a"])
    assert table.names == ("b", "a")
    np.testing.assert_array_equal(table.features, [[3, 2]])


def test_npy_and_npz(file):
    array = np.array([[1.0, 0, 5], [2, 1, 6]])
    table = read_labelled(file("a.npy", array=array), 1, None)
    np.testing.assert_array_equal(table.features, [[1, 5], [2, 6]])
    assert table.names == ("0", "2")
    both = {"X": array, "y": np.array([[True], [False]]), "other": np.array([1, 1])}
    table = read_labelled(file("a.npz", **both), None, [2])
    np.testing.assert_array_equal(table.features, [[5], [6]])
    np.testing.assert_array_equal(table.labels, [1, 0])
    np.testing.assert_array_equal(read_labelled(file("a.npz", **both), "other", None).labels, [1, 1])


@pytest.mark.parametrize(
    ("text", "label", "features", "message"),
    [
        ("", None, None, "the file is empty"),
        ("a,y\n", None, None, "there are column names but no rows"),
        ("a,y\n1,0\n,1\n", None, None, "line 3, column 'a': the value is missing"),
        ("a,y\n1,0\nNA,1\n", None, None, "line 3, column 'a': the value is missing ('NA')"),
        ("a,y\n1,NaN\n", None, None, "line 2, column 'y': the value is missing"),
        ("a,y\nred,0\n", None, None, "line 2, column 'a': 'red' is not a number"),
        ("a,y\ninf,0\n", None, None, "line 2, column 'a': 'inf' is not a finite number"),
        ("a,y\n1,0\n2,2\n", None, None, "line 3, column 'y': the label is 2; expected 0 or 1"),
        ("a,y\n1,0.5\n", None, None, "the label is 0.5; expected 0 or 1"),
        ("a,b,y\n1,2,0\n1,0\n", None, None, "line 3 has 2 cells; line 1 names 3 columns"),
        ("a,y\n1,0\n", "yy", None, "label is 'yy', but there is no such column; did you mean 'y'?"),
        ("dose,y\n1,0\n", None, ["dosis"], "features is 'dosis', but there is no such column; did you mean 'dose'?"),
        ("a,y\n1,0\n", "y", ["a", "y"], "'y' is the label and also one of features"),
        ("a,y\n1,0\n", "y", ["a", "a"], "'a' is listed twice"),
        ("a,a,y\n1,1,0\n", None, None, "two columns called 'a'"),
        ("y\n0\n", None, None, "no feature columns are left"),
        (
            "a,y\n1,0\n\n" + "2,1\n" * 500 + "1e400,1\n",
            None,
            None,
            "line 504, column 'a': '1e400' is not a finite number",
        ),
        ("a,y\n" + "9" * 400 + ",0\n", None, None, "line 2, column 'a': '99999"),
        ('a,y\n"1\n",0\n"2\n",2\n', None, None, "line 5, column 'y': the label is 2"),
        ("a,y\n1_000,0\n", None, None, "line 2, column 'a': '1_000' is not a number"),
        ("a,y\n0x10,0\n", None, None, "line 2, column 'a': '0x10' is not a number"),
        ("a,y\n1;5,0\n", None, None, "line 2, column 'a': '1;5' is not a number"),
        ("a,b,y\n1,x,0\n1,0\n", "y", ["a"], "line 3 has 2 cells; line 1 names 3 columns"),
        ("a,b,y\n1,x,0\n1,x,0,\n", "y", ["a"], "line 3 has 4 cells; line 1 names 3 columns"),
        ("a,y\n1\x00,0\n", None, None, "line 2, column 'a': '1\\x00' is not a number"),
        ("a,y\n" + "x" * 200_000 + ",0\n", None, None, "line 2: field larger than field limit"),
        ('a,y\n"1,0\n2,1\n', None, None, "line 3 has 1 cells; line 1 names 2 columns"),
    ],
)
def test_bad_csv_is_named_with_its_place(file, text, label, features, message):
    path = file("a.csv", text)
    with pytest.raises(DataError) as caught:
        read_labelled(path, label, features)
    assert message in str(caught.value)
    assert str(caught.value).startswith(path)


X = np.ones((3, 2))


@pytest.mark.parametrize(
    ("name", "content", "label", "features", "message"),
    [
        ("a.npy", {"array": np.ones(3)}, None, None, "the array has shape (3,); expected [rows, columns]"),
        ("a.npy", {"array": np.ones((0, 3))}, None, None, "neither of them empty"),
        ("a.npy", {"array": np.array([["a", "b"]])}, None, None, "expected real numbers"),
        ("a.npy", {"array": np.array([[1, np.nan], [1, 0]])}, None, None, "row 0, column 1: the value is nan"),
        ("a.npy", {"array": np.array([[1.0, 0], [1, 7]])}, None, None, "column 1, row 1: the label is 7"),
        ("a.npy", {"array": X}, 2, None, "label is 2; expected a column's index from 0 to 1"),
        ("a.npy", {"array": X}, "y", None, "label is 'y'; expected a column's index"),
        ("a.npy", {"array": X}, 1, [1], "column '1' is the label and also"),
        ("a.npy", {"array": np.array([None, 1])}, None, None, "cannot be read as a NumPy file"),
        ("a.npz", {"X": X}, None, None, "there is no array 'y'"),
        ("a.npz", {"x": X, "y": np.ones(3)}, None, None, "there is no array 'X'; did you mean 'x'?"),
        ("a.npz", {"X": X, "y": np.ones(4)}, None, None, "array 'X' has shape (3, 2) and array 'y' (4,)"),
        ("a.npz", {"X": X, "y": np.array([0, 1, 3])}, None, None, "array 'y', row 2: the label is 3"),
        ("a.npz", {"X": X, "y": np.ones(3)}, None, [5], "features is 5; expected a column's index from 0 to 1"),
        ("a.npy", {"text": "not numpy"}, None, None, "cannot be read as"),
        ("a.npz", {"text": "not numpy"}, None, None, "cannot be read as"),
        ("a.csv", {"array": X}, None, None, "cannot be read as .csv"),
        ("a.txt", {"text": "a"}, None, None, "the ending '.txt' is not known; expected one of .csv, .npy, .npz"),
    ],
)
def test_bad_numpy_files_are_named(file, name, content, label, features, message, tmp_path):
    path = file(name, **content)
    if name == "a.csv":
        (tmp_path / "a.csv.npy").rename(path)
    with pytest.raises(DataError) as caught:
        read_labelled(path, label, features)
    assert message in str(caught.value)
    assert str(caught.value).startswith(path)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        read_labelled(str(tmp_path / "a.csv"), None, None)


@pytest.mark.parametrize("value", ["1e39", "-3.5e38", "340282356779733661637539395458142568448"])
def test_what_float32_cannot_hold_is_refused_with_its_place(file, value):
    text = f"a,y\n1,0\n{value},1\n"
    with pytest.raises(
        DataError, match=r"line 3, column 'a': .* is too large for float32 \(at most 3.4e\+38\)\. Scale"
    ):
        read_labelled(file("a.csv", text), None, None, "float32")
    assert read_labelled(file("a.csv", text), None, None, "float64").features[1, 0] == float(value)
    array = np.array([[1.0, 0], [float(value), 1]])
    with pytest.raises(DataError, match=r"the array, row 1, column 0: .* is too large for float32"):
        read_labelled(file("a.npy", array=array), None, None, "float32")
    with pytest.raises(DataError, match=r"array 'X', row 1, column 0: .* is too large for float32"):
        read_labelled(file("a.npz", X=array[:, :1], y=array[:, 1]), None, None, "float32")


def test_features_that_become_equal_in_float32_are_refused(file):
    text = "a,b,y\n1,1600000001,0\n2,1600000002,1\n"
    said = "column 'b': 1600000001.0 and 1600000002.0 become the same number in float32"
    with pytest.raises(DataError, match=said):
        read_labelled(file("a.csv", text), None, None, "float32")
    assert read_labelled(file("a.csv", text), None, ["a"], "float32").names == ("a",)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[1.0, 0], [np.inf, 1]]), "row 1, column 0: the value is inf"),
        (np.array([[1.0, 0], [-np.inf, 1]], "float16"), "row 1, column 0: the value is -inf"),
        (np.array([[1.0, 0], [1, np.nan]], ">f4"), "row 1, column 1: the value is nan"),
        (np.array([[1.0 + 2j, 0]]), "the array has dtype complex128; expected real numbers"),
        (np.array([["2020-01-01", "2020-01-02"]], "datetime64[D]"), "expected real numbers"),
        (np.zeros(3, [("a", "f8")]), "expected real numbers"),
    ],
    ids=range(6),
)
def test_numbers_that_are_none_in_numpy_files(file, array, message):
    with pytest.raises(DataError) as caught:
        read_labelled(file("a.npy", array=array), None, None)
    assert message in str(caught.value)


def test_longdouble_that_float64_cannot_hold(file):
    array = np.array([[np.finfo(np.longdouble).max, 0]], np.longdouble)
    if np.finfo(np.longdouble).max > np.finfo(np.float64).max:
        with pytest.raises(DataError, match="row 0, column 0: the value is inf"):
            read_labelled(file("a.npy", array=array), None, None)


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,y\n" + b"1,0\n" * 50_000 + b"caf\xe9,1\n")
    with pytest.raises(DataError, match=r"line 50002 cannot be read as \.csv: it is not UTF-8 text"):
        read_labelled(str(tmp_path / "a.csv"), None, None)


CELLS = ["1", "0", " 2.5 ", "-3e4", '"7"', '"8\n"', "", "nan", "inf", "x", '5"2', '"a,b"', "1e39", "1e400", "1_0", "+1",
         ".5", "5.", "1e-320", "0x1", "é", "٣", '""', "#1", "True", "1 2"]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_the_fast_reader_takes_what_the_careful_one_takes_and_gives_the_same(file, seed, monkeypatch):
    """Generated tables, of which both make the same, or the same fault."""
    rng = random.Random(seed)
    outcomes = set()
    for _ in range(150):
        odd = rng.random() < 0.5
        lines = ["a,b,y"]
        for _ in range(rng.randint(1, 6)):
            cells = [rng.choice(CELLS) if odd and rng.random() < 0.3 else str(rng.uniform(-9, 9)) for _ in "ab"]
            cells.append(rng.choice("01"))
            if odd and rng.random() < 0.05:
                cells = cells[: rng.randint(0, 2)]
            lines.append(",".join(cells))
        path = file("a.csv", rng.choice(["\n", "\r\n"]).join(lines) + rng.choice(["", "\n", "\n\n"]))
        features = rng.choice([None, ["b"], ["b", "a"]])
        found = []
        for careful in (False, True):
            with monkeypatch.context() as patch:
                if careful:
                    patch.setattr(tables, "_at_once", lambda *_: None)
                try:
                    table = read_labelled(path, "y", features, "float32")
                    found.append((table.features.tobytes(), table.labels.tobytes(), table.features.shape, table.names))
                except DataError as error:
                    found.append(str(error))
        assert found[0] == found[1], lines
        outcomes.add(type(found[0]))
    assert outcomes == {tuple, str}


@pytest.mark.parametrize("chosen", [None, ["c3", "c7"]])
def test_a_large_table_is_read_by_the_fast_reader(file, monkeypatch, chosen):
    """A sound table is never read line by line, whichever columns are asked for."""
    values = np.random.default_rng(0).normal(size=(2000, 10))
    text = "".join(",".join(map(repr, map(float, row))) + ",text,1\n" for row in values)
    head = ",".join(f"c{n}" for n in range(10)) + ",name,y\n"
    monkeypatch.setattr(tables, "_line_by_line", lambda *_: pytest.fail("read line by line"))
    columns = chosen or [f"c{n}" for n in range(10)]
    table = read_labelled(file("a.csv", head + text), "y", columns)
    np.testing.assert_array_equal(table.features, values[:, [int(name[1:]) for name in columns]])


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_damaged_numpy_files_are_refused(file, name, tmp_path):
    """Cut off anywhere, and with any byte changed: read as they are, or refused with their name."""
    array = np.arange(12.0).reshape(4, 3)
    array[:, 2] = [0, 1, 0, 1]
    path = tmp_path / name
    file(name, **({"array": array} if name == "a.npy" else {"X": array, "y": array[:, 2]}))
    whole = path.read_bytes()
    rng = random.Random(1)
    damaged = [whole[:length] for length in range(0, len(whole), 7)]
    for _ in range(300):
        place = rng.randrange(len(whole))
        damaged.append(whole[:place] + bytes([rng.randrange(256)]) + whole[place + 1 :])
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            read_labelled(str(path), None, None)
        except DataError as error:
            refused += str(error).startswith(str(path))
    assert refused > len(whole) // 7


def test_a_table_without_names_is_refused(file):
    with pytest.raises(DataError, match="line 1 holds only numbers"):
        read_labelled(file("bare.csv", "0.1,2.0,1\n0.3,1.0,0\n"), None, None)
    with pytest.raises(DataError, match="other than commas"):
        read_labelled(file("semicolons.csv", "a;b;y\n1;2;0\n"), None, None)
