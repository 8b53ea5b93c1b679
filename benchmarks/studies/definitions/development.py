"""Studies for the development of models: many small runs on suites of real tables."""

from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.studies.definitions.definition import Definition
from benchmarks.studies.methods.registry import OPENINGS
from benchmarks.studies.run import Budget
from benchmarks.studies.suites import (
    FEW_SOURCES,
    HEAVY_TAILS,
    SHIPPED,
    STRESS,
    TUNING,
    VALIDATION,
    Suite,
    problems,
)

METHODS = ("plain GP", "ScaML-GP", "RGPE", "guarded", "TransferGP")
OPPONENTS = (*OPENINGS.values(), *OPENINGS)


def _study(title: str, source: str, groups: Mapping[str, Sequence[Suite]]) -> Definition:
    suites = [suite for group in groups.values() for suite in group]
    return Definition(
        title,
        source,
        partial(problems, suites),
        Budget(25, initial=2),
        (*METHODS, *OPPONENTS),
        seeds=1,
        acquisition="mean_log_ei",
        fitting="thorough",
        scale="median",
        at_most=1.0,
        groups={name: [suite.full_name for suite in group] for name, group in groups.items()},
        needs_data=True,
        raw_problems=partial(problems, suites, raw=True),
    )


DEVELOPMENT = {
    "development": _study(
        "Development: 17 tables",
        "five suites to choose settings on, twelve to confirm them on",
        {
            "tuning": TUNING,
            "validation": VALIDATION,
            "heavy_tails": HEAVY_TAILS,
            "shipped": SHIPPED,
        },
    ),
    "few_sources": _study(
        "One to three sources", "four of the ten tables", {"few_sources": FEW_SOURCES}
    ),
    "stress": _study(
        "Misleading history", "four of the ten tables, outcomes of all sources spoiled", STRESS
    ),
}
