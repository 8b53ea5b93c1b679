"""Runs rivals in their own environment: reads CSV files, and prints the index of the next row.

    python -m benchmarks.rivals.worker

Each line of the standard input has a rival, a folder and a seed. A rival such as ``lists:Sorted``
is a module of this folder and a class. The folder has ``history.csv`` (columns ``task``, the
parameters, ``y``), ``pool.csv`` (the parameters) and ``runs.csv`` (``row``, the index of an
evaluated row of the pool, and ``y``). The outcomes ``y`` are maximized, and the parameters lie in
[0, 1]. The answer is a line with the index of the next row and the seconds of processor time, or
with the error.
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
    """Base class of rivals, which choose rows of one pool one after another.

    Args:
        history: The old runs: a table with `task`, the columns of the pool, and `y`.
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
            taken: The indices of the evaluated rows, in the order of evaluation.
            y: The outcomes of these rows, to be maximized.
            seed: The seed of this step. The generators of `random`, NumPy and PyTorch are seeded
                already.

        Returns:
            The index of a row that is not in `taken`.
        """

    def nearest(self, x: Sequence[float] | np.ndarray, taken: Sequence[int] = ()) -> int:
        """Returns the index of the nearest row that is not in `taken`."""
        return self.best(-np.square(self.rows - np.asarray(x, dtype=float)).sum(axis=1), taken)

    def best(self, scores: np.ndarray, taken: Sequence[int]) -> int:
        """Returns the index of the row with the largest score; rows in `taken` are left out."""
        left = np.setdiff1d(np.arange(len(scores)), np.array(taken, dtype=int))
        return int(left[np.nan_to_num(scores, nan=-np.inf)[left].argmax()])


def answers(lines: Iterable[str]) -> Iterator[str]:
    """Answers each line with the rival's next row, and keeps the rival of the last folder."""
    last: tuple[str, str] | None = None
    for line in lines:
        name, folder, seed = line.split()
        module, _, kind = name.partition(":")
        try:
            rival_class = getattr(importlib.import_module(f"benchmarks.rivals.{module}"), kind)
            random.seed(int(seed))
            np.random.seed(int(seed))  # noqa: NPY002 - rivals use this generator
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
    """Answers each line of the standard input on the standard output."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the rival's own prints are no answers
    for answer in answers(sys.stdin):
        print(answer, file=stream, flush=True)


if __name__ == "__main__":
    main()
