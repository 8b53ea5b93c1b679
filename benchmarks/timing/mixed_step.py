"""A step of Bayesian optimization in a mixed space, one-hot encoded, with a few target points.

The tasks are those of the shipped tuning history. With few points, what GPyTorch costs in each
evaluation outweighs the arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.timing.measure import Row, Sizes
from benchmarks.timing.target_step import Build, step_rows
from botorch_transfer import (
    GuardedTransferGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    SourceGPs,
    SourceHierarchy,
    from_dataframe,
)
from botorch_transfer.datasets import load_tuning_history, tuning_search_space

TABLE = "mlp"


def compare(sizes: Sizes) -> list[Row]:
    """A row for each model and number of target points."""
    space = tuning_search_space(TABLE)
    table = load_tuning_history(TABLE).dropna(subset="log_loss")
    names = table["task"].unique()[: sizes.num_mixed_tasks + 1].tolist()
    least, further = divmod(sizes.num_mixed_rows, sizes.num_mixed_tasks)
    data = from_dataframe(table[table["task"].isin(names)], space, "log_loss", "task", goal="min")
    sources = {
        name: (data[name].X[:count], data[name].Y[:count])
        for name, count in ((name, least + (i < further)) for i, name in enumerate(names[1:]))
    }
    gps = SourceGPs.fit(sources, num_restarts=0)
    levels = SourceHierarchy.fit(sources, propagate="covariance", num_restarts=0)
    models: dict[str, Build] = {
        "ScaMLGP": lambda X, Y: ScaMLGP(X, Y, gps),
        "SequentialHierarchicalGP": lambda X, Y: SequentialHierarchicalGP(X, Y, levels),
        "RankWeightedGP": lambda X, Y: RankWeightedGP(X, Y, gps),
        "GuardedTransferGP": lambda X, Y: GuardedTransferGP(X, Y, gps),
    }
    target = data[names[0]]
    rows = []
    for number in sizes.num_mixed_target_points:
        starts = [repeat * number for repeat in range(sizes.repeats)]
        targets = [
            (target.X[start : start + number], target.Y[start : start + number]) for start in starts
        ]
        here = replace(sizes, dim=space.dim, num_target_points=number)
        inputs = f", one-hot, {sizes.num_mixed_tasks} sources, {sizes.num_mixed_rows} rows"
        rows += step_rows(here, models, targets, inputs)
    return rows
