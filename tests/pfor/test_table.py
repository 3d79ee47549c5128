"""docs/pfor.md has the registry's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchnuts.autobatch.pfor import REGISTRY, converts, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "pfor.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"


def test_the_documents_table_is_the_registrys(request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text()
    before, rest = text.split(START)
    found, after = rest.split(END)
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(before + START + table() + END + after)
    else:
        assert found == table(), "pytest --update-golden writes the table anew"


def test_there_are_enough_converters() -> None:
    assert len(REGISTRY) >= 350


def test_an_op_has_one_converter() -> None:
    with pytest.raises(ValueError, match="op MatMul has a converter already, in matmul"):
        converts("MatMul")(lambda site: [])
    with pytest.raises(ValueError, match="no_xla names ops that are not registered here"):
        converts("NthElement", no_xla="Other")
