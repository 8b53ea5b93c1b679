"""Losses as they are, or their logarithms? Tuning on the shipped runs with both.

    python -m benchmarks.logarithms --out FILE.csv [--spaces forest ...] [--seeds 2]

One task of each data set is the target in turn; its 150 runs are the pool, each to be had once. The
history is ten tasks of other data sets with 30 runs. Regret is of the loss itself, in both cases.
FILE.csv keeps one row for each finished run, so that an interrupted study goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.history_spaces import SPACES
from benchmarks.markdown import markdown_table
from benchmarks.old_runs import METRIC, draw_old_runs
from benchmarks.studies.development.methods import METHODS
from benchmarks.studies.run import isolated
from benchmarks.studies.statistics import ratio_of_means
from botorch_transfer import from_dataframe
from botorch_transfer.datasets import load_tuning_history, tuning_search_space

EVALUATIONS, AT = 15, (1, 3, 5, 10, 15)
OLD_TASKS, OLD_RUNS = 10, 30
COMPARED = ("transfer_average", "gp")
LOSS = "loss"


def targets(space: str) -> list[str]:
    """The first task of each data set, by name.

    Args:
        space: One of the tuning history's search spaces.

    Returns:
        The tasks.
    """
    names = sorted(load_tuning_history(space)["task"].unique())
    return list({name.split("_")[0]: name for name in reversed(names)}.values())[::-1]


def run(space: str, target: str, seed: int, method: str, log: bool) -> list[float]:
    """Tunes one task.

    Args:
        space: The search space.
        target: The task.
        seed: The seed of the history and of first points.
        method: One of `benchmarks.studies.development.methods.METHODS`.
        log: Whether the model gets logarithms.

    Returns:
        The regret of the best evaluation yet, as a part of the median run's, after each evaluation.
    """
    parameters, kind = tuning_search_space(space), METHODS[method]
    frame = load_tuning_history(space).query("task == @target").dropna(subset=METRIC)
    losses = frame[METRIC].to_numpy(copy=True)
    old = draw_old_runs(space, target, seed, OLD_TASKS, OLD_RUNS)
    history = from_dataframe(old, parameters, METRIC, "task", goal="min", log=log)
    pool = parameters.encode(frame)
    Y = -torch.from_numpy(np.log(losses) if log else losses).unsqueeze(-1)
    with isolated():
        torch.manual_seed(seed)
        prior = None if kind.pretrain is None else kind.pretrain(history)
        first = np.random.default_rng(seed).permutation(len(losses))
        taken = first[: kind.num_random].tolist()
        while len(taken) < EVALUATIONS:
            model = kind.model(pool[taken], Y[taken], prior)
            with torch.no_grad():
                scores = kind.score(model, Y[taken], pool)
            scores[taken] = -torch.inf
            taken.append(int(scores.argmax()))
    best = np.minimum.accumulate(losses[taken])
    return list((best - losses.min()) / (np.median(losses) - losses.min()))


def is_tiny(space: str, target: str) -> bool:
    """Whether a task's best loss is less than a third of its median one.

    Args:
        space: The search space.
        target: The task.

    Returns:
        Whether it is.
    """
    losses = load_tuning_history(space).query("task == @target")[METRIC]
    return bool(losses.median() > 3 * losses.min())


def report(results: pd.DataFrame) -> str:
    """Tables of regret: of each space, of all, and of targets whose best loss is tiny.

    Args:
        results: One row for each run: `space`, `problem`, `seed`, `method`, `log` and the regrets.

    Returns:
        The mean regrets, and their ratio to those of the same method with the losses as they are,
        with the central 95 % of a paired bootstrap over targets and seeds.
    """
    cases = list(zip(results["space"], results["problem"], strict=True))
    results = results.assign(problem=[f"{space}: {target}" for space, target in cases])
    tiny = results[[is_tiny(*case) for case in cases]]
    groups = {**dict(iter(results.groupby("space"))), "all": results, "tiny best losses": tiny}
    return "\n\n".join(_table(str(name), group) for name, group in groups.items() if len(group))


def _table(title: str, results: pd.DataFrame) -> str:
    header = ["method", *(text for n in AT for text in (f"after {n}", "ratio"))]
    rows = []
    for method, found in results.groupby("method"):
        scale = found["log"].map({False: LOSS, True: f"{LOSS}'s logarithm"})
        wide = found.assign(scale=scale).set_index(["problem", "seed", "scale"])
        for name in scale.unique():
            row = [f"{method}, {name}"]
            for n in AT:
                at_step = wide[str(n)].unstack("scale")
                ratio = ratio_of_means(at_step, LOSS).loc[name]
                row += [f"{at_step[name].mean():.3f}", "{:.2f} [{:.2f}, {:.2f}]".format(*ratio)]
            rows.append(row)
    targets_, seeds = results["problem"].nunique(), results["seed"].nunique()
    return f"{title}: {targets_} targets × {seeds} seeds\n\n{markdown_table(header, rows)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: Those of the command line by default.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="table of the runs")
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=SPACES)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args(arguments)
    keys = ["space", "problem", "seed", "method", "log"]
    names = [*keys, *map(str, range(1, EVALUATIONS + 1))]
    done = pd.read_csv(options.out) if options.out.exists() else pd.DataFrame(columns=names)
    known = set(done[keys].itertuples(index=False, name=None))
    for space, seed in product(options.spaces, range(options.seeds)):
        for case in product([space], targets(space), [seed], COMPARED, (False, True)):
            if case not in known:
                done.loc[len(done)] = [*case, *run(*case)]
                done.to_csv(options.out, index=False)
    print(report(done[done["space"].isin(options.spaces)]))


if __name__ == "__main__":
    main()
