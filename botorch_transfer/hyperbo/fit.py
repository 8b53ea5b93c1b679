"""Pre-training runs: options, optimization, early stopping, held-out tasks.

Pre-training uses BoTorch's optimizers: Adam on sub-samples, or L-BFGS on all points. With held-out
tasks, a run stops early if their loss no longer falls. An interrupted run cannot be resumed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from botorch.exceptions.errors import InputDataError, ModelFittingError
from botorch.optim.closures import NdarrayOptimizationClosure
from botorch.optim.core import torch_minimize
from botorch.optim.utils import get_parameters
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from botorch_transfer.gp.objective import (
    drop_gradients,
    gradient_closure,
    keep_freed_memory,
    minimize_batched,
)
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.hyperbo.features import GPParts
from botorch_transfer.hyperbo.objectives import SourceLoss, TaskNLL
from botorch_transfer.progress import track

logger = logging.getLogger(__name__)

#: A run of Adam fails after this number of consecutive steps without a finite loss.
_MAX_SKIPPED = 20


@dataclass(frozen=True)
class PretrainingOptions:
    """Options of pre-training.

    Args:
        optimizer: ``"adam"`` or ``"lbfgs"``. By default, as in the paper, Adam on sub-samples if
            the objective contains the NLL, and L-BFGS if the objective is the EKL alone.
        steps: The number of steps of Adam (3,000 by default) or iterations of L-BFGS (100 by
            default).
        learning_rate: Adam's initial learning rate.
        decay: Whether the learning rate falls to zero along a cosine. The paper's settings are
            ``steps=50_000, learning_rate=1e-3, decay=False``.
        batch_size: The number of points of each task in a step of Adam, drawn uniformly for each
            step. A smaller task contributes all its points.
        task_batch_size: The number of tasks in a step of Adam, also drawn uniformly for each step.
        validation_every: The number of steps between evaluations of the validation loss; by
            default a fiftieth of all steps.
        patience: The run stops after this number of evaluations of the validation loss without
            improvement.
        seed: The seed of the samples.
        progress: ``True`` for a progress bar over the steps, ``False`` for none. By default a run
            of more than three seconds has a bar on a terminal, and logs its expected duration.

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
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in (None, "adam", "lbfgs"):
            raise ValueError(f"Unknown optimizer {self.optimizer!r}: choose 'adam' or 'lbfgs'.")
        sizes = "batch_size", "task_batch_size", "validation_every", "patience"
        for name in ("learning_rate", *sizes):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive.")
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"steps={self.steps} must not be negative.")


@dataclass
class LearningCurve:
    """The losses of a run of pre-training.

    Args:
        loss: The training loss before each step. For Adam, it is the loss on the step's sub-sample.
            A step without a finite loss was skipped.
        validation_steps: The numbers of steps after which the validation loss was computed.
        validation_loss: The mean NLL of the validation tasks after these steps.
        best_step: The number of steps with the lowest validation loss. Without validation tasks,
            the number of all steps.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> prior = PretrainedPrior.stationary(2).fit([(X, X.sum(-1, keepdim=True))], steps=10)
        >>> len(prior.learning_curve.loss)
        10
    """

    loss: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_step: int = 0


