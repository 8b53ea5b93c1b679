"""Ax's adapter with auxiliary experiments."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from ax.adapter.base import DataLoaderConfig
from ax.adapter.data_utils import ExperimentData
from ax.adapter.transfer_learning.adapter import TransferLearningAdapter
from ax.adapter.transforms.base import Transform
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.observation import ObservationFeatures
from ax.core.optimization_config import OptimizationConfig
from ax.core.search_space import SearchSpace
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.models.gp_regression import SingleTaskGP
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset

from botorch_transfer.ax._internals.shared import Moments, TransferMixin, has_outcomes
from botorch_transfer.ax.auxiliary import AuxiliaryHistory, auxiliary_outcomes
from botorch_transfer.ax.model_inputs import (
    refuse_parameters,
    with_positive_noise,
    without_noise,
)
from botorch_transfer.ax.optimization import metrics_of
from botorch_transfer.ax.units import moments_of

logger = logging.getLogger(__name__)


class AuxiliaryTransferAdapter(TransferMixin, TransferLearningAdapter):
    """Ax's ``TransferLearningAdapter`` for the models of this package, from the first trial on.

    Args:
        history: The old experiments, or their names.

    All further arguments are Ax's.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        generator: BoTorchGenerator,
        history: AuxiliaryHistory | None = None,
        search_space: SearchSpace | None = None,
        data: Data | None = None,
        transforms: Sequence[type[Transform]] | None = None,
        transform_configs: dict[str, dict[str, Any]] | None = None,
        optimization_config: OptimizationConfig | None = None,
        data_loader_config: DataLoaderConfig | None = None,
        fit_tracking_metrics: bool = False,
        fit_on_init: bool = True,
        default_model_gen_options: dict[str, Any] | None = None,
        torch_device: torch.device | None = None,
    ) -> None:
        if history is not None:
            history.attach(experiment)
        self._target = experiment
        super().__init__(
            experiment=experiment,
            generator=generator,
            search_space=search_space,
            data=data,
            transforms=transforms,
            transform_configs=transform_configs,
            optimization_config=optimization_config,
            data_loader_config=data_loader_config,
            fit_tracking_metrics=fit_tracking_metrics,
            fit_on_init=fit_on_init,
            default_model_gen_options=default_model_gen_options,
            torch_device=torch_device,
        )

    def _get_task_datasets(
        self, datasets: Sequence[SupervisedDataset | None], parameters: list[str]
    ) -> list[MultiTaskDataset]:
        """Puts the tasks' data together, as Ax's adapter does, which wants all noise known or none.

        Args:
            datasets: The target's data of each outcome, if there are any.
            parameters: The columns.

        Returns:
            The data of each outcome.
        """
        return [
            self._together(dataset, outcome, parameters)
            for dataset, outcome in zip(datasets, self.outcomes, strict=True)
        ]

    def _together(
        self, target: SupervisedDataset | None, outcome: str, parameters: list[str]
    ) -> MultiTaskDataset:
        of_source = self.get_transferable_datasets(parameters, outcome)
        tasks: list[SupervisedDataset] = [*chain.from_iterable(of_source.values())]
        tasks = tasks if target is None else [target, *tasks]
        knowing = sum(task.Yvar is not None and bool(task.Yvar.isfinite().all()) for task in tasks)
        if knowing == len(tasks):
            tasks = [with_positive_noise(task) for task in tasks]
        else:
            if any(task.Yvar is not None for task in tasks):
                logger.info("Only some runs know their noise of %s: it is inferred.", outcome)
            tasks = [without_noise(task) for task in tasks]
        if target is None:
            nothing = torch.empty(0, 1, dtype=torch.double, device=self.device)
            known = tasks[0].Yvar is not None
            empty = SupervisedDataset(
                X=nothing.expand(0, len(parameters)),
                Y=nothing,
                Yvar=nothing if known else None,
                feature_names=parameters,
                outcome_names=[outcome],
            )
            tasks = [empty, *tasks]
        return MultiTaskDataset(tasks, target_outcome_name=outcome, task_feature_index=-1)

    def history_moments(self) -> Moments:
        """Mean and deviation of old outcomes, by metric."""
        found = {
            name: auxiliary_outcomes(self.auxiliary_sources, name)
            for name in metrics_of(self._target)
        }
        moments: Moments = {
            name: moments_of(outcomes) for name, outcomes in found.items() if outcomes is not None
        }
        for source in self.auxiliary_sources:
            # Ax puts it in the new one's place while its data are transformed.
            if source.experiment is self._experiment:
                return {
                    other: moments[name]
                    for name in moments
                    for other in source.transfer_metric_config.get(name, {name})
                }
        return moments

    def _fit(self, search_space: SearchSpace, experiment_data: Any, **kwargs: Any) -> None:
        refuse_parameters(self._source_only_params)
        self._model_metrics_without_history(
            ModelConfig(botorch_model_class=SingleTaskGP, name="without history")
        )
        if not has_outcomes(experiment_data):
            experiment_data = ExperimentData(
                experiment_data.arm_data.iloc[:0], experiment_data.observation_data.iloc[:0]
            )
            known = self.history_moments()
            self.outcomes = [name for name in self._optimized() if name in known]
        elif not self._fit_tracking_metrics:
            self.outcomes = self._optimized()
        super()._fit(search_space, experiment_data, **kwargs)

    def _gen(self, n: int, search_space: SearchSpace, *args: Any, **kwargs: Any) -> Any:
        """Keeps parameters that only old experiments have, at what they are in the new one.

        Ax leaves them out here, but not of the data, so that the numbers of columns would differ.
        """
        shown, fixed = self.parameters, kwargs["fixed_features"]
        self.parameters = self.generator.search_space_digest.feature_names
        for name in set(self.parameters) - set(shown):
            parameter = self.joint_search_space.parameters[name]
            features = [ObservationFeatures({name: parameter.backfill_value})]
            space = SearchSpace([parameter.clone()])
            for transform in self.transforms.values():
                features = transform.transform_observation_features(features)
                if name in space.parameters:
                    space = transform.transform_search_space(space)
            search_space.add_parameter(space.parameters[name])
            fixed.parameters[name] = features[0].parameters[name]
        try:
            return super()._gen(n, search_space, *args, **kwargs)
        finally:
            self.parameters = shown
