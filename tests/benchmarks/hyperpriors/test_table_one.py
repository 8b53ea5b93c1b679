from __future__ import annotations

import pytest
import torch

from benchmarks.hyperpriors import recovery, table_one
from benchmarks.hyperpriors.recovery import Sizes
from benchmarks.hyperpriors.table_one import (
    PAPER,
    main,
    only_draw,
    random_score,
    regret_table,
    test_tasks,
)
from botorch_transfer import Hyperprior
from botorch_transfer.test_functions import SMALL_SUPER_DATASET

test_tasks.__test__ = False  # type: ignore[attr-defined]


def test_setups_hold_out_what_the_paper_does():
    unseen = test_tasks("A", 0, num_domains=4, num_tasks=10)
    assert {(number, task) for number, task, _ in unseen} == {
        (number, task) for number in range(16, 20) for task in range(10)
    }
    seen = test_tasks("B", 0, num_domains=20, num_tasks=2)
    assert [(number, task) for number, task, _ in seen[:3]] == [(0, 8), (0, 9), (1, 8)]
    assert len(seen) == 40


def test_hyperbo_is_the_domains_own_gp():
    drawn = SMALL_SUPER_DATASET.draw(2, 2, 20, seed=1)
    learned = Hyperprior.fit(drawn.domains, "universal", "matern32", "raw", num_restarts=0)
    own = only_draw(learned.estimates.select([1]))
    assert len(own) == 1
    first = drawn.domains[0].dim
    assert torch.equal(own.lengthscale[0], learned.estimates.lengthscale[first:])
    assert torch.equal(own.noise, learned.estimates.noise[1:])


@pytest.mark.parametrize(("setup", "members"), [("A", "4"), ("A", "0"), ("B", "0")])
def test_command(setup, members, tmp_path, monkeypatch, capsys):
    original = type(SMALL_SUPER_DATASET).draw

    def small(self, num_domains=None, num_tasks=None, num_points=None, seed=0):
        return original(self, num_domains or 17, num_tasks or 9, 15, seed)

    monkeypatch.setattr(type(SMALL_SUPER_DATASET), "draw", small)
    monkeypatch.setattr(table_one, "NUM_TRAINING_TASKS", 1)
    for module in (recovery, table_one):
        monkeypatch.setattr(module, "SMALL_SIZES", Sizes(2, 1, 15))
    arguments = ["--out", str(tmp_path), "--setups", setup, "--seeds", "1", "--domains", "1"]
    arguments += ["--tasks", "1", "--steps", "2", "--samples", "20", "--members", members]
    main(arguments)
    first = capsys.readouterr().out
    for name in PAPER[setup]:
        assert name in first
    main(arguments)
    assert capsys.readouterr().out == first
    assert len(list((tmp_path / "table-1").iterdir())) == len(PAPER[setup])


def test_table():
    found = {"A": {name: [[0.1, 0.3], [0.2, 0.2]] for name in PAPER["A"]}}
    found["A"]["random"] = [[0.2, 0.6], [0.5, 0.7]]
    rows = [line.split("|") for line in regret_table(found).splitlines()]
    cells = {row[2].strip(): [cell.strip() for cell in row[3:6]] for row in rows}
    assert cells["HyperBO+"] == ["0.200 ± 0.000", "0.032", ""]
    assert cells["truth"] == ["0.200 ± 0.000", "0.022", "+0.000 [+0.000, +0.000]"]
    assert cells["random"][:2] == ["0.500 ± 0.100", ""]
    assert cells["random"][2].startswith("+0.300 [+0.")


def test_random_search_follows_its_seed():
    first, same, other = (random_score(8, seed)([0, 1]) for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
