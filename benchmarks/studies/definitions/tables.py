"""Studies on tables of real runs: each task is the target once, and other tasks are the history."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from benchmarks.studies.definitions.definition import (
    BASELINES,
    JOINT,
    MODULAR,
    PRETRAINED,
    Definition,
)
from benchmarks.studies.problems import TableProblem
from benchmarks.studies.run import Budget
from benchmarks.tables import Table, read_shared


@dataclass(frozen=True)
class LeaveOneOut:
    """Problems of a table, one for each task as the target.

    Args:
        name: The table.
        min_points: The minimum number of points; smaller tasks are left out.
        pool: The number of rows of the target that can be evaluated, drawn at random; all by
            default. Regret refers to the best of these rows.
        num_sources: The number of source tasks of a run, drawn for each seed; all by default.
        matching: Whether all tasks of the history have the same points.
    """

    name: str
    min_points: int = 1
    pool: int | None = None
    num_sources: int | None = None
    matching: bool = False

    def __call__(self, folder: Path | None) -> list[TableProblem]:
        """Reads the table.

        Args:
            folder: The folder of the tables.

        Returns:
            One problem per task.

        Raises:
            ValueError: If `folder` is `None`.
        """
        if folder is None:
            raise ValueError(f"The study needs the table {self.name}: add --data FOLDER.")
        table = read_shared(self.name, folder).at_least(self.min_points)
        return [self._problem(table, target) for target in table.tasks]

    def _problem(self, table: Table, target: str) -> TableProblem:
        problem = replace(
            table.problem(target),
            num_sources=self.num_sources,
            matching=self.matching,
            elsewhere=table.best.get(target, -torch.inf),
        )
        if self.pool is None:
            return problem
        generator = torch.Generator().manual_seed(0)
        rows = torch.randperm(len(problem.X), generator=generator)[: self.pool]
        return replace(problem, X=problem.X[rows], Y=problem.Y[rows])


def _study(
    title: str,
    source: str,
    problems: LeaveOneOut,
    history_size: int,
    evaluations: int,
    seeds: int,
    methods: Sequence[str],
    scale: Literal["worst", "median"] = "worst",
) -> Definition:
    return Definition(
        title,
        source,
        problems,
        Budget(evaluations, initial=3, history_size=history_size),
        methods,
        seeds,
        acquisition="log_ei",
        scale=scale,
        needs_data=True,
    )


CHEAP = (*MODULAR, *PRETRAINED, *BASELINES)
ALL = (*CHEAP, *JOINT)
TABLES = {
    "svm": _study(
        "Support vector machines, ten sources × 60 points",
        "after the hierarchical models' paper, Fig. 4, on other data and with LogEI",
        LeaveOneOut("svm", num_sources=10),
        60,
        20,
        1,
        ALL,
    ),
    "fcnet": _study(
        "FC-Net, three sources × 256 points",
        "ScaML-GP's paper, Fig. 4",
        LeaveOneOut("fcnet_relu"),
        256,
        20,
        10,
        CHEAP,
        "median",
    ),
    "mlp": _study(
        "Neural networks (HPOBench), seven sources × 64 points",
        "ScaML-GP's paper, Fig. 4, with half the points and a pool of 2,000 rows",
        LeaveOneOut("mlp", pool=2000),
        64,
        20,
        5,
        CHEAP,
    ),
    "rf": _study(
        "Random forests, ten sources × 60 points",
        "the tasks of OpenML with a hundred points or more",
        LeaveOneOut("rf", min_points=100, num_sources=10),
        60,
        20,
        2,
        CHEAP,
    ),
    "rnn_optimizer": _study(
        "Optimizers of recurrent networks, eleven sources × 60 points",
        "TaskSet; the nearest to HyperBO's PD1",
        LeaveOneOut("rnn_optimizer", matching=True),
        60,
        20,
        3,
        (*CHEAP, "H-EKL"),
        "median",
    ),
    "direct_arylation": _study(
        "Direct arylation, two sources × 60 reactions",
        "a temperature is a task",
        LeaveOneOut("direct_arylation"),
        60,
        20,
        10,
        ALL,
        "median",
    ),
}
