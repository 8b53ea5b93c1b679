"""Models of outcomes and failures, and the acquisition function of the next row.

The acquisition function depends on the runs (:func:`make_acquisition`). Before the first outcome,
it is :class:`~botorch_transfer.acquisition.PriorUpperConfidenceBound`. Afterwards, it is the
logarithm of the expected improvement over the best of all finished runs, pending runs and earlier
rows of the batch. With several objectives, it is the logarithm of the expected hypervolume
improvement. As soon as a run has failed, the logarithm of the probability of success is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.acquisition.objective import LinearMCObjective
from botorch.acquisition.penalized import PenalizedAcquisitionFunction
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

from botorch_transfer import models
from botorch_transfer.acquisition import PriorUpperConfidenceBound, noisy_improvement
from botorch_transfer.arguments import constructor_arguments
from botorch_transfer.average.base import PlainGP
from botorch_transfer.average.transfer import PLAIN_NOISE, TransferGP
from botorch_transfer.data.measurements import Outcome
from botorch_transfer.data.tables import Runs
from botorch_transfer.feasibility import FeasibilityModel
from botorch_transfer.gp.likelihood import AddedNoiseLikelihood
from botorch_transfer.model import predicted_moments
from botorch_transfer.outcome_transforms import ranks

#: Default model of :func:`suggest`.
DEFAULT_MODEL: Callable[..., Any] = TransferGP

#: Maximum number of inputs to predict at once.
MAX_TOGETHER = 256

#: Error message if ``model=`` is not a model.
NO_MODEL = "model is {}: give a model class or its name, such as 'TransferGP', or a callable."

#: Names that ``model=`` takes in addition to the names of this package's model classes.
PLAIN, SORTED = "SingleTaskGP", "sorted"


def named_model(model: str | Callable[..., Any] | None) -> Callable[..., Any]:
    """Finds a model by its name.

    Args:
        model: A model class, or a callable that makes a model, see :func:`suggest`; the name of a
            model class; ``"sorted"`` for :func:`mean_rank`; or ``None`` for the default model.

    Returns:
        The class or callable.

    Raises:
        TypeError: If ``model`` is not a name, a model class, or a callable that makes a model.
        ValueError: If no model has this name.

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
    is_class = isinstance(model, type)
    is_model = not isinstance(model, Model) and (not is_class or issubclass(model, Model))  # type: ignore[arg-type]
    try:
        if takes_sources(model):
            # The third argument of some of BoTorch's classes is a column of tasks.
            is_model &= not (is_class and model.__module__.startswith("botorch."))
            signature(model).bind(None, None, None, train_Yvar=None)
    except (TypeError, ValueError):
        is_model = False
    if not is_model:
        given = getattr(model, "__name__", f"of the type {type(model).__name__}")
        raise TypeError(NO_MODEL.format(given))
    return model


def takes_sources(model: Callable[..., Any]) -> bool:
    """Checks whether a model takes a prior or source data as its third argument.

    The third argument of BoTorch's own models is ``train_Yvar``.

    Args:
        model: A model class, or a callable that makes a model.

    Returns:
        Whether the third argument is a prior or source data.

    Example:
        >>> takes_sources(SingleTaskGP)
        False
    """
    return constructor_arguments(model)[2:3] != ["train_Yvar"]


