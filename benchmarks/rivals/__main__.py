"""Compares the package's default with rivals.

    python -m benchmarks.rivals fast --data FOLDER --out DIR
    python -m benchmarks.rivals report --out DIR

The same command continues an interrupted run. More targets or methods add to the finished runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.markdown import markdown_table
from benchmarks.studies.estimate import seconds_a_run
from benchmarks.studies.methods import Method, methods
from benchmarks.studies.methods.external import External
from benchmarks.studies.metrics import areas, average, complete, failures, normalized, regrets
from benchmarks.studies.report.tables import suite_table
from benchmarks.studies.run import Budget
from benchmarks.studies.statistics import ratios
from benchmarks.studies.study import Study, run_study
from benchmarks.studies.suites import HEAVY_TAILS, SHIPPED, TUNING, VALIDATION, problems

OURS, RUNS = "TransferGP", "runs.csv.gz"
SUITES = (*TUNING, *VALIDATION, *SHIPPED, *HEAVY_TAILS)
# Even with these small suites, the rivals in SLOW take up to a minute per step.
SMALL = tuple(replace(s, num_sources=min(s.num_sources, 3), num_points=15) for s in SUITES)
FAST: dict[str, Method] = {
    **methods([OURS, "plain GP", "RGPE", "random search"], "mean_log_ei"),
    "sorted": External("lists:Sorted"),
    "portfolio": External("lists:Portfolio"),
    "Optuna TPE": External("optuna_samplers:Tpe"),
    "Optuna GPSampler": External("optuna_samplers:Gp"),
    "Syne Tune zero-shot": External("syne_tune_transfer:ZeroShot", "syne_tune"),
    "Syne Tune quantiles": External("syne_tune_transfer:Quantiles", "syne_tune"),
    "Syne Tune bounding box": External("syne_tune_transfer:Box", "syne_tune"),
}
SLOW: dict[str, Method] = {
    **methods([OURS, "multi-task GP"], "mean_log_ei"),
    "Ax BOTL": External("ax_botl:Botl", initial_design=True),
    "BayBE": External("baybe_tasks:Baybe", "baybe"),
    "OpenBox RGPE": External("openbox_tlbo:Rgpe", "openbox"),
    "OpenBox TOPO": External("openbox_tlbo:Topo", "openbox"),
}
#: Suites, methods and number of evaluations of each design.
DESIGNS = {"fast": (SUITES, FAST, 25), "slow": (SMALL, SLOW, 6)}
UNUSED = ["observed", "x", "suggest_seconds", "evaluate_seconds", "worst", "z", "covered"]


def report(results: pd.DataFrame) -> str:
    """Compares each rival with `TransferGP` on their common finished targets, best rival first.

    Args:
        results: The table of `run_study`, with one row per evaluation.

    Returns:
        A markdown table with one row per rival. The columns are the area under the rival's regret
        curve divided by the area of `TransferGP`, with a 95 % interval of a paired bootstrap over
        targets; the same ratio of final regrets; the numbers of targets on which the area of
        `TransferGP` is smaller, equal and larger; mean regrets, with the regrets of `TransferGP` in
        parentheses; seconds of processor time per run; and the number of runs that ended with an
        error. A second table has the ratios of areas for each suite.
    """
    regret = normalized(regrets(results), results, "median", 1.0)
    seconds, failed = seconds_a_run(results), failures(results)
    rows: dict[str, list[str]] = {}
    for name in map(str, seconds.index.drop(OURS)):
        pair = complete(regret[regret.index.isin([OURS, name], level="method")])
        area, mean = areas(pair), average(pair)
        signs, cells = np.sign((area[name] - area[OURS]).round(9)), []
        for values in (area, pair.iloc[:, -1].unstack("method")):
            cells.append(str(ratios(values, OURS)[name]))
        cells.append(" / ".join(str((signs == sign).sum()) for sign in (1, 0, -1)))
        for n in (1, 5, mean.columns[-1]):
            cells.append(f"{mean[n][name]:.3f} ({mean[n][OURS]:.3f})")
        rows[name] = [*cells, f"{seconds[name]:.1f} ({seconds[OURS]:.1f})", str(failed[name])]
    names = sorted(rows, key=lambda name: float(rows[name][0].split()[0]))
    header = ["rival", "area / ours", "last regret / ours", "we win / equal / lose"]
    header += ["regret after 1 (ours)", "5", str(regret.shape[1]), "s per run (ours)", "errors"]
    every = regret.mean(axis=1).unstack("method")[[OURS, *names]]
    table = markdown_table(header, [[name, *rows[name]] for name in names])
    return f"{table}\n\n{suite_table(every, OURS, {})}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: The arguments; by default the arguments of the command line.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=[*DESIGNS, "report"])
    parser.add_argument("--data", type=Path, help="the folder with the tables")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--targets", type=int, default=2, help="how many of each suite")
    parser.add_argument("--time-limit", type=float, default=np.inf, help="minutes; no target later")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="only some, by name")
    options = parser.parse_args(arguments)
    if options.what == "report":
        print(report(pd.read_csv(options.out / RUNS)))
        return
    suites, rivals, evaluations = DESIGNS[options.what]
    every = problems(suites, options.data)
    of_suite = [[p for p in every if p.suite is suite][: options.targets] for suite in suites]
    # The first target of each suite precedes the second target of any suite.
    chosen = [of[n] for n in range(options.targets) for of in of_suite if n < len(of)]
    rivals = {name: rivals[name] for name in options.methods or rivals}
    study = Study(chosen, rivals, [0], Budget(evaluations, initial=2))
    table = run_study(study, options.out, 1, progress=True, time_limit=60 * options.time_limit)
    table.drop(columns=UNUSED, errors="ignore").to_csv(options.out / RUNS, index=False)


if __name__ == "__main__":
    main()
