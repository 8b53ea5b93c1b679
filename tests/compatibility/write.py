"""What the files in `data` hold. They were written by this program at revision 776a21b.

    PYTHONPATH=CHECKOUT python -m tests.compatibility.write FOLDER

The models, priors and source tasks are used by `test_compatibility` as well, with the present
version. Don't write the files anew: they stand for those that users have. Add to them instead.
"""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from botorch import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, NormalPrior
from safetensors.torch import save_file
from torch import Tensor

from botorch_transfer import (
    CategoricalParameter,
    Domain,
    FloatParameter,
    Hyperprior,
    IntegerParameter,
    OrdinalParameter,
    PretrainedPrior,
    SearchSpace,
    SimplexParameter,
    SourceData,
    SourceGPs,
    SourceHierarchy,
    models,
)
from botorch_transfer.pretraining import NetworkOptions

# ------------------------------------------------------------------------------------------- data


def points(n: int, shift: float, d: int = 2) -> Tensor:
    """Low-discrepancy points in the unit cube."""
    steps = torch.tensor([0.7548776662466927, 0.5698402909910532, 0.43], dtype=torch.double)[:d]
    rows = torch.arange(1, n + 1, dtype=torch.double).unsqueeze(-1)
    return (shift + rows * steps).remainder(1.0)


def outcomes(X: Tensor, task: float) -> Tensor:
    return torch.sin(5 * X[:, :1] + 0.4 * task) + (X[:, -1:] - 0.3) ** 2 + 0.3 * task


def history(known_noise: bool = False) -> dict[str, SourceData]:
    tasks: dict[str, SourceData] = {}
    for task, (name, size) in enumerate({"one": 6, "two": 8, "three": 10}.items()):
        X = points(size, 0.37 * task)
        Y = outcomes(X, task)
        tasks[name] = (X, Y, 0.01 + 0.02 * X[:, :1]) if known_noise else (X, Y)
    return tasks


def domains() -> list[Domain]:
    result = []
    for number, d in enumerate((1, 2, 3)):
        X = points(8, 0.2 * number, d)
        tasks = [(X, outcomes(X, number)), (X, outcomes(X, number + 1))]
        result.append(Domain(tasks, discrete_dims=[0] * (d == 3), name=f"space {number}"))
    return result


TRAIN_X = points(5, 0.81)
TRAIN_Y = outcomes(TRAIN_X, 1.5)
TEST_X = points(4, 0.55)

# ----------------------------------------------------------------------------------------- priors


class PriorFile(NamedTuple):
    """A saved prior: its class, the model that tests its predictions, and that model's options."""

    prior: type[Any]
    model: str
    options: Mapping[str, Any] = {}


PRIORS: dict[str, PriorFile] = {
    "sources": PriorFile(SourceGPs, "ScaMLGP"),
    "normalized": PriorFile(SourceGPs, "ScaMLGP"),
    "hierarchy": PriorFile(SourceHierarchy, "SequentialHierarchicalGP"),
    "means": PriorFile(SourceHierarchy, "BoostedHierarchicalGP"),
    "hyperbo": PriorFile(PretrainedPrior, "PretrainedGP"),
    "fsbo": PriorFile(PretrainedPrior, "PretrainedGP"),
    "ablr": PriorFile(PretrainedPrior, "PretrainedGP"),
    "stationary": PriorFile(PretrainedPrior, "PretrainedGP"),
    "mphd": PriorFile(Hyperprior, "HyperpriorGP"),
    "universal": PriorFile(Hyperprior, "HyperpriorGP"),
    "empirical": PriorFile(Hyperprior, "FullyBayesianHyperpriorGP", {"num_members": 4}),
    "specified": PriorFile(Hyperprior, "HyperpriorGP"),
}


