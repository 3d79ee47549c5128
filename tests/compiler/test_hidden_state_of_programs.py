"""Generated programs that reach a random number or a time are refused by its name and line, wherever it is; the same
programs with a constant in its place run.

Of 400 programs of the first version of this generator, 71 were compiled: through properties, operators, fields of
namedtuples, methods of super, objects and tables in tables. Links that reached nothing are mutants now.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from examples import examples
from from_source import load, marked_line
from generator_of_hidden_state import FIRST_LINKS, LINKS, STATE, programs
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from batchnuts.autobatch import UnsupportedSyntaxError

X = np.array([0.5, -1.5, 2.0])


def check(folder: Path, seed: int) -> None:
    random = Random(seed)
    for text, made in programs(random):
        constant = load(folder, text.replace("HIDDEN", "0.25"))
        found = constant.f.run(X, backend="numpy", mode="eager")
        np.testing.assert_allclose(found, [constant.f.function(x) for x in X], err_msg=f"{made}\n{text}")
        state = random.choice(list(STATE))
        expression, message = STATE[state]
        module = load(folder, text.replace("HIDDEN", expression))
        try:
            module.f.run(X, backend="numpy", mode="eager")
        except UnsupportedSyntaxError as error:
            said = str(error)
            assert said.startswith(f"{module.__file__}:{marked_line(module)}:"), f"{made} of {state}\n{said}"
            assert re.search(message, said), f"{made} of {state}\n{said}"
        else:
            raise AssertionError(f"{state} is not refused by way of {made}:\n{text}")


@settings(examples(2), phases=[Phase.generate])
@given(st.integers(0, 2**32 - 1))
def test_programs_that_reach_hidden_state_are_refused(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """About forty programs each; not shrunk, since they are short."""
    check(tmp_path_factory.mktemp("programs"), seed)


def test_every_link_is_in_a_program() -> None:
    made = [link for _, parts in programs(Random(5)) for link in parts[1:-1]]
    assert sorted(made) == sorted([*LINKS, *FIRST_LINKS])
