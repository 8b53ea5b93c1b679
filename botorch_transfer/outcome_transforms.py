"""Bringing a target's outcomes into the units of a prior."""

from __future__ import annotations

import torch
from botorch.models.transforms.outcome import Standardize
from torch import Tensor


class PooledStandardize(Standardize):
    r"""Standardizes by the outcomes of all source tasks, and of the target if wanted.

    Unlike ``Standardize``, it is defined with no target outcome at all, and with few it does not
    jump about (Appendix C.1 of ScaML-GP's paper). Deviations are unbiased, as in ``Standardize``.

    Args:
        source_outcomes: A tensor of all source outcomes, in the user's units.
        include_target: Whether the target's outcomes count too.
        batch_shape: The batch shape of the target's outcomes.
        min_stdv: A smaller deviation is taken for constant outcomes, and replaced by one.

    Example:
        >>> transform = PooledStandardize(torch.tensor([1.0, 2.0, 3.0]))
        >>> transform(torch.tensor([[2.0]]))[0]
        tensor([[0.]])
    """

    _source_mean: Tensor
    _source_squares: Tensor
    stdvs: Tensor

    def __init__(
        self,
        source_outcomes: Tensor,
        include_target: bool = True,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        min_stdv: float = 1e-8,
    ) -> None:
        super().__init__(m=1, batch_shape=batch_shape, min_stdv=min_stdv)
        self.include_target = include_target
        outcomes = source_outcomes.detach().flatten()
        self._count = len(outcomes)
        self.register_buffer("_source_mean", outcomes.mean())
        self.register_buffer("_source_squares", (outcomes - outcomes.mean()).square().sum())

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardizes outcomes, after learning the scale in training mode.

        Args:
            Y: A ``batch_shape x n x 1`` tensor of outcomes; ``n`` may be zero.
            Yvar: A ``batch_shape x n x 1`` tensor of noise variances.
            X: Ignored.

        Returns:
            The standardized outcomes and noise variances.
        """
        if self.training:
            self._learn(Y.detach())
        Yvar = None if Yvar is None else Yvar / self._stdvs_sq
        return (Y - self.means) / self.stdvs, Yvar

    def _learn(self, Y: Tensor) -> None:
        """Pools the source outcomes' mean and squared deviations with those of the target."""
        mean, squares = self._source_mean.to(Y), self._source_squares.to(Y)
        count = self._count
        shape = (*Y.shape[:-2], 1, 1)
        if self.include_target and Y.shape[-2] > 0:
            n = Y.shape[-2]
            target_mean = Y.mean(dim=-2, keepdim=True)
            difference = target_mean - mean
            squares = squares + (Y - target_mean).square().sum(dim=-2, keepdim=True)
            squares = squares + difference.square() * (count * n / (count + n))
            mean, count = mean + difference * (n / (count + n)), count + n
        stdvs = (squares / max(count - 1, 1)).sqrt()
        stdvs = torch.where(stdvs >= self._min_stdv, stdvs, 1.0)
        self.means = mean.expand(shape).clone()
        self.stdvs = stdvs.expand(shape).clone()
        self._stdvs_sq = self.stdvs.square()
        self._is_trained = torch.tensor(True)
