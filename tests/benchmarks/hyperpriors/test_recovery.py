from __future__ import annotations

import pytest
import torch

from benchmarks.hyperpriors.recovery import Sizes, estimated_shape, main, some_domains, step_one
from botorch_transfer.test_functions import SMALL_SUPER_DATASET

TINY = Sizes(num_domains=3, num_tasks=2, num_points=12)


def test_fewer_domains(tmp_path):
    learned = step_one("S", SMALL_SUPER_DATASET, TINY, 0, tmp_path)
    assert len(learned.estimates.names) == 3
    again = step_one("S", SMALL_SUPER_DATASET, TINY, 0, tmp_path)
    assert torch.equal(again.estimates.lengthscale, learned.estimates.lengthscale)
    assert some_domains(learned, 3, seed=0) == []
    left_out = {tuple(some_domains(learned, 2, seed)) for seed in range(9)}
    assert left_out == {(0,), (1,), (2,)}
    expected = float(learned.lengthscale_parameters[0])
    assert estimated_shape(learned, 3, seed=0) == pytest.approx(expected)


def test_command(tmp_path, capsys):
    sizes = ["--tasks", "2", "--points", "12", "--domains", "2", "3", "--steps", "5"]
    arguments = ["--out", str(tmp_path), "--seeds", "1", *sizes]
    main(arguments)
    first = capsys.readouterr().out
    assert "shape (truth 10)" in first
    assert "KL with the network" in first
    main(arguments)
    assert capsys.readouterr().out == first
