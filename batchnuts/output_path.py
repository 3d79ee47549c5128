"""Where the output of a run goes: checked before anything is computed."""

from __future__ import annotations

from pathlib import Path

from batchnuts.config import RunConfig
from batchnuts.mcmc.checkpoint.keeper import NAME, delete
from batchnuts.mcmc.saving import OutputError, check_path
from batchnuts.mcmc.storage.place import is_store
from batchnuts.mcmc.storage.url_place import check_url
from batchnuts.mcmc.url import OutputLocation, Url, folder_of, location_of


def path_of_new_run(config: RunConfig, *, force: bool) -> OutputLocation:
    """As the config says, absolute. Raises OutputError where nothing can be written there, a package lacks, or there is
    the checkpoint of a run that has not ended."""
    assert config.output.path is not None  # it is decided with the format
    try:
        path = checked_path(config, config.output.path, force=force)
    except OutputError:
        # what is in the way may be what a run has saved so far, which can go on
        if isinstance(location := location_of(config.output.path), Path) and location.name and not force:
            _require_no_checkpoint(location.absolute(), force=False)
        raise
    for name, file in config.inputs.items() if isinstance(path, Path) else ():
        if file.resolve() == path:
            raise OutputError(f"Cannot write {path}: the run reads it ({name}). Set another output.path.")
    _require_no_checkpoint(path, force=force)
    return path


def checked_path(config: RunConfig, path: str | OutputLocation, *, force: bool) -> OutputLocation:
    """The absolute path, or the URL; checked, as that of the page about the run is, if there is to be one."""
    folder = config.output.format == "zarr"
    if folder:
        from batchnuts.mcmc.streaming import require_zarr

        require_zarr()
    if not config.output.draws:
        from batchnuts.mcmc.summarizing import require_sketches

        require_sketches()
    location = location_of(path)
    output: OutputLocation
    if isinstance(location, Url):
        output = check_url(location, force=force)
    else:
        output = check_path(str(path), force=force, is_store=is_store if folder else None)
    if config.output.report:
        from batchnuts.report.figures import require_matplotlib
        from batchnuts.report.page import page_path

        check_path(page_path(output), force=force)
        require_matplotlib()
    return output


def _require_no_checkpoint(output: OutputLocation, *, force: bool) -> None:
    """That a new run replaces no checkpoint of one that has not ended, unless that is asked for."""
    folder = folder_of(output)
    if force:
        delete(folder)
    elif (folder / NAME).exists():
        raise OutputError(
            f"{folder} has the checkpoint of a run that has not ended. Go on with --resume {output}, or give --force "
            "to drop it, or set another output.path."
        )
