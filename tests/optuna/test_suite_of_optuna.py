"""Optuna's own tests of samplers.

All of them but one class: `SingleOnlySamplerTestCase` is for samplers that refuse several
objectives, which this one takes.
"""

from collections.abc import Callable
from typing import Any

import pytest
from optuna import create_study
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from botorch_transfer import PopulationGP
from botorch_transfer.optuna import OptunaHistory, TransferSampler
from botorch_transfer.suggestion import next_rows, search
from tests.optuna.studies import drawn_history


@pytest.fixture(autouse=True)
def _quick_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the best of few rows: these tests are about values being valid, not good."""
    monkeypatch.setattr(search, "POOL", 32)
    monkeypatch.setattr(next_rows, "NUM_REFERENCE", 16)
    monkeypatch.setattr(search, "_move_to_middle", lambda acquisition, region, x, *rest: x)
    monkeypatch.setattr(search, "_climb", lambda acquisition, region, best, taken: best[0])


def _sampler(history: OptunaHistory) -> Callable[[], BaseSampler]:
    """Makes samplers with the model that has nothing to fit."""
    return lambda: TransferSampler(history, PopulationGP, seed=0)


def _paired(test: Callable[..., None]) -> pytest.MarkDecorator:
    """Optuna crosses six kinds of a parameter with six of another: here each kind is met once."""
    first, second = (mark.args for mark in test.pytestmark)
    rows = zip(first[1][::2], second[1][1::2], strict=False)
    return pytest.mark.parametrize(f"{first[0]}, {second[0]}", list(rows))


class TestBasic(BasicSamplerTestCase):
    """The history has the parameters of each test's objective, or none of them."""

    @pytest.fixture
    def sampler(self, request: pytest.FixtureRequest) -> Callable[[], BaseSampler]:
        given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
        number = FloatDistribution(-1, 1)
        distributions = {
            "test_conditional_parameter_objective": {
                "x": CategoricalDistribution([True, False]),
                "y": FloatDistribution(0, 1),
            },
            "test_partial_fixed_sampling": {"x": number, "y": IntDistribution(-1, 1), "z": number},
            "test_nan_objective_value": {"x": FloatDistribution(0.1, 0.2)},
            "test_dynamic_range_objective": {
                "x": FloatDistribution(0, 10),
                "y": IntDistribution(0, 10),
            },
        }.get(request.node.originalname, {"unrelated": number})
        if suggestions := [value for key, value in given.items() if "suggest_method" in key]:
            trial = create_study(sampler=RandomSampler(seed=0)).ask()
            for suggest in suggestions:
                suggest(trial)
            distributions = trial.distributions
        return _sampler(drawn_history(distributions))

    test_single_parameter_objective: Any = None  # each kind is in the combinations

    @_paired(BasicSamplerTestCase.test_combination_of_different_distributions_objective)
    def test_combination_of_different_distributions_objective(
        self, sampler: Any, suggest_method_x: Any, suggest_method_y: Any
    ) -> None:
        test = super().test_combination_of_different_distributions_objective
        test(sampler, suggest_method_x, suggest_method_y)

    @pytest.mark.parametrize(("second_low", "second_high"), [(20, 30)])
    def test_dynamic_range_objective(self, sampler: Any, second_low: int, second_high: int) -> None:
        super().test_dynamic_range_objective(sampler, second_low, second_high)


class TestRelative(RelativeSamplerTestCase):
    """The history has the distributions that a test samples from."""

    @pytest.fixture
    def sampler(self, request: pytest.FixtureRequest) -> Callable[[], BaseSampler]:
        given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
        if "y_distribution" in given:
            y = given["y_distribution"]
        elif "n_jobs" in given:
            y = FloatDistribution(-10, 10)
        else:
            y = CategoricalDistribution([-1, -10, -100])
        default = y if "n_jobs" in given else CategoricalDistribution([1, 10, 100])
        return _sampler(drawn_history({"x": given.get("x_distribution", default), "y": y}))

    @_paired(RelativeSamplerTestCase.test_sample_relative_numerical)
    def test_sample_relative_numerical(
        self, sampler: Any, x_distribution: Any, y_distribution: Any
    ) -> None:
        super().test_sample_relative_numerical(sampler, x_distribution, y_distribution)

    @pytest.mark.parametrize("x_distribution", [FloatDistribution(1e-7, 1.0, log=True)])
    def test_sample_relative_mixed(self, sampler: Any, x_distribution: Any) -> None:
        super().test_sample_relative_mixed(sampler, x_distribution)


class TestMultiObjective(MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return _sampler(drawn_history({"x": FloatDistribution(0, 1)}))
