"""How well a hyperprior predicts whole tasks: the papers' second metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from botorch_transfer.data import SourceData, as_datasets
from botorch_transfer.pretraining.hyperprior import Hyperprior
from botorch_transfer.pretraining.importance import log_likelihoods


def hierarchical_negative_log_likelihood(
    hyperprior: Hyperprior,
    tasks: Sequence[SourceData] | Mapping[str, SourceData],
    context: Tensor | None = None,
    num_samples: int = 500,
    seed: int = 0,
) -> Tensor:
    r"""Estimates ``-log p(D)`` of tasks under the hierarchical GP that a hyperprior makes.

    It is ``-log mean_q p(D | θ_q)`` over draws ``θ_q`` of the hyperprior: Eq. 2 of
    [Fan2022hyperboplus]_, without its second factor ``p(θ_q)``, which counts the hyperprior twice.

    Args:
        hyperprior: The hyperprior.
        tasks: The tasks, each ``D`` a ``SupervisedDataset`` or tensors ``X`` (``n x d``, in the
            unit cube), ``Y`` (``n x 1``) and maybe ``Yvar``; outcomes in the hyperprior's units,
            that is standardized unless it speaks in raw ones.
        context: A ``d x s`` tensor that describes the inputs.
        num_samples: The number of draws, the same for all tasks.
        seed: Their seed.

    Returns:
        A tensor with the value of each task, in double precision.

    Raises:
        InputDataError: If the tasks are unfit; the message names the task.
        ValueError: If there are no draws.

    Example:
        >>> from gpytorch.priors import GammaPrior, NormalPrior
        >>> positive = GammaPrior(2.0, 4.0)
        >>> constant = NormalPrior(0.0, 1.0)
        >>> hyperprior = Hyperprior.specified(constant, positive, positive, positive)
        >>> X = torch.rand(10, 3, dtype=torch.double)
        >>> task = (X, X.sum(-1, keepdim=True) - 1.5)
        >>> hierarchical_negative_log_likelihood(hyperprior, [task]).shape
        torch.Size([1])
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} must be positive.")
    datasets = as_datasets(tasks)
    draws = hyperprior.sample(num_samples, datasets[0].X.shape[-1], context, seed)
    values = []
    for data in datasets:
        Yvar = None if data.Yvar is None else data.Yvar.squeeze(-1)
        found = log_likelihoods(draws, data.X, data.Y.squeeze(-1), Yvar, hyperprior.kernel)
        values.append(math.log(num_samples) - found.logsumexp(dim=0))
    return torch.stack(values)
