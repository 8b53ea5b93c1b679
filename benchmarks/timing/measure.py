"""Shared parts of all timings: sizes, rows of the table, and interleaved measurements."""

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
    """Sizes of the timed problems; the defaults are the sizes of the published table.

    Args:
        num_tasks: The number of source tasks.
        num_points: The number of points of each source task.
        dim: The number of inputs.
        num_queries: The number of single points at which posteriors are evaluated.
        num_target_points: The number of points of the target task.
        num_fit_tasks: The number of source tasks in the row of the target's fit.
        num_fit_points: The number of points of each of these source tasks.
        fit_dim: The number of inputs in the row of the target's fit.
        average_sources: Pairs of the number of source tasks and the number of points per task, for
            steps of `TransferGP`.
        histories: Large histories: the number of source tasks, the number of points per task, and
            the allowed seconds of `TransferGP`'s first suggestion.
        num_restarts: The number of additional starts in fits from several starts.
        task_counts: The numbers of tasks over which growth is measured.
        chunk_elements: The chunk sizes of the fits that measure growth.
        acquisition_restarts: The number of starts of `optimize_acqf`.
        raw_samples: The number of points among which these starts are chosen.
        num_levels: The number of source tasks of a hierarchy.
        num_level_points: The number of points of each task of the hierarchy.
        num_level_queries: The number of single points at which the hierarchy's posterior is
            evaluated.
        num_joint_tasks: The number of source tasks of a joint posterior.
        num_joint_task_points: The number of points of each of these tasks, and of `SingleTaskGP`.
        num_joint_points: The number of points at which the joint posterior is evaluated.
        num_many_tasks: The number of source tasks in the row `many-tasks`.
        num_many_points: The number of points of each of these tasks.
        many_dim: The number of inputs in the row `many-tasks`.
        num_many_target_points: The number of target points in the row `many-tasks`.
        num_pretraining_tasks: The number of source tasks of HyperBO's pre-training.
        num_pretraining_points: The number of points of each of these tasks.
        batch_size: The number of points of each task in one Adam step.
        steps_at_once: The number of Adam steps in one measurement.
        gpu_sources: Pairs of the number of tasks and the number of points per task, for
            pre-training on a GPU.
        gpu_candidates: The numbers of candidates for which improvements are evaluated on a GPU.
        repeats: The number of measurements of each side of a comparison.
        clock: A function that returns the time in seconds.
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
        what: The description of the measured work.
        target: The required result.
        reached: The measured result.
        met: Whether the target was met.
        detail: The measured times.
    """

    what: str
    target: str
    reached: str
    met: bool
    detail: str


def timing_table(rows: list[Row]) -> str:
    """Formats the rows as a markdown table."""
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
    """Measures several functions in turn, so that a busy moment of the machine affects all.

    Args:
        sides: The functions by name; each is called with the number of the repeat.
        repeats: The number of measurements of each function, after one call that is not measured.
        clock: A function that returns the time in seconds.

    Returns:
        The median time of each function in seconds, and the result of its last call.
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
    """Formats a time with three digits, such as `1.23 s` or `45.6 ms`."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


@contextmanager
def threads() -> Iterator[None]:
    """Limits SciPy's BLAS to one thread; the number of PyTorch threads does not change.

    L-BFGS-B uses tiny matrices. If threads wait for one another, both sides of a comparison become
    slower by orders of magnitude, and the ratios are meaningless.
    """
    with threadpool_limits(1, user_api="blas"):
        yield


def in_new_process(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function in a new process, so that earlier work does not count in the peak memory.

    Args:
        function: A top-level function of a module.
        *arguments: The arguments of the function.

    Returns:
        The result of the function.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def peak_memory() -> int:
    """Returns the peak memory of this process so far, in bytes."""
    return _memory("VmHWM")


def memory() -> int:
    """Returns the current memory of this process in bytes, or its peak memory outside Linux."""
    return _memory("VmRSS")


def _memory(field: str) -> int:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage includes the parent's peak
        line = next(ln for ln in status.read_text().splitlines() if ln.startswith(field))
        return 1024 * int(line.split()[1])
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
