import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import xarray
from fake_run import make_draws, report
from ruamel.yaml import YAML

from batchnuts import sample
from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.mcmc.storage.draws import RunFailed
from batchnuts.process import signals as stopping

SMALL = """\
model: {name: correlated_gaussian, dimension: 3}
sampler: {chains: 4, draws: 20, warmup: 10}
output: {path: out.nc, summary_rows: 2}
"""


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Call the command line in an empty folder, with a stand-in for the run; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    Path("small.yaml").write_text(SMALL)

    def call(*arguments, run=None, config="small.yaml"):
        def run_chains(model, sampler, execution, progress=None, stop=None, **others):
            if progress is not None:
                report(progress, sampler)
            return make_draws(model, sampler, execution) if run is None else run(model, sampler, execution)

        monkeypatch.setitem(sys.modules, "batchnuts.mcmc.run.sampling", SimpleNamespace(run_chains=run_chains))
        code = sample.main(["--config", config, *arguments])
        return code, *capsys.readouterr()

    return call


def test_a_run_prints_summary_verdict_path_and_timings(cli, tmp_path):
    code, out, err = cli()
    assert code == 0
    assert "1 more coefficient is not shown" in out
    assert " on all 3 coefficients: " in out
    assert "Time: compile 1.0 s, warmup 2.0 s, sampling 3.0 s, saving " in out
    assert ", diagnostics " in out
    assert "200 useful gradients/s in warmup and sampling, utilization 0.75; 2 chunks of 10 chains" in out
    assert "on 2 threads, schedule sweep" in out
    assert f"Draws: {tmp_path.resolve() / 'out.nc'}" in out
    advice = "\n-> There are few effective draws: raise draws until the minimum bulk ESS is 400.\n"
    assert out.count(advice) == 1
    assert out.index("\nDivergences: 0") < out.index(advice) < out.index("\nWarmup: ")
    assert "sampling 100%" in err
    assert "utilization 0.75" in err
    assert "0 divergences" in err
    with xarray.open_dataset("out.nc", group="posterior", engine="h5netcdf") as posterior:
        assert dict(posterior["x"].sizes) == {"chain": 4, "draw": 20, "coordinate": 3}
        config = YAML(typ="safe").load(posterior.attrs["config"])
    assert config["sampler"]["draws"] == 20


def test_a_run_in_which_all_is_well_gives_no_advice(cli):
    assert "->" not in cli("sampler.chains=20", "sampler.draws=200")[1]


def test_quiet_prints_the_path_alone(cli, tmp_path):
    code, out, err = cli("--quiet")
    assert (code, out, err) == (0, f"{tmp_path.resolve() / 'out.nc'}\n", "")


def test_json_lines_tell_of_the_run_and_how_it_ended(cli, tmp_path):
    """Nothing else is on stdout, whatever a model prints."""

    def printing(model, sampler, execution):
        print("a word of the model's")
        return make_draws(model, sampler, execution)

    code, out, err = cli("--json", "output.report=true", run=printing)
    assert (code, err) == (0, "a word of the model's\n")
    *reports, last = map(json.loads, out.splitlines())
    assert {line["event"] for line in reports} == {"progress"}
    phases = ["start", "compile", "warmup", "sampling", "saving", "diagnostics"]
    assert list(dict.fromkeys(line["phase"] for line in reports)) == phases
    for phase in phases:
        parts = [line for line in reports if line["phase"] == phase]
        for key in ("done", "seconds", "gradients", "divergences", "slowest", "median"):
            assert (values := [line[key] for line in parts]) == sorted(values)
        assert parts[-1]["done"] == parts[-1]["total"]
    path = tmp_path.resolve() / "out"
    assert (last["event"], last["exit_code"], last["reason"]) == ("finished", 0, "")
    assert (last["path"], last["report"]) == (f"{path}.nc", f"{path}.html")
    assert isinstance(last["ok"], bool)
    assert {"ok", "converged", "worst_rhat", "min_ess_bulk", "divergences", "chains", "draws", "advice"} <= set(last)


