"""Old Ax experiments: renamed, missing and additional parameters, other bounds."""

import numpy as np
import pytest
from ax.api.configs import ChoiceParameterConfig
from ax.core.auxiliary_source import AuxiliarySource
from ax.core.parameter import ParameterType, RangeParameter
from ax.exceptions.core import UserInputError

from botorch_transfer.ax.history import LEAST_ERROR, TASK, TransferHistory, moments_of
from botorch_transfer.ax_experiments import experiment_of
from tests.ax.adapters import encoded
from tests.ax.conftest import plain_loss, plain_space
from tests.ax.old_experiments import COST, GAMMA, SHRINK, WIDE, C, old_experiment


@pytest.mark.parametrize(
    ("old", "baseline"),
    [
        (
            lambda: AuxiliarySource(
                old_experiment([COST, GAMMA], metric="old_loss"),
                transfer_param_config={"C": "cost"},
                transfer_metric_config={"loss": {"old_loss"}},
            ),
            None,
        ),
        (lambda: old_experiment([WIDE, GAMMA]), None),
        (lambda: old_experiment([C]), {"C": 1.0, "gamma": 0.01}),
    ],
    ids=["mapped", "other bounds", "a parameter missing"],
)
def test_what_ax_maps_is_kept(make_client, complete, old, baseline):
    client = make_client(history=[old()])
    if baseline is not None:
        client.attach_baseline(baseline)
    (config,) = complete(client)
    assert set(config) == {"C", "gamma"}
    adapter = client._generation_strategy.adapter
    assert adapter.generator.surrogate.model.prior.num_tasks == 1


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([C], r"no values of parameter 'gamma': give .* by missing=\{'gamma': ...\}"),
        ([C, GAMMA, SHRINK], r"parameters \['shrink'\], which the new experiment lacks"),
    ],
    ids=["less", "more"],
)
def test_parameters_of_unknown_value_are_refused(make_client, complete, space, message):
    client = make_client(history=[old_experiment(space)])
    trial = client.attach_trial({"C": 1.0, "gamma": 1.0})
    client.complete_trial(trial, {"loss": 1.0})
    with pytest.raises(UserInputError, match=message):
        complete(client)


def test_parameters_and_metrics_of_experiments_are_renamed():
    """An experiment that has the new names already stays as it is."""
    monday = old_experiment([COST, GAMMA], metric="error", name="monday", sem=0.1)
    old, rename = [monday, old_experiment([C, GAMMA], sem=0.1)], {"cost": "C", "error": "loss"}
    columns = TransferHistory.from_experiments(old, rename=rename).columns
    assert set(columns) == {TASK, "C", "gamma", "loss", "loss_sem"}
    assert all(len(column) == 18 and None not in column for column in columns.values())
    assert TransferHistory.from_experiments(old, rename=rename).varied == ["C", "gamma"]
    with pytest.raises(UserInputError, match="rename= names 'rate', which no old experiment has"):
        TransferHistory.from_experiments(old, rename={"rate": "C"})
    with pytest.raises(UserInputError, match="rename= gives two columns the name 'C'"):
        TransferHistory.from_experiments(old[1:], rename={"gamma": "C"})


def test_values_that_are_missing_may_be_told():
    lacking = [old_experiment([C])]
    found = ({"gamma": 0.5}, None), ({}, {"C": 1.0, "gamma": 0.5}), ({}, {"C": 1.0, "gamma": 0.2})
    for (missing, baseline), gamma in zip(found, (0.5, 0.5, 0.2), strict=True):
        history = TransferHistory.from_experiments(lacking, missing)
        (X, _), *_ = encoded(plain_space(), history, baseline=baseline).values()
        assert X.shape == (9, 2)
        np.testing.assert_allclose(X[:, 1], np.log10(gamma))


def test_what_is_fixed_now_counts_as_fixed_then():
    fixed = ChoiceParameterConfig("gamma", [0.01], parameter_type="float")
    history = TransferHistory.from_experiments([old_experiment([C, GAMMA])])
    (X, _), *_ = encoded([C, fixed], history).values()
    assert X.shape == (9, 1)


def test_experiments_without_data_are_left_out_and_names_differ(make_client, caplog):
    old = old_experiment([C, GAMMA])
    history = TransferHistory.from_experiments([make_client(), old])
    assert set(history.columns[TASK]) == {"old_loss"}
    assert history.varied == ["C", "gamma"]
    assert "Old experiments without data are left out: new" in caplog.messages
    with pytest.raises(UserInputError, match="different names"):
        TransferHistory.from_experiments([old, old])
    nameless = old_experiment([C, GAMMA], name=None)
    tasks = TransferHistory.from_experiments([old, nameless]).columns[TASK]
    assert (set(tasks), nameless.has_name) == ({"old_loss", "experiment 1_loss"}, False)


def test_arms_from_before_a_parameter_came_have_its_backfill_value(make_client):
    client = make_client([C], name="old")
    client.complete_trial(client.attach_trial({"C": 2.0}), {"loss": 1.0})
    gamma = RangeParameter("gamma", ParameterType.FLOAT, 1e-3, 1.0, backfill_value=0.5)
    experiment_of(client).search_space.add_parameter(gamma)
    columns = TransferHistory.from_experiments([client]).columns
    assert (columns["C"], columns["gamma"], columns["loss"]) == ([2.0], [0.5], [1.0])


def test_outcomes_without_noise_have_a_least_error():
    experiment = old_experiment([C, GAMMA], sem=0.0)
    columns = TransferHistory.from_experiments([experiment]).columns
    _, std = moments_of(np.array(columns["loss"]))
    assert columns["loss_sem"] == pytest.approx([LEAST_ERROR * std] * 9)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_optuna_studies_are_a_history(make_client, complete, tmp_path, direction):
    """Their objective is the experiment's, whatever its name and direction are."""
    pytest.importorskip("optuna")
    from tests.optuna.studies import old_study

    url, sign = f"sqlite:///{tmp_path}/old.db", 1.0 if direction == "minimize" else -1.0

    def objective(trial):
        config = {
            "C": trial.suggest_float("C", 1e-2, 1e3, log=True),
            "gamma": trial.suggest_float("gamma", 1e-5, 10.0, log=True),
        }
        return sign * plain_loss(config, 0.1)

    for name in ("monday", "tuesday"):
        study = old_study(objective, name, 15, storage=url, direction=direction)
    for history in ([study], (url, ["monday", "tuesday"])):
        client = make_client(history=history)
        assert plain_loss(complete(client)[0], 0.1) < 20
    renamed = make_client([COST, GAMMA], history=(url, ["monday"]), rename={"C": "cost"})
    ((_, config),) = renamed.get_next_trials(1).items()
    assert plain_loss({"C": config["cost"], "gamma": config["gamma"]}, 0.1) < 20
    two = make_client(objective="-loss, -cost", history=[study])
    with pytest.raises(UserInputError, match="have 1 objectives, but the experiment has 2: leave"):
        two.get_next_trials(1)
    with pytest.raises(ValueError, match="The storage has no study 'sunday': choose from"):
        make_client(history=(url, ["sunday"]))
