"""Outcomes: their goals and units, and the values that people record.

:class:`Outcome` describes one column of outcomes, and converts predictions to the column's unit.
:func:`measured` reads cells such as ``>95``, ``29*``, ``18 ± 2``, ``n.d.`` and -999. It replaces
the cells of outcomes by numbers, and adds a column with the *fate* of each run: ``"failed"``,
``"ended"`` (the run ended without an outcome, but has not failed) or empty. A *code* is a number in
place of a missing outcome, such as -999.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series, isna, to_numeric
from torch import Tensor
from torch.special import ndtri

from botorch_transfer.data.datasets import LARGEST
from botorch_transfer.outcome_transforms import robust_limit
from botorch_transfer.search_space.cells import (
    THOUSANDS,
    UNIT,
    check_same_units,
    codes,
    decimal_points,
    errors_in,
    in_per_cent,
    is_text,
    log_cell,
    parameter_codes,
    refuse_cell,
    thousands,
    with_numbers,
    words_of,
)
from botorch_transfer.search_space.space import check_table

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]
Range = tuple[float, float]
Goal = Literal["min", "max"]

#: Probabilities of 500 quantiles. The average of these quantiles approximates the mean of a
#: distribution whose mean has no closed form.
LEVELS = (torch.arange(500, dtype=torch.double) + 0.5) / 500


@dataclass(frozen=True)
class Outcome:
    """An outcome of the target task: an objective or a constrained outcome.

    The *modelled outcome* is the number that models predict: ``sign`` times the outcome or, with
    ``log``, ``sign`` times the logarithm of the outcome. Models maximize the modelled outcome.

    Args:
        name: The column of the outcome.
        sign: 1 if large outcomes are good, -1 if small outcomes are good. If the goal is unknown,
            ``sign`` is 0, and the modelled outcome is not defined.
        limit: The lower limit of the modelled outcome: smaller values are infeasible. ``None`` for
            an objective.
        noise: The column of standard errors; ``None`` if there is none.
        log: Whether models predict the outcome's logarithm.
        within: The least and the largest possible value of the outcome, such as 0 and 100 for a
            yield in per cent. The quantiles of predictions are clipped to this range. Means and
            standard deviations are computed from the clipped quantiles.

    Example:
        >>> Outcome("loss", sign=-1.0).goal
        'min'
    """

    name: str
    sign: float
    limit: float | None = None
    noise: str | None = None
    log: bool = False
    within: Range | None = None

    @property
    def goal(self) -> Goal:
        """``"min"`` if small outcomes are good, ``"max"`` if large outcomes are good."""
        return "max" if self.sign > 0 else "min"

    @property
    def bound(self) -> float | None:
        """Limit of a constrained outcome, in the outcome's unit; ``None`` for an objective."""
        if self.limit is None:
            return None
        return math.exp(self.sign * self.limit) if self.log else self.sign * self.limit

    @property
    def columns(self) -> list[str]:
        """Names of the outcome's column and of its column of standard errors, if there is one."""
        return [column for column in (self.name, self.noise) if column is not None]

    @property
    def is_objective(self) -> bool:
        """Whether the outcome is an objective, not a constrained outcome."""
        return self.limit is None

    def predicted(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Converts a model's means and variances to the outcome's means and standard deviations."""
        if self.within is not None:
            std, mean = torch.std_mean(self.quantiles(mean, variance, LEVELS), dim=-1, correction=0)
            return mean, std
        mean, variance = self.sign * mean, variance.clamp_min(0)
        if not self.log:
            return mean, variance.sqrt()
        mean = (mean + variance / 2).exp()  # of a log-normal distribution
        return mean, mean * variance.expm1().sqrt()

    def quantiles(self, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        """Converts a model's means and variances to quantiles in the outcome's unit.

        Args:
            mean: An ``n`` tensor of means of the modelled outcome.
            variance: An ``n`` tensor of variances of the modelled outcome.
            levels: A ``k`` tensor of probabilities.

        Returns:
            An ``n x k`` tensor.
        """
        std = variance.clamp_min(0).sqrt().unsqueeze(-1)
        values = self.original(mean.unsqueeze(-1) + self.sign * std * ndtri(levels).to(std))
        return values if self.within is None else values.clamp(*self.within)

    def original(self, Y: Tensor) -> Tensor:
        """Converts modelled outcomes, which models maximize, to values of the outcome's column."""
        return (self.sign * Y).exp() if self.log else self.sign * Y

    def no_worse_than(self, worst: float) -> Outcome:
        """Returns a copy of this outcome whose predictions are clipped at ``worst``.

        Predictions of the copy are not worse than ``worst``, a value of the modelled outcome.
        """
        value = float(self.original(torch.tensor(worst, dtype=torch.double)))
        least, largest = self.within or (-math.inf, math.inf)
        within = (max(least, value), largest) if self.sign > 0 else (least, min(largest, value))
        return replace(self, within=within)

    def improvement(self, mean: Tensor, variance: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the expected improvement over ``best``, and the probability of improvement.

        Args:
            mean: An ``n`` tensor of means of the modelled outcome.
            variance: An ``n`` tensor of variances of the modelled outcome.
            best: The best modelled outcome so far, a tensor with one element.

        Returns:
            Two ``n`` tensors: the expected improvement in the outcome's unit, and the probability
            of improvement.
        """
        gains = self.sign * (self.quantiles(mean, variance, LEVELS) - self.original(best))
        return gains.clamp_min(0.0).mean(dim=-1), (gains > 0).double().mean(dim=-1)

    def limited(self, values: Array, depth: float = 0.0) -> Array:
        """Clips very bad outcomes of one task at a limit, see :func:`robust_limit`.

        Args:
            values: An ``n`` array in the outcome's unit; NaN where an outcome is missing.
            depth: The minimum distance between the best outcome and the limit.

        Returns:
            An ``n`` array. If the outcome's ``sign`` is zero (unknown goal), the values do not
            change.
        """
        Y = torch.from_numpy(self.sign * values)
        lowest = robust_limit(Y[Y.isfinite()], depth, self.limit)
        return self.sign * np.maximum(Y.numpy(), lowest) if self.sign else values


# -------------------------------------------------------------------------------- recorded outcomes

#: Name of the column that :func:`measured` adds. The column has ``"failed"`` for a failed run,
#: ``"ended"`` for a run that ended without an outcome, and an empty text for all other runs.
FATE = "botorch_transfer: fate"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split(", "))


#: Words that mean a failed run, in a status or an outcome: in lower case, without dots.
FAILED = _words(
    "fail, failed, failing, failure, error, errored, exception, crash, crashed, diverged, "
    "exploded, inf, infinity, timeout, timed out, time out, oom, out of memory, killed, broken, "
    "invalid, infeasible, unsuccessful, no success, no product, no reaction, no conversion, "
    "no yield, nr, np, decomposed, decomposition, fehlgeschlagen, fehler, "
    "échec, échoué, fallido, fallito"
)

#: Words that mean a run that has ended without an outcome, but has not failed.
ENDED = _words(
    "abandoned, aborted, cancelled, canceled, withdrawn, skipped, dropped, removed, rejected, "
    "stopped, early stopped, pruned, not measured, not determined, nd, nm"
)

#: Words in a status that mean a finished run.
DONE = _words(
    "ok, okay, done, complete, completed, finished, success, successful, succeeded, good, valid, "
    "yes, true, passed, closed"
)

#: Words in a status that have no effect: the run is done if it has an outcome, and else pending.
NEUTRAL = DONE | _words(
    "waiting, queued, scheduled, planned, proposed, suggested, candidate, staged, started, "
    "ongoing, open, todo, to do, new"
)

#: Words in notes that mean an invalid run.
DOUBTFUL = _words("contaminated, discard, discarded, outlier, spilled, wrong, broke, broken, leak")
DOUBTFUL |= _words("invalid, unreliable, suspicious, mistake, typo, ungültig, verunreinigt, mould")

#: Words in the names of columns with the status of runs or with notes.
STATUSES = _words("state, status, note, notes, comment, comments, remark, remarks, bemerkung")

#: Words in an outcome or a status that mean an empty cell.
EMPTY = _words("nan, na, n a, none, null, pending, running, waiting, tbd, in progress")

#: Words in ``FAILED`` that do not mean a failure next to a number, as in ``0.3 (error 0.1)``.
VAGUE = _words("error, inf, infinity, nr, np, invalid")

#: Words that negate a word in ``FAILED``, as in ``no error``.
NEGATIONS = _words("free, no, none, not, without")

_NUM = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
MARKS = re.compile(r"(?:\s*[*†‡§#!?^]+|\s+\([^)]*\)|\s*\[[^\]]*\])+\s*$")
#: Pattern of a number, optionally with the sign of a bound, a standard error and a unit.
CELL = re.compile(
    r"\s*(?:(?P<above>>=?|=>|≥|≫|above|over|more than|greater than|at least)"
    r"|(?P<below><=?|=<|≤|≪|below|under|less than|at most|up to)"
    r"|(?P<about>~|≈|≃|=|ca\.?|c\.|approx\.?|approximately|about|circa|est\.?))?\s*"
    rf"(?P<number>{_NUM})\s*(?P<own>{UNIT})?(?P<least>\s*\+)?"
    rf"(?:\s*(?:±|\+/-|\+-)\s*(?P<error>{_NUM})\s*(?P<unit>{UNIT})?)?\s*",
    re.IGNORECASE,
)

#: The best value of an outcome is reported as a likely typing error if its distance from the second
#: best value is above ``TOO_GOOD`` times the range of all other outcomes, without the worst 5 % of
#: the outcomes. At least ``ENOUGH`` outcomes, and at least the share ``MOST`` of all
#: outcomes, must have other values.
TOO_GOOD, ENOUGH, MOST = 3.0, 5, 0.8

#: An outcome of zero is implausible if the smallest other outcome is above ``NEAR_ZERO`` times the
#: median of the other outcomes. For more than two zeros among losses, a quarter of this is enough.
NEAR_ZERO = 0.2

#: Pattern of units in per cent or per mille.
PER_CENT = "[%‰]|pct|percent"

#: Under the constraint ``<= 5``, the outcome ``>5`` is read as 5 plus this share of 5, so that the
#: outcome violates the constraint.
BEYOND_LIMIT = 0.01

#: Log messages by the kind of cell that they report.
KINDS = {
    "bound": "Cells with a bound, such as <5, count as the number in the cell: %s",
    "mark": "Marks such as * and ~ are ignored: %s",
    "error": "Numbers after ± are standard errors: %s",
    "word": "Words such as n.d. count as missing outcomes of runs that ended without failure: %s",
    "failed": "Runs count as failed if an outcome is a word such as failed: %s",
    "noise": "Standard errors without a number count as empty cells: %s",
    "spare": "Outcomes of runs with a status such as failed are ignored: %s",
}


class Cell(NamedTuple):
    """Content of one cell of an outcome, such as ``>95`` or ``18 ± 2``.

    Args:
        kind: ``""`` for a plain number or an empty cell. ``"wrong"`` for a cell that has digits but
            is not one number, such as a list of numbers. For any other cell, a key of
            :data:`KINDS`.
        number: The number as text, maybe with a unit. If the cell is not text, the cell's value.
        error: The standard error as text, maybe with a unit.
        side: 1 if the true outcome is larger than the number (``>95``), -1 if the true outcome is
            smaller, and 0 for all other cells.
    """

    kind: str
    number: Any = None
    error: str | None = None
    side: int = 0


def error_column(outcome: str) -> str:
    """Returns the name of the column for the standard errors in cells such as ``18 ± 2``."""
    return f"{outcome} (standard error)"


def measured(
    tables: Sequence[DataFrame | None],
    outcomes: Sequence[Outcome],
    status: str | None = "status",
    task: str | None = None,
    places: Sequence[str] = (),
) -> list[Any]:
    """Converts outcomes in tables to numbers; finds failed runs and runs without an outcome.

    ``>95`` is read as 95, ``29*`` and ``~29`` as 29, ``18 ± 2`` as 18 with a standard error of 2. A
    word such as ``n.d.`` means that the run has ended without an outcome. A run has failed if its
    status or an outcome has a word in ``FAILED``, or if an outcome is infinite. If the status has a
    word in ``FAILED``, the run's outcomes are dropped. A code such as -999 is replaced by a missing
    outcome. If the code is worse than all other outcomes, the run also counts as failed. The log
    reports each kind of cell once.

    Args:
        tables: Tables, such as old runs and the study's runs; ``None`` in place of an absent table.
            Codes such as -999 are recognized by their distance from the outcomes of all tables.
        outcomes: The outcomes. A table may lack columns of outcomes.
        status: The column with the status of a run. A table may lack this column.
        task: The column with the name of the task. A table may lack this column.
        places: Prefixes of error messages, such as "In the runs": one prefix for each table.

    Returns:
        The tables with numeric outcomes and the column :data:`FATE`. If cells of an outcome have
        standard errors, the table also has a column of standard errors (:func:`error_column`).

    Raises:
        InputDataError: If a cell has digits but is not a number. Also if a standard error is
            negative, or if its unit differs from the unit of the outcome.

    Example:
        >>> table = DataFrame({"ee": [">95", "n.d.", "failed", 40]})
        >>> measured([table], [Outcome("ee", 1.0)])[0].to_numpy().tolist()
        [[95.0, ''], [nan, 'ended'], [nan, 'failed'], [40.0, '']]
    """
    read = list[Any](tables)
    for i, table in enumerate(tables):
        if table is not None:
            with errors_in(places[i]) if places else nullcontext():
                read[i] = _in_numbers(table, outcomes, status, task)
    for outcome in outcomes:
        found = [table for table in read if table is not None and outcome.name in table]
        _leave_out_codes(found, outcome, task)
    return read


def _in_numbers(
    table: DataFrame, outcomes: Sequence[Outcome], status: str | None, task: str | None
) -> DataFrame:
    """Converts outcomes and standard errors of one table to numbers; see :func:`measured`."""
    noises = {outcome.name: outcome.noise or error_column(outcome.name) for outcome in outcomes}
    check_table(table, [status, *noises, *noises.values()])
    frame = table.copy(deep=False)
    fate, notes = _fates(frame, status, task), dict[str, list[str]]()
    has_failed = fate == "failed"

    def note(kind: str, name: str, found: NDArray[np.bool_]) -> None:
        cell = _cell(table, task, name, int(found.argmax()))
        notes.setdefault(kind, []).append(f"{found.sum():,} in {name!r}, {cell}")

    for outcome in outcomes:
        side, noise = np.zeros(len(frame)), noises[outcome.name]
        columns = [outcome.name, noise]
        pointed = decimal_points(table, columns)
        for name in [name for name in columns if name in table and is_text(table[name])]:
            cells = [_parse(cell) for cell in pointed[name]]
            kinds = np.array([cell.kind for cell in cells], dtype=object)
            problem = "which has digits but is not a number: write one number with a decimal point"
            refuse_cell(kinds == "wrong", table[name], f"{problem}, or empty the cell")
            frame[name] = Series([cell.number for cell in cells], frame.index, dtype=object)
            if name == noise:
                kinds[np.isin(kinds, ["word", "failed"])] = "noise"
            else:
                side = np.array([cell.side for cell in cells])
                fate[kinds == "failed"] = "failed"
                fate[(kinds == "word") & (fate == "")] = "ended"
                if outcome.noise is None and (kinds == "error").any():
                    frame[noise] = Series([cell.error for cell in cells], frame.index, dtype=object)
            for kind in [kind for kind in KINDS if kind in kinds]:
                note(kind, name, kinds == kind)
        if noise in frame and outcome.name in frame:
            texts = frame[columns].astype(str)
            with_unit = texts[noise][to_numeric(texts[noise], errors="coerce").isna()]
            given = {"outcomes": texts, "standard errors": DataFrame({outcome.name: with_unit})}
            check_same_units(given, [outcome.name], are_outcomes=True)
            is_per_cent = in_per_cent(outcome.name)
            is_per_cent |= bool(texts[outcome.name].str.contains(PER_CENT).any())
            is_relative = texts[noise].str.contains(PER_CENT).to_numpy() & (not is_per_cent)
            problem = "maybe a relative error: write the standard error in the outcome's unit"
            refuse_cell(is_relative, frame[noise], problem)
        frame = with_numbers(frame, columns)
        if outcome.name in frame:
            values = numbers(frame, outcome.name)
            is_infinite = np.abs(values) > LARGEST
            fate[is_infinite] = "failed"
            values[is_infinite] = np.nan
            if (spare := has_failed & np.isfinite(values)).any():
                note("spare", outcome.name, spare)
                values[spare] = np.nan
            if outcome.bound is not None:
                at_limit = np.isclose(values, outcome.bound, 1e-9, 0.0) & (side * outcome.sign < 0)
                values[at_limit] -= outcome.sign * BEYOND_LIMIT * (abs(outcome.bound) or 1.0)
            frame[outcome.name] = values
            if noise in frame:
                frame[noise] = _errors(frame, noise, values, task)
    for kind, text in notes.items():
        level = logging.WARNING if kind in ("word", "noise", "spare") else logging.INFO
        logger.log(level, KINDS[kind], "; ".join(text))
    return frame.assign(**{FATE: fate})


def _errors(frame: DataFrame, name: str, values: Array, task: str | None) -> Array:
    """Reads a column of standard errors; fills empty or zero cells.

    An empty or zero cell gets the root mean square of all other standard errors in its task. If the
    task has no other standard error, the cell becomes NaN.
    """
    errors, needed = numbers(frame, name), np.isfinite(values)
    given = needed & ~np.isnan(errors) & (errors != 0)
    bad = given & ~((errors > 1 / LARGEST) & (errors < LARGEST))
    problem = "which is not a standard error: give a positive number, or empty the cell"
    refuse_cell(bad, frame[name], problem)
    group = frame[task] if task in frame.columns else np.zeros(len(frame))
    outcomes = Series(values).groupby(np.asarray(group))
    spread = outcomes.transform("max") - outcomes.transform("min")
    is_large = given & (errors > spread) & (outcomes.transform("count") >= ENOUGH)
    is_large |= given & (errors > values) & (np.nanmin(values, initial=np.inf) > 0)
    if 2 * is_large.sum() > given.sum():
        text = "Check %r: most standard errors, such %s, exceed the outcomes or their differences"
        logger.warning(text, name, _cell(frame, task, name, int(is_large.argmax())))
    elif (errors[given] % 1 == 0).all() and (values[given] % 1).any() and errors[given].max() > 1:
        logger.warning(
            "All standard errors in %r are whole numbers: are they numbers of repeats?", name
        )
    known = values[needed & ~np.isin(values, codes(values))]
    is_code = given & np.isin(errors, parameter_codes(errors[given], known))
    log_cell(is_code, frame[name], "which counts as an empty cell: empty or correct the cell")
    given &= ~is_code
    squares = Series(np.where(given, errors, np.nan)) ** 2
    pooled = squares.groupby(np.asarray(group)).transform("mean")
    if count := int((needed & ~given & np.isfinite(pooled.to_numpy())).sum()):
        text = "%d runs have no standard error in %r: they get their task's pooled standard error"
        logger.info(text, count, name)
    return np.where(given, errors, np.sqrt(pooled))


def _cell(table: DataFrame, task: str | None, name: Any, row: int) -> str:
    """Describes a cell of a table for a message: the value, the row and the row's task."""
    of_task = f" of task {table[task].tolist()[row]!r}" if task in table.columns else ""
    return f"as {table[name].tolist()[row]!r} in row {table.index[row]}{of_task}"


def _parse(cell: Any) -> Cell:
    """Splits a cell of an outcome, such as ``18 ± 2``, into number, standard error and bound."""
    if isinstance(cell, date | time | timedelta) and cell == cell:  # not NaT
        cell = str(cell)
    if not isinstance(cell, str):
        return Cell("wrong" if np.iterable(cell) else "", cell)
    bare = MARKS.sub("", cell.replace("−", "-"))
    word = _word(cell)
    tokens = {*word.split()}
    if (found := CELL.fullmatch(bare)) and (NEGATIONS & tokens or not (FAILED - VAGUE) & tokens):
        side = -1 if found["below"] else 1 if found["above"] or found["least"] else 0
        own, error, unit = found["own"], found["error"], found["unit"]
        marked = "mark" if found["about"] or len(bare) < len(cell) else ""
        kind = "bound" if side else "error" if error else marked
        number = f"{found['number']} {own or unit or ''}".strip()
        return Cell(kind, number, error and f"{error} {unit or own or ''}", side)
    if not cell.strip() or word in EMPTY:
        return Cell("")
    if FAILED & tokens or _fate(word) == "failed":
        return Cell("failed")
    return Cell("wrong" if re.search(r"\d", cell) and not _fate(word) else "word")


def _word(cell: Any) -> str:
    """Converts a cell to words in lower case without punctuation; ``n.d.`` becomes ``nd``."""
    if not isinstance(cell, str):
        return "" if isna(cell) else str(cell).casefold()
    text = re.sub(r"(?<=\b[^\W\d_])\.\s*", "", cell.strip().casefold())
    tokens = re.findall(r"[^\W_]+", text)
    return " ".join(tokens[1:] if re.fullmatch(r"\w\w+\.\w\w+", text) else tokens)


def _fate(word: str) -> str:
    """Returns "failed" or "ended" if a text begins with a word of this meaning, and "" if not."""
    tokens = word.split()
    beginnings = {" ".join(tokens[:number]) for number in (1, 2, 3)}
    if beginnings & FAILED and not (NEGATIONS - {"no"}) & {*tokens}:
        return "failed"
    return "ended" if beginnings & ENDED else ""


def cut_short(status: Any) -> bool | None:
    """Reads from a run's status cell whether the run ended before it was complete.

    Returns ``None`` if the cell is empty or has an unknown word, or if the run has not ended yet.
    """
    word = _word(status)
    return True if _fate(word) else False if word in DONE else None


def _fates(frame: DataFrame, status: str | None, task: str | None) -> NDArray[Any]:
    """Finds runs that have failed or ended, from the words in their status.

    Returns ``"failed"``, ``"ended"`` or ``""`` for each row. Warns of unknown words, and of columns
    that may hold the status under another name.
    """
    known = {"", *NEUTRAL, *EMPTY}
    if status not in frame:
        for name in [n for n in frame if status and words_of(str(n)) & STATUSES]:
            fates = {w: _fate(w) or w in NEUTRAL - DONE for w in map(_word, frame[name])}
            if any(fates.values()) and all(fates[word] or word in known for word in fates):
                text = "%r may be the status of runs: give status=%r, or name the column 'status'"
                logger.warning(text, name, name)
        return np.full(len(frame), "", dtype=object)
    words = [_word(cell) for cell in frame[status]]
    fate = np.array([_fate(word) for word in words], dtype=object)
    if unknown := [i for i, word in enumerate(words) if not fate[i] and word not in known]:
        text = "The status has an unknown word in %d rows, %s: write 'failed' if the run failed. A "
        text += "run with an unknown word is used if it has an outcome. Without an outcome, a new "
        text += "run counts as pending, and an old run is left out"
        logger.warning(text, len(unknown), _cell(frame, task, status, unknown[0]))
    return fate


def warn_of_status(frame: DataFrame | None, outcomes: Sequence[Outcome], status: str) -> None:
    """Warns of outcomes of unfinished runs, and of ended runs without an outcome.

    Also warns of outcomes of runs whose notes have a word in ``DOUBTFUL``.
    """
    if frame is None:
        return
    known = frame[[o.name for o in outcomes if o.name in frame]].notna().any(axis=1)
    reason = "but the run's outcome counts: empty the outcome if the run is invalid"
    for name, cells in frame.items():
        if name != status and words_of(str(name)) & STATUSES:
            notes = cells.map(lambda cell: {*_word(cell).split()})
            is_bad = notes.map(lambda note: bool(note & DOUBTFUL) and not note & NEGATIONS)
            log_cell(known & is_bad, cells, reason)
    if status in frame:
        words = frame[status].map(_word)
        early = known & words.isin((NEUTRAL | EMPTY) - DONE - {"nan", "na", "n a", "none", "null"})
        reason = "but the run has an outcome, which counts: empty the outcome if it is not final"
        log_cell(early, frame[status], reason)
        late = ~known & words.isin(DONE) & (frame[FATE] == "")
        log_cell(late, frame[status], "but the run has no outcome: fill in the outcome")


# ------------------------------------------------------------------------------------------- codes


def _leave_out_codes(tables: Sequence[DataFrame], outcome: Outcome, task: str | None) -> None:
    """Replaces outcomes such as -999 by NaN, and warns of implausible outcomes."""
    every = np.concatenate([np.empty(0), *(table[outcome.name] for table in tables)])
    found = codes(every)
    others = every[np.isfinite(every) & ~np.isin(every, found)]
    for code in found:
        is_bad = outcome.sign * (code - np.median(others)) < 0
        first = next(table for table in tables if (table[outcome.name] == code).any())
        row = int((first[outcome.name] == code).to_numpy().argmax())
        text = "In the column %r, the number %g (%s) is far from all other outcomes: empty the "
        text += "cells with this number, or correct them. The number counts as a missing outcome"
        text += " of a failed run" if is_bad else ""
        logger.warning(text, outcome.name, code, _cell(first, task, outcome.name, row))
        for table in tables:
            is_code = table[outcome.name] == code
            changes = is_code & (is_bad | (table[FATE] == ""))
            table[FATE] = table[FATE].mask(changes, "failed" if is_bad else "ended")
            table[outcome.name] = table[outcome.name].mask(is_code)
    columns = [table[outcome.name] for table in tables if len(others)]
    for cells in columns:
        for code in (-1, 0):
            if _may_be_missing(code, others, columns[0], outcome):
                reason = "which may mean a missing outcome: if so, empty the cell"
                log_cell(cells == code, cells, reason)
        steps = cells.diff().rolling(ENOUGH)
        is_series = (steps.min() == steps.max()) & (steps.max().abs() == 1)
        log_cell(is_series, cells, "which continues steps by 1: correct it if it is not measured")
        log_cell(cells.isin(thousands(others)), cells, THOUSANDS)
    best = np.sort(outcome.sign * others)
    rest = best[best < best.max(initial=-np.inf)]  # without the best value, which may repeat
    is_most = len(rest) >= max(ENOUGH, MOST * len(best))
    spread = np.ptp(rest[len(best) // 20 :]) if is_most else 0.0
    if 0 < TOO_GOOD * spread < best[-1] - rest[-1]:
        text = "%r has %g, far better than all other outcomes: correct the cell if it is wrong"
        logger.warning(text, outcome.name, outcome.sign * best[-1])


def _may_be_missing(code: int, others: Array, first: Series, outcome: Outcome) -> bool:
    """Returns whether ``code``, -1 or 0, may mean a missing outcome.

    Args:
        code: The number.
        others: The outcomes of all tables.
        first: The outcomes of the first table, such as old runs.
        outcome: The outcome.
    """
    rest, times = others[others != code], (others == code).sum()
    are_counts = not (rest % 1).any() and rest.min(initial=np.inf) < ENOUGH
    if len(rest) == 0 or rest.min() < 0 or (code == 0 and are_counts):
        return False
    if code == 0:  # far below all other outcomes, or only in the last table
        is_loss = outcome.sign < 0 and len(rest) >= ENOUGH * times and (rest % 1).any()
        near = NEAR_ZERO / (4 if outcome.sign < 0 and times > 2 else 1)
        is_far = (times > 1 or is_loss) and rest.min() > near * np.median(rest)
        return bool(is_far or (times > 1 and first.min() > 0 and first.count() > 2 * ENOUGH))
    is_best = outcome.sign < 0 or in_per_cent(outcome.name)
    return bool(is_best or np.quantile(rest, 0.5 * (times > 1)) >= 10)


# ----------------------------------------------------------------------------------------- columns


def numbers(frame: DataFrame, name: str | None) -> Array:
    """Converts a column of a table to numbers; cells without a number become NaN.

    Args:
        frame: A table with ``n`` rows.
        name: The column. If the table lacks the column, all numbers are NaN.

    Returns:
        An ``n`` array.

    Raises:
        InputDataError: If the column has complex numbers, dates or durations.
    """
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    if (kind := frame[name].dtype).kind in "cMm":
        raise InputDataError(f"The column {name!r} has the type {kind}: convert it to numbers.")
    found = to_numeric(frame[name], errors="coerce")
    return found.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)


def logarithms(values: Array, frame: DataFrame, name: str) -> Array:
    """Computes the natural logarithms of finite values; NaN and infinite values do not change.

    Args:
        values: An ``n`` array: the numbers in a column of a table.
        frame: The table, for messages.
        name: The column.

    Returns:
        An ``n`` array.

    Raises:
        InputDataError: If a value is not positive.
    """
    finite = np.isfinite(values)
    problem = "but log= needs positive numbers: leave out log=, or drop the row"
    if (bad := finite & (values <= 0)).any():
        refuse_cell(bad, frame[name], problem)
    return np.where(finite, np.log(np.where(finite, values, 1.0)), values)


def variance_column(outcome: str) -> str:
    """Returns the name of the column with the variances of predicted outcomes."""
    return f"{outcome} (predicted variance)"
