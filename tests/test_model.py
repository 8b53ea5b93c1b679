import pickle
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from botorch.cross_validation import efficient_loo_cv
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    ModelFittingError,
    UnsupportedError,
)
from botorch.exceptions.warnings import InputDataWarning, OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputPerturbation, Normalize
from botorch.models.transforms.outcome import Log
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor
from torch.testing import assert_close

from botorch_transfer import (
    BoostedHierarchicalGP,
    GuardedTransferGP,
    PopulationGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    TransferGP,
    TwoStageTransferGP,
)
from botorch_transfer.model import MAX_LENGTHSCALE, LogLikelihoodTerm, TargetGP
from tests.families import ShiftedSines
from tests.fits import fit_model
from tests.models.contract import MINIMAL, assert_same_posterior

FAMILY = ShiftedSines()


@pytest.mark.parametrize("model_class", [PopulationGP, SequentialHierarchicalGP, TransferGP])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
def test_however_far_away_predictions_are_the_priors(model_class: Any, dtype: torch.dtype) -> None:
    X = torch.linspace(0, 1, 5, dtype=dtype).unsqueeze(-1)
    model = model_class(X[1:3], X[1:3].cos(), {"a": (X, X.sin()), "b": (X, X.cos())})
    with torch.no_grad():
        far = model.posterior(torch.full((1, 1), 1e10, dtype=dtype))
        for end in (torch.finfo(dtype).max / 2, -torch.finfo(dtype).max):
            posterior = model.posterior(torch.full((1, 1), end, dtype=dtype))
            assert_close(posterior.mean, far.mean)
            assert_close(posterior.variance, far.variance)


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
def test_predicts_in_the_dtype_of_the_data() -> None:
    X = torch.linspace(0, 1, 5).unsqueeze(-1)
    model = ScaMLGP(X[1:3], X[1:3].cos(), {"a": (X, X.sin())})
    for dtype in (torch.double, torch.long):
        assert model.posterior(X[-1:].to(dtype)).mean.dtype == torch.float
        assert_same_posterior(model.posterior(X[-1:].to(dtype)), model.posterior(X[-1:]))


class PlainTarget(TargetGP):
    """A target without any source tasks: all that is left is what the base class does."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: object = None,
        mean_module: Mean | None = None,
        covar_module: Kernel | None = None,
        task_feature: int | None = None,
    ) -> None:
        super().__init__(
            train_X,
            train_Y,
            dim=None,
            mean_module=ConstantMean() if mean_module is None else mean_module,
            covar_module=ScaleKernel(RBFKernel()) if covar_module is None else covar_module,
            task_feature=task_feature,
        )


def test_codes_of_failed_runs_and_data_in_another_unit_are_named() -> None:
    X, Y = FAMILY.target(7)
    cube = torch.tensor([[0.0, 0.0], [1000.0, 1000.0]]).to(X)
    for values, options, message in (
        (Y.index_fill(0, torch.tensor([2]), -9999.0), {}, "train_Y has -9999, far from all other"),
        (Y, {"train_Yvar": Y * 0 + 1e6}, "train_Yvar is far above the range of train_Y"),
        (Y, {"input_transform": Normalize(2, bounds=cube).eval()}, "normalized twice"),
    ):
        with pytest.warns(InputDataWarning, match=message):
            TargetGP(X, values, None, ConstantMean(), RBFKernel(), **options)


@pytest.mark.parametrize("n", [1, 4])
def test_with_data_it_is_a_single_task_gp(n: int) -> None:
    X, Y = FAMILY.target(n)
    model = PlainTarget(X, Y)
    own = {name: getattr(model, name) for name in ("likelihood", "mean_module", "covar_module")}
    twin = SingleTaskGP(X, Y, outcome_transform=None, **own)
    assert_same_posterior(model.posterior(FAMILY.inputs(3)), twin.posterior(FAMILY.inputs(3)))
    assert model.num_target_points == n


def test_without_data_it_is_its_prior() -> None:
    model = PlainTarget(*FAMILY.target(0))
    model.mean_module.constant = 3.0
    posterior = model.posterior(FAMILY.inputs(4))
    assert_close(posterior.mean, torch.full((4, 1), 3.0).double())
    covariance = model.covar_module(FAMILY.inputs(4)).to_dense()
    assert_close(posterior.distribution.covariance_matrix, covariance)


def test_a_module_shared_by_mean_and_kernel_counts_once() -> None:
    class KernelMean(Mean):
        def __init__(self, kernel: Kernel) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, x: Tensor) -> Tensor:
            return self.kernel(x, torch.zeros_like(x[..., :1, :])).to_dense().squeeze(-1)

    kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0))
    model = PlainTarget(*FAMILY.target(3), mean_module=KernelMean(kernel), covar_module=kernel)
    priors = [prior for _, _, prior, _, _ in model.named_priors()]
    assert priors.count(kernel.lengthscale_prior) == 1


def test_inputs_may_be_one_vector() -> None:
    family = ShiftedSines(dim=1)
    model, X = PlainTarget(*family.target(3)).eval(), family.inputs(5)
    assert_close(model(X.squeeze(-1)).mean, model(X).mean)
    with pytest.raises(BotorchTensorDimensionError, match="1 columns, but train_X= has 2"):
        PlainTarget(*FAMILY.target(3)).eval()(X.squeeze(-1))
    model.set_train_data(X.squeeze(-1), X.squeeze(-1), strict=False)
    with pytest.raises(BotorchTensorDimensionError, match=r"targets= needs the shape \(5,\)"):
        model.set_train_data(X, X, strict=False)


def _mll(n: int = 4) -> ExactMarginalLogLikelihood:
    model = PlainTarget(*FAMILY.target(n))
    return ExactMarginalLogLikelihood(model.likelihood, model)


@pytest.mark.parametrize("n", [0, 4])
def test_fit_takes_what_it_knows_only(n: int) -> None:
    mll = _mll(n)
    with pytest.raises(ValueError, match="no argument restarts=: use either num_restarts= and"):
        fit_gpytorch_mll(mll, restarts=3)
    message = "no argument timeout_sec=.*max_attempts.*of the optimizer into optimizer_kwargs"
    with pytest.raises(ValueError, match=message):
        fit_gpytorch_mll(mll, optimizer=fit_gpytorch_mll_scipy, timeout_sec=1.0)
    with pytest.raises(ValueError, match="num_restarts= is an option of the fit from several"):
        fit_gpytorch_mll(mll, max_attempts=1, num_restarts=0)
    with pytest.raises(ValueError, match="seed= is an option of the fit from several starts"):
        fit_gpytorch_mll(mll, optimizer=fit_gpytorch_mll_scipy, seed=0)


@pytest.mark.parametrize("model_class", [ScaMLGP, TransferGP])
def test_attempts_are_starts(model_class: Any) -> None:
    """One algorithm, whether their number is said in BoTorch's words or in ours."""
    fitted = []
    for options in ({"max_attempts": 3, "pick_best_of_all_attempts": True}, {"num_restarts": 2}):
        model = model_class(*FAMILY.target(4), FAMILY.sources())
        fitted.append(dict(fit_model(model, seed=1, max_iter=5, **options).named_parameters()))
    for name, parameter in fitted[0].items():
        assert torch.equal(parameter, fitted[1][name]), name


