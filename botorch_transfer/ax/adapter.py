"""Ax's adapter with source tasks, from a table or from old experiments.

An adapter converts an experiment to data sets, fits the models and generates candidates.
:class:`TransferAdapter` adds the old runs to the data sets as source tasks. It overrides private
methods of Ax: ``_set_kwargs_to_save`` of ``Adapter``, and ``_convert_experiment_data`` of
``TorchAdapter``. It reads the private ``_experiment`` and ``_optimization_config``.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from inspect import Signature, signature
from typing import Any, cast

import numpy as np
import torch
from ax.adapter.data_utils import ExperimentData
from ax.adapter.torch import TorchAdapter
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.cast import Cast
from ax.adapter.transforms.one_hot import OneHot
from ax.adapter.transforms.standardize_y import StandardizeY
from ax.core import Experiment, GeneratorRun, ObservationFeatures, SearchSpace
from ax.core.optimization_config import OptimizationConfig
from ax.core.search_space import SearchSpaceDigest
from ax.core.trial_status import TrialStatus
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.utils.common.constants import Keys
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer.ax import experiments
from botorch_transfer.ax.history import TASK, TransferHistory, encode_runs, moments_of
from botorch_transfer.ax.model_inputs import TransferDataset
from botorch_transfer.curves import CurvePrior
from botorch_transfer.curves.tables import predicted_ends
from botorch_transfer.data.measurements import numbers
from botorch_transfer.search_space.cells import codes


class StandardizeByHistory(StandardizeY):
    """Ax transform that standardizes outcomes by the history's mean and standard deviation.

    Use it instead of Ax's ``StandardizeY``, which uses the moments of the target's outcomes. These
    moments change from trial to trial, and do not exist before the first trial. This transform uses
    the adapter's ``history_moments()``. For metrics without history, it uses the moments of the
    target's outcomes. Infinite outcomes become NaN, and Ax leaves out NaN.

    Args:
        experiment_data: The data of the target.
        adapter: The adapter, a :class:`TransferAdapter`.
        **options: Options of Ax's ``Transform``, which have no effect.
    """

    requires_data_for_initialization = False

    def __init__(self, *, experiment_data: Any, adapter: Any, **options: Any) -> None:
        Transform.__init__(self, experiment_data=experiment_data, adapter=adapter, **options)
        data, moments = experiment_data.observation_data, adapter.history_moments()
        history, goals = adapter.history, experiments.goals_of(adapter._experiment)
        self.goals = goals if history.robust else {}
        self.codes, self.depths = dict[str, list[float]](), dict[str, float]()
        for name in [] if data.empty else data["mean"].columns:
            values, known = data["mean", name].to_numpy(dtype=float), np.empty(0)
            if name in moments:
                old = history.recorded(goals[name])
                known, tasks = numbers(old, name), old.groupby(TASK)[name]
                self.depths[name] = float((tasks.max() - tasks.min()).median())
            self.codes[name] = codes(np.concatenate([known, values]))
            values = self._limited(name, values)
            moments.setdefault(name, moments_of(values[np.isfinite(values)]))
        self.Ymean = {name: mean for name, (mean, _) in moments.items()}
        self.Ystd = {name: std for name, (_, std) in moments.items()}

    def _limited(self, name: str, values: np.ndarray) -> np.ndarray:
        """Replaces codes such as -999 by NaN, and very bad outcomes by the robust limit."""
        is_outcome = np.isfinite(values) & ~np.isin(values, self.codes.get(name, []))
        values = np.where(is_outcome, values, np.nan)
        goal = self.goals.get(name)
        return values if goal is None else goal.limited(values, self.depths.get(name, 0.0))

    def transform_experiment_data(self, experiment_data: ExperimentData) -> ExperimentData:
        """Standardizes the metrics that have data.

        Args:
            experiment_data: The data of an experiment.

        Returns:
            The standardized data.
        """
        data = experiment_data.observation_data
        for name in [] if data.empty else data["mean"].columns:
            values = self._limited(name, data["mean", name].to_numpy(dtype=float))
            data["mean", name] = (values - self.Ymean.get(name, 0.0)) / self.Ystd.get(name, 1.0)
            data["sem", name] = data["sem", name] / self.Ystd.get(name, 1.0)
        return ExperimentData(arm_data=experiment_data.arm_data, observation_data=data)


class TransferAdapter(TorchAdapter):
    """Ax's ``TorchAdapter`` with old runs as source tasks.

    Use it in your own generation strategy; :func:`transfer_generation_strategy` also creates it.
    Metrics without history have Ax's default model.

    Args:
        experiment: The experiment.
        history: The old runs.
        **options: Options of Ax's ``TorchAdapter``.
    """

    def __init__(self, *, experiment: Experiment, history: TransferHistory, **options: Any) -> None:
        self.history = history.named_as(experiments.directions(experiment.optimization_config))
        metrics = list(experiments.goals_of(experiment))
        rest = [name for name in metrics if name not in self.history.columns]
        if len(rest) == len(metrics):
            raise UserInputError(
                f"The history has none of the experiment's metrics {metrics}: rename the metrics "
                "of the history to these names."
            )
        generator: BoTorchGenerator = options["generator"]
        if (spec := generator.surrogate_spec) is not None:
            plain = {name: [ModelConfig(name="without history")] for name in rest}
            generator.surrogate_spec = replace(spec, metric_to_model_configs=plain)
        super().__init__(experiment=experiment, **options)

    def history_moments(self) -> dict[str, tuple[float, float]]:
        """Returns the mean and standard deviation of old outcomes for each metric with history."""
        goals, known = experiments.goals_of(self._experiment), self.history.columns
        return {name: self.history.moments(goal) for name, goal in goals.items() if name in known}

    def _set_kwargs_to_save(
        self, generator_key: str, generator_kwargs: dict[str, Any], adapter_kwargs: dict[str, Any]
    ) -> None:
        # Ax stores these arguments with each trial. The strategy already stores the history.
        saved = {name: value for name, value in adapter_kwargs.items() if name != "history"}
        super()._set_kwargs_to_save(generator_key, generator_kwargs, saved)

    def gen(
        self,
        n: int,
        search_space: SearchSpace | None = None,
        optimization_config: OptimizationConfig | None = None,
        pending_observations: dict[str, list[ObservationFeatures]] | None = None,
        fixed_features: ObservationFeatures | None = None,
        model_gen_options: dict[str, Any] | None = None,
    ) -> GeneratorRun:
        """Generates new points; see Ax's ``gen``.

        Passes failed, abandoned and pending inputs to the acquisition. Removes abandoned trials
        from ``pending_observations``, because Ax lists abandoned trials as pending. Before the
        first outcome, removes metrics without history from the optimization.
        """
        pending = experiments.without_abandoned(self._experiment, pending_observations)
        config = optimization_config or self._optimization_config
        observed = self.get_training_data().observation_data
        if config is not None and (
            # Ax keeps rows without an outcome.
            observed.empty or not np.isfinite(observed["mean"].to_numpy(dtype=float)).any()
        ):
            optimization_config = experiments.restricted_to(config, self.outcomes)
        avoid: dict[str, Any] = {}
        for fate, arms in experiments.arms_by_fate(self._experiment).items():
            features = [ObservationFeatures.from_arm(arm) for arm in arms]
            if fate == "pending":  # add points of the same batch
                features += [feature for some in pending.values() for feature in some]
            if features:
                avoid[fate] = self._rows(features)
        options, key = dict(model_gen_options or {}), Keys.AX_ACQUISITION_KWARGS.value
        options[key] = {**options.get(key, {}), **avoid}
        return super().gen(n, search_space, optimization_config, pending, fixed_features, options)

    def _rows(self, features: list[ObservationFeatures]) -> list[list[float]]:
        """Returns the distinct points in the model space, with NaN for inactive parameters."""
        space = cast(Cast, self.transforms[Cast.__name__]).search_space
        one_hot: Any = self.transforms.get(OneHot.__name__)
        columns = {} if one_hot is None else one_hot.encoded_parameters
        points = deepcopy(features)
        for transform in self.transforms.values():
            points = transform.transform_observation_features(points)
        rows = dict[str, list[float]]()
        for feature, point in zip(features, points, strict=True):
            inactive = space.parameters.keys() - feature.parameters if space.is_hierarchical else ()
            unknown = {column for name in inactive for column in columns.get(name, [name])}
            values = point.parameters | dict.fromkeys(unknown, math.nan)
            row = [float(cast(float, values[name])) for name in self.parameters]
            rows[str(row)] = row
        return list(rows.values())

    def _convert_experiment_data(
        self,
        experiment_data: Any,
        outcomes: list[str],
        parameters: list[str],
        search_space_digest: SearchSpaceDigest | None,
    ) -> tuple[Any, ...]:
        """Adds source tasks to the data set of each metric with history.

        A metric with history has a data set even if the experiment has no outcome yet.
        """
        goals, config = experiments.goals_of(self._experiment), self._optimization_config
        experiment_data, added = self._with_predicted_ends(experiment_data)
        observed = experiment_data.observation_data
        columns = observed["mean"] if not observed.empty else {}
        present = [n for n in outcomes if n in columns and columns[n].notna().any()]
        wanted = {*outcomes, *([] if config is None else config.metric_signatures)}
        found, names, _ = super()._convert_experiment_data(
            experiment_data, present, parameters, search_space_digest
        )
        datasets = dict(zip(names, found, strict=True))
        none = torch.empty(0, len(parameters), dtype=torch.double, device=self.device)
        assumed = experiments.assumed_values(self._experiment)
        for name in self.history.columns.keys() & goals.keys() & wanted:
            called: Any = {"feature_names": parameters, "outcome_names": [name]}
            dataset = datasets.get(name, SupervisedDataset(none, none[:, :1], **called))
            extended = TransferDataset(dataset.X, dataset.Y, Yvar=dataset.Yvar, **called)
            extended.sources = encode_runs(
                self.history,
                goals[name],
                self.model_space,
                self.transforms,
                parameters,
                self._scale(name),
                self.device,
                assumed,
            )
            extended.added = added.get(name)
            datasets[name] = extended
        # Only trust regions need metadata of candidates.
        return [datasets[name] for name in sorted(datasets)], sorted(datasets), None

    def _with_predicted_ends(self, experiment_data: Any) -> tuple[Any, dict[str, torch.Tensor]]:
        """Replaces the outcomes of early-stopped trials by predictions of their final values.

        Before the first complete trial, the outcomes of early-stopped trials become NaN.

        Returns:
            The data, and the variances of the predictions: for each metric, one variance per trial
            with an outcome. The variance is zero for trials that were not stopped.
        """
        experiment, added = self._experiment, dict[str, torch.Tensor]()
        stopped = experiment.trial_indices_by_status[TrialStatus.EARLY_STOPPED]
        observed = experiment_data.observation_data
        if not stopped or observed.empty:
            return experiment_data, added
        observed = observed.copy()
        indices = observed.index.get_level_values("trial_index")
        signs = experiments.directions(self._optimization_config)
        for name in observed["mean"].columns:
            sign = signs.get(name, 1.0)  # 1 for a metric to maximize
            curves = list(experiments.curves_of(experiment, name, sign).values())
            (mean, scale), variances = self._scale(name), dict.fromkeys(indices, 0.0)
            found = predicted_ends(CurvePrior.of_curves(curves), curves, sign)
            for curve, end, variance in zip(curves, *found, strict=True):
                if curve.row in stopped:
                    observed.loc[indices == curve.row, ("mean", name)] = (end - mean) / scale
                    variances[curve.row] = variance / scale**2
            left = indices[observed["mean", name].notna()]
            added[name] = torch.tensor([variances[i] for i in left], dtype=torch.double)
        return replace(experiment_data, observation_data=observed), added

    def _scale(self, metric: str) -> tuple[float, float]:
        """Returns the mean and standard deviation that standardize the outcomes of a metric."""
        t = cast(StandardizeByHistory, self.transforms[StandardizeByHistory.__name__])
        return t.Ymean.get(metric, 0.0), t.Ystd.get(metric, 1.0)


# Ax reads the names of its own options from the signature.
_history = signature(TransferAdapter.__init__).parameters["history"]
TransferAdapter.__signature__ = Signature(  # type: ignore[attr-defined]
    [*signature(TorchAdapter).parameters.values(), _history]
)
