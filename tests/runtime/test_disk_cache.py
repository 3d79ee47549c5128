"""Programs on disk: an entry is whole and what it says it is, or it is thrown away and made again; never an error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchnuts.__main__ as command
from batchnuts.disk_cache import entries as entries_module
from batchnuts.disk_cache.entries import FORMAT, Entries
from batchnuts.disk_cache.folder import current, entries_of, keeping
from batchnuts.disk_cache.identity import binaries, digest_of, surroundings
from batchnuts.process import atomic

CONTENT = bytes(range(256)) * 4
KEY, OTHER = digest_of("one"), digest_of("other")


@pytest.fixture
def kept(tmp_path: Path) -> Entries:
    return Entries(tmp_path / "programs")


def file_of(kept: Entries, key: str = KEY) -> Path:
    return kept.folder / f"{key}.program"


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "only a part of the header": lambda data: data[:10],
    "only the header": lambda data: data[: len(FORMAT) + 32],
    "truncated": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "a bit of the version": flipped(3),
    "a bit of the digest": flipped(len(FORMAT) + 5),
    "the first bit of the content": flipped(len(FORMAT) + 32),
    "the last bit of the content": flipped(-1 % (len(FORMAT) + 32 + len(CONTENT))),
    "an older format": lambda data: data.replace(FORMAT, b"batchnuts program 0\n"),
    "without a header": lambda data: data[len(FORMAT) + 32 :],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_entry_that_is_not_sound_is_thrown_away(kept: Entries, damage: str) -> None:
    assert kept.put(KEY, CONTENT)
    assert kept.get(KEY) == CONTENT
    file = file_of(kept)
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert kept.get(KEY) is None
    assert not file.exists()
    assert kept.put(KEY, CONTENT)
    assert kept.get(KEY) == CONTENT
    tally = kept.tally
    assert (tally.found, tally.missing, tally.dropped, tally.written) == (2, 1, 1, 2)


def test_the_bytes_of_another_key_are_thrown_away(kept: Entries) -> None:
    kept.put(KEY, CONTENT)
    kept.put(OTHER, b"other")
    file_of(kept, OTHER).replace(file_of(kept))
    assert kept.get(KEY) is None
    assert kept.tally.dropped == 1
    assert kept.summary().entries == 0


def test_a_folder_in_an_entrys_place_is_no_error(kept: Entries) -> None:
    file_of(kept).mkdir(parents=True)
    kept.folder.chmod(0o700)
    assert kept.get(KEY) is None
    assert not kept.put(KEY, CONTENT)
    assert [path.name for path in kept.folder.iterdir()] == [file_of(kept).name]


def refuse(number: int) -> Callable[..., Any]:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return refused


@pytest.mark.parametrize(
    ("number", "place", "name"),
    [
        (errno.EROFS, Path, "mkdir"),
        (errno.EACCES, atomic.os, "open"),
        (errno.ENOSPC, entries_module.os, "replace"),
        (errno.EIO, entries_module.os, "stat"),
    ],
    ids=["read-only disk", "no permission", "no room", "input/output"],
)
def test_what_the_system_refuses_is_not_kept(
    kept: Entries, monkeypatch: pytest.MonkeyPatch, number: int, place: Any, name: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(place, name, refuse(number))
        assert not kept.put(KEY, CONTENT)
        assert kept.get(KEY) is None
    assert list(kept._files()) == []
    assert kept.put(KEY, CONTENT)


def test_a_full_disk_leaves_no_part_of_a_file(kept: Entries, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        write = staticmethod(refuse(errno.ENOSPC))

    monkeypatch.setattr(atomic, "open", lambda handle, *_, **__: os.close(handle) or Full(), raising=False)
    assert not kept.put(KEY, CONTENT)
    assert list(kept.folder.iterdir()) == []


def test_a_read_only_entry_is_read(kept: Entries, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.put(KEY, CONTENT)
    monkeypatch.setattr(entries_module.os, "utime", refuse(errno.EROFS))
    assert kept.get(KEY) == CONTENT


@pytest.mark.parametrize(
    ("there", "reason"),
    [("/proc/x", "/proc cannot be written: "), ("file", "file cannot be written: Not a directory")],
)
def test_why_nothing_can_be_kept_is_known_beforehand(tmp_path: Path, there: str, reason: str) -> None:
    (tmp_path / "file").touch()
    assert reason in str(Entries(tmp_path / there / "programs").problem())
    assert Entries(tmp_path / "a" / "b").problem() is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "what was tried leaves nothing"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners as in POSIX")
def test_a_folder_that_others_may_write_to_is_not_used(kept: Entries) -> None:
    kept.put(KEY, CONTENT)
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert file_of(kept).stat().st_mode & 0o777 == 0o600
    kept.folder.chmod(0o770)
    assert kept.get(KEY) is None
    assert not kept.put(OTHER, CONTENT)
    assert kept.problem() == f"others own {kept.folder} or may write to it"
    kept.folder.chmod(0o755)
    assert kept.get(KEY) == CONTENT


def test_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    size = len(FORMAT) + 32 + len(CONTENT)
    kept = Entries(tmp_path, most_bytes=3 * size)
    names = [digest_of(str(number)) for number in range(4)]
    for number, name in enumerate(names[:3]):
        kept.put(name, CONTENT)
        os.utime(file_of(kept, name), (1000 + number, 1000 + number))
    assert kept.get(names[0]) == CONTENT
    kept.put(names[3], CONTENT)
    assert [kept.get(name) is not None for name in names] == [True, False, True, True]
    assert kept.summary().size == 3 * size
    assert not kept.put(OTHER, bytes(4 * size)), "larger than all may be"
    assert kept.summary().entries == 3


def test_files_of_processes_that_died_go(kept: Entries) -> None:
    kept.put(KEY, CONTENT)
    old, new, others = (kept.folder / name for name in ("old.part", "new.part", "notes.txt"))
    for file in (old, new, others):
        file.write_bytes(b"x")
    os.utime(old, (time.time() - 7200,) * 2)
    kept.put(OTHER, CONTENT)
    assert (old.exists(), new.exists(), others.exists()) == (False, True, True)
    kept.clear()
    assert [path.name for path in kept.folder.iterdir()] == ["notes.txt"]


WRITER = """
import sys
from pathlib import Path
from batchnuts.disk_cache.entries import Entries
kept = Entries(Path(sys.argv[1]))
for turn in range(200):
    assert kept.put(sys.argv[2], sys.argv[3].encode() * 20_000)
    assert set(kept.get(sys.argv[2])) in ({ord("a")}, {ord("b")})
