"""Histories that help and histories that mislead, for targets of synthetic families."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from benchmarks.studies.problems import TableProblem
from botorch_transfer.test_functions import BraninFamily, Hartmann3Family, TaskFamily

FAMILIES: dict[str, type[TaskFamily]] = {"branin": BraninFamily, "hartmann3": Hartmann3Family}

KINDS = ("helpful", "irrelevant", "inverted", "shifted", "shuffled")
HISTORIES = (*KINDS, "mixed")
NUM_TASKS, POINTS_A_TASK, POOL_SIZE = 10, 32, 512
SHIFT = 0.3

Function = Callable[[Tensor], Tensor]


def synthetic_problem(family: str, history: str, seed: int) -> TableProblem:
    """A target of a family on a pool of points, with a history of the kind wanted.

    Args:
        family: ``"branin"`` or ``"hartmann3"``.
        history: One of ``HISTORIES``; ``"partly"`` if every other task is irrelevant and the rest
            help; ``"none"`` for none at all.
        seed: Decides on the target, the pool and the history's tasks. Targets and pools of a seed
            are the same for all histories.

    Returns:
        The problem. The names of its source tasks say of which kind they are.
    """
    target, *relatives = FAMILIES[family].sample(NUM_TASKS + 1, seed=seed, negate=True)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{family}/{seed}".encode()))
    pool = SobolEngine(target.dim, scramble=True, seed=seed).draw(POOL_SIZE, dtype=torch.double)
    kinds = _kinds(history)
    Y = _in_unit_cube(target)(pool).unsqueeze(-1)
    level, spread = float(Y.mean()), float(Y.std())
    sources = {}
    for number, (kind, relative) in enumerate(zip(kinds, relatives, strict=False)):
        X = torch.rand(POINTS_A_TASK, target.dim, generator=generator, dtype=torch.double)
        function = _bad_function(kind, _in_unit_cube(relative), target.dim, seed, number)
        values = function(X).unsqueeze(-1)
        if kind == "irrelevant":  # in the target's units, as if it had been the same quantity
            values = level + spread * values
        error = torch.randn(values.shape, generator=generator, dtype=torch.double)
        values = values + target.study_noise_std * error
        if kind == "shuffled":
            shuffling = torch.Generator().manual_seed(1000 * seed + number)
            values = values[torch.randperm(POINTS_A_TASK, generator=shuffling)]
        sources[f"{kind} {number}"] = (X, values)
    return TableProblem(f"{family} {history} {seed}", pool, Y, sources)


def _kinds(history: str) -> list[str]:
    if history == "none":
        return []
    if history == "partly":
        return ["helpful", "irrelevant"] * (NUM_TASKS // 2)
    if history == "mixed":
        return ["helpful", *["irrelevant", "inverted", "shifted"] * (NUM_TASKS // 3)]
    return [history] * NUM_TASKS


def _in_unit_cube(task: TaskFamily) -> Function:
    lower, upper = cast(Tensor, task.bounds)
    return lambda X: task._evaluate_true(lower + (upper - lower) * X) * (-1 if task.negate else 1)


def _bad_function(kind: str, function: Function, dim: int, seed: int, number: int) -> Function:
    """What becomes of a relative of the target."""
    if kind in ("helpful", "shuffled"):  # outcomes are shuffled once they are drawn
        return function
    if kind == "inverted":
        return lambda X: -function(X)
    if kind == "shifted":
        # All tasks of a history are shifted alike, as by an offset of the old machine.
        generator = torch.Generator().manual_seed(seed)
        sign = torch.randint(2, (dim,), generator=generator) * 2 - 1
        # Reflected at the edges: beyond them, Branin would rise without bound.
        return lambda X: function(_reflected(X + SHIFT * sign))
    return random_function(dim, seed=1000 * seed + number)


def _reflected(X: Tensor) -> Tensor:
    return 1 - (1 - X.remainder(2)).abs()


def random_function(dim: int, seed: int, num_features: int = 256) -> Function:
    """A function drawn from a GP with an RBF kernel, by random features.

    Args:
        dim: The number of inputs.
        seed: The seed.
        num_features: The number of features.

    Returns:
        The function, with variance one; its lengthscale is between 0.2 and 0.5.
    """
    generator = torch.Generator().manual_seed(seed)
    lengthscale = 0.2 + 0.3 * torch.rand((), generator=generator, dtype=torch.double)
    draw = torch.randn(num_features, dim + 1, generator=generator, dtype=torch.double)
    phase = 2 * math.pi * torch.rand(num_features, generator=generator, dtype=torch.double)
    frequency, weight = draw[:, :-1] / lengthscale, draw[:, -1] * math.sqrt(2 / num_features)
    return lambda X: (X @ frequency.T + phase).cos() @ weight