def fit_prior(name: str) -> Any:
    bounds = torch.tensor([[-1.0, 0.0], [1.0, 2.0]], dtype=torch.double)
    network, few = NetworkOptions(hidden=(4,), num_steps=50), {"num_restarts": 0}
    match name:
        case "sources":
            return SourceGPs.fit(history(), **few)
        case "normalized":
            transform = Normalize(2, bounds=bounds)
            noisy = history(known_noise=True)
            return SourceGPs.fit(
                noisy, "matern52", outcome_scale="raw", input_transform=transform, **few
            )
        case "hierarchy":
            return SourceHierarchy.fit(history(), **few)
        case "means":
            return SourceHierarchy.fit(history(), "mean", **few)
        case "hyperbo":
            return PretrainedPrior.hyperbo(2, hidden=(4, 3)).fit(history(), steps=30)
        case "fsbo":
            return PretrainedPrior.fsbo(2, hidden=(4,)).fit(
                history(), outcome_scale="per_task", steps=30
            )
        case "ablr":
            return PretrainedPrior.ablr(2, hidden=(4,)).fit(history(), steps=30)
        case "stationary":
            return PretrainedPrior.stationary(2).fit(history(), optimizer="lbfgs", steps=20)
        case "specified":
            return Hyperprior.specified(
                NormalPrior(0.0, 1.0),
                GammaPrior(2.0, 4.0),
                GammaPrior(2.0, 1.0),
                GammaPrior(1.1, 50.0),
            )
        case kind:
            return Hyperprior.fit(domains(), kind, network=network)  # type: ignore[arg-type]


def load_prior(folder: Path, name: str) -> Any:
    return PRIORS[name].prior.load(folder / "priors" / f"{name}.safetensors")


# ----------------------------------------------------------------------------------------- models

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ScaMLGP": ("sources", {}),
    "SequentialHierarchicalGP": ("hierarchy", {}),
    "MeanHierarchicalGP": ("means", {}),
    "BoostedHierarchicalGP": ("means", {}),
    "JointHierarchicalGP": ("", {}),
    "WeightedSourceGP": ("", {}),
    "LinearCoregionalizationGP": ("", {}),
    "IntrinsicCoregionalizationGP": ("", {}),
    "JointScaMLGP": ("", {}),
    "PretrainedGP": ("hyperbo", {"finetune": True}),
    "HyperpriorGP": ("mphd", {}),
    "FullyBayesianHyperpriorGP": ("universal", {"num_samples": 64, "num_members": 4}),
    "RankWeightedGP": ("sources", {}),
    "TwoStageTransferGP": ("sources", {}),
    "GuardedTransferGP": ("sources", {}),
}
"""All models, by class: the prior's file (the source data if empty), and options."""

PICKLED_MODELS = (
    "ScaMLGP",
    "SequentialHierarchicalGP",
    "MeanHierarchicalGP",
    "BoostedHierarchicalGP",
    "JointHierarchicalGP",
    "LinearCoregionalizationGP",
    "PretrainedGP",
    "HyperpriorGP",
    "FullyBayesianHyperpriorGP",
    "RankWeightedGP",
    "TwoStageTransferGP",
    "GuardedTransferGP",
)
PICKLED_PRIORS = ("sources", "normalized", "hierarchy", "means", "hyperbo", "ablr", "mphd")


def build(model: str, prior: Any, options: Mapping[str, Any]) -> Any:
    """A model of the target's data, not fitted."""
    return getattr(models, model)(TRAIN_X, TRAIN_Y, prior, **options)


def build_model(folder: Path, name: str) -> Any:
    prior, options = MODELS[name]
    return build(name, load_prior(folder, prior) if prior else history(), options)


def on_prior(name: str, prior: Any) -> Any:
    """The model by which a prior is tested."""
    return build(PRIORS[name].model, prior, PRIORS[name].options)


def predictions(model: Any) -> dict[str, Tensor]:
    """Means and standard deviations at the test points."""
    posterior = model.eval().posterior(TEST_X)
    return {"mean": posterior.mean.detach(), "std": posterior.variance.sqrt().detach()}


def search_space() -> SearchSpace:
    return SearchSpace(
        [
            CategoricalParameter("kernel", ("rbf", "linear", "poly")),
            FloatParameter("C", 0.01, 100.0, log=True),
            IntegerParameter("degree", 1, 5, active_if={"kernel": "poly"}),
            OrdinalParameter("size", (1, 10, 100), log=True),
            SimplexParameter("alloy", ("a", "b")),
        ]
    )


def runs() -> pd.DataFrame:
    """Two rows in the search space."""
    columns: dict[str, Any] = {"kernel": ["rbf", "poly"], "C": [1.0, 10.0], "degree": [None, 2]}
    return pd.DataFrame(columns | {"size": [10, 100], "a": [0.25, 1.0], "b": [0.75, 0.0]})


# ------------------------------------------------------------------------------------ checkpoints

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "adam": {"steps": 60, "batch_size": 3},
    "lbfgs": {"optimizer": "lbfgs", "steps": 12},
    "hold_out": {"steps": 60, "hold_out": 0.25},
}
"""Options of the interrupted runs."""

MARK = 4321.0
"""Stands for the first loss in checkpoints: a run that starts anew has another one."""

