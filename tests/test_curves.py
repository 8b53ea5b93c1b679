"""What a part of a learning curve says of the final outcome."""

from pathlib import Path

import numpy as np
import pytest
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas import DataFrame, concat
from scipy.special import ndtr

from botorch_transfer import curves as curves_room
from botorch_transfer.curves import Curve, CurvePrior, full_length, read_curves


def task(name: str, seed: int, runs: int = 12, length: int = 20, unit: float = 1.0) -> DataFrame:
    """Curves that fall like a power law, each with an end and a slope of its own."""
    rng = np.random.default_rng(seed)
    rows = []
    for run in range(runs):
        end, height, power = 0.3 * rng.gamma(2), rng.gamma(2), rng.uniform(0.4, 1.2)
        for k in range(1, length + 1):
            loss = 5 + end + height * k**-power + 0.005 * rng.normal()
            rows.append((name, run, k, unit * loss))
    return DataFrame(rows, columns=["task", "run", "epoch", "loss"])


OLD = concat([task(f"task {i}", i, length=12 + 4 * i) for i in range(5)], ignore_index=True)
PRIOR = CurvePrior.fit(OLD, "loss", "epoch", "min", run="run")
NEW = task("new", 10, runs=40)
FINAL = NEW[NEW["epoch"] == 20]["loss"].to_numpy()


def beginning(share: float, frame: DataFrame = NEW) -> DataFrame:
    return frame[frame["epoch"] <= share * 20].assign(status="stopped")


def test_predictions_beat_the_last_value_and_their_bands_hold() -> None:
    covered = []
    for share in (0.1, 0.25, 0.5):
        part = beginning(share)
        found = PRIOR.predict(part)
        mean, std = found["predicted_mean"].to_numpy(), found["predicted_std"].to_numpy()
        last = part.groupby("run")["loss"].last().to_numpy()
        assert np.abs(mean - FINAL).mean() < 0.5 * np.abs(last - FINAL).mean()
        covered.append(np.abs(mean - FINAL) < 1.645 * std)
    assert 0.75 < np.mean(covered) <= 1.0


def test_a_complete_run_has_its_own_outcome_and_no_variance() -> None:
    found = PRIOR.predict(NEW)
    assert (found["predicted_mean"].to_numpy() == FINAL).all()
    assert not found["predicted_std"].any()
    assert (found["share"] == 1).all()


def test_variance_shrinks_along_the_curve_to_zero() -> None:
    for buffer in (PRIOR.noise, PRIOR.task_variance):
        assert (buffer.diff(dim=0) <= 0).all()
    ends = [PRIOR.predict(beginning(s))["predicted_std"].mean() for s in (0.1, 0.25, 0.5, 0.99)]
    assert (np.diff(ends) < 0).all()


@pytest.mark.parametrize("factor", [0.04, 25.0])
def test_complete_runs_of_the_study_correct_the_spread(factor: float) -> None:
    tensors = dict(PRIOR.named_buffers())
    for name in ("noise", "task_variance"):
        tensors[name] = factor * tensors[name]
    part = beginning(0.25, NEW[NEW["run"] >= 25])
    ratios = []
    for known in (part, concat([NEW[NEW["run"] < 25], part])):
        wrong, right = (p.predict(known) for p in (CurvePrior(PRIOR.config, tensors), PRIOR))
        std = wrong["predicted_std"].iloc[-15:].mean() / right["predicted_std"].iloc[-15:].mean()
        ratios.append(abs(np.log(std)))
    assert ratios[1] < 0.6 * ratios[0]


def test_units_of_the_study_follow_its_own_runs() -> None:
    old = concat([task(f"task {i}", i, unit=10.0**i) for i in range(5)])
    prior = CurvePrior.fit(old, "loss", "epoch", "min", run="run")
    for unit in (1e-3, 1e5):
        new = task("new", 10, runs=20, unit=unit)
        whole, part = new[new["run"] < 10], beginning(0.5, new[new["run"] >= 10])
        found = prior.predict(concat([whole, part]))[10:]
        errors = found["predicted_mean"].to_numpy() / unit - FINAL[10:20]
        assert np.abs(errors).mean() < 0.2
        assert (found["predicted_std"] / unit < 1).all()


