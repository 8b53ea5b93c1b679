from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from botorch_transfer.population.fit import (
    PopulationObjective,
    PopulationOptions,
    fit_population,
    thinned,
)
from botorch_transfer.population.prior import SourcePopulation
from botorch_transfer.prior import Observations
from tests.gp.padded import KERNELS, points
from tests.population.twin import Sources


def stacked(sizes: tuple[int, ...] = (6, 1, 9), known_noise: tuple[int, ...] = (2,)):
    task = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    X = points(len(task), 2)
    fixed = torch.tensor([index in known_noise for index in range(len(sizes))])
    Y = torch.sin(5 * X.sum(dim=-1)) + 0.3 * task
    return Observations(X, Y, torch.where(fixed[task], 0.05, math.nan), task)


def theta_of(tasks: Observations, count: int = 1, seed: int = 5) -> torch.Tensor:
    """Parameters in some distance from the start."""
    start = PopulationObjective(tasks, "rbf").start()
    return start + points(count, len(start), seed=seed) - 0.5


def plain_log_posterior(tasks: Observations, kernel: str, theta: torch.Tensor) -> torch.Tensor:
    """The log posterior by PyTorch's distributions, up to a constant that does not matter."""
    d, M = tasks.X.shape[-1], int(tasks.task.max()) + 1
    common, own, s_c, s_h, noise, of_tasks = theta.split([d, d, 1, 1, 1, M])
    found = PopulationObjective(tasks, kernel).read(theta)
    torch.testing.assert_close(found.lengthscale, common.exp())
    torch.testing.assert_close(found.own_outputscale, (2 * s_h[0]).exp())
    rows = torch.where(tasks.noise.isnan(), (noise + of_tasks).exp()[tasks.task], tasks.noise)
    sources = Sources(tasks.X, tasks.Y, tasks.task, rows + 1e-6, found, kernel)
    covariance = sources.covariance()
    value = MultivariateNormal(torch.zeros_like(tasks.Y), covariance).log_prob(tasks.Y)
    hyperparameters = [
        (common, math.sqrt(2) + 0.5 * math.log(d), math.sqrt(3)),
        (own - common, 0.0, 0.7),
        (s_c, math.log(0.8), 1.0),
        (s_h, math.log(0.7), 1.0),
        (s_h - s_c, 0.3, 0.3 * math.sqrt(max(M, 2) / 2)),
        (noise, math.log(0.01), 1.5),
        (of_tasks, 0.0, 0.7),
    ]
    for values, mean, std in hyperparameters:
        value = value + Normal(mean, std).log_prob(values).sum()
    return value


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sizes", [(6, 1, 9), (7,)])
def test_objective_is_the_log_posterior(sizes, kernel):
    tasks = stacked(sizes, known_noise=(2,))
    thetas = theta_of(tasks, count=2)
    values, _ = PopulationObjective(tasks, kernel)(thetas, torch.arange(2))
    expected = torch.stack([-plain_log_posterior(tasks, kernel, theta) for theta in thetas])
    # Constants of the hyperpriors are left out.
    torch.testing.assert_close(values.diff() * len(tasks.Y), expected.diff())


@pytest.mark.parametrize(
    ("kernel", "known_noise"),
    [*((kernel, (0,)) for kernel in KERNELS), ("rbf", ()), ("rbf", (0, 1, 2))],
)
def test_gradient_of_the_objective(kernel, known_noise):
    tasks = stacked(known_noise=known_noise)
    objective, (theta,) = PopulationObjective(tasks, kernel), theta_of(tasks)
    _, gradient = objective(theta.unsqueeze(0), torch.tensor([0]))
    steps = 1e-5 * torch.eye(len(theta)).to(theta)
    rows = torch.arange(len(theta))
    change = objective(theta + steps, rows)[0] - objective(theta - steps, rows)[0]
    torch.testing.assert_close(gradient[0], change / 2e-5, rtol=1e-5, atol=1e-7)


def test_fit_improves_on_its_start():
    tasks = stacked((12, 9, 15), known_noise=())
    objective = PopulationObjective(tasks, "matern52")
    start = objective(objective.start().unsqueeze(0), torch.tensor([0]))[0] * -len(tasks.Y)
    _, brief = fit_population(tasks, "matern52", PopulationOptions(max_iter=3))
    found, value = fit_population(tasks, "matern52", PopulationOptions())
    assert value > brief > start[0]
    # At an optimum, but for the convergence of the optimizer.
    theta = torch.cat(
        [
            found.lengthscale.log(),
            found.own_lengthscale.log(),
            torch.stack([found.outputscale, found.own_outputscale]).log() / 2,
            found.noise.log().unsqueeze(0),
            (found.task_noise / found.noise).log(),
        ]
    )
    noise = torch.randn(20, len(theta), generator=torch.Generator().manual_seed(0)).to(theta)
    others, _ = objective(theta + 0.05 * noise, torch.arange(20))
    assert (-others * len(tasks.Y) < value + 0.05).all()