def test_the_last_json_line_says_why_a_run_failed_or_was_interrupted(cli, tmp_path):
    def failing(error, done=None):
        def run(model, sampler, execution):
            if done is not None:
                raise RunFailed(error, make_draws(model, sampler, done=done)) from error
            raise error

        return run

    def interrupted(*done):
        return lambda model, sampler, execution: make_draws(model, sampler, done=done)

    path, nan = str(tmp_path.resolve() / "out.nc"), BatchnutsError("The log-density is NaN.")
    for arguments, run, code, event, saved, reason in [
        (["sampler.chians=3"], None, 2, "failed", None, "did you mean 'chains'?"),
        (["output.path=missing/out.nc"], None, 2, "failed", None, "Cannot write"),
        ([], failing(nan), 1, "failed", None, "The log-density is NaN."),
        ([], failing(nan, (6, 9, 20, 6)), 1, "failed", path, "The log-density is NaN."),
        ([], interrupted(6, 9, 20, 6), 130, "interrupted", path, "interrupted; saved in "),
        ([], interrupted(0, 0, 0, 0), 130, "interrupted", None, "no draws were made yet"),
    ]:
        found, out, err = cli("--json", "--force", *arguments, run=run)
        last = json.loads(out.splitlines()[-1])
        assert (found, last["exit_code"], last["event"], last["path"]) == (code, code, event, saved)
        assert reason in last["reason"]
        assert last["reason"] in err
    assert cli("--json", "--force", run=interrupted(6, 9, 20, 6))[1].count('"event": "interrupted"') == 1
    with pytest.raises(RuntimeError):
        cli("--json", "--force", run=failing(RuntimeError("a mistake of ours")))


@pytest.mark.parametrize("other", ["--quiet", "--dry-run"])
def test_json_lines_are_not_mixed_with_other_output(cli, capsys, other):
    with pytest.raises(SystemExit) as ended:
        cli("--json", other)
    assert ended.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_options_and_overrides_may_be_mixed(cli):
    assert cli("sampler.draws=30", "--quiet", "sampler.chains=2", "--force")[0] == 0
    with xarray.open_dataset("out.nc", group="posterior", engine="h5netcdf") as posterior:
        assert (posterior.sizes["chain"], posterior.sizes["draw"]) == (2, 30)


def test_existing_output_is_refused_before_the_run(cli):
    Path("out.nc").write_text("precious")

    def never(*_):
        raise AssertionError("the run was started")

    code, _, err = cli(run=never)
    assert code == 2
    assert "exists and is not overwritten. Give --force" in err
    assert Path("out.nc").read_text() == "precious"
    assert cli("--force")[0] == 0
    assert Path("out.nc").read_bytes()[:4] == b"\x89HDF"
    code, _, err = cli("--force", "output.path=small.yaml", run=never)
    assert code == 2
    assert "small.yaml: the run reads it (the config). Set another output.path." in err
    assert Path("small.yaml").read_text() == SMALL


UNWRITABLE = [
    ("output.path=missing/out.nc", "missing does not exist. Create it, or set output.path"),
    ("output.path=.", "Cannot write .: it names a folder"),
    ("output.path=/dev/null", "Cannot write /dev/null: it is not a file"),
    ("output.path=small.yaml", "small.yaml exists and is not overwritten"),
    ("output.path=foo://bucket/x.zarr", "the protocol 'foo' is unknown"),
    (f"output.path={'x' * 240}.nc", "of 243 bytes; expected names of at most 223 bytes"),
]
"""Paths of outputs that are refused before a run, and what is said of them."""


@pytest.mark.parametrize(("key", "message"), UNWRITABLE)
def test_unwritable_output_is_refused(cli, key, message):
    code, out, err = cli(key)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sampler.chians=3"], "sampler.chians: unknown key; did you mean 'chains'?"),
        (["sampler.chains=0"], "sampler.chains: found 0; expected auto, or an integer of at least 1"),
        (["sampler.draws=-1"], "sampler.draws: found -1 (an integer); expected an integer of at least 1"),
        (["model.name=x"], "model.name: found 'x'; expected one of logistic_regression, correlated_gaussian"),
    ],
)
def test_bad_config_exits_2(cli, arguments, message):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not Path("out.nc").exists()


