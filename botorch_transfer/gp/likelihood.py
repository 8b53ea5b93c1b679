r"""Gaussian likelihoods: models of the noise, and log densities with gradients in closed form.

Use :class:`AddedNoiseLikelihood` if some outcomes are themselves predictions with a variance, for
example the predicted final values of runs that were stopped early.

Fits evaluate log likelihoods with the functions of this module. Automatic differentiation through
mean, kernel and likelihood takes up to twice as long as the formulas below. The ``N`` outcomes
``y`` have the mean ``m`` and the covariance ``K``, which includes the noise. With ``r = y - m`` and
``α = K⁻¹ r``, the negative log likelihood (NLL) and its derivatives are

.. code-block:: text

    NLL = ½ rᵀα + ½ ln|K| + ½ N ln 2π        ∂NLL/∂m = -α        G = ∂NLL/∂K = ½ (K⁻¹ - ααᵀ)

For a stationary kernel ``k`` with the signal variance ``s`` and the noise variance ``σ²``,
``K = s k(X, X) + C + σ²I``. ``C`` is an additional covariance, for example of source posteriors.
Then

.. code-block:: text

    ∂NLL/∂σ²   = tr G
    ∂NLL/∂ln s = ½ (N - rᵀα) - σ² tr G - tr(G C)
    ∂NLL/∂x_i  = 4 Σ_j H_ij (x_i - x_j),   H = G ∘ s k'(r²),   x in units of the lengthscales

These formulas need no ``N x N x d`` tensor.
"""

from __future__ import annotations

import math
import sys
from copy import deepcopy
from typing import Any, NamedTuple, Self, cast

import torch
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from linear_operator.operators import DiagLinearOperator, LinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_transfer.gp.stationary import (
    Stationary,
    gradient_in_inputs,
    squared_distance,
    stationary_function,
)

#: Number of covariance matrix elements to evaluate at once on a CPU: as many as its cache can hold.
#: Smaller blocks have more overhead. Larger blocks take longer per element.
BLOCK_ELEMENTS = 2**17

#: Maximum number of covariance elements to evaluate at once. A larger task is evaluated alone.
CHUNK_ELEMENTS = 2**21

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def log_density(root: Tensor, whitened: Tensor) -> Tensor:
    """Evaluates the Gaussian log density ``log N(r; 0, L Lᵀ)`` of a vector ``r``.

    Args:
        root: A ``batch_shape x N x N`` tensor, the Cholesky factor ``L`` of the covariance.
        whitened: A ``batch_shape x N x 1`` tensor ``L⁻¹ r``.

    Returns:
        A ``batch_shape`` tensor.

    Example:
        >>> log_density(torch.eye(2), torch.zeros(2, 1))
        tensor(-1.8379)
    """
    squares = whitened.square().sum(dim=(-2, -1))
    return -0.5 * squares - _half_log_det(root) - _HALF_LOG_2PI * root.shape[-1]


