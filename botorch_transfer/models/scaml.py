r"""ScaML-GP: a weighted sum of source posteriors plus a residual GP; the recommended first model.

The sum is implemented in ``kernels.weighted_sum``; hyperpriors and starting values, cautious ones
and those of the paper, are in ``hyperpriors.spec``.

.. [Tighineanu2023scaml]
    P. Tighineanu, L. Grossberger, P. Baireuther, K. Skubch, S. Falkner, J. Vinogradska and F.
    Berkenkamp. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024. arXiv:2312.00742.
"""

from __future__ import annotations

from typing import cast

import torch
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.hyperpriors.spec import weight_prior
from botorch_transfer.kernels import TaskWeights, WeightedSumKernel
from botorch_transfer.means import WeightedSumMean
from botorch_transfer.models.modular import SourcePosteriorGP
from botorch_transfer.models.report import transfer_report
from botorch_transfer.pretraining.source_gps import ConditionedPrior, SourceGPs


class ScaMLGP(SourcePosteriorGP):
    r"""ScaML-GP [Tighineanu2023scaml]_: a weighted sum of source posteriors plus a residual GP.

    Every source task is a GP of its own with posterior ``(μ_m, Σ_m)``. Given all source data, the
    target's prior is (Theorem 1)

    .. code-block:: text

        m_t(x) = Σ_m w_m μ_m(x)        k(x, x') = k_t(x, x') + Σ_m w_m² Σ_m(x, x')

    and the model is the exact GP with that prior. Weights, residual kernel and noise are fitted to
    the target's data; the source GPs stay as they are, so cost grows linearly with the number of
    source tasks. It is the model to start with: use it for any number of source tasks with a few
    dozen points each. With enough target points, unhelpful source tasks get weights near zero.

    Args:
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a
            lengthscale for each input.

    Raises:
        ValueError: If the input transform is not frozen, or not the prior's.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = ScaMLGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.weights
        tensor([...
    """

    prior: SourceGPs
    task_weights: TaskWeights

    transfer_report = transfer_report

    def _mean_and_kernel(
        self, prior: ConditionedPrior, residual: Kernel, batch_shape: torch.Size
    ) -> tuple[Mean, Kernel]:
        weights = TaskWeights(
            prior.num_tasks, batch_shape, weight_prior(self._hyperpriors, prior.num_tasks)
        )
        # Not `+`, which would flatten a residual kernel that is itself a sum.
        kernel = AdditiveKernel(residual, WeightedSumKernel(prior.gps, weights))
        return WeightedSumMean(prior.gps, weights), kernel

    def _add_parts(self) -> None:
        self.task_weights = cast(TaskWeights, self.mean_module.task_weights)

    @property
    def weights(self) -> Tensor:
        """The source tasks' weights, a ``batch_shape x M`` tensor."""
        return self.task_weights.weights

    @weights.setter
    def weights(self, value: Tensor) -> None:
        self.task_weights.weights = value

    @property
    def residual_covar_module(self) -> Kernel:
        """The residual kernel ``k_t``."""
        return self.covar_module.kernels[0]
