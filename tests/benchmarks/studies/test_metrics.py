import numpy as np
import pandas as pd
import pytest

from benchmarks.studies.metrics import (
    areas,
    average,
    complete,
    error_of_average,
    evaluations_to_reach,
    failures,
    incumbents,
    normalized,
    regrets,
    standard_error,
)

NAN = float("nan")


def results(values: dict[tuple[str, int, str], list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"problem": p, "seed": s, "method": m, "evaluation": n, "value": v, "error": None}
            for (p, s, m), of_run in values.items()
            for n, v in enumerate(of_run, start=1)
        ]
    )


TWO = results(
    {
        ("z", 0, "slow"): [1.0, 2.0, 2.0, 4.0],
        ("z", 0, "fast"): [0.0, 5.0, 3.0, 6.0],
        ("a", 0, "slow"): [0.0, 0.0, 0.0, 1.0],
        ("a", 0, "fast"): [-1.0, -2.0, -3.0, -4.0],
    }
)


def test_incumbents_keep_the_best_and_the_order_of_the_runs():
    best = incumbents(TWO)
    assert list(best.index) == [
        ("z", 0, "slow"),
        ("z", 0, "fast"),
        ("a", 0, "slow"),
        ("a", 0, "fast"),
    ]
    assert best.loc[("z", 0, "fast")].tolist() == [0, 5, 5, 6]
    assert list(best.columns) == [1, 2, 3, 4]


def test_failed_evaluations_and_runs_keep_the_last_value():
    frame = results(
        {
            ("a", 0, "whole"): [NAN, 1.0, NAN, 2.0],
            ("a", 0, "short"): [3.0, NAN],
            ("a", 0, "never"): [NAN, NAN],
        }
    )
    best = incumbents(frame)
    assert best.loc[("a", 0, "whole")].tolist() == pytest.approx([NAN, 1, 1, 2], nan_ok=True)
    assert best.loc[("a", 0, "short")].tolist() == [3, 3, 3, 3]
    assert best.loc[("a", 0, "never")].isna().all()


def test_regret_is_measured_by_the_best_known_or_found():
    regret = regrets(TWO, {"z": 7.0, "a": -100.0, "unused": 3.0})
    assert regret.loc[("z", 0, "fast")].tolist() == [7, 2, 2, 1]
    assert regret.loc[("a", 0, "slow")].tolist() == [1, 1, 1, 0]
    assert (regret.to_numpy() >= 0).all()


def test_problems_count_the_same_whatever_their_runs():
    frame = results(
        {("a", 0, "m"): [0.0], ("a", 1, "m"): [-2.0], ("a", 2, "m"): [-4.0], ("b", 0, "m"): [-6.0]}
    )
    mean = average(regrets(frame, {"a": 0.0, "b": 0.0}))
    assert mean.loc["m", 1] == pytest.approx((2 + 6) / 2)


def test_standard_error_is_that_of_the_mean_over_seeds():
    frame = results({("a", 0, "m"): [0.0], ("a", 1, "m"): [-2.0], ("b", 0, "m"): [-6.0]})
    error = standard_error(regrets(frame, {"b": 0.0}))
    assert error.loc[("a", "m"), 1] == pytest.approx(np.std([0, 2], ddof=1) / np.sqrt(2))
    assert np.isnan(error.loc[("b", "m"), 1])  # not known from one seed


def test_evaluations_to_the_reference_are_counted_run_by_run():
    regret = regrets(TWO, {})
    needed = evaluations_to_reach(regret, "slow")
    assert needed[("z", 0, "fast")] == 2
    assert needed[("z", 0, "slow")] == 4
    assert needed[("a", 0, "fast")] == np.inf
    assert needed[("a", 0, "slow")] == 4


def test_failures_are_counted_by_method():
    frame = TWO.copy()
    frame.loc[1, "error"] = "RuntimeError"
    assert failures(frame).to_dict() == {"slow": 1, "fast": 0}


