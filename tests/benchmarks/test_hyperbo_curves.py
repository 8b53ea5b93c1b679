"""Learning curves of pre-training, on made-up problems."""

from __future__ import annotations

import pytest
import torch

from benchmarks import hyperbo_curves as curves
from benchmarks.studies import TableProblem
from tests.families import ShiftedSines

FAMILY = ShiftedSines()


@pytest.fixture
def problem():
    X = FAMILY.inputs(12)
    history = {f"task {i}": (X[:8], FAMILY.value(X[:8], 0.2 * i)) for i in range(3)}
    return TableProblem("mlp: target", X, FAMILY.value(X, 0.5), history=history)


@pytest.mark.parametrize("objective", ["nll", "ekl"])
def test_curves_go_to_the_end(problem, objective):
    curve = curves.learning_curve(problem, "hyperbo", objective, steps=100)
    assert curve.validation_steps[:3] == [0, 2, 4]
    if objective == "nll":
        assert curve.validation_steps[-1] == len(curve.loss) == 100
    assert torch.tensor(curve.validation_loss).isfinite().all()


def test_table(problem, monkeypatch):
    monkeypatch.setattr(curves, "PRETRAINED", {"H-NLL": ("hyperbo", "nll")})
    lines = curves.curve_table([problem], steps=100).splitlines()
    assert len(lines) == 2 + len(curves.SHOWN)
    assert lines[-1].split("|")[2].strip() == "100"


def test_command(problem, monkeypatch, capsys):
    monkeypatch.setattr(curves, "read_problems", lambda *_: [problem] * 2)
    monkeypatch.setattr(curves, "PRETRAINED", {"ABLR": ("ablr", "nll")})
    curves.main(["--data", "nowhere", "--tables", "mlp", "--tasks", "1", "--steps", "50"])
    assert "mlp: 1 targets" in capsys.readouterr().out
