r"""Averages of posteriors: several models of the same target, the plain GP among them.

The prediction is the normal distribution with the moments of a mixture of the members' posteriors.
:class:`TransferGP`, the model to start with, averages transfer models, and lets a plain GP take
part in the search. :class:`GuardedTransferGP` weighs one transfer model against a plain GP: history
that misleads loses its weight.

The rule of the guard was chosen by experiment, see ``benchmarks/results/adversarial``. Plain
leave-one-out likelihood abandons good source data too early, because it uses few, dependent points
that the hyperparameters were fitted to. The prior odds therefore favour transfer, and the log
evidence is scaled down. A fit to one or two points is uninformative; there the evidence compares
the likelihoods under both priors before any fit.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, NoReturn, Self, cast

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils import gpt_posterior_settings
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import draw_matheron_paths
from botorch.sampling.pathwise.prior_samplers import draw_kernel_feature_paths
from botorch.utils.context_managers import delattr_ctx, parameter_rollback_ctx
from botorch.utils.types import DEFAULT
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import GP
from gpytorch.priors import LogNormalPrior
from gpytorch.settings import prior_mode, skip_posterior_variances
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator, RootLinearOperator
from torch import Tensor
from torch.distributions import Normal
from torch.nn import ModuleDict, Parameter

from botorch_transfer._botorch import DefaultType
from botorch_transfer.arguments import PriorOrData, check_options
from botorch_transfer.gp.hyperpriors import (
    SOURCE_HYPERPARAMETERS,
    Hyperparameter,
    residual_kernel,
)
from botorch_transfer.gp.paths import AveragedPath, model_paths
from botorch_transfer.model import TargetGP, TransferModel, evaluated, register_paths
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.outcome_transforms import OwnStandardize
from botorch_transfer.population.model import PopulationGP
from botorch_transfer.prior import TransferPrior
from botorch_transfer.report import transfer_report
from botorch_transfer.sources.ensembles import own_mean
from botorch_transfer.sources.prior import SourceGPs, tasks_agree
from botorch_transfer.sources.scaml import ScaMLGP

PLAIN_MEMBER = "plain"
"""The name of the plain GP among the members."""

Moments = tuple[Tensor, Tensor]
"""Means and variances, ``batch_shape x n`` tensors."""


def mixed(members: Sequence[MultivariateNormal], shares: Tensor) -> MultivariateNormal:
    """The normal distribution with the moments of a mixture.

    Args:
        members: ``K`` distributions.
        shares: A ``batch_shape x K`` tensor that adds up to one.

    Returns:
        A distribution whose covariance also counts how far the means are apart.
    """
    parts = list(zip(members, shares.unsqueeze(-2).unbind(dim=-1), strict=True))
    mean = sum(share * member.mean for member, share in parts)
    if skip_posterior_variances.on():
        return MultivariateNormal(mean, members[0].lazy_covariance_matrix)
    # A covariance may be a lazy operator. It has to stand to the left of the tensor that it is
    # multiplied by, and the sum has to start with one of them rather than with zero.
    first, *others = (
        evaluated(member.lazy_covariance_matrix) * share.unsqueeze(-1) for member, share in parts
    )
    covariance: Any = sum(others, start=first)
    # The shares have no gradient, which the roots would make infinite at zero.
    apart = [share.sqrt() * (member.mean - mean) for member, share in parts]
    between = evaluated(RootLinearOperator(torch.stack(torch.broadcast_tensors(*apart), dim=-1)))
    return MultivariateNormal(mean, to_linear_operator(covariance + between))


def mixed_moments(members: Sequence[Moments], shares: Tensor) -> Moments:
    """Means and variances of a mixture, point by point.

    Args:
        members: ``K`` pairs of means and variances.
        shares: A ``batch_shape x K`` tensor that adds up to one.

    Returns:
        Its means and variances.
    """
    means, variances = (torch.stack(list(each)) for each in zip(*members, strict=True))
    weights = shares.movedim(-1, 0).unsqueeze(-1)
    mean = (weights * means).sum(dim=0)
    return mean, (weights * (variances + (means - mean).square())).sum(dim=0)


class PlainGP(TargetGP):
    """The plain GP of an average: a model of the target's data alone, without sources."""

    label = "plain GP"