def fit_model(make: Callable[..., Any], runs: Runs, index: int, sources: Any) -> Any:
    """Fits a model to one outcome of this study's runs.

    Args:
        make: The model class. If the class takes source data, and there are none, a plain GP is
            fitted.
        runs: The runs of this study.
        index: The index of the outcome.
        sources: The outcome's prior or source data; ``None`` if the outcome has neither.

    Returns:
        The fitted model.
    """
    runs = runs.known(index)
    known = len(runs.Yvar) > 0 and bool(runs.Yvar.isfinite().all())
    noise: dict[str, Any] = {"train_Yvar": runs.Yvar + runs.added if known else None}
    takes_it = sources is None or "likelihood" in constructor_arguments(make)
    if takes_it and not known and bool(runs.added.any()):
        noise = {"likelihood": AddedNoiseLikelihood(runs.added[:, 0])}
    if sources is not None:
        model = make(runs.X, runs.Y, sources, **noise)
    elif "likelihood" in noise:
        modules = ConstantMean(), get_covar_module_with_dim_scaled_prior(runs.X.shape[-1])
        options = noise | {"outcome_transform": Standardize(m=1), "noise": PLAIN_NOISE}
        model = PlainGP(runs.X, runs.Y, None, *modules, **options)
    else:
        make = SingleTaskGP if takes_sources(make) else make
        model = make(runs.X, runs.Y, **noise)
    if not isinstance(model, Model):
        raise TypeError(NO_MODEL.format(f"a callable that returns a {type(model).__name__}"))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def make_acquisition(
    models: Sequence[Any],
    outcomes: Sequence[Outcome],
    X_known: Tensor,
    reference: Tensor,
    seed: int,
    has_outcomes: bool = True,
) -> AcquisitionFunction:
    """Makes the acquisition function of the next row.

    Args:
        models: The models, one for each outcome.
        outcomes: The outcomes: objectives, and outcomes with limits.
        X_known: An ``n x d`` tensor of evaluated or pending inputs. Improvements are relative to
            the best outcome at these inputs. The true outcomes at these inputs are uncertain, so
            the acquisition value is averaged over the posterior of the outcomes.
        reference: An ``r x d`` tensor of inputs that cover the space. Predictions at these inputs
            determine the scales of outcomes.
        seed: The seed of posterior samples.
        has_outcomes: Whether any run has an outcome. If no run has an outcome, the acquisition
            function is an upper confidence bound instead of the expected improvement. The reason is
            that a model may allow for a negative correlation between this study and the source
            tasks. Without outcomes of this study, the expected improvement could then be largest
            where the source tasks have bad outcomes.

    Returns:
        The acquisition function of one input at a time (``q = 1``).

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
    if not has_outcomes:
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
    X = torch.cat([reference, X_known])
    means = torch.stack([moments(models[i], X)[0] for i in objectives], dim=-1)
    front = means[is_non_dominated(means)]
    nadir = front.amin(dim=0) - 0.1 * (means.amax(dim=0) - means.amin(dim=0))
    return qLogNoisyExpectedHypervolumeImprovement(
        model,
        ref_point=nadir.tolist(),
        objective=IdentityMCMultiOutputObjective(objectives, num_outcomes=len(outcomes)),
        prune_baseline=True,
        **options,
    )


def improvement_per_cost(
    acquisition: AcquisitionFunction, rows: Tensor, costs: Tensor
) -> AcquisitionFunction:
    """Makes an acquisition function for the improvement per cost.

    Use it to prefer cheap rows of a table in which each row has a known cost. The function
    subtracts the logarithm of a row's cost from the logarithm of the improvement.

    Args:
        acquisition: The acquisition function of the logarithm of an improvement.
        rows: A ``c x d`` tensor of candidates.
        costs: A ``c`` tensor of the candidates' costs.

    Returns:
        The acquisition function of one candidate at a time (``q = 1``).

    Example:
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> X = torch.rand(6, 2, dtype=torch.double)
        >>> improvement = LogExpectedImprovement(SingleTaskGP(X, X.sum(-1, keepdim=True)), 1.5)
        >>> improvement_per_cost(improvement, X, torch.arange(1, 7))(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    def log_cost(X: Tensor) -> Tensor:
        return costs[torch.cdist(X.squeeze(-2), rows).argmin(dim=-1)].log()

    return PenalizedAcquisitionFunction(acquisition, log_cost, 1.0)  # type: ignore[arg-type]


def old_tasks(source: Any) -> dict[str, SupervisedDataset]:
    """Returns an outcome's source data by task; no tasks if ``source`` is a prior or ``None``."""
    tasks = source if isinstance(source, Mapping) else {}
    return {name: task for name, task in tasks.items() if isinstance(task, SupervisedDataset)}


def mean_rank(sources: Mapping[str, SupervisedDataset], X: Tensor) -> Tensor:
    """Scores inputs without a model, by the ranks of the nearest old runs.

    Args:
        sources: Source data by task. Outcomes are to be maximized.
        X: An ``n x d`` tensor of inputs.

    Returns:
        An ``n`` tensor of scores between 0 and 1. In each task, the score of an input is the share
        of other runs that are worse than the run nearest to the input. A run with the same outcome
        as the nearest run counts half. Scores are averaged over tasks.

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
    """Computes a model's posterior means and variances, :data:`MAX_TOGETHER` inputs at a time."""
    parts = [predicted_moments(model.posterior(part)) for part in X.split(MAX_TOGETHER)]
    mean, variance = (torch.cat(each) for each in zip(*parts, strict=True))
    return mean, variance


def learn_failures(runs: Runs, sources: Any, old_failed: Tensor | None) -> FeasibilityModel | None:
    """Fits the model of the probability that a run succeeds.

    Args:
        runs: The runs of this study.
        sources: The source data or the prior of an outcome; ``None`` if the outcome has neither.
            The source data are old runs that succeeded.
        old_failed: An ``f x d`` tensor of the inputs of failed old runs.

    Returns:
        The model; ``None`` as long as no run and no old run has failed.
    """
    old_failed = runs.X[:0] if old_failed is None else old_failed
    if len(old_failed) + len(runs.failed) == 0:
        return None
    good = [task.X for task in old_tasks(sources).values()] if len(old_failed) else []
    return FeasibilityModel(runs.good, runs.failed, torch.cat([*good, runs.X[:0]]), old_failed)
