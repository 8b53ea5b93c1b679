"""How much better than what is known an input may be, in closed form."""

from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.acquisition.utils import prune_inferior_points
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.transforms import is_ensemble
from gpytorch.distributions import MultivariateNormal
from torch import Tensor


class NoiselessFantasies(Model):
    """An ensemble: a model, each member of which knows what outcomes some inputs have.

    BoTorch's ``LogNoisyExpectedImprovement`` conditions a ``SingleTaskGP`` that it builds anew;
    this conditions the joint posterior of any model whose posterior is Gaussian.

    Args:
        model: The model.
        X: An ``n x d`` tensor of inputs.
        posterior_transform: What makes one outcome of the model's.
        num_fantasies: The number of members.
        seed: The seed of their outcomes, quasi-random draws of the model's posterior.

    Example:
        >>> X = torch.rand(4, 2, dtype=torch.double)
        >>> model = SingleTaskGP(X, X.sum(-1, keepdim=True))
        >>> weight = ScalarizedPosteriorTransform(torch.ones(1, dtype=torch.double))
        >>> NoiselessFantasies(model, X, weight).posterior(X.unsqueeze(-2)).mean.shape
        torch.Size([4, 32, 1, 1])
    """

    _is_ensemble = True

    def __init__(
        self,
        model: Model,
        X: Tensor,
        posterior_transform: PosteriorTransform,
        num_fantasies: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.X = X
        self.posterior_transform = posterior_transform
        with torch.no_grad():
            posterior: Any = self._joint(X)
            sampler = SobolQMCNormalSampler(torch.Size([num_fantasies]), seed=seed)
            self.outcomes = sampler(posterior).squeeze(-1)
            mvn = posterior.distribution
            covariance = mvn.covariance_matrix
            jitter = 1e-6 * covariance.diagonal().mean() * torch.eye(len(X)).to(X)
            self.factor = torch.linalg.cholesky_ex(covariance + jitter).L
            surprise = (self.outcomes - mvn.mean).T
            self.whitened = torch.linalg.solve_triangular(self.factor, surprise, upper=False)

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    def best_outcomes(self) -> Tensor:
        """What is best of what each member knows, a ``num_fantasies x 1`` tensor."""
        return self.outcomes.amax(dim=-1, keepdim=True)

    def _joint(self, X: Tensor) -> Any:
        return self.model.posterior(X, posterior_transform=self.posterior_transform)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior:
        """Evaluates the members' posteriors.

        Args:
            X: A ``batch_shape x 1 x d`` tensor of inputs.
            output_indices: Ignored.
            observation_noise: Ignored.
            posterior_transform: Ignored.

        Returns:
            Their posterior, of moments ``batch_shape x num_fantasies x 1 x 1``.
        """
        known = self.X.expand(*X.shape[:-2], *self.X.shape)
        mvn = self._joint(torch.cat([X, known], dim=-2)).distribution
        covariance = mvn.covariance_matrix
        cross = covariance[..., 1:, :1]
        weights = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        variance = covariance[..., :1, :1] - weights.square().sum(dim=-2, keepdim=True)
        mean = mvn.mean[..., :1] + (weights.transpose(-1, -2) @ self.whitened).squeeze(-2)
        variance = variance.clamp_min(1e-12).expand(*mean.shape[:-1], 1, 1).unsqueeze(-3)
        variance = variance.expand(*mean.shape, 1, 1)
        return GPyTorchPosterior(MultivariateNormal(mean.unsqueeze(-1), variance))


def noisy_improvement(
    model: Model, objective_weights: Tensor, X_observed: Tensor, seed: int = 0
) -> LogExpectedImprovement | None:
    """Makes the logarithm of noisy expected improvement over what was observed, analytically.

    It is what ``qLogNoisyExpectedImprovement`` estimates of samples. Under a sharp prior a sample
    that is off by four standard deviations, one in some hundred inputs, may outweigh all else far
    from the optimum; here the expectation at a candidate is exact, and only what was observed is
    sampled.

    Args:
        model: The model.
        objective_weights: A ``1 x m`` tensor of the weights of its outcomes; their weighted sum is
            maximized.
        X_observed: An ``n x d`` tensor of inputs.
        seed: The seed of samples.

    Returns:
        The acquisition function of single inputs; ``None`` if posteriors are not Gaussian, as those
        of an ensemble.

    Example:
        >>> X = torch.rand(4, 2, dtype=torch.double)
        >>> model = SingleTaskGP(X, X.sum(-1, keepdim=True))
        >>> improvement = noisy_improvement(model, torch.ones(1, 1, dtype=torch.double), X)
        >>> improvement(torch.rand(5, 1, 2, dtype=torch.double)).shape
        torch.Size([5])
    """
    transform = ScalarizedPosteriorTransform(objective_weights[0].to(X_observed))
    with torch.no_grad():
        posterior: Any = (
            None
            if is_ensemble(model)
            else model.posterior(X_observed, posterior_transform=transform)
        )
    if type(posterior) is not GPyTorchPosterior:
        return None
    sampler = SobolQMCNormalSampler(torch.Size([512]), seed=seed)
    best = prune_inferior_points(model, X_observed, posterior_transform=transform, sampler=sampler)
    fantasies = NoiselessFantasies(model, best, transform, seed=seed)
    return LogExpectedImprovement(fantasies, best_f=fantasies.best_outcomes)
