r"""Prior of the hierarchical models: each source task is the previous task plus a difference.

The module contains the posterior of the hierarchy, and the fit of one level after another. Each
task is one *level*, and the first task is the lowest level.

In a hierarchy, task ``n`` is ``f_n = f_{n-1} + δ_n`` with ``δ_n ~ GP(m_n, k_n)``. The data of all
levels are stacked as rows. ``y`` are the outcomes minus their prior means ``Σ_n m_n, n ≤ l``. The
covariance of a row of level ``l`` with a row of level ``l'`` is

.. code-block:: text

    K = Σ_ν k_ν(X, X) for ν ≤ min(l, l'), plus noise.

The covariance of the last level's function at ``x`` with a row of level ``l`` is
``h(x) = Σ_ν k_ν(x, X), ν ≤ l``. HGP conditions on all data at once: HGP adds ``h(x) K⁻¹ y`` to the
prior mean. The coefficients of ``y`` are ``h(x) K⁻¹``. By Corollary 1 of
[Tighineanu2022hierarchical]_, SHGP has the same posterior. If levels pass on means only, the
coefficients differ. Let ``a(x) = k_l(x, X)`` contain the kernel of each row's own level, and let
``F`` be the block triangular matrix

.. code-block:: text

    F = k_{l'}(X, X') where l ≥ l', plus noise.

The coefficients are then ``c(x) = a(x) F⁻¹``. MHGP and BHGP add ``c(x) y`` to the prior mean. The
covariance of BHGP is the covariance of ``f(x) - c(x) y``, where ``f`` is the last level's function.
This covariance exceeds HGP's covariance, because the coefficients differ. With ``K = L Lᵀ``, it is

.. code-block:: text

    C(x, x') = Σ_ν k_ν(x, x') - h K⁻¹ h'ᵀ + (c - h K⁻¹) L Lᵀ (c' - h' K⁻¹)ᵀ,

where ``h'`` and ``c'`` are the values at ``x'``.

Predictions do not recurse over the levels: a prediction takes one kernel evaluation, and one or two
products with the stacked rows.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, Self

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.data import SourceData, check_joint_size
from botorch_transfer.gp.conditioned import ConditionedBatch, ConditionedGPs, inverse_cholesky
from botorch_transfer.gp.fit import MAPOptions, MAPResult, fit_map
from botorch_transfer.gp.hyperpriors import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
)
from botorch_transfer.gp.state import Cache, savable
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.gp.tasks import (
    OutcomeScale,
    PaddedTasks,
    check_choice,
    check_padded_size,
    read_models,
    scaled_tasks,
)
from botorch_transfer.prior import ConditionedPrior, Observations
from botorch_transfer.progress import track


@savable
class ConditionedHierarchy(ConditionedBatch):
    r"""The prior of SHGP: the posterior of the last source task, given all source data.

    Each task is one *level*: the level below plus a difference. Build the posterior by
    :meth:`from_data`.

    Args:
        points: An ``N x d`` tensor: the inputs of all levels, stacked.
        alpha: A ``1 x N`` tensor: the coefficients of the mean.
        level: An ``N`` tensor: the level of each point, from 0, in ascending order.
        noise: An ``N`` tensor of observation noise variances.
        lengthscale: An ``M x d`` tensor: the lengthscales of each level.
        outputscale: An ``M`` tensor of signal variances.
        level_means: An ``M`` tensor: the constant mean of each level's difference; zero if omitted.
        kernel: The stationary kernel's name.
        task_names: The names of the levels, for messages.

    Raises:
        InputDataError: If the covariance matrix of the data is not positive definite.
        ValueError: If the points are not in order of their levels.

    Example:
        >>> X = torch.rand(10, 2, dtype=torch.double)
        >>> ones = torch.ones(10, dtype=torch.double)
        >>> data = Observations(X, X.sum(-1), 1e-4 * ones, torch.arange(10) // 5)
        >>> stack = ConditionedHierarchy.from_data(data, X[:2] + 1, ones[:2])
        >>> stack.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([1, 5])
    """

    level: Tensor
    noise: Tensor
    level_means: Tensor
    includes: Tensor

    def __init__(
        self,
        points: Tensor,
        alpha: Tensor,
        level: Tensor,
        noise: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        level_means: Tensor | None = None,
        kernel: str = "rbf",
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(lengthscale, outputscale, kernel, task_names)
        if bool((level.diff() < 0).any()):
            raise ValueError("level= is not in ascending order: sort the points by level.")
        level_means = torch.zeros_like(outputscale) if level_means is None else level_means
        levels = torch.arange(len(outputscale), device=level.device)
        self.register(points=points, alpha=alpha, level=level, noise=noise, level_means=level_means)
        # M x N flags: whether the task of a point includes a level's difference.
        self.register(includes=levels.unsqueeze(-1) <= level)
        self.register(prior_mean=level_means.sum().unsqueeze(0))
        self._rows = self._rows_of_levels()
        with torch.no_grad():
            self._factorize()

    @classmethod
    @torch.no_grad()
    def from_data(cls, data: Observations, *own: Any, **named: Any) -> Self:
        """Builds the posterior of the last source task, given the data of all source tasks.

        Args:
            data: The data of all source tasks; the task index of a point is its level.
            *own: Further arguments of the constructor by position, starting with ``lengthscale``.
            **named: Further arguments of the constructor by name.

        Returns:
            The posterior.

        Raises:
            InputDataError: If the covariance matrix of the data is not positive definite.
            ValueError: If the points are not in order of their levels.
        """
        alpha = torch.zeros_like(data.Y).unsqueeze(0)
        gps = cls(data.X, alpha, data.task, data.noise, *own, **named)
        residual = data.Y - gps.level_means @ gps.includes.to(gps.level_means)
        gps.register(alpha=gps.solve(residual.unsqueeze(0)))
        return gps

    def _rows_of_levels(self) -> list[slice]:
        ends = torch.bincount(self.level, minlength=self.num_tasks).cumsum(0).tolist()
        return [slice(*ends) for ends in pairwise([0, *ends])]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._rows = self._rows_of_levels()

    def _factorize(self) -> None:
        """Computes the Cholesky factors that :meth:`solve` uses."""
        self.register(inverse_root=self._joint_factor())

    def _joint_factor(self) -> Tensor:
        """Computes ``L⁻¹``, for the Cholesky factor ``L`` of the joint covariance of all data."""
        covariance = self.noise.diag()
        for level, rows in enumerate(self._rows):
            X = self.points[rows.start :]
            covariance[rows.start :, rows.start :] += self._kernel(level, X, X)

        def name(matrix: int, row: int) -> str:
            return self.task_names[int(self.level[row])]

        return inverse_cholesky(covariance.unsqueeze(0), name)

    def _kernel(self, level: int, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates one level's kernel between ``n1 x d`` and ``n2 x d`` inputs."""
        kernel = Stationary(self.kernel, self.lengthscale[level], self.outputscale[level])
        return kernel.between(x1, x2)

    @property
    def _width(self) -> int:
        # Each level's kernel is also evaluated at the rows of the levels above.
        return self.num_tasks * self.alpha.numel()

    def distilled(self) -> Self:
        """Raises an error: a hierarchy, with a kernel for each level, has no inducing points.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "A SourceHierarchy cannot be saved without outcomes: use SourceGPs or a "
            "SourcePopulation to save a prior without outcomes."
        )

    def aggregate(self, values: Tensor, dim: int) -> Tensor:
        """Sums ``values`` over dimension ``dim``, the levels.

        The values belong to the levels' differences. The sum belongs to the last source task.
        """
        return values.sum(dim=dim, keepdim=True)

    def draw_coefficients(self, values: Tensor) -> Tensor:
        """Draws the coefficients that turn prior samples into posterior samples (Matheron's rule).

        Args:
            values: A ``... x M x N`` tensor: prior samples of each level's difference at all ``N``
                points.

        Returns:
            A ``... x 1 x N`` tensor.
        """
        of_rows = (values * self.includes).sum(dim=-2, keepdim=True)
        return self.solve(of_rows + self.noise.sqrt() * torch.randn_like(of_rows))

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates prior covariances between the last task's function at ``x`` and all data.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            A ``1 x P x N`` tensor, for ``N`` data points.
        """
        starts = enumerate(rows.start for rows in self._rows)
        parts = [pad(self._kernel(level, x, self.points[at:]), (at, 0)) for level, at in starts]
        return sum(parts[1:], start=parts[0]).unsqueeze(0)


@savable
class BoostedHierarchy(ConditionedHierarchy):
    r"""Posterior of the last source task in a hierarchy that passes on only posterior means.

    Each task is modelled as the posterior mean of the previous task plus a residual. MHGP uses
    only the last task's posterior mean, which needs only a Cholesky factor for each task. BHGP also
    uses the last task's posterior covariance, which includes the uncertainty of the posterior means
    that are passed on. The covariance needs the joint Cholesky factor of all data, which is
    computed on first use. The arguments are the same as for :class:`ConditionedHierarchy`.

    Example:
        >>> X = torch.rand(10, 2, dtype=torch.double)
        >>> ones = torch.ones(10, dtype=torch.double)
        >>> data = Observations(X, X.sum(-1), 1e-4 * ones, torch.arange(10) // 5)
        >>> stack = BoostedHierarchy.from_data(data, X[:2] + 1, ones[:2])
        >>> stack.variance(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([1, 5])
    """

    levels: ConditionedGPs

    def _factorize(self) -> None:
        # Independent GPs of the levels' differences. Only the Cholesky factors of these GPs are
        # used, so zeros replace the outcomes.
        nothing = torch.zeros_like(self.noise)
        levels = [(self.points[rows], nothing[rows], self.noise[rows]) for rows in self._rows]
        tasks = PaddedTasks.padded(levels, [True] * self.num_tasks)
        data = tasks.X, tasks.Y, tasks.mask, self.lengthscale, self.outputscale, tasks.Yvar
        self.levels = ConditionedGPs.from_data(
            *data, kernel=self.kernel, task_names=self.task_names
        )
        self._boosts = Cache(size=1)  # all copies share the cache

    def solve(self, values: Tensor) -> Tensor:
        """Computes the posterior mean's coefficients, given values at all data points.

        Args:
            values: A ``... x 1 x N`` tensor: outcomes minus prior means.

        Returns:
            A ``... x 1 x N`` tensor. The posterior mean is the prior mean plus the product of the
            coefficients and :meth:`flat_cross`.
        """
        rest, solved = values.squeeze(-2), []
        for level, rows in enumerate(self._rows):
            size = rows.stop - rows.start
            inverse_root = self.levels.inverse_root[level, :size, :size]
            coefficients = rest[..., :size] @ inverse_root.mT @ inverse_root
            above = self._kernel(level, self.points[rows], self.points[rows.stop :])
            rest = rest[..., size:] - coefficients @ above
            solved.append(coefficients)
        return torch.cat(solved, dim=-1).unsqueeze(-2)

    def _boost(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Factorizes the joint covariance of the ``N x d`` inputs of all levels.

        Returns:
            The inverse of the joint covariance's Cholesky factor, and a matrix from which
            :meth:`flat_whiten` computes the excess of BHGP's covariance over HGP's covariance.
        """
        advice = "use MeanHierarchicalGP, or thin out the source data"
        check_joint_size(len(X), torch.double, instead=advice)
        inverse_root = self._joint_factor()
        eye = torch.eye(len(X)).to(inverse_root)
        root = torch.linalg.solve_triangular(inverse_root[0], eye, upper=False)
        coefficients = self.solve(eye.unsqueeze(-2)).squeeze(-2).mT
        return inverse_root, coefficients @ root

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates each level's kernel between ``P x d`` inputs and the level's own data.

        Returns:
            A ``1 x P x N`` tensor, for ``N`` data points.
        """
        return self.levels.flat_cross(x).movedim(0, -2)[:, self.levels.mask].unsqueeze(0)

    def flat_whiten(self, x: Tensor) -> Tensor:
        """Computes factors of the two terms by which prior and posterior covariance differ.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            A ``1 x 2N x P`` tensor, for ``N`` data points. The first ``N`` rows are the factor of
            the explained covariance, which is subtracted from the prior covariance. The other rows
            are the factor of the excess covariance, which BHGP adds.
        """
        inverse_root, excess = self._boosts(self._boost, self.points, self.alpha)
        explained = inverse_root @ super().flat_cross(x).mT
        excess = excess.mT @ self._once(self.flat_cross, x).mT - explained
        return torch.cat([explained, excess], dim=-2)

    def signed(self, whitened: Tensor) -> Tensor:
        """Flips the sign of the second half of the rows from :meth:`flat_whiten`.

        The posterior covariance is the prior covariance minus ``V(x)ᵀ signed(V(x'))``, where
        ``V(x)`` are the rows for inputs ``x``. The first half of the rows therefore reduces the
        posterior variance, and the second half increases the posterior variance.
        """
        sign = whitened.new_ones(2, whitened.shape[-2] // 2, 1)
        sign[1] = -1.0
        return whitened * sign.flatten(end_dim=1)


#: The part of a task's posterior that the next task uses: mean and covariance (SHGP), or only the
#: mean (MHGP, BHGP).
Propagate = Literal["covariance", "mean"]

_LOWEST = SOURCE_HYPERPARAMETERS
_LEVELS = _LOWEST, replace(RESIDUAL_HYPERPARAMETERS, noise=_LOWEST.noise)


class SourceHierarchy(ConditionedPrior):
    r"""Source tasks in order, each modelled as the previous task plus a difference.

    The hierarchy is the prior of the hierarchical models of [Tighineanu2022hierarchical]_. Use it
    if the tasks are ordered, such as model generations or growing data sets, or if the tasks are
    few and similar. The last tasks influence the target most. A saved file always contains the
    source observations.

    With ``propagate="covariance"``, all levels are one GP on the points of all tasks. Time grows
    with the cube of the number of points, and memory with the square. An error is raised if the GP
    needs more memory than ``max_bytes``. With ``"mean"``, time and memory grow linearly with the
    number of tasks; only the covariance of BHGP needs the GP on all points. For thousands of tasks
    use :class:`SourceGPs`.

    Build a hierarchy by :meth:`fit` or :meth:`from_models`, not by the constructor.

    Args:
        gps: The conditioned hierarchy, in the prior's units.
        units: The transforms from the tasks' data to the prior's inputs and outcomes, in the order
            of the levels.
        log_posterior: An ``M`` tensor: each level's log marginal likelihood plus log hyperprior
            density; NaN if the levels come from :meth:`from_models`.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> stack = SourceHierarchy.fit(history, propagate="covariance")
        >>> stack.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([5])
    """

    gps: ConditionedHierarchy

    @property
    def propagate(self) -> Propagate:
        """The part of a task's posterior that the next task uses: ``"covariance"`` or ``"mean"``.

        ``"covariance"`` means that the next task uses both mean and covariance.
        """
        return "mean" if isinstance(self.gps, BoostedHierarchy) else "covariance"

    @classmethod
    def fit(
        cls,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        propagate: Propagate = "covariance",
        kernel: str = "rbf",
        hyperparameters: GPHyperparameters | Sequence[GPHyperparameters] | None = _LEVELS,
        outcome_scale: OutcomeScale = "per_task",
        input_transform: InputTransform | None = None,
        **options: Any,
    ) -> Self:
        """Fits one source task after another, without changing the fits of earlier tasks.

        Args:
            source_data: The source tasks, a sequence or a mapping from names, as in
                :meth:`SourceGPs.fit`; the first task is the lowest level.
            propagate: ``"covariance"`` for SHGP, ``"mean"`` for MHGP and BHGP.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
            hyperparameters: Hyperpriors, starts and bounds of the hyperparameters. Give one object
                for all tasks, or a pair: one object for the first task, and one for all later
                tasks. The kernels of later tasks describe differences between tasks. The defaults
                are values of the ScaML-GP paper, except for a higher upper bound of the noise
                variance. The first task has the paper's values for source tasks, and all later
                tasks have the paper's values for the residual. ``None`` gives maximum likelihood,
                as in [Tighineanu2022hierarchical]_.
            outcome_scale: How to standardize the outcomes: each task separately (``"per_task"``),
                all tasks together (``"pooled"``), or not at all (``"raw"``).
            input_transform: A frozen transform of the inputs.
            **options: The fields of :class:`~.pretraining.MAPOptions`. The field ``fit_points``
                limits the points of a fit, but predictions always use all points.

        Returns:
            The prior, in the dtype and on the device of the data.

        Raises:
            InputDataError: If the source data are invalid; the message names the task.
            ValueError: If an argument is out of range.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> stack = SourceHierarchy.fit([(X, X.sum(-1, keepdim=True))], propagate="mean")
        """
        check_choice("propagate", propagate, Propagate)
        map_options = MAPOptions(**options)

        def check_size(names: Sequence[str], sizes: Sequence[int]) -> None:
            if propagate == "covariance":
                check_joint_size(sum(sizes), torch.double, map_options.max_bytes)
            else:
                # The covariance of BHGP also needs the joint factor, and checks the size of the
                # factor on first use.
                check_padded_size(names, sizes, map_options.max_bytes)

        tasks, units = scaled_tasks(source_data, outcome_scale, input_transform, check_size)
        if hyperparameters is None:
            hyperparameters = SOURCE_HYPERPARAMETERS.without_priors()
        if isinstance(hyperparameters, GPHyperparameters):
            hyperparameters = hyperparameters, hyperparameters
        results, noise = list[MAPResult](), torch.zeros_like(tasks.Yvar)

        def condition() -> ConditionedHierarchy:
            """Builds the posterior of the tasks that are fitted so far."""
            return _HIERARCHIES[propagate].from_data(
                Observations.of(tasks, noise).select(torch.arange(len(results))),
                lengthscale=torch.cat([result.lengthscale for result in results]).to(tasks.X),
                outputscale=torch.cat([result.outputscale for result in results]).to(tasks.X),
                kernel=kernel,
                task_names=units.names[: len(results)],
            )

        # Shows one progress bar for all levels, instead of one bar for each level.
        quiet, num_levels = replace(map_options, progress=False), len(tasks.X)
        for level in track(range(num_levels), "levels", num_levels, map_options.progress):
            own = tasks[torch.tensor([level], device=tasks.X.device)]
            if level > 0:
                # The outcomes minus the posterior mean of the level below are fitted. For SHGP, the
                # fit also gets the posterior covariance of the level below.
                below, X = condition(), own.X[0]
                covariance = below.covariance(X) if propagate == "covariance" else None
                own = replace(own, Y=(own.Y - below.mean(X)) * own.mask, covariance=covariance)
            results.append(fit_map(own, kernel, hyperparameters[min(level, 1)], quiet))
            noise[level, : own.Yvar.shape[-1]] = own.known_or(results[-1].noise)
        log_posterior = torch.cat([result.log_posterior for result in results]).to(tasks.X)
        return cls(condition(), units, Observations.of(tasks, noise), log_posterior)

    @classmethod
    def from_models(
        cls,
        models: Sequence[SingleTaskGP] | Mapping[str, SingleTaskGP],
        propagate: Propagate = "covariance",
        input_transform: InputTransform | None = None,
    ) -> Self:
        """Builds a hierarchy from fitted BoTorch models, without changing the hyperparameters.

        Args:
            models: One model for each source task, in the order of the tasks. A model's data and
                noise belong to its task. The model's kernel and mean are used for the task's
                difference from the previous task. The supported models are the same as in
                :meth:`SourceGPs.from_models`.
            propagate: ``"covariance"`` for SHGP, ``"mean"`` for MHGP and BHGP.
            input_transform: A frozen ``Normalize`` to the prior's input space.

        Returns:
            The prior.

        Raises:
            ValueError: If a model is not supported; the message names the model.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> models = [SingleTaskGP(X, X[:, i : i + 1]) for i in range(2)]
            >>> stack = SourceHierarchy.from_models(models, propagate="mean")
        """
        check_choice("propagate", propagate, Propagate)
        read = read_models(models, input_transform)
        if propagate == "covariance":
            instead = "use SourceGPs and ScaMLGP, or thin out the source data"
            check_joint_size(int(read.tasks.mask.sum()), torch.double, instead=instead)
        data = Observations.of(read.tasks, read.tasks.Yvar)
        gps = _HIERARCHIES[propagate].from_data(
            data, level_means=read.mean_constant, **read.hyperparameters
        )
        return cls(gps, read.units, data)

    def _statistics(self) -> dict[str, Tensor]:
        # Each level's kernel describes its difference from the level below.
        return super()._statistics() | {"differences": self.gps.outputscale[1:]}


_HIERARCHIES = {"covariance": ConditionedHierarchy, "mean": BoostedHierarchy}
