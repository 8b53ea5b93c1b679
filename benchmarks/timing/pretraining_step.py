"""Compares an Adam step of HyperBO's pre-training with the linear algebra that it needs."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.timing.measure import Row, Sizes, medians, readable
from benchmarks.timing.tasks import Task, random_tasks
from botorch_transfer import PretrainedPrior
from botorch_transfer.data import as_datasets
from botorch_transfer.gp.objective import keep_freed_memory
from botorch_transfer.gp.stationary import squared_distance, stationary_function
from botorch_transfer.gp.tasks import PaddedTasks, outcome_scales
from botorch_transfer.hyperbo.fit import GradientFit, SourceLoss
from botorch_transfer.pretraining import PretrainingOptions

SLOWDOWN = 3.0


def compare(sizes: Sizes) -> list[Row]:
    """Compares a whole Adam step with the linear algebra that every implementation needs."""
    tasks = random_tasks(sizes.num_pretraining_tasks, sizes.num_pretraining_points, sizes.dim)
    size = min(sizes.batch_size, sizes.num_pretraining_points)
    features = torch.rand(len(tasks), size, 32, dtype=torch.double)
    keep_freed_memory()  # like a run before its first step
    sides = {
        "algebra": repeated(partial(linear_algebra, features), sizes.steps_at_once),
        "step": adam_steps(sizes, tasks),
    }
    times, _ = medians(sides, 4 * sizes.repeats, sizes.clock)
    times = {name: time / sizes.steps_at_once for name, time in times.items()}
    ratio = times["step"] / times["algebra"]
    return [
        Row(
            what=(
                f"HyperBO pre-training, {len(tasks)} tasks × {sizes.num_pretraining_points} "
                f"points, batch {size}: one Adam step"
            ),
            target=f"≤ {SLOWDOWN:g} × its linear algebra alone",
            reached=f"{ratio:.1f} ×",
            met=ratio <= SLOWDOWN,
            detail=f"{readable(times['step'])}; linear algebra {readable(times['algebra'])}",
        )
    ]


def adam_steps(sizes: Sizes, tasks: Sequence[Task]) -> Callable[[int], object]:
    """Returns a function that takes some Adam steps of pre-training.

    Args:
        sizes: The number of points of each task in a step.
        tasks: The source tasks.

    Returns:
        A function that takes the steps.
    """
    options = PretrainingOptions(
        steps=sizes.steps_at_once, batch_size=sizes.batch_size, progress=False
    )
    padded = PaddedTasks.from_datasets(as_datasets(tasks)).double()
    padded = padded.standardize(*outcome_scales(padded, "pooled"))
    prior = PretrainedPrior.hyperbo(sizes.dim).to(padded.X.device)
    loss = SourceLoss(padded, options)
    parts = prior.gp(torch.Size([]), fit=True)
    return lambda _: GradientFit(parts, loss, None, options).run()


def repeated(function: Callable[[], object], times: int) -> Callable[[int], None]:
    """Returns a function that calls a short function several times."""

    def measured(_: int) -> None:
        for _ in range(times):
            function()

    return measured


def linear_algebra(features: Tensor) -> None:
    """Computes kernel matrices of features, their Cholesky factors, inverses and gradient products.

    A kernel matrix takes a product of features, and elementwise operations that turn squared
    distances into covariances.
    """
    zero = features.new_zeros(())
    r2 = squared_distance(features, features)
    covariance = stationary_function("matern52").value(r2, zero)
    covariance.diagonal(dim1=-2, dim2=-1).add_(0.1)
    root = torch.linalg.cholesky_ex(covariance)[0]
    inverse = torch.cholesky_inverse(root)
    inverse @ features
