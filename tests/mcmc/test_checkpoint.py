"""Checkpoints: what is written is read again or refused, and a run that goes on gives what it would have given."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from chain_runs import slice_for
from mcmc_models import gaussian

from batchnuts.cli.resume import TYPES, saved_run_of
from batchnuts.files import sealed_file as checkpoint_file
from batchnuts.files.sealed_file import CheckpointError, read_checkpoint, write_arrays, write_checkpoint
from batchnuts.files.trees import pack, unpack
from batchnuts.files.url import folder_of
from batchnuts.mcmc.checkpoint import keeper as keepers
from batchnuts.mcmc.checkpoint.keeper import NAME, Keeper, read_saved_run
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.execution.chain_states import InDraws
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.progress import Progress

# ---- the file -------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


TREE = {
    "numbers": [1, 2.5, -0.0, float("inf"), 1e-300, True, None, "text"],
    "arrays": (np.arange(6.0).reshape(2, 3), np.array([], "int32"), np.array(3, "uint8"), np.array([True, False])),
    "point": Point(np.float32(0.1), Counts(3, complete=2)),
}


def test_a_tree_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / NAME
    write_checkpoint(path, TREE)
    found = read_checkpoint(path, [Point, Counts])
    assert found["numbers"] == TREE["numbers"]
    assert str(found["numbers"][2]) == "-0.0"
    assert found["point"] == Point(float(np.float32(0.1)), Counts(3, complete=2))
    for array, there in zip(TREE["arrays"], found["arrays"], strict=True):
        np.testing.assert_array_equal(there, array)
        assert there.dtype == array.dtype
    assert os.listdir(tmp_path) == [NAME]


def test_only_named_types_are_made() -> None:
    packed = pack(TREE, {})
    with pytest.raises(ValueError, match="not a part of a tree"):
        unpack(packed, {str(k): np.zeros(1) for k in range(4)}, [Point])
    with pytest.raises(TypeError, match="neither plain data nor an array"):
        pack({"path": Path()}, {})


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], None]) -> None:
    """The file with another head or other arrays, sealed again."""
    with np.load(path) as there:
        arrays = dict(there)
    head = json.loads(arrays.pop("head").tobytes())
    del arrays["seal"]
    change(head, arrays)
    text = json.dumps(head).encode()
    seal = checkpoint_file.hashlib.sha256(text).digest()
    write_arrays(path, {**arrays, "head": np.frombuffer(text, np.uint8), "seal": np.frombuffer(seal, np.uint8)})


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def another_byte(path: Path) -> None:
    """One byte of the first array, where the archive's own checksum finds it, or ours."""
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(6.0).tobytes()) + 8] ^= 1
    path.write_bytes(bytes(content))


