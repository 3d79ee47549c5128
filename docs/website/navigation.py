"""The navigation of the site: what nav.toml says, with folders written out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def expanded(nav: list[Any], pages: dict[str, Path]) -> list[Any]:
    """`nav` with an entry for each page of a folder in place of "folder/*", and without sections that have no page.

    pages: the files of all pages, by their paths within the site. Pages that `nav` names elsewhere are not repeated.
    """
    return _expanded(nav, pages, set(pages_in(nav)))


def _expanded(nav: list[Any], pages: dict[str, Path], named: set[str]) -> list[Any]:
    entries: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/*"):
            folder = entry.removesuffix("*")
            here = [page for page in pages if page.startswith(folder) and page not in named]
            entries += [
                page if page == f"{folder}index.md" else {title_of(pages[page]): page}
                for page in sorted(here, key=lambda page: (page != f"{folder}index.md", page))
            ]
        elif isinstance(entry, dict):
            within = {title: _expanded(v, pages, named) if isinstance(v, list) else v for title, v in entry.items()}
            entries += [{title: value} for title, value in within.items() if value]
        else:
            entries.append(entry)
    return entries


def title_of(page: Path) -> str:
    """The first heading of a page, without its marks."""
    first = next((line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("# ")), page.stem)
    return first.removeprefix("# ").replace("`", "")


def pages_in(nav: Any) -> Iterator[str]:
    """Every page that a navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for within in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_in(within)


def as_toml(nav: Any) -> str:
    """A navigation as a value of TOML, on one line."""
    if isinstance(nav, dict):
        return "{" + ", ".join(f"{json.dumps(title)} = {as_toml(value)}" for title, value in nav.items()) + "}"
    if isinstance(nav, list):
        return "[" + ", ".join(map(as_toml, nav)) + "]"
    return json.dumps(nav, ensure_ascii=False)
