"""The pages of the site, made from docs/ and two pages of the root, as files that the generator reads.

What GitHub shows must be shown by the site. So pages are written for GitHub, and what the generator reads differently
is changed here: a list right after a paragraph gets a blank line, items within items four spaces. And these become
links: a page that is named in code, such as `docs/metric.md`; a public name in code with its module, `batchnuts.check`
or `autobatch.jax`; a decision by its number, "decision 12".
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FROM_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages of the repository's root that the site has, too."""

MAKERS = ("make_*.py", "website/*", "**/__pycache__/*")
"""Files in docs/ that no page links to: what makes the site and its pictures."""

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_ITEM = re.compile(r"^( *)([-*+]|\d+\.) +")
_CODE_OR_LINK = re.compile(r"(!?\[[^\[\]]*\]\([^()]*\)|(?<!`)`[^`]+`(?!`))")
_PAGE_IN_CODE = re.compile(r"^`docs/([\w./-]+\.md)`$")
_DECISION = re.compile(r"\b[Dd]ecision (\d+)\b")


class PageError(Exception):
    """A page that the site cannot show as it stands: file, line, what was found, what was expected."""


@dataclass(frozen=True)
class Targets:
    """What links lead to, by paths within the site: pages, decisions by number, anchors of public names by the code
    that names them (`batchnuts.check`)."""

    pages: frozenset[str]
    decisions: Mapping[int, str]
    names: Mapping[str, str]

    @classmethod
    def of(cls, pages: Mapping[str, Path], names: Mapping[str, str]) -> Targets:
        """Those of these pages."""
        decisions = {int(page[10:14]): page for page in pages if re.match(r"decisions/\d{4}-", page)}
        return cls(frozenset(pages), decisions, names)


def pages_of(docs: Path) -> dict[str, Path]:
    """Every page by its path within the site, from the folder docs/ and the root that it is in."""
    found = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md"))}
    return {**found, **{name.lower(): docs.parent / name for name in FROM_ROOT}}


def stage(docs: Path, to: Path, made: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Path]:
    """Write all pages and the files beside them into the folder `to`; gives the pages, as `pages_of`.

    made: the text of further pages, which are no files. names: see Targets. Raises PageError for a page that is named
    and is not there.
    """
    pages = pages_of(docs)
    texts = {name: path.read_text(encoding="utf-8") for name, path in pages.items()} | dict(made)
    pages |= {name: to / name for name in made}
    targets = Targets.of(pages, names)
    for name, text in texts.items():
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(for_the_site(text, name, targets), encoding="utf-8")
    makers = {path for pattern in MAKERS for path in docs.glob(pattern)}
    for path in sorted(docs.rglob("*")):
        if path.is_file() and path.suffix != ".md" and path not in makers:
            target = to / path.relative_to(docs)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return pages


def for_the_site(text: str, name: str, targets: Targets) -> str:
    """The text of a page as the generator reads it. name: its path within the site."""
    lines: list[str] = []
    fence, before = "", ""
    depths: list[int] = []
    further = False  # whether the line is in an item, and not in its first paragraph
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if found and (not fence or line.strip() == fence):
            fence = "" if fence else found[1]
            lines.append(line)
        elif fence:
            lines.append(line)
        else:
            item = _ITEM.match(line)
            if item and before.strip() and (further or (not depths and not before.startswith(("#", "|")))):
                lines.append("")
            depths = _depths(depths, line, before, item)
            further = bool(depths) and not item and (further or not before.strip())
            lines.append(_with_links(_indented(line, depths, item), name, number, targets))
        before = line
    return "\n".join(lines) + "\n"


def relative(target: str, page: str) -> str:
    """The link from a page to another one, both by their paths within the site."""
    here, there = page.split("/")[:-1], target.split("/")
    shared = 0
    while shared < min(len(here), len(there) - 1) and here[shared] == there[shared]:
        shared += 1
    return "/".join([".."] * (len(here) - shared) + there[shared:])


def _with_links(line: str, name: str, number: int, targets: Targets) -> str:
    """A line of a page with its links; PageError for what is named and is not there."""

    def decision(match: re.Match[str]) -> str:
        target = targets.decisions.get(int(match[1]))
        if target is None:
            raise PageError(f"{name}:{number}: found {match[0]!r}; expected the number of a page of docs/decisions/")
        return match[0] if target == name else f"[{match[0]}]({relative(target, name)})"

    def of_code(code: str) -> str:
        if line.startswith("|"):  # in cells GitHub wants this escaped
            code = code.replace("\\|", "|")
        page = _PAGE_IN_CODE.match(code)
        if page and page[1] not in targets.pages:
            raise PageError(f"{name}:{number}: found {code}, and there is no such page; expected one of docs/")
        target = page[1] if page else targets.names.get(code.strip("`"))
        return code if target in (None, name) else f"[{code}]({relative(str(target), name)})"

    if line.startswith("#"):  # links in headings would be links in tables of contents
        return line
    parts = _CODE_OR_LINK.split(line)  # text, what was matched, text, ...
    parts[0::2] = [_DECISION.sub(decision, text) for text in parts[0::2]]
    parts[1::2] = [of_code(part) if part.startswith("`") else _to_root_page(part, name) for part in parts[1::2]]
    return "".join(parts)


def _to_root_page(link: str, name: str) -> str:
    """A link; to a page of the root as one within the site."""
    up = "../" * (name.count("/") + 1)
    match = re.search(rf"\]\({re.escape(up)}({'|'.join(FROM_ROOT)})", link)
    return link if match is None else link.replace(f"{up}{match[1]}", relative(match[1].lower(), name))


def _depths(depths: list[int], line: str, before: str, item: re.Match[str] | None) -> list[int]:
    """The columns at which the items begin that the line is in, from the outermost list inwards."""
    if item:
        column = len(item[1])
        return [*(depth for depth in depths if depth < column), column]
    if line.strip() and not before.strip():  # after a blank line, what is not indented ends the list
        return [depth for depth in depths if len(line) - len(line.lstrip()) > depth]
    return depths


def _indented(line: str, depths: list[int], item: re.Match[str] | None) -> str:
    """A line of a list with four spaces for each list it is within, as Python-Markdown wants them."""
    if not depths or not line.strip():
        return line
    level = len(depths) - 1 if item else len(depths)
    return " " * (4 * level) + line.lstrip() if level else line
