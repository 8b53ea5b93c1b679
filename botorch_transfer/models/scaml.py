r"""ScaML-GP: a weighted sum of source posteriors plus a residual.

.. [Tighineanu2023scaml]
    P. Tighineanu, L. Grossberger, P. Baireuther, K. Skubch, S. Falkner, J. Vinogradska and F.
    Berkenkamp. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024. arXiv:2312.00742.
"""

from __future__ import annotations

from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from botorch_transfer.hyperpriors.spec import residual_kernel
from botorch_transfer.kernels.weighted_sum import WeightedSumKernel, WeightedSumMean
from botorch_transfer.kernels.weights import TaskWeights
from botorch_transfer.models.inputs import PriorOrData
from botorch_transfer.models.modular import ModularTransferGP, resolve_prior
from botorch_transfer.pretraining.source_gps.source_gps import SourceGPs


class ScaMLGP(ModularTransferGP):
    r"""ScaML-GP [Tighineanu2023scaml]_: source tasks, weighted, plus a residual.

    Every source task is a GP of its own with posterior ``(μ_m, Σ_m)``. Given all source data, the
    target's prior is (Theorem 1)

    .. code-block:: text

        m_t(x) = Σ_m w_m μ_m(x)        k(x, x') = k_t(x, x') + Σ_m w_m² Σ_m(x, x')

    and the model is the exact GP with that prior. Weights, residual kernel and noise are fitted to
    the target's data; the source GPs stay as they are, so cost grows linearly with the number of
    source tasks. It is the model to start with: any number of source tasks, from a few dozen
    points each. Source tasks that do not help get weight zero as soon as target points say so.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: The :class:`SourceGPs`, or source data to fit them from: a sequence or mapping of
            ``SupervisedDataset`` or ``(X, Y)`` or ``(X, Y, Yvar)``. The same data are fitted once.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian.
        covar_module: The residual kernel ``k_t``; by default a scaled RBF kernel with a
            lengthscale for each input and the paper's hyperpriors.
        outcome_transform: By default the standardization by all source and target outcomes
            together; ``None`` if the outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs, for instance
            ``Normalize(d, bounds=...)``; by default the one that the prior was pre-trained with.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of.
            It is ignored, here and in the inputs of ``posterior``.

    Raises:
        InputDataError: If the data are unfit; the message says which.
        TypeError: If ``prior`` is a prior of another kind.
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
    mean_module: WeightedSumMean
    covar_module: AdditiveKernel

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
    ) -> None:
        sources = resolve_prior(SourceGPs, prior, input_transform)
        batch_shape = train_X.shape[:-2]
        task_weights = TaskWeights(sources.num_tasks, batch_shape, GammaPrior(1.0, 1.0))
        if covar_module is None:
            covar_module = residual_kernel(sources.dim, batch_shape)
        super().__init__(
            train_X,
            train_Y,
            prior=sources,
            mean_module=WeightedSumMean(sources.gps, task_weights),
            # Not `+`, which would flatten a residual kernel that is itself a sum.
            covar_module=AdditiveKernel(covar_module, WeightedSumKernel(sources.gps, task_weights)),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
        )
        self.task_weights = task_weights

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
