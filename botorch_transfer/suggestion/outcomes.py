"""Models of outcomes and failures, and the acquisition function of the next row.

Which acquisition it is depends on what there is (:func:`make_acquisition`). Without any run it is
the mean of the transferred prior. With runs, pending ones and rows of the same batch included, it
is the logarithm of the expected improvement over all of them, or of the hypervolume's. From the
first failed run on, the logarithm of the probability of success is added.

:class:`FeasibilityModel` is a Gaussian process on success and failure with a probit link.
:class:`FeasibleAcquisition` adds the logarithm of its probability to an acquisition function.
``suggest``, the Optuna sampler and Ax all learn from failures through these two.

The posterior is approximated by expectation propagation [Rasmussen2006gaussian]_, with all sites
updated at once. Laplace's approximation is simpler, but far too unsure after one or two failures.

.. [Rasmussen2006gaussian]
    C. E. Rasmussen and C. K. I. Williams. Gaussian Processes for Machine Learning, section 3.6.
    MIT Press 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from botorch.acquisition import AcquisitionFunction, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.acquisition.objective import LinearMCObjective
from botorch.acquisition.penalized import PenalizedAcquisitionFunction
from botorch.exceptions.errors import InputDataError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.constraints import get_outcome_constraint_transforms
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.multi_objective.pareto import is_non_dominated
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.special import log_ndtr, ndtri

from botorch_transfer import models
from botorch_transfer.acquisition import PriorUpperConfidenceBound, noisy_improvement
from botorch_transfer.arguments import constructor_arguments
from botorch_transfer.average.base import PlainGP
from botorch_transfer.average.transfer import PLAIN_NOISE, TransferGP
from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.data.outcome import Outcome
from botorch_transfer.data.runs import Runs
from botorch_transfer.gp.noise import AddedNoiseLikelihood
from botorch_transfer.model import predicted_moments
from botorch_transfer.outcome_transforms import ranks

DEFAULT_MODEL: Callable[..., Any] = TransferGP
"""The model of :func:`suggest` if none is given."""

SUCCESS_RATE, RATE_WEIGHT = 0.75, 1.0
"""The success rate to expect where nothing is known, and how many runs that is worth."""

OLD_WEIGHT = 4.0
"""How many runs the old runs around a point are worth at most."""

MAX_OLD = 1_000
"""The most old runs to look at; more are thinned evenly."""

JOINT_SHARE, JOINT_LENGTHSCALE = 0.2, 0.3
"""Of the kernel on all inputs: its share of the variance, and its lengthscale over ``sqrt(d)``, in
units of the space's widths."""

SINGLE_LENGTHSCALE = 0.1
"""The lengthscale of the kernels on single inputs: a tenth of a range may fail."""

VARIANCE = 64.0
"""The variance of the latent function; large, as most failures depend on the inputs alone."""

MAX_TOGETHER = 256
"""How many rows are predicted at once."""

MAX_SWEEPS, DAMPING, TOLERANCE = 100, 0.7, 1e-6
"""Iterations of expectation propagation, the share of a step to take, and when to stop."""


# ----------------------------------------------------------------------------------------- models


PLAIN, SORTED = "SingleTaskGP", "sorted"
"""Names that stand beside those of the package's models."""


def named_model(model: str | Callable[..., Any] | None) -> Callable[..., Any]:
    """Finds a model by its name.

    Args:
        model: A model class, or what makes a model; the name of one; or ``"sorted"``, which is
            :func:`mean_rank`. ``None`` for the default.

    Returns:
        The class.

    Raises:
        TypeError: If it is no model.
        ValueError: If there is no such name.

    Example:
        >>> named_model("ScaMLGP").__name__
        'ScaMLGP'
    """
    if model is None:
        return DEFAULT_MODEL
    if isinstance(model, str):
        own = {name: getattr(models, name) for name in models.__all__}
        named = {**own, PLAIN: SingleTaskGP, SORTED: mean_rank}
        if model not in named:
            raise ValueError(f"There is no model {model!r}: choose one of {', '.join(named)}.")
        return named[model]
    if not callable(model):
        raise TypeError(f"model is {model!r}: give a model class or its name, as 'TransferGP'.")
    return model


