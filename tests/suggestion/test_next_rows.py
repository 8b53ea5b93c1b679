"""Tables in, next rows out."""

import io
import math

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    PretrainedGP,
    PretrainedPrior,
    ScaMLGP,
    SearchSpace,
    SourceGPs,
    TransferGP,
    from_dataframe,
    suggest,
)
from botorch_transfer.suggestion import Outcome, Suggestion, read_study, search, suggest_rows
from botorch_transfer.suggestion.search import SAME_ROW
from tests.suggestion.brief_search import brief_search

pytestmark = pytest.mark.usefixtures("_brief_search")

LR = FloatParameter("lr", 1e-4, 1.0, log=True)
DEPTH = IntegerParameter("depth", 1, 9)
WD = FloatParameter("wd", 1e-6, 1e-1, log=True)
SPACE = SearchSpace([LR, DEPTH])


def loss(frame: pd.DataFrame, shift: float = 0.0, wd: float | None = None) -> pd.Series:
    """Smallest at lr = .01, depth = 4, and maybe some wd."""
    value = (np.log10(frame["lr"]) + 2 - shift) ** 2 / 4 + (frame["depth"] - 4) ** 2 / 20
    if wd is not None:
        value = value + (np.log10(frame["wd"]) - np.log10(wd)) ** 2 / 8
    return value


def old_runs(space: SearchSpace = SPACE, n: int = 20, tasks: int = 3) -> pd.DataFrame:
    parts = []
    for number in range(tasks):
        runs = space.sample(n, seed=number)
        runs.insert(0, "task", f"task {number}")
        runs["loss"] = loss(runs, 0.1 * number) + number
        parts.append(runs)
    return pd.concat(parts, ignore_index=True)


HISTORY = old_runs()


def tune(space, history, evaluate, steps, **options) -> pd.DataFrame:
    runs = pd.DataFrame()
    for _ in range(steps):
        row = suggest(space, history, runs, **options)[space.columns]
        runs = pd.concat([runs, row.assign(loss=evaluate(row))], ignore_index=True)
    return runs


def fitted(space, history, runs=None, model=None, **options) -> Suggestion:
    """What `suggest` does, with the models."""
    return suggest_rows(read_study(space, history, runs, **options), model=model)


def assert_new(space: SearchSpace, rows: pd.DataFrame, runs: pd.DataFrame | None = None) -> None:
    """Asserts that rows are valid, and differ from one another and from the runs."""
    X = space.encode(rows)
    others = X if runs is None else torch.cat([X, space.encode(runs)])
    assert (torch.cdist(X, others, p=np.inf) <= SAME_ROW).sum() == len(X)


# ----------------------------------------------------------------------------------- what it gives


@pytest.mark.parametrize("model", [None, ScaMLGP])
def test_the_first_row_is_where_old_runs_were_good(model):
    rows = suggest(SPACE, HISTORY, model=model)
    improvement = ["expected_improvement", "probability_of_improvement"]
    added = ["predicted_mean", "predicted_std", *improvement, "sources"]
    assert list(rows.columns) == ["lr", "depth", *added]
    assert loss(rows).item() < 0.1
    assert rows["depth"].dtype == np.int64
    assert -1.0 < rows["predicted_mean"].item() < HISTORY["loss"].mean() - 1
    assert set(rows["sources"].item().split(", ")) == {"task 0", "task 1", "task 2"}


def test_the_goal_max_mirrors_min():
    rows = suggest(SPACE, HISTORY, n=2)
    mirrored = suggest(SPACE, HISTORY.assign(loss=-HISTORY["loss"]), goal="max", n=2)
    pd.testing.assert_frame_equal(rows[SPACE.columns], mirrored[SPACE.columns])
    np.testing.assert_allclose(rows["predicted_mean"], -mirrored["predicted_mean"])
    np.testing.assert_allclose(rows["predicted_std"], mirrored["predicted_std"])


def test_log_is_a_column_of_logarithms():
    old = HISTORY.assign(loss=np.exp(HISTORY["loss"]), sem=0.1 * np.exp(HISTORY["loss"]))
    runs = SPACE.sample(4, seed=5).assign(loss=[0.3, np.nan, 2.0, np.inf], sem=[0.03, 1, 0.4, 1])
    options = {"noise": "sem", "model": ScaMLGP, "n": 2}
    rows = suggest(SPACE, old, runs, log=True, **options)
    logs = runs.assign(loss=np.log(runs["loss"]), sem=runs["sem"] / runs["loss"])
    expected = suggest(SPACE, HISTORY.assign(sem=0.1), logs, **options)
    pd.testing.assert_frame_equal(rows[SPACE.columns], expected[SPACE.columns])
    mean, std = expected[["predicted_mean", "predicted_std"]].to_numpy().T
    drawn = np.exp(np.random.default_rng(0).normal(mean, std, (100_000, 2)))
    np.testing.assert_allclose(rows["predicted_mean"], drawn.mean(0), rtol=0.05)
    np.testing.assert_allclose(rows["predicted_std"], drawn.std(0), rtol=0.1)


