"""Old runs for pre-training beforehand, encoded as Ax will encode the new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from ax.adapter.adapter_utils import extract_search_space_digest
from ax.adapter.registry import MBM_X_trans_base
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.cast import Cast
from ax.api.client import Client
from ax.api.configs import (
    ChoiceParameterConfig,
    DerivedParameterConfig,
    RangeParameterConfig,
)
from ax.core.experiment import Experiment
from ax.core.search_space import SearchSpace
from botorch.models.transforms.input import Normalize

from botorch_transfer.ax._internals import search_space_of
from botorch_transfer.ax.encoding import encode_runs, labels_of
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.data import Domain, SourceData, as_datasets
from botorch_transfer.pretraining.input_transforms import label_inputs

Space = (
    Client
    | Experiment
    | SearchSpace
    | Sequence[RangeParameterConfig | ChoiceParameterConfig | DerivedParameterConfig]
)


class EncodedHistory(NamedTuple):
    """Old runs in Ax's model space.

    Args:
        source_data: ``(X, Y)`` or ``(X, Y, Yvar)`` by old task; outcomes are to be maximized.
        input_transform: From Ax's model space to the unit cube; pre-train with it, so that the
            prior knows it, and which parameters its inputs are.
        discrete_dims: Which inputs take only finitely many values.

    Example:
        See :func:`encode_history`, which makes them.
    """

    source_data: dict[str, SourceData]
    input_transform: Normalize
    discrete_dims: tuple[int, ...]


def encode_history(
    space: Space,
    runs: pd.DataFrame,
    outcome: str,
    task: str = "task",
    goal: Literal["max", "min"] = "max",
    missing: Mapping[str, Any] | None = None,
) -> EncodedHistory:
    """Encodes old runs exactly as Ax will encode those of a new experiment.

    Use it to pre-train a prior beforehand, for ``transfer_generation_strategy(prior=...)``.

    Args:
        space: The search space: a ``Client``, an ``Experiment``, Ax's ``SearchSpace``, or the
            parameter configurations that ``Client.configure_experiment`` takes.
        runs: The table of old runs, one row a run, parameters as they are.
        outcome: The column with the outcome. Rows without a finite value are left out.
        task: The column with the name of the old task.
        goal: Whether the outcome is to be large or small: priors speak of what is maximized, so
            with ``"min"`` it is negated.
        missing: Values of parameters that old runs lack.

    Returns:
        The encoded runs, and the transform that scales them.

    Raises:
        UserInputError: If a column or a value is missing, or is none of its parameter's.

    Example:
        >>> from ax.api.configs import RangeParameterConfig
        >>> space = [RangeParameterConfig("C", (0.1, 1000.0), parameter_type="float")]
        >>> runs = pd.DataFrame({"task": "monday", "C": [1.0, 9.0], "loss": [0.5, 0.2]})
        >>> encoded = encode_history(space, runs, "loss", goal="min")
        >>> SourceGPs.fit(encoded.source_data, input_transform=encoded.input_transform).task_names
        ('monday',)
    """
    if goal not in ("max", "min"):
        raise ValueError(f"goal is {goal!r}: choose 'max' or 'min'.")
    raw = search_space_of(space)
    encoded_space, transforms = raw.clone(), dict[str, Transform]()
    kinds: list[type[Transform]] = [Cast, *MBM_X_trans_base]
    for kind in kinds:
        transforms[kind.__name__] = kind(search_space=encoded_space.clone())
        encoded_space = transforms[kind.__name__].transform_search_space(encoded_space)
    parameters = list(encoded_space.parameters)
    history = TransferHistory.from_frame(runs, task, missing)
    std = 1.0 if goal == "max" else -1.0
    data = encode_runs(history, outcome, raw, transforms, parameters, 0.0, std)
    digest = extract_search_space_digest(encoded_space, parameters)
    X = torch.cat([dataset.X for dataset in as_datasets(data)])
    bounds = torch.tensor(digest.bounds, dtype=torch.double).T
    bounds = torch.stack(
        [torch.minimum(bounds[0], X.amin(dim=0)), torch.maximum(bounds[1], X.amax(dim=0))]
    )
    transform = Normalize(len(parameters), bounds=bounds)
    label_inputs(transform, labels_of(raw, parameters))
    discrete = sorted({*digest.ordinal_features, *digest.categorical_features})
    return EncodedHistory(data, transform, tuple(discrete))


def domain_from_ax(
    space: Space,
    runs: pd.DataFrame,
    outcome: str,
    task: str = "task",
    goal: Literal["max", "min"] = "max",
    missing: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Domain:
    """Makes a domain of an Ax search space and a table of old runs in it.

    It is what ``Hyperprior.fit`` learns from, for ``HyperpriorGP``: several domains, with search
    spaces of their own.

    Args:
        space: The search space; see :func:`encode_history`.
        runs: The table of old runs, one row a run.
        outcome: The column with the outcome.
        task: The column with the name of the old task.
        goal: Whether the outcome is to be large or small.
        missing: Values of parameters that old runs lack.
        name: The domain's name.

    Returns:
        The domain; its inputs are those of Ax's models, its context says which are discrete.

    Raises:
        UserInputError: If a column or a value is missing, or is none of its parameter's.

    Example:
        >>> from ax.api.configs import RangeParameterConfig
        >>> space = [RangeParameterConfig("depth", (1, 9), parameter_type="int")]
        >>> runs = pd.DataFrame({"task": "monday", "depth": [1, 9], "score": [0.5, 0.2]})
        >>> domain_from_ax(space, runs, "score", name="trees").discrete_dims
        (0,)
    """
    encoded = encode_history(space, runs, outcome, task, goal, missing)
    return Domain(
        encoded.source_data,
        discrete_dims=encoded.discrete_dims,
        name=name,
        input_transform=encoded.input_transform,
    )
