"""Ax's adapters with source tasks: from a table, from saved priors, or from old experiments.

An adapter turns an experiment into data sets, fits the models and asks for candidates. Read this to
see what Ax does differently where there is a history: :class:`TransferMixin` has what both adapters
share, :class:`TransferAdapter` serves tables and priors, :class:`AuxiliaryTransferAdapter` Ax's own
auxiliary experiments.

These override what is private to Ax: ``_fit``, ``_gen``, ``_get_transformed_gen_args`` and
``_set_kwargs_to_save`` of ``Adapter``, ``_convert_experiment_data`` of ``TorchAdapter``,
``_get_task_datasets`` of ``TransferLearningAdapter``; and they read ``_experiment``,
``_optimization_config`` and ``generator._surrogate``.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from inspect import Signature, signature
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from ax.adapter.data_utils import ExperimentData
from ax.adapter.torch import TorchAdapter
from ax.adapter.transfer_learning.adapter import TransferLearningAdapter
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.cast import Cast
from ax.adapter.transforms.one_hot import OneHot
from ax.core import Experiment, ObservationFeatures, OptimizationConfig, SearchSpace
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.utils.common.constants import Keys
from botorch.models.gp_regression import SingleTaskGP
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from gpytorch.settings import min_fixed_noise
from torch import Tensor

from botorch_transfer.ax import experiments, model_inputs
from botorch_transfer.ax.encoding import encode_runs, refuse_other_inputs
from botorch_transfer.ax.history import AuxiliaryHistory, TransferHistory, auxiliary_outcomes
from botorch_transfer.ax.model_inputs import TransferDataset, Transferred
from botorch_transfer.ax.units import StandardizeByHistory, moments_of, prior_moments

logger = logging.getLogger(__name__)

Moments = dict[str, tuple[float, float] | None]
"""Mean and standard deviation by metric; ``None``: those of the target's own outcomes."""


def has_outcomes(data: ExperimentData) -> bool:
    """Whether any metric has an outcome; Ax keeps rows without one."""
    observed = data.observation_data
    return not observed.empty and bool(np.isfinite(observed["mean"].to_numpy(dtype=float)).any())


class TransferMixin(ABC):
    """What both adapters share: metrics with and without history, and the first trials.

    Subclasses name their own options, and pass the others on to Ax's adapter.
    """

    _experiment: Experiment
    _optimization_config: OptimizationConfig | None
    generator: Any
    outcomes: list[str]

    def __init_subclass__(cls) -> None:
        """Lists Ax's options in the constructor's signature, where Ax looks for them."""
        super().__init_subclass__()
        found = signature(cls.__init__).parameters
        own = {name: option for name, option in found.items() if option.kind is option.KEYWORD_ONLY}
        every = {**signature(cls.__bases__[-1]).parameters, **own}
        cls.__signature__ = Signature(list(every.values()))  # type: ignore[attr-defined]

    @abstractmethod
    def history_moments(self) -> Moments:
        """Mean and standard deviation of old outcomes, by metric with history."""

    def _optimized(self) -> list[str]:
        config = self._optimization_config
        return [] if config is None else sorted(config.metric_signatures)

    def _model_metrics_without_history(self, plain: ModelConfig) -> None:
        """Gives metrics without history a plain model, before the first fit."""
        metrics, known = experiments.metrics_of(self._experiment), self.history_moments()
        experiments.refuse_other_metrics(known, metrics)
        spec = self.generator.surrogate_spec
        if self.generator._surrogate is None and spec is not None:
            rest = {name: [plain] for name in metrics if name not in known}
            self.generator.surrogate_spec = replace(spec, metric_to_model_configs=rest)

    def _set_kwargs_to_save(
        self, generator_key: str, generator_kwargs: dict[str, Any], adapter_kwargs: dict[str, Any]
    ) -> None:
        # Ax stores these with each trial. The key of a table is enough.
        history = adapter_kwargs.get("history")
        if isinstance(history, TransferHistory):
            adapter_kwargs = {**adapter_kwargs, "history": history.key}
        super()._set_kwargs_to_save(generator_key, generator_kwargs, adapter_kwargs)  # type: ignore[misc]

    def _get_transformed_gen_args(self, *args: Any, **given: Any) -> Any:
        """Removes abandoned trials, which Ax treats as pending, and metrics without any outcome.

        Before the first outcome, only metrics with history count.
        """
        pending = given.get("pending_observations")
        given["pending_observations"] = experiments.without_abandoned(self._experiment, pending)
        config = given.get("optimization_config") or self._optimization_config
        data: Any = self.get_training_data()  # type: ignore[attr-defined]
        if config is not None and not has_outcomes(data):
            given["optimization_config"] = experiments.restricted_to(config, self.outcomes)
        return super()._get_transformed_gen_args(*args, **given)  # type: ignore[misc]

    def _gen(self, n: int, search_space: SearchSpace, *args: Any, **kwargs: Any) -> Any:
        """Tells the acquisition which inputs failed or are not known yet, in the model's space.

        They are NaN where a parameter does not matter. Ax's own list of pending inputs lacks those
        that violate a constraint by a rounding error.
        """
        avoid: dict[str, Any] = {}
        kinds = {
            "failed": experiments.failed_arms,
            "abandoned": experiments.abandoned_arms,
            "pending": experiments.awaited_arms,
        }
        if experiments.failed_arms(self._experiment):
            kinds["succeeded"] = experiments.completed_arms
        for kind, select in kinds.items():
            features = [ObservationFeatures.from_arm(arm) for arm in select(self._experiment)]
            for transform in self.transforms.values():  # type: ignore[attr-defined]
                features = transform.transform_observation_features(features)
            if kind == "pending":  # those of the same batch, too
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
        """Each different point, in the order of the columns; NaN in columns that do not matter."""
        known: dict[str, Any] = {} if fixed is None else dict(fixed.parameters)
        names: list[str] = self.parameters  # type: ignore[attr-defined]
        rows: dict[str, list[float]] = {}
        for feature in features:
            point = known | feature.parameters | dict.fromkeys(self._inactive(feature), math.nan)
            row = [float(point[name]) for name in names]
            rows[str(row)] = row
        return list(rows.values())

    def _inactive(self, feature: ObservationFeatures) -> set[str]:
        """The columns of parameters that are inactive at a point; Ax fills them with values."""
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