def average_log_density(errors: Tensor, covariance: Tensor, residual: Tensor) -> Tensor:
    """Averages each source's error density over ``G`` possible covariances of the residual.

    For source ``m``, returns ``log (1/G) Σ_g N(errors_m; 0, covariance_m + residual_g)``.

    Args:
        errors: An ``M x n`` tensor: the target's outcomes minus the mean of each source's GP.
        covariance: An ``M x n x n`` tensor: the posterior covariance of each source's GP.
        residual: A ``G x n x n`` tensor of possible covariance matrices of the sum of residual and
            noise.

    Returns:
        An ``M`` tensor of log densities, one for each source.

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


def log_densities_of_slopes(
    slopes: Tensor, Y: Tensor, mean: Tensor, covariance: Tensor, residual: Tensor
) -> Tensor:
    """Evaluates the log density of the target's outcomes for each source and each slope.

    The model of the outcomes is ``slope * source + residual``. The distribution of ``source`` is
    the posterior of the source's GP.

    Args:
        slopes: An ``S`` tensor of the slopes to compare.
        Y: An ``n`` tensor of the target's outcomes.
        mean: An ``M x n`` tensor: the posterior mean of each source's GP.
        covariance: An ``M x n x n`` tensor: the posterior covariance of each source's GP.
        residual: A ``G x n x n`` tensor of possible covariance matrices of the sum of residual and
            noise, see :func:`average_log_density`.

    Returns:
        An ``M x S`` tensor of log densities, one for each source and each slope.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> log_densities_of_slopes(torch.tensor([0.0, 1.0]), one[0, 0], one[0], 0 * one, one)
        tensor([[-1.4189, -0.9189]])
    """
    densities = [average_log_density(Y - s * mean, s**2 * covariance, residual) for s in slopes]
    return torch.stack(densities, dim=-1)


def nll(
    mean: Tensor,
    covariance: Tensor,
    Y: Tensor,
    mask: Tensor | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    r"""Evaluates the negative log marginal likelihood of each task (Eq. 13 of [Wang2024hyperbo]_).

    Args:
        mean: A ``batch_shape x N`` tensor: the GP's mean at each task's inputs.
        covariance: A ``batch_shape x N x N`` tensor: the covariance at each task's inputs. Include
            the noise in this covariance, or give ``noise``.
        Y: A ``batch_shape x N`` tensor of outcomes.
        mask: A ``batch_shape x N`` boolean tensor for tasks of different sizes, ``True`` for data
            and ``False`` for padding. If omitted, there is no padding.
        noise: A tensor of noise variances that expands to ``batch_shape x N``. The noise variances
            are added to the diagonal of the covariance.

    Returns:
        A ``batch_shape`` tensor with one value for each task. Pre-training minimizes the mean of
        these values. They have first derivatives, but no second derivatives, with respect to mean,
        covariance, outcomes and noise. A value is NaN if the task's covariance is not positive
        definite, even with some jitter.

    Example:
        >>> nll(torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3), torch.zeros(2, 3))
        tensor([2.7568, 2.7568])
    """
    residual = Y - mean
    count: Tensor | int = Y.shape[-1]
    if mask is not None:
        residual = torch.where(mask, residual, 0.0)
        eye = torch.eye(mask.shape[-1], dtype=Y.dtype, device=Y.device)
        covariance = torch.where(_inside(mask), covariance, eye)
        count = mask.sum(dim=-1).to(Y)
        noise = None if noise is None else torch.where(mask, noise, 0.0)
    return gaussian_loss(residual.unsqueeze(-1), covariance, noise) + _HALF_LOG_2PI * count


def gaussian_loss(B: Tensor, covariance: Tensor, noise: Tensor | None = None) -> Tensor:
    """Evaluates ``½ tr(Bᵀ K⁻¹ B) + ½ ln|K|``, a term of all pre-training objectives.

    Args:
        B: A ``batch_shape x N x k`` tensor.
        covariance: A ``batch_shape x N x N`` tensor: the covariance ``K``.
        noise: A tensor of noise variances that expands to ``batch_shape x N``. The noise variances
            are added to the diagonal of the covariance.

    Returns:
        A ``batch_shape`` tensor. It has first derivatives, but no second derivatives, with respect
        to all arguments.
    """
    if noise is not None:
        covariance = covariance + noise.expand(covariance.shape[:-1]).diag_embed()
    return cast(Tensor, _GaussianLoss.apply(B, covariance))


class _GaussianLoss(torch.autograd.Function):
    """Autograd function of :func:`gaussian_loss`, with a gradient in closed form.

    The closed form is twice as fast as automatic differentiation.
    """

    @staticmethod
    def forward(ctx: Any, B: Tensor, covariance: Tensor) -> Tensor:
        root = cholesky_or_nan(covariance)
        inverse = torch.cholesky_inverse(root)
        alpha = inverse @ B
        ctx.save_for_backward(inverse, alpha)
        return 0.5 * (B * alpha).sum(dim=(-2, -1)) + _half_log_det(root)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        inverse, alpha = ctx.saved_tensors
        weight = grad_outputs[0][..., None, None]
        return weight * alpha, (alpha @ alpha.mT).sub_(inverse).mul_(-0.5 * weight)


def cholesky_or_nan(covariance: Tensor) -> Tensor:
    """Computes the Cholesky factors of matrices, with jitter only for matrices that need jitter.

    Args:
        covariance: A ``batch_shape x N x N`` tensor.

    Returns:
        A ``batch_shape x N x N`` tensor of lower triangular factors. A factor is NaN if its matrix
        is not positive definite, even with some jitter.

    Example:
        >>> cholesky_or_nan(torch.stack([torch.eye(2), -torch.eye(2)]))[:, 0, 0]
        tensor([1., nan])
    """
    return _cholesky_and_jitter(covariance)[0]


def _cholesky_and_jitter(covariance: Tensor) -> tuple[Tensor, Tensor | None]:
    """Computes the Cholesky factor of each matrix, and the jitter added to the matrix's diagonal.

    The jitter is a ``batch_shape`` tensor, or ``None`` if no matrix needs jitter.
    """
    root, info = torch.linalg.cholesky_ex(covariance)
    if not bool(info.any()):
        return root, None
    jitter = covariance.new_zeros(covariance.shape[:-2])
    for index in map(tuple, info.nonzero().tolist()):
        matrix = covariance[index]
        try:
            root[index] = psd_safe_cholesky(matrix)
        except (NanError, NotPSDError):
            root[index] = math.nan
        jitter[index] = (root[index].square().sum() - matrix.trace()) / len(matrix)
    return root, jitter


def _half_log_det(root: Tensor) -> Tensor:
    return root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


class StationaryGradient(NamedTuple):
    """Derivatives of the negative log likelihood of ``P`` GPs with a stationary kernel.

    Args:
        lengthscale: The derivatives with respect to the lengthscales, a ``P x d`` tensor; ``P x 1``
            if all inputs share one lengthscale.
        outputscale: The derivative with respect to the signal variance, a ``P x 1`` tensor.
        noise: The derivative with respect to a noise variance that all points share, a ``P x 1``
            tensor.
        constant: The derivative with respect to a mean that all points share, a ``P x 1`` tensor.
        mean: The derivatives with respect to the mean of each point, a ``P x N`` tensor.
        covariance: The derivatives ``G`` with respect to the covariance matrix, a ``P x N x N``
            tensor; empty without an additional covariance ``C``. The derivative with respect to a
            parameter of ``C`` is ``tr(G ∂C)``.
    """

    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor
    constant: Tensor
    mean: Tensor
    covariance: Tensor


def stationary_nll_and_gradient(
    residual: Tensor,
    X: Tensor,
    kernel: Stationary,
    noise: Tensor,
    mask: Tensor | None = None,
    covariance: Tensor | None = None,
    max_elements: int = sys.maxsize,
    squares: Tensor | None = None,
) -> tuple[Tensor, StationaryGradient]:
    """Evaluates the negative log likelihood of GPs with a stationary kernel, and its gradient.

    Use this function for optimizers that need no autograd graph. The GPs are evaluated in blocks.

    Args:
        residual: A ``P x N`` tensor: the outcomes minus the prior mean.
        X: A ``P x N x d`` tensor of inputs.
        kernel: The kernel, with ``P x 1 x d`` lengthscales and ``P`` signal variances.
        noise: A ``P x N`` tensor of noise variances.
        mask: A ``P x N`` boolean tensor, ``True`` for data and ``False`` for padding. If omitted,
            there is no padding.
        covariance: A ``P x N x N`` tensor of additional covariance, such as the covariance of the
            source posteriors; zero if omitted.
        max_elements: The maximum number of covariance matrix elements to evaluate at once; at least
            one matrix is evaluated. On a CPU, values above ``BLOCK_ELEMENTS`` have no effect.
        squares: An ``N² x d`` tensor of the squared differences between inputs, if all GPs have the
            same inputs. If omitted, distances are computed from ``X``, which is slower for GPs
            with few points.

    Returns:
        ``P`` values, and their derivatives. The value and the derivatives of a GP are NaN if its
        covariance matrix is not positive definite, even with some jitter.

    Example:
        >>> one = torch.ones(1, 1)
        >>> kernel = Stationary("rbf", lengthscale=torch.ones(1, 1, 1), scale=torch.ones(1))
        >>> value, gradient = stationary_nll_and_gradient(one, torch.zeros(1, 1, 1), kernel, one)
        >>> value, gradient.mean
        (tensor([1.5155]), tensor([[-0.5000]]))
    """
    if mask is not None:
        residual, noise = torch.where(mask, residual, 0.0), torch.where(mask, noise, 0.0)
    scaled = X / kernel.lengthscale if squares is None else kernel.lengthscale**-2
    scaled = scaled.expand(len(X), -1, X.shape[-1])
    batch = scaled, kernel.scale.log(), residual, noise, mask, covariance
    if X.device.type == "cpu":
        max_elements = min(max_elements, BLOCK_ELEMENTS)
    num_rows = max(1, max_elements // max(1, X.shape[-2] ** 2))
    blocks: list[list[Any]] = [
        [None if part is None else part[first : first + num_rows] for part in batch]
        for first in range(0, len(X), num_rows)
    ]
    with torch.no_grad():
        parts = [_evaluate(kernel.name, squares, *block) for block in blocks]
    found = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    value, in_log_lengthscale, in_log_scale, in_noise, in_mean, G = found
    lengthscale = kernel.lengthscale.squeeze(-2)
    return value, StationaryGradient(
        lengthscale=in_log_lengthscale.sum_to_size(lengthscale.shape) / lengthscale,
        outputscale=(in_log_scale / kernel.scale).unsqueeze(-1),
        noise=in_noise.sum(dim=-1, keepdim=True),
        constant=in_mean.sum(dim=-1, keepdim=True),
        mean=in_mean,
        covariance=G,
    )


def _evaluate(
    name: str,
    squares: Tensor | None,
    scaled: Tensor,
    log_scale: Tensor,
    residual: Tensor,
    noise: Tensor,
    mask: Tensor | None = None,
    covariance: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Evaluates the negative log likelihood of several GPs, and its derivatives.

    The derivatives are with respect to the log lengthscales, the log signal variance, each point's
    noise variance, each point's mean, and the additional covariance. ``residual`` and ``noise``
    must be zero at the padding.

    Without ``squares``, ``scaled`` contains the inputs divided by the lengthscales. With
    ``squares``, ``scaled`` is the ``P x 1 x d`` tensor ``1 / lengthscale²``.
    """
    n = residual.shape[-1]
    if squares is None:
        r2 = squared_distance(scaled, scaled)
    else:
        r2 = (scaled.squeeze(-2) @ squares.mT).unflatten(-1, (n, n))
    K, derivative = stationary_function(name).value_and_derivative(r2, log_scale[..., None, None])
    count: Tensor | int = n
    if covariance is not None:
        K.add_(covariance)
    if mask is not None:
        # The padding has unit variance, and no covariance with any other point.
        K.mul_(_inside(mask))
        K.diagonal(dim1=-2, dim2=-1).add_(~mask)
        count = mask.sum(dim=-1).to(residual)
    K.diagonal(dim1=-2, dim2=-1).add_(noise)
    root, jitter = _cholesky_and_jitter(K)
    column = residual.unsqueeze(-1)
    # PyTorch stores the inverse by columns. The transpose is stored by rows, like ``derivative``.
    inverse = torch.cholesky_inverse(root).mT
    alpha = inverse @ column
    fit = (alpha * column).sum(dim=(-2, -1))
    # ``twice`` is 2G. Halving the small results below is cheaper than halving this large array.
    twice = torch.addcmul(inverse, alpha, alpha.mT, value=-1)
    if mask is not None:  # all other elements of the padding are zero
        twice.diagonal(dim1=-2, dim2=-1).mul_(mask)
    H = twice * derivative
    if squares is None:
        in_lengthscale = 2 * torch.linalg.vecdot(gradient_in_inputs(H, scaled), scaled, dim=-2)
    else:
        in_lengthscale = (H.flatten(-2) @ squares) * scaled.squeeze(-2)
    in_noise = 0.5 * twice.diagonal(dim1=-2, dim2=-1)
    # The derivative with respect to ln s is tr(G K) minus the terms of noise, jitter and C.
    added = noise if jitter is None else noise + jitter.unsqueeze(-1)
    in_log_scale = 0.5 * (count - fit) - (in_noise * added).sum(dim=-1)
    G = twice.new_empty(len(twice), 0, 0)
    if covariance is not None:
        G = 0.5 * twice
        in_log_scale = in_log_scale - (G * covariance).sum(dim=(-2, -1))
    value = 0.5 * fit + _half_log_det(root) + _HALF_LOG_2PI * count
    return value, -in_lengthscale, in_log_scale, in_noise, -alpha.squeeze(-1), G


