"""``backtest``: replays old tasks to measure whether runs of other tasks help to find good rows.

Each old task is replayed as if it were new, with the other tasks as its history. The model chooses
among the task's own rows, so that every outcome is known. The hyperparameters of a pre-trained
prior are fitted once, to all tasks. For the replay of a task, the data of this task are removed
from the prior.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.utils.datasets import SupervisedDataset
from numpy.typing import NDArray
from pandas import DataFrame
from tqdm.auto import tqdm

from botorch_transfer.data.measurements import Goal, Outcome
from botorch_transfer.data.tables import Runs, limit_task
from botorch_transfer.memo import content_key
from botorch_transfer.population.prior import SourcePopulation
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.search_space.space import check_arguments
from botorch_transfer.sources.prior import SourceGPs
from botorch_transfer.suggestion.next_rows import suggest_rows
from botorch_transfer.suggestion.outcomes import PLAIN, SORTED, named_model, takes_sources
from botorch_transfer.suggestion.reading import EncodedTables, read_study
from botorch_transfer.suggestion.region import Region

Array = NDArray[np.float64]

#: Numbers of evaluations after which the table of :class:`Backtest` lists the best outcome. The
#: last number is also the maximum number of evaluations of a replay.
CHECKPOINTS = (1, 3, 5, 10)

#: Maximum number of replayed tasks, maximum number of rows of each task, and maximum number of
#: source tasks.
MAX_REPLAYED, MAX_ROWS, MAX_SOURCES = 10, 100, 32

#: Minimum number of different rows of a replayed task.
FEWEST_ROWS = 4

#: Name of the baseline that chooses rows at random.
RANDOM = "random"

#: Number of random orders of rows over which the random baseline is averaged, and number of
#: bootstrap samples of a confidence interval.
NUM_ORDERS, NUM_DRAWS = 200, 2_000

#: Columns of the CSV file of finished replays.
COLUMNS = ["key", "task", "model", "evaluation", "outcome"]


@dataclass(frozen=True)
class Backtest:
    """Result of :func:`backtest`: a table, and a summary that ``print`` shows.

    Args:
        table: A table with one row for each task and model:

            - ``task``, ``model``: the names of the task and of the model.
            - ``best_1``, ``best_3``, ``best_5``, ``best_10``: the best outcome after 1, 3, 5 and
              10 evaluations.
            - ``distance``: the distance between the best outcome found so far and the best outcome
              of all rows of the task. The unit is the distance between the task's median and best
              outcome. Distances above 1 count as 1. The distance is averaged over evaluations.
            - ``saved``: the number of evaluations that the plain GP (``SingleTaskGP``) needs to
              reach the best outcome of its replay, minus the number that the model needs to reach
              this outcome. If the model never reaches this outcome, the model's number is the
              length of the replay plus one.
        recommended: Name of the model to give to ``suggest(..., model=)``. This is the first of the
            compared models, unless the mean ``distance`` of another model is smaller by more than
            one standard error of the difference.
        model: Name of the model that ``print`` compares with the plain GP.
        needed: Number of evaluations that the plain GP needs to reach the best outcome of its
            replay, averaged over tasks.
        sample: A sentence that states which tasks were replayed.

    Example:
        >>> table = DataFrame({"task": ["monday"], "model": ["default"], "saved": [2.0]})
        >>> Backtest(table, "default", "default", needed=7.0, sample="1 task").recommended
        'default'
    """

    table: DataFrame
    recommended: str
    model: str
    needed: float
    sample: str

    @property
    def saved(self) -> pd.Series:
        """Number of evaluations that :attr:`model` saves in each task, relative to the plain GP."""
        return self.table[self.table["model"] == self.model].set_index("task")["saved"]

    def interval(self) -> tuple[float, float]:
        """Computes a 90 % confidence interval of the mean number of saved evaluations.

        The bootstrap resamples tasks.

        Returns:
            The lower and the upper end. With a single task, the ends are infinite.
        """
        saved = self.saved.to_numpy(dtype=float)
        if len(saved) < 2:
            return -math.inf, math.inf
        drawn = np.random.default_rng(0).choice(saved, (NUM_DRAWS, len(saved))).mean(axis=1)
        low, high = np.quantile(drawn, (0.05, 0.95))
        return float(low), float(high)

    def __str__(self) -> str:
        """Summarizes the result in a few sentences."""
        saved, (low, high) = self.saved, self.interval()
        mean, num = float(saved.mean()), len(saved)
        if self.model == PLAIN:
            return f"The first model is the plain GP: name another model first. {self.sample}"
        verb = "saved" if mean >= 0 else "cost"
        ends = sorted([low, high] if mean >= 0 else [-low, -high])
        text = (
            f"On your {num} tasks, a plain GP reaches its best outcome after {self.needed:.1f} "
            f"evaluations. Old runs would have {verb} {abs(mean):.1f} evaluations (90 % interval: "
            f"{ends[0]:.1f} to {ends[1]:.1f})"
        )
        if low <= 0 <= high:
            text += "; this difference may be chance"
        worst = saved[saved < 0].sort_values()
        if 0 < len(worst) < num:
            text += f"; on `{worst.index[0]}` they cost {-worst.iloc[0]:.0f} or more evaluations"
        text += f". A single new task may differ. Use model={self.recommended!r}"
        return f"{text}. {self.sample}"


def backtest(
    space: SearchSpace | Mapping[str, Any],
    history: DataFrame,
    outcome: str = "loss",
    goal: Goal | None = None,
    models: Sequence[str] | None = None,
    seed: int = 0,
    resume: str | Path | None = None,
    *,
    task: str = "task",
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    log: bool = False,
    step: str | None = None,
    run: str | None = None,
    constraints: Sequence[str] = (),
    robust: bool = True,
    progress: bool | None = None,
) -> Backtest:
    """Replays each old task as if it were new, with the other tasks as its history.

    Use it to check whether old runs help, and which model to give to :func:`suggest`. A model
    chooses among the rows of the replayed task, because their outcomes are known. Failed runs are
    left out. Rows with equal parameters become one row with their mean outcome. At most ten tasks
    with at most a hundred rows each are replayed, which takes a minute or two. From a larger
    history, a random sample of tasks and rows is drawn, and the result describes this sample.

    Args:
        space: The search space.
        history: Old runs, one row a run.
        outcome: The column of the outcome.
        goal: Whether small (``"min"``) or large (``"max"``) outcomes are good.
        models: Names of models that :func:`suggest` takes; by default the default model of
            :func:`suggest`, and ``"sorted"``. For comparison, the backtest always includes
            ``"SingleTaskGP"`` and a random choice of rows.
        seed: The seed of the sample and of the models.
        resume: A CSV file of finished replays. Each replay of a task by a model is added to the
            file when it is finished. A later call with the same file computes only the missing
            replays. Replays of other data, seeds or models stay in the file and are ignored.
        task: The column that names the task.
        missing: Values of parameters that old tasks do not record, by parameter name.
        rename: A mapping from old to new column names.
        log: Whether to model the outcome's logarithm.
        step: The column of the step, if there are learning curves, as in :func:`suggest`.
        run: The column that identifies the run, if there are learning curves, as in
            :func:`suggest`.
        constraints: Constraints on the rows that a model chooses from, as in :func:`suggest`.
        robust: Whether very bad outcomes are clipped at a limit before models are fitted, as in
            :func:`suggest`. The table is computed from the original outcomes.
        progress: Whether to show a progress bar; by default on a terminal.

    Returns:
        The result. Print it to see a summary.

    Raises:
        InputDataError: If there are fewer than two tasks; if every task has too few different rows,
            or the same outcome in all of its rows; or if ``resume`` is not a file of finished
            replays.
        ValueError: If a model's name is unknown.

    Example:
        >>> from pandas import DataFrame
        >>> tasks = {"monday": 0.3, "tuesday": 0.4, "friday": 0.5}
        >>> x = [0.1, 0.3, 0.5, 0.7, 0.9]
        >>> rows = [(task, v, (v - best) ** 2) for task, best in tasks.items() for v in x]
        >>> old = DataFrame(rows, columns=["task", "x", "loss"])
        >>> found = backtest(SearchSpace([FloatParameter("x", 0, 1)]), old, models=["sorted"])
        >>> found.recommended
        'sorted'
    """
    check_arguments(given := locals() | {"robust": False})
    if space is None:
        raise TypeError("space is None: give a SearchSpace, such as guess_space(history).")
    models = [models] if isinstance(models, str) else models
    usual: list[Any] = [named_model(None), SORTED] if models is None else [*models]
    if not usual:
        raise ValueError("models is []: name a model, or omit models=.")
    names = list(dict.fromkeys([*(getattr(m, "__name__", m) for m in usual), PLAIN]))
    made = {name: named_model(name) for name in names}
    tables = read_study(**{n: given[n] for n in signature(read_study).parameters if n in given})
    if len(tables.outcomes) > 1:
        raise ValueError("A backtest takes one outcome: omit further outcomes and all limits.")
    (target,), rng = tables.outcomes, np.random.default_rng(seed)
    sources = tables.sources[target.name]
    if len(sources or ()) < 2:
        raise InputDataError("The history has fewer than two tasks: give two or more old tasks.")
    kept = _some(list(sources), MAX_SOURCES, rng)
    data = {name: _thinned(sources[name], rng) for name in kept}
    pools = {name: _pool(tables.region, each) for name, each in data.items()}
    data = {name: limit_task(each) if robust else each for name, each in data.items()}
    enough = [n for n, (_, Y) in pools.items() if len(Y) >= FEWEST_ROWS and np.ptp(Y) > 0]
    if not enough:
        raise InputDataError(
            f"Each task has fewer than {FEWEST_ROWS} different rows in the space, or constant "
            "outcomes: give more rows, widen the space, or choose another outcome column."
        )
    replayed = _some(enough, MAX_REPLAYED, rng)
    key = content_key(tables.space, tables.outcomes, data, seed, robust)
    path = None if resume is None else Path(resume)
    finished = _finished(path, key)
    priors: dict[str, Any] = {}
    quiet = None if progress is None else not progress
    bar = tqdm(total=len(replayed) * len(names), desc="backtest", disable=quiet)
    curves: dict[tuple[str, str], Array] = {}
    for left_out in replayed:
        rows, values = pools[left_out]
        study = tables._replace(region=Region(tables.space, table=rows), old_failed=None)
        for name in names:
            bar.set_postfix_str(f"{left_out}, {name}", refresh=False)
            found = finished.get((str(left_out), name), values[:0])
            if len(found) < min(CHECKPOINTS[-1], len(values)):
                if name not in priors:
                    priors[name] = _learned(made[name], data)
                others = _without(priors[name], data, left_out)
                study = study._replace(sources={target.name: others})
                found = _replay(name, study, values, seed, robust)
                if path is not None:
                    _add_finished(path, key, left_out, name, found)
            curves[left_out, name] = np.maximum.accumulate(found)
            bar.update()
        curves[left_out, RANDOM] = _at_random(values, seed)
    bar.close()
    table, needed = _tabulate(target, curves, {name: pools[name][1] for name in replayed})
    words = f"Replayed: {len(replayed)} of {len(sources)} tasks, at most {MAX_ROWS} rows each"
    words += f", with {len(kept)} tasks to learn from." if len(kept) < len(sources) else "."
    if outside := [repr(name) for name in kept if name not in enough]:
        words += f" Not replayed (under {FEWEST_ROWS} rows in the space, or equal outcomes): "
        words += f"{', '.join(outside)}."
    return Backtest(table, _recommended(table, names), names[0], needed, words)


def _some(names: Sequence[str], most: int, rng: np.random.Generator) -> list[str]:
    """Returns a random sample of at most ``most`` names, in their original order."""
    return [names[i] for i in sorted(rng.permutation(len(names))[:most])]


def _thinned(task: SupervisedDataset, rng: np.random.Generator) -> SupervisedDataset:
    """Returns a random sample of at most :data:`MAX_ROWS` rows of a source task."""
    kept = torch.zeros(len(task.Y), dtype=torch.bool)
    kept[rng.permutation(len(task.Y))[:MAX_ROWS]] = True
    return task.clone(mask=kept)


def _pool(region: Region, task: SupervisedDataset) -> tuple[DataFrame, Array]:
    """Returns the rows among which a model chooses in the replay of a task.

    Args:
        region: The rows that may be suggested.
        task: The source data of the task.

    Returns:
        A table of the task's different configurations in the region, and an array of the mean
        outcome of each configuration, to be maximized.
    """
    inside = ((task.X >= 0) & (task.X <= 1)).all(dim=-1)
    inside &= region.allows(task.X.clamp(0.0, 1.0))
    rows, Y = region.decode(task.X[inside]), task.Y[inside, 0].numpy()
    X = region.space.encode(rows).numpy().round(12)
    _, first, place = np.unique(X, axis=0, return_index=True, return_inverse=True)
    means = np.bincount(place.ravel(), Y) / np.maximum(np.bincount(place.ravel()), 1)
    return rows.iloc[first].reset_index(drop=True), means


def _learned(make: Callable[..., Any], data: Mapping[str, SupervisedDataset]) -> Any:
    """Fits a model's prior to all source tasks; all replays start from this prior.

    Args:
        make: The model class, or a callable that makes a model.
        data: The source data by task.

    Returns:
        The prior; or ``data`` itself, if :func:`_without` cannot remove a task from the prior.
    """
    if not isinstance(make, type) or not takes_sources(make):
        return data
    first = next(iter(data.values()))
    # Rows outside of the space are allowed.
    with warnings.catch_warnings(action="ignore", category=InputDataWarning):
        prior = getattr(make(first.X[:1], first.Y[:1], data), "prior", None)
    parts = prior.values() if isinstance(prior, Mapping) else [prior]
    return prior if all(isinstance(p, SourceGPs | SourcePopulation) for p in parts) else data


def _without(prior: Any, data: Mapping[str, SupervisedDataset], left_out: str) -> Any:
    """Removes the data of the task ``left_out`` from a prior, and returns the new prior.

    ``prior`` has been fitted to the source data ``data``, or is ``data`` itself.
    """
    if prior is data:
        return {name: task for name, task in data.items() if name != left_out}
    if isinstance(prior, Mapping):
        return {name: _without(part, data, left_out) for name, part in prior.items()}
    return prior.select([i for i, name in enumerate(prior.task_names) if name != left_out])


def _replay(model: str, tables: EncodedTables, values: Array, seed: int, robust: bool) -> Array:
    """Lets a model choose rows of a task one by one, as if the task were new.

    Args:
        model: The name of the model.
        tables: The rows to choose from, and the source data that the model learns from.
        values: The outcomes of these rows, to be maximized.
        seed: The seed of the model.
        robust: Whether very bad outcomes are clipped at a lower limit before the model is fitted.

    Returns:
        The outcomes of the rows in the order in which they were chosen.
    """
    X, known, chosen = tables.region.candidates, torch.from_numpy(values)[:, None], list[int]()
    for _ in range(min(CHECKPOINTS[-1], len(X))):
        study = tables._replace(runs=Runs.of(X[chosen], known[chosen]))
        study = study.limited() if robust else study
        chosen.append(int(suggest_rows(study, 1, model, seed).rows.index[0]))
    return values[chosen]


def _at_random(values: Array, seed: int) -> Array:
    """Computes the best outcome after each evaluation, averaged over random orders of rows."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(values)[: CHECKPOINTS[-1]] for _ in range(NUM_ORDERS)]
    return np.maximum.accumulate(orders, axis=1).mean(axis=0)


