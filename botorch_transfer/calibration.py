r"""Leave-one-source-out calibration: how well source tasks predict one another under a model.

Before any evaluation of the target there are the sources: each of them in turn is the target, the
others are its sources. Hyperparameters stay as they were fitted; only the data of the task that is
left out leave. Read it for whether a history is worth following at all, and for whether a model's
uncertainty can be trusted on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.average.base import PLAIN_MEMBER
from botorch_transfer.average.guarded import GuardedTransferGP
from botorch_transfer.average.transfer import MEMBERS, TransferGP
from botorch_transfer.memo import Memo, content_key
from botorch_transfer.model import TransferModel
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.population.prior import SourcePopulation
from botorch_transfer.sources.prior import SourceGPs
from botorch_transfer.sources.scaml import ScaMLGP

POINTS = (0, 1, 3, 8)
"""The numbers of points of a left-out task that a model gets to see."""

MAX_TASKS, MAX_UNSEEN = 10, 50
"""The most tasks that are left out, and the most points predicted of each."""

MODEL, PLAIN = "model", "plain GP"

_90_PERCENT = 1.6448536269514722
"""Standard deviations from the mean within which a normal variable is nine times out of ten."""

_calibrations = Memo(size=16)


@dataclass(frozen=True)
class Calibration:
    """How well a model predicted each source task from the others.

    Args:
        runs: One row for each task, number of points seen, and model: ``task``, ``points``,
            ``model``, ``log_density`` (the mean over unseen points, noise included), ``z`` (the
            root mean square of standardized errors) and ``coverage`` (the share of unseen points in
            bands of 90 %).
    """

    runs: pd.DataFrame

    def summary(self) -> pd.DataFrame:
        """Medians over the tasks, by model and number of points seen.

        Returns:
            A table with the columns ``log_density``, ``z`` and ``coverage``.
        """
        columns = ["log_density", "z", "coverage"]
        return self.runs.groupby(["model", "points"], sort=False)[columns].median()

    @property
    def fewest(self) -> int:
        """The smallest number of points seen."""
        return int(self.runs["points"].min())

    def gain(self, points: int | None = None) -> float:
        """How much better than a plain GP the model predicts a source task from the others.

        Args:
            points: The number of points seen; the smallest one by default.

        Returns:
            The median over tasks of the difference of mean log densities, in nats a point.
        """
        seen = self.runs[self.runs["points"] == (self.fewest if points is None else points)]
        by_model = seen.pivot(index="task", columns="model", values="log_density")
        return float((by_model[MODEL] - by_model[PLAIN]).median())

    @property
    def verdict(self) -> str:
        """How well source tasks predict one another, in words."""
        gain = self.gain()
        return "well" if gain > 0.1 else "hardly" if gain > -0.1 else "worse than no old runs would"

    def __str__(self) -> str:
        """One sentence for a report."""
        tasks, gain = self.runs["task"].nunique(), self.gain()
        z = float(cast(Any, self.summary().loc[(MODEL, self.fewest), "z"]))
        how = f"{self.verdict} after {self.fewest} points" if self.fewest else self.verdict
        return (
            f"The {tasks} source tasks predict one another {how}. Unseen outcomes are "
            f"{math.exp(gain):.2g} times as probable as under a plain GP, and errors are {z:.1f} "
            "times as large as predicted."
        )


def calibrate(
    prior: Any,
    model: type[TransferModel] = TransferGP,
    points: Sequence[int] = POINTS,
    seed: int = 0,
) -> Calibration:
    """Predicts each source task from the others.

    Args:
        prior: The prior of the model: a :class:`SourceGPs`, a :class:`SourcePopulation`, or for
            :class:`TransferGP` a mapping of these by the names of its default members. Of two tasks
            or more.
        model: The class of the model. The members of an average, a plain GP among them, are
            calibrated one by one, too.
        points: The numbers of points of a left-out task that the model gets to see.
        seed: The seed of the choice of tasks and points.

    Returns:
        The calibration. It is cached by content: equal priors are not calibrated again.

    Raises:
        InputDataError: If there is a single source task, tasks have no points left to predict, or
            the priors are of different tasks.
        TypeError: If the prior is of another kind.
        ValueError: If a prior is of no default member.

    Example:
        >>> X = torch.rand(12, 2, dtype=torch.double)
        >>> sources = SourcePopulation.fit({"a": (X, X[:, :1]), "b": (X, X.sum(-1, keepdim=True))})
        >>> calibrate(sources, PopulationGP, points=[0, 3]).summary().shape
        (4, 3)
    """
    priors = _by_member(prior)
    if (objection := _objection(priors, model)) is not None:
        raise objection
    name = f"{model.__module__}.{model.__qualname__}"
    key = content_key("calibrate", priors, [name, tuple(points), seed])
    remembered = _calibrations.recall(key, lambda: _calibrate(priors, model, points, seed))
    return Calibration(remembered.runs.copy())


def can_be_calibrated(model: Any) -> bool:
    """Whether :func:`calibrate` takes the prior and the class of a model.

    It makes other models of that class, so that an average must be of the default members, and a
    guarded model the default one.

    Args:
        model: A model.

    Returns:
        Whether it does.

    Example:
        >>> X = torch.rand(12, 2, dtype=torch.double)
        >>> history = {"a": (X, X[:, :1]), "b": (X, X.sum(-1, keepdim=True))}
        >>> can_be_calibrated(ScaMLGP(X, X[:, :1], history))
        True
    """
    if isinstance(model, TransferGP):
        usual = all(
            type(member) is MEMBERS.get(name)
            for name, member in model.members.items()
            if name != PLAIN_MEMBER
        )
    elif isinstance(model, GuardedTransferGP):
        usual = type(model.transfer) is ScaMLGP
    else:
        usual = isinstance(model, SourcePosteriorGP)
    return usual and _objection(_by_member(model.prior), type(model)) is None


def _by_member(prior: Any) -> dict[str, Any]:
    return dict(prior) if isinstance(prior, Mapping) else {"": prior}


def _objection(priors: Mapping[str, Any], model: type[TransferModel]) -> Exception | None:
    """Why a model's source tasks cannot be left out; ``None`` if they can."""
    for each in priors.values():
        if not isinstance(each, SourceGPs | SourcePopulation):
            return TypeError(
                f"A {type(each).__name__} cannot leave a source task out: calibrate SourceGPs or a "
                "SourcePopulation."
            )
        if each.data is None:
            return InputDataError(
                "The prior was saved without observations: calibration needs the old outcomes."
            )
    if next(iter(priors.values())).num_tasks < 2:
        return InputDataError("Calibration leaves one source task out, and there is only one.")
    names = [sorted(each.task_names) for each in priors.values()]
    if any(other != names[0] for other in names[1:]):
        return InputDataError(
            f"The priors of {', '.join(priors)} are of other source tasks: fit them to the same."
        )
    if "" not in priors and not issubclass(model, TransferGP):
        return TypeError(f"{model.__name__} takes one prior, not a mapping of them.")
    if "" not in priors and (unknown := sorted(priors.keys() - MEMBERS.keys())):
        return ValueError(
            f"{unknown[0]!r} is no default member of TransferGP: give the priors of "
            f"{' and '.join(MEMBERS)}, or of one of them."
        )
    return None


