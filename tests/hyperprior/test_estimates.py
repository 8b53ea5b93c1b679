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


def test_a_table_to_look_at():
    frame = estimates().to_frame()
    assert frame["domain"].tolist() == ["a", "a", "b", "c", "c", "c"]
    assert frame["input"].tolist() == [0, 1, 0, 0, 1, 2]
    assert frame["lengthscale"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frame["noise"].tolist() == [20, 20, 21, 22, 22, 22]
    assert frame["context 1"].tolist() == [1, 3, 5, 7, 9, 11]


def test_selection_of_domains():
    selected = estimates().select([0, 2])
    assert selected.names == ("a", "c")
    assert selected.constant.tolist() == [0, 2]
    assert selected.lengthscale.tolist() == [0, 1, 3, 4, 5]
    assert selected.context[:, 0].tolist() == [0, 2, 6, 8, 10]
    assert selected.dims.tolist() == [2, 3]


def test_tensors_and_back():
    original = estimates()
    twin = DomainEstimates(original.names, **original.tensors())
    assert twin.to_frame().equals(original.to_frame())
    assert "names" not in original.tensors()


def test_conversion_of_draws():
    numbers = torch.arange(3, dtype=torch.double)
    draws = HyperparameterDraws(numbers, numbers.unsqueeze(-1).repeat(1, 2), numbers, numbers)
    assert draws.to(torch.zeros(1)).constant.dtype == torch.float
