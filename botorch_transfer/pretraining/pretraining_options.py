"""How pre-training optimizes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PretrainingOptions:
    """How pre-training optimizes.

    Args:
        optimizer: ``"adam"`` or ``"lbfgs"``; by default Adam where the objective has an NLL, which
            is sub-sampled, and L-BFGS for the EKL, as in the paper.
        steps: The number of steps of Adam, 3,000 by default, or of iterations of L-BFGS, 100 by
            default.
        learning_rate: Adam's at the start.
        decay: Whether the learning rate falls to zero along a cosine. The paper's settings are
            ``steps=50_000, learning_rate=1e-3, decay=False``.
        batch_size: The number of points of each task in a step of Adam, a fresh uniform sample; all
            points of a task that has fewer.
        task_batch_size: The number of tasks in a step of Adam, a fresh uniform sample.
        validation_every: After how many steps the validation tasks are looked at; by default 50
            times in all.
        patience: After how many looks without progress the run stops early.
        seed: The seed of the samples.
        progress: Whether to show a progress bar.
        checkpoint: A file to write checkpoints to. A run that finds the checkpoint of an
            interrupted one there goes on with it, and ends at the same numbers to the bit.
        checkpoint_every: After how many steps it is written, by default 20 times in all, and once
            more at the end.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> PretrainingOptions(steps=100).steps
        100
    """

    optimizer: Literal["adam", "lbfgs"] | None = None
    steps: int | None = None
    learning_rate: float = 1e-2
    decay: bool = True
    batch_size: int = 50
    task_batch_size: int = 64
    validation_every: int | None = None
    patience: int = 10
    seed: int = 0
    progress: bool = False
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in (None, "adam", "lbfgs"):
            raise ValueError(f"Unknown optimizer {self.optimizer!r}: choose 'adam' or 'lbfgs'.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate={self.learning_rate} must be positive.")
        for name in ("batch_size", "task_batch_size", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be positive.")
        for name in ("steps", "validation_every", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < (name != "steps"):
                raise ValueError(f"{name}={value} is out of range.")

    def content(self) -> tuple[object, ...]:
        """What the result depends on."""
        return (
            self.optimizer,
            self.steps,
            self.learning_rate,
            self.decay,
            self.batch_size,
            self.task_batch_size,
            self.validation_every,
            self.patience,
            self.seed,
        )
