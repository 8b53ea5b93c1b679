"""Checkpoints and learning curves."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import Linear

from botorch_transfer.hyperbo.checkpoints import (
    FitState,
    LearningCurve,
    read_checkpoint,
    write_checkpoint,
)

OPTIMIZERS = {
    "adam": partial(torch.optim.Adam, fused=True),
    "lbfgs": partial(torch.optim.LBFGS, max_iter=1, line_search_fn="strong_wolfe"),
}


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


def state(**changes) -> FitState:
    return FitState(**{**vars(FitState(0, {}, {}, {}, LearningCurve())), **changes})


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_goes_on_where_it_was(kind, tmp_path: Path) -> None:
    whole, first, second = module(), module(), module()
    optimizers = [OPTIMIZERS[kind](each.parameters(), lr=0.1) for each in (whole, first, second)]
    for _ in range(3):
        step(whole, optimizers[0])
    for _ in range(2):
        step(first, optimizers[1])
    curve = LearningCurve([3.0, torch.nan], [0], [4.0], best_step=1)
    written = state(
        step=2,
        parameters=dict(first.named_parameters()),
        optimizer=optimizers[1].state_dict()["state"],
        curve=curve,
    )
    write_checkpoint(tmp_path / "run", "key", written)
    found = read_checkpoint(tmp_path / "run", "key")
    assert found is not None
    assert (found.step, found.best, found.finished) == (2, {}, False)
    assert repr(found.curve) == repr(curve)
    second.load_state_dict(found.parameters)
    optimizers[2].load_state_dict({**optimizers[2].state_dict(), "state": found.optimizer})
    step(second, optimizers[2])
    assert torch.equal(second.weight, whole.weight)
    assert torch.equal(second.bias, whole.bias)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "run", "key") is None


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run", "key", state())
    with pytest.raises(ValueError, match="other source data, starting values or options"):
        read_checkpoint(tmp_path / "run", "another key")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save({"key": "key", "state": Path("harmful")}, tmp_path / "run")
    with pytest.raises(ValueError, match="is damaged: delete it"):
        read_checkpoint(tmp_path / "run", "key")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_damaged_file_is_refused(share, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run", "key", state(parameters={"x": torch.rand(99)}))
    content = (tmp_path / "run").read_bytes()
    (tmp_path / "run").write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(tmp_path / "run", "key")
    torch.save({"step": 3}, tmp_path / "run")
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(tmp_path / "run", "key")


def test_a_curve_as_tensors_and_back() -> None:
    for curve in (LearningCurve([3.0, 2.5], [0, 2], [4.0, 3.5], best_step=2), LearningCurve()):
        assert LearningCurve.from_tensors(curve.tensors()) == curve
