import re

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import Normalize
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from torch import Tensor

from botorch_transfer.arguments import ConstructedFromDatasets, check_target, without_task_feature
from tests.families import ShiftedSines

X = torch.arange(12, dtype=torch.double).reshape(4, 3)

Y = X.sum(dim=-1, keepdim=True)


def test_a_task_column_is_dropped_before_the_transform() -> None:
    bounds = torch.tensor([[0.0, 0.0], [10.0, 20.0]], dtype=torch.double)
    transform = Normalize(2, bounds=bounds)
    for column in (1, -2):
        combined = without_task_feature(3, column, transform)
        torch.testing.assert_close(combined(X), transform(X[:, [0, 2]]))
    alone = without_task_feature(3, 0, None)
    assert torch.equal(alone(X), X[:, 1:])


def test_without_a_task_column_nothing_changes() -> None:
    transform = Normalize(3)
    assert without_task_feature(3, None, transform) is transform
    assert without_task_feature(3, None, None) is None


def dataset(name: str, shift: float = 0.0, Yvar: Tensor | None = None) -> SupervisedDataset:
    return SupervisedDataset(
        X + shift, Y, Yvar=Yvar, feature_names=["a", "task", "b"], outcome_names=[name]
    )


@pytest.mark.parametrize("column", [1, None])
def test_a_multi_task_data_set_is_split(column: int | None) -> None:
    tasks = [dataset("old", 0.0, Y.exp()), dataset("now", 0.0, Y.exp())]
    if column is not None:  # what is in the column says which task it is
        for index, task in enumerate(tasks):
            task.X[:, column] = index
    whole = MultiTaskDataset(tasks, target_outcome_name="now", task_feature_index=column)
    inputs = PlainTarget.construct_inputs(whole)
    kept = [0, 2] if column == 1 else [0, 1, 2]
    assert torch.equal(inputs["train_X"], X[:, kept])
    assert torch.equal(inputs["train_Y"], Y)
    assert torch.equal(inputs["train_Yvar"], Y.exp())
    ((name, task),) = inputs["prior"].items()
    assert (name, task.outcome_names) == ("old", ["old"])
    assert torch.equal(task.X, X[:, kept])
    assert task.feature_names == [["a", "task", "b"][index] for index in kept]
    assert torch.equal(task.Yvar, Y.exp())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"train_X": X.tolist()}, "train_X is a list: pass a torch.Tensor"),
        ({"train_X": None}, "train_X is a NoneType: pass a torch.Tensor. .*torch.empty"),
        ({"train_Y": None}, "train_Y is a NoneType: pass a torch.Tensor"),
        (
            {"train_Y": 1e200 * Y},
            r"train_Y has .* beyond 1e\+100 in row 0: .*another unit",
        ),
        ({"train_Y": Y.long()}, "train_Y has the type torch.int64: convert it by"),
        ({"train_Y": Y.squeeze(-1)}, r"train_Y has shape \(4,\): give a tensor with rows"),
        (
            {"train_X": X / 0},
            "train_X has a value that is NaN, .*: .*leave out the failed",
        ),
        ({"train_Yvar": Y[:3]}, r"train_Yvar has shape \(3, 1\).*give .* the shape \(4, 1\)"),
        ({"task_feature": 0}, "train_X= has several values in its task column: keep only the"),
        ({"train_Y": X}, "train_Y has 3 outcomes: use transfer_models.train_X, train_Y, sources."),
    ],
)
def test_unfit_data_are_refused(bad: dict, message: str) -> None:
    sound = {"train_X": X, "train_Y": Y, "train_Yvar": None, "task_feature": None}
    with pytest.raises(InputDataError, match=message):
        check_target(**{**sound, **bad})


@pytest.mark.parametrize("column", [3, -4])
def test_a_task_column_that_is_not_there(column: int) -> None:
    with pytest.raises(ValueError, match=f"task_feature={column} must be the index of one of"):
        check_target(X, Y, None, task_feature=column)


FAMILY = ShiftedSines()


class PlainTarget(ConstructedFromDatasets):
    """A target without any source tasks."""

    def __init__(self, train_X: Tensor, train_Y: Tensor, prior: object = None) -> None:
        super().__init__(train_X, train_Y)


def test_unfit_options_are_refused() -> None:
    dataset = SupervisedDataset(*FAMILY.target(3), feature_names=["a", "b"], outcome_names=["y"])
    with pytest.raises(InputDataError, match="PlainTarget needs source tasks: give prior="):
        PlainTarget.construct_inputs(dataset)
    with pytest.raises(ValueError, match="PlainTarget has no option 'kernel'"):
        PlainTarget.construct_inputs(dataset, prior=[], kernel=1)


class Documented(ConstructedFromDatasets):
    """A model.

    Args:
        kernel: What is
            its own.
        train_Y: Other outcomes.

    Raises:
        ValueError: If two
            lines do not suffice.

    Example:
        >>> 1
    """

    def __init__(self, train_X: Tensor, train_Y: Tensor, prior: object, kernel: int) -> None: ...


class Undocumented(Documented):
    """A model without sections."""


def test_shared_arguments_complete_a_docstring() -> None:
    head, arguments, errors, example = re.split("(?:Args|Raises|Example):\n", Documented.__doc__)
    assert head == "A model.\n\n"
    names = [line.split(":")[0].strip() for line in arguments.splitlines() if line[4:5].strip()]
    assert names == ["train_X", "train_Y", "prior", "kernel"]
    assert "    train_Y: Other outcomes.\n" in arguments
    assert arguments.endswith("    kernel: What is\n        its own.\n\n")
    assert errors.endswith("    ValueError: If two\n        lines do not suffice.\n\n")
    names = [line.split(":")[0].strip() for line in errors.splitlines() if line[4:5].strip()]
    assert names == ["InputDataError", "TypeError", "ValueError"]
    assert example == "    >>> 1"
    assert Undocumented.__doc__.startswith("A model without sections.\n\nArgs:\n    train_X: ")
