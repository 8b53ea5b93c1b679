"""Models whose source knowledge is a prior that was pre-trained beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.data import Domain
from botorch_transfer.hyperpriors import RESIDUAL_HYPERPARAMETERS, Hyperparameter
from botorch_transfer.models.inputs import PriorOrData
from botorch_transfer.models.target import TargetGP
from botorch_transfer.pretraining.prior import TransferPrior

P = TypeVar("P", bound=TransferPrior)


def resolve_prior(
    prior_class: type[P],
    prior: PriorOrData | Sequence[Domain],
    input_transform: InputTransform | None = None,
    **options: Any,
) -> P:
    """Makes what the user hands over a model's own view of a prior.

    Args:
        prior_class: The class of priors that the model takes.
        prior: A prior of that class, or source data (or domains) to pre-train one from. The same
            data are pre-trained once.
        input_transform: The frozen input transform, for pre-training.
        **options: Further options of pre-training.

    Returns:
        A view of the prior.

    Raises:
        TypeError: If it is another kind of prior.

    Example:
        >>> resolve_prior(SourceGPs, sources).task_names
        ('monday', 'tuesday')
    """
    if isinstance(prior, prior_class):
        return prior.view()
    if isinstance(prior, TransferPrior):
        raise TypeError(
            f"Expected a {prior_class.__name__} or source data as prior, not a "
            f"{type(prior).__name__}: pass the source data, or {prior_class.__name__}.fit(...)."
        )
    return prior_class.fit_once(prior, input_transform=input_transform, **options).view()


class ModularTransferGP(TargetGP):
    r"""An exact GP on the target's inputs whose mean and kernel hold what a prior knows.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: A view of the prior; it becomes the model's own.
        mean_module: The target's prior mean, given the source data.
        covar_module: The target's prior covariance, given the source data.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances.
        likelihood: A likelihood; by default Gaussian with ``train_Yvar`` or an inferred noise.
        outcome_transform: The transform to the prior's units; by default what the prior says,
            ``None`` if the outcomes are in these units already.
        input_transform: The frozen transform to the prior's inputs; by default the prior's.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.
        noise: Hyperprior, start and bounds of the default likelihood's inferred noise.
    """

    source_argument = "prior"
    has_source_covariance: ClassVar[bool] = True
    """Whether the sources' posterior covariance is part of the model's own."""

    prior: TransferPrior

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: TransferPrior,
        mean_module: Mean,
        covar_module: Kernel,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        noise: Hyperparameter = RESIDUAL_HYPERPARAMETERS.noise,
    ) -> None:
        if isinstance(outcome_transform, _DefaultType):
            outcome_transform = prior.default_outcome_transform(train_X.shape[:-2])
        super().__init__(
            train_X,
            train_Y,
            dim=prior.dim,
            mean_module=mean_module,
            covar_module=covar_module,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=prior.input_transform_for(
                train_X.shape[-1] - (task_feature is not None), input_transform
            ),
            task_feature=task_feature,
            noise=noise,
        )
        self.prior = prior.to(train_X)
