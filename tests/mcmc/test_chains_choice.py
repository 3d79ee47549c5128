"""`sampler.chains: auto`: the choice in a table of cases with known times, and a run that makes it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchnuts import Model, sample_chains
from batchnuts.disk_cache.folder import keeping
from batchnuts.mcmc.execution.density_identity import density_identity
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.library_choice import choose_density_library
from batchnuts.mcmc.model.model import ModelError
from batchnuts.mcmc.run import choose_by_time, gradient_times
from batchnuts.mcmc.run.chains_choice import choose_chains, draws_together, possible_chains
from batchnuts.mcmc.run.forecast import Size
from batchnuts.mcmc.run.gradient_times import GradientTimes, time_gradients
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.mcmc.settings.until import Until
from batchnuts.mcmc.starts.find_starts import check_at_starts
from batchnuts.mcmc.statistics.convergence import convergence
from batchnuts.mcmc.warmup.windows import likely_transitions
from batchnuts.settings.schema import SettingsError

CHEAP_CHUNKS, COSTLY_CHUNKS = (256, 2, False), (128, 1, False)
CHEAP = GradientTimes((1, 128), (1e-7, 3e-6), *CHEAP_CHUNKS)
COSTLY = GradientTimes((1, 128), (0.1, 12.8), *COSTLY_CHUNKS)
"""A kernel dominates the one; the other takes twice as long for twice the lanes."""
EXECUTION = ExecutionSettings.model_validate({"backend": "jax"})


def of(dimension: int) -> Size:
    return Size.at_least(dimension, "float32")


TEN = of(10)


def sampler(draws: int = 100_000, warmup: Any = "auto", **until: Any) -> SamplerSettings:
    return split_settings({"chains": "auto", "draws": draws, "warmup": warmup, "until": until})[0]


def chosen(times: GradientTimes, settings: SamplerSettings, cores: int = 2) -> int:
    numbers = possible_chains(settings, EXECUTION, TEN, cores)
    seconds = {chains: times.of_all_chains(chains, 10, EXECUTION, cores) for chains in numbers}
    return choose_chains(settings, seconds, cores, 10).chains


def test_a_cheap_density_gets_more_chains_than_a_costly_one() -> None:
    for warmup in ("auto", 100):
        asked = sampler(warmup=warmup, ess_bulk=400.0)
        assert chosen(COSTLY, asked) < chosen(CHEAP, asked)


def test_chains_that_run_at_their_own_pace_need_no_others() -> None:
    """They share no sweep, whose cost many would divide; so fewer of them make more draws each, after one warmup."""
    own_pace = GradientTimes((1, 128), (6e-7, 3e-6), 128, 1, own_pace=True)
    asked = sampler(ess_bulk=4000.0, rhat=1.01)
    assert chosen(own_pace, asked) < chosen(CHEAP, asked)
    assert own_pace.of_all_chains(1024, 10, EXECUTION, 2) < 0.2 * CHEAP.of_all_chains(1024, 10, EXECUTION, 2)


def test_more_cores_and_more_accuracy_ask_for_more_chains() -> None:
    by_accuracy = [chosen(CHEAP, sampler(ess_bulk=ess)) for ess in (40.0, 400.0, 4000.0, 40_000.0, 400_000.0)]
    assert by_accuracy == sorted(by_accuracy)
    assert by_accuracy[0] < by_accuracy[-1]
    by_cores = [chosen(CHEAP, sampler(ess_bulk=4000.0), cores) for cores in (1, 2, 8, 64)]
    assert by_cores == sorted(by_cores)
    assert by_cores[0] < by_cores[-1]
    assert chosen(COSTLY, sampler(ess_bulk=4000.0), 64) >= 64, "each core has a chain"


def test_a_long_warmup_asks_for_fewer_chains() -> None:
    by_warmup = [chosen(CHEAP, sampler(warmup=warmup, ess_bulk=4000.0)) for warmup in (10, 100, 1000, 10_000)]
    assert by_warmup == sorted(by_warmup, reverse=True)
    assert by_warmup[-1] < by_warmup[0]


def test_warmups_are_as_long_as_they_are_expected_to_be() -> None:
    automatic = sampler(ess_bulk=400.0).warmup
    assert likely_transitions(automatic, 64, nested=True) == 96
    assert likely_transitions(automatic, 16, nested=False) == 147
    assert likely_transitions(automatic, 8, nested=False) == 121
    assert likely_transitions(automatic, 4, nested=False) == 228
    assert likely_transitions(automatic, 1, nested=False) == automatic.maximum
    earlier = automatic.model_copy(update={"from_": "run.nc"})
    assert likely_transitions(earlier, 64, nested=True) == 15
    assert likely_transitions(sampler(warmup=40, ess_bulk=400.0).warmup, 64, nested=True) == 40


def test_rhat_asks_for_draws_of_each_group_that_it_compares() -> None:
    rhat = Until(rhat=1.01)
    assert draws_together(rhat, 256, 1) == pytest.approx(256 * 2 / 0.0201)
    assert draws_together(rhat, 16, 1) == pytest.approx(16 * 2 / 0.0201)
    assert draws_together(Until(rhat=1.01, ess_bulk=400.0, ess_tail=4000.0), 16, 1) == pytest.approx(8000)
    assert draws_together(Until(rhat=1.01, ess_tail=400.0), 16, 1) == pytest.approx(16 * 2 / 0.0201)


@pytest.mark.parametrize("chains", [8, 16])
def test_the_worst_of_many_columns_asks_for_more_draws(chains: int) -> None:
    """So many that R-hat of half of 40 such runs of independent draws is below its limit; within three errors."""
    columns, limit, rng = 50, 1.05, np.random.default_rng(0)
    together = draws_together(Until(rhat=limit), chains, columns)
    draws = math.ceil(together / chains)
    below = 0
    for _ in range(40):
        values = rng.normal(size=(chains, draws, columns))
        for i in range(1, draws):  # a draw of two is effective
            values[:, i] = values[:, i - 1] / 3 + np.sqrt(8) / 3 * values[:, i]
        below += convergence(values, ["r_hat"])["r_hat"].max() < limit
    assert abs(below - 20) <= 3 * math.sqrt(10)


def test_where_all_draws_are_too_few_there_are_as_many_chains_as_may_be() -> None:
    settings = sampler(draws=20, ess_bulk=4000.0)
    seconds = {8: 1e-6, 16: 1e-5}
    found = choose_chains(settings, seconds, 2, 10)
    assert found.chains == 16
    assert "sampler.draws=20 of each are likely too few for bulk ESS >= 4000" in found.reason
    found = choose_chains(settings, {**seconds, 512: 1.0}, 2, 10)
    assert found.chains == 512
    assert "are likely too few" not in found.reason


def test_the_reason_names_what_is_asked_and_the_neighbours() -> None:
    found = choose_chains(sampler(warmup=90, ess_bulk=40.0, rhat=1.05), {8: 2e-5, 16: 1e-5, 32: 2e-5}, 2, 1)
    assert found.chains == 16
    assert found.reason.startswith("16 are expected to reach bulk ESS >= 40 and R-hat < 1.05 fastest on 2 processors")
    assert "8 chains 2.0 times as long, 32 chains 2.0 times as long" in found.reason
    assert found.reason.endswith("sampler.chains=16 reproduces this run")


def test_numbers_fit_the_other_settings() -> None:
    asked = sampler(ess_bulk=400.0)
    assert possible_chains(asked, EXECUTION, TEN, 1)[0] == 8
    assert possible_chains(asked, EXECUTION, TEN, 12)[0] == 16
    assert possible_chains(asked.model_copy(update={"superchains": 20}), EXECUTION, TEN, 2)[0] == 32
    assert possible_chains(asked, EXECUTION, TEN, 2, starts=20) == (32,), "with 64 chains there are 16 superchains"
    assert len(possible_chains(asked, EXECUTION, of(1000), 2)) < len(possible_chains(asked, EXECUTION, TEN, 2)), (
        "memory"
    )
    data = replace(TEN, of_data=100)  # which a stream does not keep in memory
    whole, stream = (possible_chains(asked, EXECUTION, data, 2, streamed=streamed) for streamed in (False, True))
    assert len(whole) < len(stream)
    with pytest.raises(SettingsError, match="found 50 starts, more than the superchains of 4096 chains"):
        possible_chains(asked, EXECUTION, TEN, 2, starts=50)
    with pytest.raises(SettingsError, match=r"chains x sampler.draws: 8 x 10{8} draws"):
        possible_chains(sampler(draws=10**8, ess_bulk=400.0), EXECUTION, of(10**6), 1)


def test_times_between_and_beyond_the_measured_widths() -> None:
    times = GradientTimes((1, 16), (2.0, 17.0), *COSTLY_CHUNKS)
    assert [times.of(width) for width in (1, 2, 16, 32)] == [2.0, 3.0, 17.0, 34.0]
    of_128, of_256 = (times.of_all_chains(chains, 10, EXECUTION, 1) for chains in (128, 256))
    assert of_256 == pytest.approx(2 * of_128), "chunks of 128, one after another"


def gaussian() -> Model:
    return Model.from_function(lambda x: -0.5 * (x**2).sum(), dimension=2)


@pytest.mark.slow
def test_a_density_is_timed() -> None:
    model = gaussian()
    found = time_gradients(value_and_gradient(model), np.zeros(2, "float32"), EXECUTION)
    assert found.widths[0] == 1
    assert len(found.seconds) == len(found.widths)
    assert all(0 < seconds < 1 for seconds in found.seconds)


def test_where_compiling_takes_long_two_widths_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def fake(program: Any, arguments: Any) -> tuple[float, float]:
        compiled.append(lanes := len(arguments[0]))
        return 1e-3 * lanes, 3.0

    monkeypatch.setattr(gradient_times, "_of_one_evaluation", fake)
    found = time_gradients(value_and_gradient(gaussian()), np.zeros(2, "float32"), EXECUTION)
    assert compiled == [1, 128]
    assert (found.widths, found.seconds) == ((1, 128), (1e-3, 0.128))


@pytest.mark.parametrize("in_machine_code", [True, False])
def test_a_density_in_machine_code_is_timed_for_one_lane(
    in_machine_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At more lanes it takes as many times as long, and is timed for as long as it takes."""
    model, at = gaussian(), np.zeros((1, 2), "float32")
    density_library, execution = choose_density_library(model, EXECUTION, at[0])
    checked = check_at_starts(model, density_library, lambda attempt: at, at)
    asked: list[Any] = []
    monkeypatch.setattr(gradient_times, "time_gradients", lambda *arguments: asked.append(arguments[-1]))
    library = replace(density_library, in_machine_code=in_machine_code)
    gradient_times.gradient_times(model, library, checked, execution)
    assert asked == [(1,) if in_machine_code else gradient_times.WIDTHS]


