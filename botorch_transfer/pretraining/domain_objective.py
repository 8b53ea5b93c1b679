r"""The likelihood of one domain: all of its tasks are draws of one GP with a constant mean.

The parameters are ``log(lengthscale), log(outputscale), log(noise)`` and the mean itself. The
derivative in the mean ``c`` is ``-1ᵀ K⁻¹ (y - c)``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from botorch_transfer.kernels.stationary import StationaryFunction
from botorch_transfer.pretraining.map_objective import likelihood_terms
from botorch_transfer.pretraining.padding import PaddedTasks


def domain_negative_log_likelihood(
    theta: Tensor, tasks: PaddedTasks, function: StationaryFunction
) -> tuple[Tensor, Tensor]:
    """Evaluates the sum of the tasks' negative log marginal likelihoods and its gradient.

    Args:
        theta: A ``P x (d + 3)`` tensor, one row a set of parameters.
        tasks: The domain's ``M`` padded tasks.
        function: The unit-variance stationary kernel.

    Returns:
        The ``P`` values and their ``P x (d + 3)`` gradient; NaN where a covariance matrix is not
        positive definite, even with some jitter.

    Example:
        >>> X, ones = torch.rand(3, 10, 2, dtype=torch.double), torch.ones(3, 10).double()
        >>> tasks = PaddedTasks(X, X.sum(-1), 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> theta = torch.tensor([[-1.0, -1.0, 0.0, -4.0, 0.5]], dtype=torch.double)
        >>> value, gradient = domain_negative_log_likelihood(
        ...     theta, tasks, stationary_function("matern52")
        ... )
        >>> value.shape, gradient.shape
        (torch.Size([1]), torch.Size([1, 5]))
    """
    num_rows, num_tasks = len(theta), len(tasks.X)
    index = torch.arange(num_tasks, device=theta.device).repeat(num_rows)
    spread = theta.repeat_interleave(num_tasks, dim=0)
    repeated = tasks[index]
    residual = (repeated.Y - spread[:, -1:]) * repeated.mask
    value, gradient, alpha = likelihood_terms(
        spread[:, :-1], replace(repeated, Y=residual), function
    )
    gradient = torch.cat([gradient, -alpha.sum(dim=-1, keepdim=True)], dim=-1)
    return (
        value.reshape(num_rows, num_tasks).sum(dim=-1),
        gradient.reshape(num_rows, num_tasks, -1).sum(dim=-2),
    )


def lengthscale_penalty(theta: Tensor, start: float, spread: float) -> tuple[Tensor, Tensor]:
    """Evaluates a weak penalty that keeps lengthscales where the likelihood says nothing of them.

    A function that is rough in one input looks like noise, and its likelihood does not depend on
    the lengthscales of the others; they would end up anywhere, mostly at a bound.

    Args:
        theta: A ``P x (d + 3)`` tensor, as :func:`domain_negative_log_likelihood` takes it.
        start: The lengthscale that is penalized least.
        spread: The deviation of a lengthscale's logarithm that costs half a nat.

    Returns:
        The ``P`` values and their ``P x (d + 3)`` gradient.

    Example:
        >>> theta = torch.zeros(1, 4)
        >>> lengthscale_penalty(theta, start=1.0, spread=2.0)
        (tensor([0.]), tensor([[0., 0., 0., 0.]]))
    """
    deviation = torch.zeros_like(theta)
    deviation[:, :-3] = (theta[:, :-3] - math.log(start)) / spread
    return 0.5 * deviation.square().sum(dim=-1), deviation / spread