assert kept.tally.dropped == 0
"""


def test_two_processes_write_the_same_key(kept: Entries) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(kept.folder), KEY, letter], stderr=subprocess.PIPE)
        for letter in "ab"
    ]
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    assert [path.name for path in kept.folder.iterdir()] == [file_of(kept).name]


# ---- which folder ---------------------------------------------------------------------------------------------------


def test_the_folder_follows_from_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(setting: str | None) -> Path | None:
        found = entries_of(setting)
        return None if found is None else found.folder

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folder(None) is None
    assert folder(str(tmp_path / "own")) == tmp_path / "own" / "programs"
    assert folder("~/mine") == tmp_path / "mine" / "programs"
    monkeypatch.setenv("BATCHNUTS_CACHE", str(tmp_path / "set"))
    assert folder("auto") == tmp_path / "set" / "programs"
    monkeypatch.setenv("BATCHNUTS_CACHE", "")
    assert folder("auto") is None
    monkeypatch.delenv("BATCHNUTS_CACHE")
    automatic = folder("auto")
    assert automatic is not None
    assert automatic.is_relative_to(tmp_path)
    assert not automatic.exists(), "nothing is made before something is kept"


def test_a_setting_holds_within_and_not_beyond(tmp_path: Path) -> None:
    assert current() is None
    with keeping(str(tmp_path)) as kept:
        assert current() is kept is entries_of(str(tmp_path))
        with keeping(None):
            assert current() is None
        assert current() is kept
    assert current() is None


def test_the_command_shows_and_clears(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Entries(tmp_path / "programs")
    kept.put(KEY, bytes(2_000_000))
    kept.put(OTHER, bytes(500_000))
    assert command.main(["cache", "--folder", str(tmp_path)]) == 0
    folder = f"folder: {tmp_path / 'programs'}"
    assert capsys.readouterr().out.splitlines() == [folder, "entries: 2", "size: 2.5 MB of at most 1074 MB"]
    assert command.main(["cache", "--clear", "--folder", str(tmp_path)]) == 0
    assert "entries: 2, all deleted" in capsys.readouterr().out
    assert not kept.folder.exists()
    assert command.main(["cache", "--folder", str(tmp_path)]) == 0
    assert "entries: 0" in capsys.readouterr().out


def test_the_command_where_nothing_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHNUTS_CACHE", "")
    assert command.main(["cache", "--clear"]) == 0
    assert "No programs are cached: BATCHNUTS_CACHE is empty" in capsys.readouterr().out
    monkeypatch.setenv("BATCHNUTS_CACHE", "/proc/y")
    assert command.main(["cache"]) == 0
    assert "No programs are cached: /proc cannot be written: " in capsys.readouterr().out
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit):
        command.main(["cache", "--folder", str(file)])
    assert "which is not a folder" in capsys.readouterr().err


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_a_key_tells_its_parts_apart() -> None:
    keys = {digest_of("ab", "c"), digest_of("a", "bc"), digest_of("abc"), digest_of("ab", "c", ""), digest_of(b"x")}
    assert len(keys) == 5


def test_surroundings_have_the_processor_and_the_compilers_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    before = surroundings()
    assert surroundings() == before
    monkeypatch.setenv("XLA_FLAGS", "--another")
    assert surroundings() != before


def test_another_build_of_a_library_is_another_identity(tmp_path: Path) -> None:
    library = tmp_path / "libmade.so.2"
    found = []
    for content, changed in ((b"x" * 9, 1), (b"y" * 9, 1), (b"y" * 9, 2), (b"y" * 10, 2)):
        library.write_bytes(content)
        os.utime(library, (changed, changed))
        binaries.cache_clear()
        found.append(binaries(str(tmp_path)))
    assert len(set(found)) == 4
    binaries.cache_clear()
