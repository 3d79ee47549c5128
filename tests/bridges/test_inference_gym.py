"""Targets of the Inference Gym as models: densities, reported values, ground truths, configs and mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts import Model, sample_chains
from batchnuts.bridges import inference_gym as bridge
from batchnuts.bridges import tfp as shared
from batchnuts.bridges.inference_gym import OFFLINE, STATISTICS, leaves, make_target, offline_targets
from batchnuts.cli.config import ConfigError, build_model, load_config
from batchnuts.mcmc.model.model import ModelError

pytest.importorskip("inference_gym")


def structure_of(target: Any, model: Model, position: Any) -> tuple[Any, Any]:
    """The target's own structure of values at a flat position, by its own bijectors, and the sum of their Jacobians."""
    bijectors = [leaf.value for leaf in leaves(target.default_event_space_bijector)]
    shapes = [leaf.value for leaf in leaves(target.event_shape)]
    before = [b.inverse_event_shape(s) for b, s in zip(bijectors, shapes, strict=True)]
    parts = tf.split(position, [int(np.prod(s)) for s in before])
    parts = [tf.reshape(part, shape) for part, shape in zip(parts, before, strict=True)]
    values = [b.forward(part) for b, part in zip(bijectors, parts, strict=True)]
    jacobian = sum(b.forward_log_det_jacobian(p, p.shape.rank) for b, p in zip(bijectors, parts, strict=True))
    single = [leaf.path for leaf in leaves(target.dtype)] == [()]
    return values[0] if single else tf.nest.pack_sequence_as(target.dtype, values), jacobian


def value_and_gradient(function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return value.numpy(), tape.gradient(value, x).numpy()


def reported(model: Model, position: Any) -> dict[str, Any]:
    """What the output has of a draw."""
    values = model.constrain(position)
    own = values if model.reports_variables else {}
    return {**own, **(model.generated(values) if model.generated is not None else {})}


def compare(name: str) -> None:
    """Value, gradient and reported values against the target's own, at two positions; and shapes of ground truths."""
    target = make_target(name)
    model = Model.from_inference_gym(target)

    def theirs(x: Any) -> Any:
        structure, jacobian = structure_of(target, model, x)
        return target.unnormalized_log_prob(structure) + jacobian

    for row in np.random.default_rng(5).uniform(-0.5, 0.5, (2, model.dimension)).astype(model.dtype):
        x = tf.constant(row)
        value, gradient = value_and_gradient(model.flat_log_density, x)
        expected = value_and_gradient(theirs, x)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(value, expected[0], rtol=1e-5)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5 * np.abs(expected[1]).max())
        structure, _ = structure_of(target, model, x)
        found = reported(model, x)
        for key, transformation in target.sample_transformations.items():
            for leaf in leaves(transformation(structure)):
                own = ".".join(leaf.path)
                full = (own or key) if key == "identity" else ".".join((key, *leaf.path))
                np.testing.assert_allclose(found[full], leaf.value, rtol=1e-6)
    for full, (dims, table) in model.ground_truth.items():
        assert dims[0] == "statistic"
        assert table.shape == (len(STATISTICS), *found[full].shape)
        assert np.isfinite(table[0]).all()


@pytest.mark.parametrize("name", ["EightSchools"])
def test_a_target_is_its_density_and_its_transformations(name: str) -> None:
    compare(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OFFLINE if name != "EightSchools"])
def test_every_offline_target_is_its_density_and_its_transformations(name: str) -> None:
    compare(name)


def test_all_offline_targets_are_listed() -> None:
    """Every class that can be made without arguments and without a download."""
    import inspect

    targets = bridge.import_targets()
    free = {
        name
        for name in targets.__all__
        if all(p.default is not p.empty for p in inspect.signature(getattr(targets, name)).parameters.values())
    }
    downloads = {name for name in free if name.startswith(("GermanCredit", "Radon"))}
    assert set(OFFLINE) == free - downloads
    assert len(downloads) == 7
    assert offline_targets()["Banana"]().name == "banana"


