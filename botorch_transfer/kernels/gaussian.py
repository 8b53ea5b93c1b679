"""Cholesky factors of many covariance matrices, one of which may break down.

The NLL of a GP with a stationary kernel and its gradient, in one closed form.

Pre-training evaluates it some thousands of times, where mean, kernel and likelihood one after the
other, each with a gradient of its own, take half as long again as the formulas below.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_transfer.kernels.stationary import Stationary, value_and_derivative


def nll(
    mean: Tensor,
    covariance: Tensor,
    Y: Tensor,
    mask: Tensor | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    r"""The negative log marginal likelihood of each task (Eq. 13 of [Wang2024hyperbo]_).

    Args:
        mean: A ``batch_shape x N`` tensor: the GP's mean at each task's inputs.
        covariance: A ``batch_shape x N x N`` tensor: its covariance there, with the noise unless
            that comes by itself.
        Y: A ``batch_shape x N`` tensor of outcomes.
        mask: A ``batch_shape x N`` boolean tensor, ``True`` for data and ``False`` for padding, for
            tasks of different sizes; no padding if omitted.
        noise: A tensor of noise variances that expands to ``batch_shape x N``, to be added to the
            covariance's diagonal.

    Returns:
        A ``batch_shape`` tensor, one value a task; its mean over tasks is what pre-training
        minimizes. Once differentiable in mean, covariance, outcomes and noise. NaN where a
        covariance is not positive definite, even with some jitter.

    Example:
        >>> nll(torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3), torch.zeros(2, 3))
        tensor([2.7568, 2.7568])
    """
    residual = Y - mean
    count: Tensor | int = Y.shape[-1]
    if mask is not None:
        residual = torch.where(mask, residual, 0.0)
        inside = mask.unsqueeze(-1) & mask.unsqueeze(-2)
        eye = torch.eye(mask.shape[-1], dtype=Y.dtype, device=Y.device)
        covariance = torch.where(inside, covariance, eye)
        count = mask.sum(dim=-1).to(Y)
        noise = None if noise is None else torch.where(mask, noise, 0.0)
    value = gaussian_loss(residual.unsqueeze(-1), covariance, noise)
    return value + 0.5 * math.log(2 * math.pi) * count


def gaussian_loss(B: Tensor, covariance: Tensor, noise: Tensor | None = None) -> Tensor:
    """``½ tr(Bᵀ K⁻¹ B) + ½ ln|K|`` for ``... x N x k`` tensors ``B``, the core of both."""
    value: Any = _GaussianLoss.apply(B, covariance, noise)
    return value


class _GaussianLoss(torch.autograd.Function):
    """The loss with its closed-form gradient, which takes half the time of autograd's."""

    @staticmethod
    def forward(ctx: Any, B: Tensor, covariance: Tensor, noise: Tensor | None) -> Tensor:
        if noise is not None:
            covariance = covariance.clone()
            covariance.diagonal(dim1=-2, dim2=-1).add_(noise)
            ctx.noise_shape = noise.shape
        root = cholesky_or_nan(covariance)
        inverse = torch.cholesky_inverse(root)
        alpha = inverse @ B
        ctx.save_for_backward(inverse, alpha)
        log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        return 0.5 * (B * alpha).sum(dim=(-2, -1)) + log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        inverse, alpha = ctx.saved_tensors
        weight = grad_outputs[0][..., None, None]
        for_covariance = (alpha @ alpha.mT).sub_(inverse).mul_(-0.5 * weight)
        for_noise = None
        if ctx.needs_input_grad[2]:
            # A copy, because one gradient may be changed in place before the other is read.
            diagonal = for_covariance.diagonal(dim1=-2, dim2=-1).clone()
            for_noise = diagonal.sum_to_size(ctx.noise_shape)
        return weight * alpha, for_covariance, for_noise


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
