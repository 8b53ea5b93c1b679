"""A study that takes no time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.studies import LiveProblem, Problem, Study, TableProblem
from benchmarks.studies.methods import HistoryReplay, Method, RandomSearch, methods
from benchmarks.studies.run import Budget

#: The data of a target before its first evaluation.
NOTHING = torch.empty(0, 2, dtype=torch.double), torch.empty(0, 1, dtype=torch.double)
BUDGET = Budget(evaluations=5, initial=2, history_size=6)
CHEAP: dict[str, Method] = {"best of history": HistoryReplay(), "random search": RandomSearch()}
FEW: dict[str, Method] = CHEAP | methods(["plain GP", "MHGP"], fitting="thrifty")


@dataclass(frozen=True)
class Bowl:
    """A paraboloid with its top at `center`."""

    center: float

    def __call__(self, x: Tensor) -> float:
        return -float((x - self.center).square().sum())


def history(num_tasks: int = 2, n: int = 8) -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(n, 2, generator=generator, dtype=torch.double)
    tasks = {}
    for number in range(num_tasks):
        Y = -(X - 0.3 - 0.3 * number).square().sum(dim=-1, keepdim=True)
        tasks[f"source {number}"] = (X, Y)
    return tasks


def live(name: str = "bowl", center: float = 0.4) -> LiveProblem:
    return LiveProblem(name, Bowl(center), dim=2, history=history(), best_known=0.0)


def table(name: str = "grid", n: int = 6) -> TableProblem:
    axis = torch.linspace(0, 1, n, dtype=torch.double)
    X = torch.cartesian_prod(axis, axis)
    return TableProblem(name, X, -(X - 0.4).square().sum(dim=-1, keepdim=True), history())


def study(seeds: int = 2) -> Study:
    problems: list[Problem] = [live(), table()]
    return Study(problems, CHEAP, range(seeds), BUDGET)