def takes_sources(model: Callable[..., Any]) -> bool:
    """Tells a model with sources from one of BoTorch, whose third argument is ``train_Yvar``.

    Args:
        model: A class, or what makes a model.

    Returns:
        Whether it takes a prior or source data.

    Example:
        >>> takes_sources(SingleTaskGP)
        False
    """
    return constructor_arguments(model)[2:3] != ["train_Yvar"]


def fit_model(make: Callable[..., Any], runs: Runs, index: int, sources: Any) -> Any:
    """Fits the model of one outcome.

    Args:
        make: The model of outcomes with sources.
        runs: The runs of this study.
        index: Which outcome it is.
        sources: Its prior or source data; ``None`` for a plain GP.

    Returns:
        The model.
    """
    runs = runs.known(index)
    Yvar = runs.Yvar
    known = len(Yvar) > 0 and bool(Yvar.isfinite().all())
    data, noise = (runs.X, runs.Y), dict[str, Any](train_Yvar=Yvar if known else None)
    added = runs.added[:, 0]
    if bool(added.any()):
        likelihood = {"likelihood": AddedNoiseLikelihood(added)}
        noise = {"train_Yvar": Yvar + added.unsqueeze(-1)} if known else likelihood
    takes_it = "likelihood" in constructor_arguments(make)
    if sources is not None:
        noise = noise if takes_it or "likelihood" not in noise else {"train_Yvar": None}
        model = make(*data, sources, **noise)
    elif "likelihood" in noise:
        modules = ConstantMean(), get_covar_module_with_dim_scaled_prior(runs.X.shape[-1])
        units = Standardize(m=1)
        model = PlainGP(*data, None, *modules, **noise, outcome_transform=units, noise=PLAIN_NOISE)
    else:
        make = SingleTaskGP if takes_sources(make) else make
        model = make(*data, **noise)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def make_acquisition(
    models: Sequence[Any],
    outcomes: Sequence[Outcome],
    X_known: Tensor,
    reference: Tensor,
    seed: int,
    is_first: bool = False,
) -> AcquisitionFunction:
    """Makes the acquisition function of one further row.

    Args:
        models: The model of each outcome.
        outcomes: What the outcomes are: objectives and constraints.
        X_known: An ``n x d`` tensor of inputs that have been evaluated or will be; a row is to
            improve on all of them. Outcomes that are not known yet are averaged over.
        reference: An ``r x d`` tensor of inputs all over the space, for scales.
        seed: The seed of samples.
        is_first: Whether there is no outcome yet. The expected improvement would then be largest
            where the target may be the sources' opposite, which no outcome has ruled out.

    Returns:
        The acquisition function of single inputs.

    Example:
        >>> X = torch.rand(5, 2, dtype=torch.double)
        >>> acquisition = make_acquisition([model], [Outcome("loss", -1.0)], X[:2], X, seed=0)
        >>> acquisition(X.unsqueeze(-2)).shape
        torch.Size([5])
    """
    model = models[0] if len(models) == 1 else ModelListGP(*models)
    objectives = [i for i, outcome in enumerate(outcomes) if outcome.is_objective]
    limits = {i: -o.limit for i, o in enumerate(outcomes) if o.limit is not None}
    weights = torch.eye(len(outcomes), dtype=torch.double)
    b = torch.tensor(list(limits.values()), dtype=torch.double).unsqueeze(-1)
    bounds = (-weights[list(limits)], b) if limits else None
    if is_first or len(X_known) == 0:
        return PriorUpperConfidenceBound(
            model, weights[objectives], bounds, X_known, X_reference=reference
        )
    if len(outcomes) == 1:
        improvement = noisy_improvement(model, weights, X_known, seed, reference)
        if improvement is not None:
            return improvement
    sampler = SobolQMCNormalSampler(torch.Size([128]), seed=seed)
    options: dict[str, Any] = {"X_baseline": X_known, "sampler": sampler}
    options["constraints"] = get_outcome_constraint_transforms(bounds)
    if len(objectives) == 1:
        objective = LinearMCObjective(weights[0])
        return qLogNoisyExpectedImprovement(model, objective=objective, **options)
    means = torch.stack([moments(m, torch.cat([reference, X_known]))[0] for m in models], dim=-1)
    means = means[:, objectives]
    front = means[is_non_dominated(means)]
    nadir = front.amin(dim=0) - 0.1 * (means.amax(dim=0) - means.amin(dim=0))
    return qLogNoisyExpectedHypervolumeImprovement(
        model,
        ref_point=nadir.tolist(),
        objective=IdentityMCMultiOutputObjective(objectives, num_outcomes=len(outcomes)),
        prune_baseline=True,
        **options,
    )


