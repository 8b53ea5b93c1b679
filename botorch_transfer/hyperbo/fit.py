"""Pre-training runs: options, optimization, early stopping, held-out tasks.

Read this to see how a pre-trained prior is optimized: Adam on sub-samples or L-BFGS on all points,
with validation tasks that end a run early and checkpoints that an interrupted one goes on from. A
checkpoint is read by ``torch.load(weights_only=True)``, which runs no code.

PyTorch's optimizers take the steps. The loops around them also handle losses that are not finite,
and the flat parameter vector makes a step cheap.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import torch
from botorch.exceptions.errors import InputDataError, ModelFittingError
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.gp.objective import keep_freed_memory
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.hyperbo.features import GPParts
from botorch_transfer.hyperbo.objectives import SourceLoss, TaskNLL
from botorch_transfer.progress import track
from botorch_transfer.saving import replaced_when_complete

logger = logging.getLogger(__name__)

_MAX_SKIPPED = 20
"""A run of Adam fails after this many steps in a row without a finite loss."""

_UNDEFINED = 1e10
"""Stands for a loss that is not finite in a line search."""

_LBFGS_TOLERANCE = 1e-9
"""L-BFGS stops when an iteration changes the loss by less than this, relative to ``1 + |loss|``."""


@dataclass(frozen=True)
class PretrainingOptions:
    """How pre-training optimizes.

    Args:
        optimizer: ``"adam"`` or ``"lbfgs"``. By default, as in the paper, Adam on sub-samples if
            the objective has an NLL, and L-BFGS for the EKL alone.
        steps: The number of steps of Adam (3,000 by default) or iterations of L-BFGS (100 by
            default).
        learning_rate: Adam's learning rate at the start.
        decay: Whether the learning rate falls to zero along a cosine. The paper's settings are
            ``steps=50_000, learning_rate=1e-3, decay=False``.
        batch_size: The number of points of each task that a step of Adam sees, a new uniform
            sample each time; all points of a task that has fewer.
        task_batch_size: The number of tasks that a step of Adam sees, a new uniform sample too.
        validation_every: The number of steps between evaluations of the validation loss; by
            default a fiftieth of all steps.
        patience: The number of such evaluations without progress after which the run stops.
        seed: The seed of the samples.
        progress: ``True`` for a progress bar over the steps, ``False`` for none. By default there
            is one on a terminal if it takes more than three seconds, which the log says, too.
        checkpoint: A file for checkpoints. If it holds the checkpoint of an interrupted run, the
            run resumes from it, with bitwise identical results.
        checkpoint_every: The number of steps between checkpoints; by default a twentieth of all
            steps. One more is written at the end.

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
        """The options that the result depends on."""
        how = ("progress", "checkpoint", "checkpoint_every")
        return tuple(getattr(self, part.name) for part in fields(self) if part.name not in how)


@dataclass
class LearningCurve:
    """The losses of a run of pre-training.

    Args:
        loss: The training loss before each step. With Adam it is that of a sub-sample. NaN for a
            step that was skipped.
        validation_steps: The numbers of steps after which the validation loss was computed.
        validation_loss: The mean NLL of the validation tasks at these times.
        best_step: The number of steps with the lowest validation loss; without one, all.

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
    """One run of pre-training.

    Args:
        parts: The GP, changed in place.
        loss: The loss on the source tasks.
        validation: The NLL of tasks that are held out, if there are any.
        options: How to optimize.
        key: What identifies the run, for its checkpoint.
        stop: The number of steps to stop after. The learning rate still decays over all steps.
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
        self.optimizer: torch.optim.Adam | torch.optim.LBFGS
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
        self.step = 0

    def run(self) -> LearningCurve:
        """Runs to the end, or until the validation loss no longer falls.

        Returns:
            The losses.

        Raises:
            ModelFittingError: If the loss is repeatedly not finite.
            ValueError: If there is a checkpoint of another run.
        """
        keep_freed_memory()
        if self.parameters and not self._resume():
            if self.step == 0:
                self._validate()
            steps = self.stop - self.step
            for loss in track(self._losses(), "pre-training", steps, self.options.progress):
                self._note(loss)
                curve = self.curve
                waited = sum(step > curve.best_step for step in curve.validation_steps)
                if waited >= self.options.patience:
                    break
                if self.step % self.checkpoint_every == 0:
                    self._write(finished=False)
            self._validate()
            self._write(finished=True)
        self.flat.release()
        return self.curve

    def _losses(self) -> Iterator[float]:
        """Takes the remaining steps, and yields the loss before each."""
        if isinstance(self.optimizer, torch.optim.Adam):
            sampled, steps = partial(self.loss.sampled, self.parts), range(self.step, self.stop)
            return adam_steps(self.optimizer, sampled, steps, self._learning_rate)
        previous = self.curve.loss[-1] if self.curve.loss else math.inf
        losses = lbfgs_steps(self.optimizer, partial(self.loss.full, self.parts), previous)
        return islice(losses, self.stop - self.step)

    def _learning_rate(self, step: int) -> float:
        if not self.options.decay:
            return self.options.learning_rate
        return 0.5 * self.options.learning_rate * (1 + math.cos(math.pi * step / self.num_steps))

    def _note(self, loss: float) -> None:
        """Records a step, and evaluates the validation loss when it is due."""
        self.curve.loss.append(loss)
        if not math.isfinite(loss):
            logger.info("Step %d is skipped: the loss is not finite.", self.step)
            limit = _MAX_SKIPPED if isinstance(self.optimizer, torch.optim.Adam) else 1
            last = self.curve.loss[-limit:]
            if len(last) == limit and not any(map(math.isfinite, last)):
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
        if loss == min(finite, default=math.nan):
            self.curve.best_step = self.step

    def _write(self, finished: bool) -> None:
        if self.options.checkpoint is None:
            return
        state = {
            "step": self.step,
            "parameters": {n: p.detach() for n, p in self.parameters.items()},
            "optimizer": self.optimizer.state_dict()["state"],
            "curve": vars(self.curve),
            "finished": finished,
        }
        write_checkpoint(self.options.checkpoint, self.key, state)

    def _resume(self) -> bool:
        """Restores the state of an earlier run; returns whether it had finished."""
        path = self.options.checkpoint
        if path is None or not Path(path).exists():
            return False
        state = read_checkpoint(path, self.key)
        self.step = state["step"]
        self.curve = LearningCurve(**state["curve"])
        logger.info("Pre-training goes on after %d steps.", self.step)
        self.parts.load_state_dict(state["parameters"], strict=False)
        own = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**own, "state": state["optimizer"]})
        return bool(state["finished"])


