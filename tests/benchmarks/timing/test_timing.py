from dataclasses import replace

import pytest

from benchmarks.timing import gpu, joint_posterior, large_history, many_tasks, source_growth
from benchmarks.timing.__main__ import main
from benchmarks.timing.measure import Sizes
from benchmarks.timing.rows import COMPARISONS

#: Small sizes by their value.
NUMBERS = {
    1: "num_restarts repeats",
    2: "num_tasks dim num_fit_tasks fit_dim acquisition_restarts num_levels num_joint_tasks "
    "many_dim num_pretraining_tasks steps_at_once",
    3: "num_many_target_points",
    4: "num_target_points num_many_tasks batch_size",
    5: "num_queries num_level_queries",
    6: "num_fit_points num_level_points num_joint_task_points num_many_points "
    "num_pretraining_points",
    8: "num_points raw_samples",
    10: "num_joint_points",
}
SIZES = {"task_counts": (2,), "chunk_elements": (256,), "gpu_candidates": (3, 6)}
SIZES |= {"average_sources": ((2, 6),), "histories": ((2, 40, 8.0),), "gpu_sources": ((2, 6),)}
TINY = Sizes(**SIZES, **{name: k for k, names in NUMBERS.items() for name in names.split()})


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
