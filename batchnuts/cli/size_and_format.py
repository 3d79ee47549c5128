"""The memory and the disk that a run takes, known before it is made, and the format of its output, which may follow."""

from __future__ import annotations

from batchnuts.cli.config import RunConfig
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.forecast import Forecast, Size, forecast
from batchnuts.process.signals import say


def decided(config: RunConfig, model: Model) -> RunConfig:
    """The config with the format of its output, which may depend on how large the output will be."""
    from batchnuts.files.saving import short_bytes
    from batchnuts.mcmc.storage.stored_run import has_zarr

    if config.output.format != "auto":
        return config
    size = forecast_of(config, model).file
    result = config.decided(size, has_zarr())
    if not result.output.streams and config.decided(size).output.streams:
        say(
            f"the draws ({short_bytes(size)}) stay in memory until the end: to write them to a Zarr store while chains "
            "run, install zarr (pip install 'batchnuts[zarr]')."
        )
    return result


def forecast_of(config: RunConfig, model: Model) -> Forecast:
    """The memory and the disk that the run takes."""
    from batchnuts.mcmc.model.library_choice import likely_backend

    return forecast(
        config.sampler,
        config.execution,
        Size.of(model, config.output.content),
        content=config.output.content,
        streamed=config.output.streams,
        checkpoints=config.output.checkpoint_seconds is not None,
        backend=likely_backend(model, config.execution),
    )
