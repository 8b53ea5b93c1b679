"""Report on source tasks: their shares of a prediction, and their agreement with the target.

The report answers two questions:

1. How much does the model use a source? The prediction at the target's points is a sum of one term
   for each source (the source's part) and a remainder. The spread of a source's part over these
   points, relative to the sum of all spreads, is the source's share.
2. Does a source resemble the target? The target's data are regressed on the source:
   ``y = a + b μ_m(x) + g(x) + ε`` with the source's posterior mean ``μ_m`` and posterior
   covariance, an unknown constant ``a``, a GP ``g`` and noise ``ε``. The results are averaged over
   a grid of variances and lengthscales of ``g``, and of noise variances. The marginal likelihoods
   for slopes ``b < 0`` and ``b > 0`` are compared with the marginal likelihood for ``b = 0``. The
   comparison indicates whether the source resembles the target, is its opposite, or is unrelated.
   This answer depends only on the sources and on the target's data, not on the model.

A verdict depends on both answers. A source that the model hardly uses is not helpful. A source that
the model uses before the data can test the source is ``"used, not yet tested"``.
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

#: Log Bayes factor above which a source counts as related to the target: odds of twenty to one.
CLEAR_FACTOR = 3.0

#: Largest log Bayes factor at which a source may count as irrelevant: odds of seven to one.
NO_SIGN = 2.0

#: Minimum number of target points to call a source irrelevant.
POINTS_TO_JUDGE = 8

#: Minimum number of target points to judge a source. With fewer points, any relation between source
#: and target may be chance.
FEW_POINTS = 5

#: Minimum share of a source in the prediction. A source with a smaller share is hardly used.
SMALL_SHARE = 0.05

#: Minimum standard deviation of a source's predictions at the target's points to call the source
#: inverted or irrelevant.
ENOUGH_SPREAD = 0.3

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
    """Tabulates how much a model uses each source, and whether the source resembles the target.

    Use it to find out whether old runs help. Some classes have the report as a method, also named
    ``transfer_report``: :class:`TransferGP`, :class:`GuardedTransferGP`, and the classes of models
    whose prior is a :class:`SourceGPs`.

    Args:
        model: One of three kinds of model: a model whose prior is a :class:`SourceGPs`; an average
            of models that contains such a model; or a :class:`GuardedTransferGP` with any prior.

    Returns:
        A table with one row for each source task, indexed by its name, and a last row for all
        source tasks:

        - ``prediction``: the source's share of the prediction at the target's points, see
          :func:`source_shares`. With fewer than two target points, the share is evaluated at the
          sources' points.
        - ``variance``: the share of the outcomes' variance that the source's term of the prior mean
          explains; negative if the term and the outcomes are negatively correlated.
        - ``weight``: the source's weight in the model; NaN if the model has no weights of sources.
          For an average of models, it is the source's weight in the first averaged model whose
          prior is a :class:`SourceGPs`. The last row has the total weight of all transfer models
          in the average; NaN if the model is not an average.
        - ``slope``: the regression slope of the target on the source's mean, both standardized.
        - ``helpful``, ``inverted``: log Bayes factors of a positive and of a negative slope against
          a slope of zero.
        - ``verdict``: one of the following words.

        A source's verdict is ``"helpful"``, ``"hardly used"`` (the source resembles the target, but
        its share of the prediction is below 5 %), ``"inverted"`` or ``"irrelevant"``. While target
        points are too few or too close together, the verdict is ``"used, not yet tested"``, or
        ``"unclear"`` for a source that is hardly used.

        The verdict on all sources is ``"helpful"`` if most sources are helpful, and ``"partly
        helpful"`` if more sources are helpful than chance explains. Both verdicts require that
        the helpful sources together have at least 5 % of the prediction. Otherwise, if at least a
        quarter of the sources are inverted, the verdict is ``"misleading"``. Otherwise, if most
        sources are irrelevant and the data give no evidence that any source is helpful, the verdict
        is ``"irrelevant"``. In all other cases, the verdict is ``"used, not yet tested"``, or
        ``"unclear"`` if the sources are hardly used.

        For a :class:`GuardedTransferGP` without a posterior for each source task, the table has
        only the last row, with a weight and a verdict that depends on this weight.

    Raises:
        ValueError: If the model is a batch of models, or not one of the three kinds.

    Example:
        >>> transfer_report(model).loc["all sources", "verdict"]
        'used, not yet tested'
    """
    if len(model.batch_shape):
        raise ValueError("The model is a batch of models: report on one model at a time.")
    weight = model.transfer_share
    if model.member_on_sources is not None:
        return _report_on_sources(model, model.member_on_sources, weight)
    if not model.weighs_all_sources:
        raise ValueError(
            f"{type(model).__name__} has no posteriors of source tasks: use TransferGP, "
            "GuardedTransferGP, or a model whose prior is a SourceGPs."
        )
    if model.num_target_points < POINTS_TO_JUDGE:
        verdict = NOT_YET_TESTED if weight >= SMALL_SHARE else "unclear"
    else:
        verdict = "helpful" if weight >= 0.5 else "misleading"
    known = pd.DataFrame({"weight": weight, "verdict": verdict}, index=[ALL_SOURCES])
    return known.reindex(columns=REPORT_COLUMNS)


def _report_on_sources(model: TransferModel, informed: OnSources, weight: float) -> pd.DataFrame:
    """Builds the report for a model that has a posterior of each source task.

    Args:
        model: The model.
        informed: The model itself; if the model is an average, the member with the posteriors.
        weight: The total weight of the transfer models if the model is an average; otherwise NaN.

    Returns:
        The table of :func:`transfer_report`.
    """
    sources, num_points = informed.prior, model.num_target_points
    predicted, explained = source_shares(model, sources)
    slopes = torch.full((sources.num_tasks,), torch.nan)
    factors, spreads = torch.zeros(sources.num_tasks, 2), torch.zeros(sources.num_tasks)
    if num_points > 0:
        (X,), Y = model.eval().train_inputs, model.train_targets
        is_known = isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
        noise = model.likelihood.noise.expand(num_points) if is_known else None
        factors, slopes = slope_evidence(sources.gps, X, Y, noise)
        spreads = sources.gps.mean(X).std(dim=-1, correction=0)
    inverted, helpful = factors.unbind(dim=-1)
    evidence = zip(helpful.tolist(), inverted.tolist(), spreads.tolist(), strict=True)
    findings = [source_finding(yes, no, num_points, spread) for yes, no, spread in evidence]
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
    """Computes each source's share of a model's prediction, and of the outcomes' variance.

    A source's part of the prediction is its term in the prior mean, see
    :meth:`TransferModel.source_parts`. The rest is the prediction minus all parts. The shares
    depend only on how much each part varies over the points, not on the mean of the part.

    Args:
        model: The model. With fewer than two target points, it is evaluated at the sources' points.
        sources: The source GPs.

    Returns:
        Two ``M`` tensors. The first tensor has the spread of each source's part, divided by the sum
        of the spreads of all parts and of the rest. The second tensor has the covariance of each
        part with the outcomes, divided by the outcomes' variance. It is NaN with fewer than two
        target points.
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


