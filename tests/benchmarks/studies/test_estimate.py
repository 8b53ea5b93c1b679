import pandas as pd
import pytest

from benchmarks.studies.estimate import core_hours, estimate, seconds_a_run
from benchmarks.studies.study import plan
from tests.benchmarks.studies.toy import CHEAP, study


def test_the_first_runs_tell_what_the_others_cost(tmp_path):
    planned = study(CHEAP, seconds=0.0, seeds=3)
    table, hours = estimate(planned, tmp_path)
    done = [run for run in plan(planned, tmp_path) if run.path.exists()]
    assert [(run.problem.name, run.seed, run.method_name) for run in done] == [
        ("bowl", 0, "best of history"),
        ("bowl", 0, "random search"),
    ]
    assert hours > 0
    for line in table.splitlines()[2:]:
        assert line.split("|")[3].strip() == "5"


def test_costs_are_added_up_by_run():
    frame = pd.DataFrame(
        {
            "problem": ["a"] * 4,
            "seed": [0, 0, 1, 1],
            "method": ["m"] * 4,
            "cpu_seconds": [1.0, 2.0, 3.0, None],
        }
    )
    assert seconds_a_run(frame)["m"] == 3.0
    assert core_hours(frame) == pytest.approx(6 / 3600)
