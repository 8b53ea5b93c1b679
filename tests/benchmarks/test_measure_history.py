from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks.history_spaces import SPACES, evaluate, sample_configs
from benchmarks.history_tasks import TASKS
from benchmarks.measure_history import measure
from botorch_transfer.datasets import load_tuning_history, tuning_search_space

TINY = {
    "spaces": ["svm", "forest"],
    "tasks": ["iris_versicolor", "wine_second_cultivar"],
    "configs": 1,
}


def without_times(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns="fit_seconds")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The table of a measurement without a break."""
    out = tmp_path_factory.mktemp("history") / "table.csv.gz"
    measure(out, **TINY)
    return out


@pytest.fixture(scope="module")
def uninterrupted(finished) -> pd.DataFrame:
    return pd.read_csv(finished)


def test_a_measurement_killed_in_the_middle_of_a_line_resumes_to_the_same_table(
    tmp_path, finished, uninterrupted
):
    out = tmp_path / "table.csv.gz"
    partial = tmp_path / "table.csv.gz.partial.jsonl"
    before = finished.with_name(partial.name).read_text()
    lines = before.splitlines(keepends=True)
    kept = "".join(lines[:2])
    partial.write_text(kept + lines[2][:-15])
    measure(out, **TINY)
    assert partial.read_text().startswith(kept)
    assert partial.read_text().count("\n") == len(uninterrupted)
    pd.testing.assert_frame_equal(without_times(pd.read_csv(out)), without_times(uninterrupted))


@pytest.mark.parametrize("space", SPACES)
def test_live_evaluation_reproduces_shipped_rows(space):
    history = load_tuning_history(space).dropna(subset="log_loss")
    if space == "mlp":  # where training is chaotic, another processor's rounding shows
        history = history[(history["solver"] != "adam") | (history["learning_rate"] < 0.1)]
    history = history.sample(1, random_state=1)
    names = [p.name for p in tuning_search_space(space).parameters]
    for _, row in history.iterrows():
        live = evaluate(space, row["task"], row[names].to_dict())
        assert live["log_loss"] == pytest.approx(row["log_loss"], rel=2e-3)
        assert live["accuracy"] == pytest.approx(row["accuracy"], abs=0.02)


@pytest.mark.parametrize("space", SPACES)
def test_shipped_configurations_are_the_planned_ones(space):
    history = load_tuning_history(space)
    task = TASKS[3]
    names = [p.name for p in tuning_search_space(space).parameters]
    shipped = history.loc[history["task"] == task, names].reset_index(drop=True)
    planned = pd.DataFrame(sample_configs(space, task, len(shipped)), columns=names)
    pd.testing.assert_frame_equal(shipped, planned, check_dtype=False)
