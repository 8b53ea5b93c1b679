from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
from ax.adapter.data_utils import ExperimentData

from botorch_transfer.ax.adapter import StandardizeByHistory
from botorch_transfer.ax.history import moments_of


def _data(columns: dict[str, list[float]]) -> ExperimentData:
    index = pd.MultiIndex.from_arrays([[0, 1], ["0_0", "1_0"]], names=["trial_index", "arm_name"])
    mean = pd.DataFrame(columns, index=index)
    frame = pd.concat({"mean": mean, "sem": mean * 0 + 2.0}, axis=1)
    return ExperimentData(arm_data=pd.DataFrame(index=index), observation_data=frame)


def test_outcomes_are_standardized_by_the_history_where_there_is_one():
    adapter = SimpleNamespace(history_moments=lambda: {"loss": (10.0, 2.0)})
    columns = {"loss": [12.0, 14.0], "score": [1.0, 3.0], "cost": [5.0, 9.0]}
    transform = StandardizeByHistory(experiment_data=_data(columns), adapter=adapter)
    found = transform.transform_experiment_data(_data(columns)).observation_data
    assert found["mean", "loss"].tolist() == [1.0, 2.0]
    assert found["sem", "loss"].tolist() == [1.0, 1.0]
    for name in ("score", "cost"):
        own = np.array(columns[name])
        np.testing.assert_allclose(found["mean", name], (own - own.mean()) / own.std(ddof=1))


def test_infinite_outcomes_count_as_missing():
    adapter = SimpleNamespace(history_moments=lambda: {"loss": (10.0, 2.0)})
    columns = {"loss": [12.0, np.inf], "cost": [5.0, -np.inf], "time": [np.inf, np.nan]}
    transform = StandardizeByHistory(experiment_data=_data(columns), adapter=adapter)
    found = transform.transform_experiment_data(_data(columns)).observation_data["mean"]
    np.testing.assert_array_equal(found, [[1.0, 0.0, np.nan], [np.nan, np.nan, np.nan]])


def test_there_is_a_scale_before_any_outcome():
    empty = ExperimentData(arm_data=pd.DataFrame(), observation_data=pd.DataFrame())
    adapter = SimpleNamespace(history_moments=lambda: {"loss": (10.0, 2.0)})
    transform = StandardizeByHistory(experiment_data=empty, adapter=adapter)
    assert transform.Ymean == {"loss": 10.0}
    assert transform.Ystd == {"loss": 2.0}
    assert transform.transform_experiment_data(empty).observation_data.empty


def test_moments_of_constant_outcomes_have_a_scale():
    assert moments_of(np.array([3.0])) == (3.0, 1.0)
    assert moments_of(np.array([3.0, 3.0])) == (3.0, 1.0)
