import ast
import inspect
import typing

import numpy as np
import pydantic
import pytest

import batchnuts
from batchnuts.api import options
from batchnuts.api.options import Options
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.settings.schema import SettingsError


def test_defaults_and_split():
    sampler, execution = split_settings({"chains": 4, "expert": {"mode": "eager"}, "target_acceptance": 0.9})
    assert sampler == SamplerSettings(chains=4, target_acceptance=0.9)
    assert execution == ExecutionSettings(expert={"mode": "eager"})
    assert sampler.step_size is None
    assert execution.max_stack_depth is None


def test_numpy_scalars_are_numbers():
    sampler, _ = split_settings({"chains": np.int64(8), "step_size": np.float32(0.5)})
    assert (sampler.chains, sampler.step_size) == (8, 0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"chains": 0}, "chains: found 0; expected auto, or an integer of at least 1 and at most 10,000,000"),
        ({"chains": 2.0}, "chains: found 2.0 (a number); expected an integer or auto"),
        ({"chains": True}, "chains: found True (a boolean); expected an integer or auto"),
        ({"draws": -1}, "draws: found -1 (an integer); expected an integer of at least 1"),
        (
            {"warmup": -1},
            "warmup.transitions: found -1; expected auto, or an integer of at least 0 and at most 1",
        ),
        ({"warmup": "long"}, "warmup.transitions: found 'long'"),
        ({"warmup": 2.5}, "warmup: found 2.5; expected auto, a number of transitions, or a mapping with keys among "),
        ({"warmup": True}, "warmup: found True; expected auto, a number of transitions, or a mapping"),
        ({"warmup": {"pol": "all"}}, "warmup.pol: unknown key; did you mean 'pool'?"),
        ({"warmup": {"pool": "each"}}, "warmup.pool: found 'each' (a string); expected one of all, groups, none"),
        ({"warmup": {"from": 3}}, "warmup.from: found 3 (an integer); expected null or a string"),
        ({"warmup": {"from": {}}}, "warmup.from: found an object dict; expected the path of an earlier run's file, or"),
        ({"warmup": {"form": "run.nc"}}, "warmup.form: unknown key; did you mean 'from'?"),
        (
            {"warmup": {"minimum": 100, "maximum": 10}},
            "warmup.minimum: found 100 with maximum 10; expected at most the",
        ),
        ({"warmup": {"minimum": 2000}}, "warmup.minimum: found 2000 with maximum 1000; expected at most the maximum"),
        (
            {"backend": "numpy", "expert": {"mode": "xla"}},
            "expert.mode: found 'xla', which has no effect on backend numpy; leave it out",
        ),
        ({"warmup": {"maximum": 0}}, "warmup.maximum: found 0 (an integer); expected an integer of at least 1"),
        (
            {"chains": "auto"},
            "chains: found 'auto', which needs a target accuracy",
        ),
        ({"chains": "auto", "until": {"seconds": 1.0}}, "chains: found 'auto', which needs a target accuracy"),
        ({"start": "window"}, "start: found 'window'"),
        (
            {"start": "ensemble", "chains": 15},
            "start: found 'ensemble' with 15 chains; expected at least 16, or start: auto",
        ),
        (
            {"start": "ensemble", "warmup": {"pool": "none"}},
            "start: found 'ensemble' with warmup.pool 'none'; all chains share what it adapts, expected",
        ),
        ({"start": "ensemble", "warmup": {"from": "a.nc"}}, "start: found 'ensemble' with warmup.from"),
        ({"start": "ensemble", "warmup": 0}, "start: found 'ensemble' with no warmup; expected some transitions"),
        (
            {"start": "ensemble", "warmup": {"maximum": 20}},
            "start: found 'ensemble' with warmup.maximum 20; expected at least 40",
        ),
        ({"superchains": 0}, "superchains: found 0 (an integer); expected null or an integer of at least 1"),
        ({"chains": 4, "superchains": 5}, "superchains: found 5; expected at most the number of chains, 4"),
        ({"seed": 2**63}, "expected an integer of at least 0 and below 2**63"),
        ({"max_tree_depth": 21}, "expected an integer of at least 1 and at most 20"),
        ({"target_acceptance": 1.0}, "expected a number of at least 0.01 and at most 0.9999"),
        ({"step_size": 0.0}, "step_size: found 0.0 (a number); expected null or a number of at least 1e-30"),
        ({"step_size": float("nan")}, "step_size: found nan (a number); expected null or a number of at least 1e-30"),
        ({"expert": {"mode": "xlaa"}}, "expected one of xla, graph, eager; did you mean 'xla'?"),
        ({"max_stack_depth": 0}, "expected null or an integer of at least 1"),
        ({"cache": 3}, "cache: found 3; expected auto, the path of a folder, or null for no cache"),
        ({"cache": False}, "cache: found False; expected auto, the path of a folder, or null for no cache"),
        ({"cache": ""}, "cache: found '', which is not a path here; expected auto, the path of a folder"),
        ({"cache": __file__}, "which is not a folder; expected auto, the path of a folder, or null for no cache"),
        ({"cache": "a\0b"}, "which is not a path here"),
        ({"cache": "~nobody_here/x"}, "which is not a path here"),
        (
            {"cluster": "loca"},
            "cluster: found 'loca'; expected null, local, tcp://HOST:PORT, or a mapping with the key",
        ),
        ({"cluster": 3}, "cluster: found 3; expected null, local, tcp://HOST:PORT, or a mapping with the key class"),
        ({"cluster": "tcp://host"}, "cluster: found 'tcp://host'; expected null, local, tcp://HOST:PORT"),
        ({"cluster": "tcp://host:0"}, "cluster: found 'tcp://host:0'; expected"),
        ({"cluster": "http://host:8786"}, "cluster: found 'http://host:8786'; expected"),
        ({"cluster": {}}, "cluster: found neither address nor class; expected one of them"),
        (
            {"cluster": {"class": "local", "address": "tcp://a:1"}},
            "cluster: found both address and class; expected one",
        ),
        (
            {"cluster": {"class": "SLURMCluster"}},
            "cluster.class: found 'SLURMCluster'; expected local, or package.Class",
        ),
        ({"cluster": {"class": 3}}, "cluster.class: found 3 (an integer); expected null or a string"),
        ({"cluster": {"class": "local", "jobs": 0}}, "cluster.jobs: found 0 (an integer); expected null or an integer"),
        (
            {"cluster": {"class": "local", "jobs": "x"}},
            "cluster.jobs: found 'x' (a string); expected null or an integer",
        ),
        (
            {"cluster": {"class": "local", "thread": 2}},
            "cluster: thread: class local has no such keyword; did you mean",
        ),
        ({"cluster": {"class": "local", "threads_per_worker": 0}}, "cluster: threads_per_worker: found 0; expected an"),
        ({"cluster": {"address": "tcp://a:1", "jobs": 2}}, "cluster: found jobs with an address, where workers are"),
        ({"cluster": {"address": "a:1"}}, "cluster.address: found 'a:1'; expected tcp://HOST:PORT"),
        (
            {"cluster": "local", "expert": {"executor": "stackless"}},
            "cluster: found a cluster with expert.executor stackless; expected",
        ),
        ({"chians": 4}, "chians: unknown setting; did you mean 'chains'?"),
        ({"adapt_metric": True}, "adapt_metric: there is no such setting any more; write metric: unit for"),
        (
            {"metric": "dense", "warmup": {"pool": "none"}},
            "metric: found 'dense' with warmup.pool 'none'; all",
        ),
        ({"metric": "lowrank"}, "expected one of diag, dense, low_rank, unit; did you mean 'low_rank'?"),
        ({"num_samples": 4}, "num_samples: unknown setting; did you mean 'draws'?"),
        ({"tune": 4}, "tune: unknown setting; did you mean 'warmup'?"),
        ({"adapt_delta": 0.9}, "adapt_delta: unknown setting; did you mean 'target_acceptance'?"),
        ({"max_treedepth": 9}, "max_treedepth: unknown setting; did you mean 'max_tree_depth'?"),
        ({"cores": 2}, "cores: is a setting for experts; write expert={'shards': ...}"),
        ({"nsteps": 2}, "nsteps: unknown setting; did you mean 'draws'?"),
        ({"thinner": 2}, "thinner: unknown setting; expected one of chains, warmup, "),
        ({"qqqq": 4}, "qqqq: unknown setting; expected one of chains, warmup, "),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(SettingsError) as caught:
        split_settings(values)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("local", {"class": "local"}),
        ("tcp://node-1.site:8786", {"address": "tcp://node-1.site:8786"}),
        ("tls://[::1]:8786", {"address": "tls://[::1]:8786"}),
        ({"class": "local", "jobs": 2, "memory_limit": "2 GB"}, {"class": "local", "jobs": 2, "memory_limit": "2 GB"}),
        (
            {"class": "dask_cuda.b.C", "jobs": 9, "queue": "q", "cores": 4},
            {"class": "dask_cuda.b.C", "jobs": 9, "queue": "q", "cores": 4},
        ),
    ],
)
def test_clusters_are_read_as_they_are_written(given, kept):
    _, execution = split_settings({"cluster": given})
    found = execution.model_dump(mode="json", by_alias=True)["cluster"]
    assert {key: value for key, value in found.items() if value is not None} == kept
    assert split_settings({"cluster": found})[1] == execution


