"""How pre-training optimizes.

Pre-training by gradients: Adam on sub-samples, or L-BFGS on everything.

Training for as long as it helps tasks that were held out, and then on all of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from botorch.exceptions.errors import InputDataError, ModelFittingError
from torch import Tensor
from tqdm.auto import tqdm

from botorch_transfer.pretraining.optimizers import FlatParameters, adam_steps, lbfgs_steps
from botorch_transfer.pretraining.parallel import keep_freed_memory
from botorch_transfer.pretraining.pretrained.checkpoints import (
    FitState,
    LearningCurve,
    copied,
    optimizer_state,
    put_back,
    read_checkpoint,
    restore_optimizer,
    write_checkpoint,
)
from botorch_transfer.pretraining.pretrained.objectives import (
    PretrainingOptions,
    SourceLoss,
    TaskNLL,
    TrainingTasks,
)
from botorch_transfer.pretraining.pretrained.parts import GPParts

logger = logging.getLogger(__name__)

_MAX_SKIPPED = 20
"""So many steps in a row without a finite loss end the run."""


class GradientFit:
    """One run of pre-training.

    Args:
        parts: The GP, changed in place.
        loss: The loss on the source tasks.
        validation: The NLL of the validation tasks, if there are any.
        options: How to optimize.
        key: What identifies the run, for its checkpoint.
        stop: After how many steps to stop, on a schedule that is made for all of them.
    """

    def __init__(
        self,
        parts: GPParts,
        loss: SourceLoss,
        validation: TaskNLL | None,
        options: PretrainingOptions,
        key: str,
        stop: int | None = None,
    ) -> None:
        self.parts, self.loss, self.validation = parts, loss, validation
        self.options, self.key = options, key
        name = options.optimizer or ("lbfgs" if loss.task_nll is None else "adam")
        default = 3000 if name == "adam" else 100
        self.num_steps = default if options.steps is None else options.steps
        self.stop = self.num_steps if stop is None else min(stop, self.num_steps)
        self.validation_every = options.validation_every or max(1, self.num_steps // 50)
        self.checkpoint_every = options.checkpoint_every or max(1, self.num_steps // 20)
        self.parameters = {n: p for n, p in parts.named_parameters() if p.requires_grad}
        self.flat = FlatParameters(self.parameters.values())
        self.optimizer: torch.optim.Optimizer
        if name == "adam":
            self.optimizer = torch.optim.Adam([self.flat.vector], fused=True)
        else:
            self.optimizer = torch.optim.LBFGS(
                [self.flat.vector],
                max_iter=1,
                max_eval=25,
                history_size=20,
                line_search_fn="strong_wolfe",
            )
        self.curve = LearningCurve()
        self.best: dict[str, Tensor] = {}
        self.step = 0
        self.num_skipped = 0

    def run(self) -> LearningCurve:
        """Runs to the end, and leaves the best parameters in the GP.

        Returns:
            The losses.

        Raises:
            ModelFittingError: If the loss cannot be evaluated, step after step.
            ValueError: If there is a checkpoint of another run.
        """
        keep_freed_memory()
        if self.parameters and not self._resume():
            with tqdm(
                total=self.stop,
                initial=self.step,
                desc="pre-training",
                disable=not self.options.progress,
            ) as bar:
                if self.step == 0:
                    self._validate()
                for loss in self._losses():
                    self._note(loss)
                    bar.update()
                    if self._is_out_of_patience():
                        break
                    if self.step % self.checkpoint_every == 0:
                        self._write(finished=False)
            self._validate()
            self._write(finished=True)
        if self.best:
            put_back(self.parameters, self.best)
        self.flat.release()
        return self.curve

    def _losses(self) -> Iterator[float]:
        """Takes the steps to come, and yields the loss before each."""
        if isinstance(self.optimizer, torch.optim.Adam):
            steps = range(self.step, self.stop)
            return adam_steps(
                self.optimizer,
                lambda step: self.loss.sampled(self.parts, step),
                steps,
                self._learning_rate,
            )
        assert isinstance(self.optimizer, torch.optim.LBFGS)
        previous = self.curve.loss[-1] if self.curve.loss else math.inf
        losses = lbfgs_steps(self.optimizer, lambda: self.loss.full(self.parts), previous)
        return islice(losses, self.stop - self.step)

    def _learning_rate(self, step: int) -> float:
        if not self.options.decay:
            return self.options.learning_rate
        return 0.5 * self.options.learning_rate * (1 + math.cos(math.pi * step / self.num_steps))

    def _note(self, loss: float) -> None:
        """Notes a step's loss, and looks at the validation tasks if it is time to."""
        self.curve.loss.append(loss)
        if math.isfinite(loss):
            self.num_skipped = 0
        else:
            self.num_skipped += 1
            logger.info("Step %d is skipped: the loss is not finite.", self.step)
            is_adam = isinstance(self.optimizer, torch.optim.Adam)
            if self.num_skipped >= (_MAX_SKIPPED if is_adam else 1):
                raise ModelFittingError(
                    f"Pre-training has no finite loss after {self.step} steps: a covariance "
                    "matrix is not positive definite. Check the source data for extreme scales, "
                    "or start from more noise or a smaller learning rate."
                )
        self.step += 1
        if self.validation is None:
            self.curve.best_step = self.step
        elif self.step % self.validation_every == 0:
            self._validate()

    @torch.no_grad()
    def _validate(self) -> None:
        seen = self.curve.validation_steps[-1:] == [self.step]
        if self.validation is None or seen:
            return
        values = torch.cat(list(self.validation.of_tasks(self.parts)))
        loss = float(values.mean())
        self.curve.validation_steps.append(self.step)
        self.curve.validation_loss.append(loss)
        finite = [value for value in self.curve.validation_loss if math.isfinite(value)]
        if not self.best or loss == min(finite, default=math.nan):
            self.best = copied(self.parameters)
            self.curve.best_step = self.step

    def _is_out_of_patience(self) -> bool:
        if self.validation is None:
            return False
        looks = [step for step in self.curve.validation_steps if step > self.curve.best_step]
        return len(looks) >= self.options.patience

    # ------------------------------------------------------------------------------ checkpoints

    def _write(self, finished: bool) -> None:
        if self.options.checkpoint is None:
            return
        state = FitState(
            step=self.step,
            parameters=dict(self.parameters),
            best=self.best,
            optimizer=optimizer_state(self.optimizer),
            curve=self.curve,
            finished=finished,
        )
        write_checkpoint(self.options.checkpoint, self.key, state)

    def _resume(self) -> bool:
        """Takes up an earlier run; returns whether it had finished."""
        if self.options.checkpoint is None:
            return False
        state = read_checkpoint(self.options.checkpoint, self.key)
        if state is None:
            return False
        logger.info("Pre-training goes on after %d steps.", state.step)
        self.step, self.curve, self.best = state.step, state.curve, state.best
        put_back(self.parameters, state.parameters)
        restore_optimizer(self.optimizer, *state.optimizer)
        return state.finished


