"""Files that are written without xarray: those that its own writer makes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray

from batchnuts.files.groups import AnyGroup, Group, datasets_of
from batchnuts.files.netcdf import plain
from batchnuts.files.saving import save
from batchnuts.mcmc.diagnostics.verdict import diagnose_groups

ATTRIBUTES = {"text": "caf\u00e9", "empty": "", "number": 3, "share": 0.5, "flag": np.int64(1), "list": [1, 2]}

GROUPS: dict[str, Group] = {
    "posterior": Group.of(
        {
            "mu": (("chain", "draw"), np.arange(6.0).reshape(2, 3), {"support": "real()"}),
            "theta": (("chain", "draw", "school"), np.full((2, 3, 2), np.nan, "float32"), {}),
            "count": (("chain", "draw"), np.arange(6, dtype="int64").reshape(2, 3)),
            "small": (("chain", "draw"), np.arange(6, dtype="uint8").reshape(2, 3)),
            "diverging": (("chain", "draw"), np.eye(2, 3) > 0),
        },
        {"school": ["A", "caf\u00e9"], "chain": np.array([0, 5]), "draw": np.arange(3)},
        ATTRIBUTES,
    ),
    "none": Group.of({"mu": (("chain", "draw"), np.zeros((2, 0)))}, {"chain": [0, 1], "draw": np.arange(0)}, {}),
    "scalars": Group.of({"alone": ((), np.array(2.5)), "word": ((), np.array("one"))}, {}, {}),
    "words": Group.of({"variables": (("variable",), ["mu [] real", "theta [8] real"])}, {"share": [0.1, 0.9]}, {}),
    "strides": Group.of({"turned": (("a", "b"), np.arange(6.0).reshape(2, 3).T)}, {}, {}),
    "divergences": Group.of(
        {"mu": (("divergence", "point"), np.ones((3, 2))), "alone": (("point",), np.ones(2))},
        {
            "point": ["start", "end"],
            "chain": ("divergence", np.array([0, 1, 1])),
            "draw": ("divergence", np.array([4, 0, 9])),
        },
        {},
    ),
    "labels that no array has": Group.of(
        {"alone": (("point",), np.ones(2))},
        {"z": ("divergence", np.arange(3)), "b": ("divergence", np.arange(3)), "a": ("point", np.arange(2))},
        {},
    ),
    "two beside an array": Group.of({"x": (("i",), np.ones(2))}, {"k": ("i", [1, 2]), "j": ("i", [3, 4])}, {}),
}


def contents(path: Path) -> dict[str, Any]:
    """All that a file has, by name."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:

        def visit(name: str, thing: Any) -> None:
            attributes = {
                key: (type(value), np.asarray(value).dtype, np.asarray(value).tolist())
                for key, value in thing.attrs.items()
                if key not in ("DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates")
            }
            if isinstance(thing, h5py.Dataset):
                dims = [[scale.name for scale in dim.values()] for dim in thing.dims]
                found[name] = (
                    thing.dtype,
                    thing.shape,
                    thing.maxshape,
                    np.asarray(thing[()]).tolist(),
                    dims,
                    attributes,
                )
            else:
                found[name] = attributes

        visit("/", file)
        file.visititems(visit)
    return found


def by_xarray(groups: Mapping[str, AnyGroup], path: Path) -> Path:
    return save({"posterior": xarray.Dataset(attrs=ATTRIBUTES), **datasets_of(groups)}, path)


@pytest.mark.parametrize("name", GROUPS)
def test_a_file_is_that_of_xarray(name: str, tmp_path: Path) -> None:
    assert plain(GROUPS[name])
    groups = {"posterior": GROUPS["posterior"], name: GROUPS[name]}
    ours, theirs = save(groups, tmp_path / "ours.nc"), by_xarray(groups, tmp_path / "theirs.nc")
    found, expected = contents(ours), contents(theirs)
    assert str(found) == str(expected)  # NaN is like NaN
    one, other = (xarray.load_dataset(path, group=name, engine="h5netcdf") for path in (ours, theirs))
    xarray.testing.assert_identical(one, other)
    types = [{v: array.dtype for v, array in opened.variables.items()} for opened in (one, other)]
    assert list(types[0].items()) == list(types[1].items())


