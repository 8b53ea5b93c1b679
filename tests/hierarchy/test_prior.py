from collections.abc import Callable

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling.pathwise.utils import get_train_inputs
from gpytorch.kernels import MaternKernel, ScaleKernel
from scipy.optimize import minimize
from torch import Tensor

from botorch_transfer.gp.hyperpriors import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
)
from botorch_transfer.hierarchy.prior import Propagate, SourceHierarchy
from tests.families import ShiftedSines
from tests.gp.padded import Task, points
from tests.hierarchy.twin import NOTHING, Process, Step, boosted, climb, levels_of, sequential

KINDS: list[tuple[Propagate, Step]] = [("covariance", sequential), ("mean", boosted)]
DEFAULTS = (SOURCE_HYPERPARAMETERS, RESIDUAL_HYPERPARAMETERS)


def _fit(propagate: Propagate = "covariance", **kwargs: object) -> SourceHierarchy:
    sources = ShiftedSines().sources()
    return SourceHierarchy.fit(sources, propagate, **{"num_restarts": 0, **kwargs})


def _plain_log_posterior(
    theta: Tensor,
    level: Task,
    below: tuple[Tensor, Tensor],
    spec: GPHyperparameters,
    known_noise: bool,
) -> Tensor:
    """A level's log posterior, as the textbook has it, with PyTorch's distributions."""
    lengthscale, outputscale, noise = theta.exp().tensor_split((-2, -1))
    diagonal = level.noise if known_noise else noise.expand(len(level.X))
    scaled = level.X / lengthscale
    gram = outputscale * (-0.5 * (scaled.unsqueeze(1) - scaled).square().sum(dim=-1)).exp()
    mean, covariance = below
    density = torch.distributions.MultivariateNormal(mean, gram + covariance + diagonal.diag())
    value = density.log_prob(level.Y)
    parts = [(spec.lengthscale, lengthscale), (spec.outputscale, outputscale)]
    for part, values in parts if known_noise else [*parts, (spec.noise, noise)]:
        if part.prior() is not None:
            value = value + part.prior().log_prob(values).sum()
    return value


def _plain_optimum(objective: Callable[[Tensor], Tensor], spec: GPHyperparameters) -> float:
    """The best of a few starts, by SciPy."""

    def with_gradient(values: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(values).requires_grad_()
        value = -objective(theta)
        (gradient,) = torch.autograd.grad(value, theta)
        return value.item(), gradient.numpy()

    parts = [spec.lengthscale, spec.lengthscale, spec.outputscale, spec.noise]
    generator, best = torch.Generator().manual_seed(1), -np.inf
    starts = [torch.tensor([part.start for part in parts]).double()]
    starts += [
        torch.cat([part.sample(torch.Size([1]), generator) for part in parts]) for _ in range(2)
    ]
    for start in starts:
        result = minimize(
            with_gradient,
            start.log().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=[(np.log(part.lower), np.log(part.upper)) for part in parts],
        )
        best = max(best, -result.fun)
    return best


def _levels_below(step: Step, levels: list[Task], propagate: Propagate) -> Process:
    below = climb(step, levels) if levels else NOTHING
    return below if propagate == "covariance" else Process(below.mean, NOTHING.covariance)


@pytest.mark.parametrize(
    ("hyperparameters", "known_noise"),
    [(DEFAULTS, True), (None, False)],
    ids=["map, known noise", "maximum likelihood"],
)
@pytest.mark.parametrize(("propagate", "step"), KINDS)
def test_fit_of_each_level(
    propagate: Propagate, step: Step, known_noise: bool, hyperparameters: tuple | None
) -> None:
    sources: dict = ShiftedSines().sources()
    if known_noise:
        sources = {n: (X, Y, 0.5 + points(len(X), 1, seed=7)) for n, (X, Y) in sources.items()}
    stack = SourceHierarchy.fit(sources, propagate, hyperparameters=hyperparameters, num_restarts=3)
    levels = levels_of(stack)
    first, others = hyperparameters or 2 * (SOURCE_HYPERPARAMETERS.without_priors(),)
    for index, level in enumerate(levels):
        spec = others if index else first
        below = _levels_below(step, levels[:index], propagate).at(level.X)

        def objective(
            theta: Tensor,
            level: Task = level,
            below: tuple[Tensor, Tensor] = below,
            spec: GPHyperparameters = spec,
        ) -> Tensor:
            return _plain_log_posterior(theta, level, below, spec, known_noise)

        theta = torch.cat([level.lengthscale, level.outputscale[None], level.noise[:1]]).log()
        value = float(stack.log_posterior[index])
        assert value == pytest.approx(float(objective(theta)), abs=1e-5)
        assert value > _plain_optimum(objective, spec) - 0.05


@pytest.mark.parametrize("outcome_scale", ["per_task", "pooled", "raw"])
def test_data_of_the_levels(outcome_scale: str) -> None:
    sources = ShiftedSines().sources()
    stack = _fit(outcome_scale=outcome_scale)
    everything = torch.cat([Y for _, Y in sources.values()])
    assert stack.num_points.tolist() == [9, 6, 12]
    assert (stack.num_tasks, stack.dim) == (3, 2)
    torch.testing.assert_close(stack.outcomes(), everything.flatten())
    for level, (X, Y) in zip(levels_of(stack), sources.values(), strict=True):
        own = (Y.mean(), Y.std())
        both = (everything.mean(), everything.std())
        mean, std = {"per_task": own, "pooled": both, "raw": (0.0, 1.0)}[outcome_scale]
        assert torch.equal(level.X, X)
        torch.testing.assert_close(level.Y, (Y.squeeze(-1) - mean) / std)


@pytest.mark.parametrize(("propagate", "step"), KINDS)
def test_mean_and_variance(propagate: Propagate, step: Step) -> None:
    transform = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [2.0, 4.0]]).double())
    stack, A = _fit(propagate, input_transform=transform), points(3, 5, 2)
    twin = climb(step, levels_of(stack))
    mean, covariance = twin.at(A[1] / torch.tensor([2.0, 4.0]))
    torch.testing.assert_close(stack.mean(A)[1], mean)
    torch.testing.assert_close(stack.variance(A)[1], covariance.diagonal())


