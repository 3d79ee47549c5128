"""The package as users get it: built, looked into, installed into empty environments, and run away from the checkout.

    python tests/wheel_check.py                            # with each of Python 3.11, 3.12 and 3.13 that is found
    python tests/wheel_check.py --python python3.12 --keep tried

Builds the source distribution from the files that git knows, as they are on the disk, and the wheel from it. Both must
have these files and no others. Then, for each interpreter: a new virtual environment, the wheel with the extra `jax`,
and the commands below from an empty folder with no programs kept. Needs the package `build` and pip's usual sources.
Exit codes: 0 all is well, 1 something is wrong. The last line says with which interpreters it was tried.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
FOLDERS = {"batchnuts": "batchnuts", "models": "batchnuts/models", "experiments": "batchnuts/experiments"}
FOLDERS["configs"] = "batchnuts/configs"
"""Folders of the checkout, and where the wheel has them."""

BESIDES = {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in"}
"""What the source distribution has of the checkout besides these folders."""

GENERATED = {"PKG-INFO", "setup.cfg"}


class Wrong(Exception):
    """What was expected of the package, and what was found."""


@dataclass(frozen=True)
class Command:
    """Arguments of the interpreter, and what must be in its output.

    code: the exit code that is expected. says: regular expressions, each found somewhere in stdout and stderr. files:
    texts by name that are written beside it first. extra: what is installed before it, besides `jax`.
    """

    arguments: tuple[str, ...]
    says: tuple[str, ...] = ()
    code: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    extra: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check with `argv` (default: the process's arguments) and give back the exit code."""
    parser = argparse.ArgumentParser(prog="python tests/wheel_check.py", description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", metavar="PATH", help="an interpreter to try; may be repeated")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in this new folder, and leave it there")
    arguments = parser.parse_args(argv)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="wheel-check-"))
    folder.mkdir(parents=True, exist_ok=arguments.keep is None)
    folder = folder.resolve()
    try:
        pythons = dict(_named(arguments.python) if arguments.python else _found())
        if not pythons:
            raise Wrong(f"found no interpreter of {', '.join(VERSIONS)}; name one with --python")
        wheel = _built(folder)
        for version, python in pythons.items():
            _try(wheel, python, folder / f"python{version}")
    except Wrong as wrong:
        print(f"WRONG: {wrong}", flush=True)
        return 1
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder)
    missing = [version for version in VERSIONS if version not in pythons]
    print(
        f"{wheel.name}: tried with Python {', '.join(pythons)}"
        + (f"; not with {', '.join(missing)}" if missing else "")
    )
    return 0