def test_nothing_is_looked_up_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """h5netcdf looks up some forty paths for each array that it writes: a run's 63 took half a second."""
    looked_up: list[Any] = []
    true = h5py.Group.__getitem__
    monkeypatch.setattr(h5py.Group, "__getitem__", lambda self, name: looked_up.append(name) or true(self, name))
    arrays = {f"x{k}": (("chain", "draw", "school"), np.ones((2, 3, 2))) for k in range(20)}
    groups = {name: Group.of(arrays, {"school": ["A", "B"]}, {}) for name in ("posterior", "prior")}
    save(groups, tmp_path / "a.nc")
    assert len(looked_up) < 10
    assert set(xarray.load_dataset(tmp_path / "a.nc", group="prior", engine="h5netcdf").data_vars) == set(arrays)


def test_groups_beside_one_that_is_left_to_xarray(tmp_path: Path) -> None:
    plainly = GROUPS["posterior"]
    when = Group.of({"x": (("when",), np.arange(1.0))}, {"when": [datetime(2026, 1, 1)]}, {})
    flagged = Group.of({"x": (("i",), np.ones(2)), "i": (("j",), np.ones(3))}, {}, {})
    assert not plain(flagged)  # an array with the name of another one's axis
    groups = {"when": when, "posterior": plainly, "flagged": flagged, "again": plainly}
    one, other = save(groups, tmp_path / "a.nc"), by_xarray(groups, tmp_path / "b.nc")
    for name in groups:
        found, expected = (xarray.load_dataset(path, group=name, engine="h5netcdf") for path in (one, other))
        xarray.testing.assert_identical(found, expected)
    with h5py.File(one) as file:
        numbers = [file[f"{name}/{dim}"].attrs["_Netcdf4Dimid"] for name in groups for dim in found_axes(file[name])]
    assert len(set(map(int, numbers))) == len(numbers)


def found_axes(group: h5py.Group) -> list[str]:
    return [name for name, thing in group.items() if thing.is_scale]


def test_names_of_elements_are_those_of_the_file(tmp_path: Path) -> None:
    days = [datetime(2026, 1, 1), datetime(2026, 1, 2)]
    draws = np.random.default_rng(0).normal(size=(2, 8, 2))
    group = Group.of({"x": (("chain", "draw", "day"), draws)}, {"day": days, "chain": [0, 1], "draw": np.arange(8)}, {})
    path = save({"posterior": group}, tmp_path / "a.nc")
    stored = xarray.load_dataset(path, group="posterior", engine="h5netcdf")
    names = [diagnose_groups(one, None).names for one in (group, stored)]
    assert names[0] == tuple(f"x[{day}]" for day in group.dataset()["day"].values)
    assert [str(np.datetime64(name[2:-1], "D")) for name in names[1]] == ["2026-01-01", "2026-01-02"]


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    for coords, message in (
        ({"year": ["a", "b", "c"]}, "conflicting sizes"),
        ({"v": [1.0, 2.0]}, "both data_vars and"),
    ):
        group = Group.of({"v": (("year",), [1.0, 2.0])}, coords, {})
        with pytest.raises(ValueError, match=message):
            save({"posterior": group}, tmp_path / "a.nc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "labels",
    [[datetime(2026, 1, 1), datetime(2026, 1, 2)], [True, False], np.array([1, 2], "m8[s]").astype("m8[ns]")],
    ids=["times", "truth values", "durations"],
)
def test_what_is_rare_is_left_to_xarray(labels: Any, tmp_path: Path) -> None:
    group = Group.of({"x": (("when",), np.arange(2.0))}, {"when": labels}, {})
    assert not plain(group)
    one, other = save({"posterior": group}, tmp_path / "a.nc"), by_xarray({"posterior": group}, tmp_path / "b.nc")
    found, expected = (xarray.load_dataset(path, group="posterior", engine="h5netcdf") for path in (one, other))
    xarray.testing.assert_identical(found, expected)
    assert found["when"].dtype.kind in "Mmb"
