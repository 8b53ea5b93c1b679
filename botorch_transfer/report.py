"""Diagnosis of sources: their parts of a prediction, and their agreement with the target.

The report answers two questions. What does the model use? Its prediction at the target's points is
a sum of one part for each source and a rest, and the spread of each part measures its weight.
Does a source resemble the target? The target's data are modelled as ``y = a + b μ_m(x) + g(x) + ε``
with a source's posterior mean ``μ_m`` and its posterior covariance, an unknown level ``a``, a GP
``g`` and noise ``ε``. The scale and lengthscale of ``g``, and the noise, are averaged over a grid.
Marginal likelihoods with slopes ``b < 0`` and ``b > 0``, compared with the one at ``b = 0``,
indicate whether a source resembles the target, is its opposite, or is unrelated. This is a question
about the data, not about a model: the answer is the same for all models with the same sources. A
verdict needs both answers: a source that the model hardly uses is not called helpful, and one that
it uses without a test is said to be so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
import torch
from botorch.models.utils import gpt_posterior_settings
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.conditioned import ConditionedBatch
from botorch_transfer.gp.likelihood import log_densities_of_slopes
from botorch_transfer.gp.stationary import squared_distance
from botorch_transfer.model import OnSources, TransferModel
from botorch_transfer.outcome_transforms import usable_std
from botorch_transfer.prior import ConditionedPrior

CLEAR_FACTOR = 3.0
"""The log Bayes factor from which a relation counts as real: odds of twenty to one."""

NO_SIGN = 2.0
"""The log Bayes factor up to which there is no sign of a relation: odds of seven to one."""

POINTS_TO_JUDGE = 8
"""The number of target points by which a source that resembles the target would have shown it."""

FEW_POINTS = 5
"""With fewer target points there is no verdict: a source can look like anything by chance."""

SMALL_SHARE = 0.05
"""A source with a smaller share of the prediction is hardly used, and cannot be why it is right."""

ENOUGH_SPREAD = 0.3
"""The least spread of a source's predictions at the target's points, in standard deviations."""

SLOPES = (0.25, 0.5, 1.0, 2.0)
LENGTHSCALES = (0.15, 0.3, 0.6, 1.2)
SCALES = (0.03, 0.1, 0.3, 1.0)
NOISES = (1e-4, 1e-2)
MAX_POINTS = 100

ALL_SOURCES = "all sources"
NOT_YET_TESTED = "used, not yet tested"
REPORT_COLUMNS = ["prediction", "variance", "weight", "slope", "helpful", "inverted", "verdict"]


@torch.no_grad()
def transfer_report(model: TransferModel) -> pd.DataFrame:
    """Tabulates what a model uses of each source task and of all, and whether this was borne out.

    It is a method of the models on :class:`SourceGPs`, of :class:`TransferGP` and of
    :class:`GuardedTransferGP`.

    Args:
        model: A model whose prior is a :class:`SourceGPs`, or one of whose members has such a
            prior; or a :class:`GuardedTransferGP` of any.

    Returns:
        One row a source task, the index its name, and a last row for all of them:

        - ``prediction``: the source's share of the prediction at the target's points, see
          :func:`source_shares`; at the sources' points as long as the target has fewer than two.
        - ``variance``: the share of the outcomes' variance that the source's part explains;
          negative if the part runs against the outcomes.
        - ``weight``: the source's weight in the model or its member, or the share of all transfer
          models against the plain GP; NaN where there is none.
        - ``slope``: the regression slope of the target on the source's mean, both standardized.
        - ``helpful``, ``inverted``: log Bayes factors of a positive and of a negative slope against
          none.
        - ``verdict``: for a source ``"helpful"``, ``"hardly used"`` (it resembles the target, but
          has less than a twentieth of the prediction), ``"inverted"``, ``"irrelevant"``; as long as
          points are too few or too close, ``"used, not yet tested"`` or, without a share,
          ``"unclear"``. For all ``"helpful"`` if most are, ``"partly helpful"`` if some are, and
          not by chance; else ``"misleading"`` if a quarter is inverted, and ``"irrelevant"`` if
          most are and the data give no evidence for a helpful one.

    Raises:
        ValueError: If the model is a batch of models, or has no source posteriors.

    Example:
        >>> transfer_report(model).loc["all sources", "verdict"]
        'used, not yet tested'
    """
    if len(model.batch_shape):
        raise ValueError("The model is a batch of models: report on one at a time.")
    weight = model.transfer_share
    if model.member_on_sources is not None:
        return _report_on_sources(model, model.member_on_sources, weight)
    if not model.weighs_all_sources:
        raise ValueError(
            f"{type(model).__name__} has no posterior of each source task to report on: use a "
            "model on SourceGPs, TransferGP, or GuardedTransferGP."
        )
    if model.num_target_points < POINTS_TO_JUDGE:
        verdict = NOT_YET_TESTED if weight >= SMALL_SHARE else "unclear"
    else:
        verdict = "helpful" if weight >= 0.5 else "misleading"
    unknown = [np.nan] * 2
    row = (*unknown, weight, np.nan, *unknown, verdict)
    return pd.DataFrame([row], index=[ALL_SOURCES], columns=REPORT_COLUMNS)


def _report_on_sources(model: TransferModel, informed: OnSources, weight: float) -> pd.DataFrame:
    """The report on a model one of whose members, or which itself, is on :class:`SourceGPs`."""
    sources = informed.prior
    predicted, explained = source_shares(model, sources)
    findings, factors, slopes = _findings(model, sources)
    inverted, helpful = factors.unbind(dim=-1)
    columns = [predicted, explained, informed.weights, slopes, helpful, inverted]
    report = pd.DataFrame(
        {name: part.tolist() for name, part in zip(REPORT_COLUMNS, columns, strict=False)},
        index=list(sources.task_names),
    )
    report["verdict"] = list(map(source_verdict, findings, report["prediction"]))
    whole = history_verdict(findings, helpful.tolist(), predicted.tolist())
    # All sources together have no slope.
    total = [float(predicted.sum()), float(explained.sum()), weight, np.nan, np.nan, np.nan, whole]
    return pd.concat([report, pd.DataFrame([total], index=[ALL_SOURCES], columns=REPORT_COLUMNS)])


def source_shares(model: TransferModel, sources: ConditionedPrior) -> tuple[Tensor, Tensor]:
    """Shares of a model's prediction, and of the outcomes' variance, by source.

    A source's part is its term in the prior mean, see :meth:`TransferModel.source_parts`. What
    remains of the prediction is the rest. A level counts nowhere: parts are compared by their
    spread over the points.

    Args:
        model: The model; evaluated at the sources' points as long as it has fewer than two.
        sources: The source GPs.

    Returns:
        Two ``M`` tensors: the spread of each source's part over the spreads of all parts and the
        rest; and its covariance with the outcomes over their variance, NaN without two points.
    """
    (X,), Y = model.eval().train_inputs, model.train_targets
    at_target = len(Y) > 1
    if not at_target:
        X = sources.gps.points.flatten(end_dim=-2)
        X = X[evenly_spaced(len(X), MAX_POINTS)].to(Y)
    parts = model.source_parts(X, sources.task_names).double()
    with gpt_posterior_settings():
        prediction = model(X).mean.double()
    parts_and_rest = torch.cat([parts, (prediction - parts.sum(dim=0)).unsqueeze(0)])
    spread = parts_and_rest.std(dim=-1, correction=0)
    predicted = spread[:-1] / spread.sum().clamp_min(torch.finfo(torch.double).tiny)
    if not at_target:
        return predicted, torch.full_like(predicted, torch.nan)
    centred = Y.double() - Y.double().mean()
    variance = centred.square().mean()
    explained = (parts * centred).mean(dim=-1) / variance
    return predicted, torch.where(variance > 0, explained, torch.nan)


def _findings(model: TransferModel, sources: ConditionedPrior) -> tuple[list[str], Tensor, Tensor]:
    """Returns evidence on each source: the finding, two log Bayes factors and the slope."""
    num_points, num_tasks = model.num_target_points, sources.num_tasks
    (X,), Y = model.eval().train_inputs, model.train_targets
    slopes = torch.full((num_tasks,), torch.nan)
    factors, spreads = torch.zeros(num_tasks, 2), torch.zeros(num_tasks)
    if num_points > 0:
        is_known = isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
        noise = model.likelihood.noise.expand(num_points) if is_known else None
        factors, slopes = slope_evidence(sources.gps, X, Y, noise)
        spreads = sources.gps.mean(X).std(dim=-1, correction=0)
    findings = [
        source_finding(helpful, inverted, num_points, spread)
        for (inverted, helpful), spread in zip(factors.tolist(), spreads.tolist(), strict=True)
    ]
    return findings, factors, slopes


def source_finding(helpful: float, inverted: float, num_points: int, spread: float = 1.0) -> str:
    """Judges a source by the target's data alone, without its weight in a model.

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
        >>> source_finding(0.3, -2.0, num_points=4), source_finding(0.3, -2.0, num_points=10)
        ('unclear', 'irrelevant')
    """
    if num_points < FEW_POINTS:
        return "unclear"
    tells = spread >= ENOUGH_SPREAD
    if max(helpful, inverted) > CLEAR_FACTOR:
        if helpful > inverted:
            return "helpful"
        return "inverted" if tells else "unclear"
    enough = num_points >= POINTS_TO_JUDGE and tells
    return "irrelevant" if enough and max(helpful, inverted) <= NO_SIGN else "unclear"


def source_verdict(finding: str, share: float) -> str:
    """Judges a source by the data's evidence and by its part of the model's prediction.

    Args:
        finding: That of :func:`source_finding`.
        share: The source's share of the prediction.

    Returns:
        The finding; but ``"hardly used"`` instead of ``"helpful"`` for a small share, and ``"used,
        not yet tested"`` instead of ``"unclear"`` for one that is not small.

    Example:
        >>> source_verdict("helpful", share=0.4), source_verdict("helpful", share=0.01)
        ('helpful', 'hardly used')
    """
    if finding == "helpful" and share < SMALL_SHARE:
        return "hardly used"
    return NOT_YET_TESTED if finding == "unclear" and share >= SMALL_SHARE else finding


def history_verdict(
    findings: Sequence[str], helpful: Sequence[float], shares: Sequence[float]
) -> str:
    """Sums up the findings on the sources.

    Of many sources that are unrelated to the target, one or the other looks helpful by chance. So
    few helpful ones count only if there is evidence for "at least one of all is helpful", whose
    Bayes factor against none is the mean of theirs; and helpful ones count only if they have
    together more than a small share of the prediction. Many small ones may so be helpful together.
    All are irrelevant only if there is no evidence for any helpful one: runs near the old
    tasks' optima differ too little to show that they follow them.

    Args:
        findings: Those of :func:`source_finding`, at least one.
        helpful: The sources' log Bayes factors of positive slopes.
        shares: The sources' shares of the prediction.

    Returns:
        ``"helpful"``, ``"partly helpful"``, ``"misleading"``, ``"irrelevant"``, ``"used, not yet
        tested"`` or ``"unclear"``.

    Example:
        >>> history_verdict(["helpful", "irrelevant", "inverted"], [5.0, -1.0, -4.0], [0.5, 0, 0])
        'partly helpful'
    """
    num_helpful = findings.count("helpful")
    carried = sum(s for s, finding in zip(shares, findings, strict=True) if finding == "helpful")
    one_helps = float(np.logaddexp.reduce(helpful)) - math.log(len(helpful))
    if carried >= SMALL_SHARE:
        if 2 * num_helpful > len(findings):
            return "helpful"
        if one_helps > CLEAR_FACTOR:
            return "partly helpful"
    # Of many sources, one may look inverted by chance.
    if 4 * findings.count("inverted") >= len(findings):
        return "misleading"
    if 2 * findings.count("irrelevant") > len(findings) and one_helps <= 0:
        return "irrelevant"
    return NOT_YET_TESTED if sum(shares) >= SMALL_SHARE else "unclear"


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
    densities = log_densities_of_slopes(slopes, Y, means, covariances, residual)
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
