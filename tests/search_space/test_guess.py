import json
import re

import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError

from botorch_transfer.datasets import OUTCOMES, load_tuning_history, tuning_search_space
from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
    guess_space,
)
from botorch_transfer.search_space.guess import usual_goal, warn_of_goal, warn_of_relations


@pytest.mark.parametrize("name", ["svm", "gbm", "mlp", "forest"])
def test_the_shipped_history_s_spaces(name):
    runs, space = load_tuning_history(name), tuning_search_space(name)
    guessed = guess_space(runs, leave_out=["space", "task", *OUTCOMES])
    assert set(guessed.columns) == set(space.columns)
    known = {parameter.name: parameter for parameter in space.parameters}
    for parameter in guessed.parameters:
        expected = known[parameter.name]
        assert type(parameter) is type(expected)
        assert parameter.active_if == expected.active_if
        if isinstance(parameter, FloatParameter | IntegerParameter):
            assert parameter.log == expected.log
            assert expected.lower <= parameter.lower < parameter.upper <= expected.upper
        else:
            assert set(parameter.values) == set(expected.values)
    assert guessed.encode(runs).shape == (len(runs), space.dim)


def test_kinds_of_columns():
    n = 40
    rng = np.random.default_rng(0)
    runs = pd.DataFrame(
        {
            "batch": rng.choice([16, 32, 64], n),
            "dropout": rng.choice([0.0, 0.3, 0.5], n),
            "flag": rng.random(n) < 0.5,
            "depth": rng.integers(1, 4, n),
            "lr": 10 ** rng.uniform(-4, -1, n),
            "kind": rng.choice(["a", "b"], n),
            "constant": 3.0,
            "id": [f"run {i}" for i in range(n)],
            "loss": rng.random(n),
        }
    )
    runs["extra"] = np.where(runs["kind"] == "b", rng.random(n), np.nan)
    space = guess_space(runs, leave_out=["loss"])
    assert list(space.parameters) == [
        OrdinalParameter("batch", (16, 32, 64), log=True),
        OrdinalParameter("dropout", (0.0, 0.3, 0.5)),
        CategoricalParameter("flag", (False, True)),
        IntegerParameter("depth", 1, 3),
        FloatParameter("lr", runs["lr"].min(), runs["lr"].max(), log=True),
        CategoricalParameter("kind", ("a", "b")),
        FloatParameter("extra", runs["extra"].min(), runs["extra"].max(), False, {"kind": "b"}),
    ]
    assert SearchSpace.from_dict(json.loads(json.dumps(space.to_dict()))) == space


@pytest.mark.parametrize("table", [None, {"a": [1]}])
def test_what_is_no_table_is_refused(table):
    with pytest.raises(InputDataError, match="give a pandas"):
        guess_space(table)
    with pytest.raises(InputDataError, match="The table has no rows"):
        guess_space(pd.DataFrame({"x": []}))


def test_a_table_without_parameters_is_refused():
    runs, message = pd.DataFrame({"a": [1, 1], "loss": [0.1, 0.2]}), "No column is left"
    with pytest.raises(InputDataError, match=rf"{message}.*Left out: 'a' never changes\.$"):
        guess_space(runs, leave_out=["loss"])
    with pytest.raises(InputDataError, match=rf"{message} as a parameter.*of each run\.$"):
        guess_space(runs, leave_out=["a", "loss"])


def test_decimal_commas_are_read_and_lists_stay(caplog):
    runs = pd.DataFrame({"time": ["9.5", "8.1", "9,9"], "layers": ["64,64", "32,32", "64,64"]})
    with pytest.raises(InputDataError, match="several columns 'time'"):
        guess_space(pd.concat([runs, runs], axis=1))
    time, layers = guess_space(runs).parameters
    assert (time.lower, time.upper) == (8.1, 9.9)
    assert layers.values == ("32,32", "64,64")
    assert caplog.messages == ["The column 'time' has '9,9' in row 2, which is read as 9.9."]
    with pytest.raises(InputDataError, match=r"'layers' is '64,32' .* is an unclear number"):
        guess_space(pd.DataFrame({"layers": ["64", "64,32", "128,64"] * 8}))
    levels = pd.DataFrame({"c": ["0,1", "0,25", "0,5"] * 8})
    assert guess_space(levels).parameters[0].values == (0.1, 0.25, 0.5)


