r"""Posterior of the function that all source tasks share, and the target's prior mean and kernel.

The outcomes of task ``m`` are ``a_m + c(x) + h_m(x)`` plus noise. The *level* ``a_m`` is a
constant, and all tasks share the *common function* ``c``. The task's *own function* ``h_m`` has
mean zero over the *reference points*:

.. code-block:: text

    a_m ~ N(0, v_a)     c ~ GP(0, s_c k_c)     h_m = g_m - mean of g_m,  g_m ~ GP(0, s_h k_h)

The posterior mean of ``c`` given all source tasks is the prior mean of the target. In the target,
common and own function are also multiplied by a random *scale*. The target's kernel includes the
uncertainty of scale and level. The rows of all source tasks are stacked. The covariance of two rows
from different tasks is the covariance of ``c``. The covariance of two rows from the same task also
includes level, own function and noise.

The reference points are at most 64 of the inputs of all source tasks. If the mean were not
subtracted, smooth own functions would be almost arbitrary constants. After three smooth tasks, the
level of the target would then be uncertain by ten times the range of the tasks' outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self, cast

import torch
from botorch.sampling.pathwise.paths import PathDict
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.module import Module
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer._botorch import draw_kernel_feature_paths_fallback
from botorch_transfer.gp.combine import SourceMean, WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.distilled import InducingPoints, different_rows
from botorch_transfer.gp.expansion import Expansion, Part, PriorKernel, evaluate
from botorch_transfer.gp.paths import MeanPath, ScaledPath
from botorch_transfer.gp.posterior import ConditionedBatch, inverse_cholesky, name_task_in_errors
from botorch_transfer.gp.state import collapse_batch, savable, select_batch
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.prior import Observations

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
        kernel: Evaluates the covariance of ``f``, as :meth:`.Stationary.between` does.
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

    Build it by :meth:`from_data`. With many data, the posterior is approximated on inducing points,
    see ``gp.distilled``.

    Args:
        points: An ``N x d`` tensor: the inputs of all tasks' data, or inducing inputs.
        parts: An ``M x N`` tensor: each task's contribution to the coefficients of the mean.
        inverse_root: A ``1 x N x N`` tensor: the inverse Cholesky factor of the data's covariance,
            or the corresponding factor for inducing points.
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
        self.register(alpha=parts.sum(dim=0, keepdim=True), inverse_root=inverse_root)
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
                posterior is approximated on inducing points. ``None`` for the exact posterior.

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
        """Approximates the posterior with at most half as many inducing points as ``points``."""
        kernel = Stationary(self.kernel, self.lengthscale, self.outputscale[0])
        inducing = InducingPoints.between(kernel, self.points)
        means = (self.parts @ self.flat_cross(inducing.points)[0].mT).mT
        found = inducing.project(means, self.covariance(inducing.points)[0])
        changed = {"points": found.points, "parts": found.alpha.mT}
        tensors = {**self.tensors(), **changed, "inverse_root": found.inverse_root.unsqueeze(0)}
        return type(self)(**tensors, kernel=self.kernel, task_names=self.task_names)

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates the common function's prior covariances between inputs and ``points``.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            A ``1 x P x N`` tensor.
        """
        return self.stationary.between(x, self.points)


#: Maximum number of rows of a task; more rows are condensed to the task's own inducing points.
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
    """Residual of a task after subtraction of the common function: level, own function and noise.

    Args:
        function: The kernel of own functions, before their mean is subtracted.
        reference: An ``R x d`` tensor: the inputs over which own functions have mean zero.
    """

    function: Stationary
    reference: Tensor

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the ``n1 x n2`` covariance of level plus own function, within one task."""
        return centred_between(self.function.between, x1, x2, self.reference) + LEVEL_VARIANCE

    def block(self, common: Stationary, X: Tensor, Y: Tensor, noise: Tensor) -> _Block:
        """Summarizes the data of one task as observations of the common function plus a residual.

        More than ``MAX_ROWS_OF_TASK`` rows are first condensed to inducing inputs. The condensed
        data are a precision matrix ``Λ`` of the task's function values and the vector ``Λ y``. The
        covariance of the residual is then ``R = G + Λ⁻¹``, with the covariance ``G`` of level plus
        own function at the inducing inputs. Rows between inducing inputs then do not count as
        independent observations of the common function.
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


class TargetScale(Module):
    r"""Moments of the target's random scale ``b`` and random level.

    The target's function is a constant level plus ``b`` times a function that resembles the source
    tasks. The moments are computed, not fitted. A PyTorch parameter without gradient stores the
    moments, so that copies of the hyperparameters include the moments.

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
        """The mean of the scale ``b``, a ``batch_shape`` tensor."""
        return self.moments[..., 0]

    @property
    def variance(self) -> Tensor:
        """The variance of the scale ``b``, a ``batch_shape`` tensor."""
        return self.moments[..., 1]

    @property
    def mean_square(self) -> Tensor:
        """The mean of the squared scale ``b²``, a ``batch_shape`` tensor."""
        return self.moments[..., 2]

    @property
    def level_variance(self) -> Tensor:
        """The variance of the target's level, a ``batch_shape`` tensor."""
        return self.moments[..., 3]

    def set(self, *moments: Tensor) -> None:
        """Sets the moments of the scale (mean, variance, mean square) and the level's variance."""
        self.moments.data = torch.stack(torch.broadcast_tensors(*moments), dim=-1).to(self.moments)

    def __getitem__(self, index: Any) -> TargetScale:
        """Indexes the batch dimensions."""
        return select_batch(self, index)


