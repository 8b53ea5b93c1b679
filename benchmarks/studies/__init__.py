"""Studies: methods × problems × seeds, compared on equal terms.

A study is described by a `Study` and run by `run_study`; `metrics` turns its results into regrets,
`report` these into tables and pictures. A new method is one line in `methods.METHODS` and one in
`benchmarks.styles`.
"""

from benchmarks.studies.problems import LiveProblem, Problem, TableProblem
from benchmarks.studies.study import Study, run_study

__all__ = ["LiveProblem", "Problem", "Study", "TableProblem", "run_study"]
