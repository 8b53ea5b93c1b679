from __future__ import annotations

import torch

from botorch_transfer.data import as_datasets
from botorch_transfer.pretraining.hyperprior.domain_fit import SubSampler
from botorch_transfer.pretraining.tasks import PaddedTasks
from tests.pretraining.tasks import draw_data


def padded(sizes, **options):
    return PaddedTasks.from_datasets(as_datasets(draw_data(sizes, **options)))


def test_points_are_the_tasks_own_and_distinct():
    tasks = padded((10, 4, 7), known_noise=(1,))
    sampler = SubSampler(tasks, size=5, seed=0)
    for _ in range(20):
        drawn = sampler.draw()
        assert drawn.mask.sum(dim=-1).tolist() == [5, 4, 5]
        for task in range(3):
            mask = drawn.mask[task]
            own = {
                (float(x), float(y))
                for x, y in zip(tasks.X[task, :, 0], tasks.Y[task], strict=True)
            }
            points = [
                (float(x), float(y))
                for x, y in zip(drawn.X[task, mask, 0], drawn.Y[task, mask], strict=True)
            ]
            assert set(points) <= own
            assert len(set(points)) == len(points)
        assert (drawn.Y[~drawn.mask] == 0).all()
        assert (drawn.Yvar[1, drawn.mask[1]] > 0).all()
        assert (drawn.Yvar[[0, 2]] == 0).all()


def test_points_come_equally_often():
    tasks = padded((10, 6))
    sampler = SubSampler(tasks, size=3, seed=0)
    counts = torch.zeros(2, 10)
    for _ in range(2000):
        drawn = sampler.draw()
        counts += (drawn.Y.unsqueeze(-1) == tasks.Y.unsqueeze(-2)).sum(dim=-2) * tasks.mask
    torch.testing.assert_close(counts[0], torch.full((10,), 600.0), rtol=0.1, atol=0)
    torch.testing.assert_close(counts[1, :6], torch.full((6,), 1000.0), rtol=0.1, atol=0)


def test_a_seed_decides():
    tasks = padded((10, 6))
    first, same, other = (SubSampler(tasks, 3, seed).draw().Y for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_small_tasks_are_drawn_whole():
    tasks = padded((4, 2))
    drawn = SubSampler(tasks, size=50, seed=0).draw()
    assert drawn.Y.shape == (2, 4)
    torch.testing.assert_close(drawn.Y.sort().values, tasks.Y.sort().values)
