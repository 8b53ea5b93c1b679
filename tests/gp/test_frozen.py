"""Frozen posteriors, and predictions at once, against GPyTorch's machinery."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Log
from botorch.models.utils import gpt_posterior_settings
from botorch.settings import propagate_grads
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import LinearKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from gpytorch.settings import detach_test_caches, fast_pred_var, skip_posterior_variances
from torch.autograd.functional import hessian

from botorch_transfer.acquisition import NoiselessFantasies
from botorch_transfer.average.base import PlainGP
from botorch_transfer.gp import frozen
from botorch_transfer.gp.expansion import expand
from botorch_transfer.gp.strategy import Strategy
from botorch_transfer.models import BoostedHierarchicalGP, PopulationGP, ScaMLGP
from botorch_transfer.pretraining import SourceGPs, SourcePopulation
from tests.gp.padded import points
from tests.gp.tasks import draw_data

X, FIXED = points(6, 2), points(3, 2, seed=3)
Y = (4 * X.sum(-1, keepdim=True)).sin()
DATA = draw_data([12, 9, 15])
SMOOTH = points(2, 30, 2, seed=5)
RAW = Normalize(2, bounds=torch.tensor([[0.0, -1.0], [2.0, 3.0]]).double())


def build(kind: str, **options: Any) -> Any:
    """A fitted model by name."""
    if kind == "plain":
        model: Any = PlainGP(X, Y, None, *_modules(), **options)
    else:
        makers = {
            "scaml": (ScaMLGP, SourceGPs, {}),
            "few sources": (ScaMLGP, SourceGPs, {"max_sources": 2}),
            "distilled": (ScaMLGP, SourceGPs, {}),
            "population": (PopulationGP, SourcePopulation, {}),
            "distilled population": (PopulationGP, SourcePopulation, {}),
        }
        model_class, prior_class, own = makers[kind]
        prior = _fit_prior(prior_class, "distilled" in kind, options.get("input_transform"))
        model = model_class(X, Y, prior, **own, **options)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    return fit_gpytorch_mll(mll, num_restarts=0).model


@cache
def _fit_prior(prior_class: Any, is_distilled: bool, transform: Any) -> Any:
    pretraining = {"max_inducing": 6} if is_distilled else {}
    return prior_class.fit(DATA, input_transform=transform, max_iter=10, **pretraining)


def _modules() -> tuple[Any, Any]:
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    return ConstantMean().double(), kernel


KINDS = ["plain", "scaml", "few sources", "distilled", "population", "distilled population"]


@pytest.mark.parametrize(
    ("kind", "noise"), [*((kind, None) for kind in KINDS), ("scaml", 0.01), ("population", 0.01)]
)
def test_frozen_posterior_is_the_models(kind, noise) -> None:
    options = {} if noise is None else {"train_Yvar": torch.full_like(Y, noise)}
    model, x = build(kind, **options), points(5, 2, seed=8).requires_grad_()
    mean, variance, covariance = model.frozen(FIXED)(x)
    mvn = model.posterior(torch.cat([x, FIXED])).distribution
    joint = mvn.covariance_matrix
    expected = mvn.mean[:5], joint.diagonal()[:5], joint[:5, 5:]
    weights = points(5, 5, seed=9)
    gradients = []
    for found in ((mean, variance, covariance), expected):
        total = (weights[0] * found[0]).sum() + (weights[1] * found[1]).sum()
        total = total + (weights[:, :3] * found[2]).sum()
        gradients.append(torch.autograd.grad(total, x, retain_graph=True)[0])
    torch.testing.assert_close((mean, variance, covariance), expected, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(*gradients, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("kind", ["scaml", "population"])
def test_second_derivatives_are_the_models(kind) -> None:
    model = build(kind)
    found = model.frozen(FIXED[:0])
    for which in ("mean", "variance"):
        ours = hessian(lambda x, i=which == "variance": found(x)[int(i)].sum(), FIXED)
        theirs = hessian(lambda x, n=which: getattr(model.posterior(x[:, None]), n).sum(), FIXED)
        assert theirs.abs().max() > 0.1
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


#: Shapes of further inputs, of their outcomes, and of the points of predictions without inputs.
FANTASIES = [((1, 2), (3, 1), (3, 4)), ((2, 2, 2), (3, 2, 2), (2, 4)), ((3, 1, 2), (3, 1), (4,))]


@pytest.mark.parametrize("noise", [None, 0.01])
@pytest.mark.parametrize("kind", ["plain", "scaml", "distilled population"])
def test_fantasies_are_gpytorchs(kind, noise, monkeypatch) -> None:
    """Those of the closed form, of the general way, and of GPyTorch given all data."""
    options = {} if noise is None else {"train_Yvar": torch.full_like(Y, noise)}
    found: dict[Any, list[Any]] = {True: [], False: [], None: []}
    model = build(kind, **options).eval()
    for fast, values in found.items():
        if not fast:
            monkeypatch.setattr(Strategy, "frozen_at", lambda *args: None)
            model._clear_cache()
        for new, outcomes, at in FANTASIES:
            data = points(*new, seed=8), points(*outcomes, seed=9), points(*at, 2, seed=10)
            x, y, others = inputs = tuple(part.requires_grad_() for part in data)
            known = {} if noise is None else {"noise": torch.full_like(x[..., 0], 0.3)}
            with detach_test_caches(False), propagate_grads(True):
                fantasies = model.get_fantasy_model(x, y, **known)
                assert (fantasies.strategy.given is not None) is bool(fast)
                models = fantasies, fantasies.get_fantasy_model(x / 2, y, **known)
                if fast is None:
                    for each in models:
                        each.prediction_strategy = None
                    models = tuple(partial(ExactGP.__call__, each) for each in models)
                mvn, again = (each(others) for each in models)
            total = mvn.mean.sin().sum() + mvn.covariance_matrix.sin().sum()
            values += [fantasies.train_inputs[0], fantasies.train_targets, mvn.mean]
            values += [mvn.covariance_matrix, again.mean, again.covariance_matrix]
            values += torch.autograd.grad(total, inputs)
    for ours, general, theirs in zip(*found.values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-7)
        torch.testing.assert_close(general, theirs, atol=1e-8, rtol=1e-7)


def test_large_fantasies_are_evaluated_by_the_general_way(monkeypatch) -> None:
    model, x = build("population").eval(), points(1, 2, seed=8)
    means = []
    for most in (frozen.MAX_NUMBERS, 1):
        monkeypatch.setattr(frozen, "MAX_NUMBERS", most)
        fantasies = model.get_fantasy_model(x, x.sum(-1))
        means.append(fantasies(X).mean)
        assert ("root" in vars(fantasies.strategy)) is (most == 1)
    torch.testing.assert_close(*means, atol=1e-8, rtol=0)


@pytest.mark.parametrize("model_class", [ScaMLGP, PopulationGP])
def test_rounding_errors_of_precise_sources_are_those_of_the_general_way(model_class) -> None:
    """Long lengthscales and next to no noise: the inverse of a covariance has huge elements."""
    data = {str(task): (x, x.sum(-1, keepdim=True).sin()) for task, x in enumerate(SMOOTH)}
    model = model_class(X, Y, {n: (*xy, torch.full_like(xy[1], 1e-7)) for n, xy in data.items()})
    x = points(4, 1, 2, seed=8).requires_grad_()
    x = torch.cat([x, x + 1e-5], dim=-2)
    with gpt_posterior_settings():
        mvn, general = model.eval()(x), model(x.detach())
    prior = float(expand(model.mean_module, model.covar_module, X).constants[1])
    close: dict[str, float] = {"atol": 1e-12 * prior, "rtol": 0}
    torch.testing.assert_close(mvn.covariance_matrix, general.covariance_matrix, **close)
    _, single, _ = model.frozen(X[:0])(x[:, 0])
    unit = model.outcome_transform.stdvs.square()
    torch.testing.assert_close(single / unit.squeeze(), mvn.variance[:, 0], **close)
    assert torch.autograd.gradcheck(
        lambda x: model.posterior(x).variance, x.detach().requires_grad_()
    )


@pytest.mark.parametrize("kind", ["scaml", "population"])
def test_raw_inputs(kind) -> None:
    model = build(kind, input_transform=RAW)
    x = 2 * points(5, 2, seed=8)
    mean, variance, _ = model.frozen(x[:0])(x)
    posterior = model.posterior(x.unsqueeze(-2))
    torch.testing.assert_close(mean, posterior.mean.flatten(), atol=1e-8, rtol=0)
    torch.testing.assert_close(variance, posterior.variance.flatten(), atol=1e-8, rtol=0)


def test_what_cannot_be_frozen_is_evaluated_as_it_is() -> None:
    periodic = ScaleKernel(PeriodicKernel()).double()
    prior = SourceGPs.fit(DATA, num_restarts=0)
    models = [
        ScaMLGP(X, Y, prior, covar_module=periodic),
        ScaMLGP(X, Y.exp(), {"monday": (X, Y.exp())}, outcome_transform=Log()),
        ScaMLGP(X[:0], Y[:0], prior),
        BoostedHierarchicalGP(X, Y, DATA),
    ]
    x = points(4, 2, seed=8)
    for model in models:
        assert model.frozen(FIXED) is None
    mean, variance, covariance = NoiselessFantasies(models[0], FIXED).joint(x)
    mvn = models[0].posterior(torch.cat([x, FIXED])).distribution
    torch.testing.assert_close(mean, mvn.mean[:4])
    torch.testing.assert_close(variance, mvn.covariance_matrix.diagonal()[:4])
    torch.testing.assert_close(covariance, mvn.covariance_matrix[:4, 4:])


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
def test_single_precision_and_far_inputs() -> None:
    data = {name: tuple(part.float() for part in parts) for name, parts in DATA.items()}
    model = ScaMLGP(X.float(), Y.float(), SourceGPs.fit(data, num_restarts=0))
    x = torch.cat([points(3, 2, seed=8), torch.tensor([[1e200, 0.0]]).double()]).float()
    mean, variance, _ = model.frozen(x[:0])(x)
    assert mean.dtype is torch.float32
    posterior = model.posterior(x.unsqueeze(-2))
    torch.testing.assert_close(mean, posterior.mean.flatten(), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(variance, posterior.variance.flatten(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 1, 2), (2, 3, 4, 2)])
def test_predictions_are_gpytorchs(kind, shape) -> None:
    model, x = build(kind).eval(), points(*shape, seed=8).requires_grad_()
    found = []
    for predict in (model, partial(ExactGP.__call__, model)):
        with gpt_posterior_settings(), fast_pred_var(predict is model):
            mvn = predict(x)
        model.prediction_strategy = None
        total = mvn.mean.sum() + mvn.covariance_matrix.sum()
        found.append((mvn.mean, mvn.covariance_matrix, *torch.autograd.grad(total, x)))
    torch.testing.assert_close(*found, atol=1e-8, rtol=1e-7)


def test_kernels_with_a_way_of_their_own_are_evaluated_at_once_too() -> None:
    model = PlainGP(X, Y, None, ConstantMean().double(), LinearKernel().double()).eval()
    x, noise = points(4, 2, seed=8), float(model.likelihood.noise)
    with gpt_posterior_settings():
        mvn = model(x)
    kernel = float(model.covar_module.variance)
    K = kernel * X @ X.mT + noise * torch.eye(6).double()
    expected = kernel * x @ X.mT @ torch.linalg.solve(K, model.train_targets)
    torch.testing.assert_close(mvn.mean, expected)


def test_predictions_follow_the_scale_of_a_population() -> None:
    model = build("population").eval()
    x = points(4, 2, seed=8)
    model.posterior(x)
    model.set_train_data(X, model.train_targets.flip(0), strict=False)
    model.posterior(x)
    model.update_scale()
    before = model.posterior(x).mean
    model._clear_cache()
    torch.testing.assert_close(model.posterior(x).mean, before)


def test_means_alone_are_where_the_model_is(device) -> None:
    model = build("scaml").to(device)
    with skip_posterior_variances():
        covariance = model(FIXED.to(device)).lazy_covariance_matrix
    assert covariance.device.type == device


def _learned_and_known() -> Any:
    likelihood: Any = FixedNoiseGaussianLikelihood(
        torch.full((6,), 0.01).double(), learn_additional_noise=True
    ).double()
    likelihood.second_noise = 0.5
    return likelihood


def _by_inputs() -> Any:
    of_inputs = PlainGP(X, Y, None, *_modules()).eval()
    return _GaussianLikelihoodBase(HeteroskedasticNoise(of_inputs))


@pytest.mark.parametrize("make", [_learned_and_known, _by_inputs])
def test_noise_of_any_likelihood(make) -> None:
    model = PlainGP(X, Y, None, *_modules(), likelihood=make()).eval()
    x = FIXED.clone().requires_grad_()
    assert model.strategy.frozen is not None
    found, likelihood, kernel = model(x), model.likelihood, model.covar_module
    K = likelihood(MultivariateNormal(X[:, 0], kernel(X)), [X]).covariance_matrix
    cross = kernel(FIXED, X).to_dense()
    covariance = kernel(FIXED).to_dense() - cross @ torch.linalg.solve(K, cross.mT)
    torch.testing.assert_close(found.mean, cross @ torch.linalg.solve(K, model.train_targets))
    torch.testing.assert_close(found.covariance_matrix, covariance)


def test_fantasies_keep_their_graph_and_have_none_of_hyperparameters() -> None:
    model = build("plain").eval()
    x, y = FIXED[:1].clone().requires_grad_(), torch.ones(1).double().requires_grad_()
    fantasies = model.get_fantasy_model(x, y)
    with torch.no_grad():
        fantasies(X)
    assert all(part.any() for part in torch.autograd.grad(fantasies(X).mean.sum(), (x, y)))
    fantasies = model.get_fantasy_model(FIXED[:1], y.detach())
    for _ in range(2):
        fantasies(X.clone().requires_grad_()).variance.sum().backward()
    assert all(parameter.grad is None for parameter in fantasies.parameters())


def test_fantasies_of_another_number_of_outcomes_are_refused() -> None:
    with pytest.raises(BotorchTensorDimensionError, match="has 3 points, but targets= has 1"):
        build("plain").get_fantasy_model(FIXED, torch.ones(1).double())
