"""Of many source tasks, those that can matter are used; the others leave sums and fits."""

import pickle
from copy import deepcopy

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch.testing import assert_close

from botorch_transfer import ScaMLGP, SourceGPs
from botorch_transfer.gp import likelihood
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.likelihood import average_log_density
from botorch_transfer.gp.objective import TargetObjective
from botorch_transfer.gp.paths import SourcePath
from botorch_transfer.sources import scaml
from botorch_transfer.sources.scaml import screened_tasks
from tests.families import ShiftedSines
from tests.fits import fit_model as fit
from tests.fits import log_posterior
from tests.gp.drawn_functions import assert_moments

pytestmark = pytest.mark.usefixtures("nothing_remembered")

FAMILY = ShiftedSines()
SIZES = (9, 6, 12, 7, 10, 5, 8, 11, 6, 9)
MOST = 3
TEST_X = FAMILY.inputs(6, seed=91)


def target(n):
    """The target's data in the units of the prior."""
    X, Y = FAMILY.target(n)
    return X, (Y - 50.0) / 10.0


def standardized_prior():
    """A prior whose units are those of `target`."""
    tasks = {name: (X, (Y - 50.0) / 10.0) for name, (X, Y) in FAMILY.sources(SIZES).items()}
    return SourceGPs.fit_once(tasks, num_restarts=0, outcome_scale="raw")


def build(n=5, prior=None, **options) -> ScaMLGP:
    options = {"max_sources": MOST, "hyperparameters": "paper", **options}
    return ScaMLGP(*target(n), prior or standardized_prior(), **options)


def used(model):
    return (model.weights != 0).nonzero().flatten().tolist()


def selected_prior(tasks) -> SourceGPs:
    return standardized_prior().select(tasks)


def assert_same(model, expected, exactly=False):
    close = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-6, "atol": 1e-7}
    for ours, theirs in zip(
        (model.posterior(TEST_X).distribution, model(TEST_X)),
        (expected.posterior(TEST_X).distribution, expected(TEST_X)),
        strict=True,
    ):
        assert_close(ours.mean, theirs.mean, **close)
        assert_close(ours.covariance_matrix, theirs.covariance_matrix, **close)


# ---------------------------------------------------------------------------------------- the rule


def test_evidence_is_that_of_the_formula():
    X, Y = target(4)
    gps, residual = standardized_prior().gps, 0.1 * torch.eye(4).double()
    densities = []
    for mean, covariance in zip(gps.mean(X), gps.covariance(X), strict=True):
        each = [
            torch.distributions.MultivariateNormal(
                weight * mean, weight**2 * covariance + residual
            ).log_prob(Y.squeeze(-1))
            for weight in (0.25, 0.5, 1.0, 2.0)
        ]
        densities.append(torch.stack(each).exp().mean())
    best = torch.stack(densities).argsort(descending=True)[:MOST]
    chosen = screened_tasks(gps, X, Y.squeeze(-1), residual, MOST)
    assert chosen.tolist() == sorted(best.tolist())


def test_all_tasks_at_once_and_in_chunks(monkeypatch):
    X, Y = target(4)
    gps, residual = standardized_prior().gps, 0.1 * torch.eye(4).double()
    expected = screened_tasks(gps, X, Y.squeeze(-1), residual, MOST)
    seen = []
    select = ConditionedGPs.select
    monkeypatch.setattr(
        ConditionedGPs,
        "select",
        lambda self, tasks: seen.append(tasks.stop - tasks.start) or select(self, tasks),
    )
    for module in (likelihood, scaml):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 2 * 4 * max(SIZES))
    assert torch.equal(screened_tasks(gps, X, Y.squeeze(-1), residual, MOST), expected)
    assert seen == [2, 2, 2, 2, 2]
    errors, covariance = torch.randn(5, 4).double(), torch.eye(4).double().expand(5, 4, 4)
    several = residual + torch.eye(4).double() * torch.tensor([0.0, 1.0, 2.0])[:, None, None]
    in_parts = average_log_density(errors, covariance, several)
    monkeypatch.undo()
    assert_close(in_parts, average_log_density(errors, covariance, several))


