"""``TransferPruner``: prunes trials whose predicted final value is unlikely to be the best."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial
from pandas import DataFrame

from botorch_transfer.curves import Curve, CurvePrior, read_curves
from botorch_transfer.memo import Memo
from botorch_transfer.old_studies import TASK, OptunaHistory, curves_of, read_studies, sign_of
from botorch_transfer.search_space.guess import warn_of_goal
from botorch_transfer.search_space.space import check_arguments

logger = logging.getLogger(__name__)


class TransferPruner(BasePruner):
    """Pruner for Optuna that learns from the learning curves of earlier studies.

    Use it with any sampler for a study with one objective. The pruner predicts the final value of a
    trial, and computes the probability that this value is worse than the incumbent's final value.
    If the result exceeds ``probability``, the trial is pruned. The incumbent is the best complete
    trial of the study. If no trial is complete, the incumbent is the trial with the best predicted
    final value among all trials except the trial that may be pruned.

    A trial is also pruned if its last intermediate value is NaN or infinite. If the last
    intermediate value is finite, the trial is kept in three cases, whatever the probability: no
    other trial has a finite last value, the trial is nearly complete, or its last intermediate
    value is no worse than the incumbent's intermediate value at the same step.

    If the history has no curve of a complete trial, the pruner learns from the complete trials of
    the current study, and prunes no trial before.

    Args:
        history: Old runs with intermediate values: studies, in any form that
            :class:`TransferSampler` takes; a table with one row per step; or a
            :class:`~botorch_transfer.curves.CurvePrior`. An old study with the name of the current
            study is left out.
        step: The column of the steps; required if the history is a table.
        outcome: The column of the outcomes in a table; ``"value"`` by default. The outcomes are
            minimized or maximized as in the study.
        probability: The threshold for the probability that a trial's final value is worse than the
            incumbent's final value. A trial above this threshold is pruned.
        task: The column of the task names in a table.
        rename: Mapping from old names of parameters or table columns to new names.
        run: The columns of a table whose values identify a run. By default, the rows of a run are
            consecutive, and a new run starts where the step does not increase.

    Raises:
        TypeError: If ``history`` has none of the forms that its description lists.
        ValueError: If the probability is less than 0.5 or at least 1. Also if the history is a
            table and ``step`` is missing.

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
        if not (isinstance(probability, SupportsFloat) and 0.5 <= probability < 1):
            raise ValueError(f"probability is {probability!r}: give a number from 0.5 to below 1.")
        check_arguments({"rename": rename, "task": task})
        is_prior = isinstance(history, CurvePrior)
        self._history = history if is_prior else read_studies(history, rename)
        # Curves of a table are not yet multiplied by the sign of the study.
        is_of_studies = isinstance(self._history, OptunaHistory)
        self._curves: Sequence[Curve] = self._history.curves if is_of_studies else []
        if isinstance(self._history, DataFrame) and len(self._history):
            if step is None:
                raise ValueError("step= is missing: set step= to the table's column of steps.")
            self._curves = read_curves(self._history, outcome or "value", step, "max", task, run)
        self._outcome = outcome or "value"
        self._probability = probability
        self._priors = Memo(size=4)  # fitted priors, by the study's name and direction

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Returns whether to prune a trial.

        Args:
            study: The study.
            trial: The trial, with its intermediate values.

        Returns:
            Whether the trial's final value is probably worse than the incumbent's final value.

        Raises:
            ValueError: If the study has several objectives.
        """
        if len(study.directions) > 1:
            raise ValueError("TransferPruner takes one objective, not several: use another pruner.")
        sign = sign_of(study.direction)
        own = curves_of([trial], sign)
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        curves = curves_of(others, sign)
        prior = self._prior(study, sign) or CurvePrior.of_curves(curves)
        if not own or prior is None:
            return False
        return prior.is_hopeless(own[0], curves, self._probability)

    def _prior(self, study: Study, sign: float) -> CurvePrior | None:
        """Fits a prior to the old learning curves, or returns the prior that the user passed.

        Leaves out an old study with the name of ``study``. Returns ``None`` if no complete old run
        has a learning curve.
        """
        if isinstance(self._history, CurvePrior):
            self._history.compare_goal(sign)
            return self._history

        def learn() -> CurvePrior | None:
            is_table = isinstance(self._history, DataFrame)
            if is_table:
                warn_of_goal(self._outcome, sign, "direction= of the study")
            else:
                self._history.compare_directions(study.directions)
            unit, name = sign if is_table else 1.0, study.study_name
            old = [c._replace(values=unit * c.values) for c in self._curves if c.task != name]
            prior = CurvePrior.of_curves(old)
            if prior is None and (old or not (is_table or self._curves)):
                text = "The history does not help: no complete trial has three intermediate values"
                hint = ": name the columns that identify a run by run=" if is_table else ""
                logger.warning(text + hint)
            return prior

        return self._priors.recall(f"{study.study_name} {sign}", learn)
