"""A search space guessed from a table of runs, as a start to edit.

What a table cannot say is guessed: whether a scale is logarithmic (if the values' median is nearer
to the middle of it), whether few numbers are all there are (an ordinal parameter) or some of a
range, and when a parameter with empty cells is active.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series, factorize, to_numeric
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from botorch_transfer.search_space.cells import is_text, stripped, with_numbers
from botorch_transfer.search_space.parameters import (
    ActiveIf,
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    Parameter,
    has_decimal_comma,
    is_none,
    plain,
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

MANY_EMPTY = 0.05
"""If so large a share of a choice's cells is empty, or half as many as the other choices have on
average, an empty cell is a choice, too."""

NOTES = re.compile(
    r"(?i)[\W_\d]*((row|plate|well|date|time ?stamp|started|finished|id|uuid|barcode|index|unnamed|"
    r"no|nr|number|run|experiment|entry|at)[\W_\d]*)+"
)
"""A column named by these words only says where or when a run was, or has its number."""

DATE = r"\s*(\d{4}-\d\d?-\d\d?|\d\d?([./])\d\d?\2\d{2,4})([ T]\d\d?:\d\d\S*)?\s*"


def guess_space(
    frame: DataFrame, leave_out: Collection[str] = (), task: str | None = None
) -> SearchSpace:
    """Guesses the search space of a table of runs; look it over before you use it.

    No parameters are columns with a single value, or one within each task; text that hardly
    repeats, such as comments; numbers, places and dates of runs; and columns that name each value
    of another one in another way, as a CAS number does: of these, the one with most letters is
    kept. The log says which they are and why. Ranges are those of the table.

    Args:
        frame: The table, one row a run. Text such as ``"110 °C"`` is read as a number.
        leave_out: Columns that are no parameters: the task's, the outcomes'.
        task: The column that names the task.

    Returns:
        The space, parents of conditional parameters first, otherwise in the order of the columns.

    Raises:
        InputDataError: If no column is left.

    Example:
        >>> from pandas import DataFrame
        >>> runs = DataFrame({"lr": [0.001, 0.02, 0.3], "loss": [0.4, 0.5, 0.3]})
        >>> guess_space(runs, leave_out=["loss"]).parameters[0]
        FloatParameter(name='lr', lower=0.001, upper=0.3, log=True, active_if=None, step=None)
    """
    check_table(frame, ())
    columns = [name for name in frame.columns if name not in (*leave_out, task)]
    check_table(frame, columns)
    columns = list(map(str, columns))
    frame = with_numbers(frame, columns, whole=True)
    frame = frame.assign(**{c: frame[c].map(stripped) for c in columns if is_text(frame[c])})
    tasks = None if task is None else frame[task]
    reasons = {name: _describes_runs(frame[name], tasks) for name in columns}
    unused = {name: reason for name, reason in reasons.items() if reason is not None}
    unused |= _copies(frame, [name for name in columns if name not in unused])
    found: dict[str, Parameter] = {}
    # Complete columns first: they may say where others are filled.
    left = [name for name in columns if name not in unused]
    for name in sorted(left, key=lambda name: frame[name].hasnans):
        known, column = list(found.values()), frame[name]
        condition = find_condition(frame, name, known) if column.hasnans else None
        empty = int(column.isna().sum())
        many = min(MANY_EMPTY, 0.5 / max(column.nunique(), 1)) * len(column)
        guessed = _guess(column.dropna(), len(column), condition)
        if isinstance(guessed, CategoricalParameter) and condition is None and empty >= many:
            filled = column.where(column.notna(), next(filter(is_none, column), "none"))
            guessed = _guess(filled, len(column))
            message = "%r is empty in %d of %d rows: it has the choice 'none'"
            logger.info(message, name, empty, len(column))
        if isinstance(guessed, str):
            unused[name] = guessed
        else:
            found[name] = guessed
            spellings: dict[str, Any] = {}
            for value in getattr(guessed, "values", ()):
                other = spellings.setdefault(str(value).casefold(), value)
                if other != value:
                    message = "%r has both %r and %r: if they mean the same, write them alike"
                    logger.warning(message, name, other, value)
    if unused:
        listed = "; ".join(f"{name!r} {unused[name]}" for name in columns if name in unused)
        logger.info("No parameters: %s", listed)
    if not found:
        raise InputDataError(
            f"The table has no column that varies besides {', '.join(map(repr, leave_out))}: there "
            "is no parameter to guess."
        )
    return SearchSpace(list(found.values()))


def _describes_runs(column: Series, tasks: Series | None) -> str | None:
    """Says why a column describes a run or a task, and is no parameter."""
    text = column.dropna().astype(str) if is_text(column) else Series(dtype=str)
    if is_datetime64_any_dtype(column.dtype) or (len(text) and text.str.fullmatch(DATE).all()):
        return "holds dates"
    if NOTES.fullmatch(str(column.name)):
        return "says which run it was"
    if tasks is None or column.nunique(dropna=False) < 2 or tasks.is_unique:
        return None
    values = column.groupby(tasks.to_numpy()).nunique(dropna=False)
    return "has one value in each task" if values.max() <= 1 else None


def _copies(frame: DataFrame, columns: Sequence[str]) -> dict[str, str]:
    """Finds columns that name each value of another one in another way."""
    same: dict[bytes, list[str]] = {}
    for name in columns:
        codes, levels = factorize(frame[name])
        if 2 <= len(levels) <= len(codes) / 2:
            same.setdefault(codes.tobytes(), []).append(name)
    reasons: dict[str, str] = {}
    for names in same.values():
        kept = max(names, key=lambda name: _share_of_letters(frame[name]))
        reasons |= {name: f"goes with {kept!r}" for name in names if name != kept}
    return reasons


def _share_of_letters(column: Any) -> float:
    text = "".join(map(str, column.dropna().unique()))
    return sum(sign.isalpha() for sign in text) / max(len(text), 1)


def _guess(column: Series, num_rows: int, active_if: ActiveIf | None = None) -> Parameter | str:
    """Guesses a parameter from the filled cells of a column, or says why it is none."""
    name, values = str(column.name), column.unique()
    if len(values) < 2:
        return "never changes"
    if is_bool_dtype(column.dtype) or not is_numeric_dtype(column.dtype):
        if to_numeric(column, errors="coerce").notna().any():
            # Beside numbers it is no choice, such as two layers' sizes.
            refuse_where(has_decimal_comma(column), column, "a decimal comma: write a point")
        choices = sorted((plain(value) for value in values), key=str)
        once = [text for text, number in Counter(map(str, column)).items() if number == 1]
        sentences = [text for text in once if text.count(" ") >= 2]
        rare = 2 * len(choices) > len(column) or 2 * len(sentences) > len(choices)
        if len(choices) > MAX_CHOICES or (rare and num_rows > 4):
            return "hardly repeats"
        return CategoricalParameter(name, choices, active_if)
    numbers = np.sort(column[np.isfinite(column)].unique())
    if len(numbers) < 2:
        return "never changes"
    log = _is_logarithmic(column[np.isfinite(column)].to_numpy(dtype=np.float64))
    whole = bool((numbers == np.rint(numbers)).all())
    if len(numbers) <= min(MAX_LEVELS, len(column) / RUNS_A_LEVEL) and not _is_run(numbers):
        levels = [int(number) if whole else float(number) for number in numbers]
        return OrdinalParameter(name, levels, log or _is_geometric(numbers), active_if)
    if whole and len(numbers) == len(column) > MAX_LEVELS and _is_run(numbers):
        return "counts the rows"
    if whole:
        return IntegerParameter(name, int(numbers[0]), int(numbers[-1]), log, active_if)
    return FloatParameter(name, float(numbers[0]), float(numbers[-1]), log, active_if)


def find_condition(frame: DataFrame, name: str, parents: list[Parameter]) -> dict[str, Any] | None:
    """Finds the parameter whose values say where a column has values, if there is one."""
    filled = frame[name].notna()
    for parent in parents:
        if isinstance(parent, CategoricalParameter | OrdinalParameter):
            values = frame[parent.name].map(plain)
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
