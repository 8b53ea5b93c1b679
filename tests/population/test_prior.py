"""The hierarchical GP over the sources: its posterior, its fit, and the kernel of a target."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import ScaleKernel
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal
from torch.testing import assert_close

from botorch_transfer import PopulationGP, SourcePopulation
from botorch_transfer.gp.combine import WeightedSumMean
from botorch_transfer.gp.conditioned import different_rows
from botorch_transfer.gp.stationary import stationary_function
from botorch_transfer.population import prior as prior_of_population
from botorch_transfer.population.model import PopulationKernel, PopulationMean, TargetScale
from botorch_transfer.population.prior import (
    MAX_REFERENCE,
    ConditionedPopulation,
    PopulationHyperparameters,
    PopulationObjective,
    PopulationOptions,
    centred,
    fit_population,
    thinned,
)
from botorch_transfer.prior import Observations
from tests.gp.padded import KERNELS, check_draws, points
from tests.gp.tasks import draw_data
from tests.population.twin import Sources, Units

DATA = draw_data([6, 3, 8], known_noise=[1])
X = points(5, 2, seed=7)


def fit(data=DATA, **options) -> SourcePopulation:
    return SourcePopulation.fit(data, **{"max_iter": 8, **options})


PRIOR = fit()


def assert_same(first: SourcePopulation, second: SourcePopulation, **close) -> None:
    assert_close(first.mean(X), second.mean(X), **close)
    assert_close(first.variance(X), second.variance(X), **close)
    units = [
        [each.typical_scale, each.typical_level, each.scale_log_std, each.level_variance]
        for each in (first, second)
    ]
    assert units[0] == pytest.approx(units[1])


def assert_equals_twin(prior: SourcePopulation) -> None:
    mean, covariance = Sources.of(prior).posterior(X, X)
    assert_close(prior.mean(X), mean)
    assert_close(prior.variance(X), covariance.diagonal())


def test_posterior_of_what_the_tasks_share():
    assert_equals_twin(PRIOR)
    assert_close(PRIOR.mean(X.reshape(5, 1, 1, 2)).reshape(5), PRIOR.mean(X))


def test_outcomes_are_standardized_task_by_task():
    outcomes = torch.cat([Y.squeeze(-1) for _, Y, *_ in DATA.values()])
    assert_close(PRIOR.outcomes(), outcomes)
    for index, (_, Y, *_) in enumerate(DATA.values()):
        rows = PRIOR.observed.task == index
        expected = ((Y - Y.mean()) / Y.std()).squeeze(-1)
        assert_close(PRIOR.observed.Y[rows], expected)


def test_known_noise_is_used():
    _, Y, Yvar = DATA["task 1"]
    rows = PRIOR.observed.task == 1
    assert_close(PRIOR.observed.noise[rows], (Yvar / Y.var()).squeeze(-1))
    others = PRIOR.observed.noise[~rows].unique()
    assert len(others) == 2  # one a task


def test_scales_and_levels():
    expected = Units.of(list(DATA.values()))
    assert PRIOR.typical_scale == pytest.approx(expected.scale)
    assert PRIOR.typical_level == pytest.approx(expected.level)
    assert PRIOR.scale_log_std == pytest.approx(expected.log_std)
    assert PRIOR.level_variance == pytest.approx(expected.level_variance)
    transform = PRIOR.default_outcome_transform(torch.Size())
    Y = torch.tensor([[expected.level], [expected.level + expected.scale]]).double()
    assert_close(transform(Y)[0].squeeze(-1), torch.tensor([0.0, 1.0]).double())
    assert_close(transform(3 * Y[:0])[0], Y[:0])


def test_order_of_tasks_does_not_matter():
    moved = fit({name: DATA[name] for name in ("task 2", "task 0", "task 1")}, max_iter=100)
    assert_same(moved, fit(max_iter=100), rtol=1e-6, atol=1e-6)


def test_all_points_count_beyond_max_inducing():
    data = draw_data([40, 20])
    prior, exact = (fit(data, max_inducing=most, fit_points=20) for most in (30, 60))
    assert prior.num_points.tolist() == [40, 20]
    assert len(prior.gps.points) == 30
    error = (prior.mean(X) - exact.mean(X)) / exact.variance(X).sqrt()
    assert error.abs().max() < 0.3
    assert_close(prior.variance(X), exact.variance(X), rtol=0.2, atol=0)
    assert prior.typical_scale == pytest.approx(Units.of(list(data.values())).scale)


def test_many_small_tasks():
    prior = fit(draw_data([6] * 30), max_inducing=50, fit_points=25, max_iter=2)
    assert prior.num_tasks == 30
    assert int(prior.num_points.sum()) == 180
    assert PopulationGP(X[:2], X[:2, :1], prior).posterior(X).variance.isfinite().all()


# -------------------------------------------------------------------------------------- odd data


def odd(**changed):
    return {**draw_data([6, 5]), **changed}


ONE = (X[:1], torch.tensor([[12.0]]).double())
CONSTANT = (X, torch.full((5, 1), 9.0).double())
REPEATED = (X[:1].repeat(6, 1), 10 + points(6, 1))
ODD = {
    "a constant task": odd(odd=CONSTANT),
    "a single point": odd(odd=ONE),
    "a repeated point": odd(odd=REPEATED),
    "single points only": {"a": ONE, "b": (X[1:2], ONE[1] + 1)},
    "constant tasks only": {"a": CONSTANT, "b": (X, CONSTANT[1] + 1)},
    "one point in all": {"a": ONE},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tasks(name):
    prior = fit(ODD[name], max_iter=100)
    for n in (0, 1, 3):
        posterior = PopulationGP(X[:n], 10 + X[:n, :1], prior).posterior(points(4, 2, seed=9))
        assert posterior.mean.isfinite().all()
        assert (posterior.variance > 0).all()


@pytest.mark.parametrize("name", ["a constant task", "a single point"])
def test_tasks_that_do_not_vary_have_no_scale(name):
    prior, without = fit(ODD[name]), fit(odd())
    assert prior.typical_scale == pytest.approx(without.typical_scale)
    assert prior.scale_log_std == pytest.approx(without.scale_log_std)


def test_without_any_scale_it_is_one():
    prior = fit(ODD["constant tasks only"])
    assert prior.typical_scale == 1.0
    assert prior.scale_log_std == pytest.approx(1.0)


# ------------------------------------------------------------------------------ append and select


def test_append_keeps_the_hyperparameters():
    first = fit({name: DATA[name] for name in ("task 0", "task 1")})
    longer = first.append({"task 2": DATA["task 2"]})
    assert longer.task_names == ("task 0", "task 1", "task 2")
    assert first.num_tasks == 2
    for mine, theirs in zip(longer.hyperparameters, first.hyperparameters, strict=True):
        assert torch.equal(mine, theirs)
    assert longer.num_points.tolist() == [6, 3, 8]
    assert_close(longer.observed.Y, PRIOR.observed.Y)
    assert_close(longer.observed.noise[:9], first.observed.noise)
    assert (longer.observed.noise[9:] == first.gps.own_noise).all()
    assert_equals_twin(longer)
    assert longer.typical_scale == pytest.approx(PRIOR.typical_scale)


def test_append_knows_noise_and_names():
    longer = PRIOR.append([DATA["task 1"], (X, X[:, :1])])
    assert longer.task_names[3:] == ("source task 0", "source task 1")
    rows = longer.observed.task == 3
    assert_close(longer.observed.noise[rows], PRIOR.observed.noise[PRIOR.observed.task == 1])


def test_append_keeps_all_points():
    longer = PRIOR.append(draw_data([30])["task 0"], max_inducing=25)
    assert longer.num_points.tolist() == [6, 3, 8, 30]
    assert len(longer.gps.points) == 25


def test_select():
    chosen = PRIOR.select([2, 0])
    assert chosen.task_names == ("task 2", "task 0")
    assert chosen.num_points.tolist() == [8, 6]
    assert_equals_twin(chosen)
    data = [DATA["task 2"], DATA["task 0"]]
    assert chosen.typical_scale == pytest.approx(Units.of(data).scale)
    assert chosen.level_variance == pytest.approx(Units.of(data).level_variance)
    assert_same(PRIOR.select([0, 1, 2]), PRIOR)


# --------------------------------------------------------------------------------------- refusals


def test_refusals():
    with pytest.raises(InputDataError, match="no source tasks"):
        SourcePopulation.fit([])
    with pytest.raises(ValueError, match="kernel"):
        fit(kernel="periodic")
    with pytest.raises(TypeError, match="sauce"):
        fit(sauce=1)
    with pytest.raises(InputDataError, match="has a source task 'task 0' already: give the new"):
        PRIOR.append({"task 0": DATA["task 0"]})
    with pytest.raises(ValueError, match="at least one"):
        PRIOR.select([])


# ------------------------------------------------------------------------------------------ the fit


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
    assert_close(found.lengthscale, common.exp())
    assert_close(found.own_outputscale, (2 * s_h[0]).exp())
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
    assert_close(values.diff() * len(tasks.Y), expected.diff())


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
    evaluate = PopulationObjective._likelihood

    def counted(objective, hyperparameters):
        seen.append(len(objective.tasks.Y))
        return evaluate(objective, hyperparameters)

    monkeypatch.setattr(PopulationObjective, "_likelihood", counted)
    fit_population(tasks, "matern52", PopulationOptions(max_iter=2, fit_points=30))
    assert set(seen) == {30}
    # Only tasks in the sample have their own noise variance.
    tasks = stacked((5,) * 6, known_noise=())
    found, _ = fit_population(tasks, "matern52", PopulationOptions(max_iter=2, fit_points=10))
    own = (found.task_noise != found.noise).nonzero().flatten().tolist()
    assert own == thinned(tasks, 10).task.unique().tolist() != [0, 1]


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
        assert_close(kept.sort().values, expected)


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
    with pytest.raises(ValueError, match="max_iter=, fit_points= and max_inducing= must be"):
        PopulationOptions(**{name: 0})


def test_sources_at_one_value_of_an_input_say_nothing_of_others():
    X = points(40, 2, seed=0)
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


SIZES = ((6,), (5, 1, 7))


def hyperparameters(dim: int = 2, seed: int = 3) -> PopulationHyperparameters:
    numbers = (torch.tensor(value).double() for value in (0.8, 0.6, 0.05))
    lengthscales = 0.3 + points(dim, seed=seed), 0.3 + points(dim, seed=seed + 1)
    return PopulationHyperparameters(*lengthscales, *numbers, points(1))


def rows_of(sizes: tuple[int, ...]) -> dict[str, Tensor]:
    task = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    X = points(len(task), 2)
    Y, noise = torch.sin(4 * X.sum(dim=-1)) + task, 0.01 + 0.1 * points(len(task))
    return {"X": X, "Y": Y, "noise": noise, "task": task}


def population(
    sizes: tuple[int, ...],
    kernel: str = "matern52",
    max_inducing: int | None = None,
    **changed: Tensor,
) -> ConditionedPopulation:
    data = Observations(**{**rows_of(sizes), **changed})
    names = [f"task {index}" for index in range(len(sizes))]
    return ConditionedPopulation.from_data(data, hyperparameters(), kernel, names, max_inducing)


def twin_of(sizes: tuple[int, ...], kernel: str = "matern52") -> Sources:
    rows = rows_of(sizes)
    data = [rows[name] for name in ("X", "Y", "task", "noise")]
    return Sources(*data, hyperparameters(), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sizes", SIZES)
def test_posterior_of_what_all_tasks_share(sizes, kernel):
    gps, twin = population(sizes, kernel), twin_of(sizes, kernel)
    A, B = points(4, 2, seed=7), points(3, 2, seed=8)
    mean, covariance = twin.posterior(A, A)
    torch.testing.assert_close(gps.mean(A)[0], mean)
    torch.testing.assert_close(gps.covariance(A)[0], covariance)
    torch.testing.assert_close(gps.variance(A)[0], covariance.diagonal())
    torch.testing.assert_close(gps.covariance(A, B)[0], twin.posterior(A, B)[1])


# ------------------------------------------------------------------------------ inducing points

TWICE = (6, 5, 6)


def repeated(**changed: Any) -> ConditionedPopulation:
    """Rows of three tasks at only six different inputs: as inducing points they lose nothing."""
    return population(TWICE, "rbf", X=points(6, 2).repeat(3, 1)[:17], **changed)


@pytest.mark.parametrize("most_rows", [100, 1])
def test_inducing_points_lose_nothing_where_inputs_repeat(most_rows, monkeypatch):
    monkeypatch.setattr(prior_of_population, "MAX_ROWS_OF_TASK", most_rows)
    exact, A = repeated(), points(4, 2, seed=7)
    gps = repeated(max_inducing=16)
    assert exact.points.shape == (17, 2)
    assert gps.points.shape == (6, 2)
    # What the inducing points of a task's own function leave of its variance counts as noise.
    close = {"atol": 1e-6 if most_rows > 1 else 1e-3, "rtol": 0}
    torch.testing.assert_close(gps.mean(A), exact.mean(A), **close)
    torch.testing.assert_close(gps.covariance(A), exact.covariance(A), **close)
    of_tasks = gps.parts @ gps.flat_cross(A)[0].mT
    expected = exact.parts @ exact.flat_cross(A)[0].mT
    torch.testing.assert_close(of_tasks, expected, **close)


@pytest.mark.parametrize("most_rows", [100, 1])
def test_inducing_points_are_those_of_the_sparse_posterior(most_rows, monkeypatch):
    monkeypatch.setattr(prior_of_population, "MAX_ROWS_OF_TASK", most_rows)
    gps, A = population((9, 8, 7), max_inducing=10), points(4, 2, seed=7).requires_grad_()
    twin, Z, B = twin_of((9, 8, 7)), gps.points, points(3, 2, seed=8)
    assert len(Z) == 10
    Kz, Kx = twin.common(Z, Z), twin.common(Z, twin.X)
    R = twin.covariance() - twin.common(twin.X, twin.X)
    S = Kz + Kx @ torch.linalg.solve(R, Kx.mT)
    mean = twin.common(A, Z) @ torch.linalg.solve(S, Kx @ torch.linalg.solve(R, twin.y))
    left = torch.linalg.inv(Kz) - torch.linalg.inv(S)
    covariance = twin.common(A, B) - twin.common(A, Z) @ left @ twin.common(Z, B)
    close = {"atol": 1e-6 if most_rows > 1 else 1e-4, "rtol": 0}
    torch.testing.assert_close(gps.mean(A)[0], mean, **close)
    torch.testing.assert_close(gps.covariance(A, B)[0], covariance, **close)
    gradients = [
        torch.autograd.grad(m.sum() + c.sum(), A, retain_graph=True)[0]
        for m, c in ((gps.mean(A), gps.covariance(A, B)), (mean, covariance))
    ]
    torch.testing.assert_close(*gradients, atol=10 * close["atol"], rtol=0)


def test_order_of_rows_does_not_matter_to_inducing_points():
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    rows = {name: values[order] for name, values in rows_of((9, 8, 7)).items()}
    first, second = (population((9, 8, 7), max_inducing=10, **each) for each in ({}, rows))
    A = points(4, 2, seed=7)
    torch.testing.assert_close(first.mean(A), second.mean(A))
    torch.testing.assert_close(first.covariance(A), second.covariance(A))


def test_draws_from_the_posterior():
    check_draws(population(SIZES[1]), points(3, 2, seed=7))
    check_draws(population((9, 8, 7), max_inducing=10), points(3, 2, seed=7))


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_a_singular_covariance_is_refused_by_name():
    with pytest.raises(InputDataError, match="task 0"):
        population(SIZES[1], noise=torch.full((13,), -1.0).double())


def test_other_dimensions_are_refused():
    with pytest.raises(BotorchTensorDimensionError, match="3 columns, but the source tasks have 2"):
        population(SIZES[0]).mean(points(4, 3))


def test_states_of_other_kernels_are_refused():
    state = population(SIZES[1], "matern52").state_dict()
    with pytest.raises(ValueError, match=r"kernel 'matern52', but this .* has 'rbf'"):
        population(SIZES[1], "rbf").load_state_dict(state)


# ------------------------------------------------------------------------------ centred functions


@pytest.mark.parametrize("n", [1, 30, 200])
def test_reference_points_are_different_and_do_not_depend_on_the_order(n):
    X = points(n, 2).repeat(2, 1)
    shuffled = X[torch.randperm(2 * n, generator=torch.Generator().manual_seed(0))]
    chosen = X[different_rows(X, MAX_REFERENCE)]
    assert len(chosen.unique(dim=0)) == len(chosen) == min(n, MAX_REFERENCE)
    assert torch.equal(shuffled[different_rows(shuffled, MAX_REFERENCE)], chosen)


def test_centred_functions_have_no_mean():
    covariance = twin_of(SIZES[1]).common(points(12, 2), points(12, 2))
    rows = torch.tensor([0, 3, 11])
    left = centred(covariance, rows)
    torch.testing.assert_close(left[rows].sum(dim=0), torch.zeros(12).double())
    minus_mean = torch.eye(12).double()
    minus_mean[:, rows] -= 1 / 3
    torch.testing.assert_close(left, minus_mean @ covariance @ minus_mean.mT)


# ------------------------------------------------------------------------------- scale and level


def target(scale: TargetScale) -> tuple[PopulationMean, PopulationKernel]:
    gps, found = population(SIZES[1], "rbf"), hyperparameters()
    base = stationary_function("rbf").make_kernel(ard_num_dims=2, batch_shape=scale.mean.shape)
    residual = ScaleKernel(base, batch_shape=scale.mean.shape).double()
    base.lengthscale = found.own_lengthscale.expand_as(base.lengthscale)
    residual.outputscale = found.own_outputscale.expand_as(residual.outputscale)
    common = WeightedSumMean(gps)
    return PopulationMean(common, scale), PopulationKernel(residual, common, scale)


def moments_of_draws(A: torch.Tensor, scale: TargetScale) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of ``a + b (c + h)`` from a two-point distribution of ``b``."""
    twin = twin_of(SIZES[1], "rbf")
    mean, covariance = twin.posterior(A, A)
    deviation = scale.variance.sqrt()
    parts = [(b * mean, b**2 * (covariance + twin.own(A, A))) for b in
             (scale.mean - deviation, scale.mean + deviation)]  # fmt: skip
    average = sum(m for m, _ in parts) / 2
    within = sum(c for _, c in parts) / 2
    between = sum(torch.outer(m - average, m - average) for m, _ in parts) / 2
    return average, within + between + scale.level_variance


