"""Parameters as one vector: an optimizer's step costs by the tensor, not by the number.

A loss that is not evaluated again where it was evaluated last.

Adam on one vector.

Uniform sub-samples of tasks and points, one for each step of pre-training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.pretraining.tasks import PaddedTasks


class FlatParameters:
    """A vector whose pieces are a module's parameters, and one of their gradients.

    Args:
        parameters: Parameters of one dtype, on one device. Until :meth:`release` they are views of
            the vector: what changes it changes them, and the other way round. So it is with their
            gradients, which add up in ``gradient`` until that is set to zero.

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
        self.gradient = torch.zeros_like(self.vector)
        self.vector.grad = self.gradient
        sizes = [p.numel() for p in self.parameters]
        views = self.vector.detach().split(sizes), self.gradient.split(sizes)
        for parameter, piece, gradient in zip(self.parameters, *views, strict=True):
            parameter.data = piece.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)  # which backward passes add to

    def release(self) -> None:
        """Gives each parameter memory of its own again, and no gradient."""
        for parameter in self.parameters:
            parameter.grad = None
            parameter.data = parameter.detach().clone()


class RememberedLoss:
    """A loss with its gradient that remembers the points of one iteration of a line search.

    PyTorch's L-BFGS, called for one iteration at a time, begins each by an evaluation where the
    last one ended, which is half of all evaluations.

    Args:
        vector: What the loss depends on.
        evaluate: Sets the vector's gradient, and returns the loss.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([3.0]))
        >>> def evaluate():
        ...     print("evaluated")
        ...     x.grad = 2 * x.detach()
        ...     return x.detach().square().sum()
        >>> loss = RememberedLoss(x, evaluate)
        >>> loss(), loss(), x.grad
        evaluated
        (tensor(9.), tensor(9.), tensor([6.]))
    """

    def __init__(self, vector: Parameter, evaluate: Callable[[], Tensor]) -> None:
        self.vector = vector
        self._evaluate = evaluate
        self._known: list[tuple[Tensor, Tensor, Tensor]] = []

    def begin(self) -> None:
        """Begins an iteration: forgets all points but the present one."""
        self._known = [known for known in self._known if torch.equal(known[0], self.vector)]

    def __call__(self) -> Tensor:
        """Returns the loss, and sets the gradient."""
        for at, loss, gradient in self._known:
            if torch.equal(at, self.vector):
                assert self.vector.grad is not None
                self.vector.grad.copy_(gradient)
                return loss.clone()
        loss = self._evaluate()
        assert self.vector.grad is not None
        point = self.vector.detach().clone()
        self._known.append((point, loss.clone(), self.vector.grad.clone()))
        return loss


