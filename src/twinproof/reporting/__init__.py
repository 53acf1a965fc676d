"""The HTML report and its machine-readable twin."""

from twinproof.reporting.write import ReportFiles, write_comparison, write_report

__all__ = ["ReportFiles", "write_comparison", "write_report"]