def test_bad_target_exits_2(cli):
    Path("small.py").touch()
    for target, said in (
        ("not_there_at_all:f", "no module 'not_there_at_all'"),
        ("small.py:f", "module 'small' ("),
    ):
        Path("own.yaml").write_text(f"model: {{target: '{target}', dimension: 3}}\n")
        code, out, err = cli(config="own.yaml")
        assert (code, out) == (2, "")
        assert said in err


def test_dashes_before_a_key_are_refused_with_a_hint(cli, capsys):
    with pytest.raises(SystemExit):
        cli("--sampler.draws=3")
    assert "keys of a config are written without dashes: sampler.draws=value" in capsys.readouterr().err


def test_bad_data_exits_1_and_names_the_cell(cli):
    Path("d.csv").write_text("a,y\n1,0\n,1\n")
    code, _, err = cli("model={name: logistic_regression, data: d.csv}")
    assert code == 1
    assert "d.csv: line 3, column 'a': the value is missing" in err


def test_errors_of_the_run_exit_1_with_their_message(cli):
    def fail(*_):
        raise BatchnutsError("The log-density is NaN at the start of chain 3.")

    code, out, err = cli("--quiet", run=fail)
    assert (code, out, err) == (1, "", "batchnuts: The log-density is NaN at the start of chain 3.\n")
    assert not Path("out.nc").exists()


def test_interrupted_run_is_saved_and_says_so(cli, tmp_path):
    code, out, err = cli(run=lambda model, sampler, execution: make_draws(model, sampler, done=(6, 9, 20, 6)))
    assert code == 130
    assert (
        f"interrupted; saved in {tmp_path.resolve() / 'out.nc'}, which is marked as interrupted: 6 of 20 draws" in err
    )
    assert "of each of 4 chains; the faster chains' further draws (17 in all) are in the group 'unfinished'." in err
    assert "4 chains x 6 draws" in out
    with xarray.open_dataset("out.nc", group="posterior", engine="h5netcdf") as posterior:
        assert posterior.attrs["interrupted"] == 1
        assert posterior.sizes["draw"] == 6


def test_interrupted_with_no_complete_draw_still_saves_the_others(cli):
    code, out, err = cli(run=lambda model, sampler, execution: make_draws(model, sampler, done=(0, 1, 0, 0)))
    assert code == 130
    assert "the 1 draws of 1 of 4 chains are in the group 'unfinished'" in err
    assert "R-hat" not in out


def test_interrupted_before_the_first_draw_writes_nothing(cli):
    code, _, err = cli(run=lambda model, sampler, execution: make_draws(model, sampler, done=(0, 0, 0, 0)))
    assert code == 130
    assert "no draws were made yet, and no file was written" in err
    assert os.listdir() == ["small.yaml"]


def during_save(monkeypatch, act):
    from batchnuts.cli import finish

    save = finish.save

    def acting(*arguments, **options):
        act()
        return save(*arguments, **options)

    monkeypatch.setattr(finish, "save", acting)


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals_while_saving_do_not_lose_the_file(cli, monkeypatch, number, code):
    """One more makes the summary go, a burst no more than that; `--quiet` has nothing more to do."""
    before = [signal.getsignal(n) for n in stopping.SIGNALS]
    for times, options in [(1, ["--quiet"]), (1, []), (5, [])]:
        with monkeypatch.context() as patch:
            during_save(patch, lambda n=times: [signal.raise_signal(getattr(signal, number)) for _ in range(n)])
            found, _, err = cli(*options, "--force")
        assert found == (0 if options else code)
        assert "; saving the draws." in err
        assert ("press again to quit and lose them" in err) == (times > 1)
        assert ("the draws are in " in err) == (not options)
        with xarray.open_dataset("out.nc", group="posterior", engine="h5netcdf") as posterior:
            assert posterior.sizes["draw"] == 20
        Path("out.nc").unlink()
    assert [signal.getsignal(n) for n in stopping.SIGNALS] == before


