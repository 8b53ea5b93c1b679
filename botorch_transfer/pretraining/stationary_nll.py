r"""The NLL of a GP with a stationary kernel and its gradient, in one closed form.

Pre-training evaluates it some thousands of times, where mean, kernel and likelihood one after the
other, each with a gradient of its own, take half as long again as the formulas below.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_transfer.kernels.dense import Stationary, value_and_derivative
from botorch_transfer.pretraining.cholesky import cholesky_or_nan


def stationary_nll(
    mean: Tensor,
    X: Tensor,
    kernel: Stationary,
    noise: Tensor,
    Y: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Evaluates :func:`~.objectives.nll` for ``K = s k(r²) + σ²I``.

    With ``r = y - μ``, ``α = K⁻¹ r`` and ``G = ∂NLL/∂K = ½ (K⁻¹ - α αᵀ)``,

    .. code-block:: text

        NLL = ½ rᵀα + ½ ln|K| + ½ N ln 2π
        ∂NLL/∂μ = -α          ∂NLL/∂σ² = tr G          ∂NLL/∂ln s = ½ (N - rᵀα) - σ² tr G
        ∂NLL/∂x_i = 4 Σ_j H_ij (x_i - x_j),   H = G ∘ s k'(r²),   x in units of the lengthscales

    Args:
        mean: A ``batch_shape x N`` tensor: the GP's mean at each task's inputs.
        X: A ``batch_shape x N x d`` tensor: the inputs.
        kernel: The kernel.
        noise: A tensor of noise variances that expands to ``batch_shape x N``.
        Y: A ``batch_shape x N`` tensor of outcomes.
        mask: A ``batch_shape x N`` boolean tensor, ``True`` for data and ``False`` for padding; no
            padding if omitted.

    Returns:
        A ``batch_shape`` tensor, once differentiable in all but outcomes and mask.

    Example:
        >>> kernel = Stationary("rbf", lengthscale=torch.ones(1, 1), scale=torch.tensor(1.0))
        >>> stationary_nll(torch.zeros(1), torch.zeros(1, 1), kernel, torch.ones(1), torch.ones(1))
        tensor(1.5155)
    """
    residual = Y - mean
    if mask is not None:
        residual, noise = torch.where(mask, residual, 0.0), torch.where(mask, noise, 0.0)
    value: Any = _StationaryNLL.apply(
        residual, X, kernel.lengthscale, kernel.scale, noise, mask, kernel.name
    )
    return value


class _StationaryNLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor,
        X: Tensor,
        lengthscale: Tensor,
        scale: Tensor,
        noise: Tensor,
        mask: Tensor | None,
        name: str,
    ) -> Tensor:
        scaled = X / lengthscale
        K, derivative = value_and_derivative(scaled, scale, name)
        count: Tensor | int = residual.shape[-1]
        if mask is not None:
            # A unit variance for each point that is none, and no covariance with any other.
            K.mul_(mask.unsqueeze(-1) & mask.unsqueeze(-2))
            K.diagonal(dim1=-2, dim2=-1).add_(~mask)
            count = mask.sum(dim=-1).to(residual)
        K.diagonal(dim1=-2, dim2=-1).add_(noise)
        root = cholesky_or_nan(K)
        inverse = torch.cholesky_inverse(root)
        alpha = torch.linalg.vecdot(inverse, residual.unsqueeze(-2))
        fit = torch.linalg.vecdot(residual, alpha)
        ctx.save_for_backward(
            scaled, lengthscale, scale, noise, derivative, inverse, alpha, count - fit
        )
        log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        return 0.5 * fit + log_det + (0.5 * math.log(2 * math.pi)) * count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scaled, lengthscale, scale, noise, derivative, inverse, alpha, misfit = ctx.saved_tensors
        (weight,) = grad_outputs
        columns = alpha.unsqueeze(-1)
        G = torch.addcmul(inverse, columns, columns.mT, value=-1).mul_(
            0.5 * weight[..., None, None]
        )
        diagonal = G.diagonal(dim1=-2, dim2=-1).clone()  # G becomes H in place
        for_scale = (0.5 * weight * misfit).sub_((diagonal * noise).sum(dim=-1))
        for_noise = diagonal.sum_to_size(noise.shape)
        H = G.mul_(derivative)
        for_scaled = (H.sum(dim=-1, keepdim=True) * scaled).sub_(H @ scaled).mul_(4.0)
        for_X = for_scaled / lengthscale
        for_lengthscale = for_scaled.mul_(scaled).sum_to_size(lengthscale.shape) / -lengthscale
        return (
            weight.unsqueeze(-1) * alpha,
            for_X,
            for_lengthscale,
            for_scale.sum_to_size(scale.shape) / scale,
            for_noise,
            None,
            None,
        )
