"""Ordering source tasks by how much they agree with each other."""

from __future__ import annotations

import torch
from scipy.stats import rankdata
from torch import Tensor

from botorch_transfer.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.kernels.conditioned import ConditionedGPs
from botorch_transfer.pretraining.map_fit import MAPOptions, fit_map
from botorch_transfer.pretraining.padding import PaddedTasks

MAX_POINTS = 1000


def order_by_relatedness(tasks: PaddedTasks, kernel: str, options: MAPOptions) -> Tensor:
    """Orders tasks so that the one that agrees most with the others comes last.

    Each task's GP predicts the outcomes at the inputs of all tasks (at most ``MAX_POINTS`` of them,
    evenly thinned out). Tasks are sorted by the mean rank correlation (Spearman's) of their
    predictions with those of the other tasks. In a hierarchy the last task is the target's
    neighbour, and a task that is like most others is the likeliest to be like the target.

    Args:
        tasks: The standardized tasks.
        kernel: The stationary kernel's name.
        options: How to fit the GPs.

    Returns:
        An ``M`` tensor of task indices, least related first; ties keep their order.
    """
    num_tasks = len(tasks.X)
    if num_tasks < 3:
        # Two tasks agree with each other equally.
        return torch.arange(num_tasks, device=tasks.X.device)
    result = fit_map(tasks, kernel, SOURCE_HYPERPARAMETERS, options)
    gps = ConditionedGPs(
        train_X=tasks.X,
        train_Y=tasks.Y,
        mask=tasks.mask,
        lengthscale=result.lengthscale.to(tasks.X),
        outputscale=result.outputscale.to(tasks.X),
        noise=tasks.known_or(result.noise),
        kernel=kernel,
    )
    points = tasks.X[tasks.mask]
    points = points[:: -(-len(points) // MAX_POINTS)]
    predictions = gps.mean(points)
    # Ranks of constant predictions are undefined: such a task agrees with none.
    varies = predictions.std(dim=-1) > 1e-12
    correlation = torch.zeros(num_tasks, num_tasks, dtype=torch.double)
    ranks = torch.as_tensor(rankdata(predictions[varies].cpu().numpy(), axis=1))
    index = varies.nonzero().flatten().cpu()
    correlation[index.unsqueeze(-1), index] = torch.atleast_2d(torch.corrcoef(ranks))
    agreement = correlation.sum(dim=-1) - correlation.diagonal()
    return torch.argsort(agreement, stable=True).to(tasks.X.device)
