"""How each model is built from a target's evaluations and a problem's history."""

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

#: Steps of Adam; the papers' 50,000 would take a study on a few cores hours a task.
PRETRAINING_STEPS = 500

_priors = Memo(size=64)


def plain_gp(X: Tensor, Y: Tensor, problem: Problem) -> SingleTaskGP:
    """BoTorch's default model, history ignored."""
    return SingleTaskGP(X, Y)


def multi_task_gp(X: Tensor, Y: Tensor, problem: Problem) -> MultiTaskGP:
    """BoTorch's model of several tasks, the target the last of them; it needs a target point.

    It standardizes all outcomes together; so each source task is brought to the target's mean and
    deviation first.
    """
    sources = [(task.X, _like(Y, task.Y)) for task in as_datasets(problem.history)]
    rows = [pad(X, (0, 1), value=i) for i, (X, _) in enumerate([*sources, (X, Y)])]
    outcomes = torch.cat([*(Y for _, Y in sources), Y])
    return MultiTaskGP(torch.cat(rows), outcomes, task_feature=-1, output_tasks=[len(sources)])


def _like(target_Y: Tensor, Y: Tensor) -> Tensor:
    """Outcomes of a source task with the target's mean and, if it has any, deviation."""
    scale = target_Y.std() if len(target_Y) > 1 else Y.new_zeros(())
    own = Y.std() if len(Y) > 1 else Y.new_zeros(())
    factor = scale / own if scale > 0 and own > 0 else 1.0
    return target_Y.mean() + factor * (Y - Y.mean())


def transfer(model_class: Callable[..., SingleTaskGP], **options: Any) -> Build:
    """A model class of the package, given the raw history; it pre-trains once a history."""
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
    """The same model with very bad outcomes limited, as `suggest` limits them."""
    return partial(_robust, build)


def _robust(build: Build, X: Tensor, Y: Tensor, problem: Problem) -> SingleTaskGP:
    tasks = as_datasets(problem.history)
    limited = (limit_task(task, by_rank=len(Y) < FEW_OUTCOMES) for task in tasks)
    history = dict(zip(problem.history, limited, strict=True))
    raised, _ = limit_outcomes(Y, robust_limit(Y, typical_depth(history)))
    return build(X, raised, replace(cast(Any, problem), history=history))


def learned_hyperprior(X: Tensor, Y: Tensor, problem: Problem) -> SingleTaskGP:
    """MPHD with the history as its only domain."""
    return HyperpriorGP(X, Y, problem.history)


def pretrained(preset: str, objective: Objective) -> Build:
    """HyperBO, FSBO or ABLR, pre-trained once a history.

    Args:
        preset: The name of a constructor of `PretrainedPrior`.
        objective: What is minimized.

    Returns:
        What builds the model.
    """
    return partial(_pretrained, preset, objective)


def _pretrained(
    preset: str, objective: Objective, X: Tensor, Y: Tensor, problem: Problem
) -> SingleTaskGP:
    # At the top level, where other processes find it, and its memo in their own memory.
    def fit() -> PretrainedPrior:
        prior = getattr(PretrainedPrior, preset)(problem.dim)
        options = {} if objective == "ekl" else {"steps": PRETRAINING_STEPS}
        return prior.fit(problem.history, objective, outcome_scale="per_task", **options)

    key = content_key(problem.history, preset, objective, PRETRAINING_STEPS)
    return PretrainedGP(X, Y, _priors.recall(key, fit))
