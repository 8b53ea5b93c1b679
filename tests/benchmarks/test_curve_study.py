"""Pruners in studies that replay recorded curves."""

import numpy as np
import pytest

pytest.importorskip("optuna")
pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks.curve_study import misleading_table, old_studies, stopping, stopping_table
from botorch_transfer.optuna.history import history_of


def test_misleading_histories_have_the_same_losses_elsewhere_or_turned():
    histories = ("right", "shuffled", "turned")
    right, shuffled, turned = (
        history_of(old_studies("gbm", "fair_affair", 0, history, count=2, runs=4)).runs
        for history in histories
    )
    np.testing.assert_array_equal(turned["value"], -right["value"])
    np.testing.assert_array_equal(np.sort(shuffled["value"]), np.sort(right["value"]))
    assert not shuffled["value"].equals(right["value"])
    assert shuffled.drop(columns="value").equals(right.drop(columns="value"))


def test_random_orders_are_the_same_for_all_pruners():
    found = stopping("gbm", "fair_affair", 0, 4, "right")
    whole = found.groupby("pruner")["stopped"].sum() == 0
    assert whole["none"]
    first = found[found["trial"] == 1].drop(columns="pruner").drop_duplicates()
    assert first["steps"].tolist() == [40]
    complete = found[found["pruner"] == "none"]
    assert complete["steps"].tolist() == [40, 80, 120, 160]
    assert complete["regret"].is_monotonic_decreasing
    assert "MedianPruner" in stopping_table(found)
    assert "| right" in misleading_table(found.assign(history="right"))
