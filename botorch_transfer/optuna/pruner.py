"""``TransferPruner``: stops a trial whose end, as old curves tell, will hardly be the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial
from pandas import DataFrame

from botorch_transfer.curves import CurvePrior
from botorch_transfer.curves.prior import read_curves
from botorch_transfer.memo import Memo
from botorch_transfer.optuna.history import TASK, OptunaHistory, curves_of, read_studies, sign_of


class TransferPruner(BasePruner):
    """A pruner of Optuna that learns from the learning curves of earlier studies.

    It stops a trial when its predicted final value is worse than the best with a given probability,
    from the second trial of a new study on; the only trial goes on. The best one is the best
    complete trial; before there is one, the best predicted end of the study's other trials. A trial
    that is better than the best one was at the same step goes on. Without any curve in the history,
    the study's own complete trials are learned from. It works with any sampler, keeps nothing
    outside of the study, and takes one objective.

    Args:
        history: Old runs with intermediate values, as :class:`TransferSampler` takes studies; a
            table with one row a step; or a :class:`~botorch_transfer.curves.CurvePrior`. An old
            study with the name of the one being tuned is left out.
        step: The column of a table's steps.
        outcome: The column of a table's outcomes; ``"value"`` by default. Its direction is the
            study's.
        probability: The probability of ending worse than the best from which on a trial is stopped.
        task: The column of a table that names the task.
        rename: New names of a table's columns, or of old parameters, by their old ones.
        run: The columns of a table whose values are the same in all rows of a run; by default a
            run's rows follow one another.

    Raises:
        TypeError: If the history is of another type.
        ValueError: If the probability is not between a half and one, or a table's step is missing.

    Example:
        >>> import optuna
        >>> from pandas import DataFrame
        >>> rows = [("monday", end + 1 / k, k) for end in (0.1, 0.5, 0.9) for k in range(1, 11)]
        >>> old = DataFrame(rows, columns=["task", "value", "epoch"])
        >>> study = optuna.create_study(pruner=TransferPruner(old, step="epoch"))
        >>> def objective(trial):
        ...     end = trial.suggest_float("end", 0, 1)
        ...     for k in range(1, 11):
        ...         trial.report(end + 1 / k, k)
        ...         if trial.should_prune():
        ...             raise optuna.TrialPruned
        ...     return end
        >>> study.optimize(objective, n_trials=3)
    """

    def __init__(
        self,
        history: Any,
        step: str | None = None,
        outcome: str | None = None,
        probability: float = 0.95,
        *,
        task: str = TASK,
        rename: Mapping[str, str] | None = None,
        run: str | Sequence[str] | None = None,
    ) -> None:
        if not 0.5 <= probability < 1:
            raise ValueError(f"probability is {probability}: give one from a half up to one.")
        is_prior = isinstance(history, CurvePrior)
        self._history = history if is_prior else read_studies(history, rename)
        if isinstance(self._history, DataFrame) and len(self._history) and step is None:
            raise ValueError("Name the column of the table's steps by step=.")
        self._probability, self._columns = probability, (outcome or "value", step, task, run)
        self._priors = Memo(size=4)  # by the study's name and direction

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Decides whether a trial is to be stopped.

        Args:
            study: The study.
            trial: The trial, with its intermediate values.

        Returns:
            Whether it is.

        Raises:
            ValueError: If the study has several objectives.
        """
        if len(study.directions) > 1:
            raise ValueError("TransferPruner takes one objective: use another pruner.")
        sign = sign_of(study.direction)
        own = curves_of([trial], sign)
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        curves = curves_of(others, sign)
        prior = self._prior(study, sign) or CurvePrior.of_curves(curves)
        if not own or prior is None:
            return False
        return prior.is_hopeless(own[0], curves, self._probability)

    def _prior(self, study: Study, sign: float) -> CurvePrior | None:
        """Learns from the history without this study; ``None`` if it has no complete curve."""
        if isinstance(self._history, CurvePrior):
            return self._history

        def learn() -> CurvePrior | None:
            history, (outcome, step, task, run) = self._history, self._columns
            if isinstance(history, OptunaHistory):
                return history.curve_prior(study.study_name)
            if not isinstance(history, DataFrame) or step is None or history.empty:
                return None  # a prior of final outcomes, or nothing
            goal: Any = "max" if sign > 0 else "min"
            return CurvePrior.of_curves(read_curves(history, outcome, step, goal, task, run))

        return self._priors.recall(f"{study.study_name} {sign}", learn)
