"""Adapters, and what they encode, without a client or a generation strategy around them."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from ax.adapter.registry import MBM_X_trans_base
from ax.adapter.torch import TorchAdapter
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.cast import Cast
from ax.api.client import Client
from ax.core.generator_run import GeneratorRun
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer import ScaMLGP
from botorch_transfer.ax import TransferGenerators
from botorch_transfer.ax.adapter import TransferAdapter
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.ax_experiments import experiment_of
from botorch_transfer.data.measurements import Outcome
from tests.ax.conftest import FAST, Space


def adapter_of(client: Client, **options: Any) -> Any:
    """Makes an adapter of a client's experiment, fitted to the data that it has."""
    config = ModelConfig(botorch_model_class=ScaMLGP, name="transfer")
    spec = SurrogateSpec(model_configs=[config], allow_batched_models=False)
    experiment = experiment_of(client)
    return TransferGenerators.TRANSFER(experiment=experiment, surrogate_spec=spec, **options)


def datasets_of(adapter: TorchAdapter) -> dict[str, SupervisedDataset]:
    """What the models were made of, by metric."""
    surrogate = adapter.generator.surrogate
    return dict(zip(adapter.outcomes, surrogate.training_data, strict=True))


def generated(adapter: TorchAdapter) -> GeneratorRun:
    """One suggestion by a brief search."""
    return adapter.gen(1, model_gen_options={"optimizer_kwargs": dict(FAST)})


def encoded_runs(
    space: Space, runs: pd.DataFrame, metric: str = "loss", **options: Any
) -> dict[str, Any]:
    """A table of old runs by task as an adapter of an experiment in that space encodes it."""
    return encoded(space, TransferHistory.from_frame(runs, **options), metric)


class _Encoder(TransferAdapter):
    """An adapter that only encodes old runs, with outcomes in their own units."""

    def __init__(self, client: Client, history: TransferHistory) -> None:
        self.history, self.device, self._experiment = history, None, experiment_of(client)
        self._model_space, self.transforms = self._experiment.search_space, {}

    def _scale(self, metric: str) -> tuple[float, float]:
        return 0.0, 1.0


def encoded(
    space: Space,
    history: TransferHistory,
    metric: str = "loss",
    baseline: dict[str, Any] | None = None,
    kinds: Sequence[type[Transform]] = (Cast, *MBM_X_trans_base),
) -> dict[str, Any]:
    """The same of any history; the metric has no direction, so that no outcome is too bad."""
    client = Client()
    client.configure_experiment(space)
    if baseline is not None:
        client.attach_baseline(baseline)
    encoder = _Encoder(client, history)
    now = encoder.model_space
    for kind in kinds:
        encoder.transforms[kind.__name__] = kind(search_space=now.clone())
        now = encoder.transforms[kind.__name__].transform_search_space(now.clone())
    return encoder._source_tasks(Outcome(metric, 0.0), list(now.parameters))
