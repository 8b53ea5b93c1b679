"""Reading tables: runs that are done, failed or pending, and what cannot be understood."""

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from pandas import DataFrame

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
    SourceGPs,
    from_dataframe,
    suggest,
)
from botorch_transfer.data.measurements import Outcome
from botorch_transfer.memo import Memo
from botorch_transfer.suggestion import read_outcomes, read_study, reading
from botorch_transfer.suggestion.next_rows import predict_rows
from botorch_transfer.suggestion.reading import read_tables
from botorch_transfer.suggestion.region import Region
from tests.suggestion.test_next_rows import HISTORY, LR, SPACE


def test_runs_are_done_failed_or_pending():
    runs = SPACE.sample(6, seed=3)
    runs["loss"] = [np.inf, 2.0, np.nan, np.inf, 1.0, 3.0]
    runs["status"] = [None, "ok", "running", "", "OK", " Crashed"]
    read = read_study(SPACE, None, runs).runs
    assert torch.equal(read.X, SPACE.encode(runs.iloc[[1, 4]]))
    assert read.Y[read.succeeded].flatten().tolist() == [-2.0, -1.0]
    assert torch.equal(read.good, SPACE.encode(runs.iloc[[1, 4]]))
    assert torch.equal(read.failed, SPACE.encode(runs.iloc[[0, 3, 5]]))
    assert torch.equal(read.waiting, SPACE.encode(runs.iloc[[2]]))
    assert len(read.ended) == 0
    read = read_study(SPACE, None, runs.assign(status="abandoned")).runs
    assert torch.equal(read.ended, SPACE.encode(runs.iloc[[2]]))
    assert len(read.waiting) == 0


def test_a_renamed_column_may_be_the_noise():
    history = HISTORY.assign(err=0.1)
    tables = read_study(SPACE, history, noise="sem", rename={"err": "sem"})
    tasks = tables.sources["loss"].values()
    assert {float(task.Yvar.mean().round(decimals=6)) for task in tasks} == {0.01}
    assert "sem" not in history