def _inside(mask: Tensor) -> Tensor:
    """Returns a mask of the covariance matrix elements between points that are not padding."""
    return mask.unsqueeze(-1) & mask.unsqueeze(-2)


# ------------------------------------------------------------------------------ models of the noise


class DerivedNoise(HomoskedasticNoise):
    """Noise variance that a model may set to a computed value, unless the user has set a value."""

    is_set = False

    def _set_noise(self, value: Any) -> None:
        super()._set_noise(value)
        self.is_set = True

    def derive(self, value: Tensor) -> None:
        """Sets the noise variance to a computed value, unless the user has already set a value."""
        if not self.is_set:
            super()._set_noise(value)


class AddedNoiseLikelihood(GaussianLikelihood):
    """Gaussian likelihood with a learned noise variance plus a known variance for each point.

    Pass this likelihood as ``likelihood=`` to a transfer model. The model fits the learned noise
    variance in the same way as without added variances, and transforms the added variances with the
    model's outcome transform. Observations at new points have only the learned noise.

    GPyTorch's ``FixedNoiseGaussianLikelihood`` with ``learn_additional_noise`` is similar. An
    ``AddedNoiseLikelihood``, however, has a ``noise`` that excludes the added variances, and allows
    added variances of zero.

    Args:
        added: A ``batch_shape x n`` tensor of the known variances in the units of the outcomes;
            zero for points with only the learned noise.
        likelihood: A Gaussian likelihood whose noise model is used for the learned noise; by
            default, the model's default likelihood.

    Example:
        >>> likelihood = AddedNoiseLikelihood(torch.tensor([0.0, 0.5]))
        >>> likelihood.noise = 0.25
        >>> predicted = MultivariateNormal(torch.zeros(2), torch.eye(2))
        >>> likelihood(predicted, [torch.rand(2, 1)]).variance.detach()
        tensor([1.2500, 1.7500])
    """

    added: Tensor

    def __init__(self, added: Tensor, likelihood: GaussianLikelihood | None = None) -> None:
        super().__init__()
        self.is_default = likelihood is None
        if likelihood is not None:
            self.noise_covar = deepcopy(likelihood.noise_covar)
        self.register_buffer("added", added, persistent=False)

    def _shaped_noise_covar(
        self, shape: torch.Size, *params: Any, noise: Tensor | None = None, **kwargs: Any
    ) -> LinearOperator:
        """Returns the covariance matrix of the noise at points whose shape is ``shape``.

        If the number of points equals the number of added variances, the points are assumed to be
        the training points, as in GPyTorch's fixed noise. For other points, ``noise`` may give the
        added variances.
        """
        learned: Any = super()._shaped_noise_covar(shape, *params, **kwargs)
        if noise is None:
            if shape[-1] != self.added.shape[-1]:
                return learned
            noise = self.added
        return DiagLinearOperator(learned.diagonal(dim1=-2, dim2=-1) + noise)

    @torch.no_grad()
    def transform(self, outcome_transform: OutcomeTransform | None, Y: Tensor) -> None:
        """Transforms the added variances to the units of a model.

        Args:
            outcome_transform: The model's fitted outcome transform.
            Y: A ``batch_shape x n x 1`` tensor of the untransformed outcomes.
        """
        if outcome_transform is not None:
            was_training = outcome_transform.training
            _, added = outcome_transform.eval()(Y, self.added.unsqueeze(-1))
            self.added = added.squeeze(-1)
            outcome_transform.train(was_training)

    def get_fantasy_likelihood(self, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """Returns the likelihood of a model that is conditioned on new points.

        Args:
            noise: A ``batch_shape x q`` tensor of the added variances at the new points.
            **kwargs: Ignored.

        Returns:
            The likelihood.
        """
        extended = deepcopy(self)
        if noise is not None:
            old = self.added.expand(*noise.shape[:-1], self.added.shape[-1])
            extended.added = torch.cat([old, noise.to(old)], dim=-1)
        return extended


def added_variance(likelihood: Any) -> Tensor | float:
    """Returns the variance added by an :class:`AddedNoiseLikelihood`; zero for other classes."""
    return likelihood.added if isinstance(likelihood, AddedNoiseLikelihood) else 0.0


def noise_variance(likelihood: Any, X: Tensor, **kwargs: Any) -> Tensor:
    """Evaluates the noise variances of a Gaussian likelihood at inputs.

    Args:
        likelihood: The likelihood. Its noise may be learned, known, the sum of both, or a function
            of the inputs.
        X: A ``batch_shape x n x d`` tensor of inputs.
        **kwargs: Arguments of the likelihood, such as ``noise=``, the known noise variances at new
            points.

    Returns:
        A ``batch_shape x n`` tensor.

    Example:
        >>> noise_variance(AddedNoiseLikelihood(torch.tensor([0.0, 0.5])), torch.zeros(2, 3))
        tensor([0.6932, 1.1932], grad_fn=<...>)
    """
    zero = X.new_zeros(X.shape[:-1])
    noisy = likelihood(MultivariateNormal(zero, DiagLinearOperator(zero)), [X], **kwargs)
    return cast(Tensor, noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1))
