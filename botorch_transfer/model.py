"""Base class of the transfer models: a GP on the target's data, with or without any.

Read it for what all models do alike: predictions without target points, conditioning, fitting, and
leave-one-out predictions.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import gpytorch
import torch
from botorch.cross_validation import efficient_loo_cv
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
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, Mean
from gpytorch.mlls import AddedLossTerm, ExactMarginalLogLikelihood
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator import to_linear_operator
from linear_operator.operators import (
    DiagLinearOperator,
    LinearOperator,
    MatmulLinearOperator,
    ZeroLinearOperator,
)
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer._botorch import fit_fallback
from botorch_transfer.arguments import ConstructedFromDatasets, check_target, without_task_feature
from botorch_transfer.gp.combine import sharing_inputs
from botorch_transfer.gp.frozen import Expansion, Fantasies, FrozenPosterior, Part
from botorch_transfer.gp.hyperpriors import (
    RESIDUAL_HYPERPARAMETERS,
    Hyperparameter,
    default_likelihood,
)
from botorch_transfer.gp.noise import AddedNoiseLikelihood, noise_variance
from botorch_transfer.gp.paths import exact_posterior_paths, model_paths, sum_paths
from botorch_transfer.gp.restarts import fit_from_starts
from botorch_transfer.gp.stationary import Stationary, evaluate
from botorch_transfer.input_transforms import warn_outside_unit_cube

if TYPE_CHECKING:
    from botorch_transfer.modular import SourcePosteriorGP


class LogLikelihoodTerm(AddedLossTerm):
    """A further log likelihood that a fit maximizes, for instance that of the source data.

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


MAX_JOINT_POINTS = 512
"""The joint covariance of more points is evaluated only if somebody asks for it."""


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


