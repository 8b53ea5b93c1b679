"""The methods that studies compare: each suggests the next point to evaluate.

`registry` has all of them by name. A transfer model of the package joins with one line there;
anything else is a class with `suggest` (see `base.Method`), and one line.
"""

from benchmarks.studies.methods.acquisitions import Acquire, log_ei_or_ucb, upper_bound
from benchmarks.studies.methods.base import Method, with_failures_worst
from benchmarks.studies.methods.baselines import (
    HistoryReplay,
    Opening,
    Portfolio,
    RandomSearch,
    SortedRows,
)
from benchmarks.studies.methods.models import multi_task_gp, plain_gp, pretrained, transfer
from benchmarks.studies.methods.optimization import (
    THOROUGH,
    THRIFTY,
    BayesianOptimization,
    Build,
    Fitting,
)
from benchmarks.studies.methods.registry import METHODS, MODELS, OTHERS, methods

__all__ = [
    "METHODS",
    "MODELS",
    "OTHERS",
    "THOROUGH",
    "THRIFTY",
    "Acquire",
    "BayesianOptimization",
    "Build",
    "Fitting",
    "HistoryReplay",
    "Method",
    "Opening",
    "Portfolio",
    "RandomSearch",
    "SortedRows",
    "log_ei_or_ucb",
    "methods",
    "multi_task_gp",
    "plain_gp",
    "pretrained",
    "transfer",
    "upper_bound",
    "with_failures_worst",
]
