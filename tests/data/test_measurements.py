"""Cells, words and codes as people record them."""

import logging
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError
from pandas import DataFrame, Series

from botorch_transfer.data.measurements import FATE, Outcome, codes, error_column, measured, numbers

NAN = float("nan")


def read(cells: Any, sign: float = 1.0, **columns: Any) -> DataFrame:
    """Reads a table with the outcome ``y``."""
    table = DataFrame({"y": Series(cells, dtype=object), **columns})
    (frame,) = measured([table], [Outcome("y", sign)], task="task")
    return frame


# ------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *[(cell, 95.0) for cell in (">95", "≥ 95", ">= 95 %", "95+", "above 95", "More than 95")],
        *[(cell, 0.5) for cell in ("<0.5", "≤ .5", "<= 0.5", "=<5e-1", "less than .5", "up to .5")],
        *[(cell, 29.0) for cell in ("29*", "~29", "≈ 29", "ca. 29", "c. 29", "About 29", "29 †")],
        *[(cell, 29.0) for cell in ("29 (estimated)", "29 [a]", "29[2]", "29?", "~29*", "29 %")],
        *[(cell, -3.0) for cell in ("-3", "−3", "−3.0e0", "> −3", "−3*", "−3 ± 1")],
        *[(cell, 18.0) for cell in ("18 ± 2", "18±2 %", "18 +/- 2", "18 % ± 2 %", "18 +- 2 °C")],
        (40, 40.0),
        (" 40 ", 40.0),
    ],
)
def test_cells_with_a_number(cell, number):
    frame = read([cell])
    assert frame["y"].tolist() == [number]
    assert frame[FATE].tolist() == [""]


@pytest.mark.parametrize(
    ("fate", "cells"),
    [
        ("ended", ["n.d.", "N. D.", "trace", "-", "–", "?", "not measured", "< LOD", "late"]),
        ("failed", ["failed", "FAIL", "Failed: no memory", "no product", "crash", "N.R.", "oom"]),
        ("failed", [np.inf, -np.inf, "inf", "-Infinity", "Diverged!", "no reaction (2x)"]),
        ("", [None, NAN, "", "  ", "nan", "N/A", "none", "pending", "running", "TBD"]),
    ],
)
def test_cells_without_a_number(fate, cells):
    """Words mean that no outcome will come, and empty cells do not."""
    frame = read([*cells, 1.0])
    assert frame[FATE].tolist() == [fate] * len(cells) + [""]
    assert frame["y"].isna().tolist() == [True] * len(cells) + [False]


@pytest.mark.parametrize("cell", ["1,234", "1 or 3", "1/3", "20-30", "±2", "y 45", "ca. 1,3", [1]])
def test_text_with_digits_that_is_no_number_is_refused(cell):
    remark = " (maybe with a separator of thousands)" * (cell == "1,234")
    problem = (
        f"has {cell!r}{remark} in row 1, which has digits but is not a number: write one number"
    )
    with pytest.raises(InputDataError) as caught:
        read(["5", cell])
    told = f"The column 'y' {problem} with a decimal point, or empty the cell."
    assert str(caught.value) == told


def test_standard_errors_are_those_of_the_cells_or_of_a_column():
    cells = ["18 ± 2", "17", "1 ± 0.5 *", "n.d."]
    frame = read(cells)
    assert numbers(frame, error_column("y"))[[0, 2]].tolist() == [2.0, 0.5]
    assert error_column("y") not in read(["18", ">5"])
    table = DataFrame({"y": cells, "sem": ["~1", "0.5", "<2", ""]})
    (frame,) = measured([table], [Outcome("y", 1.0, noise="sem")])
    assert error_column("y") not in frame
    assert numbers(frame, "sem")[:3].tolist() == [1.0, 0.5, 2.0]


def test_units_of_numbers_and_errors():
    frame = read(["18 ± 2 g", "17000 mg", ">20 g", "19 g*"])
    assert frame["y"].tolist() == [18.0, 17.0, 20.0, 19.0]
    assert numbers(frame, error_column("y"))[0] == 2.0


@pytest.mark.parametrize("cells", [[], [1.0, 2.0], [1, 2], [None, None], [True, False]])
def test_tables_without_text_stay_as_they_are(cells, caplog):
    with caplog.at_level(logging.INFO):
        frame = read(cells)
    assert not caplog.messages
    np.testing.assert_array_equal(frame["y"], np.array(cells, dtype=float))
    assert (frame[FATE] == "").all()


