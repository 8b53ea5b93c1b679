"""Base class of the transfer models: a GP on the target's data, with or without any.

Read it for what all models do alike: predictions without target points, conditioning, fitting, and
leave-one-out predictions.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar, Protocol, Self, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.gp_regression import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import (
    OutcomeTransform,
    Standardize,
    StratifiedStandardize,
)
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.sampling.pathwise.update_strategies import gaussian_update
from botorch.utils.sampling import draw_sobol_samples
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import AddedLossTerm, ExactMarginalLogLikelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_transfer._botorch import fit_fallback
from botorch_transfer.arguments import ConstructedFromDatasets, without_task_feature
from botorch_transfer.gp.frozen import FrozenPosterior
from botorch_transfer.gp.hyperpriors import (
    SOURCE_HYPERPARAMETERS,
    Hyperparameter,
    default_likelihood,
)
from botorch_transfer.gp.noise import AddedNoiseLikelihood, noise_variance
from botorch_transfer.gp.paths import (
    PriorGP,
    RescaledPath,
    condition_paths,
    draw_prior,
    in_users_units,
)
from botorch_transfer.gp.restarts import fit_from_starts
from botorch_transfer.gp.strategy import Strategy
from botorch_transfer.input_transforms import warn_outside_unit_cube
from botorch_transfer.outcome_transforms import chained, split_transform


class LogLikelihoodTerm(AddedLossTerm):
    """A further log likelihood that a fit maximizes, for instance the source data's.

    Args:
        value: A ``batch_shape`` tensor, with its graph. Copies and pickles have no graph.
    """

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def loss(self, *params: Any) -> Tensor:
        """Returns the value.

        Args:
            *params: Ignored.
        """
        return self._value

    def __reduce__(self) -> tuple[type[Self], tuple[Tensor]]:
        return type(self), (self._value.detach(),)


def predicted_moments(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Reads mean and variance of one outcome; of an ensemble they are the mixture's.

    Args:
        posterior: A posterior of the shape ``batch_shape x q x 1``.

    Returns:
        Two ``batch_shape x q`` tensors; the batch shape is without the ensemble's members.

    Example:
        >>> mvn = MultivariateNormal(torch.zeros(3), torch.eye(3))
        >>> predicted_moments(GPyTorchPosterior(mvn))[1]
        tensor([1., 1., 1.])
    """
    mixture = "mixture_" if hasattr(posterior, "mixture_mean") else ""
    parts = (getattr(posterior, f"{mixture}{name}") for name in ("mean", "variance"))
    mean, variance = (part.squeeze(-1) for part in parts)
    return mean, variance


NUM_SLOPES, _STEP = 64, 0.05
"""At how many points slopes are evaluated, and over which distance."""

MAX_LENGTHSCALE = 10.0
"""The lengthscale of an input that has no effect in the unit cube."""


def _clamp_far_inputs(X: Tensor) -> Tensor:
    """Replaces inputs so far away that squared distances overflow by the farthest that are not.

    The distance of two infinite values would be NaN. The GP is at its prior at either input, and
    the cube root leaves room for division by small lengthscales.
    """
    farthest = torch.finfo(X.dtype).max ** (1 / 3)
    return X.clamp(-farthest, farthest)


class OnSources(Protocol):
    """A model on a prior that has a posterior of each source task."""

    prior: Any
    weights: Tensor


