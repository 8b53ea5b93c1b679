import numpy as np
import pandas as pd
import pytest

pytest.importorskip("ax")
pytest.importorskip("optuna")
pytest.importorskip("sqlalchemy")
pytest.importorskip("sklearn")

from benchmarks import story


def test_means_count_complete_trials_and_later_batches():
    ends = np.linspace(0.5, 0.1, story.TRIALS)
    optuna = pd.DataFrame({"method": "TPESampler", "trial": range(story.TRIALS), "end": ends})
    optuna["state"] = ["FAIL", *["COMPLETE"] * 4, *["PRUNED"] * (story.TRIALS - 5)]
    batches = pd.DataFrame({"method": story.BATCHED[0], "trial": range(12), "end": range(12)})
    trials = pd.concat([optuna, batches.assign(state="COMPLETE")]).assign(seed=0)
    table = story.report(trials)
    expected = [story.UNTRAINED, round(ends[4], 3), round(ends[4], 3)]
    assert table.loc["TPESampler"].tolist()[:3] == expected
    assert np.isnan(table.loc["TPESampler", "mean of trials 4 to 12"])
    assert table.loc[story.BATCHED[0], "mean of trials 4 to 12"] == np.mean(range(3, 12))
