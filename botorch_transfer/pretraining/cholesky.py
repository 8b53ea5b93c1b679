"""Cholesky factors of many covariance matrices, one of which may break down."""

from __future__ import annotations

import math

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor


def cholesky_or_nan(covariance: Tensor) -> Tensor:
    """Factorizes a batch of matrices, with some jitter where one needs it.

    Args:
        covariance: A ``batch_shape x N x N`` tensor.

    Returns:
        A ``batch_shape x N x N`` tensor of lower triangular factors; NaN where a matrix is not
        positive definite, even with some jitter.

    Example:
        >>> cholesky_or_nan(torch.stack([torch.eye(2), -torch.eye(2)]))[:, 0, 0]
        tensor([1., nan])
    """
    root, info = torch.linalg.cholesky_ex(covariance)
    if bool(info.any()):
        for index in info.nonzero().tolist():
            root[tuple(index)] = _cholesky_with_jitter(covariance[tuple(index)])
    return root


def _cholesky_with_jitter(covariance: Tensor) -> Tensor:
    try:
        return psd_safe_cholesky(covariance)
    except (NanError, NotPSDError):
        return torch.full_like(covariance, math.nan)
