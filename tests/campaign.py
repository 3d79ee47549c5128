"""Many generated programs against plain Python: `python tests/campaign.py --numpy 5000 --xla 200`.

Each number is a seed, so a failure is one program, which the report prints; `--first` goes on where a campaign ended.
Half of the programs are of `generator` (control flow and recursion), half of `generator_of_numbers` (edges of dtypes).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

TESTS = Path(__file__).resolve().parent


def outcome(task: tuple[str, int]) -> tuple[str, int, str, str]:
    """Of one seed on one backend: how it ended, and what there is to read where the program failed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from properties.test_programs import COMPILED, ON_NUMPY, check, check_numbers

    backend, seed = task
    under_xla = [way for way in COMPILED if way.mode == "xla"]
    ways = ON_NUMPY if backend == "numpy" else [under_xla[seed // 2 % len(under_xla)]]  # which take minutes in all
    random = Random(seed)
    try:
        if seed % 2:
            ended = check_numbers(random, *ways)
        else:
            check(random, *ways)
            ended = "ran"
    except Exception as error:
        return backend, seed, "failed", f"{type(error).__name__}: {error}"
    return backend, seed, ended, ""


def main() -> int:
    """Exit code 1 where some program failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numpy", type=int, default=0, help="programs on NumPy")
    parser.add_argument("--xla", type=int, default=0, help="programs on TensorFlow under XLA")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    tasks = [
        (backend, seed)
        for backend in ("numpy", "xla")
        for seed in range(options.first, options.first + getattr(options, backend))
    ]
    counts: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    # a worker ends after some programs, and with it what they compiled
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=100) as pool:
        for backend, seed, ended, text in pool.imap_unordered(outcome, tasks):
            counts[backend, ended] += 1
            if ended == "failed":
                print(f"{backend}, seed {seed}: {text}\n", flush=True)
    for (backend, ended), number in sorted(counts.items()):
        print(f"{backend}: {number} {ended}")
    print(f"{sum(counts.values())} programs in {time.monotonic() - began:.0f} s")
    return int(any(ended == "failed" for _, ended in counts))


if __name__ == "__main__":
    sys.path[:0] = [str(TESTS), str(TESTS / "helpers")]
    sys.exit(main())