class AveragedGP(  # type: ignore[misc]
    TransferModel, BatchedMultiOutputGPyTorchModel, GP, FantasizeMixin
):
    """Base class of averages of posteriors.

    The prediction is the normal distribution with the moments of a mixture of the members'
    posteriors, in the plain GP's units. Each member is a model with data, likelihood and outcome
    transform of its own; these differ from the user's units by a scale and a shift, or all in the
    same way. A fit fits every member, then computes their shares, which are frozen in between.

    There is no exact GP with these predictions, so no ``mean_module`` and no ``covar_module``.

    Args:
        members: The transfer models by name.
        plain: The plain GP, which becomes the last member.
        train_X: The target's inputs; its batch shape, type and device are the model's.
    """

    _num_outputs = 1
    members: Mapping[str, TransferModel]
    """The averaged models by name, the plain GP last."""

    transfer_report = transfer_report

    def __init__(
        self, members: Mapping[str, TransferModel], plain: PlainGP, train_X: Tensor
    ) -> None:
        super().__init__()
        if PLAIN_MEMBER in members:
            raise ValueError(f"{PLAIN_MEMBER!r} is the name of the plain GP: choose another one.")
        self.likelihood = GaussianLikelihood(
            noise_constraint=Positive(), batch_shape=train_X.shape[:-2]
        ).requires_grad_(False)
        self._input_batch_shape = self._aug_batch_shape = train_X.shape[:-2]
        self._set_members({**members, PLAIN_MEMBER: plain})

    def _set_members(self, members: Mapping[str, TransferModel]) -> None:
        """Sets the members, and what the average has in common with the plain GP."""
        self.members = cast(Any, ModuleDict(cast(Any, members)))
        for name in ("input_transform", "outcome_transform"):
            if hasattr(self.plain, name):
                setattr(self, name, getattr(self.plain, name))
        if isinstance(self.plain.likelihood, FixedNoiseGaussianLikelihood):  # the noise is known
            self.likelihood = self.plain.likelihood

    @property
    def plain(self) -> PlainGP:
        """The plain GP."""
        return cast(PlainGP, self.members[PLAIN_MEMBER])

    @property
    @abstractmethod
    def shares(self) -> Tensor:
        """The members' shares of the prediction, a ``batch_shape x K`` tensor."""

    @abstractmethod
    def _update_shares(self) -> None:
        """Computes anew what depends on the target's data, as the shares."""

    @torch.no_grad()
    def update_weights(self) -> None:
        """Computes the shares and the average's noise anew from the members and their data.

        Building and fitting do so; call it after changing hyperparameters by hand.
        """
        self._update_shares()
        if isinstance(self.likelihood, GaussianLikelihood):
            zero = torch.zeros_like(self.likelihood.noise)
            noiseless = MultivariateNormal(zero, DiagLinearOperator(zero))
            self.likelihood.noise = self._averaged(
                [
                    self._scale_and_shift(member)[0].square()
                    * cast(Any, member)._apply_noise(zero, noiseless, True).variance
                    for member in self.members.values()
                ]
            )

    def _averaged(self, values: Sequence[Tensor]) -> Tensor:
        """Averages the members' ``batch_shape x n`` tensors."""
        shares = self.shares.unsqueeze(-2).unbind(dim=-1)
        return cast(Tensor, sum(p * value for p, value in zip(shares, values, strict=True)))

    # ------------------------------------------------------------------------------- predictions

    # The training data are the plain GP's; in evaluation mode they are transformed.
    @property
    def train_inputs(self) -> tuple[Tensor]:
        """The target's inputs, a ``batch_shape x n x d`` tensor."""
        return self.plain.train_inputs

    @property
    def train_targets(self) -> Tensor:  # type: ignore[override]
        """The outcomes in the plain GP's units, a ``batch_shape x n`` tensor."""
        return self.plain.train_targets

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        """The number of inputs, a task column left out."""
        return self.plain.num_inputs

    def _scale_and_shift(self, member: TransferModel) -> tuple[Tensor, Tensor]:
        """What turns a member's units into the plain GP's: ``batch_shape x 1`` tensors."""
        (mean, stdv), (own_mean, own_stdv) = _standardization(member), _standardization(self.plain)
        return stdv / own_stdv, (mean - own_mean) / own_stdv

    def predict_by_member(self, X: Tensor, member: TransferModel) -> MultivariateNormal:
        """Evaluates one member, in the plain GP's units.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            member: The member.

        Returns:
            Its prediction.
        """
        mvn, (scale, shift) = member(X), self._scale_and_shift(member)
        # BoTorch selects rows of it, which a lazy product evaluates by way of sparse matrices.
        covariance = evaluated(mvn.lazy_covariance_matrix) * scale.square().unsqueeze(-1)
        return MultivariateNormal(mvn.mean * scale + shift, to_linear_operator(covariance))

    def __call__(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the average.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: Ignored.

        Returns:
            The distribution in the plain GP's units.

        Raises:
            UnsupportedError: If the model is in training mode.
        """
        if self.training:
            self.forward()
        shares = self.shares
        used = (shares != 0).reshape(-1, shares.shape[-1]).any(dim=0).tolist()
        predictions = [
            self.predict_by_member(X, member)
            for member, is_used in zip(self.members.values(), used, strict=True)
            if is_used  # the others are not evaluated
        ]
        return predictions[0] if len(predictions) == 1 else mixed(predictions, shares[..., used])

    def forward(self, *args: Any) -> NoReturn:
        """Refuses what asks for the prior of an exact GP.

        Args:
            *args: Ignored.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "Marginal likelihoods and BoTorch's leave-one-out formulas are those of an exact GP, "
            f"and {type(self).__name__} predicts otherwise: call its loo_posterior() instead."
        )

    def source_parts(self, X: Tensor, names: Sequence[str]) -> Tensor:
        """The members' parts times their shares."""
        parts = [
            self._scale_and_shift(member)[0] * member.source_parts(X, names)
            for member in self.members.values()
        ]
        return torch.tensordot(self.shares, torch.stack(parts).to(self.shares), dims=1)

    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        moments, noise = self._leave_one_out_by_member()
        mean, variance = mixed_moments(moments, self.shares)
        return mean, variance, self._averaged(noise)

    def _leave_one_out_by_member(self) -> tuple[list[Moments], list[Tensor]]:
        """Leave-one-out moments and noise variances of all members, in the plain GP's units."""
        moments, noises = [], []
        for member in self.members.values():
            scale, shift = self._scale_and_shift(member)
            mean, variance, noise = member._leave_one_out()
            moments.append((mean * scale + shift, variance * scale.square()))
            noises.append(noise * scale.square())
        return moments, noises

    # ------------------------------------------------------------------------------------- paths

    def prior_paths(self, sample_shape: torch.Size, **kwargs: Any) -> SamplePath:
        """Draws functions from the average of the members' priors.

        Args:
            sample_shape: The shape of the draws.
            **kwargs: Handed to the members.

        Returns:
            Paths over the user's inputs, in the user's units.
        """
        return self._averaged_paths(draw_kernel_feature_paths, sample_shape, True, **kwargs)

    def posterior_paths(
        self, prior_sampler: Callable[..., Any], sample_shape: torch.Size, **kwargs: Any
    ) -> SamplePath:
        """Draws functions from the average, or without target points from that of the priors.

        Args:
            prior_sampler: Draws from a model's prior.
            sample_shape: The shape of the draws.
            **kwargs: Handed to the members.

        Returns:
            Paths over the user's inputs, in the user's units.
        """
        if self.num_target_points == 0:
            return prior_sampler(model=self, sample_shape=sample_shape)
        kwargs["prior_sampler"] = prior_sampler
        return self._averaged_paths(draw_matheron_paths, sample_shape, False, **kwargs)

    def _averaged_paths(
        self,
        draw: Callable[..., SamplePath],
        sample_shape: torch.Size,
        prior: bool,
        **kwargs: Any,
    ) -> SamplePath:
        """Draws from each member over transformed inputs, and averages."""
        paths = []
        for member in self.eval().members.values():
            with delattr_ctx(member, "outcome_transform", "input_transform"):
                paths.append(draw(cast(Any, member), sample_shape=sample_shape, **kwargs))
        return model_paths(self, {"average": AveragedPath(self, paths, sample_shape, prior)})

    # --------------------------------------------------------------------------------------- fit

    def custom_fit(
        self,
        mll: ExactMarginalLogLikelihood,
        *args: Any,
        previous: TransferModel | None = None,
        **kwargs: Any,
    ) -> ExactMarginalLogLikelihood:
        """Fits all members, then computes their shares; ``fit_gpytorch_mll`` calls this.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            previous: An earlier model at whose members' hyperparameters the fits start, too.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """
        earlier: dict[str, TransferModel] = {}
        if previous is not None:
            self.check_previous(previous)
            earlier = dict(cast(AveragedGP, previous).members.items())
        for name, member in self.members.items():
            own = ExactMarginalLogLikelihood(member.likelihood, cast(Any, member))
            member.custom_fit(own, *args, **{**kwargs, "previous": earlier.get(name)})
        self.update_weights()
        return mll.eval()

    # -------------------------------------------------------------------------------- data, state

    def get_fantasy_model(
        self, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Any
    ) -> Self:
        """Conditions all members on further points; all else stays as it is.

        BoTorch's ``condition_on_observations`` and lists of models call it.

        Args:
            inputs: A ``batch_shape x q x d`` tensor of transformed inputs.
            targets: A ``[num_fantasies x] batch_shape x q`` tensor of outcomes in the plain GP's
                units.
            **kwargs: ``noise``, the known noise variances of the new points in these units.

        Returns:
            A model with these points among its data.
        """
        X = inputs[0] if isinstance(inputs, list) else inputs
        members = {}
        for name, member in self.members.items():
            member(X)  # what is shared by all predictions has to be there already
            scale, shift = self._scale_and_shift(member)
            noise = {key: value / scale.square() for key, value in kwargs.items()}
            theirs = (targets - shift) / scale
            members[name] = cast(Any, member).get_fantasy_model(X, theirs, **noise)
        fantasies = deepcopy(self, {id(self.members): ModuleDict(members)})
        fantasies._set_members(members)
        return fantasies

    @property
    def _original_train_inputs(self) -> Tensor | None:
        return self.plain._original_train_inputs

    @_original_train_inputs.setter
    def _original_train_inputs(self, X: Tensor | None) -> None:
        """BoTorch sets them where it conditions a model on further points."""
        for member in self.members.values():
            member._original_train_inputs = X

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replaces the data of all members.

        Args:
            inputs: The inputs.
            targets: The outcomes in the plain GP's units.
            strict: Whether shapes must stay as they are.
        """
        for member in self.members.values():
            scale, shift = self._scale_and_shift(member)
            theirs = None if targets is None else (targets - shift) / scale
            cast(Any, member).set_train_data(inputs, theirs, strict)

    def _restore_targets_and_noise(self, Y: Tensor, Yvar: Tensor | None, strict: bool) -> None:
        for member in self.members.values():
            scale, shift = (part.unsqueeze(-1) for part in self._scale_and_shift(member))
            noise = None if Yvar is None else Yvar / scale.square()
            cast(Any, member)._restore_targets_and_noise((Y - shift) / scale, noise, strict)

    # The members transform their own inputs.
    def _set_transformed_inputs(self) -> None:
        """Does nothing."""

    def _revert_to_original_inputs(self) -> None:
        """Does nothing."""


register_paths(AveragedGP)


def _standardization(model: TransferModel) -> Moments:
    """Mean and standard deviation of a model's own units, ``batch_shape x 1`` tensors."""
    transform = getattr(model, "outcome_transform", None)
    if isinstance(transform, Standardize):
        return transform.means.squeeze(-1), transform.stdvs.squeeze(-1)
    zero = model.train_targets.new_zeros(1)
    return zero, zero + 1.0


