"""Old runs: what a generation strategy keeps of tables, of tensors, and of old Ax experiments.

A :class:`TransferHistory` holds the columns of a table, in the raw search space, as plain values,
which JSON stores exactly. An :class:`AuxiliaryHistory` holds old experiments. Where Ax's storage
has lost them, :func:`attach_history` attaches them by hand. It uses what is private to Ax:
``_save_experiment_to_db_if_possible`` of a ``Client``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np
import pandas as pd
from ax.api.client import Client
from ax.core import Experiment
from ax.core.auxiliary import AuxiliaryExperimentPurpose
from ax.core.auxiliary_source import AuxiliarySource
from ax.core.trial_status import STATUSES_EXPECTING_DATA
from ax.exceptions.core import UserInputError
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_transfer.ax.experiments import experiment_of, metrics_of
from botorch_transfer.memo import content_key
from botorch_transfer.search_space.space import check_table

logger = logging.getLogger(__name__)

TASK = "old task"
"""The column of tasks in tables of tensors and experiments; a metric may be called "task"."""

LEAST_ERROR = 1e-3
"""The least standard error of old experiments, in standard deviations of the outcomes."""

TensorHistory = Mapping[str, tuple[Tensor, ...]]
"""Old tasks by name: ``(X, Y)`` or ``(X, Y, Yvar)``, in the raw search space."""


@contextmanager
def user_errors() -> Iterator[None]:
    """Raises errors about old runs as Ax's ``UserInputError``."""
    try:
        yield
    except (InputDataError, ValueError) as error:
        raise UserInputError(str(error)) from error


