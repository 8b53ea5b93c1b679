"""Reads tables as people write them: spreadsheets, decimal commas, units, and codes.

Read this to see what a table may contain besides plain numbers and text. A *code* is a number in
place of a missing value, such as -999. :func:`hint` finds similar names, for messages about a
column or a value that does not exist.
"""

from __future__ import annotations

import csv
import difflib
import logging
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import defaultdict
from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any
from unicodedata import normalize
from zipfile import BadZipFile, is_zipfile

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series
from pandas.api.types import is_numeric_dtype, is_object_dtype, is_string_dtype

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

MONTH = (
    r"(?i:jan(?:uary|uar)?|feb(?:ruary|ruar)?|mar(?:ch)?|märz?|mrz|apr(?:il)?|may|mai|june?|juni"
    r"|july?|juli|aug(?:ust)?|sept?(?:ember)?|o[ck]t(?:ober)?|nov(?:ember)?|de[cz](?:ember)?)\b\.?"
)

#: Pattern of a unit: one word that does not begin with a digit. The name of a month is not a unit,
#: because spreadsheets turn a text such as ``2-5`` into a date such as ``2. Mai``.
UNIT = rf"(?!{MONTH})(?:[^\W\d_]|[%‰°µ])[^\d\s]*(?:[-^]\d+)?"

#: Patterns of cells with a date, a duration or an error. ``REMARKS`` maps patterns of unusual cells
#: to remarks for messages about such cells.
DATE = (
    r"\s*(?:(?:19|20)\d\d([-/])(?:0?[1-9]|1[0-2])\1[0-3]?\d|\d\d?([./])\d\d?\2(?:\d{2,4})?"
    rf"|\d\d?[\s.-]*{MONTH}[\s.-]*(?:\d{{2,4}})?|{MONTH}[\s.-]*\d{{1,4}})(?:[ T]\d\d?:\d\d\S*)?\s*"
)
DURATION = r"\s*(?:(?:-?\d+ days? \+?)?\d+:\d\d(?::\d\d\S*)?|(?:\d+ ?(?:h|min|m|s) ?){2,})\s*"
EXCEL_ERROR = r"\s*#(?:[A-Z/0]+[!?]|N/A|NV|#+)\s*"
REMARKS = {
    DATE: " (it looks like a date)",
    DURATION: " (it looks like a duration: write a number, such as minutes)",
    EXCEL_ERROR: " (it is an error of Excel)",
    r"\s*[-+]?[1-9]\d{0,2}(?:[,' ]\d{3})+\s*": " (maybe with a separator of thousands)",
}

#: Pattern of a number, optionally with a unit.
NUMBER = rf"^\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>{UNIT})?\s*$"

#: Pattern of a number that may have points or commas. A sign such as ``<`` may precede the number.
#: A unit, a standard error and a mark such as ``*`` may follow.
SEPARATED = re.compile(
    rf"[^\w.,]*\d[\d.,]*(?:e[-+]?\d+)?\s*(?:{UNIT})?"
    rf"(?:\s*(?:±|\+/-|\+-)\s*\d[\d.,]*\s*(?:{UNIT})?)?\s*[*†‡]*\s*",
    re.IGNORECASE,
)

#: Pattern of digits in groups of three. The separator of the groups, {0}, is a comma or a point.
GROUPS = r"(?<![\d.,])[1-9]\d{{0,2}}(?:{0}\d{{3}})+(?![{0}\d])"

#: Mapping from each decimal mark, a comma or a point, to a pattern of numbers that certainly have
#: this decimal mark. The mark is certain if the number also has separators of thousands, or if the
#: number of digits after the mark is not three.
SHOWS = {
    mark: r"^[^\w.,]*(?:[1-9]\d{{0,2}}{1}\d{{3}}(?:{0}\d|{1}\d{{3}}(?!\d))"
    r"|(?![1-9]\d{{0,2}}{0}\d{{3}}(?!\d))\d+{0}\d+(?![\d.,]))".format(*pair)
    for mark, pair in {",": (",", r"\."), ".": (r"\.", ",")}.items()
}

#: Pattern of a choice such as ``64`` or ``64,32``, which may list the sizes of a network's layers.
LIST = r"\s*(?:[4-9]|[1-9]\d+)(?:,[1-9]\d+)*\s*"

#: Units that can be converted. Each unit maps to its base unit, and to the factor and the offset
#: that convert a number to the base unit.
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

#: Mapping from words for units of time to the units.
TIMES = {"s": "s", "sec": "s", "seconds": "s", "min": "min", "mins": "min", "minutes": "min"}
TIMES |= {"h": "h", "hr": "h", "hrs": "h", "hour": "h", "hours": "h"}

#: Words in the names of outcomes in per cent.
PER_CENT = {"%", "percent", "pct", "yield", "conversion", "selectivity", "purity", "ee", "accuracy"}

#: Words in names, such as "strength" in "yield strength", of outcomes that are not in per cent,
#: even if the name also has a word in ``PER_CENT``.
ANOTHER = {"strength", "stress", "crop", "gain", "change", "drop", "difference", "delta", "log"}

