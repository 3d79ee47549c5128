"""The formats of a run's output, and what writes each: the one place where a format is entered.

A file is written at the end of a run, a Zarr store (`streaming.py`) while chains run. `opened_run.py` reads both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import IO

from batchnuts.files.groups import AnyGroup
from batchnuts.files.saving import OutputError, Write
from batchnuts.mcmc.output.stan_csv import stan_csv_files, write_stan_csv


@dataclass(frozen=True)
class OutputFormat:
    """One value of `output.format`."""

    name: str
    title: str
    """What a run's output is called in messages."""
    help: str
    """What it is, and when it is written: a clause of the description of `output.format`."""
    endings: tuple[str, ...]
    """Of paths that say so; the first one is that of a path that is made up."""
    write: Write | None = None
    """Writes all groups to one file, at the end; None: it is a folder that is written while chains run, and may be at a
    URL."""
    holds_summaries: bool = False
    """Whether it may hold summaries in place of draws."""
    write_beside: Callable[[Mapping[str, AnyGroup], Path, bool], object] | None = None
    """Writes further files beside the file; the last argument says whether they may replace others. Raises OutputError.
    """
    files_beside: Callable[[Path], list[Path]] | None = None
    """Such files that are there beside a path."""

    @property
    def streams(self) -> bool:
        """Whether draws go there while chains run."""
        return self.write is None


def _netcdf(groups: Mapping[str, AnyGroup], file: IO[bytes]) -> None:
    from batchnuts.files.saving import write_netcdf  # which takes h5netcdf, when a file is written

    write_netcdf(groups, file)


def _stan_csv(groups: Mapping[str, AnyGroup], output: Path, replace: bool) -> None:
    try:
        write_stan_csv(groups, output, replace=replace)
    except OutputError as error:
        raise OutputError(f"{error} The draws are in {output}; batchnuts.to_stan_csv writes them again.") from error


_NETCDF_ENDINGS = (".nc", ".nc4", ".netcdf", ".h5", ".hdf5")

OUTPUT_FORMATS: Mapping[str, OutputFormat] = MappingProxyType(
    {
        format_.name: format_
        for format_ in (
            OutputFormat(
                "netcdf",
                "a netCDF file",
                "one file, written at the end",
                _NETCDF_ENDINGS,
                _netcdf,
                holds_summaries=True,
            ),
            OutputFormat(
                "zarr",
                "a Zarr store",
                "a folder, written while chains run, so that draws are not kept in memory (needs the package zarr)",
                (".zarr",),
            ),
            OutputFormat(
                "stan_csv",
                "a netCDF file with Stan's CSV files beside it",
                "as netcdf, and beside it a file for each chain as CmdStan writes it, run_1.csv, ...",
                _NETCDF_ENDINGS,
                _netcdf,
                write_beside=_stan_csv,
                files_beside=stan_csv_files,
            ),
        )
    }
)

STREAMED = next(name for name, format_ in OUTPUT_FORMATS.items() if format_.streams)
"""The format of large runs, and of what is at a URL."""
IN_ONE_FILE = next(name for name, format_ in OUTPUT_FORMATS.items() if not format_.streams)
"""The format of others."""

OUTPUT_FORMATS_DESCRIBED = "; ".join(f"{format_.name}: {format_.help}" for format_ in OUTPUT_FORMATS.values())
"""All formats with what they are."""


def format_of_ending(path: str | None) -> OutputFormat | None:
    """The format that a path's ending stands for, if any; the first one of those with the same endings."""
    ending = PurePath(path or "").suffix.lower()
    return next((format_ for format_ in OUTPUT_FORMATS.values() if ending in format_.endings), None)
