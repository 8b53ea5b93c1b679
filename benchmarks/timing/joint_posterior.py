"""Compares memory and time of large joint posteriors with `SingleTaskGP`, in new processes."""

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.timing.measure import (
    Row,
    Sizes,
    in_new_process,
    memory,
    peak_memory,
    readable,
    threads,
)
from benchmarks.timing.tasks import random_tasks
from botorch_transfer.models import ScaMLGP

#: Allowed ratios of memory and of time to `SingleTaskGP`.
MOMENTS, DRAW, BACKWARD = (2.0, 2.0), (2.0, 3.0), (3.0, 3.0)


class Cost(NamedTuple):
    """Cost of an evaluation: the increase of the peak memory in bytes, and seconds."""

    memory: float
    seconds: float


def moments(model: SingleTaskGP, X: Tensor) -> None:
    """Evaluates means and variances."""
    with torch.no_grad():
        posterior = model.posterior(X)
        _ = posterior.mean, posterior.variance


def draw(model: SingleTaskGP, X: Tensor) -> None:
    """Evaluates the covariance matrix, and draws a sample."""
    with torch.no_grad():
        posterior = model.posterior(X)
        _ = posterior.distribution.covariance_matrix  # type: ignore[union-attr]
        posterior.rsample(torch.Size([1]))


def backward(model: SingleTaskGP, X: Tensor) -> None:
    """Computes the gradient of the variances."""
    model.posterior(X.requires_grad_()).variance.sum().backward()


def compare(sizes: Sizes) -> list[Row]:
    """Measures each evaluation in a new process, because peak memory never falls."""
    many, fewer = sizes.num_joint_points, sizes.num_joint_points // 5
    return [
        _row(sizes, "mean and variance", moments, many, MOMENTS),
        _row(sizes, "covariance and a draw", draw, many, DRAW),
        _row(sizes, "the variances' gradient", backward, fewer, BACKWARD),
    ]


def _row(
    sizes: Sizes,
    what: str,
    evaluate: Callable[[SingleTaskGP, Tensor], None],
    num_joint_points: int,
    allowed: tuple[float, float],
) -> Row:
    costs = {
        transfer: [
            in_new_process(_cost, sizes, transfer, evaluate, num_joint_points)
            for _ in range(min(3, sizes.repeats))
        ]
        for transfer in (False, True)
    }
    plain, ours = (Cost(*map(median, zip(*costs[each], strict=True))) for each in (False, True))
    more, slower = ours.memory / max(plain.memory, 2**20), ours.seconds / plain.seconds
    more_memory, slowdown = allowed
    tasks = f"{sizes.num_joint_tasks} sources × {sizes.num_joint_task_points}"
    return Row(
        what=f"`ScaMLGP`, {tasks}: {what} at {num_joint_points:,} joint points",
        target=f"≤ {more_memory:g} × memory, {slowdown:g} × time of `SingleTaskGP`",
        reached=f"{more:.1f} × memory, {slower:.1f} × time",
        met=more <= more_memory and slower <= slowdown,
        detail=(
            f"{ours.memory / 2**20:,.0f} MB, {readable(ours.seconds)}; "
            f"SingleTaskGP {plain.memory / 2**20:,.0f} MB, {readable(plain.seconds)}"
        ),
    )


def _cost(
    sizes: Sizes,
    transfer: bool,
    evaluate: Callable[[SingleTaskGP, Tensor], None],
    num_joint_points: int,
) -> Cost:
    with threads():
        points = sizes.num_joint_task_points
        *sources, (X, Y) = random_tasks(sizes.num_joint_tasks + 1, points, sizes.dim)
        model = (
            ScaMLGP(X[: points // 2], Y[: points // 2], sources) if transfer else SingleTaskGP(X, Y)
        )
        generator = torch.Generator().manual_seed(0)
        queries = torch.rand(num_joint_points, sizes.dim, dtype=torch.double, generator=generator)
        evaluate(model.eval(), queries[:2].clone())  # work that is done only once
        before, start = memory(), sizes.clock()
        evaluate(model, queries)
        return Cost(peak_memory() - before, sizes.clock() - start)
