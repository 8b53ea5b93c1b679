"""Old studies as tables: which trials count as what, and the search space."""

from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    suggest,
)
from botorch_transfer.old_studies import history_of, merged, read_studies
from botorch_transfer.optuna import TransferSampler, history_from_optuna
from tests.optuna.studies import UNIT, add, old_study


@pytest.mark.parametrize(("direction", "sign"), [("minimize", 1), ("maximize", -1)])
def test_which_trials_count_as_what(direction: str, sign: int):
    study = optuna.create_study(study_name="monday", direction=direction)
    for x, value in [(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)]:
        add(study, x, value=sign * value)
    pruned = {"state": TrialState.PRUNED}
    add(study, 0.5, intermediate_values={0: sign * 5.0}, **pruned)  # no complete curve
    add(study, 0.6, **pruned)
    add(study, 0.7, state=TrialState.FAIL)
    add(study, 0.8, state=TrialState.RUNNING)
    add(study, 0.9, value=float("inf"))
    runs = history_of([study]).runs
    assert runs["x"].tolist() == [0.1, 0.2, 0.3, 0.6, 0.7, 0.9]
    assert [sign * value for value in runs["value"].iloc[:3]] == [1.0, 2.0, 3.0]
    assert runs["value"].iloc[3:5].isna().all()


def test_constraints_are_the_last_columns():
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("memory", x - 0.5)
        return x

    history = history_of([old_study(objective, "monday", trials=3)])
    assert list(history.runs.columns) == ["task", "x", "value", "constraint_memory"]
    assert list(history.constraints) == ["constraint_memory"]
    assert list(history.parameters) == ["x"]
    difference = history.runs["x"] - history.runs["constraint_memory"]
    assert difference.tolist() == pytest.approx([0.5] * 3)


def test_several_objectives_have_optunas_names():
    def objective(trial: optuna.Trial) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 1)
        return x, -x

    study = old_study(objective, "monday", trials=2, directions=["minimize", "maximize"])
    runs = history_of([study]).runs
    assert list(runs.columns) == ["task", "x", "values_0", "values_1"]


def test_space_has_all_kinds():
    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-5, 1.0, log=True)
        units = trial.suggest_int("units", 32, 128, step=32)
        trial.suggest_int("layers", 1, 4)
        trial.suggest_float("fixed", 1.0, 1.0)
        if trial.suggest_categorical("optimizer", ["sgd", "adam"]) == "sgd":
            lr += trial.suggest_float("momentum", 0.0, 1.0)
        return lr + units

    studies = [old_study(objective, name, trials=12) for name in ("monday", "tuesday")]
    history = history_of(studies)
    found = {parameter.name: parameter for parameter in history.space.parameters}
    assert found == {
        "lr": FloatParameter("lr", 1e-5, 1.0, log=True),
        "units": OrdinalParameter("units", (32, 64, 96, 128)),
        "layers": IntegerParameter("layers", 1, 4),
        "optimizer": CategoricalParameter("optimizer", ("sgd", "adam")),
        "momentum": FloatParameter("momentum", 0.0, 1.0, active_if={"optimizer": ("sgd",)}),
    }
    assert history.distributions["lr"] == FloatDistribution(1e-5, 1.0, log=True)
    assert "fixed" in history.parameters


def test_space_is_what_studies_have_in_common():
    def first(trial: optuna.Trial) -> float:
        trial.suggest_categorical("kernel", ["rbf", "poly"])
        trial.suggest_int("changed", 1, 5)
        if trial.number % 2:
            trial.suggest_float("sometimes", 0, 1)  # no parameter says when
        return trial.suggest_float("x", 0, 1)

    def second(trial: optuna.Trial) -> float:
        trial.suggest_categorical("kernel", ["rbf", "linear"])
        trial.suggest_float("changed", 0, 1)
        trial.suggest_float("new", 0, 1)
        return trial.suggest_float("x", -1, 0.5)

    history = history_of([old_study(first, "monday"), old_study(second, "tuesday")])
    assert history.space.columns == ["kernel", "changed", "x", "new"]
    kernel, changed, x, _ = history.space.parameters
    assert kernel.values == ("rbf", "poly", "linear")
    assert (changed, x) == (FloatParameter("changed", 0.0, 5.0), FloatParameter("x", -1.0, 1.0))
    assert set(history.parameters) == {"kernel", "changed", "sometimes", "x", "new"}