def evaluated(covariance: LinearOperator) -> Tensor | LinearOperator:
    """Evaluates the covariance of predictions, unless it is large.

    Selecting from a lazy kernel, as noisy acquisitions do, evaluates it again. But variances of
    thousands of points, as plots ask for, need no joint covariance.

    Args:
        covariance: A ``batch_shape x q x q`` operator.

    Returns:
        A tensor; the operator itself if it is of more than ``MAX_JOINT_POINTS`` points.
    """
    return covariance if covariance.shape[-1] > MAX_JOINT_POINTS else covariance.to_dense()


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
    def member_on_sources(self) -> SourcePosteriorGP | None:
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
        transform: Any = getattr(self, "outcome_transform", None)
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
        apart = _one_batch_a_point(mean, variance)
        transform: Any = getattr(self, "outcome_transform", None)
        if transform is None:
            return apart
        (X,) = self.train_inputs
        # A transform of a batch of models counts on their batch shape, points last.
        together = GPyTorchPosterior(MultivariateNormal(mean, DiagLinearOperator(variance)))
        posterior = transform.untransform_posterior(together, X=X)
        if isinstance(posterior, GPyTorchPosterior):
            return _one_batch_a_point(posterior.mean[..., 0], posterior.variance[..., 0])
        return transform.untransform_posterior(apart, X=X.unsqueeze(-2))

    @abstractmethod
    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Predicts every target point from the others, in the model's own units.

        Returns:
            Means, variances of the latent function, and noise variances: ``batch_shape x n``
            tensors.
        """

    @torch.no_grad()
    def lengthscales(self) -> Tensor:
        """Says how far each input must move to change the outcome by its typical spread.

        It is the standard deviation over the unit cube of the functions that the model thinks
        possible, divided by the root mean square of their slopes. So it tells what the fitted
        lengthscales of a ``SingleTaskGP`` do, for instance to shape a trust region, whatever the
        model is made of. Inputs are measured after the input transform.

        Returns:
            A ``batch_shape x d`` tensor, at most ``MAX_LENGTHSCALE``, which an input without
            effect has.

        Example:
            >>> model.lengthscales().shape
            torch.Size([2])
        """
        *batch, _, dim = self.eval().train_inputs[0].shape
        cube = torch.tensor([[_STEP / 2] * dim, [1 - _STEP / 2] * dim])
        X = draw_sobol_samples(cube, n=NUM_SLOPES, q=1, seed=0).to(self.train_targets)
        ones = [1] * len(batch)
        half = (_STEP / 2 * torch.eye(dim).to(X)).reshape(dim, *ones, 1, dim)
        # Differences between two points a step apart, along each input at each point.
        ends = X.reshape(-1, 1, *ones, 1, dim) + torch.cat([-half, half], dim=-2)
        with gpt_posterior_settings():
            function, pairs = self(X.squeeze(-2)), self(ends)
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
        """Evaluates each source task's part of the mean, for ``report``.

        It is the task's term in the prior mean: weight times posterior mean; in a
        :class:`PopulationGP`, what the task's outcomes contribute to the mean of all; in an
        average, the members' parts times their shares.

        Args:
            X: An ``n x d`` tensor of transformed inputs.
            names: The names of the ``M`` source tasks.

        Returns:
            An ``M x n`` tensor in the model's own units; by default zeros, as no part is known to
            be of one source.
        """
        return X.new_zeros(len(names), len(X))

    def _is_no_exact_gp(self) -> UnsupportedError:
        """The error for formulas that would not be those of the model's predictions."""
        return UnsupportedError(
            f"{type(self).__name__} is not one exact GP, as marginal likelihoods and BoTorch's "
            "leave-one-out formulas need: call its loo_posterior() instead."
        )

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
    a task column. Subclasses whose predictions are not those of the exact GP override
    :meth:`_predict` and :meth:`_leave_one_out`; those that fit more than the target's likelihood
    call :meth:`_set_loss_term`.

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
        noise: Hyperparameter = RESIDUAL_HYPERPARAMETERS.noise,
    ) -> None:
        check_target(train_X, train_Y, train_Yvar, dim, task_feature)
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
        self.num_inputs = train_X.shape[-1] - (task_feature is not None)
        if not has_transform:  # what lies beyond the sources stays outside
            warn_outside_unit_cube(self.transform_inputs(train_X), "the target")

    # ------------------------------------------------------------------------------- predictions

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the model's predictions; in training mode the prior of its exact GP.

        Args:
            *args: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: Handed to GPyTorch.

        Returns:
            The distribution in the model's own units.
        """
        if self.training:
            return self.exact_gp(*args, **kwargs)
        X, *others = args
        return self._predict(_clamp_far_inputs(X.to(self.train_inputs[0].dtype)), *others, **kwargs)

    def _predict(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Predicts in evaluation mode: ``posterior`` and entropy search use the result.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: For :meth:`exact_gp`.

        Returns:
            By default the posterior of the exact GP.
        """
        return self.exact_gp(X, **kwargs)

    def exact_gp(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the exact GP with the model's mean, kernel, likelihood and training data.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            **kwargs: Handed to GPyTorch.

        Returns:
            Its posterior, or without target points the transferred prior; the prior in training
            mode.

        Raises:
            InputDataError: If the covariance matrix of the data is not positive definite, even with
                some jitter, because they are of very different orders of magnitude.
        """
        (train_X,) = self.train_inputs
        columns = X.shape[-1] if X.dim() > 1 else 1  # GPyTorch takes a vector for one column
        if columns != train_X.shape[-1]:
            raise BotorchTensorDimensionError(
                f"The inputs have {columns} columns, but train_X has {train_X.shape[-1]}: pass as "
                "many."
            )
        with self._as_exact_gp():
            if self.training:
                return cast(MultivariateNormal, super().__call__(X, **kwargs))
            return self._evaluate(X if X.dim() > 1 else X.unsqueeze(-1))

    def _evaluate(self, X: Tensor) -> MultivariateNormal:
        """Evaluates the exact GP's posterior, or its prior, without GPyTorch's lazy tensors.

        Unlike in GPyTorch, training and test inputs stay apart: so the former carry no graph, and
        what the sources say of them is remembered.
        """
        (train_X,), settings = self.train_inputs, gpytorch.settings
        is_prior = self.num_target_points == 0 or settings.prior_mode.on()
        kernel, is_large = self.covar_module, X.shape[-2] > MAX_JOINT_POINTS
        is_other = is_prior or is_large or settings.skip_posterior_variances.on()
        frozen = None if is_other else self._closed_form(X)
        if frozen is not None:
            mean, dense = frozen.joint(X)
            return MultivariateNormal(mean, to_linear_operator(dense))
        batch_shape = torch.broadcast_shapes(train_X.shape[:-2], X.shape[:-2])
        X = X.expand(*batch_shape, *X.shape[-2:])
        covariance: Any
        with sharing_inputs(self.mean_module, X):
            mean = self.mean_module(X)
            if is_large:  # variances alone need no joint covariance
                covariance = kernel(X)
            elif X.shape[-2] == 1:
                covariance = evaluate(kernel, X, X, diag=True).unsqueeze(-1)
            else:
                covariance = evaluate(kernel, X, X)
            cross = None if is_prior else evaluate(kernel, X, train_X)
        if cross is None:
            # A prior may be the same everywhere; optimizers ask for its derivative all the same.
            return MultivariateNormal(mean + 0.0 * X.sum(dim=-1), to_linear_operator(covariance))
        strategy = self._strategy()
        strategy._last_test_train_covar = cross.detach()  # GPyTorch asks for it, and may ignore it
        mean = mean + (cross @ strategy.mean_cache.unsqueeze(-1)).squeeze(-1)
        if settings.skip_posterior_variances.on():
            kind: Any = {"dtype": mean.dtype, "device": mean.device}
            none = ZeroLinearOperator(*mean.shape, mean.shape[-1], **kind)
            return MultivariateNormal(mean, none)
        root = strategy.covar_cache
        if root.dim() == 3 < cross.dim():  # without a copy of the members' roots for each batch
            explained = torch.einsum("...mqn,mnk->...mqk", cross, root)
        else:
            explained = cross @ root
        if is_large:
            covariance = covariance + MatmulLinearOperator(explained, -explained.mT)
        else:
            covariance = covariance - explained @ explained.mT
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def _strategy(self) -> Any:
        """GPyTorch's prediction strategy, which conditioning extends."""
        if isinstance(self.prediction_strategy, Fantasies):
            self.prediction_strategy = self.prediction_strategy.general(self)
            self.prediction_strategy.frozen = None
        if type(self.prediction_strategy) is not DefaultPredictionStrategy:
            prior = cast(Any, self)._get_train_prior_distribution(self.train_inputs)
            data = self.train_inputs, prior, self.train_targets, self.likelihood
            self.prediction_strategy = DefaultPredictionStrategy(*data)
        return self.prediction_strategy

    def _closed_form(self, X: Tensor) -> FrozenPosterior | Fantasies | None:
        """The frozen posterior of fantasies, or of the data while inputs are optimized."""
        found = self.prediction_strategy
        if not isinstance(found, Fantasies):
            # GPyTorch detaches what it remembers, too: there are no gradients in hyperparameters.
            optimized = X.requires_grad and gpytorch.settings.detach_test_caches.on()
            found = self._frozen_data() if optimized else None
        return None if found is None or found.is_too_large(X) else found

    def _frozen_data(self) -> FrozenPosterior | None:
        """The frozen posterior in the model's own units, remembered with GPyTorch's strategy."""
        with self._as_exact_gp():
            strategy = self._strategy()
        if "frozen" not in vars(strategy):
            strategy.frozen = self._frozen(self.train_inputs[0].double())
        return strategy.frozen

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Evaluates the prior of the exact GP; call the model itself instead.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            The prior.

        Raises:
            UnsupportedError: If the model predicts otherwise than its exact GP, and something asks
                for the prior at the target's points, as BoTorch's ``loo_cv`` does.
        """
        if not self._inside and self._predicts_otherwise and x is self.train_inputs[0]:
            raise self._is_no_exact_gp()
        return cast(MultivariateNormal, super().forward(x))

    _inside = False
    """Whether the model itself evaluates its exact GP."""

    @contextmanager
    def _as_exact_gp(self) -> Iterator[None]:
        """Lets :meth:`forward` be called for a while, and refuses what cannot be factorized."""
        before, self._inside = self._inside, True
        try:
            yield
        except NotPSDError as error:
            if self.training:  # a fit tries other hyperparameters
                raise
            raise InputDataError(
                "The covariance matrix of the target's data is not positive definite: give "
                "inputs in the unit cube, and outcomes in the unit of the source tasks'."
            ) from error
        finally:
            self._inside = before

    def expand(self, T: Tensor) -> Expansion | None:
        """Writes the prior in kernel values at fixed inputs, for :meth:`frozen`.

        Args:
            T: The fixed inputs, a ``T x d`` tensor.

        Returns:
            The expansion; by default of a constant mean and a stationary kernel, and ``None`` for
            others.
        """
        kernel, mean = Stationary.of(self.covar_module), self.mean_module
        if kernel is None or type(mean) is not ConstantMean:
            return None
        constants = pad(torch.stack([mean.constant, kernel.scale]), (0, len(T)))
        return Expansion([Part.of_kernel(kernel, T)], constants.double())

    @torch.no_grad()
    def frozen(self, X: Tensor) -> FrozenPosterior | None:
        """Prepares the posterior at single inputs, as long as hyperparameters and data stay.

        Args:
            X: An ``r x d`` tensor of inputs whose covariances with others will be asked for.

        Returns:
            The posterior, without graph to its hyperparameters; ``None`` if the model is no exact
            GP of stationary kernels, is a batch, has no data, or has an outcome transform that is
            no standardization.
        """
        (train_X,) = self.eval().train_inputs
        outcomes, inputs = (
            getattr(self, f"{kind}_transform", None) for kind in ("outcome", "input")
        )
        usual = isinstance(outcomes, Standardize | None)
        usual = usual and not isinstance(outcomes, StratifiedStandardize)
        if not usual or getattr(inputs, "is_one_to_many", False):
            return None

        def transform(x: Tensor) -> Tensor:
            return _clamp_far_inputs(self.transform_inputs(x).to(train_X.dtype)).double()

        units = (part.squeeze(-1).double() for part in self.own_units)
        return self._frozen(torch.cat([train_X.double(), transform(X)]), transform, *units)

    @torch.no_grad()
    def _frozen(self, T: Tensor, *options: Any) -> FrozenPosterior | None:
        """As :meth:`frozen`, of transformed fixed inputs ``T``; in the model's own units."""
        Y, noise = self.train_targets.double(), self._noise_variance().double()
        has_graph = T.requires_grad or Y.requires_grad
        if Y.dim() > 1 or len(Y) == 0 or has_graph or self._predicts_otherwise:
            return None
        prior = self.expand(T)
        if prior is None or not prior.is_exact:
            return None
        with self._as_exact_gp():
            return FrozenPosterior(prior, T, Y, noise, *options)

    @property
    def _predicts_otherwise(self) -> bool:
        """Whether predictions are not those of the exact GP."""
        own = type(self)
        same = own._leave_one_out is TargetGP._leave_one_out and own._predict is TargetGP._predict
        return not same

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
            tensors. By default those of the exact GP. The model is in evaluation mode afterwards.
        """
        with self._as_exact_gp():
            loo: Any = efficient_loo_cv(self.eval(), observation_noise=False, untransform=False)
        mean, variance = loo.posterior.mean[..., 0, 0], loo.posterior.variance[..., 0, 0]
        return mean, variance, self._noise_variance()

    def _noise_variance(self) -> Tensor:
        """The observation noise variances of the target's points, ``batch_shape x n``."""
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
        X, posterior = inputs[0] if isinstance(inputs, list) else inputs, None
        if isinstance(self.likelihood, AddedNoiseLikelihood):  # the same in all fantasies
            kwargs.setdefault("noise", targets.new_zeros(X.shape[:-1]))
        if self.eval().num_target_points > 0:
            posterior = self._frozen_data()
            fits = targets.shape[-1:] == X.shape[-2:-1] and 0 <= targets.dim() + 1 - X.dim() <= 1
            if posterior is None or not fits:
                return super().get_fantasy_model(X, targets, **kwargs)
        batch_shape = torch.broadcast_shapes(X.shape[:-2], targets.shape[:-1], self.batch_shape)
        likelihood = cast(Any, self.likelihood).get_fantasy_likelihood(**kwargs)
        model: Any = deepcopy(self, {id(self.likelihood): likelihood})
        all_X = [part.expand(*batch_shape, *part.shape[-2:]) for part in (*self.train_inputs, X)]
        all_Y = [part.expand(*batch_shape, -1) for part in (self.train_targets, targets)]
        model.set_train_data(torch.cat(all_X, dim=-2), torch.cat(all_Y, dim=-1), strict=False)
        if posterior is not None:
            data = self.prediction_strategy, posterior, likelihood, X, targets, kwargs
            model.prediction_strategy = Fantasies(*data)
        return model

    # ------------------------------------------------------------------------------------- paths

    @property
    def _terms(self) -> tuple[Kernel, ...]:
        """The kernels that the prior's covariance is the sum of, for pathwise sampling."""
        return (self.covar_module,)

    def prior_paths(self, sample_shape: torch.Size, **kwargs: Any) -> SamplePath:
        """Draws functions from the prior, for BoTorch's pathwise sampling.

        By default those of the exact GP, whose kernel is one or a sum of kernels that BoTorch has
        random features of, and of source posteriors (``WeightedSumKernel``).

        Args:
            sample_shape: The shape of the draws.
            **kwargs: ``num_features``, and what BoTorch knows besides.

        Returns:
            Paths over the user's inputs, in the user's units.
        """
        return model_paths(self, sum_paths(self, sample_shape, **kwargs))

    def posterior_paths(
        self, prior_sampler: Callable[..., Any], sample_shape: torch.Size, **kwargs: Any
    ) -> SamplePath:
        """Draws functions from the posterior, or without target points from the prior.

        By default those of the exact GP.

        Args:
            prior_sampler: Draws from the model's prior.
            sample_shape: The shape of the draws.
            **kwargs: Handed to BoTorch.

        Returns:
            Paths over the user's inputs, in the user's units.
        """
        return exact_posterior_paths(self, prior_sampler, sample_shape, **kwargs)

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
                10}``, after which all starts stop where they are; or a ``callback``, which BoTorch
                calls with the parameters by name and its ``OptimizationResult`` so far.
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
"""Those that say how many starts there are, whatever the algorithm."""


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
