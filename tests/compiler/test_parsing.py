"""Functions are compiled in several threads at once."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor

from batchnuts.autobatch.parsing import parse

TEXT = "def f():\n" + "".join(f"    y{i} = [[[{i}]]] + f(g(h({i})))\n" for i in range(100))


def test_threads_may_parse_at_once() -> None:
    """Other threads run while the garbage collector calls back, as it does where JAX is imported."""

    def let_others_run(*_: object) -> None:
        time.sleep(0)

    thresholds = gc.get_threshold()
    gc.callbacks.append(let_others_run)
    gc.set_threshold(200)
    try:
        with ThreadPoolExecutor(4) as pool:
            trees = list(pool.map(parse, [TEXT] * 40))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_others_run)
    assert {len(tree.body[0].body) for tree in trees} == {100}
