"""A fit to the target, and a full step of Bayesian optimization: build, fit, optimize LogEI.

The step of an average of models optimizes the average of their improvements.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median
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
from botorch_transfer.prior import TransferPrior

FIT, STEP, STEP_OF_AVERAGES = 0.5, 1.5, 1.25

#: The numbers of target points of the default's step.
AVERAGE_POINTS = (10, 20)

Build = Callable[[torch.Tensor, torch.Tensor], Any]


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
    models: dict[str, Build] = {
        "ScaMLGP": lambda X, Y: ScaMLGP(X, Y, sources),
        "SequentialHierarchicalGP": lambda X, Y: SequentialHierarchicalGP(X, Y, levels),
        "RankWeightedGP": lambda X, Y: RankWeightedGP(X, Y, sources),
        "TwoStageTransferGP": lambda X, Y: TwoStageTransferGP(X, Y, sources),
        "GuardedTransferGP": lambda X, Y: GuardedTransferGP(X, Y, sources),
    }
    return [
        fit_row(few, "ScaMLGP", lambda X, Y: ScaMLGP(X, Y, few_sources), FIT),
        *step_rows(sizes, models),
        *average_rows(sizes),
    ]


def average_rows(sizes: Sizes) -> list[Row]:
    """Compares steps of the average of several models.

    Args:
        sizes: The source tasks.

    Returns:
        A row for each history and number of target points.
    """
    rows = []
    for num_tasks, num_points in sizes.average_sources:
        priors = priors_of(random_tasks(num_tasks, num_points, sizes.dim))
        models = {"TransferGP": partial(TransferGP, prior=priors)}
        inputs = f", {num_tasks} sources × {num_points:,}"
        for number in AVERAGE_POINTS:
            here = replace(sizes, num_target_points=number)
            rows += step_rows(here, models, inputs=inputs, slowdown=STEP_OF_AVERAGES)
    return rows


def priors_of(tasks: Sequence[Task]) -> dict[str, TransferPrior]:
    """Pre-trains the average's members, source GPs from one start."""
    population, scaml = SourcePopulation.fit(tasks), SourceGPs.fit(tasks, num_restarts=0)
    return {"population": population, "scaml": scaml}


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
    data = targets(sizes)

    def side(build: Build) -> Callable[[int], None]:
        # Built beforehand: one model for each repeat, and one for the call that does not count.
        models = iter([build(*target) for target in [data[0], *data]])

        def fit(_: int) -> None:
            model = next(models)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))

        return fit

    times, _ = medians(
        {"plain": side(SingleTaskGP), "ours": side(build)}, sizes.repeats, sizes.clock
    )
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
    models: Mapping[str, Build],
    inputs: str = "",
    slowdown: float = STEP,
) -> list[Row]:
    """Compares models' steps with that of BoTorch's default model.

    Args:
        sizes: The target's size, and how to optimize the acquisition.
        models: By name what builds a model.
        inputs: What there is to say of the inputs.
        slowdown: How much slower a model may be.

    Returns:
        The rows; their details say where the time goes.
    """
    data = targets(sizes)
    parts: dict[str, list[list[float]]] = defaultdict(list)

    def side(name: str, build: Build) -> Callable[[int], None]:
        return lambda repeat: parts[name].append(step(sizes, build, data[repeat]))

    builds: dict[str, Build] = {"SingleTaskGP": SingleTaskGP, **models}
    sides = {name: side(name, build) for name, build in builds.items()}
    times, _ = medians(sides, sizes.repeats, sizes.clock)
    rows = []
    for name in models:
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


def targets(sizes: Sizes) -> list[Task]:
    """Makes the target's data, others in each repeat."""
    return [
        random_tasks(1, sizes.num_target_points, sizes.dim, seed=1 + repeat)[0]
        for repeat in range(sizes.repeats)
    ]


def step(sizes: Sizes, build: Build, target: Task) -> list[float]:
    """Takes one step and returns the seconds of building, fitting and optimizing."""
    X, Y = target
    bounds = torch.stack([X.new_zeros(sizes.dim), X.new_ones(sizes.dim)])
    now = [sizes.clock()]
    model = build(X, Y)
    now.append(sizes.clock())
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    now.append(sizes.clock())
    optimize_acqf(
        improvement(model, bounds, X, Y),
        bounds=bounds,
        q=1,
        num_restarts=sizes.acquisition_restarts,
        raw_samples=sizes.raw_samples,
        options={"seed": 0},
    )
    now.append(sizes.clock())
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
