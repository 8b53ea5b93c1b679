from importlib.resources import files

import pandas as pd
import pytest
import torch

from botorch_transfer.datasets import load_tuning_history, tuning_search_space

SPACES = ["svm", "gbm", "mlp", "forest"]


@pytest.fixture(scope="module")
def history() -> pd.DataFrame:
    return load_tuning_history()


def test_file_is_small():
    table = files("botorch_transfer.datasets") / "tuning_history.csv.gz"
    assert len(table.read_bytes()) <= 400_000


def test_table_has_four_spaces_with_enough_tasks_and_configurations(history):
    assert list(history["space"].unique()) == SPACES
    sizes = history.groupby(["space", "task"]).size().unstack()
    assert sizes.shape[1] >= 10
    assert sizes.notna().all(axis=None)
    assert sizes.min(axis=None) >= 128


def test_every_task_has_configurations_of_its_own(history):
    svm = history[history["space"] == "svm"]
    assert not svm.duplicated(["C", "gamma"]).any()


@pytest.mark.parametrize("space", SPACES)
def test_one_space_has_its_own_columns_and_rows(space, history):
    frame = load_tuning_history(space)
    names = [p.name for p in tuning_search_space(space).parameters]
    outcomes = ["log_loss", "accuracy", "fit_seconds"]
    assert list(frame.columns) == ["space", "task", *names, *outcomes]
    assert (frame["space"] == space).all()
    assert len(frame) == (history["space"] == space).sum()


@pytest.mark.parametrize("space", SPACES)
def test_parameters_lie_inside_the_space_and_fill_it(space):
    frame = load_tuning_history(space)
    for parameter in tuning_search_space(space).parameters:
        column = frame[parameter.name]
        if hasattr(parameter, "values"):
            assert set(column.dropna()) == set(parameter.values)
            continue
        assert column.min() >= parameter.lower
        assert column.max() <= parameter.upper
        assert column.median() > parameter.lower
        if not parameter.log:
            assert column.max() - column.min() > 0.95 * (parameter.upper - parameter.lower)


def test_whole_numbers_are_integers():
    dtypes = load_tuning_history("mlp").dtypes
    assert dtypes["hidden_layers"] == dtypes["hidden_units"] == dtypes["batch_size"] == "int64"


@pytest.mark.parametrize("space", SPACES)
def test_conditional_parameters_are_missing_exactly_where_inactive(space):
    frame = load_tuning_history(space)
    for parameter in tuning_search_space(space).parameters:
        active = pd.Series(True, index=frame.index)
        for parent, values in (parameter.active_if or {}).items():
            active &= frame[parent].isin(values)
        assert (frame[parameter.name].notna() == active).all()


@pytest.mark.parametrize("space", SPACES)
def test_outcomes_are_plausible(space):
    frame = load_tuning_history(space)
    finite = frame["log_loss"].notna()
    assert (finite == frame["accuracy"].notna()).all()
    assert finite.groupby(frame["task"]).mean().min() > 0.8
    assert finite.all() or space == "mlp"
    assert frame["log_loss"].dropna().between(1e-3, 7).all()
    assert frame["accuracy"].dropna().between(0, 1).all()
    assert (frame["fit_seconds"] > 0).all()
    # tuning matters on every task: the best run is well below the median one
    by_task = frame.groupby("task")["log_loss"]
    assert (by_task.min() < 0.98 * by_task.median()).all()


def test_some_runs_failed():
    assert load_tuning_history("mlp")["log_loss"].isna().any()


@pytest.mark.parametrize("space", SPACES)
def test_history_encodes_into_the_unit_cube(space):
    search_space = tuning_search_space(space)
    X = search_space.encode(load_tuning_history(space))
    assert X.shape[1] == search_space.bounds.shape[-1]
    assert torch.isfinite(X).all()
    assert ((X >= 0) & (X <= 1)).all()
    assert len(X.unique(dim=0)) > 0.99 * len(X)


def test_unknown_space_is_refused():
    with pytest.raises(
        ValueError, match="no search space 'svn': choose one of svm, gbm, mlp, forest"
    ):
        load_tuning_history("svn")
    with pytest.raises(
        ValueError, match="no search space 'svn': choose one of svm, gbm, mlp, forest"
    ):
        tuning_search_space("svn")
