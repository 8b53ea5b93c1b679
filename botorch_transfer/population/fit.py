r"""The joint MAP fit of the hierarchical GP over the source tasks.

All tasks share its hyperparameters, so they are fitted to the rows of all tasks at once. They are
optimized as logarithms, with normal hyperpriors:

.. code-block:: text

    log ℓ_c         ~ N(√2 + ½ log d, 3)      lengthscales of what all tasks share
    log ℓ_h / ℓ_c   ~ N(0, .7²)               lengthscales of a task's own function
    log s_c         ~ N(log .8, 1)            standard deviation of what all tasks share
    log s_h         ~ N(log .7, 1)            standard deviation of a task's own function
    log s_h / s_c   ~ N(.3, .3² M / 2)        how alike the M tasks are; one or two cannot tell
    log σ²          ~ N(log .01, 1.5²)        noise variance
    log σ_m² / σ²   ~ N(0, .7²)               a task's own noise variance

for outcomes that are standardized task by task. Hyperpriors and their values were chosen by
experiment. Those of ``ℓ_c`` and ``σ²`` may come from other search spaces instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.distilled import different_rows
from botorch_transfer.gp.likelihood import stationary_nll_and_gradient
from botorch_transfer.gp.objective import CONVERGED, FitObjective, Hyperparameters
from botorch_transfer.gp.optimize import minimize_batched, single_threaded_scipy
from botorch_transfer.gp.stationary import Stationary, gradient_in_inputs
from botorch_transfer.gp.tasks import lexical_order, typical_rows
from botorch_transfer.population.kernel import (
    LEVEL_VARIANCE,
    MAX_REFERENCE,
    PopulationHyperparameters,
    centred,
    centred_gradient,
)
from botorch_transfer.prior import Observations
from botorch_transfer.progress import announce

_UNKNOWN_LENGTHSCALE = 1 / 3
"""The lengthscale of an input whose value is the same in all data, in widths of the unit cube."""

_JITTER = 1e-6

_STEPS = 50
"""How often the objective is evaluated in a fit, about."""

_FEWEST = 5
"""How many points of a task are kept at least."""


@dataclass(frozen=True)
class PopulationOptions:
    """How the hierarchical GP over the source tasks is fitted and conditioned.

    Args:
        max_iter: The most L-BFGS-B iterations.
        fit_points: Hyperparameters are fitted to at most so many points of all tasks together:
            each task has the same share of its points, from its worst outcome to its best, but no
            fewer than five. Where there is no room for five points of each task, tasks are left out
            evenly.
        max_inducing: The GP is conditioned on all points, and kept on at most so many inducing
            points where they are more.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> PopulationOptions(max_inducing=256).fit_points
        500
    """

    max_iter: int = 100
    fit_points: int = 500
    max_inducing: int = 512

    def __post_init__(self) -> None:
        if self.max_iter < 1 or self.fit_points < 1 or self.max_inducing < 1:
            raise ValueError("max_iter, fit_points and max_inducing must be positive.")


def thinned(tasks: Observations, max_points: int) -> Observations:
    """Keeps about the same share of each task's points, but no fewer than five.

    Where there is no room for five points of each task, tasks are left out evenly, in the order
    of how their outcomes are distributed. The order in which tasks are given does not matter.

    Args:
        tasks: The rows of all tasks.
        max_points: How many points to keep of all tasks together, at most.

    Returns:
        The rows that are kept, one task after another.
    """
    if len(tasks.Y) <= max_points:
        return tasks
    chosen = _spread_out(tasks, max(1, max_points // _FEWEST))
    sizes = torch.bincount(tasks.task)[chosen]
    fewest = sizes.clamp_max(min(_FEWEST, max_points))
    share, counts = 1.0, sizes
    while counts.sum() > max_points:  # with each round more tasks are at their fewest
        room = counts > fewest
        share = float(max_points - fewest[~room].sum()) / float(sizes[room].sum())
        counts = fewest.maximum((share * sizes).floor().long())
    kept = []
    for index, count in zip(chosen.tolist(), counts.tolist(), strict=True):
        (rows,) = (tasks.task == index).nonzero(as_tuple=True)
        # By its outcomes: tasks with the same inputs are to keep different ones.
        kept.append(rows[typical_rows(tasks.X[rows], tasks.Y[rows], count).sort().values])
    every = torch.cat(kept)
    return Observations(tasks.X[every], tasks.Y[every], tasks.noise[every], tasks.task[every])


def _spread_out(tasks: Observations, most: int) -> Tensor:
    """The tasks with data; where these are more, so many that differ in their outcomes."""
    indices, counts = tasks.task.unique(return_counts=True)
    if len(indices) <= most:
        return indices
    none = tasks.Y.new_zeros(int(indices[-1]) + 1)
    keys = tasks.X.sum(dim=-1), tasks.Y.abs()  # outcomes decide, inputs where they agree
    means = [none.index_add(0, tasks.task, key)[indices] / counts for key in keys]
    return indices[lexical_order(*means)[evenly_spaced(len(indices), most)]].sort().values


class PopulationObjective(FitObjective):
    """The negative log posterior of the hyperparameters per point, up to a constant.

    Args:
        tasks: The rows of all tasks, numbered without gaps and standardized task by task. Noise
            that is inferred is NaN.
        kernel: The stationary kernel's name.

    Example:
        >>> X, ones = torch.rand(9, 2).double(), torch.ones(9).double()
        >>> tasks = Observations(X, X.sum(-1) - 1, math.nan * ones, torch.arange(9) // 3)
        >>> objective = PopulationObjective(tasks, "matern52")
        >>> value, gradient = objective(objective.start().unsqueeze(0), torch.tensor([0]))
        >>> gradient.shape
        torch.Size([1, 10])
    """

    def __init__(self, tasks: Observations, kernel: str) -> None:
        self.tasks, self.kernel = tasks, kernel
        self._dim, self._num_tasks = tasks.X.shape[-1], int(tasks.task.max()) + 1
        self._same = (tasks.task.unsqueeze(-1) == tasks.task).double()
        self._reference = different_rows(tasks.X, MAX_REFERENCE)

    def start(self) -> Tensor:
        """The parameters that the optimization starts from."""
        d, M = self._dim, self._num_tasks
        lengthscale, noise = math.log(0.5) + 0.25 * math.log(d), math.log(0.02)
        start = torch.zeros(2 * d + 3 + M, dtype=torch.double)
        start[:d] = start[d : 2 * d] = torch.as_tensor(lengthscale)
        start[2 * d : 2 * d + 3] = torch.tensor([math.log(0.8), math.log(0.7), noise])
        return start.clamp(*self.bounds()).to(self.tasks.Y.device)

    def bounds(self) -> Tensor:
        """Lower and upper bounds of the parameters.

        If an input never varies, its lengthscale cannot be learned. It is fixed to a short one, and
        signal variances are bounded by one, so that predictions away from the known value return to
        the prior's.
        """
        d, M = self._dim, self._num_tasks
        pairs = [(-4.0, 6.0)] * d + [(-5.0, 7.0)] * d
        constant = (self.tasks.X[:1] == self.tasks.X).all(dim=0)
        largest = 2.0
        if len(self.tasks.Y) > 1 and bool(constant.any()):
            fixed, largest = math.log(_UNKNOWN_LENGTHSCALE), 0.0
            for column in constant.nonzero().flatten().tolist():
                pairs[column] = pairs[d + column] = (fixed, fixed)
        pairs += [(-4.0, largest)] * 2 + [(-11.0, 0.0)] + [(-4.0, 4.0)] * M
        return torch.tensor(pairs, dtype=torch.double).T

    def read(self, theta: Tensor) -> PopulationHyperparameters:
        """Turns ``... x k`` parameters into hyperparameters."""
        d = self._dim
        common, own, s_c, s_h, noise, of_tasks = theta.split((d, d, 1, 1, 1, self._num_tasks), -1)
        return PopulationHyperparameters(
            common.exp(),
            own.exp(),
            (2 * s_c).exp().squeeze(-1),
            (2 * s_h).exp().squeeze(-1),
            noise.exp().squeeze(-1),
            (noise + of_tasks).exp(),
        )

    def hyperparameters(self, theta: Tensor, rows: Tensor) -> tuple[Hyperparameters, Tensor]:
        """Reads the parameters; the hyperpriors are of sums and differences of them."""
        d, M = self._dim, self._num_tasks
        common, own, s_c, s_h, noise, of_tasks = theta.split((d, d, 1, 1, 1, M), dim=-1)
        normal = [  # with their means and standard deviations
            (common, math.sqrt(2) + 0.5 * math.log(d), math.sqrt(3)),
            (own - common, 0.0, 0.7),
            (s_c, math.log(0.8), 1.0),
            (s_h, math.log(0.7), 1.0),
            (s_h - s_c, 0.3, 0.3 * math.sqrt(max(M, 2) / 2)),
            (noise, math.log(0.01), 1.5),
            (of_tasks, 0.0, 0.7),
        ]
        deviations = [
            (values - torch.as_tensor(mean).to(theta)) / torch.as_tensor(std).to(theta)
            for values, mean, std in normal
        ]
        return self.read(theta)._asdict(), torch.cat(deviations, dim=-1)

    def log_prior(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the standard normal hyperpriors, up to a constant."""
        return -0.5 * values.square().sum(dim=-1), -values

    def num_points(self, rows: Tensor) -> Tensor:
        """The number of points of all tasks."""
        return torch.full_like(rows, len(self.tasks.Y))

    def likelihood(self, values: Hyperparameters, rows: Tensor) -> tuple[Tensor, Hyperparameters]:
        """Evaluates the negative log likelihood, one row after the other."""
        found = [
            self._evaluate(PopulationHyperparameters(*row))
            for row in zip(*values.values(), strict=True)
        ]
        slopes = map(torch.stack, zip(*(slope for _, slope in found), strict=True))
        return torch.stack([value for value, _ in found]), dict(zip(values, slopes, strict=True))

    def _evaluate(
        self, found: PopulationHyperparameters
    ) -> tuple[Tensor, PopulationHyperparameters]:
        """Evaluates the likelihood of a row, and its derivatives in the hyperparameters."""
        tasks = self.tasks
        own = Stationary(self.kernel, found.own_lengthscale, found.own_outputscale)
        scaled = tasks.X / own.lengthscale
        covariance, derivative = own.value_and_derivative(scaled)
        covariance = centred(covariance, self._reference) * self._same
        is_inferred = tasks.noise.isnan()
        noise = torch.where(is_inferred, found.task_noise[tasks.task], tasks.noise)
        (value,), slopes = stationary_nll_and_gradient(
            tasks.Y.unsqueeze(0),
            tasks.X.unsqueeze(0),
            Stationary(self.kernel, found.lengthscale, found.outputscale.unsqueeze(0)),
            (noise + _JITTER).unsqueeze(0),
            covariance=(covariance + LEVEL_VARIANCE * self._same).unsqueeze(0),
        )
        G = slopes.covariance[0]
        in_own = centred_gradient(G * self._same, self._reference)
        in_inputs = gradient_in_inputs(4 * in_own * derivative, scaled)
        in_noise = torch.where(is_inferred, slopes.noise[0], 0.0)
        return value, PopulationHyperparameters(
            slopes.log_lengthscale[0] / found.lengthscale,
            -torch.linalg.vecdot(in_inputs, scaled, dim=-2) / found.own_lengthscale,
            slopes.log_scale[0] / found.outputscale,
            (G * covariance).sum() / found.own_outputscale,
            torch.zeros_like(found.noise),
            torch.zeros_like(found.task_noise).index_add_(0, tasks.task, in_noise),
        )


def fit_population(
    tasks: Observations,
    kernel: str,
    options: PopulationOptions,
) -> tuple[PopulationHyperparameters, Tensor]:
    """Fits the hyperparameters by maximum a posteriori.

    Args:
        tasks: The rows of all tasks, standardized task by task. Noise that is inferred is NaN.
        kernel: The stationary kernel's name.
        options: How to fit.

    Returns:
        The hyperparameters, and the log posterior up to a constant, on the points of the fit.
    """
    sample = thinned(tasks, options.fit_points)
    # Of thousands of tasks, only those that are left have a noise variance of their own.
    kept, task = sample.task.unique(return_inverse=True)
    objective = PopulationObjective(Observations(sample.X, sample.Y, sample.noise, task), kernel)
    num_tasks = int(tasks.task.max()) + 1
    start = objective.start().unsqueeze(0)
    with single_threaded_scipy():
        for _ in range(2):  # the first evaluation in a process takes longer
            begin = perf_counter()
            objective(start, torch.zeros(1, dtype=torch.long, device=start.device))
            seconds = _STEPS * (perf_counter() - begin)
        announce(f"one GP of {num_tasks} tasks", seconds)
        theta, value = minimize_batched(
            objective,
            start,
            objective.bounds(),
            options.max_iter,
            gradient_tolerance=CONVERGED / len(objective.tasks.Y),
        )
    found = objective.read(theta[0].to(tasks.Y.device))
    noise = found.noise.repeat(num_tasks)
    noise[kept] = found.task_noise
    return found._replace(task_noise=noise), -value[0] * len(objective.tasks.Y)
