"""Build the website from docs/: `python docs/make_site.py`.

The pages are in `site/` then; `python -m http.server -d site` shows them. Needs the extra `docs`
(`pip install -e '.[docs]'`) and no network. Exit code 1, with a line for each fault, where the generator warns, a link
or an anchor leads nowhere, a page would load something from another host or is shown otherwise than on GitHub, a page
is missing from the navigation, a decision from the list of decisions, or a public name from the reference. Why it is
made so: docs/decisions/0055-site.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]

from website import checks, navigation, reference_pages, same, staging  # noqa: E402


def build(work: Path, site: Path) -> list[str]:
    """Build into `site`, with the pages as the generator reads them in `work`; both are replaced. Gives the faults."""
    shutil.rmtree(work, ignore_errors=True)
    staged = work / "docs"
    try:
        pages = staging.stage(DOCS, staged, dict(reference_pages.rendered()), reference_pages.in_code())
    except staging.PageError as error:
        return [str(error)]
    (staged / "website").mkdir(exist_ok=True)
    shutil.copyfile(DOCS / "website" / "extra.css", staged / "website" / "extra.css")
    nav = navigation.expanded(tomllib.loads((DOCS / "website" / "nav.toml").read_text(encoding="utf-8"))["nav"], pages)
    config = (DOCS / "website" / "zensical.toml").read_text(encoding="utf-8")
    config = config.replace("[project]\n", f"[project]\nnav = {navigation.as_toml(nav)}\n", 1)
    (work / "zensical.toml").write_text(config, encoding="utf-8")

    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    faults = checks.not_in_nav(set(pages), set(navigation.pages_in(nav)), index)
    faults += reference_pages.missing()
    faults += generate(work)
    if not faults:
        faults = checks.problems(work / "site")
        faults += same.differences(
            {name: path for name, path in pages.items() if work not in path.parents}, work / "site"
        )
    if not faults:
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)
    return faults


def generate(work: Path) -> list[str]:
    """Run the generator on the folder `work`; gives what it said where it warned or failed.

    A traceback is its own, which ends with the cause: that line is given, and all of it is in a file.
    """
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    done = subprocess.run(
        command, cwd=work, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, check=False
    )
    said = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
    if "No module named zensical" in said:
        return ["zensical is not installed: pip install -e '.[docs]'"]
    if not done.returncode:
        return []
    (work / "generator.log").write_text(said, encoding="utf-8")
    told, _, traceback = said.partition("Traceback (most recent call last)")
    cause = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
    ended = f"zensical ended with exit code {done.returncode}; all that it said is in {work / 'generator.log'}"
    return ["\n".join(filter(None, [told.strip(), *cause[-1:], ended]))]


def main() -> int:
    """Build, say what is wrong or where the pages are, and give the exit code."""
    parser = argparse.ArgumentParser(description="Build the website from docs/ into site/, and check it.")
    parser.add_argument("--to", type=Path, default=ROOT / "site", help="the folder of the built pages (default: site)")
    to = parser.parse_args().to.resolve()
    faults = build(ROOT / "build" / "site", to)
    if faults:
        print("\n".join(faults), f"{len(faults)} faults; no site was built.", sep="\n", file=sys.stderr)
        return 1
    print(
        f"{len([*to.rglob('*.html')])} pages in {os.path.relpath(to)}; python -m http.server -d {os.path.relpath(to)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
