"""Log densities and noise models against GPyTorch's modules and automatic differentiation."""

from typing import Any

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer import models
from botorch_transfer.gp.expansion import evaluate
from botorch_transfer.gp.likelihood import (
    AddedNoiseLikelihood,
    cholesky_or_nan,
    log_density,
    nll,
    stationary_nll_and_gradient,
)
from botorch_transfer.gp.objective import TargetObjective
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.models import GuardedTransferGP, PopulationGP, ScaMLGP, TransferGP
from tests.fits import fit_model as fit
from tests.gp.gpytorchs import gpytorchs
from tests.gp.padded import points
from tests.gp.single_task import perturbed
from tests.gp.tasks import draw_data


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_each_matrix_of_a_batch_by_itself():
    sound = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.double)
    matrices = torch.stack([sound, -sound, torch.ones_like(sound), sound * torch.nan])
    roots = cholesky_or_nan(torch.stack([matrices, matrices.flip(0)]))
    for batch, order in zip(roots, (range(4), reversed(range(4))), strict=True):
        found = dict(zip(order, batch, strict=True))
        torch.testing.assert_close(found[0], torch.linalg.cholesky(sound))
        assert found[1].isnan().all()
        torch.testing.assert_close(found[2] @ found[2].T, matrices[2], atol=1e-5, rtol=0)
        assert found[3].isnan().all()


KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
    "unscaled": lambda: MaternKernel(1.5),
    "matern12": lambda: ScaleKernel(MaternKernel(0.5, ard_num_dims=3)),
    "matern32": lambda: ScaleKernel(MaternKernel(1.5)),
    "matern52": lambda: ScaleKernel(MaternKernel(2.5, ard_num_dims=3)),
}
MASK = torch.tensor([[True] * 5, [True, True, False, False, False]])


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(2, 5, 3, dtype=torch.double, generator=generator)
    X[0, 3] = X[0, 4]  # points that coincide
    mean, Y = torch.randn(2, 2, 5, dtype=torch.double, generator=generator)
    return X.requires_grad_(), mean.requires_grad_(), Y


@pytest.fixture(params=KERNELS)
def kernel(request):
    return perturbed(KERNELS[request.param]())


