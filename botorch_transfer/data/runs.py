"""The runs of a study: encoded inputs, outcomes, and which runs are pending or have failed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from pandas import DataFrame
from torch import Tensor

from botorch_transfer.data.columns import likely_column
from botorch_transfer.data.measurements import FATE, numbers, variance_column
from botorch_transfer.data.outcome import Outcome
from botorch_transfer.data.tables import has_failed, modelled
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.search_space.cells import errors_in, with_numbers

logger = logging.getLogger(__name__)

#: Distances of values outside of a parameter's range, relative to the range. Values in a study's
#: runs may be up to ``SLIGHTLY`` outside. Distances up to ``SAME_PLACE`` are rounding errors.
SLIGHTLY, SAME_PLACE = 0.1, 1e-4


class Runs(NamedTuple):
    """The runs of a study.

    Args:
        X: An ``n x d`` tensor of inputs of the runs with at least one known outcome.
        Y: An ``n x m`` tensor of outcomes, which are maximized; NaN for an unknown outcome.
        Yvar: An ``n x m`` tensor of noise variances; NaN for unknown noise variances.
        added: An ``n x m`` tensor of variances to add to the noise variances. The final outcome of
            an early-stopped run is predicted: ``added`` is the variance of this prediction. It is
            zero for all other runs.
        succeeded: An ``n`` boolean tensor: whether the run has not failed.
        waiting: A ``p x d`` tensor of inputs of pending runs.
        failed: An ``f x d`` tensor of inputs of failed runs. It includes failed runs that have an
            outcome.
        ended: An ``e x d`` tensor of inputs of runs that ended without an outcome.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    added: Tensor
    succeeded: Tensor
    waiting: Tensor
    failed: Tensor
    ended: Tensor

    @classmethod
    def of(cls, X: Tensor, Y: Tensor) -> Self:
        """Makes successful runs from ``n x d`` inputs and ``n x m`` outcomes."""
        unknown, none = torch.full_like(Y, torch.nan), X[:0]
        succeeded = torch.ones(len(X), dtype=torch.bool)
        return cls(X, Y, unknown, torch.zeros_like(Y), succeeded, none, none, none)

    @property
    def awaited(self) -> Tensor:
        """Inputs of the runs that have outcomes or are pending."""
        return torch.cat([self.X, self.waiting])

    @property
    def tried(self) -> Tensor:
        """Inputs of all runs."""
        return torch.cat([self.awaited, self.failed, self.ended])

    @property
    def good(self) -> Tensor:
        """Inputs of the runs that have an outcome and have not failed."""
        return self.X[self.succeeded]

    def known(self, index: int) -> Runs:
        """Selects one outcome, and the runs in which this outcome is known."""
        rows, one = self.Y[:, index].isfinite(), slice(index, index + 1)
        known = {name: getattr(self, name)[rows, one] for name in ("Y", "Yvar", "added")}
        return self._replace(X=self.X[rows], succeeded=self.succeeded[rows], **known)


def read_runs(
    space: SearchSpace, runs: DataFrame | None, outcomes: Sequence[Outcome], status: str
) -> Runs:
    """Encodes the runs of a study, and finds the pending, failed and ended runs.

    Args:
        space: The search space.
        runs: A table that :func:`~.measurements.measured` returned; ``None`` for no runs.
        outcomes: The outcomes.
        status: The column with the status of a run.

    Returns:
        The runs.

    Raises:
        InputDataError: If a parameter's column is missing, or a value is not in the search space.
    """
    if runs is None or runs.empty:
        runs = DataFrame(columns=[*space.columns, FATE])
    columns = [column for outcome in outcomes for column in outcome.columns]
    spare = [n for n in runs.columns if n not in {*space.columns, status, FATE, *columns}]
    for name in (*space.columns, *(outcome.name for outcome in outcomes)):
        if name not in runs.columns and (likely := likely_column(name, spare)):
            raise InputDataError(
                f"The runs have no column {name!r}, but they have a column {likely!r}: rename this "
                "column if both mean the same, or drop this column."
            )
    runs = with_numbers(runs, space.number_columns)
    with errors_in("In the runs"):
        X = space.place(runs, within=SLIGHTLY)
        Y, variance = modelled(runs, outcomes)
    beyond = (-X).maximum(X - 1).amax(dim=-1)
    if outside := runs.index[(beyond > SAME_PLACE).numpy()].tolist():
        text = "%d of the runs lie slightly outside of the search space: their values are kept "
        logger.info(text + "(from row %s on)", len(outside), outside[0])
    failed, ended = has_failed(runs, Y), (runs[FATE] == "ended").to_numpy(dtype=np.bool_)
    Y = np.where(np.isfinite(Y), Y, np.nan)
    done = np.isfinite(Y).any(axis=1)
    added = np.stack([numbers(runs, variance_column(o.name)) for o in outcomes], axis=1)
    values = (torch.from_numpy(each[done]) for each in (Y, variance, np.nan_to_num(added), ~failed))
    left = ~done & ~failed
    inputs = (X[torch.from_numpy(rows)] for rows in (done, left & ~ended, failed, left & ended))
    return Runs(next(inputs), *values, *inputs)
