"""How well functions rank a target's points: counts of misranked pairs, and draws to count on."""

from __future__ import annotations

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


def canonical_order(X: Tensor, Y: Tensor) -> Tensor:
    """Sorts points by their outcomes, then by their inputs.

    Whatever draws numbers point by point gives the same numbers to the same points, then, in
    whichever order they come.

    Args:
        X: A ``batch_shape x n x d`` tensor of inputs.
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape x n`` tensor of indices.
    """
    order = torch.arange(Y.shape[-1], device=Y.device).expand(Y.shape)
    for key in (*X.flip(-1).unbind(dim=-1), Y):
        order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True))
    return order


def misranked_pairs(values: Tensor, Y: Tensor) -> Tensor:
    """Counts the pairs of points that functions rank otherwise than the outcomes do.

    Pairs with equal outcomes are no pairs; a function's own ties count one half.

    Args:
        values: A ``batch_shape x [M x] S x n`` tensor of the functions' values.
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape x [M x] S`` tensor.

    Example:
        >>> misranked_pairs(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1.0, 2.0, 3.0]))
        tensor([1.])
    """
    Y = Y.reshape(*Y.shape[:-1], *[1] * (values.dim() - Y.dim()), Y.shape[-1])
    count = values.new_zeros(values.shape[:-1])
    # One point against the later ones at a time: all pairs at once would need too much memory.
    for point in range(values.shape[-1] - 1):
        later = slice(point + 1, None)
        says = (values[..., later] - values[..., point : point + 1]).sign()
        is_so = (Y[..., later] - Y[..., point : point + 1]).sign()
        count = count + (is_so != 0).mul((1 - says * is_so) / 2).sum(dim=-1)
    return count


def num_pairs(Y: Tensor) -> Tensor:
    """Counts the pairs of points with different outcomes.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape`` tensor.
    """
    differ = Y.unsqueeze(-1) != Y.unsqueeze(-2)
    return differ.sum(dim=(-2, -1)).to(Y) / 2


def misranked_by_the_left_out(values: Tensor, Y: Tensor) -> Tensor:
    """Counts the pairs that leave-one-out predictions rank otherwise than the outcomes do.

    The prediction for each point, made without it, is compared with the same function's values at
    the other points. Every pair is seen from either side, and counts one half each time.

    Args:
        values: A ``batch_shape x S x n x n`` tensor: its row ``j`` is a function that does not
            know point ``j``, at all points.
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape x S`` tensor.
    """
    left_out = values.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    says = (values - left_out).sign()
    is_so = (Y.unsqueeze(-2) - Y.unsqueeze(-1)).sign().unsqueeze(-3)
    return (is_so != 0).mul((1 - says * is_so) / 2).sum(dim=(-2, -1)) / 2


def symmetric_root(covariance: Tensor) -> Tensor:
    """The symmetric square root of covariance matrices, singular ones included.

    Args:
        covariance: A ``... x n x n`` tensor.

    Returns:
        A ``... x n x n`` tensor. It is unique: rounding errors do not change it by much.
    """
    eigenvalues, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    return (vectors * eigenvalues.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT


def leave_one_out_draws(
    covariance: Tensor, noise: Tensor, residual: Tensor, latent: Tensor, error: Tensor
) -> Tensor:
    r"""Draws functions from all leave-one-out posteriors of a GP at its own points.

    By Matheron's rule, a draw ``f`` from the prior becomes one from the posterior without point
    ``j`` by adding ``K₋ⱼ (K₋ⱼ + σ²)⁻¹ (y - f - ε)₋ⱼ``, and the inverse without a row is that with
    it, corrected by rank one.

    Args:
        covariance: A ``batch_shape x n x n`` tensor: the prior covariance, noise left out.
        noise: A ``batch_shape x n`` tensor of noise variances.
        residual: A ``batch_shape x n`` tensor: outcomes minus prior mean.
        latent: A ``S x n`` tensor of standard normal numbers for ``f``.
        error: A ``S x n`` tensor of standard normal numbers for ``ε``.

    Returns:
        A ``batch_shape x S x n x n`` tensor: its row ``j`` is a draw without point ``j``, at all
        points, prior mean left out.
    """
    prior = latent @ symmetric_root(covariance)
    errors = residual.unsqueeze(-2) - prior - error * noise.sqrt().unsqueeze(-2)
    inverse = torch.cholesky_inverse(psd_safe_cholesky(covariance + noise.diag_embed()))
    solved = errors @ inverse
    gain = inverse @ covariance
    without = solved / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    update = (solved @ covariance).unsqueeze(-2) - without.unsqueeze(-1) * gain.unsqueeze(-3)
    return prior.unsqueeze(-2) + update
