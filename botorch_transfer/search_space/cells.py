"""Reads cells as people write them: spreadsheet files, decimal commas, and numbers with a unit.

Read this to see what a table may contain besides plain numbers and text.
"""

from __future__ import annotations

import csv
import logging
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Container, Hashable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series
from pandas.api.types import is_numeric_dtype, is_object_dtype, is_string_dtype

logger = logging.getLogger(__name__)

UNIT = r"(?:[^\W\d_]|[%‰°µ])[^\d\s]*(?:[-^]\d+)?"

#: A number, optionally with a unit. A unit is one word that does not begin with a digit.
NUMBER = rf"^\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>{UNIT})?\s*$"

#: A number with a decimal comma, optionally with a sign such as ``<`` before it, and a unit or a
#: mark such as ``*`` after it. The groups are the parts before and after the comma.
DECIMAL_COMMA = (
    rf"^(\s*(?:[<>≤≥~=]+\s*)?[-+]?\d+),(\d+(?:[eE][-+]?\d+)?\s*(?:{UNIT})?\s*[*†‡]*\s*)$"
)


#: Units that can be converted: the base unit, the factor and the offset of each unit.
SCALES = {
    f"{prefix}{unit}": ("L" if unit == "l" else unit, factor, 0.0)
    for unit in ("g", "L", "l", "mol", "M", "m", "s", "Pa", "bar", "V", "W", "A", "Hz", "J")
    for prefix, factor in {"": 1.0, "k": 1e3, "m": 1e-3, "µ": 1e-6, "μ": 1e-6, "n": 1e-9}.items()
} | {
    "min": ("s", 60.0, 0.0),
    "h": ("s", 3600.0, 0.0),
    "K": ("K", 1.0, 0.0),
    "°C": ("K", 1.0, 273.15),
    "C": ("K", 1.0, 273.15),
    "°F": ("K", 5 / 9, 459.67 * 5 / 9),
}

#: Largest share of cells without a number in a column that is read as numbers.
MAX_SLIPS = 0.1


@contextmanager
def errors_in(place: str) -> Iterator[None]:
    """Adds a prefix to the message of an ``InputDataError`` that is raised in the context.

    Args:
        place: The prefix, such as the name of the table.

    Raises:
        InputDataError: If an ``InputDataError`` is raised in the context.

    Example:
        >>> with errors_in("In the runs"):
        ...     frame = DataFrame({"x": [1, 2]})
    """
    try:
        yield
    except InputDataError as error:
        raise InputDataError(f"{place}: {error}") from error


