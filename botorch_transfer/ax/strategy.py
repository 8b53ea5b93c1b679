"""Generation strategy, early stopping strategy and transfer report for users of Ax's ``Client``.

:func:`register` registers this package with Ax. This module uses private names of Ax:
``_maybe_generation_strategy`` of ``Client``, and ``_lookup_and_validate_data`` and
``_default_objective_and_direction`` of early stopping strategies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, cast

import pandas as pd
from ax.adapter import registry
from ax.adapter.transforms.derelativize import Derelativize
from ax.api.client import Client
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core import Experiment
from ax.core.auxiliary_source import AuxiliarySource
from ax.core.experiment_status import ExperimentStatus
from ax.early_stopping.strategies import BaseEarlyStoppingStrategy
from ax.exceptions.core import UserInputError
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import register_acquisition, register_model
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY, CORE_ENCODER_REGISTRY
from ax.storage.transform_registry import register_transform

from botorch_transfer import models, report
from botorch_transfer.average.transfer import TransferGP
from botorch_transfer.ax.acquisition import TransferAcquisition
from botorch_transfer.ax.adapter import StandardizeByHistory, TransferAdapter
from botorch_transfer.ax.history import TensorHistory, TransferHistory, user_errors
from botorch_transfer.ax_experiments import curves_of
from botorch_transfer.curves import CurvePrior
from botorch_transfer.data.columns import renamed
from botorch_transfer.model import TransferModel
from botorch_transfer.search_space.space import check_arguments

logger = logging.getLogger(__name__)

#: Type of old runs: a table, tensors by metric and task, or a list of experiments or studies.
History = pd.DataFrame | Mapping[str, TensorHistory] | Sequence[Any]

#: Default options of ``optimize_acqf``. Suggestions are as good as with Ax's defaults, which are
#: larger.
OPTIMIZER_OPTIONS = {"num_restarts": 8, "raw_samples": 256}


class TransferGenerators(registry.GeneratorRegistryBase):
    """Entry of this package in Ax's registry of generators.

    Use it as ``generator_enum=`` of Ax's ``GeneratorSpec`` in your own generation strategy.
    """

    TRANSFER = "botorch_transfer"


def register() -> None:
    """Registers this package's generator, models, acquisition, transform and storage with Ax.

    The import of ``botorch_transfer.ax`` calls this function.
    """
    key = TransferGenerators.TRANSFER.value
    registry.GENERATOR_KEY_TO_GENERATOR_SETUP[key] = registry.GeneratorSetup(
        adapter_class=TransferAdapter,
        generator_class=BoTorchGenerator,
        transforms=[*registry.MBM_X_trans_base, Derelativize, StandardizeByHistory],
        default_generator_kwargs={"acquisition_class": TransferAcquisition},
    )
    for name in models.__all__:
        register_model(getattr(models, name))
    register_acquisition(TransferAcquisition)
    register_transform(StandardizeByHistory)
    CORE_ENCODER_REGISTRY[TransferEarlyStoppingStrategy] = TransferEarlyStoppingStrategy.to_dict
    for stored in (TransferHistory, TransferEarlyStoppingStrategy, TransferGenerators):
        CORE_DECODER_REGISTRY[stored.__name__] = stored


def transfer_generation_strategy(
    model: type[TransferModel] = TransferGP,
    history: History | None = None,
    *,
    task: str = "task",
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    robust: bool = True,
    model_options: Mapping[str, Any] | None = None,
    pretraining: Mapping[str, Any] | None = None,
    generator_options: Mapping[str, Any] | None = None,
    optimizer_options: Mapping[str, Any] | None = None,
) -> GenerationStrategy:
    """Builds a generation strategy whose models learn from old runs.

    Use the strategy for all trials, including the first trial. Pass it to
    ``Client.set_generation_strategy`` after you configure the experiment and the optimization. A
    metric with old outcomes has a transfer model. Any other metric has Ax's default model. Before
    the first outcome, trials maximize the upper confidence bound of the transferred prior. After
    the first outcome, trials maximize the noisy expected improvement if there is one objective
    without constraints. (For a ``TransferGP``, this improvement is averaged over the member
    models.) With several objectives or with constraints, Ax chooses the acquisition function.

    Old outcomes have the direction of the metric: if a metric is minimized, do not negate its old
    values.

    Ax stores the strategy and its history with the experiment, in JSON files and databases. Import
    ``botorch_transfer.ax`` before you load the experiment. Under the same PyTorch seed, a loaded
    experiment continues like the original experiment, except that Ax rounds stored outcomes to ten
    decimals. Ax does not store the ``random_seed`` of a ``Client``: call
    ``torch.manual_seed(random_seed)`` before each ``get_next_trials`` of the loaded client.

    Args:
        model: The class of the transfer models; by default :class:`TransferGP`.
        history: Old runs in one of four forms. Values must be raw, without Ax's transforms. (1) A
            list of Ax clients, experiments or ``AuxiliarySource`` objects. An ``AuxiliarySource``
            also renames parameters and metrics. (2) Optuna studies, in any form that
            :class:`~botorch_transfer.optuna.TransferSampler` takes. (3) A table with one row per
            run, and columns for the parameters, the metrics, the task, and optionally standard
            errors (``"<metric>_sem"``). (4) Tensors: a mapping from metrics to mappings from tasks
            to ``(X, Y)`` or ``(X, Y, Yvar)``. Columns of ``X`` have the order of the search space.
            Tensors must be finite. In the other forms, runs without a finite value are left out.
        task: The column of the task names in a table.
        missing: Values of parameters that old runs lack, by parameter name; ``None`` for an unknown
            value. For a parameter that is not in ``missing``, the value in the experiment's status
            quo is assumed, or else Ax's backfill value.
        rename: Mapping from old names to new names. The names are columns of a table, parameters
            and metrics of experiments, or parameters of Optuna studies.
        robust: Whether outcomes far worse than the median are clipped at a limit, in old runs and
            in the experiment's runs, as in :func:`botorch_transfer.suggest`.
        model_options: Further arguments of the model class.
        pretraining: Options of pre-training, such as ``{"num_restarts": 0}``. For ``TransferGP``, a
            mapping from member models to options, such as ``{"scaml": {"num_restarts": 0}}``.
        generator_options: Further arguments of Ax's generator and adapter.
        optimizer_options: Options of BoTorch's ``optimize_acqf``; by default 8 restarts from the
            best of 256 raw samples. Increase both numbers for wide or high-dimensional search
            spaces; the optimization then takes longer.

    Returns:
        The strategy; without old runs, Ax's default strategy.

    Raises:
        UserInputError: If the history cannot be read, or an option has no effect.
        TypeError: If ``model`` is not a class of transfer models, or the history has none of the
            four forms.

    Example:
        >>> from ax.api.client import Client
        >>> from ax.api.configs import RangeParameterConfig
        >>> runs = pd.DataFrame({"task": ["monday"] * 3, "C": [1.0, 10.0, 100.0]})
        >>> runs["loss"] = [0.5, 0.2, 0.4]
        >>> client = Client()
        >>> C = RangeParameterConfig("C", (0.1, 1000.0), parameter_type="float", scaling="log")
        >>> client.configure_experiment([C])
        >>> client.configure_optimization("-loss")
        >>> client.set_generation_strategy(transfer_generation_strategy(history=runs))
        >>> list(client.get_next_trials(1)[0])
        ['C']
    """
    if not (isinstance(model, type) and issubclass(model, TransferModel)):
        name = getattr(model, "__name__", type(model).__name__)
        raise TypeError(f"model is {name}: give one of the classes of botorch_transfer.models.")
    check_arguments({"task": task, "missing": missing, "rename": rename, "robust": robust})
    given = missing, rename, model_options, pretraining, generator_options, optimizer_options
    if history is None and (task != "task" or any(given)):
        raise UserInputError("Options have no effect without history=: leave out the options.")
    read = None if history is None else _read(history, task, missing, rename)
    if not read:
        if history is not None:
            logger.warning("The history has no runs: Ax's default strategy is used.")
        return choose_generation_strategy(struct=GenerationStrategyDispatchStruct())
    options = {**(model_options or {}), "pretraining": dict(pretraining or {})}
    name = model.__name__
    config = ModelConfig(botorch_model_class=model, model_options=options, name=name)
    optimizer = OPTIMIZER_OPTIONS | dict(optimizer_options or {})
    spec = GeneratorSpec(
        generator_enum=TransferGenerators.TRANSFER,
        generator_kwargs={
            "surrogate_spec": SurrogateSpec(model_configs=[config], allow_batched_models=False),
            "history": replace(read, robust=robust),
            **(generator_options or {}),
        },
        generator_gen_kwargs={"model_gen_options": {"optimizer_kwargs": optimizer}},
    )
    node = GenerationNode(
        name=name,
        generator_specs=[spec],
        should_deduplicate=True,
        suggested_experiment_status=ExperimentStatus.OPTIMIZATION,
    )
    return GenerationStrategy(name=f"Transfer: {name}", nodes=[node])


def _read(
    history: Any, task: str, missing: Mapping[str, Any] | None, rename: Mapping[str, str] | None
) -> TransferHistory:
    if isinstance(history, pd.DataFrame):
        with user_errors():
            history = renamed(history, rename or {})
        return TransferHistory.from_frame(history, task, missing)
    if task != "task":
        raise UserInputError("task= only applies to a table of old runs: leave out task=.")
    if isinstance(history, Mapping):
        if rename:
            raise UserInputError("The columns of tensors have no names: leave out rename=.")
        return TransferHistory.from_tensors(history, missing)
    parts = history if isinstance(history, list | tuple) else [history]
    if all(isinstance(part, Client | Experiment | AuxiliarySource) for part in parts):
        return TransferHistory.from_experiments(parts, missing, rename)
    is_pair = isinstance(history, tuple) and isinstance(history[0], str | PathLike)
    if is_pair or any("optuna" in type(part).__module__ for part in (history, *parts)):
        # The first objective of the studies corresponds to the experiment's first objective.
        from botorch_transfer import old_studies as studies

        read = studies.read_studies(history, rename)
        if not isinstance(read, studies.OptunaHistory):  # no trial has finished
            return TransferHistory.from_frame(read, studies.TASK)
        table = TransferHistory.from_frame(read.runs, studies.TASK, missing)
        return replace(table, objectives=studies.outcome_signs(read.directions))
    raise TypeError(
        f"The history is a {type(history).__name__}: give a table, a dictionary {{metric: {{task: "
        "(X, Y)}}, or a list of Ax clients, Ax experiments or Optuna studies."
    )


class TransferEarlyStoppingStrategy(BaseEarlyStoppingStrategy):
    """Early stopping strategy for Ax that learns from old learning curves.

    Use it to stop a trial if its final value is probably worse than the incumbent. See
    :meth:`~botorch_transfer.curves.CurvePrior.is_hopeless` for the rule. The objective needs an
    outcome at each step: pass ``progression=`` to ``Client.attach_data``. Ax stores the
    whole prior with the experiment.

    Args:
        prior: The prior, fitted to old learning curves of the objective. When Ax loads a stored
            strategy, ``prior`` is a dictionary: the entry ``"prior"`` of :meth:`to_dict`.
        probability: The threshold for the probability that a trial's final value is worse than the
            incumbent's final value. A trial above this threshold is stopped.
        **options: Options of Ax's ``BaseEarlyStoppingStrategy``.

    Example:
        >>> from pandas import DataFrame
        >>> rows = [("monday", end + 1 / k, k) for end in (0.1, 0.5, 0.9) for k in range(1, 11)]
        >>> old = DataFrame(rows, columns=["task", "loss", "epoch"])
        >>> prior = CurvePrior.fit(old, outcome="loss", step="epoch", goal="min")
        >>> strategy = TransferEarlyStoppingStrategy(prior)
    """

    def __init__(
        self, prior: CurvePrior | Mapping[str, Any], probability: float = 0.95, **options: Any
    ) -> None:
        super().__init__(**options)
        self.prior = prior if isinstance(prior, CurvePrior) else CurvePrior(**prior)
        self.probability, self.options = probability, options

    def to_dict(self) -> dict[str, Any]:
        """Returns the strategy as a dictionary, from which Ax's JSON storage can rebuild it."""
        given = {"prior": self.prior._arguments(), "probability": self.probability, **self.options}
        return {"__type": type(self).__name__, **given}

    def _is_harmful(self, trial_indices: set[int], experiment: Experiment) -> bool:
        return False

    def _should_stop_trials_early(
        self, trial_indices: set[int], experiment: Experiment, current_node: Any = None
    ) -> dict[int, str | None]:
        metric, minimize = self._default_objective_and_direction(experiment=experiment)
        data = self._lookup_and_validate_data(experiment, [metric])
        if data is None or not self.is_eligible_any(trial_indices, experiment, data.full_df):
            return {}
        curves = curves_of(experiment, metric, sign := -1.0 if minimize else 1.0)
        self.prior.compare_goal(sign)
        return {
            index: f"This trial ends worse than the best with probability > {self.probability:g}."
            for index in trial_indices & curves.keys()
            if self.is_eligible(index, experiment, data.full_df)[0]
            and self.prior.is_hopeless(curves[index], [*curves.values()], self.probability)
        }


