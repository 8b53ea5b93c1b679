"""Finds columns of old runs that likely have another unit than the search space or other tasks.

A task is suspicious if more than a third of its values lie outside of a parameter's range, or if
its values differ much from the values of most tasks. A suspicious task is reported only if one of
the usual conversions makes its values fit. The 10 % and 90 % quantiles of a task's values are
compared with reference quantiles. The reference quantiles are the medians over the tasks within the
range, or the quantiles of the range if fewer than three tasks are within the range. Differences are
divided by the distance between the two reference quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, to_numeric

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.search_space import Parameter, SearchSpace
from botorch_transfer.search_space.cells import rows_of_tasks

Array = NDArray[np.float64]
Range = tuple[float, float]

#: Factors and offsets of the usual conversions.
CONVERSIONS = {
    **{f"divided by {k:,}": (1 / k, 0.0) for k in (60, 100, 1_000)},
    **{f"times {k:,}": (float(k), 0.0) for k in (60, 100, 1_000)},
    "less 273.15 (as Kelvin to °C)": (1.0, -273.15),
    "plus 273.15 (as °C to Kelvin)": (1.0, 273.15),
    "less 32 and divided by 1.8 (as °F to °C)": (1 / 1.8, -32 / 1.8),
    "times 1.8 plus 32 (as °C to °F)": (1.8, 32.0),
}

#: Share of the width of an outcome's range by which outcomes may lie outside of the range.
BEYOND = 0.05

#: Largest share of a task's values that may lie outside of a range.
MAX_OUTSIDE = 1 / 3

#: Least relative difference from the reference quantiles that is reported (``DIFFERENT``), and
#: largest share of this difference that may remain after a conversion (``ALIKE``).
DIFFERENT, ALIKE = 0.9, 0.25

#: Quantiles that summarize the values of a task.
QUANTILES = [0.1, 0.9]

#: Maximum number of tasks that are checked.
MAX_LOOKED_AT = 1_000

#: Least number of values in a task, and least number of tasks, for a comparison of tasks.
MIN_VALUES, MIN_TASKS = 4, 3

#: Outcomes that are all at most 1 are reported if outcomes in per cent would all be at most 1 with
#: a smaller probability than this.
MAX_CHANCE = 0.05


def wrong_units(frame: DataFrame, space: SearchSpace, task: str) -> list[str]:
    """Finds tasks with values that are likely in another unit.

    Args:
        frame: Old runs, one row per run.
        space: The search space.
        task: The column that names the task.

    Returns:
        A sentence for each column and conversion. The sentence names the column, the tasks, and the
        conversion that makes the values fit.

    Example:
        >>> from botorch_transfer.search_space import FloatParameter
        >>> runs = DataFrame({"task": "monday", "T": [300.0, 330.0, 350.0, 370.0]})
        >>> wrong_units(runs, SearchSpace([FloatParameter("T", 20, 110)]), "task")
        ["'T' of task 'monday' lies outside of its range: less 273.15 (as Kelvin to °C), it fits"]
    """
    rows = list(rows_of_tasks(frame[task]).items())
    rows = [rows[place] for place in evenly_spaced(len(rows), MAX_LOOKED_AT)]
    found: dict[tuple[str, str], list[str]] = {}
    for parameter in space.parameters:
        column = parameter.name
        if parameter.is_numeric and column in frame and frame[column].dtype.kind not in "mM":
            cells = to_numeric(frame[column], errors="coerce")
            numbers = cells.to_numpy(np.float64, na_value=np.nan)
            tasks = {name: numbers[places] for name, places in rows}
            tasks = {name: values[np.isfinite(values)] for name, values in tasks.items()}
            for name, problem in _of_column({k: v for k, v in tasks.items() if len(v)}, parameter):
                found.setdefault((column, problem), []).append(name)
    return [
        f"{column!r} of task {tasks[0]!r}"
        f"{f' and {len(tasks) - 1:,} more' if len(tasks) > 1 else ''} {problem}"
        for (column, problem), tasks in found.items()
    ]


def wrong_outcomes(
    history: DataFrame | None, runs: DataFrame | None, name: str, within: Range | None = None
) -> str | None:
    """Checks whether outcomes are fractions that should be in per cent, or vice versa.

    Args:
        history: Old runs, or ``None``.
        runs: The runs of this study, or ``None``.
        name: The column of the outcome, which a table may lack.
        within: The least and the largest possible value of the outcome.

    Returns:
        A sentence if outcomes lie clearly outside of ``within``, or if the tables likely have
        different units: all outcomes of one table are between 0 and 1, and most
        outcomes of the other table are between 1 and 100. ``None`` otherwise.

    Example:
        >>> old, runs = DataFrame({"yield": [35, 80, 61]}), DataFrame({"yield": [0.4, 0.7]})
        >>> wrong_outcomes(old, runs, "yield")
        "'yield' is in fractions in this study and in per cent in old runs: multiply it by 100"
    """
    tables = [table for table in (history, runs) if table is not None and name in table.columns]
    found = [to_numeric(table[name], errors="coerce").dropna() for table in tables]
    least, largest = within or (-np.inf, np.inf)
    margin = np.nan_to_num(BEYOND * (largest - least), posinf=0.0)
    for values, table in zip(found, tables, strict=True):
        outside = values[~values.between(least - margin, largest + margin)]
        if len(outside):
            place = f"row {outside.index[0]} of {'the history' if table is history else 'the runs'}"
            return (
                f"{name!r} has values outside of outcome_range, {least:g} to {largest:g}, such as "
                f"{outside.iloc[0]:g} in {place}, and predictions stay within the range: correct "
                "the range or the values"
            )
    if len(found) < 2:
        return None
    old, own = found
    for x, y, text in (
        (own, old, "in fractions in this study and in per cent in old runs: multiply it by 100"),
        (old, own, "in per cent in this study and in fractions in old runs: divide it by 100"),
    ):
        scales_fit = x.between(0, 1).all() and y.between(0, 100).all() and y.max() > 10
        if scales_fit and len(x) > 1 and (y <= 1).mean() ** len(x) < MAX_CHANCE:
            return f"{name!r} is {text}"
    return None


def _of_column(tasks: Mapping[str, Array], parameter: Parameter) -> Iterator[tuple[str, str]]:
    """Yields the name and the problem of each task whose values are likely in another unit."""
    unit = np.array([0.0, 1.0, *QUANTILES])[:, None]
    marks = parameter.decode(unit)[parameter.name].to_numpy(dtype=np.float64)
    (lower, upper), reference = marks[:2], marks[2:]
    # On a logarithmic scale, an offset can make any values fit, so offsets are not tried. Only
    # temperatures need offsets, and their scale is linear.
    likely = partial(_likely_conversions, without_offsets=bool(parameter.log))
    rounding = 1e-6 * max(abs(lower), abs(upper))
    strange, compared = dict[str, Array](), dict[str, Array]()
    for name, values in tasks.items():
        beyond = (values < lower - rounding) | (values > upper + rounding)
        if beyond.mean() > MAX_OUTSIDE:
            strange[name] = values
        elif len(values) >= MIN_VALUES:
            compared[name] = _quantiles(values)
    if len(compared) >= MIN_TASKS:
        ends = np.array(list(compared.values()))
        reference = np.median(ends, axis=0)
        for name, found in zip(compared, likely(ends, reference, DIFFERENT, ALIKE), strict=True):
            if found is not None:
                yield name, f"differs from the values of most tasks: {found}, it fits"
    together = np.concatenate([*strange.values(), []])
    if len(together) >= MIN_VALUES:
        # The values of all tasks outside of the range are compared together, because together they
        # cover the range best. These values are certainly wrong, so a conversion may fit less well.
        found = likely(_quantiles(together)[None], reference, 0.0, 0.6)[0]
        for name in strange if found else ():
            yield name, f"lies outside of its range: {found}, it fits"


def _quantiles(values: Array) -> Array:
    """Computes the same quantiles as ``numpy.quantile``, ten times as fast for few values."""
    places = np.array(QUANTILES) * (len(values) - 1)
    return np.interp(places, np.arange(len(values)), np.sort(values))


def _likely_conversions(
    ends: Array, reference: Array, different: float, alike: float, without_offsets: bool
) -> list[str | None]:
    """Finds, for each task, the conversion with quantiles closest to the reference quantiles.

    ``ends`` are the ``m x 2`` quantiles of ``m`` tasks. The result has the name of a conversion for
    each task; ``None`` if the task's quantiles do not differ much, or if no conversion fits.
    Conversions by a factor are compared on a logarithmic scale.
    """
    names = [name for name, (_, offset) in CONVERSIONS.items() if not (offset and without_offsets)]
    shares = []
    for factor, offset in map(CONVERSIONS.__getitem__, names):
        numbers = np.stack([ends, factor * ends + offset, np.broadcast_to(reference, ends.shape)])
        with np.errstate(invalid="ignore", divide="ignore"):  # zeros have no logarithm
            numbers = np.log(numbers) if offset == 0 else numbers
            width = np.nan_to_num(np.ptp(numbers[2, 0])) or 1.0
            distances = np.abs(numbers[:2] - numbers[2]).max(axis=-1) / width
        off, left = np.nan_to_num(distances)
        is_likely = (off > different) & (left < alike * off)
        shares.append(np.where(is_likely, left / np.where(off > 0, off, 1.0), np.inf))
    best = np.argmin(shares, axis=0)
    return [names[i] if np.isfinite(shares[i][m]) else None for m, i in enumerate(best)]
