"""Models of outcomes and failures, and the acquisition function of the next row.

The acquisition function depends on the runs (:func:`make_acquisition`). Without an outcome, it is
:class:`~botorch_transfer.acquisition.PriorUpperConfidenceBound`. With outcomes, it is the logarithm
of the expected improvement, or with several objectives of the expected hypervolume improvement,
over all runs, pending runs and earlier rows of the batch. As soon as a run has failed, the
logarithm of the probability of success is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.acquisition.objective import LinearMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.constraints import get_outcome_constraint_transforms
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer import models
from botorch_transfer.acquisition import PriorUpperConfidenceBound, noisy_improvement
from botorch_transfer.arguments import constructor_arguments
from botorch_transfer.average.base import PlainGP
from botorch_transfer.average.transfer import PLAIN_NOISE, TransferGP
from botorch_transfer.data.outcome import Outcome
from botorch_transfer.data.runs import Runs
from botorch_transfer.feasibility import Attempts, FeasibilityModel
from botorch_transfer.gp.noise import AddedNoiseLikelihood
from botorch_transfer.model import predicted_moments
from botorch_transfer.outcome_transforms import ranks

#: Default model of :func:`suggest`.
DEFAULT_MODEL: Callable[..., Any] = TransferGP

#: Maximum number of rows to predict at once.
MAX_TOGETHER = 256

#: Names of the models that are not classes of this package.
PLAIN, SORTED = "SingleTaskGP", "sorted"


def named_model(model: str | Callable[..., Any] | None) -> Callable[..., Any]:
    """Finds a model by its name.

    Args:
        model: A model class, or a callable that makes a model; the name of a model class;
            ``"sorted"`` for :func:`mean_rank`; or ``None`` for the default model.

    Returns:
        The class or callable.

    Raises:
        TypeError: If ``model`` is neither callable nor a name.
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
    if not callable(model):
        raise TypeError(f"model is {model!r}: give a model class or its name, as 'TransferGP'.")
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
    """Fits the model of one outcome.

    Args:
        make: The model class of outcomes with sources.
        runs: The runs of this study.
        index: The index of the outcome.
        sources: The outcome's prior or source data; ``None`` for a plain GP.

    Returns:
        The fitted model.
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
    """Makes the acquisition function of the next row.

    Args:
        models: The model of each outcome.
        outcomes: The outcomes: objectives, and outcomes with limits.
        X_known: An ``n x d`` tensor of evaluated or pending inputs. Improvements are relative to
            the best of these inputs, on average over their unknown outcomes.
        reference: An ``r x d`` tensor of inputs all over the space, which set scales.
        seed: The seed of samples.
        is_first: Whether there is no outcome yet. Without outcomes, the target may still be the
            opposite of the sources, and the expected improvement would be largest where the
            sources predict bad outcomes.

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


class ImprovementPerCost(AcquisitionFunction):
    """Logarithm of an improvement minus the logarithm of the row's cost.

    Use it to prefer cheap rows of a table in which each row has a known cost.

    Args:
        acquisition: The logarithm of an improvement.
        rows: A ``c x d`` tensor of candidates.
        costs: A ``c`` tensor of the candidates' costs.

    Example:
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> X = torch.rand(6, 2, dtype=torch.double)
        >>> improvement = LogExpectedImprovement(SingleTaskGP(X, X.sum(-1, keepdim=True)), 1.5)
        >>> ImprovementPerCost(improvement, X, torch.arange(1, 7))(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    rows: Tensor
    log_costs: Tensor

    def __init__(self, acquisition: AcquisitionFunction, rows: Tensor, costs: Tensor) -> None:
        super().__init__(acquisition.model)
        self.acquisition = acquisition
        self.register_buffer("rows", rows)
        self.register_buffer("log_costs", costs.log())

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluates a ``b x 1 x d`` tensor of candidates."""
        places = torch.cdist(X.squeeze(-2), self.rows).argmin(dim=-1)
        return self.acquisition(X) - self.log_costs[places]


def mean_rank(sources: Mapping[str, SupervisedDataset], X: Tensor) -> Tensor:
    """Scores inputs without a model, by the rank of the nearest run of each old task.

    Args:
        sources: Source data by task, to be maximized.
        X: An ``n x d`` tensor of inputs.

    Returns:
        An ``n`` tensor: the share of a task's runs that are worse than the nearest run, on average
        over tasks. Equal outcomes share their ranks.

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
    """Returns predicted means and variances, :data:`MAX_TOGETHER` inputs at a time."""
    parts = [predicted_moments(model.posterior(part)) for part in X.split(MAX_TOGETHER)]
    mean, variance = (torch.cat(each) for each in zip(*parts, strict=True))
    return mean, variance


def learn_failures(runs: Runs, sources: Any, old_failed: Tensor | None) -> FeasibilityModel | None:
    """Fits the model of success and failure.

    Args:
        runs: The runs of this study.
        sources: Source data, or a prior.
        old_failed: An ``f x d`` tensor of the inputs of failed old runs.

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
