"""Problems of synthetic families, with sources and a target that are drawn for each seed.

The family Alpine has a fixed target: its seeds differ only in the source data and the noise.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from benchmarks.studies.problems import Landmarks, LiveProblem, named_seed
from botorch_transfer.memo import content_key
from botorch_transfer.test_functions import TaskFamily

NUM_LANDMARK_POINTS = 1024


@dataclass(frozen=True)
class FamilyProblem:
    """A target of a synthetic family, with noisy evaluations of other functions of the family.

    Args:
        name: The name.
        family: The family.
        num_sources: The number of source tasks.
        num_points: The number of evaluations of each source task, uniform in the cube.

    Example:
        >>> problem = FamilyProblem("one source", BraninFamily, num_sources=1, num_points=40)
        >>> problem.instance(seed=3, history_size=None).history.keys()
        dict_keys(['source 0'])
    """

    name: str
    family: type[TaskFamily]
    num_sources: int
    num_points: int

    def step_seed(self, seed: int, evaluation: int) -> int:
        """Returns a seed that depends on the name, the seed and the step."""
        return named_seed(self.name, seed, evaluation)

    def instance(self, seed: int, history_size: int | None) -> LiveProblem:
        """Draws the tasks, and evaluates the sources."""
        noise = self.family.study_noise_std
        target, sources = self.family.sample_problem(
            self.num_sources, seed, negate=True, noise_std=noise
        )
        function = UnitCubeFunction(target)
        points = SobolEngine(target.dim, seed=0).draw(NUM_LANDMARK_POINTS, dtype=torch.double)
        values = function.values(points)
        problem = LiveProblem(
            self.name,
            function,
            target.dim,
            history={
                # Each source task has different points.
                name: task.sample_data(self.num_points, (seed + 1 + number) % 2**32)
                for number, (name, task) in enumerate(sources.items())
            },
            best_known=float(target.optimal_value),
            noise_std=noise,
            landmarks=Landmarks(float(values.min()), float(values.median())),
        )
        return problem.instance(seed, history_size)

    def key(self) -> str:
        """Returns a hash of all settings of the problems."""
        family = self.family.__qualname__, self.family.study_noise_std
        return content_key(self.name, family, self.num_sources, self.num_points)


@dataclass(frozen=True)
class UnitCubeFunction:
    """The negative of a noise-free task, as a function on the unit cube."""

    task: TaskFamily

    def __call__(self, x: Tensor) -> float:
        """Evaluates the function at a `d` tensor."""
        return float(self.values(x.unsqueeze(0)))

    def values(self, X: Tensor) -> Tensor:
        """Evaluates the function at an `n x d` tensor."""
        lower, upper = cast(Tensor, self.task.bounds)
        return -self.task._evaluate_true(lower + (upper - lower) * X)
