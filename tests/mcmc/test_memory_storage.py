"""Records in memory: which rows go where, whatever lanes and chains they come from."""

from __future__ import annotations

import numpy as np
import pytest

from batchnuts.autobatch.machine import map_leaves
from batchnuts.mcmc.kernel.sample_statistics import Record, empty_records
from batchnuts.mcmc.storage.contract import LaneRows
from batchnuts.mcmc.storage.memory import MemoryStorage

CHAINS, TRANSITIONS, LANES, ROWS = 4, 6, 3, 2


def rows(numbers: list[list[float]]) -> Record:
    """Of a machine's buffers: these log-densities [lanes, rows], everything else zero."""
    one = empty_records(ROWS, 2, "float32", divergences=True)
    return map_leaves(lambda array: np.stack([array] * LANES), one)._replace(lp=np.array(numbers, "float32"))


def record(storage: MemoryStorage, chains: list[int], lanes: list[int], first: list[int], last: list[int], of: Record):
    storage.record(LaneRows(*(np.array(numbers, np.int64) for numbers in (chains, lanes, first, last)), of))


def made() -> MemoryStorage:
    return MemoryStorage(rows([[0.0] * ROWS] * LANES), CHAINS, TRANSITIONS)


def test_each_chain_has_its_rows_in_order() -> None:
    """Chains change lanes, and one records more often than another; the buffer is the machine's own."""
    storage = made()
    buffer = rows([[10, 11], [-1, -1], [30, -1]])
    record(storage, [1, 3], [0, 2], [0, 0], [2, 1], buffer)
    buffer.lp[:] = -2
    record(storage, [0, 1, 3], [1, 2, 0], [0, 2, 1], [2, 4, 3], rows([[31, 32], [0, 1], [12, 13]]))
    record(storage, [3, 1], [1, 2], [3, 4], [4, 4], rows([[-1, -1], [33, -1], [-1, -1]]))
    storage.flush()
    found = storage.finalize().lp
    expected = {0: [0, 1], 1: [10, 11, 12, 13], 3: [30, 31, 32, 33]}
    for chain, numbers in expected.items():
        np.testing.assert_array_equal(found[chain, : len(numbers)], numbers)


def test_rows_after_the_last_transition_overwrite_nothing() -> None:
    """Of a chain that is no further than last time, too."""
    storage = made()
    record(storage, [2], [0], [0], [2], rows([[20, 21], [0, 0], [0, 0]]))
    record(storage, [2], [1], [2], [2], rows([[0, 0], [-1, -1], [0, 0]]))
    np.testing.assert_array_equal(storage.finalize().lp[2, :2], [20, 21])


@pytest.mark.parametrize("room", [1, 2, 3, TRANSITIONS])
def test_room_grows_as_it_is_needed(room: int) -> None:
    """What chains record lies in several arrays then, and reads as if it lay in one."""
    storage = MemoryStorage(rows([[0.0] * ROWS] * LANES), CHAINS, TRANSITIONS, room)
    for first in range(0, TRANSITIONS, 2):
        for chains in ([0, 1, 2], [3]):
            numbers = [[10 * chain + first, 10 * chain + first + 1] for chain in (*chains, 9, 9)][:LANES]
            lanes = list(range(len(chains)))
            record(storage, chains, lanes, [first] * len(chains), [first + 2] * len(chains), rows(numbers))
        known = storage.first(first + 1).lp
        np.testing.assert_array_equal(known, 10 * np.arange(CHAINS)[:, None] + np.arange(first + 1))
        assert storage.rows <= max(room, 2 * (first + 2))
    np.testing.assert_array_equal(storage.finalize().lp, 10 * np.arange(CHAINS)[:, None] + np.arange(TRANSITIONS))
    assert storage.finalize().position.shape == (CHAINS, TRANSITIONS, 2)


def test_records_keep_their_dtypes() -> None:
    found = made().finalize()
    assert found.position.shape == (CHAINS, TRANSITIONS, 2)
    for name, array in rows([[0.0] * ROWS] * LANES)._asdict().items():
        assert getattr(found, name).dtype == array.dtype, name
        assert getattr(found, name).shape[:2] == (CHAINS, TRANSITIONS), name