RUNS = SPACE.sample(2, seed=0).assign(loss=[0.2, 0.3])
NAMED = {"history": HISTORY.assign(s=1.0)}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"space": ["lr"]}, TypeError, "takes a list of parameters, not 'lr': give a list"),
        ({"history": "runs.csv"}, TypeError, "history is 'runs.csv': give one DataFrame"),
        ({"runs": [1]}, TypeError, r"runs is \[1\]: give one"),
        ({"prior": 3}, ValueError, "Both a history and a prior are given"),
        ({"history": None, "prior": "file"}, TypeError, "outcome 'loss': load a prior by Source"),
        ({"n": 0}, ValueError, "n is 0"),
        ({"n": 10**6}, ValueError, "n is 1000000: give a whole number from 1 to 1000"),
        ({"task": "depth"}, ValueError, "'depth' is both a parameter and the column of task="),
        ({"goal": {"loss": "min"}}, TypeError, "goal is {'loss': 'min'}: use 'max' or 'min'"),
        ({"model": "GP"}, ValueError, "There is no model 'GP': choose one of"),
        ({"space": None}, TypeError, "or give candidates="),
        ({"history": None, "model": "sorted"}, ValueError, "sorted learns from old runs: give"),
        ({"model": 3}, TypeError, "model is of the type int: give a model class"),
        ({"goal": "less"}, ValueError, "goal is 'less'"),
        ({"goal": ["min", "max"]}, ValueError, "1 outcomes and 2 goals"),
        ({"outcome": []}, ValueError, "0 outcomes and 0 goals: give each outcome a goal"),
        ({"outcome": {"loss", "u"}}, TypeError, "outcome is .*: give a name, or a list of names"),
        ({"outcome": {"loss": "min"}}, TypeError, "outcome is {'loss': 'min'}: give a name, or"),
        ({"constraints": ["5 >= u"]}, ValueError, "'u', which is not a parameter .a limit on an"),
        ({"constraints": {"u <= 5"}}, TypeError, "constraints is {'u <= 5'}: give a list"),
        ({"outcome": "ee (%)"}, ValueError, r"The name 'ee \(%\)' suggests that large values"),
        ({"outcome": "los"}, InputDataError, r"no column 'los' \(a similar column is 'loss'\)"),
        ({"task": "tasks"}, InputDataError, r"no column 'tasks' \(a similar column is 'task'\)"),
        ({"outcome": "depth"}, ValueError, "'depth' is both a parameter and an outcome: use"),
        ({"step": "depth"}, ValueError, "'depth' is both a parameter and the column of step="),
        ({"step": "loss"}, ValueError, "'loss' is both an outcome and the column of step="),
        ({"status": "loss"}, ValueError, "'loss' is both an outcome and the column of status="),
        ({"cache": 5}, TypeError, "cache is 5: give a path"),
        ({"constraints": {"memory": "5"}}, ValueError, "write it as '<= 5'"),
        ({"constraints": {"depth": "<= 5"}}, ValueError, "narrow its range in the search space"),
        ({"constraints": {"loss": "<= 5"}}, ValueError, "'loss' is named twice"),
        ({"outcome": ["loss", "loss"]}, ValueError, "'loss' is named twice: name it once"),
        ({"noise": "sem"}, InputDataError, "No table has the column 'sem'"),
        ({"noise": {"memory": "sem"}}, ValueError, "'memory', not an outcome"),
        ({"noise": "sem", "outcome": ["loss", "depth"]}, ValueError, "noise is 'sem' for 2"),
        ({"missing": {"wd": 3}}, ValueError, "missing= names 'wd'"),
        ({"runs": RUNS.rename(columns={"depth": "dept"})}, InputDataError, "a column 'dept'"),
        ({"log": "size"}, ValueError, "log names 'size', not an outcome"),
        ({"constraints": {"u": ">= 0"}, "log": ["u"]}, ValueError, "'u' has the limit 0, but"),
        ({"runs": RUNS.assign(loss=[0.5, "12 or 13"])}, InputDataError, "In the runs: .* in row"),
        ({"runs": RUNS.assign(loss=-1.0), "log": True}, InputDataError, "In the runs: .* -1.0 in"),
        ({"runs": RUNS.assign(depth=20)}, InputDataError, "In the runs: Parameter 'depth' is 20"),
        ({"runs": RUNS.rename(columns={"loss": "Loss "})}, InputDataError, "a column 'Loss '"),
        ({"runs": RUNS.assign(e=[0.1, -0.2]), "noise": "e"}, InputDataError, "'e' has -0.2 in row"),
        ({"history": HISTORY.assign(loss=np.nan)}, InputDataError, "No run has a finite outcome"),
        (
            {"history": HISTORY.assign(depth="2 h"), "runs": RUNS.assign(depth="2 min")},
            InputDataError,
            "'depth' has the unit 'h' in the history, but 'min' in the runs: convert all numbers",
        ),
        ({"runs": RUNS.assign(depth="2 C"), "fixed": {"depth": "2 K"}}, InputDataError, "the fix"),
        ({"noise": 2.0}, TypeError, "noise is 2.0: give the name of the column"),
        ({"outcome": None}, TypeError, "outcome is None: give a name"),
        ({"step": ["epoch"]}, TypeError, r"step is \['epoch'\]: give the name of one column"),
        ({"step": "epoch"}, InputDataError, "No table has the column 'epoch': .* for step="),
        ({"runs": RUNS.assign(e=1), "step": "e", "run": "r"}, InputDataError, "'r': .* for run="),
        ({"repeats": "no"}, TypeError, "repeats is 'no': use True or False"),
        ({"seed": "a"}, TypeError, "seed is 'a': give a whole number"),
        ({"seed": -1}, ValueError, "seed is -1: give a whole number"),
        ({"same_in_batch": 3}, TypeError, "same_in_batch is 3: give a name"),
        ({"constraints": 3}, TypeError, "constraints is 3: give a list"),
        ({"constraints": "x <= 1"}, TypeError, "'x <= 1': put the constraint into a list"),
        ({"fixed": ["x"]}, TypeError, "give a dictionary with names as keys"),
        ({"space": None, "candidates": DataFrame({"x": [1]})}, InputDataError, "No column is in"),
        (
            {"space": None, "runs": RUNS[["lr"]], "candidates": RUNS},
            InputDataError,
            "has no column 'depth'",
        ),
        ({"log": None}, TypeError, "log is None: use True or False"),
        ({"outcome_range": 3}, ValueError, "outcome_range of 'loss' is 3"),
        ({"outcome_range": ("0", "1")}, ValueError, "outcome_range of 'loss' is"),
        ({"runs": RUNS.assign(depth=pd.Timestamp("2020"))}, InputDataError, "not a number"),
        ({"runs": RUNS.assign(e=np.inf), "noise": "e"}, InputDataError, "inf in .* not a standard"),
        ({"missing": {"depth": "2 m"}}, ValueError, "invalid value '2 m': give a number without"),
        ({"constraints": ["u <= 5", "u >= 3"]}, ValueError, "'u' has two limits: give one"),
        ({**NAMED, "runs": RUNS.assign(S=1), "noise": "s"}, InputDataError, "runs may be 'S'"),
        ({**NAMED, "runs": RUNS.assign(Iter=1), "step": "s"}, InputDataError, "may be 'Iter'"),
        ({"history": None, "prior": {"Loss": 3}}, TypeError, r"outcome 'loss' in \['Loss'\]: load"),
        ({"fixed": {"depth": [1, 2]}}, InputDataError, r"'depth' is \[1, 2\]: give one value"),
        ({"candidates": RUNS.rename(columns={"lr": "LR "})}, InputDataError, "column is 'LR '"),
        ({"history": RUNS, "runs": HISTORY}, InputDataError, "exchange the two tables"),
    ],
)
def test_errors_are_one_sentence(arguments, kind, message):
    with pytest.raises(kind, match=message) as caught:
        suggest(**{"space": SPACE, "history": HISTORY, **arguments})
    assert "\n" not in str(caught.value)


