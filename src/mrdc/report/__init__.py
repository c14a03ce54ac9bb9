"""Pages about runs and plans."""

from mrdc.report.page import write_report

__all__ = ["write_report"]
