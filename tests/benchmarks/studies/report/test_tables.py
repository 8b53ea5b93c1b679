import numpy as np
import pandas as pd
import pytest

from benchmarks.studies.metrics import complete, regrets
from benchmarks.studies.report.tables import (
    comparison_table,
    cost_table,
    mean_table,
    median_table,
    regret_table,
)
from tests.benchmarks.studies.report.test_curves import FRAME
from tests.benchmarks.studies.test_metrics import results


@pytest.fixture
def regret() -> pd.DataFrame:
    return regrets(FRAME, {})


def cells(table: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows}


def test_table_of_regrets(regret):
    assert regret_table(regret, at=(1, 3)).splitlines() == [
        "| method   | after 1 | after 3 |",
        "|:---------|--------:|--------:|",
        "| ScaML-GP |  1.5000 |  0.0000 |",
        "| plain GP |  1.5000 |  0.2500 |",
    ]


def test_table_with_evaluations_to_a_reference(regret):
    header, _, first, second = regret_table(regret, at=(3,), reference="ScaML-GP").splitlines()
    assert "evaluations to ScaML-GP's final value" in header
    assert [cell.strip() for cell in first.split("|")[3:5]] == ["3", "100%"]
    assert [cell.strip() for cell in second.split("|")[3:5]] == ["> 3", "0%"]


def test_means_have_errors_and_the_best_comes_first(regret):
    assert list(cells(mean_table(regret, at=(1, 3))))[2:] == ["ScaML-GP", "plain GP"]
    one = cells(mean_table(regret.loc[["one"]], at=(1, 3)))
    assert one["plain GP"] == ["1.500 ± 0.500", "0.250 ± 0.000"]


def test_medians_have_bands(regret):
    assert cells(median_table(regret, at=(1, 3)))["ScaML-GP"] == [
        "1.500 [1.000, 2.000]",
        "0.000 [0.000, 0.000]",
    ]


def test_comparison_with_a_reference():
    frame = results(
        {
            (problem, 0, method): values
            for problem in ("a", "b", "c")
            for method, values in (
                ("plain GP", [-4.0, -3.0, -2.0, -1.0]),
                ("fast", [-2.0, -1.0, 0.0, 0.0]),
                ("slow", [-5.0, -5.0, -5.0, -5.0]),
            )
        }
    ).assign(best_known=0.0)
    table = cells(comparison_table(complete(regrets(frame)), "plain GP"))
    assert table["fast"] == [
        "0.30 [0.30, 0.30]",
        "0.50",
        "0.00",
        "0%",
        "1.0",
        "1.0",
        "2",
        "100%",
        "2.0",
    ]
    assert table["plain GP"] == [
        "1.00 [1.00, 1.00]",
        "1.00",
        "1.00",
        "",
        "2.0",
        "2.0",
        "4",
        "100%",
        "1.0",
    ]
    assert table["slow"] == [
        "2.00 [2.00, 2.00]",
        "1.25",
        "3.33",
        "100%",
        "3.0",
        "3.0",
        "> 4",
        "0%",
        "0.0",
    ]


def test_costs_leave_the_first_step_apart():
    frame = pd.DataFrame(
        {
            "method": ["m"] * 3,
            "evaluation": [1, 2, 3],
            "suggest_seconds": [9.0, 1.0, 2.0],
            "cpu_seconds": [8.0, 0.5, np.nan],
        }
    )
    assert cells(cost_table(frame))["m"] == ["1.50", "0.50", "8.00"]
