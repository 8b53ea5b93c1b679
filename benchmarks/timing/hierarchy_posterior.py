"""Compares posteriors of hierarchical models with a `SingleTaskGP` with as many points."""

from collections.abc import Callable

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.timing.measure import Row, Sizes, medians, readable
from benchmarks.timing.tasks import random_tasks
from botorch_transfer.models import BoostedHierarchicalGP, SequentialHierarchicalGP
from botorch_transfer.pretraining import SourceHierarchy

SLOWDOWN = 8.0
MODELS = (SequentialHierarchicalGP, BoostedHierarchicalGP)


def compare(sizes: Sizes) -> list[Row]:
    """Compares mean and variance at many single points, as an acquisition function needs them."""
    *sources, target = random_tasks(sizes.num_levels + 1, sizes.num_level_points, sizes.dim)
    all_X, all_Y = (torch.cat(part) for part in zip(*sources, strict=True))
    X, Y = (part[: sizes.num_target_points] for part in target)
    models: dict[str, SingleTaskGP] = {"SingleTaskGP": SingleTaskGP(all_X, all_Y)}
    for model_class in MODELS:
        prior = SourceHierarchy.fit(sources, propagate=model_class.propagate, num_restarts=0)
        models[model_class.__name__] = model_class(X, Y, prior)
    queries = torch.rand(sizes.num_level_queries, 1, sizes.dim, dtype=torch.double)
    sides = {name: moments(model.eval(), queries) for name, model in models.items()}
    with torch.no_grad():
        times, _ = medians(sides, sizes.repeats, sizes.clock)
    return [_row(sizes, model_class.__name__, times) for model_class in MODELS]


def moments(model: SingleTaskGP, queries: Tensor) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Returns a function that evaluates a model's mean and variance."""

    def measured(_: int) -> tuple[Tensor, Tensor]:
        posterior = model.posterior(queries)
        return posterior.mean, posterior.variance

    return measured


def _row(sizes: Sizes, name: str, times: dict[str, float]) -> Row:
    ratio = times[name] / times["SingleTaskGP"]
    total = sizes.num_levels * sizes.num_level_points
    return Row(
        what=(
            f"posterior of `{name}`, {sizes.num_levels} sources × {sizes.num_level_points}, "
            f"at {sizes.num_level_queries:,} × 1"
        ),
        target=f"≤ {SLOWDOWN:g} × `SingleTaskGP`, {total} points",
        reached=f"{ratio:.1f} ×",
        met=ratio <= SLOWDOWN,
        detail=f"{readable(times[name])}; SingleTaskGP {readable(times['SingleTaskGP'])}",
    )
