"""Learning from failures: `suggest` with the model of failures."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.models.model import Model

from botorch_transfer import FloatParameter, ScaMLGP, SearchSpace, models, suggest
from botorch_transfer.data.measurements import Outcome
from botorch_transfer.suggestion import read_study
from botorch_transfer.suggestion.outcomes import learn_failures, make_acquisition, named_model

pytestmark = pytest.mark.usefixtures("_brief_search")

SPACE = SearchSpace([FloatParameter("lr", 1e-4, 1.0, log=True), FloatParameter("wd", 0.0, 1.0)])


def loss(rows: pd.DataFrame, lr: float = -2.2) -> pd.Series:
    return (np.log10(rows["lr"]) - lr) ** 2 / 4 + (rows["wd"] - 0.5) ** 2


def _old_runs() -> pd.DataFrame:
    parts = [SPACE.sample(15, seed=seed).assign(task=f"task {seed}") for seed in range(2)]
    table = pd.concat(parts, ignore_index=True)
    return table.assign(loss=loss(table))


OLD = _old_runs()


def in_strip(rows: pd.DataFrame) -> pd.Series:
    """A tenth of the space, beside the old optimum."""
    return rows["lr"].between(10**-2.1, 10**-1.7)


def test_a_strip_that_fails_is_left():
    runs = pd.DataFrame()
    for _ in range(7):
        row = suggest(SPACE, OLD, runs, model=ScaMLGP)[SPACE.columns]
        row["loss"] = loss(row).mask(in_strip(row))
        row["status"] = np.where(in_strip(row), "failed", "ok")
        runs = pd.concat([runs, row], ignore_index=True)
    assert 1 <= (runs["status"] == "failed").sum() <= 3
    assert runs["loss"].min() < 0.02


@pytest.mark.parametrize("column", ["none", "status"])
def test_old_failures_count_from_the_first_row_on(column):
    lost = SPACE.sample(30, seed=9).assign(task="task 0")
    lost["lr"] = 10 ** (-2.2 + 0.2 * np.log10(lost["lr"] / 1e-2))
    if column == "status":
        lost["status"] = "failed"
    history = pd.concat([OLD, lost], ignore_index=True)
    expected = suggest(SPACE, OLD, model=ScaMLGP)
    tables = read_study(SPACE, history)
    feasibility = learn_failures(tables.runs, tables.sources["loss"], tables.old_failed)
    assert feasibility.log_probability(SPACE.encode(expected)).item() < -0.5
    assert not suggest(SPACE, history, model=ScaMLGP).equals(expected)
    abandoned = suggest(SPACE, history.assign(status="abandoned"), model=ScaMLGP)
    pd.testing.assert_frame_equal(abandoned, expected)


def test_pending_and_abandoned_runs_are_no_failures():
    """Only pending ones are awaited, and neither are suggested again."""
    runs = SPACE.sample(3, seed=4).assign(loss=[0.4, np.nan, np.nan])
    waiting, ended = (suggest(SPACE, OLD, table, model=ScaMLGP) for table in (runs, runs.head(1)))
    assert not ended.equals(waiting)
    states = {"pending": waiting, None: waiting, "abandoned": ended, "not measured": ended}
    for status, expected in states.items():
        row = suggest(SPACE, OLD, runs.assign(status=status), model=ScaMLGP)
        pd.testing.assert_frame_equal(row, expected)
    again = pd.concat([runs.head(1), ended[SPACE.columns].assign(status="abandoned")])
    other = suggest(SPACE, OLD, again, model=ScaMLGP)
    assert (SPACE.encode(other) - SPACE.encode(ended)).abs().max() > 1e-3


def test_inputs_of_failed_old_runs():
    table = OLD.assign(status="ok")
    table.loc[[0, 3], "loss"] = np.nan
    table.loc[1, "loss"] = np.inf
    table.loc[2, "status"] = "Failed"
    # All of a task without any success say nothing, nor does a run that lacks a value.
    other = SPACE.sample(2, seed=1).assign(task="never", loss=np.nan, status="failed")
    empty = SPACE.sample(1, seed=1).assign(task="task 0", loss=np.nan, status="failed", lr=np.nan)
    both = pd.concat([table, other, empty], ignore_index=True)
    for history, rows in ((both, [1, 2]), (both.drop(columns="status"), [0, 1, 3])):
        found = read_study(SPACE, history).old_failed
        torch.testing.assert_close(found, SPACE.encode(table.iloc[rows]))


def test_the_reference_point_is_worse_than_the_front():
    X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
    fitted = [SingleTaskGP(X, X), SingleTaskGP(X, 1 - X)]
    acquisition = make_acquisition(fitted, [Outcome("a", 1.0), Outcome("b", 1.0)], X, X, seed=0)
    means = torch.cat([model.posterior(X).mean for model in fitted], dim=-1)
    low, high = means.aminmax(dim=0)
    torch.testing.assert_close(acquisition.ref_point, low - 0.1 * (high - low))


def _no_arguments(X, Y):
    return None


def _nothing(X, Y, sources, train_Yvar=None):
    return None


POINT = torch.rand(2, 1, dtype=torch.double)
NO_MODELS = [dict, int, print, pd.DataFrame, torch.nn.Linear, MultiTaskGP, Model, True]


@pytest.mark.parametrize("model", [*NO_MODELS, _no_arguments, SingleTaskGP(POINT, POINT)])
def test_what_is_no_model_is_refused_in_one_short_sentence(model):
    with pytest.raises(TypeError, match=r"^model is .*: give a model class or its name") as caught:
        named_model(model)
    assert len(str(caught.value)) < 120


def test_callables_that_make_models_are_models():
    for make in (partial(ScaMLGP, max_sources=3), lambda X, Y, old, **more: None):
        assert named_model(make) is make
    for name in models.__all__:
        assert named_model(getattr(models, name)) is named_model(name)
    with pytest.raises(TypeError, match="a callable that returns a NoneType: give a model class"):
        suggest(SPACE, OLD, model=_nothing)
