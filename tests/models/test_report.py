from __future__ import annotations

import numpy as np
import pytest
import torch

from botorch_transfer import (
    GuardedTransferGP,
    MeanHierarchicalGP,
    RankWeightedGP,
    ScaMLGP,
    SourceGPs,
    TwoStageTransferGP,
)
from botorch_transfer.models.report import (
    ALL,
    COLUMNS,
    history_verdict,
    source_verdict,
    transfer_report,
)
from tests.families import ShiftedSines

FAMILY = ShiftedSines()


def history():
    A = FAMILY.inputs(25, seed=3)
    other = torch.sin(12 * A[:, :1]) * torch.cos(9 * A[:, 1:])
    values = {"like": FAMILY.value(A, 0.05), "opposite": -FAMILY.value(A), "other": other}
    return {name: (A, Y) for name, Y in values.items()}


PRIOR = SourceGPs.fit(history(), num_restarts=1)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize(
    "model_class", [ScaMLGP, RankWeightedGP, TwoStageTransferGP, GuardedTransferGP]
)
def test_names_what_each_source_is(model_class, known_noise):
    X, Y = FAMILY.target(10)
    model = model_class(X, Y, PRIOR, torch.full_like(Y, 0.01) if known_noise else None)
    report = model.transfer_report()
    assert report.columns.tolist() == COLUMNS
    assert report.index.tolist() == ["like", "opposite", "other", ALL]
    assert report["verdict"].tolist() == ["helpful", "inverted", "irrelevant", "partly helpful"]
    assert report.loc["like", "slope"] > 0.5 > -0.5 > report.loc["opposite", "slope"]
    assert report.loc["like", "helpful"] > 3 > report.loc["like", "inverted"]
    weights = getattr(model, "transfer", model).weights.tolist()
    assert report["weight"].tolist()[:3] == pytest.approx(weights)
    if model_class is GuardedTransferGP:
        assert report.loc[ALL, "weight"] == pytest.approx(float(model.transfer_weight))
    else:
        assert np.isnan(report.loc[ALL, "weight"])


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_few_points_say_little(n):
    report = GuardedTransferGP(*FAMILY.target(n), PRIOR).transfer_report()
    assert report.loc["other", "verdict"] == "unclear"
    if n < 2:
        assert set(report["verdict"]) == {"unclear"}


@pytest.mark.parametrize(
    ("n", "weight", "verdict"),
    [(10, 0.9, "helpful"), (10, 0.1, "misleading"), (4, 0.9, "unclear"), (0, 1.0, "unclear")],
)
def test_without_source_posteriors_the_guard_alone_is_asked(n, weight, verdict):
    model = GuardedTransferGP(
        *FAMILY.target(n), FAMILY.sources(), transfer_model=MeanHierarchicalGP
    )
    model.transfer_weight.data.fill_(weight)
    report = model.transfer_report()
    assert report.index.tolist() == [ALL]
    assert report.loc[ALL, ["weight", "verdict"]].tolist() == [pytest.approx(weight), verdict]
    with pytest.raises(ValueError, match="MeanHierarchicalGP has no posterior of each source"):
        transfer_report(model.transfer)
    assert not hasattr(model.transfer, "transfer_report")


def test_batches_are_refused():
    X = FAMILY.inputs(2, 3)
    with pytest.raises(ValueError, match="batch of models"):
        ScaMLGP(X, FAMILY.value(X), PRIOR).transfer_report()


def test_verdicts():
    assert source_verdict(5.0, -1.0, num_points=3) == "helpful"
    assert source_verdict(-1.0, 5.0, num_points=3) == "inverted"
    assert source_verdict(2.0, -1.0, num_points=3) == "unclear"
    assert source_verdict(1.0, -1.0, num_points=8) == "irrelevant"
    assert source_verdict(2.5, -1.0, num_points=8) == "unclear"
    assert source_verdict(1.0, -1.0, num_points=8, spread=0.1) == "unclear"
    assert source_verdict(-1.0, 5.0, num_points=8) == "inverted"
    assert source_verdict(-1.0, 5.0, num_points=8, spread=0.1) == "unclear"
    assert source_verdict(5.0, -1.0, num_points=8, spread=0.1) == "helpful"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["helpful", "helpful", "inverted"], "helpful"),
        (["helpful", "inverted", "inverted"], "partly helpful"),
        (["irrelevant", "irrelevant", "irrelevant", "inverted"], "misleading"),
        (["irrelevant"] * 4 + ["inverted"], "irrelevant"),
        (["irrelevant", "irrelevant", "unclear"], "irrelevant"),
        (["irrelevant", "unclear"], "unclear"),
    ],
)
def test_verdicts_on_the_whole(verdicts, expected):
    helpful = [6.0 if verdict == "helpful" else -2.0 for verdict in verdicts]
    assert history_verdict(verdicts, helpful) == expected


def test_one_of_many_may_look_helpful_by_chance():
    verdicts = ["helpful"] + ["irrelevant"] * 9
    assert history_verdict(verdicts, [4.0] + [-1.0] * 9) == "irrelevant"
    assert history_verdict(verdicts, [6.0] + [-1.0] * 9) == "partly helpful"
    # Two that are nearly sure each are surer together.
    both = ["helpful", "helpful"] + ["irrelevant"] * 8
    assert history_verdict(both, [4.8, 4.8] + [-9.0] * 8) == "partly helpful"
    assert history_verdict(verdicts, [4.8] + [-9.0] * 9) == "irrelevant"
