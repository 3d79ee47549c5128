"""Configs of the command line, with the settings of output: YAML files with overrides, checked before anything runs.

Neither reading nor checking a config imports TensorFlow.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from batchnuts.bridges.registry import BRIDGES, Bridge
from batchnuts.disk_cache.folder import AUTO
from batchnuts.files.saving import Write
from batchnuts.files.url import LONGEST_OUTPUT_NAME, is_url, long_name, url_problem
from batchnuts.many.settings import ManySettings
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.formats import (
    IN_ONE_FILE,
    OUTPUT_FORMATS,
    OUTPUT_FORMATS_DESCRIBED,
    STREAMED,
    format_of_ending,
)
from batchnuts.mcmc.run.forecast import Size, memory_problem
from batchnuts.mcmc.settings.run_settings import (
    MOST_TRANSITIONS,
    ExecutionSettings,
    ExpertSettings,
    SamplerSettings,
)
from batchnuts.mcmc.storage.stored_run import has_zarr
from batchnuts.models import REGISTRY, ModelOptions, build
from batchnuts.settings.schema import IN_OTHER_LIBRARIES, Settings, dump_settings, fields_of, nearest, shown
from batchnuts.settings.yaml import (
    ConfigError,
    Origin,
    apply_override,
    check_section,
    find_config,
    packaged_configs,
    read_yaml,
    to_yaml,
)
from batchnuts.user_models.target import TargetOptions, build_target

__all__ = [
    "ConfigError",
    "RunConfig",
    "TargetOptions",
    "build_model",
    "load_config",
    "packaged_configs",
]


CLUSTER = "execution.cluster"

LARGE = 1_000_000_000
"""Bytes of a file from which on the format is Zarr, where that is left open."""


if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[("auto", *OUTPUT_FORMATS)]


class OutputSettings(Settings):
    """What is saved of the draws, where and how, and how long the summary is."""

    path: str | None = Field(
        None,
        description="file to write, relative to the current folder, or the URL of a Zarr store (s3://bucket/run.zarr); "
        "null: the config's name + .nc or .zarr",
    )
    draws: bool = Field(
        True,
        description="whether draws are kept; false: only their means, covariances, quantiles, R-hat and effective "
        "sizes, which are computed while chains run, in memory that does not grow with draws (docs/summaries.md)",
    )
    format: FormatName = Field(
        "auto",
        description=f"{OUTPUT_FORMATS_DESCRIBED}; auto: by the path's ending, else {STREAMED} for 1 GB or more where "
        "the package is installed",
    )
    variables: list[str] | None = Field(
        None,
        min_length=1,
        description="names of the variables and generated quantities that are saved; null: all of them",
    )
    groups: list[Literal["log_likelihood", "posterior_predictive", "prior"]] | None = Field(
        None,
        description="which of the groups computed for observations are saved: they may be much larger than the "
        "draws, and take longer; null: all for which the model has functions; []: none",
    )
    thin: int = Field(
        1, ge=1, le=MOST_TRANSITIONS, description="save every thin-th draw of each chain, starting with the first"
    )
    dtype: Literal["float32", "float64"] | None = Field(
        None, description="dtype of the saved variables, except integers and statistics; null: that of the model"
    )
    unconstrained: bool = Field(
        False, description="also save the unconstrained parameters, as the group unconstrained_posterior"
    )
    divergences: bool = Field(
        False,
        description="also save, for each divergent transition, where its trajectory began and where it diverged, as "
        "the group divergences",
    )
    warmup: bool = Field(
        False,
        description="also save the draws of warmup, as the groups warmup_posterior and warmup_sample_stats; without "
        "the steps of an ensemble before them; not in files of CmdStan's",
    )
    report: bool = Field(
        False, description="also write an HTML page about the run beside the draws, as python -m batchnuts.report does"
    )
    checkpoint_seconds: float | None = Field(
        600.0,
        gt=0.0,
        le=1e9,
        description="how often the state of the run is written beside its output, so that a killed run can be "
        "continued with --resume; it is also written when a signal ends the run; null: never",
    )
    summary_rows: int = Field(
        12,
        ge=1,
        le=1_000_000,
        description="maximum number of rows of the summary table; worst R-hat first if some are left out",
    )

    @field_validator("path")
    @classmethod
    def _place(cls, path: str | None) -> str | None:
        if path is None:
            return None
        if not path:
            raise ValueError("found '' (an empty string); expected a path, a URL, or null")
        long = None if is_url(path) else long_name(Path(path), LONGEST_OUTPUT_NAME)
        if problem := url_problem(path) if is_url(path) else long and f"the path {long}":
            raise ValueError(problem)
        return path

    @model_validator(mode="after")
    def _fits(self) -> OutputSettings:
        by_ending = format_of_ending(self.path)
        asked_for = OUTPUT_FORMATS.get(self.format)  # none of `auto`
        for format_ in (asked_for, by_ending) if self.at_url else ():
            if format_ is not None and not format_.streams:
                streamed = OUTPUT_FORMATS[STREAMED]
                raise ValueError(
                    f"path: found the URL {shown(self.path)} with {format_.title}; these are written to local disks: "
                    f"expected {streamed.title}, whose URL ends in {streamed.endings[0]}, or a path"
                )
        if asked_for is not None and by_ending is not None and by_ending.endings != asked_for.endings:
            raise ValueError(
                f"path: found {shown(self.path)} with format {self.format}; expected a path that ends in "
                f"{asked_for.endings[0]}, or format {self.path_says}"
            )
        ending = PurePath(self.path or "").suffix.lower()
        if asked_for is None and by_ending is None and ending in (".csv", ".json", ".npz", ".parquet", ".pkl", ".txt"):
            raise ValueError(
                f"path: found {shown(self.path)}; expected a path that ends in .nc or .zarr (format stan_csv writes "
                "CSV files beside the first)"
            )
        if asked_for is not None and asked_for.write_beside is not None and PurePath(self.path or "").suffix == ".csv":
            raise ValueError(
                f"path: found {shown(self.path)} with format {self.format}; expected the path of the netCDF file, "
                f"{PurePath(self.path or '').stem}.nc, beside which the CSV files are written"
            )
        if not self.draws:
            needed = [name for name in ("unconstrained", "divergences", "warmup", "report") if getattr(self, name)]
            needed += ["thin"] * (self.thin > 1)
            if needed:
                raise ValueError(
                    f"draws: found false with {', '.join(needed)}, which {'needs' if len(needed) == 1 else 'need'} the "
                    f"draws; expected draws: true, or no {' and no '.join(needed)}"
                )
            for name in (self.format, self.path_says or "auto"):
                if name != "auto" and not (format_ := OUTPUT_FORMATS[name]).holds_summaries:
                    raise ValueError(
                        f"draws: found false with {format_.title}, but summaries are saved as netCDF only; expected "
                        f"format {IN_ONE_FILE}, and a path that ends in {OUTPUT_FORMATS[IN_ONE_FILE].endings[0]}"
                    )
        return self

    @property
    def at_url(self) -> bool:
        """Whether the path is a URL of another place than a folder."""
        return self.path is not None and is_url(self.path)

    @property
    def path_says(self) -> str | None:
        """The format that the path's ending stands for, if any; URLs are those of Zarr stores."""
        if self.at_url:
            return STREAMED
        return None if (format_ := format_of_ending(self.path)) is None else format_.name

    @property
    def may_stream(self) -> bool:
        """Whether draws may go to a Zarr store while chains run."""
        format_ = self.path_says if self.format == "auto" else self.format
        return has_zarr() if format_ is None else OUTPUT_FORMATS[format_].streams

    @property
    def streams(self) -> bool:
        """Whether draws go to a folder while chains run; of a format that is decided."""
        return self.format in OUTPUT_FORMATS and OUTPUT_FORMATS[self.format].streams

    @property
    def write(self) -> Write | None:
        """Writes a file of the decided format; None for a folder."""
        return OUTPUT_FORMATS[self.format].write

    @property
    def content(self) -> Content:
        """What of the draws is saved."""
        return Content(
            None if self.variables is None else tuple(self.variables),
            self.thin,
            self.dtype,
            self.unconstrained,
            self.draws,
            self.divergences,
            None if self.groups is None else tuple(self.groups),
            self.warmup,
        )


