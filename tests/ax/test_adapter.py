"""What the adapter makes of an experiment and its history."""

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ax.adapter.base import Adapter
from ax.adapter.torch import TorchAdapter
from ax.api.client import Client
from ax.core.arm import Arm
from ax.core.auxiliary_source import AuxiliarySource
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from botorch.models import SingleTaskGP

from botorch_transfer import ScaMLGP
from botorch_transfer.ax.adapter import TransferAdapter, TransferDataset
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.ax_experiments import experiment_of
from tests.ax.adapters import adapter_of, datasets_of, encoded_runs, generated
from tests.ax.conftest import bowls, corner_space, mixed_loss, mixed_space
from tests.ax.old_experiments import GAMMA, C, old_experiment
from tests.ax.signatures import parameters


def test_ax_is_as_it_is_overridden():
    taken = ["self", "generator_key", "generator_kwargs", "adapter_kwargs"]
    assert parameters(Adapter._set_kwargs_to_save) == taken
    client = Client()
    client.configure_experiment([])
    experiment = client._experiment
    adapter = TorchAdapter(experiment=experiment, generator=BoTorchGenerator(), fit_on_init=False)
    read = {"_experiment", "_optimization_config", "transforms", "generator"}
    assert read <= set(vars(adapter))
    assert "_surrogate" in vars(BoTorchGenerator())
    assert "metric_to_model_configs" in {field.name for field in fields(SurrogateSpec)}


def test_with_a_trial_the_history_is_not_stored_again(make_client, complete, runs):
    client = make_client(history=runs)
    table = '"old task": ["monday"'
    before = json.dumps(client._to_json_snapshot()).count(table)
    complete(client, 2)
    assert json.dumps(client._to_json_snapshot()).count(table) == before > 0


@pytest.mark.parametrize("form", ["table", "experiments"])
def test_metrics_without_history_get_a_plain_model(make_client, runs, form):
    """The table knows cost, the experiments do not."""
    client = make_client(constraints=["cost <= 2", "time <= 5"])
    for C_, gamma in ((1.0, 0.1), (10.0, 0.01)):
        trial = client.attach_trial({"C": C_, "gamma": gamma})
        client.complete_trial(trial, {"loss": C_, "cost": gamma, "time": C_ + gamma})
    if form == "table":
        adapter = adapter_of(client, history=TransferHistory.from_frame(runs))
    else:
        adapter = with_history(client, old_experiment([C, GAMMA]))
    models = dict(zip(adapter.outcomes, adapter.generator.surrogate.model.models, strict=True))
    without = ["time"] if form == "table" else ["cost", "time"]
    assert sorted(adapter.generator.surrogate_spec.metric_to_model_configs) == without
    expected = {name: SingleTaskGP if name in without else ScaMLGP for name in models}
    assert {name: type(model) for name, model in models.items()} == expected
    assert sorted(models) == ["cost", "loss", "time"]


def test_a_history_of_other_metrics_is_refused(make_client, runs):
    renamed = TransferHistory.from_frame(runs.rename(columns={"loss": "Loss"}).drop(columns="cost"))
    with pytest.raises(UserInputError, match="rename the metrics of the history to these names"):
        adapter_of(make_client(), history=renamed)


def avoided(client: Any) -> dict[str, list[list[float]]]:
    """What the last acquisition function was told to stay away from."""
    return client._generation_strategy.adapter.generator._acquisition.options


def encoded(configs: list[dict[str, Any]]) -> np.ndarray:
    """Rows in the model's space."""
    frame = pd.DataFrame(configs).assign(task="all", loss=0.0)
    return encoded_runs(mixed_space(), frame)["all"][0].numpy()


def test_what_failed_or_is_pending_is_avoided_in_the_models_space(make_client, mixed_runs):
    client = make_client(mixed_space(), history=mixed_runs)
    configs = [
        {"rate": 0.1, "depth": 1, "kind": "a"},
        {"rate": 0.01, "depth": 3, "kind": "c"},
        {"rate": 0.001, "depth": 5, "kind": "b"},
        {"rate": 0.02, "depth": 3, "kind": "b"},
    ]
    failed, abandoned, pending, done = (client.attach_trial(config) for config in configs)
    client.mark_trial_failed(failed)
    client.mark_trial_abandoned(abandoned)
    client.complete_trial(done, {"loss": mixed_loss(configs[-1])})
    ((_, config),) = client.get_next_trials(1, fixed_parameters={"depth": 2}).items()
    assert config["depth"] == 2
    np.testing.assert_allclose(avoided(client)["failed"], encoded(configs[:1]))
    np.testing.assert_allclose(avoided(client)["abandoned"], encoded(configs[1:2]))
    np.testing.assert_allclose(avoided(client)["succeeded"], encoded(configs[3:]))
    # Ax lists abandoned arms among the pending ones, so that they are not suggested again.
    np.testing.assert_allclose(avoided(client)["pending"], encoded([configs[2], configs[1]]))
    client.complete_trial(pending, {"loss": mixed_loss(configs[2])})
    client.get_next_trials(1)
    np.testing.assert_allclose(avoided(client)["pending"], encoded([dict(config), configs[1]]))


