import pandas as pd
import pytest

from benchmarks import planted_study as study


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(study, "TABLES", {"shipped svm": study.TABLES["shipped svm"]})
    for name, value in {"NUM_TASKS": 2, "NUM_ROWS": 10, "SHARES": (0.1,)}.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(study, "VALUES", (-999.0, 1e30))


def test_a_study_resumes_and_records_exceptions(tmp_path, capsys, monkeypatch):
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--runs", "2"]
    monkeypatch.setattr(study, "EVALUATIONS", 2)
    monkeypatch.setattr(study, "REGRETS", study.REGRETS[:2])
    seen, suggest = list[pd.DataFrame](), study.suggest

    def fragile(space, history, runs, *others, **options):
        seen.append(runs)
        if (history["log_loss"] == 1e30).any() and len(runs):
            raise RuntimeError("no,\nluck")
        return suggest(space, history, runs, *others, **options)

    monkeypatch.setattr(study, "suggest", fragile)
    study.main(options)
    printed = capsys.readouterr().out
    path = tmp_path / "out" / study.RUNS
    found = study.finished(path)
    assert found[["share", "value"]].to_numpy().tolist() == 2 * [[0, 0], [0.1, -999], [0.1, 1e30]]
    assert found["target"].nunique() == 2
    assert found["error"].dropna().tolist() == 2 * ["RuntimeError: no, luck"]
    assert found["regret_1"].between(0, 1).all()
    assert found["regret_2"].isna().tolist() == 2 * [False, False, True]
    lines = printed.splitlines()
    assert [line.split(" | ")[-1] for line in lines[2:]] == [f"{n} (0) |".rjust(20) for n in "02"]

    text, calls = path.read_text().splitlines(keepends=True), len(seen)
    path.write_text("".join(text[:-1]))
    study.main(options)
    assert path.read_text() == "".join(text)
    assert len(seen) == calls + 2
    study.main(["--out", str(tmp_path / "out"), "--report"])
    assert capsys.readouterr().out == 2 * printed
