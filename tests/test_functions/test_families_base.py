from __future__ import annotations

import copy
import pickle

import pytest
import torch
from botorch.test_functions.synthetic import SyntheticTestFunction
from botorch.utils.testing import (
    BaseTestProblemTestCaseMixIn,
    BotorchTestCase,
    SyntheticTestFunctionTestCaseMixin,
)
from botorch.utils.transforms import unnormalize
from scipy.optimize import differential_evolution

from botorch_transfer.test_functions import (
    AlpineFamily,
    BraninFamily,
    ForresterFamily,
    Hartmann3Family,
    Hartmann6Family,
    TaskFamily,
)

FAMILIES = [
    AlpineFamily,
    BraninFamily,
    ForresterFamily,
    Hartmann3Family,
    Hartmann6Family,
]


class Parabola(TaskFamily):
    """Two minima, at `±center`, and the edges far above them."""

    dim = 2
    study_noise_std = 0.5
    _bounds = [(-2.0, 2.0), (0.0, 1.0)]  # noqa: RUF012
    _ranges = {"center": (0.5, 1.5)}  # noqa: RUF012

    def __init__(self, center=1.0, **options):
        self.center = center
        super().__init__(**options)

    def _evaluate_true(self, X):
        x, y = X.unbind(dim=-1)
        return (x.square() - self.center**2).square() + (y - 0.25).square() - 3


class TestConventions(
    BotorchTestCase, BaseTestProblemTestCaseMixIn, SyntheticTestFunctionTestCaseMixin
):
    """BoTorch's own tests of its synthetic functions."""

    functions = [  # noqa: RUF012
        family.sample(1, seed=4, negate=number % 2 == 0)[0]
        for number, family in enumerate((*FAMILIES, Parabola))
    ]


def test_all_minima_are_found():
    task = Parabola(center=1.2)
    assert isinstance(task, SyntheticTestFunction)
    assert task.optimal_value == pytest.approx(-3.0, abs=1e-9)
    found = task.optimizers[task.optimizers[:, 0].argsort()]
    expected = torch.tensor([[-1.2, 0.25], [1.2, 0.25]], dtype=torch.double)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_negated_functions_have_the_negated_optimum():
    assert Parabola(negate=True).optimal_value == -Parabola().optimal_value
    assert Parabola(negate=True).is_minimization_problem is False
    assert torch.equal(Parabola(negate=True).optimizers, Parabola().optimizers)