def test_what_rounding_moved_out_of_a_constraint_is_pending(make_client):
    """Of such arms Ax says nothing."""
    client = make_client(corner_space(), parameter_constraints=["a + b <= 1"], history=bowls())
    trial = experiment_of(client).new_trial()
    trial.add_arm(Arm({"a": 0.5, "b": 0.500001}))
    trial.mark_running(no_runner_required=True)
    client.get_next_trials(1)
    assert avoided(client)["pending"] == [[0.5, 0.500001]]


def test_of_a_batch_what_is_suggested_already_is_pending(make_client, runs):
    client = make_client(history=runs)
    first, second, third = client.get_next_trials(3).values()
    expected = np.log10([[c["C"], c["gamma"]] for c in (first, second)])
    np.testing.assert_allclose(sorted(avoided(client)["pending"]), sorted(expected.tolist()))
    assert third not in (first, second)


@pytest.fixture(scope="module")
def history(runs) -> TransferHistory:
    """Old runs as they are: these tests compare scales with the table's."""
    return replace(TransferHistory.from_frame(runs), robust=False)


def test_axs_torch_adapter_is_as_it_is_overridden():
    taken = ["self", "experiment_data", "outcomes", "parameters", "search_space_digest"]
    assert parameters(TorchAdapter._convert_experiment_data) == taken


def test_it_takes_all_that_axs_takes():
    assert set(parameters(TransferAdapter)) == set(parameters(TorchAdapter)) | {"history"}
    assert parameters(TransferAdapter.gen) == parameters(TorchAdapter.gen)


def test_moments_of_a_table_are_those_of_all_old_runs(make_client, runs, history):
    adapter = adapter_of(make_client(constraints=["cost <= 2", "time <= 5"]), history=history)
    expected = {n: (runs[n].mean(), runs[n].std()) for n in ("loss", "cost")}
    assert adapter.history_moments() == {n: pytest.approx(m) for n, m in expected.items()}


def test_data_before_there_are_any(make_client, runs, history):
    client = make_client(constraints=["cost <= 2", "time <= 5"])
    datasets = datasets_of(adapter_of(client, history=history))
    assert list(datasets) == ["cost", "loss"]
    for name, dataset in datasets.items():
        assert isinstance(dataset, TransferDataset)
        assert (dataset.X.shape, dataset.Y.shape) == ((0, 2), (0, 1))
        assert dataset.X.dtype == dataset.Y.dtype == torch.double
        assert dataset.Yvar is None
        assert (dataset.feature_names, dataset.outcome_names) == (["C", "gamma"], [name])
        X, Y = dataset.sources["tuesday"]
        rows = runs[runs["task"] == "tuesday"]
        np.testing.assert_allclose(X, np.log10(rows[["C", "gamma"]]))
        np.testing.assert_allclose(Y[:, 0], (rows[name] - runs[name].mean()) / runs[name].std())


def test_data_of_metrics_with_and_without_history(make_client, runs, history):
    client = make_client(constraints=["cost <= 2", "time <= 5"])
    first = client.attach_trial({"C": 10.0, "gamma": 0.1})
    client.complete_trial(first, {"loss": (2.0, 0.5), "cost": 3.0, "time": 4.0})
    adapter = adapter_of(client, history=history)
    datasets = datasets_of(adapter)
    assert list(datasets) == adapter.outcomes == ["cost", "loss", "time"]
    assert not isinstance(datasets["time"], TransferDataset)
    for name, value in (("loss", 2.0), ("cost", 3.0)):
        mean, std = runs[name].mean(), runs[name].std()
        np.testing.assert_allclose(datasets[name].X, [[1.0, -1.0]])
        np.testing.assert_allclose(datasets[name].Y, [[(value - mean) / std]])
    np.testing.assert_allclose(datasets["loss"].Yvar, [[(0.5 / runs["loss"].std()) ** 2]])


