import pytest
import torch
from botorch.acquisition import LogExpectedImprovement

from benchmarks.studies.development.methods import (
    METHODS,
    averaged,
    log_ei,
    plain_gp,
)
from botorch_transfer import SourceGPs, SourcePopulation
from botorch_transfer.memo import clear_memos


def toy(n: int = 4):
    X = torch.rand(30, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    history = {f"s{i}": (X[10 * i :][:10], X[10 * i :][:10].sum(-1, True)) for i in range(2)}
    return X[:n], X[:n, :1] - X[:n, 1:].square(), history, X[n:]


def test_a_pool_is_scored_by_log_ei():
    X, Y, _, pool = toy()
    model = METHODS["gp"].model(X, Y, None)
    acquisition = LogExpectedImprovement(model, best_f=Y.max())
    one_by_one = torch.stack([acquisition(x.unsqueeze(0))[0] for x in pool])
    torch.testing.assert_close(log_ei(model, Y, pool), one_by_one)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].pretrain])
@pytest.mark.parametrize("n", [0, 4])
def test_every_transfer_method_scores_with_and_without_data(name, n, monkeypatch):
    X, Y, history, pool = toy(n)
    method = METHODS[name]
    prior = method.pretrain(history)
    clear_memos()
    for each in (SourceGPs, SourcePopulation):  # a step pre-trains nothing
        monkeypatch.setattr(each, "fit", None)
    model = method.model(X, Y, prior)
    with torch.no_grad():
        score = method.score(model, Y, pool)
        mean = model.posterior(pool).mean[:, 0]
    assert score.shape == (len(pool),)
    assert score.isfinite().all()
    assert torch.allclose(score, mean) == (n == 0)


def test_the_average_is_one_of_improvements_in_units_of_their_maximum():
    X, Y, history, pool = toy()
    method = METHODS["transfer_average"]
    model = method.model(X, Y, method.pretrain(history))
    with torch.no_grad():
        found = averaged(model, Y, pool)
        parts = torch.stack([log_ei(each, Y, pool).exp() for each in model.members.values()])
    scaled = parts / parts.amax(dim=-1, keepdim=True)
    torch.testing.assert_close(found.exp(), model.improvement_shares @ scaled)


def test_the_plain_gp_ignores_the_history():
    X, Y, _, _ = toy()
    assert METHODS["gp"].pretrain is None
    assert plain_gp(X, Y, None).num_outputs == 1
