"""Run the scripts of examples/ and put what they print, and their pictures, into the pages of the gallery.

    python docs/gallery/make_gallery.py [name...]

Without names all of them, one after another, each in a process of its own. They take up to two minutes each on two
cores, and rotation_map some more. A page NAME.md has one block of text after the line `<!-- OUTPUT -->`; NAME.png is
written beside it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GALLERY = Path(__file__).resolve().parent
EXAMPLES = GALLERY.parents[1] / "examples"
LARGEST = 150_000
"""Bytes of a picture."""
OUTPUT = re.compile(r"(<!-- OUTPUT -->\n\n```text\n)(.*?)(^```$)", flags=re.MULTILINE | re.DOTALL)


def names() -> list[str]:
    """The names of the analyses: those that have a page and a script."""
    return sorted(page.stem for page in GALLERY.glob("*.md") if page.stem != "index")


def run(name: str, *arguments: str) -> str:
    """What the script prints. Raises SystemExit with its messages if it fails."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return done.stdout


def make(name: str) -> None:
    """Write one page's output and picture."""
    page, picture = GALLERY / f"{name}.md", GALLERY / f"{name}.png"
    printed = run(name, "--picture", str(picture))
    if picture.stat().st_size > LARGEST:
        raise SystemExit(f"{picture}: {picture.stat().st_size} bytes, expected at most {LARGEST}.")
    text = page.read_text(encoding="utf-8")
    if len(OUTPUT.findall(text)) != 1:
        raise SystemExit(f"{page}: expected one block of text after a line `<!-- OUTPUT -->`.")
    page.write_text(OUTPUT.sub(lambda found: found[1] + printed + found[3], text), encoding="utf-8")


def main(wanted: list[str]) -> None:
    """Make the pages named, or all."""
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        raise SystemExit(f"no page of the gallery: {', '.join(unknown)}; there are {', '.join(names())}.")
    for name in wanted or names():
        print(name, flush=True)
        make(name)


if __name__ == "__main__":
    main(sys.argv[1:])