def test_each_kind_is_named_once_with_task_and_row(caplog):
    table = DataFrame(
        {
            "task": ["a", "a", "b", "b", "b"],
            "y": ["n.d.", ">95", "29*", "<1", "failed"],
            "z": ["trace", "18 ± 2", "~3", ">7", "1"],
        },
        index=[10, 11, 12, 13, 14],
    )
    with caplog.at_level(logging.INFO):
        (frame,) = measured([table], [Outcome("y", 1.0), Outcome("z", -1.0)], task="task")
    assert sorted(caplog.messages) == [
        "Cells with a bound, such as <5, count as the number in the cell: 2 in 'y', as '>95' in "
        "row 11 of task 'a'; 1 in 'z', as '>7' in row 13 of task 'b'",
        "Marks such as * and ~ are ignored: 1 in 'y', as '29*' in row 12 of task 'b'; "
        "1 in 'z', as '~3' in row 12 of task 'b'",
        "Numbers after ± are standard errors: 1 in 'z', as '18 ± 2' in row 11 of task 'a'",
        "Runs count as failed if an outcome is a word such as failed: 1 in 'y', as 'failed' in row "
        "14 of task 'b'",
        "Words such as n.d. count as missing outcomes of runs that ended without failure: 1 in "
        "'y', as 'n.d.' in row 10 of task 'a'; 1 in 'z', as 'trace' in row 10 of task 'a'",
    ]
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert warned[0].startswith("Words such as n.d. count as missing outcomes")
    assert frame[FATE].tolist() == ["ended", "", "", "", "failed"]
    assert table["y"][11] == ">95"  # the argument isn't changed


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("sign", "bound", "cells"),
    [
        (-1.0, 5.0, {">5": True, "≥ 5": True, "5+": True, "<5": False, "5": False, "~5": False}),
        (-1.0, 5.0, {">3": False, "<3": False, ">6": True, "<6": True}),
        (1.0, 5.0, {"<5": True, "≤ 5.0": True, ">5": False, "5*": False, ">6": False, "<4": True}),
        (-1.0, 0.0, {">0": True, "<0": False, "0": False}),
        (1.0, -2.0, {"< -2": True, "> −2": False}),
    ],
)
def test_a_bound_on_the_violating_side_of_a_limit_violates_it(sign, bound, cells, log):
    if log and bound <= 0:
        bound = 4.0
        cells = {re.sub("[-−]?[02]", "4", cell): bad for cell, bad in cells.items()}
    limit = sign * (np.log(bound) if log else bound)
    (frame,) = measured([DataFrame({"y": [*cells]})], [Outcome("y", sign, limit=limit, log=log)])
    modelled = sign * (np.log(frame["y"]) if log else frame["y"])
    assert dict(zip(cells, modelled < limit - 1e-6, strict=True)) == cells
    assert np.abs(frame["y"] - numbers(read([*cells]), "y")).max() < 0.02 * max(abs(bound), 1)


# ------------------------------------------------------------------------------------------ status


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("failed", ["failed", "FAIL", "fail", "crash", "Crashed", "diverged", "timeout"]),
        ("failed", ["TrialState.FAIL", "failed: no memory", "Time-out", "OOM", "ERROR!", "killed"]),
        ("failed", ["fehlgeschlagen", "Échec", "no product", "out_of_memory", "KeyError.FAILED"]),
        ("ended", ["abandoned", "PRUNED", "TrialState.PRUNED", "canceled", "n.d.", "not measured"]),
        ("", ["COMPLETE", "TrialState.COMPLETE", "running", "pending", "", None, NAN, "Done."]),
    ],
)
def test_words_of_status_in_any_case(fate, words, caplog):
    frame = read([1.0] * len(words), status=Series(words, dtype=object))
    assert frame[FATE].tolist() == [fate] * len(words)
    assert frame["y"].isna().tolist() == [fate == "failed"] * len(words)
    told = f"with a status such as failed are ignored: {len(words)} in 'y', as 1.0 in row 0"
    assert [told in text for text in caplog.messages] == [True] * (fate == "failed")


@pytest.mark.parametrize("dtype", ["object", "category", "string"])
def test_empty_cells_of_status_of_any_type(dtype):
    status = Series(["ok", None, "failed"], dtype=dtype)
    assert read([1.0, 2.0, 3.0], status=status)[FATE].tolist() == ["", "", "failed"]


def test_an_unknown_word_of_status_is_warned_of_once(caplog):
    status = ["ok", "blue", "failed", "green", "blue"]
    frame = read([1.0, 2.0, 3.0, NAN, NAN], status=status, task=list("aabbb"))
    assert frame[FATE].tolist() == ["", "", "failed", "", ""]
    warned, _ = caplog.messages
    assert warned.startswith("The status has an unknown word in 3 rows, as 'blue' in row 1 of task")
    assert "write 'failed' if the run" in warned