PRIOR_WEIGHT = 0.8
"""The weight of a guarded transfer model if the log evidence is zero."""

TEMPERATURE = 0.3
"""The factor of the log evidence."""

BLIND_POINTS = 2
"""Up to this many points, the evidence is computed before any fit."""

AGREEMENT = 2.5
"""Without target points, the sources are used if the mean rank correlation between them is more
than this many standard errors above zero."""


def weight_of_evidence(evidence: Tensor) -> Tensor:
    """The weight of a transfer model, ``sigmoid(log odds + temperature * log evidence)``.

    Args:
        evidence: A ``batch_shape`` tensor: the log evidence for it against the plain GP.

    Returns:
        A ``batch_shape`` tensor between 0 and 1.

    Example:
        >>> weight_of_evidence(torch.tensor([-20.0, 0.0, 20.0]))
        tensor([0.0098, 0.8000, 0.9994])
    """
    return torch.sigmoid(math.log(PRIOR_WEIGHT / (1 - PRIOR_WEIGHT)) + TEMPERATURE * evidence)


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
    weight is computed when the model is built and again by each fit, see
    :func:`weight_of_evidence`, and
    frozen in between: conditioning, fantasies and leave-one-out predictions keep it. It compares
    how well both predict each point from the others, and starts in favour of transfer. With one or
    two points it compares how likely they were before any fit. Without points, the model is the
    transfer model. The exception is a prior of :class:`SourceGPs` with five tasks or more that do
    not predict one another: the model is then the plain GP, whose prediction without data is
    constant.

    Use it where old tasks may mislead: they come from another machine, or the sign of an outcome
    has changed. If the old tasks agree with one another, the first evaluation still goes where they
    point. It costs as much as both models together. BoTorch's analytic noisy expected improvement
    takes exact GPs only: use ``qLogNoisyExpectedImprovement``.

    Args:
        prior: The third argument of ``transfer_model``: a prior, or source data.
        likelihood: A likelihood; by default Gaussian. The transfer model gets a copy.
        covar_module: The transfer model's residual kernel; by default its own default.
        outcome_transform: By default the transfer model's default, for both models; ``None`` if the
            outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs; by default the transfer model's.
        transfer_model: The class of the transfer model.
        transfer_options: Further arguments of the transfer model.

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

    label = "guarded"

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
        options = _given(
            outcome_transform,
            train_Yvar=train_Yvar,
            likelihood=deepcopy(likelihood),
            covar_module=covar_module,
            input_transform=input_transform,
            task_feature=task_feature,
        )
        options |= transfer_options or {}
        check_options(transfer_model, options)
        transfer = transfer_model(train_X, train_Y, prior, **options)
        _refuse_mixture(transfer)
        batch_shape = train_X.shape[:-2]
        plain = PlainGP(
            train_X,
            train_Y,
            dim=None,
            mean_module=own_mean(batch_shape),
            covar_module=residual_kernel(transfer.num_inputs, batch_shape, SOURCE_HYPERPARAMETERS),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=getattr(transfer, "outcome_transform", None),
            input_transform=getattr(transfer, "input_transform", None),
        )
        plain.num_inputs = transfer.num_inputs
        super().__init__({"transfer": transfer}, plain, train_X)
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
        """The transfer model's prior; a joint model, which keeps source data, has none."""
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
        """Weighs the transfer model against the plain GP."""
        if self.num_target_points == 0:
            weight = torch.full_like(self.transfer_weight, float(self._is_credible()))
        else:
            weight = weight_of_evidence(self.evidence())
        self.transfer_weight.data = weight.to(self.transfer_weight)

    def _is_credible(self) -> bool:
        """Whether the source tasks, before any target point, are worth following."""
        sources = self.prior
        if not isinstance(sources, SourceGPs):
            return True
        return tasks_agree(sources.agreement, AGREEMENT)

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
        if self.num_target_points > BLIND_POINTS:
            (left_out, plain_left_out), (_, noise) = self._leave_one_out_by_member()
            return leave_one_out_evidence(Y, left_out, plain_left_out, noise)
        with self._starting_values(), prior_mode(True), gpt_posterior_settings():
            transfer, plain = (
                self.predict_by_member(X, member) for member in (self.transfer, self.plain)
            )
            return prior_evidence(Y, transfer, plain, self.plain._noise_variance())

    @contextmanager
    def _starting_values(self) -> Iterator[None]:
        """Sets the hyperparameters back for a while to what they were when the model was built."""
        parameters: dict[str, Tensor] = dict(self.named_parameters())
        with parameter_rollback_ctx(parameters):
            for name, start in self._starts.items():
                parameters[name].data.copy_(start)
            yield


