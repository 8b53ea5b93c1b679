r"""The posterior of what source tasks have in common, and the kernel of a further task.

Outcomes of task ``m`` are ``a_m + c(x) + h_m(x)`` plus noise: a level, a function that all tasks
share, and one of the task's own, which is about the level,

.. code-block:: text

    a_m ~ N(0, v_a)     c ~ GP(0, s_c k_c)     h_m = g_m - mean of g_m,  g_m ~ GP(0, s_h k_h)

Read it for the posterior of ``c`` given all tasks, which is the prior mean of a further task, and
for how the task's own scale and level enter its kernel. The rows of all tasks are stacked. Their
covariance is that of ``c`` everywhere, and that of level, own function and noise where two rows are
of the same task.

The mean is over reference points, some of the inputs of all tasks. Functions that vary slowly are
otherwise draws of a wide distribution of constants: three smooth tasks would leave the level of a
further one uncertain by ten times their range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.module import Module
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.combine import WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.conditioned import ConditionedBatch, inverse_cholesky
from botorch_transfer.gp.likelihood import cholesky_or_nan
from botorch_transfer.gp.state import collapse_batch, select_batch
from botorch_transfer.gp.stationary import Stationary, evaluate

MAX_REFERENCE = 64
"""Over how many inputs the mean of a task's own function is taken, at most."""


def reference_rows(X: Tensor) -> Tensor:
    """Chooses the inputs over which the mean of a task's own function is taken.

    Args:
        X: An ``N x d`` tensor of inputs.

    Returns:
        Indices of different inputs from all over; which inputs these are does not depend on the
        order of the rows.
    """
    different, place = X.unique(dim=0, return_inverse=True)
    rows = place.new_empty(len(different))
    rows.scatter_(0, place, torch.arange(len(X), device=X.device))
    return rows[evenly_spaced(len(different), MAX_REFERENCE)]


def centred(covariance: Tensor, rows: Tensor) -> Tensor:
    """Subtracts the mean at some inputs from random functions.

    Args:
        covariance: The ``N x N`` covariance matrix of the functions.
        rows: The indices of these inputs.

    Returns:
        The covariance matrix of what is left.
    """
    with_mean = covariance[:, rows].mean(dim=-1)
    return covariance - with_mean.unsqueeze(-1) - with_mean + with_mean[rows].mean()


def centred_gradient(gradient: Tensor, rows: Tensor) -> Tensor:
    """The gradient in the covariance matrix that :func:`centred` takes, from that in its result.

    Args:
        gradient: An ``N x N`` tensor.
        rows: The indices that :func:`centred` takes.

    Returns:
        An ``N x N`` tensor.
    """
    gradient = gradient.clone()
    gradient[rows] -= gradient.sum(dim=0) / len(rows)
    gradient[:, rows] -= gradient.sum(dim=1, keepdim=True) / len(rows)
    return gradient