class VectorAdam:
    """The steps of :class:`torch.optim.Adam`, whose book-keeping takes longer than a small step.

    Args:
        vector: What is optimized.
        betas: The rates at which the moments of the gradient forget.
        eps: What keeps the denominator positive.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> adam = VectorAdam(x)
        >>> x.grad = torch.tensor([0.1, -4.0])
        >>> adam.step(learning_rate=0.5)
        >>> x.detach()
        tensor([ 2.5000, -1.5000])
    """

    def __init__(
        self, vector: Parameter, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.vector = vector
        self.betas, self.eps = betas, eps
        self.moments = torch.zeros_like(vector.detach()), torch.zeros_like(vector.detach())
        self.count = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Takes a step against the vector's gradient."""
        gradient, (first, second), (b1, b2) = self.vector.grad, self.moments, self.betas
        assert gradient is not None
        self.count += 1
        first.lerp_(gradient, 1 - b1)
        second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        unbiased = (second / (1 - b2**self.count)).clamp_min_(torch.finfo(second.dtype).tiny)
        # √v, which takes longer than the rest of the step where PyTorch calls upon MKL's threads.
        root = unbiased.rsqrt().mul_(unbiased).add_(self.eps)
        self.vector.addcdiv_(first, root, value=-learning_rate / (1 - b1**self.count))

    def state_dict(self) -> dict[str, Any]:
        """The state, as PyTorch's optimizers give it."""
        state = {"first": self.moments[0], "second": self.moments[1], "count": self.count}
        return {"state": {0: state}, "param_groups": []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state that :meth:`state_dict` gave."""
        state: dict[str, Any] = state_dict["state"].get(0, {"count": 0})
        self.count = state["count"]
        for own, name in zip(self.moments, ("first", "second"), strict=True):
            saved: Tensor | float = state.get(name, 0.0)
            own.copy_(torch.as_tensor(saved))


BLOCK_ELEMENTS = 2**17
"""Random numbers that are drawn at once: for several steps, because drawing costs by the call."""


class Batch(NamedTuple):
    """What a step sees of some tasks.

    Args:
        X: A ``T x B x d`` tensor of inputs.
        Y: A ``T x B`` tensor of outcomes.
        mask: A ``T x B`` boolean tensor, ``False`` for padding; ``None`` if there is none.
        known_noise: A ``T x B`` tensor of known noise variances, NaN for tasks whose noise is
            inferred; ``None`` if all are.
    """

    X: Tensor
    Y: Tensor
    mask: Tensor | None
    known_noise: Tensor | None


class RandomBatches:
    """Fresh uniform samples without repetitions, the same for a step whenever it is asked for.

    Args:
        tasks: The padded tasks.
        batch_size: The number of points of a task in a batch; all of a task that has fewer.
        task_batch_size: The number of tasks in a batch.
        seed: The seed.
    """

    def __init__(
        self, tasks: PaddedTasks, batch_size: int, task_batch_size: int, seed: int
    ) -> None:
        self.tasks, self.seed = tasks, seed
        sizes: list[int] = tasks.num_points.tolist()
        self.batch_size = min(batch_size, max(sizes))
        self.task_batch_size = min(task_batch_size, len(sizes))
        self.any_padding = min(sizes) < max(sizes)
        self.every_batch_is_full = min(sizes) >= self.batch_size
        self.any_known_noise = bool(tasks.fixed_noise.any())
        self.block_size = max(1, BLOCK_ELEMENTS // (self.task_batch_size * max(sizes)))
        self.block: int | None = None

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step."""
        block, place = divmod(step, self.block_size)
        if block != self.block:
            self.block, self.drawn = block, self._draw(block)
        X, Y, *others = self.drawn
        mask, noise = (None if other is None else other[place] for other in others)
        return Batch(X[place], Y[place], mask, noise)

    def _draw(self, block: int) -> Batch:
        """Draws the batches of a block of steps, in a further dimension in front."""
        tasks, (M, N) = self.tasks, self.tasks.mask.shape
        S, T, device = self.block_size, self.task_batch_size, tasks.X.device
        generator = torch.Generator(device).manual_seed(_seed(self.seed, block))

        def keys(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        # The largest of random keys are a uniform sample without repetitions.
        chosen = torch.arange(M, device=device).expand(S, M)
        if T < M:
            chosen = keys(S, M).topk(T, dim=-1, sorted=False).indices
        of_points = keys(S, T, N)
        if self.any_padding:
            of_points = torch.where(tasks.mask[chosen], of_points, of_points - 1.0)
        points = of_points.topk(self.batch_size, dim=-1, sorted=False).indices
        at = chosen.unsqueeze(-1), points
        mask = None if self.every_batch_is_full else tasks.mask[at]
        noise = None
        if self.any_known_noise:
            noise = tasks.Yvar[at].masked_fill(~tasks.fixed_noise[at[0]], math.nan)
        return Batch(tasks.X[at], tasks.Y[at], mask, noise)


def _seed(seed: int, block: int) -> int:
    """A seed of its own for each block of each run."""
    words = np.random.SeedSequence((seed % 2**64, block)).generate_state(1, np.uint64)
    return int(words[0]) % 2**63
