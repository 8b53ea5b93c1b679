"""``suggest``: chooses the next configurations to evaluate, from tables of old and new runs.

The tables are the only state: call ``suggest`` again when there are new outcomes. The same tables
and the same seed give the same rows. The module ``reading`` reads the tables, ``outcomes`` models
outcomes and failures, and ``search`` maximizes an acquisition function over the search space.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.utils.datasets import SupervisedDataset
from linear_operator.utils.warnings import NumericalWarning
from pandas import DataFrame
from torch import Tensor
from torch.special import ndtr

from botorch_transfer.data.measurements import Goal, Outcome, Range
from botorch_transfer.data.tables import Runs
from botorch_transfer.feasibility import FeasibilityModel, FeasibleAcquisition
from botorch_transfer.model import predicted_moments
from botorch_transfer.progress import showing
from botorch_transfer.saving import cached_in
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.search_space.cells import check_same_units, errors_in, hint, with_numbers
from botorch_transfer.search_space.space import check_arguments, check_table
from botorch_transfer.suggestion.outcomes import (
    fit_model,
    improvement_per_cost,
    learn_failures,
    make_acquisition,
    mean_rank,
    moments,
    named_model,
    old_tasks,
    takes_sources,
)
from botorch_transfer.suggestion.reading import IMPROVEMENTS, EncodedTables, read_study
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import is_among, maximize, not_taken, spread_out

logger = logging.getLogger(__name__)

#: Minimum number of runs in the space-filling first design of a study without old runs. With
#: ``p > 3`` parameters, the first design has ``p + 1`` runs.
FIRST_RUNS = 4

#: Maximum number of rows of one call of :func:`suggest`.
MAX_ROWS = 1000

#: Levels of the quantiles that :func:`predict` returns.
QUANTILES = (0.05, 0.5, 0.95)

#: Pairs of a probability of improvement and the words for a row with at least this probability.
WORDS = (0.5, "likely to beat %s"), (0.1, "may beat %s"), (0.0, "unlikely to beat %s: exploring")

#: The study may stop if each row's probability to improve by more than the noise is below this
#: value.
UNLIKELY = 0.05

#: Number of random rows that represent the whole region, for example to scale outcomes.
NUM_REFERENCE = 256

#: Maximum number of source tasks to name for a row.
MAX_NAMED = 5


class Suggestion(NamedTuple):
    """Suggested rows with the fitted models and the encoded tables, from :func:`suggest_rows`.

    Args:
        rows: The table that :func:`suggest` returns.
        models: Dictionary from names of outcomes to fitted models. The outcomes are objectives and
            outcomes with limits.
        X: An ``n x d`` tensor of the encoded suggested rows.
        tables: The encoded tables of the study.
        failures: The model of the probability that a run succeeds; ``None`` if no run has failed.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.suggestion import read_study
        >>> space = SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)])
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> suggest_rows(read_study(space, old), n=2).X.shape
        torch.Size([2, 1])
    """

    rows: DataFrame
    models: dict[str, Any]
    X: Tensor
    tables: EncodedTables
    failures: FeasibilityModel | None = None

    def improvements(self, X: Tensor, best: Tensor) -> tuple[Any, Any]:
        """Computes the expected improvement and the probability of improvement of each row.

        A run that fails or violates a limit counts as no improvement.

        Args:
            X: An ``n x d`` tensor of encoded rows.
            best: The encoded outcome to improve on. Large encoded outcomes are good.

        Returns:
            Two arrays with ``n`` entries: expected improvements and probabilities of improvement.
        """
        outcome, *others = self.tables.outcomes
        gains = outcome.improvement(*moments(self.models[outcome.name], X), best)
        allowed = torch.ones_like(gains[0])
        if self.failures is not None:
            allowed = self.failures.log_probability(X).exp()
        for other in others:
            if other.name in self.models:
                mean, variance = moments(self.models[other.name], X)
                allowed = allowed * ndtr((mean - cast(float, other.limit)) / variance.sqrt())
        return (gains[0] * allowed).numpy(), (gains[1] * allowed).numpy()

    @property
    def prospects(self) -> list[str]:
        """Phrase for each row, such as "likely to beat 0.2"; no phrases if there is no best run."""
        chances: Any = self.rows.get(IMPROVEMENTS[1], math.nan)
        if (best := self.tables.best_run()) is None or not np.isfinite(chances).all():
            return []
        value = short(self.tables.outcomes[0].original(self.tables.runs.Y[best, 0]))
        return [next(words for p, words in WORDS if chance >= p) % value for chance in chances]

    @property
    def outlook(self) -> str:
        """Sentence about the largest expected improvement, or about a reason to stop the study.

        If the suggested rows are the last untried rows, the sentence states this. If other untried
        rows are left, but there is no best run, the property is an empty text.
        """
        region, runs, outcome = self.tables.region, self.tables.runs, self.tables.outcomes[0]
        grid, best = None if region.repeats else region.grid(), self.tables.best_run()
        if grid is not None and bool(is_among(grid, torch.cat([runs.tried, self.X])).all()):
            return "These are the last rows: all other rows have been tried."
        if best is None or not self.prospects:
            return ""
        model, x, y = self.models[outcome.name], runs.X[[best]], runs.Y[[best], 0]
        with torch.no_grad():
            noisy = predicted_moments(model.posterior(x, observation_noise=True))[1]
        mean, variance = moments(model, x)
        noise = (noisy - variance).clamp_min(0.0).sqrt()
        X = torch.cat([self.X, region.sample(NUM_REFERENCE, seed=0)])
        gain, value = self.improvements(X, y)[0].max(), outcome.original(y)
        if self.improvements(X, y.maximum(mean + noise))[1].max() < UNLIKELY:
            return f"No row is likely to beat {short(value)} by more than the noise: you may stop."
        noise = (outcome.original(y + noise) - value).abs()
        less = f", less than the noise of {short(noise)}" if gain < noise else ""
        return f"The largest expected improvement on {short(value)} is {short(gain)}{less}."


def suggest(
    space: SearchSpace | Mapping[str, Any] | None,
    history: DataFrame | None,
    runs: DataFrame | None = None,
    outcome: str | Sequence[str] = "loss",
    goal: Goal | Sequence[Goal] | None = None,
    n: int = 1,
    *,
    task: str = "task",
    candidates: DataFrame | None = None,
    fixed: Mapping[str, Any] | None = None,
    constraints: Mapping[str, str] | Sequence[str] | None = None,
    repeats: bool = False,
    model: str | Callable[..., Any] | None = None,
    prior: Any = None,
    noise: str | Mapping[str, str] | None = None,
    status: str = "status",
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    log: bool | str | Sequence[str] = False,
    step: str | None = None,
    run: str | None = None,
    outcome_range: Range | Mapping[str, Range] | None = None,
    same_in_batch: Sequence[str] = (),
    cost: str | None = None,
    robust: bool = True,
    cache: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    seed: int = 0,
) -> DataFrame:
    """Suggests the next rows to try, from a table of old runs and a table of this study's runs.

    Use it if your runs are in tables. The tables are the only state: add the suggested rows to
    ``runs``, leave the outcome empty while a row is pending, and call ``suggest`` again. Models of
    source tasks are pre-trained once, and loaded from a cache as long as the data are the same.

    The search space may differ from the old runs' space; see :func:`from_dataframe` for the rules.

    Args:
        space: The search space, or the dictionary that ``SearchSpace.from_dict`` takes. It may be
            ``None`` with ``candidates``: the space is then guessed from candidates and history.
        history: Old runs of other tasks, one row a run. A run has failed if its ``status`` or the
            text of an outcome names a failure, if an outcome is infinite, or if its outcomes are
            empty and there is no ``status`` column. A task that repeats another task or this study
            is left out, with a logged warning. Give ``None`` with a ``prior``. Also give ``None``
            if there are no old runs: the study then starts with a space-filling design, and
            continues with a plain GP.
        runs: The runs of this study; ``None`` if there are none. A run may have only some of the
            outcomes. A run without any outcome is pending. A run has failed if its ``status`` or
            the text of an outcome names a failure, or if an outcome is infinite. Unused columns are
            ignored. Cells such as ``>95``, ``29*``, ``18 ± 2`` and ``n.d.`` are read; see the page
            "Old runs as a table".
        outcome: The column of the outcome; a list for several objectives.
        goal: Whether small (``"min"``) or large (``"max"``) outcomes are good; a list for several
            objectives. Without ``goal``, the outcome's name decides: ``"min"`` for a name such as
            ``loss``; an error for a name such as ``yield``; and ``"min"`` with a logged warning for
            any other name.
        n: Number of rows to suggest.
        task: The column of ``history`` that names the task.
        candidates: A table of rows to choose from, such as a stock list. Suggestions are rows of
            this table and keep its index and its other columns. A candidate with the same
            parameters as a row of ``runs`` is not suggested, unless ``repeats`` is true.
        fixed: Values that parameters have in this study, such as ``{"temperature": 20}``. Models
            still learn from old runs with other values.
        constraints: Constraints on rows. They are comparisons of sums of parameters, such as
            ``"x1 + x2 <= 1"``; excluded combinations, such as ``"not (base == 'NaH' and x1 > 1)"``;
            bounds on the number of components, such as ``"at_most(2, a, b, c)"``; and limits on
            further outcomes, such as ``"memory <= 5"``. Rows satisfy inequalities exactly, as
            pandas evaluates them, and equalities up to 1e-9, relative to the sizes of their terms.
            If all constraints are limits on outcomes, a mapping such as ``{"memory": "<= 5"}`` is
            also accepted.
        repeats: Whether rows of ``runs`` may be suggested again.
        model: The model: a class of this package or its name; a callable with the arguments
            ``train_X``, ``train_Y``, source data and ``train_Yvar``; ``"SingleTaskGP"`` or another
            BoTorch model, which ignores the history; or ``"sorted"``, which predicts nothing.
            ``"sorted"`` gives each row one score per old task (the rank of the task's run that is
            nearest to the row), and suggests the rows with the best average score. The default is
            :data:`~.suggestion.outcomes.DEFAULT_MODEL`.
        prior: The model's prior, pre-trained on encoded inputs, in place of ``history``. If there
            are several outcomes, give a mapping from outcomes to priors. A prior models outcomes to
            be maximized: pre-train it on the negative values of an outcome to be minimized.
        noise: The column of ``history`` and ``runs`` with the outcome's standard errors. If there
            are several outcomes, give a mapping from outcomes to columns. Empty or zero cells get
            the pooled standard error.
        status: The column with the state of a run, in ``runs`` and optionally in ``history``.
            Words such as ``"failed"``, ``"crashed"`` and ``"timeout"`` mark a failure, whose
            outcome is dropped. Words such as ``"abandoned"`` mark a run that has ended without an
            outcome.
        missing: Values of parameters that old tasks do not record, by parameter name; ``None`` for
            an unknown value.
        rename: A mapping from old to new column names of ``history``.
        log: Names of outcomes whose logarithm is modelled; ``True`` for all objectives. Use it for
            losses whose best values are many times smaller than ordinary values. These outcomes
            must be positive. A ``prior`` must then model the logarithm.
        step: The column of the step, if the tables have learning curves with one row a step. Leave
            the cell empty in rows without a curve. A run was stopped early if its ``status`` is
            ``"stopped"``, or if its curve is shorter than complete curves. The final outcome of
            such a run is predicted by :class:`~botorch_transfer.curves.CurvePrior`, which learns
            from old curves. The variance of the prediction is the run's noise variance.
        run: The column that identifies the run, if there are learning curves. By default, rows of a
            task with the same parameters and increasing steps are one run.
        outcome_range: The least and the largest possible value of the objectives, such as
            ``(0, 100)``; a mapping by outcome if the ranges differ. Predictions are clipped to the
            range, and a warning names outcomes clearly outside of the range. The default is ``(0,
            100)`` for outcomes with a name such as ``yield`` and values in per cent. Other outcomes
            have no range by default.
        same_in_batch: Parameters with one common value in all ``n`` rows, such as the temperature
            of a plate. The search chooses this value.
        cost: The column of ``candidates`` with the cost of each row. As soon as there is an
            outcome, the search maximizes the expected improvement per cost.
        robust: Whether outcomes far worse than the task's median are clipped at the limit that
            :func:`~botorch_transfer.outcome_transforms.robust_limit` returns. Predictions are then
            never worse than the worst outcome after clipping. Good outcomes never change.
        cache: The folder that keeps pre-trained priors for later calls, also in other processes;
            ``"off"`` for no cache. The default is the environment variable
            ``BOTORCH_TRANSFER_CACHE``, or else the user's cache folder. The rows do not depend on
            the cache.
        progress: Whether pre-training shows a progress bar. By default, a bar is shown on a
            terminal if pre-training takes more than three seconds.
        seed: The seed of all random numbers.

    Returns:
        A table of ``n`` rows with these columns:

        - The parameters, in the space's order and in your units. An inactive parameter is empty.
        - ``predicted_mean`` and ``predicted_std`` of each outcome in the outcome's unit. With
          several outcomes, each column name ends in ``_`` and the outcome's name. If the logarithm
          is modelled, both columns are moments of a log-normal distribution.
        - With one objective, ``expected_improvement``: the expected gain over the best run so far,
          in the outcome's unit. A worse row, a failure and a violated limit count as zero gain.
        - With one objective, ``probability_of_improvement``: the probability of a gain. Both
          improvement columns are empty until a successful run of this study has a value of the
          objective and satisfies all limits.
        - ``sources``: at most five old tasks that support the row. A task supports a row if the
          row's z-score in this task is above 1, and the task's weight in the model is not small.
          The z-score is the predicted outcome minus the task's average outcome, divided by the
          standard deviation of the prediction. It is positive if the prediction is better than the
          average. The task with the largest z-score comes first.

    Raises:
        InputDataError: If a column is missing, or a value is outside of the space. The message
            names the remedy.
        TypeError: If an argument has a wrong type.
        ValueError: If arguments contradict one another, or fewer than ``n`` configurations are
            left.

    Example:
        >>> from pandas import DataFrame
        >>> C = FloatParameter("C", 0.1, 1000.0, log=True)
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> rows = suggest(SearchSpace([C]), old)
        >>> list(rows.columns)
        ['C', 'predicted_mean', 'predicted_std', 'expected_improvement',
        'probability_of_improvement', 'sources']
    """
    check_arguments(given := locals())
    tables = read_study(**{name: given[name] for name in signature(read_study).parameters})
    with cached_in(cache), showing(progress):
        return suggest_rows(tables, n, model, seed, same_in_batch).rows


def predict(
    space: SearchSpace | Mapping[str, Any] | None,
    history: DataFrame | None,
    runs: DataFrame | None,
    rows: DataFrame,
    outcome: str | Sequence[str] = "loss",
    goal: Goal | Sequence[Goal] | None = None,
    *,
    model: str | Callable[..., Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    seed: int = 0,
    **options: Any,
) -> DataFrame:
    """Predicts the outcomes of given rows, with the models that :func:`suggest` uses.

    Args:
        space: The search space.
        history: Old runs of other tasks.
        runs: The runs of this study; ``None`` if there are none.
        rows: The table of rows to predict, with a column for each parameter.
        outcome: The column of the outcome.
        goal: Whether small (``"min"``) or large (``"max"``) outcomes are good.
        model: The model. ``"sorted"`` is not allowed because it predicts nothing.
        cache: The folder that keeps pre-trained priors.
        progress: Whether pre-training shows a progress bar.
        seed: The seed of all random numbers.
        options: Arguments of :func:`suggest` about tables and outcomes, such as ``task``,
            ``prior``, ``missing`` and ``outcome_range``. If ``space`` is ``None``, ``candidates``
            is also needed. Outcomes with limits are predicted, too.

    Returns:
        The rows with further columns, in the outcome's unit: ``predicted_mean``,
        ``predicted_std``, and the 5, 50 and 95 % quantiles ``predicted_5``, ``predicted_50`` and
        ``predicted_95``. The predictions do not include measurement noise. With several outcomes,
        each column name ends in ``_`` and the outcome's name.

    Raises:
        InputDataError: If a column is missing, or a value is outside of the space.
        ValueError: If there are neither old runs nor runs with outcomes.

    Example:
        >>> from pandas import DataFrame
        >>> space = SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)])
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> table = predict(space, old, None, DataFrame({"C": [10.0]}), outcome_range=(0, 1))
        >>> bool(table["predicted_5"][0] >= 0)
        True
    """
    check_arguments(locals())
    spare = {"fixed", "repeats", *(() if space is None else ("candidates", "cost"))}
    used = signature(read_study).parameters.keys() - spare
    if useless := options.keys() - used:
        remark = hint(name := min(useless), sorted(used)[::-1], "argument")
        raise TypeError(f"predict does not use {name}={remark}: leave out this argument.")
    tables = read_study(space, history, runs, outcome, goal, **options)
    with cached_in(cache), showing(progress):
        return predict_rows(tables, rows, model, seed)


def predict_rows(
    tables: EncodedTables,
    rows: DataFrame,
    model: str | Callable[..., Any] | None = None,
    seed: int = 0,
) -> DataFrame:
    """Predicts rows as :func:`predict` does, from tables that are already encoded.

    Args:
        tables: The encoded tables of the study.
        rows: The rows to predict.
        model: The model of outcomes, as in :func:`suggest`.
        seed: The seed of all random numbers.

    Returns:
        The rows with their predictions.

    Raises:
        InputDataError: If a row is outside of the space.
        ValueError: If there are neither old runs nor runs with outcomes.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.suggestion import read_study
        >>> space = SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)])
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> tables = read_study(space, old)
        >>> len(predict_rows(tables, DataFrame({"C": [1.0, 2.0]})))
        2
    """
    check_arguments({"seed": seed})
    with errors_in("In the rows to predict"):
        names = tables.space.number_columns
        table = check_table(rows, (), names)
        if rows.empty:
            raise ValueError("There are no rows to predict: add rows to the table.")
        check_same_units({**tables.given, "rows": table}, names)
        X = tables.space.encode(with_numbers(table, names))
    with _fitted(tables, model, seed) as (_, tables, models):
        if not models:
            raise ValueError("No model is fitted: give outcomes, and a model other than 'sorted'.")
        return rows.assign(**_predictions(tables.outcomes, models, X, QUANTILES))


def suggest_rows(
    tables: EncodedTables,
    n: int = 1,
    model: str | Callable[..., Any] | None = None,
    seed: int = 0,
    same_in_batch: Sequence[str] = (),
) -> Suggestion:
    """Suggests rows as :func:`suggest` does, from encoded tables, and also returns the models.

    Args:
        tables: The encoded tables of the study.
        n: Number of rows to suggest.
        model: The model of outcomes, as in :func:`suggest`.
        seed: The seed of all random numbers.
        same_in_batch: Parameters with one common value in all rows.

    Returns:
        The rows and the models.

    Raises:
        TypeError: If ``model`` is not a model.
        ValueError: If ``n`` is not a positive whole number.
        ExhaustedSpaceError: If fewer than ``n`` configurations are left.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.suggestion import read_study
        >>> space = SearchSpace([FloatParameter("C", 0.1, 1000.0, log=True)])
        >>> old = DataFrame({"task": "monday", "C": [1.0, 10.0, 100.0], "loss": [0.5, 0.2, 0.4]})
        >>> suggest_rows(read_study(space, old)).models["loss"].num_outputs
        1
    """
    check_arguments({"seed": seed, "same_in_batch": same_in_batch})
    same_in_batch = [same_in_batch] if isinstance(same_in_batch, str) else same_in_batch
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= MAX_ROWS:
        raise ValueError(f"n is {n!r}: give a whole number from 1 to {MAX_ROWS}.")
    with _fitted(tables.ranked(), model, seed) as (make, tables, models):
        main = tables.outcomes[0].name
        failures = learn_failures(tables.runs, tables.sources[main], tables.old_failed)
        X = _search(tables, make, models, failures, n, int(seed), same_in_batch)
        rows = tables.region.decode(X).assign(**_predictions(tables.outcomes, models, X))
        suggestion = Suggestion(rows, models, X, tables, failures)
        if sum(outcome.is_objective for outcome in tables.outcomes) == 1:
            best, gains = tables.best_run(), (math.nan, math.nan)
            if best is not None and main in models:
                gains = suggestion.improvements(X, tables.runs.Y[best, 0])
            rows[list(IMPROVEMENTS)] = np.stack(gains, axis=-1)
        rows["sources"] = _supporting_tasks(models.get(main), X)
    return suggestion


@contextmanager
def _fitted(
    tables: EncodedTables, model: str | Callable[..., Any] | None, seed: int
) -> Iterator[tuple[Callable[..., Any], EncodedTables, dict[str, Any]]]:
    """Fits a model to each outcome that has data.

    Within the ``with`` block, random numbers depend only on the seed. Some warnings are ignored,
    because a user who passes only tables cannot remove their causes.

    Yields:
        The model class, the tables, and a dictionary from outcomes to fitted models. If the model
        class takes no source data, the tables have no source data. For ``"sorted"``, the dictionary
        is empty.
    """
    make = named_model(model)
    if not takes_sources(make):
        tables = tables._replace(sources=dict.fromkeys(tables.sources))
    elif model is not None and not tables.has_sources:
        name = getattr(model, "__name__", model)
        raise ValueError(f"{name} learns from old runs: give old runs, or give another model=.")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        for kind in (BotorchWarning, NumericalWarning):
            warnings.simplefilter("ignore", kind)
        # If a gradient search ends early, its result is still compared with all scored rows.
        warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
        torch.default_generator.manual_seed(int(seed))
        models: dict[str, Any] = {}
        for index, outcome in enumerate(tables.outcomes):
            sources = tables.sources[outcome.name]
            has_data = sources is not None or bool(tables.runs.Y[:, index].isfinite().any())
            if make is not mean_rank and has_data:
                models[outcome.name] = fit_model(make, tables.runs, index, sources)
        yield make, tables, models


def _predictions(
    outcomes: Sequence[Outcome], models: Mapping[str, Any], X: Tensor, levels: Sequence[float] = ()
) -> dict[str, Any]:
    """Predicts the outcomes of encoded rows, as a dictionary from names of columns to values.

    Args:
        outcomes: The outcomes.
        models: The fitted models by outcome. If an outcome has no model, its columns contain NaN.
        X: An ``n x d`` tensor of encoded rows.
        levels: Levels of predicted quantiles.
    """
    columns: dict[str, Any] = {}
    for outcome in outcomes:
        suffix = f"_{outcome.name}" if len(outcomes) > 1 else ""
        names = ["mean", "std", *(f"{100 * level:g}" for level in levels)]
        found = [math.nan] * len(names)
        if outcome.name in models:
            mean, variance = moments(models[outcome.name], X)
            quantiles = outcome.quantiles(mean, variance, torch.tensor(levels, dtype=torch.double))
            found = [p.numpy() for p in (*outcome.predicted(mean, variance), *quantiles.T)]
        columns |= {f"predicted_{name}{suffix}": v for name, v in zip(names, found, strict=True)}
    return columns


def short(value: Any) -> str:
    """Formats a number with three significant digits.

    Numbers with an absolute value from 100 to 1e6 are rounded to integers instead.
    """
    value = float(value)
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def _search(
    tables: EncodedTables,
    make: Callable[..., Any],
    fitted: Mapping[str, Any],
    failures: FeasibilityModel | None,
    n: int,
    seed: int,
    shared: Sequence[str],
) -> Tensor:
    """Chooses ``n`` rows one by one, and returns them as an ``n x d`` tensor.

    When a row is chosen, the rows that have been chosen before count as pending.
    """
    region, runs = tables.region, tables.runs
    tasks = old_tasks(tables.sources[tables.outcomes[0].name])
    outcomes = [outcome for outcome in tables.outcomes if outcome.name in fitted]
    models = [fitted[o.name] for o in outcomes] if any(o.is_objective for o in outcomes) else []
    objectives = [i for i, outcome in enumerate(tables.outcomes) if outcome.is_objective]
    has_outcomes, tried = bool(runs.Y[:, objectives].isfinite().any()), runs.tried
    taken = tried[:0] if region.repeats else tried
    costs = None if region.cost is None else region.costs()
    if costs is not None and not has_outcomes:
        logger.info("No run has an outcome yet, so cost= is ignored")
    if shared:
        grid = region.grid()
        region = region.with_room(shared, n, None if grid is None else grid[~is_among(grid, taken)])
    if make is mean_rank:
        if shared or costs is not None:
            raise ValueError("'sorted' does not use same_in_batch= or cost=: give another model=.")
        return _sorted_rows(region, tasks, taken, n)
    anchors = _anchors(region, tasks, runs)
    reference = region.sample(NUM_REFERENCE, seed=0)
    first_runs = max(FIRST_RUNS, len(region.space.parameters) + 1) if not tables.has_sources else 0
    new = tried[:0]
    for number in range(n):
        excluded = torch.cat([taken, new])
        if not models or len(tried) + number < first_runs:
            x = spread_out(region, len(tried) + number, excluded, seed)
        else:
            known = torch.cat([runs.awaited, new])
            acquisition = make_acquisition(models, outcomes, known, reference, seed, has_outcomes)
            if costs is not None and has_outcomes:
                acquisition = improvement_per_cost(acquisition, tables.region.candidates, costs)
            if failures is not None:
                acquisition = FeasibleAcquisition(acquisition, failures)
            x = maximize(acquisition, region, excluded, anchors, has_outcomes, seed + number)
        new = torch.cat([new, x.unsqueeze(0)])
        if shared and number == 0 and n > 1:
            region = region.sharing(shared, x)
            anchors = region.nearest(anchors)
    return new


def _sorted_rows(
    region: Region, tasks: Mapping[str, SupervisedDataset], taken: Tensor, n: int
) -> Tensor:
    """Returns the ``n`` rows with the best :func:`mean_rank`, for ``model="sorted"``.

    If the region is too large to list, only random rows and rows nearest to old runs are ranked.
    """
    if not tasks:
        raise ValueError("model='sorted' needs old runs: give a history, or another model=.")
    if (rows := region.grid()) is None:
        old = torch.cat([task.X for task in tasks.values()]).clamp(0.0, 1.0)
        rows = torch.cat([region.nearest(old), region.sample(NUM_REFERENCE, seed=0)]).unique(dim=0)
    rows = not_taken(rows, taken, n)
    return rows[mean_rank(tasks, rows).argsort(descending=True, stable=True)[:n]]


def _anchors(region: Region, tasks: Mapping[str, SupervisedDataset], runs: Runs) -> Tensor:
    """Returns encoded rows near which the search for the next row starts.

    These are the four best runs of this study, and the best run of each of up to 28 old tasks.
    """
    known = runs.known(0)
    best = [known.X[known.Y[:, 0].argsort(descending=True, stable=True)[:4]]]
    some = list(tasks.values())[:: -(-len(tasks) // 28) or 1]
    best += [task.X[task.Y.argmax()].unsqueeze(0) for task in some]
    # Old runs may lie outside of the cube if the space had other bounds.
    return region.nearest(torch.cat(best).clamp(0.0, 1.0))


@torch.no_grad()
def source_z_scores(model: Any, X: Tensor) -> tuple[Sequence[str], Tensor]:
    """Computes the z-score of each row in each source task.

    Args:
        model: The model of an outcome.
        X: An ``n x d`` tensor of encoded rows.

    Returns:
        The names of ``M`` source tasks, and an ``M x n`` tensor of z-scores: the task's posterior
        mean at the row, divided by its posterior standard deviation. Means are in standardized
        units, in which an average outcome is zero. If the model gives a task a small weight, the
        task's z-scores are minus infinity. Both results are empty unless the model has a posterior
        for each source task.
    """
    informed: Any = getattr(model, "member_on_sources", None)
    if informed is None:
        return (), X.new_empty(0, len(X))
    mean, variance = informed.prior.moments(X)
    sure = mean / variance.clamp_min(1e-12).sqrt()
    sure[informed.weights < 0.1 * informed.weights.max()] = -math.inf
    return informed.prior.task_names, sure


def _supporting_tasks(model: Any, X: Tensor) -> list[str]:
    """Returns a text for each row: at most :data:`MAX_NAMED` names of source tasks.

    These are the tasks in which the row's z-score is above 1, the largest z-score first.
    """
    names, found = source_z_scores(model, X)
    first = found.argsort(dim=0, descending=True, stable=True)[:MAX_NAMED]
    return [
        ", ".join(names[i] for i in order if scores[i] > 1)
        for scores, order in zip(found.T, first.T, strict=True)
    ]