def test_the_logarithm_of_a_constraint_has_that_of_its_limit():
    old = HISTORY.assign(size=10.0 ** HISTORY["depth"])
    runs = SPACE.sample(5, seed=5)
    runs = runs.assign(loss=loss(runs), size=10.0 ** runs["depth"])
    options = {"constraints": {"size": "<= 1000"}, "model": ScaMLGP}
    rows = suggest(SPACE, old, runs, log="size", **options)
    assert rows["depth"].item() <= 3
    assert rows["predicted_mean_size"].item() == pytest.approx(10.0 ** rows["depth"].item(), 0.1)


def test_equal_tables_give_equal_rows_also_from_a_file():
    runs = SPACE.sample(3, seed=5).assign(loss=[0.3, np.nan, 0.4])
    text = runs.to_csv(index=False)
    before = torch.random.get_rng_state()
    rows = suggest(SPACE, HISTORY, runs, seed=3)
    table = pd.read_csv(io.StringIO(text))
    again = suggest(SPACE.to_dict(), HISTORY, table, seed=np.int64(3))
    pd.testing.assert_frame_equal(rows, again)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not rows.equals(suggest(SPACE, HISTORY, runs, seed=4))


def test_tables_are_left_as_they_are():
    history, runs = HISTORY.copy(), SPACE.sample(2, seed=0).assign(loss=[0.2, np.nan])
    copy = runs.copy()
    suggest(SPACE, history, runs, model=ScaMLGP)
    pd.testing.assert_frame_equal(history, HISTORY)
    pd.testing.assert_frame_equal(runs, copy)


@pytest.mark.parametrize("model", [ScaMLGP, TransferGP])
def test_a_few_rows_find_the_optimum(model):
    runs = tune(SPACE, HISTORY, lambda rows: loss(rows, 0.4), 6, model=model)
    assert runs["loss"].min() < 0.01
    assert_new(SPACE, runs)


# ---------------------------------------------------------------------- pending, failed, batches


def test_batches_spread_and_pending_rows_count_as_under_way():
    rows = suggest(SPACE, HISTORY, n=4, model=ScaMLGP)
    X = SPACE.encode(rows)
    assert_new(SPACE, rows)
    assert torch.pdist(X).min() > 0.05
    pending = suggest(SPACE, HISTORY, rows[SPACE.columns], model=ScaMLGP)
    assert_new(SPACE, pending, rows)
    assert not np.isclose(pending["lr"].item(), rows["lr"][0], rtol=0.05)
    empty = rows[SPACE.columns].assign(loss=np.nan)
    without_column = suggest(SPACE, HISTORY, empty, model=ScaMLGP)
    pd.testing.assert_frame_equal(pending, without_column)


def test_the_first_batch_is_near_the_best_of_the_sources():
    """Far away the target may be the sources' opposite, and no outcome has ruled that out."""
    space = SearchSpace([FloatParameter("x", 0.0, 1.0), FloatParameter("z", 0.0, 1.0)])
    tasks = []
    for number in range(3):
        X = space.sample(20, seed=number)
        off = (X["x"] - 0.4 - 0.1 * number) ** 2 + (X["z"] - 0.4 + 0.1 * number) ** 2
        tasks.append(X.assign(loss=5 * off, task=str(number)))
    rows = suggest(space, pd.concat(tasks), n=4)
    points = rows[["x", "z"]].to_numpy()
    assert np.linalg.norm(points - [0.5, 0.3], axis=1).max() < 0.35
    assert torch.pdist(torch.from_numpy(points)).min() > 0.1