def test_another_unit_or_goal_than_the_priors_is_named_once(caplog) -> None:
    prior = CurvePrior.fit(OLD, "loss", "epoch", "min", run="run")
    for unit, sign in ((1.0, -1.0), (100.0, 1.0), (100.0, 1.0)):
        prior.predict(task("new", 10, unit=unit))
        prior.compare_goal(sign)
    CurvePrior.fit(OLD, "loss", "epoch", "max", run="run")
    told = "are far from old ones: use one unit", "opposite goals", "'loss' is maximized"
    assert all(text in line for text, line in zip(told, caplog.messages, strict=True))


def test_one_task_alone_is_enough() -> None:
    prior = CurvePrior.fit(NEW[NEW["run"] < 5], "loss", "epoch", "min", None, "run")
    found = prior.predict(concat([NEW[NEW["run"] < 5], beginning(0.5, NEW[NEW["run"] >= 5])]))
    assert np.abs(found["predicted_mean"].to_numpy() - FINAL).mean() < 0.2


def test_maximizing_is_minimizing_the_negative() -> None:
    flipped = CurvePrior.fit(OLD.assign(loss=-OLD["loss"]), "loss", "epoch", "max", run="run")
    part = beginning(0.25)
    found = flipped.predict(part.assign(loss=-part["loss"]))
    expected = PRIOR.predict(part)
    np.testing.assert_allclose(-found["predicted_mean"], expected["predicted_mean"])
    np.testing.assert_allclose(found["predicted_std"], expected["predicted_std"])


def test_saving_keeps_predictions(tmp_path: Path) -> None:
    PRIOR.save(tmp_path / "curves.safetensors")
    loaded = CurvePrior.load(tmp_path / "curves.safetensors")
    assert loaded.predict(beginning(0.25)).equals(PRIOR.predict(beginning(0.25)))


def test_a_run_that_diverged_has_no_prediction() -> None:
    wild = NEW[NEW["run"] == 0].assign(loss=np.nan)
    assert PRIOR.predict(concat([wild, NEW[NEW["run"] == 1]]))["predicted_mean"].isna().sum() == 1


def test_rows_of_a_run_are_found_by_columns_or_by_growing_steps() -> None:
    mixed = NEW.sort_values(["epoch", "run"], kind="stable")
    by_column = read_curves(mixed, "loss", "epoch", run=["run"])
    assert sorted(len(curve.steps) for curve in by_column) == [20] * 40
    assert len(read_curves(NEW, "loss", "epoch")) == 40
    twice = concat([NEW[NEW["run"] == 0]] * 2)
    assert len(read_curves(twice.set_index("run"), "loss", "epoch", run="run")) == 2


def test_full_length() -> None:
    def curve(end: int, stopped: bool | None = None) -> Curve:
        return Curve(np.arange(1.0, end + 1), np.ones(end), stopped)

    assert full_length([curve(9), curve(4)]) == 9
    assert full_length([curve(9), curve(4)], usual=20.0) == 20
    assert full_length([curve(9), curve(9)], usual=20.0) == 9  # two runs end there
    assert full_length([curve(9, stopped=False)], usual=20.0) == 9
    assert full_length([curve(9, stopped=True)] * 2, usual=20.0) == 20


def test_the_status_has_the_same_words_as_in_other_tables() -> None:
    words = ["OK", "Success.", "PRUNED", "failed", "open"]
    curves = read_curves(DataFrame({"loss": 1, "epoch": 1, "status": words}), "loss", "epoch")
    assert [curve.stopped for curve in curves] == [False, False, True, True, None]


