"""``suggest``: tables of old and new runs in, the next rows to try out.

The tables are the only state: call it again when there are new outcomes. The same tables and the
same seed give the same rows. Read this for how runs, several outcomes and constraints become models
and one acquisition function. How that is maximized over a mixed space is in ``maximization``.

Which acquisition it is depends on what there is (:func:`make_acquisition`). Without any run it is
the mean of the transferred prior. With runs, pending ones and rows of the same batch included, it
is the logarithm of the expected improvement over all of them, or of the hypervolume's. From the
first failed run on, the logarithm of the probability of success is added.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.acquisition.objective import GenericMCObjective
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import Model
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.multi_objective.pareto import is_non_dominated
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.warnings import NumericalWarning
from numpy.typing import NDArray
from pandas import DataFrame, Series, to_numeric
from torch import Tensor

from botorch_transfer.acquisition import PriorUpperConfidenceBound, noisy_improvement
from botorch_transfer.average import TransferGP
from botorch_transfer.data import from_dataframe
from botorch_transfer.data.tables import (
    failed_inputs,
    has_failed,
    in_logarithms,
    likely_column,
    renamed,
)
from botorch_transfer.model import predicted_moments
from botorch_transfer.prior import TransferPrior
from botorch_transfer.report import member_on_sources
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.suggestion.feasibility import Attempts, FeasibilityModel, FeasibleAcquisition
from botorch_transfer.suggestion.search import maximize

logger = logging.getLogger(__name__)

Goal = Literal["min", "max"]

DEFAULT_MODEL: Callable[..., Any] = TransferGP
"""The model of :func:`suggest` if none is given."""

NUM_REFERENCE = 256
"""Random rows by which scales and references of acquisition functions are found."""

MAX_NAMED = 5
"""The most source tasks to name for a row."""


@dataclass(frozen=True)
class Target:
    """One outcome of the target task: an objective, or what has a limit.

    Args:
        name: The column.
        sign: -1 if small outcomes are good; models are of the outcome times the sign.
        limit: The least value of the modelled outcome, for a constraint.
        noise: The column of its standard errors.
        log: Whether models are of the outcome's logarithm, times the sign.
    """

    name: str
    sign: float
    limit: float | None = None
    noise: str | None = None
    log: bool = False

    def predicted(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Converts a model's moments to the outcome's mean and standard deviation."""
        mean, variance = self.sign * mean, variance.clamp_min(0)
        if not self.log:
            return mean, variance.sqrt()
        mean = (mean + variance / 2).exp()  # of a log-normal distribution
        return mean, mean * variance.expm1().sqrt()


class Proposal(NamedTuple):
    """Suggested rows, and what they come from.

    Args:
        rows: The table that :func:`suggest` returns.
        models: The fitted model of each outcome, constraints included.
        X: An ``n x d`` tensor: the encoded rows.
        targets: What the outcomes are; objectives first.
    """

    rows: DataFrame
    models: dict[str, Any]
    X: Tensor
    targets: tuple[Target, ...]


