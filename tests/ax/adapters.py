"""Adapters, and what they encode, without a client or a generation strategy around them."""

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
from botorch_transfer.ax.experiments import experiment_of
from botorch_transfer.ax.history import TransferHistory, encode_runs
from botorch_transfer.data.outcome import Outcome
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


def encoded(
    space: Space, history: TransferHistory, metric: str = "loss", **options: Any
) -> dict[str, Any]:
    """The same of any history; the metric has no direction, so that no outcome is too bad."""
    client = Client()
    client.configure_experiment(space)
    raw = now = experiment_of(client).search_space
    transforms, kinds = dict[str, Transform](), [Cast, *MBM_X_trans_base]
    for kind in kinds:
        transforms[kind.__name__] = kind(search_space=now.clone())
        now = transforms[kind.__name__].transform_search_space(now.clone())
    goal, names = Outcome(metric, 0.0), list(now.parameters)
    return encode_runs(history, goal, raw, transforms, names, **options)