Groups = Sequence[Sequence[int]] | None
"""Given groups of tasks with matching inputs."""


def fit_as_long_as_it_helps(
    parts: GPParts,
    tasks: TrainingTasks,
    share: float,
    groups: Groups,
    loss: Callable[[TrainingTasks, Groups], SourceLoss],
    options: PretrainingOptions,
    key: str,
) -> LearningCurve:
    """Finds the number of steps on a part of the tasks, and takes as many on all of them.

    Args:
        parts: The GP, changed in place.
        tasks: The source tasks.
        share: The share of tasks that are held out to find the number of steps.
        groups: Given groups of tasks with matching inputs.
        loss: Builds the loss of tasks.
        options: How to optimize.
        key: What identifies the run, for its checkpoints.

    Returns:
        The losses on all tasks, those of the held-out ones while they were, and the number of steps
        found.

    Raises:
        InputDataError: If there are too few tasks to hold one out.
        ModelFittingError: If the loss cannot be evaluated, step after step.
        ValueError: If there is a checkpoint of another run.
    """
    kept, held_out = split(tasks.num_tasks, share, options.seed)
    training = tasks.subset(kept)
    held = tasks.subset(held_out).tasks
    trial = GradientFit(
        deepcopy(parts),
        loss(training, renumbered(groups, kept)),
        TaskNLL(held),
        replace(options, checkpoint=_beside(options.checkpoint)),
        f"{key}-held-out",
    ).run()
    curve = GradientFit(parts, loss(tasks, groups), None, options, key, trial.best_step).run()
    return replace(
        curve,
        validation_steps=trial.validation_steps,
        validation_loss=trial.validation_loss,
    )


def split(num_tasks: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Draws tasks to hold out.

    Args:
        num_tasks: The number of tasks.
        share: The share to hold out; one task at least.
        seed: The seed.

    Returns:
        The numbers of the tasks that are kept and of those held out, in order.

    Raises:
        InputDataError: If this leaves fewer than two tasks.
        ValueError: If the share is none.

    Example:
        >>> kept, held_out = split(8, 0.25, seed=0)
        >>> len(kept), len(held_out)
        (6, 2)
    """
    if not 0 < share < 1:
        raise ValueError(f"hold_out={share} must lie between 0 and 1.")
    count = max(1, round(share * num_tasks))
    if num_tasks - count < 2:
        raise InputDataError(
            f"hold_out={share} leaves {num_tasks - count} of {num_tasks} source tasks to train on: "
            "leave it out, and choose the number of steps."
        )
    order = torch.randperm(num_tasks, generator=torch.Generator().manual_seed(seed)).tolist()
    return sorted(order[count:]), sorted(order[:count])


def renumbered(groups: Groups, kept: Sequence[int]) -> Groups:
    """Says which groups there are among some of the tasks, by their new numbers.

    Args:
        groups: The groups, if any are given.
        kept: The numbers of the tasks.

    Returns:
        The groups of two tasks or more.

    Raises:
        InputDataError: If none is left.
    """
    if groups is None:
        return None
    number = {task: index for index, task in enumerate(kept)}
    among = [[number[task] for task in group if task in number] for group in groups]
    found = [group for group in among if len(group) > 1]
    if not found:
        raise InputDataError(
            "hold_out leaves no two tasks of a group together: leave it out, or the groups, or "
            "take another seed."
        )
    return found


def _beside(checkpoint: object) -> Path | None:
    return None if checkpoint is None else Path(f"{checkpoint}.held-out")