def suggest(
    space: SearchSpace | Mapping[str, Any],
    history: DataFrame | None,
    runs: DataFrame | None = None,
    outcome: str | Sequence[str] = "loss",
    goal: Goal | Sequence[Goal] | None = None,
    n: int = 1,
    *,
    task: str = "task",
    model: Callable[..., Any] | None = None,
    prior: Any = None,
    constraints: Mapping[str, str] | None = None,
    noise: str | Mapping[str, str] | None = None,
    status: str = "status",
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    log: bool | str | Sequence[str] = False,
    seed: int = 0,
) -> DataFrame:
    """Suggests the next rows to try, from a table of old runs and one of this study's runs.

    It keeps nothing between calls: the tables are the state. Add the rows to ``runs``, with an
    empty outcome while they are pending, and call it again. Sources are pre-trained once in a
    process and remembered by their content.

    The search space may have changed since the old runs, see :func:`from_dataframe` for the rules.

    Args:
        space: The search space, or the dictionary that ``SearchSpace.from_dict`` takes.
        history: Old runs of other tasks, one row a run. Runs with an empty or infinite outcome have
            failed; with a ``status`` column, of the empty ones only those of which it says so.
            ``None`` if there is a ``prior``.
        runs: The runs of this study, maybe none. A run with an empty outcome, or without that
            column, is pending. A run has failed if its ``status`` says so, or an outcome is
            infinite. Columns that have no meaning here are ignored.
        outcome: The column of the outcome; a list for several objectives.
        goal: Whether small (``"min"``) or large (``"max"``) outcomes are good; a list for several.
            If it is left out, small ones are, and a warning in the log says so, but for ``"loss"``.
        n: How many rows to suggest.
        task: The column of ``history`` that names the task.
        model: The model, a class of this package (or what has its first three arguments and
            ``train_Yvar``); :data:`DEFAULT_MODEL` by default.
        prior: What the model takes as its prior, pre-trained on encoded inputs, in place of
            ``history``; a mapping by outcome if there are several. It is about outcomes to be
            maximized: the negative of one to be minimized.
        constraints: Limits of further outcomes, such as ``{"memory": "<= 5"}``.
        noise: The column with the outcome's standard errors, in ``history`` and ``runs``; a mapping
            by outcome if there are several.
        status: The column of ``runs``, and maybe of ``history``, that says whether a run failed:
            ``"failed"``, ``"failure"``, ``"error"`` or ``"crashed"``. What has no outcome and
            another status, such as ``"abandoned"``, is no failure.
        missing: Values of parameters that old tasks do not record; ``None`` if unknown.
        rename: New names of columns of ``history`` by their old ones.
        log: Outcomes to model by their logarithm, for losses whose best values are many times
            smaller than ordinary ones; ``True`` for all objectives. They are positive. A ``prior``
            is then of the logarithm.
        seed: The seed of all random numbers.

    Returns:
        A table of ``n`` rows. First the parameters, in the space's order and in your units; empty
        where they are inactive. Then, of each outcome, ``predicted_mean`` and ``predicted_std`` in
        its unit, followed by ``_`` and its name if there are several; of logarithms, those of a
        log-normal distribution. ``acquisition`` is what the row was chosen for. If there is no
        outcome yet, it is the prior's mean in standard deviations, to which rows after the first
        add a part of the standard deviation that is left; else it is the logarithm of the expected
        improvement. If a run has failed, old ones included, the logarithm of the probability of
        success is added. ``sources`` names the old tasks that speak for the row: those that expect
        an outcome better than their own average by more than a standard deviation of that
        prediction, the surest first.

    Raises:
        InputDataError: If a column is missing, or a value is none of the space's. The message says
            what to do.
        TypeError: If an argument is of another type.
        ValueError: If arguments contradict one another, or fewer than ``n`` configurations are
            left.

    Example:
        >>> from pandas import DataFrame
        >>> C = FloatParameter("C", 0.1, 1000.0, log=True)
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> rows = suggest(SearchSpace([C]), old)
        >>> list(rows.columns)
        ['C', 'predicted_mean', 'predicted_std', 'acquisition', 'sources']
    """
    return propose(
        space,
        history,
        runs,
        outcome,
        goal,
        n,
        task=task,
        model=model,
        prior=prior,
        constraints=constraints,
        noise=noise,
        status=status,
        missing=missing,
        rename=rename,
        log=log,
        seed=seed,
    ).rows


