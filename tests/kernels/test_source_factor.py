from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from torch.distributions import MultivariateNormal

from botorch_transfer.kernels.source_conditional import FactorMemory, SourceFactor, log_density


def test_log_density():
    root = torch.rand(3, 4, 4, dtype=torch.double).tril() + torch.eye(4)
    Y = torch.rand(3, 4, dtype=torch.double)
    whitened = torch.linalg.solve_triangular(root, Y.unsqueeze(-1), upper=False)
    expected = MultivariateNormal(torch.zeros_like(Y), scale_tril=root).log_prob(Y)
    torch.testing.assert_close(log_density(root, whitened), expected)


def remembered():
    memory, data, values = FactorMemory(), torch.rand(3), torch.rand(2)
    factor = SourceFactor((torch.eye(3),), (torch.ones(3),), torch.zeros(()))
    memory.remember((data, values), factor)
    return memory, data, values, factor


def test_equal_hyperparameters_recall():
    memory, data, values, factor = remembered()
    assert memory.recall((data, values.clone())) is factor
    assert deepcopy(memory).recall((data, values)) is factor


def _replaced(data, values):
    return data.clone(), values


def _written_into(data, values):
    return data.add_(1), values


def _other_values(data, values):
    return data, values + 1


def _other_dtype(data, values):
    return data, values.double()


@pytest.mark.parametrize("change", [_replaced, _written_into, _other_values, _other_dtype])
def test_changes_forget(change):
    memory, data, values, _ = remembered()
    assert memory.recall(change(data, values)) is None


def test_pickles_start_empty():
    memory, data, values, _ = remembered()
    assert pickle.loads(pickle.dumps(memory)).recall((data, values)) is None
    assert FactorMemory().recall((data, values)) is None