@pytest.mark.parametrize(("how", "others"), [("status", 0), ("infinite", 2)])
def test_failed_rows_are_not_tried_again(how, others):
    options = {"model": ScaMLGP, "robust": False}
    first = suggest(SPACE, HISTORY, **options)[SPACE.columns]
    runs = pd.concat([first, SPACE.sample(others, seed=8)] if others else [first])
    runs["loss"] = [np.inf if how == "infinite" else np.nan, *loss(runs)[1:]]
    runs["status"] = ["Failed" if how == "status" else "", *["ok"] * others]
    row = suggest(SPACE, HISTORY, runs, **options)
    assert_new(SPACE, row, runs)
    distance = torch.cdist(SPACE.encode(row), SPACE.encode(first)).item()
    assert distance > 0.1
    undecided = suggest(SPACE, HISTORY, runs.assign(status="", loss=loss(runs)), **options)
    assert distance > torch.cdist(SPACE.encode(undecided), SPACE.encode(first)).item()


# ------------------------------------------------------------------- outcomes, constraints, noise


def test_several_outcomes_and_a_constraint():
    def measured(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(
            latency=rows["depth"] + np.log10(rows["lr"]), memory=10.0 * rows["depth"]
        )

    history = measured(HISTORY)
    options = {"outcome": ["loss", "latency"], "goal": ["min", "min"], "model": ScaMLGP}
    constraints = {"memory": "<= 35"}
    runs = pd.DataFrame()
    for _ in range(2):
        rows = suggest(SPACE, history, runs, n=2, constraints=constraints, **options)
        names = [f"predicted_mean_{name}" for name in ("loss", "latency", "memory")]
        assert [c for c in rows.columns if c.startswith("predicted_mean")] == names
        assert (rows["depth"] <= 4).all()
        new = measured(rows[SPACE.columns].assign(loss=loss))
        assert_new(SPACE, new, runs if len(runs) else None)
        runs = pd.concat([runs, new], ignore_index=True)
    assert (runs["memory"] <= 35).sum() >= 3
    np.testing.assert_allclose(rows["predicted_mean_memory"], 10 * rows["depth"], atol=8)
    free = suggest(SPACE, history, runs, **options)
    assert_new(SPACE, free, runs)


def test_random_numbers_of_devices_are_left_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", pytest.fail)
    before = torch.get_rng_state()
    assert len(suggest(SPACE, HISTORY, n=np.int64(1), model=ScaMLGP)) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_known_noise_is_used():
    history = HISTORY.assign(sem=0.01)
    runs = SPACE.sample(4, seed=2)
    runs["loss"] = loss(runs) + 5.0 * (np.arange(4) == 0)
    options = {"noise": "sem", "robust": False}
    sure = fitted(SPACE, history, runs.assign(sem=1e-3), **options).models["loss"]
    unsure = fitted(SPACE, history, runs.assign(sem=[100.0, 1e-3, 1e-3, 1e-3]), **options)
    X = SPACE.encode(runs)[:1]
    sure_mean = -sure.posterior(X).mean.item()
    unsure_mean = -unsure.models["loss"].posterior(X).mean.item()
    assert sure_mean == pytest.approx(runs["loss"][0], abs=0.05)
    assert unsure_mean < runs["loss"][0] - 2
    # Only some runs have a standard error: theirs is inferred.
    suggest(SPACE, history, runs, noise="sem")


# ------------------------------------------------------------------------------------- spaces


MIXED = SearchSpace(
    [
        CategoricalParameter("solver", ("adam", "sgd", "lion")),
        LR,
        FloatParameter("momentum", 0.0, 0.99, active_if={"solver": "sgd"}),
        OrdinalParameter("batch", (16, 32, 64)),
        DEPTH,
        FloatParameter("web", 0.0, 1.0),
    ]
)


def mixed_loss(frame: pd.DataFrame) -> pd.Series:
    by_solver = frame["solver"].map({"adam": 0.3, "sgd": 0.0, "lion": 0.5})
    momentum = (pd.to_numeric(frame["momentum"]).fillna(0.0) - 0.6) ** 2
    batch = frame["batch"].map({16: 0.2, 32: 0.0, 64: 0.1})
    return loss(frame) + by_solver + momentum * (frame["solver"] == "sgd") + batch + frame["web"]


def test_a_mixed_and_conditional_space():
    parts = [MIXED.sample(20, seed=i).assign(task=f"t{i}") for i in range(3)]
    history = pd.concat(parts, ignore_index=True)
    history["loss"] = mixed_loss(history)
    runs = tune(MIXED, history, mixed_loss, 3)
    assert_new(MIXED, runs)
    assert (runs["momentum"].notna() == (runs["solver"] == "sgd")).all()
    assert runs["loss"].min() < history["loss"].min() + 0.05
    batch = suggest(MIXED, history, runs, n=2, model=ScaMLGP)
    assert_new(MIXED, batch, runs)


def test_every_configuration_of_a_finite_space_is_tried_once():
    space = SearchSpace([OrdinalParameter("x", (1, 2, 3)), CategoricalParameter("c", ("a", "b"))])
    history = space.grid()
    history["loss"] = (history["x"] - 2) ** 2 + (history["c"] == "a") + 0.0
    history["task"] = "old"
    rows = suggest(space, history, n=6)
    assert (rows["x"][0], rows["c"][0]) == (2, "b")
    assert not rows[["x", "c"]].duplicated().any()
    with pytest.raises(ValueError, match="Too few rows are left"):
        suggest(space, history, rows[["x", "c"]])
    with pytest.raises(ValueError, match="ask for fewer rows"):
        suggest(space, history, n=7)


@pytest.mark.parametrize("n", [0, 2])
def test_a_prior_in_place_of_the_history(n):
    data = from_dataframe(HISTORY, SPACE, "loss", "task", goal="min")
    runs = SPACE.sample(n, seed=1) if n else None
    if runs is not None:
        runs["loss"] = loss(runs)
    rows = suggest(SPACE, None, runs, prior=SourceGPs.fit(data, num_restarts=0))
    assert loss(rows).item() < 0.2
    assert "task" in rows["sources"].item()
    if n == 0:
        expected = suggest(SPACE, HISTORY)
        assert rows["lr"].item() == pytest.approx(expected["lr"].item(), rel=0.1)
    other = PretrainedPrior.hyperbo(2).fit(data, steps=10)
    rows = suggest(SPACE, None, runs, prior={"loss": other}, model=PretrainedGP)
    assert rows["sources"].item() == ""
    assert_new(SPACE, rows, runs)


# ---------------------------------------------------------------------------- changed search spaces

NEW = SearchSpace([LR, DEPTH, WD])


@pytest.mark.parametrize("missing", [None, {"wd": 1e-4}])
def test_first_rows_with_a_new_parameter_are_not_at_its_bounds(missing, monkeypatch):
    monkeypatch.setattr(search, "MAX_ITER", 10)  # to the middle, not only towards it

    def evaluate(rows):
        return loss(rows, wd=1e-3)

    runs = tune(NEW, HISTORY, evaluate, 4, missing=missing, model=ScaMLGP)
    u = NEW.encode(runs)[:, 2]
    first = 0.4 if missing else 0.5
    assert u[0].item() == pytest.approx(first, abs=0.05)
    assert ((u[:2] > 0.1) & (u[:2] < 0.9)).all()
    # The old tasks' optimum of the other parameters is used at once.
    assert (loss(runs)[:3] < 0.5).all()
    assert runs["loss"].min() < 0.1


def test_away_from_a_known_value_sources_say_nothing():
    found = fitted(NEW, HISTORY, missing={"wd": 1e-4}, model=ScaMLGP)
    model = found.models["loss"]
    rows = pd.DataFrame({"lr": 0.01, "depth": 4, "wd": [1e-4, 1e-3, 1e-2, 1e-1]})
    posterior = model.posterior(NEW.encode(rows))
    mean, std = -posterior.mean.detach().flatten(), posterior.variance.detach().flatten().sqrt()
    average = HISTORY["loss"].mean()
    assert (mean.diff() > 0).all()
    assert (std.diff() > 0).all()
    assert mean[0] < average - 0.5
    # Each task predicts its own mean, and their average is that of all tasks.
    assert abs(mean[-1] - average) < 0.35 * abs(mean[0] - average)


def test_a_new_choice_is_neither_best_nor_worst():
    def space(*choices):
        return SearchSpace([LR, DEPTH, CategoricalParameter("opt", choices)])

    history = old_runs(space("sgd", "adam"), n=30)
    history["loss"] += 0.4 * (history["opt"] == "sgd")
    new = space("sgd", "adam", "lion")
    model = fitted(new, history).models["loss"]
    rows = new.sample(200, seed=0)
    mean = {
        choice: -model.posterior(new.encode(rows.assign(opt=choice))).mean.detach().flatten()
        for choice in ("sgd", "adam", "lion")
    }
    average = history["loss"].mean()
    assert mean["lion"].min() > mean["adam"].min() + 0.1
    assert mean["lion"].max() < mean["sgd"].max() - 0.1
    assert (mean["lion"] - average).abs().mean() < 0.5 * (mean["adam"] - average).abs().mean()


# ------------------------------------------------------------------------------------ random tables

PARAMETERS = {
    "x": FloatParameter("x", -1.0, 2.0),
    "lr": LR,
    "momentum": FloatParameter("momentum", 0.1, 0.99, log="1-x"),
    "depth": DEPTH,
    "batch": OrdinalParameter("batch", (8, 16, 64)),
    "kind": CategoricalParameter("kind", ("a", "b", "c")),
    "one": CategoricalParameter("one", ("only",)),
}
CELLS = st.one_of(
    st.floats(-3, 3), st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e-3, 8, 16, 4, 1e9])
)


