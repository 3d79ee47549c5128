"""`python -m batchnuts.autobatch`: dump, explain, demo; every mistake is one line and exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import CASES, Case, fibonacci
from programs.assignment import with_defaults
from programs.structures import Point, leapfrog

from batchnuts.autobatch import LaneInputError, Program, ProgramTextError, TensorType, parse, show_program, summarize
from batchnuts.autobatch.__main__ import main
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.demos import DEMOS
from batchnuts.autobatch.runtime import faults

ROOT = Path(__file__).resolve().parents[1]
DEMO = "batchnuts.autobatch.demos:fibonacci"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(argv)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


# ---- what it prints -------------------------------------------------------------------------------------------------


def test_dump_prints_the_program_after_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "dump", DEMO, "--after", "lower", "--types", "int64", "--backend", "numpy")
    assert (code, err) == (0, "")
    assert out == DEMOS["fibonacci"].function.dump("int64", after="lower", backend="numpy")
    assert "push fibonacci.n" in out


def test_dump_gives_the_last_pass_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "dump", DEMO, "--types", "int64", "--backend", "numpy")
    assert parse(out) == DEMOS["fibonacci"].function.lowered("int64", backend="numpy")


def test_dump_reads_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_helper.py").write_text("STEP = 2\n")
    text = "from batchnuts import autobatch\nfrom my_helper import STEP\n\n@autobatch.batch\ndef next_one(n):\n"
    (tmp_path / "my_program.py").write_text(text + "    return n + STEP\n")
    target = f"{tmp_path / 'my_program.py'}:next_one"
    code, out, _ = run(capsys, "dump", target, "--types", "float32[3]", "--backend", "numpy")
    assert code == 0
    assert "main.n: float32[3] register" in out


def test_explain_prints_source_variables_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "explain", DEMO, "--types", "int64", "--backend", "numpy")
    assert (code, err) == (0, "")
    assert out == DEMOS["fibonacci"].function.explain("int64", backend="numpy")


@pytest.mark.slow
def test_the_promised_demo_runs_as_a_program(tmp_path: Path) -> None:
    """As its own process, on TensorFlow under XLA; nothing but the program's own output appears."""
    command = [sys.executable, "-W", "ignore", "-m", "batchnuts.autobatch", "demo", "fibonacci", "6", "7", "8", "9"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # who sets it wants to see TensorFlow's own words
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("fibonacci(6) = 13", "fibonacci(7) = 21", "fibonacci(8) = 34", "fibonacci(9) = 55"):
        assert line in done.stdout.splitlines()
    assert "fibonacci.left: int64[] full" in done.stdout


WAYS = [
    (),
    ("--executor", "stackless"),
    ("--executor", "unbatched"),
    ("--schedule", "drain"),
]


@pytest.mark.parametrize("how", WAYS, ids=" ".join)
@pytest.mark.parametrize("name", DEMOS)
def test_demos_agree_with_plain_python(name: str, how: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Integers exactly; the integral to 1e-12, since sums may be ordered differently."""
    code, out, err = run(capsys, "demo", name, *how, "--backend", "numpy")
    assert (code, err) == (0, "")
    demo = DEMOS[name]
    for lane in demo.lanes:
        shown = f"{name}({', '.join(map(str, lane))}) = "
        (found,) = [line.removeprefix(shown) for line in out.splitlines() if line.startswith(shown)]
        expected = demo.function.function(*lane)
        assert float(found) == pytest.approx(float(expected), rel=1e-12, abs=0.0)


def test_demo_takes_lanes_of_several_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "demo", "ackermann", "1,1", "0,5", "--backend", "numpy")
    assert "ackermann(1, 1) = 3\nackermann(0, 5) = 6\n" in out


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("dump", "fibonacci"), "found 'fibonacci', expected module:function or path/to/file.py:function"),
        (("dump", "no_such_module:f"), "there is no module 'no_such_module'"),
        (("dump", "no_such_package.module:f"), "there is no module 'no_such_package.module'"),
        (("dump", "no_such_file.py:f"), "there is no file no_such_file.py"),
        (("dump", "batchnuts.autobatch.demos:fib"), "has no 'fib'; its batched functions are ackermann, binomial"),
        (("dump", "json:load"), "load of json is a function, expected a function decorated with @autobatch.batch"),
        (("dump", "json:nothing"), "json has no 'nothing'; it has no function decorated with @batch"),
        (("dump", DEMO, "--after", "typo", "--types", "int64"), "there is no pass 'typo'; the passes are frontend,"),
        (("dump", DEMO, "--types", "int65"), "type 'int65', column 1: found 'int65', expected a dtype"),
        (("dump", DEMO, "--types", "int64[2"), "type 'int64[2', column 8: found the end of the line, expected ','"),
        (("dump", DEMO), "fibonacci(n) needs one type for each parameter that has no default; found none"),
        (("explain", DEMO, "--types", "int64", "int64"), "found int64[], int64[]|found int64, int64"),
        (("demo", "fib"), "there is no program 'fib'; there are fibonacci, ackermann"),
        (("demo", "fibonacci", "six"), "found lane 'six', expected whole numbers for n of fibonacci, as in 6 7 8 9"),
        (("demo", "ackermann", "2"), "found lane '2', expected whole numbers for m,n of ackermann"),
        (("demo", "integral", "a,b"), "found lane 'a,b', expected numbers for a,b of integral"),
        (("demo", "fibonacci", "3", "--schedule", "later"), "argument --schedule: invalid choice: 'later'"),
        (("dmp",), "invalid choice: 'dmp'"),
        ((), "the following arguments are required: COMMAND"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_are_one_line(argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    numpy = ("--backend", "numpy") if argv and argv[0] in ("dump", "explain", "demo") else ()
    code, out, err = run(capsys, *argv, *numpy)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("python -m batchnuts.autobatch")
    assert any(part in err for part in message.split("|"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1 / 0\n", "broken.py:1: ZeroDivisionError: division by zero"),
        ("\nx = (\n", "broken.py:2: SyntaxError"),
        ("import no_such_module\n", "broken.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_file_that_does_not_import_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken.py").write_text(text)
    code, _, err = run(capsys, "dump", f"{tmp_path / 'broken.py'}:f")
    assert code == 2
    assert err.count("\n") == 1
    assert message in err


def test_a_compile_error_shows_the_users_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "explain", DEMO, "--types", "float32[3]", "--backend", "numpy")
    assert code == 2
    assert "if n <= 1:\n           ^\n" in err
    assert "Traceback" not in err


def test_a_demo_that_fails_while_it_runs_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "LARGEST_STACK_DEPTH", 500)
    code, out, err = run(capsys, "demo", "ackermann", "3,-1", "--backend", "numpy", "--executor", "stackless")
    assert (code, out) == (1, "")
    assert "max_stack_depth=1000; it may also be infinite" in err


# ---- lowered, passes, explain, summarize, types ---------------------------------------------------------------------


def test_lowered_is_the_program_that_runs() -> None:
    program = fibonacci.lowered("int64", backend="numpy")
    assert isinstance(program, Program)
    assert program == [*fibonacci.passes("int64", backend="numpy").values()][-1]
    assert program.var_alloc


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[34]], ids=lambda case: case.name)
def test_summaries_count_what_stands_in_the_text(case: Case) -> None:
    types = case.function.lane_types(case.inputs)
    for name, program in case.function.passes(*types, backend="numpy").items():
        counts = summarize(program)
        lines = [line.strip() for line in show_program(program).splitlines()]
        assert counts.pushes == sum(line.startswith("push ") for line in lines), name
        assert counts.return_addresses == sum(line.startswith("push_goto ") for line in lines), name
        assert counts.pops == sum(line.startswith("pop ") for line in lines), name
        assert counts.calls == sum("= call " in line for line in lines), name
        assert counts.primitives == sum("= {" in line for line in lines), name
        copied = [line.split(" = ")[0] for line in lines if "= copy " in line]
        assert counts.copies == sum(line.count(",") + 1 for line in copied), name
        for allocation in ("full", "register", "temporary", "null"):
            shown = sum(line.endswith(f"] {allocation}") for line in lines)
            assert getattr(counts, allocation) == (shown if program.var_alloc else None), name
        assert counts.blocks == len([b for f in program.all_functions() for b in f.graph.blocks])


def test_explain_annotates_the_source_and_counts_the_passes() -> None:
    report = fibonacci.explain("int64", backend="numpy")
    lines = report.splitlines()
    assert lines[0] == "fibonacci(int64[]) -> int64[]"
    (base,) = [line for line in lines if "return 1 " in line]
    assert base.endswith("| fibonacci.then")
    (left,) = [line.split() for line in lines if line.startswith("  fibonacci.left ")]
    assert left == ["fibonacci.left", "int64[]", "full:", "a", "stack", "per", "lane"]
    passes = fibonacci.passes("int64", backend="numpy")
    rows = lines[lines.index(next(line for line in lines if line.split()[:1] == ["after"])) + 1 :]
    assert [row.split()[0] for row in rows if row] == [*passes]
    (lowered,) = [row for row in rows if row.split()[:1] == ["lower"]]
    assert "6 (+6)" in lowered


def test_explain_lists_structures_leaf_by_leaf() -> None:
    report = leapfrog.explain(Point("float64", "float64"), "int64", backend="numpy")
    assert report.startswith("leapfrog(Point(q: float64[], p: float64[]), int64[])")
    assert any(line.split()[:2] == ["leapfrog.moved.q", "float64[]"] for line in report.splitlines())


def test_types_may_be_given_in_many_ways() -> None:
    for given in ("int64", "int64[]", np.int64, np.dtype("int64"), TensorType("int64")):
        assert as_type(given) == TensorType("int64")
    assert as_type("float32[3,2]") == TensorType("float32", (3, 2))
    assert as_type("tuple(int64, dict(a: bool[2]))") == (TensorType("int64"), {"a": TensorType("bool", (2,))})
    assert with_defaults.lowered("float32", backend="numpy") == with_defaults.lowered(np.float32, backend="numpy")


@pytest.mark.parametrize("given", ["int65", "float32[", "float32[x]", "float32]", "", "str", "object"])
def test_texts_that_are_no_types_are_refused(given: str) -> None:
    with pytest.raises(ProgramTextError, match=r"type '.*', column \d+: found"):
        fibonacci.dump(given, backend="numpy")


@pytest.mark.parametrize("given", [3, None, object, np.dtype("U3")])
def test_things_that_are_no_types_are_refused(given: object) -> None:
    with pytest.raises(LaneInputError, match="expected text such as 'int64'"):
        fibonacci.dump(given, backend="numpy")
