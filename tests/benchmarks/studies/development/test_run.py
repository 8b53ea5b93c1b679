import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP

from benchmarks.studies.development.methods import PoolMethod, plain_gp
from benchmarks.studies.development.run import calibration, run
from benchmarks.studies.development.suites import Case


def toy(n: int = 30) -> Case:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, dtype=torch.double, generator=generator)
    history = {"s": (X, X.sum(-1, True))}
    return Case(X, X.sum(-1, keepdim=True), history, np.random.default_rng(0))


def test_the_highest_score_is_taken_and_the_prior_made_once():
    made = []

    def pretrain(history):
        made.append(list(history))
        return "prior"

    def build(X, Y, prior):
        assert prior == "prior"
        return plain_gp(X, Y, None)

    def worst_first(model, Y, pool):
        return -pool.sum(-1)

    found = run(toy(), PoolMethod(build, pretrain, worst_first, num_random=2), evaluations=30)
    assert made == [["s"]]
    assert found.regrets[-2] > 0.0 == found.regrets[-1]
    assert found.regrets == sorted(found.regrets, reverse=True)
    assert len(found.seconds) == 30
    assert all(second >= 0 for second in found.seconds)
    assert [each.points for each in found.calibration] == [2, 5, 10, 20]


def test_chance_decides_between_equal_scores():
    def all_equal(model, Y, pool):
        return torch.zeros(len(pool), dtype=torch.double)

    Y = torch.arange(30, dtype=torch.double).unsqueeze(-1)
    case = Case(Y / 30, Y, {}, np.random.default_rng(0))
    found = run(case, PoolMethod(plain_gp, None, all_equal, num_random=1), evaluations=10)
    # The first rows, which are the worst, would not be better than the random point.
    assert found.regrets[-1] < found.regrets[0]


def test_methods_share_their_random_points():
    methods = (PoolMethod(plain_gp, None, num_random=n) for n in (3, 5))
    three, five = (run(toy(), method, evaluations=5).regrets for method in methods)
    assert three[:3] == five[:3]


def test_a_small_pool_ends_the_run():
    assert len(run(toy(7), PoolMethod(plain_gp, None, num_random=25)).regrets) == 7


def test_calibration_is_that_of_the_definition():
    X = torch.rand(60, 1, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(60, 1, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    Y = X.sin() + 0.1 * noise
    model = SingleTaskGP(X[:10], Y[:10])
    posterior = model.posterior(X[10:], observation_noise=True)
    z = (Y[10:] - posterior.mean) / posterior.variance.sqrt()
    points, rms, covered = calibration(model, X[10:], Y[10:])
    assert points == 10
    assert rms == pytest.approx(z.square().mean().sqrt().item())
    assert covered == pytest.approx((z.abs() < 1.6448536).double().mean().item())
    assert 0 < covered < 1 or rms < 1
