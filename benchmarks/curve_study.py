"""What learning curves of other tasks are worth: predicted ends, and stopping in Optuna.

    python -m benchmarks.curve_study ends
    python -m benchmarks.curve_study stopping --tasks modechoice_car --seeds 2

Both replay the curves that ship with the package. Tasks of the same data set as the new one are
left out of its history. In `stopping`, a trial is the recorded run that is nearest to the suggested
parameters, and what counts is the number of steps that all trials took.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
import pandas as pd
from numpy.typing import NDArray
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.trial import TrialState

from benchmarks.markdown import markdown_table
from benchmarks.optuna_study import _ask, distributions
from botorch_transfer.curves import CurvePrior
from botorch_transfer.curves.prior import WIDTH_90
from botorch_transfer.curves.reading import Curve
from botorch_transfer.datasets import load_learning_curves, tuning_search_space
from botorch_transfer.optuna import TransferPruner, TransferSampler
from botorch_transfer.optuna.history import value_of
from botorch_transfer.search_space import SearchSpace

SHARES = (0.1, 0.25, 0.5)
GROUP, OWN = 4, 5
"""How many partial runs are predicted together; how many complete runs of its own a study has."""


def family(task: str) -> str:
    """The data set of a task."""
    return task.split("_")[0]


def others(frame: pd.DataFrame, task: str) -> pd.DataFrame:
    """The curves of other data sets."""
    return frame[frame["task"].map(family) != family(task)]


def power_law(steps: NDArray[Any], values: NDArray[Any], full: float) -> float:
    """The end of the best `a + b k^-c` by least squares; the last value of fewer than 4 points."""
    if len(steps) < 4:
        return float(values[-1])
    best = (np.inf, float(values[-1]))
    for c in np.geomspace(0.1, 3, 15):
        X = np.stack([np.ones_like(values), steps**-c], axis=-1)
        found, *_ = np.linalg.lstsq(X, values, rcond=None)
        error = float(np.sum((X @ found - values) ** 2))
        best = min(best, (error, float(found[0] + found[1] * full**-c)))
    return best[1]


def ends(space: str) -> pd.DataFrame:
    """Predicts the ends of all runs of each task from parts of their curves.

    Args:
        space: `"mlp"` or `"gbm"`.

    Returns:
        One row a prediction: its error in standard deviations of the task's final losses, and
        whether the 90 % band held, by method.
    """
    frame, rows = load_learning_curves(space), []
    for task, mine in frame.groupby("task"):
        options: Any = {"outcome": "log_loss", "step": "step", "goal": "min", "run": "run"}
        prior = CurvePrior.fit(others(frame, str(task)), **options)
        curves = [c for c in prior.read(mine) if not c.diverged]
        spread, complete = np.std([c.values[-1] for c in curves]), curves[:OWN]
        alone = CurvePrior.of_curves(complete)
        for share in SHARES:
            full = curves[0].steps[-1]
            parts = [_beginning(curve, share * full) for curve in curves[OWN:]]
            for first in range(0, len(parts), GROUP):
                some = parts[first : first + GROUP]
                known = {
                    "curves of other tasks": prior.forecast(some),
                    f"and {OWN} complete runs": prior.forecast([*some, *complete]),
                    f"only {OWN} complete runs": alone.forecast([*some, *complete]),
                }
                for i, part in enumerate(some):
                    end = curves[OWN + first + i].values[-1]
                    about = {"space": space, "task": task, "share": share}
                    for method, found in known.items():
                        error = abs(end - found.mean[i])
                        held = error <= WIDTH_90 * np.sqrt(found.variance[i])
                        rows.append(
                            {**about, "method": method, "error": error / spread, "held": held}
                        )
                    law = power_law(part.steps, part.values, full)
                    for method, guess in (("last value", part.values[-1]), ("power law", law)):
                        rows.append({**about, "method": method, "error": abs(end - guess) / spread})
    return pd.DataFrame(rows)


def _beginning(curve: Curve, end: float) -> Curve:
    seen = curve.steps <= end
    return curve._replace(steps=curve.steps[seen], values=curve.values[seen], stopped=True)


def ends_table(found: pd.DataFrame) -> str:
    """Errors and coverage as a table in Markdown."""
    rows = []
    for (space, method), part in found.groupby(["space", "method"], sort=False):
        row = [str(space), str(method)]
        for share in SHARES:
            some = part[part["share"] == share]
            held = some["held"].astype(float).mean()
            row += [f"{some['error'].mean():.3f}", "" if np.isnan(held) else f"{100 * held:.0f} %"]
        rows.append(row)
    header = ["space", "from"]
    header += [text for s in SHARES for text in (f"error at {100 * s:.0f} %", "in the band")]
    return markdown_table(header, rows)


# ------------------------------------------------------------------------------------- stopping


def old_studies(space: str, task: str, seed: int, count: int = 6, runs: int = 20) -> list[Any]:
    """Some runs of some other tasks as finished studies with intermediate values."""
    frame, rng = others(load_learning_curves(space), task), np.random.default_rng(seed)
    found, studies = distributions(space), []
    for name in rng.choice(frame["task"].unique(), count, replace=False):
        study = optuna.create_study(study_name=str(name))
        for _, rows in list(frame[frame["task"] == name].groupby("run"))[:runs]:
            losses = rows["log_loss"].to_numpy()
            row, steps = rows.iloc[0], rows["step"].astype(int)
            own = {n: d for n, (d, _) in found.items() if n in row and pd.notna(row[n])}
            if np.isfinite(losses).all():
                trial = optuna.create_trial(
                    params={n: value_of(d, row[n]) for n, d in own.items()},
                    distributions=own,
                    value=float(losses[-1]),
                    intermediate_values=dict(zip(steps, losses.tolist(), strict=True)),
                )
                study.add_trial(trial)
        studies.append(study)
    return studies


PRUNERS = ("TransferPruner", "MedianPruner", "HyperbandPruner", "none")


def _pruner(name: str, old: Sequence[Any], full: int) -> BasePruner:
    if name == "TransferPruner":
        return TransferPruner(old)
    if name == "HyperbandPruner":
        return HyperbandPruner(1, full)
    return MedianPruner() if name == "MedianPruner" else NopPruner()


def stopping(space: str, task: str, seed: int, trials: int) -> pd.DataFrame:
    """Tunes one task by `TransferSampler` with each pruner.

    Args:
        space: `"mlp"` or `"gbm"`.
        task: The task.
        seed: The seed of history and sampler.
        trials: The number of trials.

    Returns:
        One row a trial and pruner: the steps taken so far, and the regret of the best complete
        trial over that of the median recorded run.
    """
    mine = load_learning_curves(space).query("task == @task")
    recorded = [rows for _, rows in mine.groupby("run") if rows["log_loss"].notna().all()]
    parameters = [p for p in tuning_search_space(space).parameters if p.name in mine]
    searched = SearchSpace(parameters)
    X = searched.encode(pd.concat([rows.iloc[:1] for rows in recorded]))
    losses = np.array([rows["log_loss"].iloc[-1] for rows in recorded])
    best, median = losses.min(), np.median(losses)
    old, table = old_studies(space, task, seed), []
    for name in PRUNERS:
        pruner = _pruner(name, old, int(mine["step"].max()))
        study = optuna.create_study(sampler=TransferSampler(old, seed=seed), pruner=pruner)
        steps = 0
        for number in range(1, trials + 1):
            trial, config = study.ask(), dict[str, Any]()
            for parameter, (distribution, condition) in distributions(space).items():
                known = all(config.get(parent) in v for parent, v in condition.items())
                if parameter in searched.columns and known:
                    config[parameter] = _ask(trial, parameter, distribution)
            row = pd.DataFrame([config], columns=searched.columns)
            nearest = int((X - searched.encode(row)).square().sum(dim=-1).argmin())
            stopped = False
            for step, loss in recorded[nearest][["step", "log_loss"]].to_numpy():
                trial.report(loss, int(step))
                steps += 1
                if stopped := trial.should_prune():
                    break
            end = None if stopped else losses[nearest]
            study.tell(trial, end, state=TrialState.PRUNED if stopped else TrialState.COMPLETE)
            done = [
                t.value for t in study.trials if t.value is not None and t.state.name == "COMPLETE"
            ]
            regret = (min(done, default=np.nan) - best) / (median - best)
            about = {"space": space, "task": task, "seed": seed, "pruner": name}
            table.append({**about, "trial": number, "steps": steps, "regret": regret})
    return pd.DataFrame(table)


def stopping_table(found: pd.DataFrame) -> str:
    """Steps and final regrets as a table in Markdown."""
    keys = ["space", "task", "seed", "pruner"]
    last = found.sort_values("trial").groupby(keys).last().reset_index()
    whole = last[last["pruner"] == "none"].set_index(keys[:3])["steps"]
    reached = {}
    groups: Any = found.groupby(keys)
    for key, part in groups:
        goal = last.set_index(keys)["regret"].loc[(*key[:3], "MedianPruner")]
        enough = part[part["regret"] <= goal + 1e-9]["steps"]
        steps = whole.to_dict()[key[:3]]
        reached[key] = enough.min() / steps if len(enough) else np.inf
    last["reached"] = [reached[tuple(row)] for row in last[keys].to_numpy()]
    of_whole = [whole.to_dict()[tuple(row)] for row in last[keys[:3]].to_numpy()]
    last["share"] = last["steps"] / np.array(of_whole)
    rows = []
    for name in PRUNERS:
        part = last[last["pruner"] == name]
        texts = (f"{part[c].mean():.2f}" for c in ("share", "regret"))
        rows.append([name, *texts, f"{part['reached'].median():.2f}"])
    header = ["pruner", "steps", "final regret", "steps to MedianPruner's final regret (median)"]
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=("ends", "stopping"))
    parser.add_argument("--spaces", nargs="+", default=["mlp", "gbm"])
    parser.add_argument("--tasks", nargs="+", default=["modechoice_car", "wine_second_cultivar"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--out", help="where to write the stopped trials, .csv")
    args = parser.parse_args()
    if args.study == "ends":
        print(ends_table(pd.concat(map(ends, args.spaces))))
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = pd.concat(
        stopping(space, task, seed, args.trials)
        for space in args.spaces
        for task in args.tasks
        for seed in range(args.seeds)
    )
    if args.out:
        found.round(4).to_csv(args.out, index=False)
    print(stopping_table(found))


if __name__ == "__main__":
    main()
