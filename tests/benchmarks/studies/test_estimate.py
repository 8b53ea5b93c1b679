from benchmarks.studies.estimate import estimate
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
