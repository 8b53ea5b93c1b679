"""Suggestions of the next rows to try, from tables of old runs and of this study's runs."""

from botorch_transfer.data.measurements import Outcome
from botorch_transfer.suggestion.backtest import Backtest, backtest
from botorch_transfer.suggestion.next_rows import (
    Suggestion,
    predict,
    predict_rows,
    suggest,
    suggest_rows,
)
from botorch_transfer.suggestion.reading import EncodedTables, read_outcomes, read_study

__all__ = [
    "Backtest",
    "EncodedTables",
    "Outcome",
    "Suggestion",
    "backtest",
    "predict",
    "predict_rows",
    "read_outcomes",
    "read_study",
    "suggest",
    "suggest_rows",
]
