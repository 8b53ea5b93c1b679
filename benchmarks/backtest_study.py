"""Does a backtest of the old tasks say what happens on a new one?

    python -m benchmarks.backtest_study FOLDER

Of each table, some tasks are the history and others are new. A backtest of the history recommends
a model and promises savings; then each model chooses rows of the new tasks. Finished tables are
kept in `results/backtest`: the same command goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.tables import Table, read_shared, read_shipped
from botorch_transfer import backtest, suggest

FILE = Path(__file__).parent / "results" / "backtest" / "runs.csv"
NUM_OLD, NUM_NEW, NUM_ROWS, EVALUATIONS = 6, 4, 60, 10
MODELS = ("TransferGP", "sorted", "SingleTaskGP")
SHARED, SHIPPED = ("svm", "mlp", "rnn_optimizer", "gcc", "nodejs"), ("svm", "gbm", "mlp", "forest")


def split(table: Table) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Some rows of old and of new tasks, outcomes `y` to be maximized."""
    names, parts = np.random.default_rng(0).permutation(list(table.tasks)), []
    new = min(NUM_NEW, len(names) // 2)
    for part in (names[new : new + NUM_OLD], names[:new]):
        frames = []
        for name in part:
            X, Y = table.tasks[name]
            frame = table.space.decode(X).assign(task=str(name), y=Y[:, 0].numpy())
            frame = frame.drop_duplicates(table.space.columns)
            frames.append(frame.sample(min(NUM_ROWS, len(frame)), random_state=0))
        parts.append(pd.concat(frames, ignore_index=True))
    return parts[0], parts[1]


def replay(table: Table, old: pd.DataFrame, pool: pd.DataFrame, model: str) -> list[float]:
    """The best outcome so far of a model that chooses rows of a new task."""
    runs, columns = pool[:0], table.space.columns
    for _ in range(EVALUATIONS):
        row = suggest(table.space, old, runs, "y", "max", candidates=pool[columns], model=model)
        runs = pd.concat([runs, pool.merge(row[columns])])
    return runs["y"].cummax().to_list()


def judged(name: str, table: Table) -> pd.DataFrame:
    """A row for each model: what the backtest says of it, and what it does on new tasks."""
    old, fresh = split(table)
    said = backtest(table.space, old, "y", "max", progress=False)
    rows = []
    for _, pool in fresh.groupby("task"):
        curves = {model: np.array(replay(table, old, pool, model)) for model in MODELS}
        plain, most = curves[MODELS[-1]], pool["y"].max()
        for model, curve in curves.items():
            distance = np.clip((most - curve) / (most - pool["y"].median() or 1), 0, 1).mean()
            saved = int((plain < plain[-1]).sum() - (curve < plain[-1]).sum())
            rows.append({"model": model, "found": saved, "area": distance})
    found = pd.DataFrame(rows).groupby("model").mean()
    promised = said.table.groupby("model")[["saved", "distance"]].mean()
    found = found.assign(promised=promised["saved"], promised_area=promised["distance"])
    return found.assign(recommended=found.index == said.recommended, table=name).reset_index()


def main() -> None:
    done = pd.read_csv(FILE) if FILE.exists() else pd.DataFrame({"table": []})
    for name in (*SHARED, *(f"shipped {space}" for space in SHIPPED)):
        if name not in set(done["table"]):
            own = name.removeprefix("shipped ")
            table = read_shared(name, Path(sys.argv[1])) if own == name else read_shipped(own)
            done = pd.concat([done, judged(name, table)]).round(4)
            done.to_csv(FILE, index=False)
    chosen = done[done["recommended"]].set_index("table")
    behind = chosen["area"] - done.groupby("table")["area"].min()
    print("recommended within .02 of the best:", int((behind <= 0.02).sum()), "of", len(behind))
    default = done[done["model"] == MODELS[0]]
    print("rank correlation of savings:", default["promised"].corr(default["found"], "spearman"))


if __name__ == "__main__":
    main()
