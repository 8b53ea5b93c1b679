"""How the hierarchical models' costs grow: `python -m benchmarks.figures.hierarchy_scaling`.

Hyperparameters stay fixed: what is timed is the arithmetic that the paper's Table 1 and Appendix B
count. Exponents are the slopes of straight lines through the larger half of the sizes on
logarithmic axes; for small sizes, the time is that of calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.markdown import markdown_table
from benchmarks.styles import style_of
from benchmarks.timing.measure import readable
from benchmarks.timing.tasks import Task, random_tasks
from botorch_transfer.gp.fit import TaskObjective
from botorch_transfer.gp.hyperpriors import RESIDUAL_HYPERPARAMETERS
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.hierarchy.kernel import BoostedHierarchy, ConditionedHierarchy, stack_levels
from botorch_transfer.hierarchy.models import HierarchicalGP
from botorch_transfer.models import (
    BoostedHierarchicalGP,
    MeanHierarchicalGP,
    SequentialHierarchicalGP,
)
from botorch_transfer.pretraining import SourceHierarchy

DIM, NUM_TARGET_POINTS, NUM_QUERIES = 3, 20, 200
NUM_SOURCES, LEVEL_POINTS = 4, 40
MODELS: dict[str, type[HierarchicalGP]] = {
    "MHGP": MeanHierarchicalGP,
    "BHGP": BoostedHierarchicalGP,
    "SHGP": SequentialHierarchicalGP,
}

Timed = Callable[[], object]

FIT, FACTOR, POSTERIOR = "fit step of the top source", "factorization", "posterior"


@dataclass(frozen=True)
class Growth:
    """A family of sizes, and the exponents that the paper promises.

    Args:
        name: What grows.
        sizes: Its values.
        levels: The number of sources and the points of each, for a value.
        promised: The exponents by operation and model.
    """

    name: str
    sizes: Sequence[int]
    levels: Callable[[int], tuple[int, int]]
    promised: Mapping[str, Mapping[str, float]]


# Appendix B: training the first source N³, evaluating Σ at the next one's points for SHGP and BHGP
# N N_s² and N² N_s; querying N_s for MHGP's mean, N_s² for the others.
GROWTHS = (
    Growth(
        f"N_s, {NUM_SOURCES} sources",
        (160, 320, 640, 1280),
        lambda total: (NUM_SOURCES, total // NUM_SOURCES),
        {
            FIT: {"MHGP": 3, "BHGP": 3, "SHGP": 3},
            FACTOR: {"MHGP": 3, "BHGP": 3, "SHGP": 3},
            POSTERIOR: {"MHGP": 1, "BHGP": 2, "SHGP": 2},
        },
    ),
    Growth(
        f"M, {LEVEL_POINTS} points each",
        (4, 8, 16, 32),
        lambda number: (number, LEVEL_POINTS),
        {
            FIT: {"MHGP": 0, "BHGP": 0, "SHGP": 0},
            # For means, M factors and every level's mean at the ones above, M N³ + M² N² / 2; for
            # the others every level's covariance there.
            FACTOR: {"MHGP": 2, "BHGP": 3, "SHGP": 3},
            POSTERIOR: {"MHGP": 1, "BHGP": 2, "SHGP": 2},
        },
    ),
)


def operations(num_sources: int, num_points: int) -> dict[str, dict[str, Timed]]:
    """What is timed, by operation and model.

    Args:
        num_sources: The number of sources `M`.
        num_points: The number of points of each.

    Returns:
        Functions without arguments.
    """
    *sources, target = random_tasks(num_sources + 1, num_points, DIM)
    data = [X for X, _ in sources], [Y.squeeze(-1) for _, Y in sources]
    levels: dict[str, Any] = stack_levels(*data, [torch.full_like(y, 1e-2) for y in data[1]])
    ones = torch.ones(num_sources, dtype=torch.double)
    lengthscale = 0.7 * ones.unsqueeze(-1).expand(-1, DIM)

    def factorize(name: str) -> ConditionedHierarchy:
        hierarchy = ConditionedHierarchy if name == "SHGP" else BoostedHierarchy
        gps = hierarchy(**levels, lengthscale=lengthscale, outputscale=ones)
        if name == "BHGP":  # its own factors are made when they are first needed
            gps.variance(target[0][:1])
        return gps

    queries = torch.rand(NUM_QUERIES, 1, DIM, dtype=torch.double)
    X, Y = (part[:NUM_TARGET_POINTS] for part in target)
    timed: dict[str, dict[str, Timed]] = {FIT: {}, FACTOR: {}, POSTERIOR: {}}
    for name, model_class in MODELS.items():
        gps = factorize(name)
        names = [f"source {index}" for index in range(num_sources)]
        prior = SourceHierarchy(gps, 0 * ones, ones, names, outcome_scale="raw")
        model = model_class(X, Y, prior).eval()
        timed[FIT][name] = _fit_step(sources[-1], gps)
        timed[FACTOR][name] = partial(factorize, name)
        timed[POSTERIOR][name] = partial(_variance, model, queries)
    return timed


def processor_time(function: Timed, repeats: int) -> float:
    """Measures a function by the time that its process computes, whatever else the machine does.

    Args:
        function: The function, called once more beforehand.
        repeats: How often it is measured.

    Returns:
        The median, in seconds.
    """
    function()
    times = []
    for _ in range(repeats):
        start = process_time()
        function()
        times.append(process_time() - start)
    return median(times)


def _variance(model: HierarchicalGP, queries: Tensor) -> Tensor:
    with torch.no_grad():
        return model.posterior(queries).variance


def _fit_step(task: Task, gps: ConditionedHierarchy) -> Timed:
    """One evaluation of the objective of a level's fit, given the levels below."""
    X, Y = task
    covariance = None if isinstance(gps, BoostedHierarchy) else gps.covariance(X)
    mask = torch.ones(1, len(X), dtype=torch.bool)
    noise = torch.zeros(1, len(X), dtype=torch.double)
    tasks = PaddedTasks(X[None], Y.T, noise, mask, torch.tensor([False]), covariance)
    objective = TaskObjective(tasks, "rbf", RESIDUAL_HYPERPARAMETERS.log_prior(tasks.X.shape[-1]))
    theta, index = torch.full((1, DIM + 2), -1.0, dtype=torch.double), torch.tensor([0])
    return partial(objective, theta, index)


