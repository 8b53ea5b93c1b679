"""Checks the columns of tables of old runs: finds renamed, absent and ambiguous columns."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError
from pandas import DataFrame, Series

from botorch_transfer.search_space import SearchSpace
from botorch_transfer.search_space.cells import is_text
from botorch_transfer.search_space.guess import is_measure
from botorch_transfer.search_space.space import check_table

logger = logging.getLogger(__name__)

#: Least share of a column's values that must fit a parameter, to suggest that it was renamed.
MOST = 0.9


def renamed(frame: DataFrame, rename: Mapping[str, str]) -> DataFrame:
    """Renames columns of a table of old runs.

    Args:
        frame: The table.
        rename: Mapping from old names to new names.

    Returns:
        The table with the new names.

    Raises:
        InputDataError: If the table lacks a column to rename, or has a column of the new name.
    """
    new_names = list(rename.values())
    if twice := [name for name in new_names if new_names.count(name) > 1]:
        raise InputDataError(f"rename gives two columns the name {twice[0]!r}: drop one of them.")
    for old, new in rename.items():
        if old not in frame.columns:
            raise InputDataError(
                f"rename= has the column {old!r}, which the table lacks"
                f"{_hint(old, frame.columns)}: correct the old name."
            )
        if new in frame.columns and new not in rename:
            raise InputDataError(
                f"rename gives the column {old!r} the name {new!r}, which another column has: drop "
                "one of them."
            )
    return frame.rename(columns=dict(rename)) if rename else frame


#: Least number of letters of an abbreviation, such as ``mom`` for ``momentum``.
ENOUGH_LETTERS = 3


def likely_column(name: str, columns: Collection[Any]) -> str | None:
    """Finds the column that a name most likely means, if the table has no column of that name.

    Args:
        name: The name.
        columns: The table's columns.

    Returns:
        A column whose name is similar, an abbreviation or a longer form of ``name``, or consists
        of its initials. ``None`` if the table has no such column.

    Example:
        >>> likely_column("learning_rate", ["Learning rate", "momentum"])
        'Learning rate'
        >>> likely_column("wd", ["weight_decay"])
        'weight_decay'
    """
    letters, initials = _forms(name)
    known: dict[str, str] = {}
    for column in map(str, columns):
        its_letters, its_initials = _forms(column)
        if letters in (its_letters, its_initials) or initials == its_letters:
            return column
        shorter, longer = sorted((letters, its_letters), key=len)
        if len(shorter) >= ENOUGH_LETTERS and longer.startswith(shorter):
            return column
        known.setdefault(its_letters, column)
    close = difflib.get_close_matches(letters, known, n=1, cutoff=0.75)
    return known[close[0]] if close else None


def _forms(name: str) -> tuple[str, str | None]:
    """Returns the letters and digits of a name, and its initials if it has several words."""
    words = re.findall(r"[^\W_]+", name.casefold())
    return "".join(words), "".join(word[0] for word in words) if len(words) > 1 else None


def _hint(name: str, columns: Collection[Any]) -> str:
    likely = likely_column(name, columns)
    return f" (but {likely!r})" if likely is not None else ""


def check_columns(
    frame: DataFrame,
    space: SearchSpace,
    named: Sequence[tuple[str, Any]],
    missing: Mapping[str, Any],
    changed: bool,
) -> None:
    """Raises an error if columns of old runs are absent, occur twice, or have two meanings.

    Args:
        frame: The table.
        space: The search space.
        named: Pairs of an argument and the column that it names.
        missing: Values of parameters that the table does not record.
        changed: Whether the search space may have changed, so that the table may lack parameters.

    Raises:
        InputDataError: If a column is absent or occurs twice, or if a parameter's column likely
            has another name.
        TypeError: If the name of a column is not hashable, or is ``None``.
        ValueError: If ``missing`` has a name that is not a parameter of the space.
    """
    used: dict[str, str] = {}
    for argument, column in named:
        if not isinstance(column, Hashable) or column is None:
            raise TypeError(f"{argument} is {column!r}: give the name of one column.")
        if column not in frame.columns:
            more = ", or add a column with each run's task" if argument == "task" else ""
            raise InputDataError(
                f"The table has no column {column!r}{_hint(str(column), frame.columns)}: name an "
                f"existing column by {argument}={more}."
            )
        if argument != "task" and column in space.columns:
            used[column] = "a parameter"
        if used.setdefault(column, (kind := f"the column of {argument}=")) != kind:
            raise InputDataError(
                f"The column {column!r} is both {used[column]} and {kind}: name another column by "
                f"{argument}=."
            )
    check_table(frame, [*space.columns, *used])
    if unknown := [name for name in missing if name not in space.columns]:
        raise ValueError(
            f"missing= names {unknown[0]!r}, which is no parameter of the search space: use one of "
            f"{', '.join(space.columns)}."
        )
    left = [column for column in frame.columns if column not in {*space.columns, *used}]
    absent = [name for name in space.columns if name not in frame.columns]
    for name in [name for name in absent if name not in missing]:
        if likely := likely_column(name, left):
            raise InputDataError(
                f"The table has no column for parameter {name!r}, but it has a column {likely!r}: "
                f"if they are the same, give rename={{{likely!r}: {name!r}}}, or rename the column "
                f"in the table. Otherwise give the value of {name!r} in the old runs by "
                f"missing={{{name!r}: ...}}, None if the value is unknown."
            )
        if changed:
            logger.info("No old run has %r: the old runs carry no information about it", name)
            if fits := [c for c in left if not is_measure(str(c)) and _fits(frame[c], name, space)]:
                logger.warning(
                    "No old run records the parameter %r, but old runs have a column %r with "
                    "values in its range: if they are the same, give rename={%r: %r}",
                    name,
                    fits[0],
                    fits[0],
                    name,
                )
    if changed and len(absent) == len(space.columns):
        raise InputDataError(
            f"The table has none of the parameters {', '.join(space.columns)}: map its columns to "
            "parameters by rename={'old name': 'new name'}."
        )


def _fits(column: Series, name: str, space: SearchSpace) -> bool:
    """Returns whether a column varies, and almost all its values are valid for a parameter."""
    parameter = next(p for p in space.parameters if p.name == name)
    values = column.dropna().drop_duplicates()
    if len(values) < 2 or parameter.is_numeric == is_text(values):
        return False
    try:
        unit = parameter.place(DataFrame({name: values}))
    except InputDataError:
        return False
    inside = np.isfinite(unit).all(axis=1) & (unit >= 0).all(axis=1) & (unit <= 1).all(axis=1)
    return bool(inside.mean() >= MOST)
