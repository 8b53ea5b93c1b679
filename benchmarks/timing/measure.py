"""What all timings share: sizes, rows of the table, interleaved measurement."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from benchmarks.markdown import markdown_table

T = TypeVar("T")


@dataclass(frozen=True)
class Sizes:
    """How large the timed problems are; the defaults are those of the published table.

    Args:
        num_tasks: The number of source tasks.
        num_points: The number of points of each.
        dim: The number of inputs.
        num_queries: The number of single points at which posteriors are evaluated.
        num_target_points: The number of points of the target task.
        num_fit_tasks: The number of source tasks of the target's fit.
        num_fit_points: The number of points of each of them.
        fit_dim: The number of inputs there.
        average_sources: The numbers of source tasks, and of points of each, of an average's step.
        histories: Large histories: the number of source tasks, that of points of each, and how many
            seconds the default's first suggestion may take.
        num_restarts: The number of further starts in the fit from several.
        task_counts: The numbers of tasks over which growth is measured.
        chunk_elements: The chunk sizes of these fits.
        acquisition_restarts: The number of starts of `optimize_acqf`.
        raw_samples: The number of points among which these starts are chosen.
        num_levels: The number of source tasks of a hierarchy.
        num_level_points: The number of points of each of them.
        num_level_queries: The number of single points at which its posterior is evaluated.
        num_joint_tasks: The number of source tasks of a joint posterior.
        num_joint_task_points: The number of points of each of them, and of `SingleTaskGP`.
        num_joint_points: The number of joint points at which it is evaluated.
        num_many_tasks: The number of source tasks where they are many.
        num_many_points: The number of points of each of them.
        many_dim: The number of inputs there.
        num_many_target_points: The number of points of the target there.
        num_pretraining_tasks: The number of source tasks of a pre-training.
        num_pretraining_points: The number of points of each of them.
        batch_size: The number of points of each in a step.
        steps_at_once: The number of steps in one measurement.
        gpu_sources: The numbers of tasks, and of points of each, of pre-training on a GPU.
        gpu_candidates: The numbers of candidates whose improvement is evaluated there.
        repeats: How often each side of a comparison is measured.
        clock: What tells the time in seconds.
    """

    num_tasks: int = 32
    num_points: int = 128
    dim: int = 6
    num_queries: int = 512
    num_target_points: int = 20
    num_fit_tasks: int = 10
    num_fit_points: int = 50
    fit_dim: int = 8
    average_sources: tuple[tuple[int, int], ...] = ((10, 50), (20, 1000))
    histories: tuple[tuple[int, int, float], ...] = (
        (20, 200, 8.0),
        (20, 1000, 20.0),
        (10, 5000, 60.0),
    )
    num_restarts: int = 5
    task_counts: tuple[int, ...] = (8, 32, 128, 512)
    chunk_elements: tuple[int, ...] = (2**20,)
    acquisition_restarts: int = 10
    raw_samples: int = 512
    num_levels: int = 4
    num_level_points: int = 40
    num_level_queries: int = 1000
    num_joint_tasks: int = 32
    num_joint_task_points: int = 40
    num_joint_points: int = 5000
    num_many_tasks: int = 2000
    num_many_points: int = 50
    many_dim: int = 4
    num_many_target_points: int = 10
    num_pretraining_tasks: int = 16
    num_pretraining_points: int = 500
    batch_size: int = 50
    steps_at_once: int = 50
    gpu_sources: tuple[tuple[int, int], ...] = ((4, 32), (16, 128), (20, 1000))
    gpu_candidates: tuple[int, ...] = (100, 1000, 10_000)
    repeats: int = 5
    clock: Callable[[], float] = perf_counter


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Args:
        what: What was measured.
        target: What it should be.
        reached: What it was.
        met: Whether the target was met.
        detail: The times behind it.
    """

    what: str
    target: str
    reached: str
    met: bool
    detail: str


def timing_table(rows: list[Row]) -> str:
    """Lays the rows out in markdown."""
    header = ["what", "target", "reached", "met", "times"]
    cells = [
        [row.what, row.target, row.reached, "yes" if row.met else "no", row.detail] for row in rows
    ]
    return markdown_table(header, cells)


def medians(
    sides: Mapping[str, Callable[[int], Any]],
    repeats: int,
    clock: Callable[[], float] = perf_counter,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Measures several functions in turn, so that a busy moment of the machine hits all of them.

    Args:
        sides: The functions by name; each is called with the number of the repeat.
        repeats: How often each is measured, after one call that is not.
        clock: What tells the time in seconds.

    Returns:
        Each function's median time in seconds, and what its last call returned.
    """
    results = {name: function(0) for name, function in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name, function in sides.items():
            start = clock()
            results[name] = function(repeat)
            times[name].append(clock() - start)
    return {name: median(values) for name, values in times.items()}, results


def readable(seconds: float) -> str:
    """A time with three digits: `1.23 s` or `45.6 ms`."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


@contextmanager
def threads() -> Iterator[None]:
    """Keeps SciPy's linear algebra on one thread; PyTorch's threads stay as they are.

    L-BFGS-B works on tiny matrices. Where threads wait for each other over these, both sides of a
    comparison get slower by orders of magnitude, and the ratios say nothing.
    """
    with threadpool_limits(1, user_api="blas"):
        yield


def in_new_process(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function where nothing else has used memory before.

    Args:
        function: A function of a module.
        *arguments: Its arguments.

    Returns:
        Its result.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def peak_memory() -> int:
    """The largest memory that this process has had so far, in bytes."""
    return _memory("VmHWM")


def memory() -> int:
    """The memory that this process has now, in bytes; its peak on systems that only tell that."""
    return _memory("VmRSS")


def _memory(field: str) -> int:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would begin with the parent's peak
        line = next(ln for ln in status.read_text().splitlines() if ln.startswith(field))
        return 1024 * int(line.split()[1])
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
