r"""Base class of averages: several transfer models and a plain GP predict the same target.

The averaged models are the *members*. The plain GP is a member that uses no sources. The prediction
is the normal distribution with the moments of a mixture of the members' posteriors. A member's
*share* is its weight in the mixture.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import compress
from typing import Any, NoReturn, Self, cast

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.utils import gpt_posterior_settings
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import draw_matheron_paths
from botorch.sampling.pathwise.prior_samplers import draw_kernel_feature_paths
from botorch.utils.context_managers import delattr_ctx
from botorch.utils.types import DEFAULT
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import GP
from gpytorch.settings import prior_mode, skip_posterior_variances
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator, LinearOperator, RootLinearOperator
from torch import Tensor
from torch.nn import ModuleDict, ModuleList

from botorch_transfer.arguments import check_options
from botorch_transfer.gp.hyperpriors import UnseenNoiseLikelihood
from botorch_transfer.gp.likelihood import DerivedNoise
from botorch_transfer.gp.paths import ModelPath, in_users_units
from botorch_transfer.gp.strategy import LargeCovariance, evaluated
from botorch_transfer.model import OnSources, TargetGP, TransferModel, register_paths
from botorch_transfer.report import transfer_report

#: The name of the plain GP among the members.
PLAIN_MEMBER = "plain"

#: A pair: the means and the variances at ``n`` points, two ``batch_shape x n`` tensors.
Moments = tuple[Tensor, Tensor]


def mixed(members: Sequence[MultivariateNormal], shares: Tensor) -> MultivariateNormal:
    """Returns the normal distribution with the mean and covariance of a mixture.

    Args:
        members: The ``K`` normal distributions of the mixture.
        shares: A ``batch_shape x K`` tensor of weights that add up to one.

    Returns:
        The normal distribution. Its covariance is the average of the members' covariances with the
        weights ``shares``, plus the covariance of the members' means under the same weights.
    """
    parts = list(zip(members, shares.unsqueeze(-2).unbind(dim=-1), strict=True))
    mean = sum(share * member.mean for member, share in parts)
    if skip_posterior_variances.on():
        return MultivariateNormal(mean, members[0].lazy_covariance_matrix)
    # A lazy covariance must be the left factor of its product with a share.
    covariances = [
        evaluated(member.lazy_covariance_matrix) * share.unsqueeze(-1) for member, share in parts
    ]
    # The shares must have no gradient, because the gradient of a square root is infinite at 0.
    apart = [share.sqrt() * (member.mean - mean) for member, share in parts]
    root = RootLinearOperator(torch.stack(torch.broadcast_tensors(*apart), dim=-1))
    covariances.append(evaluated(root))
    if isinstance(covariances[-1], LinearOperator):
        return MultivariateNormal(mean, LargeCovariance(*covariances))
    return MultivariateNormal(mean, to_linear_operator(cast(Tensor, sum(covariances))))


def mixed_moments(members: Sequence[Moments], shares: Tensor) -> Moments:
    """Returns the mean and variance of a mixture at each of ``n`` points.

    Args:
        members: ``K`` pairs of means and variances, each a ``batch_shape x n`` tensor.
        shares: A ``batch_shape x K`` tensor of weights that add up to one.

    Returns:
        The means and variances of the mixture.
    """
    means, variances = (torch.stack(list(each)) for each in zip(*members, strict=True))
    weights = shares.movedim(-1, 0).unsqueeze(-1)
    mean = (weights * means).sum(dim=0)
    return mean, (weights * (variances + (means - mean).square())).sum(dim=0)


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises the error of an average whose noise gets a prior or a constraint."""
    raise UnsupportedError(
        "A model average computes its noise variance from the models in model.members: "
        "register the prior or constraint of noise in the likelihood of each of these models."
    )


