"""Whether the site shows what GitHub shows: the same text, and as many lists, tables, code blocks and pictures."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from markdown_it import MarkdownIt

_COUNTED = {
    "h1",
    "h2",
    "h3",
    "h4",
    "ol",
    "ul",
    "li",
    "table",
    "tr",
    "th",
    "td",
    "pre",
    "img",
    "em",
    "strong",
    "blockquote",
}


class _Content(HTMLParser):
    """The text and the counted elements of some HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.parts: list[str] = []
        self.feed(html)
        self.text = re.sub(r"[\s\u00b6]+", "", "".join(self.parts))  # without the marks of permanent links

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count it."""
        self.elements[tag] += tag in _COUNTED

    def handle_data(self, data: str) -> None:
        """Keep it."""
        self.parts.append(data)


def differences(pages: dict[str, Path], site: Path) -> list[str]:
    """A line for each page of Markdown that the site shows otherwise than a reader of GitHub's dialect does."""
    github = MarkdownIt("commonmark").enable("table")
    found = []
    for name, path in pages.items():
        source = _Content(github.render(path.read_text(encoding="utf-8")))
        html = built(site, name).read_text(encoding="utf-8")
        shown = _Content(html[html.index("<article") : html.index("</article>")])
        if source.elements != shown.elements:
            more = {tag: (source.elements[tag], shown.elements[tag]) for tag in sorted(_COUNTED)}
            counts = ", ".join(f"{one} and {other} <{tag}>" for tag, (one, other) in more.items() if one != other)
            found.append(f"{name}: GitHub and the site show {counts}")
        elif source.text != shown.text:
            at = next((i for i, (a, b) in enumerate(zip(source.text, shown.text)) if a != b), len(shown.text))
            here = slice(max(0, at - 30), at + 30)
            found.append(f"{name}: GitHub shows {source.text[here]!r}, the site {shown.text[here]!r}, without spaces")
    return found


def built(site: Path, name: str) -> Path:
    """The HTML of a page."""
    path = site / name
    return path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html")
