"""A transfer model guarded by a plain GP: history that misleads loses its weight.

Read it for the rule that weighs the two; the Gaussian that mixes them is in ``averaged``. The rule
was chosen by experiment, see ``benchmarks/adversarial``. Plain leave-one-out likelihood abandons
good source data too early, because it uses few, dependent points that the hyperparameters were
fitted to. The prior odds therefore favour transfer, and the log evidence is scaled down. A fit to
one or two points is uninformative; there the evidence compares the likelihoods under both priors
before any fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
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
from botorch_transfer.arguments import PriorOrData, check_options
from botorch_transfer.average import AveragedGP, Moments
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS, residual_kernel
from botorch_transfer.model import TargetGP
from botorch_transfer.sources.ensembles import own_mean
from botorch_transfer.sources.prior import SourceGPs, source_agreement, tasks_agree
from botorch_transfer.sources.scaml import ScaMLGP


@dataclass(frozen=True)
class GuardRule:
    """The weight of the transfer model, ``sigmoid(log odds + temperature * log evidence)``.

    Args:
        prior_weight: The transfer model's weight if the log evidence is zero.
        temperature: The factor of the log evidence, usually below one.
        blind_points: Up to this many points, the evidence is computed before any fit.
        agreement: Without target points, the sources are used if the mean rank correlation between
            them is more than this many standard errors above zero; ``-inf`` always uses them.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> GuardRule().weight(torch.tensor([-20.0, 0.0, 20.0]))
        tensor([0.0098, 0.8000, 0.9994])
    """

    prior_weight: float = 0.8
    temperature: float = 0.3
    blind_points: int = 2
    agreement: float = 2.5

    def __post_init__(self) -> None:
        if not 0 < self.prior_weight < 1:
            raise ValueError(f"prior_weight must be between 0 and 1, not {self.prior_weight}.")
        if self.temperature < 0 or self.blind_points < 0:
            raise ValueError("temperature and blind_points must not be negative.")

    def weight(self, evidence: Tensor) -> Tensor:
        """Turns log evidence for the transfer model into its weight.

        Args:
            evidence: A ``batch_shape`` tensor.

        Returns:
            A ``batch_shape`` tensor between 0 and 1.
        """
        odds = math.log(self.prior_weight / (1 - self.prior_weight))
        return torch.sigmoid(odds + self.temperature * evidence)


def leave_one_out_evidence(Y: Tensor, transfer: Moments, plain: Moments, noise: Tensor) -> Tensor:
    """How much better the transfer model predicts every point from the others.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes.
        transfer: The transfer model's latent predictions.
        plain: The plain GP's.
        noise: A ``batch_shape x n`` tensor: the noise variances, the same for both.

    Returns:
        A ``batch_shape`` tensor: the difference of summed log predictive densities.
    """
    left, right = (
        Normal(mean, (variance.clamp_min(0.0) + noise).sqrt()).log_prob(Y)
        for mean, variance in (transfer, plain)
    )
    return (left - right).sum(dim=-1)


def prior_evidence(
    Y: Tensor, transfer: MultivariateNormal, plain: MultivariateNormal, noise: Tensor
) -> Tensor:
    """How much likelier the points were under the transferred prior than under the plain one.

    Both priors get a constant offset of unit variance, so that a target above or below its sources
    does not count against them.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes.
        transfer: The transferred prior at the points.
        plain: The plain GP's prior at the points.
        noise: A ``batch_shape x n`` tensor: the noise variances, the same for both.

    Returns:
        A ``batch_shape`` tensor: the difference of log densities.
    """
    densities = []
    for prior in (transfer, plain):
        covariance = prior.covariance_matrix.double() + 1.0 + (noise.double() + 1e-6).diag_embed()
        with_level = MultivariateNormal(prior.mean.double(), to_linear_operator(covariance))
        densities.append(with_level.log_prob(Y.double()))
    return densities[0] - densities[1]


class GuardedTransferGP(AveragedGP):
    """A transfer model guarded by a plain GP on the same target data.

    The prediction is the normal distribution with the moments of a mixture of the two: with the
    transfer model's weight ``p``, its posterior ``(μ, Σ)`` and the plain GP's ``(μ', Σ')``,

    .. code-block:: text

        mean = p μ + (1 - p) μ'
        covariance = p Σ + (1 - p) Σ' + p (1 - p) (μ - μ')(μ - μ')ᵀ

    Where the two disagree, the variance is large, so that acquisition functions explore there. The
    weight is computed when the model is built and again by each fit, see :class:`GuardRule`, and
    frozen in between: conditioning, fantasies and leave-one-out predictions keep it. It compares
    how well both predict each point from the others, and starts in favour of transfer. With one or
    two points it compares how likely they were before any fit. Without points, the model is the
    transfer model. The exception is a prior of :class:`SourceGPs` with five tasks or more that do
    not predict one another: the model is then the plain GP, whose prediction without data is
    constant.

    Use it where old tasks may mislead: they come from another machine, or the sign of an outcome
    has changed. If the old tasks agree with one another, the first evaluation still goes where they
    point. It costs as much as both models together. BoTorch's analytic noisy expected improvement
    would use the plain GP only: use ``qLogNoisyExpectedImprovement``.

    Args:
        prior: The third argument of ``transfer_model``: a prior, or source data.
        likelihood: A likelihood; by default Gaussian. The transfer model gets a copy.
        covar_module: The transfer model's residual kernel; by default its own default.
        outcome_transform: By default the transfer model's default, for both models; ``None`` if the
            outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs; by default the transfer model's.
        transfer_model: The class of the transfer model.
        transfer_options: Further arguments of the transfer model.
        rule: How the transfer model is weighed.

    Raises:
        TypeError: If the transfer model does not accept ``prior``.
        ValueError: If the transfer model has no such option, or predicts a mixture itself.

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

    source_argument = "prior"
    transfer: TargetGP
    transfer_weight: Parameter

    _others_name = "transfer"

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
        transfer_model: Callable[..., TargetGP] = ScaMLGP,
        transfer_options: Mapping[str, Any] | None = None,
        rule: GuardRule | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "train_Yvar": train_Yvar,
            "likelihood": deepcopy(likelihood),
            "covar_module": covar_module,
            "input_transform": input_transform,
            "task_feature": task_feature,
        }
        options = {name: value for name, value in options.items() if value is not None}
        if not isinstance(outcome_transform, DefaultType):
            options["outcome_transform"] = outcome_transform
        options |= transfer_options or {}
        check_options(transfer_model, options)
        transfer = transfer_model(train_X, train_Y, prior, **options)
        if transfer._is_ensemble:
            raise ValueError(
                f"{type(transfer).__name__} predicts a mixture: a guarded model has one Gaussian."
            )
        batch_shape = train_X.shape[:-2]
        super().__init__(
            train_X,
            train_Y,
            transfer,
            own_mean(batch_shape),
            residual_kernel(transfer.num_inputs, batch_shape, SOURCE_HYPERPARAMETERS),
            train_Yvar,
            likelihood,
            getattr(transfer, "outcome_transform", None),
        )
        self.transfer = transfer
        self.rule = GuardRule() if rule is None else rule
        self.transfer_weight = Parameter(torch.ones(batch_shape), requires_grad=False)
        self.to(train_X)
        self._starts = {
            name: parameter.detach().clone()
            for name, parameter in self.named_parameters()
            if parameter.requires_grad
        }
        self.update_weights()

    @property
    def prior(self) -> Any:
        """The transfer model's prior; a joint model, which keeps source data, has none."""
        return getattr(self.transfer, "prior", None)

    def _set_others(self, models: Sequence[TargetGP]) -> None:
        (self.transfer,) = models

    @property
    def shares(self) -> Tensor:
        """The weights of the transfer model and of the plain GP, a ``batch_shape x 2`` tensor."""
        return torch.stack([self.transfer_weight, 1 - self.transfer_weight], dim=-1)

    @property
    def residual_covar_module(self) -> Kernel:
        """The transfer model's residual kernel."""
        return cast(Kernel, self.transfer.residual_covar_module)

    # ------------------------------------------------------------------------------------ weight

    @torch.no_grad()
    def update_weights(self) -> None:
        """Weighs the transfer model against the plain GP anew, by the target's data.

        Building and fitting do so; call it after changing hyperparameters by hand.
        """
        if self.num_target_points == 0:
            weight = torch.full_like(self.transfer_weight, float(self._is_credible()))
        else:
            weight = self.rule.weight(self.evidence())
        self.transfer_weight.data = weight.to(self.transfer_weight)

    def _is_credible(self) -> bool:
        """Whether the source tasks, before any target point, are worth following."""
        sources = self.prior
        if not isinstance(sources, SourceGPs):
            return True
        return tasks_agree(source_agreement(sources.gps), self.rule.agreement)

    def evidence(self) -> Tensor:
        """Computes the log evidence for the transfer model against the plain GP.

        Returns:
            A ``batch_shape`` tensor; positive in favour of the transfer model, zero without points.
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
        if self.num_target_points > self.rule.blind_points:
            (transfer, plain), (_, noise) = self._all_left_out()
            return leave_one_out_evidence(Y, transfer, plain, noise)
        with self._starting_values(), prior_mode(True), gpt_posterior_settings():
            return prior_evidence(Y, self.transfer(X), self.plain(X), self._noise_variance())

    @contextmanager
    def _starting_values(self) -> Iterator[None]:
        """Sets the hyperparameters back for a while to what they were when the model was built."""
        parameters: dict[str, Tensor] = dict(self.named_parameters())
        with parameter_rollback_ctx(parameters):
            for name, start in self._starts.items():
                parameters[name].data.copy_(start)
            yield