def measure(growth: Growth, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Times all operations at all sizes.

    Args:
        growth: The sizes.
        repeats: How often each operation is timed.

    Returns:
        Median seconds by operation and model, one for each size.
    """
    seconds: dict[str, dict[str, list[float]]] = {}
    for size in growth.sizes:
        for what, sides in operations(*growth.levels(size)).items():
            for name, function in sides.items():
                time = processor_time(function, repeats)
                seconds.setdefault(what, {}).setdefault(name, []).append(time)
    return seconds


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope on logarithmic axes through the larger half of the sizes.

    Args:
        sizes: The sizes, growing.
        seconds: The times.

    Returns:
        The exponent.

    Example:
        >>> round(exponent([1, 2, 4, 8], [5.0, 5.0, 2.0, 16.0]), 3)
        3.0
    """
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)[0])


def growth_table(growth: Growth, seconds: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Lays out times and exponents.

    Args:
        growth: The sizes.
        seconds: What :func:`measure` gave.

    Returns:
        A markdown table.
    """
    header = [growth.name, *map(str, growth.sizes), "exponent", "promised at most"]
    rows = [
        [
            f"{what}, {name}",
            *map(readable, times),
            f"{exponent(growth.sizes, times):.1f}",
            f"{growth.promised[what][name]:g}",
        ]
        for what, models in seconds.items()
        for name, times in models.items()
    ]
    return markdown_table(header, rows)


def draw(
    measured: Sequence[tuple[Growth, Mapping[str, Mapping[str, Sequence[float]]]]], path: Path
) -> None:
    """Draws a row of panels for each growth, a panel for each operation.

    Args:
        measured: The growths and what :func:`measure` gave.
        path: Where to save the picture; its folder is made.
    """
    figure = Figure(figsize=(10, 3 * len(measured)), layout="constrained")
    panels = figure.subplots(len(measured), 3, squeeze=False, sharey=True)
    for row, (growth, seconds) in zip(panels, measured, strict=True):
        for panel, (what, models) in zip(row, seconds.items(), strict=True):
            for name, times in models.items():
                color, line, marker = style_of(name)
                label = f"{name}: {exponent(growth.sizes, times):.1f}"
                label += f" (at most {growth.promised[what][name]:g})"
                panel.plot(
                    growth.sizes, times, color=color, linestyle=line, marker=marker, label=label
                )
            panel.set(xscale="log", yscale="log", xlabel=growth.name, title=what)
            panel.set_xticks(growth.sizes, [str(size) for size in growth.sizes])
            panel.minorticks_off()
            panel.legend(title="exponent (promised)", fontsize=8, title_fontsize=8)
            panel.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None, growths: Sequence[Growth] = GROWTHS) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each time")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # processor time adds up over threads
    measured = [(growth, measure(growth, options.repeats)) for growth in growths]
    draw(measured, options.out / "hierarchy_scaling.png")
    for growth, seconds in measured:
        print(growth_table(growth, seconds), end="\n\n")
    print(
        f"Processor time on one thread, medians of {options.repeats}; posteriors at "
        f"{NUM_QUERIES} × 1 with {NUM_TARGET_POINTS} target points. The picture is in "
        f"{options.out / 'hierarchy_scaling.png'}."
    )


if __name__ == "__main__":
    main()
