r"""RGPE and SGPT: ensembles of source posteriors and a GP on the target's data only.

The *members* of an ensemble are the source posteriors and the target's own GP. Both ensembles
weight a source by how well the source ranks the target's points. In RGPE, the weight is the
fraction of posterior samples in which a member misranks the fewest pairs of points. In SGPT, also
known as TST-R, the weight is an Epanechnikov kernel of the fraction of pairs that a source's mean
misranks. To use other weights, write a subclass of :class:`EnsembleGP`.

.. [Feurer2018rgpe]
    M. Feurer, B. Letham, F. Hutter and E. Bakshy. Practical Transfer Learning for Bayesian
    Optimization. arXiv:1802.02219.
.. [Wistuba2016sgpt]
    M. Wistuba, N. Schilling and L. Schmidt-Thieme. Two-Stage Transfer Surrogate Model for Automatic
    Hyperparameter Optimization. ECML PKDD 2016.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.settings import skip_posterior_variances
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.gp.combine import EnsembleWeights, WeightedSumKernel, WeightedSumMean
from botorch_transfer.gp.conditioned import in_parts
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS, GPHyperparameters, own_mean
from botorch_transfer.gp.paths import ScaledPath
from botorch_transfer.gp.strategy import evaluated
from botorch_transfer.gp.tasks import lexical_order
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.prior import ConditionedPrior
from botorch_transfer.sources.prior import SourceGPs

#: The number of RGPE's posterior samples, and the seed of the samples.
NUM_SAMPLES, SEED = 256, 0

#: SGPT's bandwidth ``ρ``: a source that misranks at least the share ``ρ`` of pairs has weight zero.
BANDWIDTH = 0.1


class EnsembleGP(SourcePosteriorGP):
    """Base class of ensembles whose members are the source posteriors and the target's own GP.

    Only the target's own GP is fitted. The constructor and each fit compute the weights of the
    ensemble. Conditioning, fantasies and leave-one-out predictions keep the weights. Subclasses
    compute the weights, and set ``has_source_covariance`` if the ensemble's covariance includes the
    sources' covariances.

    Use ``qLogNoisyExpectedImprovement``, not BoTorch's analytic noisy expected improvement, which
    rebuilds an exact GP from mean and kernel. The rebuilt GP ignores the sources.

    Args:
        covar_module: The kernel of the target's own GP; by default a scaled RBF kernel with a
            lengthscale for each input, and the same hyperpriors as the GPs of source tasks.

    Raises:
        ValueError: If the input transform is not frozen, or differs from the prior's transform.
    """

    prior_class = SourceGPs

    prior: SourceGPs
    #: Whether the ensemble's covariance includes the sources' posterior covariances.
    has_source_covariance: ClassVar[bool] = True

    def _own_hyperparameters(self, prior: ConditionedPrior) -> GPHyperparameters:
        """Returns the default hyperpriors of the target's own GP, the same as for a source task."""
        return SOURCE_HYPERPARAMETERS

    def _mean_and_kernel(
        self, prior: ConditionedPrior, residual: Kernel, batch_shape: torch.Size
    ) -> tuple[Mean, Kernel]:
        return own_mean(batch_shape), residual

    def _add_parts(self) -> None:
        gps = self.prior.gps
        weights = EnsembleWeights(gps.num_tasks, self.batch_shape)
        self.ensemble_weights = weights.to(self.train_targets)
        self.source_mean_module = WeightedSumMean(gps, self.ensemble_weights)
        self.source_covar_module = WeightedSumKernel(gps, self.ensemble_weights)
        self.update_weights()

    @property
    def _source_mean(self) -> Mean:
        return self.source_mean_module

    @property
    def target_weight(self) -> Tensor:
        """The weight of the target's own GP, a ``batch_shape`` tensor."""
        return self.ensemble_weights.own

    @abstractmethod
    def _shares(self, X: Tensor, Y: Tensor) -> Tensor:
        """Computes the unnormalized weights of the source posteriors and of the target's own GP.

        Args:
            X: A ``batch_shape x n x d`` tensor of the target's transformed inputs.
            Y: A ``batch_shape x n`` tensor of the target's transformed outcomes.

        Returns:
            A ``batch_shape x (M + 1)`` tensor, for ``M`` source tasks. The last weight belongs to
            the target's own GP.
        """

    @torch.no_grad()
    def update_weights(self) -> None:
        """Recomputes the weights from the target's data and the present hyperparameters.

        The constructor and each fit call this method. Call this method yourself after you change
        hyperparameters.
        """
        (X,) = self.train_inputs  # already transformed in evaluation mode
        X = self.transform_inputs(X) if self.training else X
        self.ensemble_weights.set(self._shares(X, self.train_targets))

    def _after_fit(self) -> None:
        self.update_weights()

    def _predict(self, X: Tensor) -> MultivariateNormal:
        mvn = self.exact_gp(X)
        X = X.expand(*mvn.batch_shape, *X.shape[-2:])
        own = self.target_weight.unsqueeze(-1)
        mean = own * mvn.mean + self.source_mean_module(X)
        if not self.has_source_covariance or skip_posterior_variances.on():
            return MultivariateNormal(mean, mvn.lazy_covariance_matrix)
        covariance = evaluated(mvn.lazy_covariance_matrix) * own.unsqueeze(-1).square()
        covariance = covariance + evaluated(self.source_covar_module(X))
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def _draws(self, path: SamplePath, draw: Callable[[Mean, Kernel], SamplePath]) -> SamplePath:
        if not self.has_source_covariance:
            return super()._draws(path, draw)
        sources = draw(self.source_mean_module, self.source_covar_module)
        paths = {"own": ScaledPath(path, self.target_weight), "sources": sources}
        return PathDict(paths, sum)  # type: ignore[arg-type]


