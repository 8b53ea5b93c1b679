r"""ScaML-GP: a weighted sum of source posteriors plus a residual GP.

The sum is implemented in ``gp.combine``. The cautious hyperpriors and the paper's hyperpriors, with
starting values, are in ``gp.hyperpriors``. With thousands of source tasks, it would take too long
to evaluate all tasks in each step of Bayesian optimization. :func:`screened_tasks` therefore
computes how well each task alone explains the target's outcomes, and selects the best tasks.

.. [Tighineanu2023scaml]
    P. Tighineanu, L. Grossberger, P. Baireuther, K. Skubch, S. Falkner, J. Vinogradska and F.
    Berkenkamp. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024. arXiv:2312.00742.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.arguments import PriorOrData
from botorch_transfer.gp.combine import TaskWeights, WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.hyperpriors import HyperparameterChoice, weight_prior
from botorch_transfer.gp.likelihood import CHUNK_ELEMENTS, added_variance, log_densities_of_slopes
from botorch_transfer.gp.state import Cache
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.gp.tasks import lexical_order, typical_rows
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.prior import ConditionedPrior
from botorch_transfer.sources.prior import SourceGPs


class ScaMLGP(SourcePosteriorGP):
    r"""ScaML-GP [Tighineanu2023scaml]_: a weighted sum of source posteriors plus a residual GP.

    Every source task has a GP of its own, with the posterior ``(μ_m, Σ_m)``. Given all source data,
    the target's prior is (Theorem 1)

    .. code-block:: text

        m_t(x) = Σ_m w_m μ_m(x)        k(x, x') = k_t(x, x') + Σ_m w_m² Σ_m(x, x')

    The model is the exact GP with this prior. Weights, residual kernel and noise are fitted to the
    target's data. The source GPs do not change, so the cost grows linearly with the number of
    source tasks. Use the model for any number of source tasks with a few dozen points each. As
    target points are added, the weights of unhelpful source tasks fall, but slowly: in a run with
    two inputs, after twenty points, a source with the opposite sign still had the weight .14, and a
    helpful source .77. If the history may mislead, use :class:`TransferGP` or
    :class:`GuardedTransferGP`.

    If there are more than ``max_sources`` tasks, the model selects tasks by how well each task
    alone explains the target's outcomes (:func:`screened_tasks`). All other tasks have weight zero
    and cost no time. The constructor and each fit select tasks; conditioning, fantasies and
    leave-one-out predictions keep the selection. Without target points all tasks are used. All
    members of a batch of models use the same tasks.

    Args:
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a
            lengthscale for each input.
        hyperparameters: The hyperpriors of residual, noise and weights, ``"cautious"`` or
            ``"paper"``.
        max_sources: The maximum number of source tasks to use; ``None`` for all tasks.

    Raises:
        ValueError: If the input transform is not frozen or differs from the prior's transform, or
            if ``max_sources`` is not positive.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = ScaMLGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.weights
        tensor([...
    """

    prior_class = SourceGPs

    prior: SourceGPs
    task_weights: TaskWeights

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        hyperparameters: HyperparameterChoice = "cautious",
        max_sources: int | None = 64,
    ) -> None:
        if max_sources is not None and max_sources < 1:
            raise ValueError(f"max_sources={max_sources} must be positive, or None for all tasks.")
        self._max_sources = math.inf if max_sources is None else max_sources
        self._choice = Cache(size=1)
        self._hyperparameters = hyperparameters
        modules = (likelihood, covar_module, outcome_transform, input_transform)
        super().__init__(train_X, train_Y, prior, train_Yvar, *modules, task_feature)

    def _mean_and_kernel(
        self, prior: ConditionedPrior, residual: Kernel, batch_shape: torch.Size
    ) -> tuple[Mean, Kernel]:
        most = min(self._max_sources, prior.num_tasks)
        hyperprior = weight_prior(self._hyperparameters, int(most))
        weights = TaskWeights(prior.num_tasks, batch_shape, hyperprior)
        # The operator `+` would flatten a residual kernel that is itself a sum.
        kernel = AdditiveKernel(residual, WeightedSumKernel(prior.gps, weights))
        return WeightedSumMean(prior.gps, weights), kernel

    def _add_parts(self) -> None:
        self.task_weights = cast(TaskWeights, self.mean_module.task_weights)
        self._select_sources()

    @torch.no_grad()
    def _select_sources(self) -> None:
        """Selects source tasks if there are more than ``max_sources`` tasks.

        Without target points, the model uses all tasks.
        """
        (X,), Y = self.train_inputs, self.train_targets
        if self._max_sources >= self.task_weights.num_tasks or Y.numel() == 0:
            return
        X = self.transform_inputs(X) if self.training else X  # already transformed in eval mode
        # Uses starting values of the hyperparameters: the selection then depends on the data only.
        own = self._own_hyperparameters(self.prior)
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        noise = self._noise_variance() if known else torch.full_like(Y, own.noise.start)
        noise = noise + added_variance(self.likelihood)
        lengthscale, scale = X.new_tensor([[own.lengthscale.start]]), own.outputscale.start
        residual = Stationary("rbf", lengthscale, X.new_tensor(scale))

        def select(points: Tensor) -> Tensor:
            X, Y, noise = points[..., :-2], points[..., -2], points[..., -1]
            covariance = residual.between(X, X) + noise.diag_embed()
            return screened_tasks(self.prior.gps, X, Y, covariance, int(self._max_sources))

        points = torch.cat([X, torch.stack([Y, noise], dim=-1)], dim=-1)
        self.task_weights.select(self._choice(select, points, self.prior.gps.alpha))

    def _before_fit(self) -> None:
        if self.task_weights.raw_weights.requires_grad:
            self._select_sources()

    @property
    def weights(self) -> Tensor:
        """The source tasks' weights, a ``batch_shape x M`` tensor; zero for unselected tasks."""
        return self.task_weights.all_weights


# --------------------------------------------------------------------------------- screening

#: The weights ``w`` over which :func:`screened_tasks` averages the evidence of a source task.
SCREENING_WEIGHTS = (0.25, 0.5, 1.0, 2.0)

#: Maximum number of target points from which the evidence of a source task is computed.
MAX_SCREENING_POINTS = 32

#: Number of decimals to which log evidence is rounded, so that nearly equal tasks tie.
_DECIMALS = 6


@torch.no_grad()
def screened_tasks(
    gps: ConditionedGPs, X: Tensor, Y: Tensor, residual: Tensor, number: int
) -> Tensor:
    r"""Selects the source tasks under which the target's outcomes have the highest evidence.

    Let ``μ_m`` and ``K_m`` be the posterior mean and covariance of task ``m`` at the target's
    points. Let ``R`` be the covariance of residual plus noise. The evidence of a task is the
    average of the outcomes' densities under four weights ``w``. The log evidence is

    .. code-block:: text

        ln ¼ Σ_w N(y; w μ_m, w² K_m + R)        w ∈ {¼, ½, 1, 2}

    For a batch of targets, the log evidence is averaged over the targets, because all targets of a
    batch use the same source tasks. Tasks may have equal evidence, for instance if their data are
    far from the target's points. Such ties are broken by the tasks' data, so that the selection
    does not depend on the order of the tasks.

    Args:
        gps: The source GPs.
        X: A ``batch_shape x n x d`` tensor of target inputs, transformed.
        Y: A ``batch_shape x n`` tensor of target outcomes, in the units of the GPs.
        residual: The ``batch_shape x n x n`` covariance ``R``.
        number: The number of tasks to select.

    Returns:
        The indices of the selected tasks, ascending. If there are at most ``number`` tasks, the
        indices of all tasks.

    Example:
        >>> X, ones = torch.rand(3, 10, 2).double(), torch.ones(3, 10).double()
        >>> data = X, X.sum(-1), ones.bool()
        >>> gps = ConditionedGPs.from_data(*data, ones[:, :2], ones[:, 0], 0.01 * ones)
        >>> screened_tasks(gps, X[0], X[0].sum(-1), 0.1 * torch.eye(10).double(), 2).shape
        torch.Size([2])
    """
    n, d = X.shape[-2:]
    members = zip(X.reshape(-1, n, d), Y.reshape(-1, n), residual.reshape(-1, n, n), strict=True)
    evidence = torch.stack([_log_evidence_of_all(gps, *member) for member in members]).mean(dim=0)
    ties = [(key * gps.mask).sum(dim=-1) for key in (gps.points.sum(dim=-1), gps.alpha)]
    order = lexical_order(*ties, -evidence.round(decimals=_DECIMALS))
    return order[:number].sort().values


def _log_evidence_of_all(gps: ConditionedGPs, X: Tensor, Y: Tensor, residual: Tensor) -> Tensor:
    """Computes the log density of one target's outcomes under each source task.

    Returns an ``M`` tensor: the log evidence that :func:`screened_tasks` defines. Evaluates a few
    of the ``M`` tasks at a time, to limit the memory.
    """
    X, Y, residual = X.double(), Y.double(), residual.double()
    rows = typical_rows(X, Y, MAX_SCREENING_POINTS)
    X, Y, residual = X[rows], Y[rows], residual[rows][:, rows]
    weights, densities = Y.new_tensor(SCREENING_WEIGHTS), []
    size = max(1, CHUNK_ELEMENTS // max(1, len(X) * gps.mask.shape[-1]))
    for first in range(0, gps.num_tasks, size):
        chunk = gps.select(slice(first, first + size))
        moments = chunk.mean(X), chunk.covariance(X)
        densities.append(log_densities_of_slopes(weights, Y, *moments, residual.unsqueeze(0)))
    return torch.cat(densities).logsumexp(dim=-1) - math.log(len(weights))
