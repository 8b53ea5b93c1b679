"""Small experiments whose old runs are known; skipped where Ax is not installed."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("ax")

from ax.api.client import Client
from ax.api.configs import (
    ChoiceParameterConfig,
    DerivedParameterConfig,
    RangeParameterConfig,
    StorageConfig,
)
from ax.core.data import Data

from botorch_transfer import ScaMLGP
from botorch_transfer.ax import transfer_generation_strategy
from botorch_transfer.ax_experiments import experiment_of
from botorch_transfer.memo import content_key
from tests.brief import brief_optimization
from tests.devices import DEVICE

logging.getLogger("ax").setLevel(logging.ERROR)

FEW = {"num_restarts": 2, "raw_samples": 32}
#: Optimizer options; Ax's optimizers of discrete spaces know no ``maxiter``.
FAST = {**FEW, "options": {"maxiter": 10}}

BRIEF = {"num_restarts": 1, "raw_samples": 16}
#: The same for tests that are about other things than how good a suggestion is.
BRIEFEST = {**BRIEF, "options": {"maxiter": 3}}

Space = list[RangeParameterConfig | ChoiceParameterConfig | DerivedParameterConfig]


def plain_space() -> Space:
    return [
        RangeParameterConfig("C", (1e-2, 1e3), parameter_type="float", scaling="log"),
        RangeParameterConfig("gamma", (1e-5, 10.0), parameter_type="float", scaling="log"),
    ]


def plain_loss(config: Any, shift: float) -> float:
    C, gamma = np.log10(config["C"]), np.log10(config["gamma"])
    # Ax's storage keeps ten decimals of outcomes.
    return round(float((C - 1 - shift) ** 2 + (gamma + 2 + shift) ** 2), 6)


def mixed_space() -> Space:
    return [
        RangeParameterConfig("rate", (1e-4, 1.0), parameter_type="float", scaling="log"),
        RangeParameterConfig("depth", (1, 5), parameter_type="int"),
        ChoiceParameterConfig("kind", ["a", "b", "c"], parameter_type="str", is_ordered=False),
    ]


def mixed_loss(config: Any, shift: float = 0.0) -> float:
    rate = np.log10(config["rate"]) + 2 + shift
    return float(rate**2 + 0.2 * (config["depth"] - 3) ** 2 + (config["kind"] != "b"))


def corner_space() -> Space:
    return [RangeParameterConfig(name, (0.0, 1.0), parameter_type="float") for name in "ab"]


def derived_space() -> Space:
    total = DerivedParameterConfig("total", expression_str="a + b", parameter_type="float")
    return [*corner_space(), total]


def dependent_space(kinds: str = "pq") -> Space:
    """Two parameters, each of which matters for one of the kinds only."""
    dependent = {"p": ["a"], "q": ["b"], "r": []}
    kind = ChoiceParameterConfig(
        "kind",
        list(kinds),
        parameter_type="str",
        is_ordered=len(kinds) == 2,
        dependent_parameters={name: dependent[name] for name in kinds},
    )
    return [kind, *corner_space()]


def bowl(a: Any, b: Any, shift: float) -> Any:
    return (a - 0.2 - shift) ** 2 + (b - 0.7 + shift) ** 2


def bowls() -> pd.DataFrame:
    """Old runs of three tasks whose optima lie about (0.2, 0.7)."""
    rng, frames = np.random.default_rng(0), []
    for task, shift in (("x", -0.15), ("y", 0.1), ("z", 0.2)):
        a, b = rng.random((10, 2)).T
        frames.append(pd.DataFrame({"task": task, "a": a, "b": b, "loss": bowl(a, b, shift)}))
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(autouse=True)
def _brief_optimization() -> Iterator[None]:
    """These tests are about other things than how well the last parameter is fitted."""
    with brief_optimization(max_iter=5):
        yield


@pytest.fixture(scope="session")
def runs() -> pd.DataFrame:
    """Old runs of three tasks in the plain space, with a second metric."""
    rng = np.random.default_rng(0)
    rows = []
    for task, shift in (("monday", -0.3), ("tuesday", 0.0), ("sunday", 0.4)):
        for _ in range(10):
            config = {"C": 10 ** rng.uniform(-2, 3), "gamma": 10 ** rng.uniform(-5, 1)}
            loss, cost = plain_loss(config, shift), np.log10(config["C"]) + 2
            rows.append({"task": task, **config, "loss": loss, "cost": cost})
    return pd.DataFrame(rows)


@pytest.fixture(scope="session")
def mixed_runs() -> pd.DataFrame:
    """Old runs of two tasks in the mixed space."""
    rng = np.random.default_rng(1)
    rows = []
    for task, shift in (("monday", -0.2), ("tuesday", 0.2)):
        for _ in range(12):
            config = {
                "rate": 10 ** rng.uniform(-4, 0),
                "depth": int(rng.integers(1, 6)),
                "kind": str(rng.choice(["a", "b", "c"])),
            }
            rows.append({"task": task, **config, "loss": mixed_loss(config, shift)})
    return pd.DataFrame(rows)


@pytest.fixture(scope="session")
def make_client() -> Callable[..., Client]:
    """Makes a client, with a transfer strategy if there is a history."""

    def make(
        space: Space | None = None,
        objective: str = "-loss",
        constraints: Sequence[str] | None = None,
        name: str = "new",
        storage_config: StorageConfig | None = None,
        seed: int | None = 0,
        parameter_constraints: Sequence[str] | None = None,
        **options: Any,
    ) -> Client:
        client = Client(storage_config=storage_config, random_seed=seed)
        client.configure_experiment(
            plain_space() if space is None else space,
            parameter_constraints=parameter_constraints,
            name=name,
        )
        client.configure_optimization(objective, outcome_constraints=constraints)
        if options:
            # One model is quicker than an average, and its choices are easier to foresee.
            kinds = {getattr(p, "parameter_type", None) for p in space or plain_space()}
            quick = BRIEFEST if kinds == {"float"} else BRIEF
            options = {"model": ScaMLGP, "optimizer_options": quick, **options}
            if DEVICE != "cpu":
                options.setdefault("generator_options", {"torch_device": torch.device(DEVICE)})
            client.set_generation_strategy(transfer_generation_strategy(**options))
        return client

    return make


def attach_completed(client: Client, runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Attaches trials with their outcomes.

    The client's ``complete_trial`` goes through the data of all trials every time.
    """
    experiment, rows = experiment_of(client), []
    for config, outcomes in runs:
        trial = experiment.trials[client.attach_trial(config)]
        data = trial._raw_evaluations_to_data({trial.arm.name: [(np.nan, outcomes)]})
        rows += data._data_rows
        trial.mark_completed()
    experiment.attach_data(Data(data_rows=rows))


