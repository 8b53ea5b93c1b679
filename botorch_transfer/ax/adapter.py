"""Converts Ax's data to the arguments of transfer models.

In Ax, an adapter converts an experiment to data sets, fits the models and generates candidates.
:class:`TransferAdapter` adds the old runs to the data sets as source tasks
(:class:`TransferDataset`). Ax calls :func:`transfer_inputs_for_ax` when it builds the model of a
metric. :class:`TransferAdapter` overrides private methods of Ax: ``_set_kwargs_to_save`` of
``Adapter``, and ``_convert_experiment_data`` of ``TorchAdapter``. This module also uses the private
``_experiment`` and ``_optimization_config`` of adapters, and ``_construct_submodules`` of Ax's
surrogate.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from inspect import Signature, signature
from itertools import chain
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
from ax.core.parameter import FixedParameter
from ax.core.search_space import SearchSpaceDigest
from ax.core.trial_status import TrialStatus
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.surrogate import (
    Surrogate,
    _construct_submodules,
    submodel_input_constructor,
)
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.utils.common.constants import Keys
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.settings import min_fixed_noise
from pandas import DataFrame, factorize, to_numeric
from torch import Tensor

from botorch_transfer import ax_experiments as experiments
from botorch_transfer import search_space as own
from botorch_transfer.average.guarded import GuardedTransferGP
from botorch_transfer.average.transfer import MEMBERS, TransferGP
from botorch_transfer.ax.history import TASK, TransferHistory, moments_of, user_errors
from botorch_transfer.curves import CurvePrior, predicted_ends
from botorch_transfer.data import SourceData, as_datasets
from botorch_transfer.data.columns import check_columns
from botorch_transfer.data.measurements import Outcome, numbers
from botorch_transfer.data.tables import read_history
from botorch_transfer.data.units import wrong_outcomes
from botorch_transfer.gp.likelihood import AddedNoiseLikelihood
from botorch_transfer.hierarchy.prior import SourceHierarchy
from botorch_transfer.input_transforms import warn_of_data
from botorch_transfer.memo import Memo, content_key
from botorch_transfer.model import TransferModel
from botorch_transfer.outcome_transforms import another_unit
from botorch_transfer.prior import TransferPrior
from botorch_transfer.search_space.cells import codes
from botorch_transfer.search_space.guess import warn_of_goal
from botorch_transfer.sources.scaml import ScaMLGP

logger = logging.getLogger(__name__)

_encoded = Memo(size=32)


class StandardizeByHistory(StandardizeY):
    """Ax transform that standardizes outcomes by the mean and standard deviation of old outcomes.

    Use it instead of Ax's ``StandardizeY``, which uses the moments (mean and standard deviation) of
    the target's outcomes. The target's moments change from trial to trial, and do not exist before
    the first trial. For a metric with old outcomes, ``StandardizeByHistory`` uses the moments of
    the old outcomes, from the adapter's ``history_moments()``. For any other metric, it uses the
    target's moments. Infinite outcomes become NaN, and Ax leaves out NaN.

    Args:
        experiment_data: The data of the target.
        adapter: The :class:`TransferAdapter` that holds the old outcomes.
        **options: Options of Ax's ``Transform``, which have no effect.
    """

    requires_data_for_initialization = False

    def __init__(self, *, experiment_data: Any, adapter: Any, **options: Any) -> None:
        Transform.__init__(self, experiment_data=experiment_data, adapter=adapter, **options)
        data, moments = experiment_data.observation_data, adapter.history_moments()
        history, goals = adapter.history, experiments.goals_of(adapter._experiment)
        self.goals = goals if history.robust else {}
        self.codes, self.depths = dict[str, list[float]](), dict[str, float]()
        observed: Any = {} if data.empty else data["mean"]
        for name in dict.fromkeys([*moments, *observed]):
            values, known, old = np.asarray(observed.get(name, []), float), np.empty(0), None
            if name in moments:
                old = history.recorded(goals[name])
                known, tasks = numbers(old, name), old.groupby(TASK)[name]
                self.depths[name] = float((tasks.max() - tasks.min()).median())
            self.codes[name] = codes(np.concatenate([known, values]))
            raw, values = values, self._limited(name, values)
            goal = goals.get(name, Outcome(name, 0.0))
            problem = wrong_outcomes(goal, old, DataFrame({name: values}))
            if problem is None and old is not None and (sign := goal.sign or 1.0):
                is_known, own_Y = np.isfinite(known), raw[np.isfinite(values), None]
                Y, past = (torch.from_numpy(sign * part) for part in (own_Y, known[is_known]))
                task = torch.from_numpy(factorize(old[TASK][is_known])[0])
                problem = another_unit(f"{name!r} of the trials", Y, past, task, sign)
            if problem is not None:
                warn_of_data(problem)
            moments.setdefault(name, moments_of(values[np.isfinite(values)]))
        self.Ymean = {name: mean for name, (mean, _) in moments.items()}
        self.Ystd = {name: std for name, (_, std) in moments.items()}

    def _limited(self, name: str, values: np.ndarray) -> np.ndarray:
        """Replaces infinite outcomes and error codes such as -999 by NaN; clips very bad outcomes.

        Args:
            name: The metric.
            values: An ``n`` array of the metric's outcomes, in the unit of the experiment.

        Returns:
            The changed outcomes. :func:`~botorch_transfer.outcome_transforms.robust_limit` defines
            the limit for very bad outcomes.
        """
        is_outcome = np.isfinite(values) & ~np.isin(values, self.codes.get(name, []))
        values = np.where(is_outcome, values, np.nan)
        goal = self.goals.get(name)
        return values if goal is None else goal.limited(values, self.depths.get(name, 0.0))

    def transform_experiment_data(self, experiment_data: ExperimentData) -> ExperimentData:
        """Standardizes the outcomes and standard errors of all metrics.

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


