from __future__ import annotations

import pytest
import torch
from botorch.models import SingleTaskGP

from benchmarks.hyperpriors import recovery, table_one
from benchmarks.hyperpriors.recovery import Sizes
from benchmarks.hyperpriors.table_one import PAPER, hyperbo, main, regret_table, test_tasks
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
    X, Y = drawn.domains[1].datasets[0].X[:6], drawn.domains[1].datasets[0].Y[:6]
    model = hyperbo(learned.estimates, 1)(X, Y, None)
    assert isinstance(model, SingleTaskGP)
    own = learned.estimates.select([1])
    torch.testing.assert_close(model.covar_module.base_kernel.lengthscale[0], own.lengthscale)
    torch.testing.assert_close(model.likelihood.noise, own.noise, rtol=1e-5, atol=0)


@pytest.mark.parametrize("setup", ["A", "B"])
def test_command(setup, tmp_path, monkeypatch, capsys):
    original = type(SMALL_SUPER_DATASET).draw

    def small(self, num_domains=None, num_tasks=None, num_points=None, seed=0):
        return original(self, num_domains or 17, num_tasks or 9, 15, seed)

    monkeypatch.setattr(type(SMALL_SUPER_DATASET), "draw", small)
    monkeypatch.setattr(table_one, "NUM_TRAINING_TASKS", 1)
    for module in (recovery, table_one):
        monkeypatch.setattr(module, "SMALL_SIZES", Sizes(2, 1, 15))
    arguments = ["--out", str(tmp_path), "--setups", setup, "--seeds", "1", "--domains", "1"]
    arguments += ["--steps", "2", "--samples", "20", "--members", "4"]
    main(arguments)
    first = capsys.readouterr().out
    for name in PAPER[setup]:
        assert name in first
    main(arguments)
    assert capsys.readouterr().out == first
    assert len(list((tmp_path / "table-1").iterdir())) == len(PAPER[setup])


def test_table():
    found = {"A": {name: [[0.1, 0.3], [0.2, 0.2]] for name in PAPER["A"]}}
    row = next(line for line in regret_table(found).splitlines() if "truth" in line)
    assert [cell.strip() for cell in row.split("|")[3:5]] == ["0.200 ± 0.000", "0.022"]
