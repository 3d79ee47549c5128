"""Many fits by the command line: a config with the section `many`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from batchnuts.cli.ending import Ending

if TYPE_CHECKING:
    from batchnuts.cli.config import RunConfig
    from batchnuts.many.data_sets import DataSets
    from batchnuts.many.run import ManyRun
    from batchnuts.mcmc.model.model import Model
    from batchnuts.user_models.data import Columns

CONFIG = "config"
"""The attribute of a store that has the config of its run."""

MOST_LINES = 20
"""Fits that are listed at the end."""


def is_store(path: str) -> bool:
    """Whether a path is that of a store of many fits."""
    file = Path(path).expanduser() / "zarr.json"
    try:
        return "batchnuts_many" in json.loads(file.read_text(encoding="utf-8")).get("attributes", {})
    except (OSError, ValueError):
        return False


def resumed_config(path: str) -> RunConfig:
    """The config of a store's run, with its path. Raises ConfigError."""
    from batchnuts.cli.config import config_of

    folder = Path(path).expanduser().resolve()
    content = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))["attributes"][CONFIG]
    content["output"]["path"] = str(folder)
    return config_of(content, folder / "zarr.json")


def make_many(config: RunConfig, ending: Ending, *, force: bool, quiet: bool, resume: bool = False) -> int:
    """Make the fits of a config and show what they say; gives the exit code."""
    from batchnuts.cli.output_path import OutputRefused
    from batchnuts.many.calibration import Calibration, by_prior, simulated
    from batchnuts.many.fit import HELD_OUT, RANKS
    from batchnuts.many.held_out import CrossValidation, folds_of, pointwise_of, without
    from batchnuts.many.result import ManyResult
    from batchnuts.many.sensitivity import Sensitivity, priors_of
    from batchnuts.user_models.users_code import imported

    config, many = _with_defaults(config), config.many
    assert many is not None, "the config has the section"
    path = _path(config)
    if path.exists() and not (resume or force):
        raise OutputRefused(
            f"{path} is there already. To go on with its run: --resume {path}. To replace it, add --force; or set "
            "output.path."
        )
    model, data_sets = _model(config)
    found: Any
    if many.sbc is not None:
        run, seed = _run(config, model, frozenset({RANKS}), force, quiet, resume), config.sampler.seed
        if many.sbc.simulate is None:
            sets = by_prior(model, config.execution, many.sbc.fits, seed)
        else:
            simulate = imported("simulate", many.sbc.simulate, section="many.sbc")
            sets = simulated(model, simulate, many.sbc.fits, seed)
        found = Calibration(run.of_sets(sets, many.sbc.fits))
    elif many.folds is not None:
        run = _run(config, model, frozenset({HELD_OUT}), force, quiet, resume)
        parts, names = folds_of(model, many.folds, None, config.sampler.seed)
        fits = run.of_sets(without(model, parts, names), len(parts))
        found = CrossValidation(fits, parts, pointwise_of(fits, parts, len(model.data[names[0]])))
    elif many.priors is not None:
        priors = priors_of(model, many.priors)
        run = _run(config, model, frozenset({*many.keep, "mean", "sd"}), force, quiet, resume)
        found = Sensitivity(run.of_sets(priors, len(priors)))
    else:
        run = _run(config, model, frozenset(many.keep), force, quiet, resume)
        found = run.of_data(data_sets, many.mask)
    ending.content["path"] = str(path)
    fits = found if isinstance(found, ManyResult) else found.fits
    if not quiet:
        print(found)
        for line in _listed(fits):
            print(line)
    print(path, flush=True)
    if run.interrupted:
        ending.say(f"interrupted; to go on: python -m batchnuts.sample --resume {path}")
        return 130
    return 0


def _with_defaults(config: RunConfig) -> RunConfig:
    """The config with what is the default of many fits."""
    from batchnuts.many.run import DEFAULTS

    sampler = config.sampler
    missing = {name: value for name, value in DEFAULTS.items() if name not in sampler.model_fields_set}
    return replace(config, sampler=sampler.model_copy(update=missing))


def _listed(fits: Any) -> Iterator[str]:
    """Lines about fits that failed, or whose draws are not good."""
    bad = [row for row in fits.rows.values() if not row.ok]
    for row in bad[:MOST_LINES]:
        yield f"  {row.label}: {row.failed or row.advice}"
    if len(bad) > MOST_LINES:
        yield f"  and {len(bad) - MOST_LINES:,} more"


def _path(config: RunConfig) -> Path:
    return Path(config.output.path or f"{config.stem}.zarr").expanduser()


def _run(config: RunConfig, model: Model, keep: frozenset[str], force: bool, quiet: bool, resume: bool) -> ManyRun:
    from batchnuts.many.fit import HELD_OUT
    from batchnuts.many.run import ManyRun, settings_of

    many = config.many
    assert many is not None, "the config has the section"
    groups = ("log_likelihood",) if HELD_OUT in keep else tuple(config.output.groups or ())
    settings = settings_of(model, config.sampler, config.execution, keep, groups)
    return ManyRun(
        settings,
        path=_path(config),
        resume=resume,
        replace_store=force and not resume,
        processes=many.processes,
        progress=False if quiet else None,
        attributes={CONFIG: config.resolved()},
    )


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
