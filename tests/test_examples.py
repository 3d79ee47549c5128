"""The scripts of examples/ run, and print what their pages in docs/gallery show."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GALLERY, EXAMPLES = ROOT / "docs" / "gallery", ROOT / "examples"
PAGES = sorted(page for page in GALLERY.glob("*.md") if page.stem != "index")
LIBRARIES = {"radon": "pymc", "item_response": "numpyro", "rotation_map": "numpyro"}
"""What a script needs beyond the extras jax and plot."""

LONG = {"rotation_map"}
"""Minutes: run before a release."""

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]\d+)?")
FREE = re.compile(r"time:|Divergences|worst|bulk ESS|largest difference|Effective weights|^WARNING|steepest|^->")
"""Lines whose numbers vary from machine to machine, beyond any Monte Carlo error: only their words are compared."""
MODES = re.compile(r"R-hat of|Chains all|Draws of the chains|Orders of|times as probable")
"""Of a sampler that does not mix: what it finds is a matter of chance, within a factor."""
DOUBLINGS = re.compile(r"Gradients of a transition")
"""2^k - 1 of a whole trajectory: a step size near the one at which k changes may be adapted on either side of it."""


def shown(page):
    """What a page says that its script prints."""
    text = page.read_text(encoding="utf-8")
    (block,) = re.findall(r"^<!-- OUTPUT -->\n\n```text\n(.*?)^```$", text, flags=re.M | re.S)
    return block


def words(line):
    """A line without its numbers, and without what a verdict names as worst."""
    return re.sub(r"\s+", " ", NUMBER.sub("#", re.sub(r"(worst|draws) \S+ = .*|\(\S*[a-z]\S*\)$", r"\1", line))).strip()


def differences(line, found):
    """Numbers of the line that differ by more than chance lets expect, as text."""
    if FREE.search(line):
        return
    here, there = ([float(text) for text in NUMBER.findall(one)] for one in (line, found))
    deviations = [float(text) for text in re.findall(r"± (\d+\.\d+)", line)]
    # A mean moves by a fraction of its posterior's standard deviation; the last digit may be rounded otherwise.
    slack = 0.25 * max(deviations, default=0.0)
    for one, other in zip(here, there, strict=True):
        if MODES.search(line):
            close = abs(one - other) <= 0.6 * max(abs(one), abs(other)) + 10
        elif DOUBLINGS.search(line):
            close = abs(math.log2((one + 1) / (other + 1))) <= 1
        else:
            close = math.isclose(one, other, rel_tol=0.1, abs_tol=max(slack, 0.021))
        if not close:
            yield f"{line}: {one} on the page, {other} now"


def verdicts_apart(lines):
    """Lines of advice and warnings depend on divergences, of which there may be none in another run."""
    return [line for line in lines if not re.match(r"WARNING|->|OK:|NOT OK:|Nested R-hat", line)]


def test_pages_and_scripts_are_the_same():
    assert LONG | LIBRARIES.keys() <= {page.stem for page in PAGES}
    assert [page.stem for page in PAGES] == sorted(script.stem for script in EXAMPLES.glob("*.py"))
    index = (GALLERY / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"({page.name})" in index
        text = page.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 120
        assert shown(page).count("\n") > 3
        picture = GALLERY / f"{page.stem}.png"
        assert f"({picture.name})" in text
        assert 5_000 < picture.stat().st_size < 150_000


@pytest.mark.parametrize(
    ("line", "found", "differ"),
    [
        ("tau   0.16 ± 0.05", "tau   0.17 ± 0.05", 0),
        ("tau   0.16 ± 0.05", "tau   0.36 ± 0.05", 1),
        ("item 1      92%", "item 1      70%", 1),
        ("time: 26 s from the model", "time: 7 s from the model", 0),
        ("R-hat of mu: 2.56", "R-hat of mu: 3.10", 0),
        ("Gradients of a transition: 63 in the median", "Gradients of a transition: 31 in the median", 0),
        ("Gradients of a transition: 63 in the median", "Gradients of a transition: 15 in the median", 1),
    ],
)
def test_comparison_of_lines(line, found, differ):
    assert words(line) == words(found)
    assert len(list(differences(line, found))) == differ


def with_marks(page):
    return pytest.param(page, id=page.stem, marks=pytest.mark.release if page.stem in LONG else ())


@pytest.mark.slow
@pytest.mark.parametrize("page", [with_marks(page) for page in PAGES])
def test_scripts_print_what_pages_show(page, tmp_path):
    library = LIBRARIES.get(page.stem)
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    picture = tmp_path / "picture.png"
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{page.stem}.py"), "--picture", str(picture)]
    environment = {**os.environ, "XLA_FLAGS": ""}  # optimized machine code, as users have it: it rounds as on the page
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    there, now = (verdicts_apart(text.splitlines()) for text in (shown(page), done.stdout))
    assert [words(line) for line in now] == [words(line) for line in there]
    assert not [text for line, found in zip(there, now) for text in differences(line, found)]
