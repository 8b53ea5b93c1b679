"""Ligands and a solvent that no old run has: numbers that describe them, or names alone?

    python -m benchmarks.descriptors FOLDER 24

Targets are the temperatures of `direct_arylation`; the history is 60 runs at each of the others,
without three of the ligands and one of the solvents. Four seeds leave out all of them. Finished
runs are kept in `results/descriptors`: the same command goes on.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.studies.statistics import ratios
from benchmarks.tables import read_shared
from botorch_transfer import CategoricalParameter, SearchSpace, suggest

RESULTS = Path(__file__).parent / "results" / "descriptors"
DESCRIBED, NAMES = "descriptors", "names"
EVALUATIONS = 5


def regrets(frame: pd.DataFrame, space: SearchSpace, target: str, seed: int) -> list[float]:
    """Regret of the best row yet, divided by the median row's, after each evaluation.

    Args:
        frame: Old runs, and the rows of the target.
        space: The search space.
        target: The target task.
        seed: What is left out of the history, and which of its runs are drawn.

    Returns:
        `EVALUATIONS` numbers.
    """
    rng, part = np.random.default_rng(seed // 4), seed % 4
    new = [np.array_split(rng.permutation(frame[name].unique()), 4)[part] for name in TABLES]
    pool, others = (part for _, part in frame.groupby(frame["task"] != target))
    old = others[~others["Ligand"].isin(new[0]) & ~others["Solvent"].isin(new[1])]
    old = old.groupby("task").sample(60, random_state=seed)
    runs, y = pool[:0], pool["y"]
    for _ in range(EVALUATIONS):
        row = suggest(space, old, runs, "y", "max", candidates=pool.drop(columns="y"), seed=seed)
        runs = pd.concat([runs, pool.merge(row[space.columns])])
    return ((y.max() - runs["y"].cummax()) / (y.max() - y.median())).tolist()


TABLES = {name: pd.read_csv(RESULTS / f"{name}.csv") for name in ("Ligand", "Solvent")}


def main() -> None:
    folder, seeds = Path(sys.argv[1]), int(sys.argv[2])
    table, file = read_shared("direct_arylation", folder), RESULTS / "runs.csv"
    numbers = {name: CategoricalParameter(name, descriptors=t) for name, t in TABLES.items()}
    described = SearchSpace([numbers.get(p.name, p) for p in table.space.parameters])
    spaces = {DESCRIBED: described, NAMES: table.space}
    frame = table.frame[["task", *table.space.columns, "y"]].astype({"task": str})
    keys = ["problem", "seed", "encoding"]
    done = pd.read_csv(file, dtype={"problem": str})
    for key in product(frame["task"].unique(), range(seeds), spaces):
        if key not in set(done[keys].itertuples(index=False, name=None)):
            found = regrets(frame, spaces[key[2]], *key[:2])
            done.loc[len(done)] = [*key, *found]
            done.round(4).to_csv(file, index=False)
    for n in ("1", str(EVALUATIONS)):
        values = done.pivot(index=keys[:2], columns=keys[2], values=n)
        ratio = ratios(values, NAMES)[DESCRIBED]
        print(n, dict(values.mean().round(3)), round(ratio.value, 2), ratio.interval)


if __name__ == "__main__":
    main()
