import pandas as pd
import pytest

from benchmarks.studies.metrics import complete, incumbents, normalized, regrets

NAN = float("nan")


def results(values: dict[tuple[str, int, str], list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"problem": p, "seed": s, "method": m, "evaluation": n, "value": v, "error": None}
            for (p, s, m), of_run in values.items()
            for n, v in enumerate(of_run, start=1)
        ]
    )


def test_incumbents_keep_the_best_and_the_order_of_the_runs():
    """Failed evaluations and runs keep the last value."""
    frame = results(
        {
            ("z", 0, "slow"): [1.0, 2.0, 2.0, 4.0],
            ("a", 0, "whole"): [NAN, 1.0, NAN, 0.0],
            ("a", 0, "short"): [3.0, NAN],
            ("a", 0, "never"): [NAN, NAN],
        }
    )
    best = incumbents(frame)
    assert list(best.columns) == [1, 2, 3, 4]
    assert [name for _, _, name in best.index] == ["slow", "whole", "short", "never"]
    assert best.loc[("a", 0, "whole")].tolist() == pytest.approx([NAN, 1, 1, 1], nan_ok=True)
    assert best.loc[("a", 0, "short")].tolist() == [3, 3, 3, 3]
    assert best.loc[("a", 0, "never")].isna().all()


def with_landmarks(frame: pd.DataFrame, **of_problem: tuple[float, float, float]) -> pd.DataFrame:
    """Adds the best, the worst and the median value of each problem."""
    about = pd.DataFrame(of_problem, index=["best_known", "worst", "median"]).T
    return frame.join(about, on="problem")


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
