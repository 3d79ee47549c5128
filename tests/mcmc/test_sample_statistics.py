"""Statistics of transitions are declared once: what is written elsewhere follows from the declaration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchnuts.mcmc.kernel.sample_statistics import (
    SAMPLE_STATISTICS,
    STATISTIC_NAMES,
    Record,
    draw_bytes,
    empty_records,
)
from batchnuts.mcmc.storage.draws import statistics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "output.md"
RECORDED = {s.name for s in SAMPLE_STATISTICS if s.is_recorded}


def test_a_record_has_the_recorded_ones_and_both_positions() -> None:
    assert set(Record._fields) == RECORDED | {"position", "last_position"}
    assert set(STATISTIC_NAMES) - {"reached_max_treedepth"} == RECORDED
    assert len(set(STATISTIC_NAMES)) == len(STATISTIC_NAMES)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("divergences", [False, True])
def test_the_bytes_of_a_draw_are_those_of_its_arrays(dtype: str, divergences: bool) -> None:
    records = empty_records(5, 3, dtype, divergences)
    stats = statistics(records._asdict(), 10)
    assert stats.keys() == set(STATISTIC_NAMES)
    for s in SAMPLE_STATISTICS:
        assert stats[s.name].dtype == s.dtype_of(dtype)
    arrays = [records.position, *stats.values(), *([records.last_position] if divergences else [])]
    assert draw_bytes(3, dtype, divergences) == sum(np.asarray(a).nbytes for a in arrays) / 5


def test_the_page_of_the_output_has_the_table() -> None:
    rows = [f"| `{s.name}` | {s.dtype} | {s.meaning} |" for s in SAMPLE_STATISTICS]
    table = "\n".join(["| `sample_stats` | dtype | meaning |", "|---|---|---|", *rows])
    assert table in PAGE.read_text(encoding="utf-8"), f"the table in docs/output.md should be:\n{table}"
