"""What a study by name is: its problems, its budget, its methods, and how it is reported."""

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
        source: Where the setting comes from.
        problems: Makes the problems of the folder with the tables.
        budget: What a run may spend.
        methods: The names of the methods, those that a report is compared with included.
        seeds: The number of seeds.
        acquisition: The acquisition function of all models.
        fitting: How models are fitted.
        scale: What normalized regret is a share of: the distance from the best value to the
            `"worst"`, or to the `"median"` where the worst says nothing.
        at_most: The largest normalized regret that counts.
        groups: Suites that are reported together, by the group's name.
        needs_data: Whether the tables are needed.
        raw_problems: Makes the problems with the tables' outcomes as they are (`--raw`).
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
