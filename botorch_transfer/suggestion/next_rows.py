"""``suggest``: tables of old and new runs in, the next rows to try out.

The tables are the only state: call it again when there are new outcomes. The same tables and the
same seed give the same rows. Tables are read in ``reading``, models of outcomes and failures are in
``outcomes``, and ``search`` maximizes an acquisition function over the search space.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.utils.datasets import SupervisedDataset
from linear_operator.utils.warnings import NumericalWarning
from pandas import DataFrame
from torch import Tensor

from botorch_transfer.average import TransferGP
from botorch_transfer.report import member_on_sources
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.suggestion.outcomes import (
    FeasibleAcquisition,
    fit_model,
    learn_failures,
    make_acquisition,
    moments,
)
from botorch_transfer.suggestion.reading import (
    EncodedTables,
    Goal,
    Runs,
    read_outcomes,
    read_tables,
)
from botorch_transfer.suggestion.search import maximize

DEFAULT_MODEL: Callable[..., Any] = TransferGP
"""The model of :func:`suggest` if none is given."""

NUM_REFERENCE = 256
"""Random rows by which scales and references of acquisition functions are found."""

MAX_NAMED = 5
"""The most source tasks to name for a row."""


class Suggestion(NamedTuple):
    """Suggested rows, and what they come from.

    Args:
        rows: The table that :func:`suggest` returns.
        models: The fitted model of each outcome, constraints included.
        X: An ``n x d`` tensor: the encoded rows.
        tables: The tables that they come from, encoded.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.suggestion import read_outcomes, read_tables
        >>> space = SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)])
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> suggest_rows(read_tables(space, read_outcomes(), old), n=2).X.shape
        torch.Size([2, 1])
    """

    rows: DataFrame
    models: dict[str, Any]
    X: Tensor
    tables: EncodedTables


def suggest(
    space: SearchSpace | Mapping[str, Any],
    history: DataFrame | None,
    runs: DataFrame | None = None,
    outcome: str | Sequence[str] = "loss",
    goal: Goal | Sequence[Goal] | None = None,
    n: int = 1,
    *,
    task: str = "task",
    model: Callable[..., Any] | None = None,
    prior: Any = None,
    constraints: Mapping[str, str] | None = None,
    noise: str | Mapping[str, str] | None = None,
    status: str = "status",
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    log: bool | str | Sequence[str] = False,
    step: str | None = None,
    run: str | None = None,
    seed: int = 0,
) -> DataFrame:
    """Suggests the next rows to try, from a table of old runs and one of this study's runs.

    It keeps nothing between calls: the tables are the state. Add the rows to ``runs``, with an
    empty outcome while they are pending, and call it again. Sources are pre-trained once in a
    process and remembered by their content.

    The search space may have changed since the old runs, see :func:`from_dataframe` for the rules.

    Args:
        space: The search space, or the dictionary that ``SearchSpace.from_dict`` takes.
        history: Old runs of other tasks, one row a run. Runs with an empty or infinite outcome have
            failed; if there is a ``status`` column, an empty outcome has failed only if ``status``
            says so. ``None`` if there is a ``prior``.
        runs: The runs of this study, maybe none. A run with an empty outcome, or without that
            column, is pending. A run has failed if its ``status`` says so, or an outcome is
            infinite. Columns that have no meaning here are ignored.
        outcome: The column of the outcome; a list for several objectives.
        goal: Whether small (``"min"``) or large (``"max"``) outcomes are good; a list for several.
            If it is left out, small ones are, and a warning in the log says so, but for ``"loss"``.
        n: How many rows to suggest.
        task: The column of ``history`` that names the task.
        model: The model, a class of this package (or what has its first three arguments and
            ``train_Yvar``); :data:`DEFAULT_MODEL` by default.
        prior: What the model takes as its prior, pre-trained on encoded inputs, in place of
            ``history``; a mapping by outcome if there are several. It is about outcomes to be
            maximized: the negative of one to be minimized.
        constraints: Limits of further outcomes, such as ``{"memory": "<= 5"}``.
        noise: The column with the outcome's standard errors, in ``history`` and ``runs``; a mapping
            by outcome if there are several.
        status: The column of ``runs``, and maybe of ``history``, that says whether a run failed:
            ``"failed"``, ``"failure"``, ``"error"`` or ``"crashed"``. What has no outcome and
            another status, such as ``"abandoned"``, is no failure.
        missing: Values of parameters that old tasks do not record; ``None`` if unknown.
        rename: New names of columns of ``history`` by their old ones.
        log: Outcomes to model by their logarithm, for losses whose best values are many times
            smaller than ordinary ones; ``True`` for all objectives. They are positive. A ``prior``
            is then of the logarithm.
        step: The column of the step, if the tables have learning curves: one row a step, empty in
            rows without a curve. Rows of a task with the same parameters and growing steps are one
            run. A run that was stopped early, as its ``status`` (``"stopped"``) or a shorter curve
            says, has the final outcome that :class:`~botorch_transfer.curves.CurvePrior` predicts
            from old curves, as a noisy run.
        run: The column whose value is the same in all rows of a run, in place of the parameters.
        seed: The seed of all random numbers.

    Returns:
        A table of ``n`` rows. First the parameters, in the space's order and in your units; empty
        where they are inactive. Then, of each outcome, ``predicted_mean`` and ``predicted_std`` in
        its unit, followed by ``_`` and its name if there are several; of logarithms, those of a
        log-normal distribution. ``acquisition`` is what the row was chosen for. If there is no
        outcome yet, it is the prior's mean in standard deviations, to which rows after the first
        add a part of the standard deviation that is left; else it is the logarithm of the expected
        improvement. If a run has failed, old ones included, the logarithm of the probability of
        success is added. ``sources`` names the old tasks that speak for the row: those that expect
        an outcome better than their own average by more than a standard deviation of that
        prediction, the surest first.

    Raises:
        InputDataError: If a column is missing, or a value is none of the space's. The message says
            what to do.
        TypeError: If an argument is of another type.
        ValueError: If arguments contradict one another, or fewer than ``n`` configurations are
            left.

    Example:
        >>> from pandas import DataFrame
        >>> C = FloatParameter("C", 0.1, 1000.0, log=True)
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> rows = suggest(SearchSpace([C]), old)
        >>> list(rows.columns)
        ['C', 'predicted_mean', 'predicted_std', 'acquisition', 'sources']
    """
    outcomes = read_outcomes(outcome, goal, constraints, noise, log)
    options: dict[str, Any] = {"task": task, "prior": prior, "status": status}
    options |= {"missing": missing, "rename": rename, "step": step, "run": run}
    tables = read_tables(space, outcomes, history, runs, **options)
    return suggest_rows(tables, n, model, seed).rows


def suggest_rows(
    tables: EncodedTables, n: int = 1, model: Callable[..., Any] | None = None, seed: int = 0
) -> Suggestion:
    """Suggests rows as :func:`suggest` does, and returns the models with them.

    Args:
        tables: What the tables say.
        n: How many rows to suggest.
        model: The model of outcomes with sources.
        seed: The seed of all random numbers.

    Returns:
        The rows and the models.

    Raises:
        TypeError: If the model is none.
        ValueError: If ``n`` is no positive whole number.
        ExhaustedSpaceError: If fewer than ``n`` configurations are left.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.suggestion import read_outcomes, read_tables
        >>> space = SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)])
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> suggest_rows(read_tables(space, read_outcomes(), old)).models["loss"].num_outputs
        1
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n is {n!r}: ask for one row or more.")
    if model is not None and not callable(model):
        raise TypeError(f"model is {model!r}: give a model class, such as TransferGP.")
    make = DEFAULT_MODEL if model is None else model
    space, outcomes, sources, runs, _ = tables
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        models = {
            outcome.name: fit_model(make, runs, i, sources[outcome.name])
            for i, outcome in enumerate(outcomes)
        }
        X, values = _search(tables, list(models.values()), n, seed)
        rows = space.decode(X)
        for outcome in outcomes:
            suffix = f"_{outcome.name}" if len(outcomes) > 1 else ""
            mean, std = outcome.predicted(*moments(models[outcome.name], X))
            rows[f"predicted_mean{suffix}"] = mean.numpy()
            rows[f"predicted_std{suffix}"] = std.numpy()
        rows["acquisition"] = values
        rows["sources"] = _supporting_tasks(models[outcomes[0].name], X)
    return Suggestion(rows, models, X, tables)