def test_a_choice_may_leave_nothing_to_search():
    inner = FloatParameter("inner", 0.0, 1.0, active_if={"kind": ("a", "b")})
    space = SearchSpace([CategoricalParameter("kind", ("a", "b", "c")), inner])
    history = pd.DataFrame({"kind": ["a"], "inner": [0.02], "loss": [0.0], "task": ["t"]})
    assert_new(space, suggest(space, history, n=2, model=ScaMLGP))
    only = SearchSpace([CategoricalParameter("kind", ("a", "b", "c"))])
    assert_new(only, suggest(only, history.drop(columns="inner"), n=2, model=ScaMLGP))


@st.composite
def tables(draw):
    names = draw(st.lists(st.sampled_from(sorted(PARAMETERS)), min_size=1, max_size=3, unique=True))
    parameters = [PARAMETERS[name] for name in names]
    if "kind" in names and draw(st.booleans()):
        parameters += [FloatParameter("inner", 0.0, 1.0, active_if={"kind": ("a", "b")})]
    space = SearchSpace(sorted(parameters, key=lambda p: p.active_if is not None))
    rng = draw(st.integers(0, 10_000))
    n = draw(st.integers(1, 12))
    history = space.sample(n, rng).assign(
        loss=draw(st.lists(CELLS, min_size=n, max_size=n)),
        task=draw(st.lists(st.sampled_from(["a", "b"]), min_size=n, max_size=n)),
    )
    for name in draw(st.lists(st.sampled_from(space.columns), max_size=1)):
        change = draw(st.sampled_from(["drop", "empty", "one value", "strange", "elsewhere"]))
        if change == "drop":
            history = history.drop(columns=name)
        else:
            new = {"empty": None, "one value": history[name].iloc[0], "strange": "?"}
            history[name] = new.get(change, draw(CELLS))
    m = draw(st.integers(0, 4))
    runs = space.sample(m, rng + 1).assign(loss=draw(st.lists(CELLS, min_size=m, max_size=m)))
    return space, history, runs