def moments_of(outcomes: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of outcomes; the latter is 1 if they do not vary."""
    std = float(outcomes.std(ddof=1)) if len(outcomes) > 1 else 0.0
    mean = float(outcomes.mean())
    rounding = 4 * float(np.finfo(float).eps) * abs(mean)
    return mean, std if std > rounding else 1.0


def _plain_columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Columns of values that JSON stores exactly; ``None`` where one is missing."""
    objects = frame.rename(columns=str).astype(object)
    columns: dict[Any, list[Any]] = objects.where(objects.notna(), None).to_dict("list")
    return columns


def _frame(name: str, data: tuple[Tensor, ...], metric: str) -> pd.DataFrame:
    X, Y, *rest = (part.detach().cpu().numpy() for part in data)
    shapes = [part.shape for part in (Y, *rest)]
    if X.ndim != 2 or len(rest) > 1 or any(shape != (len(X), 1) for shape in shapes):
        raise UserInputError(
            f"The old task {name!r} must be (X, Y) or (X, Y, Yvar) of shapes n x d, n x 1 and "
            f"n x 1, but has {[part.shape for part in (X, Y, *rest)]}."
        )
    if rest and bool((rest[0] <= 0).any()):
        raise UserInputError(
            f"The old task {name!r} has noise variances that are not positive: leave Yvar out if "
            "its noise is unknown."
        )
    frame = pd.DataFrame({str(i): X[:, i].tolist() for i in range(X.shape[1])})
    frame[TASK] = name
    frame[metric] = Y[:, 0].tolist()
    if rest:
        frame[f"{metric}_sem"] = np.sqrt(rest[0][:, 0]).tolist()
    return frame


class TransferHistory:
    """A table of old runs in the raw search space, one row a run; never changed.

    ``transfer_generation_strategy`` makes one of its ``history``. Equal tables have equal keys, and
    the key finds a table that is in memory. So the table is stored once, with the generation
    strategy, and only its key with each trial.

    Args:
        columns: The columns of the table, by name: parameters, metrics, their standard errors
            (``"<metric>_sem"``), and the name of the old task.
        task: The column with the name of the old task.
        missing: Values for parameters that the table does not have, or not in every row; ``None``
            if a value is unknown.
        positional: Whether parameters are named by their position in the search space.

    Example:
        >>> history = TransferHistory({"task": ["monday"], "C": [10.0], "loss": [0.3]})
        >>> history.metrics(["loss", "seconds"])
        ['loss']
    """

    _known: ClassVar[WeakValueDictionary[str, TransferHistory]] = WeakValueDictionary()

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]],
        task: str = "task",
        missing: Mapping[str, Any] | None = None,
        positional: bool = False,
    ) -> None:
        self.columns = {name: list(values) for name, values in columns.items()}
        self.task = task
        self.missing = dict(missing or {})
        self.positional = positional
        self.key = content_key(self.columns, task, self.missing, positional)
        self._known[self.key] = self

    @classmethod
    def from_frame(
        cls, frame: pd.DataFrame, task: str = "task", missing: Mapping[str, Any] | None = None
    ) -> Self:
        """Reads a table.

        Args:
            frame: The table, one row a run.
            task: The column with the name of the old task.
            missing: Values for parameters that the table does not have, or not in every row;
                ``None`` if a value is unknown.

        Returns:
            The history; its columns have ``None`` where a value is missing.

        Raises:
            UserInputError: If it has no column ``task``, two columns of one name, or rows without a
                task.

        Example:
            >>> frame = pd.DataFrame({"task": ["monday"], "C": [10.0], "loss": [0.3]})
            >>> TransferHistory.from_frame(frame)
            TransferHistory(1 runs of 1 tasks)
        """
        frame, task = frame.rename(columns=str), str(task)
        with user_errors():
            check_table(frame, frame.columns)
        if task not in frame.columns:
            raise UserInputError(
                f"The history has no column {task!r} that says which old task a run is of: name it "
                "by task=..."
            )
        if frame[task].isna().any():
            raise UserInputError(
                f"Old runs lack a name in the column {task!r}: say which task they are of, or "
                "leave them out."
            )
        columns = _plain_columns(frame)
        columns[task] = [str(name) for name in columns[task]]
        plain = bool | int | float | str | None
        odd = [n for n, cells in columns.items() if not all(isinstance(c, plain) for c in cells)]
        if odd:
            logger.info("Left out columns without numbers or text: %s.", sorted(odd))
        return cls({name: columns[name] for name in columns if name not in odd}, task, missing)

    @classmethod
    def from_tensors(cls, metrics: Mapping[str, TensorHistory]) -> Self:
        """Reads tensors whose columns are in the order of the search space's parameters.

        Args:
            metrics: By metric and old task: ``X`` (``n_i x d``), ``Y`` (``n_i x 1``) and optionally
                ``Yvar`` (``n_i x 1``), in raw units.

        Returns:
            The history.

        Raises:
            UserInputError: If tensors have the wrong shape.

        Example:
            >>> X = torch.rand(4, 2)
            >>> TransferHistory.from_tensors({"loss": {"monday": (X, X[:, :1])}})
            TransferHistory(4 runs of 1 tasks)
        """
        frames = [_frame(*item, metric) for metric in metrics for item in metrics[metric].items()]
        frames = frames or [pd.DataFrame(columns=[TASK])]
        if len({sum(name.isdigit() for name in frame.columns) for frame in frames}) > 1:
            raise UserInputError("The old tasks differ in their inputs: give all the same number.")
        columns = _plain_columns(pd.concat(frames, ignore_index=True))
        return cls(columns, TASK, positional=True)

    @classmethod
    def recall(cls, history: TransferHistory | str) -> TransferHistory:
        """Finds a history by its key among those in memory.

        Args:
            history: The key, or the history itself.

        Returns:
            The history.

        Raises:
            UserInputError: If it is not in memory.
        """
        if isinstance(history, TransferHistory):
            return history
        if history not in cls._known:
            raise UserInputError(
                f"The history {history!r} is not in memory: it is stored with the generation "
                "strategy, so load that first."
            )
        return cls._known[history]

    @property
    def frame(self) -> pd.DataFrame:
        """The table, of plain objects; ``None`` where a value is missing."""
        return pd.DataFrame(self.columns, dtype=object)

    def metrics(self, names: Sequence[str]) -> list[str]:
        """Selects the metrics that the history has."""
        return [name for name in names if name in self.columns]

    def outcomes(self, metric: str) -> np.ndarray:
        """The finite values of a metric; ``NaN`` for the other runs.

        Args:
            metric: The metric.

        Returns:
            An array with a value for each run.

        Raises:
            UserInputError: If there is no finite value.
        """
        values = pd.to_numeric(self.frame[metric], errors="coerce").to_numpy(dtype=float)
        finite = np.isfinite(values)
        if not finite.any():
            raise UserInputError(f"The history has no finite value of {metric!r}: leave it out.")
        return np.where(finite, values, np.nan)

    def moments(self, metric: str) -> tuple[float, float]:
        """Mean and standard deviation of all old outcomes; the latter is 1 if they are constant."""
        outcomes = self.outcomes(metric)
        return moments_of(outcomes[np.isfinite(outcomes)])

    def to_json(self) -> dict[str, Any]:
        """What Ax's storage keeps."""
        arguments = {name: value for name, value in vars(self).items() if name != "key"}
        return {"__type": type(self).__name__, **arguments}

    def __deepcopy__(self, memo: Any) -> TransferHistory:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransferHistory) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __len__(self) -> int:
        return len(self.columns[self.task])

    def __repr__(self) -> str:
        tasks = self.columns[self.task]
        return f"TransferHistory({len(tasks)} runs of {len(set(tasks))} tasks)"