SECTIONS: dict[str, type[Settings]] = {
    "sampler": SamplerSettings,
    "execution": ExecutionSettings,
    "output": OutputSettings,
}
OPTIONAL: dict[str, type[Settings]] = {"many": ManySettings}
"""Sections that a config need not have."""

_MAIN_KEYS = {"sampler.warmup": "transitions", "sampler.init": "method"}
"""Groups that may be written as one value, with the key that it stands for."""

_ELSEWHERE = {  # of a name that two sections have, the first one: sampler.draws
    name: f"{section}.{name}" for section, schema in reversed(SECTIONS.items()) for name in schema.model_fields
}
_ELSEWHERE |= {name: f"execution.expert.{name}" for name in ExpertSettings.model_fields}
_ELSEWHERE |= {word: _ELSEWHERE[ours] for word, ours in IN_OTHER_LIBRARIES.items()}


@dataclass(frozen=True)
class RunConfig:
    """A config that passed every check."""

    model: Any
    """ModelOptions of a packaged model, TargetOptions, or the options of a bridge."""
    sampler: SamplerSettings
    execution: ExecutionSettings
    output: OutputSettings
    many: ManySettings | None = None
    """Many fits in place of one run; None: one run."""
    stem: str = "run"
    """The name of the config's file without its ending."""
    file: Path | None = field(default=None, compare=False)
    """The file of the config."""

    @property
    def inputs(self) -> dict[str, Path]:
        """Files that the run reads, by what names them; of functions that are named `module:function`, the module's."""
        data = getattr(self.model, "data", None)  # packaged models have the path itself
        files = {"the config": self.file, "model.data": data if isinstance(data, str) else getattr(data, "path", None)}
        for name in fields_of(type(self.model)):
            if isinstance(value := getattr(self.model, name), str) and ":" in value:
                files[f"model.{name}"] = f"{value.partition(':')[0].replace('.', '/')}.py"
        return {name: Path(path) for name, path in files.items() if path is not None}

    def decided(self, file: int | None = None, zarr: bool = True) -> RunConfig:
        """The config with the format of the output and its path, where they are not left to the run's size.

        file: the bytes of draws that it will save; None: not known yet. zarr: whether that package is installed.
        """
        output = self.output
        format_ = output.path_says if output.format == "auto" else output.format
        if not output.draws:
            format_ = IN_ONE_FILE
        if format_ is None and file is None:
            return self
        format_ = format_ or (STREAMED if zarr and file is not None and file >= LARGE else IN_ONE_FILE)
        path = output.path or f"{self.stem}{OUTPUT_FORMATS[format_].endings[0]}"
        return replace(self, output=output.model_copy(update={"format": format_, "path": path}))

    def from_folder(self, begun_in: Path) -> RunConfig:
        """The config with absolute paths of files that are read after the model is built: as they were meant in this
        folder, where code of the user's has changed the current one since."""
        if Path.cwd() == begun_in:
            return self

        def absolute(path: str | None) -> str | None:
            return path if path is None or is_url(path) else str(begun_in / Path(path).expanduser())

        sampler, execution = self.sampler, self.execution
        warmup = sampler.warmup.model_copy(update={"from_": absolute(sampler.warmup.from_)})
        init = sampler.init.model_copy(update={"run": absolute(sampler.init.run)})
        cache = execution.cache if execution.cache in (None, AUTO) else absolute(execution.cache)
        return replace(
            self,
            sampler=sampler.model_copy(update={"warmup": warmup, "init": init}),
            execution=execution.model_copy(update={"cache": cache}),
        )

    def resolved(self) -> dict[str, Any]:
        """Plain data that gives the same run when read as a config."""
        sections = ("model", *SECTIONS, *(["many"] if self.many is not None else []))
        return {name: dump_settings(getattr(self, name)) for name in sections}

    def to_yaml(self) -> str:
        """`resolved` as YAML."""
        return to_yaml(self.resolved())


