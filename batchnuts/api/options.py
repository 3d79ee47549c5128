"""The types of what `sample_chains` takes by keyword, for editors and type checkers.

`Options` has what the schema of the settings has (run_settings.py), which a test compares; there values are checked.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, get_args

from pydantic_core import PydanticUndefined

from batchnuts.mcmc.settings.cluster_settings import ClusterSettings
from batchnuts.mcmc.settings.init_settings import InitMethod, InitSettings
from batchnuts.mcmc.settings.run_settings import (
    ExecutionSettings,
    ExpertSettings,
    SamplerSettings,
    WarmupSettings,
)
from batchnuts.mcmc.settings.until import Until


class Options(TypedDict, total=False):
    """The settings of a run, by keyword; the defaults are those of docs/reference/settings."""

    chains: int | Literal["auto"]
    """number of chains, run together. auto: the number that reaches what `until` asks fastest here. Default: 256."""
    warmup: int | Literal["auto"] | Mapping[str, Any] | WarmupSettings
    """auto, a number of transitions, or a mapping with settings of warmup. Default: 'auto'."""
    draws: int
    """draws kept per chain, after warmup. Default: 200."""
    init: InitMethod | Mapping[str, Any] | InitSettings
    """where chains start: a method, or a mapping with it and its options. Default: 'auto'."""
    start: Literal["auto", "ensemble", "windows"]
    """how warmup begins; ensemble: all chains burn in by isokinetic Langevin dynamics, then a short window of the
    transition checks where they are; windows: with the transition; auto: ensemble for 16 chains or more where
    `warmup` is auto, pools all chains and has no `from`. Default: 'auto'."""
    superchains: int | None
    """number of groups of chains that share an initial position; null: 16 for 64 chains or more, else every chain
    has its own. Default: None."""
    until: Mapping[str, Any] | Until | None
    """conditions that end sampling, with at most `draws` draws per chain; null: all draws are made. Default: None."""
    seed: int
    """the run's random numbers depend on this number alone. Default: 0."""
    target_acceptance: float
    """mean acceptance statistic that the step size is adapted to. Default: 0.8."""
    transition: Literal["nuts", "walnuts"]
    """nuts: the No-U-Turn Sampler, with one step size; walnuts: with leapfrog steps that are divided where the
    energy requires it. Default: 'nuts'."""
    selection: Literal["multinomial", "slice"]
    """how a draw is chosen from its trajectory; multinomial: with weight exp(-H); slice: with equal weights, among
    the states whose exp(-H) exceeds a random level. Default: 'multinomial'."""
    max_tree_depth: int
    """a trajectory doubles at most this many times. Default: 10."""
    max_tree_depth_warmup: int | None
    """the same during warmup; null: max_tree_depth. Default: None."""
    leapfrogs_per_leaf: int
    """leapfrog steps between two states of a trajectory. Default: 1."""
    divergence_threshold: float
    """nuts: an energy error above this ends the trajectory and counts as a divergence. Default: 1000.0."""
    energy_tolerance: float
    """walnuts: the leapfrog steps between two states are halved until the energy varies by at most this. Default:
    0.5."""
    max_step_halvings: int
    """walnuts: maximum number of halvings; if that is not enough, the trajectory diverges. Default: 10."""
    step_size: float | None
    """leapfrog step size; null adapts it in warmup, a number keeps it fixed at that. Default: None."""
    metric: Literal["diag", "dense", "low_rank", "unit"]
    """what warmup adapts to the posterior: diag a scale for each coordinate, dense all correlations, low_rank the
    strongest of them; unit keeps the identity. Default: 'diag'."""
    metric_rank: int
    """maximum number of corrected directions of the metric low_rank. Default: 16."""
    backend: Literal["auto", "native", "native_tensorflow", "native_numpy", "jax", "tensorflow", "numpy"]
    """native runs each chain in machine code, with gradients in machine code too, of densities written with ops or
    JAX, or by the library of the density; native_tensorflow and native_numpy are these with TensorFlow's gradients, and
    with none of a library; the others run the virtual machine on that array library. auto: native on a processor, else
    jax or tensorflow. Default: 'auto'."""
    chunk_lanes: int | None
    """chains that run together as one batch; null: a number that suits the processor. Default: None."""
    max_stack_depth: int | None
    """frames of each variable's stack; null: a sufficient bound. Default: None."""
    cache: str | None
    """folder that keeps compiled programs for the next start; auto: the user's cache folder, null: none is read or
    written. Default: 'auto'."""
    cluster: str | Mapping[str, Any] | ClusterSettings | None
    """other processes or machines that run the chains: local, the address of a Dask scheduler (tcp://HOST:PORT), or
    a mapping with what starts one; null: threads of this process. Default: None."""
    expert: Mapping[str, Any] | ExpertSettings
    """settings with good automatic choices: executor, mode, style, schedule, shards. Default: {}."""


MAIN_VALUES: Mapping[str, Any] = {"warmup": "auto", "init": "auto", "expert": {}}
"""The defaults of groups of settings as users write them."""

_METHODS = f"Literal{[*get_args(InitMethod)]}".replace("'", '"')
"""InitMethod, written out."""

Function = TypeVar("Function", bound=Callable[..., Any])


def with_options(function: Function) -> Function:
    """The function, whose last parameter is `**settings: Unpack[Options]`, with each of them in its signature, with its
    default, and described in its docstring: consoles and notebooks show these."""
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()
    keywords, lines = [], []
    for schema in (SamplerSettings, ExecutionSettings):
        for name, field in schema.model_fields.items():
            default = MAIN_VALUES.get(name, field.default)
            assert default is not PydanticUndefined, "all settings have defaults"
            annotation = Options.__annotations__[name].__forward_arg__.replace("InitMethod", _METHODS)
            keywords.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
            lines.append(_item(f"{name}: {field.description}. Default: {default!r}."))
    function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n" + "\n".join(lines)
    return function


def _item(text: str) -> str:
    return textwrap.fill(text, 116, subsequent_indent="    ", break_on_hyphens=False)
