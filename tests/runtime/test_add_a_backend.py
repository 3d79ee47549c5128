"""The backend that docs/add_a_backend.md writes runs the corpus."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import Case, covering_by_default

from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.language.pytree import flatten

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add_a_backend.md"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page's own object, made by the page's own code."""
    from from_source import load

    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(code) == 1
    return load(tmp_path_factory.mktemp("page"), code[0]).lists


def test_the_page_names_every_member(lists: Any) -> None:
    members = {name for base in Backend.__mro__ for name in vars(base) if not name.startswith("_")}
    members |= set(Backend.__annotations__)
    assert members == {name for name in vars(type(lists)) if not name.startswith("_")}
    table = PAGE.read_text(encoding="utf-8").split("Two contracts")[0]
    assert [name for name in sorted(members) if f"`{name}`" not in table] == []


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
@covering_by_default()
def test_it_agrees_with_plain_python(case: Case, executor: str, lists: Any) -> None:
    expected = flatten(case.function.run(*case.inputs, executor="unbatched"))[0]
    found = flatten(case.function.run(*case.inputs, executor=executor, backend=lists))[0]
    dtypes = case.dtypes or tuple(leaf.dtype.name for leaf in expected)
    for a, b, dtype in zip(found, expected, dtypes, strict=True):
        assert a.dtype == dtype
        np.testing.assert_array_equal(a, b.astype(dtype))


def test_it_reports_overflows_too(lists: Any) -> None:
    from programs import fibonacci

    from batchnuts.autobatch import StackOverflowError

    with pytest.raises(StackOverflowError, match="lane 1 recursed too deep in 'fibonacci'"):
        fibonacci.run(np.array([3, 7]), backend=lists, max_stack_depth=3)
