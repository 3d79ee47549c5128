"""Where the output of a run goes: checked before anything is computed."""

from __future__ import annotations

import os
from pathlib import Path

from batchnuts.cli.config import RunConfig
from batchnuts.files.saving import OutputError, check_path, check_space
from batchnuts.files.url import OutputLocation, Url, folder_of, location_of
from batchnuts.mcmc.checkpoint.keeper import NAME, delete
from batchnuts.mcmc.output.formats import OUTPUT_FORMATS
from batchnuts.mcmc.output.stan_csv import refuse_existing
from batchnuts.mcmc.storage.place import is_store
from batchnuts.mcmc.storage.url_place import check_url


class OutputRefused(OutputError):
    """The output that a config or the command line names cannot be written; known before the run."""


def path_of_new_run(config: RunConfig, *, force: bool, begun_in: Path | None = None) -> OutputLocation:
    """`checked_path_of_new_run`; with `force`, what was kept of a run that has not ended is deleted."""
    path = checked_path_of_new_run(config, force=force, begun_in=begun_in)
    if force:
        delete(folder_of(path))
    return path


def checked_path_of_new_run(config: RunConfig, *, force: bool, begun_in: Path | None = None) -> OutputLocation:
    """The absolute path of the output that the config names. begun_in: the current folder when the command was given,
    which code of the user's may have changed.

    Raises OutputRefused where nothing can be written there, a package lacks, or, unless `force`, there is the
    checkpoint of a run that has not ended.
    """
    try:
        return _path_of_new_run(config, force=force, begun_in=begun_in or Path.cwd())
    except OutputError as error:
        raise OutputRefused(str(error)) from error


def require_space(location: OutputLocation, size: int, config: RunConfig) -> None:
    """Raise OutputRefused where the disk has no room for the `size` bytes of an output; of a URL nothing is known."""
    if not isinstance(location, Path):
        return
    try:
        check_space(location, size, folder=config.output.streams)
    except OutputError as error:
        raise OutputRefused(str(error)) from error


def _path_of_new_run(config: RunConfig, *, force: bool, begun_in: Path) -> OutputLocation:
    assert config.output.path is not None  # it is decided with the format
    location = location_of(config.output.path, begun_in)
    try:
        path = checked_path(config, location if begun_in != Path.cwd() else config.output.path, force=force)
    except OutputError:
        # what is in the way may be what a run has saved so far, which can go on
        if isinstance(location, Path) and location.name and not force:
            _require_no_checkpoint(location.absolute())
        raise
    for name, file in config.inputs.items() if isinstance(path, Path) else ():
        if (place := (begun_in / file).resolve()) in (path, *_beside(config, path)):
            raise OutputError(f"Cannot write {place}: the run reads it ({name}). Set another output.path.")
    if not force:
        _require_no_checkpoint(path)
    return path


def _beside(config: RunConfig, output: OutputLocation) -> list[Path]:
    """Files that are there, of those that a run with this output writes beside it."""
    format_ = OUTPUT_FORMATS.get(config.output.format)  # none of `auto`
    if format_ is None or format_.files_beside is None or not isinstance(output, Path):
        return []
    return format_.files_beside(output)


def checked_path(config: RunConfig, path: str | OutputLocation, *, force: bool) -> OutputLocation:
    """The absolute path, or the URL; checked, as that of the page about the run is, if there is to be one."""
    folder = config.output.streams
    if folder:
        from batchnuts.mcmc.output.streaming import require_zarr

        require_zarr()
    if not config.output.draws:
        from batchnuts.mcmc.output.summarizing import require_sketches

        require_sketches()
    location = location_of(path)
    output: OutputLocation
    if isinstance(location, Url):
        output = check_url(location, force=force)
    else:
        output = check_path(str(path), force=force, is_store=is_store if folder else None)
        if not force:
            refuse_existing(_beside(config, output))
    if config.output.report:
        from batchnuts.report.figures import require_matplotlib
        from batchnuts.report.page import page_path

        check_path(page_path(output), force=force)
        require_matplotlib()
    return output


def _require_no_checkpoint(output: OutputLocation) -> None:
    """Raise OutputRefused where a new run would replace the checkpoint of one that has not ended."""
    folder = folder_of(output)
    if os.path.exists(folder / NAME):  # false, too, for a name that is too long
        raise OutputError(
            f"{folder} has the checkpoint of an unfinished run. Continue it with --resume {output}, or give --force "
            "to discard it, or set another output.path."
        )
