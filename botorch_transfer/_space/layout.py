"""Where parameters lie in the encoding, where they are active, and which combinations there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from botorch_transfer._space.parameter import Array, Parameter


def placed(parameters: Sequence[Parameter]) -> list[tuple[Parameter, slice]]:
    """Pair each parameter with its columns of the encoding."""
    widths = [len(parameter.feature_names) for parameter in parameters]
    ends = np.cumsum(widths).tolist()
    return [
        (parameter, slice(end - width, end))
        for parameter, width, end in zip(parameters, widths, ends, strict=True)
    ]


def is_active(
    parameter: Parameter, parameters: Sequence[Parameter], unit: Array
) -> NDArray[np.bool_]:
    """Tell in which rows of the encoding a parameter is active.

    Args:
        parameter: The parameter.
        parameters: All parameters of the space.
        unit: An ``n x d`` array. Only columns of the parameter's ancestors are read, so that rows
            may be filled in from left to right.

    Returns:
        An array of ``n`` booleans.
    """
    active = np.ones(len(unit), dtype=np.bool_)
    for name, values in (parameter.active_if or {}).items():
        parent, columns = next((p, s) for p, s in placed(parameters) if p.name == name)
        matches = parent.decode(unit[:, columns])[name].isin(values).to_numpy()
        active &= matches & is_active(parent, parameters, unit)
    return active


def combinations(parameters: Sequence[Parameter], chosen: Sequence[Parameter], limit: int) -> Array:
    """Encode all combinations of the values of the chosen parameters.

    Args:
        parameters: All parameters of the space.
        chosen: Those to combine; the parents of conditional parameters must be among them.
        limit: Largest number of combinations.

    Returns:
        An ``m x d`` array of distinct rows; NaN in the columns of other parameters where they are
        active.

    Raises:
        ValueError: If a chosen parameter is continuous, or there are more than ``limit``
            combinations.
    """
    unit = np.full((1, placed(parameters)[-1][1].stop), np.nan)
    for parameter, columns in placed(parameters):
        active = is_active(parameter, parameters, unit)
        unit[~active, columns] = parameter.neutral
        if parameter in chosen:
            _check_size(parameter, active, limit)
            values = parameter.unit_grid()
            repeats = np.where(active, len(values), 1)
            unit, active = unit.repeat(repeats, axis=0), active.repeat(repeats)
            unit[active, columns] = np.tile(values, (int(active.sum()) // len(values), 1))
    return unit


def _check_size(parameter: Parameter, active: NDArray[np.bool_], limit: int) -> None:
    if parameter.size is None:
        raise ValueError(
            f"Parameter {parameter.name!r} is continuous, and only finite spaces have a grid: use "
            "sample."
        )
    if active.sum() * parameter.size + (~active).sum() > limit:
        raise ValueError(
            f"The search space has more than {limit:,} combinations (reached at parameter "
            f"{parameter.name!r}): raise max_rows, or use sample or a continuous optimizer."
        )
