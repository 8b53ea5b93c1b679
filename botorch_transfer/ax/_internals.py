"""Everything of Ax that is not its public interface, in one file.

Ax has no public way to give an adapter further data, to make a generator work without any, or to
say how a model class is constructed. What this package overrides or registers for that is here and
nowhere else; its tests fail should Ax change it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import torch
from ax.adapter.base import DataLoaderConfig
from ax.adapter.registry import (
    GENERATOR_KEY_TO_GENERATOR_SETUP,
    GeneratorRegistryBase,
    GeneratorSetup,
    MBM_X_trans_base,
)
from ax.adapter.torch import TorchAdapter
from ax.adapter.transfer_learning.adapter import TransferLearningAdapter
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.derelativize import Derelativize
from ax.adapter.transforms.metadata_to_task import MetadataToTask
from ax.api.client import Client
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationFeatures
from ax.core.optimization_config import OptimizationConfig
from ax.core.search_space import SearchSpace, SearchSpaceDigest
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.surrogate import (
    Surrogate,
    _construct_submodules,
    submodel_input_constructor,
)
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import register_acquisition, register_model
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY, CORE_ENCODER_REGISTRY
from ax.storage.transform_registry import register_transform
from ax.utils.common.constants import Keys
from botorch.acquisition.acquisition import OneShotAcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multioutput_acquisition import MultiOutputAcquisitionFunction
from botorch.models.gp_regression import SingleTaskGP
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_transfer import models
from botorch_transfer.ax.acquisition import PriorUpperConfidenceBound
from botorch_transfer.ax.auxiliary import AuxiliaryHistory, auxiliary_outcomes
from botorch_transfer.ax.avoidance import AvoidingAcquisition, failure_radii
from botorch_transfer.ax.dataset import TransferDataset, Transferred
from botorch_transfer.ax.encoding import encode_runs, refuse_other_inputs
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.ax.improvement import noisy_improvement
from botorch_transfer.ax.model_inputs import refuse_parameters, transfer_model_inputs
from botorch_transfer.ax.optimization import (
    awaited_arms,
    directions,
    failed_arms,
    refuse_other_metrics,
    restricted_to,
    without_abandoned,
)
from botorch_transfer.ax.prior_files import load_prior_file
from botorch_transfer.ax.units import StandardizeByHistory, moments_of, prior_moments
from botorch_transfer.models.target import TargetGP

Moments = dict[str, tuple[float, float] | None]


class TransferAcquisition(Acquisition):
    """Ax's acquisition, with three differences.

    As long as there is no outcome to compare, it is the transferred prior's. Then, for one
    candidate, one objective, and nothing pending or constrained, noisy expected improvement is
    analytic. And points that failed, or are pending, are kept away from.

    Args of ``options``: ``"failed"`` and ``"pending"``, lists of such inputs.
    """

    def _instantiate_acquisition(self) -> None:
        acquisition: Any = None
        if self.X_observed is None:
            acquisition = PriorUpperConfidenceBound(
                self._model,
                self._objective_weights,
                self._outcome_constraints,
                self.X_pending,
                X_reference=self._spread_out(self.search_space_digest, None),
            )
        elif self._is_plain_improvement():
            acquisition = noisy_improvement(self._model, self._objective_weights, self.X_observed)
        if acquisition is None:
            super()._instantiate_acquisition()
            return
        self.acqf = acquisition
        self.models_used = [self.surrogate.model_name_by_metric]
        self.acq_function_sequence = None

    def _is_plain_improvement(self) -> bool:
        return (
            self.botorch_acqf_classes_with_options == [(qLogNoisyExpectedImprovement, {})]
            and self.n == 1
            and self.X_pending is None
            and self._outcome_constraints is None
            and self._learned_objective_preference_model is None
            and len(self._objective_weights) == 1
        )

    def optimize(  # type: ignore[override]
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        *,
        inequality_constraints: Any = None,
        fixed_features: dict[int, float] | None = None,
        optimizer_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Generates candidates, away from points that failed or are pending; see Ax's."""
        usual, pending = self.acqf, self.X_pending
        options = dict(optimizer_options or {})
        if inequality_constraints and not _is_discrete(search_space_digest):
            # Random walks in a polytope of few dimensions forget soon where they began.
            options["options"] = {"n_burnin": 1000, **options.get("options", {})}
        avoid = failed, waiting = self._inputs("failed"), self._inputs("pending")
        sampled = isinstance(usual, MultiOutputAcquisitionFunction | OneShotAcquisitionFunction)
        if not sampled and (n > 1 or any(len(X) > 0 for X in avoid)):
            # Where constraints hold, all may be worse than what is typical elsewhere.
            constrained = inequality_constraints or kwargs.get("equality_constraints")
            share = 0.0 if constrained else 0.9
            self.acqf = self._avoiding(search_space_digest, failed, waiting, fixed_features, share)
            # Wholly discrete spaces leave these out altogether.
            self.X_pending = torch.cat([*avoid, *([] if pending is None else [pending])])
        try:
            return super().optimize(
                n,
                search_space_digest,
                inequality_constraints=inequality_constraints,
                fixed_features=fixed_features,
                optimizer_options=options,
                **kwargs,
            )
        finally:
            self.acqf, self.X_pending = usual, pending

    def _avoiding(
        self,
        space: SearchSpaceDigest,
        failed: Tensor,
        pending: Tensor,
        fixed_features: dict[int, float] | None,
        share: float,
    ) -> AvoidingAcquisition:
        bounds = self._tensor(space.bounds).T
        # Without outcomes, one neighbourhood is tried once; with some, one may come close.
        dim = max(len(space.bounds) - len(fixed_features or {}), 1)
        shares = (0.05, 0.05) if self.X_observed is None else (0.01, 0.001)
        failed_radius, pending_radius = (math.sqrt(dim) * share for share in shares)
        radii = failure_radii(failed, bounds, failed_radius)
        radii = torch.cat([radii, radii.new_full(pending.shape[:1], pending_radius)])
        if _is_discrete(space):  # only the points themselves
            step = 0.9 * min(_smallest_step(values) for values in space.discrete_choices.values())
            radii, pending_radius = radii.clamp(max=step), min(pending_radius, step)
        with torch.no_grad():
            floor = self.acqf(self._spread_out(space, fixed_features).unsqueeze(-2)).quantile(share)
        return AvoidingAcquisition(
            self.acqf,
            bounds,
            torch.cat([failed, pending]),
            radii,
            pending_radius,
            space.categorical_features,
            floor,
        )

    def _inputs(self, kind: str) -> Tensor:
        inputs = self._tensor(self.options.get(kind, []))
        return inputs.view(-1, len(self.search_space_digest.bounds))

    def _spread_out(
        self, space: SearchSpaceDigest, fixed_features: dict[int, float] | None
    ) -> Tensor:
        """Inputs all over the search space."""
        bounds = self._tensor(space.bounds).T
        X = draw_sobol_samples(bounds, n=64, q=1, seed=0).squeeze(-2)
        for index, values in space.discrete_choices.items():
            choices = self._tensor(values)
            X[:, index] = choices[(X[:, index, None] - choices).abs().argmin(dim=-1)]
        for index, value in {**space.target_values, **(fixed_features or {})}.items():
            X[:, index] = value
        return X

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)