MEMBERS: Mapping[str, type[SourcePosteriorGP]] = {"population": PopulationGP, "scaml": ScaMLGP}
"""The models that are averaged by default, besides a plain GP."""

PATIENCE = 5
"""Right after an improvement, every other member counts ``1 / PATIENCE``; each further evaluation
adds as much, up to one."""

LEADING = 0.25
"""The first model's share of predictions, as a multiple of another transfer model's."""

PLAIN_NOISE = Hyperparameter(partial(LogNormalPrior, -4.0, 1.0), 0.01, 1e-4, 10.0)
"""The plain GP's noise variance: hyperprior and lower bound are those of BoTorch."""


def member_shares(Y: Tensor, num_members: int, patience: int = PATIENCE) -> Tensor:
    """Computes how much each model's improvement counts in the choice of the next evaluation.

    The first model leads: it counts once. The others count ``1 / patience`` after an improvement,
    and more with each evaluation that brings none, until they count once, too. So no share goes to
    zero, and where the leading model is trapped the others take over.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes, in the order of the evaluations.
        num_members: The number of models ``K``.
        patience: The number of evaluations, the one that improved included, after which all count
            alike.

    Returns:
        A ``batch_shape x K`` tensor that adds up to one.

    Example:
        >>> member_shares(torch.tensor([0.0, 1.0, 0.5, 0.2]), num_members=3, patience=6)
        tensor([0.5000, 0.2500, 0.2500])
    """
    n = Y.shape[-1]
    since = Y.new_zeros(Y.shape[:-1]) if n == 0 else n - 1 - Y.argmax(dim=-1)
    others = ((1 + since) / patience).clamp_max(1.0).to(Y).unsqueeze(-1)
    counts = torch.cat([torch.ones_like(others), others.expand(*Y.shape[:-1], num_members - 1)], -1)
    return counts / counts.sum(dim=-1, keepdim=True)


