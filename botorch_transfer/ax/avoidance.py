"""Keeping suggestions away from points that have been suggested, or that failed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from torch import Tensor
from torch.nn.functional import one_hot


class AvoidingAcquisition(AcquisitionFunction):
    r"""An acquisition function that falls off towards points that are to be avoided.

    A model whose mean leads by far wins at the same point again and again, as long as no outcome
    from there contradicts it. Within a radius of a point to avoid, the acquisition is drawn to a
    ``floor``, and wholly at the point itself: a hard form of local penalization (González et al.,
    Batch Bayesian optimization via local penalization, AISTATS 2016). Elsewhere it stays as it is.

    .. code-block:: text

        t(x, a) = min(1, ‖x - a‖² / radius²)
        floor + (acquisition(x) - floor) · product over points a of t(x, a) (2 - t(x, a))

    It has no kink, which optimizers would stumble over. Distances are in units of the search
    space's widths; two categories are a whole width apart, be they one input or one-hot. One-hot
    inputs are rounded, as suggestions are in the end: a point between categories would be far from
    all that is to be avoided, and become just that. Points that are pending, of the same batch too,
    are avoided along with the given ones.

    Args:
        acquisition: Another acquisition function.
        bounds: A ``2 x d`` tensor, the bounds of the search space.
        X_avoid: A ``p x d`` tensor of inputs to avoid; NaN where it does not matter what they are.
        radii: A ``p`` tensor of distances.
        pending_radius: The distance from pending points.
        categorical: The indices of inputs that have no order.
        floor: The value at points to avoid; something that is easy to reach elsewhere.
        one_hot_blocks: The indices of inputs that are one choice together, for each such choice.

    Example:
        >>> from botorch.acquisition import PosteriorMean
        >>> X = torch.rand(6, 2, dtype=torch.double)
        >>> mean = PosteriorMean(SingleTaskGP(X, X.sum(-1, keepdim=True)))
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
        >>> avoiding = AvoidingAcquisition(mean, bounds, X[:1], torch.tensor([0.1]), floor=-3.0)
        >>> avoiding(X[:1].unsqueeze(-2)).item()
        -3.0
    """

    def __init__(
        self,
        acquisition: AcquisitionFunction,
        bounds: Tensor,
        X_avoid: Tensor,
        radii: Tensor,
        pending_radius: float = 0.0,
        categorical: Sequence[int] = (),
        floor: float | Tensor = 0.0,
        one_hot_blocks: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__(acquisition.model)
        self.acquisition = acquisition
        widths = bounds[1] - bounds[0]
        self.widths = torch.where(widths > 0, widths, 1.0)
        self.X_avoid = X_avoid
        self.radii = radii
        self.pending_radius = pending_radius
        self.categorical = list(categorical)
        self.floor = floor
        self.one_hot = [list(block) for block in one_hot_blocks]
        for block in self.one_hot:  # two inputs differ between two categories
            self.widths[block] = math.sqrt(2)
        # Analytic acquisition functions have no such thing.
        self.X_pending: Any = getattr(acquisition, "X_pending", None)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Says what is pending.

        Args:
            X_pending: A ``p x d`` tensor of inputs.
        """
        self.acquisition.set_X_pending(X_pending)
        self.X_pending = X_pending

    def forward(self, X: Tensor) -> Tensor:
        """Evaluates the acquisition.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of values.
        """
        avoid, radii = self.X_avoid.to(X), self.radii.to(X)
        if self.X_pending is not None and self.pending_radius > 0:
            avoid = torch.cat([avoid, self.X_pending.to(X)])
            radii = torch.cat(
                [radii, radii.new_full(self.X_pending.shape[:1], self.pending_radius)]
            )
        X = self._rounded(X)
        matters = ~avoid.isnan()
        parts = ((X.unsqueeze(-2) - avoid.nan_to_num()) / self.widths.to(X)).square() * matters
        if self.categorical:
            differ = (parts[..., self.categorical] > 0).to(X)
            parts = parts.index_copy(-1, torch.tensor(self.categorical, device=X.device), differ)
        near = (parts.sum(dim=-1) / radii.square()).clamp(max=1.0)
        factors = (near * (2 - near)).flatten(start_dim=-2)
        value = self.acquisition(X)
        return self.floor + (value - self.floor) * factors.prod(dim=-1)

    def _rounded(self, X: Tensor) -> Tensor:
        """Each one-hot block at its largest input; what remains gets gradients."""
        for block in self.one_hot:
            chosen = one_hot(X[..., block].argmax(dim=-1), len(block)).to(X)
            X = X.index_copy(-1, torch.tensor(block, device=X.device), chosen)
        return X


def failure_radii(X: Tensor, bounds: Tensor, radius: float) -> Tensor:
    """How far to stay away from points that failed: the further, the more failed around them.

    Args:
        X: A ``p x d`` tensor of the points; NaN where it does not matter what they are.
        bounds: A ``2 x d`` tensor, the bounds of the search space.
        radius: The distance from a point that failed alone, in units of the widths.

    Returns:
        A ``p`` tensor: ``radius`` times the number of failures within ten times of it, at most ten.

    Example:
        >>> X = torch.tensor([[0.5], [0.51], [0.9]])
        >>> failure_radii(X, torch.tensor([[0.0], [1.0]]), 0.01)
        tensor([0.0200, 0.0200, 0.0100])
    """
    widths = bounds[1] - bounds[0]
    unit = X / torch.where(widths > 0, widths, 1.0)
    distances = (unit.unsqueeze(-2) - unit).nan_to_num().norm(dim=-1)
    count = (distances < 10 * radius).sum(dim=-1)
    return radius * count.clamp(max=10).to(X)
