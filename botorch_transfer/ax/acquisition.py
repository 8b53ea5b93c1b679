"""Acquisition functions for transfer models in Ax.

:class:`TransferAcquisition` is what Ax calls. Before the first outcome it takes
:class:`PriorUpperConfidenceBound`, afterwards Ax's own choice, with :func:`noisy_improvement` where
that is exact. :class:`AvoidingAcquisition` keeps suggestions away from failed and pending points.

It overrides ``_instantiate_acquisition`` and ``optimize`` of Ax's ``Acquisition``, and reads its
private ``_model``, ``_objective_weights``, ``_outcome_constraints`` and
``_learned_objective_preference_model``.

.. [Desautels2014parallelizing]
    T. Desautels, A. Krause and J. Burdick. Parallelizing Exploration-Exploitation Tradeoffs in
    Gaussian Process Bandit Optimization. JMLR 2014.
.. [Gonzalez2016batch]
    J. González, Z. Dai, P. Hennig and N. Lawrence. Batch Bayesian Optimization via Local
    Penalization. AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ax.adapter.transforms.one_hot import OH_PARAM_INFIX
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.acquisition import Acquisition, determine_optimizer
from ax.generators.utils import mk_discrete_choices
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multioutput_acquisition import MultiOutputAcquisitionFunction
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.acquisition.utils import prune_inferior_points
from botorch.models.model import Model, ModelList
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.sampling import draw_sobol_samples
from botorch.utils.transforms import is_ensemble, t_batch_mode_transform
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.nn.functional import one_hot
from torch.special import log_ndtr


class PriorUpperConfidenceBound(AcquisitionFunction):
    r"""The upper confidence bound of the objectives, and the probability that constraints are met.

    It needs no outcome, so the transferred prior alone can suggest the first trials:

    .. code-block:: text

        mean over objectives of (μ + √β σ) / scale + sum over constraints of log P(it is met)

    Pending trials shrink σ as if their outcomes were the expected ones
    [Desautels2014parallelizing]_. Of an ensemble of models, μ and σ are the mixture's moments.

    Args:
        model: A model of ``m`` outcomes, with one model an outcome if ``m`` is not one.
        objective_weights: A ``k x m`` tensor, a row for each objective, that is to be maximized.
        outcome_constraints: ``(A, b)`` for constraints ``A f(x) <= b``.
        X_pending: A ``p x d`` tensor of inputs that are being evaluated.
        beta: ``β`` in ``μ + √β σ``.
        X_reference: An ``n x d`` tensor of inputs all over the search space. Each objective's scale
            is its standard deviation over them, so that objectives and constraints are comparable.
            If omitted, scales are one.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> none = torch.empty(0, 2, dtype=torch.double)
        >>> model = ScaMLGP(none, none[:, :1], {"monday": (X, X.sum(-1, keepdim=True))})
        >>> weights = torch.ones(1, 1, dtype=torch.double)
        >>> PriorUpperConfidenceBound(model, weights)(X.unsqueeze(-2)).shape
        torch.Size([20])
    """

    def __init__(
        self,
        model: Model,
        objective_weights: Tensor,
        outcome_constraints: tuple[Tensor, Tensor] | None = None,
        X_pending: Tensor | None = None,
        beta: float = 9.0,
        X_reference: Tensor | None = None,
    ) -> None:
        super().__init__(model)
        self.models: list[Any] = list(model.models) if isinstance(model, ModelList) else [model]
        self.objective_weights = objective_weights
        self.outcome_constraints = outcome_constraints
        self.beta = beta
        self.set_X_pending(None)
        self.scale: Tensor | float = 1.0 if X_reference is None else self._spread(X_reference)
        self.set_X_pending(X_pending)

    @torch.no_grad()
    def _spread(self, X: Tensor) -> Tensor:
        """Each objective's standard deviation over the inputs, by the law of total variance."""
        mean, variance = self._all_moments(X.unsqueeze(-2))
        weights = self.objective_weights.to(mean)
        of_means = (mean @ weights.T).var(dim=0, correction=0)
        return (of_means + (variance @ weights.square().T).mean(dim=0)).sqrt()

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluates the acquisition.

        Args:
            X: A ``batch_shape x 1 x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of values.
        """
        mean, variance = self._all_moments(X)
        weights = self.objective_weights.to(mean)
        std = (variance @ weights.square().T).sqrt()
        bounds = mean @ weights.T + math.sqrt(self.beta) * std
        value = (bounds / self.scale).mean(dim=-1)
        if self.outcome_constraints is None:
            return value
        A, b = (part.to(mean) for part in self.outcome_constraints)
        slack = b.squeeze(-1) - mean @ A.T
        return value + log_ndtr(slack / (variance @ A.square().T).sqrt()).sum(dim=-1)

    def _all_moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of all outcomes, each ``batch_shape x m``."""
        means, variances = zip(*(self._moments(model, X) for model in self.models), strict=True)
        return torch.stack(means, dim=-1), torch.stack(variances, dim=-1)

    def _moments(self, model: Any, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of one outcome; the variance is also given the pending inputs."""
        if self.X_pending is None:
            posterior = model.posterior(X)
            mean, variance = posterior.mean[..., 0, 0], posterior.variance[..., 0, 0]
        else:
            mean, variance = _given_pending(model, X, self.X_pending.to(X))
        if is_ensemble(model):  # the moments of a mixture
            variance = variance.mean(dim=-1) + mean.var(dim=-1, correction=0)
            mean = mean.mean(dim=-1)
        return mean, variance.clamp_min(1e-12)


def _given_pending(model: Any, X: Tensor, X_pending: Tensor) -> tuple[Tensor, Tensor]:
    """Mean, and variance as if the outcomes at the pending inputs were known."""
    mean, covariance = _joint_moments(model, X, X_pending)
    inner, cross = covariance[..., 1:, 1:], covariance[..., 1:, :1]
    scale = inner.diagonal(dim1=-2, dim2=-1).mean(dim=-1)[..., None, None]
    factor = torch.linalg.cholesky_ex(inner + 1e-4 * scale * torch.eye(len(X_pending)).to(X)).L
    reduction = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum(dim=-2)
    return mean[..., 0], covariance[..., 0, 0] - reduction[..., 0]


def _joint_moments(model: Any, X: Tensor, others: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the posterior at each single input and, after it, the others."""
    inputs = torch.cat([X, others.expand(*X.shape[:-2], *others.shape)], dim=-2)
    mvn = model.posterior(inputs, **options).distribution
    return mvn.mean, mvn.covariance_matrix


class NoiselessFantasies(Model):
    """An ensemble of a model, each member conditioned on noiseless outcomes at some inputs.

    BoTorch's ``LogNoisyExpectedImprovement`` conditions a ``SingleTaskGP`` that it builds anew.
    This class conditions the joint posterior of any model whose posterior is Gaussian.

    Args:
        model: The model.
        X: An ``n x d`` tensor of inputs.
        posterior_transform: Turns the model's outcomes into one.
        num_fantasies: The number of members.
        seed: The seed of their outcomes, quasi-random draws from the model's posterior at ``X``.

    Example:
        >>> X = torch.rand(4, 2, dtype=torch.double)
        >>> model = SingleTaskGP(X, X.sum(-1, keepdim=True))
        >>> weight = ScalarizedPosteriorTransform(torch.ones(1, dtype=torch.double))
        >>> NoiselessFantasies(model, X, weight).posterior(X.unsqueeze(-2)).mean.shape
        torch.Size([4, 32, 1, 1])
    """

    _is_ensemble = True
    num_outputs = 1

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
            posterior: Any = model.posterior(X, posterior_transform=posterior_transform)
            sampler = SobolQMCNormalSampler(torch.Size([num_fantasies]), seed=seed)
            self.outcomes = sampler(posterior).squeeze(-1)
            mvn = posterior.distribution
            covariance = mvn.covariance_matrix
            jitter = 1e-6 * covariance.diagonal().mean() * torch.eye(len(X)).to(X)
            self.factor = torch.linalg.cholesky_ex(covariance + jitter).L
            residual = (self.outcomes - mvn.mean).T
            self.whitened = torch.linalg.solve_triangular(self.factor, residual, upper=False)

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> GPyTorchPosterior:
        """Evaluates the members' posteriors.

        Args:
            X: A ``batch_shape x 1 x d`` tensor of inputs.
            *args: The other arguments of BoTorch's ``posterior`` are ignored.
            **kwargs: They are ignored, too.

        Returns:
            Their posterior, of moments ``batch_shape x num_fantasies x 1 x 1``.
        """
        transform = self.posterior_transform
        mean, covariance = _joint_moments(self.model, X, self.X, posterior_transform=transform)
        cross = covariance[..., 1:, :1]
        weights = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        variance = covariance[..., 0, 0] - weights.square().sum(dim=(-2, -1))
        mean = mean[..., :1] + (weights.transpose(-1, -2) @ self.whitened).squeeze(-2)
        variance = variance.clamp_min(1e-12)[..., None, None, None].expand(*mean.shape, 1, 1)
        return GPyTorchPosterior(MultivariateNormal(mean.unsqueeze(-1), variance))


def noisy_improvement(
    model: Model, objective_weights: Tensor, X_observed: Tensor, seed: int = 0
) -> LogExpectedImprovement | None:
    """Makes the analytic logarithm of noisy expected improvement over the observed inputs.

    ``qLogNoisyExpectedImprovement`` estimates it from samples of candidates. Under a sharp prior,
    one sample that is off by four standard deviations can dominate far from the optimum. Here the
    expectation at a candidate is exact, and only the observed outcomes are sampled.

    Args:
        model: The model.
        objective_weights: A ``1 x m`` tensor of the weights of its outcomes; their weighted sum is
            maximized.
        X_observed: An ``n x d`` tensor of inputs.
        seed: The seed of samples.

    Returns:
        The acquisition function of single inputs; ``None`` if posteriors are not Gaussian.

    Example:
        >>> X = torch.rand(4, 2, dtype=torch.double)
        >>> model = SingleTaskGP(X, X.sum(-1, keepdim=True))
        >>> improvement = noisy_improvement(model, torch.ones(1, 1, dtype=torch.double), X)
        >>> improvement(torch.rand(5, 1, 2, dtype=torch.double)).shape
        torch.Size([5])
    """
    transform = ScalarizedPosteriorTransform(objective_weights[0].to(X_observed))
    if is_ensemble(model):
        return None
    with torch.no_grad():
        posterior = model.posterior(X_observed, posterior_transform=transform)
    if type(posterior) is not GPyTorchPosterior:
        return None
    sampler = SobolQMCNormalSampler(torch.Size([512]), seed=seed)
    best = prune_inferior_points(model, X_observed, posterior_transform=transform, sampler=sampler)
    fantasies = NoiselessFantasies(model, best, transform, seed=seed)
    return LogExpectedImprovement(fantasies, best_f=fantasies.outcomes.amax(dim=-1, keepdim=True))


class AvoidingAcquisition(AcquisitionFunction):
    r"""An acquisition function that falls off towards points to avoid.

    Otherwise a model with a clear optimum would suggest the same point again and again until an
    outcome from there contradicts it. Within a radius of a point to avoid, the acquisition goes
    down to a ``floor``, which it reaches at the point itself: a hard form of local penalization
    [Gonzalez2016batch]_. Elsewhere it is unchanged.

    .. code-block:: text

        t(x, a) = min(1, ‖x - a‖² / radius²)
        floor + (acquisition(x) - floor) · product over points a of t(x, a) (2 - t(x, a))

    It is smooth, for gradient-based optimizers. Distances are in units of the space's widths; any
    two categories are a whole width apart, as one input or one-hot. One-hot inputs are rounded, as
    suggestions are later: otherwise a point between categories would count as far away, and then be
    rounded to the point to avoid. Pending points, also those of the same batch, are avoided too.

    Args:
        acquisition: Another acquisition function.
        bounds: A ``2 x d`` tensor, the bounds of the search space.
        X_avoid: A ``p x d`` tensor of inputs to avoid; NaN in columns of inactive parameters.
        radii: A ``p`` tensor of distances.
        pending_radius: The distance from pending points.
        categorical: The indices of inputs that have no order.
        floor: The value at points to avoid: one that most other points exceed.
        one_hot_blocks: For each one-hot choice, the indices of its inputs.

    Example:
        >>> from botorch.acquisition import PosteriorMean
        >>> X = torch.rand(6, 2, dtype=torch.double)
        >>> mean = PosteriorMean(SingleTaskGP(X, X.sum(-1, keepdim=True)))
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
        >>> avoiding = AvoidingAcquisition(mean, bounds, X[:1], torch.tensor([0.1]), floor=-3.0)
        >>> avoiding(X[:1].unsqueeze(-2)).item()
        -3.0
    """

    def __init__(
        self,
        acquisition: AcquisitionFunction,
        bounds: Tensor,
        X_avoid: Tensor,
        radii: Tensor,
        pending_radius: float = 0.0,
        categorical: Sequence[int] = (),
        floor: float | Tensor = 0.0,
        one_hot_blocks: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__(acquisition.model)
        self.acquisition = acquisition
        self.widths = _widths(bounds)
        self.X_avoid = X_avoid
        self.radii = radii
        self.pending_radius = pending_radius
        self.categorical = list(categorical)
        self.floor = floor
        self.one_hot = [list(block) for block in one_hot_blocks]
        for block in self.one_hot:  # two categories differ in two inputs
            self.widths[block] = math.sqrt(2)
        # Analytic acquisition functions have no ``X_pending``.
        self.X_pending: Any = getattr(acquisition, "X_pending", None)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Sets the pending inputs.

        Args:
            X_pending: A ``p x d`` tensor of inputs.
        """
        self.acquisition.set_X_pending(X_pending)
        self.X_pending = X_pending

    def forward(self, X: Tensor) -> Tensor:
        """Evaluates the acquisition.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of values.
        """
        avoid, radii = self.X_avoid.to(X), self.radii.to(X)
        if self.X_pending is not None and self.pending_radius > 0:
            avoid = torch.cat([avoid, self.X_pending.to(X)])
            radii = torch.cat([radii, radii.new_full((len(self.X_pending),), self.pending_radius)])
        X = _round_one_hot(X, self.one_hot)
        matters = ~avoid.isnan()
        parts = ((X.unsqueeze(-2) - avoid.nan_to_num()) / self.widths.to(X)).square() * matters
        if self.categorical:
            differ = (parts[..., self.categorical] > 0).to(X)
            parts = parts.index_copy(-1, torch.tensor(self.categorical, device=X.device), differ)
        near = (parts.sum(dim=-1) / radii.square()).clamp(max=1.0)
        factors = (near * (2 - near)).flatten(start_dim=-2)
        value = self.acquisition(X)
        return self.floor + (value - self.floor) * factors.prod(dim=-1)


def _round_one_hot(X: Tensor, blocks: Sequence[Sequence[int]]) -> Tensor:
    """Rounds each one-hot block to its largest input; the other inputs keep their gradients."""
    for block in blocks:
        chosen = one_hot(X[..., block].argmax(dim=-1), len(block)).to(X)
        X = X.index_copy(-1, torch.tensor(block, device=X.device), chosen)
    return X


def _widths(bounds: Tensor) -> Tensor:
    """The widths of a search space; one where there is none."""
    widths = bounds[1] - bounds[0]
    return torch.where(widths > 0, widths, 1.0)


def failure_radii(X: Tensor, bounds: Tensor, radius: float) -> Tensor:
    """The distances to keep from failed points, which grow with the failures around them.

    Args:
        X: A ``p x d`` tensor of the points; NaN in columns of inactive parameters.
        bounds: A ``2 x d`` tensor, the bounds of the search space.
        radius: The distance to keep from a single failure, in units of the widths.

    Returns:
        A ``p`` tensor: ``radius`` times the number of failures within ten radii, at most ten.

    Example:
        >>> X = torch.tensor([[0.5], [0.51], [0.9]])
        >>> failure_radii(X, torch.tensor([[0.0], [1.0]]), 0.01)
        tensor([0.0200, 0.0200, 0.0100])
    """
    unit = X / _widths(bounds)
    distances = (unit.unsqueeze(-2) - unit).nan_to_num().norm(dim=-1)
    count = (distances < 10 * radius).sum(dim=-1)
    return radius * count.clamp(max=10).to(X)


class TransferAcquisition(Acquisition):
    """Ax's acquisition with three differences.

    Before the first outcome it is the transferred prior's upper confidence bound. Then, for one
    candidate and one objective without constraints or pending points, noisy expected improvement is
    analytic. And candidates keep away from failed and pending points.

    The option ``"failed"`` lists the inputs that failed, ``"pending"`` those that are pending, with
    NaN in columns of inactive parameters.
    """

    def _instantiate_acquisition(self) -> None:
        model, weights = self._model, self._objective_weights
        acquisition: AcquisitionFunction | None = None
        if self.X_observed is None:
            reference = self._spread_out(self.search_space_digest, None)
            given = self._outcome_constraints, self.X_pending
            acquisition = PriorUpperConfidenceBound(model, weights, *given, X_reference=reference)
        elif self._is_plain_improvement():
            acquisition = noisy_improvement(model, weights, self.X_observed)
        if acquisition is None:
            super()._instantiate_acquisition()
            return
        self.acqf = acquisition
        self.models_used = [self.surrogate.model_name_by_metric]
        self.acq_function_sequence = None

    def _is_plain_improvement(self) -> bool:
        return (
            self.botorch_acqf_classes_with_options == [(qLogNoisyExpectedImprovement, {})]
            and self.n == 1
            and self.X_pending is None
            and self._outcome_constraints is None
            and self._learned_objective_preference_model is None
            and len(self._objective_weights) == 1
        )

    def optimize(  # type: ignore[override]
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        *,
        inequality_constraints: Any = None,
        fixed_features: dict[int, float] | None = None,
        optimizer_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Generates candidates away from failed and pending points; see Ax's ``optimize``."""
        usual, pending = self.acqf, self.X_pending
        options = dict(optimizer_options or {})
        choices = mk_discrete_choices(search_space_digest, fixed_features)
        if inequality_constraints and determine_optimizer(
            search_space_digest, self.acqf, choices
        ) in ("optimize_acqf", "optimize_acqf_mixed"):
            # A short burn-in is enough in few dimensions. One restart at a time, as SLSQP takes a
            # batch for one problem, and the restart with the steepest gradient moves all others.
            options["options"] = {"n_burnin": 1000, "batch_limit": 1, **options.get("options", {})}
        failed, waiting = (
            self._tensor(self.options.get(kind, [])).view(-1, len(search_space_digest.bounds))
            for kind in ("failed", "pending")
        )
        avoid = torch.cat([failed, waiting])
        sampled = isinstance(usual, MultiOutputAcquisitionFunction | OneShotAcquisitionFunction)
        if not sampled and (n > 1 or len(avoid) > 0):
            # The floor is a high quantile of the acquisition, except where few other points may
            # exceed it: within constraints, or among few categories of which some failed.
            constrained = inequality_constraints or kwargs.get("equality_constraints")
            categories = _one_hot_blocks(search_space_digest.feature_names)
            hierarchical = bool(avoid.isnan().any())
            share = 0.0 if constrained or categories or hierarchical else 0.9
            self.acqf = self._avoiding(search_space_digest, failed, waiting, fixed_features, share)
            # In discrete spaces, Ax excludes these points themselves.
            self.X_pending = avoid if pending is None else torch.cat([avoid, pending])
        try:
            return super().optimize(
                n,
                search_space_digest,
                inequality_constraints=inequality_constraints,
                fixed_features=fixed_features,
                optimizer_options=options,
                **kwargs,
            )
        finally:
            self.acqf, self.X_pending = usual, pending

    def _avoiding(
        self,
        space: SearchSpaceDigest,
        failed: Tensor,
        pending: Tensor,
        fixed_features: dict[int, float] | None,
        share: float,
    ) -> AvoidingAcquisition:
        bounds = self._tensor(space.bounds).T
        # Larger radii before the first outcome.
        dim = max(len(space.bounds) - len(fixed_features or {}), 1)
        shares = (0.05, 0.05) if self.X_observed is None else (0.01, 0.001)
        failed_radius, pending_radius = (math.sqrt(dim) * share for share in shares)
        radii = failure_radii(failed, bounds, failed_radius)
        radii = torch.cat([radii, radii.new_full((len(pending),), pending_radius)])
        if len({*space.ordinal_features, *space.categorical_features}) == len(space.bounds):
            # In discrete spaces, only the points themselves are avoided.
            gaps = [np.diff(np.sort(values)) for values in space.discrete_choices.values()]
            shortest = [gap.min() / gap.sum() for gap in gaps if len(gap)]  # shares of the range
            step = 0.9 * float(min(shortest, default=1.0))
            radii, pending_radius = radii.clamp(max=step), min(pending_radius, step)
        with torch.no_grad():
            floor = self.acqf(self._spread_out(space, fixed_features).unsqueeze(-2)).quantile(share)
        return AvoidingAcquisition(
            self.acqf,
            bounds,
            torch.cat([failed, pending]),
            radii,
            pending_radius,
            space.categorical_features,
            floor,
            _one_hot_blocks(space.feature_names),
        )

    def _spread_out(
        self, space: SearchSpaceDigest, fixed_features: dict[int, float] | None
    ) -> Tensor:
        """Quasi-random inputs all over the search space."""
        bounds = self._tensor(space.bounds).T
        X = draw_sobol_samples(bounds, n=64, q=1, seed=0).squeeze(-2)
        for index, values in space.discrete_choices.items():
            choices = self._tensor(values)
            X[:, index] = choices[(X[:, index, None] - choices).abs().argmin(dim=-1)]
        # Predictions between categories mean nothing.
        X = _round_one_hot(X, _one_hot_blocks(space.feature_names))
        for index, value in {**space.target_values, **(fixed_features or {})}.items():
            X[:, index] = value
        return X

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)


def _one_hot_blocks(names: Sequence[str]) -> list[list[int]]:
    """The columns of each one-hot choice."""
    origins = [name.rpartition(OH_PARAM_INFIX)[0] for name in names]  # empty of other columns
    choices = filter(None, dict.fromkeys(origins))
    return [[index for index, origin in enumerate(origins) if origin == c] for c in choices]
