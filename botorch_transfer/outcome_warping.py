r"""Outcomes on a scale that a GP can describe: preprocessing, for source and target data alike.

Both maps are those of [Wang2024hyperbo]_. They are preprocessing and not transforms of a model,
because they belong to what is modelled: a target's posterior is then about the warped outcome, and
so is the best value that an acquisition function is told.

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.
"""

from __future__ import annotations

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.nn.functional import softplus

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
