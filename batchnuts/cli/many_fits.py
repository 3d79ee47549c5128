"""Many fits by the command line: each key of a config's section `many`, passed on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from batchnuts.cli.ending import Ending
from batchnuts.process.signals import StopSignals

if TYPE_CHECKING:
    from batchnuts.cli.config import RunConfig
    from batchnuts.many.data_sets import DataSets
    from batchnuts.many.fit import FitSettings
    from batchnuts.many.run import ManyRun
    from batchnuts.mcmc.model.model import Model
    from batchnuts.user_models.data import Columns

CONFIG = "config"
"""The attribute of a store that has the config of its run."""

MOST_LINES = 20
"""Fits that are listed at the end."""


def is_store(path: str) -> bool:
    """Whether a path is that of a store of many fits."""
    from batchnuts.files.saving import OutputError
    from batchnuts.files.url import location_of
    from batchnuts.mcmc.storage.stored_run import has_many_fits

    try:
        return has_many_fits(location_of(path))
    except OutputError:  # which whoever opens it says
        return False


def resumed_config(path: str, overrides: Sequence[str], further: int) -> RunConfig:
    """The config of a store's run, with its path. overrides: of `execution.cluster`. further: draws to add to each fit.

    Raises ConfigError.
    """
    from batchnuts.cli.config import config_of
    from batchnuts.settings.yaml import ConfigError

    if further:
        raise ConfigError(
            f"sampler.draws=+{further}: {path} has many fits, each of which has ended by its own rule; for more draws "
            "of each make another run."
        )
    folder = Path(path).expanduser().resolve()
    content = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))["attributes"].get(CONFIG)
    if content is None:
        raise ConfigError(
            f"{path} was written by batchnuts.sample_many in Python, and has no config to go on with: call it again "
            "with resume=True."
        )
    content["output"]["path"] = str(folder)
    return config_of(content, folder / "zarr.json", overrides)


@dataclass(frozen=True)
class Plan:
    """The fits of a config that are to be made."""

    model: Model
    count: int
    """Of the fits."""
    keep: frozenset[str]
    result: Callable[[ManyRun], Any]
    """Makes them."""


def plan_of(config: RunConfig) -> Plan:
    """What a config asks for. Raises ConfigError, and ModelError for a model without what that needs."""
    from batchnuts.many.calibration import Calibration, simulations
    from batchnuts.many.fit import HELD_OUT, RANKS
    from batchnuts.many.held_out import cross_validated, folds_of
    from batchnuts.many.sensitivity import Sensitivity, priors_of
    from batchnuts.user_models.users_code import imported

    many, seed = config.many, config.sampler.seed
    assert many is not None, "the config has the section"
    model, data_sets = _model(config)
    if many.sbc is not None:
        place, fits = many.sbc.simulate, many.sbc.fits
        simulate = None if place is None else imported("simulate", place, section="many.sbc")
        sets = simulations(model, simulate, config.execution, fits, seed)
        return Plan(model, fits, frozenset({RANKS}), lambda run: Calibration(run.of_sets(sets, fits)))
    if many.folds is not None:
        parts, names = folds_of(model, many.folds, None, seed)
        return Plan(model, len(parts), frozenset({HELD_OUT}), lambda run: cross_validated(run, model, parts, names))
    if many.priors is not None:
        priors = priors_of(model, many.priors)
        keep = frozenset({*many.keep, "mean", "sd"})
        return Plan(model, len(priors), keep, lambda run: Sensitivity(run.of_sets(priors, len(priors))))
    count = data_sets.count
    assert count is not None, "it is known of columns and files"
    return Plan(model, count, frozenset(many.keep), lambda run: run.of_data(data_sets, many.mask))


def make_many(
    config: RunConfig, ending: Ending, stop: StopSignals, *, force: bool, quiet: bool, resume: bool = False
) -> int:
    """Make the fits of a config and show what they say; gives the exit code."""
    from batchnuts.many.result import ManyResult
    from batchnuts.many.run import ManyRun

    config = with_defaults(config)
    path = store_path(config)
    if not resume:
        refuse_existing(path, force)
    plan = plan_of(config)
    assert config.many is not None, "the config has the section"
    run = ManyRun(
        settings_of_fits(config, plan),
        path=path,
        resume=resume,
        replace_store=force and not resume,
        processes=config.many.processes,
        progress=False if quiet else None,
        attributes={CONFIG: config.resolved()},
    )
    found = plan.result(run)
    ending.content["path"] = str(path)
    fits = found if isinstance(found, ManyResult) else found.fits
    if not quiet:
        print(found)
        for line in _listed(fits):
            print(line)
    print(path, flush=True)
    if run.interrupted:
        ending.content["resume"] = str(path)
        ending.say(f"{stop.name}; to go on: python -m batchnuts.sample --resume {shlex.quote(str(path))}")
        return stop.exit_code
    return 0


def refuse_existing(path: Path, force: bool) -> None:
    """Raise OutputRefused for a store that is there, unless it may be replaced."""
    from batchnuts.cli.output_path import OutputRefused

    if path.exists() and not force:
        raise OutputRefused(
            f"{path} is there already. To go on with its run: --resume {shlex.quote(str(path))}. To replace it, add "
            "--force; or set output.path."
        )


def with_defaults(config: RunConfig) -> RunConfig:
    """The config with what is the default of many fits."""
    from batchnuts.many.calibration import DEFAULTS as OF_CALIBRATION
    from batchnuts.many.run import DEFAULTS
    from batchnuts.mcmc.settings.run_settings import SamplerSettings

    assert config.many is not None, "the config has the section"
    defaults = {**DEFAULTS, **(OF_CALIBRATION if config.many.sbc is not None else {})}
    checked, given = SamplerSettings.model_validate(defaults), config.sampler.model_fields_set
    missing = {name: getattr(checked, name) for name in defaults if name not in given}
    return replace(config, sampler=config.sampler.model_copy(update=missing))


def settings_of_fits(config: RunConfig, plan: Plan) -> FitSettings:
    """The settings of each fit; raises what a fit would raise for them."""
    from batchnuts.many.fit import HELD_OUT
    from batchnuts.many.run import settings_of

    groups = ("log_likelihood",) if HELD_OUT in plan.keep else tuple(config.output.groups or ())
    return settings_of(plan.model, config.sampler, config.execution, plan.keep, groups)


def _listed(fits: Any) -> Iterator[str]:
    """Lines about fits that failed, or whose draws are not good."""
    bad = [row for row in fits.rows.values() if not row.ok]
    for row in bad[:MOST_LINES]:
        yield f"  {row.label}: {row.failed or row.advice}"
    if len(bad) > MOST_LINES:
        yield f"  and {len(bad) - MOST_LINES:,} more"


def store_path(config: RunConfig) -> Path:
    """Where the store of all fits is, or will be."""
    return Path(config.output.path or f"{config.stem}.zarr").expanduser()


def _model(config: RunConfig) -> tuple[Model, DataSets]:
    """The model with a data set as its example, and all data sets, as far as the config has them."""
    from batchnuts.many.data_sets import DataSets
    from batchnuts.models.tables import DataError
    from batchnuts.settings.yaml import ConfigError
    from batchnuts.user_models.target import TargetOptions, build_target

    options, many = config.model, config.many
    assert many is not None, "the config has the section"
    if not isinstance(options, TargetOptions) or options.data is None:
        raise ConfigError(
            "many: expected a model of your own, model.target, with model.data, a file whose columns its functions "
            "take; for other models use batchnuts.sample_many in Python."
        )
    try:
        columns = options.data.read(options.dtype)
        if many.data is not None:
            files = sorted(path for path in Path(many.data).expanduser().iterdir() if path.is_file())
            pairs = [(path.stem, _columns_of(options, path)) for path in files]
            if not pairs:
                raise ConfigError(f"many.data: found {many.data!r}, a folder without files; expected one for each fit.")
            return build_target(options, columns), DataSets(pairs, len(pairs))
    except (DataError, OSError) as error:
        raise ConfigError(f"many.data: {error}") from None
    if many.by is None:
        return build_target(options, columns), DataSets((), 0)
    if many.by not in columns.arrays:
        raise ConfigError(f"many.by: found {many.by!r}; expected a column of model.data: {', '.join(columns.arrays)}.")
    codes = columns.arrays[many.by]
    values, first = np.unique(codes, return_index=True)
    values = values[np.argsort(first)]
    named = columns.labels.get(many.by)
    labels = [named[int(value)] if named is not None else value.item() for value in values]
    rows = {name: array for name, array in columns.arrays.items() if name != many.by and np.ndim(array)}

    def one(value: Any) -> dict[str, Any]:
        chosen = codes == value
        return {name: array[chosen] if len(array) == len(codes) else array for name, array in rows.items()}

    example = _columns(one(values[0]), columns)
    if many.mask is not None:
        example.arrays[many.mask] = np.ones(len(next(iter(example.arrays.values()))), bool)
    sets = ((label, one(value)) for label, value in zip(labels, values, strict=True))
    return build_target(options, example), DataSets(sets, len(values))


def _columns(arrays: dict[str, Any], columns: Columns) -> Columns:
    return replace(columns, arrays=dict(arrays), labels={n: x for n, x in columns.labels.items() if n in arrays})


def _columns_of(options: Any, path: Path) -> Any:
    """The columns of another file, read as those of `model.data`; why they cannot be, in place of them."""
    from batchnuts.many.data_sets import NotRead
    from batchnuts.models.tables import DataError
    from batchnuts.user_models.data import read_columns

    try:
        return dict(read_columns(path, options.data.requested(), options.dtype).arrays)
    except DataError as error:
        return NotRead(str(error))
