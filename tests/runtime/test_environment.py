"""Settings in the environment: added to what is there, and taken back."""

from __future__ import annotations

import os

import pytest

from batchnuts.autobatch.environment import variable_set, with_flag


@pytest.mark.parametrize(
    ("given", "value", "expected"),
    [
        (None, "/tmp/x", "--keep=/tmp/x"),
        ("", 3, "--keep=3"),
        ("--other=1", "/tmp/x", "--other=1 --keep=/tmp/x"),
        ("--keep=/mine", "/tmp/x", None),
        ("/a/file/of/flags", "/tmp/x", None),
        (None, "/tmp/a b", None),
    ],
)
def test_flags_are_added_where_that_can_be(
    given: str | None, value: object, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_FLAGS", raising=False)
    if given is not None:
        monkeypatch.setenv("SOME_FLAGS", given)
    assert with_flag("SOME_FLAGS", "--keep", value) == expected


@pytest.mark.parametrize("before", [None, "old"])
def test_a_variable_is_as_it_was_afterwards(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_FLAGS", raising=False)
    if before is not None:
        monkeypatch.setenv("SOME_FLAGS", before)
    with variable_set("SOME_FLAGS", "new"):
        assert os.environ["SOME_FLAGS"] == "new"
    assert os.environ.get("SOME_FLAGS") == before
