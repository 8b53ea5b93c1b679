"""MIMO and RFGP: what they share, and what each one predicts."""

from __future__ import annotations

import math

import pytest
import torch
from botorch.utils.transforms import normalize
from torch.distributions import MultivariateNormal, Normal

from benchmarks.competitors import RandomFeatureGP, SharedSubnetworks
from benchmarks.competitors.mimo import MEMBERS, NetworkEnsemble
from benchmarks.competitors.rfgp import NUM_FEATURES, RandomFeatureRegression
from benchmarks.competitors.task_embedding import COEFFICIENT, Rows

BOTH = [SharedSubnetworks, RandomFeatureGP]


@pytest.fixture(scope="module", params=BOTH)
def brief(request):
    """A competitor of few steps."""

    class Brief(request.param):
        steps = ((1e-2, 30),)
        more_steps = (1e-2, 20)

    return Brief


@pytest.fixture(scope="module")
def built(brief, history, bounds):
    return brief.build(history, bounds, 0)


def test_tasks_are_standardized_one_by_one(built, history, bounds):
    rows = built.rows
    assert torch.bincount(rows.task).tolist() == [len(Y) for _, Y in history.values()]
    for number, (X, Y) in enumerate(history.values()):
        own = rows.task == number
        torch.testing.assert_close(rows.X[own], normalize(X, bounds))
        torch.testing.assert_close(rows.Y[own], ((Y - Y.mean()) / Y.std()).squeeze(-1))


def test_rows_are_drawn_whole():
    number = torch.arange(20)
    drawn = Rows(number.unsqueeze(-1) / 10, number / 5, number).draw(3, 7)
    assert drawn.X.shape == (3, 7, 1)
    torch.testing.assert_close(drawn.X[..., 0], drawn.task / 10)
    torch.testing.assert_close(drawn.Y, drawn.task / 5)


def test_an_unseen_task_is_between_the_others(built):
    embedding = built.regression.embedding
    torch.testing.assert_close(embedding[-1], embedding[:-1].mean(dim=0))


def test_points_of_the_target_move_its_embedding_in_a_copy(built, target):
    before = {name: part.clone() for name, part in built.regression.state_dict().items()}
    model = built.model(*target)
    moved = model.regression.embedding[-1] - built.regression.embedding[-1]
    assert moved.abs().max() > 1e-3
    assert all(
        torch.equal(part, before[name]) for name, part in built.regression.state_dict().items()
    )


def test_training_follows_from_the_seed(brief, history, bounds, target):
    state = torch.get_rng_state()
    first, second, other = (brief.build(history, bounds, seed) for seed in (1, 1, 2))
    x = bounds.mean(dim=0).expand(1, 1, 2)
    values = [float(each.acquisition(*target)(x)) for each in (first, second, other)]
    assert torch.equal(torch.get_rng_state(), state)
    assert values[0] == values[1] != values[2]


def test_choices_do_not_depend_on_the_units(brief, history, bounds, target):
    X, Y = target
    other = {name: (inputs, 5 * outcomes - 7) for name, (inputs, outcomes) in history.items()}
    x = bounds[0] + 2 * torch.rand(20, 1, 2, dtype=torch.double)
    first = brief.build(history, bounds, 0).acquisition(X, Y)
    second = brief.build(other, bounds, 0).acquisition(X, 5 * Y - 7)
    torch.testing.assert_close(first(x), second(x), rtol=1e-5, atol=1e-5)


def test_the_bound_is_the_mean_and_1_8_deviations(built, bounds, target):
    acquisition = built.acquisition(*target)
    x = bounds[0] + 2 * torch.rand(4, 1, 2, dtype=torch.double)
    posterior = acquisition.model.posterior(x)
    expected = posterior.mean.flatten() + COEFFICIENT * posterior.variance.sqrt().flatten()
    torch.testing.assert_close(acquisition(x), expected)
    assert acquisition.model.num_outputs == 1
    assert acquisition.model.batch_shape == ()


