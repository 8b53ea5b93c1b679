"""MAP fits of many independent GPs, one for each source task, as one batched optimization.

The parameters of a GP are the logarithms of its lengthscales, signal variance and noise variance,
and optionally a constant mean. As in GPyTorch, the hyperpriors are densities of the
hyperparameters, not of their logarithms. The fit therefore has the same optimum as
``fit_gpytorch_mll``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.gp.conditioned import groups_of_like_size
from botorch_transfer.gp.hyperpriors import GPHyperparameters, Hyperparameter, LogPrior
from botorch_transfer.gp.likelihood import stationary_nll_and_gradient
from botorch_transfer.gp.objective import (
    FitObjective,
    keep_freed_memory,
    minimize_batched,
    single_threaded_scipy,
)
from botorch_transfer.gp.stationary import Stationary, stationary_function
from botorch_transfer.gp.tasks import MAX_PADDED_BYTES, PaddedTasks
from botorch_transfer.memo import Memo
from botorch_transfer.progress import track


@dataclass(frozen=True)
class TaskObjective(FitObjective):
    """Negative log posterior of the hyperparameters of ``M`` independent GPs, one for each task.

    A row of parameters has ``d + 2`` columns: ``log(lengthscale), log(outputscale), log(noise)``.
    By default, the prior mean is zero. With ``shared``, one more column holds
    a constant prior mean.

    Args:
        tasks: The data of ``M`` tasks, padded to the same number of points.
        kernel: The stationary kernel's name.
        hyperpriors: The hyperpriors. The hyperprior of the noise variance is ignored for tasks with
            known noise.
        max_elements: The maximum number of covariance matrix elements to evaluate at once, see
            :func:`~.likelihood.stationary_nll_and_gradient`.
        shared: Whether each row of parameters applies to all tasks. Otherwise, row ``i`` applies to
            task ``i % M``.

    Example:
        >>> X, ones = torch.rand(3, 10, 2, dtype=torch.double), torch.ones(3, 10).double()
        >>> tasks = PaddedTasks(X, X.sum(-1) - 1, 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> objective = TaskObjective(tasks, "rbf", SOURCE_HYPERPARAMETERS.log_prior(dim=2))
        >>> value, gradient = objective(torch.full((2, 4), -1.0).double(), torch.tensor([0, 2]))
        >>> value.shape, gradient.shape
        (torch.Size([2]), torch.Size([2, 4]))
    """

    tasks: PaddedTasks
    kernel: str
    hyperpriors: LogPrior
    max_elements: int = sys.maxsize
    shared: bool = False

    @cached_property
    def is_log(self) -> Tensor:  # type: ignore[override]
        """Mask of the parameters that are logarithms: all parameters except the constant mean."""
        count, device = self.tasks.X.shape[-1] + 2, self.tasks.X.device
        return pad(torch.ones(count, dtype=torch.bool, device=device), (0, self.shared))

    def log_prior(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the log hyperpriors and their derivatives.

        For tasks with known noise, the hyperprior of the noise variance is ignored.
        """
        density, slope = self.hyperpriors(values[:, : self.tasks.X.shape[-1] + 2])
        known = self.tasks.fixed_noise[self._tasks_of(rows)].all(dim=-1)
        for part in (density, slope):
            part[:, -1].masked_fill_(known, 0.0)
        return density.sum(dim=-1), pad(slope, (0, self.shared))

    def likelihood(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the negative log likelihood and its derivatives.

        The derivative with respect to the noise variance is zero for tasks with known noise.
        """
        index, sizes = self._tasks_of(rows), [self.tasks.X.shape[-1], 1, 1] + [1] * self.shared
        tasks = self.tasks[index.flatten()]
        values = values.repeat_interleave(index.shape[-1], dim=0)
        lengthscale, outputscale, noise, *constant = values.split(sizes, dim=-1)
        known = tasks.fixed_noise.unsqueeze(-1)
        value, slopes = stationary_nll_and_gradient(
            tasks.Y - constant[0] if constant else tasks.Y,
            tasks.X,
            Stationary(self.kernel, lengthscale.unsqueeze(-2), outputscale.squeeze(-1)),
            torch.where(known, tasks.Yvar, noise),
            tasks.mask if tasks.is_ragged else None,
            tasks.covariance,
            self.max_elements,
        )
        slopes.noise.masked_fill_(known, 0.0)
        slope = torch.cat(slopes[: len(sizes)], dim=-1)
        return value.reshape(index.shape).sum(dim=-1), slope.unflatten(0, index.shape).sum(dim=-2)

    def num_points(self, rows: Tensor) -> Tensor:
        """Counts the training points to which each of ``P`` rows of parameters applies.

        A row applies to the points of one task; with ``shared``, to the points of all tasks.
        """
        return self.tasks.num_points[self._tasks_of(rows)].sum(dim=-1)

    def _tasks_of(self, rows: Tensor) -> Tensor:
        """Returns the indices of the tasks that each row of parameters applies to.

        The result is a ``P x 1`` tensor; with ``shared``, a ``P x M`` tensor.
        """
        num_tasks = len(self.tasks.X)
        if self.shared:
            return torch.arange(num_tasks, device=rows.device).expand(len(rows), -1)
        return (rows % num_tasks).unsqueeze(-1)


T = TypeVar("T")

# Caches fitted chunks of tasks: after an interrupt, a fit continues with the remaining chunks.
_finished = Memo(size=4096)

#: Minimum number of covariance matrix elements of a chunk if each thread fits several chunks.
_SMALLEST_SHARE = 2**18


@dataclass(frozen=True)
class MAPOptions:
    """Options for fitting the hyperparameters of source GPs.

    A chunk is a group of tasks that are fitted at the same time.

    Args:
        num_restarts: The number of starts that are sampled from the hyperpriors. One more start
            uses the starting values of the hyperparameters. The best optimum is kept.
        max_iter: The maximum number of L-BFGS-B iterations of one start.
        seed: The seed of the sampled starts. All tasks have the same starts, so the order of tasks
            has no effect.
        chunk_elements: The maximum number of covariance matrix elements per chunk; a chunk has at
            least one matrix. Each element takes about 100 bytes of memory.
        max_bytes: The maximum memory of all source GPs, in bytes. If the source GPs would need more
            memory, an error is raised.
        fit_points: The maximum number of points that a task's hyperparameters are fitted to. From a
            larger task, points at evenly spaced ranks are selected, from the worst to the best
            outcome.
        n_jobs: The number of joblib processes that fit chunks. ``None`` uses the settings of
            ``joblib.parallel_config``, for example a dask cluster. With ``1`` and data on a CPU,
            each of PyTorch's threads fits one chunk at a time. In this case only,
            ``chunk_elements`` is divided by the number of threads.
        progress: Whether to show a progress bar over the chunks. By default, a fit of more than
            three seconds logs its expected duration, and shows a bar if the output is a terminal.

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
    fit_points: int = 256
    n_jobs: int | None = 1
    progress: bool | None = None

    def __post_init__(self) -> None:
        positive = "max_iter", "chunk_elements", "fit_points"
        if self.num_restarts < 0 or min(getattr(self, name) for name in positive) < 1:
            raise ValueError(
                f"num_restarts= must not be negative; {'=, '.join(positive)}= must be positive."
            )


@dataclass(frozen=True)
class MAPResult:
    """Fitted hyperparameters of ``M`` GPs: the best optimum of each GP.

    Args:
        lengthscale: An ``M x d`` tensor of lengthscales.
        outputscale: An ``M`` tensor of signal variances.
        noise: An ``M`` tensor of inferred noise variances, meaningless for tasks with known noise.
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

    The GP of a large task is fitted to a subset of the task's points, see ``fit_points`` of
    :class:`MAPOptions`. If an input is constant in a task, the likelihood does not depend on the
    lengthscale of this input. The fitted lengthscale is then the mode of the hyperprior. The signal
    variance of a task with a constant input is bounded by one.

    Args:
        tasks: The padded tasks with standardized outcomes. All computations are in double
            precision.
        kernel: The stationary kernel's name.
        hyperparameters: Hyperpriors, starting values and bounds.
        options: Options of the optimization.

    Returns:
        The best hyperparameters of every task, in double precision on the tasks' device. If no
        start of a task has a positive definite covariance matrix, the task's log posterior is minus
        infinity.

    Example:
        >>> X, ones = torch.rand(3, 10, 2, dtype=torch.double), torch.ones(3, 10).double()
        >>> tasks = PaddedTasks(X, X.sum(-1) - 1, 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> result = fit_map(tasks, "rbf", SOURCE_HYPERPARAMETERS, MAPOptions(num_restarts=1))
        >>> result.lengthscale.shape
        torch.Size([3, 2])
    """
    stationary_function(kernel)  # raises an error for an unknown name before the fit
    tasks = tasks.typical(options.fit_points)
    sizes, num_tasks, num_starts = tasks.num_points, len(tasks.X), 1 + options.num_restarts
    on_threads = options.n_jobs == 1 and tasks.X.device.type == "cpu"
    num_threads = min(torch.get_num_threads(), num_tasks) if on_threads else 1
    # With a few large chunks for each thread, the threads end at about the same time.
    total = num_starts * num_tasks * int(sizes.max()) ** 2
    shares = max(1, min(4, total // num_threads // _SMALLEST_SHARE)) if num_threads > 1 else 1
    share = min(options.chunk_elements // num_threads, -(-total // (shares * num_threads)))
    # Chunks of tasks of similar size need little padding, and small tasks finish early.
    at_one_value, chunks = _has_constant_input(tasks), list[tuple[Tensor, Any, Tensor]]()
    bounded = replace(hyperparameters, outputscale=_at_most_one(hyperparameters.outputscale))
    for chosen, own in ((at_one_value, bounded), (~at_one_value, hyperparameters)):
        starts = draw_starts(own, tasks.X.shape[-1], options)
        index = chosen.nonzero().squeeze(-1)
        of_like_size = groups_of_like_size(sizes, index, share // num_starts)
        chunks += [(chunk, own, starts) for chunk in of_like_size]
    # With fewer chunks than threads, each chunk gets a larger share of chunk_elements.
    num_threads = min(num_threads, len(chunks))
    most = max(1, options.chunk_elements // num_threads)
    own_options = MAPOptions(max_iter=options.max_iter, chunk_elements=most)
    jobs = [(tasks[chunk].double(), kernel, *own, own_options) for chunk, *own in chunks]
    function, n_jobs, backend = _optimize, options.n_jobs, None
    if num_threads > 1:
        function, n_jobs, backend = _on_one_thread(_optimize), num_threads, "threading"
    theta = tasks.X.new_empty(num_tasks, tasks.X.shape[-1] + 2, dtype=torch.double)
    value = theta.new_empty(num_tasks)
    with single_threaded_scipy():
        results = _finished.run("map_fit", function, jobs, n_jobs, backend)
        for at, result in track(results, "source GPs", len(jobs), options.progress):
            chunk, *_ = chunks[at]
            theta[chunk], value[chunk] = (part.to(theta) for part in result)
    lengthscale, outputscale, noise = theta.exp().tensor_split((-2, -1), dim=-1)
    return MAPResult(lengthscale, outputscale.squeeze(-1), noise.squeeze(-1), -value)


def _has_constant_input(tasks: PaddedTasks) -> Tensor:
    """Returns the mask of tasks in which some input is constant, an ``M`` boolean tensor."""
    varies = ((tasks.X[:, :1] != tasks.X) & tasks.mask.unsqueeze(-1)).any(dim=-2)
    # Excludes tasks with one point, because a single outcome has no variance.
    return ~varies.all(dim=-1) & (tasks.num_points > 1)


def _at_most_one(outputscale: Hyperparameter) -> Hyperparameter:
    """Returns the hyperparameter of the signal variance with an upper bound of one.

    The bound is the variance of standardized outcomes. If an input is constant in a task, the task
    has no information about other values of the input. Far from the constant value, the variance of
    predictions is the signal variance. Without the bound, the fitted signal variance of a smooth
    task would be a hundred times the variance of the task's outcomes.
    """
    upper = max(outputscale.lower, 1.0)
    return replace(outputscale, start=min(outputscale.start, upper), upper=upper)


def draw_starts(hyperparameters: GPHyperparameters, dim: int, options: MAPOptions) -> Tensor:
    """Returns the starts of a fit, which are the same for all tasks.

    Args:
        hyperparameters: Hyperpriors, starting values and bounds.
        dim: The number of lengthscales ``d``.
        options: The number of sampled starts and the seed.

    Returns:
        A ``(1 + num_restarts) x (d + 2)`` tensor of logarithms of hyperparameters: the starting
        values, then samples of the hyperpriors.
    """
    generator = torch.Generator().manual_seed(options.seed)
    parts = []
    for hyperparameter, size in hyperparameters.columns(dim):
        first = torch.full((1, size), hyperparameter.start, dtype=torch.double)
        drawn = hyperparameter.sample(torch.Size([options.num_restarts, size]), generator)
        parts.append(torch.cat([first, drawn]))
    return torch.cat(parts, dim=-1).log()


def log_bounds(hyperparameters: GPHyperparameters, dim: int) -> Tensor:
    """Returns lower and upper bounds of log hyperparameters, a ``2 x (d + 2)`` tensor."""
    columns = [part for part, size in hyperparameters.columns(dim) for _ in range(size)]
    return torch.tensor([[part.lower, part.upper] for part in columns]).double().log().T


def _on_one_thread(function: Callable[..., T]) -> Callable[..., T]:
    """Wraps a function so that PyTorch uses only one thread within each call.

    Parallel calls with one thread each are faster than successive calls with several threads,
    because PyTorch factorizes the matrices of a batch one by one.
    """
    before = torch.get_num_threads()

    def call(*job: Any) -> T:
        torch.set_num_threads(1)
        try:
            return function(*job)
        finally:
            torch.set_num_threads(before)

    return call


def _optimize(
    tasks: PaddedTasks, kernel: str, own: GPHyperparameters, starts: Tensor, options: MAPOptions
) -> tuple[Tensor, Tensor]:
    """Fits the hyperparameters of all tasks from all starts at once.

    Returns the best parameters of each task, and the negative log posterior at these parameters.
    """
    num_tasks, num_points, dim = len(tasks.X), tasks.num_points, tasks.X.shape[-1]
    objective = TaskObjective(tasks, kernel, own.log_prior(dim), options.chunk_elements)
    keep_freed_memory()
    theta, value = minimize_batched(
        objective,
        starts.to(tasks.X.device).repeat_interleave(num_tasks, dim=0),
        log_bounds(own, dim),
        options.max_iter,
    )
    best_value, best = value.reshape(len(starts), num_tasks).min(dim=0)
    thetas = theta.reshape(len(starts), num_tasks, -1)
    return thetas[best, torch.arange(num_tasks)], best_value * num_points.cpu()
