"""Values of GP hyperparameters: estimates for domains, and draws from a hyperprior.

Read this for what step 1 of pre-training a hyperprior returns, and what sampling from one returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from pandas import DataFrame
from torch import Tensor


@dataclass(frozen=True)
class HyperparameterDraws:
    """``R`` draws of the hyperparameters of a GP with ``d`` inputs.

    Args:
        constant: An ``R`` tensor of constant means.
        lengthscale: An ``R x d`` tensor.
        outputscale: An ``R`` tensor of signal variances.
        noise: An ``R`` tensor of noise variances.
    """

    constant: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor

    def __len__(self) -> int:
        return len(self.constant)

    def __getitem__(self, index: Any) -> HyperparameterDraws:
        """Selects draws."""
        return HyperparameterDraws(*(getattr(self, part.name)[index] for part in fields(self)))

    def to(self, other: Tensor) -> HyperparameterDraws:
        """Moves the draws to the dtype and the device of a tensor."""
        return HyperparameterDraws(*(getattr(self, part.name).to(other) for part in fields(self)))


@dataclass(frozen=True)
class DomainEstimates:
    """Penalized maximum likelihood estimates for ``N`` domains with ``D`` inputs in total.

    Means and variances are in the units in which the domains were fitted.

    Args:
        names: The domains' names.
        constant: An ``N`` tensor of constant means.
        lengthscale: A ``D`` tensor: the lengthscales of all domains, concatenated.
        outputscale: An ``N`` tensor of signal variances.
        noise: An ``N`` tensor of noise variances.
        dims: An ``N`` tensor of integers: each domain's number of inputs.
        context: A ``D x s`` tensor: the context of each input.
        log_likelihood: An ``N`` tensor of log likelihoods, summed over tasks, before the noise is
            raised to its lower bound; NaN after a fit on sub-samples.
        outcome_mean: An ``N`` tensor: the mean of the tasks' mean outcomes, in the user's units.
        outcome_std: An ``N`` tensor: the root mean square of the tasks' standard deviations.
    """

    names: tuple[str, ...]
    constant: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor
    dims: Tensor
    context: Tensor
    log_likelihood: Tensor
    outcome_mean: Tensor
    outcome_std: Tensor

    @classmethod
    def from_tensors(cls, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Self:
        """Builds estimates from what :meth:`tensors` returned."""
        return cls(names=tuple(names), **tensors)

    def tensors(self) -> dict[str, Tensor]:
        """All fields but the names, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "names"}

    @property
    def domain_of_input(self) -> Tensor:
        """A ``D`` tensor: the number of each lengthscale's domain."""
        domains = torch.arange(len(self.dims), device=self.dims.device)
        return domains.repeat_interleave(self.dims)

    def select(self, indices: Sequence[int]) -> DomainEstimates:
        """Selects domains.

        Args:
            indices: The domains' numbers, in ascending order.

        Returns:
            Their estimates.
        """
        domains = torch.as_tensor(indices, dtype=torch.long, device=self.dims.device)
        inputs = torch.isin(self.domain_of_input, domains)
        per_input = {"lengthscale", "context"}
        return type(self).from_tensors(
            [self.names[index] for index in indices],
            {
                name: tensor[inputs] if name in per_input else tensor[domains]
                for name, tensor in self.tensors().items()
            },
        )

    def to_frame(self) -> DataFrame:
        """Makes a table with a row for each input; values of a domain are repeated."""
        domain = self.domain_of_input
        position = torch.cat([torch.arange(size) for size in self.dims.tolist()])
        rows = {
            "domain": [self.names[index] for index in domain.tolist()],
            "input": position.tolist(),
            "lengthscale": self.lengthscale.tolist(),
        }
        for name in ("constant", "outputscale", "noise", "log_likelihood"):
            rows[name] = getattr(self, name)[domain].tolist()
        for column, values in enumerate(self.context.mT.tolist()):
            rows[f"context {column}"] = values
        return DataFrame(rows)
