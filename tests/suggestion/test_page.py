"""The page about suggested rows; that of the command line is in ``test___main__``."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    PretrainedPrior,
    ScaMLGP,
    SearchSpace,
    SourceGPs,
    models,
)
from botorch_transfer.suggestion.page import parameter_importance

pytest.importorskip("plotly")
from botorch_transfer.data.measurements import measured
from botorch_transfer.data.tables import Runs, read_runs
from botorch_transfer.model import TransferModel
from botorch_transfer.suggestion import EncodedTables, Outcome, Suggestion, read_study, suggest_rows
from botorch_transfer.suggestion import page as room
from botorch_transfer.suggestion.page import suggestion_page
from botorch_transfer.suggestion.region import Region
from tests.browser import CHROMIUM, CUT_OFF, Browser
from tests.members import hyperprior
from tests.suggestion.brief_search import brief_search

STRANGE = """<b>"A" & 'B'</b></script><script>alert(1)</script>"""


def suggestion(space, row, model, sign, runs=None, sources=None, fixed=None):
    outcomes = (Outcome("loss", sign),)
    read = read_runs(space, *measured([runs], outcomes), outcomes, "status")
    tables = EncodedTables(Region(space, fixed), outcomes, {"loss": sources}, None, read)
    return Suggestion(row, {"loss": model}, space.encode(row), tables)


def told(page):
    """What the page is about."""
    found = re.search('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


#: A model of each kind of prior and of average.
KINDS = [
    "TransferGP",
    "GuardedTransferGP",
    "PopulationGP",
    "ScaMLGP",
    "RankWeightedGP",
    "JointHierarchicalGP",
    "PretrainedGP",
    "FullyBayesianHyperpriorGP",
]


@pytest.mark.parametrize("name", KINDS)
def test_there_is_a_report_on_every_model(name):
    kind, space = getattr(models, name), SearchSpace([FloatParameter("C", 0.0, 1.0)])
    X = torch.tensor([[0.1], [0.4], [0.9]], dtype=torch.double)
    prior = {"a": (X, X.sin()), "b": (X, X.cos())}
    if name == "PretrainedGP":
        prior = PretrainedPrior.fsbo(1)
    elif name in ("HyperpriorGP", "FullyBayesianHyperpriorGP"):
        prior = hyperprior()
    elif name == "TransferGP":
        prior = SourceGPs.fit(prior, num_restarts=0)  # an average of one member and a plain GP
    runs = space.decode(X).assign(loss=[0.3, 0.1, 0.2])
    model = kind(X, -torch.tensor(runs[["loss"]].to_numpy()), prior)
    assert isinstance(model, TransferModel)
    shown, settings = suggestion(space, space.decode(X[:1]), model, -1.0, runs), {"log": []}
    found = told(suggestion_page(shown, runs, settings=settings | {"model": None}))
    (outcome,) = found["outcomes"]
    assert "log" not in found["settings"]
    assert outcome["best"] == [0.3, 0.1, 0.1]
    assert len(outcome["slices"]) == 1
    assert name in found["settings"]["model"]


def test_a_plain_gp_and_a_parameter_that_is_switched_off():
    switch = CategoricalParameter("kind", ("svm", "none"))
    C = FloatParameter("C", 0.1, 10.0, log=True, active_if={"kind": "svm"})
    space = SearchSpace([switch, C])
    rows = space.sample(4, seed=0)
    X = space.encode(rows)
    Y = torch.arange(4.0, dtype=torch.double).unsqueeze(-1)
    for kind, pictures in (("svm", 2), ("none", 1)):
        row = rows[rows["kind"] == kind].iloc[:1]
        page = suggestion_page(suggestion(space, row, SingleTaskGP(X, Y), 1.0), None)
        (found,) = told(page)["outcomes"]
        assert len(found["slices"]) == pictures
        assert len(found["maps"]) == pictures - 1
        assert found["tasks"] == []
    row = rows[rows["kind"] == "svm"].iloc[:1]
    fixed = suggestion(space, row, SingleTaskGP(X, Y), 1.0, fixed={"kind": "svm"})
    (found,) = told(suggestion_page(fixed, None))["outcomes"]
    assert [line["name"] for line in found["slices"]] == ["C"]


BY_CHANCE = "yes, maybe by chance: most other old tasks do not help"


@pytest.mark.parametrize(
    ("count", "verdicts", "words"),
    [
        (4, ["helpful", "irrelevant", "irrelevant"], [BY_CHANCE, "no"]),
        (30, ["irrelevant", "irrelevant", "unclear"], ["no", "no"]),
    ],
)
def test_verdicts_do_not_contradict_one_another(monkeypatch, count, verdicts, words):
    report = pd.DataFrame({"prediction": 0.1, "verdict": verdicts}, index=["a", "b", "all sources"])
    monkeypatch.setattr(room, "transfer_report", lambda model: report)
    X = torch.rand(count, 1, dtype=torch.double)
    sentence, rows = room._tasks(SingleTaskGP(X, X), Runs.of(X, X))
    assert [row["words"] for row in rows] == words
    assert sentence == "Old runs do not help: they do not predict this study's outcomes."


@pytest.mark.parametrize(
    ("count", "reason"),
    [(7, "too early to say whether old runs help: this takes 8 runs"), (8, "It is not clear")],
)
def test_an_unclear_verdict_has_its_reason(monkeypatch, count, reason):
    report = pd.DataFrame({"prediction": 0.1, "verdict": "unclear"}, index=["all sources"])
    monkeypatch.setattr(room, "transfer_report", lambda model: report)
    X = torch.rand(count, 1, dtype=torch.double)
    assert reason in room._tasks(SingleTaskGP(X, X), Runs.of(X, X))[0]


C_TO_SIX = SearchSpace([FloatParameter("C", 0.0, 6.0)])


def states(runs, status="status", **options):
    """The table of runs, and their outcomes as numbers."""
    tables = read_study(C_TO_SIX, None, runs, status=status, **options)
    return room._runs(runs, tables, status)


def test_states_of_runs():
    fates = ["", None, "", "abandoned", "stopped"]
    losses = [0.1, None, float("inf"), None, 0.3]
    runs = pd.DataFrame({"C": [1, 2, 3, 4, 5], "loss": losses, "status": fates})
    found, Y = states(runs)
    assert np.isfinite(Y[:, 0]).tolist() == [True, False, False, False, True]
    assert [r[1] for r in found["rows"]] == ["done", "pending", "failed", "abandoned", "stopped"]
    assert found["columns"] == ["run", "state", "loss", "C"]
    percent, _ = states(pd.DataFrame({"C": [1], "loss": ["80 %"]}))
    assert percent["rows"] == [["1", "done", "80 %", "1"]]


CURVES = pd.DataFrame(
    [(C, epoch, C + 1 / epoch) for C, n in ((1, 9), (2, 9), (5, 4)) for epoch in range(1, n)],
    columns=["C", "epoch", "loss"],
)
OLD_CURVES = pd.concat(
    [CURVES[CURVES["C"] < 5].assign(task=t, loss=CURVES["loss"] + t) for t in (0, 1)]
)


def test_a_row_a_step_is_one_run_with_its_state():
    runs = CURVES.copy()
    found, Y = states(runs, step="epoch")
    shown = [row[:2] for row in found["rows"]]
    assert shown == [["1", "done"], ["2", "done"], ["3", "stopped or running"]]
    assert np.isfinite(Y).all()
    assert Y[:2, 0] == pytest.approx(runs["loss"].iloc[[7, 15]])
    assert found["places"] == [7, 15, 18]
    runs["status"] = ["running"] * len(runs)
    runs.loc[7, "status"], runs.loc[15, "status"] = "complete", "stopped"
    found, _ = states(runs, step="epoch")
    assert [row[1] for row in found["rows"]] == ["done", "stopped", "running"]
    diverged = runs.assign(loss=runs["loss"].where(runs["C"] < 5, float("inf")))
    assert states(diverged, step="epoch")[0]["rows"][-1][1] == "failed"


def test_curves_have_predicted_ends_and_say_which_run_to_stop():
    tables = read_study(C_TO_SIX, OLD_CURVES, CURVES, step="epoch")
    found = room._curves(tables.outcomes[0], tables.curves["loss"])
    assert found["step"] == "epoch"
    assert [line.get("hopeless") for line in found["lines"]] == [None, None, True]
    assert ["end" in line for line in found["lines"]] == [False, False, True]
    end = found["lines"][2]["end"]
    assert end["low"] < 5.1 < end["high"]
    assert found["lines"][0]["y"] == pytest.approx([1 + 1 / k for k in range(1, 9)], rel=1e-4)
    stopped = read_study(C_TO_SIX, OLD_CURVES, CURVES.assign(status="stopped"), step="epoch")
    found = room._curves(stopped.outcomes[0], stopped.curves["loss"])
    assert not any("hopeless" in line for line in found["lines"])


def test_pictures_are_around_the_best_run_and_row_1_is_marked():
    kind = CategoricalParameter("kind", ("svm", "none"))
    depth = IntegerParameter("depth", 1, 9, active_if={"kind": "svm"})
    space = SearchSpace([kind, FloatParameter("x", 0.0, 1.0), depth])
    runs = pd.DataFrame({"kind": ["svm", "none", "svm"], "x": [0.1, 0.5, 0.8]})
    runs = runs.assign(depth=pd.array([2, None, 7], dtype="Int64"), loss=[0.3, 0.2, 0.1])
    X = space.encode(runs)
    model = SingleTaskGP(X, -torch.tensor(runs[["loss"]].to_numpy()))
    for row, at_row in ((0, [0.1, 2.0, "svm"]), (1, [0.5, None, "none"])):
        shown = told(suggestion_page(suggestion(space, runs.iloc[[row]], model, -1.0, runs), runs))
        assert shown["best"] == 2
        (found,) = shown["outcomes"]
        lines = {line["name"]: line for line in found["slices"]}
        assert [lines[name]["at"] for name in ("x", "depth", "kind")] == [0.8, 7.0, "svm"]
        assert [lines[name]["row"] for name in ("x", "depth", "kind")] == at_row
        assert lines["depth"]["runs"] == [2.0, None, 7.0]
        x = lines["x"]
        place = min(range(len(x["x"])), key=lambda i: abs(x["x"][i] - 0.8))
        assert x["mid"][place] == pytest.approx(0.1, abs=0.05)
    failed = runs.assign(status=["", "", "failed"])
    found = suggestion(space, runs.iloc[:1], model, -1.0, failed)
    assert told(suggestion_page(found, failed))["best"] == 1


def test_the_best_line_is_of_complete_runs():
    space = SearchSpace([FloatParameter("C", 0.0, 1.0)])
    X = torch.tensor([[0.1], [0.4], [0.9]], dtype=torch.double)
    runs = space.decode(X).assign(loss=[0.1, 0.3, 0.2])
    found = suggestion(space, space.decode(X[:1]), SingleTaskGP(X, -X), -1.0, runs)
    added = torch.tensor([[1.0], [0.0], [0.0]])
    stopped = found.tables._replace(runs=found.tables.runs._replace(added=added))
    (outcome,) = told(suggestion_page(found._replace(tables=stopped), runs))["outcomes"]
    assert outcome["best"] == [None, 0.3, 0.2]
    assert outcome["predicted"] == [True, False, False]


def test_outcomes_at_a_limit_are_named():
    space = SearchSpace([FloatParameter("C", 0.0, 1.0)])
    runs = space.sample(6, seed=0).assign(loss=[0.1, 0.2, 0.3, 0.15, 0.25, 9.0])
    for robust in (True, False):
        tables = read_study(space, None, runs, robust=robust)
        with brief_search():
            (outcome,) = told(suggestion_page(suggest_rows(tables), runs))["outcomes"]
        assert outcome["is_limited"] == robust
        assert (outcome["values"][-1] < 9) == robust


def test_cells_have_six_digits_as_in_the_table_of_runs():
    cells = [87.34567891, np.float64(0.0625), 7, "a", None, pd.NA, float("nan")]
    assert list(map(room._text, cells)) == ["87.3457", "0.0625", "7", "a", "", "", ""]


@pytest.fixture(scope="module")
def strange_page(tmp_path_factory):
    """Names that look like tags, many choices, and a failed and a pending run."""
    choices = (STRANGE, *(f"a rather long name of a choice, number {i}" for i in range(23)))
    space = SearchSpace([CategoricalParameter(STRANGE, choices), FloatParameter("x", 0.0, 1.0)])
    runs = space.sample(6, seed=0).assign(loss=[0.3, 0.1, 0.4, float("inf"), None, 0.2])
    runs["note"] = STRANGE
    done = runs.iloc[[0, 1, 2, 5]]
    X, Y = space.encode(done), -torch.tensor(done[["loss"]].to_numpy())
    old = space.encode(space.sample(8, seed=1))
    tasks = {f"{STRANGE} {i}": (old, old[:, -1:] * (i + 1)) for i in range(2)}
    sources = SourceGPs.fit(tasks, num_restarts=0)
    model = models.ScaMLGP(X, Y, sources).eval()
    found = suggestion(space, runs.iloc[:1], model, -1.0, runs, sources)
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(suggestion_page(found, runs), encoding="utf-8")
    return path


def test_names_stay_text(strange_page):
    page = strange_page.read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page
    assert told(page)["columns"][0] == STRANGE
    assert STRANGE in told(page)["runs"]["rows"][0]
    assert len(page) < 6e6


@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")
def test_the_page_in_a_browser(strange_page):
    with Browser() as browser:
        for width, dark in ((400, False), (2000, True)):
            browser.open(strange_page, width, dark)
            assert int(browser.run("document.body.dataset.drawn")) == 6
            assert browser.errors() == []
            assert browser.run(CUT_OFF) == []
        assert STRANGE in browser.run("document.querySelector('.next dt').textContent")
        assert browser.run("document.querySelectorAll('main b').length") == 2  # row 1, best run
        labels = browser.run("[...document.querySelectorAll('.ytick')].map(t => t.textContent)")
        assert any(label.startswith('<b>"A"') for label in labels)
        words = browser.run("[...document.querySelectorAll('.attention')].map(t => t.textContent)")
        assert words == ["failed", "pending"]
        order = "[...document.querySelectorAll('tbody')[0].rows].map(r => r.cells[0].textContent)"
        before = browser.run(order)
        for _ in range(2):  # down, then up
            browser.run("document.querySelector('th button').click()")
        assert browser.run(order) == sorted(before)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")
def test_a_page_with_curves_in_a_browser(tmp_path):
    tables = read_study(C_TO_SIX, OLD_CURVES, CURVES, step="epoch")
    with brief_search():
        page = suggestion_page(suggest_rows(tables, model="ScaMLGP"), CURVES)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    with Browser() as browser:
        browser.open(tmp_path / "page.html", 400)
        assert browser.errors() == []
        assert browser.run(CUT_OFF) == []
        text = browser.run("document.querySelector('main').innerText")
    for said in ("Stop run 3 if", "The best run so far, run 1.", "Around the best run"):
        assert said in text
    assert "2 done, 1 stopped or running." in text


def test_outcomes_without_a_model_and_models_without_their_own_predictions(monkeypatch):
    X = torch.rand(6, 1, dtype=torch.double)
    space, outcome = SearchSpace([FloatParameter("C", 0.0, 1.0)]), Outcome("loss", -1.0)
    found = suggestion(space, space.decode(X[:1]), SingleTaskGP(X, X), -1.0)
    (shown,) = told(suggestion_page(found._replace(models={}), None))["outcomes"] or [None]
    assert shown is None

    def refuse(model):
        raise UnsupportedError

    monkeypatch.setattr(room, "leave_one_out", refuse)
    assert room._left_out(SingleTaskGP(X, X), outcome) is None


# -------------------------------------------------------------------------- which parameters matter

LETTERS = CategoricalParameter("c", ("x", "y"))
SPACE = SearchSpace([FloatParameter("a", 0.0, 1.0), FloatParameter("b", 0.0, 1.0), LETTERS])


class Known(SingleTaskGP):
    """A posterior whose mean is a known function."""

    def posterior(self, X, **kwargs):
        posterior = super().posterior(X, **kwargs)
        posterior.distribution.loc = 3 * X[:, 0] + X[:, 1]
        return posterior


def test_shares_of_a_linear_function_are_its_squared_slopes():
    X = SPACE.encode(SPACE.sample(4, seed=0))
    found = parameter_importance(Known(X, X[:, :1], outcome_transform=None), SPACE)
    assert list(found.index[:2]) == ["a", "b"]
    assert found["this study"].to_dict() == pytest.approx({"a": 0.9, "b": 0.1, "c": 0}, abs=0.02)
    assert found["old tasks"].isna().all()


def test_old_tasks_count_alike_and_choices_as_a_whole():
    X = SPACE.encode(SPACE.sample(30, seed=0))
    sources = {"a": (X, X[:, :1]), "c": (X, X[:, 2:3]), "constant": (X, 0 * X[:, :1])}
    found = parameter_importance(ScaMLGP(X[:0], X[:0, :1], sources), SPACE)["old tasks"]
    assert found["a"] == pytest.approx(0.5, abs=0.1)
    assert found["c"] == pytest.approx(0.5, abs=0.1)
    assert found["b"] < 0.1
