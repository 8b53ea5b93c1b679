from __future__ import annotations

import pytest
import torch
from botorch.models.transforms.input import Normalize

from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining import SourceGPs, clear_memos
from tests.gp.sources import DATA, count_fits, fit

pytestmark = pytest.mark.usefixtures("nothing_remembered")


def test_fit_once_recalls_equal_content(monkeypatch) -> None:
    transform = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    first = SourceGPs.fit_once(DATA, num_restarts=0, input_transform=transform)
    calls = count_fits(monkeypatch)
    copies = {name: tuple(tensor.clone() for tensor in data) for name, data in DATA.items()}
    again = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert SourceGPs.fit_once(copies, input_transform=again, num_restarts=0) is first
    assert not calls


@pytest.mark.parametrize(
    ("change", "kwargs"),
    [
        ({"task 0": (DATA["task 0"][0] + 1e-12, DATA["task 0"][1])}, {}),
        ({"task 0": (DATA["task 0"][0], DATA["task 0"][1] + 1e-9)}, {}),
        ({"task 1": (DATA["task 1"][0], DATA["task 1"][1], 2 * DATA["task 1"][2])}, {}),
        ({"task 1": DATA["task 1"][:2]}, {}),
        ({"task 3": DATA["task 0"]}, {}),
        ({}, {"kernel": "matern52"}),
        ({}, {"hyperpriors": None}),
        ({}, {"seed": 1}),
        ({}, {"outcome_scale": "raw"}),
        ({}, {"input_transform": Normalize(2, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))}),
    ],
)
def test_fit_once_tells_other_content_apart(change, kwargs) -> None:
    first = SourceGPs.fit_once(DATA, num_restarts=0, max_iter=2)
    other = SourceGPs.fit_once({**DATA, **change}, **{"num_restarts": 0, "max_iter": 2, **kwargs})
    assert other is not first


def test_fit_once_keeps_names_apart() -> None:
    renamed = {f"new {name}": data for name, data in DATA.items()}
    SourceGPs.fit_once(DATA, num_restarts=0)
    assert SourceGPs.fit_once(renamed, num_restarts=0).task_names[0] == "new task 0"


def test_clear_memos_forgets(monkeypatch) -> None:
    first = SourceGPs.fit_once(DATA, num_restarts=0)
    clear_memos()
    calls = count_fits(monkeypatch)
    assert SourceGPs.fit_once(DATA, num_restarts=0) is not first
    assert calls


def test_how_it_is_computed_is_no_content(monkeypatch) -> None:
    first = SourceGPs.fit_once(DATA, num_restarts=0)
    calls = count_fits(monkeypatch)
    assert SourceGPs.fit_once(DATA, num_restarts=0, progress=False, n_jobs=None) is first
    assert not calls


def test_default_outcome_transforms() -> None:
    assert fit(outcome_scale="raw").default_outcome_transform(torch.Size()) is None
    for scale in ("per_task", "pooled"):
        prior = fit(outcome_scale=scale)
        transform = prior.default_outcome_transform(torch.Size([2]))
        assert isinstance(transform, PooledStandardize)
        assert transform.include_target is (scale == "per_task")
        transform(torch.empty(2, 0, 1, dtype=torch.double))
        outcomes = prior.outcomes()
        torch.testing.assert_close(transform.means, outcomes.mean().expand(2, 1, 1))
        torch.testing.assert_close(transform.stdvs, outcomes.std().expand(2, 1, 1))


def test_says_what_it_is() -> None:
    text = repr(fit())
    assert "tasks=3, points=17, inputs=2, kernel='rbf', outcome_scale='per_task'" in text


def test_what_is_known_of_each_task() -> None:
    prior = fit()
    assert (prior.num_tasks, prior.dim) == (3, 2)
    assert prior.task_names == tuple(DATA)
    raw = torch.cat([Y for _, Y, *_ in DATA.values()]).squeeze(-1)
    torch.testing.assert_close(prior.outcomes(), raw)