#: Numbers that often code a missing outcome, such as 999 and 1e30.
USUAL_CODE = re.compile(
    r"9{3,}(?:\.9+)?|10{3,}|1e\+\d+|2147483647|2147483648|32767|32768|3\.40282\d*e\+38"
)

#: Least distance of a code from all other outcomes, divided by the 5 % to 95 % range of the other
#: outcomes. ``FAR`` is for a usual code that occurs several times, ``FAR_ONCE`` for a usual code
#: that occurs once, and ``FAR_ODD`` for any other number that occurs at least three times.
FAR, FAR_ONCE, FAR_ODD = 2.0, 100.0, 50.0

#: Numbers that often code a missing value of a parameter. Powers of ten below 1e15 are left out,
#: because they are often ordinary values of parameters.
PARAMETER_CODE = re.compile(r"-1|-99|-?(?:9{3,}(?:\.9+)?)|1e\+\d+|2147483647|3\.40282\d*e\+38")

#: Usual names of a summary row at the end of a table.
SUMMARY = re.compile(
    "average|avg|mean|median|sum|total|std|stdev|sd|min|max|mittelwert|durchschnitt|summe|gesamt|"
    "standardabweichung|moyenne|somme|promedio|suma",
    re.IGNORECASE,
)

#: Least number of distinct values of a parameter among which a typing error is searched.
ENOUGH_LEVELS = 11

#: Words that mean "true" and words that mean "false", in lower case.
TRUE, FALSE = {"true", "yes", "y", "on", "1", "ja"}, {"false", "no", "n", "off", "0", "nein"}

#: Maximum ratio of cells without a number to cells with a number in a column that is read as
#: numbers.
MAX_SLIPS = 0.1


#: Name of the attribute of a table that holds a remark on the sheets of the table's Excel file.
SHEETS = "sheets"


@contextmanager
def errors_in(place: str) -> Iterator[None]:
    """Adds a prefix to the message of an ``InputDataError`` that a ``with`` block raises.

    Args:
        place: The prefix, such as the name of the table.

    Raises:
        InputDataError: If the ``with`` block raises an ``InputDataError``.

    Example:
        >>> with errors_in("In the runs"):
        ...     frame = DataFrame({"x": [1, 2]})
    """
    try:
        yield
    except InputDataError as error:
        raise InputDataError(f"{place}: {error}") from error


