"""Serves rivals in an environment of their own: CSV files in, the index of the next row out.

    python -m benchmarks.rivals.worker

Each line of the standard input has a rival (as ``lists:Sorted``: a module beside this one and its
class), a folder and a seed. The folder has ``history.csv`` (``task``, the columns of a row, ``y``),
``pool.csv`` (the columns of a row) and ``runs.csv`` (``row``, the index of a row of the pool that
was evaluated, and its ``y``). All ``y`` are to be maximized, all columns lie in [0, 1]. The answer
is a line with the index of the next row and seconds of processor time, or the error.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

TASK, OUTCOME, ROW = "task", "y", "row"
HISTORY, POOL, RUNS = "history.csv", "pool.csv", "runs.csv"


class Rival(ABC):
    """What chooses rows of one pool; it may keep what it has learned from the history.

    Args:
        history: The old runs: columns `task`, those of the pool, and `y`.
        pool: The `N` rows to choose from.
    """

    def __init__(self, history: pd.DataFrame, pool: pd.DataFrame) -> None:
        self.history, self.pool = history.astype({TASK: str}), pool
        self.columns, self.rows = list(pool.columns), pool.to_numpy(dtype=float)
        self.tasks = {
            str(name): (rows[self.columns].to_numpy(float), rows[OUTCOME].to_numpy(float))
            for name, rows in self.history.groupby(TASK, sort=False)
        }
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Learns from the history."""

    @abstractmethod
    def suggest(self, taken: list[int], y: np.ndarray, seed: int) -> int:
        """Chooses the next row.

        Args:
            taken: The indices of the rows so far, in their order.
            y: Their outcomes, to be maximized.
            seed: The step's seed; `random`, NumPy and PyTorch have it already.

        Returns:
            The index of a row that is not among them.
        """

    def nearest(self, x: Sequence[float] | np.ndarray, taken: Sequence[int] = ()) -> int:
        """The index of the nearest row that is not taken."""
        return self.best(-np.square(self.rows - np.asarray(x, dtype=float)).sum(axis=1), taken)

    def best(self, scores: np.ndarray, taken: Sequence[int]) -> int:
        """The index of the row with the largest score that is not taken; the first of equals."""
        left = np.setdiff1d(np.arange(len(scores)), np.array(taken, dtype=int))
        return int(left[np.nan_to_num(scores, nan=-np.inf)[left].argmax()])


def answers(lines: Iterable[str]) -> Iterator[str]:
    """Answers lines one by one, and remembers the rival of the last folder."""
    last: tuple[str, str] | None = None
    for line in lines:
        name, folder, seed = line.split()
        module, _, kind = name.partition(":")
        try:
            rival_class = getattr(importlib.import_module(f"benchmarks.rivals.{module}"), kind)
            random.seed(int(seed))
            np.random.seed(int(seed))  # noqa: NPY002 - what rivals draw from
            if "torch" in sys.modules:
                sys.modules["torch"].manual_seed(int(seed))
            start = time.process_time()
            if last != (name, folder):
                rival = rival_class(*(pd.read_csv(Path(folder, f)) for f in (HISTORY, POOL)))
                last = name, folder
            runs = pd.read_csv(Path(folder, RUNS))
            taken = [int(row) for row in runs[ROW]]
            row = rival.suggest(taken, runs[OUTCOME].to_numpy(float), int(seed))
            if row in taken:
                raise ValueError(f"Row {row} has been evaluated.")
            yield f"{row} {time.process_time() - start:.6f}"
        except Exception as error:
            traceback.print_exc()
            yield " ".join(f"{type(error).__name__}: {error}".split())


def main() -> None:
    """Answers the standard input."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a rival prints is not an answer
    for answer in answers(sys.stdin):
        print(answer, file=stream, flush=True)


if __name__ == "__main__":
    main()
