from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.adversarial.analysis import (
    areas,
    bootstrap,
    bounds_table,
    kept_gain,
    regret_table,
    relative_to_plain,
    scaled_regrets,
)
from benchmarks.studies import TableProblem

X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
Y = 10 * X
VALUES = {"plain GP": [0.0, 5.0, 10.0], "ScaML-GP": [10.0, 0.0, 0.0], "guarded": [7.5, 10.0, 0.0]}


def results():
    rows = []
    for case in ("0", "1", "2"):
        for method, values in VALUES.items():
            history = "none" if method == "plain GP" else "helpful"
            for evaluation, value in enumerate(values, start=1):
                rows.append(
                    {
                        "problem": f"branin {history} {case}",
                        "method": method,
                        "seed": 0,
                        "evaluation": evaluation,
                        "value": value,
                        "error": None,
                    }
                )
    return pd.DataFrame(rows)


PROBLEMS = [
    TableProblem(f"branin {history} {case}", X, Y)
    for case in range(3)
    for history in ("none", "helpful")
]


def test_regrets_are_shares_of_the_range_and_plain_counts_for_each_history():
    regret = scaled_regrets(results(), PROBLEMS)
    assert set(regret.index.get_level_values("history")) == {"helpful"}
    assert regret.loc[("branin", "helpful", "1", "plain GP")].tolist() == [1.0, 0.5, 0.0]
    assert regret.loc[("branin", "helpful", "2", "ScaML-GP")].tolist() == [0.0, 0.0, 0.0]


def test_areas_and_bounds():
    regret = scaled_regrets(results(), PROBLEMS)
    area = areas(regret)
    assert area.loc[("branin", "helpful", "0")].to_dict() == pytest.approx(
        {"plain GP": 0.5, "ScaML-GP": 0.0, "guarded": 0.25 / 3}
    )
    assert bootstrap(area, kept_gain) == pytest.approx((5 / 6,) * 3)
    assert bootstrap(area, relative_to_plain) == pytest.approx((1 / 6,) * 3)
    later = areas(regret, start=1)
    assert later["plain GP"].tolist() == [0.25] * 3


def test_cases_that_a_method_has_not_finished_are_left_out():
    table = results()
    missing = (table["problem"] == "branin helpful 1") & (table["method"] == "guarded")
    assert len(areas(scaled_regrets(table[~missing], PROBLEMS))) == 2


def test_bootstrap_resamples_pairs():
    generator = np.random.default_rng(1)
    base = generator.random(200)
    area = pd.DataFrame({"plain GP": base + 1.0, "guarded": 2 * (base + 1.0)})
    ratio, low, high = bootstrap(area, relative_to_plain)
    assert (ratio, low, high) == pytest.approx((2.0, 2.0, 2.0))
    area["guarded"] = 1.0 + generator.random(200)
    ratio, low, high = bootstrap(area, relative_to_plain)
    assert low < ratio < high
    assert high - low < 0.2


def test_tables():
    regret = scaled_regrets(results(), PROBLEMS)
    bounds = bounds_table(regret, 0)
    assert "0.17 [0.17, 0.17]" in bounds
    assert "0.83 [0.83, 0.83]" in bounds
    wide = regret.reindex(columns=range(1, 6)).ffill(axis=1)
    assert "after 5" in regret_table(wide)
