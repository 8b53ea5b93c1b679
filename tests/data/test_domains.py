"""Search spaces with their source tasks."""

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_transfer import CategoricalParameter, FloatParameter, IntegerParameter, SearchSpace
from botorch_transfer.data import Domain, default_context


def tasks(dim: int = 3, dtype: torch.dtype = torch.double) -> dict[str, tuple[Tensor, Tensor]]:
    X = torch.rand(4, dim, dtype=dtype)
    return {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X[:2], X[:2, :1])}


def test_default_context_is_the_papers():
    expected = [[0, 1, 2, 1], [1, 0, 2, 1], [1, 0, 2, 1]]
    assert default_context(3, [2, 1]).tolist() == expected
    assert Domain(tasks(), discrete_dims=(-1, 1, 2)).context.tolist() == expected
    assert default_context(2, dtype=torch.float).dtype == torch.float


def test_a_domain_knows_its_tasks():
    domain = Domain(tasks(), name="lab")
    assert domain.dim == 3
    assert domain.task_names == ["monday", "tuesday"]
    assert [len(data.X) for data in domain.datasets] == [4, 2]
    assert domain.discrete_dims == ()
    assert domain.has_default_context


def test_a_context_of_the_users_own():
    context = torch.tensor([[1, 2], [3, 4], [5, 6]])
    domain = Domain(tasks(dtype=torch.float), context=context)
    assert domain.context.dtype == torch.float
    assert domain.context.tolist() == context.tolist()
    assert not domain.has_default_context


@pytest.mark.parametrize(
    "context",
    [torch.zeros(2, 4), torch.zeros(3), torch.full((3, 1), torch.nan), torch.zeros(3, 0), [1.0]],
)
def test_an_unfit_context_is_refused(context):
    with pytest.raises(InputDataError, match="context of domain 'lab'"):
        Domain(tasks(), context=context, name="lab")


@pytest.mark.parametrize("index", [3, -4])
def test_a_dimension_that_is_not_there_is_refused(index):
    with pytest.raises(ValueError, match=f"is .{index}.: give a list of input indices below 3"):
        Domain(tasks(), discrete_dims=[index])


@pytest.mark.parametrize("dims", [3, ["a"]])
def test_dimensions_are_indices(dims):
    with pytest.raises(ValueError, match="give a list of input indices"):
        Domain(tasks(), discrete_dims=dims)


def test_unfit_source_data_are_refused():
    with pytest.raises(InputDataError, match="no source tasks"):
        Domain([])
    with pytest.raises(InputDataError, match="'tuesday' has 2 inputs"):
        Domain({**tasks(3), "tuesday": tasks(2)["monday"]})


def test_from_a_table():
    letters = CategoricalParameter("kernel", ("a", "b", "c"))
    space = SearchSpace([FloatParameter("C", 0.0, 10.0), letters, IntegerParameter("depth", 1, 5)])
    runs = pd.DataFrame({"day": ["mon", "mon", "tue"], "C": [1.0, 2.0, 3.0], "kernel": [*"abc"]})
    runs["depth"], runs["loss"] = [1, 3, 5], [0.1, 0.2, float("nan")]
    domain = Domain.from_dataframe(
        runs, space, outcome="loss", task="day", name="lab", goal="min", failed="drop"
    )
    assert (domain.dim, domain.name, domain.task_names) == (5, "lab", ["mon"])
    assert domain.discrete_dims == (1, 2, 3, 4)
    assert domain.datasets[0].Y.flatten().tolist() == [-0.1, -0.2]
    context = torch.eye(5)
    described = Domain.from_dataframe(runs, space, "loss", "day", context=context, goal="min")
    assert described.context.tolist() == context.tolist()