def propose(
    space: SearchSpace | Mapping[str, Any],
    history: DataFrame | None,
    runs: DataFrame | None = None,
    outcome: str | Sequence[str] = "loss",
    goal: Goal | Sequence[Goal] | None = None,
    n: int = 1,
    *,
    task: str = "task",
    model: Callable[..., Any] | None = None,
    prior: Any = None,
    constraints: Mapping[str, str] | None = None,
    noise: str | Mapping[str, str] | None = None,
    status: str = "status",
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    log: bool | str | Sequence[str] = False,
    seed: int = 0,
) -> Proposal:
    """Suggests rows as :func:`suggest` does, and returns the models with them.

    Returns:
        The rows and the models.

    Example:
        >>> from pandas import DataFrame
        >>> C = FloatParameter("C", 0.1, 1000.0, log=True)
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> propose(SearchSpace([C]), old).models["loss"].num_outputs
        1
    """
    space = _as_space(space)
    targets = _targets(outcome, goal, constraints, noise, log)
    if isinstance(history, DataFrame):
        history = renamed(history, rename or {})
    _check_arguments(space, history, runs, n, model, prior, targets)
    sources: dict[str, Any] = {}
    for target in targets:
        if history is None:
            sources[target.name] = _prior_of(target.name, prior, len(targets))
        else:
            sources[target.name] = from_dataframe(
                history,
                space,
                target.name,
                task,
                goal="max" if target.sign > 0 else "min",
                noise=target.noise if target.noise in history.columns else None,
                missing=missing,
                changed=True,
                log=target.log,
            )
    options: dict[str, Any] = {"model": model, "status": status, "seed": seed}
    if history is not None:
        names = [target.name for target in targets]
        options["old_failed"] = failed_inputs(
            history, space, names, task, status=status, missing=missing
        )
    return propose_from(space, sources, runs, targets, n, **options)


def propose_from(
    space: SearchSpace,
    sources: Mapping[str, Any],
    runs: DataFrame | None,
    targets: Sequence[Target],
    n: int = 1,
    *,
    model: Callable[..., Any] | None = None,
    status: str = "status",
    seed: int = 0,
    old_failed: Tensor | None = None,
) -> Proposal:
    """Suggests rows as :func:`propose` does, from sources that are encoded already.

    Args:
        space: The search space.
        sources: By outcome the prior, or the source data that :func:`from_dataframe` makes;
            ``None`` for an outcome that no old run has. Its model is a plain GP, and there must be
            a run with an outcome.
        runs: The runs of this study, as :func:`suggest` takes them.
        targets: What the outcomes are; an objective first.
        n: How many rows to suggest.
        model: The model of outcomes with sources.
        status: The column of ``runs`` that says whether a run has failed.
        seed: The seed of all random numbers.
        old_failed: An ``f x d`` tensor of inputs of old runs that failed.

    Returns:
        The rows and the models.

    Raises:
        ExhaustedSpaceError: If fewer than ``n`` configurations are left.
    """
    found = _read_runs(space, runs, targets, status)
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        make = DEFAULT_MODEL if model is None else model
        models = {t.name: _fit(make, found, i, sources[t.name]) for i, t in enumerate(targets)}
        anchors = _anchors(space, sources[targets[0].name], found)
        feasibility = _learn_failures(found, sources[targets[0].name], old_failed)
        fitted_models = list(models.values())
        X, values = _search(space, fitted_models, targets, found, anchors, n, seed, feasibility)
        rows = space.decode(X)
        for target, fitted in zip(targets, models.values(), strict=True):
            suffix = f"_{target.name}" if len(targets) > 1 else ""
            mean, std = target.predicted(*_moments(fitted, X))
            rows[f"predicted_mean{suffix}"] = mean.numpy()
            rows[f"predicted_std{suffix}"] = std.numpy()
        rows["acquisition"] = values
        rows["sources"] = _supporting_tasks(models[targets[0].name], X)
    return Proposal(rows, models, X, tuple(targets))


# ------------------------------------------------------------------------------- reading arguments


