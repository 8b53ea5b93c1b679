"""Old runs in Ax's model space: encoded by the same transforms that encode the target.

Ax calls :func:`encode_runs` through its adapter, whenever it fits models.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from ax.adapter.transforms.base import Transform
from ax.core import ChoiceParameter, ObservationFeatures, SearchSpace
from ax.core.parameter import FixedParameter, RangeParameter
from ax.exceptions.core import UserInputError
from torch import Tensor

from botorch_transfer import search_space as own
from botorch_transfer.ax.history import TransferHistory, user_errors
from botorch_transfer.data import SourceData, from_dataframe
from botorch_transfer.memo import Memo, content_key

logger = logging.getLogger(__name__)

_encoded = Memo(size=32)


def encode_runs(
    history: TransferHistory,
    metric: str,
    search_space: SearchSpace,
    transforms: Mapping[str, Transform],
    parameters: Sequence[str],
    mean: float = 0.0,
    std: float = 1.0,
    device: torch.device | None = None,
    assumed: Mapping[str, Any] | None = None,
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
        device: Where to put them; the CPU if omitted.
        assumed: Values of parameters that old tasks lack, unless ``history.missing`` has another.

    Returns:
        ``(X, Y)`` or ``(X, Y, Yvar)`` by old task, in double precision.

    Raises:
        UserInputError: If a value is missing or of another kind, or no run has a place.
    """
    missing = {**(assumed or {}), **history.missing}
    key = content_key(
        history.key, metric, repr(search_space), list(transforms), mean, std, str(device), missing
    )

    def encode() -> dict[str, SourceData]:
        known = own_space(search_space)
        runs = _runs(history, metric, search_space, known)
        noise, fixed = f"{metric}_sem", _fixed_values(search_space, history, runs)

        def in_model_space(rows: pd.DataFrame) -> Tensor:
            table = rows[[name for name in known.columns if name in rows]]
            records: list[dict[Any, Any]] = table.to_dict("records")
            features = [_features(search_space, row | fixed) for row in records]
            for transform in transforms.values():
                features = transform.transform_observation_features(features)
            return torch.tensor(
                [[float(cast(float, row.parameters[p])) for p in parameters] for row in features],
                dtype=torch.double,
            )

        with user_errors():
            found = from_dataframe(
                runs,
                known,
                metric,
                history.task,
                noise=noise if noise in runs else None,
                missing=missing,
                encode=in_model_space,
            )
        encoded: dict[str, SourceData] = {}
        for name, data in found.items():
            X, Y, Yvar = data.X.to(device), (data.Y.to(device) - mean) / std, data.Yvar
            encoded[name] = (X, Y) if Yvar is None else (X, Y, Yvar.to(device) / std**2)
        return encoded

    return _encoded.recall(key, encode)


def own_space(search_space: SearchSpace) -> own.SearchSpace:
    """Makes a search space of this package of one of Ax's, to read tables of old runs.

    Args:
        search_space: Ax's search space.

    Returns:
        The space of the parameters that are neither fixed nor derived, parents first.
    """
    found: list[own.Parameter] = []
    waiting: list[tuple[str, Any]] = [(name, None) for name in search_space.top_level_parameters]
    while waiting:
        name, condition = waiting.pop(0)
        p = search_space.parameters[name]
        if p.is_hierarchical:
            for value, dependents in p.dependents.items():
                fixed = isinstance(p, FixedParameter)
                waiting += [(each, condition if fixed else {name: value}) for each in dependents]
        if isinstance(p, ChoiceParameter):
            found.append(own.CategoricalParameter(name, p.values, condition))
        elif isinstance(p, RangeParameter) and p.python_type is int:
            ends = int(p.lower), int(p.upper)
            found.append(own.IntegerParameter(name, *ends, p.log_scale, condition))
        elif isinstance(p, RangeParameter):
            scale: Literal["1-x"] | bool = "1-x" if p.logit_scale else p.log_scale
            found.append(own.FloatParameter(name, p.lower, p.upper, scale, condition))
    return own.SearchSpace(found)


def _runs(
    history: TransferHistory, metric: str, search_space: SearchSpace, known: own.SearchSpace
) -> pd.DataFrame:
    """The runs with a finite value of a metric, in the words of the search space."""
    if unknown := [name for name in history.varied if name not in search_space.parameters]:
        raise UserInputError(
            f"Old experiments varied {unknown}, and the new one has no such parameters: add them "
            "to it, or rename them by AuxiliarySource(transfer_param_config=...)."
        )
    names = list(search_space.tunable_parameters)  # Ax derives the others from these
    frame = history.frame
    if history.positional:
        width = sum(name.isdigit() for name in frame.columns)
        if width > len(names):
            raise UserInputError(
                f"The history's tensors have {width} columns, and the search space has the "
                f"{len(names)} parameters {names}: give one column for each, in that order."
            )
        frame = frame.rename(columns={str(place): name for place, name in enumerate(names)})
    elif history.task in names:
        raise UserInputError(
            f"{history.task!r} is a parameter of the search space, and the history's column with "
            "the names of old tasks: name that column otherwise, by task=..."
        )
    finite = np.isfinite(history.outcomes(metric))
    if not finite.all():
        logger.info("%d old runs have no finite %s.", int((~finite).sum()), metric)
    frame = frame[finite].fillna({n: v for n, v in history.missing.items() if v is not None})
    for parameter in known.parameters:
        if isinstance(parameter, own.CategoricalParameter) and parameter.name in frame:
            # The choice that a cell means; the cell itself if there is none.
            frame[parameter.name] = [
                next((choice for choice in parameter.values if _same(choice, cell)), cell)
                for cell in frame[parameter.name]
            ]
    return frame


def _same(choice: Any, value: Any) -> bool:
    """Whether a table's value is one of the experiment's; forgives rounded numbers."""
    if isinstance(choice, str):
        return choice == str(value)
    if isinstance(choice, float) and isinstance(value, int | float):
        return math.isclose(choice, value, rel_tol=1e-6, abs_tol=1e-9)
    return bool(choice == value)


def _fixed_values(
    search_space: SearchSpace, history: TransferHistory, runs: pd.DataFrame
) -> dict[str, Any]:
    """The values of fixed parameters; refuses runs of a table with another value of one.

    Old experiments count as fixed at these values, as in Ax.
    """
    space = search_space.parameters
    fixed = {name: p.value for name, p in space.items() if isinstance(p, FixedParameter)}
    for name in [] if history.varied else fixed.keys() & set(runs.columns):
        for value in runs[name].dropna():
            if not _same(fixed[name], value):
                raise UserInputError(
                    f"An old run has {name}={value!r}, and the experiment's is fixed to "
                    f"{fixed[name]!r}: leave such runs out, or the column if it means something "
                    "else."
                )
    return fixed


def _features(search_space: SearchSpace, run: Mapping[str, Any]) -> ObservationFeatures:
    """A run's active parameters; Ax fills in those of the others itself."""
    given = {name: value for name, value in run.items() if value is not None}
    active = search_space.cast_observation_features(ObservationFeatures(given)).parameters
    for name, value in active.items():
        parameter = search_space.parameters[name]
        if isinstance(parameter, RangeParameter) and parameter.cast(value) != value:
            raise UserInputError(
                f"An old run has {name}={value!r}, which is no value of {parameter}: correct it, "
                "or leave such runs out."
            )
    return ObservationFeatures(active)