class TransferAdapter(TransferMixin, TorchAdapter):
    """Ax's ``TorchAdapter`` with a table of old runs, or with priors from files.

    Args:
        history: A :class:`TransferHistory`, or the key of one.
        priors: What :func:`describe_prior_file` returned, by metric.
        pretraining: Options of pre-training.
        **options: Those of Ax's ``TorchAdapter``.
    """

    def __init__(
        self,
        *,
        history: TransferHistory | str | None = None,
        priors: dict[str, dict[str, str]] | None = None,
        pretraining: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.history = None if history is None else TransferHistory.recall(history)
        files = (priors or {}).items()
        self.priors = {name: model_inputs.load_prior_file(file) for name, file in files}
        self.pretraining = pretraining or {}
        super().__init__(**options)

    def history_moments(self) -> Moments:
        """Mean and standard deviation of old outcomes, by metric with history."""
        if self.history is not None:
            known = self.history.metrics(experiments.metrics_of(self._experiment))
            return {name: self.history.moments(name) for name in known}
        return {name: prior_moments(prior, self._sign(name)) for name, prior in self.priors.items()}

    def _sign(self, metric: str) -> float:
        """-1 for a metric to minimize: priors are about its negative."""
        return experiments.directions(self._optimization_config).get(metric, 1.0)

    def _fit(self, search_space: SearchSpace, experiment_data: Any, **kwargs: Any) -> None:
        for name in self.priors:
            experiments.refuse_other_metrics([name], experiments.metrics_of(self._experiment))
        self._model_metrics_without_history(ModelConfig(name="without history"))
        super()._fit(search_space, experiment_data, **kwargs)

    def _convert_experiment_data(
        self,
        experiment_data: Any,
        outcomes: list[str],
        parameters: list[str],
        search_space_digest: SearchSpaceDigest | None,
    ) -> tuple[Any, ...]:
        """Adds the source tasks to the data of metrics with history, which may have none yet."""
        known = self.history_moments()
        observed = experiment_data.observation_data
        columns = observed["mean"] if not observed.empty else {}
        present = [n for n in outcomes if n in columns and columns[n].notna().any()]
        absent = {n for n in (*outcomes, *self._optimized()) if n in known and n not in present}
        found, names, metadata = super()._convert_experiment_data(
            experiment_data, present, parameters, search_space_digest
        )
        datasets = dict(zip(names, found, strict=True))
        described = dict(zip(names, metadata or [], strict=False))
        for name in known.keys() & {*names, *absent}:
            dataset = datasets.get(name) or _no_data(parameters, name, self.device)
            datasets[name] = TransferDataset(
                dataset.X,
                dataset.Y,
                Yvar=dataset.Yvar,
                feature_names=parameters,
                outcome_names=[name],
                group_indices=dataset.group_indices,
                transferred=self._transferred(name, parameters),
            )
        ordered = sorted(datasets)
        every = None if metadata is None else [described.get(name, []) for name in ordered]
        return [datasets[name] for name in ordered], ordered, every

    def _transferred(self, metric: str, parameters: list[str]) -> Transferred:
        t = cast(StandardizeByHistory, self.transforms[StandardizeByHistory.__name__])
        mean, std = t.Ymean[metric], t.Ystd[metric]
        if metric in self.priors:
            refuse_other_inputs(self.priors[metric], metric, self.model_space, parameters)
            return Transferred(self.priors[metric], self._sign(metric), mean, std)
        assert self.history is not None
        space, device = self.model_space, self.device
        sources = encode_runs(
            self.history, metric, space, self.transforms, parameters, mean, std, device
        )
        return Transferred(sources, pretraining=self.pretraining)


class AuxiliaryTransferAdapter(TransferMixin, TransferLearningAdapter):
    """Ax's ``TransferLearningAdapter`` for the models of this package, from the first trial on.

    Args:
        experiment: The new experiment.
        history: The old experiments, or their names.
        fit_tracking_metrics: Whether to model metrics that are not optimized.
        **options: Those of Ax's ``TransferLearningAdapter``.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        history: AuxiliaryHistory | None = None,
        fit_tracking_metrics: bool = False,
        **options: Any,
    ) -> None:
        if history is not None:
            history.attach(experiment)
        self._target = experiment
        super().__init__(
            experiment=experiment, fit_tracking_metrics=fit_tracking_metrics, **options
        )

    def _get_task_datasets(
        self, datasets: Sequence[SupervisedDataset | None], parameters: list[str]
    ) -> list[MultiTaskDataset]:
        """Joins the data of all tasks; unlike Ax, for targets without data and noise known of some.

        Args:
            datasets: The target's data of each outcome; ``None`` where there are none.
            parameters: The columns.

        Returns:
            The data of each outcome.
        """
        given = zip(datasets, self.outcomes, strict=True)
        return [self._together(dataset, outcome, parameters) for dataset, outcome in given]

    def _together(
        self, target: SupervisedDataset | None, outcome: str, parameters: list[str]
    ) -> MultiTaskDataset:
        of_source = self.get_transferable_datasets(parameters, outcome)
        tasks: list[SupervisedDataset] = [*chain.from_iterable(of_source.values())]
        tasks = tasks if target is None else [target, *tasks]
        if known := all(task.Yvar is not None and task.Yvar.isfinite().all() for task in tasks):
            # Ax writes a standard error of zero where there is no noise.
            floor: Any = min_fixed_noise.value(tasks[0].X.dtype)
            noises = [cast(Tensor, task.Yvar).clamp_min(floor) for task in tasks]
            tasks = list(map(model_inputs.with_noise, tasks, noises))
        else:
            if any(task.Yvar is not None for task in tasks):
                logger.info("Only some runs know their noise of %s: it is inferred.", outcome)
            tasks = [model_inputs.with_noise(task, None) for task in tasks]
        if target is None:
            empty = _no_data(parameters, outcome, self.device)
            tasks = [model_inputs.with_noise(empty, empty.Y if known else None), *tasks]
        return MultiTaskDataset(tasks, target_outcome_name=outcome, task_feature_index=-1)

    def history_moments(self) -> Moments:
        """Mean and standard deviation of old outcomes, by metric with history."""
        moments: Moments = {
            name: moments_of(outcomes)
            for name in experiments.metrics_of(self._target)
            if (outcomes := auxiliary_outcomes(self.auxiliary_sources, name)) is not None
        }
        for source in self.auxiliary_sources:
            # While Ax transforms the data of an old experiment, that one is ``_experiment``.
            if source.experiment is self._experiment:
                return {
                    other: moments[name]
                    for name in moments
                    for other in source.transfer_metric_config.get(name, {name})
                }
        return moments

    def _fit(self, search_space: SearchSpace, experiment_data: Any, **kwargs: Any) -> None:
        model_inputs.refuse_parameters(self._source_only_params)
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
        """Fixes parameters of old experiments that the new one lacks.

        Ax drops them here, but keeps them in the data: the numbers of columns would differ.
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


def _no_data(parameters: list[str], outcome: str, device: torch.device | None) -> SupervisedDataset:
    """The data of a target that was never evaluated."""
    X = torch.empty(0, len(parameters), dtype=torch.double, device=device)
    return SupervisedDataset(
        X, X.new_empty(0, 1), feature_names=parameters, outcome_names=[outcome]
    )