def load_config(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a config by path or packaged name, apply `key.path=value` overrides in order, and check all of it.

    Raises ConfigError with one line per mistake.
    """
    file = find_config(name)
    origin = Origin(file)
    content = read_yaml(file, origin, ("model", *SECTIONS, *OPTIONAL))
    for override in overrides:
        apply_override(content, override, origin, _MAIN_KEYS)
    return _check(content, origin)


def named_again(cluster: Any) -> str:
    """An argument of the command line that names the cluster of a config, in plain data."""
    address = isinstance(cluster, dict) and {"address"} == {key for key, value in cluster.items() if value is not None}
    return shlex.quote(f"{CLUSTER}={cluster['address'] if address else json.dumps(cluster)}")


def config_of(resolved: dict[str, Any], file: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config whose `resolved` this is, checked again; file: where it was kept. overrides: of `execution.cluster`.

    A file may be somebody else's: it alone starts nothing and connects to nothing. Raises ConfigError.
    """
    content, origin = copy.deepcopy(resolved), Origin(file)
    execution = content.get("execution")
    cluster = execution.get("cluster") if isinstance(execution, dict) else None
    if cluster is not None and not overrides:
        raise ConfigError(
            f"{file}: {CLUSTER}: this run was made on the cluster {json.dumps(cluster)}. A file alone cannot start a "
            "cluster or connect to one, since both may run any program: name it again on the command line, if you "
            f"trust the file, or name another one: --resume RUN {named_again(cluster)}"
        )
    if isinstance(execution, dict):
        _move_expert_settings(execution)
    for override in overrides:
        apply_override(content, override, origin, _MAIN_KEYS)
    return _check(content, origin)


def _move_expert_settings(execution: dict[str, Any]) -> None:
    """Bring settings that versions up to 0.2 kept in `execution` to where they are now."""
    moved = {name: execution.pop(name) for name in list(execution) if name in ExpertSettings.model_fields}
    if moved:
        execution["expert"] = moved


def _check(content: dict[str, Any], origin: Origin) -> RunConfig:
    problems: list[str] = []
    sections = ["model", *SECTIONS, *OPTIONAL]
    for key in content:
        if key not in sections:
            hint = f"; did you mean {_ELSEWHERE[key]!r}?" if key in _ELSEWHERE else nearest(key, sections)
            problems.append(f"{origin(key)}{key}: unknown section{hint or '; expected one of ' + ', '.join(sections)}")
    parts: dict[str, Any] = {"model": _check_model(content.get("model"), origin, problems)}
    for name, schema in SECTIONS.items():
        parts[name] = check_section(name, content.get(name), schema, origin, problems, _ELSEWHERE)
    for name, schema in OPTIONAL.items():
        if content.get(name) is not None:
            parts[name] = check_section(name, content[name], schema, origin, problems, _ELSEWHERE)
    if not problems and not parts["output"].draws and parts["sampler"].until is not None:
        problems.append(
            f"{origin('output.draws')}output.draws: found false with sampler.until, which looks at all draws; expected "
            "true, or sampler.until: null"
        )
    if not problems and parts.get("many") is not None:
        problems += _without_effect_in_many(parts["output"], origin)
    if not problems:
        # the dimension of a position is known exactly only once the model is made; the run checks again
        numbers, dtype = getattr(parts["model"], "dimension", None) or 1, getattr(parts["model"], "dtype", "float32")
        too_large = memory_problem(
            parts["sampler"],
            parts["execution"],
            Size.at_least(numbers, dtype),
            content=parts["output"].content,
            streamed=parts["output"].may_stream,
        )
        if too_large:
            problems.append(f"{origin('sampler.draws')}{too_large}")
    if problems:
        raise ConfigError("\n".join(problems))
    config = RunConfig(**parts, stem=origin.file.stem, file=origin.file)
    return config if config.many is not None else config.decided()


_OF_MANY = ("path", "format", "groups")
"""The settings of output that many fits have."""


def _without_effect_in_many(output: OutputSettings, origin: Origin) -> Iterator[str]:
    """Mistakes of settings of output that many fits do not have: they are written to one Zarr store."""
    if output.format not in ("auto", STREAMED) or output.path_says not in (None, STREAMED) or output.at_url:
        name = "path" if output.format in ("auto", STREAMED) else "format"
        yield (
            f"{origin(f'output.{name}')}output.{name}: found {shown(getattr(output, name))} with many, whose fits are "
            "written to a Zarr store on a local disk; expected the path of a folder, run.zarr"
        )
    for name, info in OutputSettings.model_fields.items():
        value, default = getattr(output, name), info.default
        if name not in _OF_MANY and value != default:
            yield (
                f"{origin(f'output.{name}')}output.{name}: found {json.dumps(value)}, which has no effect with many; "
                f"expected {json.dumps(default)} (what is kept of each fit is many.keep)"
            )


def _check_model(content: Any, origin: Origin, problems: list[str]) -> Settings | None:
    names = ", ".join(REGISTRY)
    if content is None:
        content = {}
    if not isinstance(content, dict):
        problems.append(
            f"{origin('model')}model: found {shown(content)}; expected a mapping with name (one of {names}) or target"
        )
        return None
    keys = [key for key in ("name", "target", *BRIDGES) if key in content]
    if len(keys) != 1:
        problem = f"both {' and '.join(keys)}" if keys else "neither name nor target"
        bridges = f", or that of a bridge ({', '.join(BRIDGES)})" if BRIDGES else ""
        problems.append(
            f"{origin('model')}model: found {problem}; expected one of them: name (one of {names}), or target "
            f"(package.module:function){bridges}"
        )
        return None
    if "target" in content:
        return check_section("model", content, TargetOptions, origin, problems, _ELSEWHERE)
    if keys[0] in BRIDGES:
        return check_section("model", content, BRIDGES[keys[0]].options, origin, problems, _ELSEWHERE)
    return check_packaged_model("model", content, origin, problems, _ELSEWHERE)


def check_packaged_model(
    path: str, content: Any, origin: Origin, problems: list[str], elsewhere: Mapping[str, str] | None = None
) -> ModelOptions | None:
    """Options of one of batchnuts' models at a key path, or None with the mistakes added to `problems`."""
    names = ", ".join(REGISTRY)
    if not isinstance(content, dict):
        problems.append(f"{origin(path)}{path}: found {shown(content)}; expected a mapping with name (one of {names})")
        return None
    name = content.get("name")
    if not isinstance(name, str) or name not in REGISTRY:
        hint = nearest(name, REGISTRY) if isinstance(name, str) else ""
        problems.append(f"{origin(f'{path}.name')}{path}.name: found {shown(name)}; expected one of {names}{hint}")
        return None
    return check_section(path, content, REGISTRY[name].options, origin, problems, elsewhere)


def bridge_of(options: Settings) -> Bridge | None:
    """The bridge to the library that a section `model` names, if it names one."""
    return next((bridge for bridge in BRIDGES.values() if bridge.made(options)), None)


def is_users_own(options: Settings) -> bool:
    """Whether a section `model` names code of the user's, or of another library."""
    return isinstance(options, TargetOptions) or bridge_of(options) is not None


def build_model(options: Any) -> Model:
    """Make the model that a config's section `model` asks for.

    Raises ConfigError where a user's function cannot be imported, and the errors of packaged models (e.g. DataError).
    """
    bridge = bridge_of(options)
    if bridge is not None:
        return bridge.build(options)
    return build_target(options) if isinstance(options, TargetOptions) else build(options)
