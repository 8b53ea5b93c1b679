from dataclasses import dataclass, replace

import pytest
import torch

from benchmarks.studies.methods import HistoryReplay, RandomSearch
from benchmarks.studies.run import run
from tests.benchmarks.studies.toy import BUDGET, FEW, live, table


def points(record) -> list[list[float]]:
    return [evaluation["x"] for evaluation in record["evaluations"]]


@pytest.mark.parametrize("problem", [live(), table()], ids=["live", "table"])
def test_methods_share_their_first_points(problem):
    shared = problem.design(BUDGET.initial, problem.step_seed(1, 0)).tolist()
    for name, method in FEW.items():
        first = points(run(problem, name, method, 1, replace(BUDGET, evaluations=BUDGET.initial)))
        assert (first == shared) == method.initial_design


@dataclass(frozen=True)
class Witness(RandomSearch):
    """Random search that remembers what it was shown."""

    shown: tuple = ()

    def suggest(self, problem, X, Y, seed):
        self.shown[0].append((problem, X, Y))
        return super().suggest(problem, X, Y, seed)


def test_methods_are_shown_all_evaluations_with_noise_and_a_sample_of_the_history():
    shown: list = []
    problem = replace(live(), noise_std=0.5)
    record = run(problem, "witness", Witness(shown=(shown,)), 0, BUDGET)
    evaluations = record["evaluations"]
    seen, X, Y = shown[-1]
    assert X.tolist() == points(record)[:-1]
    assert Y.flatten().tolist() == [e["observed"] for e in evaluations[:-1]]
    assert [len(task.Y) for task in seen.history.values()] == [BUDGET.history_size] * 2
    for evaluation in evaluations:
        x = torch.tensor(evaluation["x"], dtype=torch.double)
        assert evaluation["value"] == live().evaluate(x) != evaluation["observed"]
    # Luck is the same for all methods.
    other = run(problem, "best of history", HistoryReplay(), 0, BUDGET)["evaluations"]
    for one, two in zip(evaluations, other, strict=True):
        assert one["observed"] - one["value"] == pytest.approx(two["observed"] - two["value"])