STEPS_DONE = {"adam": 30, "lbfgs": 4, "hold_out": 30}


def exact_history() -> dict[str, SourceData]:
    """Source tasks in which no number is rounded: checkpoints are for equal bits."""
    index = torch.arange(8, dtype=torch.double)
    X = torch.stack([index / 8, (5 * index).remainder(8) / 8], dim=-1)
    tasks = {}
    for task in range(4):
        Y = (X[:, :1] - 0.25 * task) * (X[:, 1:] + 0.5) * 2 - 0.5
        tasks[f"task {task}"] = (X, Y)
    return tasks  # type: ignore[return-value]


def pretrain(folder: Path, name: str, checkpoint: Path | None) -> PretrainedPrior:
    """Pre-trains from stored starting values."""
    prior = PretrainedPrior.load(folder / "checkpoints" / "start.safetensors")
    options = {"outcome_scale": "raw", "checkpoint_every": STEPS_DONE[name], **CHECKPOINTS[name]}
    return prior.fit(exact_history(), checkpoint=checkpoint, **options)


# --------------------------------------------------------------------------------- Ax experiments


def ax_loss(config: Mapping[str, Any], shift: float) -> float:
    C, gamma = np.log10(float(config["C"])), np.log10(float(config["gamma"]))
    return round(float((C - 1 - shift) ** 2 + (gamma + 2 + shift) ** 2), 6)


def ax_space() -> list[Any]:
    from ax.api.configs import RangeParameterConfig

    return [
        RangeParameterConfig("C", (1e-2, 1e3), parameter_type="float", scaling="log"),
        RangeParameterConfig("gamma", (1e-5, 10.0), parameter_type="float", scaling="log"),
    ]


def ax_runs() -> pd.DataFrame:
    """Old runs of three tasks."""
    rows = []
    for task, shift in (("monday", -0.3), ("tuesday", 0.0), ("sunday", 0.4)):
        for c, g in points(6, abs(shift)).tolist():
            config = {"C": 10 ** (5 * c - 2), "gamma": 10 ** (6 * g - 5)}
            rows.append({"task": task, **config, "loss": ax_loss(config, shift)})
    return pd.DataFrame(rows)


def go_on(client: Any, count: int) -> list[list[float]]:
    """Suggests and evaluates further trials, each with its number as PyTorch's seed.

    Returns:
        The logarithms of the parameters, a list for each trial.
    """
    found = []
    for _ in range(count):
        torch.manual_seed(len(client.summarize()) if client.summarize() is not None else 0)
        ((trial, config),) = client.get_next_trials(1).items()
        client.complete_trial(trial, {"loss": ax_loss(config, 0.1)})
        found.append([float(np.log(config["C"])), float(np.log(config["gamma"]))])
    return found


PRIOR_PATH = "/folder/of/the/prior.safetensors"
"""What the stored experiments have in place of the prior's path."""

DATABASE_EXPERIMENT = "in a database"


def _write_ax(folder: Path) -> dict[str, list[list[float]]]:
    from ax.api.client import Client
    from ax.api.configs import StorageConfig
    from ax.storage.sqa_store.db import (
        create_all_tables,
        get_engine,
        init_engine_and_session_factory,
    )
    from botorch_transfer.models.guard_rule import GuardRule

    from botorch_transfer.ax import (
        attach_history,
        encode_history,
        transfer_generation_strategy,
    )

    def client_of(name: str, storage: Any = None) -> Client:
        client = Client(storage_config=storage)
        client.configure_experiment(ax_space(), name=name)
        client.configure_optimization("-loss")
        return client

    encoded = encode_history(ax_space(), ax_runs(), "loss", goal="min")
    prior = SourceHierarchy.fit(
        encoded.source_data, input_transform=encoded.input_transform, num_restarts=0
    )
    path = folder / "ax" / "prior.safetensors"
    prior.save(path)
    guarded = {
        "model": models.GuardedTransferGP,
        "model_options": {"rule": GuardRule(prior_weight=0.7)},
        "history": ax_runs(),
    }
    forms: dict[str, dict[str, Any]] = {
        "table": {"history": ax_runs()},
        "guarded": guarded,
        "file": {"model": models.SequentialHierarchicalGP, "prior": {"loss": path}},
    }
    fast = {"num_restarts": 2, "raw_samples": 32}
    found = {}
    for form, options in forms.items():
        client = client_of(form)
        client.set_generation_strategy(
            transfer_generation_strategy(**options, optimizer_options=fast)
        )
        go_on(client, 2)
        stored = folder / "ax" / f"{form}.json"
        client.save_to_json_file(str(stored))
        text = stored.read_text().replace(json.dumps(str(path)), json.dumps(PRIOR_PATH))
        stored.write_text(text)
        found[form] = go_on(client, 1)
    with tempfile.TemporaryDirectory() as temporary:
        database = Path(temporary) / "ax.sqlite"
        url = f"sqlite:///{database}"
        init_engine_and_session_factory(url=url, force_init=True)
        create_all_tables(get_engine())
        storage = StorageConfig(url=url)
        old = []
        for task, rows in ax_runs().groupby("task", sort=False):
            client = client_of(str(task), storage)
            for row in rows.to_dict("records"):
                trial = client.attach_trial({"C": row["C"], "gamma": row["gamma"]})
                client.complete_trial(trial, {"loss": row["loss"]})
            old.append(client)
        client = client_of(DATABASE_EXPERIMENT, storage)
        attach_history(client, old)
        strategy = transfer_generation_strategy(
            history=[each._experiment for each in old], optimizer_options=fast
        )
        client.set_generation_strategy(strategy)
        go_on(client, 2)
        with sqlite3.connect(database) as connection:
            text = "\n".join(connection.iterdump())
        found["database"] = go_on(client, 1)
    with gzip.GzipFile(folder / "ax" / "database.sql.gz", "wb", mtime=0) as file:
        file.write(text.encode())
    return found


