from pathlib import Path

import pandas as pd

from benchmarks.studies import LiveProblem, Study, run_study
from benchmarks.studies.methods import RandomSearch
from benchmarks.studies.study import RESULTS, plan
from tests.benchmarks.studies.toy import BUDGET, live, study

TIMES = ["suggest_seconds", "evaluate_seconds", "cpu_seconds"]


def finished(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "runs").glob("*.json")}


def test_a_study_that_was_killed_resumes_to_identical_results(tmp_path):
    planned = study(seeds=2)
    uninterrupted = run_study(planned, tmp_path, n_jobs=1)
    for run in plan(planned, tmp_path)[3:]:
        run.path.unlink()
    (tmp_path / RESULTS).unlink()
    kept = finished(tmp_path)
    resumed = run_study(planned, tmp_path, n_jobs=1)
    now = finished(tmp_path)
    assert len(kept) == 3 < len(now)
    assert {name: now[name] for name in kept} == kept
    pd.testing.assert_frame_equal(resumed.drop(columns=TIMES), uninterrupted.drop(columns=TIMES))


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