@pytest.mark.slow
def test_a_sampled_run_meets_the_ground_truth_in_its_file() -> None:
    """Eight schools: z of means and standard deviations, against the standard errors of both."""
    result = sample_chains(
        Model.from_inference_gym("EightSchools"), chains=128, warmup=400, draws=100, seed=2, target_acceptance=0.9
    )
    truth = result["ground_truth"]
    assert list(truth["statistic"].values) == list(STATISTICS)
    for name in ("avg_effect", "log_stddev", "school_effects"):
        draws = result["posterior"][name].values
        mean, error, deviation, _ = truth[name].values
        standard = np.sqrt(error**2 + draws.mean(1).var(0, ddof=1) / len(draws))
        assert (np.abs(draws.mean((0, 1)) - mean) < 5 * standard).all()
        np.testing.assert_allclose(draws.std((0, 1)), deviation, rtol=0.1)


def from_config(tmp_path: Path, text: str) -> Model:
    (tmp_path / "config.yaml").write_text(f"model: {text}\n")
    return build_model(load_config(str(tmp_path / "config.yaml")).model)


def test_a_config_names_a_target_and_its_options(tmp_path: Path) -> None:
    model = from_config(tmp_path, "{inference_gym: NealsFunnel, options: {ndims: 3}}")
    assert [(v.name, v.shape) for v in model.variables] == [("identity", (3,))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "inference_gym: EightSchool",
            r"no target 'EightSchool'; did you mean 'EightSchools'\? Those that need no download: Banana",
        ),
        ("inference_gym: banana", "did you mean 'Banana'"),
        ("inference_gym: NealsFunnel, options: {dims: 3}", "takes .ndims, .*not 'dims'; did you mean 'ndims'"),
        ("inference_gym: LogisticRegression", "data of your own .train_features, train_labels"),
        ("inference_gym: NealsFunnel, ndims: 3", "model.ndims: unknown key"),
    ],
)
def test_mistakes_in_a_config_are_named(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_config(tmp_path, "{" + options + "}")


def test_a_target_that_needs_a_download_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "installed_version", lambda name: None if "dataset" in name else "0.0.5")
    with pytest.raises(ModelError, match="RadonContextualEffectsIndiana needs a download"):
        Model.from_inference_gym("RadonContextualEffectsIndiana")
    targets = bridge.import_targets()
    with pytest.raises(ModelError, match="GermanCreditNumericLogisticRegression needs a download"):
        Model.from_inference_gym(targets.GermanCreditNumericLogisticRegression())


def test_other_objects_are_refused() -> None:
    targets = bridge.import_targets()
    with pytest.raises(ModelError, match="call it: it is a class"):
        Model.from_inference_gym(targets.Banana)
    with pytest.raises(ModelError, match="takes a target, found 3"):
        Model.from_inference_gym(3)


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "inference_gym is not installed"), ("0.0.4", r"0\.0\.4 is installed; this bridge needs 0\.0\.5")],
)
def test_a_package_that_is_missing_or_too_old(
    monkeypatch: pytest.MonkeyPatch, version: str | None, message: str
) -> None:
    monkeypatch.setattr(bridge, "installed_version", lambda _: version)
    with pytest.raises(ModelError, match=message):
        Model.from_inference_gym("Banana")


def test_a_target_that_fails_is_named_by_file_and_line() -> None:
    targets = bridge.import_targets()

    class Wrong(targets.Banana):  # type: ignore[misc]
        def _unnormalized_log_prob(self, value: Any) -> Any:
            raise RuntimeError("no such county")

    line = 1 + next(n for n, text in enumerate(Path(__file__).read_text().splitlines()) if "no such county" in text)
    model = Model.from_inference_gym(Wrong())
    with pytest.raises(ModelError, match=re.escape(f"no such county at {__file__}:{line}")):
        model.check()


def test_versions_are_compared_by_numbers() -> None:
    shared.require_version("a_package", "0.10.0.dev1", (0, 9))
    with pytest.raises(ModelError, match=r"a-package>=0\.10"):
        shared.require_version("a_package", "0.9.9", (0, 10))
