"""Outcomes as people record them in `suggest`: bounds, codes, failures and partial measurements."""

import logging
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pandas import DataFrame, Series, concat

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    OrdinalParameter,
    ScaMLGP,
    SearchSpace,
    SourceGPs,
    backtest,
    from_dataframe,
    suggest,
)
from botorch_transfer.suggestion import next_rows, read_study, suggest_rows
from botorch_transfer.suggestion.reading import DEPTH
from tests.suggestion.brief_search import briefest_search
from tests.suggestion.test_next_rows import assert_new

pytestmark = pytest.mark.usefixtures("_brief_search")

NAN = float("nan")
LINE = SearchSpace([FloatParameter("x", 0, 1)])
PLANE = SearchSpace([FloatParameter("x", 0, 1), FloatParameter("z", 0, 1)])


def bowl(rows: DataFrame, x: float = 0.3) -> Series:
    return (rows["x"] - x) ** 2 + (rows["z"] - 0.6) ** 2


def bowls(num_rows: int = 25, num_tasks: int = 3) -> DataFrame:
    """Old runs of tasks with one optimum."""
    tasks = [PLANE.sample(num_rows, seed=seed).assign(task=f"{seed}") for seed in range(num_tasks)]
    table = concat(tasks, ignore_index=True)
    return table.assign(loss=bowl(table))


OLD = bowls()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


# ------------------------------------------------------------------------------ bounds and errors

LIGAND = CategoricalParameter("ligand", ("L1", "L2", "L3", "L4"))
LIGANDS = SearchSpace([FloatParameter("temp", 0, 100), LIGAND])
TOP = {"L1": 40, "L2": 55, "L3": 97, "L4": 30}


def ligands(kind: str) -> DataFrame:
    """Old runs in which the best ligand has bounds."""
    rng = np.random.default_rng(0)
    old = DataFrame({"task": np.repeat(list("abc"), 12), "temp": rng.uniform(20, 60, 36)})
    old["ligand"] = rng.choice([*TOP], 36)
    ee = old["ligand"].map(TOP) * np.exp(-(((old["temp"] - 40) / 90) ** 2)) + rng.normal(0, 1, 36)
    is_best = old["ligand"] == "L3"
    return old.assign(ee=ee.round(0).astype(object).mask(is_best, kind))