def test_giving_up_while_saving_says_so(cli, monkeypatch):
    monkeypatch.setattr(stopping, "TIME_TO_READ", 0.01)
    during_save(monkeypatch, lambda: [(time.sleep(s), signal.raise_signal(signal.SIGINT)) for s in (0, 0, 0.2)])
    code, _, err = cli()
    assert code == 130
    assert "the draws were discarded, and no file was written" in err
    assert os.listdir() == ["small.yaml"]


def test_an_error_while_drawing_is_reported_after_the_draws_are_saved(cli):
    def fail(model, sampler, execution):
        error = BatchnutsError("The density is +inf at chain 3.")
        raise RunFailed(error, make_draws(model, sampler, done=(6, 9, 20, 6))) from error

    code, out, err = cli(run=fail)
    assert (code, out) == (1, "")
    assert "the run failed; saved in " in err
    assert err.splitlines()[-1] == "batchnuts: The density is +inf at chain 3."
    with xarray.open_dataset("out.nc", group="posterior", engine="h5netcdf") as posterior:
        assert posterior.sizes["draw"] == 6


def test_a_file_that_no_folder_takes_is_asked_for_on_a_terminal(cli, monkeypatch, tmp_path):
    """The draws are still in memory: another path, or the same again once there is room."""
    from batchnuts.files import saving

    monkeypatch.setattr(saving, "other_folders", lambda: [])
    monkeypatch.setattr(saving, "_save", full := FullBut(saving._save, "here.nc"))
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    answers = iter(["\n", f"{tmp_path}/nowhere/x.nc\n", "here.nc\n"])
    monkeypatch.setattr(sys.stdin, "readline", lambda: next(answers), raising=False)
    code, _, err = cli("--quiet")
    assert (code, full.refused) == (0, ["out.nc", "out.nc", "x.nc"])
    assert err.count("They are still in memory. Free some space and press Enter to try again") == 3
    assert "No space left on device" in err
    assert f"the draws are in {tmp_path.resolve() / 'here.nc'}" in err
    assert sorted(os.listdir()) == ["here.nc", "small.yaml"]
    answers = iter([""])  # the terminal was closed
    assert cli("--quiet")[0] == 1


class FullBut:
    """Every file is refused but one."""

    def __init__(self, save, taken):
        self.save, self.taken, self.refused = save, taken, []

    def __call__(self, groups, target, force, write):
        if target.name != self.taken:
            self.refused.append(target.name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.save(groups, target, force, write)


def test_a_disk_without_room_is_refused_before_the_run(cli, monkeypatch):
    from batchnuts.files import saving

    monkeypatch.setattr(saving, "_file_size_limit", lambda: 1000)

    def never(*_):
        raise AssertionError("the run was started")

    code, _, err = cli(run=never)
    assert code == 2  # as of any other output that cannot be written
    assert "files may be at most 1 kB long here (ulimit -f)" in err


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_away_ends_no_run(cli, monkeypatch, stream):
    """`| head -1`, a terminal that closed: the run goes on, and the file is written."""
    real = getattr(sys, stream)

    class Gone:
        def write(self, _):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

        def __getattr__(self, name):
            return getattr(real, name)

    monkeypatch.setattr(sys, stream, Gone())
    code, out, err = cli()
    assert code == 0
    if stream == "stdout":
        assert "the summary cannot be printed (Broken pipe); the draws are in " in err
    else:
        assert "Draws: " in out
    assert Path("out.nc").exists()


def test_interrupted_summary_says_where_the_draws_are(cli, monkeypatch):
    from batchnuts.cli import finish
    from batchnuts.report import table

    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "diagnose_groups", pressed)
    code, _, err = cli()
    assert code == 130
    assert "the summary was interrupted; the draws are in " in err
    assert Path("out.nc").exists()
    to_groups = finish.to_groups

    def without(*arguments, **options):
        groups = to_groups(*arguments, **options)
        return {name: group.with_attrs(left_out="It is left out.") for name, group in groups.items()}

    monkeypatch.setattr(finish, "to_groups", without)
    _, _, err = cli("--force")
    assert "out.nc. It is left out." in err