def test_small_outcomes_are_good_unless_the_name_hints_at_the_opposite(caplog):
    assert [o.goal for o in read_outcomes(["loss", "value", "val_error"])] == ["min"] * 3
    assert [o.goal for o in read_outcomes(["loss", "ee"], ["max", "min"])] == ["max", "min"]
    assert caplog.messages == [
        "Small values of value count as good: give goal='max' to maximize",
        "'loss' is maximized, but the name suggests the opposite: correct goal=",
    ]


@pytest.mark.parametrize(
    ("name", "values", "within"),
    [
        ("yield", [35, 80.5], (0.0, 100.0)),
        ("ee (%)", [3, 99], (0.0, 100.0)),
        ("yield", [0.35, 0.8], None),
        ("yield", [35, 104], None),
        ("temperature", [35, 80], None),
        ("yield", [np.nan, np.inf], None),
    ],
)
def test_an_outcome_in_per_cent_has_its_range(name, values, within):
    runs = pd.DataFrame({"lr": [0.1, 0.2], "depth": [1, 2], name: values})
    (outcome,) = read_study(SPACE, None, runs, name, "max", robust=False).outcomes
    assert outcome.within == within
    own = read_study(SPACE, None, runs, name, "max", outcome_range=(0, 200), robust=False)
    assert own.outcomes[0].within == (0, 200)


def test_all_tables_have_one_unit():
    runs, fixed = RUNS.assign(depth=["2 C", "3"]), {"depth": "4 °C"}
    tables = read_study(SPACE, HISTORY.assign(depth="2 °C").set_index("task"), runs, fixed=fixed)
    assert SPACE.decode(tables.runs.X)["depth"].tolist() == [2, 3]
    rows = RUNS[:1]
    with pytest.raises(InputDataError, match="'depth' has the unit '°C' in the history, but '°F'"):
        predict_rows(tables, rows.assign(depth="3 °F").set_index("depth"))


def test_one_goal_of_several_outcomes_and_an_empty_history_are_named(caplog):
    read_outcomes(["loss", "memory"], "min")
    read_outcomes(["loss", "memory"], ["min", "max"])
    assert caplog.messages == [
        "goal='min' applies to all outcomes ['loss', 'memory']: give a list if the goals differ"
    ]
    suggest(SPACE, HISTORY[:0], RUNS)
    assert "The history has no rows: the search starts without old runs" in caplog.messages


