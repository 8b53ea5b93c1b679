"""From the first trial to the last, as a user of Ax's Client goes."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from ax.adapter.cross_validation import compute_diagnostics, cross_validate
from ax.exceptions.core import UserInputError
from ax.generation_strategy.center_generation_node import CenterGenerationNode
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize

from botorch_transfer import (
    FullyBayesianHyperpriorGP,
    HyperpriorGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    SourceGPs,
)
from botorch_transfer.ax import transfer_generation_strategy
from botorch_transfer.ax_experiments import experiment_of
from botorch_transfer.memo import clear_memos
from tests.ax.adapters import encoded_runs
from tests.ax.conftest import mixed_loss, mixed_space, plain_loss, plain_space

FRAME = pd.DataFrame({"task": ["monday"], "C": [1.0], "gamma": [1.0], "loss": [0.1]})


@pytest.fixture
def count_fits(monkeypatch) -> list[Any]:
    """Counts pre-trainings of source GPs."""
    clear_memos()
    monkeypatch.setattr(SourceGPs, "fit", fit := Mock(wraps=SourceGPs.fit))
    return fit.call_args_list


def adapter_of(client: Any) -> Any:
    return client._generation_strategy.adapter


def test_a_run_with_cross_validation_pretrains_once(make_client, complete, runs, count_fits):
    client = make_client(history=runs)
    (first,) = complete(client)
    assert plain_loss(first, 0.1) < 0.5  # the prior knows where to start
    complete(client)
    complete(client, 2)
    results = cross_validate(adapter_of(client), folds=2)
    diagnostics = compute_diagnostics(results)
    assert np.isfinite(diagnostics["MSE"]["loss"])
    assert len(results) == 2  # the model of the last two trials knew of two
    config, prediction, _, _ = client.get_best_parameterization()
    assert plain_loss(config, 0.1) == pytest.approx(prediction["loss"][0], abs=0.1)
    assert len(count_fits) == 1


def test_todays_conditions_are_fixed(make_client, complete, runs):
    client = make_client(history=runs)
    for _ in range(2):  # before the first outcome, and after it
        ((trial, config),) = client.get_next_trials(1, fixed_parameters={"gamma": 1e-3}).items()
        assert config["gamma"] == pytest.approx(1e-3)
        assert plain_loss(config, 0.1) < plain_loss({"C": 1000.0, "gamma": 1e-3}, 0.1)
        client.complete_trial(trial, {"loss": plain_loss(config, 0.1)})


def test_the_first_trial_is_the_priors(make_client, runs):
    client = make_client(history=runs)
    ((_, config),) = client.get_next_trials(1).items()
    old = {task: (X, -Y) for task, (X, Y) in encoded_runs(plain_space(), runs).items()}
    lower, upper = torch.tensor([[-2.0, -5.0], [3.0, 1.0]], dtype=torch.double)
    cube = Normalize(2, bounds=torch.stack([lower, upper]))
    sources = SourceGPs.fit(old, input_transform=cube)
    none = torch.empty(0, 2, dtype=torch.double)
    posterior = ScaMLGP(none, none[:, :1], sources).posterior
    x = torch.tensor([[np.log10(config["C"]), np.log10(config["gamma"])]], dtype=torch.double)
    grid = lower + torch.rand(2000, 2, dtype=torch.double) * (upper - lower)
    values = posterior(torch.cat([x, grid]).unsqueeze(-2))
    bound = (values.mean + 3 * values.variance.sqrt()).view(-1)
    assert bound[0] > bound[1:].max() - 0.05 * bound.std()


@pytest.mark.parametrize("model", [ScaMLGP, SequentialHierarchicalGP])
def test_experiments_tables_and_tensors_agree(make_client, old_clients, complete, runs, model):
    """The mixed spaces' forms are in the next test."""
    tensors = {
        task: tuple(
            torch.tensor(rows[columns].to_numpy()) for columns in (["C", "gamma"], ["loss"])
        )
        for task, rows in runs.groupby("task", sort=False)
    }
    forms = {
        "experiments": {"history": [experiment_of(c) for c in old_clients(runs, plain_space())]},
        "table": {"history": runs},
        "tensors": {"history": {"loss": tensors}},
    }
    test = [{"C": 3.0, "gamma": 0.02}, {"C": 400.0, "gamma": 1e-4}]
    means, variances = [], []
    for form in forms.values():
        client = make_client(model=model, **form)
        trial = client.attach_trial(test[1])
        client.complete_trial(trial, {"loss": plain_loss(test[1], 0.1)})
        complete(client)
        prediction = client.predict(test[:1])
        means.append(prediction[0]["loss"][0])
        variances.append(prediction[0]["loss"][1])
    np.testing.assert_allclose(means, means[1], rtol=1e-6)
    np.testing.assert_allclose(variances, variances[1], rtol=1e-6)