def _search(
    tables: EncodedTables, models: Sequence[Any], n: int, seed: int
) -> tuple[Tensor, list[float]]:
    """Chooses rows one by one, each to improve on all before it that may succeed."""
    space, outcomes, sources, runs, old_failed = tables
    main_sources = sources[outcomes[0].name]
    anchors = _anchors(space, main_sources, runs)
    feasibility = learn_failures(runs, main_sources, old_failed)
    reference = space.encode(space.sample(NUM_REFERENCE, seed=0))
    awaited, values = runs.awaited, list[float]()
    is_first = len(runs.X) == 0
    for number in range(n):
        acquisition = make_acquisition(models, outcomes, awaited, reference, seed, is_first)
        if feasibility is not None:
            acquisition = FeasibleAcquisition(acquisition, feasibility)
        taken = torch.cat([awaited, runs.failed])
        x, value = maximize(acquisition, space, taken, anchors, not is_first, seed + number)
        awaited = torch.cat([awaited, x.unsqueeze(0)])
        values.append(value)
    return awaited[len(awaited) - n :], values


def _anchors(space: SearchSpace, sources: Any, runs: Runs) -> Tensor:
    """The best rows of this study and of each old task, at most 32 of them."""
    best = list(runs.X[runs.Y[:, 0].argsort(descending=True, stable=True)[:4]])
    if isinstance(sources, Mapping):
        tasks = [task for task in sources.values() if isinstance(task, SupervisedDataset)]
        best += [task.X[task.Y.argmax()] for task in tasks[:: -(-len(tasks) // 28) or 1]]
    if not best:
        return torch.empty(0, space.dim, dtype=torch.double)
    # Old runs may lie outside of the cube, where the space had other bounds.
    return space.round(torch.stack(best).clamp(0.0, 1.0))


@torch.no_grad()
def _supporting_tasks(model: Any, X: Tensor) -> list[str]:
    """Names the source tasks that expect much of each row, the surest first.

    Of models without a posterior of each source task it names none.
    """
    informed: Any = member_on_sources(model)
    if informed is None:
        return [""] * len(X)
    prior = informed.prior
    mean, variance = prior.moments(X)
    gps = prior.gps
    average = (gps.train_Y * gps.mask).sum(dim=-1) / prior.num_points
    surety = (mean - average.unsqueeze(-1)) / variance.clamp_min(1e-12).sqrt()
    weights = getattr(informed, "weights", None)
    if isinstance(weights, Tensor) and weights.shape == (prior.num_tasks,):
        surety[weights < 0.1 * weights.max()] = -math.inf
    names = []
    for column in surety.T:
        order = [i for i in column.argsort(descending=True, stable=True).tolist() if column[i] > 1]
        names.append(", ".join(prior.task_names[i] for i in order[:MAX_NAMED]))
    return names


@contextmanager
def _quiet() -> Any:
    """Ignores warnings that a reader of tables cannot act on."""
    with warnings.catch_warnings():
        for kind in (BotorchWarning, NumericalWarning):
            warnings.simplefilter("ignore", kind)
        # A search that ended early is still compared with all rows that were scored.
        warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
        yield
