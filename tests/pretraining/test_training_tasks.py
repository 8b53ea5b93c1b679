from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer.data import as_datasets
from botorch_transfer.pretraining import PretrainingOptions
from botorch_transfer.pretraining.pretrained.objectives import TrainingTasks
from tests.families import OFFSET, ShiftedSines

FAMILY = ShiftedSines()
DATA = as_datasets(FAMILY.sources((6, 4)))


def prepare(objective="nll", outcome_scale="pooled", data=DATA, nll_weight=0.1):
    return TrainingTasks.of(data, outcome_scale, None, objective, nll_weight)


def loss(tasks):
    return tasks.loss(PretrainingOptions(), None, None, max_points=100)


def test_tasks_are_in_the_priors_units():
    tasks = prepare()
    outcomes = torch.cat([data.Y for data in DATA])
    assert (tasks.num_tasks, tasks.num_points) == (2, 10)
    torch.testing.assert_close(tasks.outcome_mean, outcomes.mean())
    torch.testing.assert_close(tasks.outcome_spread, outcomes.std(correction=0))
    own = tasks.tasks.Y[tasks.tasks.mask]
    torch.testing.assert_close(own.mean(), torch.zeros(()).double(), atol=1e-12, rtol=0)
    assert tasks.tasks.X.dtype is torch.double


def test_the_objective_says_what_the_loss_is_made_of():
    same_inputs = as_datasets([(DATA[0].X, DATA[0].Y), (DATA[0].X, 2 * DATA[0].Y)])
    for objective in ("nll", "ekl", "nll+ekl"):
        built = loss(prepare(objective, data=same_inputs))
        assert (built.task_nll is not None) == ("nll" in objective)
        assert (built.group_ekl is not None) == ("ekl" in objective)


def test_without_matching_inputs_there_is_no_ekl():
    with pytest.raises(InputDataError, match="nll"):
        loss(prepare("ekl"))


@pytest.mark.parametrize("outcome_scale", ["pooled", "per_task", "raw"])
def test_validation_is_in_the_same_units(outcome_scale):
    tasks = prepare(outcome_scale=outcome_scale)
    validation = tasks.validation(as_datasets(FAMILY.sources((3,))), None)
    Y = validation.tasks.Y
    if outcome_scale == "per_task":
        torch.testing.assert_close(Y.std(), torch.ones(()).double())
    elif outcome_scale == "raw":
        assert (Y - OFFSET).abs().max() < OFFSET
    else:
        raw = FAMILY.sources((3,))["task 0"][1].squeeze(-1)
        torch.testing.assert_close(Y[0], (raw - tasks.scale[0][0]) / tasks.scale[1][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "mle"}, "Unknown objective 'mle': choose one of 'nll'"),
        ({"nll_weight": 0.0}, "nll_weight=0.0 must be positive"),
        ({"outcome_scale": "cube"}, "cube"),
    ],
)
def test_unfit_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prepare(**options)
