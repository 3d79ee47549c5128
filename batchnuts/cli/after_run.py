"""What the command line writes after the draws: what they were judged by, and the page about the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from batchnuts.process.signals import say

if TYPE_CHECKING:
    import xarray

    from batchnuts.files.url import OutputLocation
    from batchnuts.mcmc.diagnostics.diagnose import Diagnostics


def keep_for_reports(diagnostics: Diagnostics, location: OutputLocation) -> None:
    """Put diagnostics into the store, for later reports, which do without them where they cannot be written."""
    from batchnuts.files.saving import OutputError
    from batchnuts.mcmc.diagnostics.kept_diagnostics import keep_diagnostics

    try:
        keep_diagnostics(location, diagnostics)
    except OutputError as error:
        say(f"warning: {error} A report will diagnose the draws again.")


def write_report(
    groups: Mapping[str, xarray.Dataset], location: OutputLocation, diagnostics: Diagnostics | None, *, force: bool
) -> Path:
    """Write the page beside the draws, and give its path. diagnostics: those of the summary."""
    from batchnuts.report.page import page_path, write_page
    from batchnuts.report.run_file import run_of

    page = page_path(location)
    write_page(run_of(location, groups, diagnostics), page, force=force)
    return page
