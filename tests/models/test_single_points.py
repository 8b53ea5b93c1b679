"""Single points of an ensemble: the same as batches of one point, without their memory."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.analytic import LogProbabilityOfImprovement
from botorch.models.transforms.outcome import Log
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.priors import GammaPrior, NormalPrior

from botorch_transfer import FullyBayesianHyperpriorGP, Hyperprior
from botorch_transfer.models import fully_bayesian
from botorch_transfer.models.fully_bayesian import mixture_of_single_points
from tests.families import ShiftedSines

HYPERPRIOR = Hyperprior.specified(
    NormalPrior(0.0, 1.0),
    GammaPrior(3.0, 6.0),
    GammaPrior(2.0, 4.0),
    GammaPrior(2.0, 200.0),
    outcome_scale="per_task",
)
FAMILY = ShiftedSines(2)


def build(n: int, **options) -> FullyBayesianHyperpriorGP:
    X, Y = FAMILY.target(n)
    return FullyBayesianHyperpriorGP(X, Y, HYPERPRIOR, num_samples=128, num_members=5, **options)


@pytest.fixture
def batches(monkeypatch):
    """Turns the way around batches off."""

    def turn_off() -> None:
        monkeypatch.setattr(fully_bayesian, "mixture_of_single_points", lambda *args: None)

    return turn_off


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("shape", [(1, 1, 2), (150, 1, 2), (3, 50, 1, 2)])
def test_equal_to_batches(n, shape, batches):
    model = build(n)
    X = FAMILY.inputs(*shape[:-1]).reshape(shape).requires_grad_()

    def values() -> list[torch.Tensor]:
        posterior = model.posterior(X)
        parts = [posterior.mean, posterior.variance, posterior.mixture_variance]
        total = sum(
            (part * torch.arange(1.0, 1 + part.numel()).view_as(part)).sum() for part in parts
        )
        samples = SobolQMCNormalSampler(torch.Size([2]), seed=0)(posterior)
        return [*parts, samples, *torch.autograd.grad(total, X)]

    ours = values()
    batches()
    for left, right in zip(ours, values(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)


def test_acquisition_functions_take_this_way(monkeypatch, batches):
    model, X = build(6), FAMILY.inputs(100, 1)
    sizes, original = [], fully_bayesian.GaussianMixturePosterior

    def counting(distribution):
        sizes.append(distribution.mean.shape)
        return original(distribution)

    monkeypatch.setattr(fully_bayesian, "GaussianMixturePosterior", counting)
    acquisition = LogProbabilityOfImprovement(model, best_f=0.5)
    ours = acquisition(X)
    assert sizes == [(100, 5, 1)]
    batches()
    torch.testing.assert_close(ours, acquisition(X))


@pytest.mark.parametrize("shape", [(4, 2), (3, 2, 2), (0, 1, 2)])
def test_other_shapes_are_left_alone(shape):
    assert mixture_of_single_points(build(3).posterior, torch.zeros(shape).double()) is None


def test_posteriors_that_are_not_gaussian_are_left_alone(batches):
    X, Y = FAMILY.target(4)
    model = FullyBayesianHyperpriorGP(
        X, Y.sigmoid(), HYPERPRIOR, num_samples=64, num_members=5, outcome_transform=Log()
    )
    points = FAMILY.inputs(6, 1)
    ours = model.posterior(points).mean
    batches()
    torch.testing.assert_close(ours, model.posterior(points).mean)


def test_conditioned_ensembles():
    model = build(4)
    new_X, points = FAMILY.inputs(3, 2), FAMILY.inputs(3, 1, seed=1)
    model.posterior(points)
    batched = model.condition_on_observations(new_X, FAMILY.value(new_X)).posterior(points)
    assert batched.mean.shape == (3, 5, 1, 1)
    for number in range(3):
        one = model.condition_on_observations(new_X[number], FAMILY.value(new_X[number]))
        posterior = one.posterior(points)
        torch.testing.assert_close(posterior.mean[number], batched.mean[number])
        torch.testing.assert_close(posterior.variance[number], batched.variance[number])