def run_process(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--config", "logreg.yaml", "--dry-run"], 0),
        (["--config", "logreg.yaml", "sampler.chians=3"], 2),
        (["--config", "logreg.yaml", "output.path=missing/x.nc"], 2),
        ([], 2),
    ],
)
def test_checks_do_not_import_tensorflow(tmp_path, arguments, code):
    script = (
        "import sys\nfrom batchnuts.sample import main\n"
        "try:\n    code = main(sys.argv[1:])\nexcept SystemExit as stop:\n    code = stop.code\n"
        "assert not {'tensorflow', 'arviz'} & set(sys.modules), 'slow imports'\n"
        "named = '--help' in sys.argv  # which describes the keys of bridges\n"
        "assert named or 'batchnuts.bridges.sections' not in sys.modules, 'a bridge that none asked for'\n"
        "sys.exit(code)"
    )
    done = run_process("-c", script, *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_module_as_a_command(tmp_path):
    done = run_process("-m", "batchnuts.sample", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "sampler.max_tree_depth  (an integer of at least 1 and at most 20; default 10)" in done.stdout
    done = run_process("-m", "batchnuts.sample", "--config", "nope", cwd=tmp_path)
    assert done.returncode == 2
    assert "Packaged configs: correlated_gaussian.yaml, eight_schools.yaml, gaussian_process.yaml, " in done.stderr
    assert "Traceback" not in done.stderr


def test_openblas_gets_one_thread_unless_the_user_says_otherwise(monkeypatch):
    """Before NumPy loads it: what `python -m batchnuts.sample` imports first has not imported NumPy."""
    code = "import sys, batchnuts.sample; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setattr(sample, "main", lambda stop: 0)
    monkeypatch.setattr(sample, "gc", SimpleNamespace(set_threshold=lambda *sizes: None))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    for expected in ("4", "1"):
        with pytest.raises(SystemExit):
            sample.program()
        assert os.environ["OPENBLAS_NUM_THREADS"] == expected
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")


def test_a_run_can_end_with_a_page_about_it(cli, tmp_path):
    code, out, _ = cli("output.report=true")
    assert code == 0
    assert out.endswith(f"Report: {tmp_path.resolve() / 'out.html'}\n")
    assert "<h2>What to do next</h2>" in Path("out.html").read_text()
    Path("out.nc").unlink()
    code, out, err = cli("output.report=true", "--quiet")
    assert (code, out) == (2, "")
    assert "out.html exists and is not overwritten. Give --force" in err
    assert cli("output.report=true", "--quiet", "--force")[:2] == (0, f"{tmp_path.resolve() / 'out.nc'}\n")


LEAVES_FILES_OPEN = """\
class Log:
    def __init__(self, name):
        self.me = self
        self.file = open(name, "w")
        self.file.write("written")

LOG, PLAIN = Log("log.txt"), open("plain.txt", "w")
PLAIN.write("written")

def density(q):
    return -0.5 * ((q - 3.0) ** 2).sum()
"""


def test_files_that_a_users_module_leaves_open_are_written(tmp_path):
    """The interpreter's last collection finds them, as it does in any program."""
    (tmp_path / "leaving.py").write_text(LEAVES_FILES_OPEN)
    (tmp_path / "c.yaml").write_text("model: {target: 'leaving:density', dimension: 2}\n")
    sizes = ["sampler.chains=4", "sampler.warmup=4", "sampler.draws=2", "sampler.max_tree_depth=2"]
    options = ["--config", "c.yaml", "--quiet", "execution.backend=jax", *sizes]
    done = run_process("-m", "batchnuts.sample", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"{name}.txt").read_text() for name in ("log", "plain")] == ["written"] * 2