def test_a_bound_counts_as_its_number(caplog):
    """A best ligand whose results are all bounds is tried at once, as with numbers."""
    runs = DataFrame({"temp": [35.0], "ligand": ["L1"], "ee": [41.0]})
    tables, count = {}, int((ligands("")["ligand"] == "L3").sum())
    for cell in (95, ">95", "> 95 %*"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            read = tables[cell] = read_study(LIGANDS, ligands(cell), runs, "ee", "max")
        told = f"count as the number in the cell: {count} in 'ee', as '{cell}' in row "
        assert sum(told in message for message in caplog.messages) == isinstance(cell, str)
        assert len(read.old_failed) == 0
        for name, task in tables[95].sources["ee"].items():
            assert torch.equal(read.sources["ee"][name].Y, task.Y)
    rows = suggest_rows(tables[">95"], model=ScaMLGP).rows
    assert rows["ligand"].tolist() == ["L3"]


@pytest.mark.parametrize(("constraint", "cell"), [("<= 0.5", ">0.5"), (">= 0.5", "<0.5")])
def test_a_bound_violates_the_limit_of_a_constraint(constraint, cell):
    old = OLD.assign(size=[0.5 if x < 0.5 else cell for x in OLD["x"]])
    runs = OLD.loc[[0, 1], ["x", "z"]].assign(loss=0.1, size=[cell, 0.5])
    tables = read_study(PLANE, old, runs, constraints={"size": constraint})
    limit = tables.outcomes[1].limit
    for Y, x in ((task.Y, task.X[:, 0]) for task in tables.sources["size"].values()):
        assert torch.equal(Y[:, 0] < limit, x >= 0.5)
    assert (tables.runs.Y[:, 1] < limit).tolist() == [True, False]


def test_numbers_with_errors_have_a_known_noise():
    """A column of standard errors goes before."""
    cells = {"value": "{:.3f}", "with an error": "{:.3f} ± 0.01", "partly": "{:.3f} ± 0.01"}
    tables = {}
    for name, form in cells.items():
        loss = [form.format(value) for value in OLD["loss"]]
        if name == "partly":
            loss[::2] = [cell.split()[0] for cell in loss[::2]]
        tables[name] = read_study(PLANE, OLD.assign(loss=loss), OLD.assign(loss=loss)[:4])
    for name in ("with an error", "partly"):
        assert torch.allclose(tables[name].runs.Yvar, torch.tensor(1e-4).double())
        assert torch.equal(tables[name].runs.Y, tables["value"].runs.Y)
        for source in tables[name].sources["loss"].values():
            assert torch.allclose(source.Yvar, torch.tensor(1e-4).double())
    assert tables["value"].runs.Yvar.isnan().all()
    given = OLD.assign(loss=loss, sem=0.2)
    assert read_study(PLANE, given, noise="sem").sources["loss"]["0"].Yvar[0] == pytest.approx(0.04)


SEM = [0.94, 0.55, 0.53, 0.91, 0.0, 0.0]
SCORE = [6.51, 7.33, 6.94, 9.42, 3.91, 2.50]
SCORES = DataFrame({"x": [0.2, 0.4, 0.5, 0.65, 0.8, 0.9], "score": SCORE, "sem": SEM})
OTHER_SCORES = SCORES.assign(task="b", x=SCORES["x"] - 0.01)
OLD_SCORES = concat([SCORES.assign(task="a"), OTHER_SCORES], ignore_index=True)


@pytest.mark.parametrize(("of_old", "of_runs"), [(0.0, NAN), (NAN, ""), (0.0, "0"), (NAN, 0.0)])
def test_a_standard_error_of_zero_is_inferred(of_old, of_runs, caplog):
    old = OLD_SCORES.assign(sem=OLD_SCORES["sem"].replace(0.0, of_old))
    runs = SCORES.assign(x=SCORES["x"] + 0.01)  # the study is not its own history
    runs = runs.astype({"sem": object}).replace({"sem": {0.0: of_runs}})
    with caplog.at_level(logging.INFO):
        rows = suggest(LINE, old, runs, "score", "max", noise="sem", model=ScaMLGP)
    assert_new(LINE, rows, runs)
    told = [message for message in caplog.messages if "have no standard error" in message]
    assert [int(message.split()[0]) for message in told] == [4, 2]
    tables = read_study(LINE, old, runs, "score", "max", noise="sem")
    joint = np.mean(np.square([0.94, 0.55, 0.53, 0.91]))
    for Yvar in (tables.runs.Yvar, tables.sources["score"]["b"].Yvar):
        assert Yvar[:, 0].tolist() == pytest.approx([0.8836, 0.3025, 0.2809, 0.8281, joint, joint])


def test_without_any_standard_error_the_model_infers_the_noise():
    old = OLD_SCORES.assign(sem=OLD_SCORES["sem"].where(OLD_SCORES["task"] == "b", 0.0))
    runs = SCORES.assign(x=SCORES["x"] + 0.01, sem=NAN)
    tables = read_study(LINE, old, runs, "score", "max", noise="sem")
    assert tables.runs.Yvar.isnan().all()
    assert tables.sources["score"]["a"].Yvar is None
    assert tables.sources["score"]["b"].Yvar is not None


# ---------------------------------------------------------------------------------- diverged runs


def first_values(old: DataFrame, **options: Any) -> list[float]:
    """The values of the first runs of a study."""
    runs = DataFrame()
    for _ in range(2):
        row = suggest(PLANE, old, runs, model=ScaMLGP, **options)[["x", "z"]]
        runs = concat([runs, row.assign(loss=bowl(row, 0.35))], ignore_index=True)
    return runs["loss"].tolist()


def test_the_size_of_a_diverged_outcome_hardly_matters():
    expected = pytest.approx(first_values(OLD), abs=0.02)
    for bad in (1e3, 54_321.0, 7e30, np.inf, "diverged"):
        diverged = OLD.assign(loss=OLD["loss"].astype(object).mask(OLD["x"] > 0.9, bad))
        assert first_values(diverged) == expected, bad


@pytest.mark.parametrize("bad", [1e3, 1e30])
def test_a_diverged_run_of_this_study_hardly_matters(bad):
    runs = PLANE.sample(4, seed=9)
    runs = runs.assign(loss=bowl(runs))
    worse = concat([runs, DataFrame({"x": [0.97], "z": [0.1], "loss": [bad]})], ignore_index=True)
    fine = worse.assign(loss=bowl(worse))
    clean, found = (suggest(PLANE, OLD, each, model=ScaMLGP) for each in (fine, worse))
    assert bowl(found).item() == pytest.approx(bowl(clean).item(), abs=0.02)
    for column in ("predicted_mean", "predicted_std"):
        assert found[column].item() == pytest.approx(clean[column].item(), abs=0.15)


@pytest.mark.parametrize(
    ("code", "goal", "cells"),
    [(-999.0, "min", "old"), (9999.0, "max", "own"), (-999.0, "min", "both")],
)
def test_a_code_on_the_good_side_is_missing(code, goal, cells, caplog):
    sign = 1 if goal == "min" else -1
    old, runs = OLD.assign(loss=sign * OLD["loss"]), PLANE.sample(5, seed=7)
    runs = runs.assign(loss=sign * bowl(runs))
    coded = [
        table.assign(loss=table["loss"].where(~table.index.isin([1, 3, 42]), code))
        if name in (cells, {"both": name}.get(cells))
        else table
        for name, table in (("old", old), ("own", runs))
    ]
    options = {"goal": goal, "model": ScaMLGP}
    clean = suggest(PLANE, old, runs, **options)
    found = suggest(PLANE, *coded, **options)
    assert abs(found["predicted_mean"].item() - clean["predicted_mean"].item()) < 0.03
    assert bowl(found).item() == pytest.approx(bowl(clean).item(), abs=0.02)
    (warned,) = [text for text in warnings_in(caplog) if "suggests the opposite" not in text]
    assert f"In the column 'loss', the number {code:g} (as {code} in row 1" in warned
    read = read_study(PLANE, *coded, goal=goal)
    assert (len(read.runs.failed), len(read.old_failed), len(read.runs.waiting)) == (0, 0, 0)
    assert len(read.runs.ended) == (2 if cells != "old" else 0)


def bad_run(bad: float = 543.0) -> DataFrame:
    runs = PLANE.sample(5, seed=7)
    return runs.assign(loss=bowl(runs).mask(runs.index == 2, bad))


@pytest.mark.parametrize(
    ("where", "goal", "log"),
    [("old", "min", False), ("own", "max", False), ("own", "min", True), ("old", "max", True)],
)
def test_predictions_never_pass_the_worst_outcome_that_is_left(where, goal, log):
    bad = 7e93 if log else 543.0
    old, runs = OLD.copy(), bad_run(bad)
    if where == "old":
        old.loc[5, "loss"], runs.loc[2, "loss"] = bad, 0.4
    if goal == "max":
        old, runs = (f.assign(loss=1 / f["loss"] if log else -f["loss"]) for f in (old, runs))
    options = {"goal": goal, "log": log}
    tables = {robust: read_study(PLANE, old, runs, robust=robust, **options) for robust in (0, 1)}
    worst = {}
    for robust, read in tables.items():
        left = [read.runs.Y, *(task.Y for task in read.sources["loss"].values())]
        worst[robust] = read.outcomes[0].original(torch.cat(left).min()).item()
    (outcome,), sign = tables[1].outcomes, 1 if goal == "max" else -1
    assert tables[0].outcomes[0].within is None
    assert sign * worst[1] > sign * worst[0]
    there = (runs.iloc[[2]] if where == "own" else old.iloc[[5]])[["x", "z"]]
    options |= {"candidates": there, "repeats": True, "model": ScaMLGP}
    found = suggest(PLANE, old, runs, **options)
    assert sign * found["predicted_mean"].item() >= sign * worst[1] - 1e-9
    levels = torch.linspace(0.01, 0.99, 9).double()
    spread = outcome.quantiles(torch.tensor([-1e3]).double(), torch.tensor([1e2]).double(), levels)
    assert spread.flatten().tolist() == pytest.approx([worst[1]] * 9)


def test_outcomes_on_the_good_side_and_mild_tables_stay_as_they_are():
    runs = bad_run()
    tables, raw = (read_study(PLANE, OLD, runs, robust=robust) for robust in (True, False))
    good = raw.runs.Y.median() <= raw.runs.Y
    assert torch.equal(tables.runs.Y[good], raw.runs.Y[good])
    assert raw.runs.Y[2].item() == -543
    assert -3 < tables.runs.Y[2].item() < raw.runs.Y[good].min()
    mild = read_study(PLANE, None, runs.assign(loss=[0.1, 0.2, 0.5, 0.3, 0.4]))
    assert mild.runs.Y.flatten().tolist() == [-0.1, -0.2, -0.5, -0.3, -0.4]
    assert mild.outcomes[0].within is None


def test_few_outcomes_of_a_study_take_the_scale_of_old_tasks():
    """The typical distance between the best and the worst outcome that is left."""
    one = DataFrame({"x": [0.3, 0.9], "z": [0.6, 0.1], "loss": [0.0, 77.0]})
    tables = read_study(PLANE, OLD.assign(loss=OLD["loss"].mask(OLD.index == 3, 543.0)), one)
    spans = [float(task.Y.max() - task.Y.min()) for task in tables.sources["loss"].values()]
    assert max(spans) < 2
    assert tables.runs.Y.flatten().tolist() == pytest.approx([0.0, -np.median(spans)])
    prior = SourceGPs.fit(from_dataframe(OLD, PLANE, "loss", "task", goal="min"), num_restarts=0)
    Y = read_study(PLANE, None, one, prior=prior).runs.Y
    assert Y.flatten().tolist() == pytest.approx([0.0, -DEPTH * OLD["loss"].std()], rel=0.05)
    assert read_study(PLANE, None, one).runs.Y[1].item() == -77


def test_a_constraint_is_limited_beyond_its_limit_only():
    size = OLD["x"].mask(OLD["x"] > 0.97, 5e5)
    history, runs = OLD.assign(size=size), bad_run().assign(size=[0.1, 0.2, 0.3, 7e7, 0.9])
    tables, raw = (
        read_study(PLANE, history, runs, constraints={"size": "<= 0.5"}, robust=robust)
        for robust in (True, False)
    )
    limit = -0.5
    for found, known in [
        (tables.runs.Y[:, 1], raw.runs.Y[:, 1]),
        *((tables.sources["size"][t].Y, raw.sources["size"][t].Y) for t in "012"),
    ]:
        assert torch.equal(found >= limit, known >= limit)
        assert torch.equal(found[known > -100], known[known > -100])
        assert found.min() > -10
    assert raw.runs.Y[:, 1].min() == -7e7
    far = read_study(PLANE, history, runs, constraints={"size": "<= 1e9"})
    assert torch.equal(far.runs.Y[:, 1], raw.runs.Y[:, 1])


def test_limits_and_partial_runs_and_known_noise():
    runs = bad_run().assign(memory=[1, NAN, 2, 3, NAN], sem=0.1, memory_sem=[0.2, NAN] * 2 + [0.3])
    runs.loc[2, "sem"] = 1e3
    runs.loc[3, "loss"] = NAN
    noise = {"loss": "sem", "memory": "memory_sem"}
    options = {"constraints": {"memory": "<= 2"}, "noise": noise}
    history = OLD.assign(sem=0.1, memory=OLD["x"])
    tables = read_study(PLANE, history, runs, **options)
    assert tables.runs.known(0).Yvar.flatten().tolist() == pytest.approx([0.01] * 4)
    assert tables.runs.known(1).Yvar.isfinite().all()
    rows = suggest(PLANE, history, runs, model=ScaMLGP, **options)
    assert_new(PLANE, rows, runs)


def test_a_replay_reports_outcomes_as_they_are():
    old = bowls(num_rows=6)
    old.loc[8, "loss"] = 54_321.0
    tables = [
        backtest(PLANE, old, goal="min", models=["sorted"], robust=robust, progress=False).table
        for robust in (True, False)
    ]
    for table in tables:
        random = table[(table["task"] == "1") & (table["model"] == "random")]
        assert random["best_1"].item() > 1000


# -------------------------------------------------------------------------- partial measurements

HALF = DataFrame({"temp": [0.1, 0.5, 0.9], "yield": [0.0, 40.0, 80.0], "ee": [NAN, 88.0, 85.0]})
TEMP = SearchSpace([FloatParameter("temp", 0, 1)])


def half_old() -> DataFrame:
    x = np.linspace(0, 1, 10)
    return DataFrame({"task": "a", "temp": x, "yield": 90 * x, "ee": [NAN] * 5 + [90.0] * 5})


@pytest.mark.parametrize("outcome", ["yield", ["yield", "ee"], ["ee", "yield"]])
def test_a_run_with_one_of_two_outcomes_is_done(outcome, caplog):
    with caplog.at_level(logging.INFO):
        tables = read_study(TEMP, half_old(), HALF, outcome, "max")
    runs = tables.runs
    assert (len(runs.X), len(runs.waiting), len(runs.failed)) == (3, 0, 0)
    assert len(tables.old_failed) == 0
    assert "fail" not in caplog.text
    if outcome != "yield":
        sizes = {name: len(tables.sources[name]["a"].X) for name in outcome}
        assert sizes == {"yield": 10, "ee": 5}


@pytest.mark.parametrize("options", [{"outcome": ["yield", "ee"]}, {"constraints": {"ee": ">=80"}}])
def test_each_outcome_is_modelled_with_its_runs(options):
    """Objectives and constraints alike, in old runs and in this study's."""
    runs = concat([HALF, DataFrame({"temp": [0.3, 0.7], "ee": [87.0, "n.d."]})], ignore_index=True)
    tables = read_study(TEMP, half_old(), runs, **{"outcome": "yield", "goal": "max", **options})
    found = suggest_rows(tables, model=ScaMLGP)
    X = {name: model.train_inputs[0].flatten().tolist() for name, model in found.models.items()}
    assert X == {"yield": [0.1, 0.5, 0.9], "ee": [0.5, 0.9, 0.3]}
    assert len(tables.runs.waiting) == 0
    assert tables.runs.ended.tolist() == [[0.7]]
    assert found.rows[["predicted_mean_yield", "predicted_mean_ee"]].notna().all(axis=None)
    assert (found.X - tables.runs.tried).abs().min() > 1e-3


@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_an_outcome_without_any_data_has_no_model(with_old, limited):
    runs, options = HALF.assign(ee=NAN), {"outcome": ["yield", "ee"]}
    if limited:
        options = {"outcome": "yield", "constraints": {"ee": ">= 80"}}
    tables = read_study(TEMP, half_old() if with_old else None, runs, goal="max", **options)
    assert (len(tables.runs.X), len(tables.runs.waiting)) == (3, 0)
    tables = tables._replace(sources={**tables.sources, "ee": None})
    found = suggest_rows(tables, model=ScaMLGP if with_old else None)
    assert list(found.models) == ["yield"]
    assert found.rows["predicted_mean_ee"].isna().all()
    assert found.rows["predicted_mean_yield"].notna().all()
    assert_new(TEMP, found.rows, runs)


@pytest.mark.parametrize("only", ["loss", "size"])
def test_the_only_known_outcome_may_be_any(only):
    """A study goes on before its first objective, or its first constraint, is measured."""
    runs = DataFrame({"x": [0.2, 0.8], "z": [0.3, 0.4], only: [0.5, 0.1]})
    for old, model in ((None, None), (OLD.assign(size=OLD["x"]), ScaMLGP)):
        rows = suggest(PLANE, old, runs, constraints={"size": "<= 0.6"}, model=model)
        assert_new(PLANE, rows, runs)


@pytest.mark.parametrize("status", ["failed", "TrialState.FAIL", "timeout"])
def test_the_outcome_of_a_failed_run_is_dropped(status):
    runs = PLANE.sample(4, seed=1).assign(loss=[0.3, 0.2, NAN, 0.1], status="ok")
    runs.loc[[1, 2], "status"] = status
    read = read_study(PLANE, OLD, runs).runs
    assert read.Y.flatten().tolist() == [-0.3, -0.1]
    assert torch.equal(read.failed, PLANE.encode(runs.iloc[[1, 2]]))
    assert torch.equal(read.good, PLANE.encode(runs.iloc[[0, 3]]))
    old = OLD.assign(status="ok")
    old.loc[[0, 1], "status"], old.loc[1, "loss"] = status, NAN
    tables = read_study(PLANE, old, runs)
    assert torch.equal(tables.old_failed, PLANE.encode(OLD.iloc[[0, 1]]))
    sources = [tables.sources["loss"], from_dataframe(old, PLANE, "loss", "task", "min")]
    assert [len(source["0"].X) for source in sources] == [23, 23]


# ---------------------------------------------------------------------------------------- status


@pytest.mark.parametrize(("cell", "fate"), [("n.d.", "ended"), ("no product", "failed"), ("", "")])
@pytest.mark.parametrize("status", [None, "ok", "failed"])
def test_words_are_treated_alike_in_old_and_own_runs(cell, fate, status):
    fate = "failed" if status == "failed" else fate
    old = OLD.assign(loss=OLD["loss"].astype(object).mask(OLD.index == 2, cell))
    runs = PLANE.sample(2, seed=5).assign(loss=Series(["0.2", cell]))
    if status is not None:
        old["status"], runs["status"] = "ok", "ok"
        old.loc[2, "status"] = runs.loc[1, "status"] = status
    tables = read_study(PLANE, old, runs)
    read = tables.runs
    counts = {"ended": len(read.ended), "failed": len(read.failed), "": len(read.waiting)}
    assert counts == {"ended": 0, "failed": 0, "": 0} | {fate: 1}
    # An empty cell of an old run without a status has failed: its outcome will never come.
    is_failure = fate == "failed" or (fate == "" and status is None)
    assert len(tables.old_failed) == is_failure


# ---------------------------------------------------------------------------------------- levels

LEVELS = OrdinalParameter("x", (0, 5, 10)), FloatParameter("x", 0, 10, step=5)
MEASURED = [-0.01, 0.01, 5.0, 10.01, 9.99]


@pytest.mark.parametrize("parameter", LEVELS, ids=lambda parameter: type(parameter).__name__)
@pytest.mark.parametrize(("with_old", "with_runs"), [(True, False), (False, True), (True, True)])
def test_runs_off_the_levels_count_and_suggestions_are_on_them(parameter, with_old, with_runs):
    space = SearchSpace([parameter])
    old = DataFrame({"task": np.repeat(["a", "b"], 5), "x": MEASURED * 2})
    old["loss"] = old["x"] ** 2 + np.repeat([0.0, 1.0], 5)
    runs = DataFrame({"x": [0.01, 9.99], "loss": [0.0001, 99.8]})
    given = old if with_old else None, runs if with_runs else None
    tables = read_study(space, *given)
    places = torch.tensor([-0.001, 0.001, 0.5, 1.001, 0.999]).double()
    for data in tables.sources["loss"].values() if with_old else ():
        torch.testing.assert_close(data.X[:, 0], places)
    if with_runs:
        torch.testing.assert_close(tables.runs.X[:, 0], places[[1, 4]])
    rows = suggest(space, *given, model=ScaMLGP if with_old else None)
    assert rows["x"].isin([0, 5, 10]).all()
    typing_error = concat([runs, DataFrame({"x": [100.0], "loss": [1e4]})], ignore_index=True)
    wrong = r"In the runs: Parameter 'x' is 100\.0 in row 2, (not one of 0, 5, 10|outside)"
    with pytest.raises(InputDataError, match=wrong):
        read_study(space, given[0], typing_error)


# --------------------------------------------------------------------------------- random tables

#: How many random tables are tried: few in the suite; 300 before a release.
EXAMPLES = int(os.environ.get("BAD_OUTCOMES_EXAMPLES", "12"))

NUMBERS = st.one_of(st.floats(-3, 3).map(lambda number: round(number, 3)), st.integers(0, 100))
CELLS = st.one_of(
    NUMBERS,
    NUMBERS.map(lambda number: f"{number:.4g}"),
    st.builds(
        lambda form, number: form.format(f"{number:.4g}"),
        st.sampled_from([">{}", "≤ {}", "{}*", "~{}", "{} ± 0.2", "{} %", "{} (n=2)", "{}+"]),
        NUMBERS,
    ),
    st.sampled_from([1e3, 1e6, 1e30, -999.0, 9999, -1e30, 54_321.0, -7e4, np.inf, -np.inf]),
    st.sampled_from([None, NAN, "", "n.d.", "trace", "no product", "FAIL", "inf", "-999", "1e30"]),
    st.sampled_from(["?", True, "−999", "≫ 3"]),
)
FEWER = st.one_of(NUMBERS, NUMBERS, NUMBERS, CELLS)
ERRORS = st.sampled_from([0.1, 0.5, "0.2", 0.0, NAN, "", 1e-3, 300.0, "~0.1", "?", np.inf])
#: Cells that are refused.
WRONG = {"y": ["12/13", "12 or 13", "±2"], "sem": [-0.1, 1e-200]}
STATES = st.sampled_from(["ok", "COMPLETE", "FAIL", "crash", "running", "abandoned", "blue", None])


RARELY = st.sampled_from([False] * 9 + [True])


@st.composite
def studies(draw: st.DrawFn) -> tuple[SearchSpace, DataFrame | None, DataFrame, dict[str, Any]]:
    """A search space, old runs, own runs and further arguments."""
    kind = CategoricalParameter("kind", ("a", "b"))
    steps = OrdinalParameter("steps", (1, 2, 8))
    more = draw(st.sampled_from([[], [kind], [steps]]))
    space = SearchSpace([FloatParameter("x", 0, 1), *more])
    cells = draw(st.sampled_from([CELLS, FEWER]))
    names = draw(st.sampled_from([["y"], ["y", "w"]]))

    def table(n: int, seed: int) -> DataFrame:
        frame = space.sample(n, seed)
        for name in names:
            column = draw(st.lists(cells, min_size=n, max_size=n))
            frame[name] = Series(column, index=frame.index, dtype=object).infer_objects()
        if draw(st.booleans()):
            frame["status"] = Series(draw(st.lists(STATES, min_size=n, max_size=n)), dtype=object)
        if noisy:
            errors = draw(st.lists(ERRORS, min_size=n, max_size=n))
            frame["sem"] = Series(errors, dtype=object).infer_objects()
        if n and draw(RARELY):
            name = draw(st.sampled_from(["y", "sem"] if noisy else ["y"]))
            frame[name] = frame[name].astype(object)
            frame.loc[draw(st.integers(0, n - 1)), name] = draw(st.sampled_from(WRONG[name]))
        return frame

    noisy = draw(st.sampled_from([False, False, True]))
    old = None
    if not draw(RARELY):
        n = draw(st.integers(1, 14))
        tasks = draw(st.lists(st.sampled_from(["a", "b"]), min_size=n, max_size=n))
        old = table(n, draw(st.integers(0, 99))).assign(task=tasks)
    runs = table(draw(st.integers(0, 5)), draw(st.integers(100, 199)))
    options: dict[str, Any] = {"outcome": "y", "goal": draw(st.sampled_from(["min", "max"]))}
    options["log"] = draw(RARELY)
    if noisy:
        options["noise"] = {"y": "sem"}
    if len(names) == 2 and draw(st.booleans()):
        options["outcome"] = names
        options["goal"] = [options["goal"], draw(st.sampled_from(["min", "max"]))]
    elif len(names) == 2:
        options["constraints"] = {"w": draw(st.sampled_from(["<= 1", ">= 0", ">= 50", "<= 0.001"]))}
        options["log"] = ["y"] if options["log"] else False
    return space, old, runs, options


#: What may be wrong with a table; the sentences name the remedy, too.
REFUSALS = [
    r"In the (history|runs): The column '(y|w)' has .* in row \d+.*, which has digits but",
    r"In the (history|runs): The column 'sem' has .* in row \d+.*, which is not a standard error",
    r"(In the runs: )?The column '(y|w)' has .* in row \d+.*, but log= needs positive",
    r"No run has a finite outcome in the column '(y|w)'",
]


@settings(max_examples=EXAMPLES)
@given(studies())
def test_random_tables_give_valid_rows_or_one_sentence(study):
    space, old, runs, options = study
    refusal = None
    try:
        with briefest_search():
            model = ScaMLGP if old is not None else None
            rows = suggest(space, old, runs, model=model, **options)
    except (InputDataError, ValueError) as error:
        refusal = str(error)
    event("with rows" if refusal is None else "refused")
    if refusal is not None:
        assert any(re.match(sentence, refusal) for sentence in REFUSALS), refusal
        assert refusal.endswith(".")
        assert "\n" not in refusal
        return
    assert_new(space, rows, runs if len(runs) else None)
    predicted = rows.filter(like="predicted").to_numpy(dtype=float)
    # Without old runs, an outcome that no run has is not predicted.
    assert np.isfinite(predicted[~np.isnan(predicted) | (old is not None)]).all()


#: Old runs, every third of which is bad.
THIRDS = OLD.assign(loss=OLD["loss"].mask(OLD.index % 3 == 0, OLD["loss"] + 9.0))


@pytest.mark.parametrize("number", [0, 3, 4])
def test_few_outcomes_have_old_tasks_by_rank(number):
    runs = OLD.head(number).assign(x=OLD["x"].head(number) / 2)
    tables = read_study(PLANE, THIRDS, runs)
    ranked, raw = tables.ranked(), read_study(PLANE, THIRDS, runs, robust=False)
    assert raw.ranked() is raw
    assert (ranked is tables) == (number >= 4)
    for name, task in tables.sources["loss"].items():
        better = ranked.sources["loss"][name].Y >= task.Y
        assert bool(better.all())
        assert torch.equal(ranked.sources["loss"][name].Y, task.Y) == (number >= 4)


def test_suggestions_come_from_ranks(monkeypatch):
    seen = []
    search = next_rows._search
    monkeypatch.setattr(
        next_rows, "_search", lambda tables, *rest: seen.append(tables) or search(tables, *rest)
    )
    tables = read_study(PLANE, THIRDS)
    with briefest_search():
        suggest_rows(tables, model=ScaMLGP)
    (name, *_) = tables.sources["loss"]
    assert torch.equal(seen[0].sources["loss"][name].Y, tables.ranked().sources["loss"][name].Y)
    assert not torch.equal(seen[0].sources["loss"][name].Y, tables.sources["loss"][name].Y)
