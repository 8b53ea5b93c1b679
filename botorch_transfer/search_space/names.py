"""Finds similar names, for messages about a column or a value that does not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Any

#: Least number of letters of an abbreviation, such as ``mom`` for ``momentum``.
ENOUGH_LETTERS = 3


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