def _is_discrete(space: SearchSpaceDigest) -> bool:
    discrete = {*space.ordinal_features, *space.categorical_features}
    return len(discrete) == len(space.bounds)


def _smallest_step(values: Sequence[float]) -> float:
    """Between neighbours, in units of the whole width."""
    ordered = sorted(values)
    steps = [b - a for a, b in pairwise(ordered)]
    return min(steps) / (ordered[-1] - ordered[0]) if steps else 1.0


class _TransferMixin:
    """What both adapters share: metrics with and without history, and the first trials."""

    _experiment: Experiment
    _optimization_config: OptimizationConfig | None
    generator: Any
    outcomes: list[str]

    def history_moments(self) -> Moments:
        """Mean and deviation of old outcomes, by metric; ``None`` for the target's own."""
        raise NotImplementedError

    def _metrics(self) -> list[str]:
        return sorted(metric.signature for metric in self._experiment.metrics.values())

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
        if config is not None and data.observation_data.empty:
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
        """Says which inputs failed or are pending, in the model's space.

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
        points = [known | feature.parameters for feature in features]
        names: list[str] = self.parameters  # type: ignore[attr-defined]
        rows = dict.fromkeys(tuple(float(point[name]) for name in names) for point in points)
        return [list(row) for row in rows]


class TransferAdapter(_TransferMixin, TorchAdapter):
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


class AuxiliaryTransferAdapter(_TransferMixin, TransferLearningAdapter):
    """Ax's ``TransferLearningAdapter`` for the models of this package, from the first trial on.

    Args:
        history: The old experiments, or their names.
        pretraining: Options of pre-training.

    All further arguments are Ax's.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        generator: BoTorchGenerator,
        history: AuxiliaryHistory | None = None,
        pretraining: dict[str, Any] | None = None,
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
        self.pretraining = pretraining or {}
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

    def history_moments(self) -> Moments:
        """Mean and deviation of old outcomes, by metric."""
        moments: Moments = {}
        for name in self._metrics():
            outcomes = auxiliary_outcomes(self.auxiliary_sources, name)
            if outcomes is not None:
                moments[name] = moments_of(outcomes)
                for source in self.auxiliary_sources:  # which may call the metric otherwise
                    for other in source.transfer_metric_config.get(name, ()):
                        moments.setdefault(other, moments[name])
        return moments

    def _fit(self, search_space: SearchSpace, experiment_data: Any, **kwargs: Any) -> None:
        refuse_parameters(self._source_only_params)
        self._model_metrics_without_history(
            ModelConfig(botorch_model_class=SingleTaskGP, name="without history")
        )
        if experiment_data.observation_data.empty:
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


