"""Pruners in studies that replay recorded curves."""

import pytest

pytest.importorskip("optuna")
pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks.curve_study import misleading_table, stopping, stopping_table


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
