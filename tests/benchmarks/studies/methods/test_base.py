import torch

from benchmarks.studies.methods.base import with_failures_worst


def test_failures_get_the_worst_value_so_far():
    X = torch.rand(3, 2)
    Y = torch.tensor([[1.0], [torch.nan], [-2.0]])
    usable_X, usable_Y = with_failures_worst(X, Y)
    assert torch.equal(usable_X, X)
    assert usable_Y.flatten().tolist() == [1.0, -2.0, -2.0]


def test_there_is_nothing_to_use_where_all_failed():
    X = torch.rand(3, 2)
    assert [len(part) for part in with_failures_worst(X, torch.full((3, 1), torch.nan))] == [0, 0]
