import numpy as np
import pandas as pd
import pytest

from benchmarks.studies.development import report
from benchmarks.studies.development.report import (
    Curves,
    area,
    calibration_table,
    cost_table,
    ratio_table,
    regret_table,
    run_table,
    write_report,
)
from benchmarks.studies.development.results import CALIBRATION, REGRETS


def runs(suite: str, method: str, regrets: list[float], seconds: float = 1.0) -> pd.DataFrame:
    """One run a target, its regret constant but for the last step, which has none."""
    rows = [
        (suite, f"t{target}", 0, method, step, regret if step < 25 else 0.0, seconds, "abc")
        for target, regret in enumerate(regrets)
        for step in range(1, 26)
    ]
    names = ["suite", "target", "seed", "method", "step", "regret", "seconds", "revision"]
    return pd.DataFrame(rows, columns=names)


TABLE = pd.concat(
    [
        runs("svm", "gp", [0.4, 0.8], 2.0),
        runs("svm", "scaml", [0.1, 0.2]),
        runs("mlp", "gp", [0.5, 0.5, 0.1]),
        runs("mlp", "scaml", [0.5, 0.5]),
        runs("rf", "gp", [0.2]),
        runs("svm_flipped", "scaml", [0.8, 0.8]),
    ]
)


def cells(table: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {line[0]: line[1:] for line in lines}


def test_ratios_are_of_paired_runs_and_groups_geometric_means():
    found = cells(ratio_table(Curves.of(TABLE), "gp", area))
    assert found["suite"] == ["scaml"]
    assert found["svm"] == ["0.25 ± 0.00"]
    assert found["mlp"] == ["1.00 ± 0.00"]  # the third target has not been run by both
    assert "rf" not in found
    assert found["**tuning**"] == ["0.50 [0.50, 0.50] (2)"]
    assert found["**development**"] == ["0.50 [0.50, 0.50] (2)"]
    assert "**validation**" not in found


def test_a_misled_method_is_compared_with_the_plain_gp_on_the_same_pools():
    curves = Curves.of(TABLE)
    found = cells(ratio_table(curves, "gp", lambda regret: regret[10]))
    ratio, error = map(float, found["svm_flipped"][0].split(" ± "))
    assert ratio == pytest.approx(1.6 / 1.2, abs=0.01)
    assert error > 0.1
    assert found["**flipped**"][0].startswith("1.33 [1.00, 2.00] (1)")
    assert cells(run_table(curves))["svm_flipped"] == ["2", "2"]


def test_a_group_is_whole_when_all_its_suites_are_there():
    names = [suite.full_name for suite in report.GROUPS["tuning"]]
    table = pd.concat(
        [runs(name, method, [r]) for name in names for method, r in (("gp", 0.5), ("rgpe", 0.3))]
    )
    found = cells(ratio_table(Curves.of(table), "gp", area))
    assert found["**tuning**"] == ["0.60 [0.60, 0.60]"]
    assert found["**development**"] == ["0.60 [0.60, 0.60] (5)"]


def test_regrets_are_means_over_targets_then_suites():
    found = cells(regret_table(Curves.of(TABLE)))
    assert found["svm"] == ["0.600, 0.600, 0.000", "0.150, 0.150, 0.000"]
    gp = np.mean([0.6, np.mean([0.5, 0.5, 0.1])])
    assert found["**tuning**"] == [f"{gp:.3f}, {gp:.3f}, 0.000", "0.325, 0.325, 0.000"]
    assert found["**validation**"] == ["0.200, 0.200, 0.000", ""]


def test_calibration_has_medians_over_runs():
    rows = [("svm", 0, z, c) for z, c in ((1.0, 0.5), (3.0, 0.7), (9.0, 1.0))]
    rows += [("mlp", 5, 2.0, 0.25)]
    scores = pd.DataFrame(rows, columns=["suite", "points", "z", "covered"])
    found = cells(calibration_table(scores))
    assert found["svm"] == ["3.00, 70%", "", "", "", "", ""]
    assert found["mlp"] == ["", "", "", "2.00, 25%", "", ""]


def test_costs_are_sums_and_medians():
    table = TABLE.assign(seconds=np.where(TABLE["step"] == 1, 12.0, 2.0))
    found = cells(cost_table(table))
    assert found["gp"] == ["60.00", "12.00", "2.00", "0.10"]


def test_report_has_all_sections(tmp_path):
    with pytest.raises(ValueError, match=r"No run in .* is finished"):
        write_report(tmp_path)
    TABLE.to_csv(tmp_path / REGRETS, index=False)
    rows = [("svm", "t0", 0, "scaml", 0, 1.5, 0.8)]
    columns = ["suite", "target", "seed", "method", "points", "z", "covered"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / CALIBRATION, index=False)
    text = write_report(tmp_path)
    hours = TABLE["seconds"].sum() / 3600
    assert text.startswith(f"12 runs, {hours:.2f} core-hours, abc.")
    for title in ("over that of `gp`", "over that of `scaml`", "Misleading history", "10 and 25"):
        assert title in text
    assert "## Calibration of `scaml`" in text
    assert "## Calibration of `gp`" not in text
    assert "scaml" not in write_report(tmp_path, ["gp"]).replace("`scaml`", "")
