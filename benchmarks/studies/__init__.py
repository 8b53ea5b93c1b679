"""Studies: runs of each method on each problem with each seed, under equal conditions.

`Study` describes a study, and `run_study` runs it. `metrics` computes regrets from the results, and
`report` writes tables and pictures of the regrets. To add a method, add a line to
`methods/registry.py`, and optionally a line to `benchmarks.styles`.
"""

from benchmarks.studies.problems import LiveProblem, Problem, TableProblem
from benchmarks.studies.study import Study, run_study

__all__ = ["LiveProblem", "Problem", "Study", "TableProblem", "run_study"]
