"""A transfer model guarded by a plain GP: history that misleads loses its say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from inspect import getfullargspec
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors.posterior import Posterior
from botorch.utils.context_managers import parameter_rollback_ctx
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import prior_mode
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.models.construction import PriorOrData
from botorch_transfer.models.ensemble import own_kernel, own_mean
from botorch_transfer.models.guard_rule import GuardRule, leave_one_out_evidence, prior_evidence
from botorch_transfer.models.leave_one_out import (
    latent_leave_one_out,
    leave_one_out_posterior,
    observation_noise_variance,
)
from botorch_transfer.models.mixture import mixed, mixed_moments
from botorch_transfer.models.paired import PairedGP
from botorch_transfer.models.scaml import ScaMLGP
from botorch_transfer.models.target import TargetGP
from botorch_transfer.pretraining.agreement import source_agreement, tasks_agree
from botorch_transfer.pretraining.source_gps import SourceGPs


class GuardedTransferGP(PairedGP):
    """A transfer model and a plain GP on the same target data: transfer that gives way.

    The prediction is the normal distribution with the moments of a mixture of the two: with the
    transfer model's weight ``p``, its posterior ``(μ, Σ)`` and the plain GP's ``(μ', Σ')``,

    .. code-block:: text

        mean = p μ + (1 - p) μ'
        covariance = p Σ + (1 - p) Σ' + p (1 - p) (μ - μ')(μ - μ')ᵀ

    Where the two disagree the model is unsure, so that acquisitions look there. The weight is
    computed when the model is built and again by each fit, see :class:`~.guard_rule.GuardRule`, and
    frozen in between: conditioning, fantasies and leave-one-out predictions keep it. It compares
    how well both predict each point from the others, with odds in favour of transfer to begin with.
    With one or two points it compares how likely they were before any fit. Without any, the model
    is the transfer model, unless its prior is :class:`SourceGPs` of five tasks or more that do not
    predict one another: such a history says nothing of a further task, and the model is the plain
    GP, the same everywhere.

    Use it where old tasks may mislead, another machine, say, or an outcome whose sign was turned.
    If they agree, it cannot help that the first evaluation goes to where they say. It takes the
    time of both models. Its observation noise is the plain GP's. BoTorch's analytic noisy
    expected improvement rebuilds an exact GP and sees the plain one only: take
    ``qLogNoisyExpectedImprovement``.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: What ``transfer_model`` takes as its third argument: a prior, or source data.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian. The transfer model gets a copy.
        covar_module: The transfer model's residual kernel; by default its own default.
        outcome_transform: By default the transfer model's default, for both models; ``None`` if the
            outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs; by default the transfer model's.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.
        transfer_model: The class of the transfer model.
        transfer_options: Further arguments of the transfer model.
        rule: How the transfer model is weighed.

    Raises:
        InputDataError: If the data are unfit; the message says which.
        TypeError: If ``prior`` is nothing that the transfer model takes.
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
    transfer_weight: Parameter

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
        if not isinstance(outcome_transform, _DefaultType):
            options["outcome_transform"] = outcome_transform
        options |= transfer_options or {}
        _check_options(transfer_model, options)
        transfer = transfer_model(train_X, train_Y, prior, **options)
        if transfer._is_ensemble:
            raise ValueError(
                f"{type(transfer).__name__} predicts a mixture: a guarded model has one Gaussian."
            )
        batch_shape = train_X.shape[:-2]
        super().__init__(
            train_X,
            train_Y,
            dim=None,
            mean_module=own_mean(batch_shape),
            covar_module=own_kernel(transfer.num_inputs, batch_shape),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=getattr(transfer, "outcome_transform", None),
            input_transform=getattr(transfer, "input_transform", None),
        )
        self.num_inputs = transfer.num_inputs
        self.transfer = transfer
        self.rule = GuardRule() if rule is None else rule
        start = torch.ones(batch_shape)
        self.register_parameter("transfer_weight", Parameter(start, requires_grad=False))
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

    @property
    def residual_covar_module(self) -> Kernel:
        """The transfer model's residual kernel."""
        return self.transfer.residual_covar_module

    # ------------------------------------------------------------------------------- predictions

    def _combined(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        weight = self.transfer_weight
        if bool((weight == 1).all()):
            return self.transfer(X, **kwargs)
        plain = self.plain(X, **kwargs)
        if bool((weight == 0).all()):
            return plain
        return mixed(self.transfer(X, **kwargs), plain, weight)

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Predicts every target point from the others, weight and hyperparameters as they are.

        BoTorch's ``loo_cv`` reads one exact GP and so does not serve this model.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A posterior of shape ``batch_shape x n x 1 x 1`` in the user's units, one batch a point.

        Example:
            >>> model.loo_posterior().mean.shape
            torch.Size([3, 1, 1])
        """
        weight = self.transfer_weight.unsqueeze(-1)
        mean, variance = mixed_moments(*self._leave_one_out(), weight)
        if observation_noise:
            variance = variance + observation_noise_variance(self, *self.train_inputs)
        return leave_one_out_posterior(self, mean, variance)

    def _leave_one_out(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Latent leave-one-out means and variances of the transfer model and the plain GP."""
        self.eval()
        transfer = latent_leave_one_out(self.transfer)
        with self._alone():
            return transfer, latent_leave_one_out(self, exact=True)

    # --------------------------------------------------------------------------------------- fit

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
        sources = getattr(self.transfer, "prior", None)
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
            noise = observation_noise_variance(self, X)
            return leave_one_out_evidence(Y, *self._leave_one_out(), noise)
        with self._starting_values(), prior_mode(True), gpt_posterior_settings():
            noise = observation_noise_variance(self, X)
            return prior_evidence(Y, self.transfer(X), self.plain(X), noise)

    @contextmanager
    def _starting_values(self) -> Iterator[None]:
        """Sets the hyperparameters back for a while to what they were when the model was built."""
        parameters: dict[str, Tensor] = dict(self.named_parameters())
        with parameter_rollback_ctx(parameters):
            for name, start in self._starts.items():
                parameters[name].data.copy_(start)
            yield

    def custom_fit(
        self, mll: ExactMarginalLogLikelihood, *args: Any, **kwargs: Any
    ) -> ExactMarginalLogLikelihood:
        """Fits both models, then weighs them; ``fit_gpytorch_mll`` calls this.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """
        super().custom_fit(mll, *args, **kwargs)
        self.update_weights()
        return mll.eval()


def _check_options(transfer_model: Callable[..., TargetGP], options: Mapping[str, Any]) -> None:
    unknown = set(options) - set(getfullargspec(transfer_model).args)
    if unknown:
        name = getattr(transfer_model, "__name__", repr(transfer_model))
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}.")
