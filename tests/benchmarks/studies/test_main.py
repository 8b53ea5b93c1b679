import json

import pandas as pd
import pytest

from benchmarks.studies import __main__ as program
from benchmarks.studies.definitions import DEFINITIONS, Definition
from benchmarks.studies.run import Budget
from benchmarks.studies.study import RESULTS
from tests.benchmarks.studies.toy import table

METHODS = ["best of history", "plain GP", "random search"]
BUDGET = Budget(evaluations=3, initial=2, history_size=6)


TOY = Definition(
    "Toy", "nowhere", lambda folder: [table("one"), table("two", 5)], BUDGET, METHODS, seeds=1
)


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    monkeypatch.setitem(DEFINITIONS, "svm", TOY)


def test_study_is_estimated_run_and_reported(tmp_path, capsys):
    folder = tmp_path / "study"
    program.main(["run", "svm", "--out", str(folder), "--quiet", "--seeds", "2"])
    printed = capsys.readouterr().out
    assert "core-hours are missing" in printed
    assert printed.index("| plain GP") < printed.index("results: ")
    results = pd.read_parquet(folder / RESULTS)
    assert len(results) == 2 * 2 * 3 * BUDGET.evaluations

    program.main(["report", str(folder)])
    printed = capsys.readouterr().out
    assert printed.startswith("# Toy\n")
    assert "2 target(s), 2 seed(s), 4 cases" in printed
    out = folder / "report"
    assert (out / "README.md").read_text() + "\n" == printed
    for line in printed.splitlines():
        if line.startswith("!["):
            assert (out / line.split("](")[1][:-1]).stat().st_size > 5_000
    assert printed.count("![") == 1
    assert "nan" not in printed

    program.main(["report", str(folder), "--methods", "plain GP", "random search"])
    assert "best of history" not in capsys.readouterr().out


def test_a_study_that_grows_keeps_what_it_has(tmp_path, capsys):
    options = ["--out", str(tmp_path), "--quiet", "--no-estimate"]
    program.main(["run", "svm", *options, "--suites", "one", "--methods", "random search"])
    program.main(["run", "svm", *options, "--seeds", "2", "--methods", "plain GP"])
    results = pd.read_parquet(tmp_path / RESULTS)
    found = results.groupby("method")[["problem", "seed"]].nunique()
    assert found.loc["random search"].tolist() == [1, 1]
    assert found.loc["plain GP"].tolist() == [2, 2]
    about = (tmp_path / program.ABOUT).read_text()
    with pytest.raises(ValueError, match=r"acquisition .*, not ucb: choose another folder"):
        program.main(["run", "svm", *options, "--acquisition", "ucb"])
    assert (tmp_path / program.ABOUT).read_text() == about
    told = json.loads(about)["commands"]
    assert [each.split(" run svm ")[1] for each in told] == [
        "--suites one --methods 'random search'",
        "--seeds 2 --methods 'plain GP'",
    ]
    results["cpu_seconds"] = 3600.0 / BUDGET.evaluations  # an hour a run
    results.to_parquet(tmp_path / RESULTS)
    capsys.readouterr()
    program.main(["report", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "1 cases that all 2 methods" in printed
    assert "2.00 core-hours" in printed
    assert all(f"    {each}\n" in printed for each in told)
    with pytest.raises(ValueError, match="compared with the plain GP: run it and another method"):
        program.main(["report", str(tmp_path), "--methods", "plain GP"])