class ConditionedPopulation(ConditionedBatch):
    r"""The function that all tasks share, given the data of all of them.

    Args:
        train_X: An ``N x d`` tensor: the inputs of all tasks, stacked.
        train_Y: An ``N`` tensor of outcomes.
        task: An ``N`` tensor: the task of each row, from 0.
        noise: An ``N`` tensor of observation noise variances.
        own_lengthscale: A ``d`` tensor, of the tasks' own functions.
        own_outputscale: A tensor without dimensions: the signal variance of these.
        own_noise: A tensor without dimensions: the noise variance of a further task.
        level_variance: A tensor without dimensions: the variance of the tasks' levels.
        lengthscale: A ``1 x d`` tensor, of the function that all share.
        outputscale: A tensor of one: its signal variance.
        kernel: The stationary kernel's name.
        task_names: The tasks' names, for messages and the ``state_dict``.

    Raises:
        InputDataError: If the covariance matrix of the data is not positive definite.

    Example:
        >>> X, ones = torch.rand(10, 2, dtype=torch.double), torch.ones(10, dtype=torch.double)
        >>> task, one = torch.arange(10) // 5, ones[0]
        >>> population = ConditionedPopulation(
        ...     X, X.sum(-1), task, ones / 9, ones[:2], one, one, one, ones[None, :2], ones[:1]
        ... )
        >>> population.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([1, 5])
    """

    task: Tensor
    own_lengthscale: Tensor
    own_outputscale: Tensor
    own_noise: Tensor
    level_variance: Tensor
    reference: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        task: Tensor,
        noise: Tensor,
        own_lengthscale: Tensor,
        own_outputscale: Tensor,
        own_noise: Tensor,
        level_variance: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        kernel: str = "matern52",
        task_names: Sequence[str] | None = None,
    ) -> None:
        names = task_names or [str(index) for index in range(int(task.max()) + 1)]
        super().__init__(lengthscale, outputscale, kernel, names)
        self.register(
            train_X=train_X,
            train_Y=train_Y,
            task=task,
            noise=noise,
            own_lengthscale=own_lengthscale,
            own_outputscale=own_outputscale,
            own_noise=own_noise,
            level_variance=level_variance,
            prior_mean=torch.zeros_like(outputscale),
            mask=torch.ones_like(task, dtype=torch.bool).unsqueeze(0),
            reference=train_X[reference_rows(train_X)],
        )
        with torch.no_grad():
            self.register(inverse_root=self._factorize())
            self.register(alpha=self.solve(self.train_Y.unsqueeze(0)))

    @property
    def num_tasks(self) -> int:
        """The number of source tasks."""
        return len(self._task_names)

    @property
    def own(self) -> Stationary:
        """The kernel of a task's own function."""
        return Stationary(self.kernel, self.own_lengthscale, self.own_outputscale)

    def _own_covariance(self) -> Tensor:
        """The covariance of the data's levels and own functions, ``N x N``."""
        same = self.task.unsqueeze(-1) == self.task
        own = centred(self.own.between(self.train_X, self.train_X), reference_rows(self.train_X))
        return same * (own + self.level_variance)

    def _factorize(self) -> Tensor:
        covariance = self.flat_kernels(self.train_X, self.train_X) + self._own_covariance()

        def name(matrix: int, row: int) -> str:
            return self._task_names[int(self.task[row])]

        return inverse_cholesky(covariance + self.noise.diag(), name)

    def draw_noise(self, shape: torch.Size) -> Tensor:
        """Draws the levels, own functions and noise of all tasks at the data: ``shape x 1 x N``."""
        root = cholesky_or_nan(self._own_covariance() + self.noise.diag())
        return self.alpha.new_empty(*shape, *self.alpha.shape).normal_() @ root.mT

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates the covariances of ``P x d`` inputs with the data: ``1 x P x N``."""
        return self.flat_kernels(x, self.train_X)

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """The data of all tasks."""
        return self.train_X, self.train_Y, self.task

    def aggregate(self, values: Tensor, dim: int) -> Tensor:
        """Returns the values: there is one kernel, and one GP."""
        return values

    def aggregate_at_data(self, values: Tensor) -> Tensor:
        """Returns the values: the data are of the function that all tasks share."""
        return values


class TargetScale(Module):
    r"""What is known of a task's scale ``b`` and level: four moments.

    They are computed, not fitted. They are a parameter all the same, so that they travel with the
    hyperparameters.

    Args:
        batch_shape: The batch shape of the target model.

    Example:
        >>> TargetScale().mean
        tensor(1.)
    """

    moments: Parameter

    def __init__(self, batch_shape: torch.Size = torch.Size()) -> None:  # noqa: B008
        super().__init__()
        start = torch.tensor([1.0, 0.0, 1.0, 1.0]).expand(*batch_shape, 4).clone()
        self.register_parameter("moments", Parameter(start, requires_grad=False))

    @property
    def mean(self) -> Tensor:
        """The mean of ``b``, a ``batch_shape`` tensor."""
        return self.moments[..., 0]

    @property
    def variance(self) -> Tensor:
        """The variance of ``b``, a ``batch_shape`` tensor."""
        return self.moments[..., 1]

    @property
    def mean_square(self) -> Tensor:
        """The mean of ``b²``, a ``batch_shape`` tensor."""
        return self.moments[..., 2]

    @property
    def level_variance(self) -> Tensor:
        """The variance of the level, a ``batch_shape`` tensor."""
        return self.moments[..., 3]

    def set(self, *moments: Tensor) -> None:
        """Replaces the moments, ``batch_shape`` tensors in the order of the properties."""
        self.moments.data = torch.stack(torch.broadcast_tensors(*moments), dim=-1).to(self.moments)

    def __getitem__(self, index: Any) -> TargetScale:
        """Selects from the batch: what an index of ``batch_shape`` selects."""
        return select_batch(self, "moments", index)


class PopulationMean(Mean):
    """``E[b] μ(x)``: the mean of a further task, whose level has the mean zero.

    Args:
        common: The mean ``μ`` of the function that all tasks share.
        scale: The moments of the task's scale ``b``.
    """

    def __init__(self, common: WeightedSumMean, scale: TargetScale) -> None:
        super().__init__()
        self.common, self.scale = common, scale

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        return self.scale.mean.unsqueeze(-1) * self.common(x)


class PopulationKernel(Kernel):
    r"""The covariance of a further task, whose scale ``b`` and level ``a`` are uncertain.

    With the posterior ``(μ, Σ)`` of the function that all tasks share, and the covariance ``k`` of
    the task's own function, it is that of ``a + b (c(x) + h(x))`` for independent parts:

    .. code-block:: text

        E[b²] (Σ(x, x') + k(x, x')) + Var[b] μ(x) μ(x') + Var[a]

    Args:
        residual: The kernel of the task's own function, before its mean at the reference points is
            subtracted.
        common: The mean ``μ``.
        common_covariance: The covariance ``Σ``.
        scale: The moments of scale and level.
    """

    has_lengthscale = False

    def __init__(
        self,
        residual: Kernel,
        common: WeightedSumMean,
        common_covariance: WeightedSumKernel,
        scale: TargetScale,
    ) -> None:
        super().__init__(batch_shape=scale.moments.shape[:-1])
        self.residual, self.scale = residual, scale
        self.common, self.common_covariance = common, common_covariance

    def __getitem__(self, index: Any) -> PopulationKernel:
        """Selects from the batch."""
        if not len(self.batch_shape):
            return self
        own = self.residual[index], self.scale[index]
        return PopulationKernel(own[0], self.common, self.common_covariance, own[1])

    def unscaled(self, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
        """Evaluates ``Σ + k``, the covariance of a task with the scale one and the level zero.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return the values at ``(x1_i, x2_i)`` only.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        return self._own(x1, x2, diag) + self.common_covariance.forward(x1, x2, diag=diag)

    def _own(self, x1: Tensor, x2: Tensor, diag: bool) -> Tensor:
        """The covariance of the task's own function minus its mean at the reference points."""
        mean1 = self._own_mean(x1)
        mean2 = mean1 if x1 is x2 else self._own_mean(x2)
        of_mean = self._own_mean(self._reference(x1)).mean(dim=-1, keepdim=True)
        if diag:
            return evaluate(self.residual, x1, x2, diag) - mean1 - mean2 + of_mean
        means = mean1.unsqueeze(-1) + mean2.unsqueeze(-2) - of_mean.unsqueeze(-1)
        return evaluate(self.residual, x1, x2) - means

    def _own_mean(self, x: Tensor) -> Tensor:
        """The covariance of a function's values with its mean: ``batch_shape x n``."""
        return evaluate(self.residual, x, self._reference(x)).mean(dim=-1)

    def _reference(self, like: Tensor) -> Tensor:
        return cast(ConditionedPopulation, self.common.gps).reference.to(like)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return ``k(x1_i, x2_i)`` only.
            **params: Ignored.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        batch_shape = torch.broadcast_shapes(self.batch_shape, x1.shape[:-2], x2.shape[:-2])
        # Inputs that repeat themselves along a batch are evaluated once, and found out about once.
        same = x1 is x2
        if not x2.requires_grad:
            x2 = collapse_batch(x2)
        x1 = x2 if same else x1
        mean1 = self.common(x1)
        mean2 = mean1 if same else self.common(x2)
        products = mean1 * mean2 if diag else mean1.unsqueeze(-1) * mean2.unsqueeze(-2)
        of_scale = self.scale.mean_square, self.scale.variance, self.scale.level_variance
        square, variance, level = (part[(..., *[None] * (2 - diag))] for part in of_scale)
        values = square * self.unscaled(x1, x2, diag) + variance * products + level
        return values.expand(*batch_shape, *values.shape[-1:] if diag else values.shape[-2:])