class TransferDataset(SupervisedDataset):
    """Data set of the target with source tasks; the target may have no data yet.

    Use it to pass source tasks through Ax to a transfer model. Set :attr:`sources` to a mapping
    from the names of the source tasks to their data. The inputs of source tasks are in Ax's model
    space, and their outcomes are standardized like the target's outcomes. Optionally set
    :attr:`added` to an ``n`` tensor of variances, which are added to the noise variances of the
    ``n`` target points.
    """

    sources: Mapping[str, SourceData]
    added: Tensor | None = None

    def clone(self, deepcopy: bool = False, mask: Tensor | None = None) -> TransferDataset:
        """Copies the data set, and optionally selects target points.

        Args:
            deepcopy: Whether to copy the tensors.
            mask: An ``n`` boolean tensor, true for the target points to keep.

        Returns:
            The new data set, with the same source tasks.
        """
        copied = cast(TransferDataset, super().clone(deepcopy, mask))
        copied.sources = self.sources
        copied.added = self.added if self.added is None or mask is None else self.added[mask]
        return copied


class TransferAdapter(TorchAdapter):
    """Ax's ``TorchAdapter`` with old runs as source tasks.

    Use this adapter in your own generation strategy. The strategies of
    :func:`transfer_generation_strategy` already contain this adapter.
    Metrics without old outcomes have Ax's default model.

    Args:
        experiment: The experiment.
        history: The old runs.
        **options: Options of Ax's ``TorchAdapter``.
    """

    def __init__(self, *, experiment: Experiment, history: TransferHistory, **options: Any) -> None:
        signs = experiments.directions(experiment.optimization_config)
        self.history = history.named_as(signs)
        for name, sign in signs.items() if len(experiment.trials) < 2 else ():
            warn_of_goal(name, sign, "the sign in configure_optimization")
        metrics = list(experiments.goals_of(experiment))
        rest = [name for name in metrics if name not in self.history.columns]
        if len(rest) == len(metrics):
            text = f"The history has none of the experiment's metrics {metrics}"
            raise UserInputError(f"{text}: rename the metrics of the history to these names.")
        generator: BoTorchGenerator = options["generator"]
        if (spec := generator.surrogate_spec) is not None:
            plain = {name: [ModelConfig(name="without history")] for name in rest}
            generator.surrogate_spec = replace(spec, metric_to_model_configs=plain)
        super().__init__(experiment=experiment, **options)

    def history_moments(self) -> dict[str, tuple[float, float]]:
        """Returns the mean and standard deviation of the old outcomes of each metric.

        Leaves out metrics without old outcomes.
        """
        goals, known = experiments.goals_of(self._experiment), self.history.columns
        return {name: self.history.moments(goal) for name, goal in goals.items() if name in known}

    def _set_kwargs_to_save(
        self, generator_key: str, generator_kwargs: dict[str, Any], adapter_kwargs: dict[str, Any]
    ) -> None:
        # Leave out the history: Ax stores these arguments with each trial, and the strategy stores
        # the history once.
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
        """Generates new points; see Ax's ``Adapter.gen`` for the arguments.

        The acquisition function gets the inputs of all trials: failed, succeeded, abandoned and
        pending. Ax lists abandoned trials as pending, so they count as pending here. Before the
        first outcome, only metrics with old outcomes are optimized.
        """
        config = optimization_config or self._optimization_config
        observed = self.get_training_data().observation_data
        # The rows may all be without an outcome, because Ax keeps such rows.
        means: Any = [] if observed.empty else observed["mean"].to_numpy(dtype=float)
        if config is not None and not np.isfinite(means).any():
            optimization_config = experiments.restricted_to(config, self.outcomes)
        avoid: dict[str, Any] = {}
        for fate, arms in experiments.arms_by_fate(self._experiment).items():
            features = [ObservationFeatures.from_arm(arm) for arm in arms]
            if fate == "pending":  # add points of the same batch
                features += chain.from_iterable((pending_observations or {}).values())
            if features:
                avoid[fate] = self._rows(features)
        options, key = dict(model_gen_options or {}), Keys.AX_ACQUISITION_KWARGS.value
        options[key] = {**options.get(key, {}), **avoid}
        return super().gen(
            n, search_space, optimization_config, pending_observations, fixed_features, options
        )

    def _rows(self, features: list[ObservationFeatures]) -> list[list[float]]:
        """Converts Ax's points to rows of inputs in the model space, without duplicate rows.

        Inactive parameters are NaN.
        """
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
        """Converts an experiment to one data set per metric; overrides Ax's method.

        Adds source tasks to the data set of each metric with old outcomes. These metrics have a
        data set even before the experiment's first outcome.
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
        for name in self.history.columns.keys() & goals.keys() & wanted:
            called: Any = {"feature_names": parameters, "outcome_names": [name]}
            dataset = datasets.get(name, SupervisedDataset(none, none[:, :1], **called))
            extended = TransferDataset(dataset.X, dataset.Y, Yvar=dataset.Yvar, **called)
            extended.sources = self._source_tasks(goals[name], parameters)
            extended.added = added.get(name)
            datasets[name] = extended
        # Return no metadata of candidates, because only trust regions need this metadata.
        return [datasets[name] for name in sorted(datasets)], sorted(datasets), None

    def _source_tasks(self, goal: Outcome, parameters: Sequence[str]) -> dict[str, SourceData]:
        """Converts the old runs of a metric to tensors, as Ax converts the target's runs.

        Args:
            goal: The metric, with its direction.
            parameters: The names of the inputs in the model space, in the order of the columns.

        Returns:
            Double-precision tensors by old task: ``(X, Y)``, or ``(X, Y, Yvar)`` if the old runs
            have standard errors.

        Raises:
            UserInputError: If a value is missing or of the wrong type, or if no run is in the
                search space.
        """
        history, (mean, std), metric = self.history, self._scale(goal.name), goal.name
        space = self.model_space.parameters
        fixed = {name: p.value for name, p in space.items() if isinstance(p, FixedParameter)}
        # The values in ``history.missing`` take precedence over the values of the status quo.
        missing = {**experiments.assumed_values(self._experiment), **fixed, **history.missing}
        given = repr(self.model_space), list(self.transforms), (mean, std), str(self.device)

        def encode() -> dict[str, SourceData]:
            known, noise = experiments.own_space(self.model_space), f"{metric}_sem"
            runs = history.runs_in(self.model_space, goal, fixed, missing)
            with user_errors():
                taken = [Outcome(metric, 1.0, noise=noise if noise in runs else None)]
                named = [("outcome", metric), ("task", TASK)]
                unrecorded = {n: value for n, value in missing.items() if n not in runs}
                runs = check_columns(runs, known, named, unrecorded, changed=False)
                how = partial(self._in_model_space, known, parameters)
                options: dict[str, Any] = {"changed": False, "encode": how}
                old = read_history(runs, known, taken, TASK, missing, **options).sources[metric]
            encoded: dict[str, SourceData] = {}
            for name, data in (old or {}).items():
                X, Y = data.X.to(self.device), (data.Y.to(self.device) - mean) / std
                encoded[name] = (X, Y) if data.Yvar is None else (X, Y, data.Yvar.to(Y) / std**2)
            return encoded

        return _encoded.recall(content_key(history.key, goal, *given, missing), encode)

    def _in_model_space(
        self, space: own.SearchSpace, parameters: Sequence[str], rows: DataFrame
    ) -> Tensor:
        """Converts a table of ``n`` old runs to an ``n x d`` tensor in Ax's model space."""
        # To find the active parameters of a run, Ax needs values that are exactly valid choices.
        levels = space.decode(space.place(rows).clamp(0.0, 1.0))
        recorded = rows.filter(space.number_columns).apply(to_numeric, errors="coerce")
        records: list[Any] = [frame.to_dict("records") for frame in (levels, recorded)]
        features, off_levels = list[ObservationFeatures](), list[dict[str, Any]]()
        for level, row in zip(*records, strict=True):
            given = {name: value for name, value in level.items() if value is not None}
            feature = self.model_space.cast_observation_features(ObservationFeatures(given))
            active = feature.parameters  # transforms fill in inactive parameters
            features.append(ObservationFeatures(active))
            off_levels.append({n: x for n, x in row.items() if n in active and x != active[n]})
        for transform in self.transforms.values():
            features = transform.transform_observation_features(features)
            if isinstance(transform, Cast):  # Restore recorded numbers for later transforms.
                for feature, values in zip(features, off_levels, strict=True):
                    feature.parameters.update(values)
        X = [[float(cast(float, row.parameters[name])) for name in parameters] for row in features]
        return torch.tensor(X, dtype=torch.double)

    def _with_predicted_ends(self, experiment_data: Any) -> tuple[Any, dict[str, Tensor]]:
        """Replaces the outcomes of early-stopped trials by predictions of their final values.

        Before the first complete trial, the outcomes of early-stopped trials become NaN.

        Returns:
            The changed data. Also a mapping from metrics to tensors of variances. A tensor has one
            variance per trial with an outcome. A variance is zero unless the outcome is a
            prediction. The mapping is empty if no trial was stopped early.
        """
        experiment, added = self._experiment, dict[str, Tensor]()
        stopped = experiment.trial_indices_by_status[TrialStatus.EARLY_STOPPED]
        observed = experiment_data.observation_data
        if not stopped or observed.empty:
            return experiment_data, added
        observed = observed.copy()
        indices = observed.index.get_level_values("trial_index")
        signs = experiments.directions(self._optimization_config)
        for name in observed["mean"].columns:
            sign = signs.get(name, 1.0)  # 1 for a metric without a direction
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
        """Returns the mean and standard deviation by which a metric's outcomes are standardized."""
        t = cast(StandardizeByHistory, self.transforms[StandardizeByHistory.__name__])
        return t.Ymean.get(metric, 0.0), t.Ystd.get(metric, 1.0)


