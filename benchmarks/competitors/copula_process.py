"""GC3P: a Gaussian copula process with a parametric prior [Salinas2020quantile], Section 4.2.

Outcomes are replaced by normal scores (`copula`), a network says which score a point tends to have
on the source tasks (`quantile_network`), and a GP models what is left on the new task:

    r(x) = (z(x) - μ(x)) / σ(x),    z(x) ~ N(μ(x) + σ(x) m_r(x), σ(x)² v_r(x)),

`m_r` and `v_r` the posterior of a GP with a Matérn 5/2 kernel. The next point has the largest
expected improvement of `z`. That is the paper's second method; its first one, Thompson sampling
from the network alone, isn't here. It is written from what the paper says of the model; settings
of the network that it leaves open, or that weren't at hand, are ours. So is the first point, for
which there is no improvement yet: it has the largest upper bound, of three deviations.

[Salinas2020quantile]: D. Salinas, H. Shen, V. Perrone. A Quantile-based Approach for Hyperparameter
Transfer Learning. ICML 2020.
"""

from __future__ import annotations

from typing import Any, Self, cast

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    UpperConfidenceBound,
)
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior
from botorch.posteriors import GPyTorchPosterior
from botorch.settings import validate_input_scaling
from botorch.utils.transforms import normalize
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.competitors.competitor import Competitor, History
from benchmarks.competitors.copula import maximized_scores
from benchmarks.competitors.quantile_network import STEPS, QuantileNetwork, fit_quantile_network
from botorch_transfer.data import as_datasets

FIRST_BETA = 9.0


class CopulaProcess(Competitor):
    """The method.

    Args:
        network: The parametric prior.
        bounds: A `2 x d` tensor of the search space's bounds.
    """

    needs_data = False

    def __init__(self, network: QuantileNetwork, bounds: Tensor) -> None:
        self.network = network
        self.bounds = bounds

    @classmethod
    def build(cls, history: History, bounds: Tensor, seed: int, steps: int = STEPS) -> Self:
        """Learns the parametric prior; `steps` at each learning rate."""
        tasks = as_datasets(history)
        X = normalize(torch.cat([task.X for task in tasks]).to(bounds), bounds)
        Z = torch.cat([maximized_scores(task.Y) for task in tasks]).to(bounds)
        return cls(fit_quantile_network(X, Z, seed, steps), bounds)

    def acquisition(self, train_X: Tensor, train_Y: Tensor) -> AcquisitionFunction:
        """The logarithm of the expected improvement of the scores."""
        scores = maximized_scores(train_Y)
        model = self.model(train_X, scores)
        if len(scores) == 0:
            return UpperConfidenceBound(model, beta=FIRST_BETA)
        return LogExpectedImprovement(model, best_f=scores.max())

    def model(self, train_X: Tensor, scores: Tensor) -> ScoreModel:
        """The model of a new task's scores, fitted."""
        if len(scores) == 0:
            return ScoreModel(self.network, self.bounds, None)
        X = normalize(train_X, self.bounds)
        mean, deviation = self.network(X)
        residuals = (scores.squeeze(-1) - mean) / deviation
        with validate_input_scaling(False):  # they are standardized by the network
            residual_gp = SingleTaskGP(
                X,
                residuals.unsqueeze(-1),
                covar_module=get_matern_kernel_with_gamma_prior(X.shape[-1]),
                outcome_transform=None,
            )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(residual_gp.likelihood, residual_gp))
        return ScoreModel(self.network, self.bounds, residual_gp)


class ScoreModel(Model):
    """Normal scores: a network's prediction, corrected by a GP.

    Args:
        network: The parametric prior.
        bounds: A `2 x d` tensor of the search space's bounds.
        residual_gp: The GP of the residuals; without, they are independent and standard normal.
    """

    def __init__(
        self, network: QuantileNetwork, bounds: Tensor, residual_gp: SingleTaskGP | None
    ) -> None:
        super().__init__()
        self.network = network
        self.bounds = bounds
        self.residual_gp = residual_gp

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """Empty."""
        return torch.Size()

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> GPyTorchPosterior:
        """The joint distribution of the scores at a `batch_shape x q x d` tensor of points."""
        unit = normalize(X, self.bounds)
        mean, deviation = self.network(unit)
        if self.residual_gp is None:
            return GPyTorchPosterior(MultivariateNormal(mean, deviation.square().diag_embed()))
        residual = cast(GPyTorchPosterior, self.residual_gp.posterior(unit)).distribution
        scale = deviation.unsqueeze(-1) * deviation.unsqueeze(-2)
        return GPyTorchPosterior(
            MultivariateNormal(mean + deviation * residual.mean, scale * residual.covariance_matrix)
        )
