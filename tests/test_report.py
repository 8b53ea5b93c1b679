import math
from itertools import product

import numpy as np
import pytest
import torch

from botorch_transfer import (
    GuardedTransferGP,
    MeanHierarchicalGP,
    PopulationGP,
    RankWeightedGP,
    ScaMLGP,
    SourceGPs,
    SourcePopulation,
    TransferGP,
    TwoStageTransferGP,
    report,
)
from botorch_transfer.report import (
    ALL_SOURCES,
    NOT_YET_TESTED,
    REPORT_COLUMNS,
    SMALL_SHARE,
    history_verdict,
    slope_evidence,
    source_finding,
    source_shares,
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

POPULATION = SourcePopulation.fit(history())


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize(
    "model_class", [ScaMLGP, RankWeightedGP, TwoStageTransferGP, GuardedTransferGP, TransferGP]
)
def test_names_what_each_source_is(model_class, known_noise):
    X, Y = FAMILY.target(10)
    prior = {"population": POPULATION, "scaml": PRIOR} if model_class is TransferGP else PRIOR
    model = model_class(X, Y, prior, torch.full_like(Y, 0.01) if known_noise else None)
    report = model.transfer_report()
    assert report.columns.tolist() == REPORT_COLUMNS
    assert report.index.tolist() == ["like", "opposite", "other", ALL_SOURCES]
    expected = ["helpful", "inverted", "irrelevant", "partly helpful"]
    # An unfitted guard may prefer the plain GP.
    if report.loc["like", "prediction"] < SMALL_SHARE:
        assert float(model.shares[0]) < 0.1
        expected = ["hardly used", "inverted", "irrelevant", "misleading"]
    assert report["verdict"].tolist() == expected
    assert report.loc["like", "slope"] > 0.5 > -0.5 > report.loc["opposite", "slope"]
    assert report.loc["like", "helpful"] > 3 > report.loc["like", "inverted"]
    weighted = {GuardedTransferGP: "transfer", TransferGP: "members.scaml"}.get(model_class, "")
    weights = model.get_submodule(weighted).weights.tolist()
    assert report["weight"].tolist()[:3] == pytest.approx(weights)
    if weighted:
        assert report.loc[ALL_SOURCES, "weight"] == pytest.approx(1 - float(model.shares[-1]))
    else:
        assert np.isnan(report.loc[ALL_SOURCES, "weight"])


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_few_points_are_no_test(n):
    model = ScaMLGP(*FAMILY.target(n), PRIOR)
    report = model.transfer_report()
    assert (report["prediction"] >= SMALL_SHARE).all()
    assert set(report["verdict"]) == {NOT_YET_TESTED}
    assert report["variance"].isna().all() == (n < 2)
    model.task_weights.weights = torch.tensor([0.3, 0.3, 0.001])
    assert model.transfer_report().loc["other", "verdict"] == "unclear"


def test_shares_by_hand():
    X, Y = FAMILY.target(6)
    model = ScaMLGP(X, Y, PRIOR)
    model.task_weights.weights = torch.tensor([0.6, 0.2, 0.001])
    parts = model.weights.unsqueeze(-1) * PRIOR.mean(X)
    with torch.no_grad():
        prediction = (model.posterior(X).mean - model.outcome_transform.means).squeeze(-1)
        rest = prediction / model.outcome_transform.stdvs.squeeze(-1) - parts.sum(dim=0)
        predicted, explained = source_shares(model, PRIOR)
    spreads = torch.cat([parts, rest.reshape(1, -1)]).std(dim=-1, correction=0)
    torch.testing.assert_close(predicted, spreads[:-1] / spreads.sum(), rtol=1e-3, atol=1e-4)
    both = torch.stack([parts[0], model.train_targets])
    expected = both.cov(correction=0)[0, 1] / both[1].var(correction=0)
    torch.testing.assert_close(explained[0], expected)
    report = model.transfer_report()
    assert report.loc["other", "prediction"] < SMALL_SHARE < report.loc["like", "prediction"]
    assert report.loc[ALL_SOURCES, "prediction"] == pytest.approx(float(predicted.sum()))
    assert report.loc[ALL_SOURCES, "variance"] == pytest.approx(float(explained.sum()))


def test_parts_of_a_population_add_up_to_its_mean():
    X, Y = FAMILY.target(4)
    model = PopulationGP(X, Y, POPULATION).eval()
    with torch.no_grad():
        parts = model.source_parts(X, POPULATION.task_names)
        mean = model.mean_module(X)
    assert parts.shape == (3, 4)
    torch.testing.assert_close(parts.sum(dim=0), mean)


def test_shares_of_an_average_are_those_of_its_members():
    X, Y = FAMILY.target(6)
    model = TransferGP(X, 100 * Y, {"population": POPULATION, "scaml": PRIOR})
    names, (own,) = list(PRIOR.task_names), model.eval().train_inputs
    with torch.no_grad():
        parts = model.source_parts(own, names)
        expected = sum(
            share
            * member.outcome_transform.stdvs
            / model.outcome_transform.stdvs
            * member.source_parts(own, names)
            for share, member in zip(model.shares, model.members.values(), strict=True)
        )
    torch.testing.assert_close(parts, expected)
    assert set(model.transfer_report()["prediction"].between(0, 1)) == {True}


def test_constant_outcomes_explain_nothing():
    X, Y = FAMILY.target(6)
    report = ScaMLGP(X, torch.ones_like(Y), PRIOR).transfer_report()
    assert report["prediction"].notna().all()
    assert report["variance"].isna().all()


@pytest.mark.parametrize(
    ("n", "weight", "verdict"),
    [(10, 0.9, "helpful"), (10, 0.1, "misleading"), (4, 0.9, NOT_YET_TESTED), (4, 0.01, "unclear")],
)
def test_without_source_posteriors_the_guard_alone_is_asked(n, weight, verdict):
    made = GuardedTransferGP(*FAMILY.target(n), FAMILY.sources(), transfer_model=MeanHierarchicalGP)
    made.transfer_weight.data.fill_(weight)
    told = made.transfer_report()
    assert told.index.tolist() == [ALL_SOURCES]
    assert told.loc[ALL_SOURCES, ["weight", "verdict"]].tolist() == [pytest.approx(weight), verdict]
    with pytest.raises(ValueError, match="MeanHierarchicalGP has no posteriors of source"):
        transfer_report(made.transfer)


def test_without_source_posteriors_shares_are_no_evidence():
    population = {"population": PopulationGP}
    model = TransferGP(*FAMILY.target(10), FAMILY.sources(), members=population)
    with pytest.raises(ValueError, match="TransferGP has no posteriors of source"):
        model.transfer_report()


def test_batches_are_refused():
    X = FAMILY.inputs(2, 3)
    with pytest.raises(ValueError, match="batch of models"):
        ScaMLGP(X, FAMILY.value(X), PRIOR).transfer_report()


def test_findings_and_verdicts():
    assert source_finding(5.0, -1.0, num_points=3) == "unclear"
    assert source_finding(5.0, -1.0, num_points=5) == "helpful"
    assert source_finding(-1.0, 5.0, num_points=5) == "inverted"
    assert source_finding(2.0, -1.0, num_points=5) == "unclear"
    assert source_finding(1.0, -1.0, num_points=8) == "irrelevant"
    assert source_finding(2.5, -1.0, num_points=8) == "unclear"
    assert source_finding(1.0, -1.0, num_points=8, spread=0.1) == "unclear"
    assert source_finding(-1.0, 5.0, num_points=8, spread=0.1) == "unclear"
    assert source_finding(5.0, -1.0, num_points=8, spread=0.1) == "helpful"
    for small, large in (("hardly used", "helpful"), ("unclear", NOT_YET_TESTED)):
        finding = small if small == "unclear" else large
        assert source_verdict(finding, share=0.049) == small
        assert source_verdict(finding, share=0.051) == large
    assert source_verdict("inverted", share=0.01) == source_verdict("inverted", share=0.9)


@pytest.mark.parametrize(
    ("findings", "share", "expected"),
    [
        (["helpful", "helpful", "inverted"], 0.1, "helpful"),
        (["helpful", "inverted", "inverted"], 0.1, "partly helpful"),
        (["helpful", "inverted", "inverted"], 0.01, "misleading"),
        (["helpful", "irrelevant", "irrelevant"], 0.01, "unclear"),
        (["helpful"] * 10, 0.01, "helpful"),  # small ones, but together a tenth
        (["irrelevant", "irrelevant", "irrelevant", "inverted"], 0.1, "misleading"),
        (["irrelevant"] * 4 + ["inverted"], 0.1, "irrelevant"),
        (["irrelevant", "irrelevant", "unclear"], 0.1, "irrelevant"),
        (["irrelevant", "unclear"], 0.1, NOT_YET_TESTED),
        (["irrelevant", "unclear"], 0.01, "unclear"),
    ],
)
def test_verdicts_on_the_whole(findings, share, expected):
    helpful = [6.0 if finding == "helpful" else -2.0 for finding in findings]
    assert history_verdict(findings, helpful, [share] * len(findings)) == expected


def test_one_of_many_may_look_helpful_by_chance():
    shares = [0.1] * 10
    verdicts = ["helpful"] + ["irrelevant"] * 9
    assert history_verdict(verdicts, [4.0] + [-1.0] * 9, shares) == NOT_YET_TESTED
    assert history_verdict(verdicts, [6.0] + [-1.0] * 9, shares) == "partly helpful"
    # Two that are nearly sure each are surer together.
    both = ["helpful", "helpful"] + ["irrelevant"] * 8
    assert history_verdict(both, [4.8, 4.8] + [-9.0] * 8, shares) == "partly helpful"
    assert history_verdict(verdicts, [4.8] + [-9.0] * 9, shares) == NOT_YET_TESTED


def test_all_are_irrelevant_only_if_the_data_speak_against_each():
    findings, shares = ["irrelevant"] * 3, [0.2] * 3
    assert history_verdict(findings, [-1.0, -0.5, -2.0], shares) == "irrelevant"
    # Each has no clear sign of a relation, but the runs follow them rather than not.
    assert history_verdict(findings, [1.5, 0.5, -1.0], shares) == NOT_YET_TESTED


SOURCES = SourceGPs.fit(FAMILY.sources(), num_restarts=0)


@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_evidence_by_loops(n, known_noise):
    X, Y = FAMILY.target(n)
    noise = torch.full((n,), 2.0).double() if known_noise else None
    factors, slopes = slope_evidence(SOURCES.gps, X, Y.squeeze(-1), noise)
    scale = Y.std(correction=0) if n > 1 else torch.ones(()).double()
    y = (Y.squeeze(-1) - Y.mean()) / scale
    noises = [value * torch.ones(n) for value in report.NOISES]
    if known_noise:
        noises = [noise / scale**2 + report.NOISES[0]]
    distance = torch.cdist(X, X).square()
    for m in range(3):
        density = {}
        for slope in (*report.SLOPES, 0.0, *(-s for s in report.SLOPES)):
            mean = slope * SOURCES.mean(X)[m]
            K = torch.stack(
                [
                    1 + s * torch.exp(-distance / (2 * ell**2)) + diagonal.double().diag()
                    for ell, s, diagonal in product(report.LENGTHSCALES, report.SCALES, noises)
                ]
            )
            K = K + slope**2 * SOURCES.covariance(X)[m]
            joint = torch.distributions.MultivariateNormal(mean.expand(len(K), n), K)
            density[slope] = float(joint.log_prob(y).exp().mean())
        positive = sum(density[s] for s in report.SLOPES) / 4
        negative = sum(density[-s] for s in report.SLOPES) / 4
        expected = [math.log(negative / density[0.0]), math.log(positive / density[0.0])]
        assert factors[m].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        total = positive + negative + density[0.0]
        mean_slope = sum(s * (density[s] - density[-s]) / 4 for s in report.SLOPES) / total
        assert float(slopes[m]) == pytest.approx(mean_slope, rel=1e-5, abs=1e-6)


def test_units_of_the_target_do_not_matter():
    X, Y = FAMILY.target(6)
    one, other = (slope_evidence(SOURCES.gps, X, y.squeeze(-1)) for y in (Y, 1e4 * Y - 3e6))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_opposite_has_the_opposite_evidence():
    X, Y = FAMILY.target(6)
    factors, slopes = slope_evidence(SOURCES.gps, X, Y.squeeze(-1))
    opposite, opposite_slopes = slope_evidence(SOURCES.gps, X, -Y.squeeze(-1))
    torch.testing.assert_close(factors, opposite.flip(-1))
    torch.testing.assert_close(slopes, -opposite_slopes)


def test_many_points_are_thinned(monkeypatch):
    X, Y = FAMILY.target(30)
    monkeypatch.setattr(report, "MAX_POINTS", 10)
    slopes, _ = slope_evidence(SOURCES.gps, X, Y.squeeze(-1))
    rows = torch.linspace(0, 29, 10).round().long()
    torch.testing.assert_close(slopes, slope_evidence(SOURCES.gps, X[rows], Y[rows].squeeze(-1))[0])


def test_constant_and_repeated_outcomes():
    X, Y = FAMILY.target(3)
    for inputs, outcomes in ((X, torch.ones(3).double()), (X[:1].repeat(3, 1), Y.squeeze(-1))):
        factors, slopes = slope_evidence(SOURCES.gps, inputs, outcomes)
        assert factors.isfinite().all()
        assert slopes.isfinite().all()
