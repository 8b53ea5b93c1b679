from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer.pretraining.pretrained.objectives import MatchingGroup, find_matching_groups


def inputs(n, d=2, seed=0):
    return torch.rand(n, d, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def assert_matching(group, tasks):
    """The rows of a group are the same inputs in all of its tasks."""
    first, *others = (
        tasks[task][rows] for task, rows in zip(group.tasks.tolist(), group.rows.mT, strict=True)
    )
    for other in others:
        torch.testing.assert_close(first, other, atol=1e-8, rtol=0)


def test_one_design_for_all_is_one_group():
    X = inputs(6)
    tasks = [X, X.flip(0), X[torch.tensor([3, 1, 0, 5, 4, 2])]]
    (group,) = find_matching_groups(tasks)
    assert group.tasks.tolist() == [0, 1, 2]
    assert group.rows[:, 0].tolist() == list(range(6))
    assert_matching(group, tasks)


def test_several_designs_are_several_groups():
    A, B = inputs(4), inputs(3, seed=1)
    own = [inputs(2, seed=seed) for seed in range(2, 6)]
    tasks = [torch.cat(parts) for parts in zip([A, A, B, torch.cat([A, B])], own, strict=True)]
    first, second = find_matching_groups(tasks)
    assert first.tasks.tolist() == [0, 1, 3]
    assert second.tasks.tolist() == [2, 3]
    assert (len(first.rows), len(second.rows)) == (4, 3)
    for group in (first, second):
        assert_matching(group, tasks)


def test_rounding_errors_don_t_part_inputs():
    X = torch.linspace(0, 1, 7).double().unsqueeze(-1)
    tasks = [X, X + 3e-10, X - 3e-10]
    (group,) = find_matching_groups(tasks)
    assert group.rows.shape == (7, 3)
    with pytest.raises(InputDataError, match="objective='nll'"):
        find_matching_groups(tasks, tolerance=1e-12)


def test_single_precision_is_coarser():
    X = inputs(5).float()
    (group,) = find_matching_groups([X, X + 2e-7])
    assert len(group.rows) == 5


def test_repeated_inputs_count_once_with_their_first_row():
    X = inputs(3)
    (group,) = find_matching_groups([X[[0, 1, 0, 2]], X[[2, 2, 0]]])
    assert group.rows.tolist() == [[0, 2], [3, 0]]


def test_given_groups_may_overlap():
    A, B = inputs(4), inputs(3, seed=1)
    tasks = [torch.cat([A, B]), A, torch.cat([B, A])]
    pair, triple = find_matching_groups(tasks, groups=[[0, 2], [0, 1, 2]])
    assert len(pair.rows) == 7
    assert len(triple.rows) == 4
    for group in (pair, triple):
        assert_matching(group, tasks)


@pytest.mark.parametrize("members", [[0], [0, 0], [0, 5], [-1, 0]])
def test_unfit_groups_are_refused(members):
    with pytest.raises(InputDataError, match="two source tasks or more"):
        find_matching_groups([inputs(3), inputs(3)], groups=[members])


def test_a_group_without_common_inputs_is_refused():
    tasks = [inputs(3), inputs(3), inputs(3, seed=1)]
    with pytest.raises(InputDataError, match="share no input"):
        find_matching_groups(tasks, groups=[[0, 1], [0, 2]])


def test_huge_groups_are_thinned():
    X = inputs(50)
    (group,) = find_matching_groups([X, X.flip(0)])
    generator = torch.Generator().manual_seed(3)
    thin = group.thinned(20, generator)
    assert thin.rows.shape == (20, 2)
    assert (thin.rows[:, 0].diff() > 0).all()
    assert (thin.rows.sum(dim=-1) == 49).all()
    again = group.thinned(20, torch.Generator().manual_seed(3))
    assert torch.equal(thin.rows, again.rows)
    assert isinstance(group.thinned(50, generator), MatchingGroup)
    assert len(group.thinned(50, generator).rows) == 50
