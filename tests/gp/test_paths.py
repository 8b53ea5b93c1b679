import pytest
import torch
from botorch.sampling.pathwise import draw_matheron_paths

from botorch_transfer import GuardedTransferGP, PopulationGP, ScaMLGP
from botorch_transfer.gp.paths import MeanPath, ScaledPath
from botorch_transfer.gp.strategy import Strategy
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(4, seed=5)


def build(n=4):
    return GuardedTransferGP(*FAMILY.target(n), FAMILY.sources()).eval()


@torch.no_grad()
def test_factors_are_one_a_draw():
    mean = MeanPath(build().transfer.mean_module)
    factor = torch.tensor([1.0, -2.0], dtype=torch.double)
    draws = ScaledPath(mean, factor, 2 * factor)(TEST_X)
    torch.testing.assert_close(draws, factor.unsqueeze(-1) * (mean(TEST_X) + 2))


@pytest.mark.parametrize("model_class", [PopulationGP, ScaMLGP])
def test_draws_are_those_of_botorch(model_class, monkeypatch):
    """Of the same seed; a model whose prior has no expansion is drawn by BoTorch."""
    model, shape = model_class(*FAMILY.target(4), FAMILY.sources()).eval(), torch.Size([3])
    X = TEST_X.expand(3, 4, 2).clone().requires_grad_()
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        value = draw_matheron_paths(model, shape)(X)
        found.append((value, *torch.autograd.grad(value.sin().sum(), X)))
        model._clear_cache()
        monkeypatch.setattr(Strategy, "frozen_at", lambda *args: None)
    torch.testing.assert_close(*found, rtol=0, atol=1e-7)


def test_members_without_a_share_are_not_drawn():
    model = build()
    model.transfer_weight.data.fill_(1.0)
    path = draw_matheron_paths(model, torch.Size([2]))
    assert len(path["own units"].paths) == 1