def _finished(path: Path | None, key: str) -> dict[tuple[str, str], Array]:
    """Reads the outcomes of finished replays from a CSV file.

    Args:
        path: The file.
        key: A hash of the data and the settings. Replays with another key are ignored.

    Returns:
        A dictionary from pairs of task and model to the outcomes in the order of the replay. The
        dictionary is empty if there is no file.
    """
    is_new = path is None or (path.parent.is_dir() and not path.exists())
    if path is None or is_new or (path.is_file() and not path.stat().st_size):
        return {}
    types = {"task": str, "outcome": float}
    try:
        runs = pd.read_csv(path, dtype=types, keep_default_na=False)[COLUMNS]
    except (OSError, ValueError, KeyError) as error:
        problem = "is neither a file of finished replays nor the path of a new file"
        raise InputDataError(f"{path} {problem}: name another file.") from error
    runs = runs[runs["key"] == key].drop_duplicates(COLUMNS[:-1], keep="last")
    outcomes: Any = runs.groupby(["task", "model"])["outcome"]
    return {name: values.to_numpy(dtype=float) for name, values in outcomes}


def _add_finished(path: Path, key: str, task: str, model: str, outcomes: Array) -> None:
    """Appends the outcomes of one finished replay to the CSV file."""
    parts = (key, task, model, range(1, len(outcomes) + 1), outcomes)
    is_new = not path.exists() or not path.stat().st_size
    added = DataFrame(dict(zip(COLUMNS, parts, strict=True)))
    added.to_csv(path, mode="a", index=False, header=is_new)


