"""Z-scores with few points, of one seed of a synthetic family."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from botorch.models import SingleTaskGP

from benchmarks import few_points


def test_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_points, "POINTS", (0, 2))
    command = ["--problems", "forrester-3", "--seeds", "1", "--out", str(tmp_path / "z.csv")]
    few_points.main(command)
    results = pd.read_csv(tmp_path / "z.csv")
    assert results["points"].tolist() == [0, 2]
    assert results["z"].between(0.2, 8.0).all()
    assert "| forrester-3 |" in capsys.readouterr().out
    few_points.main(command)  # what is finished is not repeated
    assert len(pd.read_csv(tmp_path / "z.csv")) == 2


def test_scores_are_those_of_the_definition() -> None:
    X = torch.rand(8, 1, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    model, Y = SingleTaskGP(X[:4], X[:4].sin()), X[4:].sin() + 0.1
    found = few_points.scores(model, X[4:], Y)
    posterior = model.posterior(X[4:], observation_noise=True)
    z = (Y - posterior.mean) / posterior.variance.sqrt()
    assert found["z"] == pytest.approx(z.square().mean().sqrt().item())
    nll = 0.5 * (z.square() + (2 * torch.pi * posterior.variance).log())
    assert found["nll"] == pytest.approx(nll.mean().item())


def test_models_that_need_data_start_at_one_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_points, "POINTS", (0, 1))
    out = tmp_path / "z.csv"
    choice = ["--problems", "forrester-3", "--models", "plain GP"]
    few_points.main([*choice, "--seeds", "1", "--out", str(out)])
    assert pd.read_csv(out)["points"].tolist() == [1]
    row = next(line for line in capsys.readouterr().out.splitlines() if "| forrester" in line)
    _, _, without_points, with_one, _ = (cell.strip() for cell in row.split("|"))
    assert not without_points
    assert with_one.endswith(")")


def test_missing_cells_are_blank_and_problems_in_order() -> None:
    rows = [("svm", 0, 1.0), ("svm", 8, 2.0), ("svm", 8, 4.0), ("mlp", 5, 0.5)]
    results = pd.DataFrame(rows, columns=["problem", "points", "z"]).assign(model="ScaML-GP")
    svm, mlp = few_points.table(results, "ScaML-GP").splitlines()[2:]
    assert [cell.strip() for cell in svm.split("|")[1:-1]] == [
        *("svm", "1.00 (1.0)", "", "", "", "", "3.00 (4.0)")
    ]
    assert [cell.strip() for cell in mlp.split("|")[1:-1]] == [
        *("mlp", "", "", "", "", "0.50 (0.5)", "")
    ]


def test_tables_need_their_folder() -> None:
    assert "svm" not in few_points.problem_names(None)
    assert "svm" in few_points.problem_names(Path("somewhere"))
