"""Base class of the ensembles: source posteriors beside a GP that knows the target's data only.

Read it for what RGPE (``rank_weighted``) and SGPT (``two_stage``) have in common: the mixture, and
the count of misranked pairs of target points from which both take their weights.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, Mean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import NormalPrior
from gpytorch.settings import skip_posterior_variances
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_transfer.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.kernels.weighted_sum import WeightedSumKernel, WeightedSumMean
from botorch_transfer.kernels.weights import EnsembleWeights
from botorch_transfer.models.modular import SourcePosteriorGP
from botorch_transfer.models.report import transfer_report
from botorch_transfer.pretraining.source_gps.conditioned_prior import ConditionedPrior
from botorch_transfer.pretraining.source_gps.source_gps import SourceGPs


class EnsembleGP(SourcePosteriorGP):
    """Base class of the ensembles of source posteriors and the target's own GP.

    A fit sees the target's own GP alone. Predictions are those of the ensemble, with weights that
    are computed when the model is built and again by each fit, and frozen in between: conditioning,
    fantasies and leave-one-out predictions keep them. Subclasses compute the weights, and say by
    ``has_source_covariance`` whether the sources' covariances are weighted, too.

    BoTorch's analytic noisy expected improvement rebuilds an exact GP from mean and kernel, and so
    sees the target's own only: take ``qLogNoisyExpectedImprovement``.

    Args:
        covar_module: The kernel of the target's own GP; by default a scaled RBF kernel with a
            lengthscale for each input, hyperpriors those of source tasks.

    Raises:
        ValueError: If the input transform is not frozen, or not the prior's.
    """

    residual_hyperparameters = SOURCE_HYPERPARAMETERS
    prior: SourceGPs
    mean_module: ConstantMean

    transfer_report = transfer_report

    def _mean_and_kernel(
        self, prior: ConditionedPrior, residual: Kernel, batch_shape: torch.Size
    ) -> tuple[Mean, Kernel]:
        return own_mean(batch_shape), residual

    def _add_parts(self) -> None:
        gps = self.prior.gps
        self.ensemble_weights = EnsembleWeights(gps.num_tasks, self.batch_shape)
        self.source_mean_module = WeightedSumMean(gps, self.ensemble_weights)
        self.source_covar_module = WeightedSumKernel(gps, self.ensemble_weights)
        self.to(self.train_targets)
        self.update_weights()

    @property
    def weights(self) -> Tensor:
        """The source tasks' weights, a ``batch_shape x M`` tensor."""
        return self.ensemble_weights.weights

    @property
    def target_weight(self) -> Tensor:
        """The weight of the target's own GP, a ``batch_shape`` tensor."""
        return self.ensemble_weights.own

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

    def _predict(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        mvn = self.exact_gp(X, **kwargs)
        X = X.expand(*mvn.batch_shape, *X.shape[-2:])
        own = self.target_weight.unsqueeze(-1)
        mean = own * mvn.mean + self.source_mean_module(X)
        if not self.has_source_covariance or skip_posterior_variances.on():
            return MultivariateNormal(mean, mvn.lazy_covariance_matrix)
        covariance = own.unsqueeze(-1).square() * mvn.covariance_matrix
        covariance = covariance + self.source_covar_module(X).to_dense()
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance, noise = super()._leave_one_out()
        (X,) = self.train_inputs
        own = self.target_weight.unsqueeze(-1)
        if self.has_source_covariance:
            variance = own.square() * variance + self.source_covar_module(X, diag=True)
        return own * mean + self.source_mean_module(X), variance, noise


def own_mean(batch_shape: torch.Size) -> ConstantMean:
    """The prior mean of a GP that knows the target's data only.

    Args:
        batch_shape: The batch shape of the target model.

    Returns:
        A constant, standard normal: outcomes are standardized, though not by themselves.
    """
    return ConstantMean(constant_prior=NormalPrior(0.0, 1.0), batch_shape=batch_shape)


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
        later, this = slice(point + 1, None), slice(point, point + 1)
        count = count + disagreements(
            values[..., later] - values[..., this], Y[..., later] - Y[..., this]
        )
    return count


def disagreements(differences: Tensor, observed: Tensor) -> Tensor:
    """Counts the differences of a function that have another sign than those of the outcomes.

    Args:
        differences: A ``... x n`` tensor: the function's; zero counts one half.
        observed: A ``... x n`` tensor: the outcomes'; where they are zero, nothing counts.

    Returns:
        A ``...`` tensor.
    """
    return (observed != 0).mul((1 - differences.sign() * observed.sign()) / 2).sum(dim=-1)
