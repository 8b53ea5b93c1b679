from __future__ import annotations

import pytest
import torch

BOUNDS = torch.tensor([[-1.0, 0.0], [1.0, 2.0]], dtype=torch.double)


def bowl(X, center=0.2):
    return -(X - center).square().sum(dim=-1, keepdim=True)


@pytest.fixture(scope="session")
def bounds():
    return BOUNDS


@pytest.fixture(scope="session")
def history():
    generator = torch.Generator().manual_seed(0)
    tasks = {}
    for number, (n, center) in enumerate([(25, 0.2), (20, 0.3), (15, 0.1)]):
        X = BOUNDS[0] + 2 * torch.rand(n, 2, generator=generator, dtype=torch.double)
        tasks[f"source {number}"] = (X, 100 + 10 * bowl(X, center))
    return tasks


@pytest.fixture(scope="session")
def target():
    """Five points of a task that is the history's, in other units."""
    X = BOUNDS[0] + 2 * torch.rand(
        5, 2, generator=torch.Generator().manual_seed(5), dtype=torch.double
    )
    return X, 100 + 10 * bowl(X)
