r"""RM-GP-UCB: a weighted sum of all tasks' upper confidence bounds [Dai2022provably].

With the posteriors `(m_i, s_i)` of the source tasks' GPs and `(m_t, s_t)` of the target's after
`t` observations, the next point maximizes

    ν_t Σ_i ω_{t,i} [m_i(x) + τ s_i(x)] + (1 - ν_t) [m_t(x) + β s_t(x)],

`0 ≤ ν_t ≤ 1`, `Σ_i ω_{t,i} = 1`. How far a task is from the target is bounded on its own points,

    d̄_{t,i} = max_j { |y_ij - m_t(x_ij)| + β s_t(x_ij) } + √(2 σ_i² log(2 N_i / δ)),

the last term the noise's (a union bound). Weights come from online learning with the bounds as
losses: follow the leader with an entropic regularizer, so `ω_{t,i} ∝ exp(-η_t Σ_{s≤t} d̄_{s,i})`.

The paper's text was not at hand: the formulas are our understanding of the method, and a result of
this implementation is one of "our reading of RM-GP-UCB". As in App. C.4 of
[Tighineanu2023scaml]: `β = τ = 3`, `δ = 0.05`, and bounds in units that don't
depend on the outcomes'. Two things that the paper leaves to its experiments, or that weren't at
hand, are ours: the learning rate `η_t = √(8 log M / t) / (largest - smallest bound so far)`, which
is the usual one for bounded losses; and

    ν_t = 1 / (1 + √t Σ_i ω_{t,i} d̄_{t,i} / Σ_i ω_{t,i} d̄_{0,i}),

which is one before there are data, falls to zero, as convergence asks for, and falls the faster,
the less the bounds have come down from where they began. Source outcomes are standardized task by
task, the target's by the mean and deviation of all outcomes together, as for ScaML-GP.

[Dai2022provably]: Z. Dai et al. On Provably Robust Meta-Bayesian Optimization. UAI 2022.
[Tighineanu2023scaml]: P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes.
AISTATS 2024.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self, cast

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.settings import validate_input_scaling
from botorch.utils.transforms import normalize
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from benchmarks.competitors.competitor import Competitor, History
from botorch_transfer import SourceGPs
from botorch_transfer.data import as_datasets

BETA = TAU = 3.0
DELTA = 0.05


class Mixture(NamedTuple):
    """How much each bound counts.

    Args:
        share: The weight `ν` of all source tasks together.
        weights: An `M` tensor `ω` of each one's part in that.
    """

    share: float
    weights: Tensor


class RobustMetaUCB(Competitor):
    """The method.

    Args:
        sources: The source tasks' GPs on the unit cube.
        bounds: A `2 x d` tensor of the search space's bounds.
    """

    needs_data = False

    def __init__(self, sources: SourceGPs, bounds: Tensor) -> None:
        self.sources = sources
        self.bounds = bounds

    @classmethod
    def build(cls, history: History, bounds: Tensor, seed: int) -> Self:
        """Fits the source tasks' GPs."""
        tasks = {
            name: (normalize(task.X.to(bounds), bounds), task.Y.to(bounds))
            for name, task in zip(history, as_datasets(history), strict=True)
        }
        return cls(SourceGPs.fit_once(tasks, seed=seed), bounds)

    def acquisition(self, train_X: Tensor, train_Y: Tensor) -> AcquisitionFunction:
        """The weighted sum of upper confidence bounds."""
        num_tasks = self.sources.num_tasks
        if len(train_Y) == 0:
            uniform = self.bounds.new_full((num_tasks,), 1 / num_tasks)
            return MixedUCB(self.sources, None, self.bounds, Mixture(1.0, uniform))
        target = self.target(train_X, train_Y)
        mixture = mix(gap_bounds(target, self.sources))
        return MixedUCB(self.sources, target, self.bounds, mixture)

    def target(self, train_X: Tensor, train_Y: Tensor) -> SingleTaskGP:
        """The target's own GP, fitted."""
        everything = torch.cat([self.sources.outcomes(), train_Y.squeeze(-1)])
        deviation = everything.std()
        Y = (train_Y - everything.mean()) / (deviation if deviation > 0 else 1.0)
        with validate_input_scaling(False):
            model = SingleTaskGP(normalize(train_X, self.bounds), Y, outcome_transform=None)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model


