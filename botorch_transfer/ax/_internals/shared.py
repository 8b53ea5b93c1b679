"""What the adapters for tables and priors, and for auxiliary experiments, share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from ax.adapter.data_utils import ExperimentData
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.cast import Cast
from ax.adapter.transforms.one_hot import OneHot
from ax.core.experiment import Experiment
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationFeatures
from ax.core.optimization_config import OptimizationConfig
from ax.core.search_space import SearchSpace
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.utils.common.constants import Keys

from botorch_transfer.ax._internals.objectives import restricted_to
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.ax.optimization import (
    awaited_arms,
    failed_arms,
    metrics_of,
    refuse_other_metrics,
    without_abandoned,
)

Moments = dict[str, tuple[float, float] | None]


def has_outcomes(data: ExperimentData) -> bool:
    """Whether there is an outcome of anything; Ax keeps rows that have none."""
    observed = data.observation_data
    return not observed.empty and bool(np.isfinite(observed["mean"].to_numpy(dtype=float)).any())


class TransferMixin(ABC):
    """What both adapters share: metrics with and without history, and the first trials."""

    _experiment: Experiment
    _optimization_config: OptimizationConfig | None
    generator: Any
    outcomes: list[str]

    @abstractmethod
    def history_moments(self) -> Moments:
        """Mean and deviation of old outcomes, by metric; ``None`` for the target's own."""

    def _metrics(self) -> list[str]:
        return metrics_of(self._experiment)

    def _optimized(self) -> list[str]:
        config = self._optimization_config
        return [] if config is None else sorted(config.metric_signatures)

    def _model_metrics_without_history(self, plain: ModelConfig) -> None:
        """Makes these metrics' models plain GPs; the generator is new and not fitted yet."""
        metrics, known = self._metrics(), self.history_moments()
        refuse_other_metrics(known, metrics)
        spec = self.generator.surrogate_spec
        if self.generator._surrogate is None and spec is not None:
            rest = {name: [plain] for name in metrics if name not in known}
            self.generator.surrogate_spec = replace(spec, metric_to_model_configs=rest)

    def _set_kwargs_to_save(
        self, generator_key: str, generator_kwargs: dict[str, Any], adapter_kwargs: dict[str, Any]
    ) -> None:
        # With each trial Ax stores what made it: of the table its key is enough.
        history = adapter_kwargs.get("history")
        if isinstance(history, TransferHistory):
            adapter_kwargs = {**adapter_kwargs, "history": history.key}
        super()._set_kwargs_to_save(generator_key, generator_kwargs, adapter_kwargs)  # type: ignore[misc]

    def gen(
        self,
        n: int,
        search_space: SearchSpace | None = None,
        optimization_config: OptimizationConfig | None = None,
        pending_observations: dict[str, list[ObservationFeatures]] | None = None,
        fixed_features: ObservationFeatures | None = None,
        model_gen_options: dict[str, Any] | None = None,
    ) -> GeneratorRun:
        """Generates candidates; see Ax's ``Adapter.gen``.

        Trials that failed are not suggested again, nor are abandoned ones, which Ax takes for
        pending. Before there is any outcome, only metrics with history are looked at.
        """
        pending = without_abandoned(self._experiment, pending_observations)
        config = optimization_config or self._optimization_config
        data: Any = self.get_training_data()  # type: ignore[attr-defined]
        if config is not None and not has_outcomes(data):
            optimization_config = restricted_to(config, self.outcomes)
        return super().gen(  # type: ignore[misc]
            n=n,
            search_space=search_space,
            optimization_config=optimization_config,
            pending_observations=pending or None,
            fixed_features=fixed_features,
            model_gen_options=model_gen_options,
        )

    def _gen(self, n: int, search_space: SearchSpace, *args: Any, **kwargs: Any) -> Any:
        """Says which inputs failed or are pending, in the model's space; NaN where none matters.

        Ax itself leaves out of what is pending what violates a constraint by rounding.
        """
        avoid: dict[str, Any] = {}
        kinds = {"failed": failed_arms(self._experiment), "pending": awaited_arms(self._experiment)}
        for kind, arms in kinds.items():
            features = [ObservationFeatures.from_arm(arm) for arm in arms]
            for transform in self.transforms.values():  # type: ignore[attr-defined]
                features = transform.transform_observation_features(features)
            if kind == "pending":  # of the same batch, too
                features += [f for some in kwargs["pending_observations"].values() for f in some]
            if features:
                avoid[kind] = self._rows(features, kwargs["fixed_features"])
        if avoid:
            options = dict(kwargs.get("model_gen_options") or {})
            key = Keys.AX_ACQUISITION_KWARGS.value
            kwargs["model_gen_options"] = {**options, key: {**options.get(key, {}), **avoid}}
        return super()._gen(n, search_space, *args, **kwargs)  # type: ignore[misc]

    def _rows(
        self, features: list[ObservationFeatures], fixed: ObservationFeatures | None
    ) -> list[list[float]]:
        known: dict[str, Any] = {} if fixed is None else dict(fixed.parameters)
        points = [
            known | feature.parameters | dict.fromkeys(self._inactive(feature), math.nan)
            for feature in features
        ]
        names: list[str] = self.parameters  # type: ignore[attr-defined]
        rows = {
            str(row): row for row in ([float(point[name]) for name in names] for point in points)
        }
        return list(rows.values())

    def _inactive(self, feature: ObservationFeatures) -> set[str]:
        """The columns that do not matter at a point, which has values of them nevertheless."""
        transforms: dict[str, Transform] = self.transforms  # type: ignore[attr-defined]
        space = transforms[Cast.__name__].search_space  # type: ignore[attr-defined]
        if not space.is_hierarchical:
            return set()
        raw = [deepcopy(feature)]
        for transform in reversed(transforms.values()):
            raw = transform.untransform_observation_features(raw)
        inactive = set(space.parameters) - set(raw[0].parameters)
        one_hot: Any = transforms.get(OneHot.__name__)
        encoded = {} if one_hot is None else one_hot.encoded_parameters
        return {column for name in inactive for column in encoded.get(name, [name])}