@pytest.mark.parametrize("noise_shape", [(1,), (2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients(kernel, data, masked, noise_shape):
    X, mean, Y = data
    mask = MASK if masked else None
    noise = torch.linspace(0.1, 0.4, 10).double().reshape(2, 5)[: noise_shape[0], : noise_shape[-1]]
    noise = noise[0].clone() if noise_shape == (1,) else noise.clone()
    noise.requires_grad_()
    dense = nll(mean, evaluate(kernel, X, X), Y, mask, noise)
    values = (dense, nll(mean, kernel(X).to_dense(), Y, mask, noise))
    torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10)
    weight = torch.tensor([2.0, -0.7], dtype=torch.double)
    inputs = [mean, X, noise, *kernel.parameters()]
    gradients = (torch.autograd.grad((weight * value).sum(), inputs) for value in values)
    for left, right in zip(*gradients, strict=True):
        # GPyTorch's own Matérn kernels cut short distances off.
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8)


def test_padding_is_ignored(data):
    X, mean, Y = data
    kernel = Stationary.of(KERNELS["matern52"]().double())
    noise = torch.tensor([0.1], dtype=torch.double)
    value = nll(mean, kernel.between(X, X), Y, MASK, noise)
    padded = Y.masked_fill(~MASK, 1e3), X.detach().masked_fill(~MASK.unsqueeze(-1), 7.0)
    again = nll(mean, kernel.between(padded[1], padded[1]), padded[0], MASK, noise)
    torch.testing.assert_close(again, value)
    x = X[1:, :2]
    alone = nll(mean[1:, :2], kernel.between(x, x), Y[1:, :2], noise=noise)
    torch.testing.assert_close(value[1:], alone)


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_a_broken_task_is_nan_and_the_others_are_not(data):
    X, mean, Y = data
    noise = torch.tensor([[0.1], [-5.0]], dtype=torch.double)
    kernel = Stationary.of(KERNELS["rbf"]().double())
    values = nll(mean, kernel.between(X, X), Y, noise=noise.expand(2, 5))
    assert values.isnan().tolist() == [False, True]


def test_log_density():
    root = torch.rand(3, 4, 4, dtype=torch.double).tril() + torch.eye(4).double()
    residual = torch.randn(3, 4, dtype=torch.double)
    whitened = torch.linalg.solve_triangular(root, residual.unsqueeze(-1), upper=False)
    normal = torch.distributions.MultivariateNormal(torch.zeros(4).double(), scale_tril=root)
    torch.testing.assert_close(log_density(root, whitened), normal.log_prob(residual))


@pytest.mark.parametrize("max_elements", [1, 2**17])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("further", [False, True])
def test_gradient_without_a_graph(kernel, data, masked, further, max_elements):
    X, mean, Y = data
    factor = torch.rand(2, 5, 5, dtype=torch.double)
    C = (factor @ factor.mT if further else torch.zeros_like(factor)).requires_grad_()
    noise = torch.linspace(0.1, 0.4, 10).double().reshape(2, 5).requires_grad_()
    stationary, mask = Stationary.of(kernel), MASK if masked else None
    lengthscale = stationary.lengthscale.detach().expand(2, 1, 3).clone().requires_grad_()
    scale = stationary.scale.detach().expand(2).clone().requires_grad_()
    inputs = [mean, lengthscale, scale, noise, C]

    base = getattr(kernel, "base_kernel", kernel)
    base.lengthscale = 1.0
    K = base(X.detach() / lengthscale).to_dense() * scale[:, None, None]
    expected = nll(mean, K + C, Y, mask, noise)
    in_mean, in_lengthscale, *others = torch.autograd.grad(expected.sum(), inputs)
    in_scale, in_noise, in_C = others

    value, gradient = stationary_nll_and_gradient(
        (Y - mean).detach(),
        X.detach(),
        Stationary(stationary.name, lengthscale.detach(), scale.detach()),
        noise.detach(),
        mask,
        C.detach() if further else None,
        max_elements,
    )
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-10)
    for ours, theirs in (
        (gradient.mean, in_mean),
        (gradient.constant, in_mean.sum(-1, keepdim=True)),
        (gradient.lengthscale, in_lengthscale.squeeze(-2)),
        (gradient.outputscale, in_scale.unsqueeze(-1)),
        (gradient.noise, in_noise.sum(-1, keepdim=True)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    if further:
        inside = in_C != 0
        torch.testing.assert_close(gradient.covariance[inside], in_C[inside])
    else:
        assert gradient.covariance.numel() == 0


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_jitter_does_not_count_as_signal():
    """With jitter, the gradient is that of the matrix that was factorized."""
    X, Y = torch.full((1, 4, 1), 0.5).double(), torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double()
    scale = torch.ones(1, dtype=torch.double)

    def evaluate(scale, noise):
        kernel = Stationary("rbf", torch.ones(1, 1, 1).double(), scale)
        return stationary_nll_and_gradient(Y, X, kernel, noise.expand(1, 4))

    _, gradient = evaluate(scale, torch.tensor(0.0).double())
    _, expected = evaluate(scale, torch.tensor(1e-8).double())  # psd_safe_cholesky's first jitter
    torch.testing.assert_close(gradient.outputscale, expected.outputscale, rtol=1e-4, atol=1e-4)


SOURCES: Any = draw_data([8, 9, 7])
X, NEW = points(6, 2), points(3, 2)
Y = 3 * X.sum(-1, keepdim=True).sin()
ADDED = torch.tensor([0.0, 0.4, 0.0, 0.1, 2.0, 0.0], dtype=torch.double)


def build(kind: str = "ScaMLGP", added: Tensor = ADDED) -> Any:
    return getattr(models, kind)(X, Y, SOURCES, likelihood=AddedNoiseLikelihood(added))


def dense(model: Any, X_new: Tensor, rows: Any = slice(None)) -> tuple[Tensor, Tensor]:
    """The twin: mean and variance of the exact GP, in the user's units."""
    scale = getattr(model, "outcome_transform", None)
    stdv = 1.0 if scale is None else scale.stdvs.squeeze()
    noise = model.likelihood.noise + ADDED / stdv**2
    (train_X,), targets = model.eval().train_inputs, model.train_targets
    both = torch.cat([train_X[rows], X_new])
    n = len(train_X[rows])
    K, m = model.covar_module(both).to_dense(), model.mean_module(both)
    solved = torch.linalg.solve(K[:n, :n] + noise[rows].diag(), K[:n, n:])
    mean = m[n:] + solved.mT @ (targets[rows] - m[:n])
    variance = (K[n:, n:] - K[n:, :n] @ solved).diagonal()
    shift = 0.0 if scale is None else scale.means.squeeze()
    return mean * stdv + shift, variance * stdv**2


@pytest.mark.parametrize("kind", ["ScaMLGP", "PopulationGP", "SequentialHierarchicalGP"])
def test_predictions_and_leave_one_out_are_those_of_the_dense_twin(kind: str) -> None:
    model = fit(build(kind))
    # as many new points as training points: their noise is the learned one all the same
    X_new = points(6, 2)
    posterior = model.posterior(X_new)
    mean, variance = dense(model, X_new)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean)
    torch.testing.assert_close(posterior.variance.squeeze(-1), variance)
    noisy = model.posterior(X_new, observation_noise=True).variance.squeeze(-1) - variance
    stdv = model.outcome_transform.stdvs.squeeze()
    torch.testing.assert_close(noisy, (model.likelihood.noise * stdv**2).expand(6))
    left_out = model.loo_posterior(observation_noise=False)
    for i in range(6):
        others = [j for j in range(6) if j != i]
        mean, variance = dense(model, X[[i]], others)
        torch.testing.assert_close(left_out.mean[i].squeeze(), mean.squeeze())
        torch.testing.assert_close(left_out.variance[i].squeeze(), variance.squeeze())


@pytest.mark.parametrize("kind", ["ScaMLGP", "LinearCoregionalizationGP"])
def test_closed_form_is_the_objective_of_gpytorch(kind: str) -> None:
    model = build(kind)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    objective: Any = getattr(model, "closed_form", TargetObjective.of)(mll)
    found = objective(objective.read(mll), torch.zeros(1, dtype=torch.long))
    expected = gpytorchs(mll, objective.params(model))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("model_class", [ScaMLGP, PopulationGP, TransferGP, GuardedTransferGP])
def test_conditioning_equals_a_rebuilt_model(model_class: Any) -> None:
    model = fit(build(model_class.__name__))
    model.posterior(X)
    new_Y = 3 * NEW.sum(-1, keepdim=True).sin()
    conditioned = model.condition_on_observations(model.transform_inputs(NEW), new_Y)
    members = list(model.members.values()) if hasattr(model, "members") else [model]
    after = list(conditioned.members.values()) if hasattr(model, "members") else [conditioned]
    for before, member in zip(members, after, strict=True):
        added = member.likelihood.added
        torch.testing.assert_close(added[:6], before.likelihood.added)
        assert not added[6:].any()
    assert conditioned.posterior(X).variance.isfinite().all()


def test_zero_variances_change_nothing() -> None:
    plain, added = ScaMLGP(X, Y, SOURCES), build(added=torch.zeros_like(ADDED))
    torch.testing.assert_close(
        fit(added).posterior(NEW).mean, fit(plain).posterior(NEW).mean, rtol=1e-6, atol=1e-8
    )


def test_a_very_uncertain_point_counts_for_nothing() -> None:
    outlier = Y.clone()
    outlier[4] = 100.0
    certain = torch.full_like(ADDED, 0.0)
    certain[4] = 1e8
    for kind in ("ScaMLGP", "TransferGP"):
        model_class = getattr(models, kind)
        model = fit(model_class(X, outlier, SOURCES, likelihood=AddedNoiseLikelihood(certain)))
        assert model.posterior(NEW).mean.abs().max() < 50


def test_fantasies_of_fantasies_have_the_learned_noise() -> None:
    model = build().eval()
    x, y, at = points(3, 1, 2, seed=4), points(4, 3, 1, seed=5), points(2, 2, seed=6)
    together = model.get_fantasy_model(x, y)
    together = together.get_fantasy_model(x.expand(4, 3, 1, 2) / 2, points(5, 4, 3, 1, seed=7))(at)
    single = model.get_fantasy_model(x[2], y[1, 2])
    single = single.get_fantasy_model(x[2] / 2, points(5, 4, 3, 1, seed=7)[3, 1, 2])(at)
    torch.testing.assert_close(together.mean[3, 1, 2], single.mean)
    torch.testing.assert_close(together.covariance_matrix[3, 1, 2], single.covariance_matrix)


def test_likelihood_by_itself() -> None:
    likelihood = AddedNoiseLikelihood(ADDED)
    likelihood.transform(None, Y)
    assert torch.equal(likelihood.get_fantasy_likelihood().added, ADDED)
    # At other points there is the learned noise alone.
    noise = likelihood.noise_covar(shape=torch.Size([3])).diagonal()
    torch.testing.assert_close(noise, likelihood.noise.expand(3))
