"""Times of `TransferGP` with large histories: the first suggestion and later suggestions."""

from statistics import median

from torch import Tensor

from benchmarks.timing import measure
from benchmarks.timing.measure import Row, Sizes, in_new_process, readable
from benchmarks.timing.target_step import step, targets
from benchmarks.timing.tasks import random_tasks
from botorch_transfer import TransferGP
from botorch_transfer.pretraining import clear_memos

GB = 1e9
FURTHER, PEAK, GROWTH = 1.5, 3 * GB, 12.0


def compare(sizes: Sizes) -> list[Row]:
    """Measures the first suggestion, with pre-training, and later suggestions for each history."""
    return [row for history in sizes.histories for row in _rows(sizes, *history)]


def _rows(sizes: Sizes, num_tasks: int, num_points: int, seconds: float) -> list[Row]:
    fewer = num_points // 10
    before, _, _ = in_new_process(_measure, sizes, num_tasks, fewer)
    first, further, peak = in_new_process(_measure, sizes, num_tasks, num_points)
    what = f"of `TransferGP`, {num_tasks} tasks × {num_points:,}, d = {sizes.dim}"
    less, growth, again = f"{num_tasks} × {fewer:,}", first / before, median(further)
    return [
        Row(
            what=f"first suggestion {what}, pre-training included",
            target=f"≤ {seconds:g} s, ≤ {PEAK / GB:g} GB, ≤ {GROWTH:g} × that of {less}",
            reached=f"{first:.3g} s, {peak / GB:.2f} GB, {growth:.1f} ×",
            met=first <= seconds and peak <= PEAK and growth <= GROWTH,
            detail=f"{less}: {readable(before)}",
        ),
        Row(
            what=f"further suggestions {what}",
            target=f"≤ {FURTHER:g} s",
            reached=readable(again),
            met=again <= FURTHER,
            detail=f"the longest {readable(max(further))}",
        ),
    ]


def _measure(sizes: Sizes, num_tasks: int, num_points: int) -> tuple[float, list[float], int]:
    """Returns seconds of the first and of later suggestions, and the peak memory."""
    tasks = random_tasks(num_tasks, num_points, sizes.dim)
    clear_memos()

    def build(X: Tensor, Y: Tensor) -> TransferGP:
        return TransferGP(X, Y, tasks)  # the model finds priors of the same tasks in memory

    with measure.threads():
        data = targets(sizes)
        first, *further = (sum(step(sizes, build, target)) for target in [data[0], *data])
    return first, further, measure.peak_memory()
