from __future__ import annotations

import math

import pytest
import torch
from botorch.utils.transforms import normalize

from benchmarks.competitors import RobustMetaUCB
from benchmarks.competitors.robust_meta_ucb import gap_bounds, mix
from botorch_transfer.data import as_datasets


@pytest.fixture(scope="module")
def built(history, bounds):
    return RobustMetaUCB.build(history, bounds, 0)


def posterior(gp, n, X):
    """The formula of a GP that knows the first `n` observations."""
    train_X, y = gp.train_inputs[0][:n], gp.train_targets[:n]
    k = gp.covar_module(X, train_X).to_dense()
    K = gp.covar_module(train_X).to_dense() + gp.likelihood.noise * torch.eye(n)
    mean = gp.mean_module(X) + k @ torch.linalg.solve(K, y - gp.mean_module(train_X))
    variance = gp.covar_module(X, diag=True) - (k * torch.linalg.solve(K, k.T).T).sum(-1)
    return mean, variance


def test_bounds_on_the_gaps(built, history, bounds, target):
    gp = built.target(*target)
    found = gap_bounds(gp, built.sources)
    assert found.shape == (6, 3)
    for i, task in enumerate(as_datasets(history)):
        y = (task.Y[:, 0] - task.Y.mean()) / task.Y.std()
        noise = built.sources.gps.noise[i, 0]
        for n in range(6):
            mean, variance = posterior(gp, n, normalize(task.X, bounds))
            gap = ((y - mean).abs() + 3 * variance.sqrt()).max()
            expected = gap + (2 * noise * math.log(2 * len(y) / 0.05)).sqrt()
            torch.testing.assert_close(found[n, i], expected, rtol=1e-5, atol=1e-6)


def test_weights_and_share():
    d = torch.tensor([[6.0, 6.0, 6.0], [2.0, 5.0, 4.0], [1.0, 6.0, 3.0]], dtype=torch.double)
    rate = math.sqrt(8 * math.log(3) / 2) / 5
    unnormalized = [math.exp(-rate * loss) for loss in (3.0, 11.0, 7.0)]
    weights = [value / sum(unnormalized) for value in unnormalized]
    found = mix(d)
    assert found.weights.tolist() == pytest.approx(weights)
    gap = sum(w * last for w, last in zip(weights, (1.0, 6.0, 3.0), strict=True))
    assert found.share == pytest.approx(1 / (1 + math.sqrt(2) * gap / 6))


def test_one_task_and_equal_tasks():
    assert mix(torch.tensor([[4.0], [1.0]])).weights.tolist() == [1.0]
    assert mix(torch.full((3, 2), 4.0)).weights.tolist() == [0.5, 0.5]


def test_the_sum_of_the_bounds(built, bounds, target):
    acquisition = built.acquisition(*target)
    x = bounds[0] + 2 * torch.rand(7, 1, 2, dtype=torch.double)
    unit = normalize(x, bounds)
    share, weights = acquisition.mixture
    mean, variance = built.sources.moments(unit[:, 0])
    own = acquisition.target.posterior(unit)
    expected = (1 - share) * (own.mean + 3 * own.variance.sqrt()).flatten()
    for i in range(3):
        expected = expected + share * weights[i] * (mean[i] + 3 * variance[i].sqrt())
    torch.testing.assert_close(acquisition(x), expected)


def test_without_data_only_the_sources_count(built, target):
    X, Y = target
    acquisition = built.acquisition(X[:0], Y[:0])
    assert acquisition.mixture.share == 1
    assert acquisition.mixture.weights.tolist() == pytest.approx([1 / 3] * 3)


def test_tasks_unlike_the_target_lose_their_weight(history, bounds):
    X = bounds[0] + 2 * torch.rand(15, 2, dtype=torch.double)
    Y = 100 - 10 * (X - 0.2).square().sum(dim=-1, keepdim=True)
    name = "source 0"
    inputs, outcomes = history[name]
    turned = {**history, name: (inputs, 200 - outcomes)}
    helpful = RobustMetaUCB.build(history, bounds, 0).acquisition(X, Y).mixture
    mixed = RobustMetaUCB.build(turned, bounds, 0).acquisition(X, Y).mixture
    assert mixed.weights[0] < 0.5 * helpful.weights[0]
    useless = {name: (inputs, 200 - outcomes) for name, (inputs, outcomes) in history.items()}
    assert RobustMetaUCB.build(useless, bounds, 0).acquisition(X, Y).mixture.share < helpful.share


def test_choices_do_not_depend_on_a_common_scale(history, bounds, target):
    X, Y = target
    scaled = {name: (inputs, 50 * outcomes - 3) for name, (inputs, outcomes) in history.items()}
    candidates = bounds[0] + 2 * torch.rand(200, 2, dtype=torch.double)
    first = RobustMetaUCB.build(history, bounds, 0).suggest(X, Y, candidates)
    assert RobustMetaUCB.build(scaled, bounds, 0).suggest(X, 50 * Y - 3, candidates) == first
