"""The sampler in real studies."""

import logging
import multiprocessing
import pickle
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import optuna
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import Trial, TrialState, create_trial

from botorch_transfer import FloatParameter, ScaMLGP, SearchSpace, SourceGPs, from_dataframe
from botorch_transfer.data.measurements import FATE
from botorch_transfer.memo import clear_memos
from botorch_transfer.old_studies import history_of
from botorch_transfer.optuna import TransferSampler
from botorch_transfer.optuna import sampler as sampler_module
from botorch_transfer.suggestion import reading
from tests.optuna.studies import UNIT, add, old_study, sampler, states, table, tuned
from tests.suggestion.brief_search import brief_search


def objective(trial: Trial) -> float:
    return (trial.suggest_float("x", 0, 1) - 0.3) ** 2


def _apart(study: optuna.Study, name: str = "x") -> float:
    """The least distance of two trials in one parameter."""
    values = sorted(trial.params[name] for trial in study.trials)
    return min(after - before for before, after in pairwise(values))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the sampler asks the models: what its tables say, and the number of rows."""
    found: list[dict[str, Any]] = []

    def spy_on_runs(space, runs, outcomes, status):
        tables.append(runs)
        return read_runs(space, runs, outcomes, status)

    def spy(tables_read, n, model, seed):
        own = {"runs": tables[-1], "space": tables_read.space, "n": n}
        found.append({**tables_read.runs._asdict(), **tables_read._asdict(), **own})
        return suggest_rows(tables_read, n, model, seed)

    tables: list[Any] = []
    read_runs, suggest_rows = reading.read_runs, sampler_module.suggest_rows
    monkeypatch.setattr(reading, "read_runs", spy_on_runs)
    monkeypatch.setattr(sampler_module, "suggest_rows", spy)
    return found


# ------------------------------------------------------------------------------ what it suggests


@pytest.mark.parametrize(("direction", "sign"), [("minimize", 1.0), ("maximize", -1.0)])
def test_starts_where_the_history_is_best(direction: str, sign: float, caplog: Any):
    old = table().rename(columns={"value": "loss"})
    old["loss"] *= sign
    transfer = sampler(history=old, outcome="loss", seed=0)
    study = tuned(lambda trial: sign * objective(trial), 3, transfer, direction=direction)
    assert caplog.text.count("'loss' is maximized, but the name suggests") == (sign < 0)
    assert study.trials[0].params["x"] == pytest.approx(0.3, abs=0.1)
    assert abs(study.best_params["x"] - 0.3) < 0.06


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_studies_of_the_opposite_direction_give_one_warning(direction: str, caplog: Any):
    old = optuna.create_study(study_name="old", direction="minimize")
    for x in (0.1, 0.9):
        add(old, x, value=x)
    tuned(objective, 3, TransferSampler([old], seed=0), direction=direction)
    warned = [m for m in caplog.messages if "The old studies have the opposite direction" in m]
    assert len(warned) == (direction == "maximize")


@pytest.mark.parametrize("name", ["sources", "predicted_mean"])
def test_a_parameter_may_be_called_like_what_suggestions_add(name: str):
    old = table().rename(columns={"x": name})
    space = {name: FloatDistribution(0.0, 1.0)}
    transfer = sampler(history=old, space=space, seed=0)
    study = tuned(lambda trial: (trial.suggest_float(name, 0, 1) - 0.3) ** 2, 1, transfer)
    assert study.trials[0].params[name] == pytest.approx(0.3, abs=0.1)


def test_todays_conditions_are_fixed():
    old = [table().assign(y=y) for y in (0.1, 0.5)]
    space = {**UNIT, "y": FloatDistribution(0.0, 1.0)}
    transfer = sampler(history=pd.concat(old), space=space, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        today = optuna.samplers.PartialFixedSampler({"y": 0.9}, transfer)
    study = tuned(lambda trial: objective(trial) + trial.suggest_float("y", 0, 1), 3, today)
    assert [trial.params["y"] for trial in study.trials] == [0.9] * 3
    assert study.trials[0].params["x"] == pytest.approx(0.3, abs=0.1)
    assert _apart(study) > 1e-4


def test_reseed_rng_differs_in_each_worker():
    workers = [sampler(seed=0) for _ in range(2)]
    for worker in workers:
        worker.reseed_rng()
    study = optuna.create_study()
    draws = [w.sample_independent(study, study.ask(), "z", UNIT["x"]) for w in workers]
    assert draws[0] != draws[1]
    assert workers[0]._rng.integers(2**31) != workers[1]._rng.integers(2**31)


def test_pickles_and_goes_on():
    study = tuned(objective, 2, sampler(seed=0))
    study.sampler = pickle.loads(pickle.dumps(study.sampler))
    study.optimize(objective, n_trials=1)
    assert _apart(study) > 1e-4


def test_log_takes_logarithms_of_old_and_new_trials():
    forms = {True: lambda t: objective(t) + 0.01, False: lambda t: np.log(objective(t) + 0.01)}
    taken = []
    for log, of_trial in forms.items():
        old = [old_study(of_trial, name) for name in ("monday", "tuesday")]
        study = tuned(of_trial, 2, TransferSampler(old, ScaMLGP, seed=0, log=log))
        taken.append([trial.params for trial in study.trials])
    assert taken[0] == taken[1]


def test_history_is_pretrained_at_the_first_trial_and_once(monkeypatch: pytest.MonkeyPatch):
    clear_memos()
    monkeypatch.setattr(SourceGPs, "fit", fit := Mock(wraps=SourceGPs.fit))
    samplers = [sampler(seed=seed) for seed in range(2)]
    assert fit.call_count == 0
    for each in samplers:
        optuna.create_study(sampler=each).optimize(objective, n_trials=2)
    assert fit.call_count == 1


def test_all_kinds_of_histories(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/old.db"
    names = ["monday", "tuesday"]
    old = [old_study(objective, name, storage=url) for name in names]
    samplers = (TransferSampler(history, ScaMLGP, seed=0) for history in (old, (url, names)))
    first, second = (tuned(objective, 1, each).trials[0].params["x"] for each in samplers)
    assert first == second == pytest.approx(0.3, abs=0.15)
    study = tuned(objective, 1, TransferSampler(old[0], ScaMLGP, seed=0))
    assert states(study) == [TrialState.COMPLETE]


def test_saved_prior(tmp_path: Path):
    space = SearchSpace([FloatParameter("x", 0, 1)])
    data = from_dataframe(table(), space, "value", "task", goal="min")
    SourceGPs.fit(data).save(tmp_path / "prior.safetensors")
    prior = SourceGPs.load(tmp_path / "prior.safetensors")
    study = tuned(objective, 2, sampler(history=prior, space=space, seed=0))
    assert study.trials[0].params["x"] == pytest.approx(0.3, abs=0.1)
    by_name = sampler(history={"value": prior}, seed=0)
    other = tuned(lambda trial: trial.suggest_float("x", 0, 0.9), 1, by_name)
    assert other.trials[0].params["x"] == study.trials[0].params["x"]
    with pytest.raises(ValueError, match="parameters differ from the search space of the prior"):
        other.optimize(lambda trial: trial.suggest_float("x", 0, 0.9), n_trials=1)


def test_own_study_is_no_history(asked: list[dict[str, Any]]):
    old = [old_study(objective, name) for name in ("monday", "tuesday")]
    tuned(objective, 1, TransferSampler(old, ScaMLGP, seed=0), study_name="monday")
    assert list(asked[0]["sources"]["value"]) == ["tuesday"]


# --------------------------------------------------------------------------------- search spaces


def test_relative_space_is_what_history_and_study_have():
    old = [
        old_study(lambda t: t.suggest_float("x", 0, 1) + t.suggest_int("n", 1, 9), name)
        for name in ("monday", "tuesday")
    ]
    new = TransferSampler(old, ScaMLGP, seed=0)
    study = optuna.create_study(sampler=new)
    # The first trial names its distributions itself.
    assert new.infer_relative_search_space(study, study.ask()) == {}

    def changed(trial: Trial) -> float:
        return trial.suggest_float("x", 0, 0.5) + trial.suggest_float("new", 0, 1)

    study.optimize(changed, n_trials=3)
    # The study's own range of x; n is not suggested; old runs say nothing of the new one.
    x, both = {"x": FloatDistribution(0, 0.5)}, study.trials[1].distributions
    assert new.infer_relative_search_space(study, study.ask()) == both
    assert study.trials[2].params.keys() == both.keys()
    settled = TransferSampler(old, ScaMLGP, x, seed=0)
    assert settled.infer_relative_search_space(study, study.ask()) == x
    study.optimize(lambda trial: trial.suggest_float("x", 0, 2), n_trials=1)
    assert new.infer_relative_search_space(study, study.ask()) == {}


def test_choices_that_changed_between_old_studies_wait_for_new_ones(asked: list[dict[str, Any]]):
    def make(choices: list[str]):
        return lambda t: t.suggest_float("x", 0, 1) + len(t.suggest_categorical("k", choices))

    old = [old_study(make(["a", "bb"]), "monday"), old_study(make(["bb", "ccc"]), "tuesday")]
    study = tuned(make(["ccc", "bb"]), 3, TransferSampler(old, ScaMLGP, seed=0))
    space = study.sampler.infer_relative_search_space(study, study.ask())
    assert space["k"] == CategoricalDistribution(("ccc", "bb"))
    data = asked[-1]["sources"]["value"]
    chosen = [task.X[:, 1:].sum(dim=0).tolist() for task in data.values()]
    assert chosen[0][0] == 0 < chosen[0][1]  # Monday knew "bb" of the two, Tuesday both
    assert min(chosen[1]) > 0


def _mixed(trial: Trial) -> float:
    loss = abs(np.log10(trial.suggest_float("lr", 1e-4, 1.0, log=True)) + 2)
    loss += abs(trial.suggest_int("units", 32, 128, step=32) - 64) / 100
    if trial.suggest_categorical("optimizer", ["sgd", "adam", None]) == "sgd":
        return loss + abs(trial.suggest_float("momentum", 0, 1) - 0.9)
    return loss + 1


@pytest.mark.parametrize("given", [False, True])
def test_conditional_log_step_and_categorical(asked: list[dict[str, Any]], given: bool):
    old = [old_study(_mixed, name, trials=25) for name in ("monday", "tuesday")]
    space = dict(reversed(history_of(old).distributions.items())) if given else None
    study = tuned(_mixed, 2, TransferSampler(old, ScaMLGP, space, seed=0))
    assert set(asked[-1]["space"].columns) == {"lr", "units", "optimizer", "momentum"}
    assert len(asked[-1]["runs"]) == 1
    # The only trial has a momentum, and old runs without a momentum are still used.
    assert [len(task.X) for task in asked[-1]["sources"]["value"].values()] == [25, 25]
    assert study.best_value < 0.8
    assert study.trials[0].params["optimizer"] == "sgd"
    study.enqueue_trial({"optimizer": None})
    study.optimize(_mixed, n_trials=2)
    assert asked[-1]["runs"]["optimizer"].iloc[-1] == "None"
    assert "momentum" in asked[-1]["space"].columns


def test_a_condition_that_does_not_hold_is_dropped():
    old = [old_study(_mixed, name, trials=25) for name in ("monday", "tuesday")]

    def always(trial: Trial) -> float:
        trial.suggest_float("momentum", 0, 1)
        return 1.0 if trial.suggest_categorical("optimizer", ["sgd", "adam", None]) else 0.0

    study = tuned(always, 5, optuna.samplers.RandomSampler(seed=1))
    study.sampler = TransferSampler(old, ScaMLGP, seed=0)
    found = study.sampler.infer_relative_search_space(study, study.ask())
    assert set(found) == {"momentum", "optimizer"}
    study.optimize(always, n_trials=1)
    assert study.trials[-1].state == TrialState.COMPLETE


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_partial_fixed_sampler_leaves_children_out():
    old = [old_study(_mixed, name, trials=25) for name in ("monday", "tuesday")]
    transfer = TransferSampler(old, ScaMLGP, seed=0)
    study = tuned(_mixed, 2, optuna.samplers.PartialFixedSampler({"optimizer": "sgd"}, transfer))
    assert [trial.params["optimizer"] for trial in study.trials] == ["sgd", "sgd"]


def test_all_configurations_tried_are_repeated():
    old = [old_study(lambda t: t.suggest_int("n", 1, 3), name) for name in ("monday", "tuesday")]
    study = tuned(lambda t: t.suggest_int("n", 1, 3), 5, TransferSampler(old, ScaMLGP, seed=0))
    values = [trial.params["n"] for trial in study.trials]
    assert sorted(values[:3]) == [1, 2, 3]
    assert set(values[3:]) <= {1, 2, 3}


# --------------------------------------------------------------------------- which trials count


def test_running_trials_are_pending(asked: list[dict[str, Any]]):
    study = optuna.create_study(sampler=sampler(seed=0))
    trials = [study.ask(UNIT) for _ in range(3)]
    assert asked[-1]["runs"]["x"].tolist() == [trial.params["x"] for trial in trials[:2]]
    assert asked[-1]["runs"]["value"].isna().all()
    assert _apart(study) > 1e-4
    for trial in trials:
        study.tell(trial, objective(trial))
    study.optimize(objective, n_trials=1)
    assert asked[-1]["runs"]["value"].notna().all()


def test_parameters_of_a_running_trial_are_known_before_suggested(asked: list[dict[str, Any]]):
    study = optuna.create_study(sampler=sampler(seed=0))
    early = study.ask()
    chosen = early.relative_params["x"]
    study.enqueue_trial({"x": 0.75})
    study.ask()
    study.ask(UNIT)
    assert asked[-1]["runs"]["x"].tolist() == [chosen, 0.75]


def test_a_row_that_another_worker_has_taken_is_chosen_anew(monkeypatch: pytest.MonkeyPatch):
    study = optuna.create_study(sampler=sampler(seed=0))
    taken: list[float] = []

    def meanwhile(*args, **options):
        found = real(*args, **options)
        if not taken:
            taken.append(float(found.X))
            add(study, taken[0], state=TrialState.RUNNING)
        return found

    real = sampler_module.suggest_rows
    monkeypatch.setattr(sampler_module, "suggest_rows", meanwhile)
    assert abs(study.ask(UNIT).params["x"] - taken[0]) > 1e-4


def test_failed_and_pruned_trials(asked: list[dict[str, Any]]):
    study = optuna.create_study(sampler=sampler(seed=0))
    failed, pruned = {"state": TrialState.FAIL}, {"state": TrialState.PRUNED}
    for x, options in [
        (0.1, {"value": 2.0}),
        (0.2, {"value": 4.0}),
        (0.3, failed),
        (0.4, {**pruned, "intermediate_values": {3: 9.0}}),
        (0.5, {**pruned, "intermediate_values": {3: 1.0}}),
        (0.6, pruned),
        (0.7, {"value": float("inf")}),
    ]:
        add(study, x, **options)
    study.add_trial(create_trial(**failed))  # without parameters: says nothing
    study.ask(UNIT)
    runs = asked[-1]["runs"]
    np.testing.assert_array_equal(runs["value"], [2.0, 4.0, *[np.nan] * 5])
    assert runs[FATE].tolist() == ["", "", "failed", "ended", "ended", "failed", "failed"]


def test_study_goes_on_where_everything_failed():
    def fail(trial: Trial) -> float:
        trial.suggest_float("x", 0, 1)
        raise RuntimeError

    study = optuna.create_study(sampler=sampler(seed=0))
    study.optimize(fail, n_trials=2, catch=RuntimeError)
    study.optimize(objective, n_trials=2)
    assert [state.name for state in states(study)] == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert _apart(study) > 1e-4


# ----------------------------------------------------------------------- constraints, objectives


def _limited(trial: Trial) -> float:
    x = trial.suggest_float("x", 0, 1)
    trial.set_constraint("size", 0.6 - x)
    return (x - 0.3) ** 2


def test_constraints_that_the_history_knows(caplog: pytest.LogCaptureFixture):
    old = [old_study(_limited, name) for name in ("monday", "tuesday")]
    study = tuned(_limited, 3, TransferSampler(old, ScaMLGP, seed=0))
    assert all(trial.params["x"] > 0.55 for trial in study.trials)
    assert study.best_params["x"] == pytest.approx(0.6, abs=0.1)
    told = "but this study has none, so the old constraints are ignored: use trial.set_constraint"
    assert told not in caplog.text
    tuned(objective, 3, study.sampler)
    assert caplog.text.count(told) == 1


def test_constraints_func_without_history(asked: list[dict[str, Any]], caplog: Any):
    limited = sampler(seed=0, constraints_func=lambda trial: (0.45 - trial.params["x"],))
    study = tuned(objective, 4, limited)
    assert study.trials[0].params["x"] < 0.4  # nobody knew
    assert [len(call["outcomes"]) for call in asked] == [1] + [2] * 3
    assert asked[-1]["sources"]["constraint_0"] is None
    assert caplog.text.count("No old run has a value of 'constraint_0': 'constraint_0' is") == 1
    margins = [0.45 - trial.params["x"] for trial in study.trials[:-1]]
    assert asked[-1]["runs"]["constraint_0"].tolist() == pytest.approx(margins)
    assert study.best_params["x"] == pytest.approx(0.45, abs=0.05)


def test_constraints_func_returns_numbers(caplog: Any):
    study = tuned(objective, 3, sampler(seed=0, constraints_func=lambda t: [t.params["x"] < 0.4]))
    told = "constraints_func returns booleans, and True is read as violated: return numbers"
    assert caplog.messages.count(told) == 1
    study.sampler._constraints_func = lambda trial: 0.5
    with pytest.raises(TypeError, match=r"constraints_func returned 0\.5: return a list of num"):
        study.optimize(objective, 1)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_constraints_and_a_pruned_trial_without_any(asked: list[dict[str, Any]]):
    study = tuned(_limited, 2, sampler(seed=0))
    add(study, 0.9, state=TrialState.PRUNED, intermediate_values={0: 1.0})
    add(study, 0.8, value=1.0)
    study.ask(UNIT)
    runs = asked[-1]["runs"]
    assert runs["constraint_size"].isna().tolist() == [False, False, True, True]
    assert runs["status"].tolist() == ["COMPLETE", "COMPLETE", "PRUNED", "COMPLETE"]


def _two(trial: Trial) -> tuple[float, float]:
    x = trial.suggest_float("x", 0, 1)
    return (x - 0.2) ** 2, -((x - 0.6) ** 2)


def test_two_objectives():
    directions = ["minimize", "maximize"]
    old = [old_study(_two, name, directions=directions) for name in ("monday", "tuesday")]
    study = tuned(_two, 3, TransferSampler(old, ScaMLGP, seed=0), directions=directions)
    assert all(0.1 < trial.params["x"] < 0.7 for trial in study.trials)
    assert _apart(study) > 0.02


def test_second_objective_without_history(asked: list[dict[str, Any]]):
    new = sampler(seed=0, outcome=["value", "time"])
    study = tuned(_two, 2, new, directions=["minimize", "maximize"])
    assert [len(call["outcomes"]) for call in asked] == [2, 2]
    assert asked[-1]["sources"]["time"] is None
    assert study.trials[0].params["x"] == pytest.approx(0.3, abs=0.15)  # by the other objective


# ------------------------------------------------------------------------------- several workers


def test_two_threads():
    study = optuna.create_study(sampler=sampler(seed=0))
    study.optimize(objective, n_trials=4, n_jobs=2)
    assert states(study) == [TrialState.COMPLETE] * 4
    assert _apart(study) > 1e-4


def _open_study(storage: str, seed: int) -> optuna.Study:
    """Opens a study in a database, or in a journal file."""
    backend: str | optuna.storages.JournalStorage = storage
    if "://" not in storage:
        file = optuna.storages.journal.JournalFileBackend(storage)
        backend = optuna.storages.JournalStorage(file)
    options = {"study_name": "new", "load_if_exists": True, "sampler": sampler(seed=seed)}
    return optuna.create_study(storage=backend, **options)


def _work(storages: list[str], both_started: Barrier, seed: int) -> None:
    def slowly(trial: Trial) -> float:
        time.sleep(0.05)  # trials overlap
        return objective(trial)

    both_started.wait(120)
    with brief_search():
        for storage in storages:
            _open_study(storage, seed).optimize(slowly, n_trials=2)


def test_two_processes_lose_nothing_and_repeat_nothing(tmp_path: Path):
    storages = [f"sqlite:///{tmp_path}/study.db", str(tmp_path / "journal.log")]
    for storage in storages:
        _open_study(storage, seed=0)  # so that the tables are made once
    context = multiprocessing.get_context("spawn")
    both_started = context.Barrier(2)
    other = context.Process(target=_work, args=(storages, both_started, 1))
    other.start()
    _work(storages, both_started, 0)
    other.join(120)
    assert other.exitcode == 0
    for storage in storages:
        study = _open_study(storage, seed=0)
        assert states(study) == [TrialState.COMPLETE] * 4
        assert _apart(study) > 1e-4


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_hyperband_with_attributes_of_artifacts_and_the_dashboard():
    """Old studies and the new one hold more than trials; a bracket shows a part of the trials.

    What another bracket has tried is not tried again.
    """
    note = {"dashboard:note:0": "why", "artifacts:1": '{"filename": "model.pt"}'}

    def train(trial: Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.set_user_attr("seconds", 1.5)
        for key, value in note.items():
            trial.study._storage.set_trial_system_attr(trial._trial_id, key, value)
        for step in range(1, 4):
            trial.report((x - 0.3) ** 2 + 1 / step, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return (x - 0.3) ** 2 + 1 / 3

    old = [old_study(train, name) for name in ("monday", "tuesday")]
    for study in old:
        study._storage.set_study_system_attr(study._study_id, "dashboard:note", "first try")
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=3)
    new = tuned(train, 4, TransferSampler(old, ScaMLGP, seed=0), pruner=pruner)
    assert set(states(new)) <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert all(list(trial.params) == ["x"] for trial in new.trials)
    assert _apart(new) > 1e-4


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "history",
    [
        3,
        "sqlite:///old.db",
        Path("old.db"),
        ("sqlite:///old.db",),
        ["sqlite:///old.db", "monday"],
        {},
        {"monday": optuna.create_study()},
        {"value": 3},
        [optuna.create_study(), table()],
        (table(), table()),
        [create_trial(value=1.0)],
    ],
)
def test_a_wrong_history_is_refused_in_one_sentence(history: Any):
    inside = f" with a {type(history[-1]).__name__}" if isinstance(history, list | tuple) else ""
    message = f"history is a {type(history).__name__}{inside}: give a list of studies or Ax exp"
    with pytest.raises(TypeError, match=message + r"eriments, a pair \(storage, study names\)"):
        TransferSampler(history, space=UNIT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": ["x"]}, r"space is \['x'\]: give a SearchSpace, or Optuna's distributions"),
        ({"space": {"x": (0, 1)}}, "'x' has the type None: use one of float"),
        ({"seed": "a"}, "seed is 'a': give a whole number"),
        ({"seed": -1}, "seed is -1: give a whole number"),
        ({"rename": ["x"]}, r"rename is \['x'\]: give a dictionary"),
        ({"missing": ["x"]}, r"missing is \['x'\]: give a dictionary"),
        ({"outcome": 3}, "outcome is 3: give a name"),
        ({"outcome": "y", "history": old_study(objective, "old")}, "outcome= is 'y', but history="),
        ({"independent_sampler": optuna.samplers.RandomSampler}, "give a sampler, not its class"),
        ({"constraints_func": [1.0]}, r"constraints_func is \[1.0\]: give a function"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(options: dict[str, Any], message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        sampler(**options)


@pytest.mark.parametrize(
    ("space", "names", "is_wrong"), [("x", "x", 0), ("x", "xk", 0), ("x", "k", 1), ("xy", "xk", 1)]
)
def test_a_wrong_name_in_space_is_named_once(space: str, names: str, is_wrong: int, caplog: Any):
    transfer = sampler(history=[], space=dict.fromkeys(space, UNIT["x"]))
    tuned(lambda trial: sum(trial.suggest_float(n, 0, 1) for n in names), 3, transfer)
    told = f"Parameter '{space[-1]}' is only in space=, and parameter 'k' is only in the trials"
    assert caplog.text.count(told) == is_wrong


def test_wrong_tables_are_refused():
    with pytest.raises(ValueError, match="If history= is a table or a prior, space= is"):
        TransferSampler(table())
    study = optuna.create_study(sampler=sampler(history=table().rename(columns={"value": "loss"})))
    with pytest.raises(InputDataError, match="no column 'value': choose an existing column"):
        study.ask(UNIT)
    study = optuna.create_study(sampler=sampler(outcome=["value", "time"]))
    with pytest.raises(ValueError, match="outcome= names 2 columns, but the study has 1"):
        study.ask(UNIT)
    study = optuna.create_study(directions=["minimize"] * 4, sampler=sampler())
    with pytest.raises(ValueError, match="has 4 objectives: give at most 3"):
        study.ask(UNIT)


@pytest.mark.parametrize("space", [None, UNIT])
@pytest.mark.parametrize("history", [[], [optuna.create_study()], table().head(0)])
def test_an_empty_history_is_none(history: Any, space: Any, caplog: pytest.LogCaptureFixture):
    """One line says so."""
    study = optuna.create_study(sampler=TransferSampler(history, space=space, seed=0))
    assert caplog.messages == ["The history has no runs: the study starts without a history"]
    study.optimize(objective, n_trials=2)
    assert states(study) == [TrialState.COMPLETE] * 2
    assert _apart(study) > 1e-4


def test_without_another_study_it_starts_anew():
    study = old_study(objective, "monday", trials=3)
    study.sampler = TransferSampler([study], seed=0)
    study.optimize(objective, n_trials=1)
    assert states(study) == [TrialState.COMPLETE] * 4


# ------------------------------------------------------------------------- changed distributions


def _smooth(trial: Trial, x: float, k: str) -> float:
    return (float(x) - 0.3) ** 2 + {"a": 0.0}.get(k, 0.3)


CHANGES: dict[str, tuple[Callable[[Trial], float], Callable[[Trial], float]]] = {
    "a new level": (
        lambda t: _smooth(t, t.suggest_float("x", 0, 1), t.suggest_categorical("k", "ab")),
        lambda t: _smooth(t, t.suggest_float("x", 0, 1), t.suggest_categorical("k", "abc")),
    ),
    "a float that was an integer": (
        lambda t: _smooth(t, t.suggest_int("x", 0, 10) / 10, "a"),
        lambda t: _smooth(t, t.suggest_float("x", 0, 10) / 10, "a"),
    ),
    "an integer that was a float": (
        lambda t: _smooth(t, t.suggest_float("x", 0, 10) / 10, "a"),
        lambda t: _smooth(t, t.suggest_int("x", 0, 10) / 10, "a"),
    ),
    "a logarithmic scale": (
        lambda t: _smooth(t, t.suggest_float("x", 0, 1), "a"),
        lambda t: _smooth(t, t.suggest_float("x", 0.01, 1, log=True), "a"),
    ),
    "a number that was a choice": (
        lambda t: _smooth(t, t.suggest_categorical("x", ["0.1", "0.3", "0.9"]), "a"),
        lambda t: _smooth(t, t.suggest_float("x", 0, 1), "a"),
    ),
    "a choice that was a number": (
        lambda t: _smooth(t, t.suggest_int("x", 0, 3) / 10, "a"),
        lambda t: _smooth(t, float(t.suggest_categorical("x", ["0", "1", "3"])) / 10, "a"),
    ),
    "a condition that is gone": (
        lambda t: objective(t) if t.suggest_categorical("k", "ab") == "a" else 1.0,
        objective,
    ),
    "a parent of one choice": (
        lambda t: 1.0 if t.suggest_categorical("k", "ab") == "b" else objective(t),
        lambda t: _smooth(t, t.suggest_float("x", 0, 1), t.suggest_categorical("k", "a")),
    ),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=list(CHANGES))
def test_distributions_may_change(before: Any, after: Any):
    old = [old_study(before, name, trials=12) for name in ("monday", "tuesday")]
    study = tuned(after, 2, TransferSampler(old, ScaMLGP, seed=0))
    assert states(study) == [TrialState.COMPLETE] * 2
    assert study.trials[0].value < 0.03  # a random trial's is .1 to .4
    names = {name for name, d in study.trials[0].distributions.items() if not d.single()}
    assert study.sampler.infer_relative_search_space(study, study.ask()).keys() == names


@pytest.mark.parametrize("space", [None, {"x": FloatDistribution(0.5, 3, log=True)}])
def test_values_that_do_not_fit_are_left_out_with_one_warning(space: Any, caplog: Any):
    old = old_study(lambda t: t.suggest_int("x", 0, 3) + t.suggest_float("y", 0, 1), "old")
    new = lambda t: t.suggest_float("x", 0.5, 3, log=True) + t.suggest_float("y", 0, 1)  # noqa: E731
    tuned(new, 4, TransferSampler([old], ScaMLGP, space, seed=0))
    told = "old values of 'x', such as 0, do not fit the parameter's new distribution"
    assert [told in m for m in caplog.messages if "'x'" in m] == [True]


@pytest.mark.parametrize("rename", [None, {"learning_rate": "lr"}])
def test_a_renamed_parameter(rename: dict[str, str] | None, caplog: pytest.LogCaptureFixture):
    old = old_study(lambda t: (t.suggest_float("learning_rate", 0, 1) - 0.3) ** 2, "old")
    transfer = TransferSampler([old], ScaMLGP, rename=rename, seed=0)
    study = tuned(lambda t: (t.suggest_float("lr", 0, 1) - 0.3) ** 2, 4, transfer)
    assert states(study) == [TrialState.COMPLETE] * 4
    warnings = [m for m in caplog.messages if "rename={'learning_rate': 'lr'}" in m]
    assert len(warnings) == (rename is None)
    assert (study.trials[0].value < 0.02) == (rename is not None)


def test_studies_that_differ_in_kind(caplog: pytest.LogCaptureFixture):
    """A number in the new study was a choice in all old studies, or in some."""
    choice = old_study(lambda t: len(t.suggest_categorical("x", ["a", "bb"])), "tuesday")
    study = tuned(objective, 5, TransferSampler([choice], seed=0))
    assert states(study) == [TrialState.COMPLETE] * 5
    told = "Left out all old runs: none of them has a parameter of the study"
    assert caplog.messages.count(told) == 1
    old = [old_study(lambda t: t.suggest_float("x", 0, 1), "monday"), choice]
    assert states(tuned(objective, 3, TransferSampler(old, seed=0))) == [TrialState.COMPLETE] * 3


def test_a_value_that_old_runs_had_is_given_by_missing(asked: list[dict[str, Any]]):
    old = old_study(objective, "monday", trials=6)
    new = TransferSampler([old], ScaMLGP, missing={"y": 0.5}, seed=0)
    tuned(lambda t: objective(t) + t.suggest_float("y", 0, 1), 2, new)
    (task,) = asked[-1]["sources"]["value"].values()
    assert task.X[:, 1].tolist() == [0.5] * 6


# ------------------------------------------------------------------------------- very bad values


def test_diverged_trials_of_this_study_hardly_matter(asked: list[dict[str, Any]]):
    study = optuna.create_study(sampler=sampler(seed=0))
    add(study, 0.9, value=54_321.0)
    study.optimize(objective, n_trials=2)
    assert all(trial.value < 0.05 for trial in study.trials[1:])
    assert -5 < asked[-1]["Y"].min() < -0.1


def test_diverged_values_may_count_as_they_are(asked: list[dict[str, Any]]):
    raw = sampler(seed=0, history=_diverged_table(54_321.0), robust=False)
    study = optuna.create_study(sampler=raw)
    add(study, 0.9, value=98_765.0)
    study.ask(UNIT)
    assert asked[-1]["Y"].min() == -98_765
    assert min(task.Y.min() for task in asked[-1]["sources"]["value"].values()) == -54_321


def _diverged_table(bad: float) -> pd.DataFrame:
    return table().assign(value=lambda t: t["value"].mask(t["x"] > 0.9, bad))


def test_each_warning_of_values_comes_once_a_sampler(caplog: pytest.LogCaptureFixture):
    old = _diverged_table(-999.0)
    old["value"] = old["value"].astype(object).mask(old.index == 2, "n.d.")
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        for own in (1e30, 54_321.0):
            caplog.clear()
            study = optuna.create_study(sampler=sampler(seed=0, history=old))
            for x in (0.9, 0.95):
                study.optimize(objective, n_trials=2)
                add(study, x, value=own)
            study.optimize(objective, n_trials=1)
            warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
            kinds = "Words such as n.d. count as missing outcomes", "-999 (as -999.0 in row 7"
            for kind in kinds:
                assert sum(kind in message for message in warned) == 1
            of_own = [message for message in warned if not any(kind in message for kind in kinds)]
            assert len(of_own) == (own == 1e30)
            assert all("as 1e+30 in row 2" in message for message in of_own)


def test_a_parameter_with_the_name_of_a_column_is_refused():
    for name in ("value", "task"):
        study = optuna.create_study(sampler=TransferSampler(old_study(objective, "old"), seed=0))
        study.add_trial(create_trial(params={name: 0.5}, distributions={name: UNIT["x"]}, value=1))
        with pytest.raises(ValueError, match=f"parameter '{name}' has the name of a column"):
            study.ask().suggest_float(name, 0, 1)
    space = {"status": UNIT["x"]}
    old = table().rename(columns={"x": "status"})
    study = optuna.create_study(sampler=TransferSampler(old, space=space, seed=0))
    with pytest.raises(ValueError, match="parameter 'status' has the name of a column"):
        study.ask().suggest_float("status", 0, 1)


def test_a_value_of_no_parameter_is_named(caplog):
    """Until all parameters are known it may be of a new one."""
    old = old_study(objective, "old")
    space = UNIT | {"momentum": UNIT["x"]}
    study = optuna.create_study(sampler=TransferSampler(old, missing={"momentm": 0.9}, seed=0))
    trial = study.ask(space)
    assert not caplog.messages
    study.tell(trial, 1.0)
    told = "missing= names the parameter 'momentm', which no trial has"
    assert caplog.messages == [told]
    study.tell(study.ask(), 1.0)
    assert caplog.messages.count(told) == 1
    for history in (old, table()):
        with pytest.raises(
            ValueError, match="names 'momentm', which is not a parameter: use one of"
        ):
            TransferSampler(history, missing={"momentm": 0.9}, space=space)


def test_studies_with_other_numbers_of_objectives_are_named():
    new = TransferSampler([old_study(objective, "monday")], seed=0)
    study = optuna.create_study(study_name="today", directions=["minimize"] * 2, sampler=new)
    with pytest.raises(ValueError, match="'monday' has 1 objectives, and this study has 2: give"):
        study.ask().suggest_float("x", 0, 1)
