from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.adversarial.compositions import followed_by, hedged, hedging_table, oracle_table

CURVES = {"plain GP": [1.0, 0.5, 0.0], "ScaML-GP": [0.0, 0.0, 0.0], "guarded": [0.25, 0.0, 0.0]}


def regrets(curves=CURVES, history="helpful"):
    index = [("branin", history, case, method) for case in ("0", "1") for method in curves]
    names = ["group", "history", "case", "method"]
    rows = [curves[method] for *_, method in index]
    return pd.DataFrame(rows, pd.MultiIndex.from_tuples(index, names=names), columns=[1, 2, 3])


def test_one_run_before_another():
    composed = followed_by(regrets(), "guarded", "plain GP", 1)
    assert composed.loc[("branin", "helpful", "0")].tolist() == [0.25, 0.25, 0.25]
    composed = followed_by(regrets(), "plain GP", "guarded", 2)
    assert composed.loc[("branin", "helpful", "1")].tolist() == [1.0, 0.5, 0.25]
    composed = followed_by(regrets(), "plain GP", "guarded", 0)
    assert composed.loc[("branin", "helpful", "1")].tolist() == CURVES["guarded"]


def test_random_evaluations_first():
    regret = regrets()
    assert hedged(regret, 0).loc[("branin", "helpful", "0", "guarded")].tolist() == [0.25, 0.0, 0.0]
    one = hedged(regret, 1)
    assert one.loc[("branin", "helpful", "1", "guarded")].tolist() == [1.0, 0.25, 0.0]
    two = hedged(regret, 2)
    assert two.loc[("branin", "helpful", "1", "guarded")].tolist() == [1.0, 0.5, 0.25]
    assert len(one) == len(regret)
    other = ("branin", "helpful", "1", "plain GP")
    assert one.loc[other].tolist() == regret.loc[other].tolist()


def test_tables():
    assert "| branin helpful: gain kept | 0.83 | 0.17 |" in hedging_table(regrets())
    assert "branin" not in oracle_table(regrets())


def test_what_a_rule_that_follows_at_first_could_reach():
    curves = {
        "plain GP": [0.5, 0.25, 0.0],
        "ScaML-GP": [0.9, 0.8, 0.7],
        "guarded": [0.9, 0.6, 0.0],
    }
    table = oracle_table(regrets(curves, "inverted"))
    values = [cell.split()[0] for cell in table.splitlines()[-1].split("|")[2:-1]]
    # 1.5, 0.9, 0.9 + 0.5 + 0.25 and 0.9 + 0.8 + 0.5, over 0.75.
    assert [float(value) for value in values] == pytest.approx([2.0, 1.2, 2.2, 2.93], abs=0.01)
