import numpy as np
import pandas as pd
import pytest

from benchmarks.studies.statistics import critical_difference, friedman, ratios


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
    found = ratios(values, "plain")
    assert str(found["half"]) == "0.50 [0.50, 0.50]"
    low, high = found["noisy"].interval
    assert found["noisy"].value == pytest.approx(1.0)
    assert low < 0.95 < 1.05 < high
