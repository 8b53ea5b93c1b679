"""What every method is: it suggests the next point to evaluate."""

from typing import Protocol

import torch
from torch import Tensor

from benchmarks.studies.problems import Problem


class Method(Protocol):
    """What proposes evaluations.

    A competitor is a class of this kind: it may look at `problem.history`, and chooses by
    `problem.maximize` (of any acquisition function, over the table or the cube) or
    `problem.nearest`. It serves several runs: what it keeps of one must not tell on another.
    """

    @property
    def initial_design(self) -> bool:
        """Whether a run starts with the points that all such methods share."""

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Proposes the next point.

        Args:
            problem: The problem, for its history and its allowed points; never for its values.
            X: An `n x d` tensor of the points evaluated so far.
            Y: An `n x 1` tensor of their values, to be maximized; NaN where they failed.
            seed: The seed of this step; the same for all methods.

        Returns:
            A `d` tensor.
        """


def with_failures_worst(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Give failed evaluations the worst finite value; drop them while there is none.

    Args:
        X: An `n x d` tensor of points.
        Y: An `n x 1` tensor of values, NaN where the evaluation failed.

    Returns:
        Points and finite values.
    """
    finite = Y.isfinite()
    if not bool(finite.any()):
        return X[:0], Y[:0]
    return X, torch.where(finite, Y, Y[finite].min())
