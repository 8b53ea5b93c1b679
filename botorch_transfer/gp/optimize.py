"""Optimizers of pre-training: Adam on sub-samples, and L-BFGS on all points.

Read this to see how a loss is minimized, whatever the loss. PyTorch's optimizers take the steps.
This module has the loops around them, which also handle losses that are not finite, the sub-samples
that a step of Adam sees, and the flat parameter vector that makes a step cheap. Small fits need two
settings: SciPy's BLAS on one thread, and an allocator that keeps freed memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.gp.tasks import PaddedTasks

# ----------------------------------------------------------------------------------- settings

_in_force = Lock()


@contextmanager
def single_threaded_scipy() -> Iterator[None]:
    """Limits SciPy's BLAS to one thread, for the whole process.

    A step of L-BFGS-B works on a dozen numbers, where more threads only wait for each other. If
    fits overlap, only the first one sets and resets the limit: if each restored what it had found,
    the process could be left with one thread for good.
    """
    if not _in_force.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _in_force.release()


@cache
def _libraries() -> ThreadpoolController:
    """The libraries with threads. They are looked for once, which takes milliseconds."""
    return ThreadpoolController()


def keep_freed_memory() -> None:
    """Makes the allocator keep freed memory for the next evaluation.

    The C library returns large freed blocks to the system, and each new block then costs page
    faults, a third of the time of a fit. It stops doing so once a block of 32 MiB was freed.
    Settings by ``MALLOC_...`` in the environment, as in dask's workers, stay in force.

    Example:
        >>> keep_freed_memory()
    """
    torch.empty(2**22 - 2**10, dtype=torch.double)


# ------------------------------------------------------------------------------------- loops

_UNDEFINED = 1e10
"""Stands for a loss that is not finite in a line search."""

_LBFGS_TOLERANCE = 1e-9
"""L-BFGS stops when an iteration changes the loss by less than this, relative to ``1 + |loss|``."""


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


_UNDEFINED_IN_BATCH = 1e100
"""Stands for a value that is not a number in :func:`minimize_batched`; outcomes that were not
standardized have large values, which are no reason to stop."""


def minimize_batched(
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    starts: Tensor,
    bounds: Tensor,
    max_iter: int,
    gradient_tolerance: float = 1e-5,
    callback: Callable[[npt.NDArray[np.float64]], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Minimizes many functions of a few parameters at once, by BoTorch's batched L-BFGS-B.

    Args:
        evaluate: Gets a ``P x k`` tensor of parameters and a ``P`` tensor that says which start
            each row comes from. Returns the ``P`` values and their ``P x k`` gradient. Where either
            is NaN, the line search turns back. Rows that converged are no longer evaluated.
        starts: An ``S x k`` tensor in double precision, on the device to evaluate on.
        bounds: A ``2 x k`` tensor of lower and upper bounds.
        max_iter: The most iterations of each start.
        gradient_tolerance: A start has converged where no element of the projected gradient is
            larger.
        callback: Called with the parameters after each iteration of each start; ends that start by
            raising ``StopIteration``.

    Returns:
        The parameters where each start ended and the values there, an ``S x k`` and an ``S`` tensor
        on the CPU. The value is infinite where the function is not defined at the start.

    Example:
        >>> def parabolas(x, rows):
        ...     return (x - rows.unsqueeze(-1)).square().sum(-1), 2 * (x - rows.unsqueeze(-1))
        >>> bounds = torch.tensor([[-10.0], [1.5]])
        >>> x, value = minimize_batched(parabolas, torch.zeros(3, 1).double(), bounds, max_iter=9)
        >>> x.flatten(), value
        (tensor([0.0000, 1.0000, 1.5000]...), tensor([0.0000, 0.0000, 0.2500]...))
    """

    def on_arrays(
        x: npt.NDArray[np.float64], batch_indices: list[int]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        rows = torch.as_tensor(batch_indices, device=starts.device)
        value, gradient = evaluate(torch.from_numpy(x).to(starts), rows)
        packed = torch.column_stack([value, gradient]).cpu().numpy()
        packed[np.isnan(packed).any(axis=-1)] = [_UNDEFINED_IN_BATCH, *[0.0] * x.shape[-1]]
        return packed[:, 0], packed[:, 1:]

    x, found, _ = fmin_l_bfgs_b_batched(
        on_arrays,
        starts.cpu().numpy(),
        bounds=bounds.T.tolist(),
        maxiter=max_iter,
        pgtol=gradient_tolerance,
        callback=callback,
        pass_batch_indices=True,
    )
    value = torch.from_numpy(found)
    return torch.from_numpy(x), value.masked_fill(value >= _UNDEFINED_IN_BATCH, math.inf)


# -------------------------------------------------------------------------- flat parameters


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


# ------------------------------------------------------------------------------- sub-samples

BLOCK_ELEMENTS = 2**17
"""Random numbers drawn at once, for several steps together: each draw has a fixed cost."""


class RandomBatches:
    """Uniform sub-samples of tasks and of their points, without replacement, one for each step.

    A step's sub-sample depends on nothing but the seed and the number of the step, so that an
    interrupted run goes on with the sub-samples that it would have had.

    Args:
        tasks: The padded tasks.
        batch_size: The number of points of a task in a batch; all of a task that has fewer.
        task_batch_size: The number of tasks in a batch; all by default.
        seed: The seed.

    Example:
        >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
        >>> tasks = PaddedTasks(X, X.sum(-1), 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> batches = RandomBatches(tasks, batch_size=4, task_batch_size=2)
        >>> batches[0].X.shape, torch.equal(batches[0].X, batches[1].X)
        (torch.Size([2, 4, 2]), False)
    """

    def __init__(
        self,
        tasks: PaddedTasks,
        batch_size: int,
        task_batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.tasks, self.seed = tasks, seed
        sizes: list[int] = tasks.num_points.tolist()
        self.batch_size = min(batch_size, max(sizes))
        self.task_batch_size = min(task_batch_size or len(sizes), len(sizes))
        self.is_padded = min(sizes) < self.batch_size
        self.block_size = max(1, BLOCK_ELEMENTS // (self.task_batch_size * max(sizes)))
        self._block: int | None = None

    def __getitem__(self, step: int) -> PaddedTasks:
        """The batch of a step: ``T`` tasks with ``B`` points each."""
        block, place = divmod(step, self.block_size)
        if block != self._block:
            self._block, self._drawn = block, self._draw(block)
        return PaddedTasks(*(part[place] for part in self._drawn))

    def _draw(self, block: int) -> list[Tensor]:
        """Draws the fields of the batches of a block of steps, with the steps in front."""
        tasks, (M, N) = self.tasks, self.tasks.mask.shape
        S, T, device = self.block_size, self.task_batch_size, tasks.X.device
        # A seed of its own for each block of each run.
        words = np.random.SeedSequence((self.seed % 2**64, block)).generate_state(1, np.uint64)
        generator = torch.Generator(device).manual_seed(int(words[0]) % 2**63)

        def keys(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        # The largest of random keys are a uniform sample without replacement.
        chosen = torch.arange(M, device=device).expand(S, M)
        if T < M:
            chosen = keys(S, M).topk(T, dim=-1, sorted=False).indices
        ranks = keys(S, T, N)
        if tasks.is_ragged:
            ranks = torch.where(tasks.mask[chosen], ranks, ranks - 1.0)
        points = ranks.topk(self.batch_size, dim=-1, sorted=False).indices
        at = chosen.unsqueeze(-1), points
        of_points = tasks.X, tasks.Y, tasks.Yvar, tasks.mask
        return [*(part[at] for part in of_points), tasks.fixed_noise[chosen]]
