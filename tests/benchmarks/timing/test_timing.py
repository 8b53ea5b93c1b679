from dataclasses import replace
from functools import partial

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.timing import (
    gpu,
    joint_posterior,
    large_history,
    many_tasks,
    source_fit,
    source_growth,
    source_posterior,
)
from benchmarks.timing.__main__ import main
from benchmarks.timing.measure import Row, Sizes, medians, readable, timing_table
from benchmarks.timing.rows import COMPARISONS
from benchmarks.timing.source_growth import fit_in_new_process
from benchmarks.timing.tasks import random_tasks
from benchmarks.timing.twin import log_posterior, twin_of_source_gp
from botorch_transfer import SourceGPs

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
    num_mixed_tasks=2,
    num_mixed_rows=12,
    num_mixed_target_points=(1,),
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


@pytest.mark.parametrize(
    ("work", "options"),
    [
        ("source_fit", {"num_restarts": 0}),
        ("source_posterior", {}),
        ("pretraining_steps", {}),
        ("scoring", {"num_candidates": 3}),
    ],
)
@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
def test_data_of_a_row_are_on_the_device(device, work, options):
    """The steps of a target are left out: the models' contract is tested on a device, too."""
    sizes = replace(TINY, steps_at_once=1)
    times = gpu.seconds(sizes, partial(getattr(gpu, work), sizes, **options), device)
    assert times.keys() == {"float64", "float32"}


@pytest.mark.parametrize(
    ("faster", "text"),
    [
        ((0.5, 2.0, 3.0), "from 20 on"),
        ((2.0, 0.5, 3.0), "from 30 on"),
        ((2.0, 2.0, 1.0), "at no size measured"),
    ],
)
def test_crossover_is_where_larger_sizes_are_faster_too(faster, text):
    assert gpu.crossover(dict(zip(("10", "20", "30"), faster, strict=True))) == text


def test_processor_time_is_measured_and_named(capsys):
    main(["--rows", "source-posterior", "--processor-time"], TINY)
    assert "processor time" in capsys.readouterr().out


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main([])
    assert capsys.readouterr().out == "There is no GPU here: nothing was measured.\n"


def test_batch_and_loop_have_the_same_optimum():
    tasks = random_tasks(3, 20, 2)
    sources = SourceGPs.fit(tasks, num_restarts=2)
    batched = source_fit.log_posteriors(sources, tasks)
    assert batched == pytest.approx(sources.log_posterior.tolist(), abs=1e-4)
    alone = [source_fit.fit_alone(task, num_restarts=2) for task in tasks]
    assert batched == pytest.approx(alone, abs=0.1)


def test_more_starts_are_never_worse():
    (task,) = random_tasks(1, 15, 2)
    assert source_fit.fit_alone(task, 3) >= source_fit.fit_alone(task, 0) - 1e-6


def test_twin_s_log_posterior_is_what_botorch_maximizes():
    X, Y = random_tasks(1, 12, 2)[0]
    model = twin_of_source_gp(X, Y)
    before = log_posterior(model)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert log_posterior(model) > before


def test_batched_twin_is_the_same_posterior():
    sources = SourceGPs.fit(random_tasks(2, 10, 2), num_restarts=0)
    X = torch.rand(4, 2, dtype=torch.double)
    with torch.no_grad():
        posterior = source_posterior.batched_twin(sources).posterior(X)
    assert torch.allclose(posterior.mean.squeeze(-1), sources.mean(X), atol=1e-6)
    assert torch.allclose(posterior.variance.squeeze(-1), sources.variance(X), atol=1e-6)


def test_memory_of_a_fit_is_measured():
    small = Sizes(num_points=64, dim=2)
    seconds, memory = fit_in_new_process(small, num_tasks=32, chunk_elements=2**22)
    assert seconds > 0
    assert 32 * 64**2 * 8 < memory < 2**30  # at least the inverse factors of all tasks


def test_tasks_are_related_standardized_and_reproducible():
    tasks = random_tasks(3, 200, 2)
    assert [X.shape for X, _ in tasks] == [(200, 2)] * 3
    for X, Y in tasks:
        assert X.min() >= 0
        assert X.max() <= 1
        assert abs(float(Y.mean())) < 1e-9
        assert float(Y.std()) == pytest.approx(1)
    again = random_tasks(2, 200, 2)
    assert torch.equal(again[1][1], tasks[1][1])
    assert not torch.equal(random_tasks(1, 200, 2, seed=1)[0][1], tasks[0][1])


def test_medians_are_of_interleaved_calls():
    calls: list[tuple[str, int]] = []
    times, results = medians(
        {name: lambda repeat, name=name: calls.append((name, repeat)) or repeat for name in "ab"}, 2
    )
    assert calls == [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert results == {"a": 1, "b": 1}
    assert set(times) == {"a", "b"}


def test_table_says_what_was_met():
    rows = [Row("fit", "≥ 8 ×", "9 ×", True, "1 s"), Row("step", "≤ 4 ×", "5 ×", False, "2 s")]
    lines = timing_table(rows).splitlines()
    assert "yes" in lines[2]
    assert "no" in lines[3]


@pytest.mark.parametrize(("seconds", "text"), [(1.234, "1.23 s"), (0.0456, "45.6 ms")])
def test_times_are_readable(seconds, text):
    assert readable(seconds) == text
