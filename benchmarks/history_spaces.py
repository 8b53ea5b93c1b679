"""Evaluates a run of the tuning history: cross-validates a configuration on a task.

The package defines the search spaces (`botorch_transfer.datasets.tuning_search_space`). The shipped
table contains values of the function `evaluate`. So a live study of `evaluate` optimizes the same
function.
"""

import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.history_tasks import SEED, Features, Labels, load_task
from botorch_transfer.datasets import tuning_search_space
from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    Parameter,
)

FOLDS = 5
CALIBRATION_FOLDS = 3
CLIP = 1e-3  # least probability: a wrong prediction with probability 0 has an infinite loss
MLP_EPOCHS = 60

Config = Mapping[str, Any]


def _svm(config: Config) -> BaseEstimator:
    # Use Platt's sigmoid on decision values of inner folds: it is deterministic, and smooth in C.
    machine = SVC(C=config["C"], gamma=config["gamma"])
    return CalibratedClassifierCV(machine, method="sigmoid", cv=CALIBRATION_FOLDS, ensemble=False)


def _gbm(config: Config) -> BaseEstimator:
    return GradientBoostingClassifier(
        learning_rate=config["learning_rate"],
        n_estimators=int(config["n_estimators"]),
        max_depth=int(config["max_depth"]),
        min_samples_leaf=int(config["min_samples_leaf"]),
        subsample=config["subsample"],
        max_features=config["max_features"],
        random_state=SEED,
    )


def _mlp(config: Config) -> BaseEstimator:
    momentum = {"momentum": config["momentum"]} if config["solver"] == "sgd" else {}
    return MLPClassifier(
        hidden_layer_sizes=(int(config["hidden_units"]),) * int(config["hidden_layers"]),
        activation=config["activation"],
        alpha=config["alpha"],
        batch_size=int(config["batch_size"]),
        solver=config["solver"],
        learning_rate_init=config["learning_rate"],
        max_iter=MLP_EPOCHS,
        n_iter_no_change=MLP_EPOCHS,  # without early stopping
        random_state=SEED,
        **momentum,
    )


def _forest(config: Config) -> BaseEstimator:
    bootstrap = config["bootstrap"] == "yes"
    return RandomForestClassifier(
        n_estimators=int(config["n_estimators"]),
        criterion=config["criterion"],
        max_features=config["max_features"],
        min_samples_leaf=int(config["min_samples_leaf"]),
        bootstrap=bootstrap,
        max_samples=config["max_samples"] if bootstrap else None,
        random_state=SEED,
    )


_MODELS: dict[str, Callable[[Config], BaseEstimator]] = {
    "svm": _svm,
    "gbm": _gbm,
    "mlp": _mlp,
    "forest": _forest,
}

SPACES: tuple[str, ...] = tuple(_MODELS)


def evaluate(space_name: str, task_name: str, config: Config) -> dict[str, float]:
    """Cross-validates one configuration of a classifier on a task.

    The predicted probabilities come from stratified 5-fold cross-validation with fixed folds. The
    inputs are standardized on each training fold. Except for the time, the function is
    deterministic.

    Args:
        space_name: The name of the search space, one of `SPACES`.
        task_name: The name of the task, one of `history_tasks.TASKS`.
        config: The values of the parameters by name. Inactive parameters may be absent or NaN.

    Returns:
        `log_loss` (nats per sample, to minimize; probabilities are clipped to [0.001, 0.999]),
        `accuracy` (0 to 1), and `seconds` (processor time of all fits and predictions). `log_loss`
        and `accuracy` are NaN for a failed run.

    Raises:
        ValueError: If the search space or the task does not exist.

    Example:
        >>> result = evaluate("svm", "digits_3_vs_8", {"C": 10.0, "gamma": 0.002})
        >>> result["log_loss"] < 0.1
        True
    """
    if space_name not in _MODELS:
        raise ValueError(f"There is no space {space_name!r}; choose one of {', '.join(SPACES)}.")
    X, y = load_task(task_name)
    model = make_pipeline(StandardScaler(), _MODELS[space_name](config))
    start = time.process_time()  # processor time is independent of other processes
    p = _out_of_fold_probabilities(model, X, y)
    seconds = time.process_time() - start
    if p is None:
        return {"log_loss": np.nan, "accuracy": np.nan, "seconds": seconds}
    return {
        "log_loss": log_loss(y, p.clip(CLIP, 1 - CLIP)),
        "accuracy": accuracy_score(y, p > 0.5),
        "seconds": seconds,
    }


def _out_of_fold_probabilities(
    model: BaseEstimator, X: Features, y: Labels
) -> NDArray[np.float64] | None:
    """Predicts the probability of class 1 for each of `n` samples; `None` if training diverged."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is fixed
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow in a run that diverges
        warnings.simplefilter("ignore", UserWarning)  # small samples in a forest
        try:
            p = cross_val_predict(model, X, y, cv=folds, method="predict_proba")[:, 1]
        except ValueError as error:
            if "non-finite" not in str(error):
                raise
            return None
    return p if np.isfinite(p).all() else None


def sample_configs(space_name: str, task_name: str, n: int) -> list[dict[str, Any]]:
    """Samples configurations by a scrambled Sobol sequence, which is different for each task.

    Args:
        space_name: The name of the search space, one of `SPACES`.
        task_name: The name of the task, from which the seed is computed.
        n: The number of configurations.

    Returns:
        One dictionary per configuration, without inactive parameters. Floats have four significant
        digits, so that a text file stores exactly the evaluated values.
    """
    parameters = tuning_search_space(space_name).parameters
    seed = zlib.crc32(f"{space_name}/{task_name}".encode())
    # Pass `seed`, because SciPy has `rng` only since version 1.15.
    sobol = qmc.Sobol(len(parameters), seed=np.random.default_rng(seed))
    rows = sobol.random_base2(max(n - 1, 1).bit_length())[:n]
    return [_config(parameters, row) for row in rows]


def _config(parameters: Sequence[Parameter], row: NDArray[np.float64]) -> dict[str, Any]:
    config = {p.name: _value(p, u) for p, u in zip(parameters, row, strict=True)}
    return {
        p.name: config[p.name]
        for p in parameters
        if all(config[parent] in values for parent, values in (p.active_if or {}).items())
    }


def _value(parameter: Parameter, u: float) -> Any:
    """Returns the value of a parameter at the quantile `u` of its range."""
    match parameter:
        case CategoricalParameter() | OrdinalParameter():
            return parameter.values[int(u * len(parameter.values))]
        case IntegerParameter():  # each value has the interval above it
            return int(_quantile(parameter.lower, parameter.upper + 1, bool(parameter.log), u))
        case FloatParameter():
            value = _quantile(parameter.lower, parameter.upper, bool(parameter.log), u)
            return float(f"{value:.4g}")
    raise TypeError(f"The type of the parameter {parameter!r} is not supported.")


def _quantile(lower: float, upper: float, log: bool, u: float) -> float:
    return lower * (upper / lower) ** u if log else lower + (upper - lower) * u
