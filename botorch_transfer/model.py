"""Base classes of the transfer models: GPs on the target's data that also work without target data.

The base classes implement predictions without target points, conditioning on new points, fitting,
and leave-one-out predictions for all models.
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
from botorch.models.transforms.outcome import OutcomeTransform, Standardize, StratifiedStandardize
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
from botorch_transfer.arguments import (
    ConstructedFromDatasets,
    warn_of_outcomes,
    without_task_feature,
)
from botorch_transfer.gp.frozen import FrozenPosterior
from botorch_transfer.gp.hyperpriors import (
    SOURCE_HYPERPARAMETERS,
    Hyperparameter,
    default_likelihood,
)
from botorch_transfer.gp.likelihood import AddedNoiseLikelihood, noise_variance
from botorch_transfer.gp.objective import fit_from_starts
from botorch_transfer.gp.paths import (
    PriorGP,
    RescaledPath,
    condition_paths,
    draw_prior,
    in_users_units,
)
from botorch_transfer.gp.strategy import Strategy
from botorch_transfer.input_transforms import warn_outside_unit_cube
from botorch_transfer.outcome_transforms import chained, split_transform


class LogLikelihoodTerm(AddedLossTerm):
    """A log likelihood that a fit maximizes together with the target's marginal log likelihood.

    Args:
        value: The log likelihood, a ``batch_shape`` tensor that may have an autograd graph. Copies
            and pickles of the term have no graph.
    """

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def loss(self, *params: Any) -> Tensor:
        """Returns the log likelihood, which GPyTorch adds to the marginal log likelihood.

        Args:
            *params: Ignored.
        """
        return self._value

    def __reduce__(self) -> tuple[type[Self], tuple[Tensor]]:
        return type(self), (self._value.detach(),)


def predicted_moments(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Returns the mean and the variance of a posterior of one outcome.

    For an ensemble of models, the result is the mean and the variance of the mixture.

    Args:
        posterior: A posterior of shape ``batch_shape x q x 1``.

    Returns:
        Two ``batch_shape x q`` tensors. The batch shape does not include the members of an
        ensemble.

    Example:
        >>> mvn = MultivariateNormal(torch.zeros(3), torch.eye(3))
        >>> predicted_moments(GPyTorchPosterior(mvn))[1]
        tensor([1., 1., 1.])
    """
    kind = "mixture_" if hasattr(posterior, "mixture_mean") else ""
    mean, variance = (getattr(posterior, f"{kind}{name}") for name in ("mean", "variance"))
    return mean.squeeze(-1), variance.squeeze(-1)


#: For :meth:`TransferModel.lengthscales`: number of points at which slopes are estimated, and the
#: step of the finite differences.
NUM_SLOPES, _STEP = 64, 0.05

#: Maximum effective lengthscale. An input without an effect in the unit cube has this lengthscale.
MAX_LENGTHSCALE = 10.0


def _clamp_far_inputs(X: Tensor) -> Tensor:
    """Clamps inputs so that squared distances between inputs do not overflow.

    The distance of two infinite inputs would be NaN. Predictions do not change, because the GP
    returns to its prior far from the data. The bound is the cube root of the largest float, so that
    the square of an input stays finite even after division by a small lengthscale.
    """
    farthest = torch.finfo(X.dtype).max ** (1 / 3)
    return X.clamp(-farthest, farthest)


class OnSources(Protocol):
    """Protocol of a model whose prior has a separate GP for each source task."""

    prior: Any
    weights: Tensor


