"""Ax's adapter with a table of old runs, or with saved priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from ax.adapter.base import DataLoaderConfig
from ax.adapter.torch import TorchAdapter
from ax.adapter.transforms.base import Transform
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.optimization_config import OptimizationConfig
from ax.core.search_space import SearchSpace, SearchSpaceDigest
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer.ax._internals.shared import Moments, TransferMixin
from botorch_transfer.ax.dataset import TransferDataset, Transferred
from botorch_transfer.ax.encoding import encode_runs, refuse_other_inputs
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.ax.optimization import (
    directions,
    refuse_other_metrics,
)
from botorch_transfer.ax.prior_files import load_prior_file
from botorch_transfer.ax.units import StandardizeByHistory, prior_moments


class TransferAdapter(TransferMixin, TorchAdapter):
    """Ax's ``TorchAdapter`` with a table of old runs, or with priors that were made elsewhere.

    Args:
        history: A :class:`TransferHistory`, or the key of one.
        priors: What :func:`describe_prior_file` said, by metric.
        pretraining: Options of pre-training.

    All further arguments are Ax's.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        generator: BoTorchGenerator,
        history: TransferHistory | str | None = None,
        priors: dict[str, dict[str, str]] | None = None,
        pretraining: dict[str, Any] | None = None,
        search_space: SearchSpace | None = None,
        data: Data | None = None,
        transforms: Sequence[type[Transform]] | None = None,
        transform_configs: Mapping[str, dict[str, Any]] | None = None,
        optimization_config: OptimizationConfig | None = None,
        expand_model_space: bool = True,
        fit_tracking_metrics: bool = True,
        fit_on_init: bool = True,
        default_model_gen_options: dict[str, Any] | None = None,
        torch_device: torch.device | None = None,
        data_loader_config: DataLoaderConfig | None = None,
    ) -> None:
        self.history = None if history is None else TransferHistory.recall(history)
        self.priors = {name: load_prior_file(file) for name, file in (priors or {}).items()}
        self.pretraining = pretraining or {}
        super().__init__(
            experiment=experiment,
            generator=generator,
            search_space=search_space,
            data=data,
            transforms=transforms,
            transform_configs=transform_configs,
            optimization_config=optimization_config,
            expand_model_space=expand_model_space,
            fit_tracking_metrics=fit_tracking_metrics,
            fit_on_init=fit_on_init,
            default_model_gen_options=default_model_gen_options,
            torch_device=torch_device,
            data_loader_config=data_loader_config,
        )

    def history_moments(self) -> Moments:
        """Mean and deviation of old outcomes, by metric; ``None`` for the target's own."""
        found: Moments = {}
        if self.history is not None:
            for name in self.history.metrics(self._metrics()):
                found[name] = self.history.moments(name)
        signs = directions(self._optimization_config)
        for name, prior in self.priors.items():
            found[name] = prior_moments(prior, signs.get(name, 1.0))
        return found

    def _fit(self, search_space: SearchSpace, experiment_data: Any, **kwargs: Any) -> None:
        for name in self.priors:
            refuse_other_metrics([name], self._metrics())
        self._model_metrics_without_history(ModelConfig(name="without history"))
        super()._fit(search_space, experiment_data, **kwargs)

    def _convert_experiment_data(
        self,
        experiment_data: Any,
        outcomes: list[str],
        parameters: list[str],
        search_space_digest: SearchSpaceDigest | None,
    ) -> tuple[Any, ...]:
        """Adds what there is of source tasks; metrics with history may have no data yet."""
        known = self.history_moments()
        observed = experiment_data.observation_data
        columns = observed["mean"] if not observed.empty else {}
        present = [n for n in outcomes if n in columns and columns[n].notna().any()]
        absent = {n for n in (*outcomes, *self._optimized()) if n in known and n not in present}
        datasets: dict[str, SupervisedDataset] = {}
        metadata: list[Any] | None = None
        if present:
            found, names, metadata = super()._convert_experiment_data(
                experiment_data, present, parameters, search_space_digest
            )
            datasets = dict(zip(names, found, strict=True))
        ordered = sorted([*datasets, *absent])
        if metadata is not None:
            described = dict(zip(datasets, metadata, strict=True))
            metadata = [described.get(name, []) for name in ordered]
        made = [self._with_sources(name, datasets.get(name), parameters) for name in ordered]
        return made, ordered, metadata

    def _with_sources(
        self, metric: str, dataset: SupervisedDataset | None, parameters: list[str]
    ) -> SupervisedDataset:
        known = self.history_moments()
        if dataset is not None and metric not in known:
            return dataset
        empty = torch.empty(0, len(parameters), dtype=torch.double, device=self.device)
        return TransferDataset(
            X=empty if dataset is None else dataset.X,
            Y=empty[:, :1] if dataset is None else dataset.Y,
            Yvar=None if dataset is None else dataset.Yvar,
            feature_names=parameters,
            outcome_names=[metric],
            group_indices=None if dataset is None else dataset.group_indices,
            transferred=self._transferred(metric, parameters),
        )

    def _transferred(self, metric: str, parameters: list[str]) -> Transferred:
        t = cast(StandardizeByHistory, self.transforms[StandardizeByHistory.__name__])
        mean, std = t.Ymean[metric], t.Ystd[metric]
        if metric in self.priors:
            refuse_other_inputs(self.priors[metric], metric, self.model_space, parameters)
            sign = directions(self._optimization_config).get(metric, 1.0)
            return Transferred(self.priors[metric], sign, mean, std)
        assert self.history is not None
        sources = encode_runs(
            self.history, metric, self.model_space, self.transforms, parameters, mean, std
        )
        return Transferred(sources, pretraining=self.pretraining)
