from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer.pretraining import SourceGPs
from tests.kernels.tasks import points
from tests.pretraining.sources import DATA, X, check_predictions, count_fits, fit


def test_append_equals_fitting_all() -> None:
    names = list(DATA)
    first = fit({name: DATA[name] for name in names[:2]})
    ours = first.append({names[2]: DATA[names[2]]}, num_restarts=0)
    assert ours.task_names == tuple(names)
    assert ours.num_points.tolist() == [6, 3, 8]
    check_predictions(ours, fit())


def test_append_keeps_the_old_tasks_hyperparameters(monkeypatch) -> None:
    first = fit()
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    calls = count_fits(monkeypatch)
    ours = first.append({"new": (points(20, 2), points(20, 1, seed=3))})
    assert calls == [1]
    assert torch.equal(ours.gps.lengthscale[:3], first.gps.lengthscale)
    assert torch.equal(ours.gps.outputscale[:3], first.gps.outputscale)
    assert torch.equal(ours.log_posterior[:3], first.log_posterior)
    torch.testing.assert_close(ours.mean(X)[:3], first.mean(X), atol=1e-12, rtol=0)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_append_one_task_in_every_form() -> None:
    first, (train_X, Y) = fit(), DATA["task 0"]
    dataset = SupervisedDataset(train_X, Y, feature_names=["a", "b"], outcome_names=["tuesday"])
    expected = first.append({"tuesday": (train_X, Y)}, num_restarts=0)
    for task in ((train_X, Y), [(train_X, Y)], dataset, [dataset]):
        check_predictions(first.append(task, num_restarts=0), expected, tolerance=0.0)
    assert expected.task_names[-1] == "tuesday"
    assert first.append(dataset).task_names[-1] == "tuesday"
    assert first.append((train_X, Y)).task_names[-1] == "source task 3"
    known = first.append((train_X, Y, 0.1 + Y.abs()))
    torch.testing.assert_close(known.gps.noise[3, :6], (0.1 + Y.abs()).squeeze(-1) / Y.var())


def test_append_several_tasks() -> None:
    ours = fit().append({"a": DATA["task 0"], "b": DATA["task 1"]}, num_restarts=0)
    assert ours.task_names == ("task 0", "task 1", "task 2", "a", "b")
    torch.testing.assert_close(ours.mean(X)[3:], ours.mean(X)[:2])


def test_append_names_that_are_taken() -> None:
    ours = fit().append({"task 1": DATA["task 0"]}).append({"task 1": DATA["task 0"]})
    assert len(set(ours.task_names)) == 5
    assert all(name.startswith("task 1 (") for name in ours.task_names[3:])


def test_append_to_models() -> None:
    train_X, Y = DATA["task 0"]
    for Y_, kwargs in ((Y, {}), ((Y - Y.mean()) / Y.std(), {"outcome_transform": None})):
        first = SourceGPs.from_models({"model": SingleTaskGP(train_X, Y_, **kwargs)})
        ours = first.append({"new": DATA["task 2"]}, num_restarts=0)
        assert ours.outcome_scale == first.outcome_scale
        torch.testing.assert_close(ours.mean(X)[:1], first.mean(X), atol=1e-10, rtol=0)
        alone = fit({"new": DATA["task 2"]}, outcome_scale=first.outcome_scale)
        torch.testing.assert_close(ours.mean(X)[1:], alone.mean(X), atol=1e-6, rtol=0)


def test_append_uses_the_priors_kernel_and_transform() -> None:
    transform = Normalize(2, bounds=torch.tensor([[-1.0, 0.0], [1.0, 3.0]]).double())
    first = fit({"a": DATA["task 0"]}, kernel="matern32", input_transform=transform)
    whole = fit(
        {"a": DATA["task 0"], "b": DATA["task 2"]}, kernel="matern32", input_transform=transform
    )
    check_predictions(first.append({"b": DATA["task 2"]}, num_restarts=0), whole)


def test_append_in_another_precision() -> None:
    ours = fit().append(tuple(tensor.float() for tensor in DATA["task 0"]), num_restarts=0)
    assert ours.mean(X).dtype is torch.double


def test_append_to_pooled_outcomes_is_refused() -> None:
    with pytest.raises(ValueError, match="standardized all together, and a new task would change"):
        fit(outcome_scale="pooled").append(DATA["task 0"])


def test_append_of_another_dimension_is_refused(monkeypatch) -> None:
    first, calls = fit(), count_fits(monkeypatch)
    with pytest.raises(InputDataError, match="'new' has 3 inputs, but the prior has 2"):
        first.append({"new": (points(4, 3), points(4, 1))})
    assert not calls


def test_append_of_bad_data_is_refused() -> None:
    with pytest.raises(InputDataError, match="'new': Y has a NaN or infinite value in row 1"):
        fit().append({"new": (points(2, 2), torch.tensor([[0.0], [torch.nan]]).double())})