class TransferModel(ConstructedFromDatasets, GPyTorchModel):
    """Base class of all transfer models: exact GPs and averages of exact GPs.

    Mix in this class before a BoTorch model class, which supplies data, likelihood and predictions.
    """

    _supports_batched_models = False  # makes Ax build one model for each outcome

    #: The number of inputs, without a task column.
    num_inputs: int

    train_inputs: Any
    train_targets: Tensor
    prediction_strategy: Any

    #: Whether the target's data determine the total weight of all sources.
    weighs_all_sources: ClassVar[bool] = False

    @property
    def member_on_sources(self) -> OnSources | None:
        """This model, if its prior has a separate GP for each source task.

        For an average of models, this property is the first such model among the averaged models.
        ``None`` if there is no such model.
        """
        return None

    @property
    def transfer_share(self) -> float:
        """The total weight of the transfer models in an average of models.

        NaN if this model is not an average.
        """
        return math.nan

    @property
    def num_target_points(self) -> int:
        """The number of target points ``n`` of each model in a batch."""
        return self.train_inputs[0].shape[-2]

    @property
    def own_units(self) -> tuple[Tensor, Tensor]:
        """The mean and standard deviation by which the outcome transform standardizes outcomes.

        Two ``batch_shape x 1`` tensors: zero and one if the transform does not standardize.
        """
        _, transform = split_transform(getattr(self, "outcome_transform", None))
        if isinstance(transform, Standardize):
            return transform.means.squeeze(-1), transform.stdvs.squeeze(-1)
        zero = self.train_targets.new_zeros(1)
        return zero, zero + 1.0

    def subset_output(self, idcs: list[int]) -> Self:
        """Selects the model's only outcome.

        Args:
            idcs: ``[0]`` or ``[-1]``.

        Returns:
            A copy of the model.

        Raises:
            ValueError: If ``idcs`` has another value.
        """
        if idcs not in ([0], [-1]):
            raise ValueError(f"The model has one outcome: idcs= must be [0] or [-1], not {idcs}.")
        return deepcopy(self)

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Computes the leave-one-out predictions of all target points, without refitting.

        Use this method instead of BoTorch's ``loo_cv``. ``loo_cv`` uses the exact GP, and raises an
        error for models whose predictions differ from the predictions of the exact GP.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A posterior of shape ``batch_shape x n x 1 x 1`` in the user's units. The dimension
            ``n`` is a batch dimension: one element for each left-out point.

        Example:
            >>> model.loo_posterior().mean.shape
            torch.Size([3, 1, 1])
        """
        (X,), transform = self.train_inputs, getattr(self, "outcome_transform", None)
        mean, variance, noise = (part.unsqueeze(-1) for part in self._leave_one_out())
        if observation_noise:
            variance = variance + noise
        steps, scale = split_transform(transform)
        if scale is not None and scale._is_linear:
            # All points are untransformed together: each model of a batch has its own scale.
            scaled: Any = scale.untransform(mean, variance, X=X)
            (mean, variance), transform = scaled, chained(steps)
        apart = GPyTorchPosterior(MultivariateNormal(mean, DiagLinearOperator(variance)))
        if transform is None:
            return apart
        return transform.untransform_posterior(apart, X=X.unsqueeze(-2))

    @abstractmethod
    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Computes leave-one-out predictions of all target points, in units of ``train_targets``.

        Returns:
            Three ``batch_shape x n`` tensors: the means, the latent function's variances, and the
            noise variances.
        """

    @torch.no_grad()
    def lengthscales(self) -> Tensor:
        """Computes the effective lengthscale of each input.

        The effective lengthscale is the standard deviation of the model's functions over the unit
        cube, divided by the root mean square of the functions' slopes along the input. Use the
        effective lengthscales to shape a trust region, like the fitted lengthscales of a
        ``SingleTaskGP``. The effective lengthscales refer to transformed inputs.

        Returns:
            A ``batch_shape x d`` tensor. Values are at most ``MAX_LENGTHSCALE``, the value of an
            input without an effect.

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
        # Pairs of points at the distance _STEP, along each input and around each point.
        ends = X.reshape(-1, 1, *ones, 1, dim) + torch.cat([-half, half], dim=-2)
        with gpt_posterior_settings():
            function, pairs = self(X.squeeze(-2)), self(ends)
        self.train(training)
        covariance, sign = function.covariance_matrix, X.new_tensor([-1.0, 1.0])
        level = covariance.mean(dim=(-2, -1))  # variance of the function's mean over the cube
        spread = covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1) - level
        spread = spread + function.mean.var(dim=-1, correction=0)
        change = (pairs.mean @ sign).square() + pairs.covariance_matrix @ sign @ sign
        change = change.mean(dim=0).movedim(0, -1)
        if self._is_ensemble:
            spread, change = spread.mean(dim=-1), change.mean(dim=-2)
        relative = change / spread.unsqueeze(-1).clamp_min(torch.finfo(X.dtype).tiny)
        return _STEP * relative.clamp_min((_STEP / MAX_LENGTHSCALE) ** 2).rsqrt()

    def source_parts(self, X: Tensor, names: Sequence[str]) -> Tensor:
        """Evaluates the contribution of each source task to the target's prior mean.

        If the prior mean is a weighted sum of the tasks' posterior means, the contribution is the
        task's term in this sum. In a :class:`PopulationGP`, the population mean is a sum with one
        term for each task's outcomes; the contribution is the task's term. In an average of models,
        the contribution is the weighted sum of the contributions in the averaged models.

        Args:
            X: An ``n x d`` tensor of transformed inputs.
            names: The names of the ``M`` source tasks.

        Returns:
            An ``M x n`` tensor in the units of ``train_targets``. Zero if the prior mean is not a
            sum over the source tasks.
        """
        return X.new_zeros(len(names), len(X))

    def _is_no_exact_gp(self) -> UnsupportedError:
        """Returns the error to raise if a BoTorch function requires an exact GP."""
        return UnsupportedError(
            f"{type(self).__name__} is not one exact GP, so BoTorch's formulas for exact GPs do "
            "not apply: call loo_posterior() instead of loo_cv(), and fit the model by "
            "fit_gpytorch_mll(mll)."
        )

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], *args: Any) -> None:
        # BoTorch's RGPE tutorial expands all tensors to a batch. If all elements are equal, the
        # first element is loaded.
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
        """Fits the model; ``fit_gpytorch_mll`` calls this method.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """


class TargetGP(TransferModel, SingleTaskGP):  # type: ignore[misc]
    r"""Base class of the transfer models that are a ``SingleTaskGP`` on the target's data.

    Derive your own transfer model from this class. A subclass supplies a prior mean and a kernel
    that depend on the source data. The model works without target points, is fitted from several
    starts, and can ignore a task column. A subclass whose predictions differ from the exact GP's
    predictions overrides :meth:`_predict`. If the correlations between the predictions differ, too,
    the subclass also overrides :meth:`_draws`. A subclass whose fit maximizes a further log
    likelihood calls :meth:`_set_loss_term`.

    Args:
        dim: The number of inputs of the source tasks; ``None`` allows any number of inputs.
        mean_module: The target's prior mean, given the source data.
        covar_module: The target's prior covariance, given the source data.
        outcome_transform: The transform to the units of ``mean_module`` and ``covar_module``.
        input_transform: The frozen transform to the inputs of ``mean_module`` and
            ``covar_module``.
        noise: Hyperprior, starting value and bounds of the default likelihood's noise variance.

    Raises:
        InputDataError: If the data have more than one outcome, if the target and the source tasks
            have different numbers of inputs, or if values are not finite.
    """

    #: Default number of starts of a fit that are drawn from the hyperpriors.
    num_restarts: int = 5

    _warns: ClassVar[bool] = True  # whether to warn about inputs and outcomes
    _fits_sources: ClassVar[bool] = False  # whether the model is also fitted to the source data

    #: Maximum number of iterations of a fit; ``None`` for the optimizer's default.
    max_fit_iterations: ClassVar[int | None] = None

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
                f"train_X= has {num_inputs} inputs, but the source tasks have {dim}: give "
                f"train_X= with the {dim} inputs of the source tasks."
            )
        # With an input transform, points may lie outside of the unit cube, but not far outside.
        atol = 0.01 if input_transform is None else 1.0
        input_transform = without_task_feature(train_X.shape[-1], task_feature, input_transform)
        if input_transform is not None:
            input_transform.train()  # transforms data according to transform_on_train
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
        if self._warns:
            warn_outside_unit_cube(self.transform_inputs(train_X), "the target", atol, train_X)
            warn_of_outcomes(train_Y, train_Yvar)

    def set_train_data(self, inputs: Any = None, targets: Any = None, strict: bool = True) -> None:
        """Replaces the training data.

        Args:
            inputs: A ``batch_shape x n x d`` tensor of transformed inputs.
            targets: A ``batch_shape x n`` tensor of transformed outcomes.
            strict: Whether the new data must have the shapes of the old data.

        Raises:
            BotorchTensorDimensionError: If the shape of ``targets`` does not fit the inputs.
        """
        X = inputs if isinstance(inputs, Tensor) else (inputs or self.train_inputs)[0]
        if targets is not None and targets.shape != (X.shape[:-1] or X.shape):  # or a vector
            raise BotorchTensorDimensionError(f"targets= needs the shape {tuple(X.shape[:-1])}.")
        super().set_train_data(inputs, targets, strict)

    # ------------------------------------------------------------------------------- predictions

    def __call__(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the model's prediction. In training mode, evaluates the exact GP's prior.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: Passed to GPyTorch in training mode.

        Returns:
            The distribution in the units of ``train_targets``.
        """
        if self.training:
            return self.exact_gp(X, **kwargs)
        return self._predict(_clamp_far_inputs(X.to(self.train_inputs[0].dtype)))

    def _predict(self, X: Tensor) -> MultivariateNormal:
        """Computes the model's prediction in evaluation mode.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.

        Returns:
            The prediction; by default, the posterior of the exact GP.
        """
        return self.exact_gp(X)

    def exact_gp(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the exact GP with the model's mean, kernel, likelihood and training data.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: Passed to GPyTorch in training mode.

        Returns:
            The posterior of the exact GP. Without target points or in training mode, the prior.

        Raises:
            InputDataError: If the covariance matrix of the data is not positive definite, even with
                some jitter. A possible cause is data that span many orders of magnitude.
        """
        (train_X,) = self.train_inputs
        columns = X.shape[-1] if X.dim() > 1 else 1  # GPyTorch treats a vector as one column
        if columns != train_X.shape[-1]:
            raise BotorchTensorDimensionError(
                f"The inputs have {columns} columns, but train_X= has {train_X.shape[-1]} columns."
            )
        if self.training:
            # Passes a view. If ``forward`` gets ``train_X`` itself, the caller is another function.
            return cast(MultivariateNormal, super().__call__(X.view_as(X), **kwargs))
        return self.strategy(X if X.dim() > 1 else X.unsqueeze(-1))

    @property
    def strategy(self) -> Strategy:
        """The exact GP's posterior given the training data, cached until the data change."""
        if self.prediction_strategy is None:
            (X,), Y = self.train_inputs, self.train_targets
            if settings.detach_test_caches.on():
                X, Y = X.detach(), Y.detach()
            modules = self.mean_module, self.covar_module
            self.prediction_strategy = Strategy(*modules, X, Y, self._noise_variance)
        return self.prediction_strategy

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Evaluates the prior of the exact GP; users call the model instead.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            The prior.

        Raises:
            UnsupportedError: If the model predicts differently from the exact GP, and a caller such
                as BoTorch's ``loo_cv`` evaluates the prior at the target's points.
        """
        if self._predicts_otherwise and x is self.train_inputs[0]:
            raise self._is_no_exact_gp()
        return cast(MultivariateNormal, super().forward(x))

    @torch.no_grad()
    def frozen(self, X: Tensor, weight: float = 1.0, offset: float = 0.0) -> FrozenPosterior | None:
        """Builds a fast posterior at single inputs, for fixed hyperparameters and data.

        Args:
            X: An ``r x d`` tensor of inputs. At a candidate, the posterior also returns the
                covariances between the candidate and the rows of ``X``.
            weight: The factor by which the outcome is multiplied.
            offset: A constant that is added to the weighted outcome.

        Returns:
            The posterior of ``offset + weight * outcome``, without a gradient with respect to the
            hyperparameters. ``None`` if there is no fast posterior. A fast posterior has three
            requirements: the model is a single exact GP with data; each term of the prior is a
            stationary kernel or a source posterior; the outcome transform, if any, is a
            ``Standardize``.
        """
        (train_X,) = self.eval().train_inputs
        scale, inputs = (getattr(self, f"{of}_transform", None) for of in ("outcome", "input"))
        is_scale = isinstance(scale, Standardize | None)
        is_scale = is_scale and not isinstance(scale, StratifiedStandardize)
        is_one_to_many = getattr(inputs, "is_one_to_many", False)
        if not is_scale or is_one_to_many or self._predicts_otherwise:
            return None

        def transform(x: Tensor) -> Tensor:
            return _clamp_far_inputs(self.transform_inputs(x).to(train_X.dtype)).double()

        mean, std = (weight * part.squeeze(-1).double() for part in self.own_units)
        fixed = torch.cat([train_X.double(), transform(X)])
        return self.strategy.frozen_at(fixed, transform, offset + mean, std)

    @property
    def _predicts_otherwise(self) -> bool:
        """Whether predictions differ from the predictions of the exact GP."""
        return type(self)._predict is not TargetGP._predict

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        """Adds the observation noise of new points to a prediction."""
        if observation_noise is True and isinstance(self.likelihood, AddedNoiseLikelihood):
            return self.likelihood(mvn, X, noise=torch.zeros_like(mvn.mean))
        return super()._apply_noise(X, mvn, observation_noise)

    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sets the model to evaluation mode, and computes leave-one-out predictions.

        Returns:
            The means, the latent function's variances, and the noise variances.
        """
        strategy, noise = self.eval().strategy, self._noise_variance()
        if not self._predicts_otherwise:
            return (*strategy.leave_one_out(), noise)
        (X,), twin = self.train_inputs, self._given(strategy.without_each())
        mvn = twin._predict(X.movedim(-2, 0).unsqueeze(-2))
        mean, variance = (part.squeeze(-1).movedim(0, -1) for part in (mvn.mean, mvn.variance))
        return mean, variance, noise

    def _given(self, strategy: Strategy, likelihood: Any = None) -> Self:
        """Returns a copy of the model with other training data.

        Args:
            strategy: The posterior of the exact GP given the other training data.
            likelihood: The likelihood of the copy; by default, a copy of the model's likelihood.
        """
        # The copy gets other data, so the old data are not copied. Data of fantasies have a graph,
        # and deep copies of such tensors would fail.
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
        """Returns the noise variances of the target's points, a ``batch_shape x n`` tensor."""
        return noise_variance(self.likelihood, self.train_inputs[0])

    def named_priors(self) -> Iterator[tuple[str, Any, Any, Any, Any]]:
        """Yields each hyperprior of the model once.

        If the mean and the kernel share a module, GPyTorch yields the module's hyperpriors twice.

        Yields:
            The name, the module, the hyperprior, and the functions that get and set the
            hyperparameter.
        """
        found: dict[Any, Any] = {}
        for entry in super().named_priors():
            found.setdefault(entry[1:3], entry)  # the module and the hyperprior
        yield from found.values()

    def get_fantasy_model(
        self, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Any
    ) -> Self:
        """Conditions a copy of the model on additional points, even if the model has no data yet.

        Args:
            inputs: A ``batch_shape x q x d`` tensor of transformed inputs.
            targets: A ``[num_fantasies x] batch_shape x q`` tensor of transformed outcomes.
            **kwargs: ``noise=``, the known noise variances of the new points.

        Returns:
            A model with the previous data and the new points.
        """
        X = inputs[0] if isinstance(inputs, list) else inputs
        if targets.shape[-1] != X.shape[-2]:
            raise BotorchTensorDimensionError(
                f"inputs= has {X.shape[-2]} points, but targets= has {targets.shape[-1]} outcomes."
            )
        if isinstance(self.likelihood, AddedNoiseLikelihood):  # all fantasies share the noise
            kwargs.setdefault("noise", targets.new_zeros(X.shape[:-1]))
        likelihood = cast(Any, self.likelihood).get_fantasy_likelihood(**kwargs)
        noise = noise_variance(likelihood, X, **kwargs).detach()
        return self._given(self.eval().strategy.with_data(X, targets, noise), likelihood)

    # ------------------------------------------------------------------------------------- paths

    @property
    def _terms(self) -> tuple[Kernel, ...]:
        """The kernels whose sum is the prior covariance; sample paths are drawn for each kernel."""
        return (self.covar_module,)

    def _draws(self, path: SamplePath, draw: Callable[[Mean, Kernel], SamplePath]) -> SamplePath:
        """Converts sample paths of the exact GP to sample paths of the model.

        In this base class, the paths are rescaled to the mean and the standard deviation of the
        model's predictions. A subclass overrides this method if the correlations of its predictions
        differ from the correlations of the exact GP.

        Args:
            path: Sample paths of the exact GP: functions of transformed inputs, in the units of
                ``train_targets``.
            draw: Function that samples paths from the GP prior with a given mean and kernel.

        Returns:
            The sample paths of the model.
        """
        return RescaledPath(path, self) if self._predicts_otherwise else path

    def prior_paths(self, sample_shape: torch.Size, **kwargs: Any) -> SamplePath:
        """Samples functions from the prior, for BoTorch's pathwise sampling.

        Args:
            sample_shape: The sample shape.
            **kwargs: ``num_features=`` and other arguments of BoTorch's
                ``draw_kernel_feature_paths``.

        Returns:
            Sample paths: functions of the user's inputs, with outcomes in the user's units.
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
        """Samples functions from the posterior. Without target points, samples from the prior.

        Args:
            prior_sampler: Function that samples paths from a model's prior.
            sample_shape: The sample shape.
            update_strategy: Function that conditions sample paths on the data, see BoTorch's
                ``draw_matheron_paths``.

        Returns:
            Sample paths: functions of the user's inputs, with outcomes in the user's units.
        """
        if self.num_target_points == 0:
            return prior_sampler(model=self, sample_shape=sample_shape)
        condition = partial(condition_paths, self.eval(), update_strategy=update_strategy)
        return self._drawn(partial(prior_sampler, sample_shape=sample_shape), condition)

    def _drawn(
        self, sampler: Callable[..., Any], condition: Callable[[SamplePath], SamplePath]
    ) -> SamplePath:
        """Draws sample paths of the model in the user's units.

        Args:
            sampler: Function that samples paths from the exact GP's prior.
            condition: Function that conditions these paths on the data.
        """

        def draw(mean: Mean, *kernels: Kernel) -> SamplePath:
            return sampler(PriorGP(self, mean, kernels))

        path = condition(draw(self.mean_module, *self._terms))
        return in_users_units(self, self._draws(path, draw))

    # --------------------------------------------------------------------------------------- fit

    def _set_loss_term(self, value: Tensor | None) -> None:
        """Sets a log likelihood that a fit adds to the target's marginal log likelihood.

        A subclass calls this method in ``forward`` in training mode, with a ``batch_shape`` tensor.
        ``None`` removes the log likelihood. A switch to evaluation mode also removes the log
        likelihood.
        """
        term = None if value is None else LogLikelihoodTerm(value)
        cast(Any, self)._added_loss_terms["log_likelihood"] = term

    def train(self, mode: bool = True) -> Self:
        """Sets training or evaluation mode.

        Args:
            mode: ``True`` for training mode, ``False`` for evaluation mode.

        Returns:
            The model.
        """
        if not mode:
            self._set_loss_term(None)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves or converts the model, and clears GPyTorch's caches of the data."""
        before = self.train_targets
        cast(Any, super())._apply(fn)
        if self.train_targets is not before:  # acquisition functions also call this without a move
            cast(Any, self)._clear_cache()
        return self

    @property
    def is_fitted_as_exact_gp(self) -> bool:
        """Whether a fit maximizes the exact GP's marginal log likelihood alone."""
        return type(self).forward is TargetGP.forward

    def custom_fit(
        self,
        mll: ExactMarginalLogLikelihood,
        num_restarts: int | None = None,
        seed: int | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> ExactMarginalLogLikelihood:
        """Fits the target's hyperparameters; ``fit_gpytorch_mll`` calls this method.

        The default fit optimizes several starts, and keeps the best optimum. Most models have a
        closed-form gradient (``gp.objective``), and all starts are optimized together. BoTorch's
        optimizer runs one start after another if a model has no closed-form gradient, or if
        ``optimizer_kwargs=`` has options that only BoTorch's optimizer supports. Some of the
        ``**kwargs``, such as ``optimizer=``, replace the default fit by BoTorch's fit. BoTorch's
        fit starts at the current hyperparameters, and draws a new start only after a failed
        attempt.

        Args:
            mll: The marginal log likelihood of this model.
            num_restarts: The number of starts that are drawn from the hyperpriors. One more start
                uses the current hyperparameters. The default is the model's ``num_restarts``.
            seed: The seed of the drawn starts; 0 by default.
            optimizer_kwargs: Arguments of the optimizer. The default optimizer takes the arguments
                of BoTorch's ``fit_gpytorch_mll_scipy``. Examples are ``{"timeout_sec": 10}``, a
                limit of ten seconds for all starts together, and ``{"options": {"maxiter": 50}}``.
                A ``callback`` gets the parameters by name and BoTorch's ``OptimizationResult`` at
                each iteration.
            **kwargs: ``optimizer=``, ``closure=``, ``closure_kwargs=``, ``warning_handler=`` and
                ``caught_exception_types=`` select BoTorch's fit. In BoTorch's fit,
                ``max_attempts=`` and ``pick_best_of_all_attempts=`` have BoTorch's meaning, and
                PyTorch's global random number generator draws the starts. In the default fit,
                ``max_attempts=`` is the total number of starts, and
                ``pick_best_of_all_attempts=`` has no effect: the best optimum is always kept.

        Returns:
            The marginal log likelihood in evaluation mode. If there are no target points, or if
            the model has no parameters to fit, the hyperparameters do not change.

        Raises:
            ModelFittingError: If no start has a finite optimum.
            ValueError: If an argument is unknown. Also if ``num_restarts=`` is combined with one of
                the ``**kwargs``, or ``seed=`` with an argument that selects BoTorch's fit.
            TypeError: If ``optimizer_kwargs=`` has an argument that the optimizer does not take.

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
        if has_parameters and (self.num_target_points > 0 or self._fits_sources):
            num_restarts = self.num_restarts if num_restarts is None else num_restarts
            mll.train()
            if of_botorch:
                fit_fallback(mll, optimizer_kwargs=given, **of_botorch)
            else:
                fit_from_starts(mll, num_restarts, seed or 0, **given)
        self._after_fit()
        return mll.eval()

    def _before_fit(self) -> None:
        """Computes values that depend only on the data, before each fit.

        In this base class, computes nothing.
        """

    def _after_fit(self) -> None:
        """Computes values that depend on the fitted hyperparameters, after each fit.

        In this base class, computes nothing.
        """


def register_paths(model_class: type[Any]) -> None:
    """Registers a model class for BoTorch's pathwise sampling.

    ``draw_kernel_feature_paths`` and ``draw_matheron_paths`` then call the methods of the class.

    Args:
        model_class: A class with ``prior_paths`` and ``posterior_paths``.
    """
    DrawKernelFeaturePaths.register(model_class)(model_class.prior_paths)
    DrawMatheronPaths.register(model_class)(model_class.posterior_paths)


register_paths(TargetGP)


#: The arguments of BoTorch's fit.
_OF_BOTORCHS_FIT = frozenset(inspect.signature(fit_fallback).parameters) - {"mll", "ignore"}

#: Arguments that set the number of starts of any fit.
_ATTEMPTS = frozenset({"max_attempts", "pick_best_of_all_attempts"})


def _check_fit_arguments(of_botorch: Mapping[str, Any], of_starts: Mapping[str, Any]) -> None:
    """Raises an error if an argument of a fit is unknown, or if two arguments exclude each other.

    Args:
        of_botorch: The given arguments of BoTorch's fit.
        of_starts: The arguments ``num_restarts`` and ``seed`` of the default fit; ``None`` for an
            argument that was not given.
    """
    if unknown := sorted(of_botorch.keys() - _OF_BOTORCHS_FIT):
        raise ValueError(
            f"A fit has no argument {unknown[0]}=: use either num_restarts= and seed=, or options "
            f"of BoTorch's fit ({', '.join(sorted(_OF_BOTORCHS_FIT - {'optimizer_kwargs'}))}). Put "
            "arguments of the optimizer into optimizer_kwargs=."
        )
    both = [name for name, value in of_starts.items() if value is not None]
    if of_botorch and both:
        raise ValueError(
            f"{both[0]}= is an option of the fit from several starts, but "
            f"{next(iter(of_botorch))}= is an option of BoTorch's fit from the current "
            "hyperparameters: give only one of these arguments."
        )