def test_layers_are_the_papers():
    shapes = {name: tuple(p.shape) for name, p in NetworkEnsemble(3, 4).named_parameters()}
    assert shapes == {
        "embedding": (5, 5),
        "shared.weight": (10, 8),
        "shared.bias": (10,),
        "own.0.weight": (MEMBERS, 10, 10),
        "own.0.bias": (MEMBERS, 1, 10),
        "own.1.weight": (MEMBERS, 10, 10),
        "own.1.bias": (MEMBERS, 1, 10),
        "own.2.weight": (MEMBERS, 10, 2),
        "own.2.bias": (MEMBERS, 1, 2),
    }


def test_an_ensemble_has_the_moments_of_its_mixture():
    torch.manual_seed(0)
    network = NetworkEnsemble(2, 3).double()
    Z = torch.randn(6, 1, 7, dtype=torch.double)
    means, variances = [], []
    for member in range(MEMBERS):
        hidden = network.shared(Z[:, 0])
        for layer in network.own:
            hidden = hidden.tanh() @ layer.weight[member] + layer.bias[member]
        means.append(hidden[:, 0])
        variances.append((1e-4 + hidden[:, 1].exp().log1p()).square())
    mean = sum(means) / MEMBERS
    square = sum(v + m.square() for v, m in zip(variances, means, strict=True)) / MEMBERS
    found = network(Z)
    torch.testing.assert_close(found[0][:, 0], mean)
    torch.testing.assert_close(found[1][:, 0, 0], square - mean.square())


def test_features_are_those_of_a_squared_exponential_kernel():
    torch.manual_seed(0)
    regression = RandomFeatureRegression(2, 1).double()
    with torch.no_grad():
        regression.log_scale.fill_(math.log(1.3))
    Z = 0.5 * torch.rand(5, 7, dtype=torch.double)
    found = regression.features(Z) @ regression.features(Z).mT
    scaled = torch.cat([Z[:, :2] / 0.5, Z[:, 2:]], dim=-1)
    expected = 1.3**2 * torch.exp(-0.5 * torch.cdist(scaled, scaled).square())
    torch.testing.assert_close(found, expected, rtol=0, atol=5 * 1.3**2 / NUM_FEATURES**0.5)


def test_regression_is_the_gp_of_its_features():
    torch.manual_seed(0)
    regression = RandomFeatureRegression(2, 3).double()
    rows = Rows(
        torch.rand(30, 2, dtype=torch.double),
        torch.randn(30, dtype=torch.double),
        torch.randint(3, (30,)),
    )
    query = torch.randn(4, 3, 7, dtype=torch.double)
    with torch.no_grad():
        regression.condition(rows)
        mean, covariance = regression(query)
        F = regression.features(regression.joined(rows.X, rows.task))
        phi = regression.features(query)
        K = F @ F.mT + regression.noise * torch.eye(30)
        cross = phi @ F.mT
        expected = (cross @ torch.linalg.solve(K, rows.Y).unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(mean, expected)
        left = phi @ phi.mT - cross @ torch.linalg.solve(K, cross.mT)
    torch.testing.assert_close(covariance, left)


def test_losses_are_negative_log_likelihoods(monkeypatch):
    torch.manual_seed(0)
    n = 64
    rows = Rows(
        torch.rand(n, 2, dtype=torch.double),
        torch.randn(n, dtype=torch.double),
        torch.randint(3, (n,)),
    )
    monkeypatch.setattr(Rows, "draw", lambda self, *shape: self)
    with torch.no_grad():
        regression = RandomFeatureRegression(2, 3).double()
        F = regression.features(regression.joined(rows.X, rows.task))
        K = F @ F.mT + regression.noise * torch.eye(n)
        expected = -MultivariateNormal(torch.zeros_like(rows.Y), K).log_prob(rows.Y) / n
        torch.testing.assert_close(regression.loss(rows), expected)
        network = NetworkEnsemble(2, 3).double()
        each = Normal(*network.members(network.joined(rows.X, rows.task).unsqueeze(0)))
        expected = -each.log_prob(rows.Y).mean() - 0.5 * math.log(2 * math.pi)
        torch.testing.assert_close(network.loss(rows), expected)
