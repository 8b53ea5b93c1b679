from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import Linear

from botorch_transfer.pretraining.pretrained.checkpoints import (
    FitState,
    LearningCurve,
    copied,
    optimizer_state,
    put_back,
    read_checkpoint,
    restore_optimizer,
    write_checkpoint,
)

OPTIMIZERS = [torch.optim.Adam, torch.optim.LBFGS]


def step(module: Linear, optimizer: torch.optim.Optimizer) -> None:
    X = torch.linspace(-1, 1, 6).reshape(3, 2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (module(X) - X.prod(dim=-1, keepdim=True)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def module() -> Linear:
    torch.manual_seed(0)
    return Linear(2, 1)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_goes_on_where_it_was(kind, tmp_path: Path) -> None:
    whole, first, second = module(), module(), module()
    optimizers = [kind(each.parameters(), lr=0.1) for each in (whole, first, second)]
    for _ in range(3):
        step(whole, optimizers[0])
    for _ in range(2):
        step(first, optimizers[1])
    state = FitState(
        step=2,
        parameters=copied(dict(first.named_parameters())),
        best={},
        optimizer=optimizer_state(optimizers[1]),
        curve=LearningCurve(),
    )
    write_checkpoint(tmp_path / "run", "key", state)
    found = read_checkpoint(tmp_path / "run", "key")
    assert found is not None
    assert (found.step, found.best, found.finished) == (2, {}, False)
    put_back(dict(second.named_parameters()), found.parameters)
    restore_optimizer(optimizers[2], *found.optimizer)
    step(second, optimizers[2])
    assert torch.equal(second.weight, whole.weight)
    assert torch.equal(second.bias, whole.bias)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "run", "key") is None


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    state = FitState(0, {}, {}, ({}, {}), LearningCurve())
    write_checkpoint(tmp_path / "run", "key", state)
    with pytest.raises(ValueError, match="other source data, starting values or options"):
        read_checkpoint(tmp_path / "run", "another key")


def test_copies_do_not_follow() -> None:
    layer = module()
    kept = copied(dict(layer.named_parameters()))
    with torch.no_grad():
        layer.weight += 1
    assert not torch.equal(kept["weight"], layer.weight)
    put_back(dict(layer.named_parameters()), kept)
    assert torch.equal(kept["weight"], layer.weight)
