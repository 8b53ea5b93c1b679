"""Estimates of domains, and draws."""

from __future__ import annotations

import torch

from botorch_transfer.hyperprior.fit import DomainEstimates, HyperparameterDraws


def estimates() -> DomainEstimates:
    numbers = torch.arange(3, dtype=torch.double)
    return DomainEstimates(
        names=("a", "b", "c"),
        constant=numbers,
        lengthscale=torch.arange(6, dtype=torch.double),
        outputscale=numbers + 10,
        noise=numbers + 20,
        dims=torch.tensor([2, 1, 3]),
        context=torch.arange(12, dtype=torch.double).reshape(6, 2),
        log_likelihood=numbers + 30,
        outcome_mean=numbers + 40,
        outcome_std=numbers + 50,
    )


def test_tensors_and_back():
    original = estimates()
    twin = DomainEstimates(original.names, **original.tensors())
    for name, tensor in original.tensors().items():
        assert twin.tensors()[name] is tensor
    assert "names" not in original.tensors()


def test_conversion_of_draws():
    numbers = torch.arange(3, dtype=torch.double)
    draws = HyperparameterDraws(numbers, numbers.unsqueeze(-1).repeat(1, 2), numbers, numbers)
    assert draws.to(torch.zeros(1)).constant.dtype == torch.float
