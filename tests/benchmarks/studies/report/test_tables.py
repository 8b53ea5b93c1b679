import pandas as pd

from benchmarks.studies.metrics import complete, regrets
from benchmarks.studies.report.tables import comparison_table, suite_table
from tests.benchmarks.studies.test_metrics import results


def cells(table: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows}


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
    expected = {
        "fast": "0.30 [0.30, 0.30]|0.50|0.00|0%|1.0|1.0|2|100%|2.0",
        "plain GP": "1.00 [1.00, 1.00]|1.00|1.00||2.0|2.0|4|100%|1.0",
        "slow": "2.00 [2.00, 2.00]|1.25|3.33|100%|3.0|3.0|> 4|0%|0.0",
    }
    assert {name: "|".join(table[name]) for name in expected} == expected


def areas_of(**runs: dict[str, list[float]]) -> pd.DataFrame:
    """One row a target, by suite and method."""
    rows = {
        (f"{suite}: t{target}", 0, method): value
        for suite, methods in runs.items()
        for method, values in methods.items()
        for target, value in enumerate(values)
    }
    table = pd.Series(rows).unstack(sort=False)
    return table.rename_axis(index=["problem", "seed"])


def test_suites_are_compared_on_paired_runs_and_groups_by_geometric_means():
    values = areas_of(
        svm={"plain GP": [0.4, 0.8], "ScaML-GP": [0.1, 0.2]},
        mlp={"plain GP": [0.5, 0.5, 0.1], "ScaML-GP": [0.5, 0.5]},
        rf={"plain GP": [0.2]},
    )
    groups = {"tuning": ["svm", "mlp", "aryl"], "validation": ["rf"]}
    found = cells(suite_table(values, "plain GP", groups))
    assert found["suite"] == ["ScaML-GP"]
    assert found["svm"] == ["0.25 ± 0.00"]
    assert found["mlp"] == ["1.00 ± 0.00"]  # the third target has not been run by both
    assert found["rf"] == [""]
    assert found["**tuning**"] == ["0.50 [0.50, 0.50] (2)"]
    assert "**validation**" not in found
    whole = cells(suite_table(values, "plain GP", {"both": ["svm", "mlp"]}))
    assert whole["**both**"] == ["0.50 [0.50, 0.50]"]
