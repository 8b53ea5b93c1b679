"""Tunes classifiers with Optuna, with and without earlier studies.

    python -m benchmarks.optuna_study run --out DIR [--seeds 10] [--methods NAME ...]
    python -m benchmarks.optuna_study report --out DIR

Each evaluation cross-validates a classifier. Each seed draws ten old Optuna studies on other data
sets. All samplers have default options. Each run writes one file in DIR, so an interrupted study
continues where it stopped. `DIR/evaluations.csv.gz` contains all evaluations.
"""

import argparse
import json
import math
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from benchmarks.history_spaces import evaluate
from benchmarks.markdown import markdown_table
from benchmarks.old_runs import METRIC, draw_old_runs, finished
from benchmarks.studies.metrics import average, complete, normalized, regrets
from benchmarks.studies.run import isolated, revision
from benchmarks.studies.statistics import LEVEL, ratios, resampled_means
from botorch_transfer.datasets import load_tuning_history, tuning_search_space
from botorch_transfer.old_studies import distribution_of, value_of
from botorch_transfer.optuna import TransferSampler
from botorch_transfer.search_space.parameters import ActiveIf

# Pairs of a search space (the classifier to tune) and a task.
PROBLEMS = (
    ("svm", "digits_3_vs_8"),
    ("svm", "modechoice_car"),
    ("gbm", "digits_3_vs_8"),
    ("mlp", "modechoice_car"),
)
EVALUATIONS, AT = 20, (1, 5, 15, 20)
OLD_TASKS, OLD_RUNS = 10, 30
REFERENCES = ("TPE", "GPSampler")

Trials = list[optuna.trial.FrozenTrial]


def distributions(space: str) -> dict[str, tuple[BaseDistribution, ActiveIf]]:
    """Returns the distribution and the activity condition of each parameter of a search space."""
    parameters = tuning_search_space(space).parameters
    return {p.name: (distribution_of(p), p.active_if or {}) for p in parameters}


def finished_trial(
    space: str, row: Mapping[Any, Any], value: float, **options: Any
) -> optuna.trial.FrozenTrial:
    """Converts a run of the tuning history to a complete trial.

    Args:
        space: The search space.
        row: The parameters of the run.
        value: The value of the trial.
        **options: Further arguments of `optuna.create_trial`.

    Returns:
        The trial.
    """
    found = distributions(space).items()
    own = {name: d for name, (d, _) in found if name in row and pd.notna(row[name])}
    params = {name: value_of(d, row[name]) for name, d in own.items()}
    return optuna.create_trial(params=params, distributions=own, value=value, **options)


def ask(trial: optuna.Trial, space: str, names: Collection[str] | None = None) -> dict[str, Any]:
    """Asks a trial for the active parameters of a search space; if given, only for `names`."""
    config: dict[str, Any] = {}
    for name, (distribution, condition) in distributions(space).items():
        active = all(config.get(parent) in values for parent, values in condition.items())
        if active and (names is None or name in names):
            config[name] = _ask(trial, name, distribution)
    return config


def old_studies(
    space: str, target: str, seed: int, scale: Callable[[float], float] = float
) -> list[optuna.Study]:
    """Draws old runs, and converts these runs to finished studies.

    Args:
        space: The search space.
        target: The task to tune.
        seed: The seed of the draw.
        scale: Function that converts a loss to the value of a trial.

    Returns:
        One study per task.
    """
    studies = []
    for task, runs in draw_old_runs(space, target, seed, OLD_TASKS, OLD_RUNS).groupby("task"):
        study = optuna.create_study(study_name=str(task))
        for row in runs.to_dict("records"):
            study.add_trial(finished_trial(space, row, scale(row[METRIC])))
        studies.append(study)
    return studies


TRANSFER, WARM_STARTED = "TransferSampler", "TPE, best of history enqueued"
# TPE needs no logarithm, because it only depends on ranks.
OF_LOGARITHMS = ("TransferSampler of the logarithm", "GPSampler of the logarithm")
METHODS = (TRANSFER, *REFERENCES, WARM_STARTED, *OF_LOGARITHMS)


def _sampler(method: str, studies: Sequence[optuna.Study], seed: int) -> BaseSampler:
    if method.startswith("TransferSampler"):
        return TransferSampler(studies, seed=seed)
    return GPSampler(seed=seed) if method.startswith("GPSampler") else TPESampler(seed=seed)


def run(method: str, space: str, target: str, seed: int) -> dict[str, Any]:
    """Tunes a task with one sampler.

    Args:
        method: The method, one of `METHODS`. `WARM_STARTED` first evaluates the best configuration
            of each old study, in random order. For methods in `OF_LOGARITHMS`, the values of old
            and new trials are the logarithms of the losses.
        space: The search space.
        target: The task.
        seed: The seed of the old runs and of the sampler.

    Returns:
        The arguments; the losses in the order of the trials (`None` for a failed run); and the
        processor time of the evaluations and of the rest, in seconds.
    """
    evaluating = 0.0
    scale: Callable[[float], float] = math.log if method in OF_LOGARITHMS else float
    losses: list[float] = []

    def objective(trial: optuna.Trial) -> float:
        nonlocal evaluating
        config = ask(trial, space)
        start = time.process_time()
        losses.append(evaluate(space, target, config)[METRIC])
        evaluating += time.process_time() - start
        return scale(losses[-1])

    old = old_studies(space, target, seed, scale)
    start = time.process_time()
    with isolated():
        own_seed = zlib.crc32(f"{space}/{target}/{seed}".encode())
        study = optuna.create_study(sampler=_sampler(method, old, own_seed))
        if method == WARM_STARTED:
            for number in np.random.default_rng(own_seed).permutation(len(old)):
                study.enqueue_trial(old[number].best_params)
        study.optimize(objective, EVALUATIONS)
    return {
        "method": method,
        "space": space,
        "task": target,
        "seed": seed,
        "revision": revision(),
        "values": [None if math.isnan(loss) else loss for loss in losses],
        "evaluating": evaluating,
        "suggesting": time.process_time() - start - evaluating,
    }


