"""The settings of a run, checked: what to sample (`SamplerSettings`) and how to execute it (`ExecutionSettings`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from batchnuts.autobatch.machine import engine_infos
from batchnuts.disk_cache.folder import problem_with
from batchnuts.mcmc.settings.cluster_settings import LOCAL, ClusterSettings, is_address
from batchnuts.mcmc.settings.init_settings import InitSettings, settings_of_init
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS
from batchnuts.mcmc.settings.plain_values import as_pythons
from batchnuts.mcmc.settings.until import CONDITIONS, Until
from batchnuts.settings.schema import (
    IN_OTHER_LIBRARIES,
    Settings,
    SettingsError,
    explain,
    fields_of,
    nearest,
    shown,
)

MOST_NUMBERS = 10_000_000
"""Maximum entries of a position, and maximum chains: bounds far beyond any machine, so that mistakes are found
early."""

MOST_TRANSITIONS = 1_000_000_000
"""The same of transitions of a chain."""


FEWEST_CHAINS_OF_AUTO = 8
"""That are chosen automatically: warmup finds outliers among so many, and R-hat compares them."""


FEWEST_CHAINS_OF_ENSEMBLE = 16
"""The fewest whose spread tells the scale of a coordinate well enough to move by it."""

FEWEST_TRANSITIONS_OF_ENSEMBLE = 40
"""The smallest maximum of a warmup that begins with an ensemble: some windows have to follow it."""


class WarmupSettings(Settings):
    """How the sampler adapts before the draws. In place of the whole group, the number of its transitions will do.

    `from` is a reserved word of Python: `WarmupSettings(from_="run.nc")`, or {"from": "run.nc"} for the whole group.
    """

    model_config = ConfigDict(populate_by_name=True)

    transitions: int | Literal["auto"] = Field(
        "auto",
        description="warmup transitions per chain; they adapt and are not kept. auto: until step size, metric and "
        "position have settled",
    )
    from_: str | None = Field(
        None,
        alias="from",
        min_length=1,
        description="file of an earlier run, whose step size, metric and last positions are used. With `transitions: "
        "auto` a short check follows: if it confirms them, drawing begins, otherwise warmup continues",
    )
    minimum: int = Field(
        15,
        ge=0,
        le=MOST_TRANSITIONS,
        description="with `transitions: auto`, the fewest transitions, unless an earlier run's tuning is confirmed",
    )
    maximum: int = Field(1000, ge=1, le=MOST_TRANSITIONS, description="with `transitions: auto`, the most transitions")
    pool: Literal["all", "groups", "none"] = Field(
        "all",
        description="which chains share a step size and a metric: all but outliers, those of a superchain, or each "
        "adapts its own",
    )
    restart: bool | Literal["auto"] = Field(
        "auto",
        description="whether a chain that is stuck far from all others restarts where another chain is; auto: one "
        "that cannot be in a mode of any weight: it never moves, is too far below, or is both narrower and lower",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_longer_minimum(cls, given: Any) -> Any:
        """Without a minimum, one that is not beyond the maximum."""
        maximum = given.get("maximum") if isinstance(given, Mapping) else None
        if isinstance(maximum, int) and maximum < 15 and "minimum" not in given:
            return {**given, "minimum": maximum}
        return given

    @model_validator(mode="after")
    def _minimum_to_maximum(self) -> WarmupSettings:
        if self.transitions == "auto" and self.minimum > self.maximum:
            raise ValueError(f"minimum: found {self.minimum} with maximum {self.maximum}; expected at most the maximum")
        return self

    @field_validator("from_", mode="before")
    @classmethod
    def _a_path(cls, path: Any) -> Any:
        if not isinstance(path, str | os.PathLike | int | float | None):
            kind = type(path).__name__
            raise ValueError(f"found an object {kind}; expected the path of an earlier run's file, or its Zarr store")
        return os.fspath(path) if isinstance(path, os.PathLike) else path

    @field_validator("transitions")
    @classmethod
    def _in_range(cls, transitions: Any) -> Any:
        if isinstance(transitions, int) and not 0 <= transitions <= MOST_TRANSITIONS:
            raise ValueError(
                f"found {shown(transitions)}; expected auto, or an integer of at least 0 and at most "
                f"{MOST_TRANSITIONS:,}"
            )
        return transitions


if TYPE_CHECKING:
    MetricName = str
else:
    MetricName = Literal[tuple(METRIC_KINDS)]

_METRICS = "what warmup adapts to the posterior: {}; {}".format(
    *(
        ", ".join(f"{kind.name} {kind.meaning}" for kind in METRIC_KINDS.values() if kind.is_adapted is adapted)
        for adapted in (True, False)
    )
)


class SamplerSettings(Settings):
    """What is sampled: how many chains and draws, and the constants of the transition and of its warmup."""

    chains: int | Literal["auto"] = Field(
        256,
        description="number of chains, run together. auto: the number that reaches what `until` asks fastest here",
    )
    warmup: WarmupSettings = Field(
        WarmupSettings.model_validate({}),
        description="auto, a number of transitions, or a mapping with settings of warmup",
    )
    draws: int = Field(200, ge=1, le=1_000_000_000, description="draws kept per chain, after warmup")
    init: InitSettings = Field(
        InitSettings.model_validate({}),
        description="where chains start: a method, or a mapping with it and its options",
    )
    start: Literal["auto", "ensemble", "windows"] = Field(
        "auto",
        description="how warmup begins; ensemble: all chains burn in by isokinetic Langevin dynamics, then a "
        "short window of the transition checks where they are; windows: with the transition; auto: ensemble for "
        f"{FEWEST_CHAINS_OF_ENSEMBLE} chains or more where `warmup` is auto, pools all chains and has no `from`",
    )
    superchains: int | None = Field(
        None,
        ge=1,
        le=MOST_NUMBERS,
        description="number of groups of chains that share an initial position; null: 16 for 64 chains or more, "
        "else every chain has its own",
    )
    until: Until | None = Field(
        None, description="conditions that end sampling, with at most `draws` draws per chain; null: all draws are made"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="the run's random numbers depend on this number alone")
    target_acceptance: float = Field(
        0.8, ge=0.01, le=0.9999, description="mean acceptance statistic that the step size is adapted to"
    )
    transition: Literal["nuts", "walnuts"] = Field(
        "nuts",
        description="nuts: the No-U-Turn Sampler, with one step size; walnuts: with leapfrog steps that are "
        "divided where the energy requires it",
    )
    selection: Literal["multinomial", "slice"] = Field(
        "multinomial",
        description="how a draw is chosen from its trajectory; multinomial: with weight exp(-H); slice: with equal "
        "weights, among the states whose exp(-H) exceeds a random level",
    )
    max_tree_depth: int = Field(10, ge=1, le=20, description="a trajectory doubles at most this many times")
    max_tree_depth_warmup: int | None = Field(
        None, ge=1, le=20, description="the same during warmup; null: max_tree_depth"
    )
    leapfrogs_per_leaf: int = Field(1, ge=1, le=10_000, description="leapfrog steps between two states of a trajectory")
    divergence_threshold: float = Field(
        1000.0,
        gt=0.0,
        le=1e30,
        description="nuts: an energy error above this ends the trajectory and counts as a divergence",
    )
    energy_tolerance: float = Field(
        0.5,
        gt=0.0,
        le=1e30,
        description="walnuts: the leapfrog steps between two states are halved until the energy varies by at most this",
    )
    max_step_halvings: int = Field(
        10,
        ge=0,
        le=20,
        description="walnuts: maximum number of halvings; if that is not enough, the trajectory diverges",
    )
    step_size: float | None = Field(
        None,
        ge=1e-30,
        le=1e30,
        description="leapfrog step size; null adapts it in warmup, a number keeps it fixed at that",
    )
    metric: MetricName = Field("diag", description=_METRICS)
    metric_rank: int = Field(
        16, ge=1, le=1000, description="maximum number of corrected directions of the metric low_rank"
    )

    replaced: ClassVar[Mapping[str, str]] = {
        "adapt_metric": "there is no such setting any more; write metric: unit for adapt_metric: false, nothing for "
        "adapt_metric: true"
    }

    def without_effect(self) -> set[str]:
        """The settings that have no effect with this metric."""
        return set() if METRIC_KINDS[self.metric].is_limited else {"metric_rank"}

    @property
    def chain_count(self) -> int:
        """The number of chains, of settings in which it is decided."""
        assert self.chains != "auto", "it is decided at the start of a run"
        return self.chains

    @property
    def fewest_chains(self) -> int:
        """The number of chains, or the smallest that may be chosen."""
        return max(FEWEST_CHAINS_OF_AUTO, self.superchains or 1) if self.chains == "auto" else self.chains

    @model_validator(mode="after")
    def _consistent(self) -> SamplerSettings:
        if self.chains == "auto" and (self.until is None or not self.until.conditions):
            raise ValueError(
                f"chains: found 'auto', which needs a target accuracy; expected {_CHAINS}, or sampler.until with at "
                f"least one of {', '.join(CONDITIONS)}"
            )
        self.refuse_without_effect(f"on metric {self.metric!r}")
        if METRIC_KINDS[self.metric].has_directions and self.warmup.pool != "all":
            raise ValueError(
                f"metric: found {self.metric!r} with warmup.pool {self.warmup.pool!r}; all chains share one matrix, "
                "expected warmup.pool all, or metric diag"
            )
        if self.start == "ensemble" and (found := self._unfit_for_ensemble()):
            raise ValueError(f"start: found 'ensemble' with {found}, or start: auto")
        return self

    def _unfit_for_ensemble(self) -> str:
        """What an ensemble start cannot go with, and what it can; empty where there is nothing."""
        warmup = self.warmup
        if self.chains != "auto" and self.chains < FEWEST_CHAINS_OF_ENSEMBLE:
            return f"{self.chains} chains; expected at least {FEWEST_CHAINS_OF_ENSEMBLE}"
        if warmup.pool != "all":
            return f"warmup.pool {warmup.pool!r}; all chains share what it adapts, expected warmup.pool all"
        if warmup.from_ is not None:
            return "warmup.from, which has another start; expected one of them"
        if warmup.transitions == "auto" and warmup.maximum < FEWEST_TRANSITIONS_OF_ENSEMBLE:
            return f"warmup.maximum {warmup.maximum}; expected at least {FEWEST_TRANSITIONS_OF_ENSEMBLE}"
        return "no warmup; expected some transitions" if warmup.transitions == 0 else ""

    def begins_with_ensemble(self, dimension: int) -> bool:
        """Whether warmup begins with an ensemble's burn-in, of a model of that dimension: of one coordinate there
        are no directions to turn to."""
        if dimension < 2 or self.start == "windows" or self._unfit_for_ensemble():
            return False
        return self.start == "ensemble" or self.warmup.transitions == "auto"

    @field_validator("chains")
    @classmethod
    def _some(cls, chains: Any) -> Any:
        if isinstance(chains, int) and not 1 <= chains <= MOST_NUMBERS:
            raise ValueError(f"found {shown(chains)}; expected auto, or {_CHAINS}")
        return chains

    @field_validator("warmup", mode="before")
    @classmethod
    def _its_transitions(cls, warmup: Any) -> Any:
        if isinstance(warmup, WarmupSettings | Mapping):
            return warmup
        if isinstance(warmup, bool) or not isinstance(warmup, int | str):
            keys = ", ".join(fields_of(WarmupSettings))
            raise ValueError(
                f"found {shown(warmup)}; expected auto, a number of transitions, or a mapping with keys among {keys}"
            )
        return {"transitions": warmup}

    @field_validator("init", mode="before")
    @classmethod
    def _its_method(cls, init: Any) -> Any:
        return init if isinstance(init, InitSettings) else settings_of_init(init)

    @field_validator("superchains")
    @classmethod
    def _of_chains(cls, superchains: Any, info: ValidationInfo) -> Any:
        chains = info.data.get("chains")
        if superchains is not None and isinstance(chains, int) and superchains > chains:
            raise ValueError(f"found {superchains}; expected at most the number of chains, {chains}")
        return superchains


_CHAINS = f"an integer of at least 1 and at most {MOST_NUMBERS:,}"


if TYPE_CHECKING:
    BackendName = str
else:
    BackendName = Literal[("auto", *(name for name, info in engine_infos().items() if info.resumes))]


class ExpertSettings(Settings):
    """What is chosen well without a user; for measurements, comparisons and debugging."""

    executor: Literal["virtual_machine", "stackless", "unbatched"] = Field(
        "virtual_machine",
        description="virtual_machine: chains at different places of the recursion share gradients; stackless: "
        "calls and branches on the host; unbatched: plain Python, chain by chain, for debugging",
    )
    mode: Literal["xla", "graph", "eager"] = Field(
        "xla",
        description="how the program is run: compiled by XLA, as a graph of TensorFlow, or operation by operation",
    )
    style: Literal["auto", "masking", "gather"] = Field(
        "auto",
        description="how operations run for chains that are at different places: masking computes all and "
        "selects, gather computes the active ones; auto is gather on NumPy, else masking",
    )
    schedule: Literal["auto", "earliest", "most_active", "sweep", "drain"] = Field(
        "auto", description="order in which the virtual machine runs blocks; auto chooses by their cost"
    )
    shards: int | None = Field(
        None, ge=1, le=1024, description="number of threads that run the chunks in turn; null: one per processor core"
    )


class ExecutionSettings(Settings):
    """How it is executed. None of these changes what is sampled, up to rounding."""

    backend: BackendName = Field(
        "auto",
        description="native runs each chain in machine code, with gradients in machine code too, of densities written "
        "with ops or JAX, or by the library of the density; native_tensorflow and native_numpy are these with "
        "TensorFlow's gradients, and with none of a library; the others run the virtual machine on that array library. "
        "auto: native on a processor, else jax or tensorflow",
    )
    chunk_lanes: int | None = Field(
        None,
        ge=1,
        le=MOST_NUMBERS,
        description="chains that run together as one batch; null: a number that suits the processor",
    )
    max_stack_depth: int | None = Field(
        None, ge=1, le=1000, description="frames of each variable's stack; null: a sufficient bound"
    )
    cache: str | None = Field(
        "auto",
        description="folder that keeps compiled programs for the next start; auto: the user's cache folder, null: none "
        "is read or written",
    )
    cluster: ClusterSettings | None = Field(
        None,
        description="other processes or machines that run the chains: local, the address of a Dask scheduler "
        "(tcp://HOST:PORT), or a mapping with what starts one; null: threads of this process",
    )

    expert: ExpertSettings = Field(
        ExpertSettings.model_validate({}),
        description="settings with good automatic choices: executor, mode, style, schedule, shards",
    )

    replaced: ClassVar[Mapping[str, str]] = {
        name: f"is a setting for experts; write execution.expert.{name}" for name in ExpertSettings.model_fields
    }

    @property
    def run_options(self) -> dict[str, Any]:
        """The options of `BatchedFunction.run`."""
        return {
            "backend": self.backend,
            "max_stack_depth": self.max_stack_depth,
            **self.expert.model_dump(exclude={"shards"}),
        }

    def with_expert(self, **changes: Any) -> ExecutionSettings:
        """The settings with some of `expert` changed, which are not checked again."""
        return self.model_copy(update={"expert": self.expert.model_copy(update=changes)})

    def without_effect(self) -> set[str]:
        """Where there is only one mode."""
        return {"expert.mode"} if self._has_one_mode() else set()

    def _has_one_mode(self) -> bool:
        return self.backend != "auto" and len(engine_infos()[self.backend].modes) == 1

    @property
    def at_own_pace(self) -> bool:
        """Whether the backend is one whose chains each run at their own pace, so that no schedule is needed."""
        return self.backend != "auto" and engine_infos()[self.backend].own_pace

    @model_validator(mode="after")
    def _modes(self) -> ExecutionSettings:
        if self._has_one_mode() and "mode" in self.expert.model_fields_set:
            raise ValueError(
                f"expert.mode: found {self.expert.mode!r}, which has no effect on backend {self.backend}; leave it out"
            )
        if self.at_own_pace and self.expert.schedule != "auto":
            raise ValueError(
                f"expert.schedule: found {self.expert.schedule!r}, which has no effect on backend {self.backend}, "
                "where each chain runs at its own pace; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _on_cluster(self) -> ExecutionSettings:
        if self.cluster is not None and self.expert.executor != "virtual_machine":
            raise ValueError(
                f"cluster: found a cluster with expert.executor {self.expert.executor}; expected virtual_machine, or "
                "cluster: null"
            )
        return self

    @field_validator("expert", mode="before")
    @classmethod
    def _its_settings(cls, expert: Any) -> Any:
        if not isinstance(expert, ExpertSettings | Mapping):
            keys = ", ".join(ExpertSettings.model_fields)
            raise ValueError(f"found {shown(expert)}; expected a mapping with keys among {keys}")
        return expert

    @field_validator("cluster", mode="before")
    @classmethod
    def _its_place(cls, cluster: Any) -> Any:
        if cluster is None or isinstance(cluster, ClusterSettings | Mapping):
            return cluster
        if cluster == LOCAL:
            return {"class": LOCAL}
        if isinstance(cluster, str) and is_address(cluster):
            return {"address": cluster}
        raise ValueError(
            f"found {shown(cluster)}; expected null, {LOCAL}, tcp://HOST:PORT, or a mapping with the key class"
        )

    @field_validator("cache", mode="before")
    @classmethod
    def _a_folder(cls, cache: Any) -> Any:
        problem = problem_with(cache) if isinstance(cache, str) else None
        if problem or not (cache is None or isinstance(cache, str)):
            raise ValueError(
                f"found {shown(cache)}{problem or ''}; expected auto, the path of a folder, or null for no cache"
            )
        return cache


def split_settings(values: Mapping[str, Any]) -> tuple[SamplerSettings, ExecutionSettings]:
    """Sort keyword arguments into the two groups and check them.

    Raises SettingsError, with one line for each mistake: unknown names with the nearest valid one, wrong types, bad
    values.
    """
    # NumPy's scalars are as good as Python's here, though a strict schema would refuse them.
    values = {name: as_pythons(value) for name, value in values.items()}
    sampler_names, execution_names = set(SamplerSettings.model_fields), set(ExecutionSettings.model_fields)
    valid = [*SamplerSettings.model_fields, *ExecutionSettings.model_fields]
    problems = [_unknown(name, valid) for name in values if name not in sampler_names | execution_names]
    sampler = execution = None
    try:
        sampler = SamplerSettings.model_validate({k: v for k, v in values.items() if k in sampler_names})
    except ValidationError as error:
        problems += explain(error, SamplerSettings)
    try:
        execution = ExecutionSettings.model_validate({k: v for k, v in values.items() if k in execution_names})
    except ValidationError as error:
        problems += explain(error, ExecutionSettings)
    if problems or sampler is None or execution is None:
        raise SettingsError("\n".join(problems))
    return sampler, execution


def _unknown(name: str, valid: Sequence[str]) -> str:
    """The problem with a keyword that is no setting."""
    expert = IN_OTHER_LIBRARIES.get(name.lower(), name)
    if expert in ExpertSettings.model_fields:
        return f"{name}: is a setting for experts; write expert={{{expert!r}: ...}}"
    if name in SamplerSettings.replaced:
        return f"{name}: {SamplerSettings.replaced[name]}"
    return f"{name}: unknown setting{nearest(name, valid) or '; expected one of ' + ', '.join(valid)}"
