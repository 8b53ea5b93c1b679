import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from ax.adapter.data_utils import ExperimentData
from ax.api.client import Client
from botorch.exceptions.warnings import InputDataWarning

from botorch_transfer.ax.adapter import StandardizeByHistory, TransferAdapter
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.ax_experiments import experiment_of

Columns = dict[str, list[float]]
#: Old outcomes with the mean 10 and the standard deviation 2.
KNOWN = {"loss": [8.0, 10.0, 12.0]}


def _data(columns: Columns) -> ExperimentData:
    trials = range(len(next(iter(columns.values()), [])))
    arms = [f"{trial}_0" for trial in trials]
    index = pd.MultiIndex.from_arrays([[*trials], arms], names=["trial_index", "arm_name"])
    mean = pd.DataFrame(columns, index=index)
    frame = pd.concat({"mean": mean, "sem": mean * 0 + 2.0}, axis=1)
    return ExperimentData(arm_data=pd.DataFrame(index=index), observation_data=frame)


Standardized = Callable[..., tuple[StandardizeByHistory, pd.DataFrame]]


@pytest.fixture
def standardized(make_client: Callable[..., Client]) -> Standardized:
    """Standardizes outcomes of an experiment with a history: the transform, and what it makes."""

    def make(
        columns: Columns,
        old: Columns = KNOWN,
        objective: str = "-loss",
        constraints: Sequence[str] = ("cost <= 9",),
        robust: bool = True,
    ) -> tuple[StandardizeByHistory, pd.DataFrame]:
        client = make_client(objective=objective, constraints=constraints)
        frame = pd.DataFrame(old)
        history = TransferHistory.from_frame(frame.assign(task=frame.index % 4))
        told = replace(history, robust=robust)
        adapter = SimpleNamespace(history=told, _experiment=experiment_of(client))
        adapter.history_moments = lambda: TransferAdapter.history_moments(adapter)
        data = _data(columns) if columns else ExperimentData(pd.DataFrame(), pd.DataFrame())
        transform = StandardizeByHistory(experiment_data=data, adapter=adapter)
        return transform, transform.transform_experiment_data(data).observation_data

    return make


def test_outcomes_are_standardized_by_the_history_where_there_is_one(standardized: Standardized):
    columns = {"loss": [12.0, 14.0], "score": [1.0, 3.0], "cost": [5.0, 9.0]}
    _, found = standardized(columns, objective="-loss, score")
    assert found["mean", "loss"].tolist() == [1.0, 2.0]
    assert found["sem", "loss"].tolist() == [1.0, 1.0]
    for name in ("score", "cost"):
        own = np.array(columns[name])
        np.testing.assert_allclose(found["mean", name], (own - own.mean()) / own.std(ddof=1))


def test_infinite_outcomes_count_as_missing(standardized: Standardized):
    columns = {"loss": [12.0, np.inf], "cost": [5.0, -np.inf], "time": [np.inf, np.nan]}
    _, found = standardized(columns)
    np.testing.assert_array_equal(found["mean"], [[1.0, 0.0, np.nan], [np.nan, np.nan, np.nan]])


def test_there_is_a_scale_before_any_outcome(standardized: Standardized):
    transform, found = standardized({})
    assert transform.Ymean == {"loss": 10.0}
    assert transform.Ystd == {"loss": 2.0}
    assert found.empty


# ------------------------------------------------------------------------------ very bad outcomes

OLD = np.random.default_rng(0).normal(10.0, 2.0, 100).tolist()
OWN = [9.0, 12.0, 10.0]


@pytest.mark.parametrize("goal", ["min", "max"])
@pytest.mark.parametrize("where", ["old", "own"])
@pytest.mark.parametrize("bad", [123.0, 1e3, 87_654.0, 1e30])
def test_a_diverged_outcome_hardly_changes_the_others(
    standardized: Standardized, goal: str, where: str, bad: float
):
    """A code is missing; another value counts as just bad."""
    sign = 1 if goal == "min" else -1

    def outcomes(old: list[float], own: list[float], robust: bool = True) -> np.ndarray:
        given = {"old": {"loss": [sign * y for y in old]}, "robust": robust}
        _, found = standardized(
            {"loss": [sign * y for y in own]}, objective="-loss" if sign > 0 else "loss", **given
        )
        return found["mean", "loss"].to_numpy()

    clean = outcomes(OLD, OWN)
    diverged = ([*OLD, bad], OWN) if where == "old" else (OLD, [*OWN, bad])
    found = outcomes(*diverged)
    np.testing.assert_allclose(found[:3], clean, atol=0.25)
    if where == "own" and bad not in (1e3, 1e30):
        assert 2 < sign * found[3] < 6
        unlimited = outcomes(*diverged, robust=False)[3]
        assert sign * unlimited == pytest.approx((bad - np.mean(OLD)) / np.std(OLD, ddof=1))
    elif where == "own":
        assert np.isnan(found[3])
    else:
        unlimited = outcomes(*diverged, robust=False)
        assert np.isclose(unlimited, clean, atol=0.25).all() == (bad in (1e3, 1e30))


def test_codes_are_missing_whatever_the_goal(standardized: Standardized, caplog):
    with caplog.at_level(logging.WARNING, logger="botorch_transfer"):
        transform, found = standardized({"loss": [*OWN, -999.0]}, {"loss": [*OLD, -999.0, -999.0]})
    assert found["mean", "loss"].isna().tolist() == [False, False, False, True]
    assert transform.Ymean["loss"] == pytest.approx(np.mean(OLD))
    told = "In the column 'loss', the number -999 (as -999.0 in row 100 of task '0') is"
    assert caplog.text.count(told) == 1
    with pytest.warns(InputDataWarning, match="'loss' seems to have negative values in this study"):
        standardized({"loss": [-12.0, -14.0]}, {"loss": OLD})
    with pytest.warns(InputDataWarning, match=r"'loss' of the trials is far .*divided by 100 it"):
        standardized({"loss": [900.0, 1000.0, 1100.0]}, {"loss": OLD})
    with pytest.warns(InputDataWarning, match="No run satisfies the limit 9 of 'cost'"):
        standardized({}, {"loss": OLD, "cost": [100 + each for each in OLD]})


@pytest.mark.parametrize(("constraint", "sign"), [("cost <= 9", 1.0), ("cost >= -9", -1.0)])
@pytest.mark.parametrize("old", [{"loss": OLD, "cost": OLD}, {"loss": OLD}])
def test_constraints_are_limited_on_the_violating_side(
    standardized: Standardized, constraint: str, sign: float, old: Columns
):
    """A limit beyond the outcomes leaves all as they are."""
    if sign < 0:
        old = {name: [-y for y in values] for name, values in old.items()}
    own = [5.0, 8.0, 9.0, 10.0, -30.0, 4321.0]
    cost = [sign * y for y in own]

    def values(constraint: str) -> np.ndarray:
        transform, found = standardized({"cost": cost}, old, constraints=[constraint])
        return sign * (found["mean", "cost"] * transform.Ystd["cost"] + transform.Ymean["cost"])

    np.testing.assert_allclose(values(constraint)[:5], own[:5])
    assert 10.0 < values(constraint).iloc[5] < 400.0
    np.testing.assert_allclose(values(constraint.replace("9", "5000")), own)


def test_metrics_without_a_direction_are_not_limited(standardized: Standardized):
    transform, found = standardized({"loss": [9.0, 10.0], "time": [1.0, 2.0]}, constraints=())
    assert "time" not in transform.goals or transform.goals["time"].sign == 0
    assert found["mean", "time"].notna().all()