def test_the_optimum_is_that_within_other_bounds():
    task = Parabola(bounds=[(-2.0, -1.5), (0.5, 1.0)])
    torch.testing.assert_close(
        task.optimizers, torch.tensor([[-1.5, 0.5]], dtype=torch.double), rtol=0, atol=1e-6
    )
    assert task.optimal_value == pytest.approx((2.25 - 1) ** 2 + 0.0625 - 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_another_search_finds_nothing_better(family):
    for task in family.sample(1, seed=3):
        box = task.bounds.T.tolist()
        other = differential_evolution(
            lambda x, task=task: task._evaluate_true(torch.tensor(x.T)).numpy(),
            box,
            vectorized=True,
            updating="deferred",
            popsize=40,
            seed=0,
        )
        assert task.optimal_value <= other.fun + 1e-6
        reached = task(task.optimizers, noise=False)
        torch.testing.assert_close(reached, torch.full_like(reached, task.optimal_value))


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_follow_from_the_seed(family):
    few, many = family.sample(2, seed=5), family.sample(4, seed=5, negate=True)
    X = unnormalize(torch.rand(5, few[0].dim, dtype=torch.double), few[0].bounds)
    for one, other in zip(few, many, strict=False):
        assert torch.equal(one(X), -other(X))
    assert not torch.equal(few[0](X), few[1](X))
    assert not torch.equal(few[0](X), family.sample(1, seed=6)[0](X))


@pytest.mark.parametrize("family", FAMILIES)
def test_problems_are_a_target_and_its_sources(family):
    target, sources = family.sample_problem(3, seed=2, negate=True)
    assert len(sources) == 3
    X = unnormalize(torch.rand(5, target.dim, dtype=torch.double), target.bounds)
    values = [task(X) for task in (target, *sources.values())]
    assert len({tuple(value.tolist()) for value in values}) == 4
    again, _ = family.sample_problem(3, seed=2)
    assert torch.equal(again(X), -values[0])


def test_parameters_are_uniform_in_their_range():
    centers = torch.tensor([task.center for task in Parabola.sample(500, seed=0)])
    quantiles = centers.quantile(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    expected = torch.tensor([0.5, 0.75, 1.0, 1.25, 1.5])
    torch.testing.assert_close(quantiles, expected, rtol=0, atol=0.08)


def test_sampled_data_are_noisy_outcomes_in_the_unit_cube():
    task = Parabola(noise_std=0.5, negate=True)
    state = torch.get_rng_state()
    X, Y = task.sample_data(4000, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert X.min() >= 0
    assert X.max() <= 1
    assert (X.mean(dim=0) - 0.5).abs().max() < 0.02
    residual = Y.squeeze(-1) - task(unnormalize(X, task.bounds), noise=False)
    assert float(residual.std()) == pytest.approx(0.5, abs=0.02)
    assert float(residual.mean()) == pytest.approx(0.0, abs=0.03)
    assert torch.equal(task.sample_data(4000, seed=1)[1], Y)
    assert not torch.equal(task.sample_data(4000, seed=2)[0], X)


def test_sampled_data_of_a_noiseless_task_are_exact():
    task = Parabola()
    X, Y = task.sample_data(7, seed=0)
    assert torch.equal(Y.squeeze(-1), task(unnormalize(X, task.bounds)))
    single, values = Parabola(dtype=torch.float).sample_data(7, seed=0)
    assert single.dtype == values.dtype == torch.float
    torch.testing.assert_close(single.double(), X, rtol=1e-5, atol=1e-6)


def test_observation_noise():
    task = Parabola(noise_std=1.0)
    X = unnormalize(torch.rand(2000, 2, dtype=torch.double), task.bounds)
    assert float((task(X) - task(X, noise=False)).std()) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_can_be_copied_and_pickled(family):
    (task,) = family.sample(1, seed=0)
    X = unnormalize(torch.rand(5, task.dim, dtype=torch.double), task.bounds)
    assert task.optimal_value is not None  # the search is copied, too
    for copied in (copy.deepcopy(task), pickle.loads(pickle.dumps(task))):
        assert torch.equal(copied(X), task(X))
        assert copied.optimal_value == task.optimal_value


@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_device(family, device):
    (task,) = family.sample(1, seed=0)
    X = unnormalize(torch.rand(5, task.dim, dtype=torch.double), task.bounds)
    expected, best = task(X), task.optimal_value
    task.to(device)
    torch.testing.assert_close(task(X.to(device)).cpu(), expected)
    assert task.optimizers.device.type == device
    assert task.optimal_value == best
    sampled, values = task.sample_data(3, seed=0)
    assert sampled.device.type == values.device.type == device
    (fresh,) = family.sample(1, seed=0)
    assert fresh.to(device).optimal_value == pytest.approx(best, abs=1e-6)


class Well(TaskFamily):
    """Flat but for a narrow well, of which no gradient tells from afar."""

    dim = 1
    study_noise_std = 0.1
    _bounds = [(0.0, 1.0)]  # noqa: RUF012

    def _evaluate_true(self, X):
        return -torch.exp(-((X.squeeze(-1) - 0.43) / 0.002).square())


def test_the_search_for_the_optimum_begins_where_it_is_low():
    task = Well()
    assert task.optimal_value == pytest.approx(-1.0)
    assert task.optimizers.item() == pytest.approx(0.43, abs=1e-5)
