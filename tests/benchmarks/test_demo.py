import pytest

pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks import demo
from tests.suggestion.brief_search import brief_search


@pytest.fixture(autouse=True)
def _brief_search():
    with brief_search():
        yield


def test_demo_prints_a_table_and_saves_picture_and_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "INITIAL", 2)
    monkeypatch.setattr(demo, "HISTORY_SIZE", 5)
    options = ["--space", "svm", "--tasks", "iris_versicolor", "--seeds", "1", "--jobs", "1"]
    demo.main([*options, "--evaluations", "3", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    for method in demo.demo_methods("svm"):
        (line,) = [line for line in printed.splitlines() if line.startswith(f"| {method} ")]
        assert "nan" not in line
    assert "failed" not in printed
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert (tmp_path / "demo.parquet").exists()
    assert "</html>" in (tmp_path / "demo.html").read_text(encoding="utf-8")