def test_times_are_kept_for_what_the_density_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One measurement for two models with the same density; another for another density, and where nothing is kept."""
    measured: list[int] = []

    def fake(*_: Any) -> GradientTimes:
        measured.append(1)
        return GradientTimes((1, 16), (1e-6 * len(measured), 2e-6), *CHEAP_CHUNKS)

    monkeypatch.setattr(gradient_times, "time_gradients", fake)

    def times(scale: float, cache: str | None = str(tmp_path), twin: Any = None) -> GradientTimes:
        density = Model.from_function(lambda x: -scale * (x**2).sum(), dimension=2)
        model = replace(density, batched_value_and_gradient=twin)
        at = np.zeros((1, 2), "float32")
        density_library, execution = choose_density_library(model, EXECUTION, at[0])
        with keeping(cache):
            checked = check_at_starts(model, density_library, lambda attempt: at, at)
            assert (checked.identity is not None) == (cache is not None)  # it is that which is found without a check
            alone = density_identity(model, density_library, at[0], [1])
            assert density_identity(model, density_library, at[0], [1], checked.identity) == alone
            return gradient_times.gradient_times(model, density_library, checked, execution)

    first = times(0.5)
    assert times(0.5) == first
    assert len(measured) == 1
    assert times(0.7) != first
    with monkeypatch.context() as patch:
        patch.setattr(gradient_times, "surroundings", lambda: "another processor")
        assert times(0.5) != first
    assert times(0.5, None) != first
    assert len(measured) == 4

    def twin(wide: float) -> Any:
        """Batched by hand; for 16 lanes with another factor."""
        return lambda x: (-0.5 * (x**2).sum(axis=-1), -(wide if x.shape[0] == 16 else 1.0) * x)

    with_twin = times(0.5, twin=twin(1.0))
    assert with_twin != first
    assert times(0.5, twin=twin(1.0)) == with_twin
    assert times(0.5, twin=twin(2.0)) != with_twin
    assert len(measured) == 6


def fake_times(monkeypatch: pytest.MonkeyPatch, times: GradientTimes) -> None:
    monkeypatch.setattr(choose_by_time, "gradient_times", lambda *_: times)
    monkeypatch.setattr(choose_by_time, "processors", lambda: 2)


def test_the_number_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = gaussian(), sampler(ess_bulk=400.0)
    for times in (CHEAP, COSTLY):
        fake_times(monkeypatch, times)
        assert choose_by_time.choose_by_time(model, asked, EXECUTION).chains == chosen(times, asked)
    fake_times(monkeypatch, CHEAP)
    starts = {"position": np.zeros((20, 2)).tolist()}
    given = asked.model_copy(update={"init": asked.init.model_copy(update={"values": starts})})
    assert choose_by_time.choose_by_time(model, given, EXECUTION).chains == 32
    observed = replace(model, log_likelihood=lambda x: x, observed_data={"y": (("n",), np.zeros(1_000_000))})
    with pytest.raises(SettingsError, match="take about"):  # the least number takes too much memory
        choose_by_time.choose_by_time(observed, asked, EXECUTION)
    assert choose_by_time.choose_by_time(observed, asked, EXECUTION, content=Content(groups=())).chains == chosen(
        CHEAP, asked
    )


def test_what_is_wrong_with_a_density_is_said_as_without_auto() -> None:
    model = Model.from_function(lambda x: x.nothing, dimension=2)
    with pytest.raises(ModelError) as fixed:
        sample_chains(model, chains=4, progress=False, backend="jax")
    with pytest.raises(ModelError) as auto:
        sample_chains(model, chains="auto", until={"ess_bulk": 100.0}, progress=False, backend="jax")
    assert str(auto.value) == str(fixed.value)


@pytest.mark.slow
def test_a_run_with_the_chosen_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gaussian()
    fake_times(monkeypatch, COSTLY)
    options = {"warmup": 10, "draws": 400, "seed": 3, "progress": False, "until": {"ess_bulk": 100.0}}
    result = sample_chains(model, chains="auto", **options)
    attributes = result.posterior.attrs
    chains = result.posterior.sizes["chain"]
    assert chains == attributes["chains_requested"]
    assert attributes["chains_reason"].startswith(f"{chains} are expected to reach bulk ESS >= 100 fastest")
    again = sample_chains(model, chains=chains, **options)
    assert "chains_reason" not in again.posterior.attrs
    np.testing.assert_array_equal(result.posterior["position"].values, again.posterior["position"].values)


def test_auto_is_refused_where_there_is_no_compiled_machine() -> None:
    for options in ({"expert": {"executor": "unbatched"}}, {"expert": {"mode": "eager"}}, {"backend": "numpy"}):
        with pytest.raises(SettingsError, match="chains: found auto with executor"):
            sample_chains(gaussian(), chains="auto", until={"ess_bulk": 100.0}, progress=False, **options)
