"""Renames the columns of tables of old runs, and checks that all needed columns are present."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError
from pandas import DataFrame, Series

from botorch_transfer.search_space import Parameter, SearchSpace
from botorch_transfer.search_space.cells import SCALES, TIMES, hint, is_text, likely_column, sheets
from botorch_transfer.search_space.guess import is_measure
from botorch_transfer.search_space.space import check_table

logger = logging.getLogger(__name__)


def renamed(frame: DataFrame, rename: Mapping[str, str]) -> DataFrame:
    """Renames columns of a table of old runs.

    Args:
        frame: The table.
        rename: Mapping from old names to new names of columns.

    Returns:
        The table with the new names. All names are text.

    Raises:
        InputDataError: If the table lacks a column that ``rename`` names, if a new name is not
            text, or if two columns would have the same name.
    """
    frame = check_table(frame, (), rename)
    rename = {str(old): new for old, new in rename.items()}
    for old, new in rename.items():
        if not isinstance(new, str):
            raise InputDataError(f"rename= gives {old!r} the name {new!r}: give one name as text.")
        if old not in frame.columns:
            text = f"rename= names the column {old!r}, which the table lacks"
            raise InputDataError(f"{text}{hint(old, frame.columns)}: correct the old name.")
        if _have_different_units(old, new):
            text = "rename= gives %r the name %r, which has another unit: convert the values"
            logger.warning(text, old, new)
    names = [rename.get(name, name) for name in frame.columns]
    if twice := [name for name in rename.values() if names.count(name) > 1]:
        raise InputDataError(f"rename= gives two columns the name {twice[0]!r}: drop one column.")
    return frame.set_axis(names, axis=1)


def _have_different_units(*names: str) -> bool:
    """Returns whether column names, such as "time [h]" and "minutes", end with different units."""
    pattern = re.compile(r"(?:^(?=\w{3})|[\s_(/\[])(°?[^\W\d_]+)[)\]]?\s*$")
    words = ["".join(pattern.findall(name)) for name in names]
    units = [SCALES.get(TIMES.get(word.lower(), word)) for word in words]
    return None not in units and len({*units}) > 1


def _rename(old: str, new: str) -> str:
    """Returns the advice to rename a column of old runs to the name of a parameter."""
    if _have_different_units(old, new):
        return f"if both mean the same, convert the values, and name the column {new!r}"
    return f"if both mean the same, pass rename={{{old!r}: {new!r}}}"


def check_columns(
    frame: DataFrame,
    space: SearchSpace,
    named: Sequence[tuple[str, Any]],
    missing: Mapping[str, Any],
    changed: bool,
) -> DataFrame:
    """Checks that a table of old runs has each needed column once, and that no column has two uses.

    Args:
        frame: The table.
        space: The search space.
        named: Pairs of an argument, such as ``"task"``, and the column that this argument names.
        missing: Values of parameters that the table does not record, by parameter name; ``None``
            for an unknown value.
        changed: Whether the search space may have changed, so that the table may lack parameters.

    Returns:
        The table. A column name is replaced by the name of a parameter, or by a column name in
        ``named``, if the two names are equal except for the Unicode form of accents.

    Raises:
        InputDataError: If a column is absent, occurs twice or has two uses, such as parameter and
            outcome. Also if a parameter's column likely has another name.
        ValueError: If ``missing`` has a name that is not a parameter of the space, or a value that
            its parameter cannot have.
    """
    used: dict[Any, str] = dict.fromkeys(space.columns, "a parameter")
    frame = check_table(frame, [*used, *(column for _, column in named)])
    for argument, column in named:
        if not isinstance(column, Hashable) or column not in frame.columns:
            more = ", or add a column with each run's task" if argument == "task" else ""
            names = ", ".join(map(repr, frame.columns[:20]))
            raise InputDataError(
                f"The table has no column {column!r}{hint(str(column), frame.columns)}: choose "
                f"an existing column for {argument}={more}. The table's columns are "
                f"{names}{', ...' if len(frame.columns) > 20 else ''}.{sheets(frame)}"
            )
        kind = f"the column of {argument}="
        other = used.setdefault(column, kind)
        if other != kind and (argument, other) != ("task", "a parameter"):
            text = f"The column {column!r} is both {other} and {kind}"
            raise InputDataError(f"{text}: choose another column for {argument}=.")
    if unknown := [name for name in missing if name not in space.columns]:
        text = f"missing= names {unknown[0]!r}, which is not a parameter"
        raise ValueError(f"{text}: use one of {', '.join(space.columns)}.")
    for each in (p for p in space.parameters if missing.get(p.name) is not None):
        value, place = missing[each.name], np.array([np.nan])
        with suppress(InputDataError):
            place = each.place(DataFrame({each.name: [value]}))
        if not np.isfinite(place).all():
            text = f"missing= gives the parameter {each.name!r} the invalid value {value!r}"
            valid = ", ".join(map(repr, getattr(each, "values", ()))) or "a number without a unit"
            raise ValueError(f"{text}: give {valid}, or None if unknown (--missing NAME).")
        if each.name in frame and frame[each.name].notna().all():
            text = "missing= has no effect on %r, which each old run records: omit %r from missing="
            logger.warning(text, each.name, each.name)
        elif not ((place >= 0) & (place <= 1)).all():
            logger.warning("The value of %r in missing= is out of range: correct it", each.name)
    left = [column for column in frame.columns if column not in used]
    absent = [p for p in space.parameters if p.name not in frame.columns]
    empty = [p for p in space.parameters if p not in absent and frame[p.name].isna().all()]
    empty = [p for p in empty if changed and p.active_if is None and not p.may_be_empty]
    for parameter in [p for p in (*absent, *empty) if p.name not in missing]:
        name = parameter.name
        if parameter in absent and (likely := likely_column(name, left)):
            raise InputDataError(
                f"The table has no column for parameter {name!r}, but it has a column {likely!r}: "
                f"{_rename(likely, name)}. If they differ in meaning, pass "
                f"missing={{{name!r}: ...}} with the old runs' value, or None if it is unknown."
            )
        if changed:
            text = f"No old run records {name!r}, so old runs carry no information about {name!r}: "
            text += f"pass missing={{{name!r}: ...}} with the old runs' value, or None if unknown"
            if fits := [c for c in left if not is_measure(str(c)) and _fits(frame[c], parameter)]:
                text += f". Old runs have a column {fits[0]!r} with values in the same range: "
                text += _rename(str(fits[0]), name)
            logger.warning(text)
    if changed and len(absent) == len(space.columns):
        problem = f"The table has none of the parameters {', '.join(space.columns)}"
        remedy = "map the table's columns to parameters by rename={'old name': 'new name'}."
        raise InputDataError(f"{problem}: {remedy}{sheets(frame)}")
    return frame


def _fits(column: Series, parameter: Parameter) -> bool:
    """Returns whether a column has at least two different values, all valid for the parameter."""
    values = column.dropna().drop_duplicates()
    if len(values) < 2 or parameter.is_numeric == is_text(values):
        return False
    with suppress(InputDataError):
        parameter.encode(DataFrame({parameter.name: values}))
        return True
    return False
