"""Candidates, fixed values, a first design, models by name, predictions."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    ScaMLGP,
    SearchSpace,
    predict,
    suggest,
)
from botorch_transfer.suggestion import search
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import maximize

pytestmark = pytest.mark.usefixtures("_brief_search")

BASE = CategoricalParameter("base", ("KOH", "NaOH", "Et3N"))
SPACE = SearchSpace([FloatParameter("temperature", 0, 100), IntegerParameter("load", 1, 9), BASE])


def loss(frame: pd.DataFrame) -> pd.Series:
    """Smallest at 40 degrees, a load of 4, and KOH."""
    best = (frame["temperature"] / 100 - 0.4) ** 2 + (frame["load"] - 4) ** 2 / 100
    return best + 0.1 * (frame["base"] != "KOH")


def old_runs() -> pd.DataFrame:
    runs = SPACE.sample(40, seed=0)
    return runs.assign(task=["a", "b"] * 20, loss=loss(runs))


HISTORY = old_runs()
STOCK = SPACE.sample(60, seed=3).assign(bottle=[f"no. {i}" for i in range(60)])
STOCK.index = pd.Index(range(100, 160))
FAST = {"model": ScaMLGP}


# ------------------------------------------------------------------------------------- candidates


@pytest.mark.parametrize("space", [SPACE, None])
def test_suggestions_are_rows_of_the_candidates(space):
    rows = suggest(space, HISTORY, candidates=STOCK, n=3, **FAST)
    pd.testing.assert_frame_equal(rows[STOCK.columns], STOCK.loc[rows.index])
    assert list(rows.columns[:4]) == [*SPACE.columns, "bottle"]
    assert rows.index.is_unique
    assert loss(rows).min() <= loss(STOCK).nsmallest(3).max()


def test_runs_are_not_offered_again_unless_repeats_are_welcome():
    few = STOCK.iloc[:3]
    runs = few[SPACE.columns].iloc[:2].assign(loss=[0.1, np.nan])
    (row,) = suggest(SPACE, HISTORY, runs, candidates=few, **FAST).index
    assert row == few.index[2]
    with pytest.raises(ValueError, match="all other rows are among the runs"):
        suggest(SPACE, HISTORY, runs, candidates=few, n=2, **FAST)
    again = suggest(SPACE, HISTORY, runs, candidates=few, n=3, repeats=True, **FAST)
    assert sorted(again.index) == list(few.index)


@pytest.mark.parametrize(
    ("stock", "message"),
    [
        (STOCK.assign(temperature=120.0), "In the candidates: Parameter 'temperature' is 120"),
        (STOCK.assign(base=None), "In the candidates: Parameter 'base' has no value in row 100"),
        (STOCK.assign(base="LiOH"), "In the candidates: Parameter 'base' is 'LiOH'"),
        (STOCK.drop(columns="load"), "no column 'load'"),
        (STOCK.iloc[:0], "candidates has no rows"),
    ],
)
def test_bad_candidates_are_one_sentence(stock, message):
    with pytest.raises(InputDataError, match=message):
        suggest(SPACE, HISTORY, candidates=stock)


def test_of_equal_candidates_the_first_counts(caplog):
    twice = pd.concat([STOCK.iloc[:2], STOCK.iloc[:2].assign(bottle="other")])
    with caplog.at_level(logging.WARNING):
        rows = suggest(SPACE, HISTORY, candidates=twice, n=2, **FAST)
    assert "Left out 2 candidates that repeat the parameter values of earlier rows" in caplog.text
    assert set(rows["bottle"]) == {"no. 0", "no. 1"}


def test_constraints_and_fixed_values_filter_candidates():
    asked = {"constraints": ["temperature <= 10 * load"], "fixed": {"base": "NaOH"}}
    rows = suggest(SPACE, HISTORY, candidates=STOCK, n=4, **asked, **FAST)
    assert (rows["temperature"] <= 10 * rows["load"]).all()
    assert (rows["base"] == "NaOH").all()
    bad = {"fixed": {"load": 4}, "constraints": ["temperature >= 101"]}
    with pytest.raises(ValueError, match="No candidate satisfies load = 4 and 'temperature"):
        suggest(SPACE, HISTORY, candidates=STOCK, **bad)


def test_the_best_row_of_a_long_table_is_found():
    space = SearchSpace([FloatParameter(f"x{i}", 0, 1) for i in range(4)])
    X = (region := Region(space, table=space.sample(9_000, seed=1))).candidates

    class Peak(search.AcquisitionFunction):
        def forward(self, X):
            return -(X - 0.3).abs().sum(dim=(-2, -1))

    peak, none = Peak(SingleTaskGP(X[:2], X[:2, :1])), X[:0]
    best = X[(X - 0.3).abs().sum(dim=-1).argsort()]
    for taken in (none, best[:3]):
        found = maximize(peak, region, taken, none, is_logarithm=True, seed=0)
        assert torch.equal(found, best[len(taken)])


# ------------------------------------------------------------------------------------------- fixed


def test_fixed_values_are_kept_and_old_runs_still_count():
    rows = suggest(SPACE, HISTORY, fixed={"temperature": 20, "base": "NaOH"}, n=2, **FAST)
    assert (rows["temperature"] == 20).all()
    assert (rows["base"] == "NaOH").all()
    assert abs(rows["load"][0] - 4) <= 1
    runs = rows[SPACE.columns].assign(loss=loss(rows))
    row = suggest(SPACE, HISTORY, runs, fixed={"load": 2}, **FAST)
    assert row["load"].item() == 2
    # All are fixed: one row is left, then none.
    every = {"temperature": 20, "load": 4, "base": "KOH"}
    last = suggest(SPACE, HISTORY, fixed=every, **FAST)[SPACE.columns]
    assert last.iloc[0].to_dict() == every
    with pytest.raises(ValueError, match="Too few rows are left"):
        suggest(SPACE, HISTORY, last, fixed=every, **FAST)


def test_fixed_values_may_have_a_unit():
    region = Region(SPACE, {"temperature": "20 °C", "base": "KOH", "load": "3"})
    assert region.fixed_columns == {0: 0.2, 1: 0.25, 2: 1, 3: 0, 4: 0}


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"temperature": 200}, r"200, outside of .* \[0, 100\]: .* range in the search space\.$"),
        ({"base": "koh"}, r"fixed values: .* is 'koh', not one of .* \(a similar value is 'KOH'\)"),
        ({"heat": 1}, "fixed names 'heat', which is not a parameter"),
        ({"temperature": None}, "fixed value of 'temperature' is None: omit 'temperature' from"),
    ],
)
def test_bad_fixed_values_are_one_sentence(fixed, message):
    with pytest.raises((InputDataError, ValueError), match=message):
        suggest(SPACE, HISTORY, fixed=fixed)


def test_fixed_values_are_not_changed():
    volume, kind = FloatParameter("v", 50, 150, step=5), CategoricalParameter("kind", ("a", "b"))
    space = SearchSpace([volume, kind, FloatParameter("m", 0, 1, active_if={"kind": "b"})])
    with pytest.raises(InputDataError, match="'v' is 62, not a multiple of its step 5: round"):
        Region(space, {"v": 62})
    with pytest.raises(ValueError, match="Fixed values make 'm' inactive: omit 'm' from fixed="):
        suggest(space, None, fixed={"m": 0.5, "kind": "a"})
    stock = pd.DataFrame({"v": [60, 62, 62, 60], "kind": [*"aabb"], "m": [None, None, 0.5, 0.2]})
    assert Region(space, {"v": 62}, table=stock).table.index.tolist() == [1, 2]
    assert Region(space, {"m": 0.5}, table=stock).table.index.tolist() == [0, 1, 2]


# -------------------------------------------------------------------------------------- no history


def test_a_first_campaign_needs_no_history():
    runs = pd.DataFrame()
    for _ in range(5):
        row = suggest(SPACE, None, runs)
        runs = pd.concat([runs, row[SPACE.columns].assign(loss=loss(row))], ignore_index=True)
        assert row["predicted_mean"].notna().item() == (len(runs) > 1)
        assert row["expected_improvement"].notna().item() == (len(runs) > 1)
    batch = suggest(SPACE, None, n=4)
    pd.testing.assert_frame_equal(batch[SPACE.columns], runs[SPACE.columns].iloc[:4])
    assert batch["temperature"].max() - batch["temperature"].min() > 40
    rows = suggest(None, None, candidates=STOCK, n=4)
    assert rows.index.isin(STOCK.index).all()
    assert rows.index.is_unique
    # The next campaign has these runs as its history.
    suggest(SPACE, runs.assign(task="first"), **FAST)


# ------------------------------------------------------------------------------------------ models


def test_models_have_names():
    runs = SPACE.sample(4, seed=9)
    runs = runs.assign(loss=loss(runs))
    by_name = suggest(SPACE, HISTORY, runs, model="SingleTaskGP")
    pd.testing.assert_frame_equal(by_name, suggest(SPACE, HISTORY, runs, model=SingleTaskGP))
    pd.testing.assert_frame_equal(by_name, suggest(SPACE, None, runs))
    with pytest.raises(ValueError, match="ScaMLGP learns from old runs"):
        suggest(SPACE, None, runs, model="ScaMLGP")


def test_sorted_takes_the_best_mean_rank():
    grid = SearchSpace([FloatParameter("x", 0, 1)]).sample(8, seed=0)
    tasks = [grid.assign(task=str(best), loss=(grid["x"] - best) ** 2) for best in (0.2, 0.4)]
    history = pd.concat(tasks)
    space = SearchSpace([FloatParameter("x", 0, 1)])
    ranks = history.groupby("task")["loss"].rank().groupby(history["x"]).mean()
    rows = suggest(space, history, model="sorted", candidates=grid, n=8)
    assert ranks[rows["x"]].is_monotonic_increasing
    assert rows["predicted_mean"].isna().all()
    near = suggest(space, history, rows[["x"]].iloc[:1], model="sorted")
    assert abs(near["x"].item() - rows["x"].iloc[0]) < 0.2
    assert near["x"].item() != rows["x"].iloc[0]


# ------------------------------------------------------------------------------------- predictions


def test_predictions_of_given_rows():
    rows = STOCK.head(5)
    # A limit on predictions would narrow them.
    options = {**FAST, "robust": False}
    table = predict(SPACE, HISTORY, None, rows, **options)
    pd.testing.assert_frame_equal(table[rows.columns], rows)
    assert np.corrcoef(table["predicted_mean"], loss(rows))[0, 1] > 0.5
    width = (table["predicted_95"] - table["predicted_5"]) / table["predicted_std"]
    np.testing.assert_allclose(width, 2 * 1.6448536, rtol=1e-6)
    np.testing.assert_allclose(table["predicted_50"], table["predicted_mean"])
    mirrored = HISTORY.assign(loss=-HISTORY["loss"])
    other = predict(SPACE, mirrored, None, rows, goal="max", **options)
    np.testing.assert_allclose(other["predicted_5"], -table["predicted_95"])
    with pytest.raises(InputDataError, match=r"In the rows to predict: .* no column 'load'"):
        predict(SPACE, HISTORY, None, rows.drop(columns="load"))
    with pytest.raises(InputDataError, match="In the rows to predict: The table is a dict"):
        predict(SPACE, HISTORY, None, rows.to_dict())
    with pytest.raises(ValueError, match="No model is fitted: give outcomes"):
        predict(SPACE, None, None, rows)
    with pytest.raises(ValueError, match="no rows to predict"):
        predict(SPACE, HISTORY, None, HISTORY[:0])


def test_rows_to_predict_may_have_units():
    rows = STOCK.head(3)
    number = SPACE.number_columns[0]
    written = rows.assign(**{number: [f"{value} mg" for value in rows[number]]})
    plain, found = (predict(SPACE, HISTORY, None, each, **FAST) for each in (rows, written))
    added = found.columns.drop(rows.columns)
    pd.testing.assert_frame_equal(found[added], plain[added])
    assert found[number].tolist() == written[number].tolist()


@pytest.mark.parametrize("log", [False, True])
def test_an_outcome_has_a_range(log):
    rows, options = STOCK.head(5), {"log": log, **FAST}
    wide = predict(SPACE, HISTORY, None, rows, outcome_range=(-1e6, 1e6), **options)
    free = predict(SPACE, HISTORY, None, rows, **options)
    np.testing.assert_allclose(wide["predicted_mean"], free["predicted_mean"], rtol=0.02)
    np.testing.assert_allclose(wide["predicted_std"], free["predicted_std"], rtol=0.1)
    low, high = 0.05, 0.12
    table = predict(SPACE, HISTORY, None, rows, outcome_range=(low, high), **options)
    for name in ("mean", "5", "50", "95"):
        assert table[f"predicted_{name}"].between(low, high).all()
    np.testing.assert_allclose(table["predicted_5"], free["predicted_5"].clip(low, high))
    row = suggest(SPACE, HISTORY, outcome_range=(low, high), **options)
    assert low <= row["predicted_mean"].item() <= high


# ------------------------------------------------------------------------------- batches and costs


@pytest.mark.parametrize("options", [{}, FAST])
def test_rows_of_a_batch_share_a_value(options):
    space = SearchSpace([FloatParameter("temp", 20, 80), IntegerParameter("n", 1, 9)])
    old = space.sample(20, seed=1).assign(task="a")
    old["loss"] = (old["temp"] - 50) ** 2 / 900 + (old["n"] - 4) ** 2 / 16
    rows = suggest(space, old if options else None, n=3, same_in_batch=["temp"], **options)
    assert rows["temp"].nunique() == 1
    assert rows["n"].nunique() == 3


def test_a_shared_value_has_enough_candidates(caplog):
    stock = pd.DataFrame({"temp": [20, 20, 50, 50, 50], "n": [1, 2, 1, 2, 3]})
    space = SearchSpace([OrdinalParameter("temp", (20, 50)), IntegerParameter("n", 1, 3)])
    rows = suggest(space, None, n=3, candidates=stock, same_in_batch=["temp"])
    assert rows["temp"].tolist() == [50] * 3
    tried = stock.iloc[[4]].assign(loss=0.5)
    options = {"candidates": stock, "same_in_batch": ["temp"]}
    with pytest.raises(ValueError, match=r"than 3 untried rows have the same values of 'temp'"):
        suggest(space, None, tried, n=3, **options)
    assert suggest(space, None, tried, n=2, **options)["temp"].nunique() == 1
    with pytest.raises(ValueError, match="same_in_batch names 'T', which is not a parameter"):
        suggest(space, None, n=2, same_in_batch=["T"])


def test_costs_decide_between_like_rows():
    runs = STOCK.head(6)
    runs = runs.assign(loss=loss(runs))
    stock = STOCK.iloc[6:40]
    first = suggest(SPACE, HISTORY, runs, candidates=stock.assign(price=1.0), cost="price", **FAST)
    dear = stock.assign(price=np.where(stock.index == first.index[0], 1e6, 1.0))
    other = suggest(SPACE, HISTORY, runs, candidates=dear, cost="price", **FAST)
    assert other.index[0] != first.index[0]
    assert other["price"].tolist() == [1.0]
    unknown = suggest(SPACE, HISTORY, candidates=dear, cost="price", **FAST)
    assert unknown.index[0] == suggest(SPACE, HISTORY, candidates=stock, **FAST).index[0]
    with pytest.raises(InputDataError, match=r"'price' has 0.0 .* is not a positive number"):
        suggest(SPACE, HISTORY, runs, candidates=stock.assign(price=0.0), cost="price", **FAST)
    with pytest.raises(ValueError, match="cost= is 'price', but candidates= has no such column"):
        suggest(SPACE, HISTORY, runs, candidates=stock, cost="price", **FAST)


def test_a_shared_parameter_stays_inactive():
    kind = CategoricalParameter("kind", ("a", "b"))
    child = FloatParameter("m", 0, 1, active_if={"kind": "b"})
    space = SearchSpace([kind, FloatParameter("x", 0, 1), child])
    for seed in range(4):
        rows = suggest(space, None, n=3, same_in_batch=["m"], seed=seed)
        assert rows["m"].nunique(dropna=False) == 1


def test_the_cost_is_no_parameter_of_a_guessed_space():
    stock = pd.DataFrame({"x": np.linspace(0, 1, 9), "price": np.linspace(1, 9, 9)})
    row = suggest(None, None, candidates=stock, cost="price")
    assert list(row.columns[:2]) == ["x", "price"]


@pytest.mark.parametrize("name", ["candidates", "fixed", "repeats", "cost", "n", "outcome_rang"])
def test_predict_refuses_arguments_without_effect(name):
    remark = " .a similar argument is 'outcome_range'." if name == "outcome_rang" else ""
    with pytest.raises(TypeError, match=f"predict does not use {name}={remark}: leave"):
        predict(SPACE, HISTORY, None, HISTORY, **{name: None})