class PopulationMean(SourceMean):
    """Prior mean ``E[b] μ(x)`` of the target. The target's level has mean zero.

    Args:
        common: The posterior mean ``μ`` of the function that all source tasks share.
        scale: The moments of the target's scale ``b``.
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

    def parts(self, x: Tensor) -> Tensor:
        """Evaluates each source task's contribution to the mean at ``n x d`` inputs (``M x n``)."""
        gps = cast(ConditionedPopulation, self.common.gps)
        return self.scale.mean * gps.parts @ gps.flat_cross(x.double())[0].mT


class PopulationKernel(PriorKernel):
    r"""Prior kernel of the target, whose scale ``b`` and level ``a`` are uncertain.

    The target's function is ``a + b (c(x) + h(x))`` with independent ``a``, ``b``, ``c`` and ``h``.
    The common function ``c`` has the posterior mean ``μ`` and covariance ``Σ``. The target's own
    function ``h`` has mean zero and the covariance ``k``. The kernel is

    .. code-block:: text

        E[b²] (Σ(x, x') + k(x, x')) + Var[b] μ(x) μ(x') + Var[a]

    Args:
        residual: The kernel of the target's own function, before the function's mean over the
            reference points is subtracted.
        common: The posterior mean ``μ`` of the common function. Its ``gps`` also evaluate ``Σ``.
        scale: The moments of scale and level.
    """

    def __init__(self, residual: Kernel, common: WeightedSumMean, scale: TargetScale) -> None:
        super().__init__(batch_shape=scale.moments.shape[:-1])
        self.residual, self.common, self.scale = residual, common, scale
        self.common_covariance = WeightedSumKernel(common.gps)

    def __getitem__(self, index: Any) -> PopulationKernel:
        """Indexes the batch dimensions."""
        if not len(self.batch_shape):
            return self
        return PopulationKernel(self.residual[index], self.common, self.scale[index])

    def unscaled(self, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
        """Evaluates the covariance of the target's function without its random scale and level.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return the values at ``(x1_i, x2_i)`` only.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        reference = cast(ConditionedPopulation, self.common.gps).reference.to(x1)
        own = centred_between(partial(evaluate, self.residual), x1, x2, reference, diag)
        return own + self.common_covariance.forward(x1, x2, diag=diag)

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
        # Inputs that are equal along a batch are evaluated only once.
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

    def draw(
        self, sample_shape: torch.Size, batch_shape: torch.Size, num_features: int, **kwargs: Any
    ) -> PathDict:
        """Draws functions with this covariance and mean zero, see :meth:`.PriorKernel.draw`."""
        scale, gps = self.scale, cast(ConditionedPopulation, self.common.gps)
        factor, variances = scale.mean_square.sqrt(), (scale.variance, scale.level_variance)
        z = factor.new_empty(2, *sample_shape, *self.batch_shape).normal_()
        # The random deviations of scale and level: two normal numbers for each function.
        slope, level = (number * v.sqrt() for number, v in zip(z, variances, strict=True))
        kwargs |= {"sample_shape": sample_shape, "num_features": num_features}
        own = draw_kernel_feature_paths_fallback(
            num_inputs=gps.dim, mean_module=None, covar_module=self.residual, **kwargs
        )
        own_mean = own(gps.reference.to(factor)).mean(dim=-1)
        common = self.common_covariance.draw(sample_shape, batch_shape, num_features)
        paths = {
            "mean": ScaledPath(MeanPath(self.common), slope, level),
            "residual": ScaledPath(own, factor, -factor * own_mean),
            "sources": ScaledPath(common, factor),
        }
        return PathDict(paths, sum)  # type: ignore[arg-type]

    def expand(self, mean: Mean, rest: Expansion, T: Tensor) -> Expansion | None:
        """Expands the target's prior in kernel values at ``T``, see :meth:`.PriorKernel.expand`."""
        residual, gps = Stationary.of(self.residual), cast(ConditionedPopulation, self.common.gps)
        is_ours = isinstance(mean, PopulationMean) and mean.common is self.common
        if residual is None or rest.parts or not is_ours:
            return None
        scale = self.scale
        mean_square = scale.mean_square.double()
        common = Part.of_sources(
            gps, scale.mean.double().reshape(1), T, squares=mean_square.reshape(1)
        )
        reference = gps.reference.to(T)
        share = 1 / len(reference)
        own = Part.of_kernel(residual, T, reference)
        of_mean = residual.between(T, reference).mean(dim=-1)
        variance = residual.between(reference, reference).mean()
        columns, level = mean_square * own.columns, scale.level_variance
        columns[:, len(T) :, 1] = -2 * share * mean_square
        columns[:, len(T) :, 2:] = -share * mean_square
        own = replace(own, columns=columns, factor=mean_square.reshape(1))
        total = mean_square * (gps.outputscale[0] + residual.scale + variance) + level
        cross = mean_square * (variance - of_mean) + level
        constants = torch.cat([torch.stack([gps.prior_mean[0], total]), cross])
        return Expansion([common, own], constants)
