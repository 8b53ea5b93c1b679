"""Measures the benefit of other tasks' learning curves: predicted ends, and pruning in Optuna.

    python -m benchmarks.curve_study ends
    python -m benchmarks.curve_study stopping --tasks modechoice_car --seeds 2
    python -m benchmarks.curve_study misleading

All three studies replay the curves that ship with the package. The history of a new task has no
task of the same data set. `ends` compares predictions of final values. `stopping` tunes a task with
each pruner and counts the steps of all trials; a trial replays the unused recorded run that is
nearest to the suggested parameters. `misleading` counts how many good runs each pruner stops, if
runs come in a random order. For `TransferPruner`, it also counts with misleading histories, in
which the curves are shuffled among tasks, or all losses have the opposite sign.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from numpy.typing import NDArray
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from benchmarks.markdown import markdown_table
from benchmarks.old_runs import without_data_set
from benchmarks.optuna_study import ask, finished_trial
from botorch_transfer.curves import WIDTH_90, Curve, CurvePrior
from botorch_transfer.datasets import tuning_search_space
from botorch_transfer.models import ScaMLGP
from botorch_transfer.old_studies import value_of
from botorch_transfer.optuna import TransferPruner, TransferSampler
from botorch_transfer.search_space import IntegerParameter, OrdinalParameter, SearchSpace

#: The five tasks of `stopping`. The rules of `TransferPruner` were chosen on other tasks.
TASKS = (
    "modechoice_car",
    "wine_second_cultivar",
    "breast_cancer",
    "diabetes_above_median",
    "digits_3_vs_8",
)

SHARES = (0.1, 0.25, 0.5)
#: Number of partial curves that are predicted together; number of complete runs of the new task.
GROUP, OWN = 4, 5


def load_learning_curves(space: str) -> pd.DataFrame:
    """Loads learning curves of scikit-learn classifiers on the tasks of the tuning history.

    On each of the 18 tasks, 40 configurations of the MLP were trained for 30 epochs, and 20
    configurations of gradient boosting for 80 stages. The loss is evaluated on a held-out half of
    the task's classification data.

    Args:
        space: `"mlp"` or `"gbm"`.

    Returns:
        A table with one row per step: `task`, `run` (the number of the run on the task), the
        parameters (without `n_estimators`), `step`, and `log_loss` (nats per sample, minimized).
        `log_loss` is NaN after training diverged.
    """
    path = Path(__file__).with_name("learning_curves.csv.gz")
    runs = pd.read_csv(path, low_memory=False).query("space == @space")
    runs = runs.assign(log_loss=runs["losses"].str.split())
    curves = runs.explode("log_loss").astype({"log_loss": float}).reset_index(drop=True)
    curves["step"] = curves["every"] * (curves.groupby(["task", "run"]).cumcount() + 1)
    known = [p for p in tuning_search_space(space).parameters if p.name in runs]
    kinds = IntegerParameter, OrdinalParameter
    curves = curves.astype({p.name: "int64" for p in known if isinstance(p, kinds)})
    return curves[["task", "run", *(p.name for p in known), "step", "log_loss"]]


def power_law(steps: NDArray[Any], values: NDArray[Any], full: float) -> float:
    """Predicts the final value by a least-squares fit of `a + b k^-c` to the steps `k`.

    With fewer than 4 points, returns the last value.
    """
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
    """Predicts the final losses of the runs of each task from the beginnings of their curves.

    Args:
        space: `"mlp"` or `"gbm"`.

    Returns:
        One row per prediction and method. The error is in standard deviations of the task's final
        losses. `held` is true if the final loss is in the predicted 90 % interval.
    """
    frame, rows = load_learning_curves(space), []
    for task, mine in frame.groupby("task"):
        options: Any = {"outcome": "log_loss", "step": "step", "goal": "min", "run": "run"}
        prior = CurvePrior.fit(without_data_set(frame, str(task)), **options)
        curves = [c for c in prior.read(mine) if not c.diverged]
        spread, complete = np.std([c.values[-1] for c in curves]), curves[:OWN]
        alone = CurvePrior.of_curves(complete)
        assert alone is not None
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
    """Tabulates the errors and the coverage of the 90 % interval in Markdown."""
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


def old_studies(
    space: str, task: str, seed: int, history: str = "right", count: int = 6, runs: int = 20
) -> list[Any]:
    """Makes finished studies with intermediate values from runs of other tasks.

    Args:
        space: `"mlp"` or `"gbm"`.
        task: The new task.
        seed: The seed of the draw of tasks.
        history: `"right"`; `"shuffled"`, with the curves shuffled among runs and tasks; or
            `"turned"`, with the opposite sign of all losses.
        count: The number of tasks.
        runs: The number of runs of each task.

    Returns:
        One study per task.
    """
    frame, rng = without_data_set(load_learning_curves(space), task), np.random.default_rng(seed)
    names = rng.choice(frame["task"].unique(), count, replace=False)
    frame = frame[frame["task"].isin(names) & (frame["run"] < runs)]
    owned = [(str(name), rows) for (name, _), rows in frame.groupby(["task", "run"])]
    curves = [rows["log_loss"].to_numpy() for _, rows in owned]
    if history == "shuffled":
        curves = [curves[i] for i in rng.permutation(len(curves))]
    sign = -1.0 if history == "turned" else 1.0
    studies = {str(name): optuna.create_study(study_name=str(name)) for name in names}
    for (name, rows), losses in zip(owned, curves, strict=True):
        if np.isfinite(losses).all():
            row, end = rows.iloc[0].to_dict(), sign * float(losses[-1])
            curve = dict(zip(rows["step"].astype(int), (sign * losses).tolist(), strict=True))
            trial = finished_trial(space, row, end, intermediate_values=curve)
            studies[name].add_trial(trial)
    return list(studies.values())


PRUNERS = ("TransferPruner", "MedianPruner", "HyperbandPruner", "none")


def _pruner(name: str, old: Sequence[Any], full: int) -> BasePruner:
    if name == "TransferPruner":
        return TransferPruner(old)
    if name == "HyperbandPruner":
        return HyperbandPruner(1, full)
    return MedianPruner() if name == "MedianPruner" else NopPruner()


class RecordedSampler(BaseSampler):
    """Sampler that replaces a suggestion by the nearest recorded run that is not used yet.

    Two studies get the same next run if they have the same runs with the same numbers of steps.

    Args:
        sampler: The sampler whose suggestions are replaced; `None` for runs in a random order.
        space: The search space.
        runs: The parameters of the recorded runs.
        seed: The seed of the random order.
    """

    def __init__(
        self, sampler: BaseSampler | None, space: SearchSpace, runs: pd.DataFrame, seed: int
    ) -> None:
        self._sampler, self._space, self._runs = sampler, space, runs
        self._X, self._chosen = space.encode(runs), dict[Any, int]()
        self._order = np.random.default_rng(seed).permutation(len(runs)).tolist()
        self.used = list[int]()

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Returns the sampler's distributions; none for a random order."""
        if self._sampler is None:
            return {}
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Returns the parameters of the next run, and appends the run's number to `used`."""
        if self._sampler is None:
            self.used.append(self._order[len(self.used)])
            return {}
        steps = [len(trial.intermediate_values) for trial in study.get_trials(deepcopy=False)]
        state = (*self.used, *steps)
        if state not in self._chosen:
            found = self._sampler.sample_relative(study, trial, search_space)
            row = pd.DataFrame([found], columns=self._space.columns)
            distance = (self._X - self._space.encode(row)).square().sum(dim=-1)
            distance[self.used] = np.inf
            self._chosen[state] = int(distance.argmin())
        self.used.append(self._chosen[state])
        chosen = self._runs.iloc[self.used[-1]]
        active = [name for name in search_space if pd.notna(chosen[name])]
        return {name: value_of(search_space[name], chosen[name]) for name in active}

    def sample_independent(self, study: Any, trial: Any, param_name: str, distribution: Any) -> Any:
        """Returns the parameter's value in the current run."""
        return value_of(distribution, self._runs[param_name].iloc[self.used[-1]])


