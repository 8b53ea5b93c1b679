from __future__ import annotations

import torch

from botorch_transfer.pretraining.hyperprior.distribution import HyperparameterDraws


def test_selection_and_conversion():
    numbers = torch.arange(3, dtype=torch.double)
    draws = HyperparameterDraws(numbers, numbers.unsqueeze(-1).repeat(1, 2), numbers, numbers)
    assert len(draws) == 3
    chosen = draws[torch.tensor([2, 2, 0])]
    assert chosen.lengthscale.tolist() == [[2, 2], [2, 2], [0, 0]]
    assert chosen.noise.tolist() == [2, 2, 0]
    assert draws.to(torch.zeros(1)).constant.dtype == torch.float