class TransferGenerators(GeneratorRegistryBase):
    """The entries of this package in Ax's registry of generators."""

    TRANSFER = "botorch_transfer"
    AUXILIARY = "botorch_transfer_auxiliary"


@submodel_input_constructor.register(TargetGP)
def _transfer_model_inputs(
    botorch_model_class: type[TargetGP],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Constructs the arguments of a transfer model.

    Ax's own constructor drops the task column, which the inputs at prediction have, and passes
    ``outcome_transform=None``, which says that outcomes are in the prior's units already.
    """
    inputs = transfer_model_inputs(
        botorch_model_class, dataset, search_space_digest, model_config.model_options
    )
    parts = _construct_submodules(
        replace(model_config, input_transform_classes=None),
        dataset,
        search_space_digest,
        botorch_model_class,
    )
    return inputs | {name: part for name, part in parts.items() if part is not None}


def register() -> None:
    """Tells Ax of the package: its generators, models, transform and what storage needs."""
    setups: dict[str, tuple[type[TorchAdapter], list[type[Transform]]]] = {
        TransferGenerators.TRANSFER.value: (TransferAdapter, []),
        TransferGenerators.AUXILIARY.value: (AuxiliaryTransferAdapter, [MetadataToTask]),
    }
    for key, (adapter, further) in setups.items():
        GENERATOR_KEY_TO_GENERATOR_SETUP[key] = GeneratorSetup(
            adapter_class=adapter,
            generator_class=BoTorchGenerator,
            transforms=[*MBM_X_trans_base, *further, Derelativize, StandardizeByHistory],
            default_generator_kwargs={"acquisition_class": TransferAcquisition},
        )
    for name in models.__all__:
        register_model(getattr(models, name))
    register_acquisition(TransferAcquisition)
    register_transform(StandardizeByHistory)
    for stored in (TransferHistory, AuxiliaryHistory):
        CORE_ENCODER_REGISTRY[stored] = stored.to_json
        CORE_DECODER_REGISTRY[stored.__name__] = stored
    CORE_DECODER_REGISTRY[TransferGenerators.__name__] = TransferGenerators


def experiment_of(target: Client | Experiment) -> Experiment:
    """The experiment that a client has, or the experiment itself."""
    return target._experiment if isinstance(target, Client) else target


def search_space_of(
    space: Client | Experiment | SearchSpace | Sequence[Any],
) -> SearchSpace:
    """The search space of whatever says it."""
    if isinstance(space, SearchSpace):
        return space
    if not isinstance(space, Client | Experiment):
        configured = Client()
        configured.configure_experiment(parameters=space)
        space = configured
    return experiment_of(space).search_space


def save_again(client: Client) -> None:
    """Writes a client's experiment to its database, if it has one."""
    client._save_experiment_to_db_if_possible(experiment=client._experiment)