# ------------------------------------------------------------------------------------------ write


def _write_checkpoints(folder: Path, expected: dict[str, Tensor]) -> None:
    from botorch_transfer.pretraining import gradient_fit

    PretrainedPrior.hyperbo(2, hidden=(4,)).save(folder / "checkpoints" / "start.safetensors")
    original = gradient_fit.write_checkpoint
    for name in CHECKPOINTS:
        whole = pretrain(folder, name, None)
        expected |= {f"checkpoints/{name}/{n}": v for n, v in _of_checkpoint(whole).items()}

        def write(path: Any, key: str, state: Any) -> None:
            state.curve.loss[0] = MARK
            original(path, key, state)
            # The search for the number of steps is over once its checkpoint says so.
            if "held-out" not in str(path):
                raise KeyboardInterrupt

        gradient_fit.write_checkpoint = write
        try:
            pretrain(folder, name, folder / "checkpoints" / f"{name}.safetensors")
        except KeyboardInterrupt:
            pass
        finally:
            gradient_fit.write_checkpoint = original


def _of_checkpoint(prior: PretrainedPrior) -> dict[str, Tensor]:
    return {
        "mean": prior.mean(TEST_X),
        "covariance": prior.covariance(TEST_X),
        "loss": torch.tensor(prior.learning_curve.loss, dtype=torch.double),
    }


def _write_pickle(folder: Path, name: str, value: Any) -> None:
    with gzip.GzipFile(folder / "pickles" / f"{name}.pkl.gz", "wb", mtime=0) as file:
        file.write(pickle.dumps(value))


def main() -> None:
    """Writes everything."""
    folder = Path(sys.argv[1])
    for name in ("priors", "states", "pickles", "checkpoints", "ax"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    expected: dict[str, Tensor] = {}

    def expect(kind: str, name: str, numbers: Mapping[str, Tensor]) -> None:
        expected.update({f"{kind}/{name}/{key}": value for key, value in numbers.items()})

    for name in PRIORS:
        prior = fit_prior(name)
        prior.save(folder / "priors" / f"{name}.safetensors")
        expect("priors", name, predictions(on_prior(name, prior)))
        if name in PICKLED_PRIORS:
            _write_pickle(folder, name, prior)
    for name in MODELS:
        model = build_model(folder, name)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        with gzip.GzipFile(folder / "states" / f"{name}.pt.gz", "wb", mtime=0) as file:
            torch.save(model.state_dict(), file)
        expect("models", name, predictions(model))
        if name in PICKLED_MODELS:
            _write_pickle(folder, name, model.train())
    space = search_space()
    _write_pickle(folder, "SearchSpace", space)
    expect("pickles", "SearchSpace", {"X": space.encode(runs())})
    _write_checkpoints(folder, expected)
    numbers = {name: value.detach().contiguous().clone() for name, value in expected.items()}
    save_file(numbers, folder / "expected.safetensors")
    found = _write_ax(folder)
    (folder / "ax" / "expected.json").write_text(json.dumps(found, indent=1) + "\n")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    main()
