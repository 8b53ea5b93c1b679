import pytest

from benchmarks.studies.development import __main__ as program
from benchmarks.studies.development.suites import GROUPS, SUITES


@pytest.mark.usefixtures("random_methods")
def test_a_study_is_run_and_reported(folder, tmp_path, capsys):
    out = ["--out", str(tmp_path / "study")]
    options = [*out, "--data", str(folder), "--quiet", "--targets", "2"]
    chosen = ["--suites", "svm", "svm_shuffled", "--methods", "gp", "scaml"]
    program.main(["run", *options, *chosen])
    assert "0 runs failed" in capsys.readouterr().out
    program.main(["report", *out])
    printed = capsys.readouterr().out
    assert printed.startswith("6 runs, ")
    assert "| svm_shuffled " in printed


def test_suites_are_chosen_by_name_or_group():
    few = list(GROUPS["few_sources"])
    assert program.suites(["few_sources", "svm_1", "rf"]) == [*few, SUITES["rf"]]


def test_the_folder_of_tables_is_needed(capsys):
    with pytest.raises(SystemExit):
        program.main(["run"])
    assert "--data" in capsys.readouterr().err