class MixedUCB(AcquisitionFunction):
    """The weighted sum.

    Args:
        sources: The source tasks' GPs.
        target: The target's GP; needless where it has no weight.
        bounds: A `2 x d` tensor of the search space's bounds.
        mixture: The weights.
    """

    def __init__(
        self, sources: SourceGPs, target: SingleTaskGP | None, bounds: Tensor, mixture: Mixture
    ) -> None:
        super().__init__(model=cast(Model, sources if target is None else target))
        self.sources = sources
        self.target = target
        self.bounds = bounds
        self.mixture = mixture

    def forward(self, X: Tensor) -> Tensor:
        """Evaluates it at a `b x 1 x d` tensor of points."""
        unit = normalize(X, self.bounds).squeeze(-2)
        mean, variance = self.sources.moments(unit)
        value = self.mixture.share * (self.mixture.weights @ (mean + TAU * variance.sqrt()))
        if self.target is None:
            return value
        own = self.target.posterior(unit.unsqueeze(-2))
        bound = own.mean + BETA * own.variance.sqrt()
        return value + (1 - self.mixture.share) * bound.flatten()


def gap_bounds(target: SingleTaskGP, sources: SourceGPs) -> Tensor:
    """Bounds on how far each source task is from the target, as its observations came in.

    Args:
        target: The target's GP; its hyperparameters stay, its data are taken one by one.
        sources: The source tasks' GPs.

    Returns:
        A `(t + 1) x M` tensor; row `s` knows the first `s` observations.
    """
    gps = sources.gps
    num_points = sources.num_points
    mean, variance = _prefix_posteriors(target, gps.train_X[gps.mask])
    distance = (gps.train_Y[gps.mask] - mean).abs() + BETA * variance.sqrt()
    largest = torch.stack([part.amax(-1) for part in distance.split(num_points.tolist(), -1)], -1)
    noise = (gps.noise * gps.mask).amax(dim=-1)
    return largest + (2 * noise * torch.log(2 * num_points / DELTA)).sqrt()


@torch.no_grad()
def _prefix_posteriors(target: SingleTaskGP, X: Tensor) -> tuple[Tensor, Tensor]:
    """The target's posterior given its first 0, 1, …, t observations.

    A Cholesky factor's leading block is the factor of the leading block, so one is enough for all.

    Args:
        target: The target's GP.
        X: An `N x d` tensor of points.

    Returns:
        Means and variances, two `(t + 1) x N` tensors.
    """
    (train_X,), Y = target.train_inputs, target.train_targets
    noise = target.likelihood.noise
    covariance = target.covar_module(train_X).to_dense()
    factor = psd_safe_cholesky(covariance + noise * torch.eye(len(Y)).to(covariance))
    cross = target.covar_module(train_X, X).to_dense()
    whitened = torch.linalg.solve_triangular(
        factor,
        torch.cat([cross, (Y - target.mean_module(train_X)).unsqueeze(-1)], dim=-1),
        upper=False,
    )
    cross, outcomes = whitened[:, :-1], whitened[:, -1:]
    none = cross.new_zeros(1, len(X))
    mean = target.mean_module(X) + torch.cat([none, (cross * outcomes).cumsum(dim=0)])
    prior = target.covar_module(X, diag=True)
    variance = prior - torch.cat([none, cross.square().cumsum(dim=0)])
    return mean, variance.clamp_min(0.0)


def mix(bounds: Tensor) -> Mixture:
    """Weights the source tasks by their gaps to the target.

    Args:
        bounds: A `(t + 1) x M` tensor of bounds on the gaps, `t ≥ 1`.

    Returns:
        The weights after `t` observations.
    """
    steps, num_tasks = len(bounds) - 1, bounds.shape[-1]
    losses = bounds[1:]
    spread = float(losses.max() - losses.min())
    rate = math.sqrt(8 * math.log(num_tasks) / steps) / spread if spread > 0 else 0.0
    weights = torch.softmax(-rate * losses.sum(dim=0), dim=-1)
    remaining = float((weights @ bounds[-1]) / (weights @ bounds[0]))
    return Mixture(1 / (1 + math.sqrt(steps) * remaining), weights)