def _named(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        found = shutil.which(path)
        version = _version_of(found) if found else None
        if found is None or version is None:
            raise Wrong(f"--python {path}: found nothing that runs; expected an interpreter's name or path")
        yield version, os.path.abspath(found)


def _found() -> Iterator[tuple[str, str]]:
    """Interpreters by version: this one, those on the path, and those of pyenv."""
    own = ".".join(map(str, sys.version_info[:2]))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        candidates = [sys.executable] if version == own else []
        candidates += [path for path in [shutil.which(f"python{version}")] if path is not None]
        candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
        for path in candidates:
            if _version_of(path) == version:
                yield version, path
                break


def _version_of(python: str) -> str | None:
    """`3.12`, or None where the command does not run (pyenv has commands for versions that are not chosen)."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _built(folder: Path) -> Path:
    """The wheel, made from the source distribution, made from a copy of the tracked files; both looked into."""
    tracked = _tracked()
    source = folder / "source"
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    print("== build", flush=True)
    _run([sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(source)], folder, folder / "build.log")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    packaged = {name for name in tracked if name.split("/")[0] in FOLDERS and not (ROOT / name).is_symlink()}
    with tarfile.open(sdist) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    _same(sdist.name, {name for name in inside if "egg-info/" not in name} - GENERATED, packaged | BESIDES)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        _same(wheel.name, {name for name in names if ".dist-info/" not in name}, {_in_wheel(name) for name in packaged})
        for name in packaged:
            if archive.read(_in_wheel(name)) != (ROOT / name).read_bytes():
                raise Wrong(f"{wheel.name}: {_in_wheel(name)} is not the file {name} of the checkout")
    print(f"{sdist.name}: {len(inside)} files, {sdist.stat().st_size // 1000} kB", flush=True)
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size // 1000} kB", flush=True)
    return wheel


def _tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


def _in_wheel(name: str) -> str:
    folder, _, rest = name.partition("/")
    return f"{FOLDERS[folder]}/{rest}"


def _same(what: str, found: set[str], expected: set[str]) -> None:
    if found != expected:
        lacks, besides = sorted(expected - found), sorted(found - expected)
        raise Wrong(f"{what}: lacks {lacks}, has besides {besides}; see [tool.setuptools] and MANIFEST.in")


def _commands() -> Iterator[Command]:
    """What is run, in this order, in one folder."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert version is not None
    sample = ("-m", "batchnuts.sample")
    yield Command((*sample, "--version"), (re.escape(f"batchnuts {version[1]}"),))
    yield Command(
        (*sample, "--config", "eight_schools.yaml", "output.path=schools.nc"),
        ("256 chains x 200 draws", "Nested R-hat .*: yes", "Divergences: ", "Backend: native", r"Draws: .*schools\.nc"),
    )
    for config in sorted(path.name for path in (ROOT / "configs").glob("*.yaml")):
        if config == "inference_gym.yaml":  # its targets are not installed, which must be said
            yield Command((*sample, "--config", config, "--dry-run"), (r"pip install .batchnuts\[gym\]",), code=2)
        else:
            yield Command((*sample, "--config", config, "--dry-run"), ("sampler:", "Forecast|Memory|memory"))
    yield Command(("-m", "batchnuts.report", "schools.nc", "--json"), ('"converged": true',))
    yield Command(
        ("-c", "import batchnuts; print(batchnuts.check(batchnuts.open_run('schools.nc')))"), ("Minimum bulk ESS",)
    )
    yield Command(("-m", "batchnuts", "cache"), (r"entries: [1-9]",))
    yield Command(("-m", "batchnuts.autobatch", "demo", "fibonacci"), (r"fibonacci\(9\) = 55",))
    for page in ("README.md", "docs/install.md", "docs/autobatch_tutorial.md"):
        name = f"of_{Path(page).stem}.py"
        yield Command((name,), files={name: _first_program(page)})
    yield Command(("-m", "batchnuts.experiments"), ("batchnuts.experiments.figure6 --config figure6.yaml",))
    for path in sorted((ROOT / "configs" / "experiments").glob("*.yaml")):
        module = {"pfor": "pfor_benchmark"}.get(path.stem, path.stem)
        yield Command(("-m", f"batchnuts.experiments.{module}", "--help"), ("usage: ", "--config"))
        yield Command(
            ("-m", f"batchnuts.experiments.{module}", "--config", path.name, "--dry-run"), ("^(curves|plan):",)
        )
    says = (r"^(NOT )?OK: 256 chains x 200 draws", "schools.html")
    yield Command(("-m", "batchnuts.report", "schools.nc"), says, extra="plot")


def _first_program(page: str) -> str:
    found = re.search(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    if found is None:
        raise Wrong(f"{page}: found no block of Python; expected one that runs")
    return found[1]


def _try(wheel: Path, python: str, folder: Path) -> None:
    """An environment of its own, the wheel in it, and every command."""
    print(f"== {python}", flush=True)
    folder.mkdir()
    _run([python, "-m", "venv", str(folder / "environment")], folder, folder / "install.log")
    own = folder / "environment" / ("Scripts" if os.name == "nt" else "bin") / "python"
    _run([str(own), "-m", "pip", "install", "--quiet", f"{wheel}[jax]"], folder, folder / "install.log")
    _run([str(own), "-m", "pip", "check"], folder, folder / "install.log")
    empty = folder / "empty"
    empty.mkdir()
    where = _run([str(own), "-c", "import batchnuts; print(batchnuts.__file__)"], empty, folder / "where.log").strip()
    if not Path(where).is_relative_to(folder):
        raise Wrong(f"the environment imports {where}; expected a file within {folder}")
    for number, command in enumerate(_commands()):
        shown = " ".join(command.arguments)
        for name, text in command.files.items():
            (empty / name).write_text(text, encoding="utf-8")
        if command.extra is not None:
            _run(
                [str(own), "-m", "pip", "install", "--quiet", f"{wheel}[{command.extra}]"],
                folder,
                folder / "install.log",
            )
        print(f"python {shown}", flush=True)
        said = _run([str(own), *command.arguments], empty, folder / f"{number}.log", command.code)
        for pattern in command.says:
            if not re.search(pattern, said, flags=re.M):
                raise Wrong(f"python {shown}: expected {pattern!r} in its output; found\n{said}")
    script = own.with_name("batchnuts-sample")
    _run([str(script), "--version"], empty, folder / "script.log")


def _run(arguments: Sequence[str], cwd: Path, log: Path, code: int = 0) -> str:
    """What the command writes, also appended to `log`; raises Wrong where it ends with another code."""
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env=_environment(cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    with log.open("a", encoding="utf-8") as file:
        file.write(done.stdout)
    if done.returncode != code:
        raise Wrong(f"{' '.join(arguments)}: ended with {done.returncode}, expected {code}:\n{done.stdout}")
    return done.stdout


def _environment(folder: Path) -> Mapping[str, str]:
    """The process's, without what would let the checkout or another run be seen."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "XLA_FLAGS")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "BATCHNUTS_CACHE": str(folder.parent / "cache")}


if __name__ == "__main__":
    sys.exit(main())