class TransferModel(ConstructedFromDatasets, GPyTorchModel):
    """Base class of all models of a target: what exact GPs and averages of them have in common.

    It is put in front of a class of BoTorch, which brings data, likelihood and predictions.
    """

    _supports_batched_models = False  # one outcome a model, as Ax asks

    num_inputs: int
    """The number of inputs, a task column left out."""

    train_inputs: Any
    train_targets: Tensor
    prediction_strategy: Any

    weighs_all_sources: ClassVar[bool] = False
    """Whether the target's data decide how much all sources together count."""

    @property
    def member_on_sources(self) -> OnSources | None:
        """The model with a posterior of each source task: itself, or of an average a member."""
        return None

    @property
    def transfer_share(self) -> float:
        """In an average, the share of all transfer models against the plain GP; else NaN."""
        return math.nan

    @property
    def num_target_points(self) -> int:
        """The number of target points ``n`` (in each batch)."""
        return self.train_inputs[0].shape[-2]

    @property
    def own_units(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the model's own units, ``batch_shape x 1`` tensors."""
        _, transform = split_transform(getattr(self, "outcome_transform", None))
        if isinstance(transform, Standardize):
            return transform.means.squeeze(-1), transform.stdvs.squeeze(-1)
        zero = self.train_targets.new_zeros(1)
        return zero, zero + 1.0

    def subset_output(self, idcs: list[int]) -> Self:
        """Selects outcomes: there is one only.

        Args:
            idcs: ``[0]`` or ``[-1]``.

        Returns:
            A copy.

        Raises:
            ValueError: If there are no such outcomes.
        """
        if idcs not in ([0], [-1]):
            raise ValueError(f"There is one outcome: idcs must be [0] or [-1], not {idcs}.")
        return deepcopy(self)

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Predicts every target point from the others, hyperparameters and weights as they are.

        BoTorch's ``loo_cv`` reads the exact GP, and raises an error for models that predict
        otherwise; this method serves all.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A posterior of shape ``batch_shape x n x 1 x 1`` in the user's units, one batch a point.

        Example:
            >>> model.loo_posterior().mean.shape
            torch.Size([3, 1, 1])
        """
        mean, variance, noise = self._leave_one_out()
        if observation_noise:
            variance = variance + noise
        (X,), transform = self.train_inputs, getattr(self, "outcome_transform", None)
        steps, scale = split_transform(transform)
        if scale is not None:
            # A transform of a batch of models counts on their batch shape, points last.
            together = GPyTorchPosterior(MultivariateNormal(mean, DiagLinearOperator(variance)))
            scaled = scale.untransform_posterior(together, X=X)
            if not isinstance(scaled, GPyTorchPosterior):
                apart = _one_batch_a_point(mean, variance)
                return cast(Any, transform).untransform_posterior(apart, X=X.unsqueeze(-2))
            mean, variance = scaled.mean[..., 0], scaled.variance[..., 0]
        apart = _one_batch_a_point(mean, variance)
        return chained(steps).untransform_posterior(apart) if steps else apart

    @abstractmethod
    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Predicts every target point from the others, in the model's own units.

        Returns:
            Means, variances of the latent function, and noise variances: ``batch_shape x n``
            tensors.
        """

    @torch.no_grad()
    def lengthscales(self) -> Tensor:
        """Computes the effective lengthscale of each input.

        It is the standard deviation over the unit cube of the functions that the model thinks
        possible, divided by the root mean square of their slopes. Like the fitted lengthscales of a
        ``SingleTaskGP``, they can shape a trust region, whatever the model's parts are. Inputs are
        measured after the input transform.

        Returns:
            A ``batch_shape x d`` tensor, at most ``MAX_LENGTHSCALE``, which an input without
            effect has.

        Example:
            >>> model.lengthscales().shape
            torch.Size([2])
        """
        training = self.training
        *batch, _, dim = self.eval().train_inputs[0].shape
        cube = torch.tensor([[_STEP / 2] * dim, [1 - _STEP / 2] * dim])
        X = draw_sobol_samples(cube, n=NUM_SLOPES, q=1, seed=0).to(self.train_targets)
        ones = [1] * len(batch)
        half = (_STEP / 2 * torch.eye(dim).to(X)).reshape(dim, *ones, 1, dim)
        # Differences between two points a step apart, along each input at each point.
        ends = X.reshape(-1, 1, *ones, 1, dim) + torch.cat([-half, half], dim=-2)
        with gpt_posterior_settings():
            function, pairs = self(X.squeeze(-2)), self(ends)
        self.train(training)
        covariance, sign = function.covariance_matrix, X.new_tensor([-1.0, 1.0])
        level = covariance.mean(dim=(-2, -1))  # of the function's mean over the cube
        spread = covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1) - level
        spread = spread + function.mean.var(dim=-1, correction=0)
        change = (pairs.mean @ sign).square() + pairs.covariance_matrix @ sign @ sign
        change = change.mean(dim=0).movedim(0, -1)
        if self._is_ensemble:
            spread, change = spread.mean(dim=-1), change.mean(dim=-2)
        relative = change / spread.unsqueeze(-1).clamp_min(torch.finfo(X.dtype).tiny)
        return _STEP * relative.clamp_min((_STEP / MAX_LENGTHSCALE) ** 2).rsqrt()

    def source_parts(self, X: Tensor, names: Sequence[str]) -> Tensor:
        """Evaluates each source task's part of the mean.

        It is the task's term in the prior mean: weight times posterior mean; in a
        :class:`PopulationGP`, what the task's outcomes contribute to the mean of all; in an
        average, the members' parts times their shares.

        Args:
            X: An ``n x d`` tensor of transformed inputs.
            names: The names of the ``M`` source tasks.

        Returns:
            An ``M x n`` tensor in the model's own units; by default zeros, as no part belongs to
            one source.
        """
        return X.new_zeros(len(names), len(X))

    def _is_no_exact_gp(self) -> UnsupportedError:
        """Returns the error for closed forms that do not match this model's predictions."""
        return UnsupportedError(
            f"{type(self).__name__} is not one exact GP, as marginal likelihoods and BoTorch's "
            "leave-one-out formulas need: call its loo_posterior() instead, and fit it by "
            "fit_gpytorch_mll(mll)."
        )

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], *args: Any) -> None:
        # BoTorch's tutorial of RGPE expands all tensors to a batch of targets, which share sources.
        for name, ours in self.state_dict(prefix=args[0]).items():
            if (theirs := state_dict.get(name, ours)).dim() > ours.dim():
                first = theirs[(0,) * (theirs.dim() - ours.dim())]
                if torch.equal(theirs.nan_to_num(), first.expand_as(theirs).nan_to_num()):
                    state_dict[name] = first
        super()._load_from_state_dict(state_dict, *args)

    @abstractmethod
    def custom_fit(
        self, mll: ExactMarginalLogLikelihood, *args: Any, **kwargs: Any
    ) -> ExactMarginalLogLikelihood:
        """Fits the model; ``fit_gpytorch_mll`` calls this.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """


