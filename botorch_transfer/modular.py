"""Base classes of the modular models, which are built on a pre-trained prior.

The pre-trained prior provides the mean and the kernel of the target model. Read this file to write
your own model; :class:`~.models.SequentialHierarchicalGP` is a short example.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.arguments import PriorOrData
from botorch_transfer.data import Domain
from botorch_transfer.gp.combine import SourceMean, WeightedSumMean
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.hyperpriors import (
    GPHyperparameters,
    HyperparameterChoice,
    residual_kernel,
    target_hyperparameters,
)
from botorch_transfer.gp.likelihood import AddedNoiseLikelihood
from botorch_transfer.input_transforms import warn_outside_unit_cube
from botorch_transfer.model import TargetGP
from botorch_transfer.outcome_transforms import resolve_transform
from botorch_transfer.prior import ConditionedPrior, TransferPrior
from botorch_transfer.report import transfer_report

P = TypeVar("P", bound=TransferPrior)


def resolve_prior(
    prior_class: type[P],
    prior: PriorOrData | Sequence[Domain],
    input_transform: InputTransform | None = None,
    outcome_transform: OutcomeTransform | DefaultType | None = None,
    **options: Any,
) -> P:
    """Returns the prior for a new model; pre-trains the prior if source data are given.

    Args:
        prior_class: The class of priors that the model takes.
        prior: A prior of this class, or source data or domains to pre-train a prior. Priors are
            cached, so pre-training is not repeated for equal data.
        input_transform: The frozen input transform for pre-training.
        outcome_transform: The model's outcome transform. Pre-training applies the element-wise
            steps of this transform (``Log``, ``Bilog``, ``Power``) to the source outcomes.
        **options: Further options of pre-training.

    Returns:
        A view of the prior: a copy that shares the prior's tensors. Moving the view to another
        device does not move the prior.

    Raises:
        TypeError: If ``prior`` is a prior of another class, or a tensor.

    Example:
        >>> resolve_prior(SourceGPs, sources).task_names
        ('monday', 'tuesday')
    """
    if isinstance(prior, prior_class):
        return prior.view()
    if isinstance(prior, TransferPrior):
        raise TypeError(
            f"prior= is a {type(prior).__name__}, but this model needs a {prior_class.__name__}: "
            f"give the source data, or {prior_class.__name__}.fit(...)."
        )
    options |= {"input_transform": input_transform, "outcome_transform": outcome_transform}
    return prior_class.fit_once(prior, **options).view()


def outcome_transform_for(prior: TransferPrior, given: Any, Y: Tensor) -> OutcomeTransform | None:
    """Returns the outcome transform of a model with target outcomes ``Y``.

    The result depends on the prior and on the user's argument ``given``, see
    :func:`.resolve_transform`.
    """
    default = partial(prior.default_outcome_transform, Y.shape[:-2])
    return resolve_transform(given, prior.outcome_steps, default, Y, prior.typical_outcomes())


class ModularTransferGP(TargetGP):
    r"""Base class of exact GPs whose mean and kernel are built from a pre-trained prior.

    Derive your own model from this class if your constructor builds the mean and the kernel.

    Args:
        prior: A view of the prior. The model stores this view.
        mean_module: The target's prior mean, given the source data.
        covar_module: The target's prior covariance, given the source data.
        **options: Further arguments of :class:`TargetGP`: ``train_Yvar``, ``likelihood`` and
            ``noise``. ``noise`` is the hyperprior, starting value and bounds of the noise variance,
            for the default likelihood.

    Raises:
        ValueError: If the input transform is not frozen, or differs from the prior's transform.
    """

    prior: TransferPrior

    #: The residual kernel, a part of ``covar_module``. The tuple prevents PyTorch from registering
    #: the kernel twice.
    _residual_kernel: tuple[Kernel | None]

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: TransferPrior,
        mean_module: Mean,
        covar_module: Kernel,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        **options: Any,
    ) -> None:
        num_inputs = train_X.shape[-1] - (task_feature is not None)
        super().__init__(
            train_X,
            train_Y,
            prior.dim,
            mean_module,
            covar_module,
            outcome_transform=outcome_transform_for(prior, outcome_transform, train_Y),
            input_transform=prior.input_transform_for(num_inputs, input_transform),
            task_feature=task_feature,
            **options,
        )
        self.prior = prior.to(train_X)
        if isinstance(prior, ConditionedPrior):
            warn_outside_unit_cube(prior.input_range, "the source tasks")
        self._residual_kernel = (self.covar_module,)

    @property
    def residual_covar_module(self) -> Kernel | None:
        """The part of ``covar_module`` that models the difference between target and sources.

        ``None`` if the kernel has no such part.
        """
        return self._residual_kernel[0]


class SourcePosteriorGP(ModularTransferGP):
    r"""Base class of models that combine source posteriors with a residual kernel.

    Derive your own model from this class. A subclass implements :meth:`_mean_and_kernel`, which
    builds the target's mean and kernel from the source posteriors and the residual kernel. A
    subclass without further options needs no constructor.

    Args:
        prior: A prior of the class ``prior_class``, or source data to which such a prior is fitted:
            a sequence or mapping of ``SupervisedDataset``, ``(X, Y)`` or ``(X, Y, Yvar)``.
            Pre-training is cached, so equal data are fitted once.
        covar_module: The residual kernel; by default a scaled RBF kernel with a lengthscale for
            each input.
        outcome_transform: The transform of ``train_Y`` to the prior's units; by default the
            transform that matches the prior's ``outcome_scale``. If ``prior`` is source data, the
            default standardizes ``train_Y`` by all source and target outcomes together. ``None`` if
            ``train_Y`` already has the prior's units. ``Log``, ``Bilog`` and ``Power`` are also
            applied to the source outcomes. In a ``ChainedOutcomeTransform``, they must precede all
            other transforms.
        input_transform: A frozen transform of the inputs, for example
            ``Normalize(d, bounds=...)``; by default the transform of the prior.

    Raises:
        ValueError: If the input transform is not frozen, or differs from the prior's transform.
    """

    prior_class: ClassVar[type[ConditionedPrior]]
    prior: ConditionedPrior

    #: Name of the set of hyperpriors for residual kernel and noise. Some subclasses have a
    #: constructor argument for this name.
    _hyperparameters: HyperparameterChoice = "cautious"

    transfer_report = transfer_report

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
    ) -> None:
        sources = resolve_prior(self.prior_class, prior, input_transform, outcome_transform)
        batch_shape = train_X.shape[:-2]
        own = self._own_hyperparameters(sources)
        adds = isinstance(likelihood, AddedNoiseLikelihood) and likelihood.is_default
        self._infers_noise = train_Yvar is None and (likelihood is None or adds)
        if covar_module is None:
            covar_module = self._residual(sources, own, batch_shape)
        super().__init__(
            train_X,
            train_Y,
            sources,
            *self._mean_and_kernel(sources, covar_module, batch_shape),
            outcome_transform,
            input_transform,
            task_feature,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            noise=own.noise,
        )
        self._residual_kernel = (covar_module,)
        self._add_parts()

    def _own_hyperparameters(self, prior: ConditionedPrior) -> GPHyperparameters:
        """Returns hyperpriors, starting values and bounds of the residual kernel and the noise."""
        typical = prior.dim, prior.residual_variance, prior.noise_variance
        return target_hyperparameters(self._hyperparameters, *typical)

    def _residual(
        self, prior: ConditionedPrior, own: GPHyperparameters, batch_shape: torch.Size
    ) -> Kernel:
        """Builds the default residual kernel, for the difference between target and sources."""
        return residual_kernel(prior.dim, batch_shape, own)

    @property
    def member_on_sources(self) -> SourcePosteriorGP | None:
        """This model if the prior has a separate GP for each source task; otherwise ``None``."""
        return self if isinstance(self.prior.gps, ConditionedGPs) else None

    @property
    def _source_mean(self) -> Mean:
        """The mean module that depends on the source tasks."""
        return self.mean_module

    @property
    def weights(self) -> Tensor:
        """Weights of the ``M`` source tasks, a ``batch_shape x M`` tensor.

        NaN if the prior mean is not a weighted sum of the source tasks' posterior means.
        """
        mean = self._source_mean
        if self.member_on_sources is None or not isinstance(mean, WeightedSumMean):
            return torch.full((self.prior.num_tasks,), torch.nan)
        return mean.all_weights.to(self.train_targets)

    def source_parts(self, X: Tensor, names: Sequence[str]) -> Tensor:
        """Evaluates the contribution of each source task to the target's prior mean."""
        mean = self._source_mean
        if not isinstance(mean, SourceMean) or list(names) != list(self.prior.task_names):
            return super().source_parts(X, names)
        return mean.parts(X)

    @abstractmethod
    def _mean_and_kernel(
        self, prior: ConditionedPrior, residual: Kernel, batch_shape: torch.Size
    ) -> tuple[Mean, Kernel]:
        """Builds the target's prior mean and covariance.

        Args:
            prior: The model's prior.
            residual: The residual kernel.
            batch_shape: The batch shape of the target model.

        Returns:
            The mean and the kernel.
        """

    def _add_parts(self) -> None:
        """Adds further modules to the model. In this base class, adds nothing.

        The constructor calls this method last. The modules must have the dtype of
        ``train_targets``.
        """
