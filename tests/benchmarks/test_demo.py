import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from benchmarks import demo
from botorch_transfer import suggest
from botorch_transfer.data import as_datasets
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


def test_the_method_is_suggest_on_tables():
    (problem,) = demo.problems("svm", ["iris_versicolor"])
    problem = problem.subsample(10, seed=0)
    space, method = demo.tuning_search_space("svm"), demo.demo_methods("svm")["suggest"]
    X = space.encode(space.sample(2, seed=0))
    Y = torch.tensor([[-0.3], [torch.nan]], dtype=torch.double)
    row = space.decode(method.suggest(problem, X, Y, seed=1).unsqueeze(0))
    old = [
        space.decode(data.X).assign(task=name, loss=-data.Y[:, 0].numpy())
        for name, data in zip(problem.history, as_datasets(problem.history), strict=True)
    ]
    runs = space.decode(X).assign(loss=[0.3, np.inf])
    expected = suggest(space, pd.concat(old, ignore_index=True), runs, seed=1)
    pd.testing.assert_frame_equal(row, expected[space.columns])