def _prediction_shares(num_members: int) -> Tensor:
    """The leading model is overconfident: its share is smaller. The vague plain GP has none."""
    counts = torch.ones(num_members, dtype=torch.double)
    counts[0], counts[-1] = LEADING, 0.0
    return counts / counts.sum()


class TransferGP(AveragedGP):
    r"""The average of several transfer models, with a plain GP in the search; where to start.

    The prediction is the normal distribution with the moments of a mixture. With shares ``p_k`` and
    posteriors ``(μ_k, Σ_k)`` of the transfer models,

    .. code-block:: text

        mean = Σ_k p_k μ_k
        covariance = Σ_k p_k (Σ_k + (μ_k - mean)(μ_k - mean)ᵀ)

    Where the models disagree, the variance is large. The shares are constants: a quarter as much
    for the first model, which leads the search but is often too sure of itself, as for each other.
    The plain GP has none: with few points its variance is many times the others'. The observation
    noise is averaged likewise.

    For the next evaluation, :class:`~.acquisition.AveragedImprovement` averages the expected
    improvements of all models instead, the plain GP's too, each in units of its own maximum: a
    point that one model is sure of, and one that only another finds promising, then count the same.
    ``improvement_shares``, how much each counts there, are computed by :func:`member_shares` when
    the model is built and again by each fit, and frozen in between: they depend on how long ago the
    last improvement was, so the order of the target's data is taken as that of the evaluations.

    Use the class for any number of source tasks, from one on, with a few up to a few hundred points
    each. It costs as much as its models together. BoTorch's analytic noisy expected improvement
    takes exact GPs only: use ``qLogNoisyExpectedImprovement``.

    Args:
        prior: Source data, to pre-train the models' priors from; or a mapping from the models'
            names to their priors, ``{"population": SourcePopulation, "scaml": SourceGPs}``. Of a
            single prior, only the models that take it are averaged with the plain GP.
        likelihood: A likelihood; by default Gaussian. Each model gets a copy.
        covar_module: The plain GP's kernel; by default that of ``SingleTaskGP``. It has a say in
            the search only, not in predictions. For the kernel of a transfer model's residual, give
            ``members`` with ``partial(ScaMLGP, covar_module=...)``.
        outcome_transform: By default each model's own; the plain GP's outcomes are then
            standardized. Any other is used by all models; ``None`` if the outcomes are in the
            priors' units already.
        members: The models that are averaged, besides a plain GP, by name: classes, or functions
            with the same arguments. The first one leads. By default :class:`PopulationGP` and
            :class:`ScaMLGP`.

    Raises:
        TypeError: If a model does not accept its prior.
        ValueError: If there are no members, one of them predicts a mixture itself or transforms
            outcomes by more than a standardization of its own, or the names in ``prior``
            are not those of the members.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = TransferGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.posterior(X).mean.shape
        torch.Size([30, 1])
    """

    improvement_shares: Parameter
    """How much each member's improvement counts, a ``batch_shape x K`` tensor.

    Outcomes are to be maximized; where they are not, :func:`member_shares` of their negatives takes
    the place.
    """

    _shares: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData | Mapping[str, TransferPrior],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        members: Mapping[str, Callable[..., TransferModel]] | None = None,
    ) -> None:
        classes = _members_for(prior, MEMBERS if members is None else members)
        priors = _priors_of(prior, list(classes))
        options = _given(
            outcome_transform,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            input_transform=input_transform,
            task_feature=task_feature,
        )
        built: dict[str, TransferModel] = {}
        for name, member in classes.items():
            own = deepcopy(options)
            check_options(member, own)
            built[name] = member(train_X, train_Y, priors[name], **own)
            _refuse_mixture(built[name])
        first, batch_shape = next(iter(built.values())), train_X.shape[:-2]
        if isinstance(outcome_transform, DefaultType):
            _refuse_other_scales(built)
            outcome_transform = _standardize(built.values(), batch_shape)
        if covar_module is None:
            covar_module = get_covar_module_with_dim_scaled_prior(
                ard_num_dims=first.num_inputs, batch_shape=batch_shape
            )
        plain = PlainGP(
            train_X,
            train_Y,
            dim=None,
            mean_module=ConstantMean(batch_shape=batch_shape),
            covar_module=covar_module,
            train_Yvar=train_Yvar,
            likelihood=deepcopy(likelihood),
            outcome_transform=outcome_transform,
            input_transform=getattr(first, "input_transform", None),
            noise=PLAIN_NOISE,
        )
        plain.num_inputs = first.num_inputs
        super().__init__(built, plain, train_X)
        start = torch.ones(*batch_shape, len(built) + 1)
        self.improvement_shares = Parameter(start, requires_grad=False)
        shares = _prediction_shares(len(built) + 1).expand(start.shape).clone()
        self.register_buffer("_shares", shares, persistent=False)
        self.to(train_X)
        self.update_weights()

    @property
    def prior(self) -> dict[str, Any]:
        """The models' priors by name; the argument of another model with the same sources."""
        return {
            name: getattr(member, "prior", None)
            for name, member in self.members.items()
            if name != PLAIN_MEMBER
        }

    @property
    def shares(self) -> Tensor:
        """The members' shares of the prediction, ``batch_shape x K``; the plain GP's is zero."""
        return self._shares

    @property
    def residual_covar_module(self) -> Kernel:
        """The plain GP's kernel, which ``covar_module`` sets; each other member has its own."""
        return cast(Kernel, self.plain.covar_module)

    def _update_shares(self) -> None:
        """Computes ``improvement_shares`` from the outcomes."""
        shares = member_shares(self.train_targets, self.improvement_shares.shape[-1])
        self.improvement_shares.data = shares.to(self.improvement_shares)


