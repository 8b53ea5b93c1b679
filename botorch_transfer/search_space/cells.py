"""Cells as people write them: files of spreadsheets, decimal commas, and numbers with a unit.

Read this for what is accepted in a table besides plain numbers and text.
"""

from __future__ import annotations

import logging
from codecs import BOM_UTF8
from collections.abc import Collection, Container, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series
from pandas.api.types import is_numeric_dtype, is_object_dtype, is_string_dtype

logger = logging.getLogger(__name__)

UNIT = r"(?:[^\W\d_]|[%‰°µ])[^\d\s]*(?:[-^]\d+)?"

NUMBER = rf"^\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>{UNIT})?\s*$"
"""A number and maybe its unit: one word that does not begin with a digit."""

DECIMAL_COMMA = (
    rf"^(\s*(?:[<>≤≥~=]+\s*)?[-+]?\d+),(\d+(?:[eE][-+]?\d+)?\s*(?:{UNIT})?\s*[*†‡]*\s*)$"
)
"""The same with a comma for the point, maybe as a bound or with a mark: the parts around it."""


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
"""Units that can be converted: the unit behind each, the factor and the offset."""

MAX_SLIPS = 0.1
"""The largest share of cells that may be something else in a column that is taken for numbers."""


@contextmanager
def errors_in(place: str) -> Iterator[None]:
    """Lets an error about a table's cells begin with which table it is.

    Args:
        place: Where the cells are.

    Raises:
        InputDataError: If one is raised inside, with the place before its message.

    Example:
        >>> with errors_in("In the runs"):
        ...     frame = DataFrame({"x": [1, 2]})
    """
    try:
        yield
    except InputDataError as error:
        raise InputDataError(f"{place}: {error}") from error


def style(path: Path) -> tuple[str, str]:
    r"""Finds what stands between the cells of a file, and whether it begins as Excel saves UTF-8.

    Args:
        path: The file.

    Returns:
        The sign that the line of column names has most often: a comma, a semicolon or a tab. And
        the encoding.

    Example:
        >>> _ = Path("runs.csv").write_text("time (min);yield\n1,5;80\n")
        >>> style(Path("runs.csv"))
        (';', 'utf-8')
    """
    with path.open("rb") as file:
        line = file.readline()
    encoding = "utf-8-sig" if line.startswith(BOM_UTF8) else "utf-8"
    return max(",;\t", key=line.decode(encoding).count), encoding


def read_table(path: str | PathLike[str], choices: Container[str] = ()) -> DataFrame:
    r"""Reads a text file as the command does.

    In text and in columns of ``choices`` only an empty cell is empty: "None" and "nan" are words.
    Cells are separated by commas, or by semicolons or tabs; a comma in a number is then a point.
    Rows have the numbers that a spreadsheet gives them, and empty rows are left out.

    Args:
        path: The file, in UTF-8.
        choices: Columns that hold choices, not numbers.

    Returns:
        The table.

    Raises:
        ValueError: If the file is empty, or no table.

    Example:
        >>> _ = Path("runs.csv").write_text("solvent;time;yield\nTHF;1,5;80\n")
        >>> read_table("runs.csv")
          solvent  time  yield
        2     THF   1.5     80
    """
    try:
        sep, _ = style(Path(path))
        frame = pd.read_csv(path, sep=sep, skipinitialspace=True)
        options: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
        text = pd.read_csv(path, sep=sep, skipinitialspace=True, **options)
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} is empty: it needs a line of column names.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8: save it as 'CSV UTF-8'.") from error
    except pd.errors.ParserError as error:
        raise ValueError(f"{path} is no CSV file ({' '.join(str(error).split())}).") from error
    for name in frame.columns:
        if name in choices or not is_numeric_dtype(frame[name]):
            frame[name] = text[name].map(stripped)
        if sep != "," and is_text(frame[name]):
            points = frame[name].replace(DECIMAL_COMMA, r"\1.\2", regex=True)
            numbers = pd.to_numeric(points, errors="coerce")
            if numbers.notna().equals(points.notna()):
                points = frame[name] if name in choices else numbers
            frame[name] = points
    frame.index += 2
    return frame.dropna(how="all")


def stripped(cell: Any) -> Any:
    """Text without blanks around it; other cells as they are."""
    return cell.strip() if isinstance(cell, str) else cell


def is_text(column: Series) -> bool:
    """Whether a column may have text in its cells."""
    return is_object_dtype(column.dtype) or is_string_dtype(column.dtype)


def with_numbers(frame: DataFrame, columns: Collection[Any], whole: bool = False) -> DataFrame:
    """Reads cells such as ``"110 °C"`` as numbers, and says in the log what their unit is.

    If a column has several units, all numbers are converted to the first of them.

    Args:
        frame: A table; it may lack the columns.
        columns: Those that hold numbers. Other text in them stays as it is.
        whole: Whether to read only columns of such numbers. In a few cells may be something else,
            which counts as empty; the log says so. If units cannot be converted, it stays text.

    Returns:
        A table with the numbers.

    Raises:
        InputDataError: If a column has several units that cannot be converted.

    Example:
        >>> frame = DataFrame({"time": ["10.0 min", "90 min", None], "yield": [0.1, 0.3, 0.2]})
        >>> with_numbers(frame, ["time", "yield"])["time"].tolist()
        [10.0, 90.0, nan]
    """
    frame, names = frame.copy(deep=False), list(frame.columns)
    units: list[str] = []
    for name in (name for name in names if name in columns and names.count(name) == 1):
        if not is_text(frame[name]):
            continue
        parts = frame[name].astype(str).str.extract(NUMBER)
        found, slips = parts["number"].notna(), frame[name][:0]
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
                    logger.warning("%s: convert them to one unit, or they count as text", problem)
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
        if len(slips):
            text = "%r is no such number in %d rows, as %r in row %s: correct it or empty the cell"
            logger.info(text, name, len(slips), slips.iloc[0], slips.index[0])
    if units:
        logger.info("Read as numbers: %s", ", ".join(units))
    return frame


def rows_of_tasks(column: Series) -> dict[str, NDArray[np.intp]]:
    """Finds the rows of each task.

    Args:
        column: The column of the tasks' names, which are compared as text.

    Returns:
        The positions of each task's rows, in order of first appearance.

    Raises:
        InputDataError: If a row has no task.

    Example:
        >>> rows_of_tasks(Series(["tue", "mon", "tue"]))
        {'tue': array([0, 2]), 'mon': array([1])}
    """
    if column.isna().any():
        row = column.index[int(column.isna().to_numpy().argmax())]
        others = int(column.isna().sum()) - 1
        more = f" (and {others:,} other rows)" if others else ""
        raise InputDataError(
            f"Row {row}{more} has no task in the column {column.name!r}: name it or drop the row."
        )
    names = column.map(stripped).astype(str).to_numpy()
    positions = Series(np.arange(len(names)))
    return {str(name): rows.to_numpy() for name, rows in positions.groupby(names, sort=False)}
