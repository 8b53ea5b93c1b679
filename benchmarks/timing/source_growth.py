"""Growth of time and memory of `SourceGPs.fit` with the number of tasks."""

from benchmarks.timing.measure import Row, Sizes, in_new_process, peak_memory, readable, threads
from benchmarks.timing.tasks import random_tasks
from botorch_transfer import SourceGPs

MIB = 2**20
BYTES_PER_ELEMENT = 100  # what `MAPOptions.chunk_elements` promises


def compare(sizes: Sizes) -> list[Row]:
    """Measures one row for each chunk size."""
    return [_row(sizes, chunk_elements) for chunk_elements in sizes.chunk_elements]


def _row(sizes: Sizes, chunk_elements: int) -> Row:
    counts = sizes.task_counts
    measured = [in_new_process(_fit, sizes, count, chunk_elements) for count in counts]
    seconds, peaks = zip(*measured, strict=True)
    growth, allowed = seconds[-1] / seconds[0], counts[-1] / counts[0]
    # The memory of a chunk, and of the prior, which stores the inverse factor of every task.
    prior = counts[-1] * sizes.num_points**2 * 8
    bound = BYTES_PER_ELEMENT * chunk_elements + prior
    return Row(
        what=(
            f"the same, {' → '.join(map(str, counts))} tasks, one start, "
            f"chunks of {chunk_elements:,} elements"
        ),
        target=f"≤ {allowed:g} × the time, ≤ {bound / MIB:.0f} MiB",
        reached=f"{growth:.1f} ×, {peaks[-1] / MIB:.0f} MiB",
        met=growth <= allowed and peaks[-1] <= bound,
        detail="; ".join(
            f"{count}: {readable(time)}, {peak / MIB:.0f} MiB"
            for count, time, peak in zip(counts, seconds, peaks, strict=True)
        ),
    )


def _fit(sizes: Sizes, num_tasks: int, chunk_elements: int) -> tuple[float, int]:
    """Returns seconds and peak memory in bytes of a fit; call it in a new process."""
    with threads():
        SourceGPs.fit(random_tasks(2, 8, sizes.dim), num_restarts=0)
        tasks = random_tasks(num_tasks, sizes.num_points, sizes.dim)
        before = peak_memory()
        start = sizes.clock()
        SourceGPs.fit(tasks, num_restarts=0, chunk_elements=chunk_elements)
        return sizes.clock() - start, peak_memory() - before