def _failing(attempts: list[float], times: int) -> Callable[..., Any]:
    """An optimizer that fails some times; it notes where each attempt starts."""

    def optimize(mll: ExactMarginalLogLikelihood, closure: Any = None) -> Any:
        attempts.append(mll.model.covar_module.base_kernel.lengthscale.item())
        if len(attempts) <= times:
            raise RuntimeError("broken")
        warnings.warn("slow", OptimizationWarning, stacklevel=1)
        return fit_gpytorch_mll_scipy(mll, options={"maxiter": 1})

    return optimize


def test_attempts_are_botorchs() -> None:
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)))
    model = PlainTarget(*FAMILY.target(4), covar_module=kernel)
    mll, attempts = ExactMarginalLogLikelihood(model.likelihood, model), []
    options = {"caught_exception_types": (RuntimeError,), "warning_handler": lambda _: True}
    with pytest.raises(ModelFittingError):
        fit_gpytorch_mll(mll, optimizer=_failing(attempts, 3), max_attempts=2, **options)
    assert len(attempts) == 2
    attempts.clear()
    fit_gpytorch_mll(mll, optimizer=_failing(attempts, 1), **options)
    assert len(set(attempts)) == len(attempts) == 2  # the second one starts at a draw
    attempts.clear()
    best = {"pick_best_of_all_attempts": True, "max_attempts": 3}
    fit_gpytorch_mll(mll, optimizer=_failing(attempts, 0), **best, **options)
    assert len(attempts) == 3


def test_an_attempt_ends_when_a_fit_does() -> None:
    """The optimizer that BoTorch takes by default stops where the model's own fit stops."""

    class Brief(PlainTarget):
        max_fit_iterations = 3

    steps: list[int] = []
    model = Brief(*FAMILY.target(6))
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    callback = {"callback": lambda *_: steps.append(1)}
    fit_gpytorch_mll(mll, max_attempts=1, optimizer_kwargs=callback)
    assert len(steps) == 3


def test_copies_have_the_value_and_no_graph():
    value = torch.ones(2, requires_grad=True) * 3
    term = LogLikelihoodTerm(value)
    assert term.loss() is value
    for copy in (deepcopy(term), pickle.loads(pickle.dumps(term))):
        assert torch.equal(copy.loss(), value)
        assert not copy.loss().requires_grad