TRANSFERABLE = AuxiliaryExperimentPurpose.TRANSFERABLE_EXPERIMENT


class AuxiliaryHistory:
    """Names of old experiments, and the experiments while they are in memory.

    Storage keeps the names. The experiments are attached to the new one as Ax's auxiliary
    experiments, which its SQL storage keeps by reference and its JSON storage leaves out.

    Args:
        names: The names of the experiments.
        sources: The experiments.
    """

    def __init__(
        self, names: Sequence[str], sources: Sequence[AuxiliarySource] | None = None
    ) -> None:
        self.names = list(names)
        self.sources = sources

    @classmethod
    def from_experiments(
        cls, experiments: Sequence[Client | Experiment | AuxiliarySource]
    ) -> AuxiliaryHistory:
        """Makes a history of experiments, or of Ax's ``AuxiliarySource``s, which also map names.

        Args:
            experiments: The old experiments, or their clients, with data.

        Returns:
            The history; experiments without data are left out.

        Raises:
            UserInputError: If two have one name.
        """
        sources = [
            given if isinstance(given, AuxiliarySource) else AuxiliarySource(experiment_of(given))
            for given in experiments
        ]
        names = [source.experiment.name for source in sources]
        if len(set(names)) < len(names):
            raise UserInputError(f"Old experiments need different names, but have {names}.")
        kept = [source for source in sources if not source.data.empty]
        if empty := [name for name in names if name not in [s.experiment.name for s in kept]]:
            logger.warning("Old experiments without data are left out: %s", ", ".join(empty))
        return cls([source.experiment.name for source in kept], kept)

    def attach(self, experiment: Experiment) -> None:
        """Attaches the old experiments to a new one, unless they are attached already.

        Args:
            experiment: The new experiment.

        Raises:
            UserInputError: If they are not in memory, because the experiment comes from storage.
        """
        absent = [name for name in self.names if name not in auxiliary_names(experiment)]
        if absent and self.sources is None:
            raise UserInputError(
                f"The old experiments {absent} are not attached, because Ax's JSON files leave "
                "auxiliary experiments out, and databases keep only those that attach_history "
                "attached: attach them by botorch_transfer.ax.attach_history(client, [...])."
            )
        # Ax puts each one first, and the order matters to some models.
        for source in reversed(self.sources or []):
            if source.experiment.name in absent:
                experiment.add_auxiliary_experiment(TRANSFERABLE, source)
                logger.info("Attached the old experiment %r.", source.experiment.name)

    def to_json(self) -> dict[str, Any]:
        """What Ax's storage keeps."""
        return {"__type": type(self).__name__, "names": self.names}

    def __deepcopy__(self, memo: Any) -> AuxiliaryHistory:
        return self

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"AuxiliaryHistory({self.names})"


def auxiliary_names(experiment: Experiment) -> list[str]:
    """The names of the old experiments that are attached to an experiment."""
    attached = experiment.auxiliary_experiments_by_purpose.get(TRANSFERABLE, [])
    return [auxiliary.experiment.name for auxiliary in attached]