def misranked_pairs(values: Tensor, Y: Tensor) -> Tensor:
    """Counts the pairs of points that a function orders differently than the outcomes do.

    Pairs with equal outcomes are skipped. Pairs with equal function values count one half.

    Args:
        values: A ``batch_shape x [M x] S x n`` tensor: the values of ``S`` functions at ``n``
            points, for each of ``M`` models if this dimension is present.
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape x [M x] S`` tensor with the number of misranked pairs for each function.

    Example:
        >>> misranked_pairs(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1.0, 2.0, 3.0]))
        tensor([1.])
    """
    Y = Y.reshape(*Y.shape[:-1], *[1] * (values.dim() - Y.dim()), Y.shape[-1])
    count = values.new_zeros(values.shape[:-1])
    # Compares one point at a time with all later points, because all pairs at once would need too
    # much memory.
    for point in range(values.shape[-1] - 1):
        pairs = (each[..., point + 1 :] - each[..., point : point + 1] for each in (values, Y))
        count = count + disagreements(*pairs)
    return count


def disagreements(differences: Tensor, observed: Tensor) -> Tensor:
    """Counts the pairs of points whose order by function values differs from the order by outcomes.

    Args:
        differences: A ``... x n`` tensor: for each of ``n`` pairs, the difference of function
            values. If the difference is zero, the pair counts one half.
        observed: A ``... x n`` tensor: for each pair, the difference of outcomes. If the difference
            is zero, the pair is not counted.

    Returns:
        A ``...`` tensor of counts.
    """
    return (observed != 0).mul((1 - differences.sign() * observed.sign()) / 2).sum(dim=-1)


