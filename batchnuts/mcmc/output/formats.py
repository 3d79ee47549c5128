"""The formats of a run's output, and what writes each: the one place where a format is entered.

A file is written at the end of a run, a Zarr store (`streaming.py`) while chains run. `opened_run.py` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO

from batchnuts.files.groups import AnyGroup
from batchnuts.files.saving import Write


@dataclass(frozen=True)
class OutputFormat:
    """One value of `output.format`."""

    name: str
    title: str
    """What a run's output is called in messages."""
    endings: tuple[str, ...]
    """Of paths that say so; the first one is that of a path that is made up."""
    write: Write | None = None
    """Writes all groups to one file, at the end; None: it is a folder that is written while chains run, and may be at a
    URL."""
    holds_summaries: bool = False
    """Whether it may hold summaries in place of draws."""

    @property
    def streams(self) -> bool:
        """Whether draws go there while chains run."""
        return self.write is None


def _netcdf(groups: Mapping[str, AnyGroup], file: IO[bytes]) -> None:
    from batchnuts.files.saving import write_netcdf  # which takes h5netcdf, when a file is written

    write_netcdf(groups, file)


OUTPUT_FORMATS: Mapping[str, OutputFormat] = MappingProxyType(
    {
        format_.name: format_
        for format_ in (
            OutputFormat("netcdf", "a netCDF file", (".nc", ".nc4", ".netcdf", ".h5", ".hdf5"), _netcdf, True),
            OutputFormat("zarr", "a Zarr store", (".zarr",)),
        )
    }
)

STREAMED = next(name for name, format_ in OUTPUT_FORMATS.items() if format_.streams)
"""The format of large runs, and of what is at a URL."""
IN_ONE_FILE = next(name for name, format_ in OUTPUT_FORMATS.items() if not format_.streams)
"""The format of others."""