def test_the_choice_does_not_depend_on_the_order_of_tasks_not_even_with_ties():
    """Tasks far from the target's points know nothing of it: their evidence is the same."""
    X = torch.rand(8, 5, 2, generator=torch.Generator().manual_seed(1)).double()
    X[2:] += 40.0
    Y = X.sin().sum(dim=-1)
    ones = torch.ones(8, 5).double()

    def names(order):
        gps = ConditionedGPs.from_data(
            X[order], Y[order], ones.bool(), 0.3 * ones[:, :2], ones[:, 0], 0.01 * ones
        )
        chosen = screened_tasks(gps, X[0, :3], Y[0, :3], 0.1 * torch.eye(3).double(), 5)
        return {order[task] for task in chosen.tolist()}

    expected = names(list(range(8)))
    assert {0, 1} < expected
    for seed in range(5):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
        assert names(order.tolist()) == expected


def test_the_choice_does_not_depend_on_the_order_of_points():
    X, Y = target(50)
    gps = standardized_prior().gps
    covariance = 0.1 * torch.eye(50).double() + torch.linspace(0, 1, 50).double().diag()
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    chosen = [
        screened_tasks(gps, X[rows], Y[rows, 0], covariance[rows][:, rows], MOST)
        for rows in (torch.arange(50), order)
    ]
    assert torch.equal(*chosen)


def test_related_tasks_are_chosen():
    sources = FAMILY.sources((12,) * 3)
    g = torch.Generator().manual_seed(3)
    noise = {
        f"n{k}": (FAMILY.inputs(12, seed=k), 50 + 10 * torch.randn(12, 1, generator=g).double())
        for k in range(12)
    }
    prior = SourceGPs.fit({**noise, **sources}, num_restarts=0)
    model = ScaMLGP(*FAMILY.target(6), prior, max_sources=5)
    assert {12, 13, 14} <= set(used(model))


# ---------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("n", [0, 4])
def test_as_many_tasks_as_are_allowed_change_nothing(n):
    models = [fit(build(n, max_sources=most)) for most in (None, len(SIZES), 64)]
    states = [model.state_dict() for model in models]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(state[name], states[0][name]) for name in state)
    assert_same(models[1], models[0], exactly=True)


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("hyperparameters", ["paper", "cautious"])
def test_it_is_the_model_of_the_chosen_tasks(n, hyperparameters, monkeypatch):
    monkeypatch.setattr(SourceGPs, "residual_variance", 0.2)
    monkeypatch.setattr(SourceGPs, "noise_variance", 0.01)
    model = build(n, hyperparameters=hyperparameters)
    tasks = used(model)
    assert len(tasks) == MOST
    assert model.weights.shape == (len(SIZES),)
    expected = build(n, selected_prior(tasks), hyperparameters=hyperparameters, max_sources=None)
    assert_same(model, expected)
    sizes = []
    cross = ConditionedGPs.flat_cross
    monkeypatch.setattr(
        ConditionedGPs, "flat_cross", lambda self, x: sizes.append(self.num_tasks) or cross(self, x)
    )
    fit(model), fit(expected)
    assert_same(model, expected)
    assert set(sizes) == {MOST}  # the others are not evaluated
    assert used(model) == tasks
    assert_close(model.weights[tasks], expected.weights, rtol=1e-4, atol=1e-6)
    assert_close(log_posterior(model), log_posterior(expected))


def test_without_target_points_all_tasks_count():
    model = build(0)
    assert_close(model.weights, torch.full_like(model.weights, 1 / len(SIZES)))
    assert_same(fit(model), build(0, max_sources=None), exactly=True)


def test_known_noise():
    X, Y = target(5)
    tasks = []
    for noise in (1e-4, 1e12):
        model = ScaMLGP(X, Y, standardized_prior(), noise * torch.ones_like(Y), max_sources=MOST)
        tasks.append(used(fit(model)))
    assert len(tasks[0]) == len(tasks[1]) == MOST
    assert tasks[0] != tasks[1]  # with so much noise the data say nothing


