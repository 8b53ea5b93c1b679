from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from benchmarks.hyperpriors.unseen_spaces import TABLES, main, read_domains
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
    arguments = [str(tables), "--out", str(tmp_path / "out"), "--tasks", "1", "--points", "10"]
    main(arguments)
    first = capsys.readouterr().out
    for name in ("KNN", "svm", "all", "MPHD @ 4", "SingleTaskGP @ 6"):
        assert name in first
    main(arguments)
    assert capsys.readouterr().out == first
