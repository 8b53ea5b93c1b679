from __future__ import annotations

import pytest
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.models.inputs import ConstructedFromDatasets
from tests.families import ShiftedSines

FAMILY = ShiftedSines()


class PlainTarget(ConstructedFromDatasets):
    """A target without any source tasks."""

    source_argument = "prior"

    def __init__(self, train_X: Tensor, train_Y: Tensor, prior: object = None) -> None:
        super().__init__(train_X, train_Y)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, InputDataError, "PlainTarget needs source tasks: give a prior or source_data"),
        ({"prior": [], "source_data": []}, InputDataError, "either a prior or source_data"),
        ({"prior": [], "kernel": 1}, ValueError, "PlainTarget has no option 'kernel'"),
    ],
)
def test_unfit_options_are_refused(options: dict, error: type[Exception], message: str) -> None:
    dataset = SupervisedDataset(*FAMILY.target(3), feature_names=["a", "b"], outcome_names=["y"])
    with pytest.raises(error, match=message):
        PlainTarget.construct_inputs(dataset, **options)
