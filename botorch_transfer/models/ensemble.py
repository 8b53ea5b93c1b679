"""How well functions rank a target's points: counts of misranked pairs, and draws to count on.

What the ensembles share: source posteriors beside the target's own GP, and their weights.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.posterior import Posterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import NormalPrior
from gpytorch.settings import skip_posterior_variances
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.hyperpriors.spec import residual_kernel
from botorch_transfer.kernels.weighted_sum import WeightedSumKernel, WeightedSumMean
from botorch_transfer.kernels.weights import EnsembleWeights
from botorch_transfer.models.inputs import PriorOrData
from botorch_transfer.models.modular import ModularTransferGP, resolve_prior
from botorch_transfer.models.target import (
    exact_leave_one_out,
    leave_one_out_posterior,
    observation_noise_variance,
)
from botorch_transfer.pretraining.source_gps.source_gps import SourceGPs


def canonical_order(X: Tensor, Y: Tensor) -> Tensor:
    """Sorts points by their outcomes, then by their inputs.

    Whatever draws numbers point by point gives the same numbers to the same points, then, in
    whichever order they come.

    Args:
        X: A ``batch_shape x n x d`` tensor of inputs.
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape x n`` tensor of indices.
    """
    order = torch.arange(Y.shape[-1], device=Y.device).expand(Y.shape)
    for key in (*X.flip(-1).unbind(dim=-1), Y):
        order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True))
    return order


def misranked_pairs(values: Tensor, Y: Tensor) -> Tensor:
    """Counts the pairs of points that functions rank otherwise than the outcomes do.

    Pairs with equal outcomes are no pairs; a function's own ties count one half.

    Args:
        values: A ``batch_shape x [M x] S x n`` tensor of the functions' values.
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape x [M x] S`` tensor.

    Example:
        >>> misranked_pairs(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1.0, 2.0, 3.0]))
        tensor([1.])
    """
    Y = Y.reshape(*Y.shape[:-1], *[1] * (values.dim() - Y.dim()), Y.shape[-1])
    count = values.new_zeros(values.shape[:-1])
    # One point against the later ones at a time: all pairs at once would need too much memory.
    for point in range(values.shape[-1] - 1):
        later = slice(point + 1, None)
        says = (values[..., later] - values[..., point : point + 1]).sign()
        is_so = (Y[..., later] - Y[..., point : point + 1]).sign()
        count = count + (is_so != 0).mul((1 - says * is_so) / 2).sum(dim=-1)
    return count


def num_pairs(Y: Tensor) -> Tensor:
    """Counts the pairs of points with different outcomes.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape`` tensor.
    """
    differ = Y.unsqueeze(-1) != Y.unsqueeze(-2)
    return differ.sum(dim=(-2, -1)).to(Y) / 2


def misranked_by_the_left_out(values: Tensor, Y: Tensor) -> Tensor:
    """Counts the pairs that leave-one-out predictions rank otherwise than the outcomes do.

    The prediction for each point, made without it, is compared with the same function's values at
    the other points. Every pair is seen from either side, and counts one half each time.

    Args:
        values: A ``batch_shape x S x n x n`` tensor: its row ``j`` is a function that does not
            know point ``j``, at all points.
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape x S`` tensor.
    """
    left_out = values.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    says = (values - left_out).sign()
    is_so = (Y.unsqueeze(-2) - Y.unsqueeze(-1)).sign().unsqueeze(-3)
    return (is_so != 0).mul((1 - says * is_so) / 2).sum(dim=(-2, -1)) / 2


def symmetric_root(covariance: Tensor) -> Tensor:
    """The symmetric square root of covariance matrices, singular ones included.

    Args:
        covariance: A ``... x n x n`` tensor.

    Returns:
        A ``... x n x n`` tensor. It is unique: rounding errors do not change it by much.
    """
    eigenvalues, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    return (vectors * eigenvalues.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT


def leave_one_out_draws(
    covariance: Tensor, noise: Tensor, residual: Tensor, latent: Tensor, error: Tensor
) -> Tensor:
    r"""Draws functions from all leave-one-out posteriors of a GP at its own points.

    By Matheron's rule, a draw ``f`` from the prior becomes one from the posterior without point
    ``j`` by adding ``K₋ⱼ (K₋ⱼ + σ²)⁻¹ (y - f - ε)₋ⱼ``, and the inverse without a row is that with
    it, corrected by rank one.

    Args:
        covariance: A ``batch_shape x n x n`` tensor: the prior covariance, noise left out.
        noise: A ``batch_shape x n`` tensor of noise variances.
        residual: A ``batch_shape x n`` tensor: outcomes minus prior mean.
        latent: A ``S x n`` tensor of standard normal numbers for ``f``.
        error: A ``S x n`` tensor of standard normal numbers for ``ε``.

    Returns:
        A ``batch_shape x S x n x n`` tensor: its row ``j`` is a draw without point ``j``, at all
        points, prior mean left out.
    """
    prior = latent @ symmetric_root(covariance)
    errors = residual.unsqueeze(-2) - prior - error * noise.sqrt().unsqueeze(-2)
    inverse = torch.cholesky_inverse(psd_safe_cholesky(covariance + noise.diag_embed()))
    solved = errors @ inverse
    gain = inverse @ covariance
    without = solved / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    update = (solved @ covariance).unsqueeze(-2) - without.unsqueeze(-1) * gain.unsqueeze(-3)
    return prior.unsqueeze(-2) + update


def own_mean(batch_shape: torch.Size) -> ConstantMean:
    """The prior mean of a GP that knows the target's data only.

    Args:
        batch_shape: The batch shape of the target model.

    Returns:
        A constant, standard normal: outcomes are standardized, though not by themselves.
    """
    return ConstantMean(constant_prior=NormalPrior(0.0, 1.0), batch_shape=batch_shape)


def own_kernel(dim: int, batch_shape: torch.Size) -> Kernel:
    """The kernel of a GP that knows the target's data only.

    Args:
        dim: The number of inputs ``d``.
        batch_shape: The batch shape of the target model.

    Returns:
        A scaled RBF kernel with a lengthscale for each input, hyperpriors those of source tasks.
    """
    return residual_kernel(dim, batch_shape, SOURCE_HYPERPARAMETERS)


class EnsembleGP(ModularTransferGP):
    """A GP that knows the target's data only, and source posteriors mixed into its predictions.

    As an exact GP, which is what a fit sees, it is the target's own alone; whatever calls it in
    evaluation mode gets the ensemble. Subclasses compute the weights, and say by
    ``has_source_covariance`` whether deviations are weighted, too.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: The :class:`SourceGPs`, or source data to fit them from.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian.
        covar_module: The kernel of the target's own GP.
        outcome_transform: By default the standardization by all source and target outcomes
            together; ``None`` if the outcomes are in the prior's units already.
        input_transform: A frozen transform of the inputs; by default the prior's.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.

    Raises:
        InputDataError: If the data are unfit; the message says which.
        TypeError: If ``prior`` is a prior of another kind.
    """

    prior: SourceGPs
    mean_module: ConstantMean

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
    ) -> None:
        sources = resolve_prior(SourceGPs, prior, input_transform)
        batch_shape = train_X.shape[:-2]
        super().__init__(
            train_X,
            train_Y,
            prior=sources,
            mean_module=own_mean(batch_shape),
            covar_module=own_kernel(sources.dim, batch_shape)
            if covar_module is None
            else covar_module,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
        )
        self.ensemble_weights = EnsembleWeights(sources.num_tasks, batch_shape)
        self.source_mean_module = WeightedSumMean(sources.gps, self.ensemble_weights)
        self.source_covar_module = WeightedSumKernel(sources.gps, self.ensemble_weights)
        self.to(train_X)
        self.update_weights()

    @property
    def weights(self) -> Tensor:
        """The source tasks' weights, a ``batch_shape x M`` tensor."""
        return self.ensemble_weights.weights

    @property
    def target_weight(self) -> Tensor:
        """The weight of the target's own GP, a ``batch_shape`` tensor."""
        return self.ensemble_weights.own

    @property
    def residual_covar_module(self) -> Kernel:
        """The kernel of the target's own GP."""
        return self.covar_module

    @abstractmethod
    def _shares(self, X: Tensor, Y: Tensor) -> Tensor:
        """Computes the weights up to a factor: ``batch_shape x (M + 1)``, the target's own last.

        Args:
            X: A ``batch_shape x n x d`` tensor of transformed inputs.
            Y: A ``batch_shape x n`` tensor of transformed outcomes.
        """

    @torch.no_grad()
    def update_weights(self) -> None:
        """Computes the weights anew from the target's data and the present hyperparameters.

        Building and fitting do so; call it after changing hyperparameters by hand.
        """
        training = self.training
        self.eval()
        (X,) = self.train_inputs
        self.ensemble_weights.set(self._shares(X, self.train_targets))
        self.train(training)

    def custom_fit(
        self, mll: ExactMarginalLogLikelihood, *args: Any, **kwargs: Any
    ) -> ExactMarginalLogLikelihood:
        """Fits the target's own GP, then computes the weights; ``fit_gpytorch_mll`` calls this.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """
        fitted = super().custom_fit(mll, *args, **kwargs)
        self.update_weights()
        return fitted

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the ensemble; in training mode the target's own GP."""
        mvn = super().__call__(*args, **kwargs)
        return mvn if self.training else self._mix(mvn, args[0])

    def _mix(self, mvn: MultivariateNormal, X: Tensor) -> MultivariateNormal:
        """Mixes the sources into the target's own posterior at ``batch_shape x q x d`` inputs."""
        X = X.expand(*mvn.batch_shape, *X.shape[-2:])
        own = self.target_weight.unsqueeze(-1)
        mean = own * mvn.mean + self.source_mean_module(X)
        if not self.has_source_covariance or skip_posterior_variances.on():
            return MultivariateNormal(mean, mvn.lazy_covariance_matrix)
        covariance = own.unsqueeze(-1).square() * mvn.covariance_matrix
        covariance = covariance + self.source_covar_module(X).to_dense()
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Predicts every target point from the others, weights and hyperparameters as they are.

        BoTorch's ``loo_cv`` reads the exact GP, the target's own, and so does not serve this model.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A posterior of shape ``batch_shape x n x 1 x 1`` in the user's units, one batch a point.

        Example:
            >>> model.loo_posterior().mean.shape
            torch.Size([3, 1, 1])
        """
        mean, variance = exact_leave_one_out(self)
        (X,) = self.train_inputs
        own = self.target_weight.unsqueeze(-1)
        mean = own * mean + self.source_mean_module(X)
        if self.has_source_covariance:
            variance = own.square() * variance + self.source_covar_module(X, diag=True)
        if observation_noise:
            variance = variance + self._noise(X)
        return leave_one_out_posterior(self, mean, variance)

    def _noise(self, X: Tensor) -> Tensor:
        """The observation noise variances of the target's points, ``batch_shape x n``."""
        return observation_noise_variance(self, X)
