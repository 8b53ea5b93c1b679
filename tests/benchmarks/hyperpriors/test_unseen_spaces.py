from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from benchmarks.hyperpriors.unseen_spaces import (
    METHODS,
    PLAIN,
    TABLES,
    main,
    paired_table,
    read_domains,
)
from botorch_transfer.pretraining import NetworkOptions


@pytest.fixture
def tables(tmp_path):
    """Made-up tables in the layout of the public ones."""
    rng = np.random.default_rng(0)
    values = list(range(5))
    params = {
        "depth": {"type": "ordinal", "values": values},
        "kind": {"type": "categorical", "choices": ["a", "b"]},
    }
    rows = pd.DataFrame(
        [(task, d, k) for task in "abc" for d in values for k in "ab"],
        columns=["task", "depth", "kind"],
    )
    rows["y"] = rng.random(len(rows)) + rows["depth"]
    folder = tmp_path / "data"
    (folder / "pmlb").mkdir(parents=True)
    spaces = {"spaces": {"KNN": {"depth": params["depth"]}, "SVC": params}}
    (folder / "pmlb" / "space.json").write_text(json.dumps(spaces))
    for name in spaces["spaces"]:
        rows.to_parquet(folder / "pmlb" / f"{name}.parquet")
    for name in TABLES:
        rows.to_parquet(folder / f"{name}.parquet")
        (folder / f"{name}.space.json").write_text(json.dumps({"params": params}))
    return folder


def test_domains_are_read(tables):
    domains = read_domains(tables, max_tasks=2, max_points=10)
    assert [domain.name for domain in domains] == ["KNN", "SVC", *TABLES]
    assert [domain.dim for domain in domains] == [1, 3, 3, 3, 3]
    for domain in domains:
        assert [len(task.X) for task in domain.datasets] == [10, 10]
        assert domain.discrete_dims == tuple(range(domain.dim))


def test_command(tables, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.hyperpriors.unseen_spaces.CHECKPOINTS", (4, 6))
    quick = partial(NetworkOptions, num_steps=5)
    monkeypatch.setattr("botorch_transfer.pretraining.hyperprior.NetworkOptions", quick)
    arguments = [str(tables), "--out", str(tmp_path / "out"), "--tasks", "1", "--points", "8"]
    arguments += ["--seeds", "2"]
    main(arguments)
    first = capsys.readouterr().out
    for name in ("KNN", "svm", "all", "MPHD @ 4", "SingleTaskGP @ 6", "minus SingleTaskGP"):
        assert name in first
    main(arguments)
    assert capsys.readouterr().out == first
    assert len(list((tmp_path / "out" / "unseen").iterdir())) == 5 * 2 * len(METHODS)


def test_differences_are_paired(monkeypatch):
    """Two seeds of a task are one observation, and a run that is over keeps its regret."""
    monkeypatch.setattr("benchmarks.hyperpriors.unseen_spaces.CHECKPOINTS", (1, 9))
    runs = {label: [[0.5, 0.0], [0.3, 0.1], [0.2, 0.2], [0.2, 0.2]] for label in METHODS}
    runs["MPHD"] = [[0.1, 0.0], [0.3, 0.1], [0.2, 0.4], [0.2, 0.2]]
    assert PLAIN in METHODS
    row = next(line for line in paired_table({"one": runs}, 2).splitlines() if "MPHD" in line)
    first, last = (cell.strip() for cell in row.split("|")[2:4])
    assert first == "-0.100 [-0.200, +0.000], 1 : 0"
    assert last == "+0.050 [+0.000, +0.100], 0 : 1"
