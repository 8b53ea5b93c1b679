"""Optimization of a task whose values are known at finitely many points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from torch import Tensor

Score = Callable[[list[int]], Tensor]
"""Says how good a choice each of the `N` points is, once those of some numbers are known."""

Build = Callable[[Tensor, Tensor, Any], Any]
"""Builds a fitted model of the points so far; the third argument is the last step's model."""

Acquire = Callable[[Any, Tensor], AcquisitionFunction]
"""Builds the acquisition function of a model and the values so far."""


def normalized_regrets(
    Y: Tensor, score: Score, num_initial: int, num_steps: int, seed: int, repeat: bool = False
) -> list[float]:
    """Runs an optimization and measures its normalized simple regret.

    Args:
        Y: An `N x 1` tensor of the values of all points, to be maximized.
        score: Scores all points; the best one is chosen.
        num_initial: The number of random points to begin with, the same for all methods.
        num_steps: The number of points to choose after them; fewer if there are no more.
        seed: The seed of the first points.
        repeat: Whether a point may be chosen again; its value is the same every time.

    Returns:
        The regret after each evaluation, the first ones included: between zero, for the best of all
        points, and one, for the worst.
    """
    chosen = first_points(len(Y), num_initial, seed)
    for _ in range(num_steps if repeat else min(num_steps, len(Y) - len(chosen))):
        values = score(chosen).clone()
        if not repeat:
            values[chosen] = -torch.inf
        chosen.append(int(values.argmax()))
    return regrets_of(Y, chosen)


def first_points(num_points: int, num_initial: int, seed: int) -> list[int]:
    """Draws the numbers of the random first points."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(num_points, generator=generator)[:num_initial].tolist()


def regrets_of(Y: Tensor, chosen: Sequence[int]) -> list[float]:
    """Computes the normalized simple regret after each of the chosen points."""
    best = torch.cummax(Y[list(chosen)].squeeze(-1), dim=0).values
    return ((Y.max() - best) / (Y.max() - Y.min())).tolist()


def by_model(X: Tensor, Y: Tensor, build: Build, acquire: Acquire) -> Score:
    """Scores points by an acquisition function of a model of the points so far.

    Args:
        X: An `N x d` tensor of all points.
        Y: An `N x 1` tensor of their values.
        build: Builds a fitted model.
        acquire: Builds its acquisition function.

    Returns:
        The score, which builds a new model each time.
    """
    model = None

    def score(chosen: list[int]) -> Tensor:
        nonlocal model
        model = build(X[chosen], Y[chosen], model)
        with torch.no_grad():
            return acquire(model, Y[chosen])(X.unsqueeze(-2))

    return score
