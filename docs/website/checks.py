"""What a built site must be: every link and anchor is there, and nothing is loaded from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "video": "src"}
"""Tags that make a browser load something by itself, and the attribute that says what. Links (`a`) do not."""


class _Links(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag's id and what it refers to."""
        given = dict(attrs)
        if anchor := given.get("id") or (given.get("name") if tag == "a" else None):
            self.anchors.add(anchor)
        attribute = "href" if tag == "a" else _LOADS.get(tag, "")
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next"):
            return
        if target := given.get(attribute):
            self.links.append((tag, target))


def problems(site: Path) -> list[str]:
    """Each fault of a built site on a line: where, what was found."""
    pages: dict[Path, _Links] = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found = [
        f"{path.relative_to(site)}: {fault}" for path, page in pages.items() for fault in _faults(path, page, pages)
    ]
    for path in sorted(site.rglob("*.css")):
        for target in re.findall(r"url\(\s*[\"']?(https?:[^)\"']+|//[^)\"']+)", path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)}: loads {target}, from another host")
    return found


def _faults(path: Path, page: _Links, pages: dict[Path, _Links]) -> Iterator[str]:
    for tag, target in page.links:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            if tag != "a" and parts.scheme != "data":
                yield f"<{tag}> loads {target}, from another host"
            continue
        if path.name == "404.html":  # its links are from the root, wherever that will be
            continue
        file, anchor = urldefrag(target)
        to = (path.parent / unquote(file)).resolve() if file else path
        if to.is_dir():
            to /= "index.html"
        if not to.is_file():
            yield f"<{tag}> leads to {target}, and there is no such file"
        elif anchor and to in pages and unquote(anchor) not in pages[to].anchors:
            yield f"leads to {target}, and that page has no such anchor"


def not_in_nav(pages: set[str], nav: set[str], decisions: str) -> list[str]:
    """Pages that the navigation lacks, decisions that the list of decisions lacks, and entries without a page.

    decisions: the text of decisions/index.md, which has a link to every decision.
    """
    found = [
        f"docs/website/nav.toml: the page {page} is not there; expected every page once" for page in sorted(pages - nav)
    ]
    found += [f"docs/website/nav.toml: found {page}, and there is no such page" for page in sorted(nav - pages)]
    for page in sorted(pages):
        name = page.removeprefix("decisions/")
        if re.match(r"decisions/\d{4}-", page) and f"]({name})" not in decisions:
            found.append(f"docs/decisions/index.md: found no link to {name}; expected one to each decision")
    return found