class TargetGP(TransferModel, SingleTaskGP):  # type: ignore[misc]
    r"""Base class of the transfer models: a ``SingleTaskGP`` on the target's data.

    Source tasks enter through its mean and kernel, which subclasses provide. The class adds what
    all models share: it works without target points, is fitted from several starts, and may ignore
    a task column. Subclasses whose predictions differ from the exact GP's override
    :meth:`_predict`, and :meth:`_draws` if correlations differ, too; subclasses that fit more than
    the target's likelihood call :meth:`_set_loss_term`.

    Args:
        dim: The number of inputs of the source tasks; ``None`` if the target may have any.
        mean_module: The target's prior mean, given the source data.
        covar_module: The target's prior covariance, given the source data.
        outcome_transform: The transform to the units of mean and kernel.
        input_transform: The frozen transform to the inputs of mean and kernel.
        noise: Hyperprior, start and bounds of the default likelihood's inferred noise.

    Raises:
        InputDataError: If there is more than one outcome, the number of inputs differs from the
            source tasks', or values are not finite.
    """

    num_restarts: int = 5
    """The default number of starts of a fit that are drawn from the hyperpriors."""

    _warns: ClassVar[bool] = True  # of inputs outside the unit cube

    max_fit_iterations: ClassVar[int | None] = None
    """The number of iterations after which a fit stops; the optimizer's own if ``None``."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        dim: int | None,
        mean_module: Mean,
        covar_module: Kernel,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | None = None,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        noise: Hyperparameter = SOURCE_HYPERPARAMETERS.noise,
    ) -> None:
        num_inputs = train_X.shape[-1] - (task_feature is not None)
        if dim is not None and num_inputs != dim:
            raise InputDataError(
                f"train_X has {num_inputs} inputs, but the source tasks have {dim}."
            )
        has_transform = input_transform is not None
        input_transform = without_task_feature(train_X.shape[-1], task_feature, input_transform)
        if input_transform is not None:
            input_transform.train()  # applied to data, as transform_on_train says
        if likelihood is None:
            likelihood = default_likelihood(train_X.shape[:-2], train_Yvar, noise)
        elif isinstance(likelihood, AddedNoiseLikelihood):
            learned: Any = default_likelihood(train_X.shape[:-2], None, noise)
            learned = learned if likelihood.is_default else likelihood
            likelihood = AddedNoiseLikelihood(likelihood.added, learned)
        super().__init__(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        if isinstance(likelihood, AddedNoiseLikelihood):
            likelihood.transform(getattr(self, "outcome_transform", None), train_Y)
        self.num_inputs = num_inputs
        if not has_transform and self._warns:  # what lies beyond the sources stays outside
            warn_outside_unit_cube(self.transform_inputs(train_X), "the target")

    # ------------------------------------------------------------------------------- predictions

    def __call__(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the model's predictions; in training mode the prior of its exact GP.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: Handed to GPyTorch in training mode.

        Returns:
            The distribution in the model's own units.
        """
        if self.training:
            return self.exact_gp(X, **kwargs)
        return self._predict(_clamp_far_inputs(X.to(self.train_inputs[0].dtype)))

    def _predict(self, X: Tensor) -> MultivariateNormal:
        """Predicts in evaluation mode: ``posterior`` and entropy search use the result.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.

        Returns:
            By default the posterior of the exact GP.
        """
        return self.exact_gp(X)

    def exact_gp(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the exact GP with the model's mean, kernel, likelihood and training data.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: Handed to GPyTorch in training mode.

        Returns:
            Its posterior, or without target points the transferred prior; the prior in training
            mode.

        Raises:
            InputDataError: If the covariance matrix of the data is not positive definite, even with
                some jitter, because they have very different orders of magnitude.
        """
        (train_X,) = self.train_inputs
        columns = X.shape[-1] if X.dim() > 1 else 1  # GPyTorch takes a vector for one column
        if columns != train_X.shape[-1]:
            raise BotorchTensorDimensionError(
                f"The inputs have {columns} columns, but train_X has {train_X.shape[-1]}: pass as "
                "many."
            )
        if self.training:
            # A view, so that forward sees who else asks for the prior at the target's points.
            return cast(MultivariateNormal, super().__call__(X.view_as(X), **kwargs))
        return self.strategy(X if X.dim() > 1 else X.unsqueeze(-1))

    @property
    def strategy(self) -> Strategy:
        """The exact GP's posterior, in evaluation mode; prepared once until the data change."""
        if self.prediction_strategy is None:
            (X,), Y = self.train_inputs, self.train_targets
            if settings.detach_test_caches.on():
                X, Y = X.detach(), Y.detach()
            modules = self.mean_module, self.covar_module
            self.prediction_strategy = Strategy(*modules, X, Y, self._noise_variance)
        return self.prediction_strategy

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Evaluates the prior of the exact GP; call the model itself instead.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            The prior.

        Raises:
            UnsupportedError: If the model's predictions differ from its exact GP's, and a caller
                evaluates the prior at the target's points, as BoTorch's ``loo_cv`` does.
        """
        if self._predicts_otherwise and x is self.train_inputs[0]:
            raise self._is_no_exact_gp()
        return cast(MultivariateNormal, super().forward(x))

    @torch.no_grad()
    def frozen(self, X: Tensor, weight: float = 1.0, offset: float = 0.0) -> FrozenPosterior | None:
        """Prepares the posterior at single inputs, as long as hyperparameters and data stay.

        Args:
            X: An ``r x d`` tensor of inputs whose covariances with others will be asked for.
            weight: A factor of the outcome.
            offset: What is added to it.

        Returns:
            The posterior of ``offset + weight * outcome``, without graph to its hyperparameters;
            ``None`` if the model is no exact GP of stationary kernels, is a batch, has no data, or
            has an outcome transform that is no standardization.
        """
        (train_X,) = self.eval().train_inputs
        outcomes, inputs = (
            getattr(self, f"{kind}_transform", None) for kind in ("outcome", "input")
        )
        usual = isinstance(outcomes, Standardize | None)
        usual = usual and not isinstance(outcomes, StratifiedStandardize)
        is_one_to_many = getattr(inputs, "is_one_to_many", False)
        if not usual or is_one_to_many or self._predicts_otherwise:
            return None

        def transform(x: Tensor) -> Tensor:
            return _clamp_far_inputs(self.transform_inputs(x).to(train_X.dtype)).double()

        mean, std = (weight * part.squeeze(-1).double() for part in self.own_units)
        fixed = torch.cat([train_X.double(), transform(X)])
        return self.strategy.frozen_at(fixed, transform, offset + mean, std)

    @property
    def _predicts_otherwise(self) -> bool:
        """Whether predictions differ from the exact GP's."""
        return type(self)._predict is not TargetGP._predict

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        """Adds the observation noise of new points to a prediction."""
        if observation_noise is True and isinstance(self.likelihood, AddedNoiseLikelihood):
            return self.likelihood(mvn, X, noise=torch.zeros_like(mvn.mean))
        return super()._apply_noise(X, mvn, observation_noise)

    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Predicts every target point from the others, in the model's own units.

        Returns:
            Means, variances of the latent function, and noise variances: ``batch_shape x n``
            tensors. The model is in evaluation mode afterwards.
        """
        strategy, noise = self.eval().strategy, self._noise_variance()
        if not self._predicts_otherwise:
            return (*strategy.leave_one_out(), noise)
        (X,), twin = self.train_inputs, self._given(strategy.without_each())
        mvn = twin._predict(X.movedim(-2, 0).unsqueeze(-2))
        mean, variance = (part.squeeze(-1).movedim(0, -1) for part in (mvn.mean, mvn.variance))
        return mean, variance, noise

    def _given(self, strategy: Strategy, likelihood: Any = None) -> Self:
        """Copies the model with other data.

        Args:
            strategy: The exact GP's posterior given these data.
            likelihood: The copy's likelihood; by default a copy of the model's own.
        """
        # The data are replaced, and fantasies cannot be copied, as they have a graph.
        memo: dict[int, Any] = {id(each): each for each in (*self.train_inputs, self.train_targets)}
        if likelihood is not None:
            memo[id(self.likelihood)] = likelihood
        model: Any = deepcopy(self, memo)
        X, Y = strategy.X, strategy.Y
        batch_shape = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-1])
        X, Y = X.expand(*batch_shape, *X.shape[-2:]), Y.expand(*batch_shape, -1)
        model.set_train_data(X, Y, strict=False)
        strategy.mean, strategy.kernel = model.mean_module, model.covar_module
        model.prediction_strategy = strategy
        return model

    def _noise_variance(self) -> Tensor:
        """Returns the observation noise variances of the target's points, ``batch_shape x n``."""
        return noise_variance(self.likelihood, self.train_inputs[0])

    def named_priors(self) -> Iterator[tuple[str, Any, Any, Any, Any]]:
        """Lists the hyperpriors, each one once.

        GPyTorch counts the hyperpriors of a module shared by mean and kernel twice.

        Yields:
            Name, module, hyperprior, and the functions that get and set its hyperparameter.
        """
        seen = set()
        for name, module, prior, closure, setting_closure in super().named_priors():
            if (module, prior) not in seen:
                seen.add((module, prior))
                yield name, module, prior, closure, setting_closure

    def get_fantasy_model(
        self, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Any
    ) -> Self:
        """Conditions on further points; the first ones are simply the model's data.

        Args:
            inputs: A ``batch_shape x q x d`` tensor of transformed inputs.
            targets: A ``[num_fantasies x] batch_shape x q`` tensor of transformed outcomes.
            **kwargs: ``noise``, the known noise variances of the new points.

        Returns:
            A model with these points among its data.
        """
        X = inputs[0] if isinstance(inputs, list) else inputs
        if targets.shape[-1] != X.shape[-2]:
            raise BotorchTensorDimensionError(
                f"There are {X.shape[-2]} inputs, but {targets.shape[-1]} outcomes."
            )
        if isinstance(self.likelihood, AddedNoiseLikelihood):  # the same in all fantasies
            kwargs.setdefault("noise", targets.new_zeros(X.shape[:-1]))
        likelihood = cast(Any, self.likelihood).get_fantasy_likelihood(**kwargs)
        noise = noise_variance(likelihood, X, **kwargs).detach()
        return self._given(self.eval().strategy.with_data(X, targets, noise), likelihood)

    # ------------------------------------------------------------------------------------- paths

    @property
    def _terms(self) -> tuple[Kernel, ...]:
        """The kernels that the prior's covariance is the sum of, for pathwise sampling."""
        return (self.covar_module,)

    def _draws(self, path: SamplePath, draw: Callable[[Mean, Kernel], SamplePath]) -> SamplePath:
        """Turns draws of the exact GP into draws of the model's predictions.

        By default it gives them the model's mean and standard deviation. A model whose correlations
        differ from its exact GP's overrides it.

        Args:
            path: The draws over transformed inputs, in the model's own units.
            draw: Draws from the prior with a mean and a kernel.

        Returns:
            The draws.
        """
        return RescaledPath(path, self) if self._predicts_otherwise else path

    def prior_paths(self, sample_shape: torch.Size, **kwargs: Any) -> SamplePath:
        """Draws functions from the prior, for BoTorch's pathwise sampling.

        Args:
            sample_shape: The shape of the draws.
            **kwargs: ``num_features``, and further arguments of BoTorch's own.

        Returns:
            Paths over the user's inputs, in the user's units.
        """
        (X,), Y = self.eval().train_inputs, self.train_targets
        model: Any = deepcopy(self) if self._predicts_otherwise else self
        if model is not self:
            model.set_train_data(X[..., :0, :], Y[..., :0], strict=False)
        return model._drawn(partial(draw_prior, sample_shape=sample_shape, **kwargs), lambda p: p)

    def posterior_paths(
        self,
        prior_sampler: Callable[..., Any],
        sample_shape: torch.Size,
        update_strategy: Callable[..., SamplePath] = gaussian_update,
    ) -> SamplePath:
        """Draws functions from the posterior, or without target points from the prior.

        Args:
            prior_sampler: Draws from a prior.
            sample_shape: The shape of the draws.
            update_strategy: Corrects draws by the data, see BoTorch's ``draw_matheron_paths``.

        Returns:
            Paths over the user's inputs, in the user's units.
        """
        if self.num_target_points == 0:
            return prior_sampler(model=self, sample_shape=sample_shape)
        condition = partial(condition_paths, self.eval(), update_strategy=update_strategy)
        return self._drawn(partial(prior_sampler, sample_shape=sample_shape), condition)

    def _drawn(
        self, sampler: Callable[..., Any], condition: Callable[[SamplePath], SamplePath]
    ) -> SamplePath:
        """Draws from the exact GP's prior, conditions the draws, and makes them the model's."""

        def draw(mean: Mean, *kernels: Kernel) -> SamplePath:
            return sampler(PriorGP(self, mean, kernels))

        path = condition(draw(self.mean_module, *self._terms))
        return in_users_units(self, self._draws(path, draw))

    # --------------------------------------------------------------------------------------- fit

    def _set_loss_term(self, value: Tensor | None) -> None:
        """Sets a further log likelihood for a fit to maximize, a ``batch_shape`` tensor.

        A model that fits more calls it in ``forward`` while it is in training mode. The term ends
        with that mode.
        """
        term = None if value is None else LogLikelihoodTerm(value)
        cast(Any, self)._added_loss_terms["log_likelihood"] = term

    def train(self, mode: bool = True) -> Self:
        """Sets training or evaluation mode.

        Args:
            mode: Whether to train.

        Returns:
            The model.
        """
        if not mode:
            self._set_loss_term(None)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves or converts the model; what GPyTorch remembers of its data would stay behind."""
        before = self.train_targets
        cast(Any, super())._apply(fn)
        if self.train_targets is not before:  # acquisitions move their model where it is already
            cast(Any, self)._clear_cache()
        return self

    @property
    def _has_data_to_fit(self) -> bool:
        """Whether there are data to fit."""
        return self.num_target_points > 0

    @property
    def is_fitted_as_exact_gp(self) -> bool:
        """Whether a fit maximizes the likelihood of the exact GP, and no loss terms with it."""
        return type(self).forward is TargetGP.forward

    def custom_fit(
        self,
        mll: ExactMarginalLogLikelihood,
        num_restarts: int | None = None,
        seed: int | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> ExactMarginalLogLikelihood:
        """Fits the target's hyperparameters; ``fit_gpytorch_mll`` calls this.

        By default all starts are optimized together, and the best optimum is kept. Most models have
        a closed form for that (``gp.objective``); others are differentiated automatically. Options
        that only BoTorch's optimizer has select BoTorch's own fit, from one start after another. So
        do the further arguments of BoTorch's own fit: it then starts at the present values, and
        from draws only where an attempt fails.

        Args:
            mll: The marginal log likelihood of this model.
            num_restarts: The number of starts drawn from the hyperpriors, besides the present
                values; by default the model's ``num_restarts``.
            seed: The seed of these draws; 0 by default.
            optimizer_kwargs: Arguments of the optimizer, by default of BoTorch's
                ``fit_gpytorch_mll_scipy``: ``{"options": {"maxiter": 50}}``; ``{"timeout_sec":
                10}``, after which all starts stop where they are; or a ``callback``, which gets
                the parameters by name and BoTorch's ``OptimizationResult`` once an iteration.
            **kwargs: ``max_attempts``, the number of starts, the present values among them;
                ``pick_best_of_all_attempts`` is always so. Further arguments of BoTorch's own fit:
                ``optimizer``, ``closure``, ``closure_kwargs``, ``warning_handler`` and
                ``caught_exception_types``; with one of these, attempts are BoTorch's. It draws from
                PyTorch's global random numbers.

        Returns:
            The marginal log likelihood in evaluation mode. Without target points, or with nothing
            to fit, the hyperparameters stay as they are.

        Raises:
            ModelFittingError: If no start leads to an optimum.
            ValueError: If there is no such argument; or ``num_restarts`` or ``seed`` is given
                together with an argument of BoTorch's own fit.
            TypeError: If the optimizer has no such argument.

        Example:
            >>> X = torch.rand(4, 2, dtype=torch.double)
            >>> history = {"monday": (X, X.sum(-1, keepdim=True))}
            >>> model = ScaMLGP(X[:3], X[:3, :1], history)
            >>> mll = ExactMarginalLogLikelihood(model.likelihood, model)
            >>> _ = fit_gpytorch_mll(mll, num_restarts=1)
        """
        of_botorch = {name: value for name, value in kwargs.items() if value is not None}
        of_starts = {"num_restarts": num_restarts, "seed": seed}
        if num_restarts is None and of_botorch.keys() <= _ATTEMPTS:
            attempts, of_botorch = of_botorch.get("max_attempts"), {}
            num_restarts = None if attempts is None else max(attempts - 1, 0)
        _check_fit_arguments(of_botorch, of_starts)
        self._before_fit()
        has_parameters = any(parameter.requires_grad for parameter in mll.parameters())
        given = dict(optimizer_kwargs or {})
        if "optimizer" not in of_botorch and self.max_fit_iterations is not None:
            given["options"] = {"maxiter": self.max_fit_iterations, **(given.get("options") or {})}
        if self._has_data_to_fit and has_parameters:
            num_restarts = self.num_restarts if num_restarts is None else num_restarts
            mll.train()
            if of_botorch:
                fit_fallback(mll, optimizer_kwargs=given, **of_botorch)
            else:
                fit_from_starts(mll, num_restarts, seed or 0, **given)
        self._after_fit()
        return mll.eval()

    def _before_fit(self) -> None:
        """Computes what follows from the data alone, as a choice of sources; nothing by default."""

    def _after_fit(self) -> None:
        """Computes what follows from hyperparameters and data; nothing by default."""


def register_paths(model_class: type[Any]) -> None:
    """Lets BoTorch's ``draw_kernel_feature_paths`` and ``draw_matheron_paths`` ask a model.

    Args:
        model_class: A class with ``prior_paths`` and ``posterior_paths``.
    """

    def prior_paths(model: Any, sample_shape: torch.Size, **kwargs: Any) -> SamplePath:
        return model.prior_paths(sample_shape, **kwargs)

    def posterior_paths(model: Any, **kwargs: Any) -> SamplePath:
        return model.posterior_paths(**kwargs)

    DrawKernelFeaturePaths.register(model_class)(prior_paths)
    DrawMatheronPaths.register(model_class)(posterior_paths)


register_paths(TargetGP)


_OF_BOTORCHS_FIT = frozenset(inspect.signature(fit_fallback).parameters) - {"mll", "ignore"}
"""The arguments of BoTorch's own fit."""

_ATTEMPTS = frozenset({"max_attempts", "pick_best_of_all_attempts"})
"""Options that set the number of starts, whatever the algorithm."""


def _check_fit_arguments(of_botorch: Mapping[str, Any], of_starts: Mapping[str, Any]) -> None:
    """Refuses arguments that a fit would ignore."""
    if unknown := sorted(of_botorch.keys() - _OF_BOTORCHS_FIT):
        raise ValueError(
            f"A fit has no argument {unknown[0]!r}: it takes num_restarts and seed, or "
            f"{', '.join(sorted(_OF_BOTORCHS_FIT - {'optimizer_kwargs'}))}; put arguments of the "
            "optimizer into optimizer_kwargs."
        )
    both = [name for name, value in of_starts.items() if value is not None]
    if of_botorch and both:
        raise ValueError(
            f"Give {both[0]}, for the fit from several starts, or {next(iter(of_botorch))}, for "
            "BoTorch's own from the present values, not both."
        )


def _one_batch_a_point(mean: Tensor, variance: Tensor) -> GPyTorchPosterior:
    covariance = DiagLinearOperator(variance.unsqueeze(-1))
    return GPyTorchPosterior(MultivariateNormal(mean.unsqueeze(-1), covariance))
