import pytest
import torch

from benchmarks.studies.methods import models
from benchmarks.studies.methods.models import multi_task_gp, pretrained
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


def test_priors_are_pretrained_once_a_history(monkeypatch):
    monkeypatch.setattr(models, "PRETRAINING_STEPS", 2)
    X = torch.empty(0, 2, dtype=torch.double)
    build = pretrained("fsbo", "nll")
    one, same = (build(X, X[:, :1], live(name)).prior for name in ("one", "another"))
    other = build(X, X[:, :1], live().subsample(3, seed=0)).prior
    sets = [list(prior.state_dict().values()) for prior in (one, same, other)]
    assert all(map(torch.equal, sets[0], sets[1]))
    assert not all(map(torch.equal, sets[0], sets[2]))
