from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from ax.adapter.data_utils import ExperimentData
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize

from botorch_transfer import PretrainedPrior, SourceGPs
from botorch_transfer.ax.adapter import StandardizeByHistory
from botorch_transfer.ax.history import moments_of
from botorch_transfer.ax.model_inputs import ToPriorUnits, prior_moments


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_to_prior_units_is_the_affine_map_there_and_back(sign):
    units = ToPriorUnits(sign, mean=10.0, std=2.0)
    Y = torch.randn(5, 1, dtype=torch.double)
    Yvar = torch.rand(5, 1, dtype=torch.double)
    raw, variance = units(Y, Yvar)
    torch.testing.assert_close(raw, sign * (2.0 * Y + 10.0))
    torch.testing.assert_close(variance, 4.0 * Yvar)
    torch.testing.assert_close(units.untransform(raw)[0], Y)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_posterior_in_other_units_is_that_of_a_model_of_these_outcomes(sign):
    X = torch.rand(6, 2, dtype=torch.double)
    Y = X.sum(dim=-1, keepdim=True).sin()
    raw = sign * (3.0 * Y + 7.0)
    chained = ChainedOutcomeTransform(units=ToPriorUnits(sign, 7.0, 3.0), prior=Standardize(1))
    model = SingleTaskGP(X, Y, outcome_transform=chained).eval()
    twin = SingleTaskGP(X, raw, outcome_transform=Standardize(1)).eval()
    test_X = torch.rand(4, 3, 2, dtype=torch.double)
    found, expected = model.posterior(test_X), twin.posterior(test_X)
    torch.testing.assert_close(found.mean, (sign * expected.mean - 7.0) / 3.0)
    torch.testing.assert_close(
        found.distribution.covariance_matrix, expected.distribution.covariance_matrix / 9.0
    )


def _data(columns: dict[str, list[float]]) -> ExperimentData:
    index = pd.MultiIndex.from_arrays([[0, 1], ["0_0", "1_0"]], names=["trial_index", "arm_name"])
    mean = pd.DataFrame(columns, index=index)
    frame = pd.concat({"mean": mean, "sem": mean * 0 + 2.0}, axis=1)
    return ExperimentData(arm_data=pd.DataFrame(index=index), observation_data=frame)


def test_outcomes_are_standardized_by_the_history_where_there_is_one():
    moments = {"loss": (10.0, 2.0), "score": None}
    adapter = SimpleNamespace(history_moments=lambda: moments)
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
    adapter = SimpleNamespace(history_moments=lambda: {"loss": (10.0, 2.0), "score": None})
    transform = StandardizeByHistory(experiment_data=empty, adapter=adapter)
    assert transform.Ymean == {"loss": 10.0, "score": 0.0}
    assert transform.Ystd == {"loss": 2.0, "score": 1.0}
    assert transform.transform_experiment_data(empty).observation_data.empty


def test_moments_of_a_prior_are_in_the_metrics_units():
    X = torch.rand(8, 1, dtype=torch.double)
    tasks = {"monday": (X, 5.0 + 2.0 * X)}
    sources = SourceGPs.fit(tasks, num_restarts=0)
    mean, std = prior_moments(sources, -1.0)
    assert (mean, std) == pytest.approx((-float(tasks["monday"][1].mean()), 2 * float(X.std())))
    raw = PretrainedPrior.stationary(1).fit(tasks, outcome_scale="raw", steps=1)
    assert prior_moments(raw, 1.0) == (0.0, 1.0)


def test_moments_of_constant_outcomes_have_a_scale():
    assert moments_of(np.array([3.0])) == (3.0, 1.0)
    assert moments_of(np.array([3.0, 3.0])) == (3.0, 1.0)
