"""Which source helps the target, and whether the history misleads: a readable diagnosis.

The target's data are modelled as ``y = a + b μ_m(x) + g(x) + ε``: a source's posterior mean ``μ_m``
with its posterior covariance, an unknown level ``a``, a GP ``g`` and noise ``ε``. The scale and
lengthscale of ``g``, and the noise, are averaged over a grid. Marginal likelihoods with slopes ``b
< 0`` and ``b > 0``, compared with that of ``b = 0``, say whether a source resembles the target, is
its opposite, or is unrelated. This is a question about the data, not about a model: the answer is
the same for all models with the same sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from botorch_transfer.kernels.conditioned import ConditionedBatch
from botorch_transfer.kernels.stationary import squared_distance
from botorch_transfer.models.screening import average_log_density
from botorch_transfer.models.target import TargetGP
from botorch_transfer.outcome_transforms import usable_std
from botorch_transfer.pretraining.source_gps import SourceGPs
from botorch_transfer.pretraining.tasks import evenly_spaced

CLEAR = 3.0
"""The log Bayes factor from which a relation counts as real: odds of twenty to one."""

NO_SIGN = 2.0
"""The log Bayes factor up to which there is no sign of a relation: odds of seven to one."""

ENOUGH_POINTS = 8
"""The number of target points by which a source that resembles the target would have shown it."""

ENOUGH_SPREAD = 0.3
"""The least spread of a source's predictions at the target's points, in standard deviations."""

SLOPES = (0.25, 0.5, 1.0, 2.0)
LENGTHSCALES = (0.15, 0.3, 0.6, 1.2)
SCALES = (0.03, 0.1, 0.3, 1.0)
NOISES = (1e-4, 1e-2)
MAX_POINTS = 100

ALL = "all sources"
COLUMNS = ["weight", "slope", "helpful", "inverted", "verdict"]


@torch.no_grad()
def transfer_report(model: TargetGP) -> pd.DataFrame:
    """Tabulates how each source task, and all of them together, relate to the target.

    It is a method of the models on :class:`SourceGPs`, of :class:`TransferGP` and of
    :class:`GuardedTransferGP`.

    Args:
        model: A model whose prior is a :class:`SourceGPs`, or one of whose members has such a
            prior; or a :class:`GuardedTransferGP` of any.

    Returns:
        One row a source task, the index its name, and a last row for all of them:

        - ``weight``: the source's weight in the model or its member, or the share of all transfer
          models against the plain GP; NaN where there is none.
        - ``slope``: the regression slope of the target on the source's mean, both standardized.
        - ``helpful``, ``inverted``: log Bayes factors of a positive and of a negative slope against
          none.
        - ``verdict``: for a source ``"helpful"``, ``"inverted"``, ``"irrelevant"``, or
          ``"unclear"`` as long as points are too few or too close. For all ``"helpful"`` if most
          are, ``"partly helpful"`` if some are, and not by chance; else ``"misleading"`` if a
          quarter is inverted, and ``"irrelevant"`` if most are.

    Raises:
        ValueError: If the model is a batch of models, or has no source posteriors.

    Example:
        >>> transfer_report(model).loc["all sources", "verdict"]
        'unclear'
    """
    if len(model.batch_shape):
        raise ValueError("The model is a batch of models: report on one at a time.")
    informed = member_on_sources(model)
    shares: Tensor | None = getattr(model, "shares", None)
    weight = np.nan if shares is None else float(shares[:-1].sum())
    names: Sequence[str] = ()
    rows: list[tuple[Any, ...]] = []
    if informed is not None:
        sources = cast(SourceGPs, informed.prior)
        weights = getattr(informed, "weights", torch.full((sources.num_tasks,), torch.nan))
        names, rows = sources.task_names, _source_rows(model, sources, weights)
        *_, helpful, _, verdicts = zip(*rows, strict=True)
        verdict = history_verdict(verdicts, helpful)
    elif not hasattr(model, "transfer_weight"):
        raise ValueError(
            f"{type(model).__name__} has no posterior of each source task to report on: use a "
            "model on SourceGPs, TransferGP, or GuardedTransferGP."
        )
    elif model.num_target_points < ENOUGH_POINTS:
        verdict = "unclear"
    else:
        verdict = "helpful" if weight >= 0.5 else "misleading"
    last = (weight, np.nan, np.nan, np.nan, verdict)  # all sources together have no slope
    return pd.DataFrame([*rows, last], index=[*names, ALL], columns=COLUMNS)


def member_on_sources(model: TargetGP) -> TargetGP | None:
    """Finds the model that has a posterior of each source task, in an average or by itself.

    Args:
        model: A model.

    Returns:
        The first of its members, or else the model, whose prior is a :class:`SourceGPs`.
    """
    candidates = (*getattr(model, "others", ()), model)
    has_posteriors = (isinstance(getattr(m, "prior", None), SourceGPs) for m in candidates)
    return next((m for m, has in zip(candidates, has_posteriors, strict=True) if has), None)


def _source_rows(model: TargetGP, sources: SourceGPs, weights: Tensor) -> list[tuple[Any, ...]]:
    """The row of each source task, in the order of ``COLUMNS``."""
    num_points, num_tasks = model.num_target_points, sources.num_tasks
    (X,), Y = model.eval().train_inputs, model.train_targets
    slopes = torch.full((num_tasks,), torch.nan)
    factors, spreads = torch.zeros(num_tasks, 2), torch.zeros(num_tasks)
    if num_points > 0:
        is_known = isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
        noise = model.likelihood.noise.expand(num_points) if is_known else None
        factors, slopes = slope_evidence(sources.gps, X, Y, noise)
        spreads = sources.gps.mean(X).std(dim=-1, correction=0)
    columns = (values.tolist() for values in (weights, slopes, factors, spreads))
    return [
        (weight, slope, helpful, inverted, source_verdict(helpful, inverted, num_points, spread))
        for weight, slope, (inverted, helpful), spread in zip(*columns, strict=True)
    ]


def source_verdict(helpful: float, inverted: float, num_points: int, spread: float = 1.0) -> str:
    """Classifies a source.

    Args:
        helpful: The log Bayes factor of a positive slope.
        inverted: That of a negative one.
        num_points: The number of target points.
        spread: The standard deviation of the source's predictions at these points. If it is small,
            as for points around an optimum, a source with a slightly shifted optimum would look
            inverted; such points are not used.

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


