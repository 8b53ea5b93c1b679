import numpy as np
import pandas as pd
import pytest

from benchmarks.studies.metrics import (
    complete,
    evaluations_to_reach,
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
