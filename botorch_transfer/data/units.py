"""Finds columns of old runs that likely have another unit than the search space or other tasks.

A task is suspicious if more than a third of its values lie outside of a parameter's range, or if
its values differ much from the values of most tasks. A suspicious task is reported only if one of
the usual conversions makes its values fit.

A task is compared by the 10 % and 90 % quantiles of its values. Each quantile is compared with a
reference quantile: the median of this quantile over the tasks within the range. If fewer than three
tasks are within the range, the reference quantiles are the quantiles of the range. Differences are
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

#: Usual conversions of units: a factor and an offset by description.
CONVERSIONS = {
    **{f"divided by {k:,}": (1 / k, 0.0) for k in (60, 100, 1_000)},
    **{f"multiplied by {k:,}": (float(k), 0.0) for k in (60, 100, 1_000)},
    "reduced by 273.15 (kelvin to °C)": (1.0, -273.15),
    "increased by 273.15 (°C to kelvin)": (1.0, 273.15),
    "reduced by 32 and divided by 1.8 (°F to °C)": (1 / 1.8, -32 / 1.8),
    "multiplied by 1.8 and increased by 32 (°C to °F)": (1.8, 32.0),
}

#: Outcomes may lie outside of their range by this share of the width of the range.
BEYOND = 0.05

#: Largest share of a task's values that may lie outside of a parameter's range.
MAX_OUTSIDE = 1 / 3

#: Least relative difference from the reference quantiles that is reported (``DIFFERENT``). Largest
#: share of this difference that may remain after a conversion (``ALIKE``).
DIFFERENT, ALIKE = 0.9, 0.25

#: Quantiles that summarize the values of a task.
QUANTILES = [0.1, 0.9]

#: Maximum number of tasks whose units are checked.
MAX_LOOKED_AT = 1_000

#: Tasks are compared if at least ``MIN_COMPARABLE`` tasks have at least ``MIN_VALUES`` values each.
MIN_VALUES, MIN_COMPARABLE = 4, 3

#: Outcomes that are all at most 1 may be fractions or small percentages. They are reported as
#: fractions if the probability of only small percentages is below this value.
MAX_CHANCE = 0.05


def wrong_units(frame: DataFrame, space: SearchSpace, task: str) -> list[str]:
    """Finds tasks of old runs whose values of a parameter likely have a wrong unit.

    Args:
        frame: Old runs, one row per run.
        space: The search space.
        task: The column that names the task.

    Returns:
        One sentence for each column and conversion. The sentence names the column, the tasks with
        the wrong unit, and the conversion that makes the values fit.

    Example:
        >>> from botorch_transfer.search_space import FloatParameter
        >>> runs = DataFrame({"task": "monday", "T": [300.0, 330.0, 350.0, 370.0]})
        >>> wrong_units(runs, SearchSpace([FloatParameter("T", 20, 110)]), "task")
        ["'T' of task 'monday' lies outside of the parameter's range, but fits if reduced by 273.15
        (kelvin to °C)"]
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
    """Checks whether outcomes lie in a given range, and have the same unit in two tables.

    Args:
        history: Old runs, or ``None``.
        runs: The runs of this study, or ``None``.
        name: The column of the outcome. A table may lack this column.
        within: The least and the largest possible value of the outcome; ``None`` if unknown.

    Returns:
        A sentence that describes the problem; ``None`` if there is no problem. There is a problem
        if an outcome is clearly outside of ``within``. There is also a problem if one table likely
        has fractions and the other percentages: all outcomes of one table are between 0 and 1, and
        most outcomes of the other table are between 1 and 100.

    Example:
        >>> old, runs = DataFrame({"yield": [35, 80, 61]}), DataFrame({"yield": [0.4, 0.7]})
        >>> wrong_outcomes(old, runs, "yield")
        "'yield' has fractions in this study and percentages in old runs: multiply this study's
        values by 100"
    """
    tables = [table for table in (history, runs) if table is not None and name in table.columns]
    found = [to_numeric(table[name], errors="coerce").dropna() for table in tables]
    least, largest = within or (-np.inf, np.inf)
    for values, table in zip(found, tables, strict=True):
        finite, span = values[np.isfinite(values)], largest - least
        span = span if np.isfinite(span) else finite.max() - finite.min()
        margin = BEYOND * np.nan_to_num(span)
        outside = values[~values.between(least - margin, largest + margin)]
        if len(outside):
            place = f"row {outside.index[0]} of {'the history' if table is history else 'the runs'}"
            return (
                f"{name!r} has values outside of outcome_range, {least:g} to {largest:g}, such as "
                f"{outside.iloc[0]:g} in {place}, but predictions stay within the range: correct "
                "the range or the values"
            )
    if len(found) < 2:
        return None
    old, own = found
    for x, y, text in (
        (own, old, "fractions in this study and percentages in old runs: multiply"),
        (old, own, "percentages in this study and fractions in old runs: divide"),
    ):
        scales_fit = x.between(0, 1).all() and y.between(0, 100).all() and y.max() > 10
        if scales_fit and len(x) > 1 and (y <= 1).mean() ** len(x) < MAX_CHANCE:
            return f"{name!r} has {text} this study's values by 100"
    return None


def _of_column(tasks: Mapping[str, Array], parameter: Parameter) -> Iterator[tuple[str, str]]:
    """Finds tasks in which a parameter likely has a wrong unit; yields (task, problem)."""
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
    if len(compared) >= MIN_COMPARABLE:
        ends = np.array(list(compared.values()))
        reference = np.median(ends, axis=0)
        for name, found in zip(compared, likely(ends, reference, DIFFERENT, ALIKE), strict=True):
            if found is not None:
                yield name, f"differs from most tasks, but fits if {found}"
    together = np.concatenate([*strange.values(), []])
    if len(together) >= MIN_VALUES:
        # All tasks with values outside of the range are pooled, because the pooled values cover the
        # range best. These values are certainly wrong, so a conversion may fit less well.
        found = likely(_quantiles(together)[None], reference, 0.0, 0.6)[0]
        for name in strange if found else ():
            yield name, f"lies outside of the parameter's range, but fits if {found}"


def _quantiles(values: Array) -> Array:
    """Computes the 10 % and 90 % quantiles of values; faster than ``numpy.quantile``."""
    places = np.array(QUANTILES) * (len(values) - 1)
    return np.interp(places, np.arange(len(values)), np.sort(values))


def _likely_conversions(
    ends: Array, reference: Array, different: float, alike: float, without_offsets: bool
) -> list[str | None]:
    """Finds, for each task, the unit conversion that brings its quantiles nearest to a reference.

    Args:
        ends: The ``m x 2`` quantiles of the values of ``m`` tasks.
        reference: The two reference quantiles.
        different: See ``DIFFERENT``.
        alike: See ``ALIKE``.
        without_offsets: Whether to leave out conversions with an offset.

    Returns:
        For each task, a key of ``CONVERSIONS``. ``None`` if the task's quantiles are close to the
        reference quantiles, or if no conversion fits. Quantiles are compared on a logarithmic scale
        for a conversion without an offset.
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
