r"""Averages of a plain GP and other models of the same target: one Gaussian with fixed shares.

Read it for what guarded models and :class:`~.transfer.TransferGP` have in common: the Gaussian with
the moments of a mixture, and how the data, the fits and the units of several models are kept
together. Subclasses say which models there are, and compute their shares.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, cast

import torch
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import skip_posterior_variances
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator, RootLinearOperator
from torch import Tensor
from torch.nn import ModuleDict

from botorch_transfer.gp.hyperpriors import RESIDUAL_HYPERPARAMETERS, Hyperparameter
from botorch_transfer.gp.state import shallow_copy
from botorch_transfer.model import TargetGP, evaluated
from botorch_transfer.report import transfer_report

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


class AveragedGP(TargetGP):
    """Base class of averages of a plain GP and other models of the same target.

    The prediction is the normal distribution with the moments of their mixture. The plain GP is the
    model's own exact GP; the others are models of their own, which may have other units. A fit fits
    all of them, then computes their shares, which are frozen in between.

    Args:
        first: One of the other models, whose input transform the plain GP takes.
        mean_module: The plain GP's mean.
        covar_module: The plain GP's kernel.
        outcome_transform: The transform to the plain GP's units.
        noise: Hyperprior, start and bounds of the default likelihood's inferred noise.
    """

    _others_name: ClassVar[str]
    """The name of the module that holds the other models."""

    transfer_report = transfer_report

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        first: TargetGP,
        mean_module: Mean,
        covar_module: Kernel,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | None = None,
        noise: Hyperparameter = RESIDUAL_HYPERPARAMETERS.noise,
    ) -> None:
        super().__init__(
            train_X,
            train_Y,
            dim=None,
            mean_module=mean_module,
            covar_module=covar_module,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=getattr(first, "input_transform", None),
            noise=noise,
        )
        self.num_inputs = first.num_inputs

    @property
    def others(self) -> list[TargetGP]:
        """The other models; none in the plain GP that :meth:`apart` gives."""
        held: Any = self._modules.get(self._others_name)
        if held is None:
            return []
        models = held.values() if isinstance(held, ModuleDict) else [held]
        return list(cast(Iterable[TargetGP], models))

    @property
    @abstractmethod
    def shares(self) -> Tensor:
        """The models' shares, a ``batch_shape x (K + 1)`` tensor; the plain GP's is the last."""

    @property
    def improvement_shares(self) -> Tensor | None:
        """How much each model's improvement counts in the choice of the next evaluation.

        ``None``: it is chosen by the improvement under the average.
        """
        return None

    @abstractmethod
    def update_weights(self) -> None:
        """Computes the shares anew from the target's data.

        Building and fitting do so; call it after changing hyperparameters by hand.
        """

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Takes the other models out for a while: what is left is the plain GP."""
        others = self._modules.pop(self._others_name, None)
        try:
            yield
        finally:
            if others is not None:
                self._modules[self._others_name] = others

    @property
    def is_alone(self) -> bool:
        """Whether the other models are taken out, as in what :meth:`apart` gives."""
        return self._others_name not in self._modules

    def apart(self) -> list[TargetGP]:
        """The models one by one, the plain GP last; they share their tensors with this one."""
        plain = shallow_copy(self)
        plain._modules.pop(self._others_name, None)
        return [*self.others, plain]

    # ------------------------------------------------------------------------------------- units

    def _units(self, model: TargetGP) -> tuple[Tensor, Tensor] | None:
        """Scale and shift from a model's units to the plain GP's; ``None`` if they are the same."""
        theirs, own = (getattr(each, "outcome_transform", None) for each in (model, self))
        if theirs is own:
            return None
        means, stdvs = zip(*(_standardization(each, model) for each in (theirs, own)), strict=True)
        return stdvs[0] / stdvs[1], (means[0] - means[1]) / stdvs[1]

    def in_own_units(self, model: TargetGP, mvn: MultivariateNormal) -> MultivariateNormal:
        """Turns another model's prediction into one in the plain GP's units.

        Args:
            model: The model.
            mvn: Its prediction.

        Returns:
            The prediction.
        """
        units = self._units(model)
        if units is None:
            return mvn
        scale, shift = units
        covariance = mvn.lazy_covariance_matrix * scale.square().unsqueeze(-1)
        return MultivariateNormal(mvn.mean * scale + shift, covariance)

    def _in_their_units(
        self, model: TargetGP, Y: Tensor, Yvar: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Turns outcomes and noise variances in the plain GP's units into a model's."""
        units = self._units(model)
        if units is None:
            return Y, Yvar
        scale, shift = units
        return (Y - shift) / scale, None if Yvar is None else Yvar / scale.square()

    # ------------------------------------------------------------------------------- predictions

    plain = TargetGP.exact_gp
    """Evaluates the plain GP alone, at transformed inputs and in the model's own units."""

    def _predict(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        if self.is_alone:
            return self.plain(X, **kwargs)
        shares, used = self.shares, self._used()
        members = [
            self.in_own_units(model, model(X, **kwargs))
            for model, is_used in zip(self.others, used[:-1], strict=True)
            if is_used
        ]
        if used[-1]:
            members.append(self.plain(X, **kwargs))
        if len(members) == 1:
            return members[0]
        return mixed(members, shares[..., used])

    def _used(self) -> list[bool]:
        """Which models have a share, the plain GP last; the others are not evaluated."""
        shares = self.shares
        return (shares != 0).reshape(-1, shares.shape[-1]).any(dim=0).tolist()

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        if self.is_alone or observation_noise is False or isinstance(observation_noise, Tensor):
            return super()._apply_noise(X, mvn, observation_noise)
        # Observations of a mixture have its models' noise, each by its share.
        noiseless = MultivariateNormal(mvn.mean, DiagLinearOperator(torch.zeros_like(mvn.mean)))
        noise = torch.zeros_like(mvn.mean)
        for model, share in zip(self.apart(), self.shares.unbind(dim=-1), strict=True):
            if share.any():
                own = model._apply_noise(X, noiseless, observation_noise)
                noise = noise + share.unsqueeze(-1) * self.in_own_units(model, own).variance
        return MultivariateNormal(mvn.mean, mvn.lazy_covariance_matrix.add_diagonal(noise))

    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.is_alone:
            return super()._leave_one_out()
        members, noise = self._all_left_out()
        mean, variance = mixed_moments(members, self.shares)
        return mean, variance, (self.shares.unsqueeze(-2) * torch.stack(noise, dim=-1)).sum(dim=-1)

    def _all_left_out(self) -> tuple[list[Moments], list[Tensor]]:
        """Leave-one-out moments and noise variances of all models, the plain GP's last."""
        with self._alone():
            mean, variance, noise = super()._leave_one_out()
        members, noises = [], []
        for model in self.others:
            left_out, spread, own_noise = model._leave_one_out()
            if (units := self._units(model)) is not None:
                left_out, spread = left_out * units[0] + units[1], spread * units[0].square()
                own_noise = own_noise * units[0].square()
            members.append((left_out, spread))
            noises.append(own_noise)
        return [*members, (mean, variance)], [*noises, noise]

    # --------------------------------------------------------------------------------------- fit

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Evaluates the plain GP's prior; in training mode, a fit also sees the other models.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            The plain GP's prior. The log likelihoods of the others that have something to fit
            become the added loss term.
        """
        if self.training and not self.is_alone:
            terms = []
            for model in self.others:
                if not any(parameter.requires_grad for parameter in model.parameters()):
                    continue  # its log likelihood is a constant
                marginal = model.likelihood(model(*model.train_inputs), *model.train_inputs)
                terms.append(marginal.log_prob(model.train_targets))
            self._set_loss_term(torch.stack(terms).sum(dim=0) if terms else None)
        return super().forward(x)

    @property
    def is_fitted_as_exact_gp(self) -> bool:
        """Whether a fit is of the plain GP alone."""
        return self.is_alone

    def custom_fit(
        self,
        mll: ExactMarginalLogLikelihood,
        *args: Any,
        previous: TargetGP | None = None,
        **kwargs: Any,
    ) -> ExactMarginalLogLikelihood:
        """Fits all models, then computes their shares; ``fit_gpytorch_mll`` calls this.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            previous: An earlier model at whose models' hyperparameters the fits start, too.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """
        earlier: Sequence[TargetGP | None] = [None] * (len(self.others) + 1)
        if previous is not None:
            self.check_previous(previous)
            earlier = cast(AveragedGP, previous).apart()
        for model, one in zip(self.others, earlier, strict=False):
            own = ExactMarginalLogLikelihood(model.likelihood, model)
            model.custom_fit(own, *args, **{**kwargs, "previous": one})
        with self._alone():
            super().custom_fit(mll, *args, **{**kwargs, "previous": earlier[-1]})
        if not self.is_alone:
            self.update_weights()
        return mll.eval()

    # -------------------------------------------------------------------------------- data, state

    def get_fantasy_model(
        self, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Any
    ) -> Self:
        """Conditions all models on further points; all else stays as it is.

        Args:
            inputs: A ``batch_shape x q x d`` tensor of transformed inputs.
            targets: A ``[num_fantasies x] batch_shape x q`` tensor of transformed outcomes.
            **kwargs: ``noise``, the known noise variances of the new points.

        Returns:
            A model with these points among its data.
        """
        if self.is_alone:
            return super().get_fantasy_model(inputs, targets, **kwargs)
        X = inputs[0] if isinstance(inputs, list) else inputs
        models: list[Any] = [*self.others, self.plain]
        for model in models:
            model(X)  # what is shared by all predictions has to be there already
        with self._alone():
            fantasies = super().get_fantasy_model(inputs, targets, **kwargs)
        conditioned = []
        for model in models[:-1]:
            Y, noise = self._in_their_units(model, targets, kwargs.get("noise"))
            theirs = kwargs if noise is None else {**kwargs, "noise": noise}
            conditioned.append(model.get_fantasy_model(inputs, Y, **theirs))
        fantasies._set_others(conditioned)
        return fantasies

    @abstractmethod
    def _set_others(self, models: Sequence[TargetGP]) -> None:
        """Replaces the other models."""

    # BoTorch's own classes disagree on the signature.
    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, **kwargs: Any
    ) -> Self:
        """Conditions all models on further points; all else stays as it is.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.
            Y: A ``[num_fantasies x] batch_shape x q x 1`` tensor of outcomes.
            **kwargs: ``noise``, the known noise variances of the new points, like ``Y``.

        Returns:
            A model with these points among its data.
        """
        conditioned: Any = super().condition_on_observations(X, Y, **kwargs)
        for model in conditioned.others:
            model._original_train_inputs = conditioned._original_train_inputs
        return conditioned

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replaces the data of all models.

        Args:
            inputs: The inputs.
            targets: The outcomes, transformed.
            strict: Whether shapes must stay as they are.
        """
        super().set_train_data(inputs, targets, strict)
        for model in self.others:
            Y = None if targets is None else self._in_their_units(model, targets, None)[0]
            cast(Any, model).set_train_data(inputs, Y, strict)

    # The other models transform their own inputs. They are taken out only where there is something
    # to do: each prediction asks, and predictions may be made in several threads.
    def _set_transformed_inputs(self) -> None:
        if hasattr(self, "input_transform") and not self._has_transformed_inputs:
            with self._alone():
                super()._set_transformed_inputs()

    def _revert_to_original_inputs(self) -> None:
        if self._has_transformed_inputs:
            with self._alone():
                super()._revert_to_original_inputs()

    def _restore_targets_and_noise(self, Y: Tensor, Yvar: Tensor | None, strict: bool) -> None:
        super()._restore_targets_and_noise(Y, Yvar, strict)
        for model in self.others:
            model._restore_targets_and_noise(*self._in_their_units(model, Y, Yvar), strict)


def _standardization(transform: Any, like: TargetGP) -> Moments:
    """Mean and standard deviation of a standardization, ``batch_shape x 1`` tensors."""
    if isinstance(transform, Standardize):
        return transform.means.squeeze(-1), transform.stdvs.squeeze(-1)
    zero = like.train_targets.new_zeros(1)
    return zero, zero + 1.0
