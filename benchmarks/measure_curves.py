"""Records the learning curves of `curve_study`: an MLP by epochs, boosting by stages.

    python -m benchmarks.measure_curves --out benchmarks/learning_curves.csv.gz

The tuning history has the same tasks and configurations (`history_spaces.sample_configs`). Each run
trains on half of a task's rows, and measures the loss on the other half at each step. Each row of
the file is a run: `losses` has the losses in order, with four significant digits, and `every` is
the number of steps between two losses. Two runs diverged; their later losses are empty.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.history_spaces import _MODELS, CLIP, Config, sample_configs
from benchmarks.history_tasks import SEED, TASKS, load_task
from benchmarks.measure_history import GZIP
from botorch_transfer import IntegerParameter, OrdinalParameter
from botorch_transfer.datasets import tuning_search_space

#: Number of epochs of the MLP, number of boosting stages, and number of stages per curve step.
EPOCHS, STAGES, EVERY = 30, 80, 2

#: Number of configurations per task: the first configurations of the task's Sobol sequence.
CONFIGS = {"mlp": 40, "gbm": 20}


def curve(space: str, task: str, config: Config) -> dict[int, float]:
    """Measures the loss of a run after each step.

    Args:
        space: `"mlp"` or `"gbm"`.
        task: The name of the task, one of `history_tasks.TASKS`.
        config: The parameters; the number of boosting stages is always `STAGES`.

    Returns:
        The loss on the held-out half by step, in nats per sample. The loss is NaN from the step at
        which training diverges.

    Example:
        >>> losses = curve("gbm", "iris_versicolor", sample_configs("gbm", "iris_versicolor", 1)[0])
        >>> len(losses)
        40
    """
    X, y = load_task(task)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=SEED, stratify=y)
    scaler = StandardScaler().fit(X)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # some runs diverge
        if space == "gbm":
            model: Any = _MODELS["gbm"]({**config, "n_estimators": STAGES}).fit(X, y)
            staged = list(model.staged_predict_proba(X_test))
            steps = range(EVERY, STAGES + 1, EVERY)
            return {step: _loss(y_test, staged[step - 1]) for step in steps}
        model, losses = _MODELS["mlp"](config), dict.fromkeys(range(1, EPOCHS + 1), np.nan)
        for epoch in losses:
            try:
                model.partial_fit(X, y, classes=[0, 1])
                losses[epoch] = _loss(y_test, model.predict_proba(X_test))
            except ValueError as error:
                if "non-finite" not in str(error):
                    raise
                break
        return losses


def _loss(y: NDArray[np.int_], p: NDArray[np.float64]) -> float:
    if not np.isfinite(p).all():
        return np.nan
    return float(log_loss(y, p[:, 1].clip(CLIP, 1 - CLIP), labels=[0, 1]))


def _row(space: str, task: str, run: int, config: Config) -> dict[str, Any]:
    about = {"space": space, "task": task, "run": run, **config}
    about.pop("n_estimators", None)
    losses = curve(space, task, config)
    texts = (f"{loss:.4g}" for loss in losses.values())
    return {**about, "every": min(losses), "losses": " ".join(texts)}


def measure(configs: dict[str, int] = CONFIGS, jobs: int = 1) -> pd.DataFrame:
    """Records all curves.

    Args:
        configs: The number of configurations per task, by search space.
        jobs: The number of processes.

    Returns:
        One row per run, with the search space, the task, the number of the run and the parameters.
        `every` is the distance between two steps. `losses` is a text of all losses.
    """
    runs = [
        (space, task, number, config)
        for space, count in configs.items()
        for task in TASKS
        for number, config in enumerate(sample_configs(space, task, count))
    ]
    frame = pd.DataFrame(Parallel(n_jobs=jobs)(delayed(_row)(*run) for run in runs))
    parameters = [p for space in configs for p in tuning_search_space(space).parameters]
    kept = {p.name: p for p in parameters if p.name in frame}
    whole = [n for n, p in kept.items() if isinstance(p, IntegerParameter | OrdinalParameter)]
    columns = ["space", "task", "run", *kept, "every", "losses"]
    return frame[columns].astype(dict.fromkeys(whole, "Int64"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="table to write, .csv.gz")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    args = parser.parse_args()
    start = time.process_time()
    table = measure(jobs=args.jobs)
    table.to_csv(args.out, index=False, compression=GZIP)
    print(f"{len(table):,} runs, {time.process_time() - start:.0f} s of processor time")


if __name__ == "__main__":
    main()
