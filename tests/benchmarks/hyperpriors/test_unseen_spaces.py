from __future__ import annotations

from functools import partial

from benchmarks.hyperpriors.unseen_spaces import (
    METHODS,
    PLAIN,
    main,
    paired_table,
)
from botorch_transfer.pretraining import NetworkOptions


def test_command(tables, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.hyperpriors.unseen_spaces.CHECKPOINTS", (4, 5))
    quick = partial(NetworkOptions, num_steps=5)
    monkeypatch.setattr("botorch_transfer.hyperprior.prior.NetworkOptions", quick)
    arguments = [str(tables), "--out", str(tmp_path / "out"), "--tasks", "1", "--points", "8"]
    arguments += ["--seeds", "1", "--evaluations", "5"]
    main(arguments)
    first = capsys.readouterr().out
    for name in ("KNN", "svm", "all", "MPHD @ 4", "SingleTaskGP @ 5", "minus SingleTaskGP"):
        assert name in first
    main(arguments)
    assert capsys.readouterr().out == first
    assert len(list((tmp_path / "out" / "unseen").glob("*/*.json"))) == 5 * len(METHODS)


def test_differences_are_paired():
    """Two seeds of a task are one observation, and a run that is over keeps its regret."""
    runs = {label: [[0.5, 0.0], [0.3, 0.1], [0.2, 0.2], [0.2, 0.2]] for label in METHODS}
    runs["MPHD"] = [[0.1, 0.0], [0.3, 0.1], [0.2, 0.4], [0.2, 0.2]]
    assert PLAIN in METHODS
    table = paired_table({"one": runs}, 2, [1, 9])
    row = next(line for line in table.splitlines() if "MPHD" in line)
    first, last = (cell.strip() for cell in row.split("|")[2:4])
    assert first == "-0.100 [-0.200, +0.000], 1 : 0"
    assert last == "+0.050 [+0.000, +0.100], 0 : 1"
