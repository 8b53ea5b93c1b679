r"""Screening: which of many source tasks can matter to a target, before any weight is fitted.

With thousands of source tasks, a step of Bayesian optimization must not evaluate them all. Each
task is judged by itself: how much better than no task does it explain the target's outcomes? Read
it for the rule, a pure function of source GPs and target data, and for the log evidence that
``report`` judges relations by, too.
"""

from __future__ import annotations

import math

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.likelihood import log_density

WEIGHTS = (0.25, 0.5, 1.0, 2.0)
"""The weights of a task over which its evidence is averaged."""

MAX_POINTS = 32
"""How many target points tasks are judged by; more do not change which ones matter."""

CHUNK_ELEMENTS = 2**21
"""How many covariances are evaluated at once, so that memory does not grow with the tasks."""

_DECIMALS = 6
"""Evidence that differs by rounding errors only is a tie."""


@torch.no_grad()
def screened_tasks(
    gps: ConditionedGPs, X: Tensor, Y: Tensor, residual: Tensor, number: int
) -> Tensor:
    r"""Chooses the source tasks that explain the target's outcomes best, each by itself.

    With a task's posterior ``(μ_m, Σ_m)`` at the target's points, a weight ``w`` and the covariance
    ``R`` of residual and noise, the log evidence of a task is

    .. code-block:: text

        ln ¼ Σ_w N(y; w μ_m, w² Σ_m + R)        w ∈ {¼, ½, 1, 2}

    averaged over the members of a batch of targets, which share their source tasks. Ties, for
    instance of tasks that know nothing of the target's points, are decided by the tasks'
    data. So the choice does not depend on the order of the tasks.

    Args:
        gps: The source GPs.
        X: A ``batch_shape x n x d`` tensor of target inputs, transformed.
        Y: A ``batch_shape x n`` tensor of target outcomes, in the units of the GPs.
        residual: The ``batch_shape x n x n`` covariance ``R``.
        number: How many tasks to choose.

    Returns:
        Their indices, ascending; all if there are no more tasks.

    Example:
        >>> X, ones = torch.rand(3, 10, 2).double(), torch.ones(3, 10).double()
        >>> gps = ConditionedGPs(X, X.sum(-1), ones.bool(), ones[:, :2], ones[:, 0], 0.01 * ones)
        >>> screened_tasks(gps, X[0], X[0].sum(-1), 0.1 * torch.eye(10).double(), 2).shape
        torch.Size([2])
    """
    n, d = X.shape[-2:]
    members = zip(X.reshape(-1, n, d), Y.reshape(-1, n), residual.reshape(-1, n, n), strict=True)
    evidence = torch.stack([_log_evidence_of_all(gps, *member) for member in members]).mean(dim=0)
    order = torch.arange(gps.num_tasks, device=X.device)
    for key in (gps.train_X.sum(dim=-1), gps.train_Y):
        values = (key * gps.mask).sum(dim=-1)
        order = order[values[order].argsort(stable=True)]
    by_evidence = evidence.round(decimals=_DECIMALS)[order].argsort(descending=True, stable=True)
    return order[by_evidence[:number]].sort().values


def _log_evidence_of_all(gps: ConditionedGPs, X: Tensor, Y: Tensor, residual: Tensor) -> Tensor:
    """The log evidence of each task, an ``M`` tensor; some tasks are evaluated after the other."""
    X, Y, residual = X.double(), Y.double(), residual.double()
    rows = _typical_rows(X, Y)
    X, Y, residual = X[rows], Y[rows], residual[rows][:, rows]
    size = max(1, CHUNK_ELEMENTS // max(1, len(X) * gps.mask.shape[-1]))
    chunks = [slice(first, first + size) for first in range(0, gps.num_tasks, size)]
    return torch.cat([_log_evidence(gps.select(chunk), X, Y, residual) for chunk in chunks])


def _typical_rows(X: Tensor, Y: Tensor) -> Tensor:
    """At most ``MAX_POINTS`` of the points, evenly spaced from the worst outcome to the best."""
    order = torch.arange(len(Y), device=Y.device)
    for key in (*X.mT, Y):
        order = order[key[order].argsort(stable=True)]
    return order[evenly_spaced(len(Y), MAX_POINTS)]


def _log_evidence(gps: ConditionedGPs, X: Tensor, Y: Tensor, residual: Tensor) -> Tensor:
    """The log evidence of each task, an ``M`` tensor."""
    means, covariances = gps.mean(X), gps.covariance(X)
    densities = [
        average_log_density(Y - weight * means, weight**2 * covariances, residual.unsqueeze(0))
        for weight in WEIGHTS
    ]
    return torch.stack(densities).logsumexp(dim=0) - math.log(len(WEIGHTS))


def average_log_density(errors: Tensor, covariance: Tensor, residual: Tensor) -> Tensor:
    """Evaluates the log density of errors, averaged over several covariances of residual and noise.

    Args:
        errors: An ``M x n`` tensor.
        covariance: An ``M x n x n`` tensor.
        residual: A ``G x n x n`` tensor.

    Returns:
        An ``M`` tensor.

    Example:
        >>> average_log_density(torch.zeros(2, 1), torch.zeros(2, 1, 1), torch.ones(1, 1, 1))
        tensor([-0.9189, -0.9189])
    """
    size = max(1, CHUNK_ELEMENTS // max(1, residual.numel()))
    densities = []
    for part, errors_of_part in zip(covariance.split(size), errors.split(size), strict=True):
        root = psd_safe_cholesky(part.unsqueeze(1) + residual)
        column = errors_of_part.unsqueeze(1).expand(root.shape[:-1]).unsqueeze(-1)
        whitened = torch.linalg.solve_triangular(root, column, upper=False)
        densities.append(log_density(root, whitened).logsumexp(dim=-1))
    return torch.cat(densities) - math.log(len(residual))
