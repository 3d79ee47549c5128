"""What makes the website of docs/: pages as the generator reads them, the reference, the navigation, the checks."""

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import make_site  # noqa: E402
from website import checks, navigation, reference, reference_pages, same, staging  # noqa: E402

sys.path.remove(str(DOCS))

TARGETS = staging.Targets(
    frozenset({"metric.md", "decisions/0012-widths.md", "contributing.md"}),
    {12: "decisions/0012-widths.md"},
    {"batchnuts.check": "reference/sampling.md#batchnuts.check"},
)


@pytest.mark.parametrize(
    ("page", "written", "read"),
    [
        ("a.md", "Use it:\n- one\n- two", "Use it:\n\n- one\n- two"),
        (
            "a.md",
            "- one\n  goes on\n  - within\n    goes on\n- two",
            "- one\n    goes on\n    - within\n        goes on\n- two",
        ),
        ("a.md", "- one\n\n  of the item\n\nafter it", "- one\n\n    of the item\n\nafter it"),
        ("a.md", "- one\n\n  of it\n- two\n- three", "- one\n\n    of it\n\n- two\n- three"),
        ("a.md", "| `a \\| b` |", "| `a | b` |"),
        ("a.md", "see `docs/metric.md`.", "see [`docs/metric.md`](metric.md)."),
        ("results/a.md", "see `docs/metric.md`.", "see [`docs/metric.md`](../metric.md)."),
        ("metric.md", "this is `docs/metric.md`", "this is `docs/metric.md`"),
        ("a.md", "[as `docs/metric.md` says](b.md)", "[as `docs/metric.md` says](b.md)"),
        ("a.md", "# Of `docs/metric.md`", "# Of `docs/metric.md`"),
        ("a.md", "```python\n# decision 12\n- `docs/none.md`\n```", "```python\n# decision 12\n- `docs/none.md`\n```"),
        ("a.md", "(decision 12)", "([decision 12](decisions/0012-widths.md))"),
        (
            "decisions/0003-b.md",
            "[decision 12](x.md), decision 12",
            "[decision 12](x.md), [decision 12](0012-widths.md)",
        ),
        ("a.md", "`decision 12`", "`decision 12`"),
        ("a.md", "`batchnuts.check`", "[`batchnuts.check`](reference/sampling.md#batchnuts.check)"),
        ("a.md", "[style](../CONTRIBUTING.md#style)", "[style](contributing.md#style)"),
        ("g/a.md", "[script](../../examples/radon.py)", "[script](../examples/radon.py)"),
    ],
)
def test_what_github_shows_is_what_the_generator_reads(page, written, read):
    assert staging.for_the_site(written, page, TARGETS) == read + "\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("see `docs/none.md`", "a.md:2: found `docs/none.md`, and there is no such page"),
        ("(decision 13)", "a.md:2: found 'decision 13'; expected the number of a page of docs/decisions/"),
    ],
)
def test_what_is_named_and_not_there_is_refused(line, said):
    with pytest.raises(staging.PageError, match="^" + said):
        staging.for_the_site(f"# Title\n{line}", "a.md", TARGETS)


def test_every_public_name_is_on_one_page(monkeypatch):
    assert reference_pages.missing() == []
    monkeypatch.delitem(reference_pages.PLACES, "batchnuts.check")
    assert reference_pages.missing() == [
        "docs/website/reference_pages.py: the public name batchnuts.check is on no page"
    ]


@pytest.mark.parametrize("page", reference_pages.LISTINGS)
def test_pages_list_every_function(page):
    """The table at the page's end is what the docstrings say; copy the one that is expected where it is not."""
    found = (DOCS / page).read_text(encoding="utf-8").partition("\n## All of them\n\n")[2]
    assert found == reference_pages.listing_of(page)