def test_fit_stays_within_its_bounds():
    tasks = stacked((8, 8), known_noise=())
    constant = Observations(tasks.X, 0 * tasks.Y, tasks.noise, tasks.task)
    found, value = fit_population(constant, "matern52", PopulationOptions())
    assert value.isfinite()
    assert all(part.isfinite().all() for part in found)
    assert found.noise >= math.exp(-11) * (1 - 1e-9)


def test_fit_is_to_some_points_of_large_tasks(monkeypatch):
    tasks, seen = stacked((40, 40, 40), known_noise=()), []
    evaluate = PopulationObjective._evaluate

    def counted(objective, hyperparameters):
        seen.append(len(objective.tasks.Y))
        return evaluate(objective, hyperparameters)

    monkeypatch.setattr(PopulationObjective, "_evaluate", counted)
    fit_population(tasks, "matern52", PopulationOptions(max_iter=2, fit_points=30))
    assert set(seen) == {30}


# ----------------------------------------------------------------------------------- thinning out


def test_thinning_keeps_the_same_share_of_each_task():
    tasks = stacked((10, 40, 150), known_noise=(1,))
    assert thinned(tasks, 200) is tasks
    thin = thinned(tasks, 100)
    assert thin.task.bincount().tolist() == [5, 20, 75]
    assert torch.equal(thin.noise > 0, thin.task == 1)
    places = torch.stack([(x == tasks.X).all(dim=-1).nonzero()[0, 0] for x in thin.X])
    assert (places.diff() > 0).all()
    assert torch.equal(thin.Y, tasks.Y[places])


def test_thinning_keeps_five_points_of_each_task():
    tasks = stacked((3, 8, 200))
    assert thinned(tasks, 30).task.bincount().tolist() == [3, 5, 22]


def test_thinning_takes_rows_from_the_worst_outcome_to_the_best():
    tasks = stacked((30, 60))
    thin = thinned(tasks, 40)
    for index in (0, 1):
        Y, kept = tasks.Y[tasks.task == index].sort().values, thin.Y[thin.task == index]
        expected = Y[torch.linspace(0, len(Y) - 1, len(kept)).double().round().long()]
        torch.testing.assert_close(kept.sort().values, expected)


def test_thinning_does_not_depend_on_the_order_of_tasks():
    sizes = (30, 60, 45)
    tasks = stacked(sizes, known_noise=())
    order = [2, 0, 1]
    rows = torch.cat([(tasks.task == index).nonzero().squeeze(-1) for index in order])
    task = torch.arange(3).repeat_interleave(torch.tensor([sizes[index] for index in order]))
    moved = Observations(tasks.X[rows], tasks.Y[rows], tasks.noise[rows], task)
    first, second = thinned(tasks, 50), thinned(moved, 50)
    for place, index in enumerate(order):
        assert torch.equal(first.X[first.task == index], second.X[second.task == place])


def many_tasks(order: torch.Tensor) -> Observations:
    """Forty tasks of six points, each less spread than the one before, in some order."""
    X, normal = points(40, 6, 2), points(40, 6, seed=2) - 0.5
    Y = normal / torch.arange(1, 41).unsqueeze(-1)
    task = torch.arange(40).repeat_interleave(6)
    X, Y = X[order].reshape(-1, 2), Y[order].reshape(-1)
    return Observations(X, Y, math.nan * Y, task)


def test_tasks_are_left_out_where_there_is_no_room_for_them():
    order = torch.arange(40)
    tasks = many_tasks(order)
    thin = thinned(tasks, 50)
    assert len(thin.Y) == 50
    counts = thin.task.bincount(minlength=40)
    assert sorted(counts.unique().tolist()) == [0, 5]
    # From those that vary least to those that vary most.
    spread = tasks.Y.abs().reshape(40, 6).mean(dim=-1)
    kept = counts.nonzero().squeeze(-1)
    assert spread.argmin() in kept
    assert spread.argmax() in kept
    moved = thinned(many_tasks(order.flip(0)), 50)
    assert torch.equal(moved.X.sort(dim=0).values, thin.X.sort(dim=0).values)
    # Those that are left out already do not count again.
    assert thinned(thin, 49).task.unique().numel() == 9


@pytest.mark.parametrize("name", ["max_iter", "fit_points", "max_inducing"])
def test_options_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match="max_iter, fit_points and max_inducing must be positive"):
        PopulationOptions(**{name: 0})


def test_sources_at_one_value_of_an_input_say_nothing_of_others():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=generator, dtype=torch.double)
    X[:, 1] = 0.3
    Y = torch.sin(4 * X[:, :1])
    history = {"a": (X[:20], Y[:20]), "b": (X[20:], Y[20:] + 1)}
    population = SourcePopulation.fit(history)
    at = torch.tensor([[0.4, 0.3], [0.4, 1.0]], dtype=torch.double)
    inside, outside = population.mean(at)
    assert inside > 0.8
    assert abs(outside) < 0.3 * inside
    variances = population.variance(at)
    assert variances[1] > 3 * variances[0]
    assert variances[1] <= population.gps.outputscale[0] <= 1
