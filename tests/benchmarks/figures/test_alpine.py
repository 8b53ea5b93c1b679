from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.figures.alpine import Prediction, alpine, main, predict, source_task, target_task

X = torch.linspace(-10, 10, 101, dtype=torch.double)


@pytest.fixture(scope="module")
def predictions() -> dict[str, Prediction]:
    return predict(X)


def test_family() -> None:
    x = torch.tensor([torch.pi / 2, torch.pi], dtype=torch.double)
    torch.testing.assert_close(alpine(x, 0.0), -x * x.sin())
    torch.testing.assert_close(alpine(x, 2.0) - alpine(x, 0.5), 1.5 * x)


def test_data_lie_where_the_paper_says() -> None:
    source, _ = source_task()
    assert source.shape == (20, 1)
    assert source.max() <= 0
    assert source.min() >= -10
    assert target_task()[0].flatten().tolist() == [1, 2, 3, 4]


def test_uncertainty_on_the_right(predictions: dict[str, Prediction]) -> None:
    deviation = {name: p.deviation[X > 6].mean() for name, p in predictions.items()}
    covered = {name: p.covers(alpine(X, -0.5))[X > 6] for name, p in predictions.items()}
    assert deviation["MHGP"] < 0.4 * min(deviation["SHGP"], deviation["BHGP"])
    assert covered["MHGP"].double().mean() < 0.5
    assert bool(covered["SHGP"].all())
    assert bool(covered["BHGP"].all())


def test_uncertainty_on_the_left(predictions: dict[str, Prediction]) -> None:
    left = X < -0.5
    deviation = {name: p.deviation[left].mean() for name, p in predictions.items()}
    assert deviation["BHGP"] == pytest.approx(float(deviation["MHGP"]), rel=0.1)
    # SHGP follows the source model there.
    assert deviation["SHGP"] < 0.1
    difference = predictions["SHGP"].mean - predictions["source"].mean
    assert difference[left].abs().max() < 1.5


def test_means_of_mhgp_and_bhgp_agree(predictions: dict[str, Prediction]) -> None:
    torch.testing.assert_close(predictions["MHGP"].mean, predictions["BHGP"].mean)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("MHGP", "BHGP", "SHGP"))
    assert (tmp_path / "alpine.png").stat().st_size > 10_000
