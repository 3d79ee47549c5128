"""The code blocks of README and docs run as they stand."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import forked_runs
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


WITH_OUTPUT = (
    *(f"autobatch_{name}.md" for name in ("tutorial", "recursion", "mistakes", "examples", "trees")),
    "inside_jit.md",
    "random_numbers.md",
)
"""Pages that show what their blocks print, to the last character."""

WITH_VERDICT = ("README.md", "index.md", "install.md")
"""Pages that show what `check` says of draws, which differ between processors."""

EXPENSIVE = (
    *("running.md", "clusters.md", "streaming.md", "performance.md", "how_many_chains.md", "reading_the_report.md"),
    *("add_a_model.md", "model_details.md", "data.md", "parameters.md", "transitions.md", "metric.md"),
    *("inference_gym.md", "joint_distribution.md", "jax_model.md", "numpyro_model.md", "pymc_model.md"),
    *("add_a_backend.md", "autobatch_examples.md", "random_numbers.md"),
)
"""Pages with blocks of more than eight seconds, two thirds of all: .ci/run runs a fortieth of their blocks."""

LIBRARIES = {"inference_gym.md": "inference_gym"}
"""By page: the optional library without which its blocks are skipped."""


def marks(page):
    """Of a page's blocks."""
    library = LIBRARIES.get(page)
    missing = library is not None and importlib.util.find_spec(library) is None
    without_library = pytest.mark.skipif(missing, reason=f"{library} is not installed")
    return [without_library] if page in EXPENSIVE else [without_library, pytest.mark.each_commit]


