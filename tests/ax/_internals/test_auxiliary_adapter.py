"""Ax's adapter with auxiliary experiments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ax.adapter.transfer_learning.adapter import TransferLearningAdapter
from ax.core.auxiliary_source import AuxiliarySource
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer.ax import TransferGenerators
from botorch_transfer.ax.adapter import AuxiliaryTransferAdapter
from botorch_transfer.ax.auxiliary import AuxiliaryHistory, auxiliary_names, auxiliary_outcomes
from botorch_transfer.ax.experiments import experiment_of
from tests.ax.adapters import adapter_of
from tests.ax.old_experiments import COST, GAMMA, SHRINK, C, old_experiment
from tests.ax.signatures import parameters


def with_history(client: Any, *old: Any, **options: Any) -> Any:
    history = AuxiliaryHistory.from_experiments(old)
    return adapter_of(client, TransferGenerators.AUXILIARY, history=history, **options)


def renamed(level: float = 0.0) -> AuxiliarySource:
    old = old_experiment([C, GAMMA], metric="error", name="renamed", level=level)
    return AuxiliarySource(old, transfer_metric_config={"loss": {"error"}})


def old_outcomes(*old: Any) -> np.ndarray:
    return np.concatenate([source.lookup_data().df["mean"] for source in old])


def test_ax_is_as_it_is_overridden():
    expected = ["self", "search_space", "experiment_data", "kwargs"]
    assert parameters(TransferLearningAdapter._fit) == expected
    taken = parameters(TransferLearningAdapter._gen)
    assert taken[:3] == ["self", "n", "search_space"]
    assert {"pending_observations", "fixed_features", "model_gen_options"} <= set(taken)
    taken = parameters(TransferLearningAdapter._get_task_datasets)
    assert taken == ["self", "datasets", "parameters"]
    taken = parameters(TransferLearningAdapter.get_transferable_datasets)
    assert taken == ["self", "parameters", "target_outcome"]


def test_it_takes_all_that_axs_takes():
    theirs = set(parameters(TransferLearningAdapter))
    assert set(parameters(AuxiliaryTransferAdapter)) == theirs | {"history"}
    assert parameters(AuxiliaryTransferAdapter.gen) == parameters(TransferLearningAdapter.gen)


def test_moments_are_those_of_all_old_experiments(make_client):
    old = [
        old_experiment([C, GAMMA], name=name, level=level) for name, level in (("a", 0), ("b", 9))
    ]
    client = make_client(constraints=["time <= 5"])
    adapter = with_history(client, *old)
    outcomes = old_outcomes(*old)
    expected = pytest.approx((outcomes.mean(), outcomes.std(ddof=1)))
    assert adapter.history_moments() == {"loss": expected}
    assert auxiliary_names(experiment_of(client)) == ["a", "b"]
    again = adapter_of(client, TransferGenerators.AUXILIARY)
    assert again.history_moments() == adapter.history_moments()


def test_a_renamed_metric_has_the_scale_of_the_others(make_client):
    """One old experiment calls it otherwise: all are standardized alike."""
    other, source = old_experiment([C, GAMMA], level=9.0), renamed(level=-5.0)
    adapter = with_history(make_client(), source, other)
    outcomes = old_outcomes(source.experiment, other)
    mean, std = outcomes.mean(), outcomes.std(ddof=1)
    assert adapter.history_moments() == {"loss": pytest.approx((mean, std))}
    found = adapter.get_transferable_datasets(adapter.parameters, "loss")
    for name, expected in (("renamed", outcomes[:9]), ("old", outcomes[9:])):
        (dataset,) = found[name]
        np.testing.assert_allclose(dataset.Y.squeeze(-1), (expected - mean) / std)
    assert adapter.history_moments() == {"loss": pytest.approx((mean, std))}


def test_names_may_be_swapped(make_client):
    """What an old experiment calls by the name of another metric of the new one."""
    source, other = renamed(), old_experiment([C, GAMMA], metric="error", level=7.0)
    adapter = with_history(make_client(constraints=["error <= 9"]), source, other)
    loss = auxiliary_outcomes(adapter.auxiliary_sources[:1], "loss")
    (dataset,) = adapter.get_transferable_datasets(adapter.parameters, "loss")["renamed"]
    np.testing.assert_allclose(dataset.Y.squeeze(-1), (loss - loss.mean()) / loss.std(ddof=1))


def test_before_any_outcome_only_what_has_history_is_modelled(make_client):
    """Ax fits an adapter again as outcomes arrive."""
    client = make_client(history=[old_experiment([C, GAMMA])], constraints=["time <= 5"])
    (trial,) = client.get_next_trials(1)
    adapter = client._generation_strategy.adapter
    assert adapter.outcomes == ["loss"]
    client.complete_trial(trial, {"loss": 1.0, "time": 2.0})
    client.get_next_trials(1)
    assert client._generation_strategy.adapter is adapter
    assert adapter.outcomes == ["loss", "time"]


def test_old_experiments_may_differ_in_their_metrics(make_client):
    costly = old_experiment([C, GAMMA], metric="cost", name="costly")
    client = make_client(constraints=["cost <= 2"])
    with pytest.warns(UserWarning, match="Skipping this source for"):
        adapter = with_history(client, old_experiment([C, GAMMA]), costly)
    models = dict(zip(adapter.outcomes, adapter.generator.surrogate.model.models, strict=True))
    tasks = {name: model.prior.task_names for name, model in models.items()}
    assert tasks == {"cost": ("costly_cost",), "loss": ("old_loss",)}


def test_what_only_old_experiments_have_stays_where_it_is(make_client, monkeypatch):
    baseline = {"C": 1.0, "gamma": 1.0, "cost": 10.0}
    adapter = with_history(make_client(), old_experiment([C, GAMMA, COST], baseline=baseline))
    given, gen = {}, BoTorchGenerator.gen
    monkeypatch.setattr(
        BoTorchGenerator, "gen", lambda self, **kw: given.update(kw) or gen(self, **kw)
    )
    shown = list(adapter.parameters)
    (arm,) = adapter.gen(1).arms
    assert set(arm.parameters) == {"C", "gamma"}
    assert adapter.parameters == shown
    position = given["search_space_digest"].feature_names.index("cost")
    assert given["torch_opt_config"].fixed_features[position] == pytest.approx(1.0)  # log10


def test_parameters_of_unknown_value_are_refused(make_client):
    with pytest.raises(UserInputError, match=r"\['shrink'\] are not in all"):
        with_history(make_client(), old_experiment([C, GAMMA, SHRINK]))


def test_names_alone_need_the_experiments_attached(make_client):
    with pytest.raises(UserInputError, match=r"\['old'\] are not attached"):
        adapter_of(make_client(), TransferGenerators.AUXILIARY, history=AuxiliaryHistory(["old"]))


@pytest.mark.parametrize("of_target", [None, 0.1])
@pytest.mark.parametrize("of_old", [None, 0.2])
def test_noise_that_only_some_know_is_inferred(make_client, of_target, of_old):
    client = make_client()
    trial = client.attach_trial({"C": 1.0, "gamma": 1.0})
    client.complete_trial(trial, {"loss": 0.3 if of_target is None else (0.3, of_target)})
    old = [
        old_experiment([C, GAMMA], name="silent"),
        old_experiment([C, GAMMA], name="told", sem=of_old),
    ]
    model = with_history(client, *old).generator.surrogate.model
    assert model.posterior(model.train_inputs[0]).mean.isfinite().all()


@pytest.fixture
def datasets(monkeypatch) -> dict[str, SupervisedDataset]:
    """The data of each task that the latest model is made of."""
    found, made = {}, AuxiliaryTransferAdapter._together

    def together(self, *args):
        dataset = made(self, *args)
        found.update(dataset.datasets)
        return dataset

    monkeypatch.setattr(AuxiliaryTransferAdapter, "_together", together)
    return found


@pytest.mark.parametrize("of_target", [0.0, 0.1])
def test_a_standard_error_of_zero_is_a_small_one(make_client, datasets, of_target):
    """Ax's word for outcomes without noise."""
    client = make_client()
    client.complete_trial(client.attach_trial({"C": 1.0, "gamma": 1.0}), {"loss": (0.3, of_target)})
    old = [old_experiment([C, GAMMA], sem=0.0), old_experiment([C, GAMMA], name="b", sem=0.2)]
    adapter = with_history(client, *old)
    _, std = adapter.history_moments()["loss"]
    for name, sem in {"loss": of_target, "old_loss": 0.0, "b_loss": 0.2}.items():
        expected = pytest.approx([max((sem / std) ** 2, 1e-6)])
        assert datasets[name].Yvar.unique().tolist() == expected
    assert len(adapter.gen(1).arms) == 1


@pytest.mark.parametrize(
    ("odd", "of_target"), [(np.inf, 0.3), (-np.inf, np.nan), (np.nan, np.inf), (-np.inf, 0.3)]
)
def test_infinite_outcomes_are_left_out(make_client, datasets, odd, of_target):
    client = make_client(constraints=["time <= 4"])
    trial = client.attach_trial({"C": 1.0, "gamma": 1.0})
    client.complete_trial(trial, {"loss": of_target, "time": 10 * of_target})
    adapter = with_history(client, old_experiment([C, GAMMA], odd=odd))
    assert len(datasets["old_loss"].Y) == 9
    assert len(datasets["loss"].Y) == int(np.isfinite(of_target))
    assert len(adapter.gen(1).arms) == 1


def test_noise_that_an_old_experiment_knows_of_some_runs_is_inferred(make_client, datasets):
    with_history(make_client(), old_experiment([C, GAMMA], odd=(0.3, 0.1)))
    assert datasets["old_loss"].Yvar is None