# -------------------------------------------------------------------------------------------- loops


def adam_steps(
    optimizer: torch.optim.Adam,
    evaluate: Callable[[int], Tensor],
    steps: range,
    learning_rate: Callable[[int], float] | None = None,
) -> Iterator[float]:
    """Minimizes a loss by Adam, one step for each item.

    Use ``torch.optim.Adam([vector], fused=True)``: a step costs by the tensor, so a small model
    trains fastest as one vector, see :class:`FlatParameters`.

    Args:
        optimizer: The optimizer of one vector.
        evaluate: Gets the number of a step. Adds the gradient to the vector's ``grad``, which is
            zero, and returns the loss, a tensor with one element.
        steps: The numbers of the steps.
        learning_rate: The learning rate of a step; the optimizer's own if omitted.

    Yields:
        The loss before each step, once the step is done. NaN if loss or gradient are not finite:
        the step is then skipped, so that one bad sub-sample does no harm.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([3.0]))
        >>> def evaluate(step):
        ...     loss = x.square().sum()
        ...     loss.backward()
        ...     return loss
        >>> adam = torch.optim.Adam([x], lr=0.5, fused=True)
        >>> list(adam_steps(adam, evaluate, range(3)))
        [9.0, 6.25, 4.0...]
    """
    group = optimizer.param_groups[0]
    (vector,) = group["params"]
    for step in steps:
        if learning_rate is not None:
            group["lr"] = learning_rate(step)
        loss = _value_and_gradient(vector, partial(evaluate, step))
        if math.isfinite(loss):
            optimizer.step()
        yield loss


def lbfgs_steps(
    optimizer: torch.optim.LBFGS, evaluate: Callable[[], Tensor], previous: float = math.inf
) -> Iterator[float]:
    """Minimizes a loss by L-BFGS until it no longer falls, one iteration for each item.

    PyTorch's L-BFGS, and not SciPy's: its state can be saved after any iteration, so that an
    interrupted run ends at the same numbers.

    Args:
        optimizer: The optimizer of one vector, with ``max_iter=1`` and a line search.
        evaluate: Adds the gradient to the vector's ``grad``, which is zero, and returns the loss.
        previous: The last loss of the run that this one goes on with.

    Yields:
        The loss before each iteration, once the iteration is done; NaN if it is not finite.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([3.0]))
        >>> def evaluate():
        ...     loss = x.square().sum()
        ...     loss.backward()
        ...     return loss
        >>> lbfgs = torch.optim.LBFGS([x], max_iter=1, line_search_fn="strong_wolfe")
        >>> list(lbfgs_steps(lbfgs, evaluate))[0]
        9.0
    """
    (vector,) = optimizer.param_groups[0]["params"]

    known: list[tuple[Tensor, Tensor, Tensor]] = []

    def closure() -> Tensor:
        for point, value, gradient in known:
            if torch.equal(point, vector):
                vector.grad.copy_(gradient)
                return value
        loss = _value_and_gradient(vector, evaluate)
        if math.isnan(loss):
            loss = _UNDEFINED
            vector.grad.zero_()
        known.append((vector.detach().clone(), vector.new_tensor(loss), vector.grad.clone()))
        return known[-1][1]

    while True:
        before = vector.detach().clone()
        # PyTorch evaluates the point again that the last iteration ended at. Remembering it saves
        # half of all evaluations.
        known = [each for each in known if torch.equal(each[0], before)]
        loss = float(optimizer.step(closure))
        yield math.nan if loss == _UNDEFINED else loss
        # An iteration that did not move the vector would be repeated for ever.
        if torch.equal(before, vector) or abs(previous - loss) <= _LBFGS_TOLERANCE * (
            1 + abs(loss)
        ):
            return
        previous = loss


