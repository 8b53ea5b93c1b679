"""Several outcomes: one transfer model for each, in BoTorch's list of models.

Read this for multi-objective and constrained optimization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

from botorch.exceptions.errors import InputDataError
from botorch.models import ModelListGP
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.arguments import check_options
from botorch_transfer.average.transfer import TransferGP
from botorch_transfer.data import SourceData, task_names
from botorch_transfer.model import TransferModel


def transfer_models(
    train_X: Tensor,
    train_Y: Tensor,
    sources: Sequence[SourceData] | Mapping[str, SourceData],
    train_Yvar: Tensor | None = None,
    model_class: Callable[..., TransferModel] = TransferGP,
    **options: Any,
) -> ModelListGP:
    """Builds one transfer model for each outcome, objectives and constraints alike.

    Use the result as the ``ModelListGP`` of ``SingleTaskGP`` models in BoTorch's multi-objective
    and constrained loops. Each outcome is learned from the same outcome of the source tasks;
    pre-training is remembered, so that the next step of a loop only builds the models anew.

    Args:
        train_X: An ``n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: An ``n x m`` tensor of target outcomes.
        sources: The source tasks, a sequence or a mapping from names: each a
            ``SupervisedDataset``, ``(X, Y)`` or ``(X, Y, Yvar)`` with ``n_i x m`` tensors of the
            same outcomes in the same order.
        train_Yvar: An ``n x m`` tensor of known noise variances; inferred if omitted.
        model_class: The class of the models.
        **options: Further arguments of each model, for instance ``input_transform``.

    Returns:
        The list of ``m`` models. Fit it with
        ``fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models))``.

    Raises:
        InputDataError: If a source task has another number of outcomes than the target, or the
            data are invalid; the message names the task.
        ValueError: If the models have no such option.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"monday": (X, torch.cat([X.sum(-1, keepdim=True), X.sin()], dim=-1))}
        >>> train_X = torch.rand(3, 2, dtype=torch.double)
        >>> models = transfer_models(train_X, torch.rand(3, 3, dtype=torch.double), history)
        >>> models.posterior(X).mean.shape
        torch.Size([20, 3])
    """
    check_options(model_class, options)
    names, m = task_names(sources), train_Y.shape[-1]
    given = sources.values() if isinstance(sources, Mapping) else sources
    tasks = [_tensors(name, task, m) for name, task in zip(names, given, strict=True)]
    models = []
    for column in range(m):
        which = slice(column, column + 1)
        history = {
            name: (X, *(outcome[..., which] for outcome in outcomes))
            for name, (X, *outcomes) in zip(names, tasks, strict=True)
        }
        noise = None if train_Yvar is None else train_Yvar[..., which]
        own = deepcopy(options)
        models.append(model_class(train_X, train_Y[..., which], history, train_Yvar=noise, **own))
    return ModelListGP(*cast(Any, models))


def _tensors(name: str, task: SourceData, num_outcomes: int) -> tuple[Tensor, ...]:
    """A task's inputs, outcomes and maybe noise variances, with as many outcomes as the target."""
    if isinstance(task, SupervisedDataset):
        task = (task.X, task.Y) if task.Yvar is None else (task.X, task.Y, task.Yvar)
    for part in task[1:]:
        if part.shape[-1] != num_outcomes:
            raise InputDataError(
                f"Task {name!r} has {part.shape[-1]} outcomes, but train_Y has {num_outcomes}: "
                "give the same outcomes in the same order for all tasks."
            )
    return task