CLASSES = [RankWeightedGP, TwoStageTransferGP, GuardedTransferGP, TransferGP, BoostedHierarchicalGP]


@pytest.mark.parametrize(("model_class", "n"), [*((each, 3) for each in CLASSES), (TransferGP, 4)])
def test_members_of_a_batch_are_predicted_as_if_alone(model_class, n):
    """Also where there are as many points as members."""
    X = FAMILY.inputs(3, n, seed=3)
    Y = FAMILY.value(X) * torch.tensor([1.0, 10.0, 100.0]).reshape(3, 1, 1)
    together = model_class(X, Y, FAMILY.sources()).loo_posterior()
    assert together.mean.shape == (3, n, 1, 1)
    for member in range(3):
        alone = model_class(X[member], Y[member], FAMILY.sources()).loo_posterior()
        assert_close(together.mean[member], alone.mean, rtol=1e-5, atol=1e-5)
        assert_close(together.variance[member], alone.variance, rtol=1e-4, atol=0)


class ShiftedPredictions(ScaMLGP):
    """A model of a user's own that predicts otherwise than its exact GP."""

    def _predict(self, X):
        mvn = super()._predict(X)
        return MultivariateNormal(mvn.mean + 1.0, mvn.lazy_covariance_matrix)


def test_left_out_predictions_of_other_models_are_refused():
    model = ShiftedPredictions(*FAMILY.target(3), FAMILY.sources())
    with pytest.raises(UnsupportedError, match="loo_posterior"):
        efficient_loo_cv(model.eval())


def test_what_else_is_predicted_follows_from_one_hook():
    data = (*FAMILY.target(4), FAMILY.sources())
    models = [model_class(*data).eval() for model_class in (ShiftedPredictions, ScaMLGP)]
    X, (_, unit) = FAMILY.inputs(3, seed=5), models[0].own_units
    (mean, variance, _), (exact, variance_of_exact, _) = (each._leave_one_out() for each in models)
    assert_close(mean, exact + 1.0, atol=1e-6, rtol=0)
    assert_close(variance, variance_of_exact, atol=1e-8, rtol=1e-5)
    for sampler in (draw_kernel_feature_paths, draw_matheron_paths):
        values = []
        for model in models:
            torch.manual_seed(0)
            values.append(sampler(model, torch.Size([2]))(X))
        assert_close(values[0], values[1] + unit, atol=1e-4, rtol=0)


class _Indefinite(Kernel):
    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        return (x1 * x2).sum(dim=-1) if diag else -x1 @ x2.mT


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
def test_refuses_data_whose_covariance_cannot_be_factorized() -> None:
    X = torch.ones(2, 1, dtype=torch.double)
    model = PlainTarget(X, X, covar_module=_Indefinite())
    for predict in (partial(model.posterior, X), model.loo_posterior):
        with pytest.raises(InputDataError, match="target's data is not positive definite: give in"):
            predict()


def test_lengthscales_by_formulas():
    """An RBF kernel has slopes of variance ``outputscale / lengthscale²``."""
    model = MINIMAL.target(0)
    kernel, lengthscales = model.covar_module.base_kernel, torch.tensor([0.3, 0.6])
    kernel.lengthscale = lengthscales
    X = torch.rand(2000, 2, dtype=torch.double)
    covariance = kernel(X).to_dense().detach()
    ratio = (1 - covariance.mean()).sqrt().float()
    assert_close(model.lengthscales().float(), lengthscales * ratio, rtol=0.03, atol=0)
    kernel.lengthscale = torch.tensor([0.3, 1e6])
    assert float(model.lengthscales()[1]) == pytest.approx(MAX_LENGTHSCALE)
    model.covar_module.outputscale = 1e-300
    assert model.lengthscales().isfinite().all()


def test_left_out_points_under_a_transform_that_is_not_linear():
    (X, Y), sources = FAMILY.target(4), FAMILY.sources()
    logs = ScaMLGP(X, Y, sources, outcome_transform=Log())
    plain = ScaMLGP(X, Y.log(), {name: (X, Y.log()) for name, (X, Y) in sources.items()})
    samples = logs.loo_posterior(observation_noise=False).rsample(torch.Size([2000]))
    expected = plain.loo_posterior(observation_noise=False)
    spread = expected.variance.sqrt().squeeze()
    error = (samples.log().mean(dim=0) - expected.mean).squeeze() / spread
    assert error.abs().max() < 0.15


def test_one_to_many_inputs_are_not_frozen():
    transform = InputPerturbation(torch.zeros(2, 2).double())
    model = ScaMLGP(*FAMILY.target(3), FAMILY.sources(), input_transform=transform)
    assert model.frozen(FAMILY.inputs(2)) is None
