"""Options and helpers that every test file may use."""

from __future__ import annotations

import atexit
import difflib
import gc
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Machine code of little speed is made in three quarters of the time; in programs that live for a second, that is more.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
if "TF_XLA_FLAGS" not in os.environ:  # in the first process: those that it starts share what XLA has compiled
    _kept = tempfile.mkdtemp(prefix="batchnuts-tests-")
    atexit.register(shutil.rmtree, _kept, ignore_errors=True)
    os.environ["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={_kept}"
if "PYTEST_XDIST_WORKER" not in os.environ:  # likewise; never the user's own cache folder
    _programs = tempfile.mkdtemp(prefix="batchnuts-tests-")
    atexit.register(shutil.rmtree, _programs, ignore_errors=True)
    os.environ["BATCHNUTS_CACHE"] = _programs

import affected_tests
import examples  # noqa: F401  (hypothesis's profiles)
import pytest
import quick_tests  # first: it decides what can be imported
from hypothesis import settings
from slow_tests import SLOW_TESTS, is_in_part, parts_of

import batchnuts
from batchnuts import sample

if not quick_tests.ARE_ASKED:
    import batchnuts.autobatch.language.libraries.jax  # XLA's options, before numpyro's first array: as in runs

os.fsync = lambda descriptor: None
"""What tests write need not outlive a power cut, and disks take their time."""

for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:  # nohup, or a shell's background: what is tested would be ignored
        signal.signal(_number, _default)

BEGAN = batchnuts.BEGAN
_setattr = pytest.MonkeyPatch.setattr


def _setattr_and_find_no_program(patch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> None:
    """While an attribute is patched, no program is found by the library's files: they do not say what it does."""
    if batchnuts.BEGAN == BEGAN:
        _setattr(patch, batchnuts, "BEGAN", 0.0)
    _setattr(patch, *arguments, **options)


FIRST = {"test_examples.py", "test_resume.py", "test_documents.py"}
"""Files of long tests, some with an expensive fixture: what comes first one worker runs, the last whoever is free."""

GOLDEN = Path(__file__).parent / "golden"

gc.disable()  # while tests are imported and collected, nothing becomes garbage

settings.load_profile("default")  # --hypothesis-profile comes after this


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the passes give now")
    parser.addoption("--tenth", type=int, choices=range(10), help="run only every tenth test, by a hash of its name")
    parser.addoption("--of-commit", type=lambda digits: int(digits, 16), help="run what CI runs of this commit")
    parser.addoption(
        "--affected-since", metavar="REVISION", help="run tests that depend on what has changed since then"
    )
    parser.addoption("--nearest", type=int, help="of those, so many at most: of files that import it most directly")
    parser.addoption("--stan-programs", metavar="FOLDER", help="compare these Stan programs in JAX with Stan's own")
    parser.addoption("--mutant", help="run the tests on this mutant of the library (mutants_table.py)")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Of quick tests, only their files are imported."""
    is_other = collection_path.suffix == ".py" and not quick_tests.is_in_quick_file(collection_path)
    return True if quick_tests.ARE_ASKED and is_other else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)
    named = set()
    for item in items:
        if found := SLOW_TESTS.lines_of(item.nodeid):
            item.add_marker(pytest.mark.slow)
            named.update(found)
        if quick_tests.is_quick(item.nodeid, {mark.name for mark in item.iter_markers()}):
            item.add_marker(pytest.mark.quick)
    if not (config.option.file_or_dir or config.option.lf or quick_tests.ARE_ASKED):
        root = Path(__file__).parent
        collected = {item.path.relative_to(root).as_posix() for item in items}
        if unknown := SLOW_TESTS.unknown(named, collected, root):
            raise pytest.UsageError(f"tests/slow_tests.txt has what is no test: {', '.join(unknown)}")
    tenth, commit = config.getoption("--tenth"), config.getoption("--of-commit")
    revision = config.getoption("--affected-since")
    if tenth is None and commit is None and revision is None:
        return
    affected = _affected(items, revision, config.getoption("--nearest")) if revision is not None else frozenset()
    chosen, left_out = [], []
    for number, item in enumerate(items):
        marks = {mark.name for mark in item.iter_markers()}
        if tenth is not None:
            wanted = is_in_part(item.nodeid, tenth, 10)
        else:
            wanted = commit is not None and is_in_part(item.nodeid, commit, parts_of(marks))
        (chosen if wanted or number in affected else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def _affected(items: list[pytest.Item], revision: str, most: int | None) -> frozenset[int]:
    """The numbers of the tests that depend on what has changed since a revision, but for those marked `release`."""
    try:
        changed = affected_tests.changed_since(revision)
    except subprocess.CalledProcessError as error:
        raise pytest.UsageError(f"--affected-since {revision}: {error.stderr.strip()}") from error
    far = affected_tests.distances(changed, affected_tests.imports_of())
    files = [
        "" if item.get_closest_marker("release") else item.path.relative_to(affected_tests.ROOT).as_posix()
        for item in items
    ]
    return affected_tests.nearest(files, far, most)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no collection of garbage need walk through it again.

    Collections are as rare as in runs of the command line. What pytest patches for itself, before that, to the end of
    the session, keeps no program from being found.
    """
    pytest.MonkeyPatch.setattr = _setattr_and_find_no_program  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()
    gc.set_threshold(*sample.FEWER_COLLECTIONS)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """After the tests were imported: what they hold of the library is what a mutant changes."""
    name = session.config.getoption("--mutant")
    if name is None:
        return (yield)
    from mutants_table import BY_OPTION

    with pytest.MonkeyPatch.context() as patch:
        BY_OPTION[name].patch(patch)
        return (yield)


@pytest.fixture
def check_golden_text(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """check_golden_text(name, text): tests/golden/<name>.txt holds this text, or is rewritten to."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text)
            return
        assert path.exists(), f"no golden file {path.name}; run pytest --update-golden and read what it wrote"
        expected = path.read_text()
        lines = expected.splitlines(), text.splitlines()
        diff = "\n".join(difflib.unified_diff(*lines, f"golden/{path.name}", "this program", lineterm=""))
        assert text == expected, f"{diff}\nIf the change is meant: pytest --update-golden, and read the diff."

    return check
