"""What an earlier version wrote loads, and old import paths hold: see `write`."""

from __future__ import annotations

import gzip
import importlib
import inspect
import json
import pickle
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from safetensors.torch import load_file
from torch import Tensor

from botorch_transfer import models
from botorch_transfer.models import joint_fit, target_fit
from botorch_transfer.models.modular import SourcePosteriorGP
from tests.compatibility import write

HERE = Path(__file__).parent
DATA = HERE / "data"
EXPECTED = load_file(DATA / "expected.safetensors")

TOLERANCE = 1e-10
"""Absolute and relative: the numbers are the same, and only rounding may differ."""

REACHED = 1e-8
"""The same for what some dozens of optimization steps lead to."""

SUGGESTED = 1e-4
"""For logarithms of parameters that an acquisition function's optimizer suggests."""


@pytest.fixture(autouse=True)
def hyperpriors_of_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files were written when models had the paper's hyperpriors by default."""
    for model_class in (SourcePosteriorGP, models.ScaMLGP):
        defaults = model_class.__init__.__defaults__ or ()
        assert defaults.count("cautious") == 1
        then = tuple("paper" if value == "cautious" else value for value in defaults)
        monkeypatch.setattr(model_class.__init__, "__defaults__", then)


@pytest.fixture
def fits_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of that time did not end where next to nothing was left to gain."""
    for room in (target_fit, joint_fit):
        monkeypatch.setattr(room, "CONVERGED", 0.0)


def expected(kind: str, name: str) -> dict[str, Tensor]:
    prefix = f"{kind}/{name}/"
    return {k.removeprefix(prefix): v for k, v in EXPECTED.items() if k.startswith(prefix)}


def assert_equal(
    found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = TOLERANCE
) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


@contextmanager
def old_paths() -> Iterator[None]:
    """Pickles name modules that have moved, and are told so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def unpickled(name: str) -> Any:
    with gzip.open(DATA / "pickles" / f"{name}.pkl.gz") as file, old_paths():
        return pickle.load(file)


def lines(name: str) -> list[str]:
    return (HERE / name).read_text().split()


# -------------------------------------------------------------------------------- priors, models


@pytest.mark.parametrize("name", write.PRIORS)
def test_saved_priors(name: str) -> None:
    prior = write.load_prior(DATA, name)
    assert_equal(write.predictions(write.on_prior(name, prior)), expected("priors", name))


def test_every_model_is_covered() -> None:
    added_later = {"PopulationGP", "TransferGP"}
    assert set(models.__all__) - added_later <= set(write.MODELS)


@pytest.mark.parametrize("name", write.MODELS)
def test_state_dicts(name: str) -> None:
    model = write.build_model(DATA, name)
    with gzip.open(DATA / "states" / f"{name}.pt.gz") as file:
        state = torch.load(file, weights_only=True)
    model.load_state_dict(state)
    assert_equal(write.predictions(model), expected("models", name))
    assert list(model.state_dict()) == list(state)


@pytest.mark.parametrize("name", write.PICKLED_PRIORS)
def test_pickled_priors(name: str) -> None:
    prior = unpickled(name)
    assert type(prior) is write.PRIORS[name].prior
    assert_equal(write.predictions(write.on_prior(name, prior)), expected("priors", name))


@pytest.mark.parametrize("name", write.PICKLED_MODELS)
def test_pickled_models(name: str) -> None:
    model = unpickled(name)
    assert type(model) is getattr(models, name)
    assert_equal(write.predictions(model), expected("models", name))
    again = pickle.dumps(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # what is pickled now has new paths
        assert_equal(write.predictions(pickle.loads(again)), expected("models", name))


@pytest.mark.parametrize("name", ["ScaMLGP", "JointHierarchicalGP", "GuardedTransferGP"])
def test_pickled_models_can_be_fitted_and_conditioned(name: str) -> None:
    model = unpickled(name)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=0)
    write.predictions(model)
    X = write.TEST_X[:1]
    conditioned = model.condition_on_observations(X, write.outcomes(X, 1.5))
    assert len(conditioned.train_targets) == len(write.TRAIN_X) + 1


def test_a_pickled_search_space() -> None:
    space = unpickled("SearchSpace")
    assert space == write.search_space()
    assert_equal({"X": space.encode(write.runs())}, expected("pickles", "SearchSpace"))


