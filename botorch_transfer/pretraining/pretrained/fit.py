"""How pre-training optimizes.

Pre-training by gradients: Adam on sub-samples, or L-BFGS on everything.

Training for as long as it helps tasks that were held out, and then on all of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError, ModelFittingError
from torch import Tensor
from tqdm.auto import tqdm

from botorch_transfer.pretraining.optimizers import FlatParameters, RememberedLoss, VectorAdam
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

_UNDEFINED = 1e10
"""Stands for the loss in a line search where a covariance matrix cannot be factorized."""

_LBFGS_TOLERANCE = 1e-9


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
        self.adam = name == "adam"
        steps = options.steps
        self.steps = (3000 if self.adam else 100) if steps is None else steps
        self.stop = self.steps if stop is None else min(stop, self.steps)
        self.validation_every = options.validation_every or max(1, self.steps // 50)
        self.checkpoint_every = options.checkpoint_every or max(1, self.steps // 20)
        self.parameters = {n: p for n, p in parts.named_parameters() if p.requires_grad}
        self.flat = FlatParameters(self.parameters.values())
        self.optimizer = self._make_optimizer()
        self.full_loss = RememberedLoss(self.flat.vector, self._full_loss)
        self.curve = LearningCurve()
        self.best: dict[str, Tensor] = {}
        self.step = 0
        self.skipped = 0

    def _make_optimizer(self) -> VectorAdam | torch.optim.LBFGS:
        if self.adam:
            return VectorAdam(self.flat.vector)
        return torch.optim.LBFGS(
            [self.flat.vector],
            max_iter=1,
            max_eval=25,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

    def run(self) -> LearningCurve:
        """Runs to the end, and leaves the best parameters in the GP.

        Returns:
            The losses.

        Raises:
            ModelFittingError: If the loss cannot be evaluated, step after step.
            ValueError: If there is a checkpoint of another run.
        """
        keep_freed_memory()
        finished = self._resume() or not self.parameters
        with tqdm(
            total=self.stop,
            initial=self.step,
            desc="pre-training",
            disable=not self.options.progress,
        ) as bar:
            if self.step == 0 and not finished:
                self._validate()
            while not finished:
                finished = self._advance()
                bar.update()
                if finished or self.step % self.checkpoint_every == 0:
                    self._write(finished)
        if self.best:
            put_back(self.parameters, self.best)
        self.flat.release()
        return self.curve

    def _advance(self) -> bool:
        """Takes a step; returns whether it was the last."""
        if self.step >= self.stop:
            return True
        converged = self._adam_step() if self.adam else self._lbfgs_step()
        self.step += 1
        if self.validation is None:
            self.curve.best_step = self.step
        elif converged or self.step == self.stop or self.step % self.validation_every == 0:
            self._validate()
        return converged or self.step >= self.stop or self._is_out_of_patience()

    def _adam_step(self) -> bool:
        learning_rate = self.options.learning_rate
        if self.options.decay:
            learning_rate *= 0.5 * (1 + math.cos(math.pi * self.step / self.steps))
        self.flat.gradient.zero_()
        loss = float(self.loss.sampled(self.parts, self.step))
        self.curve.loss.append(loss)
        if math.isfinite(loss) and _is_finite(self.flat.gradient):
            self.skipped = 0
            step: Any = self.optimizer.step
            step(learning_rate)
        else:
            self._skip()
        return False

    def _full_loss(self) -> Tensor:
        self.flat.gradient.zero_()
        loss = self.loss.full(self.parts)
        if math.isfinite(float(loss)) and _is_finite(self.flat.gradient):
            return loss
        self.flat.gradient.zero_()
        return torch.full_like(loss, _UNDEFINED)

    def _lbfgs_step(self) -> bool:
        before = self.flat.vector.detach().clone()
        self.full_loss.begin()
        loss = float(self.full_loss())
        if loss == _UNDEFINED:
            self.curve.loss.append(math.nan)
            self._skip()
        self.curve.loss.append(loss)
        step: Any = self.optimizer.step
        step(self.full_loss)
        # No way down, or none worth going: where the line search ends, nothing will change.
        last = self.curve.loss[-2:]
        stuck = torch.equal(before, self.flat.vector)
        slow = len(last) == 2 and abs(last[0] - last[1]) <= _LBFGS_TOLERANCE * (1 + abs(last[1]))
        return stuck or slow

    def _skip(self) -> None:
        self.skipped += 1
        if self.skipped >= _MAX_SKIPPED or not self.adam:
            raise ModelFittingError(
                f"Pre-training has no finite loss after {self.step} steps: a covariance matrix is "
                "not positive definite. Check the source data for extreme scales, or start from "
                "more noise or a smaller learning rate."
            )
        logger.info("Step %d is skipped: the loss is not finite.", self.step)

    @torch.no_grad()
    def _validate(self) -> None:
        if self.validation is None:
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


def _is_finite(gradient: Tensor) -> bool:
    return math.isfinite(float(gradient.sum()))


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