DATES = "holds dates as numbers: if the column is a parameter, divide its numbers by 1e6"
SPLIT = "holds numbers and the text '{}': split the column into two"
N = np.arange(20)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (range(100, 120), "counts the rows"),
        (["Basel"] * 20, "never changes"),
        ([f"note {i}" for i in N], "hardly repeats"),
        ([f"1.{i}.3" for i in N], "hardly repeats"),
        ([1.0, np.inf] * 10, "never changes"),
        ([2**60 + 7 * i for i in range(20)], "has numbers above 2**53: use a larger unit"),
        (1.7e9 + 3600.0 * N, DATES),
        ((1_700_000_000_000 + 3_600_123 * N)[::-1], DATES),
        (20240501 + N % 19, DATES),
        (["2024-05-03", "2024-05-04"] * 10, "holds dates: write other text if they are choices"),
        (["ok"] * 9 + [""] * 5 + [f"at {i} h, then brown" for i in range(6)], "hardly repeats"),
        ([i / 7 if i % 5 else "scale" for i in N], SPLIT.format("scale")),
        ([str(i / 7) if i % 5 else "None" for i in N], SPLIT.format("None")),
        ([str(i / 7) if i % 5 else f"no {i}" for i in N], "hardly repeats"),
        ([f"lr={i / 7}" for i in N], "holds numbers after 'lr=': leave only the numbers"),
        ([f"[{i}, 0.5]" for i in N], "holds lists: give each number a column of its own"),
        ([{"C": i, "kind": "rbf"} for i in N], "holds dictionaries: expand them into columns by "),
        (['{"C": 1, "in": {"a": 2}}', '{"C": 2}'] * 10, "holds dictionaries: expand them "),
    ],
)
def test_what_is_no_parameter_is_told(cells, reason, caplog):
    runs = pd.DataFrame({"base": ["DBU", "MTBD", "BTMG in THF", "DBU"] * 5, "cells": cells})
    with caplog.at_level("INFO"):
        assert guess_space(runs.replace("", None)).columns == ["base"]
    assert caplog.messages[0].startswith(f"Columns that are left out: 'cells' {reason}")
    assert caplog.records[0].levelname == ("WARNING" if ": " in reason else "INFO")
    assert guess_space(pd.DataFrame({"count": range(100, 108)})).columns == ["count"]