def test_fits_choose_by_inputs_that_are_transformed_once():
    transform = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [10.0, 10.0]]).double())
    tasks = [(10 * X, (Y - 50.0) / 10.0) for X, Y in FAMILY.sources(SIZES).values()]
    options = {"num_restarts": 0, "outcome_scale": "raw", "input_transform": transform}
    prior, (X, Y) = SourceGPs.fit(tasks, **options), target(7)
    model, predicted = (ScaMLGP(10 * X, Y, prior, max_sources=MOST) for _ in range(2))
    predicted.posterior(TEST_X)  # in evaluation mode, the model's inputs are transformed
    assert used(fit(predicted, num_restarts=0)) == used(model)


def test_conditioning_keeps_the_choice_and_fits_choose_again():
    model = fit(build(3))
    tasks = used(model)
    X, Y = target(9)
    model.posterior(TEST_X)
    more = model.condition_on_observations(X[3:], Y[3:])
    assert used(more) == tasks
    rebuilt = build(9)
    rebuilt.load_state_dict(model.state_dict())
    assert_same(more, rebuilt.eval())
    assert used(fit(rebuilt)) == used(build(9))
    from_nothing = build(0)
    from_nothing.posterior(TEST_X)
    assert len(used(from_nothing.condition_on_observations(X, Y))) == len(SIZES)


def test_fits_keep_weights_that_are_not_fitted():
    model = build(4)
    model.task_weights.select(torch.tensor([0, 5]))
    model.task_weights.weights = torch.tensor([0.3, 0.6])
    weights = model.weights.detach().clone()
    model.task_weights.raw_weights.requires_grad_(False)
    fit(model)
    assert used(model) == [0, 5]
    assert_close(model.weights, weights)


def test_a_state_carries_the_choice():
    model, other = fit(build(5)), build(0)
    state = model.state_dict()
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in other.state_dict().items()
    }
    other = build(5)
    other.task_weights.select(torch.tensor([0]))
    other.load_state_dict(state)
    for twin in (other.eval(), deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert used(twin) == used(model)
        assert_same(twin, model)


def test_the_models_of_a_batch_share_their_choice():
    X = torch.rand(3, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    Y = torch.stack([FAMILY.value(X[0]), 100 - FAMILY.value(X[1]), FAMILY.value(X[2], 1.0)])
    Y = (Y - 50.0) / 10.0
    options = {"max_sources": MOST, "hyperparameters": "paper"}
    batch = ScaMLGP(X, Y, standardized_prior(), **options)
    tasks = (batch.weights != 0).all(dim=0).nonzero().flatten().tolist()
    assert len(tasks) == MOST
    assert bool((batch.weights != 0).any(dim=0).sum() == MOST)
    prior = selected_prior(tasks)
    alone = [ScaMLGP(*data, prior, hyperparameters="paper") for data in zip(X, Y, strict=True)]
    for _ in range(2):
        for member, model in enumerate(alone):
            ours, theirs = batch.posterior(TEST_X), model.posterior(TEST_X)
            assert_close(batch.weights[member][tasks], model.weights, rtol=1e-2, atol=1e-2)
            assert_close(ours.mean[member], theirs.mean, rtol=1e-2, atol=1e-2)
            assert_close(ours.variance[member], theirs.variance, rtol=2e-2, atol=1e-2)
        for model in (batch, *alone):
            fit(model)
            assert not model.training
    mll = ExactMarginalLogLikelihood(batch.likelihood, batch).train()
    assert TargetObjective.of(mll) is not None  # a fit in closed form


def test_paths_are_draws_of_the_posterior():
    torch.manual_seed(0)
    model = fit(build(4))
    paths = draw_matheron_paths(model, torch.Size([2000]))
    assert_moments(paths(TEST_X), model.posterior(TEST_X))
    sizes = {len(m.gps.alpha) for m in paths.modules() if isinstance(m, SourcePath)}
    assert sizes == {MOST}


def test_no_source_at_all_is_refused():
    with pytest.raises(ValueError, match="max_sources=0 must be positive, or None"):
        build(max_sources=0)