def test_reference_pages_have_signatures_parameters_and_settings():
    pages = dict(reference_pages.rendered())
    sampling, settings, ops = (pages[f"reference/{name}.md"] for name in ("sampling", "settings", "ops"))
    assert (
        "### `sample_chains` { #batchnuts.sample_chains }\n\n```python\nsample_chains(\n    model: Model," in sampling
    )
    assert "\n- `unconstrained`: whether to add the group" in sampling
    assert "(`docs/progress.md`)" in sampling
    assert (
        "\n| `draws` | draws kept per chain, after warmup | an integer of at least 1 and at most 1,000,000,000 (`200`)"
        in settings
    )
    assert "\n| `exp(x)`{ #batchnuts.autobatch.ops.exp } | e to the power `x`." in ops
    assert "arguments of [`sample_chains`](sampling.md#batchnuts.sample_chains), and" in settings


def test_lines_of_parameters_are_items():
    text = """Do it.

    a: the first, of which
        there is more to say.
    b, c: others.
    Raises ValueError for none.
    """
    assert reference.docstring(text, ("a", "b", "c")) == (
        "Do it.\n\n- `a`: the first, of which\n    there is more to say.\n- `b`, `c`: others.\n\n"
        "Raises ValueError for none."
    )


def test_navigation_has_all_pages_of_a_folder(tmp_path):
    pages = {}
    for name, title in {"a.md": "A", "g/index.md": "Gallery", "g/two.md": "On `two`", "g/one.md": "One"}.items():
        pages[name] = tmp_path / name
        pages[name].parent.mkdir(exist_ok=True)
        pages[name].write_text(f"# {title}\n")
    nav = [{"Begin": ["a.md"]}, {"Gallery": ["g/*"]}, {"None": ["none/*"]}]
    found = navigation.expanded(nav, pages)
    assert found == [{"Begin": ["a.md"]}, {"Gallery": ["g/index.md", {"One": "g/one.md"}, {"On two": "g/two.md"}]}]
    assert navigation.as_toml(found[1]) == '{"Gallery" = ["g/index.md", {"One" = "g/one.md"}, {"On two" = "g/two.md"}]}'
    assert set(navigation.pages_in(found)) == set(pages)


def test_pages_that_nobody_finds_are_faults():
    pages = {"a.md", "decisions/0001-x.md", "decisions/0002-y.md"}
    assert checks.not_in_nav(pages, pages, "[x](0001-x.md) [y](0002-y.md)") == []
    assert checks.not_in_nav(pages, pages - {"a.md"} | {"b.md"}, "[x](0001-x.md)") == [
        "docs/website/nav.toml: the page a.md is not there; expected every page once",
        "docs/website/nav.toml: found b.md, and there is no such page",
        "docs/decisions/index.md: found no link to 0002-y.md; expected one to each decision",
    ]


