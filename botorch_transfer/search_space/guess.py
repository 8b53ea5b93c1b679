"""A search space guessed from a table of runs, as a start to edit.

What a table cannot say is guessed: whether a scale is logarithmic (if the values' median is nearer
to the middle of it), whether few numbers are all there are (an ordinal parameter) or some of a
range, and when a parameter with empty cells is active.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series, to_numeric
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from botorch_transfer.search_space.parameters import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    Parameter,
    has_decimal_comma,
    refuse_where,
)
from botorch_transfer.search_space.space import SearchSpace, check_table

logger = logging.getLogger(__name__)

LOG_RATIO = 10
"""On a logarithmic scale, the largest number is at least this many times the smallest."""

MAX_LEVELS, RUNS_A_LEVEL = 10, 5
"""Numbers are levels of an ordinal parameter if they are that few, and each is found that often."""

MAX_CHOICES = 100
"""A column of text with more different values than this holds something else than choices."""


def guess_space(frame: DataFrame, leave_out: Collection[str] = ()) -> SearchSpace:
    """Guesses the search space of a table of runs; look it over before you use it.

    Columns with a single value, text that hardly repeats, and numbers of the rows themselves are no
    parameters; the log names them. Ranges are those of the table.

    Args:
        frame: The table, one row a run.
        leave_out: Columns that are no parameters: the task's, the outcomes'.

    Returns:
        The space, parents of conditional parameters first, otherwise in the order of the columns.

    Raises:
        InputDataError: If no column is left.

    Example:
        >>> from pandas import DataFrame
        >>> runs = DataFrame({"lr": [0.001, 0.02, 0.3], "loss": [0.4, 0.5, 0.3]})
        >>> guess_space(runs, leave_out=["loss"]).parameters[0]
        FloatParameter(name='lr', lower=0.001, upper=0.3, log=True, active_if=None)
    """
    check_table(frame, ())
    check_table(frame, [name for name in frame.columns if name not in leave_out])
    columns = [str(name) for name in frame.columns if name not in leave_out]
    found: dict[str, Parameter] = {}
    # Complete columns first: they may say where others are filled.
    for name in sorted(columns, key=lambda name: frame[name].hasnans):
        known = list(found.values())
        condition = find_condition(frame, name, known) if frame[name].hasnans else None
        if (parameter := _guess(frame[name].dropna(), condition)) is not None:
            found[name] = parameter
    if not found:
        raise InputDataError(
            f"The table has no column that varies besides {', '.join(map(repr, leave_out))}: there "
            "is no parameter to guess."
        )
    if unused := [name for name in columns if name not in found]:
        logger.info("No parameters, as their values never or always change: %s", ", ".join(unused))
    return SearchSpace(list(found.values()))


def _guess(column: Series, active_if: dict[str, Any] | None = None) -> Parameter | None:
    name, values = str(column.name), column.unique()
    if len(values) < 2:
        return None
    if is_bool_dtype(column.dtype) or not is_numeric_dtype(column.dtype):
        if to_numeric(column, errors="coerce").notna().any():
            # Beside numbers it is no choice, such as two layers' sizes.
            refuse_where(has_decimal_comma(column), column, "a decimal comma: write a point")
        choices = sorted((_plain(value) for value in values), key=str)
        if len(choices) > MAX_CHOICES or 2 * len(choices) > len(column) > 4:
            return None
        return CategoricalParameter(name, choices, active_if)
    numbers = np.sort(column[np.isfinite(column)].unique())
    if len(numbers) < 2:
        return None
    log = _is_logarithmic(column[np.isfinite(column)].to_numpy(dtype=np.float64))
    whole = bool((numbers == np.rint(numbers)).all())
    if len(numbers) <= min(MAX_LEVELS, len(column) / RUNS_A_LEVEL) and not _is_run(numbers):
        levels = [int(number) if whole else float(number) for number in numbers]
        return OrdinalParameter(name, levels, log or _is_geometric(numbers), active_if)
    if whole and len(numbers) == len(column) > MAX_LEVELS and _is_run(numbers):
        return None
    if whole:
        return IntegerParameter(name, int(numbers[0]), int(numbers[-1]), log, active_if)
    return FloatParameter(name, float(numbers[0]), float(numbers[-1]), log, active_if)


def find_condition(frame: DataFrame, name: str, parents: list[Parameter]) -> dict[str, Any] | None:
    """Finds the parameter whose values say where a column has values, if there is one."""
    filled = frame[name].notna()
    for parent in parents:
        if isinstance(parent, CategoricalParameter | OrdinalParameter):
            values = frame[parent.name].map(_plain)
            active = tuple(value for value in parent.values if filled[values == value].all())
            if active and values.isin(active).equals(filled):
                return {parent.name: active}
    return None


def _is_logarithmic(values: NDArray[np.float64]) -> bool:
    if values.min() <= 0 or values.max() < LOG_RATIO * values.min():
        return False
    off = [
        abs(np.median(scaled) - (scaled.min() + scaled.max()) / 2) / np.ptp(scaled)
        for scaled in (np.log(values), values)
    ]
    return bool(off[0] < off[1])


def _is_run(numbers: NDArray[Any]) -> bool:
    """Whether numbers are consecutive integers."""
    return bool((numbers == np.rint(numbers)).all() and (np.diff(numbers) == 1).all())


def _is_geometric(numbers: NDArray[Any]) -> bool:
    """Whether three numbers or more have one ratio, as powers of two have."""
    if len(numbers) < 3 or numbers[0] <= 0:
        return False
    ratios = numbers[1:] / numbers[:-1]
    return bool(np.allclose(ratios, ratios[0], rtol=1e-6))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