def test_a_metric_with_history_may_have_no_outcome_yet(make_client, history):
    """As one that is measured later than the others."""
    client = make_client(constraints=["cost <= 2"])
    trial = client.attach_trial({"C": 10.0, "gamma": 0.1})
    client.attach_data(trial, {"loss": 2.0})
    datasets = datasets_of(adapter_of(client, history=history))
    assert {name: len(data.X) for name, data in datasets.items()} == {"cost": 0, "loss": 1}


def with_history(client: Any, *old: Any, **options: Any) -> Any:
    return adapter_of(client, history=TransferHistory.from_experiments(old), **options)


def renamed(level: float = 0.0) -> AuxiliarySource:
    old = old_experiment([C, GAMMA], metric="error", name="renamed", level=level)
    return AuxiliarySource(old, transfer_metric_config={"loss": {"error"}})


def old_outcomes(*old: Any) -> np.ndarray:
    return np.concatenate([source.lookup_data().df["mean"] for source in old])


def test_a_renamed_metric_has_the_scale_of_the_others(make_client):
    """One old experiment calls it otherwise: all are standardized alike."""
    other, source = old_experiment([C, GAMMA], level=9.0), renamed(level=-5.0)
    adapter = with_history(make_client(), source, other)
    outcomes = old_outcomes(source.experiment, other)
    mean, std = outcomes.mean(), outcomes.std(ddof=1)
    assert adapter.history_moments() == {"loss": pytest.approx((mean, std))}
    found = sources_of(adapter)
    for name, expected in (("renamed_error", outcomes[:9]), ("old_loss", outcomes[9:])):
        np.testing.assert_allclose(found[name][1].squeeze(-1), (expected - mean) / std)


def sources_of(adapter: Any, metric: str = "loss") -> dict[str, Any]:
    return datasets_of(adapter)[metric].sources


def test_names_may_be_swapped(make_client):
    """What an old experiment calls by the name of another metric of the new one."""
    source, other = renamed(), old_experiment([C, GAMMA], metric="error", level=7.0)
    adapter = with_history(make_client(constraints=["error <= 9"]), source, other)
    loss = old_outcomes(source.experiment)
    assert list(sources_of(adapter)) == ["renamed_error"]
    Y = sources_of(adapter)["renamed_error"][1]
    np.testing.assert_allclose(Y.squeeze(-1), (loss - loss.mean()) / loss.std(ddof=1))
    assert list(sources_of(adapter, "error")) == ["renamed_error", "old_error"]


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
    adapter = with_history(client, old_experiment([C, GAMMA]), costly)
    models = dict(zip(adapter.outcomes, adapter.generator.surrogate.model.models, strict=True))
    tasks = {name: model.prior.task_names for name, model in models.items()}
    assert tasks == {"cost": ("costly_cost",), "loss": ("old_loss",)}


def test_trials_of_old_experiments_that_were_abandoned_or_are_inactive_are_left_out(make_client):
    changed = old_experiment([C, GAMMA], name="changed")
    changed.trials[0].mark_abandoned(unsafe=True)
    adapter = with_history(make_client(), changed)
    assert len(sources_of(adapter)["changed_loss"][0]) == 8
    inactive = AuxiliarySource(old_experiment([C, GAMMA], name="inactive"), is_active=False)
    adapter = with_history(make_client(), inactive, old_experiment([C, GAMMA]))
    assert list(sources_of(adapter)) == ["old_loss"]


def test_old_experiments_of_other_metrics_only_are_refused(make_client):
    with pytest.raises(UserInputError, match=r"has none of the experiment's metrics .*: rename"):
        with_history(make_client(), old_experiment([C, GAMMA], metric="other"))


@pytest.mark.parametrize(("of_target", "of_old"), [(None, 0.2), (0.1, None)])
def test_noise_is_known_by_task_or_inferred(make_client, of_target, of_old):
    client = make_client()
    trial = client.attach_trial({"C": 1.0, "gamma": 1.0})
    client.complete_trial(trial, {"loss": 0.3 if of_target is None else (0.3, of_target)})
    old = [
        old_experiment([C, GAMMA], name="silent"),
        old_experiment([C, GAMMA], name="told", sem=of_old),
        old_experiment([C, GAMMA], name="partial", odd=(0.3, 0.1)),
    ]
    adapter = with_history(client, *old)
    model = adapter.generator.surrogate.model
    assert model.posterior(model.train_inputs[0]).mean.isfinite().all()
    parts = {name: len(data) for name, data in sources_of(adapter).items()}
    assert parts == {"silent_loss": 2, "told_loss": 2 + (of_old is not None), "partial_loss": 2}