def with_landmarks(frame: pd.DataFrame, **of_problem: tuple[float, float, float]) -> pd.DataFrame:
    """Adds the best, the worst and the median value of each problem."""
    about = pd.DataFrame(of_problem, index=["best_known", "worst", "median"]).T
    return frame.join(about, on="problem")


def test_regret_is_to_what_the_runs_know_seed_by_seed():
    frame = results({("a", seed, "m"): [0.0, 1.0] for seed in (0, 1)})
    frame["best_known"] = [3.0, 3.0, -np.inf, -np.inf]
    regret = regrets(frame)
    assert regret.loc[("a", 0, "m")].tolist() == [3, 2]
    assert regret.loc[("a", 1, "m")].tolist() == [1, 0]


def test_normalized_regret_of_the_landmark_is_one():
    frame = with_landmarks(
        results({("a", 0, "m"): [0.0, 4.0], ("b", 0, "m"): [-10.0, 0.0]}),
        a=(4.0, -4.0, 2.0),
        b=(0.0, -20.0, -10.0),
    )
    worst, median = (normalized(regrets(frame), frame, scale) for scale in ("worst", "median"))
    assert worst[1].tolist() == [0.5, 0.5]
    assert median[1].tolist() == [2.0, 1.0]
    assert (median[2] == 0).all()


def test_without_landmarks_the_worst_run_is_the_scale():
    frame = with_landmarks(
        results({("a", 0, "m"): [0.0, 4.0], ("a", 0, "n"): [2.0, 4.0]}), a=(4.0, NAN, NAN)
    )
    assert normalized(regrets(frame), frame, "worst")[1].tolist() == [1.0, 0.5]


def test_equal_values_have_no_regret():
    frame = with_landmarks(results({("a", 0, "m"): [1.0]}), a=(1.0, 1.0, 1.0))
    assert normalized(regrets(frame), frame, "median").loc[("a", 0, "m"), 1] == 0


def test_cases_count_that_all_methods_have_finished():
    frame = results(
        {
            ("a", 0, "m"): [NAN, 1.0],
            ("a", 0, "n"): [0.0, 2.0],
            ("a", 1, "m"): [0.0, 1.0],
            ("b", 0, "n"): [0.0, 1.0],
        }
    ).assign(best_known=2.0)
    kept = complete(regrets(frame))
    assert list(kept.index) == [("a", 0, "m"), ("a", 0, "n")]
    assert kept.loc[("a", 0, "m")].tolist() == [2.0, 1.0]


def test_area_is_the_mean_regret():
    frame = results({("a", 0, "n"): [0.0, 2.0], ("a", 0, "m"): [1.0, 1.0]}).assign(best_known=2.0)
    area = areas(complete(regrets(frame)))
    assert list(area) == ["n", "m"]
    assert area.loc[("a", 0)].tolist() == [1.0, 1.0]


def test_error_of_the_mean_is_over_problems_or_seeds():
    found = results(
        {
            (problem, seed, "plain GP"): [-1.0 - seed, 0.0]
            for problem in ("one", "two")
            for seed in (0, 1)
        }
    )
    regret = regrets(found, {})
    assert error_of_average(regret).loc["plain GP", 1] == 0  # both problems are the same
    assert error_of_average(regret.loc[["one"]]).loc["plain GP", 1] == pytest.approx(0.5)


def test_regrets_can_be_normalized_where_the_best_value_is_unknown():
    found = results({("p", 0, "a"): [-3.0, -1.0], ("p", 0, "b"): [-2.0, -2.0]}).assign(
        best_known=-np.inf, median=-5.0
    )
    size = normalized(regrets(found), found, "median")
    assert size.loc[("p", 0, "a")].tolist() == [1.0, 0.0]
    assert size.loc[("p", 0, "b")].tolist() == [0.5, 0.5]
