"""The HTML report and its JSON copy."""

from twinproof.reporting.run import ReportFiles, report_run, write_comparison, write_report

__all__ = ["ReportFiles", "report_run", "write_comparison", "write_report"]
