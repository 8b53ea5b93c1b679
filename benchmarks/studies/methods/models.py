"""Builders of models from the target's evaluations and the problem's history."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from botorch.models import MultiTaskGP, SingleTaskGP
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.studies.methods.optimization import Build
from benchmarks.studies.problems import Problem
from botorch_transfer import HyperpriorGP, PretrainedGP, PretrainedPrior
from botorch_transfer.data import as_datasets
from botorch_transfer.data.tables import limit_task
from botorch_transfer.hyperbo.fit import Objective
from botorch_transfer.memo import Memo, content_key
from botorch_transfer.outcome_transforms import FEW_OUTCOMES, limit_outcomes, robust_limit
from botorch_transfer.suggestion.reading import typical_depth

#: Number of Adam steps; 50,000 steps as in the papers would take hours per task on a few cores.
PRETRAINING_STEPS = 500

_priors = Memo(size=64)


def plain_gp(X: Tensor, Y: Tensor, problem: Problem) -> SingleTaskGP:
    """Builds BoTorch's default model, which ignores the history."""
    return SingleTaskGP(X, Y)


def multi_task_gp(X: Tensor, Y: Tensor, problem: Problem) -> MultiTaskGP:
    """Builds BoTorch's multi-task model; the target is the last task, and needs a point.

    The model standardizes all outcomes together. So this function first gives each source task the
    mean and the standard deviation of the target.
    """
    sources = [(task.X, _like(Y, task.Y)) for task in as_datasets(problem.history)]
    rows = [pad(X, (0, 1), value=i) for i, (X, _) in enumerate([*sources, (X, Y)])]
    outcomes = torch.cat([*(Y for _, Y in sources), Y])
    return MultiTaskGP(torch.cat(rows), outcomes, task_feature=-1, output_tasks=[len(sources)])


def _like(target_Y: Tensor, Y: Tensor) -> Tensor:
    """Shifts and scales source outcomes to the target's mean and nonzero standard deviation."""
    scale = target_Y.std() if len(target_Y) > 1 else Y.new_zeros(())
    own = Y.std() if len(Y) > 1 else Y.new_zeros(())
    factor = scale / own if scale > 0 and own > 0 else 1.0
    return target_Y.mean() + factor * (Y - Y.mean())


def transfer(model_class: Callable[..., SingleTaskGP], **options: Any) -> Build:
    """Returns a builder of a transfer model on the raw history; pre-training is cached."""
    return partial(_of_history, model_class, options)


def _of_history(
    model_class: Callable[..., SingleTaskGP],
    options: Mapping[str, Any],
    X: Tensor,
    Y: Tensor,
    problem: Problem,
) -> SingleTaskGP:
    return model_class(X, Y, problem.history, **options)


def robust(build: Build) -> Build:
    """Returns a builder that first raises very bad outcomes to a limit, as `suggest` does."""
    return partial(_robust, build)


def _robust(build: Build, X: Tensor, Y: Tensor, problem: Problem) -> SingleTaskGP:
    tasks = as_datasets(problem.history)
    limited = (limit_task(task, by_rank=len(Y) < FEW_OUTCOMES) for task in tasks)
    history = dict(zip(problem.history, limited, strict=True))
    raised, _ = limit_outcomes(Y, robust_limit(Y, typical_depth(history)))
    return build(X, raised, replace(cast(Any, problem), history=history))


def learned_hyperprior(X: Tensor, Y: Tensor, problem: Problem) -> SingleTaskGP:
    """Builds MPHD with the history as its only domain."""
    return HyperpriorGP(X, Y, problem.history)


def pretrained(preset: str, objective: Objective) -> Build:
    """Returns a builder of HyperBO, FSBO or ABLR, with one pre-training for each history.

    Args:
        preset: The name of a constructor of `PretrainedPrior`.
        objective: The name of the pre-training objective.

    Returns:
        A function that builds the model.
    """
    return partial(_pretrained, preset, objective)


def _pretrained(
    preset: str, objective: Objective, X: Tensor, Y: Tensor, problem: Problem
) -> SingleTaskGP:
    # A top-level function, so that other processes can import it, each with its own cache.
    def fit() -> PretrainedPrior:
        prior = getattr(PretrainedPrior, preset)(problem.dim)
        options = {} if objective == "ekl" else {"steps": PRETRAINING_STEPS}
        return prior.fit(problem.history, objective, outcome_scale="per_task", **options)

    key = content_key(problem.history, preset, objective, PRETRAINING_STEPS)
    return PretrainedGP(X, Y, _priors.recall(key, fit))