def _calibrate(
    priors: Mapping[str, Any], model: type[TransferModel], points: Sequence[int], seed: int
) -> Calibration:
    generator = torch.Generator().manual_seed(seed)
    first = next(iter(priors.values()))
    rows = []
    enough = [i for i in range(first.num_tasks) if len(first.observations(i)[1]) > min(points)]
    for number in torch.randperm(len(enough), generator=generator)[:MAX_TASKS].tolist():
        task = enough[number]
        X, Y = first.observations(task)
        order = torch.randperm(len(Y), generator=generator).to(X.device)
        left_out = first.task_names[task]
        left = {}
        for name, each in priors.items():
            others = [i for i, other in enumerate(each.task_names) if other != left_out]
            left[name] = each.select(others)
            left[name].input_transform = None  # the observations are transformed already
        for n in points:
            seen, unseen = order[:n], order[n : n + MAX_UNSEEN]
            if len(unseen) == 0:
                continue
            for name, each in _fitted(X[seen], Y[seen], left, model).items():
                scores = _scores(each, X[unseen], Y[unseen])
                rows.append((left_out, n, name, *scores))
    if not rows:
        raise InputDataError("No source task has points left to predict: ask for fewer points.")
    columns = ["task", "points", "model", "log_density", "z", "coverage"]
    return Calibration(pd.DataFrame(rows, columns=columns))


def _fitted(
    X: Tensor, Y: Tensor, priors: Mapping[str, Any], model: type[TransferModel]
) -> dict[str, TransferModel]:
    """The fitted model, what it is the average of, and a plain GP, by name."""
    is_average, single = issubclass(model, TransferGP), priors.get("")
    built: Any
    if is_average:
        members = {"members": {name: MEMBERS[name] for name in priors}} if single is None else {}
        built = cast(Any, model)(X, Y, priors if single is None else single, **members)
    else:
        built = TransferGP(X, Y, {MODEL: priors[""]}, members={MODEL: model})
    fit_gpytorch_mll(ExactMarginalLogLikelihood(built.likelihood, built))
    named = {PLAIN if name == PLAIN_MEMBER else name: each for name, each in built.members.items()}
    return {MODEL: built, **named} if is_average else named


@torch.no_grad()
def _scores(model: TransferModel, X: Tensor, Y: Tensor) -> tuple[float, float, float]:
    """Mean log density, root mean square of standardized errors, and coverage of 90 % bands."""
    posterior = model.posterior(X, observation_noise=True)
    variance = posterior.variance.clamp_min(1e-20)
    z = (Y - posterior.mean) / variance.sqrt()
    density = -0.5 * (z.square() + variance.log() + math.log(2 * math.pi))
    inside = (z.abs() <= _90_PERCENT).double()
    return float(density.mean()), float(z.square().mean().sqrt()), float(inside.mean())