class GradientFit:
    """One run of pre-training, which BoTorch's optimizers also call as stopping criterion.

    Args:
        parts: The GP, changed in place.
        loss: The loss on the source tasks.
        validation: The NLL of the held-out tasks; ``None`` if no tasks are held out.
        options: How to optimize.
        stop: The number of steps after which the run stops. The learning rate still decays over all
            steps of ``options``.
    """

    def __init__(
        self,
        parts: GPParts,
        loss: SourceLoss,
        validation: TaskNLL | None,
        options: PretrainingOptions,
        stop: int | None = None,
    ) -> None:
        self.parts, self.loss, self.validation, self.options = parts, loss, validation, options
        default = "lbfgs" if loss.task_nll is None else "adam"
        self.is_adam = (options.optimizer or default) == "adam"
        steps = 3000 if self.is_adam else 100
        self.num_steps = steps if options.steps is None else options.steps
        self.stop = self.num_steps if stop is None else min(stop, self.num_steps)
        self.validation_every = options.validation_every or max(1, self.num_steps // 50)
        self.parameters = get_parameters(parts, requires_grad=True)
        self.curve = LearningCurve()
        self.bar = track(range(self.stop), "pre-training", self.stop, options.progress)

    def run(self) -> LearningCurve:
        """Trains until the last step, or until the validation loss no longer falls.

        Returns:
            The losses.

        Raises:
            ModelFittingError: If the loss is repeatedly not finite.
        """
        keep_freed_memory()
        if self.parameters:
            if self.stop > 0:
                (self._run_adam if self.is_adam else self._run_lbfgs)()
            self._validate()
        self.bar.close()
        if self.validation is None:
            self.curve.best_step = len(self.curve.loss)
        drop_gradients(self.parameters)
        return self.curve

    def _run_adam(self) -> None:
        adam = partial(torch.optim.Adam, lr=self.options.learning_rate, fused=True)
        cosine = partial(CosineAnnealingLR, T_max=self.num_steps)
        torch_minimize(
            gradient_closure(
                lambda: self.loss.evaluate(self.parts, len(self.curve.loss)), self.parameters
            ),
            self.parameters,
            optimizer=adam,
            scheduler=cosine if self.options.decay else None,
            step_limit=self.stop,
            stopping_criterion=self,
        )

    def _run_lbfgs(self) -> None:
        full = gradient_closure(lambda: self.loss.evaluate(self.parts), self.parameters)
        closure = NdarrayOptimizationClosure(full, self.parameters)
        is_over = self(torch.as_tensor(closure()[0]))

        def evaluate(theta: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = closure(theta[0].numpy())
            return torch.as_tensor(value).reshape(1), torch.from_numpy(gradient).unsqueeze(0)

        def end_iteration(intermediate_result: Any) -> None:  # SciPy requires this name
            nonlocal is_over
            closure.state = intermediate_result.x
            is_over = self(torch.as_tensor(intermediate_result.fun))
            if is_over:
                raise StopIteration

        theta, _ = minimize_batched(
            evaluate,
            torch.from_numpy(closure.state).unsqueeze(0),
            torch.tensor([[-torch.inf], [torch.inf]]).expand(2, len(closure.state)),
            self.stop,
            callback=end_iteration,
        )
        closure.state = theta[0].numpy()
        if not is_over:
            self.curve.loss.pop()  # the loss after the last iteration, which precedes no iteration

    def reset(self) -> None:
        """Does nothing, because each object is used for a single run."""

    def __call__(self, fvals: Tensor) -> bool:
        """Records the loss before a step, and evaluates the validation loss at regular steps.

        Args:
            fvals: The loss.

        Returns:
            Whether to stop instead of taking the step.
        """
        step, curve = len(self.curve.loss), self.curve
        if step % self.validation_every == 0:
            self._validate()
        if sum(each > curve.best_step for each in curve.validation_steps) >= self.options.patience:
            return True
        curve.loss.append(float(fvals))
        next(self.bar, None)
        if not math.isfinite(curve.loss[-1]):
            logger.info("The loss is not finite, so step %d is skipped.", step)
            limit = _MAX_SKIPPED if self.is_adam else 1
            last = curve.loss[-limit:]
            if len(last) == limit and not any(map(math.isfinite, last)):
                raise ModelFittingError(
                    f"The loss of pre-training is not finite after {step} steps, because a "
                    "covariance matrix is not positive definite. Check the source data for extreme "
                    "scales, or use a larger noise= or a smaller learning_rate=."
                )
        return False

    @torch.no_grad()
    def _validate(self) -> None:
        step, curve = len(self.curve.loss), self.curve
        if self.validation is None or curve.validation_steps[-1:] == [step]:
            return
        values = torch.cat(list(self.validation.of_tasks(self.parts)))
        loss = float(values.mean())
        curve.validation_steps.append(step)
        curve.validation_loss.append(loss)
        finite = [value for value in curve.validation_loss if math.isfinite(value)]
        if loss == min(finite, default=math.nan):
            curve.best_step = step


# ----------------------------------------------------------------------------- held-out tasks


def fit_with_early_stopping(
    parts: GPParts,
    tasks: PaddedTasks,
    share: float,
    loss: Callable[[PaddedTasks], SourceLoss],
    options: PretrainingOptions,
) -> LearningCurve:
    """Chooses the number of steps on held-out tasks, then trains on all tasks.

    Args:
        parts: The GP, changed in place.
        tasks: The source tasks.
        share: The share of tasks that the first run holds out.
        loss: A function that builds the loss of some tasks.
        options: How to optimize.

    Returns:
        The training losses of the second run, and the validation losses of the first run.

    Raises:
        InputDataError: If there are too few tasks to hold one out.
        ModelFittingError: If the loss is repeatedly not finite.
    """
    kept, held_out = split(len(tasks.X), share, options.seed)
    validation = TaskNLL(tasks[held_out])
    trial = GradientFit(deepcopy(parts), loss(tasks[kept]), validation, options).run()
    curve = GradientFit(parts, loss(tasks), None, options, trial.best_step).run()
    return replace(trial, loss=curve.loss, best_step=curve.best_step)


def split(num_tasks: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Draws tasks to hold out.

    Args:
        num_tasks: The number of tasks.
        share: The share to hold out; at least one task is held out.
        seed: The seed.

    Returns:
        The indices of the kept tasks and of the held-out tasks, ascending.

    Raises:
        InputDataError: If fewer than two tasks are kept.
        ValueError: If the share does not lie between 0 and 1.

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
            "leave out hold_out=, and choose steps= instead."
        )
    order = torch.randperm(num_tasks, generator=torch.Generator().manual_seed(seed))
    return order[count:].sort().values, order[:count].sort().values
