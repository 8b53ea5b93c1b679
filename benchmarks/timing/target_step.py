"""A fit to the target, and a full step of Bayesian optimization: build, fit, optimize LogEI.

The step of an average of models optimizes the average of their improvements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.timing.measure import Row, Sizes, medians, readable
from benchmarks.timing.tasks import Task, random_tasks
from botorch_transfer import (
    GuardedTransferGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    SourceGPs,
    SourceHierarchy,
    SourcePopulation,
    TransferGP,
    TwoStageTransferGP,
)
from botorch_transfer.acquisition import AveragedImprovement

FIT, STEP, STEP_OF_ENSEMBLES, STEP_OF_AVERAGES = 0.5, 1.5, 2.5, 3.0

AVERAGE_DIM, AVERAGE_POINTS = 4, (10, 20)
"""The number of inputs, and the numbers of target points, of a step with several models."""

Build = Callable[[torch.Tensor, torch.Tensor], SingleTaskGP]


def compare(sizes: Sizes) -> list[Row]:
    """Models with finished priors."""
    few = replace(
        sizes, num_tasks=sizes.num_fit_tasks, num_points=sizes.num_fit_points, dim=sizes.fit_dim
    )
    few_sources = SourceGPs.fit(
        random_tasks(few.num_tasks, few.num_points, few.dim), num_restarts=0
    )
    sources = SourceGPs.fit(
        random_tasks(sizes.num_tasks, sizes.num_points, sizes.dim), num_restarts=0
    )
    levels = SourceHierarchy.fit(
        random_tasks(sizes.num_levels, sizes.num_level_points, sizes.dim),
        propagate="covariance",
        num_restarts=0,
    )
    models: dict[str, tuple[Build, float]] = {
        "ScaMLGP": (lambda X, Y: ScaMLGP(X, Y, sources), STEP),
        "SequentialHierarchicalGP": (lambda X, Y: SequentialHierarchicalGP(X, Y, levels), STEP),
        "RankWeightedGP": (lambda X, Y: RankWeightedGP(X, Y, sources), STEP_OF_ENSEMBLES),
        "TwoStageTransferGP": (lambda X, Y: TwoStageTransferGP(X, Y, sources), STEP_OF_ENSEMBLES),
        "GuardedTransferGP": (lambda X, Y: GuardedTransferGP(X, Y, sources), STEP_OF_ENSEMBLES),
    }
    return [
        fit_row(few, "ScaMLGP", lambda X, Y: ScaMLGP(X, Y, few_sources), FIT),
        *step_rows(sizes, models),
        *average_rows(few),
    ]


def average_rows(sizes: Sizes) -> list[Row]:
    """Compares steps of the average of several models, in few dimensions.

    Args:
        sizes: The source tasks.

    Returns:
        A row for each number of target points.
    """
    tasks = random_tasks(sizes.num_tasks, sizes.num_points, AVERAGE_DIM)
    priors = {
        "population": SourcePopulation.fit(tasks),
        "scaml": SourceGPs.fit(tasks, num_restarts=0),
    }
    models = {"TransferGP": (lambda X, Y: TransferGP(X, Y, priors), STEP_OF_AVERAGES)}
    return [
        row
        for number in AVERAGE_POINTS
        for row in step_rows(replace(sizes, dim=AVERAGE_DIM, num_target_points=number), models)
    ]


def fit_row(sizes: Sizes, name: str, build: Build, slowdown: float) -> Row:
    """Compares a model's fit with that of BoTorch's default model.

    Args:
        sizes: The target's size.
        name: The model's name.
        build: Builds it.
        slowdown: How much slower it may be.

    Returns:
        The row.
    """
    targets = _targets(sizes)

    def side(build: Build) -> Callable[[int], None]:
        # Built beforehand: one model for each repeat, and one for the call that does not count.
        models = iter([build(*target) for target in [targets[0], *targets]])

        def fit(_: int) -> None:
            model = next(models)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))

        return fit

    times, _ = medians({"plain": side(SingleTaskGP), "ours": side(build)}, sizes.repeats)
    ratio = times["ours"] / times["plain"]
    return Row(
        what=(
            f"fit of `{name}`, {sizes.num_tasks} sources × {sizes.num_points}, d = {sizes.dim}, "
            f"{sizes.num_target_points} target points"
        ),
        target=f"≤ {slowdown:g} × `SingleTaskGP`",
        reached=f"{ratio:.2f} ×",
        met=ratio <= slowdown,
        detail=f"{readable(times['ours'])}; SingleTaskGP {readable(times['plain'])}",
    )


def step_rows(
    sizes: Sizes,
    models: Mapping[str, tuple[Build, float]],
    targets: Sequence[Task] | None = None,
    inputs: str = "",
) -> list[Row]:
    """Compares models' steps with that of BoTorch's default model.

    Args:
        sizes: The target's size, and how to optimize the acquisition.
        models: By name what builds a model, and how much slower it may be.
        targets: The target's data in each repeat; by default others in each.
        inputs: What there is to say of the inputs.

    Returns:
        The rows; their details say where the time goes.
    """
    targets = _targets(sizes) if targets is None else targets
    parts: dict[str, list[list[float]]] = defaultdict(list)

    def side(name: str, build: Build) -> Callable[[int], None]:
        return lambda repeat: parts[name].append(step(sizes, build, targets[repeat]))

    builds: dict[str, Build] = {"SingleTaskGP": SingleTaskGP}
    builds |= {name: build for name, (build, _) in models.items()}
    times, _ = medians({name: side(name, build) for name, build in builds.items()}, sizes.repeats)
    rows = []
    for name, (_, slowdown) in models.items():
        ratio = times[name] / times["SingleTaskGP"]
        detail = [f"{label} {_split(parts[label][1:])}" for label in (name, "SingleTaskGP")]
        rows.append(
            Row(
                what=(
                    f"full step of `{name}`, {sizes.num_target_points} target points, "
                    f"d = {sizes.dim}{inputs}"
                ),
                target=f"≤ {slowdown:g} × `SingleTaskGP`",
                reached=f"{ratio:.1f} ×",
                met=ratio <= slowdown,
                detail="; ".join(detail),
            )
        )
    return rows


def _targets(sizes: Sizes) -> list[Task]:
    """The target's data, others in each repeat."""
    return [
        random_tasks(1, sizes.num_target_points, sizes.dim, seed=1 + repeat)[0]
        for repeat in range(sizes.repeats)
    ]


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
        improvement(model, bounds, X, Y),
        bounds=bounds,
        q=1,
        num_restarts=sizes.acquisition_restarts,
        raw_samples=sizes.raw_samples,
        options={"seed": 0},
    )
    now.append(perf_counter())
    return [end - start for start, end in pairwise(now)]


def improvement(model: Any, bounds: torch.Tensor, X: torch.Tensor, Y: torch.Tensor) -> Any:
    """The logarithm of expected improvement, averaged over an average's models.

    Args:
        model: The fitted model.
        bounds: A ``2 x d`` tensor, the bounds of the inputs.
        X: The target's inputs.
        Y: The target's outcomes.

    Returns:
        The acquisition function.
    """
    if not isinstance(model, TransferGP):
        return LogExpectedImprovement(model, best_f=Y.max())
    reference = torch.cat([draw_sobol_samples(bounds, n=64, q=1, seed=0).squeeze(-2), X])
    return AveragedImprovement.from_model(model, Y.max(), reference)


def _split(steps: list[list[float]]) -> str:
    build, fit, optimize = (median(part) for part in zip(*steps, strict=True))
    return (
        f"{readable(build + fit + optimize)} (build {readable(build)}, fit {readable(fit)}, "
        f"acquisition {readable(optimize)})"
    )
