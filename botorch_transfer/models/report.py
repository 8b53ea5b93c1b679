"""A readable diagnosis: which source helps the target, and whether the history misleads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood

from botorch_transfer.models.source_evidence import slope_evidence
from botorch_transfer.pretraining.source_gps import SourceGPs

if TYPE_CHECKING:
    from botorch_transfer.models.target import TargetGP

CLEAR = 3.0
"""The log Bayes factor from which a relation is taken for real: odds of twenty to one."""

NO_SIGN = 2.0
"""The log Bayes factor up to which there is no sign of a relation: odds of seven to one."""

ENOUGH_POINTS = 8
"""The number of target points by which a source that resembles the target would have shown it."""

ENOUGH_SPREAD = 0.3
"""How far apart a source's predictions at the target's points have to be, in its deviations."""

ALL = "all sources"
COLUMNS = ["weight", "slope", "helpful", "inverted", "verdict"]


@torch.no_grad()
def transfer_report(model: TargetGP) -> pd.DataFrame:
    """Tabulates what each source task, and all of them together, are to the target.

    Args:
        model: A model whose prior is a :class:`SourceGPs`, or a :class:`GuardedTransferGP` of any.

    Returns:
        One row a source task, the index its name, and a last row for all of them:

        - ``weight``: the source's weight in the model, or the transfer model's against the plain
          GP; NaN where there is none.
        - ``slope``: by how much the target rises where the source does, both standardized.
        - ``helpful``, ``inverted``: log Bayes factors of a positive and of a negative slope against
          none.
        - ``verdict``: for a source ``"helpful"``, ``"inverted"``, ``"irrelevant"``, or
          ``"unclear"`` as long as points are too few or too close. For all ``"helpful"`` if most
          are, ``"partly helpful"`` if some are, and not by chance; else ``"misleading"`` if a
          quarter is inverted, and ``"irrelevant"`` if most are.

    Raises:
        ValueError: If the model is a batch of models, or has no source posteriors to ask.

    Example:
        >>> transfer_report(model).loc["all sources", "verdict"]
        'unclear'
    """
    if len(model.batch_shape):
        raise ValueError("The model is a batch of models: report on one at a time.")
    transfer = getattr(model, "transfer", None)
    sources: Any = getattr(model, "prior", None)
    if not isinstance(sources, SourceGPs):
        if transfer is None:
            raise ValueError(
                f"{type(model).__name__} has no posterior of each source task to report on: use a "
                "model on SourceGPs, or GuardedTransferGP."
            )
        return pd.DataFrame([_guard_row(model)], index=[ALL], columns=COLUMNS)
    rows = _source_rows(model, sources, getattr(transfer or model, "weights", None))
    verdicts = [row["verdict"] for row in rows]
    last = {} if transfer is None else _guard_row(model)
    last["verdict"] = history_verdict(verdicts, [row["helpful"] for row in rows])
    return pd.DataFrame([*rows, last], index=[*sources.task_names, ALL], columns=COLUMNS)


def source_verdict(helpful: float, inverted: float, num_points: int, spread: float = 1.0) -> str:
    """Names what a source is to the target.

    Args:
        helpful: The log Bayes factor of a positive slope.
        inverted: That of a negative one.
        num_points: The number of target points.
        spread: The standard deviation of the source's predictions at these points. Points all in
            one place, as around an optimum, cannot tell a source that is right from one that is
            not: there, one whose optimum lies a little aside would look like the opposite.

    Returns:
        ``"helpful"``, ``"inverted"``, ``"irrelevant"`` or ``"unclear"``.

    Example:
        >>> source_verdict(0.3, -2.0, num_points=4), source_verdict(0.3, -2.0, num_points=10)
        ('unclear', 'irrelevant')
    """
    tells = spread >= ENOUGH_SPREAD
    if max(helpful, inverted) > CLEAR:
        if helpful > inverted:
            return "helpful"
        return "inverted" if tells else "unclear"
    enough = num_points >= ENOUGH_POINTS and tells
    return "irrelevant" if enough and max(helpful, inverted) <= NO_SIGN else "unclear"


def history_verdict(verdicts: Sequence[str], helpful: Sequence[float]) -> str:
    """Sums up the verdicts on the sources.

    Of many sources that are unrelated to the target, one or the other looks helpful by chance. So
    few helpful ones count only if the data speak for "at least one of all is helpful", whose Bayes
    factor against none is the mean of theirs.

    Args:
        verdicts: Those of :func:`source_verdict`, at least one.
        helpful: The sources' log Bayes factors of positive slopes.

    Returns:
        ``"helpful"``, ``"partly helpful"``, ``"misleading"``, ``"irrelevant"`` or ``"unclear"``.

    Example:
        >>> history_verdict(["helpful", "irrelevant", "inverted"], [5.0, -1.0, -4.0])
        'partly helpful'
    """
    num_helpful = verdicts.count("helpful")
    if 2 * num_helpful > len(verdicts):
        return "helpful"
    any_helpful = float(np.logaddexp.reduce(helpful)) - math.log(len(helpful))
    if num_helpful and any_helpful > CLEAR:
        return "partly helpful"
    # Of many sources, one may look inverted by chance.
    if 4 * verdicts.count("inverted") >= len(verdicts):
        return "misleading"
    return "irrelevant" if 2 * verdicts.count("irrelevant") > len(verdicts) else "unclear"


def _source_rows(model: TargetGP, sources: SourceGPs, weights: Any) -> list[dict[str, Any]]:
    num_points = model.num_target_points
    (X,), Y = model.eval().train_inputs, model.train_targets
    factors = torch.zeros(sources.num_tasks, 2)
    slopes = torch.full((sources.num_tasks,), torch.nan)
    spreads = torch.zeros(sources.num_tasks)
    if num_points > 0:
        is_known = isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
        noise = model.likelihood.noise.expand(num_points) if is_known else None
        factors, slopes = slope_evidence(sources.gps, X, Y, noise)
        spreads = sources.gps.mean(X).std(dim=-1, correction=0)
    shares = [np.nan] * sources.num_tasks if weights is None else weights.tolist()
    return [
        {
            "weight": weight,
            "slope": slope,
            "helpful": helpful,
            "inverted": inverted,
            "verdict": source_verdict(helpful, inverted, num_points, spread),
        }
        for weight, slope, (inverted, helpful), spread in zip(
            shares, slopes.tolist(), factors.tolist(), spreads.tolist(), strict=True
        )
    ]


def _guard_row(model: Any) -> dict[str, Any]:
    """What the guard says of the whole history, for which there is no slope."""
    weight = float(model.transfer_weight)
    verdict = "unclear"
    if model.num_target_points >= ENOUGH_POINTS:
        verdict = "helpful" if weight >= 0.5 else "misleading"
    return {"weight": weight, "verdict": verdict}
