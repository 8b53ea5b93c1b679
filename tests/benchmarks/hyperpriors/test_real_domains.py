from __future__ import annotations

import torch

from benchmarks.hyperpriors.real_domains import TABLES, read_domains


def test_domains_are_read(tables):
    domains = read_domains(tables, max_tasks=2, max_points=10)
    assert [domain.name for domain in domains] == ["KNN", "SVC", *TABLES]
    assert [domain.dim for domain in domains] == [1, 3, 3, 3, 3]
    for domain in domains:
        assert [len(task.X) for task in domain.datasets] == [10, 10]
        assert domain.discrete_dims == tuple(range(domain.dim))


def test_more_points_of_the_same_tasks(tables):
    few, many = (read_domains(tables, max_tasks=2, max_points=points) for points in (4, 10))
    for left, right in zip(few, many, strict=True):
        assert left.task_names == right.task_names
        assert torch.equal(left.context, right.context)
        assert {len(task.X) for task in left.datasets} == {4}
