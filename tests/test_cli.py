import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import xarray
from fake_run import make_draws, report
from ruamel.yaml import YAML

from batchnuts import sample
from batchnuts.autobatch.errors import BatchnutsError

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
        def run_chains(model, sampler, execution, progress=None):
            if progress is not None:
                report(progress, sampler)
            return make_draws(model, sampler, execution) if run is None else run(model, sampler, execution)

        monkeypatch.setitem(sys.modules, "batchnuts.mcmc.chains", SimpleNamespace(run_chains=run_chains))
        code = sample.main(["--config", config, *arguments])
        return code, *capsys.readouterr()

    return call


def test_a_run_prints_summary_verdict_path_and_timings(cli, tmp_path):
    code, out, err = cli()
    assert code == 0
    assert "1 more coefficients are not shown" in out
    assert "R-hat < 1.01 on all 3 coefficients: " in out
    assert "Time: compile 1.0 s, warmup 2.0 s, sampling 3.0 s, saving " in out
    assert ", diagnostics " in out
    assert "200 useful gradients/s, utilization 0.75; 2 chunks of 10 chains on 2 threads, schedule sweep" in out
    assert f"Draws: {tmp_path.resolve() / 'out.nc'}" in out
    assert "sampling 100%" in err
    assert "utilization 0.75" in err
    assert "0 divergences" in err
    with xarray.open_dataset("out.nc", group="posterior", engine="h5netcdf") as posterior:
        assert dict(posterior["x"].sizes) == {"chain": 4, "draw": 20, "coordinate": 3}
        config = YAML(typ="safe").load(posterior.attrs["config"])
    assert config["sampler"]["draws"] == 20


def test_quiet_prints_the_path_alone(cli, tmp_path):
    code, out, err = cli("--quiet")
    assert (code, out, err) == (0, f"{tmp_path.resolve() / 'out.nc'}\n", "")


def test_options_and_overrides_may_be_mixed(cli):
    assert cli("sampler.draws=30", "--quiet", "sampler.chains=2", "--force")[0] == 0
    with xarray.open_dataset("out.nc", group="posterior", engine="h5netcdf") as posterior:
        assert (posterior.sizes["chain"], posterior.sizes["draw"]) == (2, 30)


def test_existing_output_is_refused_before_the_run(cli):
    Path("out.nc").write_text("precious")

    def never(*_):
        raise AssertionError("the run was started")

    code, _, err = cli(run=never)
    assert code == 1
    assert "exists and is not overwritten. Give --force" in err
    assert Path("out.nc").read_text() == "precious"
    assert cli("--force")[0] == 0
    assert Path("out.nc").read_bytes()[:4] == b"\x89HDF"


@pytest.mark.parametrize("path", ["missing/out.nc", "."])
def test_unwritable_output_is_refused(cli, path):
    code, out, err = cli(f"output.path={path}")
    assert (code, out) == (1, "")
    assert "Cannot write" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sampler.chians=3"], "sampler.chians: unknown key; did you mean 'chains'?"),
        (["sampler.chains=0"], "sampler.chains: found 0 (an integer); expected an integer at least 1"),
        (["sampler.draws=-1"], "sampler.draws: found -1 (an integer); expected an integer at least 1"),
        (["model.name=x"], "model.name: found 'x'; expected one of logistic_regression, correlated_gaussian"),
    ],
)
def test_bad_config_exits_2(cli, arguments, message):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not Path("out.nc").exists()


def test_bad_target_exits_2(cli):
    Path("own.yaml").write_text("model: {target: 'not_there_at_all:f', dimension: 3}\n")
    code, out, err = cli(config="own.yaml")
    assert (code, out) == (2, "")
    assert "there is no module 'not_there_at_all'" in err


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
    assert "interrupted; 6 of 20 draws of each of 4 chains are saved in " in err
    assert "The faster chains' further draws (17 in all) are in its group 'unfinished'" in err
    assert "4 chains x 6 draws" in out
    with xarray.open_dataset("out.nc", group="posterior", engine="h5netcdf") as posterior:
        assert posterior.attrs["interrupted"] == 1
        assert posterior.sizes["draw"] == 6


def test_interrupted_with_no_complete_draw_still_saves_the_others(cli):
    code, out, err = cli(run=lambda model, sampler, execution: make_draws(model, sampler, done=(0, 1, 0, 0)))
    assert code == 130
    assert "0 of 20 draws" in err
    assert "(1 in all)" in err
    assert "R-hat" not in out


def test_interrupted_before_the_first_draw_writes_nothing(cli):
    code, _, err = cli(run=lambda model, sampler, execution: make_draws(model, sampler, done=(0, 0, 0, 0)))
    assert code == 130
    assert "nothing was drawn yet and no file was written" in err
    assert os.listdir() == ["small.yaml"]


def test_a_second_key_press_does_not_lose_the_file(cli, monkeypatch):
    from batchnuts.mcmc import output

    save = output.save

    def pressed(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return save(*arguments, **options)

    monkeypatch.setattr(output, "save", pressed)
    before = signal.getsignal(signal.SIGINT)
    assert cli("--quiet")[0] == 0
    assert Path("out.nc").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupted_summary_says_where_the_draws_are(cli, monkeypatch):
    from batchnuts.mcmc import diagnostics

    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnostics, "diagnose", pressed)
    code, _, err = cli()
    assert code == 130
    assert "the summary was interrupted; the draws are in " in err
    assert Path("out.nc").exists()


def test_dry_run_prints_a_config_and_runs_nothing(cli):
    code, out, _ = cli("--dry-run", "sampler.draws=9")
    assert code == 0
    assert YAML(typ="safe").load(out)["sampler"]["draws"] == 9
    assert os.listdir() == ["small.yaml"]


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
        (["--config", "logreg.yaml", "output.path=missing/x.nc"], 1),
        ([], 2),
    ],
)
def test_checks_do_not_import_tensorflow(tmp_path, arguments, code):
    script = (
        "import sys\nfrom batchnuts.sample import main\n"
        "try:\n    code = main(sys.argv[1:])\nexcept SystemExit as stop:\n    code = stop.code\n"
        "assert not {'tensorflow', 'arviz'} & set(sys.modules), 'slow imports'\nsys.exit(code)"
    )
    done = run_process("-c", script, *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_module_as_a_command(tmp_path):
    done = run_process("-m", "batchnuts.sample", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "sampler.max_tree_depth  (an integer at least 1 and at most 20; default 10)" in done.stdout
    done = run_process("-m", "batchnuts.sample", "--config", "nope", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "Packaged configs: correlated_gaussian.yaml, eight_schools.yaml, logreg.yaml, neal_funnel.yaml" in done.stderr
    )
    assert "Traceback" not in done.stderr
