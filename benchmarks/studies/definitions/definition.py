"""Definition of a named study: problems, budget, methods, and options of the report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.studies.methods.registry import Acquisition, FittingName
from benchmarks.studies.problems import ProblemSource
from benchmarks.studies.run import Budget

MODULAR = ("ScaML-GP", "guarded", "RGPE", "SGPT", "MHGP", "BHGP", "SHGP")
PRETRAINED = ("H-NLL", "FSBO", "ABLR")
BASELINES = ("plain GP", "best of history", "random search")
JOINT = ("WSGP", "HGP", "MTKGP", "MTGP", "ScaML-GP, joint", "multi-task GP")


@dataclass(frozen=True)
class Definition:
    """A study that can be run by its name.

    Args:
        title: The report's title.
        source: The source of the setting, such as a paper.
        problems: A function from the folder of the tables to the problems.
        budget: The budget of each run.
        methods: The names of the methods, including the reference methods of the report.
        seeds: The number of seeds.
        acquisition: The acquisition function of all models.
        fitting: The name of the fitting options, see `methods.registry`.
        scale: The unit of normalized regret: the distance from the best value to the `"worst"`
            value, or to the `"median"` if the worst value is an outlier.
        at_most: The largest normalized regret; larger regrets are clipped.
        groups: The names of groups of suites, with the suites of each group.
        needs_data: Whether the tables are needed.
        raw_problems: A function like `problems`, with outcomes as recorded (`--raw`).
    """

    title: str
    source: str
    problems: Callable[[Path | None], Sequence[ProblemSource]]
    budget: Budget
    methods: Sequence[str]
    seeds: int
    acquisition: Acquisition = "log_ei"
    fitting: FittingName = "thrifty"
    scale: Literal["worst", "median"] = "median"
    at_most: float | None = None
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    needs_data: bool = False
    raw_problems: Callable[[Path | None], Sequence[ProblemSource]] | None = None
