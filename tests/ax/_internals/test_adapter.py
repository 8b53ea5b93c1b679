"""Ax's adapter with a table of old runs, or with saved priors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ax.adapter.torch import TorchAdapter
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from botorch.models.transforms.input import Normalize

from botorch_transfer import ScaMLGP, SourceGPs
from botorch_transfer.ax import encode_history
from botorch_transfer.ax.adapter import TransferAdapter
from botorch_transfer.ax.history import TransferHistory
from botorch_transfer.ax.model_inputs import TransferDataset, describe_prior_file
from tests.ax.adapters import adapter_of, datasets_of
from tests.ax.conftest import mixed_space, plain_space
from tests.ax.signatures import parameters


@pytest.fixture(scope="module")
def history(runs) -> TransferHistory:
    return TransferHistory.from_frame(runs)


@pytest.fixture(scope="module")
def prior_file(runs, tmp_path_factory) -> dict[str, str]:
    """A prior of the negated loss."""
    return saved(runs, tmp_path_factory.mktemp("prior") / "a.safetensors")


def saved(runs: Any, path: Path, **options: Any) -> dict[str, str]:
    encoded = encode_history(plain_space(), runs, "loss", goal="min")
    options = {"input_transform": encoded.input_transform, **options}
    SourceGPs.fit(encoded.source_data, num_restarts=0, **options).save(path)
    return describe_prior_file(path, ScaMLGP)


def test_ax_is_as_it_is_overridden():
    assert parameters(TorchAdapter._fit) == ["self", "search_space", "experiment_data", "kwargs"]
    assert parameters(TorchAdapter._convert_experiment_data) == [
        "self",
        "experiment_data",
        "outcomes",
        "parameters",
        "search_space_digest",
    ]


def test_it_takes_all_that_axs_takes():
    further = {"history", "priors", "pretraining"}
    assert set(parameters(TransferAdapter)) == set(parameters(TorchAdapter)) | further
    assert parameters(TransferAdapter.gen) == parameters(TorchAdapter.gen)


def test_moments_of_a_table_are_those_of_all_old_runs(make_client, runs, history):
    adapter = adapter_of(make_client(constraints=["cost <= 2", "time <= 5"]), history=history)
    expected = {n: (runs[n].mean(), runs[n].std()) for n in ("loss", "cost")}
    assert adapter.history_moments() == {n: pytest.approx(m) for n, m in expected.items()}
    again = adapter_of(make_client(), history=history.key)
    assert again.history is history


@pytest.mark.parametrize(("objective", "sign"), [("-loss", -1.0), ("loss", 1.0), ("cost", 1.0)])
def test_a_prior_speaks_of_what_is_maximized(make_client, runs, prior_file, objective, sign):
    constraints = ["loss <= 3"] if objective == "cost" else None
    trial = {"cost": 1.0} if objective == "cost" else {}
    client = make_client(objective=objective, constraints=constraints)
    client.complete_trial(client.attach_trial({"C": 1.0, "gamma": 1.0}), {"loss": 2.0, **trial})
    adapter = adapter_of(client, priors={"loss": prior_file})
    mean, std = adapter.history_moments()["loss"]
    means = [rows["loss"].mean() for _, rows in runs.groupby("task")]
    assert -10 < -sign * mean - np.mean(means) < 10
    transferred = datasets_of(adapter)["loss"].transferred
    assert (transferred.sign, transferred.mean, transferred.std) == (sign, mean, std)
    assert isinstance(transferred.sources, SourceGPs)


def test_data_before_there_are_any(make_client, runs, history):
    client = make_client(constraints=["cost <= 2", "time <= 5"])
    datasets = datasets_of(adapter_of(client, history=history))
    assert list(datasets) == ["cost", "loss"]
    for name, dataset in datasets.items():
        assert isinstance(dataset, TransferDataset)
        assert (dataset.X.shape, dataset.Y.shape) == ((0, 2), (0, 1))
        assert dataset.X.dtype == dataset.Y.dtype == torch.double
        assert dataset.Yvar is None
        assert (dataset.feature_names, dataset.outcome_names) == (["C", "gamma"], [name])
        X, Y = dataset.transferred.sources["tuesday"]
        rows = runs[runs["task"] == "tuesday"]
        np.testing.assert_allclose(X, np.log10(rows[["C", "gamma"]]))
        np.testing.assert_allclose(
            Y.squeeze(-1), (rows[name] - runs[name].mean()) / runs[name].std()
        )


def test_data_of_metrics_with_and_without_history(make_client, runs, history):
    client = make_client(constraints=["cost <= 2", "time <= 5"])
    first = client.attach_trial({"C": 10.0, "gamma": 0.1})
    client.complete_trial(first, {"loss": (2.0, 0.5), "cost": 3.0, "time": 4.0})
    options = {"pretraining": {"num_restarts": 0}}
    adapter = adapter_of(client, history=history, **options)
    datasets = datasets_of(adapter)
    assert list(datasets) == adapter.outcomes == ["cost", "loss", "time"]
    assert not isinstance(datasets["time"], TransferDataset)
    for name, value in (("loss", 2.0), ("cost", 3.0)):
        mean, std = runs[name].mean(), runs[name].std()
        np.testing.assert_allclose(datasets[name].X, [[1.0, -1.0]])
        np.testing.assert_allclose(datasets[name].Y, [[(value - mean) / std]])
        assert datasets[name].transferred.pretraining == options["pretraining"]
    np.testing.assert_allclose(datasets["loss"].Yvar, [[(0.5 / runs["loss"].std()) ** 2]])


def test_a_metric_with_history_may_have_no_outcome_yet(make_client, history, monkeypatch):
    """As one that is measured later than the others."""
    given, fit = {}, BoTorchGenerator.fit
    monkeypatch.setattr(
        BoTorchGenerator, "fit", lambda self, **kw: given.update(kw) or fit(self, **kw)
    )
    client = make_client(constraints=["cost <= 2"])
    trial = client.attach_trial({"C": 10.0, "gamma": 0.1})
    client.attach_data(trial, {"loss": 2.0})
    datasets = datasets_of(adapter_of(client, history=history))
    assert {name: len(data.X) for name, data in datasets.items()} == {"cost": 0, "loss": 1}
    none, one = given["candidate_metadata"]
    assert (len(none), len(one)) == (0, 1)


def test_a_prior_of_other_inputs_is_refused(make_client, runs, prior_file, tmp_path):
    priors = {"loss": prior_file}
    for space, names in (
        (plain_space()[::-1], r"\['log gamma', 'log C'\]"),
        (mixed_space(), r"\['log rate', 'depth', .*kind"),
        (plain_space()[:1], r"\['log C'\]"),
    ):
        with pytest.raises(UserInputError, match=rf"\['log C', 'log gamma'\], .* has {names}"):
            adapter_of(make_client(space), priors=priors)
    unlabelled = Normalize(2, bounds=torch.tensor([[-2.0, -5.0], [3.0, 1.0]]))
    unnamed = saved(runs, tmp_path / "b.safetensors", input_transform=unlabelled)
    with pytest.warns(UserWarning, match="does not know its inputs"):
        adapter_of(make_client(), priors={"loss": unnamed})


def test_a_prior_of_an_unknown_metric_is_refused(make_client, prior_file):
    priors = {"loss": prior_file, "accuracy": prior_file}
    with pytest.raises(UserInputError, match=r"speaks of \['accuracy'\]: name them alike"):
        adapter_of(make_client(), priors=priors)
