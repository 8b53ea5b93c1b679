from dataclasses import replace

import pytest

from benchmarks.timing import gpu, joint_posterior, large_history, many_tasks, source_growth
from benchmarks.timing.__main__ import main
from benchmarks.timing.measure import Sizes
from benchmarks.timing.rows import COMPARISONS

TINY = Sizes(
    num_tasks=2,
    num_points=8,
    dim=2,
    num_queries=5,
    num_target_points=4,
    num_fit_tasks=2,
    num_fit_points=6,
    fit_dim=2,
    average_sources=((2, 6),),
    histories=((2, 40, 8.0),),
    num_restarts=1,
    task_counts=(2,),
    chunk_elements=(256,),
    acquisition_restarts=2,
    raw_samples=8,
    num_levels=2,
    num_level_points=6,
    num_level_queries=5,
    num_joint_tasks=2,
    num_joint_task_points=6,
    num_joint_points=10,
    num_many_tasks=4,
    num_many_points=6,
    many_dim=2,
    num_many_target_points=3,
    num_pretraining_tasks=2,
    num_pretraining_points=6,
    batch_size=4,
    steps_at_once=2,
    gpu_sources=((2, 6),),
    gpu_candidates=(3, 6),
    repeats=1,
)


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_row_can_be_measured(name, capsys, monkeypatch):
    """In this process: ``test_memory_of_a_fit_is_measured`` starts a new one, which takes long."""
    for room in (joint_posterior, large_history, many_tasks, source_growth):
        monkeypatch.setattr(room, "in_new_process", lambda function, *given: function(*given))
    main(["--rows", name], TINY)
    printed = capsys.readouterr().out
    rows = printed.split("\n\n")[0].splitlines()
    assert len(rows) >= 3
    assert all(len(row.split("|")) == 7 for row in rows)
    assert "PyTorch threads" in printed


def test_rows_of_a_gpu_can_be_measured(capsys):
    gpu.main(["--device", "cpu"], replace(TINY, steps_at_once=1, acquisition_restarts=1))
    printed = capsys.readouterr().out
    rows = printed.split("\n\n")[0].splitlines()
    assert len(rows) == 2 + 7 + 3
    assert all(len(row.split("|")) == 9 for row in rows)
    assert "float32, GPU" in rows[0]
    assert printed.count("faster on the GPU at no size measured.") == 2 * 2