def test_a_prior_is_read_with_the_columns_and_outcomes_that_it_needs(tmp_path):
    prior = SourceGPs.fit(from_dataframe(HISTORY, SPACE, "loss", "task", "min"), num_restarts=0)
    with pytest.raises(InputDataError, match="No table has the column 'sem'"):
        suggest(SPACE, None, runs=RUNS, prior=prior, noise="sem")
    with pytest.raises(InputDataError, match="space has 1 inputs, but the prior has 2 inputs"):
        suggest({"depth": {"type": "float", "low": 0, "high": 1}}, None, prior=prior)
    prior.save(tmp_path / "prior")
    for part in (prior, prior.select([0]), SourceGPs.load(tmp_path / "prior")):
        with pytest.raises(InputDataError, match="has the input 'depth', but the prior has 'lr'"):
            suggest(SearchSpace(SPACE.parameters[::-1]), None, prior=part)
    with pytest.raises(TypeError, match="no prior of the outcome 'memory'"):
        suggest(SPACE, None, prior={"loss": prior}, constraints={"memory": "<= 5"})


def test_a_run_slightly_outside_of_a_range_keeps_its_place(caplog):
    space = SearchSpace([FloatParameter("T", 20, 120), IntegerParameter("n", 1, 4)])
    old = DataFrame({"task": "a", "T": ["20 °C", "50 °C"], "n": [1, 2], "loss": [0.5, 0.2]})
    runs = DataFrame({"T": [124.0, 20.0, 120.000001], "n": [2.5, 1, 3], "loss": [0.1, 0.2, None]})
    with caplog.at_level("INFO"):
        tables = read_study(space, old, runs)
    assert tables.runs.X[0].tolist() == pytest.approx([1.04, 0.5])
    assert caplog.messages == [
        "Read as numbers: 'T' in °C",
        "1 of the runs lie slightly outside of the search space: their values are kept (from row "
        "0 on)",
    ]
    for name, cell in (("T", 135.0), ("n", 7.5), ("T", None)):
        wrong = runs.assign(T=20.0, n=1).astype({name: float})
        wrong.loc[1, name] = cell
        with pytest.raises(InputDataError, match=f"In the runs: Parameter '{name}' .* in row 1, "):
            read_study(space, old, wrong)


def test_a_prior_has_no_rows_to_sort():
    X = SPACE.encode(SPACE.sample(3, seed=0))
    prior = SourceGPs.fit({"monday": (X, X[:, :1])}, num_restarts=0)
    with pytest.raises(ValueError, match="'sorted' needs old runs: give a history"):
        suggest(SPACE, None, prior=prior, model="sorted")
    with pytest.raises(ValueError, match="'sorted' does not use same_in_batch= or cost="):
        suggest(SPACE, HISTORY, model="sorted", same_in_batch="depth", n=2)


# --------------------------------------------------------------- the history of a study, columns


def _old(n: int = 12) -> DataFrame:
    frames = [SPACE.sample(n, seed=k).assign(task=f"task {k}") for k in range(3)]
    old = pd.concat(frames, ignore_index=True)
    return old.assign(loss=np.arange(len(old)) / 10)


@pytest.mark.parametrize("written", [False, True])
def test_a_study_that_is_its_own_history_is_left_out(caplog, written):
    old = _old()
    runs = old[old["task"] == "task 1"].drop(columns="task").head(5)
    runs.loc[runs.index[0], "loss"] = None
    runs = runs.astype(str).replace("nan", None) if written else runs
    tables = read_study(SPACE, old, runs)
    assert list(tables.sources["loss"]) == ["task 0", "task 2"]
    assert "Task 'task 1' of the history has 4 of this study's own runs" in caplog.text
    own = read_study(SPACE, old[old["task"] == "task 1"], runs)
    assert own.sources == {"loss": None}
    assert len(own.runs.X) == 4


def test_own_runs_may_be_rounded_in_the_history(caplog):
    old = _old()
    old["loss"] *= 30.03
    runs = old[old["task"] == "task 1"].drop(columns="task").head(5)
    rounded = runs.assign(lr=runs["lr"].round(5), loss=runs["loss"].round(1), task="own")
    few = rounded.assign(loss=rounded["loss"] + [0, 0, 0, 3, 3])  # only some of them agree
    others = pd.concat([old[old["task"] != "task 1"], few.assign(task="few")])
    tables = read_study(SPACE, pd.concat([others, rounded], ignore_index=True), runs)
    assert [*tables.sources["loss"]] == ["task 0", "task 2", "few"]
    assert "Task 'own' of the history has 5 of this study's own runs" in caplog.text