def test_the_status_may_have_another_name_or_be_absent(caplog):
    table = DataFrame({"y": [1.0], "State": "done", "start state": "solid", "state": "failed"})
    table["notes"] = "planned"
    for status, fate in {"state": "failed", None: "", "status": ""}.items():
        (frame,) = measured([table], [Outcome("y", 1.0)], status)
        assert frame[FATE].tolist() == [fate]
    _, *warned = caplog.messages
    assert warned[0].startswith("'state' may be the status of runs: give status='state', or name")
    assert warned[1].startswith("'notes' may be the status of runs")


# ------------------------------------------------------------------------------------------- codes

UNIT = np.random.default_rng(0).random(20).round(3).tolist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([*UNIT, -999], [-999]),
        ([*UNIT, 9999, 9999], [9999]),
        ([*UNIT, 1e30], [1e30]),
        ([*UNIT, -99.99, -999.0, 1e30], [-999, 1e30]),  # the first is no usual code
        ([*UNIT, *[-77.0] * 3], [-77.0]),
        ([*UNIT, *[123.0] * 3, -999, -999], [-999, 123.0]),
        ([*UNIT, -1, -1], [-1]),
        ([0.1, 0.5, 0.3, 2147483647.0], [2147483647.0]),
        ([1.5, 2.5, 9.0, 3.4028234663852886e38, NAN, np.inf], [3.4028234663852886e38]),
    ],
)
def test_codes_are_usual_or_repeated_and_far_from_all_others(values, expected):
    assert codes(np.array(values, dtype=float)) == expected
    assert codes(-np.array(values, dtype=float)) == sorted(-code for code in expected if code != -1)


SEEDS = range(20)


@pytest.mark.parametrize(
    "values",
    [
        *([], [3.0], [5.0] * 30, [5.0, 999.0], [0.0, 1.0] * 20, [*[0.0] * 30, 1.0, 1.0]),
        *([*UNIT, -77.0, -77.0], [*UNIT, -1.0], [*(300 * np.array(UNIT)), 1000.0]),
        [*(1000 * np.array(UNIT)), 999.0, 999.0],
        *([999.0, 998.0, 1000.0, 997.0, 1000.0], [99.9, 99.99, 99.999, 50.0, 60.0]),
        [-1.0, -0.5, 0.5, -1.0, 0.2],
        *(10.0 ** np.arange(0, 6), 10.0 ** np.arange(-3, 6), np.repeat(10.0 ** np.arange(0, 9), 3)),
        [*10.0 ** np.arange(0, 4), *10.0 ** np.arange(0, 4)],
    ],
    ids=str,
)
def test_no_code_in_ordinary_outcomes(values):
    assert codes(np.array(values, dtype=float)) == []
    assert codes(-np.array(values, dtype=float)) == []


@pytest.mark.parametrize("decimals", [0, 2, 9])
@pytest.mark.parametrize("draw", ["standard_cauchy", "lognormal", "pareto", "standard_exponential"])
def test_no_code_in_heavy_tailed_outcomes(draw, decimals):
    options: dict[str, Any] = {"lognormal": {"sigma": 4.0}, "pareto": {"a": 0.7}}.get(draw, {})
    for seed in SEEDS:
        drawn = getattr(np.random.default_rng(seed), draw)(size=10 + 5 * seed, **options)
        assert codes(drawn.round(decimals)) == [], seed


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("code", [-999.0, 9999.0, 1e30])
def test_a_code_is_missing_and_on_the_bad_side_a_failure(sign, code, caplog):
    """It is looked for in all tables together, and outcome by outcome."""
    old = DataFrame({"task": "a", "y": [*UNIT, code], "z": [*UNIT, 5.0]})
    runs = DataFrame({"y": [0.5, code, NAN], "z": [0.1, 0.2, code]})
    outcomes = [Outcome("y", sign), Outcome("z", -sign)]
    old, runs = measured([old, runs], outcomes, task="task")
    fates = ["failed" if bad else "ended" for bad in (sign * code < 0, sign * code > 0)]
    assert old["y"].isna().tolist() == [False] * 20 + [True]
    np.testing.assert_array_equal(runs[["y", "z"]], [[0.5, 0.1], [NAN, 0.2], [NAN, NAN]])
    assert old[FATE].tolist() == [""] * 20 + fates[:1]
    assert runs[FATE].tolist() == ["", *fates]
    first, second = (text for text in caplog.messages if "far from all" in text)
    assert f"In the column 'y', the number {code:g} (as {code} in row 20 of task 'a') is" in first
    assert f"In the column 'z', the number {code:g} (as {code} in row 2) is far" in second
    for message, fate in zip((first, second), fates, strict=True):
        assert ("of a failed run" in message) == (fate == "failed")