def decoded(path: str | PathLike[str]) -> tuple[str, str]:
    r"""Reads a text file in UTF-8, with or without a byte order mark, UTF-16 or Windows' cp1252.

    Args:
        path: The file.

    Returns:
        The text, and the name of the encoding.

    Raises:
        ValueError: If the file is no text file.

    Example:
        >>> _ = Path("runs.csv").write_text("time (min);yield\n1,5;80\n", encoding="utf-16")
        >>> decoded("runs.csv")[1]
        'utf-16'
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"The file is a {type(path).__name__}: give the name of a file.")
    raw = Path(path).read_bytes()
    marks = {BOM_UTF8: "utf-8-sig", BOM_UTF16_LE: "utf-16", BOM_UTF16_BE: "utf-16"}
    encoding = next((name for mark, name in marks.items() if raw.startswith(mark)), "utf-8")
    if encoding != "utf-16" and b"\0" in raw:
        raise ValueError(f"{path} is no text file: save it as a text file.")
    try:
        return raw.decode(encoding), encoding
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace"), "cp1252"


def separator(text: str) -> str:
    r"""Finds the separator of a text file: a comma, a semicolon or a tab.

    Args:
        text: The text of the file.

    Returns:
        The most frequent of these characters in the line of column names.

    Example:
        >>> separator("time (min);yield\n1,5;80\n")
        ';'
    """
    line = next((line for line in text.splitlines() if line.strip()), "")
    if line.startswith("sep=") and len(line) == 5:  # Excel writes such a line
        return line[4]
    return max(",;\t", key=re.sub(r'"[^"]*"', "", line).count)


def read_table(path: str | PathLike[str], choices: Container[str] = ()) -> DataFrame:
    r"""Reads a table from a file, as the command line does.

    In columns of text and in ``choices``, "None" and "nan" are words, not empty cells. Cells of a
    text file are separated by commas, semicolons or tabs. With semicolons or tabs, numbers may have
    a decimal comma. The index numbers the rows as a spreadsheet does: the row of column names is
    row 1. Empty rows are left out.

    Args:
        path: A text file, or an Excel file (``.xlsx``; needs openpyxl), whose first sheet is read.
        choices: Columns that hold choices, not numbers.

    Returns:
        The table.

    Raises:
        ValueError: If the file is empty or is no table, or if the number of cells in a row differs
            from the number of column names.

    Example:
        >>> _ = Path("runs.csv").write_text("solvent;time;yield\nTHF;1,5;80\n")
        >>> read_table("runs.csv")
          solvent  time  yield
        2     THF   1.5     80
    """
    words: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
    sep = ","
    if str(path).lower().endswith((".xlsx", ".xlsm", ".xls")):
        frame, text = (_read_sheet(path, **options) for options in ({}, words))
    else:
        content = decoded(path)[0]
        sep = separator(content)
        lines = even_lines(path, content, sep)
        even = StringIO()
        csv.writer(even, delimiter=sep).writerows(lines.values())
        frame, text = (pd.read_csv(StringIO(even.getvalue()), sep=sep, **o) for o in ({}, words))
        frame.index = text.index = pd.Index(list(lines)[1:])
    for name in frame.columns:
        if name in choices or not is_numeric_dtype(frame[name]) or frame[name].isna().all():
            frame[name] = text[name].map(stripped)
        if sep != "," and is_text(frame[name]):
            points = frame[name].replace(DECIMAL_COMMA, r"\1.\2", regex=True)
            numbers = pd.to_numeric(points, errors="coerce")
            if name in choices:  # "64,32" may be the sizes of layers
                frame[name] = points.where(numbers.isna(), frame[name])
            else:
                frame[name] = numbers if numbers.notna().equals(points.notna()) else points
    return frame.dropna(how="all")


def even_lines(path: str | PathLike[str], content: str, sep: str) -> dict[int, list[str]]:
    """Splits a text file into cells, and drops empty cells after the last column.

    Args:
        path: The file, for messages.
        content: The text of the file.
        sep: The separator.

    Returns:
        Mapping from row numbers, counted from 1, to the cells of the row. The first row has the
        column names. Empty rows are left out.

    Raises:
        ValueError: If the file is empty or is no table, if two columns have the same name, or if
            the number of cells in a row differs from the number of column names.
    """
    try:
        rows = list(csv.reader(StringIO(content), delimiter=sep, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file ({error}).") from error
    found: dict[int, list[str]] = {}
    for row, line in enumerate(rows, start=1):
        if not any(map(str.strip, line)) or (not found and line[0].startswith("sep=")):
            continue
        width = len(next(iter(found.values()), line))
        if len(line) < width or any(map(str.strip, line[width:])):
            raise ValueError(
                f"{path} has {len(line)} cells in row {row} and {width} column names: put text "
                f"that contains {sep!r} in quotation marks, and write a separator for "
                "each empty cell."
            )
        found[row] = line[:width]
    if not found:
        raise ValueError(f"{path} is empty: it needs a line of column names.")
    names = [name.strip() for name in next(iter(found.values()))]
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise ValueError(f"{path} has two columns {twice[0]!r}: rename one of them.")
    return found


def _read_sheet(path: str | PathLike[str], **options: Any) -> DataFrame:
    """Reads the first sheet of an Excel file, with the row numbers of the sheet."""
    try:
        frame = pd.read_excel(path, **options)
    except ImportError as error:
        raise ValueError(
            f"{path} is an Excel file, which needs openpyxl: install botorch_transfer[excel]."
        ) from error
    except (BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no Excel file: does it have text, as .csv?") from error
    frame.index += 2
    return frame


def stripped(cell: Any) -> Any:
    """Strips blanks from text, and writes lists as text; returns other cells unchanged."""
    return str(cell).strip() if isinstance(cell, str) or not isinstance(cell, Hashable) else cell


def is_text(column: Series) -> bool:
    """Returns whether a column may contain text."""
    kind = column.dtype
    return is_object_dtype(kind) or is_string_dtype(kind) or isinstance(kind, pd.CategoricalDtype)


def plain(value: Any) -> Any:
    """Converts a NumPy scalar to a Python object."""
    return value.item() if isinstance(value, np.generic) else value


def refuse_cell(
    bad: NDArray[np.bool_], column: Series, reason: str, what: str = "The column", verb: str = "has"
) -> None:
    """Raises an ``InputDataError`` about the first cell where ``bad`` is true, if any.

    Args:
        bad: An ``n`` array.
        column: A column with ``n`` cells.
        reason: The end of the sentence, after the cell and the row.
        what: The first words of the sentence, before the name of the column.
        verb: The verb between the name and the value of the cell.

    Raises:
        InputDataError: If ``bad`` is true anywhere.
    """
    if not bad.any():
        return
    first, others = int(np.argmax(bad)), int(bad.sum()) - 1
    is_empty = column.isna().iloc[first]
    found = "has no value" if is_empty else f"{verb} {plain(column.iloc[first])!r}"
    rows = {0: "", 1: " (and one more row)"}.get(others, f" (and {others:,} more rows)")
    where = f"in row {column.index[first]}{rows}"
    raise InputDataError(f"{what} {column.name!r} {found} {where}, {reason}.")


def check_same_units(tables: Mapping[str, DataFrame], columns: Collection[Any]) -> None:
    """Raises an error if two tables have different units in the same column.

    Args:
        tables: Mapping from a name for the message to a table. A table may lack some of the
            columns, and cells without a unit agree with every unit.
        columns: Columns that hold numbers.

    Raises:
        InputDataError: If the first units of two tables differ.

    Example:
        >>> tables = {"runs": DataFrame({"T": ["90 °C"]}), "candidates": DataFrame({"T": [80, 90]})}
        >>> check_same_units(tables, ["T"])
    """
    for name in columns:
        found: dict[Any, tuple[str, str]] = {}
        for what, table in tables.items():
            for parts in _split(table, [name]).values():
                for unit in parts["unit"].dropna()[:1]:
                    found.setdefault(SCALES.get(unit, unit), (unit, what))
        if len(found) > 1:
            (unit, what), (other, where) = list(found.values())[:2]
            raise InputDataError(
                f"{name!r} is in {unit!r} in the {what} and in {other!r} in the {where}: convert "
                "one of them."
            )


def _split(frame: DataFrame, columns: Collection[Any]) -> dict[Any, DataFrame]:
    """Splits the cells of columns of text into numbers and units; skips duplicate columns."""
    names = list(frame.columns)
    texts = [n for n in names if n in columns and names.count(n) == 1 and is_text(frame[n])]
    return {name: frame[name].astype(str).str.extract(NUMBER) for name in texts}


def with_numbers(frame: DataFrame, columns: Collection[Any], whole: bool = False) -> DataFrame:
    """Converts cells such as ``"110 °C"`` to numbers, and logs the unit.

    If a column has several units, all numbers are converted to the first unit.

    Args:
        frame: A table; it may lack some of the columns.
        columns: Columns that hold numbers. Text without a number does not change.
        whole: Whether to convert a column only if almost all of its cells are numbers in one unit;
            all other columns stay text. In a converted column, the few other cells are emptied, and
            the log counts these cells.

    Returns:
        A table with the numbers.

    Raises:
        InputDataError: If a column has several units that cannot be converted.

    Example:
        >>> frame = DataFrame({"time": ["10.0 min", "90 min", None], "yield": [0.1, 0.3, 0.2]})
        >>> with_numbers(frame, ["time", "yield"])["time"].tolist()
        [10.0, 90.0, nan]
    """
    frame = frame.copy(deep=False)
    units: list[str] = []
    for name, parts in _split(frame, columns).items():
        found, slips, written = parts["number"].notna(), frame[name][:0], frame[name]
        kinds = parts["unit"].map(lambda unit: SCALES.get(unit, [unit])[0], "ignore")
        first = parts["unit"][kinds.notna() & ~kinds.duplicated()]
        found_in = ", ".join(f"{unit!r} in row {row}" for row, unit in first.head(2).items())
        problem = f"The column {name!r} has numbers in several units ({found_in})"
        if whole:
            words = frame[name].notna() & ~found
            found &= kinds.isna() | kinds.isin(kinds.mode()[:1])
            slips = frame[name][frame[name].notna() & ~found]
            if len(slips) > MAX_SLIPS * found.sum():
                if len(first) in (2, 3) and words.sum() <= MAX_SLIPS * found.sum():
                    logger.warning(
                        "%s: convert them to one unit, or the column stays text", problem
                    )
                continue
            frame[name] = frame[name].where(found)
        elif len(first) > 1:
            raise InputDataError(f"{problem}: convert them to one unit.")
        named = parts["unit"][found].dropna().unique().tolist()
        if not named and slips.empty:
            continue
        numbers = pd.to_numeric(parts["number"])
        for unit in named[1:]:
            (_, a, b), (_, c, d) = SCALES[unit], SCALES[named[0]]
            converted = ((a * numbers + b - d) / c).map(lambda x: float(f"{x:.12g}"))
            numbers = numbers.where(parts["unit"] != unit, converted)
        frame[name] = frame[name].astype(object).mask(found, numbers).infer_objects()
        if named:
            units.append(f"{name!r} in {' and (converted) '.join(named)}")
            odd = parts["unit"].notna() & found & ~parts["unit"].isin(list(SCALES))
            if 0 < 2 * odd.sum() < found.sum():  # most cells are bare numbers
                text = "%r has text behind the number in few rows, as %r in row %s: check them"
                logger.warning(text, name, written[odd].iloc[0], odd.idxmax())
        if len(slips):
            text = "%r has no number in %d rows, as %r in row %s: correct or empty such cells"
            logger.info(text, name, len(slips), slips.iloc[0], slips.index[0])
    if units:
        logger.info("Read as numbers: %s", ", ".join(units))
    return frame


def rows_of_tasks(column: Series) -> dict[str, NDArray[np.intp]]:
    """Finds the rows of each task.

    Args:
        column: The column of task names, which are compared as text.

    Returns:
        Mapping from task names, in order of first appearance, to the positions of the rows.

    Raises:
        InputDataError: If a row has no task.

    Example:
        >>> rows_of_tasks(Series(["tue", "mon", "tue"]))
        {'tue': array([0, 2]), 'mon': array([1])}
    """
    problem = "so the run has no task: name the task, or drop the row"
    refuse_cell(column.isna().to_numpy(), column, problem)
    names = column.map(stripped).astype(str).to_numpy()
    positions = Series(np.arange(len(names)))
    return {str(name): rows.to_numpy() for name, rows in positions.groupby(names, sort=False)}