def transfer_report(client: Client, metric: str | None = None) -> pd.DataFrame:
    """Tabulates how much a metric's model uses each old task, and whether each task is helpful.

    The report describes the model that chose the last trials. This model does not contain outcomes
    that were added later.

    Args:
        client: A client with a :func:`transfer_generation_strategy` that has chosen a trial.
        metric: The metric. Leave it out if only one metric has old outcomes.

    Returns:
        The table; see ``transfer_report`` of :class:`ScaMLGP`. An old task is helpful if its
        outcomes are large where the new outcomes are large, and small where the new outcomes are
        small. This rule does not depend on whether the metric is minimized or maximized.

    Raises:
        UserInputError: If no transfer model has chosen a trial yet, or if ``metric`` has no
            transfer model. Also if ``metric`` is ``None`` and several metrics have transfer models.
        ValueError: If the model does not have a separate posterior for each old task.

    Example:
        >>> from ax.api.configs import RangeParameterConfig
        >>> from botorch_transfer.ax import transfer_generation_strategy
        >>> runs = pd.DataFrame({"task": ["monday"] * 3, "C": [1.0, 10.0, 100.0]})
        >>> runs["loss"] = [0.5, 0.2, 0.4]
        >>> client = Client()
        >>> C = RangeParameterConfig("C", (0.1, 1000.0), parameter_type="float", scaling="log")
        >>> client.configure_experiment([C])
        >>> client.configure_optimization("-loss")
        >>> client.set_generation_strategy(transfer_generation_strategy(ScaMLGP, history=runs))
        >>> _ = client.complete_trial(client.attach_trial({"C": 9.0}), {"loss": 0.3})
        >>> _ = client.get_next_trials(1)
        >>> transfer_report(client).loc["all sources", "verdict"]
        'used, not yet tested'
    """
    adapter = getattr(client._maybe_generation_strategy, "adapter", None)
    if not isinstance(adapter, TransferAdapter):
        text = "No transfer model has chosen a trial since the client was created or loaded"
        raise UserInputError(f"{text}: call get_next_trials() before transfer_report().")
    surrogate = cast(BoTorchGenerator, adapter.generator).surrogate
    fitted = getattr(surrogate.model, "models", [surrogate.model])
    named = zip(surrogate.outcomes, fitted, strict=True)
    found = {name: model for name, model in named if isinstance(model, TransferModel)}
    if metric is None and len(found) == 1:
        (metric,) = found
    if metric not in found:
        raise UserInputError(
            f"metric is {metric!r}, but transfer models exist for {sorted(found) or 'no metric'}: "
            "give a metric with a transfer model. Other metrics have no report."
        )
    return report.transfer_report(found[metric])
