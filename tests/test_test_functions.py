"""Families of synthetic tasks."""

import math

import pytest
import torch
from botorch.test_functions import Branin, Hartmann
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
    Hartmann3Family,
    Hartmann6Family,
    TaskFamily,
)

FAMILIES = [AlpineFamily, BraninFamily, Hartmann3Family, Hartmann6Family]


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


def test_a_minimum_is_found():
    task = Parabola(center=1.2)
    assert isinstance(task, SyntheticTestFunction)
    assert task.optimal_value == pytest.approx(-3.0, abs=1e-9)
    expected = torch.tensor([[1.2, 0.25]], dtype=torch.double)
    torch.testing.assert_close(task.optimizers.abs(), expected, rtol=0, atol=1e-4)


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


# ------------------------------------------------------------------------------------- the families


@pytest.mark.parametrize(
    ("task", "x", "expected"),
    [
        (AlpineFamily(s=0.7), [-3.0], -3.0 * math.sin(-3.0 + math.pi + 0.7) - 0.3),
        (AlpineFamily(c=-0.5), [-3.0], -3.0 * math.sin(-3.0 + math.pi) + 1.5),
        (
            BraninFamily(a=0.7, b=0.12, c=1.3, r=5.5, s=9.0, t=0.04),
            [2.0, 3.0],
            0.7 * (3.0 - 0.12 * 4 + 1.3 * 2 - 5.5) ** 2 + 9 * 0.96 * math.cos(2.0) + 9,
        ),
    ],
)
def test_formulas(task, x, expected):
    value = task(torch.tensor([x], dtype=torch.double))
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_alpine_samples_are_the_five_sources_in_random_order():
    shifts = [task.s for task in AlpineFamily.sample(5, seed=0)]
    assert sorted(shifts) == pytest.approx([k * math.pi / 12 for k in range(1, 6)])
    assert shifts[:2] == [task.s for task in AlpineFamily.sample(2, seed=0)]
    assert {AlpineFamily.sample(1, seed=seed)[0].s for seed in range(30)} == set(shifts)
    with pytest.raises(ValueError, match="has 5 source tasks, not 6"):
        AlpineFamily.sample(6, seed=0)


def test_alpine_problems_have_the_papers_target():
    target, sources = AlpineFamily.sample_problem(5, seed=0, noise_std=0.1)
    assert target.s == 0
    assert target.noise_std == 0.1
    assert list(sources) == [f"shift {k} pi/12" for k in range(1, 6)]
    assert [task.s for task in sources.values()] == list(AlpineFamily.SHIFTS)
    _, few = AlpineFamily.sample_problem(2, seed=3)
    assert len(few) == 2
    assert list(few) == sorted(few)


def test_branin_defaults_are_the_original_function():
    original = Branin()
    task = BraninFamily()
    assert torch.equal(task.bounds, original.bounds)
    X = original.bounds[0] + 15 * torch.rand(50, 2, dtype=torch.double)
    torch.testing.assert_close(task(X), original(X), rtol=1e-6, atol=1e-6)
    assert task.optimal_value == pytest.approx(original.optimal_value, abs=1e-5)


HARTMANN = {3: Hartmann3Family, 6: Hartmann6Family}


@pytest.mark.parametrize("dim", HARTMANN)
def test_hartmann_defaults_are_the_original_function(dim):
    task, original = HARTMANN[dim](), Hartmann(dim=dim)
    X = torch.rand(50, dim, dtype=torch.double)
    torch.testing.assert_close(task(X), original(X), rtol=1e-6, atol=1e-6)
    assert task.optimal_value == pytest.approx(original.optimal_value, abs=1e-5)
    torch.testing.assert_close(task.optimizers, original.optimizers, rtol=0, atol=1e-4)


RANGES = {
    BraninFamily: {
        "a": (0.5, 1.5),
        "b": (0.1, 0.15),
        "c": (1.0, 2.0),
        "r": (5.0, 7.0),
        "s": (8.0, 12.0),
        "t": (0.03, 0.05),
    },
}


@pytest.mark.parametrize("family", RANGES)
def test_parameters_are_in_the_papers_ranges(family):
    tasks = family.sample(200, seed=0)
    for name, (low, high) in RANGES[family].items():
        values = torch.tensor([getattr(task, name) for task in tasks])
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high >= values.max() > high - 0.05 * (high - low)
