"""The leave-one-task-out study, on a made-up table of the same form."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("pyarrow")

from benchmarks import hyperbo_study as study


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    x = random.random((30, 2))
    rows = []
    for task in range(4):
        y = 0.4 + 0.3 * ((x - 0.3 - 0.05 * task) ** 2).sum(axis=1)
        y[task] = [np.nan, 1e9, 0.5, np.inf][task]
        rows += [
            {"task": f"task {task}", "config": i, "a": a, "b": b, "y": value}
            for i, ((a, b), value) in enumerate(zip(x, y, strict=True))
        ]
    pd.DataFrame(rows).to_parquet(tmp_path / "rnn_optimizer.parquet")
    unit = {"type": "float", "low": 0.0, "high": 1.0}
    space = {"goal": "min", "params": {"a": unit, "b": unit}}
    (tmp_path / "rnn_optimizer.space.json").write_text(json.dumps(space))
    return tmp_path


def test_problems(folder):
    problems = study.read_problems(folder, "rnn_optimizer", num_rows=20)
    assert len(problems) == 4
    for problem in problems:
        assert problem.X.shape == (20, 2)
        assert len(problem.history) == 3
        assert problem.Y.min() >= -1.0
        assert problem.Y.isfinite().all()
        one, other = (
            [task.X for task in problem.instance(seed, 8).history.values()] for seed in (0, 1)
        )
        assert all(torch.equal(X, one[0]) for X in one)  # so that the EKL applies
        assert len(one[0]) == 8
        assert not torch.equal(one[0], other[0])  # each seed has another history
        assert problem.name.removeprefix("rnn_optimizer: ") not in problem.history


@pytest.mark.parametrize("hold_out", [[], ["--hold-out", "0.25"]])
def test_command(folder, capsys, monkeypatch, tmp_path, hold_out):
    monkeypatch.setattr(study, "AT", (1, 4))
    monkeypatch.setattr(study, "NUM_CONTEXT", (0, 3))
    arguments = ["--tables", "rnn_optimizer", "--seeds", "1", "--rows", "20", "--history", "8"]
    arguments += ["--steps", "5", "--tasks", "1", "--out", str(tmp_path / "out"), *hold_out]
    study.main(["--data", str(folder), *arguments])
    printed = capsys.readouterr().out
    suffix = ", 0.25 held out" if hold_out else ""
    for method in (*(f"{name}{suffix}" for name in study.PRETRAINED), "ScaML-GP", "plain GP"):
        lines = [line for line in printed.splitlines() if line.startswith(f"| {method} ")]
        assert len(lines) == 2
    assert "random search" in printed