# Ax reads the names of an adapter's options from the adapter's signature. The option
# ``history`` would be missing in a signature with ``**options``.
_history = signature(TransferAdapter.__init__).parameters["history"]
TransferAdapter.__signature__ = Signature(  # type: ignore[attr-defined]
    [*signature(TorchAdapter).parameters.values(), _history]
)


# --------------------------------------------------------------------------- arguments of models


@submodel_input_constructor.register(TransferModel)
def transfer_inputs_for_ax(
    botorch_model_class: type[TransferModel],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Constructs the arguments of a transfer model from Ax's data set of a metric.

    Source tasks come from a :class:`TransferDataset`. For any other data set, the entry ``"prior"``
    of the model options holds the source tasks or a prior. An input transform scales the search
    space and the inputs of the source tasks to the unit cube. If a prior has an input transform,
    the prior's transform is used instead.

    Unlike Ax's own constructor, this function does not pass ``outcome_transform=None``: to a
    transfer model, ``None`` means that the outcomes are already in the units of the prior.

    Args:
        botorch_model_class: The class of the model.
        model_config: Ax's configuration of the model. The entry ``"pretraining"`` of its
            ``model_options`` contains the options of pre-training.
        dataset: The data of the target. A :class:`TransferDataset` also has the source tasks.
        search_space_digest: Ax's model space.
        surrogate: Ax's surrogate. This argument has no effect.

    Returns:
        The arguments of the model's constructor.

    Raises:
        UserInputError: If the options of pre-training do not apply to this model class.
    """
    options, added = dict(model_config.model_options), None
    pretraining = options.pop("pretraining", {})
    if isinstance(dataset, TransferDataset):
        options["prior"], added = dataset.sources, dataset.added
    inputs = botorch_model_class.construct_inputs(dataset, **options)
    Yvar = inputs.pop("train_Yvar", None)
    if Yvar is not None and not Yvar.isfinite().all():
        logger.info("Standard errors are ignored, because only some trials have a standard error.")
        Yvar = None
    if added is not None and len(added) == len(dataset.Y) and bool(added.any()):
        if Yvar is None:
            inputs["likelihood"] = AddedNoiseLikelihood(added.to(dataset.Y))
        else:
            Yvar = Yvar + added.to(Yvar).unsqueeze(-1)
    if Yvar is not None:
        # Ax writes a standard error of zero for outcomes without noise.
        inputs["train_Yvar"] = Yvar.clamp_min(min_fixed_noise.value(Yvar.dtype))
    sources = inputs["prior"]
    transform = _input_transform(search_space_digest, sources).to(dataset.X.device)
    model_class: Any = botorch_model_class
    if issubclass(model_class, GuardedTransferGP):
        model_class = options.get("transfer_model", ScaMLGP)
    prior = _pretrained(model_class, sources, pretraining, transform, options.get("members"))
    inputs["prior"] = prior
    if not isinstance(prior, TransferPrior) or prior.input_transform is None:
        inputs["input_transform"] = transform
    config = replace(model_config, input_transform_classes=None)
    parts = _construct_submodules(config, dataset, search_space_digest, botorch_model_class)
    return inputs | {name: part for name, part in parts.items() if part is not None}


def _input_transform(search_space: SearchSpaceDigest, sources: Any) -> InputTransform:
    """Returns a transform that scales the search space and all source inputs to the unit cube."""
    bounds = torch.tensor(search_space.bounds, dtype=torch.double).T
    if not isinstance(sources, TransferPrior):
        X = torch.cat([task.X.to(bounds) for task in as_datasets(sources)])
        # If the source tasks do not have the target's number of inputs, the model raises an error.
        if X.shape[-1] == bounds.shape[-1]:
            X = torch.cat([bounds, X])
            bounds = torch.stack([X.amin(dim=0), X.amax(dim=0)])
    return Normalize(bounds.shape[-1], bounds=bounds)


def _pretrained(
    model_class: Any,
    sources: Any,
    pretraining: Mapping[str, Any],
    transform: InputTransform,
    members: Mapping[str, Any] | None = None,
) -> Any:
    """Fits the prior of a model class to the source tasks, with the options of pre-training.

    Args:
        model_class: The class of the model.
        sources: The source tasks, or a prior that is already fitted.
        pretraining: The options of pre-training; for ``TransferGP``, a mapping from the names of
            its member models to options.
        transform: The input transform of the prior.
        members: The member models of a ``TransferGP`` by name; by default ``MEMBERS``.

    Returns:
        The prior; for ``TransferGP``, a dictionary of priors by member name. If ``sources`` is a
        prior, this prior is returned unchanged. Without options, the source tasks are returned
        unchanged, because the model then fits its prior itself.
    """
    if isinstance(sources, TransferPrior) or not pretraining:
        return sources
    if isinstance(model_class, type) and issubclass(model_class, TransferGP):
        members = members or MEMBERS
        if unknown := sorted(set(pretraining) - set(members)):
            text = f"pretraining= names {unknown[0]!r}, which is not a member of TransferGP"
            raise UserInputError(f"{text}: use the members {sorted(members)}.")
        return {
            name: _pretrained(member, sources, pretraining.get(name, {}), transform)
            for name, member in members.items()
        }
    prior_class = getattr(model_class, "prior_class", None)  # a member may be a function
    if prior_class is None:
        text = f"pretraining= has no effect, as {model_class.__name__} has no pre-trained prior"
        raise UserInputError(f"{text}: leave out pretraining=.")
    options = dict(pretraining)
    if prior_class is SourceHierarchy:
        options["propagate"] = model_class.propagate
    try:
        return prior_class.fit_once(sources, input_transform=transform, **options)
    except TypeError as error:
        raise UserInputError(f"pretraining= is wrong ({error}): correct the option.") from error