def test_a_code_does_not_undo_a_failure():
    frame = read([*UNIT, 9999.0], status=["ok"] * 20 + ["failed"])
    assert frame[FATE].tolist() == [""] * 20 + ["failed"]


def test_outcomes_that_a_table_lacks_are_left_alone():
    table = DataFrame({"z": ["a", "b"]})
    frames = measured([None, table], [Outcome("absent", 1.0)])
    assert frames[0] is None
    pd.testing.assert_frame_equal(frames[1].drop(columns=FATE), table)
    assert frames[1][FATE].tolist() == ["", ""]


@pytest.mark.parametrize("name", ["y", "sem", "status"])
def test_columns_that_are_there_twice_are_refused(name):
    table = DataFrame([["1", "2"]], columns=[name, name])
    with pytest.raises(InputDataError, match=f"several columns '{name}': keep one"):
        measured([table], [Outcome("y", 1.0, noise="sem")])


def test_cells_of_a_categorical_column_are_read():
    column = Series([">95", "n.d.", "12"], dtype="category")
    (frame,) = measured([DataFrame({"y": column})], [Outcome("y", 1.0)])
    assert frame["y"].tolist()[::2] == [95.0, 12.0]
    assert frame[FATE].tolist() == ["", "ended", ""]


def test_a_negated_word_is_no_failure():
    assert read([1.0, 2.0], status=["error-free", "error: none"])[FATE].tolist() == ["", ""]


@pytest.mark.parametrize(
    ("cell", "failed"),
    [
        *[(cell, False) for cell in ("0.3 (error 0.1)", "0.2 (nr. 3)", "0.1 (no error)")],
        *[(cell, False) for cell in ("0.6 (not failed)", "0.5 [valid]")],
        *[(cell, True) for cell in ("0.4 (failed)", "12 failed", "5 min timeout")],
        *[(cell, True) for cell in ("crashed at epoch 5", "no product")],
    ],
)
def test_words_beside_a_number(cell, failed):
    frame = read([cell, "1"])
    assert (frame[FATE].iloc[0] == "failed") == failed
    assert frame["y"].isna().tolist() == [failed, False]


def test_minus_one_and_zero_may_mean_a_missing_outcome(caplog):
    for cells in ("-1 0 30 80", "-1 -1 0 2 80", "-1 -1 -3 30 80", "-1 -1 0 30 80", "-1 20 80"):
        measured([None, DataFrame({"y": cells.split()})], [Outcome("y", 1.0)])
    for cells, sign in (("-1 2 3", -1.0), ("-1 2 3", 1.0), ("-1 -2 3", -1.0)):
        measured([None, DataFrame({"y": cells.split()})], [Outcome("y", sign)])
    yields, losses = "0 0 7.5 8,0 0 1.5 80,0 7.5 8,0 0 1 2 3 4", "0 0 7.5 8,0 0 0 .02 .1 .12 .15"
    for sign, given in ((1.0, yields), (-1.0, losses)):
        for cells in given.split(","):
            measured([None, DataFrame({"y": cells.split()})], [Outcome("y", sign)])
    told = "which may mean a missing outcome: if so, empty the cell."
    old = DataFrame({"y": np.linspace(0.1, 80, 11)})
    measured([old, DataFrame({"y": [0, 0, 3.0]})], [Outcome("y", -1.0)])
    measured([old, DataFrame({"y": [7, 71, 72, 73, 74, 75, 76.0]})], [Outcome("y", 1.0)])
    measured([DataFrame({"y": [1.25, 2.125, 300.0, 900.0]})], [Outcome("y", 1.0)])
    two, one = "row 0 (and one more row)", "row 0"
    zeros = [f"0.0 in {rows}" for rows in (two, two, "row 0 (and 2 more rows)", two)]
    rows = (f"-1.0 in {two}", *[f"-1.0 in {one}"] * 2, *zeros)
    *found, series, last = caplog.messages
    assert found == [f"The column 'y' has {row}, {told}" for row in rows]
    assert "has 76.0 in row 6, which continues steps by 1" in series
    assert "has 1.25 in row 0 (and one more row), which may have a point as" in last
