import pytest
import torch

from benchmarks.studies.methods.models import multi_task_gp
from tests.benchmarks.studies.toy import live, table


@pytest.mark.parametrize("n", [1, 8])
def test_multi_task_gp_predicts_the_target_in_its_own_units(n):
    problem = live(center=0.3)
    X = table().X[:: 36 // n][:n]
    Y = 1000 + 100 * torch.tensor([[problem.evaluate(x)] for x in X], dtype=torch.double)
    model = multi_task_gp(X, Y, problem)
    assert model.train_inputs[0].shape == (16 + n, 3)
    posterior = model.posterior(X)
    assert posterior.mean.shape == (n, 1)
    assert (posterior.mean - Y.mean()).abs().max() < 100