def decoded(path: str | PathLike[str]) -> tuple[str, str]:
    r"""Reads a text file that is encoded in UTF-8, UTF-16 or cp1252, and finds its encoding.

    Args:
        path: The file.

    Returns:
        The text, and the name of the encoding.

    Raises:
        OSError: If the file is missing, is a folder, or cannot be read.
        ValueError: If the file is not a text file.

    Example:
        >>> _ = Path("runs.csv").write_text("time (min);yield\n1,5;80\n", encoding="utf-16")
        >>> decoded("runs.csv")[1]
        'utf-16'
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"The file name is a {type(path).__name__}: give a text or a Path.")
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise type(error)(about_file(path, error)) from error
    marks = {BOM_UTF8: "utf-8-sig", BOM_UTF16_LE: "utf-16", BOM_UTF16_BE: "utf-16"}
    encoding = next((name for mark, name in marks.items() if raw.startswith(mark)), "utf-8")
    if encoding != "utf-16" and b"\0" in raw:
        raise ValueError(f"{path} is not a text file: save the table as text, or as .xlsx.")
    try:
        return raw.decode(encoding), encoding
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace"), "cp1252"


def about_file(path: str | PathLike[str], error: OSError) -> str:
    """Returns a sentence that describes why a file could not be read or written.

    Args:
        path: The file.
        error: The error.

    Returns:
        The sentence.

    Example:
        >>> about_file("runs", IsADirectoryError())
        'runs is a folder: name a file in it.'
    """
    if isinstance(error, FileNotFoundError):
        return f"There is no file {path}."
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder: name a file in it."
    return f"{path} cannot be opened ({error.strerror}): check the file and its permissions."


def separator(text: str) -> str:
    r"""Finds the separator of a text file: a comma, a semicolon, a tab or a vertical bar.

    Args:
        text: The text of the file.

    Returns:
        The most frequent of these characters in the first line that has any of them. If this line
        has the form ``sep=;``, which Excel writes, the result is the character after ``sep=``.

    Example:
        >>> separator("time (min);yield\n1,5;80\n")
        ';'
    """
    line = next((line for line in text.splitlines() if re.search("[,;\t|]|^sep=", line)), "")
    mark = re.fullmatch("sep=(.)", line)  # Excel writes such a line
    return mark[1] if mark else max(",;\t|", key=re.sub(r'"[^"]*"', "", line).count)


def read_table(path: str | PathLike[str], choices: Container[str] = ()) -> DataFrame:
    r"""Reads a table from a file, as the command line does.

    In columns of text and in the columns ``choices``, "None" and "nan" are words, not empty cells.
    Cells of a text file are separated by commas, semicolons, tabs or vertical bars. Unless commas
    separate the cells, numbers may have a decimal comma and separators of thousands, see
    :func:`decimal_points`. The index of the table holds row numbers as in a spreadsheet: the row of
    column names is row 1. Empty rows are left out. A warning is logged if the first row seems to
    hold values instead of column names.

    Args:
        path: A text file, or an Excel file (``.xlsx``; needs openpyxl), whose first sheet is read.
            The content of the file determines its type; the ending of its name has no effect.
        choices: Columns that hold choices, not numbers.

    Returns:
        The table.

    Raises:
        OSError: If the file is missing, is a folder, or cannot be read.
        ValueError: If the file is empty or not a table, if most columns have no name, or if the
            number of cells in a row differs from the number of column names.

    Example:
        >>> _ = Path("runs.csv").write_text("solvent;time;yield\nTHF;1,5;80\n")
        >>> read_table("runs.csv")
          solvent  time  yield
        2     THF   1.5     80
    """
    words: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
    if isinstance(path, str | PathLike) and is_zipfile(path):
        frame, text = (_read_sheet(path, **options) for options in ({}, words))
    else:
        content = decoded(path)[0]
        if re.match(r'\s*(?:[\[{]\s*["\[{]|<!?\w)', content):
            raise ValueError(f"{path} is a JSON file or web page, not a table: save it as CSV.")
        sep = separator(content)
        names, *rows = (lines := even_lines(path, content, sep)).values()
        cells = DataFrame(rows, list(lines)[1:], names, dtype=object)
        pointed = decimal_points(cells, names if sep != "," else (), comma=True)
        for name, column in pointed.items():
            if name in choices:  # "64,32" may be the sizes of layers
                column = column.mask(cells[name].str.fullmatch(r"[\d\s.,+-]*"), cells[name])
            cells[name] = column
        even = cells.to_csv(sep=sep, index=False)
        frame, text = (pd.read_csv(StringIO(even), sep=sep, **o) for o in ({}, words))
        frame.index = text.index = cells.index
    for name in frame.columns:
        if name in choices or not is_numeric_dtype(frame[name]) or frame[name].isna().all():
            frame[name] = text[name].map(stripped)
    unnamed = [n for n in frame if str(n).startswith("Unnamed: ") and frame[n].notna().any()]
    if len(unnamed) > 1 and 2 * len(unnamed) >= len(frame.columns):
        raise ValueError(f"{path} has unnamed columns: name them, or delete rows above the names.")
    numbers = [n for n in frame if re.match(NUMBER, str(n).replace(",", "."))]
    if numbers and all((frame[n] == n).any() for n in frame if n not in numbers):
        note = "%s seems to have no column names (its first row is %s): add a row of column names"
        logger.warning(note, path, ", ".join(map(str, frame.columns[:5])))
    return frame.dropna(how="all")


def even_lines(path: str | PathLike[str], content: str, sep: str) -> dict[int, list[str]]:
    """Splits a text file into cells, and drops empty cells to the right of the last column.

    Blanks around cells are stripped. Rows of dashes count as empty rows, and so do rows that
    repeat the column names.

    Args:
        path: The file, for messages.
        content: The text of the file.
        sep: The separator.

    Returns:
        Mapping from the number of each row, counted from 1, to the list of its cells. The first
        row has the column names. Empty rows are left out.

    Raises:
        ValueError: If the file is empty or not a table, if two columns have the same name, if
            blanks separate the cells, or if the number of cells in a row differs from the number of
            column names.
    """
    try:
        lines = csv.reader(StringIO(content), delimiter=sep, skipinitialspace=True)
        rows = [[cell.strip() for cell in line] for line in lines]
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file ({error}).") from error
    found: dict[int, list[str]] = {}
    for row, line in enumerate(rows, start=1):
        if not "".join(line).strip("-: ") or (not found and line[0].startswith("sep=")):
            continue
        first = next(iter(found.values()), [])
        has_names = len(first) > 1 and not any(re.match(NUMBER, cell) for cell in first)
        if has_names and line == first:  # the names again, in pasted exports
            continue
        if has_names and sorted(line) == sorted(first):
            text = f"{path} repeats the column names in row {row} in another order"
            raise ValueError(f"{text}: use the same order in all parts of the table.")
        width = len(first or line)
        if len(line) < width or any(line[width:]):
            raise ValueError(
                f"{path} has {len(line)} cells in row {row}, but {width} column names: use "
                f"another separator if text or numbers contain {sep!r}, add missing separators of "
                "empty cells, or delete rows above the row of column names."
            )
        found[row] = line[:width]
    if not found:
        raise ValueError(f"{path} is empty: write a line of column names.")
    words = {len(line[0].split()) for line in found.values()}
    if width == 1 and len(words) == 1 and min(words) > 2:
        raise ValueError(f"{path} has blanks between the cells: separate the cells by semicolons.")
    names = next(iter(found.values()))
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise ValueError(f"{path} has two columns {twice[0]!r}: rename one column.")
    return found


def _read_sheet(path: str | PathLike[str], **options: Any) -> DataFrame:
    """Reads the first sheet of an Excel file; the index of the table holds the sheet's row numbers.

    If the file has several sheets, the attribute :data:`SHEETS` of the table holds a remark that
    names the sheets.
    """
    try:
        with pd.ExcelFile(path) as book:
            frame, (first, *others) = pd.read_excel(book, **options), book.sheet_names
            same = [n for n in others if [*pd.read_excel(book, sheet_name=n, nrows=0)] == [*frame]]
    except ImportError as error:
        problem = f"{path} is an Excel file, which needs openpyxl: install botorch_transfer[excel]."
        raise ValueError(problem) from error
    except (BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not an Excel file: save it as .xlsx or as text.") from error
    frame.index += 2
    if others:
        frame.attrs[SHEETS] = (
            f" The table of {path} is its first sheet, {first!r}. Other sheets are "
            f"{', '.join(map(repr, others))}: move the sheet with the runs to the first place."
        )
    if not options and others and frame.dropna(how="all").empty:
        logger.warning("The table has no rows.%s", frame.attrs[SHEETS])
    elif not options and same:  # read_table reads the sheet again, with options
        text = "%s: the sheets %s have the same columns as the first sheet, but are not read: copy "
        logger.warning(text + "all runs to one sheet with a column of tasks", path, same)
    return frame


def sheets(frame: DataFrame) -> str:
    """Returns a remark that names the sheets of a table's Excel file, for the end of a message.

    Returns "" unless the file has several sheets.
    """
    return str(frame.attrs.get(SHEETS, ""))


def stripped(cell: Any) -> Any:
    """Strips blanks around a text, and converts a list to text; returns other cells unchanged.

    Letters with accents become single characters (NFC), because files from macOS often have other
    characters for the same letters.
    """
    is_cell = not isinstance(cell, str) and isinstance(cell, Hashable)
    return cell if is_cell else normalize("NFC", str(cell).strip())


def as_known(names: Iterable[Any], known: Iterable[Any]) -> list[str]:
    """Converts names to text, and unifies the Unicode form of their accents.

    A name is replaced by a name in ``known`` if the two names are equal except for this form.

    Example:
        >>> as_known(["e\u0301t\u00e9", 1], ["\u00e9t\u00e9"]) == ["\u00e9t\u00e9", "1"]
        True
    """
    forms = {normalize("NFC", str(name)): str(name) for name in known}
    return [forms.get(normalize("NFC", text), text) for text in map(str, names)]


def with_known(given: Mapping[str, Any] | None, known: Iterable[Any]) -> dict[str, Any]:
    """Copies a mapping, and converts its keys by :func:`as_known`."""
    return dict(zip(as_known(given or (), known), (given or {}).values(), strict=True))


def warn_of_spellings(what: str, names: Iterable[Any]) -> None:
    """Warns of names that differ only in case, in blanks or in zeros, such as 1, 01 and 1.0.

    If all names mean "true" or "false", such as "yes" and "0", also warns of names with the same
    meaning.

    Args:
        what: The first words of the message.
        names: The names.
    """
    alike = defaultdict[str, list[str]](list)
    texts = {repr(name): "".join(stripped(str(name)).casefold().split()) for name in names}
    are_flags = {*texts.values()} <= TRUE | FALSE
    for name, text in texts.items():
        key = str(text in TRUE) if are_flags else re.sub(r"^0*(\d+?)(?:\.0*)?$", r"\1", text)
        alike[key].append(name)
    if same := "; ".join(" and ".join(names) for names in alike.values() if len(names) > 1):
        reason = "have the same meaning" if are_flags else "differ only in spelling"
        logger.warning("%s %s (%s): use one spelling", what, reason, same)


def is_text(column: Series) -> bool:
    """Returns whether a column may contain text."""
    kind = column.dtype
    return is_object_dtype(kind) or is_string_dtype(kind) or isinstance(kind, pd.CategoricalDtype)


def plain(value: Any) -> Any:
    """Converts a NumPy scalar to a Python object."""
    return value.item() if isinstance(value, np.generic) else value


def refuse_cell(bad: Any, column: Series, reason: str, what: str = "The column has") -> None:
    """Raises an ``InputDataError`` about the first cell for which ``bad`` is true, if any.

    Args:
        bad: An ``n`` array: whether each cell is invalid.
        column: A column with ``n`` cells.
        reason: The end of the message, after the value and the row of the cell.
        what: The first words of the message. The name of the column is inserted before the last
            word of ``what``.

    Raises:
        InputDataError: If a cell is invalid.
    """
    for sentence in _about_first(bad, column, reason, what):
        raise InputDataError(sentence)


def log_cell(bad: Any, column: Series, reason: str, level: int = logging.WARNING) -> None:
    """Logs a message about the first cell for which ``bad`` is true; see ``refuse_cell``."""
    for sentence in _about_first(bad, column, reason, "The column has"):
        logger.log(level, sentence)


def _about_first(bad: Any, column: Series, reason: str, what: str) -> Iterator[str]:
    """Yields a message about the first cell for which ``bad`` is true, if there is such a cell."""
    bad = np.asarray(bad, dtype=np.bool_)
    if not bad.any():
        return
    first, others = int(np.argmax(bad)), int(bad.sum()) - 1
    cell = plain(column.iloc[first])
    remarks = [remark for kind, remark in REMARKS.items() if re.fullmatch(kind, str(cell))]
    what, verb = what.rsplit(maxsplit=1)
    found = f"{verb} {cell!r}" if column.notna().iloc[first] else "has no value"
    rows = {0: "", 1: " (and one more row)"}.get(others, f" (and {others:,} more rows)")
    where = f"{''.join(remarks)} in row {column.index[first]}{rows}"
    yield f"{what} {column.name!r} {found}{where}, {reason}."


def check_same_units(
    tables: Mapping[str, DataFrame], columns: Collection[Any], are_outcomes: bool = False
) -> None:
    """Raises an error if two tables have different units in the same column.

    A warning is logged if three conditions hold: only some tables have a unit in the column; the
    column's name does not contain the unit; and the numbers with a unit differ much from the
    numbers without a unit. The third condition is not needed for kelvin, °F, units of time, and
    outcomes in per cent.

    Args:
        tables: Mapping from the names of tables, for messages, to the tables. A table may lack some
            of the columns. Cells without a unit agree with every unit.
        columns: Columns that hold numbers.
        are_outcomes: Whether the columns are outcomes or standard errors. In these columns, only
            usual units count, because a word after a number may be a remark.

    Raises:
        InputDataError: If the first unit in a column differs between two tables.

    Example:
        >>> tables = {"runs": DataFrame({"T": ["90 °C"]}), "candidates": DataFrame({"T": [80, 90]})}
        >>> check_same_units(tables, ["T"])
    """
    split = {what: _split(table, columns) for what, table in tables.items()}
    for name in columns:
        found: dict[Any, tuple[str, str]] = {}
        values: dict[bool, list[float]] = {True: [], False: []}
        for what, table in tables.items():
            parts = split[what].get(name)
            units = [] if parts is None else parts["unit"].dropna().unique().tolist()
            units = [unit for unit in units if not are_outcomes or unit in (*SCALES, "%")]
            for unit in units[:1]:
                found.setdefault(SCALES.get(unit, unit), (unit, what))
            if isinstance(cells := table.get(name) if parts is None else parts["number"], Series):
                values[bool(units)] += pd.to_numeric(cells, errors="coerce").dropna().tolist()
        if len(found) > 1:
            (unit, what), (other, where) = list(found.values())[:2]
            problem = f"{name!r} has the unit {unit!r} in the {what}, but {other!r} in the {where}"
            raise InputDataError(f"{problem}: convert all numbers to one unit.")
        if found and values[False]:
            (unit, what), *_ = found.values()
            low, high, first, last = (f(values[has]) for has in (False, True) for f in (min, max))
            is_far = max(first - high, low - last) > max(high - low, abs(low), abs(high)) / 2
            is_other = unit in ("K", "°F", *TIMES) or (are_outcomes and in_per_cent(str(name)))
            words = {TIMES.get(word, word) for word in words_of(f"{name} {'%' * are_outcomes}")}
            is_named = words_of(TIMES.get(unit, unit)) <= words
            if (is_far or is_other or low > 3 * last) and not is_named:
                text = "%r is from %g to %g %s in the %s, and from %g to %g without a unit in "
                text += "other tables: write the same unit in all tables"
                logger.warning(text, name, first, last, unit, what, low, high)


def shown_marks(cells: Iterable[str]) -> set[str]:
    """Returns the decimal marks, a comma or a point, that some of the cells certainly have."""
    return {mark for mark, shows in SHOWS.items() if any(re.match(shows, c) for c in cells)}


def decimal_points(
    frame: DataFrame, columns: Collection[Any], comma: bool = False
) -> dict[Any, Series]:
    """Rewrites numbers such as ``1.350,5`` with a decimal point, in columns of text.

    Separators of thousands are removed. A number such as ``60,5`` or ``1.350,5`` shows that the
    comma is the decimal mark of its column; ``60.5`` and ``1,350.5`` show that the point is the
    decimal mark. In a column without such numbers, the other columns decide whether ``1.200`` is
    1.2 or 1200.

    Args:
        frame: A table; it may lack some of the columns.
        columns: Columns that may hold numbers. Cells without a number do not change.
        comma: The treatment of ``1,200`` if no number of any column shows the decimal mark. If
            ``True``, the text becomes 1.2. If ``False``, the text does not change.

    Returns:
        The rewritten columns, by name: only the columns of text among ``columns``.

    Example:
        >>> decimal_points(DataFrame({"T": ["1.350,5", "1.200 °C", "900"]}), ["T"])["T"].tolist()
        ['1350.5', '1200 °C', '900']
    """
    names = list(frame.columns)
    texts = [n for n in names if n in columns and names.count(n) == 1 and is_text(frame[n])]
    numbers = {name: frame[name].map(_number_or_none).astype(object) for name in texts}
    shown = {name: shown_marks(cells.dropna()) for name, cells in numbers.items()}
    in_table = set().union(*shown.values())
    pointed: dict[Any, Series] = {}
    for name, cells in numbers.items():
        marks = shown[name] or in_table
        if marks != {"."}:
            grouped = cells.str.contains(rf"{GROUPS}(?!,)".format(r"\."), na=False)
            meaning = "separates thousands" if marks == {","} else "counts as a decimal point"
            reason = f"whose point {meaning}: write thousands without points, as in 1200"
            log_cell(grouped, frame[name], reason, logging.INFO if shown[name] else logging.WARNING)
        if marks == {","} or any(map(re.compile(r"\d,\d{3}[.,]\d").search, cells.dropna())):
            groups = re.compile(GROUPS.format(r"\." if marks == {","} else ","))
            cells = cells.str.replace(groups, lambda m: re.sub("[.,]", "", m[0]), regex=True)
        if comma and not marks:
            grouped = cells.str.contains(GROUPS.format(","), na=False)
            reason = "whose comma is a decimal mark: write thousands without commas, as in 1200"
            log_cell(grouped, frame[name], reason)
        if "," in marks or (comma and not marks):
            cells = cells.str.replace(r"(\d),(?=\d+(?![\d.,]))", r"\1.", regex=True)
        pointed[name] = frame[name].astype(object).mask(cells.notna(), cells)
    return pointed


def _number_or_none(cell: Any) -> str | None:
    text = re.sub(r"[‐-―−](?=\.?\d)", "-", cell) if isinstance(cell, str) else ""
    return text if SEPARATED.fullmatch(text) else None


def _split(frame: DataFrame, columns: Collection[Any]) -> dict[Any, DataFrame]:
    """Splits cells such as ``110 °C`` into numbers and units.

    Returns a mapping from each column of text to a table with the columns ``number``, ``unit`` and
    ``cell`` (the whole cell).
    """
    return {
        name: cells.astype(str).str.extract(NUMBER).assign(cell=cells)
        for name, cells in decimal_points(frame, columns).items()
    }


def with_numbers(frame: DataFrame, columns: Collection[Any], whole: bool = False) -> DataFrame:
    """Converts cells such as ``"110 °C"`` to numbers, and logs the unit.

    If a column has several units, all numbers are converted to the first unit.

    Args:
        frame: A table; it may lack some of the columns.
        columns: Columns that hold numbers. Text without a number does not change.
        whole: Whether to convert only the columns in which almost all cells are numbers in one
            unit; all other columns stay text. In a converted column, the few cells that are not
            such numbers are emptied, and the log counts these cells.

    Returns:
        The table with numbers in the converted columns.

    Raises:
        InputDataError: If a column has several units that cannot be converted.

    Example:
        >>> frame = DataFrame({"time": ["10.0 min", "90 min", None], "yield": [0.1, 0.3, 0.2]})
        >>> with_numbers(frame, ["time", "yield"])["time"].tolist()
        [10.0, 90.0, nan]
    """
    frame = frame.copy(deep=False)
    units: list[str] = []
    if whole:
        columns = [name for name in columns if not _holds_lists(frame[name])]
    for name, parts in _split(frame, columns).items():
        found, written = parts["number"].notna(), frame[name]
        if not found.any():
            continue
        kinds = parts["unit"].map(lambda unit: SCALES.get(unit, [unit])[0], "ignore")
        first = parts["unit"][kinds.notna() & ~kinds.duplicated()]
        found_in = ", ".join(f"{unit!r} in row {row}" for row, unit in first.head(2).items())
        problem = f"The column {name!r} has numbers in several units ({found_in})"
        if whole:
            words = written.notna() & ~found
            found &= kinds.isna() | kinds.isin(kinds.mode()[:1])
            slips, texts = written.notna() & ~found, written.astype(str)
            odd = slips & ~texts.str.fullmatch(EXCEL_ERROR)
            if odd.sum() > MAX_SLIPS * found.sum():
                if len(first) in (2, 3) and words.sum() <= MAX_SLIPS * found.sum():
                    text = "%s: convert the numbers to one unit, or the column stays text"
                    logger.warning(text, problem)
                elif odd.sum() < found.sum():
                    reason = "which is no number, so the column stays text: correct the cell"
                    log_cell(odd & texts.str.match(r"\s*\d"), written, reason)
                continue
            frame[name] = written.where(found)
        elif len(first) > 1:
            raise InputDataError(f"{problem}: convert the numbers to one unit.")
        named = parts["unit"][found].dropna().unique().tolist()
        changed = found & (parts["cell"].astype(str) != written.astype(str))
        reason = f"which is read as {parts['cell'][changed].head(1).squeeze()}"
        log_cell(changed, written, reason, logging.WARNING if whole else logging.INFO)
        numbers = pd.to_numeric(parts["number"])
        for unit in named[1:]:
            (_, a, b), (_, c, d) = SCALES[unit], SCALES[named[0]]
            converted = ((a * numbers + b - d) / c).map(lambda x: float(f"{x:.12g}"))
            numbers = numbers.where(parts["unit"] != unit, converted)
        frame[name] = frame[name].astype(object).mask(found, numbers).infer_objects()
        if named:
            units.append(f"{name!r} in {' and (converted) '.join(named)}")
            odd = parts["unit"].notna() & found
            bare = found & ~odd & (numbers != 0)
            if named == ["%"] and numbers[bare].max() < min(1.0, numbers[odd].max() / 10):
                log_cell(bare, written, "maybe a fraction, unlike cells in %: write percentages")
            elif 2 * odd.sum() < found.sum():  # most cells are bare numbers
                log_cell(odd, written, "with text after the number, unlike most cells: check it")
        if whole:
            log_cell(slips, written, "which is not a number: correct the cell, or empty it")
    if units:
        logger.info("Read as numbers: %s", ", ".join(units))
    return frame


def _holds_lists(column: Series) -> bool:
    """Returns whether a column has choices such as ``64,32``, which are not decimal numbers."""
    texts = column.dropna().astype(str)
    few = 2 * texts.nunique() <= len(texts) or len(texts) < 5
    are_lists = texts.str.fullmatch(LIST).all() and texts.str.contains(",").any()
    return is_text(column) and few and bool(are_lists)


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


def without_summaries(tasks: Mapping[str, NDArray[np.intp]], labels: Any) -> list[int]:
    """Warns of rows with the sum or the mean of other rows, and leaves out these rows.

    Args:
        tasks: Mapping from the name of each task to the positions of its rows.
        labels: The labels of all rows, for messages.

    Returns:
        The positions of all rows, without the rows of tasks with names such as "Total".

    Example:
        >>> without_summaries({"tue": np.array([0, 2]), "Total": np.array([1])}, range(3))
        [0, 2]
    """
    found = [name for name in tasks if SUMMARY.fullmatch(name.strip(" .:"))]
    found = [name for name in found if len(tasks[name]) < len(tasks) > len(found)]
    for name in found:
        text = "Task %r in row %s is named like a summary: drop rows that summarize other rows"
        logger.warning(text, name, labels[tasks[name][0]])
    return sorted(int(row) for name in tasks.keys() - found for row in tasks[name])


def warn_of_summaries(frame: DataFrame | None, used: Container[Any]) -> None:
    """Warns of last rows that have a word such as "average" in a column that is not in ``used``."""
    for name, cells in () if frame is None else frame.items():
        if name not in used and is_text(cells):
            words = cells.map(str).str.strip(" .:")
            found = words.str.fullmatch(SUMMARY) & ~words.duplicated(keep=False)
            found &= ~words.str.lower().isin(["max", "min", "sd"])
            last = np.logical_and.accumulate(found.to_numpy(dtype=np.bool_)[::-1])[::-1]
            log_cell(last, cells, "maybe a summary of other rows: drop such rows")


def codes(values: Array) -> list[float]:
    """Finds numbers, such as -999, that stand for missing outcomes.

    A number stands for missing outcomes if it is far from all other outcomes, and if it is a usual
    code or occurs several times.

    Args:
        values: The outcomes of all tables; NaN where an outcome is missing.

    Returns:
        The codes.

    Example:
        >>> codes(np.array([0.1, 0.5, 0.3, 0.4, -999.0, -999.0, 1e30]))
        [-999.0, 1e+30]
    """
    levels, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    usual = np.array([bool(USUAL_CODE.fullmatch(f"{abs(v):.15g}")) for v in levels], dtype=np.bool_)
    inner, found = np.flatnonzero(~usual), list[float]()
    if len(inner) == 0:
        return []
    ends = inner[[0, -1]]
    apart = np.maximum(levels[ends[0]] - levels, levels - levels[ends[1]])
    candidates = {*np.flatnonzero(usual & (apart > 0)).tolist(), *ends[counts[ends] > 1].tolist()}
    for i in sorted(candidates, key=lambda i: float(apart[i])):  # nearest first
        rest = ~usual & (np.arange(len(levels)) != i)
        if _is_code(levels[i], counts[i], bool(usual[i]), np.repeat(levels[rest], counts[rest])):
            found.append(float(levels[i]))
        usual[i] = levels[i] in found
    return sorted(found)


def _is_code(value: float, count: int, is_usual: bool, others: Array) -> bool:
    """Returns whether ``value`` is so far from ``others`` that it stands for a missing value.

    The necessary distance depends on ``count`` (how often the value occurs) and on ``is_usual``
    (whether the value is a usual code).
    """
    enough = (FAR if count > 1 else FAR_ONCE) if is_usual else FAR_ODD if count > 2 else np.inf
    is_negative = value < 0 <= others.min(initial=np.inf)  # the only negative number
    if is_negative and is_usual and len(others):
        enough = 0.0
    elif len(np.unique(others)) < 3:
        return False
    elif is_negative and value == -1 and count > 1:
        enough = 1.0
    usual_size, size, largest = np.quantile(np.abs(others), (0.5, 0.95, 1.0), method="higher")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        spread = np.ptp(np.quantile(others, (0.05, 0.95))) or np.ptp(others)
        distance = max(others.min() - value, value - others.max()) / spread
        # Outcomes that span many orders of magnitude have extremes that are not codes.
        is_further = enough <= 1 or not abs(value) / largest <= size / usual_size
    return bool(distance > enough and is_further)


#: Reason for messages about the numbers that :func:`thousands` returns.
THOUSANDS = "which may have a point as separator of thousands: write 1250, not 1.250"


def thousands(values: Array) -> Array:
    """Returns numbers below 10 that may be thousands, such as 1.250, next to hundreds."""
    small, large = values[values < 10], values[values >= 10]
    has_three = bool((np.abs(100 * small - np.rint(100 * small)) > 1e-6).any())  # decimals
    if min(len(small), len(large)) < 2 or small.min() < 1 or not has_three:
        return small[:0]
    return small if 10 * small.max() <= large.min() and large.max() < 1000 else small[:0]


def parameter_codes(values: Array, others: Array | None = None) -> list[float]:
    """Finds numbers, such as -999, that stand for a missing value of a parameter.

    Args:
        values: Values of the parameter.
        others: Ordinary values of the parameter, such as its range. By default, all ``values``
            that are not usual codes.

    Returns:
        The numbers among ``values`` that are usual codes and far from all ordinary values.

    Example:
        >>> parameter_codes(np.array([60.0, 9999.0, 200.0]), np.array([50.0, 100.0, 150.0]))
        [9999.0]
    """
    found = [float(v) for v in np.unique(values) if PARAMETER_CODE.fullmatch(f"{v:.15g}")]
    others = values[~np.isin(values, found)] if others is None else others
    is_design = len(np.unique(others)) < 3 or others.min() <= 0  # such as the values -1 and 1
    return [v for v in found if _is_code(v, 2, True, others) and not (v == -1 and is_design)]


def without_codes(column: Series) -> Series:
    """Empties each cell whose number, such as -999, stands for a missing value of a parameter.

    Also empties the cells of a number that is far from all others, maybe a typing error.

    Args:
        column: A parameter's column of numbers.

    Returns:
        The column with NaN in place of such numbers. A warning in the log names the first number.

    Example:
        >>> without_codes(Series([60.0, 70.0, 80.0, -999.0])).tolist()
        [60.0, 70.0, 80.0, nan]
    """
    values = column[np.isfinite(column)].to_numpy(dtype=np.float64, na_value=np.nan)
    found = parameter_codes(values)
    others = values[~np.isin(values, found)]
    if -1.0 in found and not (others % 1).any() and others.min() <= 10:
        found.remove(-1.0)  # often means "no limit"
        log_cell(column == -1, column, "which may mean a missing value: if so, empty the cell")
    log_cell(column.isin(found), column, "which counts as missing: empty the cell, or correct it")
    slip = _slip(others)
    log_cell(column == slip, column, "far from all others, so the range omits it: check the cell")
    return column.mask(column.isin([*found, slip]))


def _slip(values: Array) -> float:
    """Returns the number that is far from all other numbers, or NaN if there is no such number.

    If no number is negative, the number must also be far on a logarithmic scale.
    """
    if len(np.unique(values)) < ENOUGH_LEVELS:
        return np.nan
    slip = values[np.abs(values - np.median(values)).argmax()]
    others = values[values != slip]
    is_far = len(others) > 0.9 * len(values) and np.abs(others - slip).min() > FAR * np.ptp(others)
    if is_far and values.min() >= 0:
        logs = np.log(others[others > 0])
        width = np.ptp(logs) if np.ptp(logs) < np.log(10) else 1.3 * np.ptp(logs)
        is_far = slip > 0 and np.abs(logs - np.log(slip)).min() > width
    return float(slip) if is_far else np.nan


# ------------------------------------------------------------------------------------------ names

#: Least number of letters of an abbreviation, such as ``mom`` for ``momentum``.
ENOUGH_LETTERS = 3


def words_of(name: str) -> set[str]:
    """Splits the name of a column into words in lower case; ``"%"`` counts as a word."""
    return set(re.findall(r"[^\W_]+|%", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))


def in_per_cent(name: str) -> bool:
    """Returns whether the name of an outcome, such as "yield", suggests values in per cent."""
    words = words_of(name)
    return bool(PER_CENT & words) and not ANOTHER & words


def likely_column(name: str, columns: Collection[Any]) -> str | None:
    """Finds the column that is most similar to a name, for example a name that a table lacks.

    Args:
        name: The name.
        columns: The names of columns, or other names.

    Returns:
        The name of a column if it is similar to ``name``, abbreviates ``name``, or is abbreviated
        by ``name``. An abbreviation is the beginning or the initials of a name. ``None`` if no
        column has such a name.

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
    """Returns a column's name in lower case without separators, and its initials.

    The initials are ``None`` if the name has a single word.
    """
    words = re.findall(r"[^\W_]+", name.casefold())
    return "".join(words), "".join(word[0] for word in words) if len(words) > 1 else None


def hint(name: Any, names: Collection[Any], what: str = "column") -> str:
    """Returns a remark with the most similar of ``names``; "" if no name is similar to ``name``."""
    likely = likely_column(name, names) if isinstance(name, str) else None
    return f" (a similar {what} is {likely!r})" if likely is not None else ""
