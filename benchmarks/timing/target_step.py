"""Times of a fit to the target, and of a full step: build, fit, optimize LogEI.

The step of `TransferGP` optimizes the averaged improvement of its members.
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

#: Numbers of target points for steps of `TransferGP`.
AVERAGE_POINTS = (10, 20)

Build = Callable[[torch.Tensor, torch.Tensor], Any]


def compare(sizes: Sizes) -> list[Row]:
    """Compares models with pre-trained priors."""
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
    """Compares steps of `TransferGP` with steps of BoTorch's default model.

    Args:
        sizes: The sizes of the source tasks.

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
    """Pre-trains the priors of `TransferGP`'s members; source GPs are fitted from one start."""
    population, scaml = SourcePopulation.fit(tasks), SourceGPs.fit(tasks, num_restarts=0)
    return {"population": population, "scaml": scaml}


def fit_row(sizes: Sizes, name: str, build: Build, slowdown: float) -> Row:
    """Compares a model's fit with the fit of BoTorch's default model.

    Args:
        sizes: The size of the target.
        name: The name of the model.
        build: A function that builds the model.
        slowdown: The largest allowed ratio of the times.

    Returns:
        The row.
    """
    data = targets(sizes)

    def side(build: Build) -> Callable[[int], None]:
        # One model for each repeat, and one model for the call that is not measured.
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
    """Compares steps of models with the step of BoTorch's default model.

    Args:
        sizes: The size of the target, and the options of `optimize_acqf`.
        models: Functions that build models, by the name of the model.
        inputs: A text about the inputs, for the description of the row.
        slowdown: The largest allowed ratio of the times.

    Returns:
        The rows. The details have the times of building, fitting and optimizing.
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
    """Draws the target's data for each repeat."""
    return [
        random_tasks(1, sizes.num_target_points, sizes.dim, seed=1 + repeat)[0]
        for repeat in range(sizes.repeats)
    ]


def step(sizes: Sizes, build: Build, target: Task) -> list[float]:
    """Takes one step, and returns the seconds of building, fitting and optimizing."""
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
    """Builds LogEI, or the averaged improvement of a `TransferGP`.

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