def test_storage_and_suggest(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/old.db"
    for name in ("monday", "tuesday", "wednesday"):
        old_study(lambda trial: trial.suggest_float("x", 0, 1), name, trials=3, storage=url)
    history = history_from_optuna(url, ["monday", "tuesday"])
    assert history.runs["task"].tolist() == ["monday"] * 3 + ["tuesday"] * 3
    rows = suggest(history.space, history.runs, outcome="value")
    assert 0 <= rows["x"].iloc[0] <= 1
    with pytest.raises(ValueError, match="no study 'sunday': choose from 'monday', 'tuesday'"):
        history_from_optuna(url, ["sunday"])
    absent = tmp_path / "absent.db"
    with pytest.raises(ValueError, match=f"There is no database {absent}: correct the URL"):
        history_from_optuna(f"sqlite:///{absent}", ["monday"])
    assert not absent.exists()
    for path in ("old.db", tmp_path / "old.db"):
        with pytest.raises(ValueError, match=r"Optuna cannot open the storage .*: give a URL"):
            read_studies((path, ["monday"]))
    for names in ("monday", None):
        with pytest.raises(TypeError, match=f"study_names is {names!r}: give a list of names"):
            history_from_optuna(url, names)


def test_studies_that_do_not_fit_are_refused():
    both = old_study(lambda t: (t.suggest_float("x", 0, 1), 0), "both", directions=["minimize"] * 2)
    one = old_study(lambda trial: trial.suggest_float("x", 0, 1), "one")
    with pytest.raises(ValueError, match="'both' has 2 objectives, and the first study has 1:"):
        history_of([one, both])
    with pytest.raises(ValueError, match="no studies: give at least one"):
        history_of([])
    empty = optuna.create_study()
    assert history_of([empty]).space is None
    with pytest.raises(ValueError, match="no parameter that varies and is in every complete trial"):
        history_from_optuna(empty._storage, [empty.study_name])
    clash = old_study(lambda trial: trial.suggest_float("value", 0, 1), "clash")
    with pytest.raises(ValueError, match="'value' of study 'clash' is already"):
        history_of([clash])


def test_studies_of_the_opposite_direction_are_turned_round():
    down = old_study(lambda trial: trial.suggest_float("x", 0, 1), "down")
    up = old_study(lambda trial: -trial.suggest_float("x", 0, 1), "up", direction="maximize")
    runs = history_of([down, up]).runs
    assert runs["value"].tolist() == runs["x"].tolist()
    assert (-history_of([up, down]).runs["value"]).tolist() == [*runs["x"][8:], *runs["x"][:8]]


@pytest.mark.parametrize(
    ("distributions", "expected"),
    [
        ([IntDistribution(1, 5), FloatDistribution(0, 3)], FloatDistribution(0, 5)),
        ([FloatDistribution(1, 5), FloatDistribution(2, 9, log=True)], "log"),
        ([FloatDistribution(2, 9, log=True), FloatDistribution(0, 5)], FloatDistribution(0, 9)),
        ([FloatDistribution(0, 5), FloatDistribution(2, 9, log=True)], FloatDistribution(0, 9)),
        ([FloatDistribution(0, 1, step=0.5), IntDistribution(0, 2)], FloatDistribution(0, 2)),
        ([IntDistribution(2, 8, step=2), IntDistribution(4, 12, step=2)], "step"),
        ([IntDistribution(2, 8, step=2), IntDistribution(1, 5, step=2)], IntDistribution(1, 8)),
        ([CategoricalDistribution((1, None)), CategoricalDistribution(("a", 1))], "choices"),
        ([CategoricalDistribution((1, 2)), IntDistribution(1, 2)], None),
    ],
)
def test_merged_distributions_contain_all(distributions, expected):
    listed = CategoricalDistribution((1, None, "a"))
    stepped = IntDistribution(2, 12, step=2)
    named = {"log": FloatDistribution(1, 9, log=True), "step": stepped, "choices": listed}
    assert merged(distributions) == named.get(expected, expected)


def test_parameters_are_renamed(caplog: pytest.LogCaptureFixture):
    old = old_study(lambda t: t.suggest_float("learning_rate", 0, 1), "old")
    new = old_study(lambda t: t.suggest_float("lr", 0, 2), "new")
    assert history_of([old, new]).space.columns == ["learning_rate", "lr"]
    assert len(caplog.messages) == 2
    message = "study 'new' lacks the parameter 'learning_rate' and has the parameter 'lr'"
    assert message in caplog.messages[0]
    caplog.clear()
    history = history_of([old, new], rename={"learning_rate": "lr"})
    assert history.space.parameters == (FloatParameter("lr", 0.0, 2.0),)
    assert history.runs["lr"].notna().all()
    assert not caplog.messages
    with pytest.raises(ValueError, match="rename= names 'rate', which is in no old study"):
        history_of([old], rename={"rate": "lr"})
    with pytest.raises(ValueError, match=r"rename= gives 'x' the name \['a'\]: give one name"):
        history_of([old], rename={"x": ["a"]})  # type: ignore[dict-item]
    both = old_study(lambda t: t.suggest_float("a", 0, 1) + t.suggest_float("b", 0, 1), "both")
    with pytest.raises(ValueError, match="'b' of study 'both' is already used for a column"):
        history_of([both], rename={"a": "b"})
    with pytest.raises(ValueError, match="rename= does not apply to a prior or an OptunaHistory"):
        read_studies(history, {"lr": "rate"})


def test_a_deleted_study_is_named():
    study = old_study(lambda trial: trial.suggest_float("x", 0, 1), "gone")
    optuna.delete_study(study_name="gone", storage=study._storage)
    with pytest.raises(ValueError, match="An old study was deleted from its storage"):
        read_studies([study])


def test_ax_experiments_are_read_as_studies():
    """Finished arms count, of several metrics the objectives."""
    api = pytest.importorskip("ax.api.client")
    configs = pytest.importorskip("ax.api.configs")
    client = api.Client()
    kind = configs.ChoiceParameterConfig("kind", ["p", "q"], parameter_type="str")
    lr = configs.RangeParameterConfig("lr", (1e-4, 1.0), parameter_type="float", scaling="log")
    client.configure_experiment([lr, kind], name="monday")
    client.configure_optimization("accuracy", outcome_constraints=["memory <= 5"])
    for x in (1e-3, 1e-2, 1e-1):
        trial = client.attach_trial({"lr": x, "kind": "p"})
        client.complete_trial(trial, {"accuracy": x, "memory": 1.0})
    client.mark_trial_failed(client.attach_trial({"lr": 1.0, "kind": "q"}))
    client.mark_trial_abandoned(client.attach_trial({"lr": 0.5, "kind": "q"}))
    client.attach_trial({"lr": 0.6, "kind": "q"})
    without = client.attach_trial({"lr": 0.7, "kind": "q"})  # completed, but its data are lost
    client._experiment.trials[without].mark_completed()
    history = read_studies([client], rename={"lr": "learning_rate"})
    assert history.runs["learning_rate"].tolist() == [1e-3, 1e-2, 1e-1, 1.0]
    assert history.runs["value"].tolist()[:3] == [1e-3, 1e-2, 1e-1]
    assert history.runs["value"].isna().tolist() == [False, False, False, True]
    assert history.directions == (optuna.study.StudyDirection.MAXIMIZE,)
    assert history.space.parameters[0] == FloatParameter("learning_rate", 1e-4, 1.0, log=True)
    study = optuna.create_study(direction="maximize", sampler=TransferSampler(client, seed=0))
    trial = study.ask()
    assert trial.suggest_float("lr", 1e-4, 1.0, log=True) > 1e-2
    assert trial.suggest_categorical("kind", ["p", "q"]) == "p"
    empty = api.Client()
    empty.configure_experiment([lr, kind], name="tuesday")
    with pytest.raises(ValueError, match="Experiment 'tuesday' has no objective: omit"):
        read_studies([client, empty])


def test_failed_trials_with_values_keep_them():
    """Only a storage takes such values; trials that are not finished are left out."""
    study = optuna.create_study(study_name="monday")
    add(study, 0.1, value=1.0)
    add(study, 0.3, state=TrialState.FAIL)
    trial = study.ask(UNIT)
    study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL, [2.0])
    add(study, 0.4, state=TrialState.RUNNING)
    add(study, 0.5, state=TrialState.WAITING)
    runs = history_of([study]).runs
    assert runs["x"].tolist() == [0.1, 0.3, trial.params["x"]]
    assert runs["value"].isna().tolist() == [False, True, False]
    assert runs["value"].iloc[2] == 2.0