class Runs(NamedTuple):
    """The runs of this study.

    Args:
        X: An ``n x d`` tensor of inputs with known outcomes.
        Y: An ``n x m`` tensor of outcomes to be maximized.
        Yvar: An ``n x m`` tensor of noise variances; a column of NaN if it is not known.
        waiting: A ``p x d`` tensor of inputs of pending runs.
        failed: An ``f x d`` tensor of inputs of failed runs.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    waiting: Tensor
    failed: Tensor

    @property
    def awaited(self) -> Tensor:
        """Inputs that have outcomes or will have them."""
        return torch.cat([self.X, self.waiting])


def _as_space(space: Any) -> SearchSpace:
    if isinstance(space, Mapping):
        return SearchSpace.from_dict(space)
    if not isinstance(space, SearchSpace):
        raise TypeError(f"space is a {type(space).__name__}: give a SearchSpace or a dictionary.")
    return space


def _targets(
    outcome: str | Sequence[str],
    goal: Goal | Sequence[Goal] | None,
    constraints: Mapping[str, str] | None,
    noise: str | Mapping[str, str] | None,
    log: bool | str | Sequence[str],
) -> list[Target]:
    names = [outcome] if isinstance(outcome, str) else list(outcome)
    if goal is None:
        goal = "min"
        if names != ["loss"]:
            logger.warning(
                "Small values of %s are taken to be good; else say goal='max' (--goal max)",
                " and ".join(map(str, names)),
            )
    goals = [goal] * len(names) if isinstance(goal, str) else list(goal)
    if not names or len(goals) != len(names):
        raise ValueError(
            f"There are {len(names)} outcomes and {len(goals)} goals: give one goal for each "
            "outcome, and at least one outcome."
        )
    if bad := [value for value in goals if value not in ("min", "max")]:
        raise ValueError(f"goal is {bad[0]!r}: use 'min' or 'max'.")
    targets = [
        Target(name, 1.0 if value == "max" else -1.0)
        for name, value in zip(names, goals, strict=True)
    ]
    for name, text in (constraints or {}).items():
        parts = re.fullmatch(r"\s*([<>])=?\s*(\S+)\s*", str(text))
        try:
            bound = float(parts[2]) if parts else math.nan
        except ValueError:
            bound = math.nan
        if parts is None or not math.isfinite(bound):
            raise ValueError(
                f"The constraint on {name!r} is {text!r}: write it as '<= 5' or '>= 5'."
            )
        sign = 1.0 if parts[1] == ">" else -1.0
        targets.append(Target(name, sign, limit=sign * bound))
    all_names = [target.name for target in targets]
    if twice := [name for name in all_names if all_names.count(name) > 1]:
        raise ValueError(f"The outcome {twice[0]!r} is named twice: name it once.")
    if isinstance(noise, str):
        if len(targets) > 1:
            raise ValueError(
                f"noise is {noise!r} for {len(targets)} outcomes: give a mapping from outcomes to "
                "columns of standard errors."
            )
        noise = {all_names[0]: noise}
    if unknown := set(noise or {}) - set(all_names):
        raise ValueError(f"noise names {min(unknown)!r}, which is no outcome.")
    targets = [replace(target, noise=(noise or {}).get(target.name)) for target in targets]
    return in_log_scale(targets, log)


def in_log_scale(targets: Sequence[Target], log: bool | str | Sequence[str]) -> list[Target]:
    """Marks the outcomes that are modelled by their logarithm.

    Args:
        targets: What the outcomes are.
        log: The names of some of them; ``True`` for all objectives.

    Returns:
        The targets, with the logarithms of limits.

    Raises:
        ValueError: If a name is no outcome's, or a limit has no logarithm.

    Example:
        >>> in_log_scale([Target("loss", -1.0)], True)[0].log
        True
    """
    if isinstance(log, bool):
        log = [target.name for target in targets if log and target.limit is None]
    names = {log} if isinstance(log, str) else set(log)
    if unknown := names - {target.name for target in targets}:
        raise ValueError(f"log names {min(unknown)!r}, which is no outcome.")
    found = []
    for target in targets:
        limit = target.limit
        if target.name in names and limit is not None:
            if target.sign * limit <= 0:
                raise ValueError(
                    f"The constraint on {target.name!r} has no logarithm: leave it out of log."
                )
            limit = target.sign * math.log(target.sign * limit)
        found.append(replace(target, limit=limit, log=target.name in names))
    return found


def _check_arguments(
    space: SearchSpace,
    history: Any,
    runs: Any,
    n: Any,
    model: Any,
    prior: Any,
    targets: Sequence[Target],
) -> None:
    for name, table in (("history", history), ("runs", runs)):
        if table is not None and not isinstance(table, DataFrame):
            raise TypeError(
                f"{name} is a {type(table).__name__}: give a DataFrame, as pandas.read_csv does."
            )
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n is {n!r}: ask for one row or more.")
    if model is not None and not callable(model):
        raise TypeError(f"model is {model!r}: give a model class, such as TransferGP.")
    if (history is None) == (prior is None):
        raise ValueError("Give either a history or a prior.")
    limited = [target.name for target in targets if target.limit is not None]
    if clash := [name for name in limited if name in space.columns]:
        raise ValueError(
            f"The constraint is on the parameter {clash[0]!r}, but constraints are on outcomes: "
            "narrow the parameter's range in the search space."
        )
    added = {"acquisition", "sources", "predicted_mean", "predicted_std"}
    taken = [*added, *(target.name for target in targets)]
    if clash := [name for name in space.columns if name in taken]:
        raise ValueError(f"The parameter {clash[0]!r} has the name of another column: rename it.")
    for target in targets:
        tables = [table for table in (history, runs) if table is not None and len(table.columns)]
        known = [column for table in tables for column in table.columns]
        if tables and target.noise is not None and target.noise not in known:
            raise InputDataError(
                f"No table has the column {target.noise!r}: name an existing one by noise=."
            )


def _prior_of(name: str, prior: Any, num_targets: int) -> Any:
    if isinstance(prior, Mapping) and name in prior:
        prior = prior[name]
    elif num_targets > 1:
        prior = None
    # The priors of a model's members are a mapping, too.
    parts = prior.values() if isinstance(prior, Mapping) else [prior]
    if not all(isinstance(part, TransferPrior) for part in parts):
        raise TypeError(
            f"There is no prior of the outcome {name!r}: give one such as SourceGPs.load(path), in "
            "a mapping by outcome if there are several."
        )
    return prior


def _read_runs(
    space: SearchSpace, runs: DataFrame | None, targets: Sequence[Target], status: str
) -> Runs:
    m = len(targets)
    if runs is None or runs.empty:
        none = torch.empty(0, space.dim, dtype=torch.double)
        empty = torch.empty(0, m, dtype=torch.double)
        return Runs(none, empty, empty, none, none)
    used = {*space.columns, status, *(t.name for t in targets), *(t.noise for t in targets)}
    spare = [column for column in runs.columns if column not in used]
    for name in space.columns:
        if name not in runs.columns and (likely := likely_column(name, spare)):
            raise InputDataError(
                f"The runs have no column of parameter {name!r}, but one of {likely!r}: rename it "
                "if that is the parameter, or drop it."
            )
    try:
        X = space.encode(runs)
    except InputDataError as error:
        raise InputDataError(f"In the runs: {error}") from error
    for target in targets:
        if target.log:
            runs = in_logarithms(runs, target.name, target.noise)
    Y = np.stack([t.sign * _outcomes(runs, t.name, spare) for t in targets], axis=1)
    failed = has_failed(runs, Y, status)
    pending = ~failed & np.isnan(Y).any(axis=1)
    done = ~failed & ~pending
    Yvar = np.stack([_variances(runs, t, done) for t in targets], axis=1)
    known_Y, known_Yvar = torch.from_numpy(Y[done]), torch.from_numpy(Yvar[done])
    return Runs(X[done], known_Y, known_Yvar, X[pending], X[failed])


def _outcomes(runs: DataFrame, name: str, spare: Sequence[Any]) -> NDArray[np.float64]:
    """The values of a column; NaN for pending runs."""
    if name not in runs.columns:
        if likely := likely_column(name, spare):
            raise InputDataError(
                f"The runs have no column {name!r}, but one of {likely!r}: rename it if that is "
                "the outcome, or drop it."
            )
        return np.full(len(runs), np.nan)
    return _numbers(runs[name])


def _numbers(column: Series) -> NDArray[np.float64]:
    numbers = to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if (text := np.isnan(numbers) & column.notna().to_numpy()).any():
        row = int(text.argmax())
        raise InputDataError(
            f"The column {column.name!r} of the runs has {column.iloc[row]!r} in row "
            f"{column.index[row]}, which is no number: correct it, or empty the cell of a pending "
            "run."
        )
    return numbers


def _variances(runs: DataFrame, target: Target, done: NDArray[np.bool_]) -> NDArray[np.float64]:
    if target.noise is None or target.noise not in runs.columns:
        return np.full(len(runs), np.nan)
    errors = _numbers(runs[target.noise])
    if not (np.isnan(errors[done]).all() or (errors[done] > 0).all()):
        raise InputDataError(
            f"The column {target.noise!r} of the runs has a standard error that is empty or not "
            "positive: correct it, or empty the whole column to have the noise inferred."
        )
    return errors**2


# ------------------------------------------------------------------------ models and acquisition


def _fit(make: Callable[..., Any], runs: Runs, index: int, sources: Any) -> Any:
    """The fitted model of one outcome."""
    columns = slice(index, index + 1)
    Yvar = runs.Yvar[:, columns]
    known = len(Yvar) > 0 and bool(Yvar.isfinite().all())
    data, train_Yvar = (runs.X, runs.Y[:, columns]), Yvar if known else None
    if sources is None:
        model = SingleTaskGP(*data, train_Yvar=train_Yvar)
    else:
        model = make(*data, sources, train_Yvar=train_Yvar)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def make_acquisition(
    models: Sequence[Any],
    targets: Sequence[Target],
    X_known: Tensor,
    reference: Tensor,
    seed: int,
    is_first: bool = False,
) -> AcquisitionFunction:
    """Makes the acquisition function of one further row.

    Args:
        models: The model of each outcome.
        targets: What the outcomes are: objectives and constraints.
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
        >>> acquisition = make_acquisition([model], [Target("loss", -1.0)], X[:2], X, seed=0)
        >>> acquisition(X.unsqueeze(-2)).shape
        torch.Size([5])
    """
    model = models[0] if len(models) == 1 else ModelListGP(*models)
    objectives = [i for i, target in enumerate(targets) if target.limit is None]
    limits = [(i, target.limit) for i, target in enumerate(targets) if target.limit is not None]
    weights = torch.eye(len(targets), dtype=torch.double)
    if is_first or len(X_known) == 0:
        A, b = -weights[[i for i, _ in limits]], torch.tensor([[-limit] for _, limit in limits])
        bounds = (A, b.to(A)) if limits else None
        return PriorUpperConfidenceBound(
            model, weights[objectives], bounds, X_known, X_reference=reference
        )
    if len(targets) == 1:
        improvement = noisy_improvement(model, weights, X_known, seed, reference)
        if improvement is not None:
            return improvement
    sampler = SobolQMCNormalSampler(torch.Size([128]), seed=seed)
    options: dict[str, Any] = {"X_baseline": X_known, "sampler": sampler}
    # Feasible where negative.
    options["constraints"] = [_violation(i, limit) for i, limit in limits] or None
    if len(objectives) == 1:
        objective = GenericMCObjective(_take_first)
        return qLogNoisyExpectedImprovement(model, objective=objective, **options)
    means = torch.stack([_moments(m, torch.cat([reference, X_known]))[0] for m in models], dim=-1)
    means = means[:, objectives]
    front = means[is_non_dominated(means)]
    nadir = front.amin(dim=0) - 0.1 * (means.amax(dim=0) - means.amin(dim=0))
    return qLogNoisyExpectedHypervolumeImprovement(
        model,
        ref_point=nadir.tolist(),
        objective=IdentityMCMultiOutputObjective(objectives, num_outcomes=len(targets)),
        prune_baseline=True,
        **options,
    )


@torch.no_grad()
def _moments(model: Model, X: Tensor) -> tuple[Tensor, Tensor]:
    return predicted_moments(model.posterior(X))


def _take_first(Y: Tensor, X: Tensor | None = None) -> Tensor:
    return Y[..., 0]


def _violation(index: int, limit: float) -> Callable[[Tensor], Tensor]:
    return lambda Y: limit - Y[..., index]


# ------------------------------------------------------------------------------------- searching


def _anchors(space: SearchSpace, sources: Any, runs: Runs) -> Tensor:
    """The best rows of this study and of each old task, at most 32 of them."""
    best: list[Tensor] = []
    best += list(runs.X[runs.Y[:, 0].argsort(descending=True, stable=True)[:4]])
    if isinstance(sources, Mapping):
        tasks = [task for task in sources.values() if isinstance(task, SupervisedDataset)]
        best += [task.X[task.Y.argmax()] for task in tasks[:: -(-len(tasks) // 28) or 1]]
    if not best:
        return torch.empty(0, space.dim, dtype=torch.double)
    # Old runs may lie outside of the cube, where the space had other bounds.
    return space.round(torch.stack(best).clamp(0.0, 1.0))


def _learn_failures(runs: Runs, sources: Any, old_failed: Tensor | None) -> FeasibilityModel | None:
    """The model of success; ``None`` as long as no run has failed."""
    old: Attempts | None = None
    if old_failed is not None and len(old_failed):
        good = [t.X for t in sources.values()] if isinstance(sources, Mapping) else []
        old = Attempts.of(torch.cat([*good, old_failed[:0]]), old_failed)
    if old is None and len(runs.failed) == 0:
        return None
    return FeasibilityModel(*Attempts.of(runs.X, runs.failed), old)


def _search(
    space: SearchSpace,
    models: Sequence[Any],
    targets: Sequence[Target],
    runs: Runs,
    anchors: Tensor,
    n: int,
    seed: int,
    feasibility: FeasibilityModel | None,
) -> tuple[Tensor, list[float]]:
    """Chooses rows one by one, each to improve on all before it that may succeed."""
    reference = space.encode(space.sample(NUM_REFERENCE, seed=0))
    awaited, values = runs.awaited, list[float]()
    is_first = len(runs.X) == 0
    for number in range(n):
        acquisition = make_acquisition(models, targets, awaited, reference, seed, is_first)
        if feasibility is not None:
            acquisition = FeasibleAcquisition(acquisition, feasibility)
        taken = torch.cat([awaited, runs.failed])
        x, value = maximize(acquisition, space, taken, anchors, not is_first, seed + number)
        awaited = torch.cat([awaited, x.unsqueeze(0)])
        values.append(value)
    return awaited[len(awaited) - n :], values


# ------------------------------------------------------------------------------------- reporting


@torch.no_grad()
def _supporting_tasks(model: Any, X: Tensor) -> list[str]:
    """Names the source tasks that expect much of each row, the surest first.

    Of models without a posterior of each source task it names none.
    """
    informed: Any = member_on_sources(model)
    if informed is None:
        return [""] * len(X)
    prior = informed.prior
    mean, variance = prior.moments(X)
    gps = prior.gps
    average = (gps.train_Y * gps.mask).sum(dim=-1) / prior.num_points
    surety = (mean - average.unsqueeze(-1)) / variance.clamp_min(1e-12).sqrt()
    weights = getattr(informed, "weights", None)
    if isinstance(weights, Tensor) and weights.shape == (prior.num_tasks,):
        surety[weights < 0.1 * weights.max()] = -math.inf
    names = []
    for column in surety.T:
        order = [i for i in column.argsort(descending=True, stable=True).tolist() if column[i] > 1]
        names.append(", ".join(prior.task_names[i] for i in order[:MAX_NAMED]))
    return names


@contextmanager
def _quiet() -> Any:
    """Ignores warnings that a reader of tables cannot act on."""
    with warnings.catch_warnings():
        for kind in (BotorchWarning, NumericalWarning):
            warnings.simplefilter("ignore", kind)
        # A search that ended early is still compared with all rows that were scored.
        warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
        yield