def slope_evidence(
    gps: ConditionedBatch, X: Tensor, Y: Tensor, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compares negative and positive slopes with none, for every source.

    Args:
        gps: The source GPs.
        X: An ``n x d`` tensor of target inputs, transformed.
        Y: An ``n`` tensor of target outcomes, in any units.
        noise: An ``n`` tensor of known noise variances; averaged over a grid if omitted.

    Returns:
        An ``M x 2`` tensor of log Bayes factors, of negative slopes and of positive ones against
        none; and an ``M`` tensor of the slopes' posterior means, if negative, no and positive
        slopes are equally likely beforehand.
    """
    X, Y, noise = _standardized(X, Y, noise)
    residual = _residual_covariances(X, noise)
    means, covariances = gps.mean(X), gps.covariance(X)
    num = len(SLOPES)
    slopes = Y.new_tensor([*(-slope for slope in SLOPES), 0.0, *SLOPES])
    densities = torch.stack(
        [
            average_log_density(Y - slope * means, slope**2 * covariances, residual)
            for slope in slopes
        ],
        dim=-1,
    )
    weighted = densities - (slopes != 0) * math.log(num)
    negative, none, positive = (
        part.logsumexp(dim=-1) for part in weighted.split([num, 1, num], dim=-1)
    )
    factors = torch.stack([negative - none, positive - none], dim=-1)
    return factors, weighted.softmax(dim=-1) @ slopes


def _standardized(
    X: Tensor, Y: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Standardizes the target by itself, because its units may differ from its sources'."""
    # More points add little and cost O(n³).
    rows = evenly_spaced(len(Y), MAX_POINTS)
    X, Y = X[rows].double(), Y[rows].double()
    scale = usable_std(Y.std(correction=0), Y.mean())
    if noise is not None:
        noise = noise[rows].double() / scale.square() + NOISES[0]
    return X, (Y - Y.mean()) / scale, noise


def _residual_covariances(X: Tensor, noise: Tensor | None) -> Tensor:
    """Covariances of level, residual and noise on a grid: ``G x n x n``."""
    distance = squared_distance(X, X)
    eye = torch.eye(len(X), dtype=X.dtype, device=X.device)
    noises = [value * eye for value in NOISES] if noise is None else [noise.diag()]
    return torch.stack(
        [
            1.0 + scale * torch.exp(-0.5 * distance / lengthscale**2) + diagonal
            for lengthscale, scale, diagonal in product(LENGTHSCALES, SCALES, noises)
        ]
    )
