"""The runner with rivals that need no other environment."""

import pandas as pd

from benchmarks.rivals.__main__ import OURS, report
from benchmarks.studies.methods import RandomSearch
from benchmarks.studies.methods.external import External
from benchmarks.studies.run import Budget
from benchmarks.studies.study import Study, run_study
from tests.benchmarks.studies.toy import table


def test_a_run_through_a_process_resumes_and_is_reported(tmp_path):
    rivals = {OURS: RandomSearch(), "sorted": External("lists:Sorted")}
    study = Study([table("a: one"), table("b: one")], rivals, [0], Budget(5, initial=2))
    results = run_study(study, tmp_path, n_jobs=1)
    assert results["error"].isna().all()
    assert not results.duplicated(["problem", "method", "evaluation", "value"]).all()
    pd.testing.assert_frame_equal(run_study(study, tmp_path, n_jobs=1), results)
    rows = [line for line in report(results).splitlines() if line.startswith("| sorted")]
    assert len(rows) == 1
