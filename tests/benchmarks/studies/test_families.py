import pytest
import torch

from benchmarks.studies.families import FamilyProblem
from benchmarks.studies.methods import RandomSearch
from benchmarks.studies.run import Budget, run
from botorch_transfer.test_functions import BraninFamily

PROBLEM = FamilyProblem("branin", BraninFamily, num_sources=2, num_points=30)


def test_methods_see_noise_and_regret_does_not():
    record = run(PROBLEM, "random search", RandomSearch(), 3, Budget(40, initial=1))
    differences = torch.tensor([e["observed"] - e["value"] for e in record["evaluations"]])
    assert float(differences.std()) == pytest.approx(BraninFamily.study_noise_std, rel=0.4)
    assert record["best_known"] >= max(e["value"] for e in record["evaluations"])
