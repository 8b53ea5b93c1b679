"""Units of outcomes: of a metric, of Ax's standardized outcomes, and of a prior.

:class:`StandardizeByHistory` goes from a metric to what Ax's models see, :class:`ToPriorUnits` from
there to what a saved prior was trained on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ax.adapter.data_utils import ExperimentData
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.standardize_y import StandardizeY, compute_standardization_parameters
from botorch.models.transforms.outcome import Standardize
from torch import Tensor

from botorch_transfer.hyperprior.prior import Hyperprior
from botorch_transfer.prior import TransferPrior


class StandardizeByHistory(StandardizeY):
    """An Ax transform that standardizes outcomes by the history's mean and standard deviation.

    Ax standardizes by the target's own outcomes. They change from trial to trial, and before the
    first there are none. This transform takes the moments of the adapter's ``history_moments()``,
    and the target's own for metrics without history. Infinite outcomes become NaN, which Ax leaves
    out.

    Args:
        experiment_data: The target's data.
        adapter: The adapter, one of this package's.
        **options: Those of Ax's ``Transform``, which are ignored.
    """

    requires_data_for_initialization = False

    def __init__(self, *, experiment_data: Any, adapter: Any, **options: Any) -> None:
        Transform.__init__(self, experiment_data=experiment_data, adapter=adapter, **options)
        moments: dict[str, tuple[float, float] | None] = adapter.history_moments()
        data, own = experiment_data.observation_data, {}
        for name in [] if data.empty else data["mean"].columns:
            finite = data["mean", name][np.isfinite(data["mean", name])]
            if len(finite) and moments.get(name) is None:
                own[name] = finite.values
        self.Ymean, self.Ystd = compute_standardization_parameters(own)
        for name, known in moments.items():
            mean, std = known or (self.Ymean.get(name, 0.0), self.Ystd.get(name, 1.0))
            self.Ymean[name], self.Ystd[name] = mean, std

    def transform_experiment_data(self, experiment_data: ExperimentData) -> ExperimentData:
        """Standardizes the metrics with data.

        Args:
            experiment_data: The data of an experiment.

        Returns:
            The standardized data.
        """
        data = experiment_data.observation_data
        for name in [] if data.empty else data["mean"].columns:
            finite = data["mean", name].where(np.isfinite(data["mean", name]))
            data["mean", name] = (finite - self.Ymean.get(name, 0.0)) / self.Ystd.get(name, 1.0)
            data["sem", name] = data["sem", name] / self.Ystd.get(name, 1.0)
        return ExperimentData(arm_data=experiment_data.arm_data, observation_data=data)


class ToPriorUnits(Standardize):
    r"""Brings Ax's standardized outcomes to the units of a prior that was pre-trained elsewhere.

    It is the fixed map ``y ↦ sign · (std · y + mean)``: it undoes Ax's standardization, and negates
    a metric to minimize, as priors are about outcomes to maximize.

    Args:
        sign: 1 or -1.
        mean: The mean that Ax's transform subtracts from the metric.
        std: The standard deviation that it divides by.

    Example:
        >>> units = ToPriorUnits(sign=-1.0, mean=10.0, std=2.0)
        >>> units(torch.tensor([[1.5]]))[0]
        tensor([[-13.]])
    """

    def __init__(self, sign: float, mean: float, std: float) -> None:
        super().__init__(m=1)
        # Standardize divides: y' = (y - means) / stdvs.
        scale = 1.0 / (sign * std)
        self.means = torch.tensor([[-mean / std]], dtype=torch.double)
        self.stdvs = torch.tensor([[scale]], dtype=torch.double)
        self._stdvs_sq = self.stdvs.square()
        self._is_trained = torch.tensor(True)

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Changes the units.

        Args:
            Y: A ``batch_shape x n x 1`` tensor of outcomes.
            Yvar: A ``batch_shape x n x 1`` tensor of noise variances.
            X: Ignored.

        Returns:
            Outcomes and noise variances in the prior's units.
        """
        self.to(Y)
        Yvar = None if Yvar is None else Yvar / self._stdvs_sq
        return (Y - self.means) / self.stdvs, Yvar


def prior_moments(prior: TransferPrior, sign: float) -> tuple[float, float] | None:
    """Mean and standard deviation of a metric by the source tasks of a prior.

    Args:
        prior: The prior.
        sign: -1 if the prior is about the negated metric.

    Returns:
        The moments in the metric's units; 0 and 1 for a prior in raw units, and ``None`` for a
        hyperprior, whose source tasks may have had other units.
    """
    if isinstance(prior, Hyperprior):
        return None
    transform: Any = prior.default_outcome_transform(torch.Size())
    if transform is None:
        return 0.0, 1.0
    transform.train()(torch.empty(0, 1, dtype=torch.double))
    return sign * float(transform.means), float(transform.stdvs)


def moments_of(outcomes: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of outcomes; the latter is 1 if they do not vary."""
    std = float(outcomes.std(ddof=1)) if len(outcomes) > 1 else 0.0
    mean = float(outcomes.mean())
    rounding = 4 * float(np.finfo(float).eps) * abs(mean)
    return mean, std if std > rounding else 1.0
