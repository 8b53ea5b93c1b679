import math
import pickle

import pytest
import torch
from scipy.stats import spearmanr

from botorch_transfer import JointScaMLGP, ScaMLGP, SourceGPs
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.hyperpriors import TYPICAL_NOISE, TYPICAL_RESIDUAL
from botorch_transfer.sources import prior as agreement
from botorch_transfer.sources.prior import tasks_agree
from tests.families import ShiftedSines

FAMILY = ShiftedSines()


def fit(tasks):
    return SourceGPs.fit(tasks, num_restarts=0)


def test_correlations_by_hand():
    tasks = FAMILY.sources()
    prior = fit(tasks)
    expected = []
    for left_out, (X, Y) in enumerate(tasks.values()):
        others = [m for m in range(3) if m != left_out]
        predicted = prior.mean(X)[others].mean(dim=0)
        expected.append(spearmanr(Y[:, 0].numpy(), predicted.numpy()).statistic)
    torch.testing.assert_close(prior.agreement, torch.tensor(expected).float())


@pytest.mark.parametrize("scale", ["per_task", "pooled", "raw"])
def test_differences_by_hand(scale):
    """Each task is treated as a target before its first point."""
    tasks = {name: (X, Y / 50.0) for name, (X, Y) in FAMILY.sources((6, 9, 12)).items()}
    prior = SourceGPs.fit(tasks, num_restarts=0, outcome_scale=scale)
    expected = []
    for left_out, (X, Y) in enumerate(tasks.values()):
        others = [m for m in range(3) if m != left_out]
        if scale != "raw":
            known = torch.cat([list(tasks.values())[m][1] for m in others])
            Y = (Y - known.mean()) / known.std()
        predicted = prior.mean(X)[others].mean(dim=0)
        expected.append((Y[:, 0] - predicted).square().mean())
    found = prior.differences
    torch.testing.assert_close(found, torch.stack(expected))
    pooled = torch.cat([Y for _, Y in tasks.values()])
    unit = pooled.var(correction=0).item() if scale == "raw" else 1.0
    logs = (torch.stack(expected) / unit).clamp(1e-2, 10.0).log().tolist()
    average = unit * math.exp((math.log(TYPICAL_RESIDUAL) + sum(logs)) / 4)
    assert prior.residual_variance == pytest.approx(average)
    assert prior.view().residual_variance == prior.residual_variance
    assert pickle.loads(pickle.dumps(prior)).residual_variance == pytest.approx(average)


@pytest.mark.parametrize("scale", ["per_task", "raw"])
def test_a_target_is_expected_to_be_as_noisy_as_its_sources(scale):
    noises = torch.tensor([1e-6, 0.3, 0.8], dtype=torch.double)
    tasks = {
        name: (X, Y, noise * Y.var() * torch.ones_like(Y))
        for noise, (name, (X, Y)) in zip(noises, FAMILY.sources((6, 9, 12)).items(), strict=True)
    }
    prior = SourceGPs.fit(tasks, num_restarts=0, outcome_scale=scale)
    found = torch.stack([Yvar.mean() for _, _, Yvar in tasks.values()])
    unit = prior.outcomes().var(correction=0)
    if scale == "per_task":
        found, unit = found / torch.stack([Y.var() for _, Y, _ in tasks.values()]), 1.0
    logs = (found / unit).clamp(TYPICAL_NOISE, 10.0).log().tolist()
    expected = unit * math.exp((math.log(TYPICAL_NOISE) + sum(logs)) / 4)
    assert prior.noise_variance == pytest.approx(float(expected))
    assert prior.select([0]).noise_variance == pytest.approx(TYPICAL_NOISE * float(unit), rel=0.5)
    model = ScaMLGP(*FAMILY.target(2), prior)
    assert float(model.likelihood.noise) == pytest.approx(min(prior.noise_variance, 10.0))


