"""The likelihood of the source data alone, by which joint models are fitted before the first point.

Without target data ``log p(y_t | y_s)`` is zero, and ``log p(y_s)``, the model's added loss term,
is all that there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.nn import Parameter


class SourceMarginalLogLikelihood(ExactMarginalLogLikelihood):
    """``log p(y_s)`` and the hyperpriors of a joint model without target points."""

    def forward(
        self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any
    ) -> Tensor:
        """Evaluates it.

        Args:
            function_dist: The model's output, with the added loss term; it is of no points.
            target: Ignored.
            *params: Ignored.
            **kwargs: Ignored.

        Returns:
            A ``batch_shape`` tensor, by source point, as GPyTorch's is by target point.
        """
        nothing = function_dist.mean.sum(dim=-1)
        total: Tensor = self._add_other_terms(nothing, params)
        return total / sum(self.model.conditional.points.sizes)


@contextmanager
def target_frozen(mll: SourceMarginalLogLikelihood) -> Iterator[None]:
    """Lets a fit change only the data kernels that source tasks have a part in, and their noise.

    What the target alone has would follow its hyperpriors to their modes, as a residual of nothing.
    What relates tasks, weights or a coregionalization matrix, is about the target as well: source
    data would take WSGP's weights to zero, and leave the target's row of a matrix behind.

    Args:
        mll: The likelihood that is maximized meanwhile.
    """
    fitted = set(_determined(mll))
    frozen = [p for p in mll.model.parameters() if p.requires_grad and p not in fitted]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def _determined(mll: SourceMarginalLogLikelihood) -> list[Parameter]:
    """The parameters of data kernels and source noise that ``log p(y_s)`` depends on."""
    conditional = mll.model.conditional
    candidates = [
        parameter
        for module in (conditional.kernel.data_kernels, conditional.noise)
        for parameter in module.parameters()
        if parameter.requires_grad
    ]
    if not candidates:
        return []
    mll.train()
    with torch.enable_grad():
        mll.model(*mll.model.train_inputs)
        (term,) = mll.model.added_loss_terms()
        gradients = torch.autograd.grad(term.loss().sum(), candidates, allow_unused=True)
    return [p for p, gradient in zip(candidates, gradients, strict=True) if gradient is not None]
