r"""What pre-training minimizes: the NLL and the EKL of [Wang2024hyperbo]_.

All tasks are taken for draws of one GP, and mean, kernel and noise are chosen so that it explains
them. Both objectives are plain functions of what the GP says at the source tasks' inputs: batched,
differentiable, and independent of where mean and covariance come from.

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_transfer.pretraining.cholesky import cholesky_or_nan


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
    value = _gaussian_loss(residual.unsqueeze(-1), covariance, noise)
    return value + 0.5 * math.log(2 * math.pi) * count


def _gaussian_loss(B: Tensor, covariance: Tensor, noise: Tensor | None = None) -> Tensor:
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


@dataclass(frozen=True)
class EmpiricalGaussian:
    r"""Mean and covariance of several tasks' outcomes at shared inputs, groups as one batch.

    The covariance ``Σ̃ = A Aᵀ`` has rank ``r < N`` for ``N`` tasks, and so often is degenerate: the
    GP is compared on its support only. Groups of fewer inputs or less rank are padded by zeros.

    Args:
        mean: A ``G x P`` tensor of means over tasks ``μ̃``.
        whitening: A ``G x R x P`` tensor of pseudo-inverses ``A⁺``, zero rows beyond the rank.
        rank: A ``G`` tensor of ranks ``r``, each positive.
    """

    mean: Tensor
    whitening: Tensor
    rank: Tensor

    @classmethod
    def of(cls, outcomes: Sequence[Tensor]) -> Self:
        r"""Estimates one Gaussian a group.

        The rank is the number of singular values of ``(Y - μ̃) / √N`` above ``max(P, N) ε``
        times the largest, ``ε`` the rounding error of one; a lower tolerance would divide by
        rounding errors.

        Args:
            outcomes: For each group a ``P_g x N_g`` tensor: the values of ``N_g`` tasks at ``P_g``
                shared inputs.

        Returns:
            The Gaussians.

        Raises:
            ValueError: If a group's tasks do not differ, which leaves nothing to compare.

        Example:
            >>> EmpiricalGaussian.of([torch.tensor([[1.0, 3.0], [2.0, 2.0]])]).mean
            tensor([[2., 2.]])
        """
        means, whitenings = zip(*(_whiten(Y) for Y in outcomes), strict=True)
        rank = torch.tensor([len(W) for W in whitenings], device=means[0].device)
        num_points = max(len(mean) for mean in means)
        whitening = means[0].new_zeros(len(means), int(rank.max()), num_points)
        for padded, W in zip(whitening, whitenings, strict=True):
            padded[: W.shape[0], : W.shape[1]] = W
        return cls(torch.nn.utils.rnn.pad_sequence(list(means), batch_first=True), whitening, rank)


def _whiten(Y: Tensor) -> tuple[Tensor, Tensor]:
    mean = Y.mean(dim=-1)
    deviation = (Y - mean.unsqueeze(-1)) / math.sqrt(Y.shape[-1])
    U, singular, _ = torch.linalg.svd(deviation, full_matrices=False)
    noise_floor = max(Y.shape) * torch.finfo(Y.dtype).eps
    # Outcomes that are equal up to rounding have no singular value that means anything.
    largest = torch.where(singular[0] > noise_floor * Y.abs().max(), singular[0], torch.inf)
    rank = int((singular > noise_floor * largest).sum())
    if rank == 0:
        raise ValueError(
            "The tasks of a group with matching inputs have equal outcomes, so there is no "
            "covariance between inputs to learn from: leave the group out, or use the NLL."
        )
    return mean, U[:, :rank].mT / singular[:rank].unsqueeze(-1)


def ekl(mean: Tensor, covariance: Tensor, empirical: EmpiricalGaussian) -> Tensor:
    r"""The divergence of the GP from what matching inputs show (Eq. 5 and 9, [Wang2024hyperbo]_).

    On the support of the empirical Gaussian, with ``μ_p = A⁺ (μ - μ̃)``, ``Σ_p = A⁺ Σ A⁺ᵀ``,

    .. code-block:: text

        EKL = ½ (tr Σ_p⁻¹ + μ_pᵀ Σ_p⁻¹ μ_p + ln|Σ_p| - r)

    the Kullback-Leibler divergence ``KL(N(μ̃, Σ̃) ‖ N(μ, Σ))`` if ``Σ̃`` has full rank.

    Args:
        mean: A ``G x P`` tensor: the GP's mean at each group's inputs; any finite values at the
            padding.
        covariance: A ``G x P x P`` tensor: its covariance there, noise included.
        empirical: The groups' empirical Gaussians.

    Returns:
        A ``G`` tensor, one value a group, differentiable in mean and covariance. NaN where a
        projected covariance is not positive definite, even with some jitter.

    Example:
        >>> empirical = EmpiricalGaussian.of([torch.tensor([[0.0, 2.0]])])
        >>> ekl(torch.ones(1, 1), torch.ones(1, 1, 1), empirical)
        tensor([0.])
    """
    W = empirical.whitening
    R = W.shape[-2]
    padding = torch.arange(R, device=W.device) >= empirical.rank.unsqueeze(-1)
    projected_mean = W @ (mean - empirical.mean).unsqueeze(-1)
    # A padded direction has mean zero and variance one, and so adds exactly nothing.
    projected = W @ covariance @ W.mT + torch.diag_embed(padding.to(W))
    eye = torch.eye(R, dtype=W.dtype, device=W.device).expand_as(projected)
    return _gaussian_loss(torch.cat([eye, projected_mean], dim=-1), projected) - 0.5 * R