def edited(head: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    arrays["0"] = arrays["0"] + 1


def pickled(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, head=np.array([object()], object), allow_pickle=True)


def sealed(path: Path, head: bytes) -> None:
    """The file with this head, and its digest."""
    with np.load(path) as there:
        arrays = dict(there)
    seal = checkpoint_file.hashlib.sha256(head).digest()
    write_arrays(path, arrays | {"head": np.frombuffer(head, np.uint8), "seal": np.frombuffer(seal, np.uint8)})


def claiming(path: Path, shape: str) -> None:
    """The file with another shape in the header of its first array."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = members["0.npy"]
    there = header[10 : 10 + int.from_bytes(header[8:10], "little")].decode()
    longer = there.replace("(2, 3)", shape).rstrip()
    members["0.npy"] = header[:10] + longer.ljust(len(there) - 1).encode() + b"\n" + header[10 + len(there) :]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def packed_zeros(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez_compressed(file, **{"0": np.zeros(1_000_000), "head": np.zeros(1)})


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (Path.unlink, "is missing; expected a checkpoint of batchnuts"),
    "truncated": (truncated, "is truncated, damaged or something else"),
    "empty": (lambda path: path.write_bytes(b""), "is truncated, damaged or something else"),
    "another file": (lambda path: path.write_text("sampler: {}"), "is truncated, damaged or something else"),
    "a byte changed": (another_byte, "is truncated, damaged or something else"),
    "code in it": (pickled, "is truncated, damaged or something else"),
    "another archive": (lambda path: write_arrays(path, {"x": np.zeros(3)}), "is another .npz file"),
    "one array": (lambda path: path.write_bytes(_npy()), "is a .npy file"),
    "an array edited": (lambda path: rewritten(path, edited), "was altered: its array 0 does not match its digest"),
    "an array left out": (
        lambda path: rewritten(path, lambda _, a: a.pop("1")),
        "was altered: its arrays are not those",
    ),
    "newer": (lambda path: rewritten(path, lambda h, _: h.update(format=99)), "has format 99.*by a newer batchnuts"),
    "older": (lambda path: rewritten(path, lambda h, _: h.update(format=0)), "has format 0.*by an older batchnuts"),
    "foreign": (lambda path: rewritten(path, lambda h, _: h.update(kind="cake")), "is a cake; expected"),
    "no JSON": (lambda path: sealed(path, b"{"), "is damaged: its header cannot be read"),
    "no text": (lambda path: sealed(path, b"\xff\xfe{}"), "is damaged: its header cannot be read"),
    "deep": (lambda path: sealed(path, b"[" * 100_000 + b"]" * 100_000), "is damaged: its header cannot be read"),
    "a list": (lambda path: sealed(path, b"[1, 2]"), "is damaged: its header cannot be read"),
    "a number": (lambda path: sealed(path, b"3"), "is damaged: its header cannot be read"),
    "no kind": (lambda path: rewritten(path, lambda h, _: h.pop("kind")), "is damaged: its header cannot be read"),
    "no format": (lambda path: rewritten(path, lambda h, _: h.pop("format")), "is damaged: its header cannot be read"),
    "a format in words": (lambda path: rewritten(path, lambda h, _: h.update(format="3")), "is damaged: its head"),
    "no digests": (lambda path: rewritten(path, lambda h, _: h.pop("digests")), "is damaged: its header cannot be"),
    "digests of no names": (lambda path: rewritten(path, lambda h, _: h.update(digests=[1])), "is damaged: its head"),
    "no tree at all": (
        lambda path: rewritten(path, lambda h, _: h.pop("tree")),
        "is damaged: its header cannot be read",
    ),
    "fields that there are not": (
        lambda path: rewritten(path, lambda h, _: h.update(tree={"type": "Point", "fields": {"z": 1}})),
        "cannot be read: it is not a tree of these types",
    ),
    "a huge array": (
        lambda path: claiming(path, "(100000000, 1000)"),
        "is damaged: its array 0 claims to have 8000000",
    ),
    "a huge array of nothing": (packed_zeros, "is damaged: its array 0 claims to have 8000000 bytes"),
    "no tree": (lambda path: rewritten(path, lambda h, _: h.update(tree={"array": "9"})), "cannot be read: it is no"),
}


def _npy() -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_a_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / NAME
    write_checkpoint(path, TREE)
    change, said = DAMAGE[damage]
    change(path)
    with pytest.raises(CheckpointError, match=f"^{path} {said}"):
        read_checkpoint(path, [Point, Counts])


@pytest.mark.parametrize("field", ["config", "model", "chains", "density", "seconds", "counts", "parts", "made_with"])
def test_a_run_whose_fields_are_of_other_types_is_refused(interrupted: tuple[Path, SavedRun], field: str) -> None:
    """Before anything reads them."""
    folder, saved = interrupted
    path = folder / "other" / NAME
    path.parent.mkdir(exist_ok=True)
    write_checkpoint(path, replace(saved, **{field: "else"}))
    with pytest.raises(CheckpointError, match=f"is damaged: its run has no valid {field}"):
        read_saved_run(path.parent, TYPES)


def test_an_edited_head_is_found(tmp_path: Path) -> None:
    path = tmp_path / NAME
    write_checkpoint(path, TREE)
    with np.load(path) as there:
        arrays = dict(there)
    write_arrays(path, {**arrays, "head": np.frombuffer(arrays["head"].tobytes().replace(b"2.5", b"9.5"), np.uint8)})
    with pytest.raises(CheckpointError, match="was altered: its head"):
        read_checkpoint(path, [Point, Counts])


# ---- runs -----------------------------------------------------------------------------------------------------------

MODEL = gaussian(3, covariance="ar1", correlation=0.6)
FIXED: dict[str, Any] = {"chains": 16, "warmup": 60, "draws": 300, "seed": 7, "backend": "jax", "chunk_lanes": 4}

WAYS: dict[str, dict[str, Any]] = {
    "machine": {},
    "automatic warmup": {"warmup": {"transitions": "auto", "maximum": 200}, "superchains": 4},
    "ensemble": {"warmup": {"transitions": "auto", "maximum": 200}, "superchains": 4, "start": "ensemble"},
    "until": {"until": {"ess_bulk": 2000.0}, "draws": 600},
    "groups": {"warmup": {"transitions": 60, "pool": "groups"}, "superchains": 4},
    "one chunk": {"expert": {"shards": 1}, "chunk_lanes": 16},
    "dense": {"metric": "dense"},
    "walnuts": {"transition": "walnuts"},
    "tensorflow": {"backend": "tensorflow"},
    "stackless": {
        "expert": {"executor": "stackless"},
        "backend": "numpy",
        "chains": 3,
        "warmup": 5,
        "draws": 24,
        "step_size": 0.8,
    },
}
SLOW = ("one chunk", "dense", "walnuts", "tensorflow")
"""Programs of their own, each to be compiled."""

AMONG_DRAWS: dict[str, Any] = {"warmup": 0, "step_size": 0.8, "draws": 250}


def run(settings: dict[str, Any], keeper: Keeper | None = None, progress: Any = None, model: Model = MODEL) -> Draws:
    given = {**FIXED, **settings}
    if given.get("executor") == "stackless":
        del given["chunk_lanes"]
    return run_chains(
        model, *split_settings(given), progress, content=Content(divergences=True, warmup=True), keeper=keeper
    )


def kept(folder: Path, saved: SavedRun | None = None, seconds: float | None = 1e-9) -> Keeper:
    return Keeper(folder, seconds, {"of": "a test"}, saved)


def released(keeper: Keeper) -> None:
    """What the end of its process would do."""
    if keeper._lock is not None:
        os.close(keeper._lock)


def stopped_at(in_warmup: int, in_draws: int | None = None) -> Callable[[Progress], None]:
    """Interrupts a run at that report of warmup, or of the draws (None: the same number)."""
    left = {"warmup": in_warmup, "sampling": in_warmup if in_draws is None else in_draws}

    def progress(now: Progress) -> None:
        if now.phase in left:
            left[now.phase] -= 1
            if left[now.phase] <= 0:
                raise KeyboardInterrupt

    return progress


def in_lives(folder: Path, settings: dict[str, Any], reports: int) -> tuple[Draws, list[SavedRun]]:
    """A run that is interrupted again and again, and what it went on from each time: after so many reports, but the
    first time among the draws at once, however soon they end."""
    lives: list[SavedRun] = []
    saved = None
    while True:
        keeper = kept(folder, saved)
        among_draws = any(isinstance(life.place, InDraws) for life in lives)
        draws = run(settings, keeper, stopped_at(reports, reports if among_draws else 1))
        released(keeper)
        if not draws.interrupted:
            return draws, lives
        saved = read_saved_run(folder, TYPES)
        lives.append(saved)
        assert len(lives) < 300


def assert_same(one: Draws, other: Draws) -> None:
    np.testing.assert_array_equal(one.done, other.done)
    np.testing.assert_array_equal(one.position, other.position)
    np.testing.assert_array_equal(one.last_position, other.last_position)
    np.testing.assert_array_equal(one.start, other.start)
    for name in one.stats:
        np.testing.assert_array_equal(one.stats[name], other.stats[name], err_msg=name)
    np.testing.assert_array_equal(one.metric.inverse_mass, other.metric.inverse_mass)
    assert one.warmup == other.warmup
    for of_one, of_other in zip(one.warmup.records, other.warmup.records, strict=True):
        np.testing.assert_array_equal(of_one.done, of_other.done)
        made = np.arange(of_one.records["lp"].shape[1]) < of_one.done[:, None]
        for name, array in of_one.records.items():
            np.testing.assert_array_equal(array[made], of_other.records[name][made], err_msg=name)
    assert one.ended == other.ended


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way in SLOW)) for way in WAYS])
def test_a_run_that_is_interrupted_and_goes_on_gives_the_same(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In warmup and among the draws, again and again; each process reads the checkpoint of the one before."""
    slice_for(0.01, monkeypatch)
    whole = run(WAYS[way])
    draws, lives = in_lives(tmp_path / "run.checkpoint", WAYS[way], reports=2 if way == "stackless" else 4)
    assert_same(draws, whole)
    assert {type(saved.place) for saved in lives} >= {InDraws}
    assert len(lives) >= 2
    assert any(saved.stretch is not None and np.max(saved.stretch.recorded) > 0 for saved in lives)


def test_records_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint adds what was drawn since the last one; those of a stretch that has ended are deleted."""
    slice_for(0.01, monkeypatch)
    folder = tmp_path / "run.checkpoint"
    _, lives = in_lives(folder, AMONG_DRAWS | {"step_size": 0.5, "draws": 500}, reports=4)
    last = lives[-1]
    assert len(last.parts) > 2
    rows = 0
    for name in last.parts:
        with np.load(folder / name) as part:
            rows += len(part["lp"])
    assert rows == last.stretch.recorded.sum()
    assert {path.name for path in folder.iterdir()} >= {NAME, keepers.LOCK, *last.parts}


def test_a_checkpoint_that_is_due_is_written_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has draws; the run is the same as without."""
    slice_for(0.01, monkeypatch)
    folder = tmp_path / "run.checkpoint"
    written: list[Any] = []

    def look(progress: Progress) -> None:
        if (folder / NAME).exists():
            written.append(read_saved_run(folder, TYPES).place)

    keeper = kept(folder)
    settings = {"warmup": 20, "draws": 150}
    assert_same(run(settings, keeper, look), run(settings))
    assert len(written) > 3
    keeper.remove()
    assert not folder.exists()
    assert run(settings, kept(folder, seconds=1e6)).complete == 150
    assert not folder.exists()


def interrupted_run(folder: Path, settings: dict[str, Any] | None = None, reports: int = 5) -> SavedRun:
    keeper = kept(folder)
    assert run(settings or {}, keeper, stopped_at(reports)).interrupted
    released(keeper)
    return read_saved_run(folder, TYPES)


def other_density(scale: float) -> Model:
    from batchnuts.autobatch import ops

    return Model.from_function(lambda q: -0.5 * scale * ops.sum(q * q), dimension=3, dtype="float64", name="scaled")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SavedRun]:
    """One among its draws."""
    folder = tmp_path_factory.mktemp("runs") / "run.checkpoint"
    with pytest.MonkeyPatch.context() as patch:
        slice_for(0.01, patch)
        return folder, interrupted_run(folder, AMONG_DRAWS, reports=3)


