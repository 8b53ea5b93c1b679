"""Ax's adapter with source tasks, from a table or from old experiments.

An adapter converts an experiment to data sets, fits the models and generates candidates.
:class:`TransferAdapter` adds the history to these steps. It overrides private methods of Ax:
``_fit``, ``_gen``, ``_get_transformed_gen_args`` and ``_set_kwargs_to_save`` of ``Adapter``, and
``_convert_experiment_data`` of ``TorchAdapter``. It reads the private ``_experiment``,
``_optimization_config`` and ``generator._surrogate``.
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
from ax.core import Experiment, ObservationFeatures, SearchSpace
from ax.core.search_space import SearchSpaceDigest
from ax.core.trial_status import TrialStatus
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.utils.common.constants import Keys
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer.ax import experiments
from botorch_transfer.ax.history import TransferHistory, encode_runs, moments_of
from botorch_transfer.ax.model_inputs import TransferDataset
from botorch_transfer.curves import CurvePrior
from botorch_transfer.curves.tables import predicted_ends
from botorch_transfer.data import SourceData
from botorch_transfer.data.measurements import codes, numbers


class StandardizeByHistory(StandardizeY):
    """Ax transform that standardizes outcomes by the history's mean and standard deviation.

    Use it instead of Ax's ``StandardizeY``, which standardizes by the target's outcomes. The
    target's outcomes change from trial to trial, and do not exist before the first trial. This
    transform uses the adapter's ``history_moments()``. For metrics without history, it uses the
    moments of the target's outcomes. Infinite outcomes become NaN, which Ax leaves out.

    Args:
        experiment_data: The data of the target.
        adapter: The adapter, a :class:`TransferAdapter`.
        **options: Options of Ax's ``Transform``, which have no effect.
    """

    requires_data_for_initialization = False

    def __init__(self, *, experiment_data: Any, adapter: Any, **options: Any) -> None:
        Transform.__init__(self, experiment_data=experiment_data, adapter=adapter, **options)
        data, moments = experiment_data.observation_data, adapter.history_moments()
        history, self.robust = adapter.history, adapter.history.robust
        self.goals = experiments.goals_of(adapter._experiment)
        self.codes, self.depths = dict[str, list[float]](), dict[str, float]()
        for name in [] if data.empty else data["mean"].columns:
            values, known = data["mean", name].to_numpy(dtype=float), np.empty(0)
            if name in moments:
                old = history.recorded(self.goals[name])
                known, tasks = numbers(old, name), old.groupby(history.task)[name]
                self.depths[name] = float((tasks.max() - tasks.min()).median())
            self.codes[name] = codes(np.concatenate([known, values]))
            values = self._limited(name, values)
            moments.setdefault(name, moments_of(values[np.isfinite(values)]))
        self.Ymean = {name: mean for name, (mean, _) in moments.items()}
        self.Ystd = {name: std for name, (_, std) in moments.items()}

    def _limited(self, name: str, values: np.ndarray) -> np.ndarray:
        """Replaces codes for missing outcomes by NaN, and limits very bad outcomes."""
        is_outcome = np.isfinite(values) & ~np.isin(values, self.codes.get(name, []))
        values = np.where(is_outcome, values, np.nan)
        if not self.robust or name not in self.goals:
            return values
        return self.goals[name].limited(values, self.depths.get(name, 0.0))

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

    :func:`transfer_generation_strategy` creates it; use it directly in a strategy of your own.

    Args:
        experiment: The experiment.
        history: The old runs.
        pretraining: Options of pre-training.
        **options: Options of Ax's ``TorchAdapter``.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        history: TransferHistory,
        pretraining: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        goals = experiments.directions(experiment.optimization_config)
        self.history, self.pretraining = history.named_as(goals), pretraining or {}
        super().__init__(experiment=experiment, **options)

    def history_moments(self) -> dict[str, tuple[float, float]]:
        """Returns the mean and standard deviation of old outcomes for each metric with history."""
        known = self.history.columns.keys() & experiments.metrics_of(self._experiment)
        goals = experiments.goals_of(self._experiment)
        return {name: self.history.moments(goals[name]) for name in sorted(known)}

    def _fit(self, search_space: SearchSpace, experiment_data: Any, **kwargs: Any) -> None:
        """Assigns a plain model to metrics without history before the first fit."""
        metrics, known = experiments.metrics_of(self._experiment), self.history_moments()
        if not known:
            raise UserInputError(
                f"The experiment has the metrics {metrics}, and the history has none of them: give "
                "the metrics of the history the same names."
            )
        generator = cast(BoTorchGenerator, self.generator)
        spec = generator.surrogate_spec
        if generator._surrogate is None and spec is not None:
            plain = [ModelConfig(name="without history")]
            rest = {name: plain for name in metrics if name not in known}
            generator.surrogate_spec = replace(spec, metric_to_model_configs=rest)
        super()._fit(search_space, experiment_data, **kwargs)

    def _set_kwargs_to_save(
        self, generator_key: str, generator_kwargs: dict[str, Any], adapter_kwargs: dict[str, Any]
    ) -> None:
        # Ax stores these arguments with each trial. The strategy already stores the history.
        saved = {name: value for name, value in adapter_kwargs.items() if name != "history"}
        super()._set_kwargs_to_save(generator_key, generator_kwargs, saved)

    def _get_transformed_gen_args(self, *args: Any, **given: Any) -> Any:
        """Removes abandoned trials, which Ax treats as pending.

        Before the first outcome, removes metrics without history from the optimization, too.
        """
        pending = given.get("pending_observations")
        given["pending_observations"] = experiments.without_abandoned(self._experiment, pending)
        config = given.get("optimization_config") or self._optimization_config
        observed = self.get_training_data().observation_data
        if config is not None and (
            # Ax keeps rows without an outcome.
            observed.empty or not np.isfinite(observed["mean"].to_numpy(dtype=float)).any()
        ):
            given["optimization_config"] = experiments.restricted_to(config, self.outcomes)
        return super()._get_transformed_gen_args(*args, **given)

    def _gen(self, n: int, search_space: SearchSpace, *args: Any, **kwargs: Any) -> Any:
        """Passes failed, abandoned and pending inputs to the acquisition, in the model space.

        Inactive parameters are NaN. Ax's own list of pending inputs lacks inputs that violate a
        constraint by a rounding error.
        """
        avoid: dict[str, Any] = {}
        fates = experiments.arms_by_fate(self._experiment)
        if not fates["failed"]:
            del fates["succeeded"]
        for fate, arms in fates.items():
            features = [ObservationFeatures.from_arm(arm) for arm in arms]
            for transform in self.transforms.values():
                features = transform.transform_observation_features(features)
            if fate == "pending":  # points of the same batch, too
                features += [f for some in kwargs["pending_observations"].values() for f in some]
            if features:
                avoid[fate] = self._rows(features)
        if avoid:
            options = dict(kwargs.get("model_gen_options") or {})
            key = Keys.AX_ACQUISITION_KWARGS.value
            kwargs["model_gen_options"] = {**options, key: {**options.get(key, {}), **avoid}}
        return super()._gen(n, search_space, *args, **kwargs)

    def _rows(self, features: list[ObservationFeatures]) -> list[list[float]]:
        """Returns the distinct points as rows, with NaN in columns of inactive parameters."""
        rows = []
        for feature in features:
            inactive = dict.fromkeys(self._inactive(feature), math.nan)
            point: dict[str, Any] = {**feature.parameters, **inactive}
            rows.append([float(point[name]) for name in self.parameters])
        return list({str(row): row for row in rows}.values())

    def _inactive(self, feature: ObservationFeatures) -> set[str]:
        """Returns the columns of parameters that are inactive at a point, which Ax fills."""
        space = cast(Cast, self.transforms[Cast.__name__]).search_space
        if not space.is_hierarchical:
            return set()
        raw = [deepcopy(feature)]
        for transform in reversed(list(self.transforms.values())):
            raw = transform.untransform_observation_features(raw)
        inactive = set(space.parameters) - set(raw[0].parameters)
        one_hot: Any = self.transforms.get(OneHot.__name__)
        encoded = {} if one_hot is None else one_hot.encoded_parameters
        return {column for name in inactive for column in encoded.get(name, [name])}

    def _convert_experiment_data(
        self,
        experiment_data: Any,
        outcomes: list[str],
        parameters: list[str],
        search_space_digest: SearchSpaceDigest | None,
    ) -> tuple[Any, ...]:
        """Adds source tasks to the data of metrics with history, also before the first outcome."""
        known, config = self.history_moments(), self._optimization_config
        experiment_data, added = self._with_predicted_ends(experiment_data)
        observed = experiment_data.observation_data
        columns = observed["mean"] if not observed.empty else {}
        present = [n for n in outcomes if n in columns and columns[n].notna().any()]
        wanted = {*outcomes, *([] if config is None else config.metric_signatures)}
        found, names, metadata = super()._convert_experiment_data(
            experiment_data, present, parameters, search_space_digest
        )
        datasets = dict(zip(names, found, strict=True))
        described = dict(zip(names, metadata or [], strict=False))
        none = torch.empty(0, len(parameters), dtype=torch.double, device=self.device)
        for name in known.keys() & wanted:
            called: Any = {"feature_names": parameters, "outcome_names": [name]}
            dataset = datasets.get(name, SupervisedDataset(none, none[:, :1], **called))
            extended = TransferDataset(
                dataset.X,
                dataset.Y,
                Yvar=dataset.Yvar,
                group_indices=dataset.group_indices,
                **called,
            )
            extended.sources = self._sources(name, parameters)
            extended.pretraining, extended.added = self.pretraining, added.get(name)
            datasets[name] = extended
        ordered = sorted(datasets)
        every = None if metadata is None else [described.get(name, []) for name in ordered]
        return [datasets[name] for name in ordered], ordered, every

    def _with_predicted_ends(self, experiment_data: Any) -> tuple[Any, dict[str, torch.Tensor]]:
        """Replaces the outcomes of trials that were stopped early by predicted final values.

        Returns:
            The data, and by metric the variances of the remaining outcomes. The variance of a
            complete trial is zero. Before the first complete trial, stopped trials have no outcome.
        """
        experiment, added = self._experiment, dict[str, torch.Tensor]()
        stopped = experiment.trial_indices_by_status[TrialStatus.EARLY_STOPPED]
        observed = experiment_data.observation_data
        if not stopped or observed.empty:
            return experiment_data, added
        observed = observed.copy()
        indices = observed.index.get_level_values("trial_index")
        t = cast(StandardizeByHistory, self.transforms[StandardizeByHistory.__name__])
        signs = experiments.directions(self._optimization_config)
        for name in observed["mean"].columns:
            sign = signs.get(name, 1.0)  # 1 for a metric to maximize
            data = experiment.lookup_data()
            curves = list(experiments.curves_of(experiment, data, name, sign).values())
            scale, variances = t.Ystd.get(name, 1.0), dict.fromkeys(indices, 0.0)
            found = predicted_ends(CurvePrior.of_curves(curves), curves, sign)
            for curve, end, variance in zip(curves, *found, strict=True):
                if curve.row in stopped:
                    end = (end - t.Ymean.get(name, 0.0)) / scale
                    observed.loc[indices == curve.row, ("mean", name)] = end
                    variances[curve.row] = variance / scale**2
            left = indices[observed["mean", name].notna()]
            added[name] = torch.tensor([variances[i] for i in left], dtype=torch.double)
        return replace(experiment_data, observation_data=observed), added

    def _sources(self, metric: str, parameters: list[str]) -> dict[str, SourceData]:
        t = cast(StandardizeByHistory, self.transforms[StandardizeByHistory.__name__])
        return encode_runs(
            self.history,
            experiments.goals_of(self._experiment)[metric],
            self.model_space,
            self.transforms,
            parameters,
            t.Ymean[metric],
            t.Ystd[metric],
            self.device,
            experiments.assumed_values(self._experiment),
        )


# Ax reads the names of its own options from the signature.
_own = signature(TransferAdapter.__init__).parameters
TransferAdapter.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        *signature(TorchAdapter).parameters.values(),
        *(_own[name] for name in ("history", "pretraining")),
    ]
)
