"""The base class of priors that hold the source data, as GPs conditioned on them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from torch import Tensor

from botorch_transfer.data import SourceData
from botorch_transfer.gp.conditioned import ConditionedBatch
from botorch_transfer.gp.hyperpriors import TYPICAL_RESIDUAL
from botorch_transfer.gp.state import Cache
from botorch_transfer.gp.tasks import OutcomeScale, outcome_variance, target_transform
from botorch_transfer.prior import TransferPrior, with_prefix

_SAVED = ("outcome_mean", "outcome_std", "log_posterior")

_LEAST_DIFFERENCE, _LARGEST_DIFFERENCE = 1e-2, 10.0
"""Sources that agree perfectly, or not at all, say no more about a target than these."""


class ConditionedPrior(TransferPrior):
    """Base class of :class:`SourceGPs`, :class:`SourceHierarchy` and :class:`SourcePopulation`.

    A saved file contains the source observations.

    Args:
        gps: The conditioned GPs, in the prior's units.
        outcome_mean: An ``M`` tensor: what was subtracted from each task's outcomes.
        outcome_std: An ``M`` tensor: what each task's outcomes were then divided by.
        names: The tasks' names.
        outcome_scale: How the outcomes were scaled.
        input_transform: The frozen transform from the user's inputs to the prior's.
        log_posterior: An ``M`` tensor: each task's log marginal likelihood plus log hyperprior
            density at its fitted hyperparameters; NaN for GPs that were not fitted here.
    """

    gps: ConditionedBatch
    outcome_mean: Tensor
    outcome_std: Tensor
    log_posterior: Tensor

    def __init__(
        self,
        gps: ConditionedBatch,
        outcome_mean: Tensor,
        outcome_std: Tensor,
        names: Sequence[str],
        outcome_scale: OutcomeScale = "per_task",
        input_transform: InputTransform | None = None,
        log_posterior: Tensor | None = None,
    ) -> None:
        super().__init__(outcome_scale, input_transform)
        self.gps = gps
        self.task_names = tuple(names)
        if log_posterior is None:
            log_posterior = torch.full_like(outcome_mean, torch.nan)
        self.register_buffer("outcome_mean", outcome_mean.detach())
        self.register_buffer("outcome_std", outcome_std.detach())
        self.register_buffer("log_posterior", log_posterior.detach())
        self.outcome_scale_index = self.outcome_scale_index.to(outcome_mean.device)
        self._cache = Cache()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # The priors of earlier versions have none.
        vars(self).setdefault("_cache", Cache())

    @property
    def _names_in_state(self) -> Sequence[str]:
        return self.task_names

    @classmethod
    @abstractmethod
    def fit(
        cls, source_data: Sequence[SourceData] | Mapping[str, SourceData], **kwargs: Any
    ) -> Self:
        """Pre-trains a prior from source data."""

    @classmethod
    def _pretrain(cls, source_data: Any, **options: Any) -> Self:
        return cls.fit(source_data, **options)

    @property
    def num_tasks(self) -> int:
        """The number of source tasks ``M``."""
        return self.gps.num_tasks

    @property
    def dim(self) -> int:
        """The number of input dimensions ``d``."""
        return self.gps.dim

    @property
    @abstractmethod
    def num_points(self) -> Tensor:
        """The number of evaluations of each source task, an ``M`` tensor."""

    @abstractmethod
    def outcomes(self) -> Tensor:
        """All source outcomes in the user's units, one after another."""

    @property
    def residual_variance(self) -> float:
        """How far a target is expected to be from its sources, as a variance in the prior's units.

        The geometric mean of a typical value and of how far each source task is from the others:
        one source task says nothing, many decide. It is where the hyperprior of a target model's
        residual has its median.
        """

        def average(differences: Tensor) -> float:
            unit = outcome_variance(self.outcome_scale, self.outcomes())
            relative = (differences.double() / unit).clamp(_LEAST_DIFFERENCE, _LARGEST_DIFFERENCE)
            total = math.log(TYPICAL_RESIDUAL) + float(relative.log().sum())
            return unit * math.exp(total / (1 + len(relative)))

        state = self.outcome_std, *self.gps.tensors().values()
        return self._cache(lambda _: average(self._differences()), self.outcome_mean, *state)

    @abstractmethod
    def _differences(self) -> Tensor:
        """How far source tasks are from the others: mean squares, one for each that can tell."""

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """The outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the prior's outcomes are in raw units. Otherwise a standardization by the
            outcomes of the source tasks, and of the target too if each source task was standardized
            by itself.
        """
        return target_transform(self.outcome_scale, self.outcomes(), batch_shape)

    def extra_repr(self) -> str:
        """What ``print`` shows of the prior."""
        return (
            f"tasks={self.num_tasks}, points={int(self.num_points.sum())}, inputs={self.dim}, "
            f"kernel={self.gps.kernel!r}, outcome_scale={self.outcome_scale!r}"
        )

    def _config(self) -> dict[str, Any]:
        return {"task_names": list(self.task_names), "kernel": self.gps.kernel}

    def _tensors(self) -> dict[str, Tensor]:
        own = {name: getattr(self, name) for name in _SAVED}
        return own | {f"gps.{name}": tensor for name, tensor in self.gps.tensors().items()}

    @classmethod
    @abstractmethod
    def _gps_class(cls, config: Mapping[str, Any]) -> type[ConditionedBatch]:
        """The class of the conditioned GPs in a saved prior."""

    @classmethod
    def _restore(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        input_transform: InputTransform | None,
    ) -> Self:
        names, parts = config["task_names"], with_prefix(tensors, "gps.")
        gps = cls._gps_class(config)(**parts, kernel=config["kernel"], task_names=names)
        mean, std, log_posterior = (tensors[name] for name in _SAVED)
        scale: OutcomeScale = config["outcome_scale"]
        return cls(gps, mean, std, names, scale, input_transform, log_posterior)