def test_mixed_spaces_batches_and_a_failed_trial(make_client, old_clients, mixed_runs):
    client = make_client(mixed_space(), history=old_clients(mixed_runs, mixed_space()))
    batch = client.get_next_trials(3)
    assert len({tuple(sorted(config.items())) for config in batch.values()}) == 3
    failed, first, abandoned = batch
    client.mark_trial_failed(failed)
    client.mark_trial_abandoned(abandoned)
    client.complete_trial(first, {"loss": mixed_loss(batch[first])})
    ((_, config),) = client.get_next_trials(1, fixed_parameters={"depth": 2}).items()
    assert config["depth"] == 2
    assert config not in list(batch.values())
    assert isinstance(config["depth"], int)
    assert config["kind"] in ("a", "b", "c")


def test_batch_trials_and_known_noise(make_client, runs):
    noisy = runs.assign(loss_sem=0.1)
    client = make_client(history=noisy)
    experiment, strategy = experiment_of(client), client._generation_strategy
    trial = experiment.new_batch_trial(strategy.gen_single_trial(experiment, n=3))
    assert len({arm.signature for arm in trial.arms}) == 3
    trial.mark_running(no_runner_required=True).mark_abandoned()
    for index, config in client.get_next_trials(1).items():
        client.complete_trial(index, {"loss": (plain_loss(config, 0.1), 0.1)})
    client.get_next_trials(1)
    model = adapter_of(client).generator.surrogate.model
    assert model.prior.num_tasks == 3
    std = adapter_of(client).transforms["StandardizeByHistory"].Ystd["loss"]
    units = model.outcome_transform.stdvs.item()
    assert model.likelihood.noise.item() == pytest.approx((0.1 / std / units) ** 2)


@pytest.mark.parametrize("model", [HyperpriorGP, FullyBayesianHyperpriorGP])
def test_hyperpriors_with_a_table(make_client, complete, runs, model):
    client = make_client(model=model, history=runs)
    complete(client)
    complete(client)
    assert isinstance(adapter_of(client).generator.surrogate.model, model)


def test_without_history_it_is_axs_own_strategy():
    nodes = transfer_generation_strategy()._nodes
    assert isinstance(nodes[0], CenterGenerationNode)
    assert len(nodes) == 3


@pytest.mark.parametrize(
    "history", [[], FRAME.head(0), {"loss": {}}, "a client without data"], ids=str
)
def test_an_empty_history_falls_back_with_one_line(make_client, history, caplog):
    history = [make_client(name="old")] if isinstance(history, str) else history
    strategy = transfer_generation_strategy(history=history, model_options={"members": None})
    assert isinstance(strategy._nodes[0], CenterGenerationNode)
    assert caplog.messages[-1] == "The history has no runs: Ax's default strategy is used."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": SingleTaskGP, "history": FRAME}, "one of the classes of botorch_transfer"),
        ({"model": FRAME}, "model is DataFrame: give one of the classes"),
        ({"history": "runs.csv"}, "The history is a str: give a table, a dictionary"),
        ({"history": [3]}, "The history is a list: give a table"),
        ({"history": ("old.db", ["monday"])}, "give a URL, such as 'sqlite:///old.db'"),
        ({"history": FRAME, "rename": {"c": "C"}}, "names the column 'c', which the table lacks"),
        ({"history": FRAME, "missing": ["C"]}, "missing is .*: give a dictionary"),
        ({"history": {"loss": {}}, "rename": {"c": "C"}}, "tensors have no names: leave out"),
        ({"history": {"monday": (torch.rand(3, 1),) * 2}}, "has no task names: give {metric: {"),
        ({"history": [], "task": "day"}, "task= only applies to a table"),
        ({"history": FRAME, "task": "day"}, "no column 'day'"),
        ({"pretraining": {"steps": 3}}, "Options have no effect without history="),
    ],
)
def test_unfit_arguments_are_refused_at_once(options, message):
    with pytest.raises((UserInputError, TypeError, ValueError), match=message):
        transfer_generation_strategy(**options)


