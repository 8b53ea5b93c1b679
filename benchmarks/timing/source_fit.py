"""Compares `SourceGPs.fit` with a loop over tasks of `SingleTaskGP` and `fit_gpytorch_mll`."""

from collections.abc import Sequence

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.timing.measure import Row, Sizes, medians, readable
from benchmarks.timing.tasks import Task, random_tasks
from benchmarks.timing.twin import log_posterior, set_hyperparameters, twin_of_source_gp
from botorch_transfer import SourceGPs
from botorch_transfer.gp.fit import draw_starts
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.pretraining import MAPOptions, clear_memos

SPEEDUP = 8.0
NATS = 0.1


def compare(sizes: Sizes) -> list[Row]:
    """Compares fits from one start, and from several starts. Both sides use the same starts."""
    tasks = random_tasks(sizes.num_tasks, sizes.num_points, sizes.dim)
    several = max(1, sizes.repeats // 5)  # a loop over tasks and starts is already an average
    return [_row(sizes, tasks, 0, sizes.repeats), _row(sizes, tasks, sizes.num_restarts, several)]


def _row(sizes: Sizes, tasks: Sequence[Task], num_restarts: int, repeats: int) -> Row:
    def batch(_: int) -> SourceGPs:
        clear_memos()
        return SourceGPs.fit(tasks, num_restarts=num_restarts)

    def loop(_: int) -> list[float]:
        return [fit_alone(task, num_restarts) for task in tasks]

    times, fitted = medians({"loop": loop, "batch": batch}, repeats, sizes.clock)
    speedup = times["loop"] / times["batch"]
    pairs = zip(fitted["loop"], log_posteriors(fitted["batch"], tasks), strict=True)
    shortfall = max(0.0, *(alone - batched for alone, batched in pairs))
    return Row(
        what=(
            f"`SourceGPs.fit`, {sizes.num_tasks} tasks × {sizes.num_points} points, "
            f"d = {sizes.dim}, starts: {1 + num_restarts}"
        ),
        target=f"≥ {SPEEDUP:g} × faster, ≤ {NATS:g} nat worse",
        reached=f"{speedup:.1f} ×, {shortfall:.2g} nat",
        met=speedup >= SPEEDUP and shortfall <= NATS,
        detail=f"{readable(times['batch'])}; the loop {readable(times['loop'])}",
    )


def fit_alone(task: Task, num_restarts: int) -> float:
    """Fits a `SingleTaskGP` to one task from the starts of `SourceGPs.fit`.

    Args:
        task: The task.
        num_restarts: The number of additional starts.

    Returns:
        The best log posterior.
    """
    starts = draw_starts(
        SOURCE_HYPERPARAMETERS, task[0].shape[-1], MAPOptions(num_restarts=num_restarts)
    )
    best = -torch.inf
    for start in starts.exp():
        model = twin_of_source_gp(*task)
        set_hyperparameters(model, start[:-2], start[-2], start[-1])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        best = max(best, log_posterior(model))
    return best


def log_posteriors(sources: SourceGPs, tasks: Sequence[Task]) -> list[float]:
    """Computes the log posterior of each source GP with BoTorch's own code.

    Args:
        sources: The source GPs.
        tasks: The source tasks of the fit.

    Returns:
        The log posterior of each task, in nats.
    """
    gps, data, values = sources.gps, sources.observed, list[float]()
    for number, task in enumerate(tasks):
        model = twin_of_source_gp(*task)
        noise = data.noise[data.task == number][0]
        set_hyperparameters(model, gps.lengthscale[number], gps.outputscale[number], noise)
        values.append(log_posterior(model))
    return values
