"""A run in words and pictures: the table at its end, and a page about its file (`python -m batchnuts.report`)."""

from batchnuts.report.table import print_report, summary_table

__all__ = ["print_report", "summary_table"]