def test_known_noise() -> None:
    X, Y, Yvar = points(6, 2), points(6, 1, seed=2), points(6, 1, seed=3)
    stack = SourceHierarchy.fit([(X, Y, Yvar), (X, Y)], num_restarts=0)
    noise = stack.gps.noise
    torch.testing.assert_close(noise[:6], Yvar.squeeze(-1) / Y.var())
    assert noise[6:].unique().numel() == 1


def test_maximum_likelihood_takes_the_starts_of_the_papers() -> None:
    with_priors, without = _fit(), _fit(hyperparameters=None, num_restarts=3)
    assert not torch.equal(with_priors.gps.lengthscale, without.gps.lengthscale)
    assert bool((without.log_posterior != with_priors.log_posterior).all())


def _models() -> list[SingleTaskGP]:
    """GPs with hyperparameters, noise and transforms of their own, on inputs from 0 to 10."""
    models = []
    for index, size in enumerate((6, 4, 5)):
        X = 10 * points(size, 2, seed=index)
        kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2))
        model = SingleTaskGP(
            X,
            20 + 3 * (index + 1) * (X / 10).sum(-1, keepdim=True).sin(),
            covar_module=kernel,
            input_transform=Normalize(2),
            outcome_transform=Standardize(1),
        )
        kernel.outputscale = 0.5 + 0.2 * index
        kernel.base_kernel.lengthscale = torch.tensor([[0.4, 0.7 + 0.1 * index]])
        model.likelihood.noise = 1e-3 * (index + 1)
        model.mean_module.initialize(constant=0.3 * index - 0.2)
        models.append(model.eval())
    return models


@pytest.mark.parametrize("cube", [False, True], ids=["raw inputs", "unit cube"])
@pytest.mark.parametrize(("propagate", "step"), KINDS)
def test_from_models(propagate: Propagate, step: Step, cube: bool) -> None:
    models, A = _models(), 10 * points(5, 2)
    bounds = torch.tensor([[0.0, 0.0], [10.0, 10.0]]).double()
    transform = Normalize(2, bounds=bounds) if cube else None
    stack = SourceHierarchy.from_models(models, propagate, input_transform=transform)
    assert stack.propagate == propagate
    assert bool(stack.log_posterior.isnan().all())
    levels = []
    for model in models:
        (X,) = get_train_inputs(model, transformed=False)
        coefficient = model.input_transform.coefficient.flatten()
        levels.append(
            Task(
                X=X,
                Y=model.train_targets,
                noise=model.likelihood.noise.detach().expand(len(model.train_targets)),
                lengthscale=model.covar_module.base_kernel.lengthscale.detach()[0] * coefficient,
                outputscale=model.covar_module.outputscale.detach(),
                mean=model.mean_module.constant.detach(),
                kernel="matern52",
            )
        )
    mean, covariance = climb(step, levels).at(A)
    torch.testing.assert_close(stack.mean(A), mean)
    torch.testing.assert_close(stack.variance(A), covariance.diagonal())


def test_from_one_model_is_that_model() -> None:
    model, A = _models()[1], 10 * points(5, 2)
    posterior = model.posterior(A)
    for propagate, _ in KINDS:
        stack = SourceHierarchy.from_models({"alone": model}, propagate)
        assert stack.task_names == ("alone",)
        mean = stack.mean(A) * stack.outcome_std + stack.outcome_mean
        torch.testing.assert_close(mean, posterior.mean.squeeze(-1))
        variance = stack.variance(A) * stack.outcome_std**2
        torch.testing.assert_close(variance, posterior.variance.squeeze(-1))


@pytest.mark.parametrize("build", [SourceHierarchy.fit, SourceHierarchy.from_models])
def test_unknown_propagation(build: Callable[..., SourceHierarchy]) -> None:
    sources = _models() if build == SourceHierarchy.from_models else ShiftedSines().sources()
    with pytest.raises(ValueError, match="propagate 'both': choose one of 'covariance', 'mean'"):
        build(sources, propagate="both")


def test_unknown_kernel_and_scale() -> None:
    with pytest.raises(ValueError, match="'cosine'"):
        _fit(kernel="cosine")
    with pytest.raises(ValueError, match="Unknown outcome_scale 'log'"):
        _fit(outcome_scale="log")


def test_levels_have_no_inducing_points() -> None:
    X = torch.rand(4, 2, dtype=torch.double)
    with pytest.raises(TypeError, match="max_inducing"):
        SourceHierarchy.fit([(X, X[:, :1])], max_inducing=3)


def test_progress_is_that_of_the_levels(capsys: pytest.CaptureFixture[str]) -> None:
    sources = ShiftedSines().sources((4, 3, 5))
    SourceHierarchy.fit(sources, num_restarts=0, max_iter=2, progress=True)
    shown = capsys.readouterr().err
    assert "levels: 100%" in shown
    assert "3/3" in shown
    assert "source GPs" not in shown
    SourceHierarchy.fit(sources, num_restarts=0, max_iter=2)
    assert not capsys.readouterr().err
