from __future__ import annotations

import pickle

import torch

from botorch_transfer.kernels.weights import EnsembleWeights


def test_shares_start_equal_and_are_not_fitted():
    weights = EnsembleWeights(3, torch.Size([2]))
    assert weights.batch_shape == (2,)
    assert weights.weights.shape == (2, 3)
    assert torch.equal(weights.own, torch.tensor([0.25, 0.25]))
    assert not any(parameter.requires_grad for parameter in weights.parameters())


def test_set_normalizes():
    weights = EnsembleWeights(2).double()
    weights.set(torch.tensor([1.0, 0.0, 3.0]))
    assert weights.weights.tolist() == [0.25, 0.0]
    assert float(weights.own) == 0.75
    assert weights.shares.dtype == torch.double


def test_selects_from_the_batch():
    weights = EnsembleWeights(2, torch.Size([2]))
    weights.set(torch.tensor([[1.0, 1.0, 2.0], [0.0, 1.0, 0.0]]))
    assert weights[1].weights.tolist() == [0.0, 1.0]
    assert weights[0].batch_shape == ()


def test_travels_with_the_state():
    weights, other = EnsembleWeights(2), EnsembleWeights(2)
    weights.set(torch.tensor([1.0, 0.0, 3.0]))
    other.load_state_dict(weights.state_dict())
    assert torch.equal(other.shares, weights.shares)
    assert torch.equal(pickle.loads(pickle.dumps(weights)).shares, weights.shares)
