from __future__ import annotations

import pytest
import torch

pytest.importorskip("matplotlib")

from benchmarks.figures import hyperbo_synthetic as figures


def test_conditioning_and_divergence():
    matrix = figures.covariance(figures.DOMAIN, 1.0, "rbf")
    truth = torch.zeros(5, dtype=torch.double), matrix
    y = torch.randn(5, dtype=torch.double)
    joint = torch.linalg.inv(matrix + 1e-6 * torch.eye(5))
    mean, posterior = figures.condition(truth, y, 2)
    torch.testing.assert_close(posterior, torch.linalg.inv(joint[2:, 2:]), rtol=1e-3, atol=1e-4)
    expected = -torch.linalg.solve(joint[2:, 2:], joint[2:, :2] @ y[:2])
    torch.testing.assert_close(mean, expected, rtol=1e-3, atol=1e-4)
    assert figures.divergence(truth, truth) == pytest.approx(0, abs=1e-12)
    assert figures.divergence(truth, (truth[0] + 1, matrix)) == pytest.approx(0.5, rel=1e-4)


def test_the_pretrained_gp_is_nearest_to_the_truth():
    results = figures.finite_domain(num_tasks=10, num_tests=30)
    for t in range(5):
        assert results["pre-trained GP"][t] < results["unbiased"][t]
    for t in (2, 3, 4):
        assert results["unbiased"][t] < results["MLE estimate"][t]


def test_recovery_improves_with_tasks():
    few, many = figures.recovery(4, num_points=15), figures.recovery(64, num_points=15)
    assert many[0] < few[0]
    assert max(many) < 0.3


def test_command(tmp_path, capsys):
    path = tmp_path / "figure.png"
    figures.main(
        ["--tests", "3", "--steps", "300", "--tasks", "3", "--seeds", "1", "--out", str(path)]
    )
    printed = capsys.readouterr().out
    assert path.stat().st_size > 10_000
    cells = [line.split("|")[1:-1] for line in printed.splitlines() if "|" in line]
    rows = {name.strip(): values for name, *values in cells}
    test_nll = {name: float(rows[name][2]) for name in ("pre-trained GP", "single-task GP")}
    assert test_nll["pre-trained GP"] < test_nll["single-task GP"]
    assert "nan" not in printed
