r"""One hierarchical GP over all source tasks, as a prior: its posterior and its fit.

The prior of :class:`~.models.PopulationGP` consists of one GP for all source tasks, conditioned on
the data of all tasks, and of the distribution of the tasks' scales and levels. The outcomes of task
``m`` are ``a_m + c(x) + h_m(x)`` plus noise. The *level* ``a_m`` is a constant, and all tasks share
the *common function* ``c``. The task's *own function* ``h_m`` has mean zero over the *reference
points*:

.. code-block:: text

    a_m ~ N(0, v_a)     c ~ GP(0, s_c k_c)     h_m = g_m - mean of g_m,  g_m ~ GP(0, s_h k_h)

The rows of all source tasks are stacked. The covariance of two rows from different tasks is the
covariance of ``c``. The covariance of two rows from the same task also includes level, own function
and noise.

The reference points are at most 64 of the inputs of all source tasks. If the mean were not
subtracted, smooth own functions would be almost arbitrary constants. After three smooth tasks, the
level of the target would then be uncertain by ten times the range of the tasks' outcomes.

All tasks share the GP's hyperparameters, so the hyperparameters are fitted to the data of all tasks
at once. The logarithms of the hyperparameters are optimized, with normal hyperpriors:

.. code-block:: text

    log ℓ_c           ~ N(√2 + ½ log d, 3)    lengthscales of the common function
    log (ℓ_h / ℓ_c)   ~ N(0, .7²)             lengthscales of a task's own function
    log s_c           ~ N(log .8, 1)          standard deviation of the common function
    log s_h           ~ N(log .7, 1)          standard deviation of a task's own function
    log (s_h / s_c)   ~ N(.3, .3² M / 2)      ratio of both, for M tasks (M = 2 for a single task)
    log σ²            ~ N(log .01, 1.5²)      noise variance
    log (σ_m² / σ²)   ~ N(0, .7²)             a task's own noise variance

The hyperpriors apply to outcomes that are standardized task by task, and were chosen by experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Self, cast

import torch
from botorch.models.transforms.input import InputTransform
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.data import SourceData
from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.conditioned import (
    ConditionedBatch,
    InducingPoints,
    different_rows,
    inverse_cholesky,
    name_task_in_errors,
)
from botorch_transfer.gp.likelihood import nll
from botorch_transfer.gp.objective import CONVERGED, minimize_batched
from botorch_transfer.gp.state import savable
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.gp.tasks import lexical_order, scaled_tasks, typical_rows
from botorch_transfer.outcome_transforms import OutcomeMoments, PooledStandardize
from botorch_transfer.prior import ConditionedPrior, Observations
from botorch_transfer.progress import announce

#: Maximum number of reference points, over which the mean of a task's own function is zero.
MAX_REFERENCE = 64


#: Variance of the tasks' levels (constant offsets), in units of standardized outcomes.
LEVEL_VARIANCE = 0.09


class PopulationHyperparameters(NamedTuple):
    """Hyperparameters of the GP in which each task is a common function plus its own function.

    All tasks share the common function.

    Args:
        lengthscale: A ``d`` tensor: the lengthscales of the common function.
        own_lengthscale: A ``d`` tensor: the lengthscales of the tasks' own functions.
        outputscale: The signal variance of the common function, a tensor without dimensions.
        own_outputscale: The signal variance of the tasks' own functions.
        noise: The noise variance of the target.
        task_noise: An ``M`` tensor: the noise variance of each source task.
    """

    lengthscale: Tensor
    own_lengthscale: Tensor
    outputscale: Tensor
    own_outputscale: Tensor
    noise: Tensor
    task_noise: Tensor


def centred(covariance: Tensor, rows: Tensor) -> Tensor:
    """Computes the covariance of ``f(x) - mean of f``, for a random function ``f``.

    The mean is taken over some of the inputs.

    Args:
        covariance: The ``N x N`` covariance matrix of ``f`` at ``N`` inputs.
        rows: The indices of the inputs over which the mean is taken.

    Returns:
        The ``N x N`` covariance matrix of ``f(x) - mean of f``.
    """
    with_mean = covariance[:, rows].mean(dim=-1)
    return covariance - with_mean.unsqueeze(-1) - with_mean + with_mean[rows].mean()


def centred_between(
    kernel: Callable[..., Tensor], x1: Tensor, x2: Tensor, reference: Tensor, diag: bool = False
) -> Tensor:
    """Evaluates the covariance of ``f(x) - mean of f``, for a random function ``f``.

    The mean is taken over reference points.

    Args:
        kernel: Function that evaluates the covariance of ``f``, for instance
            :meth:`.Stationary.between`.
        x1: A ``... x n1 x d`` tensor of inputs.
        x2: A ``... x n2 x d`` tensor of inputs.
        reference: An ``R x d`` tensor: the inputs over which the mean of ``f`` is taken.
        diag: Whether to return the values at ``(x1_i, x2_i)`` only.

    Returns:
        A ``... x n1 x n2`` tensor, or ``... x n`` if ``diag``.
    """
    mean1 = kernel(x1, reference).mean(dim=-1)
    mean2 = mean1 if x1 is x2 else kernel(x2, reference).mean(dim=-1)
    of_mean = kernel(reference, reference).mean(dim=(-2, -1)).unsqueeze(-1)
    if diag:
        return kernel(x1, x2, diag) - mean1 - mean2 + of_mean
    return kernel(x1, x2) - (mean1.unsqueeze(-1) + mean2.unsqueeze(-2) - of_mean.unsqueeze(-1))


@savable
class ConditionedPopulation(ConditionedBatch):
    r"""Posterior of the function that all source tasks share, given the data of all source tasks.

    Build it by :meth:`from_data`. For many data, inducing points approximate the posterior.

    Args:
        points: An ``N x d`` tensor: the inputs of all tasks' data, or inducing inputs.
        parts: An ``M x N`` tensor: each task's contribution to the coefficients of the mean.
        inverse_root: A ``1 x N x N`` tensor: the inverse of the Cholesky factor of the data's
            covariance, or the corresponding factor for inducing points.
        reference: An ``R x d`` tensor: the reference points, over which a task's own function has
            mean zero.
        own_lengthscale: A ``d`` tensor: the lengthscales of the tasks' own functions.
        own_outputscale: A tensor without dimensions: the signal variance of the tasks' own
            functions.
        own_noise: A tensor without dimensions: the noise variance of the target.
        lengthscale: A ``1 x d`` tensor: the lengthscales of the common function.
        outputscale: A tensor with one element: the signal variance of the common function.
        kernel: The stationary kernel's name.
        task_names: The tasks' names, for messages and the ``state_dict``.

    Example:
        >>> X, ones = torch.rand(10, 2, dtype=torch.double), torch.ones(10, dtype=torch.double)
        >>> data = Observations(X, X.sum(-1), ones / 9, torch.arange(10) // 5)
        >>> found = PopulationHyperparameters(ones[:2], ones[:2], *ones[:3], ones[:2])
        >>> population = ConditionedPopulation.from_data(data, found, "rbf", ["a", "b"])
        >>> population.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([1, 5])
    """

    parts: Tensor
    own_lengthscale: Tensor
    own_outputscale: Tensor
    own_noise: Tensor
    reference: Tensor

    def __init__(
        self,
        points: Tensor,
        parts: Tensor,
        inverse_root: Tensor,
        reference: Tensor,
        own_lengthscale: Tensor,
        own_outputscale: Tensor,
        own_noise: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        kernel: str = "matern52",
        task_names: Sequence[str] | None = None,
    ) -> None:
        names = task_names or [str(task) for task in range(len(parts))]
        super().__init__(lengthscale, outputscale, kernel, names)
        parts, prior_mean = parts.contiguous(), torch.zeros_like(outputscale)
        self.register(points=points, parts=parts, reference=reference, prior_mean=prior_mean)
        self.register(alpha=parts.sum(dim=0, keepdim=True), inverse_root=inverse_root.contiguous())
        self.register(own_lengthscale=own_lengthscale, own_outputscale=own_outputscale)
        self.register(own_noise=own_noise)

    @classmethod
    @torch.no_grad()
    def from_data(
        cls,
        data: Observations,
        found: PopulationHyperparameters,
        kernel: str,
        names: Sequence[str],
        max_inducing: int | None = None,
    ) -> Self:
        """Conditions the common function on the data of all source tasks.

        Args:
            data: The data, standardized task by task.
            found: The hyperparameters.
            kernel: The stationary kernel's name.
            names: The tasks' names.
            max_inducing: The maximum number of inducing points. If the data have more rows, the
                posterior is approximated with inducing points. ``None`` for the exact posterior.

        Returns:
            The posterior.

        Raises:
            InputDataError: If the covariance matrix of the data is not positive definite.
        """
        X, Y, noise, task = data.X, data.Y, data.noise, data.task
        reference = X[different_rows(X, MAX_REFERENCE)]
        own_function = Stationary(kernel, found.own_lengthscale, found.own_outputscale)
        common = Stationary(kernel, found.lengthscale.unsqueeze(0), found.outputscale)
        own = _OwnPart(own_function, reference)
        sizes = torch.bincount(task, minlength=len(names)).tolist()
        tasks = task.argsort(stable=True).split(sizes)
        if len(X) <= (max_inducing or len(X)):
            covariance = common.between(X, X) + noise.diag()
            for rows in tasks:
                covariance[rows.unsqueeze(-1), rows] += own.covariance(X[rows], X[rows])
            inverse_root = inverse_cholesky(
                covariance.unsqueeze(0), lambda _, row: names[int(task[row])]
            )
            alpha = inverse_root[0].mT @ (inverse_root[0] @ Y)
            points, parts = X, torch.stack([alpha * (task == i) for i in range(len(names))])
        else:
            inducing = InducingPoints.chosen(common, X, cast(int, max_inducing), noise)
            number = len(inducing.points)
            precision, weighted = X.new_zeros(number, number), X.new_zeros(number, 1)
            for index, rows in enumerate(tasks):
                with name_task_in_errors(names[index]):
                    block = own.block(common, X[rows], Y[rows], noise[rows])
                columns = inducing.whiten(block.X).mT
                precision += columns.mT @ block.solve(columns)
                weighted += columns.mT @ block.told
            points, alpha, inverse_root = inducing.condense(precision, weighted)
            inverse_root, parts = inverse_root.unsqueeze(0), points.new_empty(len(tasks), number)
            for index, rows in enumerate(tasks):
                # Each block is computed again, because storing all blocks takes too much memory.
                block = own.block(common, X[rows], Y[rows], noise[rows])
                cross = common.between(points, block.X)
                told = cross @ (block.told - block.solve(cross.mT @ alpha))
                parts[index] = torch.cholesky_solve(told, inducing.root).squeeze(-1)
        own_parts = found.own_lengthscale, found.own_outputscale, found.noise
        shared = common.lengthscale, common.scale.reshape(1)
        return cls(points, parts, inverse_root, reference, *own_parts, *shared, kernel, names)

    @torch.no_grad()
    def distilled(self) -> Self:
        """Approximates the posterior with at most one inducing point per two rows of ``points``."""
        kernel = Stationary(self.kernel, self.lengthscale, self.outputscale[0])
        inducing = InducingPoints.between(kernel, self.points)
        means = (self.parts @ self.flat_cross(inducing.points)[0].mT).mT
        found = inducing.project(means, self.covariance(inducing.points)[0])
        changed = {"points": found.points, "parts": found.alpha.mT}
        tensors = {**self.tensors(), **changed, "inverse_root": found.inverse_root.unsqueeze(0)}
        return type(self)(**tensors, kernel=self.kernel, task_names=self.task_names)


#: The rows of a task with more rows than this number are condensed to inducing points of the task.
MAX_ROWS_OF_TASK = 1500

_MAX_OWN_INDUCING = 512


class _Block(NamedTuple):
    """Outcomes ``y`` of one task, as the sum of the common function ``c(X)`` and a residual.

    The residual is Gaussian with the covariance ``R``.

    Args:
        X: An ``n x d`` tensor of inputs.
        solve: Function that computes ``R⁻¹ C`` for an ``n x k`` matrix ``C``.
        told: The ``n x 1`` tensor ``R⁻¹ y``.
    """

    X: Tensor
    solve: Callable[[Tensor], Tensor]
    told: Tensor


class _OwnPart(NamedTuple):
    """The outcomes of a task minus the common function: the sum of level, own function and noise.

    Args:
        function: The kernel of random functions ``g``. An own function is ``g`` minus the mean of
            ``g`` over ``reference``.
        reference: An ``R x d`` tensor: the inputs over which own functions have mean zero.
    """

    function: Stationary
    reference: Tensor

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the ``n1 x n2`` covariance of level plus own function, within one task."""
        return centred_between(self.function.between, x1, x2, self.reference) + LEVEL_VARIANCE

    def block(self, common: Stationary, X: Tensor, Y: Tensor, noise: Tensor) -> _Block:
        """Summarizes the data of one task as observations of the common function plus a residual.

        If the task has more than ``MAX_ROWS_OF_TASK`` rows, the rows are condensed to observations
        ``y`` of the task's function at inducing inputs, with the noise covariance ``Λ⁻¹``. Only
        ``Λ`` and ``Λ y`` are computed, because ``Λ`` may be singular. The covariance of the
        residual of the condensed data is ``R = G + Λ⁻¹``, where ``G`` is the covariance of level
        plus own function at the inducing inputs. ``R`` contains ``G`` because all rows share the
        task's own function. Without ``G``, the rows would count as independent observations of the
        common function.
        """
        if len(X) <= MAX_ROWS_OF_TASK:
            root = psd_safe_cholesky(self.covariance(X, X) + noise.diag())
            told = torch.cholesky_solve(Y.unsqueeze(-1), root)
            return _Block(X, lambda columns: torch.cholesky_solve(columns, root), told)
        Z = InducingPoints.chosen(self.function, X, _MAX_OWN_INDUCING, noise).points
        G = self.covariance(Z, Z)
        root = psd_safe_cholesky(common.between(Z, Z) + G)
        between = common.between(Z, X) + self.covariance(Z, X)
        whitened = torch.linalg.solve_triangular(root, between, upper=False)
        weighted = whitened / noise
        to_values = torch.linalg.solve_triangular(root, torch.eye(len(Z)).to(Z), upper=False).mT
        precision = to_values @ (weighted @ whitened.mT) @ to_values.mT
        mixing = torch.linalg.lu_factor(torch.eye(len(Z)).to(Z) + G @ precision)

        def mixed(told: Tensor) -> Tensor:
            # Computes ``(G + Λ⁻¹)⁻¹ C`` from ``Λ C``, even if ``Λ`` is singular.
            return told - precision @ torch.linalg.lu_solve(*mixing, G @ told)

        told = mixed(to_values @ (weighted @ Y.unsqueeze(-1)))
        return _Block(Z, lambda columns: mixed(precision @ columns), told)


# ---------------------------------------------------------------------------------------------- fit

#: The lengthscale of an input that is constant in all data, in widths of the unit cube.
_UNKNOWN_LENGTHSCALE = 1 / 3

_JITTER = 1e-6

#: Approximate number of iterations of a fit, from which its duration is predicted.
_STEPS = 50

#: Minimum number of points that :func:`thinned` keeps of each chosen task.
_FEWEST = 5

#: The hyperpriors of the tasks' scales and levels count as much as this number of source tasks.
_PSEUDO_TASKS = 2.0

#: Prior standard deviation of the logarithm of a task's scale, and of a task's level in units of
#: the typical scale.
_SCALE_STD, _LEVEL_STD = 1.0, 1.0


@dataclass(frozen=True)
class PopulationOptions:
    """Options for fitting and conditioning the hierarchical GP over source tasks.

    Args:
        max_iter: The maximum number of L-BFGS-B iterations.
        fit_points: The maximum number of points in the fit of the hyperparameters, counted over all
            tasks together. If there are more points, about the same fraction of each task's points
            is selected, but at least five points per task. A task's selected points have evenly
            spaced ranks of the outcome. If there are too many tasks for five points each, some
            tasks are left out.
        max_inducing: The maximum number of inducing points. The GP is conditioned on all points. If
            there are more than ``max_inducing`` points, the posterior is approximated with inducing
            points.

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
            raise ValueError("max_iter=, fit_points= and max_inducing= must be positive.")


def thinned(tasks: Observations, max_points: int) -> Observations:
    """Selects about the same fraction of each task's points, but at least five points per task.

    If there are too many tasks for five points each, some tasks are left out. To choose the kept
    tasks, all tasks are sorted by their mean absolute outcome, and tasks at evenly spaced positions
    are taken. The result does not depend on the order of the tasks.

    Args:
        tasks: The data of all tasks.
        max_points: The maximum number of points to keep, counted over all tasks together.

    Returns:
        The kept points, one task after another.
    """
    if len(tasks.Y) <= max_points:
        return tasks
    chosen = _spread_out(tasks, max(1, max_points // _FEWEST))
    sizes = torch.bincount(tasks.task)[chosen]
    fewest = sizes.clamp_max(min(_FEWEST, max_points))
    share, counts = 1.0, sizes
    while counts.sum() > max_points:  # in each round, more tasks reach their minimum
        room = counts > fewest
        share = float(max_points - fewest[~room].sum()) / float(sizes[room].sum())
        counts = fewest.maximum((share * sizes).floor().long())
    kept = []
    for index, count in zip(chosen.tolist(), counts.tolist(), strict=True):
        (rows,) = (tasks.task == index).nonzero(as_tuple=True)
        # The choice also depends on outcomes, so that tasks with equal inputs keep different
        # inputs.
        kept.append(rows[typical_rows(tasks.X[rows], tasks.Y[rows], count).sort().values])
    every = torch.cat(kept)
    return Observations(tasks.X[every], tasks.Y[every], tasks.noise[every], tasks.task[every])


def _spread_out(tasks: Observations, most: int) -> Tensor:
    """Sorts tasks by mean absolute outcome, and selects tasks at evenly spaced positions.

    Returns the indices of the selected tasks, ascending. At most ``most`` tasks are selected.
    """
    indices, counts = tasks.task.unique(return_counts=True)
    if len(indices) <= most:
        return indices
    none = tasks.Y.new_zeros(int(indices[-1]) + 1)
    keys = tasks.X.sum(dim=-1), tasks.Y.abs()  # sorted by outcomes; inputs break ties
    means = [none.index_add(0, tasks.task, key)[indices] / counts for key in keys]
    return indices[lexical_order(*means)[evenly_spaced(len(indices), most)]].sort().values


class PopulationObjective:
    """The negative log posterior of the hyperparameters, divided by the number of points.

    A constant is left out.

    Args:
        tasks: The data of all tasks, with tasks numbered without gaps and outcomes standardized
            task by task. Unknown noise variances, which the fit infers, are NaN.
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
        d, M = self._dim, self._num_tasks
        normal = [  # mean, standard deviation and number of hyperparameters of each hyperprior
            (math.sqrt(2) + 0.5 * math.log(d), math.sqrt(3), d),
            (0.0, 0.7, d),
            (math.log(0.8), 1.0, 1),
            (math.log(0.7), 1.0, 1),
            (0.3, 0.3 * math.sqrt(max(M, 2) / 2), 1),
            (math.log(0.01), 1.5, 1),
            (0.0, 0.7, M),
        ]
        *moments, counts = torch.tensor(normal).to(tasks.Y).T
        self._mean, self._std = (part.repeat_interleave(counts.long()) for part in moments)

    def start(self) -> Tensor:
        """Returns the starting values of the optimized parameters, a ``k`` tensor."""
        lengthscale = math.log(0.5) + 0.25 * math.log(self._dim)
        scales_and_noise = [math.log(0.8), math.log(0.7), math.log(0.02)]
        start = [lengthscale] * 2 * self._dim + scales_and_noise + [0.0] * self._num_tasks
        return torch.tensor(start).double().clamp(*self.bounds()).to(self.tasks.Y.device)

    def bounds(self) -> Tensor:
        """Returns the lower and upper bounds of the optimized parameters, a ``2 x k`` tensor.

        If an input never varies, the data do not determine its lengthscale. In this case, the
        signal variances have the upper bound one, and the lengthscale is fixed to a short value, so
        that predictions for other values of the input return to the prior.
        """
        d, M = self._dim, self._num_tasks
        pairs = [(-4.0, 6.0)] * d + [(-5.0, 7.0)] * d
        constant = (self.tasks.X[:1] == self.tasks.X).all(dim=0) & (len(self.tasks.Y) > 1)
        fixed, largest = math.log(_UNKNOWN_LENGTHSCALE), 2.0
        for column in constant.nonzero().flatten().tolist():
            pairs[column] = pairs[d + column] = (fixed, fixed)
            largest = 0.0
        pairs += [(-4.0, largest)] * 2 + [(-11.0, 0.0)] + [(-4.0, 4.0)] * M
        return torch.tensor(pairs, dtype=torch.double).T

    def _split(self, theta: Tensor) -> tuple[Tensor, ...]:
        return theta.split((self._dim, self._dim, 1, 1, 1, self._num_tasks), dim=-1)

    def read(self, theta: Tensor) -> PopulationHyperparameters:
        """Converts ``... x k`` optimized parameters, which are logarithms, to hyperparameters."""
        common, own, s_c, s_h, noise, of_tasks = self._split(theta)
        scalars = (part.squeeze(-1) for part in (2 * s_c, 2 * s_h, noise))
        logarithms = common, own, *scalars, noise + of_tasks
        return PopulationHyperparameters(*(part.exp() for part in logarithms))

    @torch.enable_grad()
    def __call__(self, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the objective and its gradient for each row of ``theta``.

        Args:
            theta: A ``P x k`` tensor of parameters.
            rows: Ignored; :func:`minimize_batched` passes the index of each row.

        Returns:
            The ``P`` values and their ``P x k`` gradient.
        """
        theta = theta.detach().requires_grad_()
        common, own, s_c, s_h, noise, of_tasks = self._split(theta)
        values = torch.cat([common, own - common, s_c, s_h, s_h - s_c, noise, of_tasks], dim=-1)
        deviations = (values - self._mean) / self._std
        likelihoods = torch.stack([self._likelihood(self.read(row)) for row in theta])
        value = likelihoods + 0.5 * deviations.square().sum(dim=-1)
        (slope,) = torch.autograd.grad(value.sum(), theta)
        return value.detach() / len(self.tasks.Y), slope / len(self.tasks.Y)

    def _likelihood(self, found: PopulationHyperparameters) -> Tensor:
        """Evaluates the negative log likelihood of one set of hyperparameters, a scalar tensor."""
        X, Y, is_inferred = self.tasks.X, self.tasks.Y, self.tasks.noise.isnan()
        common = Stationary(self.kernel, found.lengthscale, found.outputscale).between(X, X)
        own = Stationary(self.kernel, found.own_lengthscale, found.own_outputscale).between(X, X)
        within = (centred(own, self._reference) + LEVEL_VARIANCE) * self._same
        noise = torch.where(is_inferred, found.task_noise[self.tasks.task], self.tasks.noise)
        return nll(torch.zeros_like(Y), common + within, Y, noise=noise + _JITTER)


def fit_population(
    tasks: Observations, kernel: str, options: PopulationOptions
) -> tuple[PopulationHyperparameters, Tensor]:
    """Fits the hyperparameters of the hierarchical GP by maximum a posteriori.

    Args:
        tasks: The data of all tasks, standardized task by task. Unknown noise variances are NaN.
        kernel: The stationary kernel's name.
        options: The options of the fit.

    Returns:
        The hyperparameters, and their log posterior density up to a constant.
    """
    sample = thinned(tasks, options.fit_points)
    # Only the tasks in the sample get their own noise variance.
    kept, task = sample.task.unique(return_inverse=True)
    objective = PopulationObjective(Observations(sample.X, sample.Y, sample.noise, task), kernel)
    num_tasks = int(tasks.task.max()) + 1
    start = objective.start().unsqueeze(0)
    ends: list[float] = []

    def tell(_: Any) -> None:
        ends.append(perf_counter())
        if len(ends) == 2:  # the first evaluation in a process takes longer
            announce(f"one GP of {num_tasks} tasks", _STEPS * (ends[1] - ends[0]))

    theta, value = minimize_batched(
        objective,
        start,
        objective.bounds(),
        options.max_iter,
        gradient_tolerance=CONVERGED / len(objective.tasks.Y),
        callback=tell,
    )
    found = objective.read(theta[0].to(tasks.Y.device))
    noise = found.noise.repeat(num_tasks)
    noise[kept] = found.task_noise
    return found._replace(task_noise=noise), -value[0] * len(objective.tasks.Y)


# ---------------------------------------------------------------------------------------- the prior


class SourcePopulation(ConditionedPrior):
    r"""One hierarchical GP over all source tasks: a common function, and each task's own function.

    Standardized outcomes of task ``m`` are ``a_m + c(x) + h_m(x)`` plus noise, with a constant
    level ``a_m``, a function ``c`` that all tasks share, and the task's own function ``h_m``, which
    has mean zero over some of the source inputs. All tasks share the hyperparameters, so a few
    points of each task suffice. A single task is enough. Hyperparameters are fitted to at most
    ``fit_points`` points. The posterior is computed from all points, and approximated with inducing
    points if there are more than ``max_inducing`` points.

    Build a prior by :meth:`fit`, not by the constructor.

    Args:
        gps: The GP conditioned on the data of all tasks.
        units: The transforms from the tasks' data to the prior's inputs and outcomes.
        data: The source data; ``None`` if the prior was saved without them.
        log_posterior: An ``M`` tensor of NaN, because no task is fitted by itself.
        statistics: Statistics of the source data, tensors by name; computed if omitted.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> sources = SourcePopulation.fit({"monday": (X, X.sum(-1, keepdim=True))})
        >>> sources.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([5])
    """

    gps: ConditionedPopulation
    #: Mask of tasks whose outcomes vary, an ``M`` boolean tensor.
    varies: Tensor

    @classmethod
    def fit(
        cls,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        kernel: str = "matern52",
        input_transform: InputTransform | None = None,
        **options: Any,
    ) -> Self:
        """Fits the hyperparameters by maximum a posteriori, then conditions on the data.

        Args:
            source_data: The source tasks, a sequence or a mapping from names: each a
                ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``, to be
                maximized) and optionally ``Yvar`` (``n_i x 1``, known noise variances). Inputs must
                lie in the unit cube, or ``input_transform`` must map the inputs to the unit cube.
            kernel: ``"matern52"``, ``"matern32"``, ``"matern12"`` or ``"rbf"``.
            input_transform: A frozen transform of the inputs, for instance
                ``Normalize(d, bounds=...)``.
            **options: The fields of :class:`PopulationOptions`: ``max_iter``, ``fit_points`` and
                ``max_inducing``.

        Returns:
            The prior, in the dtype and on the device of the data.

        Raises:
            InputDataError: If the source data are invalid; the message names the task.
            ValueError: If the transform is not frozen, or an argument is out of range.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourcePopulation.fit([(X, X.sum(-1, keepdim=True))], max_inducing=256)
        """
        chosen = PopulationOptions(**options)
        padded, units = scaled_tasks(source_data, "per_task", input_transform)
        padded = padded.double()
        unknown = torch.full_like(padded.Y[:, 0], torch.nan)
        tasks = Observations.of(padded, padded.known_or(unknown))
        found, _ = fit_population(tasks, kernel, chosen)
        data = Observations.of(padded, padded.known_or(found.task_noise))
        gps = ConditionedPopulation.from_data(data, found, kernel, units.names, chosen.max_inducing)
        return cls(gps, units, data)

    def append(
        self,
        source_data: SourceData | Sequence[SourceData] | Mapping[str, SourceData],
        *,
        max_inducing: int = PopulationOptions.max_inducing,
    ) -> Self:
        """Adds source tasks without changing the hyperparameters.

        Args:
            source_data: The new task, or a sequence or mapping of new tasks, as in :meth:`fit`.
                A task without a name gets a number as its name.
            max_inducing: As in :meth:`fit`.

        Returns:
            A new prior: the old tasks, then the new tasks. The original prior does not change.

        Raises:
            InputDataError: If the new data are invalid, have a different number of inputs, or use
                the name of an old task.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourcePopulation.fit({"monday": (X, X.sum(-1, keepdim=True))})
            >>> sources.append({"tuesday": (X, X.prod(-1, keepdim=True))}).task_names
            ('monday', 'tuesday')
        """
        new = self._new_tasks(source_data)
        padded, units = scaled_tasks(new, "per_task", self.input_transform)
        found = self.hyperparameters
        added = Observations.of(padded, padded.known_or(found.noise.expand(len(padded.X))))
        data, units = self.observed.join(added, self.num_tasks), self.units.join(units)
        gps = ConditionedPopulation.from_data(
            data, found, self.gps.kernel, units.names, max_inducing
        )
        return type(self)(gps, units, data)

    def select(self, tasks: Sequence[int]) -> Self:
        """Conditions on some of the tasks only, without changing the hyperparameters.

        Args:
            tasks: The indices of the tasks, at least one.

        Returns:
            A new prior.

        Raises:
            ValueError: If no task is selected.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
            >>> SourcePopulation.fit(history).select([1]).task_names
            ('tuesday',)
        """
        if len(tasks) == 0:
            raise ValueError("No source task is selected: select at least one task.")
        kept = torch.as_tensor(list(tasks), device=self.outcome_mean.device)
        data, units = self.observed.select(kept), self.units.select(kept)
        most, kernel = max(PopulationOptions.max_inducing, len(self.gps.points)), self.gps.kernel
        gps = ConditionedPopulation.from_data(data, self.hyperparameters, kernel, units.names, most)
        return type(self)(gps, units, data)

    @property
    def hyperparameters(self) -> PopulationHyperparameters:
        """Hyperparameters of the hierarchical GP.

        The prior does not keep the noise variances that were fitted to the source tasks: both
        ``task_noise`` and ``noise`` are the noise variance of a new task.
        """
        gps = self.gps
        lengthscales = gps.lengthscale[0], gps.own_lengthscale
        scales = gps.outputscale[0], gps.own_outputscale
        return PopulationHyperparameters(*lengthscales, *scales, gps.own_noise, gps.own_noise)

    def _statistics(self) -> dict[str, Tensor]:
        data = self.observed
        squares = torch.zeros_like(self.outcome_std, dtype=torch.double)
        squares.index_add_(0, data.task, data.Y.square())
        differences = self.gps.own_outputscale.reshape(1)
        return super()._statistics() | {"differences": differences, "varies": squares > 0.5}

    # ------------------------------------------------------------------------- scales and levels

    def _scales(self) -> Tensor:
        """Returns the standard deviation of the outcomes of each task whose outcomes vary."""
        return self.outcome_std.double()[self.varies]

    @property
    def typical_scale(self) -> float:
        """The geometric mean of the standard deviations of the source tasks' outcomes.

        Tasks whose outcomes do not vary are left out. If no outcomes vary, the value is one.
        """
        scales = self._scales()
        return float(scales.log().mean().exp()) if len(scales) else 1.0

    @property
    def typical_level(self) -> float:
        """The mean over all source tasks of the tasks' mean outcomes."""
        return float(self.outcome_mean.double().mean())

    @property
    def scale_log_std(self) -> float:
        """The predicted standard deviation of the logarithm of a new task's scale.

        The scale of a task is the standard deviation of its outcomes.
        """
        logs = self._scales().log()
        squares = _PSEUDO_TASKS * _SCALE_STD**2 + float((logs - logs.mean()).square().sum())
        return float((squares / (_PSEUDO_TASKS + len(logs))) ** 0.5)

    @property
    def level_variance(self) -> float:
        """The predicted variance of a new task's level, divided by the squared typical scale.

        The level of a task is the mean of its outcomes.
        """
        relative = (self.outcome_mean.double() - self.typical_level) / self.typical_scale
        squares = _PSEUDO_TASKS * _LEVEL_STD**2 + float(relative.square().sum())
        return squares / (_PSEUDO_TASKS + len(relative))

    def default_outcome_transform(self, batch_shape: torch.Size) -> PooledStandardize:
        """Builds the standardization of a target's outcomes by the typical level and scale.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            The transform, which does not depend on the target's outcomes.
        """
        like, count = self.outcome_mean, int(self.num_points.sum())
        biased = self.typical_scale * ((count - 1) / count) ** 0.5 if count > 1 else 1.0
        mean, spread = like.new_tensor(self.typical_level), like.new_tensor(biased)
        return PooledStandardize(OutcomeMoments(count, mean, spread), False, batch_shape)
