"""Trials of Ax that stop early: whether to stop them, and what they are worth."""

import inspect
import json
from typing import Any, cast

import numpy as np
import pytest
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.trial import Trial
from ax.storage.json_store.decoder import object_from_json
from ax.storage.json_store.encoder import object_to_json
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY, CORE_ENCODER_REGISTRY
from pandas import DataFrame, concat

from botorch_transfer.ax import TransferEarlyStoppingStrategy, transfer_generation_strategy
from botorch_transfer.ax_experiments import curves_of, experiment_of
from botorch_transfer.curves import CurvePrior, predicted_ends
from botorch_transfer.gp.likelihood import AddedNoiseLikelihood
from botorch_transfer.models import ScaMLGP
from tests.test_curves import task

LENGTH = 20
OLD = concat([task(f"task {i}", i, length=LENGTH) for i in range(3)])
PRIOR = CurvePrior.fit(OLD, "loss", "epoch", "min", run="run")
RUNS = DataFrame({"task": "monday", "x": np.linspace(0, 1, 8), "loss": np.linspace(5, 6, 8)})


def client(strategy: bool = False) -> Client:
    made = Client()
    made.configure_experiment([RangeParameterConfig("x", (0.0, 1.0), parameter_type="float")])
    made.configure_optimization("-loss")
    made.set_early_stopping_strategy(TransferEarlyStoppingStrategy(PRIOR))
    if strategy:
        made.set_generation_strategy(transfer_generation_strategy(ScaMLGP, history=RUNS))
    return made


def train(made: Client, x: float, steps: int = LENGTH) -> int:
    index = made.attach_trial({"x": x})
    # All at once: the client's ``attach_data`` goes through all data every time.
    curve: Any = [(k, {"loss": 5 + x + 1 / k}) for k in range(1, steps + 1)]
    cast(Trial, experiment_of(made).trials[index]).update_trial_data(curve)
    if steps == LENGTH:
        made.complete_trial(index)
    return index


def test_hopeless_trials_stop_and_promising_ones_go_on() -> None:
    made = client()
    only = train(made, 0.9, 5)
    assert not made.should_stop_trial_early(only)
    train(made, 0.1)
    assert made.should_stop_trial_early(train(made, 1.0, 10))
    assert not made.should_stop_trial_early(train(made, 0.0, 10))


def test_the_strategy_is_stored_as_json() -> None:
    strategy = TransferEarlyStoppingStrategy(PRIOR, 0.9, min_progression=2, check_safe=True)
    stored = json.loads(json.dumps(object_to_json(strategy, CORE_ENCODER_REGISTRY)))
    loaded = object_from_json(stored, CORE_DECODER_REGISTRY)
    assert (loaded.probability, loaded.min_progression, loaded.check_safe) == (0.9, 2, True)
    for name, part in PRIOR.named_buffers():
        np.testing.assert_allclose(dict(loaded.prior.named_buffers())[name], part)
    made = client()
    made.set_early_stopping_strategy(loaded)
    train(made, 0.1)
    assert made.should_stop_trial_early(train(made, 1.0, 10))


def test_trials_that_were_stopped_enter_by_their_predicted_ends(monkeypatch: pytest.MonkeyPatch):
    made, built = client(strategy=True), []
    before = ScaMLGP.__init__

    def spy(self: ScaMLGP, *args: Any, **kwargs: Any) -> None:
        built.append((args, kwargs))
        before(self, *args, **kwargs)

    for x in (0.1, 0.5, 0.7):
        train(made, x)
    made.mark_trial_early_stopped(train(made, 0.9, 5))
    spy.__signature__ = inspect.signature(before)  # type: ignore[attr-defined]
    monkeypatch.setattr(ScaMLGP, "__init__", spy)
    made.get_next_trials(1)
    kwargs = built[-1][1]
    likelihood = kwargs["likelihood"]
    assert isinstance(likelihood, AddedNoiseLikelihood)
    assert (likelihood.added > 0).tolist() == [False, False, False, True]
    assert not likelihood.added[:3].any()
    strategy: Any = made._maybe_generation_strategy
    t = strategy.adapter.transforms["StandardizeByHistory"]
    end = kwargs["train_Y"][3].item() * t.Ystd["loss"] + t.Ymean["loss"]
    curves = list(curves_of(experiment_of(made), "loss", -1.0).values())
    _, variances = predicted_ends(CurvePrior.of_curves(curves), curves, -1.0)
    assert likelihood.added[3].item() * t.Ystd["loss"] ** 2 == pytest.approx(variances[3])
    assert abs(end) < 6.05  # not the 6.1 that were seen last; signs are Ax's


def test_trials_that_have_hardly_begun_go_on() -> None:
    made = client()
    strategy = TransferEarlyStoppingStrategy(PRIOR, min_progression=3)
    made.set_early_stopping_strategy(strategy)
    assert not made.should_stop_trial_early(train(made, 1.0, 1))
    assert strategy._is_harmful(set(), experiment_of(made)) is False


def test_data_without_steps_are_no_curves() -> None:
    made = client()
    made.complete_trial(made.attach_trial({"x": 0.5}), {"loss": 1.0})
    assert curves_of(experiment_of(made), "loss", 1.0) == {}