class RankWeightedGP(EnsembleGP):
    r"""RGPE [Feurer2018rgpe]_: an ensemble weighted by ranks.

    The prediction is the posterior of ``f = Σ_m w_m f_m + w_t f_t``, with the source posteriors
    ``f_m`` and the posterior ``f_t`` of a GP on the target's data only:

    .. code-block:: text

        mean(x) = Σ_m w_m μ_m(x) + w_t μ_t(x)
        covariance(x, x') = Σ_m w_m² Σ_m(x, x') + w_t² Σ_t(x, x')

    Each source posterior is sampled ``NUM_SAMPLES`` times at the target's points. The target's own
    model is sampled as often, but from its leave-one-out posteriors. A model's weight is the
    fraction of samples in which the model misranks the fewest pairs of points. If several models
    tie in a sample, the sample is divided equally among these models. Each sample of a model has
    its own number of misranked pairs. A source has weight zero if the median of its numbers exceeds
    the 95th percentile of the numbers of the target's own model. Use the class if the sources
    resemble the target up to a monotone transform of their outcomes, because ranks do not depend on
    offsets and scales.

    The constructor and each fit compute the weights; conditioning, fantasies and leave-one-out
    predictions keep the weights. With fewer than two target points there are no pairs to rank, so
    the source posteriors and the target's own GP all have the same weight.

    Use ``qLogNoisyExpectedImprovement``, not BoTorch's analytic noisy expected improvement, which
    rebuilds an exact GP from mean and kernel. The rebuilt GP ignores the sources.

    Args:
        covar_module: The kernel of the target's own GP; by default a scaled RBF kernel with a
            lengthscale for each input.

    Raises:
        ValueError: If the input transform is not frozen, or differs from the prior's transform.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = RankWeightedGP(X[:4], X[:4, :1], history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.weights.shape
        torch.Size([2])
    """

    def _shares(self, X: Tensor, Y: Tensor) -> Tensor:
        if X.shape[-2] < 2:
            return torch.ones_like(self.ensemble_weights.shares)
        # Points are sorted, so that each point has the same random numbers for any order of the
        # data.
        order = lexical_order(*X.flip(-1).unbind(dim=-1), Y)
        X = X.gather(-2, order.unsqueeze(-1).expand(X.shape))
        covariance, mean = self.covar_module(X).to_dense().double(), self.mean_module(X).double()
        noise, Y = (part.gather(-1, order).double() for part in (self._noise_variance(), Y))
        X = X.double()
        # All sources share the base samples, so that the order of the sources does not matter.
        own, error, sources = base_samples(X, NUM_SAMPLES, SEED)
        root = symmetric_root(self.prior.gps.covariance(X))
        values = self.prior.gps.mean(X).unsqueeze(-2) + sources @ root

        def own_losses(samples: Tensor) -> Tensor:
            draws = leave_one_out_draws(covariance, noise, Y - mean, *samples.chunk(2, dim=-1))
            return misranked_by_the_left_out(draws + mean[..., None, None, :], Y)

        losses = in_parts(own_losses, torch.cat([own, error], dim=-1), Y.numel() * Y.shape[-1])
        return rank_weights(misranked_pairs(values, Y), losses)