class _AveragedNoise(DerivedNoise):
    """Noise variance of an average of models.

    Setting the noise variance also sets and fixes the noise variance of each averaged model.
    """

    def __init__(self, average: AveragedGP, batch_shape: torch.Size) -> None:
        super().__init__(noise_constraint=Positive(), batch_shape=batch_shape)
        self._average = (average,)  # in a tuple, so that PyTorch does not register a submodule

    def _set_noise(self, value: Any) -> None:
        super()._set_noise(value)
        for member in self._average[0].members.values():
            scale, _ = self._average[0]._scale_and_shift(member)
            member.likelihood.noise = self.noise.detach() / scale.square()
            member.likelihood.requires_grad_(False)

    def register_constraint(self, *args: Any, **kwargs: Any) -> None:
        if hasattr(self, "_average"):  # false while the base class registers its own constraint
            _refuse()
        super().register_constraint(*args, **kwargs)

    register_prior = _refuse


class _AveragedLikelihood(GaussianLikelihood):
    """Likelihood of an average of models. Its ``register_prior`` method raises an error."""

    register_prior = _refuse


class PlainGP(TargetGP):
    """The plain GP of an average of models: it uses only the target's data, without sources."""

    _warns = False  # the averaged models with sources already warn of the same data


class AveragedGP(  # type: ignore[misc]
    TransferModel, BatchedMultiOutputGPyTorchModel, GP, FantasizeMixin
):
    """Base class of averages of posteriors.

    The averaged models, or *members*, are transfer models and a plain GP, which uses no sources.
    The prediction is the normal distribution with the moments of a mixture of the members'
    posteriors. Each member has its own data, likelihood and outcome transform. The standardized
    outcomes of two members differ by a scale and a shift only, so each member's predictions are
    converted to the units of the plain GP's standardized outcomes. A fit fits every member and then
    computes the members' shares, which are their weights in the mixture. The shares stay fixed
    until the next fit.

    No exact GP has these predictions, so the model has no ``mean_module`` and no ``covar_module``.

    Args:
        train_X: The target's inputs. They determine the model's batch shape, dtype and device.
        train_Y: The target's outcomes.
        members: The transfer models, by name.
        **plain: Further arguments of the plain GP, which becomes the last member. The plain GP has
            the same inputs and the same input transform as the first of ``members``.
    """

    _num_outputs = 1
    #: The averaged models, by name; the plain GP is the last model.
    members: Mapping[str, TransferModel]

    transfer_report = transfer_report

    def __init__(
        self, train_X: Tensor, train_Y: Tensor, members: Mapping[str, TransferModel], **plain: Any
    ) -> None:
        super().__init__()
        if PLAIN_MEMBER in members:
            raise ValueError(f"{PLAIN_MEMBER!r} is reserved for the plain GP: rename this member.")
        first = next(iter(members.values()))
        transform = getattr(first, "input_transform", None)
        own = PlainGP(train_X, train_Y, None, input_transform=transform, **plain)
        own.num_inputs = first.num_inputs
        self.likelihood = _AveragedLikelihood()
        self.likelihood.noise_covar = _AveragedNoise(self, train_X.shape[:-2])
        self.likelihood.requires_grad_(False)
        self._input_batch_shape = self._aug_batch_shape = train_X.shape[:-2]
        self._set_members({**members, PLAIN_MEMBER: own})

    def _set_members(self, members: Mapping[str, TransferModel]) -> None:
        """Stores the averaged models.

        The average has the plain GP's transforms, and also the plain GP's likelihood if the noise
        is known.
        """
        self.members = cast(Any, ModuleDict(cast(Any, members)))
        for name in ("input_transform", "outcome_transform"):
            if hasattr(self.plain, name):
                setattr(self, name, getattr(self.plain, name))
        if isinstance(self.plain.likelihood, FixedNoiseGaussianLikelihood):  # the noise is known
            self.likelihood = self.plain.likelihood

    @property
    def plain(self) -> PlainGP:
        """The averaged model without sources: a plain GP on the target's data."""
        return cast(PlainGP, self.members[PLAIN_MEMBER])

    @property
    @abstractmethod
    def shares(self) -> Tensor:
        """The weights of the ``K`` averaged models in predictions, ``batch_shape x K``."""

    @property
    def used(self) -> list[bool]:
        """For each averaged model, whether its weight is above zero for at least one target."""
        return (self.shares != 0).reshape(-1, self.shares.shape[-1]).any(dim=0).tolist()

    @property
    def used_members(self) -> dict[str, TransferModel]:
        """The averaged models with a positive weight, by name; predictions use no other model."""
        return dict(compress(self.members.items(), self.used))

    @property
    def member_on_sources(self) -> OnSources | None:
        """The first averaged model whose prior has a separate GP for each source task.

        ``None`` if there is no such model.
        """
        found = (member.member_on_sources for member in self.members.values())
        return next((member for member in found if member is not None), None)

    @property
    def transfer_share(self) -> float:
        """The total weight of all averaged models except the plain GP."""
        return float(self.shares[:-1].sum())

    @abstractmethod
    def _update_shares(self) -> None:
        """Recomputes the averaged models' weights, if the weights depend on the target's data."""

    @torch.no_grad()
    def update_weights(self) -> None:
        """Recomputes the averaged models' weights, and the noise variance of the average.

        The constructor and each fit call this method. Call this method yourself after you change
        hyperparameters.
        """
        self._update_shares()
        unseen = isinstance(self.likelihood, UnseenNoiseLikelihood) and self.num_target_points == 0
        if not unseen and not isinstance(self.likelihood, GaussianLikelihood):
            return
        zero = torch.zeros_like(self.likelihood.noise)
        noiseless = MultivariateNormal(zero, DiagLinearOperator(zero))
        noise = self._averaged(
            [
                self._scale_and_shift(member)[0].square()
                * cast(Any, member)._apply_noise(zero, noiseless, True).variance
                for member in self.members.values()
            ]
        )
        if unseen:  # the average and the plain GP have the same likelihood
            self.likelihood.stand_in = float(noise.mean())
        else:
            cast(Any, self.likelihood).noise_covar.derive(noise)

    def _averaged(self, values: Sequence[Tensor]) -> Tensor:
        """Averages ``batch_shape x n`` tensors, one for each member, weighted by ``shares``."""
        shares = self.shares.unsqueeze(-2).unbind(dim=-1)
        return cast(Tensor, sum(p * value for p, value in zip(shares, values, strict=True)))

    # ------------------------------------------------------------------------------- predictions

    # The plain GP's training data. In evaluation mode, the inputs are already transformed.
    @property
    def train_inputs(self) -> tuple[Tensor]:
        """The target's inputs, a ``batch_shape x n x d`` tensor."""
        return self.plain.train_inputs

    @property
    def train_targets(self) -> Tensor:  # type: ignore[override]
        """The target's outcomes after the plain GP's outcome transform, ``batch_shape x n``."""
        return self.plain.train_targets

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        """The number of inputs, without a task column."""
        return self.plain.num_inputs

    def _scale_and_shift(self, member: TransferModel) -> tuple[Tensor, Tensor]:
        """Returns the scale and shift that convert a member's units to the plain GP's units."""
        (mean, stdv), (own_mean, own_stdv) = member.own_units, self.plain.own_units
        return stdv / own_stdv, (mean - own_mean) / own_stdv

    def predict_by_member(self, X: Tensor, member: TransferModel) -> MultivariateNormal:
        """Evaluates the prediction of one averaged model.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            member: The averaged model.

        Returns:
            The model's prediction, converted to the units of the plain GP.
        """
        mvn, (scale, shift) = member(X), self._scale_and_shift(member)
        # Evaluates the covariance, because row selections of a lazy product use sparse matrices.
        covariance = evaluated(mvn.lazy_covariance_matrix) * scale.square().unsqueeze(-1)
        return MultivariateNormal(mvn.mean * scale + shift, to_linear_operator(covariance))

    def __call__(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the averaged prediction.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: Ignored.

        Returns:
            The distribution in the units of ``train_targets``.

        Raises:
            UnsupportedError: If the model is in training mode.
        """
        if self.training:
            self.forward()
        predictions = [self.predict_by_member(X, member) for member in self.used_members.values()]
        if len(predictions) == 1:
            return predictions[0]
        return mixed(predictions, self.shares[..., self.used])

    def forward(self, *args: Any) -> NoReturn:
        """Raises an error, because an average of models is not an exact GP.

        Args:
            *args: Ignored.

        Raises:
            UnsupportedError: Always.
        """
        raise self._is_no_exact_gp()

    def source_parts(self, X: Tensor, names: Sequence[str]) -> Tensor:
        """Averages, for each source task, its contributions to the members' prior means."""
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
        """Computes each member's leave-one-out predictions, in the plain GP's units.

        Returns:
            Two lists with one entry per member. An entry of the first list is a pair of means and
            variances. An entry of the second list is a ``batch_shape x n`` tensor of noise
            variances.
        """
        moments, noises = [], []
        for member in self.members.values():
            scale, shift = self._scale_and_shift(member)
            mean, variance, noise = member._leave_one_out()
            moments.append((mean * scale + shift, variance * scale.square()))
            noises.append(noise * scale.square())
        return moments, noises

    # ------------------------------------------------------------------------------------- paths

    def prior_paths(self, sample_shape: torch.Size, **kwargs: Any) -> SamplePath:
        """Samples functions from the average of the members' priors.

        Args:
            sample_shape: The sample shape.
            **kwargs: Passed to the sampling of each member.

        Returns:
            Paths from untransformed inputs to untransformed outcomes.
        """
        draw = partial(draw_kernel_feature_paths, sample_shape=sample_shape, **kwargs)
        return self._averaged_paths(draw, sample_shape, prior=True)

    def posterior_paths(
        self, prior_sampler: Callable[..., Any], sample_shape: torch.Size, **kwargs: Any
    ) -> SamplePath:
        """Samples functions from the average of the members' posteriors.

        Without target points, functions are sampled from the average of the members' priors.

        Args:
            prior_sampler: A function that samples paths from a model's prior.
            sample_shape: The sample shape.
            **kwargs: Passed to the sampling of each member.

        Returns:
            Paths from untransformed inputs to untransformed outcomes.
        """
        if self.num_target_points == 0:
            return prior_sampler(model=self, sample_shape=sample_shape)
        kwargs |= {"prior_sampler": prior_sampler, "sample_shape": sample_shape}
        return self._averaged_paths(partial(draw_matheron_paths, **kwargs), sample_shape, False)

    def _averaged_paths(
        self, draw: Callable[..., SamplePath], sample_shape: torch.Size, prior: bool
    ) -> SamplePath:
        """Samples paths from each member by ``draw``, and averages the paths."""
        paths = []
        for member in self.eval().used_members.values():
            with delattr_ctx(member, "outcome_transform", "input_transform"):
                paths.append(draw(member))
        return in_users_units(self, AveragedPath(self, paths, sample_shape, prior))

    # --------------------------------------------------------------------------------------- fit

    def custom_fit(
        self, mll: ExactMarginalLogLikelihood, *args: Any, **kwargs: Any
    ) -> ExactMarginalLogLikelihood:
        """Fits all averaged models, then computes their weights.

        ``fit_gpytorch_mll`` calls this method.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """
        for member in self.members.values():
            own = ExactMarginalLogLikelihood(member.likelihood, cast(Any, member))
            member.custom_fit(own, *args, **kwargs)
        self.update_weights()
        return mll.eval()

    # -------------------------------------------------------------------------------- data, state

    def get_fantasy_model(
        self, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Any
    ) -> Self:
        """Conditions all averaged models on further points, and keeps weights and hyperparameters.

        BoTorch's ``condition_on_observations`` and BoTorch's lists of models call this method.

        Args:
            inputs: A ``batch_shape x q x d`` tensor of transformed inputs.
            targets: A ``[num_fantasies x] batch_shape x q`` tensor of outcomes in the plain GP's
                units.
            **kwargs: ``noise=``, the new points' known noise variances in the plain GP's units.

        Returns:
            A model whose data include the new points.
        """
        members = {}
        for name, member in self.members.items():
            scale, shift = self._scale_and_shift(member)
            noise = {key: value / scale.square() for key, value in kwargs.items()}
            theirs = (targets - shift) / scale
            members[name] = cast(Any, member).get_fantasy_model(inputs, theirs, **noise)
        fantasies = deepcopy(self, {id(self.members): ModuleDict(members)})
        fantasies._set_members(members)
        return fantasies

    @property
    def _original_train_inputs(self) -> Tensor | None:
        return self.plain._original_train_inputs

    @_original_train_inputs.setter
    def _original_train_inputs(self, X: Tensor | None) -> None:
        """Sets the untransformed training inputs of all averaged models.

        BoTorch's conditioning assigns to ``_original_train_inputs``.
        """
        for member in self.members.values():
            member._original_train_inputs = X

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replaces the training data of all averaged models.

        Args:
            inputs: The inputs.
            targets: The outcomes in the plain GP's units.
            strict: Whether the new data must have the shapes of the old data.
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

    def _set_transformed_inputs(self) -> None:
        """Does nothing, because the members transform their own inputs."""

    def _revert_to_original_inputs(self) -> None:
        """Does nothing, because the members transform their own inputs."""


register_paths(AveragedGP)


class AveragedPath(ModelPath):
    r"""Sample paths of an average of models, with the mean and covariance of the mixture.

    The averaged models have shares ``p_k`` and means ``μ_k``, with the average ``μ = Σ_k p_k μ_k``.
    A sample path is ``μ + Σ_k √p_k (δ_k + z_k (μ_k - μ))``. For each model, ``δ_k`` is a sample
    path of the model minus the model's mean ``μ_k``, and ``z_k`` is a standard normal number.

    Args:
        model: The average, in evaluation mode.
        paths: Sample paths of each model with a positive share, in the model's own units. Each path
            includes the model's mean.
        sample_shape: The sample shape.
        prior: Whether the paths are sampled from the priors, without the target's data.
    """

    shares: Tensor
    scale: Tensor
    shift: Tensor
    z: Tensor

    def __init__(
        self, model: Any, paths: Sequence[SamplePath], sample_shape: torch.Size, prior: bool
    ) -> None:
        super().__init__()
        members = list(model.used_members.values())
        # The models are copied, so that a path does not change with their hyperparameters.
        self.paths, self.members = ModuleList(paths), ModuleList(deepcopy(members)).eval()
        shares, self._prior = model.shares.detach()[..., model.used].clone(), prior
        units = zip(*map(model._scale_and_shift, members), strict=True)
        for name, each in zip(("scale", "shift"), units, strict=True):
            self.register_buffer(name, torch.stack(torch.broadcast_tensors(*each), dim=-1))
        self.register_buffer("shares", shares.unsqueeze(-2))  # adds a dimension of points
        # One z for each function, because a mixture draws all points from the same member.
        z = shares.new_empty(*sample_shape, *shares.shape).normal_()
        self.register_buffer("z", z.unsqueeze(-2))

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the sample paths.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Passed to the members' paths.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        draws = torch.stack([path(x, **kwargs) for path in self.paths], dim=-1)
        prior = prior_mode(self._prior or prior_mode.on())
        with gpt_posterior_settings(), skip_posterior_variances(), prior:
            means = torch.stack([member(x).mean for member in self.members], dim=-1)
        means = means * self.scale + self.shift
        mean = (self.shares * means).sum(dim=-1, keepdim=True)
        deviations = draws * self.scale + self.shift - means + self.z * (means - mean)
        return mean.squeeze(-1) + (self.shares.sqrt() * deviations).sum(dim=-1)


def build_member(model_class: Callable[..., TransferModel], *data: Any, **options: Any) -> Any:
    """Builds one of the models that are averaged.

    Args:
        model_class: The class, or a function that returns a model.
        *data: The target's inputs, the target's outcomes, and the prior or source data.
        **options: Further arguments. Options that the user left at their defaults are not passed
            on.

    Returns:
        The model.

    Raises:
        ValueError: If the class rejects any of ``options``, or if the model predicts a mixture.
    """
    defaults = {"outcome_transform": DEFAULT}  # the default of all other options is None
    given = {name: value for name, value in options.items() if value is not defaults.get(name)}
    check_options(model_class, given)
    model = model_class(*data, **given)
    if model._is_ensemble:
        raise ValueError(
            f"{type(model).__name__} predicts a mixture, but each member of an average must "
            "predict one Gaussian: choose another class for this member."
        )
    return model
