"""Leave-one-source-out calibration."""

import math

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize

from botorch_transfer import (
    GuardedTransferGP,
    PopulationGP,
    PretrainedGP,
    RankWeightedGP,
    ScaMLGP,
    SourceGPs,
    SourcePopulation,
    TransferGP,
    calibration,
)
from botorch_transfer.calibration import PLAIN, Calibration, calibrate, can_be_calibrated
from botorch_transfer.pretraining import PretrainedPrior

NAMES = ["a", "b", "c"]


def history(seed: int = 0, related: bool = True) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(3, 14, 1, generator=generator, dtype=torch.double)
    shifts = torch.tensor([0.0, 0.1, 0.2]) if related else torch.tensor([0.0, 2.0, 4.0])
    return {
        name: (x, 3 * torch.sin(6 * x + shift) + 5)
        for name, x, shift in zip(NAMES, X, shifts, strict=True)
    }


POPULATION, SOURCES = SourcePopulation.fit(history()), SourceGPs.fit(history())


def runs(*rows: tuple[str, int, str, float, float, float]) -> Calibration:
    columns = ["task", "points", "model", "log_density", "z", "coverage"]
    return Calibration(pd.DataFrame(rows, columns=columns))


def test_scores_are_those_of_a_model_of_the_other_tasks():
    found = calibrate(POPULATION, PopulationGP, points=[0]).runs
    own = found[found["model"] == "model"].set_index("task")
    assert sorted(own.index) == NAMES
    others = POPULATION.select([0, 2])
    X, Y = history()["b"]
    none = X[:0]
    posterior = PopulationGP(none, none, others).posterior(X, observation_noise=True)
    z = ((Y - posterior.mean) / posterior.variance.sqrt()).detach()
    density = -0.5 * (z.square() + posterior.variance.log() + math.log(2 * math.pi))
    assert own.loc["b", "z"] == pytest.approx(float(z.square().mean().sqrt()), rel=1e-6)
    assert own.loc["b", "log_density"] == pytest.approx(float(density.mean()), rel=1e-6)
    assert own.loc["b", "coverage"] == pytest.approx(float((z.abs() < 1.6448536).double().mean()))


def test_points_that_were_seen_are_not_predicted_and_help():
    found = calibrate(POPULATION, PopulationGP, points=[0, 5, 14]).summary()
    assert sorted(found.loc["model"].index) == [0, 5]  # nothing is left of 14 points after 14
    assert found.loc[("model", 5), "log_density"] > found.loc[("model", 0), "log_density"]


def test_members_of_an_average_are_calibrated_one_by_one():
    priors = {"population": POPULATION, "scaml": SOURCES}
    found = calibrate(priors, TransferGP, points=[2]).summary()
    assert set(found.index.get_level_values("model")) == {"model", "population", "scaml", PLAIN}


def test_tasks_that_resemble_each_other_gain():
    related = calibrate(POPULATION, PopulationGP, points=[3])
    unrelated = SourcePopulation.fit(history(related=False))
    assert related.gain(3) > 0.3
    assert calibrate(unrelated, PopulationGP, points=[3]).gain(3) < related.gain(3) - 0.3


@pytest.mark.parametrize(
    ("difference", "words"),
    [(0.5, "well"), (0.0, "hardly"), (-0.5, "worse than no old runs would")],
)
def test_the_sentence_follows_the_gain(difference, words):
    calibration = runs(("a", 0, "model", difference, 1.0, 0.9), ("a", 0, PLAIN, 0.0, 1.0, 0.9))
    assert calibration.gain() == difference
    assert f"one another {words}. Unseen outcomes are {math.exp(difference):.2g} times" in str(
        calibration
    )


def test_equal_priors_are_calibrated_once(monkeypatch):
    first = calibrate(POPULATION, PopulationGP, points=[0])
    expected = first.runs.copy()
    first.runs["z"] = 0.0  # it is a copy of what is remembered
    monkeypatch.setattr(calibration, "_calibrate", lambda *given: pytest.fail("anew"))
    again = calibrate(SourcePopulation.fit(history()), PopulationGP, points=[0])
    pd.testing.assert_frame_equal(again.runs, expected)
    with pytest.raises(pytest.fail.Exception):
        calibrate(POPULATION, PopulationGP, points=[0], seed=1)


