"""Tables in, rows out: the next rows to try, from old runs of similar problems."""

from botorch_transfer.suggestion.next_rows import Suggestion, suggest, suggest_rows
from botorch_transfer.suggestion.reading import (
    EncodedTables,
    Outcome,
    read_outcomes,
    read_tables,
)

__all__ = [
    "EncodedTables",
    "Outcome",
    "Suggestion",
    "read_outcomes",
    "read_tables",
    "suggest",
    "suggest_rows",
]
