"""The log posterior of the hyperparameters of many GPs at once, with its gradient.

With ``K = s k(X, X) + σ²I`` and ``α = K⁻¹y``, the gradient of the negative log likelihood with
respect to a hyperparameter θ is ``½ tr(G ∂K/∂θ)``, ``G = K⁻¹ - ααᵀ``. For a lengthscale, ``∂K`` is
a derivative of the kernel times squared differences in one dimension, and the trace becomes one
matrix product for all dimensions: no ``N x N x d`` tensor is formed and no graph is recorded.

MAP fits of many independent GPs as one batched optimization.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from torch import Tensor
from tqdm.auto import tqdm

from botorch_transfer.hyperpriors import GPHyperparameters
from botorch_transfer.kernels.gaussian import cholesky_or_nan
from botorch_transfer.kernels.stationary import (
    StationaryFunction,
    squared_distance,
    stationary_function,
)
from botorch_transfer.pretraining.memo import Memo
from botorch_transfer.pretraining.parallel import keep_freed_memory, run_jobs
from botorch_transfer.pretraining.tasks import MAX_PADDED_BYTES, PaddedTasks


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


# The fits of single chunks: small, and what an interrupted run need not repeat.
_finished = Memo(size=4096)

# Stands for the objective where no covariance matrix can be factorized.
_UNDEFINED = 1e100


@dataclass(frozen=True)
class MAPOptions:
    """How the hyperparameters of source GPs are optimized.

    Args:
        num_restarts: The number of further starts, drawn from the hyperpriors; the first start is
            the hyperparameters' own starting value. The best optimum is kept.
        max_iter: The most L-BFGS-B iterations of one start.
        seed: The seed of the starts. All tasks share the same starts, so that their order does not
            matter.
        chunk_elements: How many covariance matrix elements are worked on at once. It bounds the
            memory, at about 100 bytes an element; one matrix is the least.
        max_bytes: How much memory the source GPs may take in all; more is refused.
        n_jobs: How many processes joblib fits chunks in; ``None`` follows
            ``joblib.parallel_config``, so that a dask cluster can take them. With one, this process
            fits a chunk on each of PyTorch's threads, and they share ``chunk_elements``.
        progress: Whether to show a progress bar over the tasks.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> MAPOptions(num_restarts=2).seed
        0
    """

    num_restarts: int = 5
    max_iter: int = 200
    seed: int = 0
    chunk_elements: int = 2**20
    max_bytes: float = MAX_PADDED_BYTES
    n_jobs: int | None = 1
    progress: bool = False

    def __post_init__(self) -> None:
        if self.num_restarts < 0 or self.max_iter < 1 or self.chunk_elements < 1:
            raise ValueError(
                "num_restarts must not be negative; max_iter and chunk_elements must be positive."
            )


@dataclass(frozen=True)
class MAPResult:
    """The hyperparameters of ``M`` GPs at their best optimum.

    Args:
        lengthscale: An ``M x d`` tensor.
        outputscale: An ``M`` tensor.
        noise: An ``M`` tensor of inferred noise variances; of no meaning where the noise is known.
        log_posterior: An ``M`` tensor: log marginal likelihood plus log hyperprior density.
    """

    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor
    log_posterior: Tensor


def fit_map(
    tasks: PaddedTasks, kernel: str, hyperparameters: GPHyperparameters, options: MAPOptions
) -> MAPResult:
    """Fits the hyperparameters of independent zero-mean GPs, one for each task.

    Args:
        tasks: The padded tasks, outcomes standardized. Computation is in double precision
            throughout.
        kernel: The stationary kernel's name.
        hyperparameters: Hyperpriors, starts and bounds.
        options: How to optimize.

    Returns:
        The best hyperparameters of every task, in double precision on the tasks' device. Where no
        start has a positive definite covariance matrix, the log posterior is minus infinity.

    Example:
        >>> X, ones = torch.rand(3, 10, 2, dtype=torch.double), torch.ones(3, 10).double()
        >>> tasks = PaddedTasks(X, X.sum(-1) - 1, 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> result = fit_map(tasks, "rbf", SOURCE_HYPERPARAMETERS, MAPOptions(num_restarts=1))
        >>> result.lengthscale.shape
        torch.Size([3, 2])
    """
    starts = draw_starts(hyperparameters, tasks.X.shape[-1], options)
    # Tasks of like size share a chunk: little padding, and small tasks do not wait for large ones.
    order = torch.argsort(tasks.num_points, stable=True)
    num_threads = min(_num_threads(tasks, options), len(order))
    # The threads share the memory, and the work.
    share = -(-len(starts) * len(order) * int(tasks.num_points.max()) ** 2 // num_threads)
    chunk_elements = min(options.chunk_elements // num_threads, share)
    chunks = list(_chunks(order, tasks.num_points, len(starts), chunk_elements))
    # Fewer chunks than threads: each may take more of the memory, and its starts stay together.
    num_threads = min(num_threads, len(chunks))
    theta = torch.empty(len(order), starts.shape[-1], dtype=torch.double, device=tasks.X.device)
    value = theta.new_empty(len(order))
    jobs = [
        (
            tasks[chunk].double(),
            kernel,
            hyperparameters,
            starts,
            options.max_iter,
            options.chunk_elements // num_threads,
        )
        for chunk in chunks
    ]
    with tqdm(total=len(order), desc="source GPs", disable=not options.progress) as bar:
        results = run_jobs("map_fit", _optimize, jobs, options.n_jobs, _finished, num_threads)
        for chunk, result in zip(chunks, results, strict=True):
            theta[chunk], value[chunk] = (part.to(theta) for part in result)
            bar.update(len(chunk))
    lengthscale, outputscale, noise = theta.exp().tensor_split((-2, -1), dim=-1)
    return MAPResult(lengthscale, outputscale.squeeze(-1), noise.squeeze(-1), -value)


def draw_starts(
    hyperparameters: GPHyperparameters, dim: int, options: MAPOptions
) -> npt.NDArray[np.float64]:
    """Draws the starts that all tasks share.

    Args:
        hyperparameters: Hyperpriors, starts and bounds.
        dim: The number of lengthscales ``d``.
        options: The number of starts and the seed.

    Returns:
        A ``(1 + num_restarts) x (d + 2)`` array of logarithms of hyperparameters.
    """
    spec = hyperparameters
    generator = torch.Generator().manual_seed(options.seed)
    n = options.num_restarts
    parts = []
    for hyperparameter, size in ((spec.lengthscale, dim), (spec.outputscale, 1), (spec.noise, 1)):
        first = torch.full((1, size), hyperparameter.start, dtype=torch.double)
        drawn = hyperparameter.sample(torch.Size([n, size]), generator)
        parts.append(torch.cat([first, drawn]))
    return torch.cat(parts, dim=-1).log().numpy()


def _chunks(order: Tensor, sizes: Tensor, num_starts: int, chunk_elements: int) -> Iterator[Tensor]:
    """Splits tasks, sorted by size, into chunks of at most ``chunk_elements``."""
    sizes_list = sizes[order].tolist()
    first = 0
    for last in range(1, len(sizes_list) + 1):
        done = last == len(sizes_list)
        # A chunk is padded to its largest task, which is the next one.
        if done or (last + 1 - first) * num_starts * sizes_list[last] ** 2 > chunk_elements:
            yield order[first:last]
            first = last


def _num_threads(tasks: PaddedTasks, options: MAPOptions) -> int:
    """How many chunks this process fits side by side."""
    return torch.get_num_threads() if options.n_jobs == 1 and not tasks.X.is_cuda else 1


def _optimize(
    tasks: PaddedTasks,
    kernel: str,
    hyperparameters: GPHyperparameters,
    starts: npt.NDArray[np.float64],
    max_iter: int,
    chunk_elements: int,
) -> tuple[Tensor, Tensor]:
    """Runs all starts of all tasks at once and keeps each task's best."""
    num_tasks, num_points = len(tasks.X), tasks.num_points
    # The starts of one large task may have to be evaluated one after another.
    num_rows = max(1, chunk_elements // tasks.X.shape[-2] ** 2)
    objective = MAPObjective(tasks, stationary_function(kernel), hyperparameters)
    device = tasks.X.device

    def evaluate(
        x: npt.NDArray[np.float64], batch_indices: Sequence[int]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        index = torch.as_tensor(batch_indices, device=device) % num_tasks
        theta = torch.from_numpy(x).to(device)
        parts = zip(theta.split(num_rows), index.split(num_rows), strict=True)
        packed = torch.cat([torch.column_stack(objective(*part)) for part in parts])
        # Per point, as BoTorch does it, so that its tolerances mean the same here.
        array = (packed / num_points[index].unsqueeze(-1)).cpu().numpy()
        # Where the objective is not defined, a line search turns back, and a start comes to rest.
        array[np.isnan(array).any(axis=-1)] = [_UNDEFINED, *[0.0] * x.shape[-1]]
        return array[:, 0], array[:, 1:]

    keep_freed_memory()
    bounds = _bounds(hyperparameters, tasks.X.shape[-1])
    x0 = np.repeat(starts, num_tasks, axis=0)
    theta, value, _ = fmin_l_bfgs_b_batched(
        evaluate, x0, bounds=bounds, maxiter=max_iter, pass_batch_indices=True
    )
    return _best_of_starts(theta, value, len(starts), num_points.cpu())


def _best_of_starts(
    theta: npt.NDArray[np.float64], value: npt.NDArray[np.float64], num_starts: int, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    values = torch.from_numpy(value).reshape(num_starts, -1)
    best_value, best = values.masked_fill(values >= _UNDEFINED, math.inf).min(dim=0)
    thetas = torch.from_numpy(theta).reshape(num_starts, len(sizes), -1)
    return thetas[best, torch.arange(len(sizes))], best_value * sizes


def _bounds(hyperparameters: GPHyperparameters, dim: int) -> list[tuple[float, float]]:
    spec = hyperparameters
    parts: list[Any] = [spec.lengthscale] * dim + [spec.outputscale, spec.noise]
    return [(math.log(part.lower), math.log(part.upper)) for part in parts]