REFUSED: dict[str, tuple[Callable[[SavedRun], SavedRun], str]] = {
    "library": (
        lambda saved: replace(saved, made_with={**saved.made_with, "numpy": "1.0"}),
        r"(?s)with versions other than those it started with.*numpy: 1.0 then, .* now",
    ),
    "batchnuts": (
        lambda saved: replace(saved, made_with={**saved.made_with, "batchnuts": "9.9"}),
        "batchnuts: 9.9 then",
    ),
    "machine": (
        lambda saved: replace(saved, made_with={**saved.made_with, "machine": "abacus"}),
        "machine: abacus then",
    ),
    "variables": (
        lambda saved: replace(saved, model={**saved.model, "variables": "x [4] real"}),
        r"The model has changed since the checkpoint was written \(variables\)",
    ),
    "density": (
        lambda saved: replace(saved, density=(saved.density[0] + 1e-9, saved.density[1])),
        "The model's log-density has other values.*chain 0",
    ),
    "program": (
        lambda saved: replace(saved, stretch=replace(saved.stretch, machine="of another program")),
        "The checkpoint is of another compiled program",
    ),
    "state": (
        lambda saved: replace(
            saved,
            stretch=replace(
                saved.stretch,
                chunks=tuple(replace(c, state={**c.state, "pc": c.state["pc"][:1]}) for c in saved.stretch.chunks),
            ),
        ),
        "The checkpoint does not fit the compiled program: pc is",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_go_on_exactly_is_refused(interrupted: tuple[Path, SavedRun], what: str) -> None:
    """And the checkpoint stays as it is, for when that is fixed."""
    folder, saved = interrupted
    change, said = REFUSED[what]
    before = (folder / NAME).read_bytes()
    keeper = kept(folder, change(saved))
    with pytest.raises(CheckpointError, match=said):
        run(AMONG_DRAWS, keeper)
    released(keeper)
    assert (folder / NAME).read_bytes() == before


@pytest.mark.parametrize("damage", ["missing", "truncated", "of another run"])
def test_records_that_are_damaged_are_refused(interrupted: tuple[Path, SavedRun], tmp_path: Path, damage: str) -> None:
    folder, saved = interrupted
    there = tmp_path / folder.name
    shutil.copytree(folder, there)
    part = there / saved.parts[0]
    if damage == "missing":
        part.unlink()
    elif damage == "truncated":
        truncated(part)
    else:
        with np.load(part) as arrays:
            write_arrays(part, {**arrays, "last": arrays["last"] + 1})
    keeper = kept(there, saved)
    expected = "does not belong to this run" if damage == "of another run" else "expected a part of a checkpoint"
    with pytest.raises(CheckpointError, match=expected):
        run(AMONG_DRAWS, keeper)
    released(keeper)
    assert (there / NAME).exists()


def test_another_process_has_the_run(interrupted: tuple[Path, SavedRun]) -> None:
    folder, saved = interrupted
    keeper = kept(folder, saved)
    with pytest.raises(CheckpointError, match="Another process is running run: it holds"):
        kept(folder, saved)
    released(keeper)


def test_a_full_disk_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last checkpoint stays, and is gone on from."""
    slice_for(0.003, monkeypatch)
    folder = tmp_path / "run.checkpoint"
    settings = AMONG_DRAWS | {"draws": 600}  # reports go on for long enough after the interruption, on any machine
    saved = interrupted_run(folder, settings, reports=3)
    keeper = kept(folder, saved)
    real_write = np.savez
    writes = iter(range(1000))

    def write(file: Any, **arrays: Any) -> None:
        if next(writes) % 3 != 1:
            file.write(b"begun")
            raise OSError(errno.ENOSPC, "No space left on device")
        real_write(file, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_file.np, "savez", write)
        draws = run(settings, keeper)
    released(keeper)
    assert_same(draws, run(settings))
    assert "no checkpoint could be written to" in (said := capsys.readouterr().err)
    assert "No space left on device" in said
    keeper = kept(folder, read_saved_run(folder, TYPES))
    assert_same(run(settings, keeper), draws)
    released(keeper)


def test_there_is_no_such_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"There is no checkpoint of .*run\.nc.*there is no such run here"):
        saved_run_of(tmp_path / "run.nc")
    (tmp_path / "run.nc").touch()
    with pytest.raises(CheckpointError, match=r"run\.nc.*: it is not the output of a batchnuts run"):
        saved_run_of(tmp_path / "run.nc")
    assert folder_of(tmp_path / "run.nc") == tmp_path / "run.nc.checkpoint"


def test_only_what_is_ours_is_deleted(tmp_path: Path) -> None:
    for name in (NAME, keepers.LOCK, "000001.npz", ".x.part", "mine.npz", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / keepers.BLOCKS).mkdir()
    keepers.delete(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.npz", "notes.txt"}
    keepers.delete(tmp_path / "nothing there")


def test_checkpoints_are_due_after_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    keeper = kept(tmp_path / "x", seconds=60.0)
    assert not keeper.due()
    now[0] += 60.0
    assert keeper.due()
    assert not kept(tmp_path / "x", seconds=None).due()
