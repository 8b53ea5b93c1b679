"""Old runs of a generation strategy, as a table.

A :class:`TransferHistory` holds a table of old runs in the raw search space, before Ax's
transforms. The values of the table have types that JSON stores exactly. Tensors and old Ax
experiments are converted to such tables. :meth:`TransferHistory.runs_in` selects the old runs of a
metric for an experiment.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
from ax.api.client import Client
from ax.core import Experiment, SearchSpace
from ax.core.auxiliary_source import AuxiliarySource
from ax.core.trial_status import STATUSES_EXPECTING_DATA
from ax.exceptions.core import UserInputError
from botorch.exceptions.errors import InputDataError

from botorch_transfer import search_space as own
from botorch_transfer.ax_experiments import experiment_of, own_space
from botorch_transfer.data import SourceData, as_datasets
from botorch_transfer.data.columns import renamed
from botorch_transfer.data.measurements import Outcome, measured, numbers
from botorch_transfer.memo import Memo, content_key
from botorch_transfer.search_space.cells import plain, rows_of_tasks
from botorch_transfer.search_space.space import check_table

logger = logging.getLogger(__name__)

#: Column of the task names in the tables. The name is unusual, so that no parameter or metric has
#: this name.
TASK = "old task"

#: Minimum standard error of old outcomes, as a fraction of the outcomes' standard deviation.
LEAST_ERROR = 1e-3

#: Mapping from old tasks to tensors ``(X, Y)`` or ``(X, Y, Yvar)``, in the raw search space.
TensorHistory = Mapping[str, SourceData]


@contextmanager
def user_errors() -> Iterator[None]:
    """Turns the ``with`` block's errors about old runs into Ax's ``UserInputError``."""
    try:
        yield
    except (InputDataError, ValueError) as error:
        remedy = (
            r"\1give its value by missing={\2: ...}, or make it one of the dependent_parameters"
        )
        text = re.sub(r"(Parameter ('.+?') .*)fill in the cell.*active_if", remedy, str(error))
        raise UserInputError(text) from error


def moments_of(outcomes: np.ndarray) -> tuple[float, float]:
    """Returns the mean and standard deviation of outcomes.

    The standard deviation is 1 if all outcomes are equal.
    """
    std = float(outcomes.std(ddof=1)) if len(outcomes) > 1 else 0.0
    mean = float(outcomes.mean()) if len(outcomes) else 0.0
    rounding = 4 * float(np.finfo(float).eps) * abs(mean)
    return mean, std if std > rounding else 1.0


def _plain_columns(tasks: Sequence[pd.DataFrame]) -> dict[str, list[Any]]:
    """Concatenates tables, and returns a mapping from columns to lists of values for JSON.

    A missing value becomes ``None``. Numbers and booleans are kept. Any other value, such as a
    date, becomes text.
    """
    frame = pd.concat(tasks or [pd.DataFrame(columns=[TASK])], ignore_index=True)
    objects = frame.rename(columns=str).astype(object)
    columns: dict[Any, list[Any]] = objects.where(objects.notna(), None).to_dict("list")
    kept = bool | int | float | None
    return {
        name: [cell if isinstance(cell, kept) else str(cell) for cell in map(plain, cells)]
        for name, cells in columns.items()
    }


@dataclass(frozen=True, repr=False)
class TransferHistory:
    """Table of old runs in the raw search space, before Ax's transforms, with one row per run.

    Use this class to create a ``TransferAdapter`` yourself. ``transfer_generation_strategy``
    creates a history from its argument ``history=``. Ax stores the table with the strategy.

    Args:
        columns: The columns of the table, by name: parameters, metrics, standard errors
            (``"<metric>_sem"``), and ``"old task"``, the name of the old task.
        missing: Mapping from parameters to assumed values; ``None`` for an unknown value. A run
            gets the assumed value if the parameter has no column, or if the run's cell is empty.
        positional: Whether the name of a parameter's column is the parameter's position in the
            search space: ``"0"``, ``"1"`` and so on.
        varied: The parameters that old Ax experiments varied; empty if the runs do not come from Ax
            experiments.
        robust: Whether very bad outcomes are clipped at the limit that
            :func:`~botorch_transfer.outcome_transforms.robust_limit` returns.
        objectives: Mapping from the objective columns of Optuna studies to 1 (maximize) or -1
            (minimize); empty if the runs do not come from Optuna studies.

    Example:
        >>> history = TransferHistory({"old task": ["monday"], "C": [10.0], "loss": [0.3]})
        >>> history.moments(Outcome("loss", -1.0))
        (0.3, 1.0)
    """

    columns: dict[str, list[Any]]
    missing: dict[str, Any] = field(default_factory=dict)
    positional: bool = False
    varied: list[str] = field(default_factory=list)
    robust: bool = True
    objectives: dict[str, float] = field(default_factory=dict)

    def named_as(self, objectives: Mapping[str, float]) -> TransferHistory:
        """Converts the objectives of Optuna studies to the objectives of an Ax experiment.

        The first objective of the studies corresponds to the first objective of the experiment, and
        so on. Renames the columns of objectives. If studies and experiment have opposite directions
        for an objective, the old outcomes of this objective are multiplied by -1.

        Args:
            objectives: Mapping from the experiment's objectives to 1 (maximize) or -1 (minimize).

        Returns:
            The converted history. A history that does not come from Optuna studies is returned
            unchanged.

        Raises:
            UserInputError: If studies and experiment have different numbers of objectives.
        """
        if not self.objectives:
            return self
        if len(self.objectives) != len(objectives):
            raise UserInputError(
                f"The old studies have {len(self.objectives)} objectives, but the experiment has "
                f"{len(objectives)}: leave out the old studies."
            )
        columns = dict(self.columns)
        pairs = zip(self.objectives.items(), objectives.items(), strict=True)
        for (old, was), (new, sign) in pairs:
            values = columns.pop(old)
            columns[new] = [None if value is None else was * sign * value for value in values]
        return replace(self, columns=columns, objectives={})

    @classmethod
    def from_frame(
        cls, frame: pd.DataFrame, task: str = "task", missing: Mapping[str, Any] | None = None
    ) -> Self:
        """Creates a history from a table of old runs.

        Args:
            frame: The table, with one row per run.
            task: The column of the task names.
            missing: Values for runs that do not record a parameter, by parameter name; ``None``
                for an unknown value.

        Returns:
            The history, in which empty cells are ``None``.

        Raises:
            UserInputError: If the table has no column ``task``, two columns with the same name, or
                rows without a task.

        Example:
            >>> frame = pd.DataFrame({"task": ["monday"], "C": [10.0], "loss": [0.3]})
            >>> TransferHistory.from_frame(frame)
            TransferHistory(1 runs of 1 tasks)
        """
        frame, task = frame.rename(columns=str), str(task)
        with user_errors():
            frame = check_table(frame, frame.columns, [task])
            if task not in frame.columns:
                raise InputDataError(
                    f"The history has no column {task!r}: set task= to the name of the task column."
                )
            rows_of_tasks(frame[task])  # raises an error if a row has no task
        frame = frame.drop(columns=task).assign(**{TASK: frame[task].astype(str)})
        return cls(_plain_columns([frame]), dict(missing or {}))

    @classmethod
    def from_tensors(
        cls, metrics: Mapping[str, TensorHistory], missing: Mapping[str, Any] | None = None
    ) -> Self:
        """Creates a history from tensors.

        The columns of ``X`` have the order of the search space's parameters.

        Args:
            metrics: A mapping from metrics to mappings from old tasks to ``(X, Y)`` or
                ``(X, Y, Yvar)``, in raw units. ``X`` is ``n_i x d``; ``Y`` and ``Yvar`` are
                ``n_i x 1``.
            missing: Values of parameters without a column, by parameter name; ``None`` for an
                unknown value. Only the last parameters of the search space may lack a column.

        Returns:
            The history.

        Raises:
            UserInputError: If tensors have the wrong shape or values that are not finite.
            TypeError: If a value of ``metrics`` is not a mapping from old tasks to tensors.

        Example:
            >>> X = torch.rand(4, 2)
            >>> TransferHistory.from_tensors({"loss": {"monday": (X, X[:, :1])}})
            TransferHistory(4 runs of 1 tasks)
        """
        if not all(isinstance(tasks, Mapping) for tasks in metrics.values()):
            raise TypeError("The history has no task names: give {metric: {task: (X, Y)}}.")
        told = {(m, task): data for m, tasks in metrics.items() for task, data in tasks.items()}
        named = {f"{metric} of {task}": data for (metric, task), data in told.items()}
        with user_errors():
            datasets = as_datasets(named) if named else []
        frames = []
        for (metric, task), data in zip(told, datasets, strict=True):
            frame = pd.DataFrame(data.X.detach().cpu().numpy()).rename(columns=str)
            frame[TASK], frame[metric] = task, data.Y.detach().cpu().numpy()
            if data.Yvar is not None:
                frame[f"{metric}_sem"] = data.Yvar.sqrt().cpu().numpy()
            frames.append(frame)
        return cls(_plain_columns(frames), dict(missing or {}), positional=True)

    @classmethod
    def from_experiments(
        cls,
        experiments: Sequence[Client | Experiment | AuxiliarySource],
        missing: Mapping[str, Any] | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> Self:
        """Creates a history from old Ax experiments or Ax's ``AuxiliarySource`` objects.

        Args:
            experiments: The old experiments, or their clients. An ``AuxiliarySource`` also renames
                the parameters and metrics of an experiment.
            missing: Values of parameters that old experiments lack, by parameter name; ``None``
                for an unknown value.
            rename: Mapping from old names of parameters and metrics to new names.

        Returns:
            The history, with one task for each pair of an experiment and a metric. Experiments
            without data are left out.

        Raises:
            UserInputError: If two experiments have the same name. Also if an old name in ``rename``
                occurs in no experiment, or if a new name already occurs in an experiment.
        """
        sources = [
            given if isinstance(given, AuxiliarySource) else _named(experiment_of(given), rank)
            for rank, given in enumerate(experiments)
        ]
        names = [source.experiment.name for source in sources]
        if len(set(names)) < len(names):
            raise UserInputError(
                f"Two of the old experiments {names} have the same name: give them different names."
            )
        if empty := [source.experiment.name for source in sources if source.data.empty]:
            logger.warning("Old experiments without data are left out: %s", ", ".join(empty))
        sources = [source for source in sources if source.is_active and not source.data.empty]
        frames, rename = [f for source in sources for f in _tasks(source)], dict(rename or {})
        if unknown := rename.keys() - {name for frame in frames for name in frame}:
            raise UserInputError(
                f"rename= names {min(unknown)!r}, which no old experiment has: correct the name."
            )
        new_names = rename | {f"{old}_sem": f"{new}_sem" for old, new in rename.items()}
        with user_errors():
            frames = [
                renamed(frame, {old: new for old, new in new_names.items() if old in frame})
                for frame in frames
            ]
        spaces = [(source, source.experiment.search_space) for source in sources]
        varied = {name for s, space in spaces for name in _renamed(s, space.tunable_parameters)}
        varied = {rename.get(name, name) for name in varied}
        return cls(_plain_columns(frames), dict(missing or {}), varied=sorted(varied))

    @cached_property
    def key(self) -> str:
        """Cache key, computed from the history's content. Equal histories have equal keys."""
        return content_key(self)

    def recorded(self, goal: Outcome) -> pd.DataFrame:
        """Converts the outcomes of a metric to numbers, and clips very bad outcomes.

        Very bad outcomes are only clipped if ``robust`` is true and the metric has a direction.

        Args:
            goal: The metric. Its sign is 0 if the metric has no direction.

        Returns:
            The whole table, with numbers in the column of the metric. A missing outcome is NaN.

        Raises:
            UserInputError: If the metric has no finite value, or a cell cannot be read.
        """

        def read() -> pd.DataFrame:
            sem = f"{goal.name}_sem"
            named = replace(goal, noise=sem if sem in self.columns else None)
            table = pd.DataFrame(self.columns, dtype=object)
            with user_errors():
                (frame,) = measured([table], [named], None, TASK)
            values = numbers(frame, goal.name)
            if not np.isfinite(values).any():
                raise UserInputError(
                    f"The history has no finite value of {goal.name!r}: leave this metric out."
                )
            tasks = rows_of_tasks(frame[TASK]) if self.robust else {}
            for rows in tasks.values():
                values[rows] = goal.limited(values[rows])
            return frame.assign(**{goal.name: values})

        return _recorded.recall(content_key(self.key, goal), read)

    def moments(self, goal: Outcome) -> tuple[float, float]:
        """Returns the mean and standard deviation of a metric's old outcomes.

        Ignores missing outcomes. The standard deviation is 1 if all outcomes are equal.
        """
        outcomes = numbers(self.recorded(goal), goal.name)
        return moments_of(outcomes[np.isfinite(outcomes)])

    def runs_in(
        self, space: SearchSpace, goal: Outcome, fixed: Mapping[str, Any], missing: Collection[str]
    ) -> pd.DataFrame:
        """Returns the runs with a finite value of a metric, converted to an experiment's space.

        Args:
            space: The raw search space of the experiment.
            goal: The metric.
            fixed: The values of the experiment's fixed parameters by name. In the runs of old Ax
                experiments, these values replace the recorded values, as in Ax.
            missing: The parameters that old runs may lack, because the user's ``missing=``, the
                status quo, a backfill value or ``fixed`` supplies a value.

        Returns:
            A table of these runs. The columns of parameters have the names in the experiment. If a
            value differs from a choice of the experiment's parameter only by type or rounding, the
            choice replaces the value.

        Raises:
            UserInputError: If the search space lacks a parameter that old experiments varied, or if
                tensors have too many or too few columns.
        """
        if unknown := [name for name in self.varied if name not in space.parameters]:
            raise UserInputError(
                f"Old experiments varied the parameters {unknown}, which the new experiment lacks: "
                "add the parameters to the new search space, or rename the parameters by rename=."
            )
        frame = self.recorded(goal)
        finite = np.isfinite(numbers(frame, goal.name))
        if left_out := int((~finite).sum()):
            logger.info("Left out %d old runs without a finite %s.", left_out, goal.name)
        frame = frame[finite].drop(columns=fixed if self.varied else (), errors="ignore")
        if self.positional:
            names = list(space.tunable_parameters)  # neither fixed nor derived
            width = sum(name.isdigit() for name in frame.columns)
            needed = {p.name for p in own_space(space).parameters if not p.active_if} - {*missing}
            absent = [name for name in names[width:] if name in needed]
            if width > len(names) or absent:
                remedy = f", or the values of {absent} by missing=" if absent else ""
                raise UserInputError(
                    f"X of task {frame[TASK].iloc[0]!r} has {width} columns, and the search space "
                    f"has {len(names)} parameters: give one column for each of {names}, in this "
                    f"order{remedy}."
                )
            frame = frame.rename(columns={str(place): name for place, name in enumerate(names)})
        values = {**fixed, **self.missing}
        frame = frame.fillna({name: value for name, value in values.items() if value is not None})
        listed = own.CategoricalParameter | own.OrdinalParameter
        for parameter in own_space(space).parameters:
            if isinstance(parameter, listed) and parameter.name in frame:
                # Replace each cell by an equal choice of the experiment, if there is such a choice.
                frame[parameter.name] = [
                    next((choice for choice in parameter.values if _same(choice, cell)), cell)
                    for cell in frame[parameter.name]
                ]
        return frame

    def __deepcopy__(self, memo: Any) -> TransferHistory:
        return self

    def __len__(self) -> int:
        return len(self.columns[TASK])

    def __repr__(self) -> str:
        return f"TransferHistory({len(self)} runs of {len(set(self.columns[TASK]))} tasks)"