def _value_and_gradient(vector: Parameter, evaluate: Callable[[], Tensor]) -> float:
    """The loss, with the gradient in ``vector.grad``; NaN if either is not finite."""
    if vector.grad is None:
        vector.grad = torch.zeros_like(vector)
    vector.grad.zero_()
    loss = evaluate().detach().reshape(())
    # Read together: the CPU waits for a GPU once.
    value, slope = torch.stack([loss, vector.grad.sum()]).tolist()
    return value if math.isfinite(value + slope) else math.nan


class FlatParameters:
    """One vector that holds all parameters of a module, and one that holds their gradients.

    Args:
        parameters: Parameters of one dtype, on one device. Until :meth:`release` they are views of
            ``vector``, so that whatever changes one changes the other. Their gradients are views
            of ``vector.grad``; backward passes add to it until somebody sets it to zero.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> flat = FlatParameters(layer.parameters())
        >>> flat.vector.data.fill_(7.0).shape
        torch.Size([3])
        >>> layer.weight.tolist(), layer.bias.tolist()
        ([[7.0, 7.0]], [7.0])
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self.parameters = list(parameters)
        pieces = [p.detach().flatten() for p in self.parameters]
        self.vector = Parameter(torch.cat(pieces) if pieces else torch.empty(0))
        self.vector.grad = torch.zeros_like(self.vector)
        sizes = [p.numel() for p in self.parameters]
        views = self.vector.detach().split(sizes), self.vector.grad.split(sizes)
        for parameter, piece, gradient in zip(self.parameters, *views, strict=True):
            parameter.data = piece.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)

    def release(self) -> None:
        """Gives each parameter memory of its own again, and no gradient."""
        for parameter in self.parameters:
            parameter.grad = None
            parameter.data = parameter.detach().clone()


# -------------------------------------------------------------------------------------- checkpoints


def write_checkpoint(path: str | os.PathLike[str], key: str, state: dict[str, Any]) -> None:
    """Writes a checkpoint; an older one is replaced once the new one is complete.

    Args:
        path: Where to write.
        key: What identifies the run: data, starting values and options.
        state: Everything that the remaining steps depend on.

    Raises:
        FileNotFoundError: If there is no such folder.
    """
    with replaced_when_complete(path) as unfinished:
        torch.save({"key": key, "state": state}, unfinished)


def read_checkpoint(path: str | os.PathLike[str], key: str) -> dict[str, Any]:
    """Reads a checkpoint.

    Args:
        path: The file.
        key: What identifies the run.

    Returns:
        The state, on the CPU.

    Raises:
        ValueError: If the file is damaged, or is the checkpoint of another run.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        found, state = saved["key"], saved["state"]
    except (EOFError, RuntimeError, pickle.UnpicklingError, KeyError, TypeError) as error:
        raise ValueError(f"The checkpoint {str(path)!r} is damaged: delete it.") from error
    if found != key:
        raise ValueError(
            f"{str(path)!r} is the checkpoint of a run with other source data, starting values or "
            "options: delete it, or give another file."
        )
    return cast(dict[str, Any], state)


# ----------------------------------------------------------------------------- held-out tasks


def fit_as_long_as_it_helps(
    parts: GPParts,
    tasks: PaddedTasks,
    share: float,
    loss: Callable[[PaddedTasks], SourceLoss],
    options: PretrainingOptions,
    key: str,
) -> LearningCurve:
    """Finds the best number of steps with some tasks held out, then trains on all tasks.

    Args:
        parts: The GP, changed in place.
        tasks: The source tasks.
        share: The share of tasks to hold out while the number of steps is determined.
        loss: Builds the loss of tasks.
        options: How to optimize.
        key: What identifies the run, for its checkpoints.

    Returns:
        The training losses of the second run, and the validation losses of the first one.

    Raises:
        InputDataError: If there are too few tasks to hold one out.
        ModelFittingError: If the loss is repeatedly not finite.
        ValueError: If there is a checkpoint of another run.
    """
    kept, held_out = split(len(tasks.X), share, options.seed)
    beside = None if options.checkpoint is None else f"{options.checkpoint}.held-out"
    trial = GradientFit(
        deepcopy(parts),
        loss(tasks[kept]),
        TaskNLL(tasks[held_out]),
        replace(options, checkpoint=beside),
        f"{key}-held-out",
    ).run()
    curve = GradientFit(parts, loss(tasks), None, options, key, trial.best_step).run()
    return replace(trial, loss=curve.loss, best_step=curve.best_step)


def split(num_tasks: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Draws tasks to hold out.

    Args:
        num_tasks: The number of tasks.
        share: The share to hold out; at least one task is held out.
        seed: The seed.

    Returns:
        The numbers of the tasks that are kept and of those held out, in order.

    Raises:
        InputDataError: If this leaves fewer than two tasks.
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
            "leave it out, and choose the number of steps."
        )
    order = torch.randperm(num_tasks, generator=torch.Generator().manual_seed(seed))
    return order[count:].sort().values, order[:count].sort().values