def mean_rank(sources: Mapping[str, SupervisedDataset], X: Tensor) -> Tensor:
    """Ranks inputs as the nearest run of each old task, without a model.

    Args:
        sources: Source data by task, to be maximized.
        X: An ``n x d`` tensor of inputs.

    Returns:
        An ``n`` tensor: the share of a task's runs that are worse, on the average over tasks. Equal
        outcomes share their ranks.

    Example:
        >>> X = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.double)
        >>> monday = SupervisedDataset(X, -X, feature_names=["x"], outcome_names=["y"])
        >>> mean_rank({"monday": monday}, X)
        tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    shares = []
    for task in sources.values():
        share = (ranks(task.Y[:, 0]) - 1) / max(len(task.Y) - 1, 1)
        shares += [torch.cat([share[torch.cdist(x, task.X).argmin(dim=-1)] for x in X.split(1024)])]
    return torch.stack(shares).mean(dim=0)


@torch.no_grad()
def moments(model: Model, X: Tensor) -> tuple[Tensor, Tensor]:
    """The means and variances that a model predicts for ``n`` inputs, some at once."""
    parts = [predicted_moments(model.posterior(part)) for part in X.split(MAX_TOGETHER)]
    mean, variance = (torch.cat(each) for each in zip(*parts, strict=True))
    return mean, variance


# --------------------------------------------------------------------------------------- failures


class Attempts(NamedTuple):
    """Runs, and which of them succeeded.

    Args:
        X: An ``n x d`` tensor of inputs.
        succeeded: An ``n`` boolean tensor.

    Example:
        >>> Attempts.of(torch.rand(2, 3), torch.rand(1, 3)).succeeded
        tensor([ True,  True, False])
    """

    X: Tensor
    succeeded: Tensor

    @classmethod
    def of(cls, succeeded: Tensor, failed: Tensor) -> Attempts:
        """Joins the inputs of runs that succeeded, ``n x d``, and that failed, ``f x d``."""
        X = torch.cat([succeeded, failed])
        return cls(X, torch.arange(len(X), device=X.device) < len(succeeded))


class FeasibilityModel(torch.nn.Module):
    r"""The probability that a run succeeds, never quite 0 or 1.

    A latent function ``f`` is a Gaussian process, and a run at ``x`` succeeds with probability
    ``Φ(f(x))``. Its covariance has two parts: a kernel on all inputs, for regions that fail, and an
    average of kernels on single inputs, for values of a parameter that fail whatever the others
    are:

    .. code-block:: text

        k(x, x') = s² (α exp(-‖x - x'‖² / 2dℓ²) + (1 - α) / d · Σ_j exp(-(x_j - x'_j)² / 2λ²))

    Old runs enter through the prior mean. With the sums ``S`` and ``F`` of the first kernel at
    ``x`` over old successes and old failures, scaled down so that together they are worth at most
    ``w`` runs, the prior probability of success is ``(S + ab) / (S + F + b)``, where ``a`` is a
    success rate and ``b`` its weight. So a few runs of this study outweigh any number of old ones.

    Runs that are pending or were abandoned are no failures: leave them out.

    Args:
        X: An ``n x d`` tensor of inputs that were tried, maybe none.
        succeeded: An ``n`` boolean tensor: which of them succeeded.
        old: Runs of other tasks.
        bounds: A ``2 x d`` tensor, the bounds of the search space; the unit cube by default.
        categorical: The indices of inputs that have no order; any two values are a width apart.

    Raises:
        InputDataError: If the inputs and successes do not fit together, or an input is NaN.

    Example:
        >>> X = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.double)
        >>> feasibility = FeasibilityModel(X, torch.tensor([True, False, True]))
        >>> log_p = feasibility.log_probability(X)
        >>> bool(log_p[1] < log_p[0])
        True
    """

    _X: Tensor
    _old_X: Tensor
    _old_succeeded: Tensor
    _width: Tensor
    _ordered: Tensor
    _root: Tensor
    _weights: Tensor

    def __init__(
        self,
        X: Tensor,
        succeeded: Tensor,
        old: Attempts | None = None,
        bounds: Tensor | None = None,
        categorical: Sequence[int] = (),
    ) -> None:
        super().__init__()
        d = X.shape[-1]
        old = Attempts(X[:0], X[:0, 0].bool()) if old is None else old
        for attempts in (Attempts(X, succeeded), old):
            if attempts.X.shape != (len(attempts.succeeded), d):
                raise InputDataError(
                    f"There are inputs of the shape {tuple(attempts.X.shape)}, and "
                    f"{len(attempts.succeeded)} successes or failures: give one for each of n "
                    f"inputs, all with {d} columns."
                )
            if not bool(attempts.X.isfinite().all()):
                raise InputDataError("An input is NaN or infinite: give numbers.")
        kept = evenly_spaced(len(old.X), MAX_OLD)
        lower, upper = torch.stack([X.new_zeros(d), X.new_ones(d)]) if bounds is None else bounds
        ordered = torch.ones(d, dtype=torch.bool, device=X.device)
        ordered[list(categorical)] = False
        tensors = {
            "_X": X,
            "_old_X": old.X[kept].to(X),
            "_old_succeeded": old.succeeded[kept].to(X),
            "_width": torch.where(upper > lower, upper - lower, 1.0).to(X),
            "_ordered": ordered,
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
        with torch.no_grad():
            self._fit(torch.where(succeeded.to(X) > 0, 1.0, -1.0).to(X))

    def _squares(self, A: Tensor, B: Tensor) -> Tensor:
        """Half the squared differences of each input, in units of the widths."""
        differences = (A.unsqueeze(-2) - B.unsqueeze(-3)) / self._width
        differences = torch.where(self._ordered, differences, (differences != 0).to(A))
        return differences.square() / 2

    def _covariance(self, A: Tensor, B: Tensor) -> Tensor:
        squares = self._squares(A, B)
        single = (-squares / SINGLE_LENGTHSCALE**2).exp().mean(dim=-1)
        return VARIANCE * (JOINT_SHARE * _joint(squares) + (1 - JOINT_SHARE) * single)

    def _mean(self, X: Tensor) -> Tensor:
        """The prior mean, by which success has the probability that old runs suggest."""
        near = _joint(self._squares(X, self._old_X))
        good = (near * self._old_succeeded).sum(dim=-1)
        total = near.sum(dim=-1)
        scale = OLD_WEIGHT / (OLD_WEIGHT + total)
        rate = (scale * good + RATE_WEIGHT * SUCCESS_RATE) / (scale * total + RATE_WEIGHT)
        return math.sqrt(1 + VARIANCE) * ndtri(rate)

    def _fit(self, sign: Tensor) -> None:
        """Finds sites ``N(f_i; ν_i / τ_i, 1 / τ_i)`` in place of ``Φ(±f_i)``."""
        X = self._X
        K, mean = self._covariance(X, X), self._mean(X)
        tau, nu = torch.zeros_like(mean), torch.zeros_like(mean)
        for _ in range(MAX_SWEEPS):
            _, posterior_mean, variance = self._posterior(K, mean, tau, nu)
            cavity = 1 / variance - tau
            centre, spread = (posterior_mean / variance - nu) / cavity, 1 / cavity
            scale = (1 + spread).sqrt()
            z = sign * centre / scale
            ratio = (-0.5 * z.square() - log_ndtr(z)).exp() / math.sqrt(2 * math.pi)
            matched = spread * (1 - spread * ratio * (z + ratio) / scale.square())
            new_tau = (1 / matched - cavity).clamp_min(1e-10)
            new_nu = (centre + sign * spread * ratio / scale) / matched - centre * cavity
            change = torch.cat([new_tau - tau, new_nu - nu])
            tau, nu = tau + DAMPING * (new_tau - tau), nu + DAMPING * (new_nu - nu)
            if len(X) == 0 or float(change.abs().max()) < TOLERANCE:
                break
        root = self._posterior(K, mean, tau, nu)[0]
        self.register_buffer("_root", root)
        self.register_buffer("_weights", root.mT @ (root @ (nu / tau.clamp_min(1e-10) - mean)))

    @staticmethod
    def _posterior(
        K: Tensor, mean: Tensor, tau: Tensor, nu: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A root of ``(K + diag(1 / τ))^-1``, and the posterior's mean and variances."""
        root = tau.sqrt()
        inner = torch.eye(len(tau)).to(K) + root.unsqueeze(-1) * K * root
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), root.diag(), upper=False)
        explained = half @ K
        residual = nu - tau * mean
        posterior_mean = mean + K @ residual - explained.mT @ (explained @ residual)
        return half, posterior_mean, K.diagonal() - explained.square().sum(dim=-2)

    def log_probability(self, X: Tensor) -> Tensor:
        """The logarithm of the probability that a run succeeds, differentiable in its inputs.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor of negative numbers.
        """
        cross = self._covariance(X, self._X)
        mean = self._mean(X) + cross @ self._weights
        explained = (cross @ self._root.mT).square().sum(dim=-1)
        return log_ndtr(mean / (1 + VARIANCE - explained).clamp_min(1).sqrt())

    def forward(self, X: Tensor) -> Tensor:
        """The logarithm of the probability that all runs of a batch succeed.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of negative numbers.
        """
        return self.log_probability(X).sum(dim=-1)


