"""Old runs as Ax's models see them: encoded by the transforms that encode the target.

Old runs for pre-training beforehand, encoded as Ax will encode the new ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import pandas as pd
import torch
from ax.adapter.adapter_utils import extract_search_space_digest
from ax.adapter.registry import MBM_X_trans_base
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.cast import Cast
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, DerivedParameterConfig, RangeParameterConfig
from ax.core.experiment import Experiment
from ax.core.observation import ObservationFeatures
from ax.core.parameter import (
    ChoiceParameter,
    DerivedParameter,
    FixedParameter,
    Parameter,
    RangeParameter,
)
from ax.core.search_space import SearchSpace
from ax.exceptions.core import UserInputError
from botorch.models.transforms.input import Normalize

from botorch_transfer.ax.experiments import search_space_of
from botorch_transfer.ax.history import TransferHistory, missing_value
from botorch_transfer.data import Domain, SourceData, as_datasets
from botorch_transfer.pretraining.input_transforms import input_labels, label_inputs
from botorch_transfer.pretraining.memo import Memo, content_key
from botorch_transfer.pretraining.prior import TransferPrior

_encoded = Memo(size=32)


def encode_runs(
    history: TransferHistory,
    metric: str,
    search_space: SearchSpace,
    transforms: Mapping[str, Transform],
    parameters: Sequence[str],
    mean: float = 0.0,
    std: float = 1.0,
) -> dict[str, SourceData]:
    """Encodes old runs exactly as Ax encodes those of the target.

    Args:
        history: The old runs.
        metric: The metric to take.
        search_space: The raw search space.
        transforms: Ax's transforms, set up for that search space.
        parameters: The names of the columns that they end up with.
        mean: What to subtract from outcomes.
        std: What to divide them by then.

    Returns:
        ``(X, Y)`` or ``(X, Y, Yvar)`` by old task, in double precision.

    Raises:
        UserInputError: If a value is missing, or is none of its parameter's.
    """
    key = content_key(history.key, metric, repr(search_space), list(transforms), mean, std)
    return _encoded.recall(
        key,
        lambda: _encode(history, metric, search_space, transforms, parameters, mean, std),
    )


def labels_of(search_space: SearchSpace, parameters: Sequence[str]) -> list[str]:
    """Says what the encoded parameters are, for priors that are made of them.

    Args:
        search_space: The raw search space.
        parameters: The names of the encoded columns; where a choice has several, they begin with
            its name.

    Returns:
        One label a column: the name, how it is scaled, and of a choice its values.
    """
    return [_label(name, search_space) for name in parameters]


def _label(column: str, search_space: SearchSpace) -> str:
    raw = search_space.parameters.get(column)
    if raw is None:
        origins = [name for name in search_space.parameters if column.startswith(name)]
        raw = search_space.parameters[max(origins, key=len)]
    if isinstance(raw, ChoiceParameter):
        return f"{column} of {raw.values}"
    scale = "log " if isinstance(raw, RangeParameter) and raw.log_scale else ""
    return f"{scale}{column}"


def refuse_other_inputs(
    prior: TransferPrior, metric: str, search_space: SearchSpace, parameters: Sequence[str]
) -> None:
    """Refuses a prior whose inputs are not those of the experiment, in this order.

    Args:
        prior: The prior; one that serves any search space is welcome.
        metric: The metric that it is for.
        search_space: The raw search space.
        parameters: The names of the encoded columns.

    Raises:
        UserInputError: If the prior knows its inputs, and they are others, or another number.
    """
    if prior.dim is None:
        return
    expected, known = labels_of(search_space, parameters), input_labels(prior.input_transform)
    if prior.dim != len(expected) or known not in (None, tuple(expected)):
        raise UserInputError(
            f"The prior of {metric!r} was made for the inputs {list(known or range(prior.dim))}, "
            f"and the experiment has {expected}: configure the parameters alike and in the same "
            "order, or make a prior of what encode_history gives for this experiment."
        )
    if known is None:
        warnings.warn(
            f"The prior of {metric!r} does not know its inputs, which are taken to be {expected}, "
            "in this order and scaled like that: one that was made with encode_history's "
            "input_transform is checked.",
            stacklevel=2,
        )


def _encode(
    history: TransferHistory,
    metric: str,
    search_space: SearchSpace,
    transforms: Mapping[str, Transform],
    parameters: Sequence[str],
    mean: float,
    std: float,
) -> dict[str, SourceData]:
    space = search_space.parameters
    tunable = search_space.tunable_parameters  # Ax derives others of these
    fixed = {name: p.value for name, p in space.items() if isinstance(p, FixedParameter)}
    if not history.positional:
        for name in fixed:
            _refuse_other_value(cast(FixedParameter, space[name]), history.columns.get(name, ()))
    dependent = set(space) - set(search_space.top_level_parameters)
    runs = history.runs(metric, list(tunable), optional=dependent)
    features = [
        ObservationFeatures(_active_values(search_space, {**run, **fixed}))
        for run in runs.parameters
    ]
    for transform in transforms.values():
        features = transform.transform_observation_features(features)
    X = torch.tensor(
        [[float(cast(float, row.parameters[name])) for name in parameters] for row in features],
        dtype=torch.double,
    )
    Y = torch.tensor(runs.means, dtype=torch.double).unsqueeze(-1)
    sem = torch.tensor(runs.sems, dtype=torch.double).unsqueeze(-1)
    encoded: dict[str, SourceData] = {}
    for name in dict.fromkeys(runs.tasks):
        rows = torch.tensor([row for row, task in enumerate(runs.tasks) if task == name])
        outcomes, variances = (Y[rows] - mean) / std, (sem[rows] / std).square()
        if variances.isfinite().all():
            encoded[name] = (X[rows], outcomes, variances)
        elif variances.isnan().all():
            encoded[name] = (X[rows], outcomes)
        else:
            raise UserInputError(
                f"The old task {name!r} has a standard error of {metric!r} for some runs only: "
                "give it for all of them or for none."
            )
    return encoded


def _active_values(search_space: SearchSpace, run: Mapping[str, Any]) -> dict[str, Any]:
    """The values that matter in a run; Ax has others of its own where some do not."""
    waiting, found = list(search_space.top_level_parameters), dict[str, Any]()
    while waiting:
        name = waiting.pop()
        parameter = search_space.parameters[name]
        if isinstance(parameter, DerivedParameter):
            continue
        if run[name] is None:
            raise missing_value(name)
        found[name] = _value(parameter, run[name])
        if parameter.is_hierarchical:
            waiting += parameter.dependents.get(found[name], [])
    return found


def _refuse_other_value(parameter: FixedParameter, values: Collection[Any]) -> None:
    """Refuses old runs with another value of what is fixed in the experiment."""
    other = [value for value in values if value is not None and not _same(parameter.value, value)]
    if other:
        raise UserInputError(
            f"An old run has {parameter.name}={other[0]!r}, and the experiment's is fixed to "
            f"{parameter.value!r}: leave such runs out, or the column if it means something else."
        )


def _same(choice: Any, value: Any) -> bool:
    """Whether a value of a table is one of the experiment; numbers may have been rounded."""
    if isinstance(choice, str):
        return choice == str(value)
    if isinstance(choice, float) and isinstance(value, int | float):
        return math.isclose(choice, value, rel_tol=1e-6, abs_tol=1e-9)
    return bool(choice == value)


def _choice(parameter: ChoiceParameter, value: Any) -> Any:
    """The parameter's own choice that a value stands for."""
    for choice in parameter.values:
        if _same(choice, value):
            return choice
    raise UserInputError(
        f"An old run has {parameter.name}={value!r}, which is none of {parameter.values}: add the "
        "choice, or leave such runs out."
    )


def _value(parameter: Parameter, value: Any) -> Any:
    """Checks a value and casts it to what the parameter takes."""
    if isinstance(parameter, ChoiceParameter):
        return _choice(parameter, value)
    taken: Any
    try:
        taken = parameter.cast(value)
    except (TypeError, ValueError):
        taken = None
    unfit = taken is None or taken != value
    if isinstance(parameter, RangeParameter) and (unfit or (parameter.log_scale and taken <= 0)):
        raise UserInputError(
            f"An old run has {parameter.name}={value!r}, which is no value of {parameter}: correct "
            "it, or leave such runs out."
        )
    return taken


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