# ----------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("name", write.CHECKPOINTS)
def test_pre_training_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    for file in (DATA / "checkpoints").glob(f"{name}.safetensors*"):
        shutil.copy(file, tmp_path)
    prior = write.pretrain(DATA, name, tmp_path / f"{name}.safetensors")
    wanted = expected("checkpoints", name)
    loss = torch.tensor(prior.learning_curve.loss, dtype=torch.double)
    assert loss[0] == write.MARK  # of the checkpoint: the run was not started anew
    assert len(loss) > write.STEPS_DONE[name]
    assert loss[1:].tolist() == pytest.approx(wanted["loss"][1:].tolist(), rel=REACHED, abs=REACHED)
    found = {"mean": prior.mean(write.TEST_X), "covariance": prior.covariance(write.TEST_X)}
    del wanted["loss"]
    assert_equal({name: value.detach() for name, value in found.items()}, wanted, REACHED)


# -------------------------------------------------------------------------------- Ax experiments


def suggested(form: str) -> list[list[float]]:
    return json.loads((DATA / "ax" / "expected.json").read_text())[form]


@pytest.mark.usefixtures("fits_to_the_end")
@pytest.mark.parametrize("form", ["table", "guarded", "file"])
def test_stored_ax_experiments_go_on(form: str, tmp_path: Path) -> None:
    pytest.importorskip("ax")
    from ax.api.client import Client

    import botorch_transfer.ax  # noqa: F401  (tells Ax of the models)

    text = (DATA / "ax" / f"{form}.json").read_text()
    prior = str(DATA / "ax" / "prior.safetensors")
    stored = tmp_path / "experiment.json"
    stored.write_text(text.replace(json.dumps(write.PRIOR_PATH), json.dumps(prior)))
    client = Client.load_from_json_file(str(stored))
    np.testing.assert_allclose(write.go_on(client, 1), suggested(form), rtol=0, atol=SUGGESTED)


@pytest.mark.usefixtures("fits_to_the_end")
def test_an_ax_experiment_in_a_database_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ax")
    pytest.importorskip("sqlalchemy")
    # Ax keeps the first database that a process has opened.
    monkeypatch.setattr("ax.storage.sqa_store.db.SESSION_FACTORY", None)
    from ax.api.client import Client
    from ax.api.configs import StorageConfig

    import botorch_transfer.ax  # noqa: F401  (tells Ax of the models)

    database = tmp_path / "ax.sqlite"
    with gzip.open(DATA / "ax" / "database.sql.gz", "rt") as file:
        connection = sqlite3.connect(database)
        connection.executescript(file.read())
        connection.close()
    client = Client.load_from_database(
        write.DATABASE_EXPERIMENT, storage_config=StorageConfig(url=f"sqlite:///{database}")
    )
    found = write.go_on(client, 1)
    np.testing.assert_allclose(found, suggested("database"), rtol=0, atol=SUGGESTED)


# --------------------------------------------------------------------------------------- imports


def imported(path: str) -> Any:
    """What a line `module:Name` of the lists stands for."""
    module, _, name = path.partition(":")
    with old_paths():
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("path", lines("documented_paths.txt"))
def test_documented_names(path: str) -> None:
    assert imported(path) is not None


def _is_public_class(path: str) -> bool:
    module, _, name = path.partition(":")
    return name[0].isupper() and not any(part.startswith("_") for part in module.split("."))


@pytest.mark.parametrize("path", [*filter(_is_public_class, lines("old_modules.txt"))])
def test_classes_of_the_old_modules(path: str) -> None:
    assert inspect.isclass(imported(path))


IMPORT = """
import warnings
import botorch_transfer
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from botorch_transfer.pretraining.source_gps import SourceGPs
    from botorch_transfer.models.guard_rule import GuardRule
    from botorch_transfer.kernels.task_weights import TaskWeights
assert SourceGPs is botorch_transfer.SourceGPs
assert {w.category for w in caught} <= {DeprecationWarning}, [str(w.message) for w in caught]
print([str(w.message) for w in caught])
"""


def test_old_modules_import_in_a_fresh_process() -> None:
    """A fresh one: here another test may have imported the modules already."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    TaskWeights = imported("botorch_transfer.kernels.task_weights:TaskWeights")
    if not TaskWeights.__module__.endswith(".task_weights"):  # it has moved
        assert "botorch_transfer.kernels.task_weights" in done.stdout