def test_columns_of_a_table_are_renamed(make_client, complete, runs):
    old = runs.rename(columns={"C": "cost of errors", "loss": "error"})
    rename = {"cost of errors": "C", "error": "loss"}
    assert complete(make_client(history=old, rename=rename)) == complete(make_client(history=runs))


def models_of(client: Any) -> list[type]:
    model = client._generation_strategy.adapter.generator.surrogate.model
    return [type(part) for part in getattr(model, "models", [model])]


def log_step(client: Any) -> tuple[float, float]:
    """Evaluates one suggestion in the plain space; its cost is what it is in the old runs."""
    ((trial, config),) = client.get_next_trials(1).items()
    C, gamma = np.log10([config["C"], config["gamma"]])
    client.complete_trial(trial, {"loss": plain_loss(config, 0.1), "cost": C + 2})
    return C, gamma


#: With the default hyperpriors, a second point on so smooth a loss also explores.
PAPER = {"hyperparameters": "paper"}


def test_a_sum_of_metrics(make_client, runs):
    """Of the loss alone C = 10 ** 1.1 is best; its cost moves that by a decade."""
    client = make_client(objective="-loss - 2*cost", model_options=PAPER, history=runs)
    for _ in range(2):
        C, gamma = log_step(client)
        assert abs(C - 0.1) < 0.5
        assert abs(gamma + 2.1) < 2.5
    assert models_of(client) == [ScaMLGP, ScaMLGP]


def test_a_forgotten_sign_of_the_objective_is_named(make_client, runs, caplog):
    make_client(objective="loss", history=runs).get_next_trials(1)
    assert "'loss' is maximized, but the name suggests the opposite" in caplog.text


def test_a_constraint_from_below(make_client, runs):
    client = make_client(constraints=["cost >= 4.5"], history=runs)
    trial = client.attach_trial({"C": 10.0**2.6, "gamma": 0.01})
    loss = plain_loss({"C": 10.0**2.6, "gamma": 0.01}, 0.1)
    client.complete_trial(trial, {"loss": loss, "cost": 4.6})
    C, _ = log_step(client)
    assert 2.4 < C < 2.8
    assert models_of(client) == [ScaMLGP, ScaMLGP]


def test_constraints_with_and_without_history(make_client, runs):
    client = make_client(history=runs, constraints=["cost <= 2", "time <= 5"])
    ((trial, config),) = client.get_next_trials(1).items()
    assert np.log10(config["C"]) + 2 < 2.5  # the history knows what it costs
    outcome = {"loss": plain_loss(config, 0.1), "cost": np.log10(config["C"]) + 2, "time": 4.0}
    client.complete_trial(trial, outcome)
    client.get_next_trials(1)
    assert models_of(client) == [ScaMLGP, ScaMLGP, SingleTaskGP]


def test_two_objectives_one_of_them_without_history(make_client, runs):
    client = make_client(history=runs, objective="-loss, score")
    ((trial, config),) = client.get_next_trials(1).items()
    client.complete_trial(trial, {"loss": plain_loss(config, 0.1), "score": config["C"]})
    ((_, config),) = client.get_next_trials(1).items()
    assert set(config) == {"C", "gamma"}


@pytest.mark.parametrize(
    ("objective", "constraints"),
    [
        ("-loss, -cost", ["loss <= 0.9*baseline", "cost <= 1.1*baseline"]),
        ("-loss", ["cost <= 1.1*baseline"]),
    ],
)
def test_limits_relative_to_a_baseline(make_client, runs, objective, constraints):
    """They wait for the baseline's outcome."""
    client = make_client(objective=objective, constraints=constraints, history=runs)
    baseline = client.attach_baseline({"C": 1.0, "gamma": 1.0})
    client.get_next_trials(1)
    client.complete_trial(baseline, {"loss": 10.0, "cost": 2.0})
    ((_, config),) = client.get_next_trials(1).items()
    assert set(config) == {"C", "gamma"}


def test_maximizing_the_negated_history_is_minimizing(make_client, runs):
    negated = runs.assign(score=-runs["loss"]).drop(columns=["loss", "cost"])
    ((_, down),) = make_client(history=runs).get_next_trials(1).items()
    ((_, up),) = make_client(history=negated, objective="score").get_next_trials(1).items()
    np.testing.assert_allclose(np.log10(list(up.values())), np.log10(list(down.values())), atol=0.1)