def test_what_a_person_would_leave_out(caplog):
    n, rng = 60, np.random.default_rng(0)
    bases = {"DBU": ("6674-22-2", "C1CCC2=NCCCN2CC1"), "MTBD": ("8403-20-6", "CN1CCCN2CCCN=C12")}
    runs = pd.DataFrame({"Base_CAS": rng.choice([cas for cas, _ in bases.values()], n)})
    names = {cas: name for name, (cas, _) in bases.items()}
    runs["base"] = runs["Base_CAS"].map(names)
    runs["base SMILES"] = runs["base"].map(lambda name: bases[name][1])
    runs["base number"] = runs["base"].map({"DBU": 1, "MTBD": 2})
    runs["halide"] = np.repeat(["Cl", "Br", "I"], n // 3)
    runs["mass"] = np.repeat([112.6, 157.0, 204.0], n // 3)
    runs["Plate"], runs["rowID"], runs["started at"] = 1 + np.arange(n) // 30, range(n), "1.2.2024"
    runs["random_state"], runs["Fold 1"], runs["seed mass"] = range(n), 1 + np.arange(n) % 5, 0.5
    runs["day"] = [f"2024-05-{1 + i % 28:02} 10:30" for i in range(n)]
    runs["plate temperature"] = rng.uniform(20, 80, n).round(1)
    runs["time"] = [f"{minutes} min" for minutes in rng.integers(5, 60, n)]
    with caplog.at_level("INFO"):
        space = guess_space(runs.assign(loss=0.1, task=runs["halide"]), ["loss"], task="task")
    assert space.columns == ["base", "base number", "plate temperature", "time"]
    assert caplog.messages == [
        "Read as numbers: 'time' in min",
        "Columns that are left out: 'Base_CAS' has other names for the values of 'base'; "
        "'base SMILES' has other names for the values of 'base'; "
        "'halide' has one value in each task; 'mass' has one value in each task; "
        "'Plate' identifies a run; 'rowID' identifies a run; 'started at' identifies a run; "
        "'random_state' identifies a run; 'Fold 1' identifies a run; 'seed mass' never changes; "
        "'day' holds dates",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


@pytest.mark.parametrize("times", [1, 2, 3, 20])
def test_replicates_drop_no_parameter(times):
    rng = np.random.default_rng(0)
    names = ["temp", "minutes", "pH"]
    base = pd.DataFrame(rng.uniform(1, 100, (45, 3)).round(1), columns=names)
    base["task"] = np.repeat(["a", "b", "c"], 15)
    runs = pd.concat([base] * times, ignore_index=True)
    runs["yield"] = rng.uniform(0, 100, len(runs))
    assert guess_space(runs, task="task", outcome="yield").columns == names


@pytest.mark.parametrize("run", [None, "trial"])
def test_what_changes_within_a_run_is_no_parameter(run):
    rng = np.random.default_rng(0)
    runs = pd.DataFrame({"lr": rng.uniform(0, 1, 12), "trial": range(12)})
    rows = runs.loc[runs.index.repeat(5)].assign(epoch=[*range(5)] * 12)
    rows = rows.assign(gradient=rng.uniform(0, 1, 60), loss=rng.uniform(0, 1, 60))
    leave_out = [] if run else ["trial"]
    assert guess_space(rows, leave_out, outcome="loss", step="epoch", run=run).columns == ["lr"]


def test_columns_that_name_measures_statuses_or_codes(caplog):
    caplog.set_level("INFO")
    runs = pd.DataFrame({"kpi": ["time", "loss"] * 6, "task": np.repeat(["a", "b"], 6)})
    runs["base"], runs["status"] = ["0", "1"] * 3 + ["KOH", "NaH"] * 3, ["ok", "failed"] * 6
    runs["wait"], runs["x"] = [f"{k}m{k}s" for k in range(12)], range(0, 24, 2)
    assert guess_space(runs, task="task").columns == ["kpi", "base", "x"]
    text = "".join(caplog.messages)
    assert "'kpi' seems to name measures: give each measure a column" in text
    assert "'base' has numbers in task 'a', but words in other tasks: use the same words" in text
    assert "'status' has the status of runs; 'wait' holds durations: convert" in text


def test_numbers_that_grow_while_all_others_stay_may_be_steps(caplog):
    lr = np.repeat([0.1, 0.3, 0.2, 0.4] * 6, 5)
    assert len(guess_space(pd.DataFrame({"lr": lr, "cycle": [*range(5)] * 24})).columns) == 2
    assert "'cycle' may be the step of a learning curve: if it is, set step=" in caplog.text


def test_cells_that_are_no_numbers(caplog):
    cells = [str(10 * i) for i in range(24)]
    cells[::4] = ["#DIV/0!", "#####"] * 3
    assert isinstance(guess_space(pd.DataFrame({"T": cells})).parameters[0], IntegerParameter)
    cells[::4] = ["80-90"] * 6
    guess_space(pd.DataFrame({"T": cells, "u": [1.5, 2.5, 7.5] * 8}))
    assert "'T' has '80-90' in row 0 (and 5 more rows), which is no number" in caplog.text
    guess_space(pd.DataFrame({"batch": [1.024, 128, 256, 512] * 4}))
    assert "'batch' has 1.024 in row 0 (and 3 more rows), which may have a point" in caplog.text


def test_measures_are_no_parameters(caplog):
    rng = np.random.default_rng(0)
    runs = pd.DataFrame({"time": rng.uniform(1, 9, 20), "loss rate": rng.uniform(0, 1, 20)})
    names = "accuracy,fit_seconds,Conversion (%),val_loss,Test-Score,R2,predicted_std_memory"
    for name in f"{names},probability_of_improvement".split(","):
        runs[name] = rng.uniform(0, 1, 20)
    runs["y"] = runs["time"] ** 4
    runs["density"] = runs["y"] + rng.normal(0, 300, 20)  # ranks differ among small values
    assert guess_space(runs, outcome="y").columns == ["time", "loss rate", "density"]
    assert caplog.messages == [
        "Add 'time' to leave_out= if this column is an outcome: it correlates with 'y'",
        "Add 'loss rate' to leave_out= if it is measured in a run",
        "Add 'density' to leave_out= if this column is an outcome: it correlates with 'y'",
    ]


def test_an_empty_cell_is_one_of_many_choices(caplog):
    additives = np.array([*(f"additive {letter}" for letter in "abcdefghijklmnopqrstuvw"), None])
    runs = pd.DataFrame({"additive": np.resize(additives, 480), "loss": 0.1})
    assert runs["additive"].isna().mean() < 0.05
    with caplog.at_level("INFO"):
        assert guess_space(runs, ["loss"]).parameters[0].values[-1] == "none"
    assert "empty in 20 of 480 rows: these cells count as the choice 'none'" in caplog.text
    runs["additive"] = runs["additive"].fillna("additive a").where(runs.index > 3)
    assert "none" not in guess_space(runs, ["loss"]).parameters[0].values


def test_slips_of_a_log_are_told(caplog):
    n, rng = 60, np.random.default_rng(0)
    runs = pd.DataFrame({"baker": np.repeat(["Anna", "Ben"], n // 2)})
    runs["bake"] = [f"{minutes} min" for minutes in rng.integers(25, 56, n)]
    runs["proof"] = rng.uniform(4, 24, n).round(2).astype(str)
    runs.loc[7, "bake"], runs.loc[9, ["bake", "proof"]] = "40 minutes", "?"
    runs["notes"] = None
    runs.loc[[3, 8], "notes"] = "burnt", "too wet"
    with caplog.at_level("INFO"):
        space = guess_space(runs, task="baker")
    bake, proof = space.parameters
    assert isinstance(bake, IntegerParameter)
    assert isinstance(proof, FloatParameter)
    slip = "which is not a number: correct the cell, or empty it."
    assert caplog.messages == [
        f"The column 'bake' has '40 minutes' in row 7 (and one more row), {slip}",
        f"The column 'proof' has '?' in row 9, {slip}",
        "Read as numbers: 'bake' in min",
        "Columns that are left out: 'notes' identifies a run",
    ]


def test_spellings_that_differ_in_case_or_blanks(caplog):
    runs = pd.DataFrame({"cat": ["Pd", "pd ", "Ni", " Ni ", "Pd", "Ni"], "loss": 0.1})
    space = guess_space(runs, ["loss"])
    assert space.parameters == (CategoricalParameter("cat", ("Ni", "Pd", "pd")),)
    told = "Values of 'cat' differ only in spelling ('Pd' and 'pd'): use one spelling"
    assert caplog.messages == [told]
    assert space.place(runs).argmax(dim=1).tolist() == [1, 2, 0, 0, 1, 0]
    assert space.encode(runs).tolist() == space.place(runs).tolist()
    guess_space(pd.DataFrame({"amp": ["yes", "1", "no", "on"] * 2}))
    assert "('1' and 'on' and 'yes')" in caplog.messages[1]
    exact = SearchSpace([CategoricalParameter("cat", ("Ni", " Ni "))])
    assert exact.encode(runs[2:4]).tolist() == [[1, 0], [0, 1]]


def test_likely_slips_of_choices_are_told(caplog):
    slips = ["? THF", "n/a THF", "- THF", "Unknown THF", "TFH THF", "tolunee toluene"]
    others = ["- +", "none THF", "Na K", "SPhos XPhos", "MeOH EtOH", "DMA/THF THF/DMA", "N2O NO2"]
    for words in [*slips, *others, "DMF DMA", "K2CO3 Cs2CO3", "1:9 9:1"]:
        guess_space(pd.DataFrame({"cat": [words.split()[0], *[words.split()[1], "Pd"] * 5]}))
    assert [text.split("'")[3] for text in caplog.messages] == [text.split()[0] for text in slips]
    assert "in row 0, maybe instead of 'toluene': correct the cell" in caplog.text


def test_the_name_of_an_outcome_suggests_its_goal(caplog):
    names = ["Yield (%)", "testAccuracy", "roc-auc", "R2", "yield_loss", "scrap_rate"]
    assert [*map(usual_goal, [*names, "fee", "value"])] == ["max"] * 4 + ["min"] * 2 + [""] * 2
    for name in ("log_loss", "neg_log_loss", "accuracy"):
        warn_of_goal(name, 1.0)
    assert caplog.messages == [
        "'log_loss' is maximized, but the name suggests the opposite: correct goal="
    ]


def test_rows_may_share_labels(caplog):
    """As in tables that ``pandas.concat`` joins."""
    frame = pd.DataFrame({"task": "a", "x": range(6), "loss": [3, 1, 4, 1, 5, 9]})
    total = frame.tail(1).assign(task="Total", x=900)
    space = guess_space(pd.concat([frame, frame, total]), task="task", outcome="loss")
    assert space.parameters == (IntegerParameter("x", 0, 5),)
    assert "Task 'Total' in row 5 is named like a summary: drop rows" in caplog.text
    with pytest.raises(InputDataError, match="'task' has no value in row 3, so the run has no"):
        guess_space(frame.assign(task=["a", "b", "a", None, "b", "a"]), task="task")
    guess_space(frame.assign(task=list("aabbcc")).set_index("task"), outcome="loss")
    assert "'task' is a parameter: if this column has task names, give task=" in caplog.text


TEMPERATURES = np.random.default_rng(0).uniform(50, 150, 24).round(1)


@pytest.mark.parametrize("rows", [[3], [3, 7]])
@pytest.mark.parametrize("code", [-999, 999, 9999, 99999, -1, 1e30, 1200])
def test_codes_of_missing_values_do_not_stretch_a_range(code, rows, caplog):
    cells = TEMPERATURES.copy()
    cells[rows] = code
    (parameter,) = guess_space(pd.DataFrame({"T": cells})).parameters
    assert 50 <= parameter.lower < parameter.upper <= 150
    (message,) = caplog.messages
    assert re.search(r"'T' has .* in row 3.*, (which counts as missing: empty|far from)", message)


@pytest.mark.parametrize(
    "values",
    [
        *([10, 50, 100, 1000], [1, 10, 100, 999], [0.001, 0.01, 0.1, 1.0, 10.0, 1000.0]),
        *([-1.0, 0.0, 1.0], [-1, 1], [-1, 0, 1, 2, 3]),
        np.linspace(0, 999, 24),
        *(10.0 ** np.linspace(-5, 4, 24), 10.0 ** np.append(np.linspace(-4, -2, 23), 0.5)),
    ],
)
def test_ordinary_values_are_no_codes(values, caplog):
    column = np.resize(np.asarray(values), 24)
    (parameter,) = guess_space(pd.DataFrame({"n": column})).parameters
    ends = getattr(parameter, "values", None) or (parameter.lower, parameter.upper)
    assert (ends[0], ends[-1]) == pytest.approx((min(values), max(values)))
    assert not caplog.messages


def test_minus_one_may_mean_no_limit(caplog):
    runs = pd.DataFrame({"max_depth": [-1, 3, 5, 7, 8, 9] * 4})
    assert guess_space(runs).parameters[0].lower == -1
    (message,) = caplog.messages
    assert "'max_depth' has -1 in row 0 (and 3 more rows), which may mean a missing" in message


def test_zeros_on_a_logarithmic_scale_are_told(caplog):
    ordinary = [np.array([0.1, 1, 2, 9]), np.linspace(0.001, 5, 24)]
    for values in (*ordinary, 10.0 ** np.arange(-5, -1), 10 ** np.linspace(-5, 1, 24)):
        column = np.resize(values, 24) * (np.arange(24) % 6 > 0)
        assert not guess_space(pd.DataFrame({"l2": column})).parameters[0].log
    told = ["'l2' spans 3.0 decades but is 0", "'l2' spans 5.7 decades but is 0"]
    assert [text[:31] for text in caplog.messages] == told


@pytest.mark.parametrize("separator", [",", " ", "'"])
def test_unclear_numbers_are_refused(separator):
    cells = [f"1{separator}{100 + i}" for i in range(24)]
    for column in (cells, [*cells, 900]):
        with pytest.raises(InputDataError, match="is an unclear number: write a number as 1022"):
            guess_space(pd.DataFrame({"x": column}))


@pytest.mark.parametrize("kind", [float, bool])
def test_constant_sums_are_told(kind, caplog):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"T": rng.random(12), "task": ["u", "v"] * 6})
    if kind is bool:
        chosen = rng.permutation([0, 1, 2] * 4)
        parts = {name: chosen == i for i, name in enumerate(["a", "b 2", "c"])}
    else:
        parts = {"a": rng.random(12).round(3), "b 2": rng.random(12).round(3)}
        parts["c"] = 5 - parts["a"] - parts["b 2"]
    frame = frame.assign(**parts)
    space = guess_space(frame, task="task")
    assert all(parameter.log is False for parameter in space.parameters if parameter.is_numeric)
    (message,) = caplog.messages
    remedy = "replace these columns by one" if kind is bool else "add the constraint 'a + `b 2` + c"
    assert message.startswith(f"In all old runs, a + `b 2` + c == {1 if kind is bool else 5}, but")
    assert remedy in message
    caplog.clear()
    warn_of_relations(frame, space.parameters, ["a + `b 2` + c == 5"])
    warn_of_relations(frame.assign(c=rng.random(12)), space.parameters)
    warn_of_relations(frame[:7], space.parameters)  # too few runs to tell
    assert not caplog.messages


def test_linear_relations_are_told(caplog):
    rng = np.random.default_rng(0)
    T, p = rng.integers(20, 90, 12), rng.random(12)
    frame = pd.DataFrame({"T": T, "T_F": (1.8 * T + 32).round(), "p": p, "task": "u"})
    guess_space(frame, task="task")
    guess_space(frame.assign(T_F=T - 30 * p), task="task")
    guess_space(frame.assign(T_F=T - 30 * p + rng.normal(0, 5, 12)), task="task")
    told = " are linearly related in all old runs: leave out measurements and repeated quantities"
    found = [message.removesuffix(told) for message in caplog.messages]
    assert found == ["'T' and 'T_F'", "'T' and 'T_F' and 'p'"]
    guess_space(frame.assign(T_F=100 - T + rng.normal(0, 2, 12)), task="task")
    assert "'T_F' nearly follows 'T': add it to leave_out= if" in caplog.text


def test_dates_among_choices_are_told(caplog):
    guess_space(pd.DataFrame({"ratio": ["1:1", "2. Mai", "3-Feb"] * 4}))
    assert "has '2. Mai' (it looks like a date) in row 1 (and 7 more rows), maybe" in caplog.text


def test_columns_that_complement_one_another_are_told(caplog):
    T = np.linspace(1, 9, 8)
    first = pd.DataFrame({"T": T, "k": T[::-1] ** 2, "task": "a"})
    guess_space(pd.concat([first, first.rename(columns={"T": "temp"})]), task="task")
    assert "No row has both 'T' and 'temp': if both mean the same, use one name" in caplog.text


def test_a_measured_column_is_told(caplog):
    guess_space(pd.DataFrame({"T": [1.0, 2.0, 4.0], "weight_after_g": [7.0, 8.0, 9.0]}))
    assert "Add 'weight_after_g' to leave_out= if it is measured in a run" in caplog.text


def test_a_column_of_runs_is_no_column_of_tasks(caplog):
    guess_space(pd.DataFrame({"x": [1.0, 2.0, 4.0], "id": [7, 8, 9]}), task="id")
    assert "Each row has a 'id' of its own: does this column name runs, not" in caplog.text
