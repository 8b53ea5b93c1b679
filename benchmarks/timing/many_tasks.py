"""Costs with thousands of source tasks: pre-training, loading a file, and a step of `ScaMLGP`."""

from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.timing.measure import Row, Sizes, in_new_process, peak_memory, readable, threads
from benchmarks.timing.target_step import step, targets
from benchmarks.timing.tasks import random_tasks
from botorch_transfer import ScaMLGP, SourceGPs

GIB = 2**30
FIT, PEAK, GROWTH, FILE, STEP = 600.0, 2 * GIB, 2.1, 5.0, 2.0


def compare(sizes: Sizes) -> list[Row]:
    """Measures the rows of the fit, the file and the step."""
    few, many = sizes.num_many_tasks // 2, sizes.num_many_tasks
    (half, _, _, _), measured = (in_new_process(_measure, sizes, count) for count in (few, many))
    fit, peak, file, steps = measured
    what = f"{many:,} tasks × {sizes.num_many_points}, d = {sizes.many_dim}"
    growth = fit / half
    return [
        Row(
            what=f"`SourceGPs.fit` of {what}, default starts",
            target=f"≤ {FIT:g} s, ≤ {PEAK / GIB:g} GiB, ≤ {GROWTH:g} × the time of half as many",
            reached=f"{fit:.0f} s, {peak / GIB:.2f} GiB, {growth:.2f} ×",
            met=fit <= FIT and peak <= PEAK and growth <= GROWTH,
            detail=f"{few:,} tasks: {readable(half)}",
        ),
        Row(
            what="loading it from a file",
            target=f"≤ {FILE:g} s",
            reached=readable(file),
            met=file <= FILE,
            detail="",
        ),
        Row(
            what=f"a full step of `ScaMLGP` on it, {sizes.num_many_target_points} target points",
            target=f"≤ {STEP:g} s",
            reached=readable(median(steps)),
            met=median(steps) <= STEP,
            detail=f"the first {readable(steps[0])}",
        ),
    ]


def _measure(sizes: Sizes, num_tasks: int) -> tuple[float, int, float, list[float]]:
    """Returns seconds of a fit, the peak memory, seconds of loading, and seconds of each step."""
    sizes = replace(sizes, dim=sizes.many_dim, num_target_points=sizes.num_many_target_points)
    with threads(), TemporaryDirectory() as folder:
        tasks = random_tasks(num_tasks, sizes.num_many_points, sizes.dim)
        start = sizes.clock()
        sources = SourceGPs.fit(tasks)
        fit, path = sizes.clock() - start, Path(folder) / "prior.safetensors"
        sources.save(path)
        start = sizes.clock()
        sources = SourceGPs.load(path)
        file = sizes.clock() - start
        steps = [
            sum(step(sizes, lambda X, Y: ScaMLGP(X, Y, sources), data)) for data in targets(sizes)
        ]
        return fit, peak_memory(), file, steps
