"""What a checkpoint says of a model, by which a changed one is found when a run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from batchnuts.autobatch import ops
from batchnuts.mcmc.checkpoint.saved_run import described
from batchnuts.mcmc.model.declarations import real
from batchnuts.mcmc.model.model import Model


def test_what_a_model_is_said_to_be_depends_on_all_of_it() -> None:
    def made(**options: Any) -> dict[str, str]:
        given = {"variables": {"x": real(3)}, "name": "one", "generated": lambda values: {"y": values["x"] + 1.0}}
        return described(Model.from_function(lambda values: -ops.sum(values["x"] ** 2), **{**given, **options}))

    assert made() == made()
    assert made(name="two") != made()
    assert made(variables={"x": real(4)}) != made()
    assert made(generated=lambda values: {"y": values["x"] + 2.0})["function generated"] != made()["function generated"]


OF_A_USER = """
import functools
import numpy as np
from dataclasses import dataclass

C, SCALES, SEEN, CALLS = 1.0, np.arange(3.0), {}, 0
NAMES = frozenset({"a", "b", "c"})

@dataclass(frozen=True)
class Prior:
    scale: float = 2.0

class Counter:
    count = 0
    made = 0

_TABLE = None

def load():
    global _TABLE
    if _TABLE is None:
        _TABLE = np.ones(3)
    Counter.made += 1

PRIOR, COUNTER = Prior(), Counter()

def helper(x):
    global CALLS
    CALLS += 1
    COUNTER.count += 1
    return x * C + SCALES.sum()

@functools.lru_cache
def cached(n):
    return n + 1

def quantities(values, data):
    SEEN[len(SEEN)] = 1
    load()
    Counter()
    bound = 3.0 if "a" in {"a", "b"} and "a" in NAMES else 4.0
    return {"y": helper(values["x"]) * PRIOR.scale + bound + cached(2) + data["z"].sum() + _TABLE.sum()}

generated = functools.partial(quantities, data={"z": SCALES})
"""

DIGESTS = """
import json, sys, types
from batchnuts import Model, real
from batchnuts.mcmc.checkpoint.saved_run import described
digests = []
for text in json.load(sys.stdin):
    user = sys.modules["user"] = types.ModuleType("user")
    user.__file__ = "user.py"
    exec(compile(text, user.__file__, "exec"), vars(user))
    if sys.argv[1] == "called":
        user.generated({"x": 1.0})
    model = Model.from_function(lambda v: v["x"], variables={"x": real()}, generated=user.generated)
    digests.append(described(model)["function generated"])
print(json.dumps(digests))
"""

CHANGES = (
    ("C, SCALES, SEEN, CALLS = 1.0", "C, SCALES, SEEN, CALLS = 7.0"),
    ("np.arange(3.0)", "np.arange(1.0, 4.0)"),
    ("x * C", "x / C"),
    ("return n + 1", "return n + 2"),
    ("scale: float = 2.0", "scale: float = 2.5"),
    ("else 4.0", "else 5.0"),
    ("functools.partial(quantities", "functools.partial(lambda values, data: data"),
)


def test_functions_are_known_in_another_process_and_with_all_that_they_use() -> None:
    """What they count or keep for themselves does not change them: else no run could go on."""
    assert all(old in OF_A_USER for old, _ in CHANGES)
    texts = json.dumps([OF_A_USER, *(OF_A_USER.replace(*change) for change in CHANGES)])

    def digests(called: str, seed: str) -> list[str]:
        line, environment = [sys.executable, "-c", DIGESTS, called], {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(line, input=texts, capture_output=True, text=True, check=True, env=environment)
        found: list[str] = json.loads(done.stdout)
        return found

    one = digests("", "1")
    assert digests("called", "2") == one
    assert len(set(one)) == 1 + len(CHANGES), "each change is seen"