def some_scale(*batch_shape: int) -> TargetScale:
    scale = TargetScale(torch.Size(batch_shape)).double()
    mean = 0.5 + points(*batch_shape, 1, seed=4).squeeze(-1)
    scale.set(mean, 0.3 * mean, mean**2 + 0.3 * mean, torch.tensor(2.0))
    return scale


def test_moments_of_a_further_task():
    scale = some_scale()
    mean, kernel = target(scale)
    A = points(5, 2, seed=7)
    expected_mean, expected = moments_of_draws(A, scale)
    torch.testing.assert_close(mean(A), expected_mean)
    torch.testing.assert_close(kernel(A).to_dense(), expected)
    torch.testing.assert_close(kernel(A, diag=True), expected.diagonal())
    torch.testing.assert_close(kernel(A[:3], A[2:]).to_dense(), expected[:3, 2:])


def test_moments_travel_with_the_hyperparameters():
    scale, other = some_scale(2), TargetScale(torch.Size([2])).double()
    other.load_state_dict(scale.state_dict())
    assert torch.equal(other.moments, scale.moments)
    assert not other.moments.requires_grad
    copied = deepcopy(scale)
    copied.set(*torch.ones(4, 2))
    assert not torch.equal(copied.moments, scale.moments)


def test_members_of_a_batch_of_kernels():
    _, kernel = target(some_scale())
    assert kernel[..., 0] is kernel
    A, (_, batch) = points(5, 2, seed=7), target(some_scale(3))
    torch.testing.assert_close(batch[1](A).to_dense(), batch(A).to_dense()[1])
