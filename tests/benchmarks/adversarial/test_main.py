from __future__ import annotations

import pandas as pd
import pytest
import torch

from benchmarks.adversarial import __main__ as command
from benchmarks.adversarial import histories
from benchmarks.adversarial.tables import table_problems
from benchmarks.studies.run import Budget


def test_the_command_leaves_its_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(histories, "POOL_SIZE", 30)
    monkeypatch.setattr(histories, "NUM_TASKS", 2)
    monkeypatch.setattr(command, "FAMILIES", {"branin": histories.FAMILIES["branin"]})
    monkeypatch.setattr(command, "HISTORIES", ("inverted",))
    run = command.run
    monkeypatch.setattr(command, "run", lambda parts, out: run(parts, out, Budget(5, initial=3)))
    command.main(["--out", str(tmp_path), "--seeds", "2", "--methods", "plain GP"])
    assert "guarded" not in capsys.readouterr().out
    command.main(["--out", str(tmp_path), "--seeds", "2"])
    printed = capsys.readouterr().out
    for expected in ("guarded / plain", "branin inverted", "after 5", "at best", "by seed"):
        assert expected in printed
    assert (tmp_path / "summary.md").read_text() == printed
    results = pd.read_parquet(tmp_path / "results.parquet")
    assert results["error"].isna().all()
    assert len(results) == 2 * 5 * 5
    # The report alone, on other seeds.
    other = ["--first-seed", "2", "--seeds", "1", "--methods", "guarded"]
    command.main(["--out", str(tmp_path / "other"), *other])
    printed = capsys.readouterr().out
    assert "by seed" in printed
    assert "guarded / plain" not in printed
    assert set(pd.read_parquet(tmp_path / "other" / "results.parquet")["problem"]) == {
        "branin inverted 2"
    }


def test_tables_are_left_out_one_task_at_a_time(tmp_path):
    torch.manual_seed(0)
    rows = [
        {"task": f"t{task}", "C": 1.0 + 0.1 * row, "y": float(row * task)}
        for task in range(4)
        for row in range(120)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "toy.parquet")
    (tmp_path / "toy.space.json").write_text(
        '{"goal": "max", "params": {"C": {"type": "float", "low": 1.0, "high": 13.0}}}'
    )
    problems = table_problems("toy", tmp_path, num_targets=2)
    assert [problem.name for problem in problems] == ["toy t0", "toy t2"]
    assert "t2" not in problems[1].history
    assert len(problems[1].history) == 3
    assert problems[1].Y.shape == (120, 1)
    with pytest.raises(FileNotFoundError):
        table_problems("none", tmp_path, 2)