def _given(
    outcome_transform: OutcomeTransform | DefaultType | None, **options: Any
) -> dict[str, Any]:
    """The arguments that a member is to be given: members may lack others, and have defaults."""
    given = {name: value for name, value in options.items() if value is not None}
    if not isinstance(outcome_transform, DefaultType):
        given["outcome_transform"] = outcome_transform
    return given


def _refuse_mixture(model: TransferModel) -> None:
    """An average has members of one Gaussian each."""
    if model._is_ensemble:
        raise ValueError(
            f"{type(model).__name__} predicts a mixture: the members of an average have one "
            "Gaussian each."
        )


def _members_for(
    prior: Any, members: Mapping[str, Callable[..., TransferModel]]
) -> Mapping[str, Callable[..., TransferModel]]:
    """Selects the members that take a single prior; all, if there are source data."""
    if not isinstance(prior, TransferPrior):
        return members
    # A member may be a function, which does not say what prior it takes.
    kinds = {name: getattr(member, "prior_class", None) or () for name, member in members.items()}
    taking = {name: members[name] for name, kind in kinds.items() if isinstance(prior, kind)}
    if not taking:
        raise TypeError(
            f"None of the members, {', '.join(members)}, takes a {type(prior).__name__}: give "
            "source data, or a mapping from the members' names to their priors."
        )
    return taking