def test_faults_of_built_pages(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "good.html").write_text(
        '<h1 id="top"></h1><a href="sub/index.html#here"></a><a href="sub/"></a><a href="https://example.org"></a>'
        '<a href="#top"></a><img src="data:image/png;base64,"><link rel="stylesheet" href="s.css">'
    )
    (tmp_path / "sub" / "index.html").write_text('<h2 id="here"></h2>')
    (tmp_path / "s.css").write_text("a { color: red }")
    assert checks.problems(tmp_path) == []
    (tmp_path / "s.css").write_text("@font-face { src: url(https://fonts.example.org/a.woff) }")
    (tmp_path / "sub" / "index.html").write_text(
        '<a href="../good.html#nowhere"></a><img src="none.png"><script src="https://example.org/x.js"></script>'
    )
    assert checks.problems(tmp_path) == [
        "good.html: leads to sub/index.html#here, and that page has no such anchor",
        "sub/index.html: leads to ../good.html#nowhere, and that page has no such anchor",
        "sub/index.html: <img> leads to none.png, and there is no such file",
        "sub/index.html: <script> loads https://example.org/x.js, from another host",
        "s.css: loads https://fonts.example.org/a.woff, from another host",
    ]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", None),
        ("print('a.md:3: no such anchor'); sys.exit(1)", "a.md:3: no such anchor"),
        ("raise ValueError('nav.toml: a page twice')", "ValueError: nav.toml: a page twice"),
        ("print('Building'); [][1]", "Building\nIndexError: list index out of range"),
        (
            "try:\n    [][1]\nexcept IndexError as e:\n    raise OSError(28, 'No space left') from e",
            "OSError: [Errno 28] No",
        ),
        ("import os; os.abort()", f"ended with exit code {-signal.SIGABRT}"),
        ("sys.exit(7)", "zensical ended with exit code 7"),
    ],
)
def test_why_the_generator_failed_is_said(code, said, tmp_path, monkeypatch):
    """Whether it said so, or Python did for it; the whole of it is kept."""
    (tmp_path / "zensical.py").write_text(f"import sys\n{code}\n")
    (tmp_path / "generator.log").write_text("before")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    faults = make_site.generate(tmp_path)
    if said is None:
        assert faults == []
        return
    (fault,) = faults
    assert said in fault
    assert str(tmp_path / "generator.log") in fault
    assert (tmp_path / "generator.log").read_text() != "before"


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ("<h1>A</h1><p>Use:</p><ul><li>one</li><li><code>two</code></li></ul>", []),
        (
            "<h1>A</h1><p>Use: - one - <code>two</code></p>",
            ["a.md: GitHub and the site show 2 and 0 <li>, 1 and 0 <ul>"],
        ),
        (
            "<h1>A</h1><p>Use:</p><ul><li>one</li><li>`two`</li></ul>",
            ["a.md: GitHub shows 'AUse:onetwo', the site 'AUse:one`two`', without spaces"],
        ),
    ],
)
def test_pages_shown_otherwise_than_on_github(html, said, tmp_path):
    (tmp_path / "a.md").write_text("# A\n\nUse:\n- one\n- `two`\n")
    (tmp_path / "a.html").write_text(f"<nav><li>menu</li></nav><article>{html}</article>")
    assert same.differences({"a.md": tmp_path / "a.md"}, tmp_path) == said


def user_pages():
    nav = tomllib.loads((DOCS / "website" / "nav.toml").read_text(encoding="utf-8"))["nav"]
    (sampling,) = (section["Sampling"] for section in nav if "Sampling" in section)
    return [*navigation.pages_in(sampling), "inside_jit.md", "random_numbers.md"]


@pytest.mark.parametrize("name", user_pages())
def test_user_pages_are_short_begin_with_code_and_name_no_decisions(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    assert re.findall(r"\bdecisions?[\s/]+\d+", text, re.I) == [], "why something is as it is stands in docs/decisions/"
    lines = text.splitlines()
    assert len(lines) <= 120
    first = next((i for i, line in enumerate(lines) if line.startswith("```")), len(lines))
    assert not any(line.startswith("## ") for line in lines[:first])
    assert first <= 6


def autobatch_pages():
    nav = tomllib.loads((DOCS / "website" / "nav.toml").read_text(encoding="utf-8"))["nav"]
    (pages,) = (section["autobatch"] for section in nav if "autobatch" in section)
    return list(navigation.pages_in(pages))


@pytest.mark.parametrize("name", autobatch_pages())
def test_pages_about_autobatch_are_short(name):
    assert len((DOCS / name).read_text(encoding="utf-8").splitlines()) <= 120


def test_long_lines_of_code_are_not_cut_off():
    """A window of 1280 pixels shows some 87 columns of code: longer lines of programs wrap, and printed tables, whose
    columns would not line up, have a scroll bar that is seen."""
    css = (DOCS / "website" / "extra.css").read_text()
    wrapped = set(re.findall(r"\.language-(\w+)", css.partition("white-space: pre-wrap")[0]))
    assert "scrollbar-color" in css
    long = set()
    for page in DOCS.glob("**/*.md"):
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            long |= {language for line in block.splitlines() if len(line) > 87}
    assert long - wrapped <= {"", "text"}
    assert "text" not in wrapped


@pytest.mark.slow
def test_the_pictures_of_the_readme_can_be_made(tmp_path: Path) -> None:
    """By the script that the page names; of fewer chains."""
    code = (
        f"import sys; sys.path.insert(0, {str(DOCS)!r}); import make_pictures; from pathlib import Path\n"
        "make_pictures.draw_fibonacci(Path('fibonacci.png'))\n"
        "make_pictures.draw_shared_gradients(Path('shared.png'), chains=6, transitions=4)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"fibonacci.png", "shared.png"}
