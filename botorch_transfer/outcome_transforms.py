"""Bringing a target's outcomes into the units of a prior.

Outcomes on a scale that a GP can describe: preprocessing, for source and target data alike.

Both maps are those of [Wang2024hyperbo]_. They are preprocessing and not transforms of a model,
because they belong to what is modelled: a target's posterior is then about the warped outcome, and
so is the best value that an acquisition function is told.

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Self

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.outcome import Standardize
from torch import Tensor
from torch.nn.functional import softplus


def usable_deviation(deviation: Tensor, mean: Tensor, min_stdv: float = 1e-8) -> Tensor:
    """Replaces by one the deviations of outcomes that vary by no more than rounding errors.

    Args:
        deviation: A tensor of standard deviations.
        mean: A tensor of the means of the same outcomes, in the dtype they were computed in.
        min_stdv: The smallest deviation to keep.

    Returns:
        A tensor of positive deviations.

    Example:
        >>> usable_deviation(torch.tensor([2.0, 1e-6]), torch.tensor([5.0, 1000.0]))
        tensor([2., 1.])
    """
    rounding = 4 * torch.finfo(mean.dtype).eps * mean.abs()
    return torch.where((deviation >= min_stdv) & (deviation > rounding), deviation, 1.0)


class PooledStandardize(Standardize):
    r"""Standardizes by the outcomes of all source tasks, and of the target if wanted.

    Unlike ``Standardize``, it is defined with no target outcome at all, and with few it does not
    jump about (Appendix C.1 of ScaML-GP's paper). Deviations are unbiased, as in ``Standardize``.

    Args:
        source_outcomes: A tensor of all source outcomes, of any shape, in the user's units.
        include_target: Whether the target's outcomes count too.
        batch_shape: The batch shape of the target's outcomes.
        min_stdv: A smaller deviation is taken for that of constant outcomes, and replaced by one.

    Example:
        >>> transform = PooledStandardize(torch.tensor([1.0, 2.0, 3.0]))
        >>> transform(torch.tensor([[2.0]]))[0]
        tensor([[0.]])
    """

    _source_mean: Tensor
    _source_spread: Tensor
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
        outcomes = source_outcomes.detach().flatten().double()
        spread = outcomes.std(correction=0).to(source_outcomes)
        self._set_source(len(outcomes), outcomes.mean().to(source_outcomes), spread)

    @classmethod
    def from_moments(
        cls,
        count: int,
        mean: Tensor,
        spread: Tensor,
        include_target: bool = True,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
    ) -> Self:
        """Builds the transform where the source outcomes themselves are not at hand.

        Args:
            count: The number of source outcomes.
            mean: Their mean, a tensor without dimensions.
            spread: Their standard deviation, the biased one that divides by their number.
            include_target: Whether the target's outcomes count too.
            batch_shape: The batch shape of the target's outcomes.

        Returns:
            The transform.

        Example:
            >>> moments = torch.tensor(2.0), torch.tensor(1.0)
            >>> transform = PooledStandardize.from_moments(3, *moments, include_target=False)
            >>> transform(torch.tensor([[2.0]]))[0]
            tensor([[0.]])
        """
        transform = cls(mean.unsqueeze(0), include_target, batch_shape)
        transform._set_source(count, mean.detach().clone(), spread.detach().clone())
        return transform

    def _set_source(self, count: int, mean: Tensor, spread: Tensor) -> None:
        self._count = count
        self.register_buffer("_source_mean", mean)
        self.register_buffer("_source_spread", spread)

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

    def subset_output(self, idcs: list[int]) -> PooledStandardize:
        """Selects outcomes: there is one only.

        Args:
            idcs: ``[0]`` or ``[-1]``.

        Returns:
            A copy.

        Raises:
            ValueError: If there are no such outcomes.
        """
        if idcs not in ([0], [-1]):
            raise ValueError(f"There is no subset {idcs} of one outcome.")
        return deepcopy(self)

    def _learn(self, Y: Tensor) -> None:
        """Pools the source outcomes' mean and squared deviations with those of the target."""
        # Squares of large outcomes overflow in single precision.
        dtype, Y = Y.dtype, Y.double()
        mean, count = self._source_mean.to(Y), self._count
        squares = count * self._source_spread.to(Y).square()
        shape = (*Y.shape[:-2], 1, 1)
        if self.include_target and Y.shape[-2] > 0:
            n = Y.shape[-2]
            target_mean = Y.mean(dim=-2, keepdim=True)
            difference = target_mean - mean
            squares = squares + (Y - target_mean).square().sum(dim=-2, keepdim=True)
            squares = squares + difference.square() * (count * n / (count + n))
            mean, count = mean + difference * (n / (count + n)), count + n
        stdvs = (squares / max(count - 1, 1)).sqrt().to(dtype)
        stdvs = usable_deviation(stdvs, mean.to(dtype), self._min_stdv)
        self.means = mean.to(dtype).expand(shape).clone()
        self.stdvs = stdvs.expand(shape).clone()
        self._stdvs_sq = self.stdvs.square()
        self._is_trained = torch.tensor(True)


class OwnStandardize(Standardize):
    r"""Standardizes by the target's own outcomes, as far as there are enough of them.

    A single outcome has no deviation, and none at all has no mean either: what is typical of the
    source tasks stands in. Use it where source tasks may have other units than the target, so that
    pooling their outcomes makes no sense. Deviations are unbiased, as in ``Standardize``.

    Args:
        typical_mean: A scalar tensor: the mean that stands in.
        typical_std: A scalar tensor: the deviation that stands in, also for constant outcomes.
        batch_shape: The batch shape of the target's outcomes.
        min_stdv: A smaller deviation is taken for that of constant outcomes.

    Example:
        >>> transform = OwnStandardize(torch.tensor(5.0), torch.tensor(2.0))
        >>> transform(torch.tensor([[7.0]]))[0]
        tensor([[0.]])
        >>> transform.stdvs
        tensor([[2.]])
    """

    _typical_mean: Tensor
    _typical_std: Tensor
    stdvs: Tensor

    def __init__(
        self,
        typical_mean: Tensor,
        typical_std: Tensor,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
        min_stdv: float = 1e-8,
    ) -> None:
        super().__init__(m=1, batch_shape=batch_shape, min_stdv=min_stdv)
        self.register_buffer("_typical_mean", typical_mean.detach().clone())
        self.register_buffer("_typical_std", typical_std.detach().clone())

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

    def subset_output(self, idcs: list[int]) -> OwnStandardize:
        """Selects outcomes: there is one only.

        Args:
            idcs: ``[0]`` or ``[-1]``.

        Returns:
            A copy.

        Raises:
            ValueError: If there are no such outcomes.
        """
        if idcs not in ([0], [-1]):
            raise ValueError(f"There is no subset {idcs} of one outcome.")
        return deepcopy(self)

    def _learn(self, Y: Tensor) -> None:
        # Squares of large outcomes overflow in single precision.
        dtype, Y = Y.dtype, Y.double()
        n, shape = Y.shape[-2], (*Y.shape[:-2], 1, 1)
        mean = self._typical_mean.to(Y).expand(shape) if n == 0 else Y.mean(dim=-2, keepdim=True)
        typical = self._typical_std.to(Y).expand(shape)
        squares = (Y - mean).square().sum(dim=-2, keepdim=True)
        stdvs = (squares / max(n - 1, 1)).sqrt()
        rounding = 4 * torch.finfo(dtype).eps * mean.abs()
        stdvs = torch.where((stdvs >= self._min_stdv) & (stdvs > rounding), stdvs, typical)
        self.means, self.stdvs = mean.to(dtype).clone(), stdvs.to(dtype).clone()
        self._stdvs_sq = self.stdvs.square()
        self._is_trained = torch.tensor(True)


SMALLEST_ERROR = 1e-10
"""What is added to an error rate before its logarithm is taken."""

LOWEST, HIGHEST = -2.0, 2.0
"""The range of outcomes with failures."""


def negative_log_error(error: Tensor) -> Tensor:
    """Maps error rates, to be minimized, to ``-log(error + 1e-10)``, to be maximized.

    Near the optimum, halving an error counts as much as it does far from it. It needs no other
    task and no other outcome, so that a target's outcomes are warped as they come.

    Args:
        error: A tensor of error rates, or of other losses that are not negative.

    Returns:
        A tensor of the same shape.

    Raises:
        InputDataError: If a value is negative.

    Example:
        >>> negative_log_error(torch.tensor([0.5, 0.01]))
        tensor([0.6931, 4.6052])
    """
    if bool((error < 0).any()):
        raise InputDataError("An error rate is negative: warp accuracies as 1 - accuracy.")
    return -torch.log(error + SMALLEST_ERROR)


def compress_failures(Y: Tensor) -> Tensor:
    r"""Maps one task's outcomes to ``[-2, 2]``: the best to 2, failures to -2, bad ones near it.

    With the median ``m`` and the maximum of the outcomes that are finite,

    .. code-block:: text

        y ← 4 softplus(y - m) / softplus(max - m) - 2

    so that a diverged run, however bad, is just bad. The map depends on all outcomes of the task: a
    target's are warped anew after each evaluation, from what was measured. Its softplus bends over
    one unit of the outcome, so it is made for error rates and cross entropies.

    Args:
        Y: An ``n x 1`` tensor of one task's outcomes, to be maximized; NaN or infinite where the
            evaluation failed.

    Returns:
        An ``n x 1`` tensor, finite.

    Example:
        >>> compress_failures(torch.tensor([[-0.7], [-0.5], [-1e9], [torch.nan]])).squeeze()
        tensor([ 1.4738,  2.0000, -2.0000, -2.0000])
    """
    feasible = Y.isfinite()
    if not bool(feasible.any()):
        return torch.full_like(Y, LOWEST)
    finite = Y[feasible].double()
    median = finite.quantile(0.5) if len(finite) < 2**24 else finite.median()
    share = softplus(Y.double() - median) / softplus(finite.max() - median)
    warped = LOWEST + (HIGHEST - LOWEST) * share
    return torch.where(feasible, warped, LOWEST).to(Y)
