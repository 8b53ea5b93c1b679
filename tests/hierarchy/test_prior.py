from collections.abc import Callable
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling.pathwise.utils import get_train_inputs
from gpytorch.kernels import MaternKernel, ScaleKernel
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from botorch_transfer.data import check_joint_size
from botorch_transfer.gp.hyperpriors import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
)
from botorch_transfer.hierarchy import prior as hierarchy
from botorch_transfer.hierarchy.prior import (
    BoostedHierarchy,
    ConditionedHierarchy,
    Propagate,
    SourceHierarchy,
)
from botorch_transfer.prior import Observations
from tests.families import ShiftedSines
from tests.gp.padded import KERNELS, Task, draw_tasks, points
from tests.hierarchy.twin import (
    NOTHING,
    SIZES,
    Process,
    Step,
    boosted,
    climb,
    joint,
    levels_of,
    moments_and_gradient,
    sequential,
    stack,
    stacked,
)

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


sizes_ = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("kernel", "sizes"), [*((kernel, SIZES[2]) for kernel in KERNELS), ("rbf", SIZES[0])]
)
@pytest.mark.parametrize(("propagate", "step"), KINDS)
def test_recursion(propagate: Propagate, step: Step, sizes: tuple[int, ...], kernel: str) -> None:
    levels, A = draw_tasks(sizes, 2, kernel), points(5, 2)
    gps, twin = stack(levels, propagate), climb(step, levels)
    # Of the Matérn kernels at zero distance, roots have no derivative the plain way.
    if kernel == "rbf":
        mine = moments_and_gradient(lambda x: (gps.mean(x)[0], gps.covariance(x)[0]), A)
        theirs = moments_and_gradient(twin.at, A)
    else:
        mine, theirs = (gps.mean(A)[0], gps.covariance(A)[0]), twin.at(A)
    torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("propagate", "step"), KINDS)
def test_variance_and_batches(propagate: Propagate, step: Step) -> None:
    levels, A, B = draw_tasks(SIZES[2], 3), points(2, 4, 6, 3), points(5, 3, seed=2)
    gps, twin = stack(levels, propagate), climb(step, levels)
    means, variances = gps.mean(A), gps.variance(A)
    joints, between = gps.covariance(A), gps.covariance(A, B)
    single = gps.covariance(A[..., :1, :], B)
    for i, j in ((0, 0), (1, 3)):
        mean, covariance = twin.at(A[i, j])
        torch.testing.assert_close(means[i, j, 0], mean)
        torch.testing.assert_close(variances[i, j, 0], covariance.diagonal())
        torch.testing.assert_close(joints[i, j, 0], covariance)
        torch.testing.assert_close(between[i, j, 0], twin.covariance(A[i, j], B))
        torch.testing.assert_close(single[i, j, 0], twin.covariance(A[i, j, :1], B))


@given(sizes=sizes_, seed=st.integers(0, 100))
def test_sequential_is_joint(sizes: list[int], seed: int) -> None:
    levels, A = draw_tasks(sizes, 2, seed=seed), points(4, 2)
    gps = stack(levels, "covariance")
    moments = (gps.mean(A)[0], gps.covariance(A)[0])
    torch.testing.assert_close(moments, joint(levels).at(A), rtol=1e-8, atol=1e-9)


def test_level_variances() -> None:
    levels, A = draw_tasks(SIZES[2], 2), points(3, 4, 2)
    gps = stack(levels, "mean")
    assert isinstance(gps, BoostedHierarchy)
    variances = gps.levels.variance(A)
    assert variances.shape == (3, 5, 4)
    for index, level in enumerate(levels):
        own = level.posterior_covariance(A[1], A[1]).diagonal()
        torch.testing.assert_close(variances[1, index], own)