def test_tasks_of_a_study(caplog):
    old = _old()
    runs = SPACE.sample(4, seed=8).assign(loss=[0.5, 0.25, 0.75, 0.5], task="task 2")
    read_study(SPACE, old, runs)
    assert "The history, too, has runs of this study's task 'task 2': move them" in caplog.text
    caplog.clear()
    read_study(SPACE, old, runs.assign(task="new"))
    assert not caplog.messages


def test_unfinished_runs_with_an_outcome_and_summaries_are_told(caplog):
    runs = SPACE.sample(3, seed=8).assign(loss=[0.5, 0.25, None], no=["1", "2", "mean"])
    read_study(SPACE, _old(), runs.assign(status=["done", "Queued", "running"]))
    early, summary = sorted(caplog.messages, reverse=True)
    read_study(SPACE, _old(), runs.assign(status="Done"))
    assert "has 'Done' in row 2, but the run has no outcome: fill in the" in caplog.text
    assert "'status' has 'Queued' in row 1, but the run has an outcome" in early
    assert "'no' has 'mean' in row 2, maybe a summary of other rows: drop" in summary
    caplog.clear()
    pooling = {"pool": ["mean", "max", "mean"]}
    read_study(SPACE, _old(), runs.assign(status="", no="1", **pooling))
    assert not caplog.messages


def test_a_few_equal_runs_are_no_study(caplog):
    old = _old()
    runs = old[old["task"] == "task 1"].drop(columns="task")
    for few in (runs.head(2), runs.head(5).assign(loss=0.5)):
        same = old.assign(loss=0.5) if len(few) > 2 else old
        assert len(read_study(SPACE, same, few).sources["loss"]) == 3
    assert "own runs" not in caplog.text


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_a_task_that_repeats_another_task_is_left_out(caplog, share):
    old = _old()
    copy = old[old["task"] == "task 1"].sample(frac=share, random_state=0).assign(task="copy")
    tables = read_study(SPACE, pd.concat([copy, old], ignore_index=True))
    copied = "copy" if share == 1 else "task 1"
    assert sorted(tables.sources["loss"]) == sorted(["task 0", copied, "task 2"])
    assert "has the same runs" in caplog.text


def test_tasks_with_some_equal_runs_or_few_outcomes_stay(caplog):
    old = _old()
    part = pd.concat([old.iloc[:5], SPACE.sample(5, seed=9).assign(loss=1.23)]).assign(task="x")
    grades = old.assign(loss=old["loss"].round(0).clip(0, 3), **dict.fromkeys(["lr"], 0.1))
    for each in (pd.concat([old, part]), pd.concat([grades, grades.assign(task="x")])):
        assert "x" in read_study(SPACE, each).sources["loss"]
    zeros = _old(60)
    zeros["loss"] = zeros["loss"].where(zeros["loss"] > 17.35, 0.0)  # of 60 runs, 54 are zero
    other = zeros[zeros["task"] == "task 2"].assign(task="y", loss=lambda t: 2 * t["loss"])
    assert "y" in read_study(SPACE, pd.concat([zeros, other])).sources["loss"]
    assert "same runs" not in caplog.text


def _agreeing(reversed_task: str | None, num_tasks: int = 4, num_runs: int = 20) -> DataFrame:
    rng = np.random.default_rng(0)
    old = DataFrame(rng.random((num_tasks * num_runs, 2)), columns=["x", "z"])
    old["task"] = np.repeat([*"ABCDEF"[:num_tasks]], num_runs)
    old["loss"] = (old["x"] - 0.4) ** 2 + 0.3 * (old["z"] - 0.6) ** 2
    old["loss"] += rng.normal(0, 0.01, len(old))
    return old.assign(loss=old["loss"].where(old["task"] != reversed_task, -old["loss"]))