def base_samples(X: Tensor, num_samples: int, seed: int) -> Tensor:
    """Draws the standard normal base samples from which RGPE computes posterior samples.

    Args:
        X: A ``batch_shape x n x d`` tensor of inputs, used for ``n``, dtype and device.
        num_samples: The number of posterior samples ``S``.
        seed: The seed; the numbers are the same on every device.

    Returns:
        A ``3 x S x n`` tensor: base samples of the target's function, of the target's observation
        errors, and of the sources' functions.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, num_samples, X.shape[-2], generator=generator, dtype=torch.double).to(X)


def misranked_by_the_left_out(values: Tensor, Y: Tensor) -> Tensor:
    """Counts the pairs of points that samples from leave-one-out posteriors misrank.

    For each point, a function is sampled from the posterior without this point. The function's
    value at this point is compared with the same function's values at the other points. So each
    pair is compared twice, once for each of its points. Each misranked comparison counts one half.

    Args:
        values: A ``batch_shape x S x n x n`` tensor: row ``j`` has the values, at all points, of a
            function that is sampled without the outcome of point ``j``.
        Y: A ``batch_shape x n`` tensor of outcomes.

    Returns:
        A ``batch_shape x S`` tensor with the number of misranked pairs for each sample.
    """
    left_out = values.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    observed = (Y.unsqueeze(-2) - Y.unsqueeze(-1)).unsqueeze(-3)
    return disagreements(values - left_out, observed).sum(dim=-1) / 2


def symmetric_root(covariance: Tensor) -> Tensor:
    """Returns the symmetric square root of each covariance matrix; a matrix may be singular.

    Args:
        covariance: A ``... x n x n`` tensor.

    Returns:
        A ``... x n x n`` tensor. The root is unique, so rounding errors change it little.
    """
    eigenvalues, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    return (vectors * eigenvalues.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT


def leave_one_out_draws(
    covariance: Tensor, noise: Tensor, residual: Tensor, latent: Tensor, error: Tensor
) -> Tensor:
    r"""Samples from all leave-one-out posteriors of a GP, at the GP's training points.

    Let ``f`` be a prior sample and ``ε`` a sample of the noise. By Matheron's rule,
    ``f + K₋ⱼ (K₋ⱼ + σ²)⁻¹ (y - f - ε)₋ⱼ`` is a sample from the posterior without point ``j``, where
    the subscript leaves out point ``j``. The inverse without this point is a rank-one update of the
    full inverse.

    Args:
        covariance: A ``batch_shape x n x n`` tensor: the prior covariance, without noise.
        noise: A ``batch_shape x n`` tensor of noise variances.
        residual: A ``batch_shape x n`` tensor: outcomes minus prior mean.
        latent: A ``S x n`` tensor of standard normal numbers for ``f``.
        error: A ``S x n`` tensor of standard normal numbers for ``ε``.

    Returns:
        A ``batch_shape x S x n x n`` tensor: row ``j`` has the values, at all points, of a sample
        from the posterior without point ``j``. The prior mean is subtracted from the values.
    """
    prior = latent @ symmetric_root(covariance)
    errors = residual.unsqueeze(-2) - prior - error * noise.sqrt().unsqueeze(-2)
    inverse = torch.cholesky_inverse(psd_safe_cholesky(covariance + noise.diag_embed()))
    solved = errors @ inverse
    gain = inverse @ covariance
    without = solved / inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    update = (solved @ covariance).unsqueeze(-2) - without.unsqueeze(-1) * gain.unsqueeze(-3)
    return prior.unsqueeze(-2) + update


def rank_weights(source_losses: Tensor, own_losses: Tensor) -> Tensor:
    """Computes RGPE's weights from numbers of misranked pairs (Sec. 4 of [Feurer2018rgpe]_).

    Args:
        source_losses: A ``batch_shape x M x S`` tensor: for each source, the number of pairs that
            each posterior sample misranks.
        own_losses: A ``batch_shape x S`` tensor: the same numbers for the target's own model.

    Returns:
        A ``batch_shape x (M + 1)`` tensor: for each model, the fraction of samples in which this
        model misranks the fewest pairs. The last weight belongs to the target's own model.

    Example:
        >>> rank_weights(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0, 1.0]))
        tensor([0.7500, 0.2500])
    """
    limit = own_losses.quantile(0.95, dim=-1, keepdim=True)
    useless = source_losses.quantile(0.5, dim=-1) > limit
    losses = source_losses.masked_fill(useless.unsqueeze(-1), torch.inf)
    losses = torch.cat([losses, own_losses.unsqueeze(-2)], dim=-2)
    best = (losses == losses.amin(dim=-2, keepdim=True)).to(losses)
    return (best / best.sum(dim=-2, keepdim=True)).mean(dim=-1)


class TwoStageTransferGP(EnsembleGP):
    r"""SGPT / TST-R [Wistuba2016sgpt]_: a weighted mean, and the target's own covariance.

    With the means ``μ_m`` of the source posteriors, and the posterior ``(μ_t, Σ_t)`` of a GP on the
    target's data only, the prediction is

    .. code-block:: text

        mean(x) = Σ_m w_m μ_m(x) + w_t μ_t(x)        covariance(x, x') = Σ_t(x, x')

    Let ``r_m`` be the fraction of pairs of target points that a source's mean misranks. The
    source's weight is proportional to an Epanechnikov kernel: ``¾ (1 - (r_m / ρ)²)`` if
    ``r_m < ρ = 0.1``, else zero. The weight of the target's own GP is proportional to ¾, like the
    weight of a source without misranked pairs. Use the class if few of many sources resemble the
    target. The predicted uncertainty equals the uncertainty of the target's own GP.

    The constructor and each fit compute the weights; conditioning, fantasies and leave-one-out
    predictions keep the weights. With fewer than two target points there are no pairs to rank, so
    the source posteriors and the target's own GP all have the same weight.

    Use ``qLogNoisyExpectedImprovement``, not BoTorch's analytic noisy expected improvement, which
    rebuilds an exact GP from mean and kernel. The rebuilt GP ignores the sources.

    Args:
        covar_module: The kernel of the target's own GP; by default a scaled RBF kernel with a
            lengthscale for each input.

    Raises:
        ValueError: If the input transform is not frozen, or differs from the prior's transform.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = TwoStageTransferGP(X[:4], X[:4, :1], history)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    has_source_covariance = False

    def _shares(self, X: Tensor, Y: Tensor) -> Tensor:
        misranked = misranked_pairs(self.prior.gps.mean(X).unsqueeze(-2), Y).squeeze(-1)
        num_pairs = (Y.unsqueeze(-1) != Y.unsqueeze(-2)).sum(dim=(-2, -1)).to(Y) / 2
        share = misranked / num_pairs.clamp_min(1.0).unsqueeze(-1)
        share = torch.cat([share, torch.zeros_like(share[..., :1])], dim=-1)
        return 0.75 * (1 - (share / BANDWIDTH).square()).clamp_min(0.0)  # Epanechnikov's kernel
