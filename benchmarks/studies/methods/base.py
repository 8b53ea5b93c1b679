"""Interface of methods, which suggest the next point to evaluate."""

from typing import Protocol

import torch
from torch import Tensor

from benchmarks.studies.problems import Problem


class Method(Protocol):
    """Protocol of a method that suggests evaluations.

    A method may use `problem.history`. It chooses a point by `problem.maximize`, which maximizes an
    acquisition function over the table or the cube, or by `problem.nearest`. One method object
    serves several runs, so the state of one run must not influence another run.
    """

    @property
    def initial_design(self) -> bool:
        """Whether a run starts with the shared initial points."""

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Suggests the next point.

        Args:
            problem: The problem, with its history and its allowed points. The method must not read
                its values.
            X: An `n x d` tensor of the points evaluated so far.
            Y: An `n x 1` tensor of the values, to be maximized; NaN for failures.
            seed: The seed of this step, which is the same for all methods.

        Returns:
            A `d` tensor.
        """


def with_failures_worst(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Gives failed evaluations the worst finite value; drops them if no value is finite.

    Args:
        X: An `n x d` tensor of points.
        Y: An `n x 1` tensor of values, NaN where the evaluation failed.

    Returns:
        The points and the finite values.
    """
    finite = Y.isfinite()
    if not bool(finite.any()):
        return X[:0], Y[:0]
    return X, torch.where(finite, Y, Y[finite].min())
