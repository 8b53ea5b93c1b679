"""What step 1 of pre-training a hyperprior finds: the hyperparameters of each domain's GP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from pandas import DataFrame
from torch import Tensor


@dataclass(frozen=True)
class DomainEstimates:
    """Penalized maximum likelihood estimates of ``N`` domains with ``D`` inputs in all.

    Outcomes are in the units in which the domains were fitted.

    Args:
        names: The domains' names.
        constant: An ``N`` tensor of constant means.
        lengthscale: A ``D`` tensor: the lengthscales of all domains, one domain after another.
        outputscale: An ``N`` tensor of signal variances.
        noise: An ``N`` tensor of noise variances.
        dims: An ``N`` tensor of integers: each domain's number of inputs.
        context: A ``D x s`` tensor: the context of each input.
        log_likelihood: An ``N`` tensor, summed over tasks, before the noise is raised to its least
            value; NaN after a fit by sub-samples.
        outcome_mean: An ``N`` tensor: the mean of the tasks' mean outcomes, in the user's units.
        outcome_std: An ``N`` tensor: the root mean square of the tasks' outcome deviations.
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
        """Builds estimates of the tensors that :meth:`tensors` gave."""
        return cls(names=tuple(names), **tensors)

    def tensors(self) -> dict[str, Tensor]:
        """All fields but the names, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "names"}

    @property
    def domain_of_input(self) -> Tensor:
        """A ``D`` tensor: the number of the domain that each lengthscale is of."""
        domains = torch.arange(len(self.dims), device=self.dims.device)
        return domains.repeat_interleave(self.dims)

    def select(self, indices: Sequence[int]) -> DomainEstimates:
        """The estimates of some of the domains.

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
        """A table to look at: one row an input, what belongs to the domain repeated."""
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
