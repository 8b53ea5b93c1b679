"""Which parameters matter."""

from __future__ import annotations

import pytest
from botorch.models import SingleTaskGP

from botorch_transfer import CategoricalParameter, FloatParameter, ScaMLGP, SearchSpace
from botorch_transfer.suggestion.importance import parameter_importance

SPACE = SearchSpace(
    [
        FloatParameter("a", 0.0, 1.0),
        FloatParameter("b", 0.0, 1.0),
        CategoricalParameter("c", ("x", "y")),
    ]
)


class Known(SingleTaskGP):
    """A posterior whose mean is a known function."""

    def posterior(self, X, **kwargs):
        posterior = super().posterior(X, **kwargs)
        posterior.distribution.loc = 3 * X[:, 0] + X[:, 1]
        return posterior


def test_shares_of_a_linear_function_are_its_squared_slopes():
    X = SPACE.encode(SPACE.sample(4, seed=0))
    found = parameter_importance(Known(X, X[:, :1], outcome_transform=None), SPACE)
    assert list(found.index[:2]) == ["a", "b"]
    assert found["this study"].to_dict() == pytest.approx({"a": 0.9, "b": 0.1, "c": 0}, abs=0.02)
    assert found["old tasks"].isna().all()


def test_old_tasks_count_alike_and_choices_as_a_whole():
    X = SPACE.encode(SPACE.sample(30, seed=0))
    sources = {"a": (X, X[:, :1]), "c": (X, X[:, 2:3]), "constant": (X, 0 * X[:, :1])}
    found = parameter_importance(ScaMLGP(X[:0], X[:0, :1], sources), SPACE)["old tasks"]
    assert found["a"] == pytest.approx(0.5, abs=0.1)
    assert found["c"] == pytest.approx(0.5, abs=0.1)
    assert found["b"] < 0.1
