"""A full step of Bayesian optimization: build, fit, optimize LogEI."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.timing.measure import Row, Sizes, medians, readable
from benchmarks.timing.tasks import Task, random_tasks
from botorch_transfer import ScaMLGP, SourceGPs

SLOWDOWN = 4.0

Build = Callable[[torch.Tensor, torch.Tensor], SingleTaskGP]


def compare(sizes: Sizes) -> list[Row]:
    """`ScaMLGP` with a finished prior."""
    sources = SourceGPs.fit(
        random_tasks(sizes.num_tasks, sizes.num_points, sizes.dim), num_restarts=0
    )
    return [step_row(sizes, "ScaMLGP", lambda X, Y: ScaMLGP(X, Y, sources), SLOWDOWN)]


def step_row(sizes: Sizes, name: str, build: Build, slowdown: float) -> Row:
    """Compares a model's step with that of BoTorch's default model.

    Args:
        sizes: The target's size, and how to optimize the acquisition.
        name: The model's name.
        build: Builds it.
        slowdown: How much slower it may be.

    Returns:
        The row; its detail says where the time goes.
    """
    targets = [
        random_tasks(1, sizes.num_target_points, sizes.dim, seed=1 + repeat)[0]
        for repeat in range(sizes.repeats)
    ]
    parts: dict[str, list[list[float]]] = defaultdict(list)

    def side(label: str, build: Build) -> Callable[[int], None]:
        return lambda repeat: parts[label].append(step(sizes, build, targets[repeat]))

    sides = {"plain": side("SingleTaskGP", SingleTaskGP), "ours": side(name, build)}
    times, _ = medians(sides, sizes.repeats)
    ratio = times["ours"] / times["plain"]
    detail = [f"{label} {_split(parts[label][1:])}" for label in (name, "SingleTaskGP")]
    return Row(
        what=f"full step of `{name}`, {sizes.num_target_points} target points, d = {sizes.dim}",
        target=f"≤ {slowdown:g} × `SingleTaskGP`",
        reached=f"{ratio:.1f} ×",
        met=ratio <= slowdown,
        detail="; ".join(detail),
    )


def step(sizes: Sizes, build: Build, target: Task) -> list[float]:
    """Takes one step and returns the seconds of building, fitting and optimizing."""
    X, Y = target
    bounds = torch.stack([X.new_zeros(sizes.dim), X.new_ones(sizes.dim)])
    now = [perf_counter()]
    model = build(X, Y)
    now.append(perf_counter())
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    now.append(perf_counter())
    optimize_acqf(
        LogExpectedImprovement(model, best_f=Y.max()),
        bounds=bounds,
        q=1,
        num_restarts=sizes.acquisition_restarts,
        raw_samples=sizes.raw_samples,
        options={"seed": 0},
    )
    now.append(perf_counter())
    return [end - start for start, end in pairwise(now)]


def _split(steps: list[list[float]]) -> str:
    build, fit, optimize = (median(part) for part in zip(*steps, strict=True))
    return (
        f"{readable(build + fit + optimize)} (build {readable(build)}, fit {readable(fit)}, "
        f"acquisition {readable(optimize)})"
    )