def test_raw_outcomes_have_a_residual_in_their_unit():
    """Of one task, and in joint models, nothing but the outcomes' variance tells its scale."""
    found = []
    for factor in (0.2, 5.0):
        tasks = [(X, factor * (Y - 50.0) / 10.0) for X, Y in FAMILY.sources((8,)).values()]
        prior = SourceGPs.fit(tasks, num_restarts=0, outcome_scale="raw")
        joint = JointScaMLGP(*FAMILY.target(0), tasks, outcome_scale="raw").residual_covar_module
        expected = TYPICAL_RESIDUAL * tasks[0][1].var(correction=0).item()
        assert prior.residual_variance == pytest.approx(expected)
        assert joint.outputscale.item() == pytest.approx(expected)
        found.append(expected)
    assert found[1] == pytest.approx(625 * found[0])


def test_differences_of_one_task_are_unknown():
    prior = fit([FAMILY.target(10)])
    assert prior.differences.shape == (0,)
    assert prior.residual_variance == pytest.approx(TYPICAL_RESIDUAL)


def test_relatives_agree_and_strangers_do_not():
    X = FAMILY.inputs(20, seed=3)
    relatives = {f"{shift}": (X, FAMILY.value(X, shift)) for shift in (0.0, 0.1, 0.2, 0.3, 0.4)}
    assert tasks_agree(fit(relatives).agreement)
    generator = torch.Generator().manual_seed(0)
    strangers = [
        (X, torch.sin(6 * X @ torch.randn(2, 1, generator=generator, dtype=X.dtype) + phase))
        for phase in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    ]
    assert not tasks_agree(fit(strangers).agreement)
    signs = (1, -1, 1, -1, 1)
    turned = [(X, sign * Y) for sign, (X, Y) in zip(signs, relatives.values(), strict=True)]
    at_odds = fit(turned).agreement
    assert not tasks_agree(at_odds)
    assert tasks_agree(at_odds, -torch.inf)
    assert tasks_agree(-torch.ones(6), -torch.inf)


def test_few_tasks_cannot_tell():
    X, Y = FAMILY.target(10)
    assert fit([(X, Y)]).agreement.shape == (0,)
    both = fit([(X, Y), (X, -Y)]).agreement
    assert both.tolist() == pytest.approx([-1.0, -1.0])
    assert tasks_agree(both)
    assert tasks_agree(-torch.ones(4))
    assert not tasks_agree(-torch.ones(5))


def test_constant_tasks_and_single_points_say_nothing():
    X, Y = FAMILY.target(8)
    tasks = [(X, Y), (X, torch.full_like(Y, 3.0)), (X[:1], Y[:1])]
    correlations = fit(tasks).agreement
    assert correlations.isfinite().all()
    assert correlations[1:].tolist() == [0.0, 0.0]


def test_the_order_of_tasks_and_float32_do_not_matter():
    tasks = list(FAMILY.sources().values())
    forward = fit(tasks).agreement
    torch.testing.assert_close(fit(tasks[::-1]).agreement.flip(0), forward)
    single = [(X.float(), Y.float()) for X, Y in tasks]
    torch.testing.assert_close(fit(single).agreement, forward, atol=0.05, rtol=0)


def test_of_many_tasks_and_points_some_are_asked(monkeypatch):
    monkeypatch.setattr(agreement, "MAX_COMPARED", 2)
    monkeypatch.setattr(agreement, "MAX_POINTS", 4)
    asked = []
    mean = ConditionedGPs.mean
    monkeypatch.setattr(ConditionedGPs, "mean", lambda self, X: asked.append(X) or mean(self, X))
    sources = fit(FAMILY.sources((9, 6, 12)))
    assert sources.agreement.shape == (2,)
    # Evenly spaced, the first and the last one among them; tasks are ordered by their data.
    expected = sources.gps.points[1, [0, 2, 3, 5]], sources.gps.points[2, [0, 4, 7, 11]]
    torch.testing.assert_close(asked[0], torch.cat(expected))
    again = fit(list(FAMILY.sources((9, 6, 12)).values())[::-1])
    torch.testing.assert_close(again.agreement, sources.agreement)


@pytest.mark.parametrize(("significance", "expected"), [(2.0, True), (3.0, False)])
def test_significance(significance, expected):
    # Their mean is 0.2, its standard error 0.082.
    assert tasks_agree(torch.tensor([0.0, 0.0, 0.2, 0.4, 0.4, 0.2]), significance) is expected