def auxiliary_table(experiment: Experiment) -> TransferHistory:
    """Makes a table of the old experiments that are attached to an experiment.

    A parameter that an old experiment lacks had the value of the new one's status quo. Fixed
    parameters count as fixed at the new one's values.

    Args:
        experiment: The new experiment.

    Returns:
        The old runs of its metrics, a task for each old experiment and metric.

    Raises:
        UserInputError: If a parameter's value is unknown, or only old experiments have it.
    """
    space, status_quo = experiment.search_space, experiment.status_quo
    known = space.backfill_values() | (status_quo.parameters if status_quo else {})
    tunable, rows, lacking = list(space.tunable_parameters), list[dict[str, Any]](), set[str]()
    for source in _attached(experiment):
        old, new_names = source.experiment, {o: n for n, o in source.transfer_param_config.items()}

        def renamed(names: Iterable[str], new: Mapping[str, str] = new_names) -> list[str]:
            return [new.get(name, name) for name in names]

        lacking |= {*tunable} - {*renamed(old.search_space.parameters), *known}
        lacking |= {*renamed(old.search_space.tunable_parameters)} - {*space.parameters}
        for metric in metrics_of(experiment):
            for row in _rows(source, metric):
                arm = old.arms_by_name[row["arm_name"]].parameters
                values = known | dict(zip(renamed(arm), arm.values(), strict=True))
                told = {metric: row["mean"], f"{metric}_sem": row["sem"]}
                told[TASK] = f"{old.name}_{row['metric_name']}"
                rows.append({name: values.get(name) for name in tunable} | told)
    if lacking:
        raise UserInputError(
            f"The parameters {sorted(lacking)} are not in all of the old experiments and the new "
            "one: give the new one a status quo that says what they were in old ones, add them to "
            "it, rename them by AuxiliarySource(transfer_param_config=...), or take HyperpriorGP, "
            "which transfers between search spaces."
        )
    frame = pd.DataFrame(rows, columns=None if rows else [TASK])
    for metric in frame.columns.intersection(metrics_of(experiment)):
        # Errors of tasks that have them for all runs; Ax writes zero where there is no noise.
        own = frame[frame[metric].notna()]
        errors, (_, std) = own[f"{metric}_sem"], moments_of(own[metric].to_numpy())
        complete = np.isfinite(errors).groupby(own[TASK]).transform("all")
        frame[f"{metric}_sem"] = errors.clip(lower=LEAST_ERROR * std).where(complete)
    return TransferHistory(_plain_columns(frame), TASK)


def _attached(experiment: Experiment) -> list[AuxiliarySource]:
    """The old experiments that are attached to a new one; a database gives them another class."""
    attached = experiment.auxiliary_experiments_by_purpose.get(TRANSFERABLE, [])
    kept = [{n: v for n, v in vars(each).items() if n != "data"} for each in attached]
    return [AuxiliarySource(**options) for options in kept if options["is_active"]]


def _rows(source: AuxiliarySource, metric: str) -> list[dict[Any, Any]]:
    """What an old experiment has of a metric of the new one, a row an arm."""
    names, data = source.transfer_metric_config.get(metric, {metric}), source.data
    if data.empty or not names or not names <= set(data.metric_names):
        logger.info("The old experiment %r has no %r.", source.experiment.name, metric)
        return []
    frame, trials = data.filter(metric_names=names).df, source.experiment.trials
    counts = frame["trial_index"].map(lambda i: trials[i].status in STATUSES_EXPECTING_DATA)
    return frame[counts & np.isfinite(frame["mean"])].to_dict("records")


def attach_history(
    target: Client | Experiment, experiments: Sequence[Client | Experiment | AuxiliarySource]
) -> None:
    """Attaches old experiments to a new one, for its models to learn from.

    ``transfer_generation_strategy(history=[...])`` does so by itself. Call this after loading an
    experiment from a JSON file, as Ax's JSON storage leaves auxiliary experiments out; and for a
    client with a database, which keeps what is attached before the first trial.

    Args:
        target: The new experiment.
        experiments: The old ones, with their data. Those that are attached already stay.

    Raises:
        UserInputError: If two have one name.

    Example:
        >>> from ax.api.client import Client
        >>> from ax.api.configs import RangeParameterConfig
        >>> old, new = Client(), Client()
        >>> for client, name in ((old, "monday"), (new, "tuesday")):
        ...     x = RangeParameterConfig("x", (0.0, 1.0), parameter_type="float")
        ...     client.configure_experiment([x], name=name)
        ...     client.configure_optimization("-loss")
        >>> old.complete_trial(old.attach_trial({"x": 0.5}), {"loss": 0.3})
        <enum 'TrialStatus'>.COMPLETED
        >>> attach_history(new, [old])
    """
    AuxiliaryHistory.from_experiments(experiments).attach(experiment_of(target))
    if isinstance(target, Client):
        target._save_experiment_to_db_if_possible(experiment=target._experiment)