@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_solve_gives_coefficients_of_the_cross_kernel(propagate: Propagate) -> None:
    levels, A = draw_tasks(SIZES[1], 2), points(5, 2)
    gps = stack(levels, propagate)
    Y = torch.cat([level.Y for level in levels])
    difference = Y - gps.level_means.cumsum(0)[gps.level]
    coefficients = gps.solve(difference.unsqueeze(0))
    mean = gps.prior_mean.unsqueeze(-1) + (gps.cross(A) @ coefficients.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(mean, gps.mean(A))


def test_level_means_are_zero_by_default() -> None:
    levels = draw_tasks([3, 4], 2)
    gps = ConditionedHierarchy.from_data(stacked(levels), points(2, 2), points(2))
    far = gps.mean(points(1, 2) + 100)
    assert torch.equal(far, torch.zeros_like(far))


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_repeated_points_without_noise(propagate: Propagate) -> None:
    levels = draw_tasks([4, 3], 2)
    gps = stack(levels, propagate)
    tensors, Y = gps.tensors(), torch.cat([level.Y for level in levels])
    X, _, level, _, *hyperparameters = tensors.values()
    X, Y, level = (torch.cat([part[:1], part]) for part in (X, Y, level))
    data = Observations(X, Y, torch.zeros_like(Y), level)
    with pytest.warns(match="added jitter"):
        singular = type(gps).from_data(data, *hyperparameters)
    A = points(5, 2)
    assert bool(singular.mean(A).isfinite().all())
    assert bool((singular.variance(A) < 10).all())


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_no_factor(propagate: Propagate) -> None:
    tensors = stack(draw_tasks([4, 3], 2), propagate).tensors()
    tensors["noise"] = torch.full((7,), -10.0, dtype=torch.double)
    hierarchy = ConditionedHierarchy if propagate == "covariance" else BoostedHierarchy
    with pytest.raises(InputDataError, match=r"source task 'v1' is not positive definite"):
        hierarchy(**tensors, task_names=["v1", "v2"])
    tensors["noise"][:4] = 1.0
    with pytest.raises(InputDataError, match=r"source task 'v2' is not positive definite"):
        hierarchy(**tensors, task_names=["v1", "v2"])


def test_copies_share_tensors() -> None:
    gps = stack(draw_tasks([4, 3], 2), "mean")
    twin = deepcopy(gps)
    assert twin.alpha is gps.alpha
    # What BHGP's covariance needs is made once for all copies, even after they were made.
    twin.variance(points(1, 2))
    boosts = [h._boosts(h._boost, h.points, h.alpha) for h in (gps, twin)]
    assert boosts[0] is boosts[1]


@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_other_sizes_of_levels_are_loaded(propagate: Propagate) -> None:
    tasks = draw_tasks([4, 2, 4], 2)
    gps, other = stack(tasks[:2], propagate), stack(tasks[1:], propagate)
    X = points(5, 2)
    expected = other.mean(X), other.variance(X)
    gps.load_state_dict(other.state_dict())
    torch.testing.assert_close((gps.mean(X), gps.variance(X)), expected)


@pytest.mark.parametrize("propagate", ["covariance", "mean"])
def test_inference_mode_leaves_no_trace(propagate: Propagate) -> None:
    gps, X = stack(draw_tasks([4, 3], 2), propagate), points(5, 2)
    with torch.inference_mode():
        gps.variance(X)
    X.requires_grad_()
    (gradient,) = torch.autograd.grad(gps.variance(X).sum(), X)
    assert gradient.abs().max() > 0


def test_means_need_no_joint_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchy, "check_joint_size", partial(check_joint_size, max_bytes=1))
    gps = stack(draw_tasks([4, 3], 2), "mean")
    assert gps.mean(points(5, 2)).isfinite().all()
    with pytest.raises(InputDataError, match=r"7 points together.*use MeanHierarchicalGP"):
        gps.variance(points(5, 2))


def test_rows_out_of_order_are_refused():
    X = torch.rand(4, 2, dtype=torch.double)
    ones = torch.ones(4, dtype=torch.double)
    level = torch.tensor([0, 1, 0, 1])
    with pytest.raises(ValueError, match="ascending order"):
        ConditionedHierarchy.from_data(Observations(X, ones, ones, level), X[:2] + 1, ones[:2])