def test_a_task_with_the_opposite_sign_is_named(caplog):
    space = SearchSpace([FloatParameter("x", 0, 1), FloatParameter("z", 0, 1)])
    for number in (3, 4, 6):
        read_study(space, _agreeing("C", number))
    found = [text[:46] for text in caplog.messages if "check the sign" in text]
    good = "Good settings of task 'C' are bad in the other"
    assert sorted(found) == ["'loss' seems to have negative values in task '", good, good]
    caplog.clear()
    rng = np.random.default_rng(1)
    unrelated = _agreeing(None).assign(loss=rng.normal(size=80))
    for old in (_agreeing(None), _agreeing("C", 2), unrelated, _agreeing("C").assign(loss=1.0)):
        read_study(space, old)
    assert "Good settings" not in caplog.text
    noisy = _agreeing("C").assign(
        loss=lambda t: t["loss"] + 0.1 * rng.normal(size=80) * (t.task == "C")
    )
    read_study(space, noisy)
    assert "Good settings" not in caplog.text
    read_study(space, noisy.assign(loss=noisy["loss"] + 50 * (noisy["task"] == "C")))
    assert good in caplog.text  # on another scale, a weaker correlation is enough


@pytest.mark.parametrize(("depth", "level"), [(12, None), (90, "WARNING")])
def test_old_runs_far_outside_of_the_space_give_a_warning(depth, level, caplog):
    read_study(SPACE, HISTORY.assign(depth=[depth, *HISTORY["depth"][1:]]))
    warned = [r.levelname for r in caplog.records if "outside of the search space" in r.message]
    assert warned == [level] * (level is not None)


def test_a_column_that_looks_like_steps(caplog):
    read_study(SPACE, _old().assign(epoch=[*range(12)] * 3, EP=[*range(12)] * 3))
    curves = _old().loc[np.repeat(range(36), 3)].assign(minutes=[2, 4, 9] * 36, id=[1, 2, 3] * 36)
    read_study(SPACE, curves)
    found = [m for m in caplog.messages if "looks like the steps of learning curves" in m]
    assert [text.split("'")[1] for text in found] == ["epoch", "EP", "minutes"]
    epochs = curves.assign(epoch=1, run=curves.index)
    read_study(SPACE, epochs, step="epoch", run="run")
    told = "'epoch' has 1 in row 0 (and 71 more rows), which its run already has: give each attempt"
    assert told in caplog.text


OLD, OWN = _old(), SPACE.sample(4, seed=5).assign(loss=[11.5, 13, 12, 14.5])
OLD["loss"], OLD["u"] = 10 * OLD["loss"] + 0.25, 1.0
RANKED = OLD.assign(loss=OLD["loss"].where(OLD["task"] != "task 1", OLD.index - 11))
THREE = OLD.iloc[12:15]
CROSSED = pd.concat([OLD[:12], THREE.drop(columns="loss").merge(THREE[["loss"]], how="cross")])
FILLED = OLD.assign(loss=-OLD["loss"].where(OLD.index % 4 == 0).ffill() % 7)
PARTS = DataFrame({"a": [10.0, 40, 30, 60, 20, 70], "b": [90.0, 60, 70, 40, 80, 30], "task": "t"})
PARTS["loss"] = [0.3, 0.5, 0.1, 0.2, 0.4, 0.6]
STOCK = pd.concat([PARTS[["a", "b"]], DataFrame({"a": [80], "b": [40]})], ignore_index=True)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("is the predicted_mean: give", {"runs": OWN.assign(predicted_mean=OWN["loss"].round(6))}),
        ("4 runs of this study have the same 'loss'", {"runs": OWN.assign(loss=1.1)}),
        ("negative values in this study only", {"runs": OWN.assign(loss=[-1, -2, 4, 8])}),
        ("'note' has 'leak' in row 0", {"runs": OWN.assign(note=["leak", "", "no leak", "ok"])}),
        ("whole numbers: are they numbers of repeats", {"history": OLD.assign(k=2), "noise": "k"}),
        ("Columns that are neither parameters nor outcomes: u", {"runs": OWN.assign(u=2)}),
        ("'task 1' has the same outcomes for different parameters", {"history": FILLED}),
        ("'task 1' has the same outcomes for different parameters", {"history": CROSSED}),
        ("Task 'task 1' has the outcomes 1 to 12, once each", {"history": RANKED}),
        (
            "of 'lr': check the range",
            {"space": [FloatParameter("lr", 1e-4, 1e9), SPACE.parameters[1]]},
        ),
        ("'a + b' has 120.0 in row 6, but 100 in all old runs", {"candidates": STOCK}),
        ("satisfies the constraint 'a + b == 1'", {"constraints": ["a + b == 1"]}),
        ("satisfies the constraint 'a <= 0.5'", {"constraints": ["a <= 0.5"]}),
    ],
)
def test_what_is_likely_wrong_is_told(message, arguments, caplog):
    caplog.set_level("INFO")
    of_parts = "'a " in message
    space = [FloatParameter(name, 0, 100) for name in "ab"] if of_parts else SPACE
    usual = {"space": space, "history": PARTS if of_parts else OLD}
    usual["runs"] = None if of_parts else OWN
    read_study(**{**usual, **arguments})
    assert message in caplog.text


