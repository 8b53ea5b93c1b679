r"""The log posterior of the hyperparameters of many GPs at once, with its gradient.

With ``K = s k(X, X) + σ²I`` and ``α = K⁻¹y``, the gradient of the negative log likelihood with
respect to a hyperparameter θ is ``½ tr(G ∂K/∂θ)``, ``G = K⁻¹ - ααᵀ``. For a lengthscale, ``∂K`` is
a derivative of the kernel times squared differences in one dimension, and the trace becomes one
matrix product for all dimensions: no ``N x N x d`` tensor is formed and no graph is recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_transfer.hyperpriors import GPHyperparameters
from botorch_transfer.kernels.stationary import StationaryFunction, squared_distance
from botorch_transfer.pretraining.cholesky import cholesky_or_nan
from botorch_transfer.pretraining.padding import PaddedTasks


@dataclass(frozen=True)
class MAPObjective:
    """The negative log posterior of hyperparameters on a logarithmic scale, task by task.

    The hyperpriors' densities are those of the hyperparameters themselves, as in GPyTorch, so the
    optimum is the one that ``fit_gpytorch_mll`` looks for.

    Args:
        tasks: The padded tasks, outcomes with zero mean.
        function: The unit-variance stationary kernel.
        hyperparameters: The hyperpriors.

    Example:
        >>> X, ones = torch.rand(3, 10, 2, dtype=torch.double), torch.ones(3, 10).double()
        >>> tasks = PaddedTasks(X, X.sum(-1) - 1, 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> objective = MAPObjective(tasks, stationary_function("rbf"), SOURCE_HYPERPARAMETERS)
        >>> value, gradient = objective(torch.full((2, 4), -1.0).double(), torch.tensor([0, 2]))
        >>> value.shape, gradient.shape
        (torch.Size([2]), torch.Size([2, 4]))
    """

    tasks: PaddedTasks
    function: StationaryFunction
    hyperparameters: GPHyperparameters

    def __call__(self, theta: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the objective.

        Args:
            theta: A ``P x (d + 2)`` tensor of logarithms of hyperparameters.
            index: A ``P`` tensor: the task of each row of ``theta``.

        Returns:
            The ``P`` values and their ``P x (d + 2)`` gradient; NaN where a covariance matrix is
            not positive definite, even with some jitter.
        """
        tasks = self.tasks[index]
        value, gradient = negative_log_likelihood(theta, tasks, self.function)
        log_prior, log_prior_gradient = self._log_prior(theta, tasks.fixed_noise)
        return value - log_prior, gradient - log_prior_gradient

    def _log_prior(self, theta: Tensor, fixed_noise: Tensor) -> tuple[Tensor, Tensor]:
        theta = theta.detach().requires_grad_(True)
        lengthscale, outputscale, noise = theta.exp().tensor_split((-2, -1), dim=-1)
        total = theta.new_zeros(theta.shape[0]) + 0 * theta.sum()
        spec = self.hyperparameters
        inferred_noise = (~fixed_noise).unsqueeze(-1)
        for hyperparameter, value, counts in (
            (spec.lengthscale, lengthscale, torch.ones_like(inferred_noise)),
            (spec.outputscale, outputscale, torch.ones_like(inferred_noise)),
            (spec.noise, noise, inferred_noise),
        ):
            prior = hyperparameter.prior()
            if prior is not None:
                total = total + (prior.to(theta).log_prob(value) * counts).sum(dim=-1)
        (gradient,) = torch.autograd.grad(total.sum(), theta)
        return total.detach(), gradient


def negative_log_likelihood(
    theta: Tensor, tasks: PaddedTasks, function: StationaryFunction
) -> tuple[Tensor, Tensor]:
    """Evaluates the negative log marginal likelihood of each task and its gradient.

    Args:
        theta: An ``M x (d + 2)`` tensor of ``log(lengthscale), log(outputscale), log(noise)``.
        tasks: The ``M`` padded tasks, outcomes with zero mean.
        function: The unit-variance stationary kernel.

    Returns:
        The ``M`` values and their ``M x (d + 2)`` gradient; that of a known noise is zero. NaN
        where a covariance matrix is not positive definite, even with some jitter.
    """
    value, gradient, _ = likelihood_terms(theta, tasks, function)
    return value, gradient


def likelihood_terms(
    theta: Tensor, tasks: PaddedTasks, function: StationaryFunction
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluates what :func:`negative_log_likelihood` does, and the derivative in the outcomes.

    Args:
        theta: An ``M x (d + 2)`` tensor of ``log(lengthscale), log(outputscale), log(noise)``.
        tasks: The ``M`` padded tasks, outcomes with zero mean.
        function: The unit-variance stationary kernel.

    Returns:
        The ``M`` values, their ``M x (d + 2)`` gradient, and the ``M x N`` derivative in the
        outcomes, ``α = K⁻¹y``, zero at the padding.
    """
    lengthscale, _, noise = theta.exp().tensor_split((-2, -1), dim=-1)
    scaled = tasks.X / lengthscale.unsqueeze(-2)
    r2 = squared_distance(scaled, scaled)
    signal = function.value(r2, theta[:, -2, None, None])
    if tasks.is_ragged:
        signal.mul_(tasks.mask.unsqueeze(-1)).mul_(tasks.mask.unsqueeze(-2))
    diagonal = torch.where(tasks.fixed_noise.unsqueeze(-1), tasks.Yvar, noise)
    covariance = signal.clone() if tasks.covariance is None else signal + tasks.covariance
    covariance.diagonal(dim1=-2, dim2=-1).add_(torch.where(tasks.mask, diagonal, 1.0))
    root = cholesky_or_nan(covariance)
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    inverse_root = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)
    alpha = inverse_root.mT @ (inverse_root @ tasks.Y.unsqueeze(-1))
    value = 0.5 * (tasks.Y * alpha.squeeze(-1)).sum(dim=-1)
    value = value + root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    value = value + 0.5 * math.log(2 * math.pi) * tasks.num_points.to(value)

    G = (inverse_root.mT @ inverse_root).baddbmm_(alpha, alpha.mT, alpha=-1)
    noise_gradient = 0.5 * noise * (G.diagonal(dim1=-2, dim2=-1) * tasks.mask).sum(-1, keepdim=True)
    noise_gradient = noise_gradient * (~tasks.fixed_noise).unsqueeze(-1)
    H = G.mul_(signal)
    outputscale_gradient = 0.5 * H.sum(dim=(-2, -1)).unsqueeze(-1)
    # ½ Σ_ab H_ab (-2) (u_a - u_b)² with H = G ∘ s k'(r2) and u the scaled inputs, in each
    # dimension.
    H = H.mul_(function.log_derivative(r2))
    squares = (H.sum(dim=-1, keepdim=True) * scaled.square()).sum(dim=-2)
    lengthscale_gradient = -2 * (squares - (scaled * (H @ scaled)).sum(dim=-2))
    gradient = torch.cat([lengthscale_gradient, outputscale_gradient, noise_gradient], dim=-1)
    return value, gradient, alpha.squeeze(-1)
