"""The number of steps that helps tasks which were held out."""

from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer.pretraining import PretrainedPrior
from botorch_transfer.pretraining.pretrained.fit import GradientFit, renumbered, split
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
X = FAMILY.inputs(12)
HISTORY = [(X, FAMILY.value(X, 0.1 * shift)) for shift in range(8)]
VARIANTS = [("nll", "adam"), ("nll", "lbfgs"), ("ekl", "lbfgs"), ("nll+ekl", "adam")]


def fit(data=HISTORY, objective="nll", **options):
    options = {"steps": 20, "validation_every": 5, "learning_rate": 0.05, **options}
    return PretrainedPrior.hyperbo(2, hidden=(6,)).fit(data, objective, **options)


def assert_equal_bits(left, right):
    for (name, tensor), other in zip(
        left.parts.named_buffers(), right.parts.buffers(), strict=True
    ):
        assert torch.equal(tensor, other), name
    assert left.learning_curve == right.learning_curve


@pytest.mark.parametrize(("objective", "optimizer"), VARIANTS)
@pytest.mark.parametrize("scale", ["pooled", "per_task"])
def test_it_is_a_trial_and_a_run_of_as_many_steps(objective, optimizer, scale):
    options = {"optimizer": optimizer, "batch_size": 5, "seed": 3, "objective": objective}
    prior = fit(**options, hold_out=0.25, outcome_scale=scale)
    curve = prior.learning_curve
    kept, held_out = split(8, 0.25, seed=3)
    # In units that are those of all tasks.
    outcomes = torch.cat([Y for _, Y in HISTORY])

    def scaled(numbers):
        tasks = [HISTORY[number] for number in numbers]
        if scale == "per_task":
            return [(X, (Y - Y.mean()) / Y.std()) for X, Y in tasks]
        return [(X, (Y - outcomes.mean()) / outcomes.std()) for X, Y in tasks]

    trial = fit(
        scaled(kept), **options, validation_data=scaled(held_out), outcome_scale="raw"
    ).learning_curve
    assert curve.validation_steps == trial.validation_steps
    assert curve.validation_loss == pytest.approx(trial.validation_loss, rel=1e-6)
    assert curve.best_step == trial.best_step
    assert len(curve.loss) == curve.best_step
    whole = fit(**options, outcome_scale=scale).learning_curve  # the schedule is that of all steps
    assert curve.loss == whole.loss[: len(curve.loss)]
    assert prior.num_tasks == 8


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("when", [3, 13, 23, 34])
def test_an_interrupted_run_ends_at_the_same_numbers(when, tmp_path, monkeypatch):
    options = {"hold_out": 0.25, "patience": 100, "batch_size": 5}
    expected = fit(**options)
    assert expected.learning_curve.best_step > 12  # both parts are interrupted here
    options |= {"checkpoint": tmp_path / "run", "checkpoint_every": 4}
    note, steps = GradientFit._note, []

    def interrupted(self, loss):
        steps.append(1)
        if len(steps) == when:
            raise Interrupted
        return note(self, loss)

    monkeypatch.setattr(GradientFit, "_note", interrupted)
    with pytest.raises(Interrupted):
        fit(**options)
    assert_equal_bits(expected, fit(**options))
    total = 20 + expected.learning_curve.best_step
    assert len(steps) <= total + 5  # not from the beginning
    with pytest.raises(ValueError, match="other source data"):
        fit(**{**options, "hold_out": 0.5})


def test_given_groups():
    groups = [[0, 1, 2, 3], [4, 5, 6, 7], [2, 7]]
    prior = fit(objective="ekl", groups=groups, hold_out=0.25, steps=10)
    assert 0 < len(prior.learning_curve.loss) <= 10
    assert renumbered(groups, [0, 2, 3, 7]) == [[0, 1, 2], [1, 3]]
    with pytest.raises(InputDataError, match="no two tasks of a group together"):
        renumbered([[0, 1]], [1, 2])
    assert renumbered(None, [1, 2]) is None


def test_splits():
    kept, held_out = split(10, 0.3, seed=1)
    assert sorted(kept + held_out) == list(range(10))
    assert len(held_out) == 3
    assert split(10, 0.3, seed=1) == (kept, held_out)
    assert split(10, 0.3, seed=2) != (kept, held_out)
    assert len(split(10, 0.01, seed=1)[1]) == 1


def test_what_cannot_be_held_out_is_refused():
    with pytest.raises(ValueError, match=r"hold_out=1.5 must lie between"):
        fit(hold_out=1.5)
    with pytest.raises(InputDataError, match="leaves 1 of 2 source tasks"):
        fit(HISTORY[:2], hold_out=0.2)
    with pytest.raises(ValueError, match="Give validation_data, or a share"):
        fit(hold_out=0.2, validation_data=HISTORY[:1])