def test_a_standard_error_of_zero_is_a_small_one(make_client):
    """Ax's word for outcomes without noise."""
    client = make_client()
    client.complete_trial(client.attach_trial({"C": 1.0, "gamma": 1.0}), {"loss": (0.3, 0.0)})
    old = [old_experiment([C, GAMMA], sem=0.0), old_experiment([C, GAMMA], name="b", sem=0.2)]
    adapter = with_history(client, *old)
    _, std = adapter.history_moments()["loss"]
    least = 1e-3 * old_outcomes(old[0]).std(ddof=1)
    for name, sem in {"old_loss": 0.0, "b_loss": 0.2}.items():
        expected = pytest.approx([(max(sem, least) / std) ** 2])
        assert sources_of(adapter)[name][2].unique().tolist() == expected
    assert len(generated(adapter).arms) == 1


@pytest.mark.parametrize(("odd", "of_target"), [(np.inf, 0.3), (-np.inf, np.nan), (np.nan, np.inf)])
def test_infinite_outcomes_are_left_out(make_client, odd, of_target):
    client = make_client(constraints=["time <= 4"])
    trial = client.attach_trial({"C": 1.0, "gamma": 1.0})
    client.complete_trial(trial, {"loss": of_target, "time": 10 * of_target})
    adapter = with_history(client, old_experiment([C, GAMMA], odd=odd))
    assert len(sources_of(adapter)["old_loss"][1]) == 9
    assert len(datasets_of(adapter)["loss"].Y) == int(np.isfinite(of_target))
    assert len(generated(adapter).arms) == 1


# ----------------------------------------------------------------------------- very bad outcomes


def _scaled(sources: dict[str, Any], adapter: Any, metric: str = "loss") -> np.ndarray:
    """Outcomes of old runs in the user's unit."""
    mean, std = adapter.history_moments()[metric]
    outcomes = torch.cat([task[1] for task in sources.values()]).squeeze(-1).cpu().numpy()
    return outcomes * std + mean


def test_cells_of_old_runs_are_read(make_client, runs, caplog):
    cells = runs["loss"].map(str).astype(object)
    cells.iloc[[1, 2, 3, 4, 5]] = ["<0.5", "~2.5", "n.d.", "failed", "-999"]
    client = make_client(history=runs.assign(loss=cells), robust=False)
    with caplog.at_level("INFO", logger="botorch_transfer"):
        client.get_next_trials(1)
    adapter = client._generation_strategy.adapter
    expected = runs["loss"].to_numpy(copy=True)
    expected[[1, 2]] = 0.5, 2.5
    found = _scaled(sources_of(adapter), adapter)
    np.testing.assert_allclose(found, np.delete(expected, [3, 4, 5]))
    for told in (
        "count as the number in the cell: 1 in 'loss', as '<0.5' in row 1 of task 'monday'",
        "Marks such as * and ~ are ignored: 1 in 'loss', as '~2.5' in row 2 of task 'monday'",
        "of runs that ended without failure: 1 in 'loss', as 'n.d.' in row 3 of task 'monday'",
        "is a word such as failed: 1 in 'loss', as 'failed' in row 4 of task 'monday'",
        "the number -999 (as -999.0 in row 5 of task 'monday')",
    ):
        assert sum(told in message for message in caplog.messages) == 1


def test_a_cell_that_is_no_outcome_is_refused(make_client, runs):
    cells = runs["loss"].map(str).astype(object)
    cells.iloc[3] = "12 or 13"
    with pytest.raises(UserInputError, match="'loss' has '12 or 13' in row 3, which has digits"):
        make_client(history=runs.assign(loss=cells)).get_next_trials(1)


@pytest.mark.parametrize("robust", [True, False])
def test_diverged_runs_may_count_as_just_bad(make_client, runs, robust):
    """Old ones and this experiment's."""
    old = runs.assign(loss=runs["loss"].mask(runs.index == 7, 54_321.0))
    client = make_client(history=old, robust=robust)
    for C_, loss in ((1.0, 1.5), (3.0, 2.5), (100.0, 98_765.0)):
        client.complete_trial(client.attach_trial({"C": C_, "gamma": 0.1}), {"loss": loss})
    client.get_next_trials(1)
    adapter = client._generation_strategy.adapter
    worst = _scaled(sources_of(adapter), adapter).max()
    mean, std = adapter.history_moments()["loss"]
    own = datasets_of(adapter)["loss"].Y.squeeze(-1).cpu().numpy() * std + mean
    np.testing.assert_allclose(own[:2], [1.5, 2.5])
    if robust:
        assert 10 < worst < 200
        assert 10 < own[2] < 200
    else:
        assert worst == pytest.approx(54_321)
        assert own[2] == pytest.approx(98_765)