def blocks(language):
    """Each block of `language` with the page and line it starts at."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
            line = text[: match.start()].count("\n") + 1
            yield pytest.param(match.group(1), id=f"{page.name}:{line}", marks=marks(page.name))


def blocks_with_output(page):
    """Each `python` block of a page, and the `text` block right after it, if there is one: what it prints."""
    (path,) = [path for path in PAGES if path.name == page]
    text = path.read_text(encoding="utf-8")
    pattern = r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?"
    for match in re.finditer(pattern, text, flags=re.MULTILINE | re.DOTALL):
        line = text[: match.start()].count("\n") + 1
        yield pytest.param(*match.groups(), id=f"{page}:{line}", marks=marks(page))


def skip_without_its_library(code):
    """Pages about libraries that are no part of the default installation."""
    for library in ("numpyro", "pymc"):
        if re.search(rf"^import {library}\b", code, flags=re.MULTILINE):
            pytest.importorskip(library, reason=f"the extra {library} is not installed")


def run(*arguments, cwd):
    """What a script prints, or the module after -m: the sampler."""
    if arguments[0] == "-m":
        assert arguments[1] == "batchnuts.sample"
        return forked_runs.run(*arguments[2:], cwd=cwd).stdout
    done = forked_runs.run_script(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("page", "count"), [("running.md", 2), ("clusters.md", 1)])
def test_commands_of_long_runs(page, count, tmp_path):
    """The blocks for a shell, one after the other in one folder: a kill, and a longer run; workers of this machine.

    The longest ones stand first, so that no processor is left with one of them at the end.
    """
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(r"^```bash\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == count
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["XLA_FLAGS"] = ""  # optimized machine code, as users have it: most of the time is drawing
    for code in found:
        done = subprocess.run(
            ["bash", "-euc", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Draws: " in done.stdout
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".checkpoint")]


@pytest.mark.slow
@pytest.mark.parametrize("code", [b for b in blocks("python") if not b.id.startswith(WITH_OUTPUT + WITH_VERDICT)])
def test_python_blocks_run(code, tmp_path):
    skip_without_its_library(code)
    (tmp_path / "block.py").write_text(code, encoding="utf-8")
    run("block.py", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "printed"), [b for page in WITH_OUTPUT for b in blocks_with_output(page)])
def test_blocks_print_what_their_pages_show(code, printed, tmp_path):
    (tmp_path / "block.py").write_text(code, encoding="utf-8")
    out = run("block.py", cwd=tmp_path).replace(f"{tmp_path}{os.sep}", "")
    assert out == (printed or "")


def of_any_processor(text):
    """Without what rounding decides: estimates, effective sizes, and which coefficient is the worst."""
    text = re.sub(r"worst \S+ = |ESS: \d+ | \(\S+\)$", "", text, flags=re.MULTILINE)
    return re.sub(r"\d+\.\d\d+", "", text)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "printed"), [b for page in WITH_VERDICT for b in blocks_with_output(page)])
def test_blocks_print_the_verdict_of_their_pages(code, printed, tmp_path):
    assert printed.startswith("OK: ")
    (tmp_path / "block.py").write_text(code, encoding="utf-8")
    assert of_any_processor(run("block.py", cwd=tmp_path)) == of_any_processor(printed)


@pytest.mark.slow
@pytest.mark.each_commit
def test_own_model_of_a_page_is_sampled(tmp_path):
    text = (ROOT / "docs" / "add_a_model.md").read_text(encoding="utf-8")
    part = text[text.index("## On the command line") : text.index("## What is refused")]
    (tmp_path / "schools.py").write_text(re.findall(r"^```python\n(.*?)^```$", part, flags=re.M | re.S)[0])
    (tmp_path / "schools.yaml").write_text(re.findall(r"^```yaml\n(.*?)^```$", part, flags=re.M | re.S)[0])
    overrides = ["sampler.chains=4", "sampler.warmup=20", "sampler.draws=10"]
    out = run("-m", "batchnuts.sample", "--config", "schools.yaml", *overrides, cwd=tmp_path)
    assert "10 coefficients, 4 chains x 10 draws" in out


@pytest.mark.slow
@pytest.mark.each_commit
@pytest.mark.parametrize("library", ["numpyro", "pymc", "jax"])
def test_models_of_other_libraries_are_sampled_from_their_pages(library, tmp_path):
    text = (ROOT / "docs" / f"{library}_model.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)[0]
    skip_without_its_library(code)
    config = re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.M | re.S)[0]
    (module,) = re.findall(rf"{library}: (\w+):", config)
    (tmp_path / f"{module}.py").write_text(code)
    (tmp_path / "own.yaml").write_text(config)
    overrides = ["sampler.chains=4", "sampler.warmup=20", "sampler.draws=10"]
    out = run("-m", "batchnuts.sample", "--config", "own.yaml", *overrides, cwd=tmp_path)
    assert f"{5 if library == 'jax' else 18} coefficients, 4 chains x 10 draws" in out


def test_pages_that_are_named_here_are_there():
    named = {*WITH_OUTPUT, *WITH_VERDICT, *EXPENSIVE, *LIBRARIES}
    assert named <= {page.name for page in PAGES}


def test_set_up_lines_of_the_readme_are_whole():
    """Both commands make their environment themselves and end as promised."""
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("python3 -m venv")]
    assert [line.rsplit("&& ", 1)[1] for line in lines] == [
        "python -m batchnuts.sample --config logreg.yaml",
        "python -m pytest",
    ]


def dumps(function, types):
    """The lines of the program after every pass."""
    from batchnuts.autobatch.backends.registry import get_backend
    from batchnuts.autobatch.ir.printer import show_program
    from batchnuts.autobatch.pipeline import compile_function

    lines = set()

    def observe(_, program):
        lines.update(line.strip() for line in show_program(program).splitlines())

    compile_function(function, types, get_backend("tensorflow", "eager"), observe)
    return lines


def test_ir_lines_of_the_architecture_page_are_true(tmp_path):
    """Every line of IR that the page shows stands in a dump of the program it is about, after some pass."""
    import numpy as np
    from from_source import load

    from batchnuts.autobatch import random
    from batchnuts.autobatch.ir.program import TensorType
    from batchnuts.mcmc.kernel.chain_program import ChainInputs, make_chain
    from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
    from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
    from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation, start_adaptation
    from batchnuts.models.registry import REGISTRY, build

    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    ir = re.compile(r"(push|pop|push_goto|branch|goto|return)\b|\S.* = (copy|call|write|\{)|[\w.]+: (u?int|float|bool)")
    wanted = [line.strip() for block in shown for line in block.splitlines() if ir.match(line.strip())]
    assert len(wanted) > 30

    source = next(
        code for code in re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S) if "def fibonacci" in code
    )
    module = load(tmp_path, source.split("PASSES")[0])
    known = dumps(module.fibonacci, (TensorType("int64"),))
    model = build(REGISTRY["logistic_regression"].options(name="logistic_regression", rows=10))
    program = make_chain(
        make_nuts(value_and_gradient(model), NutsOptions()),
        DualAveragingAdaptation(0.8),
        300,
        model.dimension,
        "float32",
    )
    one = np.zeros(1, "float32")
    vector = np.zeros((1, model.dimension), "float32")
    count = np.zeros(1, "int64")
    chain = (random.lane_keys(0, 1), vector, one, vector, vector, start_adaptation(one), one > 0)
    inputs = ChainInputs.begin(*chain, first=count, transitions=count, max_tree_depth=10)
    known |= dumps(program, program.lane_types(inputs))
    assert [line for line in wanted if line not in known] == []


def test_the_program_that_the_ir_page_explains_runs():
    import numpy as np

    from batchnuts.autobatch import parse, prepare

    page = (ROOT / "docs" / "ir.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```text\n(main\(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    prepared = prepare(parse(text, namespace={}), "int64", backend="numpy")
    assert prepared.run(np.array([0, 5, 3]))[0].tolist() == [1, 120, 6]