def test_refusals() -> None:
    with pytest.raises(InputDataError, match="No learning curve is complete: give at least"):
        CurvePrior.fit(NEW.assign(status="stopped"), "loss", "epoch", "min", run="run")
    with pytest.raises(InputDataError, match="no column 'epochs'"):
        CurvePrior.fit(NEW, "loss", "epochs", "min")
    with pytest.raises(InputDataError, match="has 'two' in row 1"):
        read_curves(DataFrame({"loss": [1.0, 2.0], "epoch": [1, "two"]}), "loss", "epoch")
    with pytest.raises(InputDataError, match="'epoch' has -2 in row 1, which is negative"):
        read_curves(DataFrame({"loss": [1.0, 2.0], "epoch": [0, -2]}), "loss", "epoch")
    with pytest.raises(ValueError, match="use 'min' or 'max'"):
        CurvePrior.fit(NEW, "loss", "epoch", "low")  # type: ignore[arg-type]


VALUES = st.floats(-1e300, 1e300) | st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e-300])
STATES = st.sampled_from(["", "stopped"])
ROWS = st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9), VALUES, STATES)


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=40))
def test_any_table_gives_finite_predictions_or_one_sentence(rows: list[tuple]) -> None:
    frame = DataFrame(rows, columns=["task", "run", "epoch", "loss", "status"])
    try:
        prior = CurvePrior.fit(frame, "loss", "epoch", "min", run="run")
    except InputDataError:
        return
    for _, runs in frame.groupby("task"):
        found = prior.predict(runs)
        known = found[np.isfinite(found["loss"])]
        assert np.isfinite(known[["predicted_mean", "predicted_std"]].to_numpy()).all()


def test_a_run_is_hopeless_by_its_odds_against_the_best_predicted_one() -> None:
    curves = read_curves(beginning(0.25), task="task", **PRIOR.config)[:8]
    by_last_value = sorted(curves, key=lambda curve: float(curve.values[-1]))
    own, others = by_last_value[0], by_last_value[1:]
    found = PRIOR.forecast([own, *others])
    best = 1 + int(found.mean[1:].argmax())
    # Both ends are still unknown.
    spread = np.sqrt(found.variance[0] + found.variance[best])
    odds = float(ndtr((found.mean[best] - found.mean[0]) / spread))
    assert found.variance[best] > 0.1 * found.variance[0] > 0
    assert PRIOR.is_hopeless(own, others, odds - 1e-6)
    assert not PRIOR.is_hopeless(own, others, odds + 1e-6)


@pytest.mark.parametrize(("share", "is_hopeless"), [(0.5, True), (0.95, False)])
def test_a_run_near_its_end_goes_on(share, is_hopeless) -> None:
    curves = read_curves(beginning(share), task="task", **PRIOR.config)[:8]
    own, *others = sorted(curves, key=lambda curve: float(curve.values[-1]))
    assert PRIOR.is_hopeless(own, others, 0.5) == is_hopeless


def test_a_decision_uses_the_best_and_the_last_complete_runs(monkeypatch) -> None:
    curves, seen, before = read_curves(NEW, "loss", "epoch", run="run"), [], CurvePrior.forecast
    done = [curve._replace(stopped=False) for curve in curves]
    monkeypatch.setattr(curves_room, "MAX_COMPLETE", 3)
    monkeypatch.setattr(CurvePrior, "forecast", lambda p, c: seen.extend(c) or before(p, c))
    PRIOR.is_hopeless(curves[0]._replace(stopped=None), done[1:])
    best = max(done[1:], key=lambda curve: curve.values[-1])
    assert [c.row for c in seen[1:]] == [c.row for c in [best, *done[-3:]]]


def test_a_run_that_diverged_is_hopeless() -> None:
    steps = np.array([1.0, 2.0])
    assert PRIOR.is_hopeless(Curve(steps, np.array([0.5, -np.inf])), [])
    assert not PRIOR.is_hopeless(Curve(steps, np.array([0.5, 0.4])), [])
