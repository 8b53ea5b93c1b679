import pytest
import torch

from benchmarks.studies.families import FamilyProblem
from benchmarks.studies.methods import RandomSearch
from benchmarks.studies.run import Budget, run
from botorch_transfer.test_functions import BraninFamily

PROBLEM = FamilyProblem("branin", BraninFamily, num_sources=2, num_points=30)


def test_a_seed_draws_target_and_sources():
    one, same, other = (PROBLEM.instance(seed, None) for seed in (5, 5, 6))
    x = torch.tensor([0.3, 0.7], dtype=torch.double)
    assert one.evaluate(x) == same.evaluate(x) != other.evaluate(x)
    assert one.key() == same.key() != other.key()
    X = [data[0] for data in one.history.values()]
    assert X[0].shape == (30, 2)
    assert not torch.equal(*X)


def test_methods_see_noise_and_regret_does_not():
    record = run(PROBLEM, "random search", RandomSearch(), 3, Budget(40, initial=1))
    differences = torch.tensor([e["observed"] - e["value"] for e in record["evaluations"]])
    assert float(differences.std()) == pytest.approx(BraninFamily.study_noise_std, rel=0.4)
    assert record["best_known"] >= max(e["value"] for e in record["evaluations"])
