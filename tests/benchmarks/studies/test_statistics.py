import numpy as np
import pandas as pd
import pytest

from benchmarks.studies.statistics import (
    Estimate,
    critical_difference,
    friedman,
    geometric_mean,
    mean_ranks,
    of_cases,
    ratio_of_means,
)


def test_ranks_are_shared_by_equals():
    values = pd.DataFrame({"c": [3.0, 5.0], "a": [1.0, 1.0], "b": [1.0, 2.0]})
    assert mean_ranks(values).to_dict() == {"a": 1.25, "b": 1.75, "c": 3.0}


def test_friedman_tells_order_from_chance():
    random = np.random.default_rng(0).random((40, 3))
    chance = pd.DataFrame(random, columns=list("abc"))
    assert friedman(chance) > 0.05
    assert friedman(chance + np.array([0.0, 1.0, 2.0])) < 1e-10
    assert friedman(chance[["a", "b"]]) == 1.0
    assert friedman(chance * 0) == 1.0


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_difference_is_that_of_the_tables(k, q):
    # Demsar 2006, Table 5.
    assert critical_difference(k, 30) == pytest.approx(q * np.sqrt(k * (k + 1) / 180), rel=1e-3)


def test_ratios_have_paired_intervals():
    size = np.random.default_rng(0).random(50) * 100
    values = pd.DataFrame({"plain": size, "half": size / 2, "noisy": size[::-1]})
    table = ratio_of_means(values, "plain")
    assert table.loc["half"].tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert table.loc["noisy", "ratio"] == pytest.approx(1.0)
    assert table.loc["noisy", "low"] < 0.95
    assert table.loc["noisy", "high"] > 1.05


def several_problems() -> pd.DataFrame:
    """Three problems that differ, fifty seeds each that hardly do."""
    noise = 1e-3 * np.random.default_rng(0).random(150)
    cases = pd.MultiIndex.from_product([["a", "b", "c"], range(50)], names=["problem", "seed"])
    good = np.repeat([0.5, 1.0, 2.0], 50) + noise
    return pd.DataFrame({"method": good, "plain": 1.0 + noise}, index=cases)


def test_seeds_are_no_new_problems():
    values = several_problems()
    row = ratio_of_means(values, "plain").loc["method"]
    assert row["ratio"] == pytest.approx(3.5 / 3, rel=1e-3)
    assert row["low"] < 0.7  # three problems may have been all like the first
    assert row["high"] > 1.7
    assert of_cases(values).index.tolist() == ["a", "b", "c"]
    one = values.loc[["a"]]
    assert of_cases(one) is one
    assert ratio_of_means(one, "plain").loc["method", "high"] < 0.51


def test_geometric_means_are_taken_draw_by_draw():
    estimates = [Estimate(0.5, np.array([0.5, 0.25])), Estimate(2.0, np.array([2.0, 1.0]))]
    mean = geometric_mean(estimates)
    assert mean.value == pytest.approx(1.0)
    assert mean.drawn == pytest.approx([1.0, 0.5])
    assert geometric_mean([*estimates, Estimate(0.0, np.zeros(2))]).value == 0.0
