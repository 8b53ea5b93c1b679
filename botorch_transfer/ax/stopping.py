"""Early stopping in Ax by what old learning curves tell; it can be stored as JSON.

It uses what is private to Ax's strategies: ``_lookup_and_validate_data`` and
``_default_objective_and_direction``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from ax.core import Data, Experiment
from ax.core.data import MAP_KEY
from ax.core.trial_status import TrialStatus
from ax.early_stopping.strategies import BaseEarlyStoppingStrategy
from pandas import DataFrame

from botorch_transfer.curves import CurvePrior
from botorch_transfer.curves.reading import Curve


def curves_of(experiment: Experiment, data: Data, metric: str, sign: float) -> dict[int, Curve]:
    """The learning curves of an experiment's trials, by trial.

    Args:
        experiment: The experiment.
        data: Its data.
        metric: The metric.
        sign: The factor that makes it one to be maximized.

    Returns:
        The curves; none without data by progression.
    """
    if not data.has_step_column:
        return {}
    rows = data.full_df[data.full_df["metric_signature"] == metric].dropna(subset=[MAP_KEY])
    curves, by_trial = dict[int, Curve](), rows.sort_values(MAP_KEY).groupby("trial_index")
    for index, own in cast(Iterable[tuple[int, DataFrame]], by_trial):
        is_complete = experiment.trials[index].status == TrialStatus.COMPLETED
        steps, values = (own[name].to_numpy(dtype=float) for name in (MAP_KEY, "mean"))
        curves[index] = Curve(steps, sign * values, not is_complete)
    return curves


class TransferEarlyStoppingStrategy(BaseEarlyStoppingStrategy):
    """Stops trials of Ax whose end, as old learning curves tell, will hardly be the best.

    From the first trial on: see :meth:`~botorch_transfer.curves.CurvePrior.is_hopeless`. The
    objective needs data by progression. The whole prior is stored with the experiment.

    Args:
        prior: The prior, fitted to old curves of the objective's metric; or what
            :meth:`to_dict` made of it.
        probability: The probability of ending worse than the best from which on a trial is stopped.
        **options: Those of Ax's ``BaseEarlyStoppingStrategy``.

    Example:
        >>> from pandas import DataFrame
        >>> rows = [("monday", end + 1 / k, k) for end in (0.1, 0.5, 0.9) for k in range(1, 11)]
        >>> old = DataFrame(rows, columns=["task", "loss", "epoch"])
        >>> prior = CurvePrior.fit(old, outcome="loss", step="epoch", goal="min")
        >>> strategy = TransferEarlyStoppingStrategy(prior)
    """

    def __init__(
        self, prior: CurvePrior | Mapping[str, Any], probability: float = 0.95, **options: Any
    ) -> None:
        super().__init__(**options)
        if not isinstance(prior, CurvePrior):
            tensors = {n: torch.tensor(v).double() for n, v in prior["tensors"].items()}
            prior = CurvePrior(dict(prior["config"]), tensors)
        self.prior, self.probability = prior, probability

    def to_dict(self) -> dict[str, Any]:
        """Describes the strategy for JSON."""
        tensors = {name: part.tolist() for name, part in self.prior.named_buffers()}
        tensors.pop("outcome_scale_index")
        names = "metric_signatures", "min_progression", "max_progression", "min_curves", "interval"
        return {
            "__type": type(self).__name__,
            "prior": {"config": self.prior.config, "tensors": tensors},
            "probability": self.probability,
            **{name: getattr(self, name) for name in names},
        }

    def _is_harmful(self, trial_indices: set[int], experiment: Experiment) -> bool:
        return False

    def _should_stop_trials_early(
        self, trial_indices: set[int], experiment: Experiment, current_node: Any = None
    ) -> dict[int, str | None]:
        metric, minimize = self._default_objective_and_direction(experiment=experiment)
        data = self._lookup_and_validate_data(experiment, [metric])
        if data is None or not self.is_eligible_any(trial_indices, experiment, data.full_df):
            return {}
        curves = curves_of(experiment, data, metric, -1.0 if minimize else 1.0)
        reason = f"Ends worse than the best with a probability of {self.probability:g}."
        return {
            index: reason
            for index in trial_indices & curves.keys()
            if self.is_eligible(index, experiment, data.full_df)[0]
            and self.prior.is_hopeless(
                curves[index], [c for i, c in curves.items() if i != index], self.probability
            )
        }
