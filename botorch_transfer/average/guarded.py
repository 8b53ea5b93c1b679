r"""Average of one transfer model and a plain GP: misleading history gets a small weight.

The weight follows from the log evidence for the transfer model against the plain GP. The rule was
chosen by experiment, see ``benchmarks/results/adversarial``. The leave-one-out likelihood alone
abandons good source data too early: the target points are few and dependent, and the
hyperparameters were fitted to these points. The prior odds therefore favour transfer, and the log
evidence is scaled down. A fit to one or two points is uninformative. With so few points, the
evidence compares the likelihoods under both priors before any fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, cast

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import gpt_posterior_settings
from botorch.utils.context_managers import parameter_rollback_ctx
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.settings import prior_mode
from linear_operator import to_linear_operator
from torch import Tensor
from torch.distributions import Normal
from torch.nn import Parameter

from botorch_transfer._botorch import DefaultType
from botorch_transfer.arguments import PriorOrData
from botorch_transfer.average.base import AveragedGP, Moments, build_member
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS, own_mean, residual_kernel
from botorch_transfer.model import TransferModel
from botorch_transfer.sources.prior import SourceGPs, tasks_agree
from botorch_transfer.sources.scaml import ScaMLGP

#: The transfer model's weight if the log evidence favours neither this model nor the plain GP.
PRIOR_WEIGHT = 0.8

#: The factor, less than one, that multiplies the log evidence in :func:`weight_of_evidence`.
TEMPERATURE = 0.3

#: Maximum number of target points for which the evidence compares the priors of transfer model and
#: plain GP before any fit. With more points, the evidence compares leave-one-out predictions.
BLIND_POINTS = 2

#: Minimum z-score of the mean of :attr:`SourceGPs.agreement`. With a smaller z-score, a guarded
#: model without target points ignores the sources.
AGREEMENT = 2.5


def weight_of_evidence(evidence: Tensor) -> Tensor:
    """Returns the weight of a transfer model, ``sigmoid(log odds + temperature * log evidence)``.

    Args:
        evidence: A ``batch_shape`` tensor: the log evidence for the transfer model against the
            plain GP.

    Returns:
        A ``batch_shape`` tensor between 0 and 1.

    Example:
        >>> weight_of_evidence(torch.tensor([-20.0, 0.0, 20.0]))
        tensor([0.0098, 0.8000, 0.9994])
    """
    return torch.sigmoid(math.log(PRIOR_WEIGHT / (1 - PRIOR_WEIGHT)) + TEMPERATURE * evidence)


def leave_one_out_evidence(Y: Tensor, transfer: Moments, plain: Moments, noise: Tensor) -> Tensor:
    """Computes the leave-one-out log evidence for the transfer model against the plain GP.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes.
        transfer: The transfer model's leave-one-out means and variances, without noise.
        plain: The plain GP's leave-one-out means and variances, without noise.
        noise: A ``batch_shape x n`` tensor of noise variances, the same for both models.

    Returns:
        A ``batch_shape`` tensor: the transfer model's sum of log predictive densities, minus the
        plain GP's sum.
    """
    left, right = (
        Normal(mean, (variance.clamp_min(0.0) + noise).sqrt()).log_prob(Y)
        for mean, variance in (transfer, plain)
    )
    return (left - right).sum(dim=-1)


def prior_evidence(
    Y: Tensor, transfer: MultivariateNormal, plain: MultivariateNormal, noise: Tensor
) -> Tensor:
    """Computes the log evidence for the transfer model's prior against the plain GP's prior.

    A constant of unknown value, with unit prior variance, is added to both priors. So the transfer
    model's prior is not penalized if the target's outcomes are all larger or all smaller than the
    sources' outcomes.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes.
        transfer: The transfer model's prior at the points.
        plain: The plain GP's prior at the points.
        noise: A ``batch_shape x n`` tensor of noise variances, the same for both priors.

    Returns:
        A ``batch_shape`` tensor: the log density under the transfer model's prior, minus the log
        density under the plain GP's prior.
    """
    densities = []
    for prior in (transfer, plain):
        covariance = prior.covariance_matrix.double() + 1.0 + (noise.double() + 1e-6).diag_embed()
        with_level = MultivariateNormal(prior.mean.double(), to_linear_operator(covariance))
        densities.append(with_level.log_prob(Y.double()))
    return densities[0] - densities[1]


class GuardedTransferGP(AveragedGP):
    """A transfer model guarded by a plain GP on the same target data.

    The posterior ``(μ, Σ)`` of the transfer model and the posterior ``(μ', Σ')`` of the plain GP
    are mixed with the weights ``p`` and ``1 - p``. The prediction is the normal distribution with
    the mean and the covariance of this mixture:

    .. code-block:: text

        mean = p μ + (1 - p) μ'
        covariance = p Σ + (1 - p) Σ' + p (1 - p) (μ - μ')(μ - μ')ᵀ

    Where the two models disagree, the variance is large, so that acquisition functions explore
    there. The constructor and each fit compute the weight ``p``, see :func:`weight_of_evidence`.
    Conditioning, fantasies and leave-one-out predictions keep ``p``. A priori, ``p`` favours
    transfer. With three or more target points, ``p`` compares the leave-one-out predictions of both
    models. With one or two, ``p`` compares the likelihoods of these points under both priors, with
    the hyperparameters that the models had before any fit. Without target points, ``p`` is one,
    with one exception: if the prior is a :class:`SourceGPs` of five or more tasks and, on average,
    these tasks do not predict one another, ``p`` is zero, and predictions are constant.

    Use the model if old tasks may mislead, for instance because they come from another machine, or
    because the sign of an outcome has changed. The guard cannot protect the first evaluation, which
    follows the old tasks if these tasks agree with one another. The cost is the sum of the costs of
    both models. BoTorch's analytic noisy expected improvement takes exact GPs only: use
    ``qLogNoisyExpectedImprovement``.

    Args:
        prior: The third argument of ``transfer_model``: a prior, or source data.
        likelihood: A likelihood; by default Gaussian. The plain GP uses this likelihood, and the
            transfer model uses a copy.
        covar_module: The residual kernel of the transfer model; if omitted, the default of
            ``transfer_model``.
        outcome_transform: The outcome transform of both models; if omitted, the default of
            ``transfer_model``. Pass ``None`` if the outcomes are in the prior's units already.
            ``Log``, ``Bilog`` and ``Power`` are also applied to the source outcomes. In a
            ``ChainedOutcomeTransform``, they must precede all other transforms.
        input_transform: A frozen transform of the inputs; if omitted, the default of
            ``transfer_model``.
        transfer_model: The class of the transfer model.
        transfer_options: Further arguments of the transfer model.

    Raises:
        TypeError: If the transfer model does not accept ``prior``.
        ValueError: If the transfer model rejects any of the options, or if it predicts a mixture.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, -X[:, :1])}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = GuardedTransferGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.transfer_weight
        Parameter containing:
        tensor(...
    """

    weighs_all_sources = True

    transfer_weight: Parameter

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
        transfer_model: Callable[..., TransferModel] = ScaMLGP,
        transfer_options: Mapping[str, Any] | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "train_Yvar": train_Yvar,
            "likelihood": deepcopy(likelihood),
            "covar_module": covar_module,
            "outcome_transform": outcome_transform,
            "input_transform": input_transform,
            "task_feature": task_feature,
            **(transfer_options or {}),
        }
        transfer = build_member(transfer_model, train_X, train_Y, prior, **options)
        batch_shape = train_X.shape[:-2]
        super().__init__(
            train_X,
            train_Y,
            {"transfer": transfer},
            mean_module=own_mean(batch_shape),
            covar_module=residual_kernel(transfer.num_inputs, batch_shape, SOURCE_HYPERPARAMETERS),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=getattr(transfer, "outcome_transform", None),
        )
        self.transfer_weight = Parameter(torch.ones(batch_shape), requires_grad=False)
        self.to(train_X)
        self._starts = {
            name: parameter.detach().clone()
            for name, parameter in self.named_parameters()
            if parameter.requires_grad
        }
        self.update_weights()

    @property
    def transfer(self) -> TransferModel:
        """The transfer model."""
        return self.members["transfer"]

    @property
    def prior(self) -> Any:
        """The transfer model's pre-trained prior; ``None`` for a joint model without a prior."""
        return getattr(self.transfer, "prior", None)

    @property
    def shares(self) -> Tensor:
        """The weights of the transfer model and of the plain GP, a ``batch_shape x 2`` tensor."""
        return torch.stack([self.transfer_weight, 1 - self.transfer_weight], dim=-1)

    @property
    def residual_covar_module(self) -> Kernel:
        """The transfer model's residual kernel."""
        return cast(Kernel, cast(Any, self.transfer).residual_covar_module)

    # ------------------------------------------------------------------------------------ weight

    def _update_shares(self) -> None:
        """Recomputes the transfer model's weight from the target's data."""
        if self.num_target_points == 0:
            sources = self.prior
            used = not isinstance(sources, SourceGPs) or tasks_agree(sources.agreement, AGREEMENT)
            weight = torch.full_like(self.transfer_weight, float(used))
        else:
            weight = weight_of_evidence(self.evidence())
        self.transfer_weight.data = weight.to(self.transfer_weight)

    def evidence(self) -> Tensor:
        """Computes the log evidence for the transfer model against the plain GP.

        Returns:
            A ``batch_shape`` tensor: positive if the data favour the transfer model, negative if
            the data favour the plain GP. Without target points, the log evidence is zero.
        """
        training = self.training
        with torch.no_grad():
            evidence = self.eval()._evidence()
        self.train(training)
        return evidence

    def _evidence(self) -> Tensor:
        (X,), Y = self.train_inputs, self.train_targets
        if self.num_target_points == 0:
            return torch.zeros_like(self.transfer_weight)
        if self.num_target_points > BLIND_POINTS:
            (left_out, plain_left_out), (_, noise) = self._leave_one_out_by_member()
            return leave_one_out_evidence(Y, left_out, plain_left_out, noise)
        parameters: dict[str, Tensor] = dict(self.named_parameters())
        with parameter_rollback_ctx(parameters), prior_mode(True), gpt_posterior_settings():
            for name, start in self._starts.items():
                if parameters[name].requires_grad:  # the user may have fixed the parameter
                    parameters[name].data.copy_(start)
            priors = [self.predict_by_member(X, member) for member in self.members.values()]
            return prior_evidence(Y, priors[0], priors[1], self.plain._noise_variance())
