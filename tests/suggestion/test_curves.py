"""Tables with learning curves: runs that were stopped early are noisy runs."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from pandas import DataFrame, concat, read_csv

from botorch_transfer import FloatParameter, SearchSpace, suggest
from botorch_transfer.__main__ import main
from botorch_transfer.curves import read_curves
from botorch_transfer.gp.likelihood import AddedNoiseLikelihood
from botorch_transfer.models import ScaMLGP
from botorch_transfer.suggestion import read_study, suggest_rows

pytestmark = pytest.mark.usefixtures("_brief_search")

SPACE = SearchSpace([FloatParameter("C", 0.0, 1.0)])


def curves(task: str, C: list[float], length: int = 10, shift: float = 0.0) -> DataFrame:
    rows = [
        (task, c, k, shift + (c - 0.3) ** 2 + (0.5 + c) / k)
        for c in C
        for k in range(1, length + 1)
    ]
    return DataFrame(rows, columns=["task", "C", "epoch", "loss"])


OLD = concat([curves(f"task {i}", list(np.linspace(0, 1, 9)), shift=0.1 * i) for i in range(3)])
NEW = curves("new", [0.1, 0.5, 0.9]).drop(columns="task")
PARTIAL = NEW[(NEW["C"] < 0.4) | (NEW["epoch"] <= 4)]
FINAL = NEW[NEW["epoch"] == 10]["loss"].to_numpy()


def test_partial_runs_have_predicted_outcomes_with_a_variance() -> None:
    runs = read_study(SPACE, OLD, PARTIAL, step="epoch", robust=False).runs
    assert (runs.added[:, 0] > 0).tolist() == [False, True, True]
    last = PARTIAL.groupby("C")["loss"].last().to_numpy()
    errors = np.abs(-runs.Y[:, 0].numpy() - FINAL)
    assert (errors[1:] < 0.5 * np.abs(last - FINAL)[1:]).all()
    assert errors[0] == 0


def test_complete_curves_say_the_same_as_their_last_rows() -> None:
    ends = [frame[frame["epoch"] == 10].drop(columns="epoch") for frame in (OLD, NEW)]
    expected = suggest(SPACE, *ends, "loss", "min", model=ScaMLGP)
    found = suggest(SPACE, OLD, NEW, "loss", "min", model=ScaMLGP, step="epoch")
    assert found.equals(expected)


def test_the_model_learns_its_noise_and_adds_the_variances() -> None:
    tables = read_study(SPACE, OLD, PARTIAL, step="epoch")
    for model in (None, ScaMLGP):
        fitted = suggest_rows(tables, model=model).models["loss"]
        for member in getattr(fitted, "members", {"": fitted}).values():
            assert isinstance(member.likelihood, AddedNoiseLikelihood)
            assert (member.likelihood.added > 0).tolist() == [False, True, True]


@pytest.mark.parametrize("run", [None, "name"])
def test_rows_of_a_run_may_be_in_any_order(run: str | None) -> None:
    """With a name for each run, equal parameters do not matter, either."""
    old, new = OLD.assign(name=OLD["C"].map(str)), PARTIAL.assign(name=PARTIAL["C"].map(str))
    if run is not None:
        old, new = old.assign(C=0.5), new.assign(C=0.5)
    mixed = [frame.sample(frac=1.0, random_state=0) for frame in (old, new)]
    tables = [read_study(SPACE, *pair, step="epoch", run=run) for pair in ((old, new), mixed)]
    for name in tables[0].sources["loss"]:
        known = [torch.hstack([t.X, t.Y]) for t in (each.sources["loss"][name] for each in tables)]
        assert sorted(known[0].tolist()) == sorted(known[1].tolist())
    Y = [each.runs.Y[:, 0].sort().values for each in tables]
    torch.testing.assert_close(*Y)
    assert len(Y[0]) == 3


def test_equal_runs_follow_one_another() -> None:
    runs = DataFrame({"C": 0.5, "epoch": [1, 2, 1, 2, 3], "loss": [5.0, 4.0, 5.0, 3.0, 2.0]})
    found = read_curves(runs, "loss", "epoch", run=["C"])
    assert [curve.steps.tolist() for curve in found] == [[1, 2], [1, 2, 3]]


def test_stopped_runs_wait_until_a_run_is_complete(caplog: pytest.LogCaptureFixture) -> None:
    ends = OLD[OLD["epoch"] == 10].drop(columns="epoch")
    stopped = PARTIAL[PARTIAL["C"] > 0.4].assign(status="stopped")
    with caplog.at_level(logging.WARNING):
        runs = read_study(SPACE, ends, stopped, step="epoch").runs
    assert (len(runs.X), len(runs.waiting)) == (0, 2)
    assert "2 runs get no predicted outcome" in caplog.text
    both = concat([stopped, PARTIAL[PARTIAL["C"] < 0.4].assign(status="complete")])
    runs = read_study(SPACE, ends, both, step="epoch").runs  # now its own curves tell
    assert (len(runs.X), len(runs.waiting)) == (3, 0)


@pytest.mark.parametrize(
    ("end", "unit", "status", "told"),
    [(4, 1, "", 1), (4, 1, "stopped", 0), (4, 1, "OK", 0), (4, 9, "stopped", 1), (6, 1, "", 0)],
)
def test_curves_of_another_length_are_named(end, unit, status, told, caplog) -> None:
    runs = NEW[NEW["epoch"] <= end].assign(status=status)
    read_study(SPACE, OLD, runs.assign(epoch=unit * runs["epoch"]), step="epoch")
    text = f"'epoch' ends at {unit * end} in this study's learning curves, but at 10 in old curves"
    assert caplog.text.count(text) == told


def test_a_run_that_diverged_has_failed() -> None:
    diverged = PARTIAL.assign(loss=PARTIAL["loss"].where(PARTIAL["epoch"] < 4))
    runs = read_study(SPACE, OLD, diverged[diverged["C"] > 0.4], step="epoch").runs
    assert (len(runs.X), len(runs.failed)) == (0, 2)


def test_logarithms_and_outcomes_without_history() -> None:
    runs = PARTIAL.assign(time=PARTIAL["epoch"] * PARTIAL["C"])
    complete = concat([runs, curves("", [0.2, 0.3]).assign(time=3.0)])
    old, outcomes = OLD.assign(time=OLD["epoch"]), ["loss", "time"]
    tables = read_study(SPACE, old, complete, outcomes, "min", log="loss", step="epoch")
    assert (tables.runs.added[:, 0] > 0).sum() == 2
    np.testing.assert_allclose(-tables.runs.Y[0, 0], np.log(FINAL[0]))
    without = tables._replace(sources={**tables.sources, "time": None})
    assert suggest_rows(without, model=ScaMLGP).rows.notna().all(axis=None)


def test_the_command_reads_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, frame in (("old", OLD), ("runs", PARTIAL)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    spec = '{"params": {"C": {"type": "float", "low": 0, "high": 1}}}'
    (tmp_path / "space.json").write_text(spec)
    files = [str(tmp_path / name) for name in ("space.json", "old.csv", "runs.csv")]
    options = ["--step", "epoch", "--model", "ScaMLGP", "--append"]
    assert main(["suggest", *files, *options]) == 0, capsys.readouterr().err
    after = read_csv(tmp_path / "runs.csv")
    assert len(after) == len(PARTIAL) + 1
    assert after["epoch"].isna().tolist()[-1]