def _ask(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, FloatDistribution):
        return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        low, high, step = distribution.low, distribution.high, distribution.step
        return trial.suggest_int(name, low, high, step=step, log=distribution.log)
    assert isinstance(distribution, optuna.distributions.CategoricalDistribution)
    return trial.suggest_categorical(name, distribution.choices)


def evaluations_table(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulates one evaluation per row, in the form that `benchmarks.studies.metrics` takes.

    Args:
        results: The results of `run`.

    Returns:
        The table. A problem is a pair of a search space and a task. `best_known` and `median` are
        the best and the median value of the problem's shipped runs.
    """
    rows: list[dict[str, Any]] = []
    for result in results:
        space, task = result["space"], result["task"]
        shipped = load_tuning_history(space).query("task == @task")[METRIC]
        about = {"problem": f"{space}: {task}", "seed": result["seed"], "method": result["method"]}
        about |= {"best_known": -shipped.min(), "median": -shipped.median()}
        values = [np.nan if value is None else -value for value in result["values"]]
        rows += [{**about, "evaluation": n, "value": v} for n, v in enumerate(values, start=1)]
    return pd.DataFrame(rows)


def report(results: Sequence[Mapping[str, Any]]) -> str:
    """Tabulates the results of the study.

    Args:
        results: The results of `run`.

    Returns:
        The table in Markdown, with one row per method. Brackets contain the central 95 % of a
        paired bootstrap over problems and seeds. The columns are:

        - the mean regret after some numbers of evaluations, divided by the regret of the median
          shipped run;
        - the ratio of this mean regret to the mean regret of TPE;
        - for each reference, the number of evaluations until the method's mean regret is at most
          the reference's final mean regret;
        - the processor time per suggestion.
    """
    frame = evaluations_table(results)
    regret = complete(normalized(regrets(frame), frame, "median"))
    steps = list(regret.columns)
    wide: Any = regret.unstack("method")
    drawn = resampled_means(wide.swaplevel(axis=1), np.random.default_rng(0))
    of_method = {m: np.stack([drawn[m, n] for n in steps]) for m in regret.index.unique("method")}
    means = {str(method): row.to_numpy() for method, row in average(regret).iterrows()}
    times = pd.DataFrame(results).groupby("method")["suggesting"].mean() / len(steps)
    shown = [n for n in AT if n in steps]
    header = ["sampler", *(text for n in shown for text in (f"after {n}", "ratio to TPE's"))]
    header += [f"evaluations to {name}'s final regret" for name in REFERENCES]
    rows = []
    for method in [name for name in METHODS if name in of_method]:
        row = [method]
        for n in shown:
            ratio = ratios(regret[n].unstack("method"), REFERENCES[0])[method]
            row += [f"{means[method][n - 1]:.3f}", str(ratio)]
        for reference in REFERENCES:
            number = _first(means[method][:, None], means[reference][-1])[0]
            reached = _first(of_method[method], of_method[reference][-1])
            ends = np.quantile(reached, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
            texts = [_count(x, len(steps)) for x in (number, *ends)]
            row.append(f"{texts[0]} [{texts[1]}, {texts[2]}]")
        rows.append([*row, f"{times[method]:.2f}"])
    problems, seeds = regret.index.unique("problem").size, regret.index.unique("seed").size
    text = f"{problems} problems × {seeds} seeds, {len(steps)} evaluations\n\n"
    return text + markdown_table([*header, "s a suggestion"], rows)


def _first(curves: np.ndarray, goals: np.ndarray | float) -> np.ndarray:
    """Returns the number of evaluations (rows) until each curve (column) is at most its goal."""
    reached = curves <= goals
    return np.where(reached.any(axis=0), 1.0 + reached.argmax(axis=0), np.inf)


def _count(number: float, most: int) -> str:
    return f"{number:.0f}" if np.isfinite(number) else f"> {most}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: The arguments; by default the arguments of the command line.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    options = parser.parse_args(arguments)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options.out.mkdir(parents=True, exist_ok=True)
    cases = product(range(options.seeds), PROBLEMS, options.methods)
    for seed, (space, task), method in cases if options.what == "run" else ():
        name = f"{space}-{task}-{method.replace(', ', '-').replace(' ', '_')}-{seed}.json"
        finished(options.out / name, partial(run, method, space, task, seed))
    results = [json.loads(path.read_text()) for path in sorted(options.out.glob("*.json"))]
    evaluations_table(results).to_csv(options.out / "evaluations.csv.gz", index=False)
    print(report(results))


if __name__ == "__main__":
    main()
