"""Tables and pictures of the results of a study."""

from benchmarks.studies.report.curves import regret_figure
from benchmarks.studies.report.tables import regret_table
from benchmarks.studies.report.write import write_report

__all__ = ["regret_figure", "regret_table", "write_report"]