def _tabulate(
    outcome: Outcome, curves: Mapping[tuple[str, str], Array], spreads: Mapping[str, Array]
) -> tuple[DataFrame, float]:
    """Computes the attributes ``table`` and ``needed`` of a :class:`Backtest`.

    Args:
        outcome: The outcome.
        curves: A dictionary from pairs of task and model to an array of the best outcome after each
            evaluation.
        spreads: A dictionary from tasks to an array of the outcomes of all rows of the task.
    """
    rows, needed = [], dict[str, int]()
    for (task, model), best in curves.items():
        most, middle = spreads[task].max(), np.median(spreads[task])
        goal = curves[task, PLAIN][-1]
        needed[task] = _reached(curves[task, PLAIN], goal)
        distance = np.clip((most - best) / (most - middle or 1.0), 0.0, 1.0).mean()
        values = outcome.original(torch.from_numpy(best)).tolist()
        row = {"task": task, "model": model}
        row |= {f"best_{n}": values[min(n, len(values)) - 1] for n in CHECKPOINTS}
        rows.append(row | {"distance": distance, "saved": needed[task] - _reached(best, goal)})
    return DataFrame(rows), float(np.mean(list(needed.values())))


def _reached(best: Array, goal: float) -> int:
    """Counts the evaluations until the best outcome reaches a goal, up to rounding errors.

    Args:
        best: An array of the best outcome after each evaluation.
        goal: The outcome to reach.

    Returns:
        The number of evaluations. If the goal is never reached, the length of ``best`` plus one.
    """
    there = best >= goal - 1e-9 * max(abs(goal), 1e-9)
    return int(there.argmax()) + 1 if there.any() else len(best) + 1


def _recommended(table: DataFrame, names: Sequence[str]) -> str:
    """Chooses the model that a :class:`Backtest` recommends.

    Args:
        table: The table of the backtest.
        names: The names of the compared models.

    Returns:
        The first name, unless the mean distance of another model is smaller by more than one
        standard error of the difference. If there are several such models, the name of the model
        with the smallest mean distance.
    """
    distances = table.pivot(index="task", columns="model", values="distance")[list(names)]
    gains = distances.rsub(distances[names[0]], axis=0)
    errors = gains.std(ddof=1).fillna(math.inf) / math.sqrt(len(gains))
    better = distances.mean()[gains.mean() > errors]
    return str(better.idxmin()) if len(better) else names[0]