@pytest.fixture(scope="session")
def old_clients(make_client: Callable[..., Client]) -> Callable[..., list[Client]]:
    """Turns a table of old runs into Ax clients, one an old task; equal ones are made once."""
    known: dict[str, list[Client]] = {}

    def make(
        frame: pd.DataFrame,
        space: Space,
        storage: StorageConfig | None = None,
        metrics: Sequence[str] = ("loss",),
    ) -> list[Client]:
        key = content_key(frame.to_dict("list"), repr((space, storage, metrics)))
        if key in known:
            return known[key]
        clients = known[key] = []
        further = [f"{metric} <= 100" for metric in metrics if metric != "loss"]
        for task, rows in frame.groupby("task", sort=False):
            new = make_client([*space], name=str(task), storage_config=storage, constraints=further)
            records = [
                ({config.name: row[config.name] for config in space}, {m: row[m] for m in metrics})
                for row in rows.to_dict("records")
            ]
            if storage is None:
                attach_completed(new, records)
            else:
                for config, outcomes in records:
                    new.complete_trial(new.attach_trial(config), outcomes)
            clients.append(new)
        return clients

    return make


@pytest.fixture(scope="session")
def complete() -> Callable[..., list[dict[str, Any]]]:
    """Suggests and evaluates trials in the plain space."""

    def step(client: Client, count: int = 1) -> list[dict[str, Any]]:
        trials = client.get_next_trials(count)
        for trial, config in trials.items():
            client.complete_trial(trial, {"loss": plain_loss(config, 0.1)})
        return [dict(config) for config in trials.values()]

    return step