def test_rounded_outcomes_in_order_are_no_filled_cells(caplog):
    read_study(SPACE, OLD.assign(loss=OLD["loss"] // 4 + 0.5))
    assert "same outcomes" not in caplog.text


def test_an_outcome_or_a_parameter_that_no_row_has_gives_a_warning(caplog):
    runs = RUNS.rename(columns={"loss": "result"})
    read_study(SearchSpace([*SPACE.parameters, FloatParameter("time", 0, 1)]), HISTORY)
    assert "No old run records 'time'" in caplog.text
    tables = read_study(SPACE, HISTORY, runs)
    assert len(tables.runs.waiting) == len(runs)
    assert "runs have no column 'loss', so no run has this outcome. The columns" in caplog.text
    read_study(SPACE, HISTORY.assign(depth=np.nan))
    assert "No old run records 'depth'" in caplog.text
    assert "'result'" in caplog.text


def test_a_column_whose_values_fit_an_absent_parameter(caplog):
    space = SearchSpace([FloatParameter("temperature", 20, 120), LR])
    old = _old().rename(columns={"depth": "yield"}).assign(T=np.linspace(30, 110, 36))
    read_study(space, old)
    (log,) = [m for m in caplog.messages if "temperature" in m]
    assert "a column 'T' with values in the same range: if both mean the same, pass" in log


def test_history_is_encoded_once_for_the_same_tables(monkeypatch):
    calls, memo = [], Memo(size=2)
    read = reading.read_history
    monkeypatch.setattr(reading, "read_history", lambda *a, **k: calls.append(1) or read(*a, **k))
    old, given = _old(5), (Region(SPACE), [Outcome("loss", -1.0)])
    first, second = (read_tables(*given, old.copy(), None, memo=memo) for _ in range(2))
    assert len(calls) == 1
    assert first.sources["loss"].keys() == second.sources["loss"].keys()
    read_tables(*given, old.assign(loss=old["loss"] + 1), None, memo=memo)
    assert len(calls) == 2


def test_warnings_about_old_runs_come_with_each_call(caplog):
    space = SearchSpace([FloatParameter("lr", 1e-4, 1.0, log=True)])
    old = _old().assign(lr=[0.0] + [0.1] * 35)
    for number in (1, 2):
        read_study(space, old)
        assert len([m for m in caplog.messages if "that the search space lacks" in m]) == number


def test_tasks_that_agree_with_the_study_stay():
    grid = DataFrame([(x, k) for x in (1, 2, 3) for k in "ab"], columns=["x", "k"])
    space = SearchSpace([OrdinalParameter("x", (1, 2, 3)), CategoricalParameter("k", ("a", "b"))])
    grid["grade"] = grid["x"] + (grid["k"] == "b")
    old = pd.concat([grid.assign(task="A"), grid.assign(task="B")])
    tables = read_study(space, old, grid.head(4), "grade", "min")
    assert list(tables.sources["grade"]) == ["A", "B"]


@pytest.mark.parametrize(
    ("changes", "missing", "message"),
    [
        ({"loss": 5.0}, {}, "Each old task has only one value of 'loss', so old runs do not"),
        ({"task": HISTORY.index}, {}, "Each old task has only one value of 'loss': does"),
        ({"depth": None}, {"depth": 99}, "The value of 'depth' in missing= is out of range"),
        ({}, {"depth": 3}, "missing= has no effect on 'depth', which each old run records: omit"),
    ],
)
def test_histories_that_teach_little_give_a_warning(changes, missing, message, caplog):
    read_study(SPACE, HISTORY.assign(**changes), missing=missing)
    assert any(text.startswith(message) for text in caplog.messages)


def test_candidates_are_compared_with_old_tasks(caplog):
    caplog.set_level("INFO")
    T = np.linspace(20, 110, 12)
    old = DataFrame({"task": [*"abc"] * 4, "T": T, "loss": T, "u": T[::-1]})
    read_study(None, old, candidates=DataFrame({"T": T + 273}))
    assert "The candidates lack the columns u of old runs" in caplog.messages
    assert "'T' of the candidates differs from most tasks" in caplog.text


def test_tables_that_fit_badly_give_a_warning(caplog):
    old, runs = HISTORY.assign(u=10.0 + np.arange(len(HISTORY)) % 4), RUNS.assign(task="p")
    read_study(SPACE, old, runs, constraints=["u <= 9"])
    assert not [text for text in caplog.messages if "unit" in text or "tasks" in text]
    read_study(SPACE, old, runs.assign(task=["p", "q"]), constraints=["u <= 1"])
    read_study(None, HISTORY, candidates=RUNS[SPACE.columns].rename(columns={"lr": "Lr"}))
    curves = pd.concat([RUNS] * 3, ignore_index=True)
    old = HISTORY.assign(r=range(len(HISTORY)), e=1, status="stopped")
    read_study(SPACE, old, curves, step="e", run="r")
    assert {*caplog.messages} >= {
        "No run satisfies the limit 1 of 'u' (best value: 10): check the unit",
        "This study's runs have the tasks 'p' and 'q': move old runs to the history, or correct "
        "task=",
        "All old runs have the same value of 'e': correct step=",
        "'Lr' is no parameter: if 'lr' means the same, use one name for both",
    }
    text = "".join(caplog.messages)
    assert "rows of the runs repeat" in text
    assert "Each run has one step: check run=" in text


@pytest.mark.parametrize(
    ("unit", "log", "told"), [(1, True, ""), (1e3, True, "1000 it fits"), (-1, False, "sign")]
)
def test_a_study_in_another_unit_gives_a_warning(unit, log, told, caplog):
    old = HISTORY.assign(ms=np.linspace(20, 80, len(HISTORY)))
    runs = SPACE.sample(4, seed=0).assign(ms=unit * np.array([30.0, 70.0, 40.0, 60.0]))
    prior = SourceGPs.fit(from_dataframe(old, SPACE, "ms", "task", "min", log=log))
    for given in ({"history": old}, {"history": None, "prior": {"ms": {"member": prior}}}):
        read_study(SPACE, runs=runs, outcome="ms", goal="min", log=log, **given)
    read_study(SPACE, None, None, "purity", "max", prior=prior)  # the prior is to be minimized
    *found, last = caplog.messages
    assert "as mean of the prior (maybe fitted with another goal, unit or log=), outside" in last
    assert [told in text for text in found] == [True, True][: 2 * bool(told)]


@pytest.mark.parametrize(("goal", "typo"), [("max", 600.0), ("min", -600.0)])
def test_an_outcome_that_is_far_too_good_gives_a_warning(goal, typo, caplog):
    history = HISTORY.assign(score=np.linspace(0, 100, len(HISTORY)))
    runs = SPACE.sample(4, seed=0).assign(score=[60.0, typo, typo, 50.0])
    read_study(SPACE, history, runs, "score", goal)
    assert [text for text in caplog.messages if "far better" in text] == [
        f"'score' has {typo:g}, far better than all other outcomes: correct the cell if it is wrong"
    ]


@pytest.mark.parametrize("is_rare", [True, False])
def test_one_task_in_fractions_gives_a_warning(is_rare, caplog):
    space = SearchSpace([FloatParameter("x", 0, 1)])
    old = DataFrame({"task": [*"aaabbbccc"], "x": np.linspace(0, 1, 9), "y": [20.0, 50, 90] * 3})
    old["y"] = old["y"].where((old["task"] == "b") != is_rare, old["y"] / 100)
    from_dataframe(old, space, "y", "task")
    assert any("fractions in task" in text and "'b'" in text for text in caplog.messages)