def stopping(
    space: str, task: str, seed: int, trials: int, history: str | None = None
) -> pd.DataFrame:
    """Tunes one task with each pruner.

    The sampler is `TransferSampler` with the model `ScaMLGP`, which takes half the time of the
    default model.

    Args:
        space: `"mlp"` or `"gbm"`.
        task: The task.
        seed: The seed of the history and of the sampler.
        trials: The number of trials; at most the number of recorded runs.
        history: The history, see `old_studies`. If given, runs come in a random order instead. If
            it is misleading, `TransferPruner` is the only pruner.

    Returns:
        One row per trial and pruner, with these columns: `steps`, the steps of all trials so far;
        `stopped`, whether the trial was stopped; `good`, whether the trial's recorded final loss is
        among the best tenth of all recorded runs; `better`, whether it is less than the losses of
        all complete trials before; and `regret`, the regret of the best complete trial divided by
        the regret of the median recorded run.
    """
    mine = load_learning_curves(space).query("task == @task")
    recorded = [rows for _, rows in mine.groupby("run") if rows["log_loss"].notna().all()]
    parameters = [p for p in tuning_search_space(space).parameters if p.name in mine]
    searched = SearchSpace(parameters)
    runs = pd.concat([rows.iloc[:1] for rows in recorded])
    losses = np.array([rows["log_loss"].iloc[-1] for rows in recorded])
    best, median, top = losses.min(), np.median(losses), np.sort(losses)[len(losses) // 10 - 1]
    old, table = old_studies(space, task, seed, history or "right"), []
    suggested = None if history else TransferSampler(old, seed=seed, model=ScaMLGP)
    sampler = RecordedSampler(suggested, searched, runs, seed)
    for name in PRUNERS if history in (None, "right") else PRUNERS[:1]:
        pruner = _pruner(name, old, int(mine["step"].max()))
        study = optuna.create_study(study_name=task, sampler=sampler, pruner=pruner)
        steps, least, sampler.used = 0, np.inf, []
        for number in range(1, trials + 1):
            trial = study.ask()
            ask(trial, space, searched.columns)
            at, stopped = sampler.used[-1], False
            curve = recorded[at][["step", "log_loss"]].to_numpy()
            for step, loss in curve:
                trial.report(loss, int(step))
                steps += 1
                if stopped := bool(step < curve[-1, 0] and trial.should_prune()):
                    break
            end = None if stopped else losses[at]
            study.tell(trial, end, state=TrialState.PRUNED if stopped else TrialState.COMPLETE)
            about = {"space": space, "task": task, "seed": seed, "pruner": name, "trial": number}
            found = {"steps": steps, "stopped": stopped, "good": losses[at] <= top}
            found["better"] = losses[at] < least
            least = least if stopped else min(least, losses[at])
            table.append({**about, **found, "regret": (least - best) / (median - best)})
    return pd.DataFrame(table)


KEYS = ["space", "task", "seed"]


def stopping_table(found: pd.DataFrame) -> str:
    """Tabulates steps and final regrets in Markdown, with 95 % bootstrap intervals over studies."""
    studies: Any = dict(list(found.groupby([*KEYS, "pruner"])))
    keys = list(dict.fromkeys(key[:3] for key in studies))
    names = [name for name in PRUNERS if (*keys[0], name) in studies]

    def last(name: str, column: str) -> NDArray[Any]:
        return np.array([studies[*key, name][column].iloc[-1] for key in keys])

    def reached(name: str) -> NDArray[Any]:
        goals = last("MedianPruner", "regret") + 1e-9
        parts = [studies[*key, name] for key in keys]
        return np.array(
            [p["steps"][p["regret"] <= g].min() for p, g in zip(parts, goals, strict=True)]
        )

    rows = []
    for name in names:
        share = last(name, "steps") / last("none", "steps")
        more = last(name, "regret") - last("none", "regret")
        speed = reached(name) / reached("MedianPruner")
        same = np.isfinite(speed)
        ratio = np.exp(np.log(speed[same]).mean())
        stopped = np.mean([studies[*key, name]["stopped"].mean() for key in keys])
        rows.append(
            [
                name,
                f"{100 * stopped:.0f} %",
                f"{share.mean():.2f}",
                f"{last(name, 'regret').mean():.3f}",
                f"{more.mean():+.3f} {_interval(more)}",
                f"{ratio:.2f} {_interval(np.log(speed[same]), np.exp)}",
                f"{same.sum()} of {len(same)}",
            ]
        )
    header = ["pruner", "stopped", "steps", "final regret", "more than none"]
    return markdown_table([*header, "steps to MedianPruner's loss", "reached it"], rows)


def _interval(values: NDArray[Any], of: Any = lambda x: x) -> str:
    draws = np.random.default_rng(0).choice(values, (4000, len(values))).mean(axis=1)
    low, high = of(np.quantile(draws, [0.025, 0.975]))
    return f"[{low:.3f}, {high:.3f}]"


def misleading_table(found: pd.DataFrame) -> str:
    """Tabulates the numbers of good runs that were stopped, by history and pruner, in Markdown."""
    rows = []
    found = found[found["pruner"] != "none"]
    for (history, pruner, space), part in found.groupby(["history", "pruner", "space"], sort=False):
        last = part[part["trial"] == part["trial"].max()]
        good, steps = part[part["good"] & (part["trial"] > 1)], last["steps"].mean()
        better = part[part["better"] & (part["trial"] > 1)]
        whole = part["trial"].max() * part[part["trial"] == 1]["steps"].mean()
        rows.append([str(history), str(pruner), str(space), f"{steps / whole:.2f}"])
        for some in (good, good[good["better"]], better):
            rows[-1].append(f"{some['stopped'].sum()} of {len(some)}")
        rows[-1].append(f"{last['regret'].mean():.3f}")
    header = [
        "history",
        "pruner",
        "space",
        "steps",
        "best tenth stopped",
        "and better than all before",
    ]
    return markdown_table([*header, "any better stopped", "final regret"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=("ends", "stopping", "misleading"))
    parser.add_argument("--spaces", nargs="+", default=["mlp", "gbm"])
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--out", help="file for the table of trials, .csv")
    args = parser.parse_args()
    if args.study == "ends":
        print(ends_table(pd.concat(map(ends, args.spaces))))
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    histories = ("right", "shuffled", "turned") if args.study == "misleading" else (None,)
    found = pd.concat(
        stopping(space, task, seed, args.trials, history).assign(history=history)
        for history in histories
        for space in args.spaces
        for task in args.tasks
        for seed in range(args.seeds)
    )
    if args.out:
        found.dropna(axis=1, how="all").round(4).to_csv(args.out, index=False)
    right = found[~found["history"].isin(("shuffled", "turned"))]
    for _, part in right.groupby("space", sort=False):
        print(stopping_table(part))
    if args.study == "misleading":
        print(misleading_table(found))


if __name__ == "__main__":
    main()
