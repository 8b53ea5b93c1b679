"""Hyperpriors as distributions: asking, drawing, saving."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import Normalize
from gpytorch.priors import Prior

from botorch_transfer.data import default_context
from botorch_transfer.outcome_transforms import OwnStandardize
from botorch_transfer.pretraining import Hyperprior, NetworkOptions, SourceGPs
from tests.pretraining.domains import draw_domain, draw_domains
from tests.pretraining.hyperpriors import KINDS, assert_equal_states, fit, specified


@pytest.fixture(scope="module", params=KINDS)
def hyperprior(request) -> Hyperprior:
    return fit(request.param)


# ---------------------------------------------------------------------------------------- contexts


def test_contexts_of_the_domains_own():
    domains = [
        draw_domain([0.3, 0.5], context=torch.tensor([[1.0, 0.0, 2.0]] * 2)),
        draw_domain([0.2], context=torch.tensor([[0.0, 1.0, 3.0]])),
    ]
    found = fit("mphd", domains)
    assert found.lengthscale_prior(4, torch.zeros(4, 3)).concentration.shape == (4,)
    with pytest.raises(InputDataError, match="contexts of the domains' own"):
        found.lengthscale_prior(4)
    with pytest.raises(ValueError, match="contexts of 3 numbers"):
        found.lengthscale_prior(4, torch.zeros(4, 2))


@pytest.mark.parametrize("context", [torch.zeros(3, 4), torch.zeros(4)])
def test_contexts_of_another_target_are_refused(hyperprior, context):
    if hyperprior.kind == "empirical":
        pytest.skip("it has no distribution of lengthscales")
    with pytest.raises(InputDataError, match="the target has 4 inputs"):
        hyperprior.lengthscale_prior(4, context)


# ------------------------------------------------------------------------------------------ drawing


def test_draws_have_the_hyperpriors_moments():
    draws = specified().sample(20_000, dim=3, seed=1)
    assert draws.lengthscale.shape == (20_000, 3)
    close = {"rtol": 0.03, "atol": 0}
    third = torch.full((3,), 1 / 3, dtype=torch.double)
    torch.testing.assert_close(draws.lengthscale.mean(dim=0), third, **close)
    correlation = torch.corrcoef(draws.lengthscale.mT) - torch.eye(3)
    assert correlation.abs().max() < 0.03
    for name, mean, std in (
        ("constant", 2.0, 0.5),
        ("outputscale", 0.5, 8**-0.5),
        ("noise", 5.05e-3, 9.9e-3 / 12**0.5),
    ):
        tensor = getattr(draws, name)
        assert float(tensor.mean()) == pytest.approx(mean, rel=0.03)
        assert float(tensor.std()) == pytest.approx(std, rel=0.05)


def test_draws_follow_contexts():
    found = fit("mphd")
    prior = found.lengthscale_prior(2, default_context(2, [0]))
    draws = found.sample(20_000, 2, default_context(2, [0]))
    torch.testing.assert_close(draws.lengthscale.mean(dim=0), prior.mean, rtol=0.1, atol=0)


def test_empirical_draws_are_estimates():
    found = fit("empirical")
    estimates, draws = found.estimates, found.sample(200, dim=4)
    shared = torch.stack([draws.constant, draws.outputscale, draws.noise], dim=-1)
    expected = torch.stack([estimates.constant, estimates.outputscale, estimates.noise], dim=-1)
    assert (shared.unsqueeze(1) == expected).all(dim=-1).any(dim=-1).all()
    assert torch.isin(draws.lengthscale, estimates.lengthscale).all()
    assert len(draws.lengthscale.unique()) == 6


def test_a_seed_decides(hyperprior):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, same, other = (hyperprior.sample(5, 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(first.lengthscale, same.lengthscale)
    assert not torch.equal(first.lengthscale, other.lengthscale)


# ---------------------------------------------------------------------------------- what it is like


def test_no_gpytorch_hyperprior_is_inside(hyperprior):
    assert not any(isinstance(part, Prior) for part in hyperprior.modules())
    assert not any(parameter.requires_grad for parameter in hyperprior.parameters())


def test_outcome_transforms(hyperprior):
    transform = hyperprior.default_outcome_transform(torch.Size([2]))
    assert isinstance(transform, OwnStandardize)
    estimates = hyperprior.estimates
    none, _ = transform(torch.zeros(2, 0, 1, dtype=torch.double))
    assert none.shape == (2, 0, 1)
    torch.testing.assert_close(transform.means[0, 0, 0], estimates.outcome_mean.mean())
    spread = estimates.outcome_std.square().mean().sqrt()
    torch.testing.assert_close(transform.stdvs[1, 0, 0], spread)
    assert specified().default_outcome_transform(torch.Size()) is None
    standardized = specified(outcome_scale="per_task").default_outcome_transform(torch.Size())
    standardized(torch.zeros(0, 1))
    assert (standardized.means, standardized.stdvs) == (0, 1)


# ------------------------------------------------------------------------------------------- saving


def test_a_saved_hyperprior_is_the_same(hyperprior, tmp_path):
    path = tmp_path / "hyperprior.safetensors"
    hyperprior.save(path)
    loaded = Hyperprior.load(path)
    assert_equal_states(loaded, hyperprior)
    assert loaded.estimates.to_frame().equals(hyperprior.estimates.to_frame())
    for dim in (1, 5):
        left, right = (each.sample(9, dim) for each in (loaded, hyperprior))
        assert torch.equal(left.lengthscale, right.lengthscale)


def test_other_hyperpriors_are_saved_too(tmp_path):
    path = tmp_path / "hyperprior.safetensors"
    bounds = torch.tensor([[0.0, 0.0], [2.0, 3.0]], dtype=torch.double)
    raw = draw_domain([0.3, 0.4], input_transform=Normalize(2, bounds=bounds))
    options = NetworkOptions(num_steps=3, hidden=(4,), bounded_head=True)
    for original in (specified(), fit("mphd", [raw, raw], network=options)):
        original.save(path)
        assert_equal_states(Hyperprior.load(path), original)
    with pytest.raises(ValueError, match="holds a Hyperprior, not a SourceGPs"):
        SourceGPs.load(path)


def test_no_observation_is_saved(tmp_path):
    path = tmp_path / "hyperprior.safetensors"
    domains = draw_domains()
    fit(domains=domains).save(path)
    content = path.read_bytes()
    for domain in domains:
        for task in domain.datasets:
            for value in [*task.X.flatten(), *task.Y.flatten()]:
                assert value.numpy().tobytes() not in content


@pytest.mark.parametrize("copied", [deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies(hyperprior, copied):
    assert_equal_states(copied(hyperprior), hyperprior)


def test_views_move_alone(hyperprior):
    view = hyperprior.view().float()
    assert view.constant_parameters.dtype == torch.float
    assert hyperprior.constant_parameters.dtype == torch.double
    left, right = (each.sample(2000, 3) for each in (view, hyperprior))
    torch.testing.assert_close(left.lengthscale, right.lengthscale, rtol=1e-3, atol=1e-3)