def _joint(squares: Tensor) -> Tensor:
    """The kernel on all inputs."""
    return (-squares.mean(dim=-1) / JOINT_LENGTHSCALE**2).exp()


def learn_failures(runs: Runs, sources: Any, old_failed: Tensor | None) -> FeasibilityModel | None:
    """Models success and failure.

    Args:
        runs: The runs of this study.
        sources: Source data, or a prior.
        old_failed: An ``f x d`` tensor of inputs of old runs that failed.

    Returns:
        The model of success; ``None`` as long as no run has failed.
    """
    old: Attempts | None = None
    if old_failed is not None and len(old_failed):
        good = [t.X for t in sources.values()] if isinstance(sources, Mapping) else []
        old = Attempts.of(torch.cat([*good, old_failed[:0]]), old_failed)
    if old is None and len(runs.failed) == 0:
        return None
    return FeasibilityModel(*Attempts.of(runs.good, runs.failed), old)


class FeasibleAcquisition(PenalizedAcquisitionFunction):
    """An acquisition function plus the logarithm of the probability that all its runs succeed.

    Of the logarithm of an expected improvement, that is the logarithm of the improvement to expect
    of runs that may fail. To a :class:`PriorUpperConfidenceBound`, it is added as the probabilities
    of constraints are.

    Args:
        acquisition: Another acquisition function, a logarithm or in units of order one.
        feasibility: The model of success.

    Example:
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> X = torch.rand(6, 2, dtype=torch.double)
        >>> improvement = LogExpectedImprovement(SingleTaskGP(X, X.sum(-1, keepdim=True)), 1.5)
        >>> feasibility = FeasibilityModel(X, X[:, 0] < 0.7)
        >>> FeasibleAcquisition(improvement, feasibility)(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    def __init__(self, acquisition: AcquisitionFunction, feasibility: FeasibilityModel) -> None:
        super().__init__(acquisition, feasibility, regularization_parameter=-1.0)
