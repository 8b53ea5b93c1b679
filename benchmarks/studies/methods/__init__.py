"""Methods that studies compare; each method suggests the next point to evaluate.

`registry` has all methods by name. To add a transfer model of the package, add a line to
`registry`. Any other method is a class with `suggest` (see `base.Method`) and a line in `registry`.
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