def test_the_prior_stays_as_it_is_and_so_does_its_input_transform():
    transform = Normalize(1, bounds=torch.tensor([[0.0], [2.0]], dtype=torch.double))
    raw = {name: (2 * X, Y) for name, (X, Y) in history().items()}
    prior = SourcePopulation.fit(raw, input_transform=transform)
    before = {name: tensor.clone() for name, tensor in prior.state_dict().items()}
    found, expected = (calibrate(each, PopulationGP, points=[0]) for each in (prior, POPULATION))
    pd.testing.assert_frame_equal(found.summary(), expected.summary(), rtol=1e-6)
    assert prior.input_transform is not None
    for name, tensor in prior.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("model", [ScaMLGP])
def test_sources_of_scaml_are_left_out(model, monkeypatch):
    sources = SOURCES
    found = calibrate(sources, model, points=[2]).runs
    task = found[found["model"] == "model"]["task"].iloc[0]
    X, Y = sources.observations(NAMES.index(task))
    torch.testing.assert_close(X, history()[task][0])
    torch.testing.assert_close(Y, history()[task][1])
    left = sources.select([i for i, name in enumerate(NAMES) if name != task])
    assert left.task_names == tuple(name for name in NAMES if name != task)
    seen = []
    monkeypatch.setattr(calibration, "_fitted", lambda *given: seen.append(given[2][""]) or {})
    with pytest.raises(InputDataError, match="ask for fewer"):
        calibrate(sources, model, points=[2], seed=5)
    assert sorted({prior.task_names for prior in seen}) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(prior.num_tasks == 2 for prior in seen)


def test_a_single_task_cannot_be_left_out():
    single = SourcePopulation.fit({"a": history()["a"]})
    with pytest.raises(InputDataError, match="there is only one"):
        calibrate(single, PopulationGP)


def test_priors_without_tasks_are_refused():
    with pytest.raises(TypeError, match="A PretrainedPrior cannot leave a source task out"):
        calibrate(PretrainedPrior.hyperbo(1), PopulationGP)


def test_a_single_prior_is_calibrated_as_its_members_and_a_plain_gp():
    found = calibrate(POPULATION, points=[0]).summary()
    assert set(found.index.get_level_values("model")) == {"model", "population", PLAIN}


def test_tasks_are_left_out_by_name():
    sources = SOURCES
    one = calibrate({"population": POPULATION, "scaml": sources}, points=[2]).runs
    other = calibrate({"population": POPULATION, "scaml": sources.select([2, 0, 1])}, points=[2])
    # Fits end where next to nothing is left to gain. Densities, not their logs, which may be zero.
    runs, expected = (
        found.assign(log_density=found["log_density"].map(math.exp)) for found in (other.runs, one)
    )
    pd.testing.assert_frame_equal(runs, expected, rtol=0.02)


def test_what_cannot_be_calibrated_is_refused():
    sources = SOURCES
    with pytest.raises(InputDataError, match="are of other source tasks"):
        calibrate({"population": POPULATION, "scaml": sources.select([0, 1])})
    with pytest.raises(TypeError, match="ScaMLGP takes one prior"):
        calibrate({"scaml": sources}, ScaMLGP)
    with pytest.raises(InputDataError, match="No source task has points left"):
        calibrate(POPULATION, PopulationGP, points=[14])


def test_an_average_of_some_members_is_calibrated_as_it_is():
    sources = SOURCES
    found = calibrate({"scaml": sources}, points=[2]).summary()
    assert set(found.index.get_level_values("model")) == {"model", "scaml", PLAIN}
    with pytest.raises(ValueError, match="'other' is no default member of TransferGP: give the pr"):
        calibrate({"other": sources}, points=[2])


def test_says_what_can_be_calibrated():
    X, Y = (part[:2] for part in history()["a"])
    sources, single = SOURCES, SourceGPs.fit({"a": history()["a"]})
    members = {"population": PopulationGP, "other": ScaMLGP}
    can = [
        ScaMLGP(X, Y, sources),
        GuardedTransferGP(X, Y, sources),
        TransferGP(X, Y, sources),
        RankWeightedGP(X, Y, sources),
    ]
    cannot = [
        ScaMLGP(X, Y, single),
        GuardedTransferGP(X, Y, POPULATION, transfer_model=PopulationGP),
        TransferGP(X, Y, history(), members=members),
        SingleTaskGP(X, Y),
        PretrainedGP(X, Y, PretrainedPrior.fsbo(1)),
    ]
    assert [can_be_calibrated(model) for model in can] == [True] * len(can)
    assert [can_be_calibrated(model) for model in cannot] == [False] * len(cannot)


def test_without_predictions_before_the_first_point_the_fewest_count():
    calibration = calibrate(POPULATION, PopulationGP, points=[3])
    assert calibration.gain() == calibration.gain(3)
    assert "after 3 points. " in str(calibration)
