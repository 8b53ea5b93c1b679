"""The study of failures."""

from __future__ import annotations

import sys

import pandas as pd

from benchmarks import failures


def test_a_study_is_run_once(monkeypatch, tmp_path):
    monkeypatch.setattr(failures, "TRIALS", 1)
    command = ["failures", "--seeds", "1", "--models", "ScaMLGP", "--scenarios", "strip"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path)])
    failures.main()
    table = pd.read_csv(tmp_path / "runs.csv")
    assert table["learns"].tolist() == [True, False]
    assert table["regret"].nunique() <= 1  # without a failure, there is nothing to learn
    before = (tmp_path / "runs.csv").read_text()
    failures.main()
    assert (tmp_path / "runs.csv").read_text() == before
