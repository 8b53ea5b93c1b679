import time
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
from joblib import parallel_config

from benchmarks.studies import LiveProblem, Study, run_study
from benchmarks.studies.methods import RandomSearch
from benchmarks.studies.study import RESULTS, gather, plan, run_missing
from tests.benchmarks.studies.toy import BUDGET, CHEAP, live, study, table

TIMES = ["suggest_seconds", "evaluate_seconds", "cpu_seconds"]


def without_times(results: pd.DataFrame) -> pd.DataFrame:
    return results.drop(columns=TIMES)


def finished(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "runs").glob("*.json")}


def test_a_study_that_was_killed_resumes_to_identical_results(tmp_path):
    planned = study(CHEAP, seeds=2)
    uninterrupted = run_study(planned, tmp_path, n_jobs=1)
    for run in plan(planned, tmp_path)[3:]:
        run.path.unlink()
    (tmp_path / RESULTS).unlink()
    kept = finished(tmp_path)
    resumed = run_study(planned, tmp_path, n_jobs=1)
    now = finished(tmp_path)
    assert len(kept) == 3 < len(now)
    assert {name: now[name] for name in kept} == kept
    pd.testing.assert_frame_equal(without_times(resumed), without_times(uninterrupted))


def test_number_of_processes_does_not_change_results(tmp_path):
    planned = Study([table()], CHEAP, [0, 1], BUDGET)
    one = run_study(planned, tmp_path / "one", n_jobs=1)
    with parallel_config(backend="threading", n_jobs=2):
        two = run_study(planned, tmp_path / "two")
    pd.testing.assert_frame_equal(without_times(one), without_times(two))


@dataclass(frozen=True)
class Slow(RandomSearch):
    """Random search that takes a third of a second a run, or longer."""

    def suggest(self, problem, X, Y, seed):
        time.sleep(0.5 / BUDGET.evaluations)
        return super().suggest(problem, X, Y, seed)


def test_nothing_is_begun_after_the_time_is_up(tmp_path):
    planned = Study([live()], {"slow": Slow()}, range(12), BUDGET)
    with parallel_config(backend="threading"):
        run_study(planned, tmp_path, n_jobs=2, time_limit=0.2)
    assert 0 < len(finished(tmp_path)) <= 2


def test_a_part_of_a_study_can_be_run_and_the_whole_gathered(tmp_path):
    whole = study(CHEAP, seeds=2)
    first = run_study(replace(whole, seeds=[0]), tmp_path, n_jobs=1)
    run_missing(replace(whole, seeds=[1]), tmp_path, n_jobs=1)
    assert len(pd.read_parquet(tmp_path / RESULTS)) == len(first)
    results = gather(tmp_path)
    assert set(results["seed"]) == {0, 1}
    assert len(pd.read_parquet(tmp_path / RESULTS)) == len(results) == 2 * len(first)


def test_runs_of_two_settings_are_not_mixed(tmp_path):
    planned = study(CHEAP, seeds=1)
    run_study(planned, tmp_path, n_jobs=1)
    longer = replace(planned, budget=replace(BUDGET, evaluations=6))
    with pytest.raises(ValueError, match="has runs of other data or settings, too: take a new"):
        run_study(longer, tmp_path, n_jobs=1)


def breaks(x):
    raise RuntimeError("the machine broke")


def test_failed_runs_are_recorded_and_not_fatal(tmp_path, caplog):
    problems = [LiveProblem("broken", breaks, dim=1), live()]
    planned = Study(problems, {"random search": RandomSearch()}, [0], BUDGET)
    results = run_study(planned, tmp_path, n_jobs=1)
    assert "random search on broken, seed 0, failed: RuntimeError: the machine broke" in caplog.text
    broken = results[results["problem"] == "broken"]
    assert broken["evaluation"].tolist() == [1]
    assert "the machine broke" in broken["error"].item()
    assert broken["value"].isna().all()
    assert results[results["problem"] == "bowl"]["value"].notna().sum() == BUDGET.evaluations
    saved = pd.read_parquet(tmp_path / RESULTS)
    assert saved["error"].notna().sum() == 1
    kept = finished(tmp_path)
    run_study(planned, tmp_path, n_jobs=1)
    assert finished(tmp_path) == kept


def test_problems_need_names_of_their_own(tmp_path):
    with pytest.raises(ValueError, match="Two problems of the study have the same name"):
        run_study(Study([table("a"), live("a")], CHEAP, [0], BUDGET), tmp_path)