def test_all_mistakes_are_reported_together():
    with pytest.raises(SettingsError) as caught:
        split_settings({"chains": 0, "expert": {"mode": "x"}, "zzz": 1})
    assert len(str(caught.value).splitlines()) == 3


def test_settings_are_immutable_and_described():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        SamplerSettings().chains = 3  # type: ignore[misc]
    for schema in (SamplerSettings, ExecutionSettings):
        assert all(field.description for field in schema.model_fields.values())


SETTINGS = {
    name: field for schema in (SamplerSettings, ExecutionSettings) for name, field in schema.model_fields.items()
}


def test_keywords_of_sample_chains_are_the_settings() -> None:
    """In names, types, defaults and what is said of each: for type checkers, and for consoles that read signatures."""
    hints = typing.get_type_hints(Options)
    assert list(hints) == list(SETTINGS)
    (body,) = [
        node.body for node in ast.parse(inspect.getsource(options)).body if getattr(node, "name", "") == "Options"
    ]
    said = [" ".join(node.value.value.split()) for node in body[1:] if isinstance(node, ast.Expr)]
    signature = inspect.signature(batchnuts.sample_chains).parameters
    for (name, field), text in zip(SETTINGS.items(), said, strict=True):
        default = options.MAIN_VALUES.get(name, field.default)
        assert text == f"{field.description}. Default: {default!r}."
        assert f"{name}: {text}" in " ".join((batchnuts.sample_chains.__doc__ or "").split())
        assert signature[name].default == default
        assert signature[name].kind is inspect.Parameter.KEYWORD_ONLY
        accepted, declared = ({*typing.get_args(hint)} or {hint} for hint in (hints[name], field.annotation))
        assert declared <= accepted
        if name not in (
            "warmup",
            "init",
            "until",
            "cluster",
            "expert",
        ):  # these may be written in short, or as a mapping
            assert hints[name] == field.annotation
        split_settings({"until": {"ess_bulk": 100.0}, name: default} if default == "auto" else {name: default})
    assert [name for name in signature if name not in SETTINGS] == [
        *("model", "progress", "unconstrained", "divergences", "keep_draws", "keep_warmup", "groups", "signals")
    ]


def test_unknown_keywords_of_sample_chains_have_a_suggestion() -> None:
    model = batchnuts.Model.from_function(lambda q: -0.5 * (q**2).sum(), dimension=1)
    with pytest.raises(SettingsError, match="num_samples: unknown setting; did you mean 'draws'"):
        batchnuts.sample_chains(model, num_samples=3)  # type: ignore[call-arg]