def _priors_of(prior: Any, names: Sequence[str]) -> dict[str, Any]:
    """Finds each member's prior: its own, or the same source data for all."""
    if not names:
        raise ValueError("There are no members: name at least one model to be averaged.")
    own = isinstance(prior, Mapping) and any(isinstance(p, TransferPrior) for p in prior.values())
    if own and set(prior) != set(names):
        raise ValueError(
            f"The priors are of {', '.join(map(str, prior))}, but the members are "
            f"{', '.join(names)}: give each member its prior."
        )
    return {name: prior[name] if own else prior for name in names}


def _refuse_other_scales(members: Mapping[str, TransferModel]) -> None:
    """Members' units may differ by a scale and a shift only."""
    for name, member in members.items():
        transform = getattr(member, "outcome_transform", None)
        if transform is not None and not isinstance(transform, Standardize):
            raise ValueError(
                f"The member {name!r} has a {type(transform).__name__} of its own: give all models "
                "the same by outcome_transform."
            )


def _standardize(members: Iterable[TransferModel], batch_shape: torch.Size) -> OutcomeTransform:
    """Standardizes the plain GP's outcomes, while there are few of them by a member's transform."""
    transforms = (getattr(member, "outcome_transform", None) for member in members)
    known = next((each for each in transforms if isinstance(each, Standardize)), None)
    if known is None:  # the priors are in raw units
        return OwnStandardize(torch.tensor(0.0), torch.tensor(1.0), batch_shape)
    return OwnStandardize(known.means.mean(), known.stdvs.mean(), batch_shape)