def _named(experiment: Experiment, rank: int) -> AuxiliarySource:
    """Converts an old experiment to an ``AuxiliarySource``.

    An experiment without a name gets the name ``"experiment <rank>"``.
    """
    named = copy(experiment)  # the user's experiment keeps its missing name
    named.name = experiment.name if experiment.has_name else f"experiment {rank}"
    return AuxiliarySource(named)


def _renamed(source: AuxiliarySource, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Renames the keys of ``parameters`` from old names to the new experiment's names."""
    new_names = {old: new for new, old in source.transfer_param_config.items()}
    return {new_names.get(name, name): value for name, value in parameters.items()}


def _tasks(source: AuxiliarySource) -> Iterator[pd.DataFrame]:
    """Yields a table of runs for each metric of an old experiment, with the new names.

    The new names are the names of parameters and metrics in the new experiment.
    """
    old, told = source.experiment, source.data.df
    counts = told["trial_index"].map(lambda i: old.trials[i].status in STATUSES_EXPECTING_DATA)
    told = told[counts & np.isfinite(told["mean"])]
    filled = old.search_space.backfill_values()
    metrics = {name: {name} for name in source.data.metric_names} | source.transfer_metric_config
    for metric, names in metrics.items():
        for name in sorted(names):
            runs = told[told["metric_name"] == name]
            arms = [filled | old.arms_by_name[arm].parameters for arm in runs["arm_name"]]
            frame = pd.DataFrame([_renamed(source, arm) for arm in arms], dtype=object)
            frame[metric], errors = runs["mean"].to_numpy(), runs["sem"].to_numpy()
            if len(runs) and np.isfinite(errors).all():  # Ax writes 0 for outcomes without noise
                _, std = moments_of(runs["mean"].to_numpy())
                frame[f"{metric}_sem"] = errors.clip(min=LEAST_ERROR * std)
            yield frame.assign(**{TASK: f"{old.name}_{name}"})


_recorded = Memo(size=32)


def _same(choice: Any, value: Any) -> bool:
    """Returns whether a choice of a parameter equals a cell's value, up to rounding and type."""
    if isinstance(choice, str):
        return choice == str(value)
    if isinstance(choice, float) and isinstance(value, int | float):
        return math.isclose(choice, value, rel_tol=1e-6, abs_tol=1e-9)
    return bool(choice == value)