@settings(max_examples=6)
@given(tables(), st.integers(1, 2))
def test_random_tables_give_valid_rows_or_one_sentence(drawn, n):
    space, history, runs = drawn
    refusal = None
    try:
        with brief_search():
            rows = suggest(space, history, runs, n=n, model=ScaMLGP)
    except (InputDataError, ValueError) as error:
        refusal = str(error)
    if refusal is not None:
        assert refusal.endswith(".")
        assert "\n" not in refusal
        return
    assert len(rows) == n
    assert list(rows.columns[: len(space.columns)]) == space.columns
    assert_new(space, rows, runs if len(runs) else None)
    assert np.isfinite(rows[["predicted_mean", "predicted_std"]].to_numpy()).all()


def test_the_expected_improvement_is_in_the_outcomes_unit():
    mean, variance = torch.tensor([-2.0, -5.0]).double(), torch.tensor([0.25, 0.25]).double()
    best = torch.tensor(-2.0).double()  # a loss of two
    found, chance = Outcome("loss", -1.0).improvement(mean, variance, best)
    assert found[0].item() == pytest.approx(0.5 / math.sqrt(2 * math.pi), rel=1e-2)
    assert found[1].item() < 1e-6
    assert chance.tolist() == [0.5, 0.0]
    within, _ = Outcome("loss", -1.0, within=(1.9, 9.0)).improvement(mean, variance, best)
    assert 0 < within[0].item() < 0.1  # the loss is never below 1.9
    at_the_bound = Outcome("loss", -1.0, within=(2.0, 9.0)).improvement(mean, variance, best)
    assert [part[0].item() for part in at_the_bound] == [0.0, 0.0]
    logarithm, chance = Outcome("loss", -1.0, log=True).improvement(mean, variance, best)
    draws = math.e**2 - np.exp(np.random.default_rng(0).normal(2.0, 0.5, 200_000))
    assert logarithm[0].item() == pytest.approx(np.maximum(draws, 0).mean(), rel=1e-2)
    assert chance[0].item() == 0.5
