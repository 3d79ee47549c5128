import io
import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from rich.console import Console

from batchnuts.mcmc.diagnostics import coefficient_parts
from batchnuts.mcmc.diagnostics.coefficient_parts import DiagnosticsError
from batchnuts.mcmc.diagnostics.diagnose import diagnose
from batchnuts.mcmc.diagnostics.verdict import diagnose_groups
from batchnuts.mcmc.statistics import chain_moments, draw_blocks, rank_normal
from batchnuts.report import summary_table


def names(count):
    return [f"b[{index}]" for index in range(count)]


def text(table, width=160):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_values_are_those_of_arviz():
    import arviz
    import xarray

    position = np.random.default_rng(0).normal(size=(4, 100, 5)).cumsum(axis=1).astype(np.float32)
    found = diagnose(position, names(5))
    data = xarray.Dataset({"x": (("chain", "draw", "k"), position.astype(np.float64))})
    np.testing.assert_allclose(found.rhat, arviz.rhat(data)["x"].values)
    np.testing.assert_allclose(found.columns["ess_bulk"], arviz.ess(data)["x"].values)
    np.testing.assert_allclose(found.columns["mcse_mean"], arviz.mcse(data)["x"].values)
    np.testing.assert_allclose(found.columns["mean"], position.mean(axis=(0, 1)), rtol=1e-4)


def test_the_error_of_the_standard_deviation():
    """Of independent normal draws it is sd / sqrt(2 N)."""
    draws = 3.0 * np.random.default_rng(0).normal(size=(4, 2000, 3))
    found = diagnose(draws, names(3)).columns["mcse_sd"]
    np.testing.assert_allclose(found, 3.0 / np.sqrt(2 * 8000), rtol=0.1)


