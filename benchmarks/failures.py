"""Does `suggest` leave a region that fails, and is it misled by failures at random?

    python -m benchmarks.failures

A bowl in three inputs is minimized by nine trials, after three old tasks whose bowls were nearby
and never failed. In the first scenario a strip of a tenth of the learning rate's range fails, that
begins at the target's optimum; in the second, each trial fails with a probability of .2. Both are
run with the model of failures and without it (failed runs are then left out, and not repeated).
Finished studies are not repeated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from botorch_transfer import FloatParameter, ScaMLGP, SearchSpace, TransferGP, suggest

MODELS: dict[str, Callable[..., Any]] = {"ScaMLGP": ScaMLGP, "TransferGP": TransferGP}
TRIALS, STRIP, RATE, FIRST_SEED = 9, 0.1, 0.2, 1_000
SPACE = SearchSpace(
    [
        FloatParameter("lr", 1e-5, 1.0, log=True),
        FloatParameter("decay", 1e-6, 1e-1, log=True),
        FloatParameter("dropout", 0.0, 0.5),
    ]
)


def loss(rows: pd.DataFrame, centre: NDArray[np.float64]) -> NDArray[np.float64]:
    """The bowl: 0 at its centre in the unit cube."""
    values: NDArray[np.float64] = 3 * ((SPACE.encode(rows).numpy() - centre) ** 2).sum(axis=1)
    return values


def problem(seed: int) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """Old runs and the target's centre.

    Args:
        seed: The seed of both.
    """
    rng = np.random.default_rng(seed)
    common = rng.uniform(0.3, 0.7, 3)
    parts = []
    for number in range(3):
        rows = SPACE.sample(25, seed=1_000 * seed + number)
        values = loss(rows, common + rng.normal(0, 0.04, 3)) + rng.normal(0, 0.01, 25)
        parts.append(rows.assign(task=f"task {number}", loss=values))
    return pd.concat(parts, ignore_index=True), common + rng.normal(0, 0.04, 3)


def study(scenario: str, model: str, seed: int) -> pd.DataFrame:
    """Runs one study: one row a trial, with its regret; empty where it failed.

    Args:
        scenario: ``"strip"`` or ``"random"``.
        model: The model's name.
        seed: The seed of problem and failures.
    """
    history, centre = problem(seed)
    at_random = np.random.default_rng(seed).random(TRIALS) < RATE
    runs = pd.DataFrame()
    for trial in range(TRIALS):
        row = suggest(SPACE, history, runs, model=MODELS[model])[SPACE.columns]
        place = float(SPACE.encode(row)[0, 0]) - centre[0]
        failed = at_random[trial] if scenario == "random" else 0 < place < STRIP
        value = np.nan if failed else loss(row, centre)[0]
        row = row.assign(loss=value, status="failed" if failed else "ok")
        runs = pd.concat([runs, row], ignore_index=True)
    return runs


def scores(scenario: str, model: str, seed: int, learns: bool) -> dict[str, float]:
    """The number of failures, the best regret and the processor time of a study.

    Args:
        scenario: As :func:`study` takes it.
        model: As :func:`study` takes it.
        seed: As :func:`study` takes it.
        learns: Whether there is a model of failures.
    """
    start = time.process_time()
    if learns:
        runs = study(scenario, model, seed)
    else:
        with patch("botorch_transfer.suggestion._learn_failures", lambda *_: None):
            runs = study(scenario, model, seed)
    failures, regret = int((runs["status"] == "failed").sum()), float(runs["loss"].min())
    return {"failures": failures, "regret": regret, "seconds": time.process_time() - start}


def main() -> None:
    """Runs all studies, and writes one row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--scenarios", nargs="+", default=["strip", "random"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/failures"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path, key = given.out / "runs.csv", ["scenario", "model", "seed", "learns"]
    table = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=key)
    finished = set(table[key].itertuples(index=False, name=None))
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    for case in product(given.scenarios, given.models, seeds, (True, False)):
        if case not in finished:
            row = pd.DataFrame([dict(zip(key, case, strict=True)) | scores(*case)])
            table = pd.concat([table, row], ignore_index=True) if len(table) else row
            table.round(6).to_csv(path, index=False)
    print(table.groupby(["scenario", "model", "learns"])[["failures", "regret"]].mean())


if __name__ == "__main__":
    main()
