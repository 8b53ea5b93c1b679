"""Stopping trials by what learning curves of earlier studies tell."""

import pickle
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from botorch.exceptions.errors import InputDataError
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from pandas import DataFrame, concat

from botorch_transfer.curves import CurvePrior, variance_column
from botorch_transfer.old_studies import curves_of, history_of, rows_of
from botorch_transfer.optuna import TransferPruner, TransferSampler, history_from_optuna
from tests.test_curves import task

UNIT = {"x": FloatDistribution(0, 1)}
LENGTH = 20
OLD = concat([task(f"task {i}", i, length=LENGTH) for i in range(3)])
PRIOR = CurvePrior.fit(OLD, "loss", "epoch", "min", run="run")


def loss(x: float, step: int) -> float:
    return 5 + x + (0.5 + x) / step


def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", 0, 1)
    for step in range(1, LENGTH + 1):
        trial.report(loss(x, step), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss(x, LENGTH)


def finished(x: float, state: TrialState = TrialState.COMPLETE, steps: int = LENGTH) -> Any:
    values = {step: loss(x, step) for step in range(1, steps + 1)}
    end = loss(x, LENGTH) if state == TrialState.COMPLETE else None
    return create_trial(
        params={"x": x}, distributions=UNIT, value=end, intermediate_values=values, state=state
    )


def old_study(name: str = "monday", pruned: bool = False) -> optuna.Study:
    study = optuna.create_study(study_name=name)
    for i in range(8):
        study.add_trial(finished(i / 8))
    if pruned:
        study.add_trial(finished(0.95, TrialState.PRUNED, 5))
    return study


def tune(study: optuna.Study, xs: list[float]) -> list[TrialState]:
    for x in xs:
        study.enqueue_trial({"x": x})
    study.optimize(objective, len(xs))
    return [trial.state for trial in study.trials]


@pytest.mark.parametrize(
    "history", [PRIOR, old_study(), [old_study()], OLD], ids=["prior", "study", "studies", "table"]
)
def test_bad_trials_stop_from_the_second_one_on(history: Any) -> None:
    of_table = {"step": "epoch", "outcome": "loss", "run": "run"}
    options = of_table if isinstance(history, DataFrame) else {}
    study = optuna.create_study(pruner=TransferPruner(history, **options))
    states = tune(study, [0.3, 1.0, 0.0])
    assert [state.name for state in states] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert len(study.trials[1].intermediate_values) < LENGTH / 2


def test_columns_and_parameters_are_renamed() -> None:
    old = OLD.rename(columns={"loss": "error"})
    pruner = TransferPruner(old, "epoch", "loss", rename={"error": "loss"}, run="run")
    assert tune(optuna.create_study(pruner=pruner), [0.3, 1.0])[1] == TrialState.PRUNED
    pruner = TransferPruner(old_study(), rename={"x": "rate"})
    assert tune(optuna.create_study(pruner=pruner), [0.3, 1.0])[1] == TrialState.PRUNED


def test_directions_are_respected() -> None:
    old = OLD.assign(loss=-OLD["loss"])
    prior = CurvePrior.fit(old, "loss", "epoch", "max", run="run")
    study = optuna.create_study(direction="maximize", pruner=TransferPruner(prior))
    for x, end in ((0.1, LENGTH), (1.0, 8), (0.0, 8)):
        trial = study.ask()
        for step in range(1, end + 1):
            trial.report(-loss(x, step), step)
        if end < LENGTH:
            assert trial.should_prune() == (x == 1.0)
        study.tell(trial, -loss(x, LENGTH))


def test_each_direction_has_its_own_prior(caplog: Any) -> None:
    pruner = TransferPruner(OLD, "epoch", "loss", run="run")
    studies = [optuna.create_study(study_name="x", direction=d) for d in ("minimize", "maximize")]
    low, high = (pruner._prior(s, sign).unit[2] for s, sign in zip(studies, (-1, 1), strict=True))
    assert low == -high  # the location of the outcomes
    assert caplog.text.count("'loss' is maximized, but the name suggests the opposite") == 1
    for study, sign in zip(studies, (-1, 1), strict=True):
        TransferPruner([old_study()])._prior(study, sign)
    assert caplog.text.count("The old studies have the opposite direction") == 1


def test_before_a_trial_is_complete_the_best_prediction_is_the_reference() -> None:
    study = optuna.create_study(pruner=TransferPruner(PRIOR))
    first, second = study.ask(), study.ask()
    for step in range(1, 9):
        first.report(loss(1.0, step), step)
    assert not first.should_prune()  # the only one
    for step in range(1, 9):
        second.report(loss(0.0, step), step)
    assert first.should_prune()
    assert not second.should_prune()


@pytest.mark.parametrize("kind", ["empty", "study", "table"])
def test_without_old_curves_its_own_complete_trials_tell(kind: str, caplog: Any) -> None:
    old = optuna.create_study(study_name="monday")
    old.add_trial(create_trial(params={"x": 0.1}, distributions=UNIT, value=1.0))
    history = {"empty": [], "study": old, "table": OLD.sort_values("epoch")}[kind]
    study = optuna.create_study(pruner=TransferPruner(history, "epoch", "loss"))
    states = tune(study, [0.1, 0.3, 0.2, 1.0])
    told = "no complete trial has three intermediate values" + ": name the col" * (kind == "table")
    assert caplog.text.count(told) == (kind != "empty")
    assert states[0] == TrialState.COMPLETE
    assert states[-1] == TrialState.PRUNED


def test_a_report_is_quick_and_workers_share_nothing(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    pruner = pickle.loads(pickle.dumps(TransferPruner(PRIOR)))
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(storage=storage, pruner=pruner, sampler=sampler)
    study.optimize(objective, 4, n_jobs=2)
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    again = optuna.load_study(study_name=study.study_name, storage=storage, pruner=pruner)
    trial = again.ask()
    trial.report(loss(0.5, 1), 1)
    start = time.process_time()
    for _ in range(5):
        pruner.prune(study, again.trials[-1])
    assert (time.process_time() - start) / 5 < 0.1  # usually 5 ms


def test_pruned_trials_count_with_their_predicted_end() -> None:
    study = old_study(pruned=True)
    last, end = loss(0.95, 5), loss(0.95, LENGTH)
    found = history_of([study]).runs["value"].iloc[-1]
    assert abs(found - end) < 0.3 * (last - end)
    rows = rows_of(study.trials, study.directions, ["value"], PRIOR)
    assert [row[variance_column("value")] > 0 for row in rows] == [False] * 8 + [True]
    assert [row["value"] for row in rows[:8]] == [trial.value for trial in study.trials[:8]]


def test_the_sampler_adds_their_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    from botorch_transfer.optuna import sampler as room

    asked, before = [], room.suggest_rows
    monkeypatch.setattr(room, "suggest_rows", lambda t, *rest: asked.append(t) or before(t, *rest))
    sampler = TransferSampler([old_study("monday"), old_study("tuesday")], seed=0)
    study = optuna.create_study(sampler=sampler)
    for x in (0.2, 0.6):
        study.add_trial(finished(x, TrialState.PRUNED, 6))
    study.add_trial(finished(0.5))
    study.ask(UNIT)
    added = asked[-1].runs.added[:, 0]
    assert (added > 0).tolist() == [True, True, False]


def test_refusals(tmp_path: Path) -> None:
    columns = {"step": "epoch", "outcome": "loss"}
    for error, message, history, options in (
        (ValueError, r"give a number from 0\.5 to below 1", PRIOR, {"probability": 1.0}),
        (ValueError, "set step=", OLD, {}),
        (ValueError, "probability is 'high': give a number", PRIOR, {"probability": "high"}),
        (TypeError, "history is a int: give a list of studies", 3, {}),
        (TypeError, r"rename is \['x'\]: give a dictionary", old_study(), {"rename": ["x"]}),
        (InputDataError, "learning curves has no column 'loss'", OLD.drop(columns="loss"), columns),
    ):
        with pytest.raises(error, match=message):
            TransferPruner(history, **options)
    study = optuna.create_study(directions=["minimize", "minimize"])
    with pytest.raises(ValueError, match="takes one objective"):
        TransferPruner(PRIOR).prune(study, finished(0.5))


def test_a_complete_curve_ends_with_the_value_of_the_trial() -> None:
    trial = create_trial(value=1.0, intermediate_values={1: 3.0, 2: 2.0})
    assert curves_of([trial], -1.0)[0].values.tolist() == [-3.0, -1.0]


def test_history_of_storages_has_curves(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'old.db'}"
    study = optuna.create_study(storage=storage, study_name="monday")
    study.add_trial(finished(0.5))
    (curve,) = history_from_optuna(storage, ["monday"]).curves
    assert (curve.task, len(curve.steps)) == ("monday", LENGTH)
