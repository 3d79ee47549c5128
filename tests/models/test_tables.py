import numpy as np
import pytest

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