def test_a_summary_does_not_import_large_libraries():
    """Which would take as long as all else that a short run does after its draws."""
    code = (
        "import sys, numpy; from batchnuts.mcmc.diagnostics.diagnose import diagnose; "
        "diagnose(numpy.random.default_rng(0).normal(size=(4, 20, 2)), ['a', 'b']); "
        "sys.exit(bool({'arviz', 'matplotlib', 'scipy', 'xarray', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("draws", [50, 51])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_how_much_is_looked_at_together_does_not_change_the_values(dtype, draws, monkeypatch):
    """Blocks of chains shorter than runs of equal values, and scores that are not in a table."""
    position = np.random.default_rng(0).normal(size=(64, draws, 7)).astype(dtype)
    position[:, :, 3], position[:, :, 4] = position[:, :, 3].round(0), 2.0
    superchain = np.arange(64) % 16
    whole = diagnose(position, names(7), superchain=superchain)
    for module in (rank_normal, chain_moments, coefficient_parts, draw_blocks):
        monkeypatch.setattr(module, "BLOCK", 100)
    monkeypatch.setattr(rank_normal, "TABLE", 0)
    monkeypatch.setattr(coefficient_parts, "READ", 1)
    parts = diagnose([position[:, :, :2], position[:, :, 2:]], names(7), superchain=superchain)
    for name, values in parts.columns.items():
        np.testing.assert_allclose(values, whole.columns[name], rtol=1e-10)
    np.testing.assert_allclose(parts.nested, whole.nested, rtol=1e-10)
    np.testing.assert_allclose(parts.persistence, whole.persistence, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory_is_what_is_forecast_and_does_not_grow_with_coefficients(dtype, monkeypatch):
    for module in (rank_normal, chain_moments, coefficient_parts, draw_blocks):
        monkeypatch.setattr(module, "BLOCK", 2**12)
    monkeypatch.setattr(rank_normal, "TABLE", 0)
    monkeypatch.setattr(coefficient_parts, "OF_BLOCKS", 500_000)
    monkeypatch.setattr(coefficient_parts, "READ", 1)
    position = np.random.default_rng(0).normal(size=(500, 200, 3)).astype(dtype)
    diagnose(position[:8, :8], names(3))  # imports
    tracemalloc.start()
    try:
        diagnose(position, names(3), superchain=np.arange(500) % 16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    forecast = coefficient_parts.diagnostics_bytes(500, 200, 3, position.itemsize)
    assert forecast == coefficient_parts.diagnostics_bytes(500, 200, 1000, position.itemsize)
    assert peak < forecast < coefficient_parts.AT_ONCE * 8 * 500 * 200 * 5, "five copies in float64"


def test_draws_on_a_disk_are_diagnosed_without_being_in_memory(tmp_path):
    """The same as of arrays, from a file that is read some columns at a time; triangles and constants are left out."""
    import xarray

    rng = np.random.default_rng(0)
    sample = ("chain", "draw")
    matrix = rng.normal(size=(64, 80, 3, 3)).astype(np.float32) * np.tril(np.ones((3, 3), np.float32))
    spoiled = rng.normal(size=(64, 80, 3))
    spoiled[:, :, 1], spoiled[3, 5, 2] = 1.0, np.inf
    group = xarray.Dataset(
        {
            "mu": (sample, rng.normal(size=(64, 80)).astype(np.float32)),
            "matrix": ((*sample, "i", "j"), matrix, {"support": "covariance_cholesky"}),
            "beta": (("draw", "k", "chain"), rng.normal(size=(80, 4, 64)).astype(np.float32)),
            "spoiled": ((*sample, "m"), spoiled, {"generated": 1}),
            "count": (sample, rng.integers(0, 5, (64, 80))),
        },
        coords={"chain": range(64), "draw": range(80), "i": range(3), "j": range(3), "k": range(4), "m": range(3)},
        attrs={"superchains": 16},
    )
    flags, lp = rng.random((64, 80)) < 0.01, rng.normal(size=(64, 80))
    stats = xarray.Dataset({"diverging": (sample, flags), "lp": (sample, lp)})
    inside = diagnose_groups(group, stats)
    lower = [f"matrix[{i}, {j}]" for i in range(3) for j in range(i + 1)]
    assert [name for name in inside.names if "matrix" in name] == lower
    assert "spoiled[0]" in inside.names
    assert not {"spoiled[1]", "spoiled[2]"} & set(inside.names)
    group.to_netcdf(tmp_path / "a.nc", group="posterior", engine="h5netcdf")
    stats.to_netcdf(tmp_path / "a.nc", group="sample_stats", mode="a", engine="h5netcdf")
    groups = ("posterior", "sample_stats")
    opened = [xarray.open_dataset(tmp_path / "a.nc", group=name, engine="h5netcdf") for name in groups]
    outside = diagnose_groups(*opened)
    assert outside.names == inside.names
    assert outside.verdict() == inside.verdict()
    for name, values in inside.columns.items():
        np.testing.assert_array_equal(outside.columns[name], values)
    assert not any(array.variable._in_memory for array in opened[0].data_vars.values())


def test_variables_put_together_of_files_are_diagnosed(tmp_path):
    """They keep what is known of the first file's variable, the shape of its chunks among it."""
    import xarray

    x = np.random.default_rng(0).normal(size=(4, 50))
    chains = []
    for chain in range(4):
        variable = xarray.Dataset({"x": ("draw", x[chain])})
        variable.to_netcdf(tmp_path / f"{chain}.nc", engine="h5netcdf", encoding={"x": {"chunksizes": (20,)}})
        chains.append(xarray.load_dataset(tmp_path / f"{chain}.nc", engine="h5netcdf"))
    found = diagnose_groups(xarray.concat(chains, "chain"), xarray.Dataset())
    np.testing.assert_array_equal(found.rhat, diagnose(x[:, :, None], ["x"]).rhat)


def test_a_file_is_read_in_parts_that_it_holds_together(tmp_path, monkeypatch):
    """Each value once, and not all draws of many chains because a chunk spans these chains."""
    import xarray

    x = np.random.default_rng(0).normal(size=(20, 30, 7, 2))
    group = xarray.Dataset({"x": (("chain", "draw", "k", "j"), x)})
    chunks = {"x": {"chunksizes": (8, 10, 3, 2)}}
    group.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding=chunks)
    kept = np.array([0, 1, 2, 4, 5, 6, 7, 12, 13])
    flat = x.reshape(20, 30, 14)[:, :, kept]
    with xarray.open_dataset(tmp_path / "a.nc", engine="h5netcdf") as opened:
        block = draw_blocks.VariableBlock(opened["x"].variable, kept)
        for at_once, parts in ((100, 3 * 3 * 3), (30 * 8 * 5, 3 + 2 + 2), (10**6, 3)):
            monkeypatch.setattr(draw_blocks, "READ_AT_ONCE", at_once)
            found, sizes = np.zeros(flat.shape), []
            for *part, values in draw_blocks.parts_of(block):
                assert values.size <= max(at_once, 8 * 10 * 6)
                found[tuple(part)] += values
                sizes.append(values.size)
            np.testing.assert_array_equal(found, flat)
            assert len(sizes) == parts
            rows = np.array([0, 29, 30, 31, 250, 599])
            np.testing.assert_array_equal(draw_blocks.rows_of(block, rows), flat.reshape(-1, 9)[rows])
            some = draw_blocks.some_columns([flat[:, :, :2], block], [10, 1, 2, 8])
            for column, index in zip(some, [8, 1, 0, 6], strict=True):
                np.testing.assert_array_equal(column, flat[:, :, index])
            both = draw_blocks.columns_of([flat[:, :, :2], block], slice(1, 8))
            np.testing.assert_array_equal(both, np.moveaxis(flat[:, :, [1, 0, 1, 2, 3, 4, 5]], 2, 0))


def test_verdict_yes():
    position = np.random.default_rng(0).normal(size=(100, 100, 3))
    found = diagnose(position, names(3))
    assert found.converged is True
    worst = int(np.argmax(found.rhat))
    assert found.verdict().startswith(f"R-hat < 1.01 on all 3 coefficients: yes, worst b[{worst}] = 1.0")
    assert "Divergences: 0" in found.verdict()


def test_verdict_no_names_the_worst():
    position = np.random.default_rng(0).normal(size=(10, 100, 3))
    position[:5, :, 2] += 3
    diverging = np.zeros((10, 100), dtype=bool)
    diverging[0, :3] = True
    found = diagnose(position, names(3), diverging, diverging)
    assert found.converged is False
    assert "coefficients: no, worst b[2] = " in found.verdict()
    assert "Divergences: 3 (0.3% of the draws)" in found.verdict()
    assert "reached max_tree_depth: 3" in found.verdict()


def test_a_coefficient_that_never_moved_is_no_success():
    position = np.random.default_rng(0).normal(size=(10, 100, 3))
    position[:, :, 1] = 4.0
    found = diagnose(position, names(3))
    assert found.converged is False
    assert "worst b[1] = not defined (it never moved)" in found.verdict()
    assert np.isnan(found.columns["ess_bulk"][1])


@pytest.mark.parametrize("shape", [(1, 100, 2), (10, 3, 2), (1, 1, 2)])
def test_too_little_for_rhat_is_said(shape):
    found = diagnose(np.random.default_rng(0).normal(size=shape), names(2))
    assert found.converged is None
    assert f"there are {shape[0]} and {shape[1]}" in found.verdict()
    assert "b[1]" in text(summary_table(found, 5))


def test_table_is_bounded():
    position = np.random.default_rng(0).normal(size=(4, 50, 20))
    position[:2, :, 17] += 2
    found = diagnose(position, names(20))
    short = text(summary_table(found, 4))
    rows = [line for line in short.splitlines() if line.strip().startswith("b[")]
    assert len(rows) == 4
    assert rows[0].split()[0] == "b[17]"
    assert "16 more coefficients are not shown" in short
    whole = text(summary_table(found, 20))
    assert [line.split()[0] for line in whole.splitlines() if line.strip().startswith("b[")] == names(20)
    assert "not shown" not in whole
    assert "1 more coefficient is not shown" in text(summary_table(found, 19))
    with pytest.raises(DiagnosticsError, match="0 rows"):
        summary_table(found, 0)


LONG = "a_long_name_of_a_parameter_of_the_model"


@pytest.mark.parametrize(
    ("name", "width", "columns"),
    [
        ("theta", 120, "mean sd 5% 95% mcse_mean mcse_sd ess_bulk ess_tail r_hat"),
        ("theta", 80, "mean sd mcse_mean ess_bulk ess_tail r_hat"),
        ("theta", 60, "mean sd ess_bulk r_hat"),
        (LONG, 120, "mean sd 5% 95% mcse_mean ess_bulk ess_tail r_hat"),
        (LONG, 60, "mean sd ess_bulk r_hat"),
        (LONG, 40, "mean r_hat"),
    ],
)
def test_narrow_tables_leave_columns_out_and_cut_nothing(name, width, columns):
    position = np.random.default_rng(0).normal(size=(4, 50, 3)) * [1e3, -1e-4, 1]
    found = diagnose(position, [f"{name}[{index}]" for index in (0, 1, 10)])
    lines = text(summary_table(found, width=width), width).splitlines()
    assert max(map(len, lines)) <= width
    head = next(number for number, line in enumerate(lines) if "r_hat" in line)
    assert lines[head].split() == columns.split()
    rows = [re.split("   +", line.strip()) for line in lines[head + 2 :] if line.strip()]
    assert "".join(row[0] for row in rows) == "".join(found.names), "long names take several lines"
    last = [row[-1] for row in rows if len(row) > 1]
    assert last == [f"{value:.4f}" for value in found.rhat]


@pytest.mark.parametrize(("chains", "said"), [(1, "1 coefficient, 1 chain x 50 draws"), (4, "1 coefficient, 4 chains")])
def test_one_of_something_is_in_the_singular(chains, said):
    found = diagnose(np.random.default_rng(0).normal(size=(chains, 50, 1)), ["mu"])
    assert text(summary_table(found)).startswith(said)
    assert chains == 1 or "R-hat < 1.01 on the one coefficient: " in found.verdict()


def test_numbers_whose_squares_overflow_are_ranked_like_others():
    """Without a warning of NumPy's. Ranks know nothing of size; the standard deviation is not known."""
    rng = np.random.default_rng(0)
    logarithms = rng.uniform(-3, 220, size=(64, 50, 1))
    wide, narrow = (diagnose(draws, ["x"]) for draws in (10.0**logarithms, logarithms))
    for name in ("r_hat", "ess_bulk", "ess_tail"):
        np.testing.assert_allclose(wide.columns[name], narrow.columns[name])
    assert not np.isfinite(wide.columns["sd"]).any()


def test_unusable_draws_are_refused():
    with pytest.raises(DiagnosticsError, match=r"expected \[chains, draws, 2\]"):
        diagnose(np.zeros((4, 10, 3)), names(2))
    with pytest.raises(DiagnosticsError, match="nothing to diagnose"):
        diagnose(np.zeros((4, 0, 2)), names(2))
    with pytest.raises(DiagnosticsError, match="NaN or infinite"):
        diagnose(np.full((4, 10, 2), np.nan), names(2))


def test_labels_in_brackets_are_no_markup():
    found = diagnose(np.random.default_rng(0).normal(size=(4, 50, 2)), ["beta[age]", "beta[/x]"])
    shown = text(summary_table(found))
    assert "beta[age]" in shown
    assert "beta[/x]" in shown


def test_a_run_of_divergences_is_called_unusable():
    draws = np.random.default_rng(0).normal(size=(4, 50, 1))
    assert "WARNING" in diagnose(draws, ["x"], np.ones((4, 50), bool)).verdict()
    assert "(100% of the draws)" in diagnose(draws, ["x"], np.ones((4, 50), bool)).verdict()
    assert "WARNING" not in diagnose(draws, ["x"], np.zeros((4, 50), bool)).verdict()


@pytest.mark.parametrize("draws", [1, 2, 3, 20])
def test_nested_rhat_decides_where_chains_form_superchains(draws):
    """Down to one draw of each chain; the column r_hat is the usual one."""
    superchain = np.arange(512) % 16
    position = np.random.default_rng(1).normal(size=(512, draws, 3))
    found = diagnose(position, names(3), superchain=superchain)
    assert found.converged is True
    assert found.limits.min() ** 2 >= 1.01**2 + 0.7 / (32 * (draws + 1)) - 1e-12
    assert found.limits.max() ** 2 < 1.01**2 + 6 / (32 * draws)
    verdict = found.verdict().splitlines()[0]
    by_chance = " or what chance allows" if draws == 1 else ""
    assert verdict.startswith(
        f"Nested R-hat < 1.01{by_chance} (16 superchains of 32 chains) on all 3 coefficients: yes"
    )
    assert verdict.endswith(f" (limit {found.limit:.4f})") is (draws == 1)
    if draws == 20:
        np.testing.assert_array_equal(found.rhat, diagnose(position, names(3)).rhat)
    position[:, :, 1] += 0.6 * np.random.default_rng(2).normal(size=16)[superchain][:, None]
    found = diagnose(position, names(3), superchain=superchain)
    assert found.converged is False
    assert "no, worst b[1] = " in found.verdict()
    assert found.worst_first()[0] == 1
    table = text(summary_table(found, 1))
    assert "nested R-hat" in table.splitlines()[2]
    assert "r_hat" not in table
    assert table.splitlines()[4].split()[-1] == f"{found.nested[1]:.4f}"


@pytest.mark.parametrize("superchain", [np.zeros(8, int), np.arange(8)])
def test_without_superchains_of_several_chains_rhat_decides(superchain):
    position = np.random.default_rng(0).normal(size=(8, 400, 2))
    found = diagnose(position, names(2), superchain=superchain)
    assert found.nested is None
    assert found.verdict().startswith("R-hat < 1.01 on all 2 coefficients: yes")