def source_finding(helpful: float, inverted: float, num_points: int, spread: float = 1.0) -> str:
    """Judges a source by the target's data alone, independently of its weight in a model.

    Args:
        helpful: The log Bayes factor of a positive slope.
        inverted: The log Bayes factor of a negative slope.
        num_points: Number of target points.
        spread: The standard deviation of the source's predictions at these points. The spread is
            small if all points are near the source's optimum. There, even a helpful source looks
            inverted or irrelevant if the target's optimum is slightly shifted. With a small spread,
            the finding is therefore ``"helpful"`` or ``"unclear"``.

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
    """Combines the evidence for a source with the source's share of a model's prediction.

    Args:
        finding: The judgement by the target's data alone, from :func:`source_finding`.
        share: The source's share of the prediction.

    Returns:
        The finding, with two exceptions: ``"hardly used"`` replaces ``"helpful"`` if the share is
        small, and ``"used, not yet tested"`` replaces ``"unclear"`` if the share is not small.

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
    """Combines the judgements of all sources into one verdict on the old runs.

    Among many sources that are unrelated to the target, a few look helpful by chance. If at most
    half of the sources look helpful, the helpful sources therefore count only if ``B`` is large.
    ``B`` is the Bayes factor of the hypothesis that one of the sources is helpful: the mean of all
    sources' Bayes factors. In all cases, helpful sources count only if the sum of their shares is
    not small; each single share may be small. If all runs are near the old tasks' optima, even
    helpful sources may look irrelevant, because the runs vary too little. The verdict
    ``"irrelevant"`` therefore also requires that ``B`` is at most one.

    Args:
        findings: The results of :func:`source_finding`, at least one.
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
    # Among many sources, a few may look inverted by chance.
    if 4 * findings.count("inverted") >= len(findings):
        return "misleading"
    if 2 * findings.count("irrelevant") > len(findings) and one_helps <= 0:
        return "irrelevant"
    return NOT_YET_TESTED if sum(shares) >= SMALL_SHARE else "unclear"


def slope_evidence(
    gps: ConditionedBatch, X: Tensor, Y: Tensor, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Computes Bayes factors of a negative and a positive relation of each source to the target.

    The relation is the slope of a regression of the target's outcomes on the source's posterior.
    Negative and positive slopes are compared with a slope of zero.

    Args:
        gps: The source GPs.
        X: An ``n x d`` tensor of target inputs after the model's input transform.
        Y: An ``n`` tensor of target outcomes, in any units.
        noise: An ``n`` tensor of known noise variances. If omitted, the marginal likelihood is
            averaged over a grid of noise variances.

    Returns:
        An ``M x 2`` tensor of log Bayes factors, of negative and of positive slopes against a slope
        of zero; and an ``M`` tensor of posterior means of slopes. The prior gives negative, zero
        and positive slopes the same probability.
    """
    rows = evenly_spaced(len(Y), MAX_POINTS)  # more points add little and cost O(n³)
    X, Y = X[rows].double(), Y[rows].double()
    # Outcomes are standardized by their own moments, because sources may have other units.
    scale = usable_std(Y.std(correction=0), Y.mean())
    Y, eye = (Y - Y.mean()) / scale, torch.eye(len(Y)).to(Y)
    noises = [value * eye for value in NOISES]
    if noise is not None:
        noises = [(noise[rows].double() / scale.square() + NOISES[0]).diag()]
    distance = squared_distance(X, X)
    # The sum of the covariances of constant, residual and noise, for each point of a grid.
    grid = [
        1.0 + variance * torch.exp(-0.5 * distance / lengthscale**2) + diagonal
        for lengthscale, variance, diagonal in product(LENGTHSCALES, SCALES, noises)
    ]
    means, covariances, num = gps.mean(X), gps.covariance(X), len(SLOPES)
    slopes = Y.new_tensor([*(-slope for slope in SLOPES), 0.0, *SLOPES])
    densities = log_densities_of_slopes(slopes, Y, means, covariances, torch.stack(grid))
    weighted = densities - (slopes != 0) * math.log(num)
    negative, none, positive = (
        part.logsumexp(dim=-1) for part in weighted.split([num, 1, num], dim=-1)
    )
    factors = torch.stack([negative - none, positive - none], dim=-1)
    return factors, weighted.softmax(dim=-1) @ slopes
