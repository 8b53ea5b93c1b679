"""Compares the package's default with rivals: `python -m benchmarks.rivals run fast --data FOLDER`.

A run that was interrupted goes on where it stopped by the same command, and more targets only add
to it. `python -m benchmarks.rivals report DIR/runs.csv.gz` prints the tables.
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
from benchmarks.studies.statistics import ratio_of_means
from benchmarks.studies.study import Study, gather, run_missing
from benchmarks.studies.suites import PROGRAMS, SHIPPED, TUNING, VALIDATION, problems

OURS = "TransferGP"
SUITES = (*TUNING, *VALIDATION, *SHIPPED, *PROGRAMS)
# The rivals in SLOW take up to a minute a step even so.
SMALL = tuple(replace(s, num_sources=min(s.num_sources, 5), num_points=20) for s in SUITES)
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
DESIGNS = {"fast": (SUITES, FAST, 15), "slow": (SMALL, SLOW, 8)}
"""Suites, methods and evaluations."""
UNUSED = ["observed", "x", "suggest_seconds", "evaluate_seconds", "worst", "z", "covered"]


def report(results: pd.DataFrame) -> str:
    """Compares rivals with ours; those that win come first, above ours.

    Args:
        results: One row an evaluation, as `gather` gives it.

    Returns:
        A markdown table with a row a method: the area under its regret curve over that under ours
        with a 95 % interval of a paired bootstrap over targets, the same of the last regret, the
        targets on which our area is smaller, equal and larger, mean regrets, seconds of processor
        time a run and the runs that an error ended; and the areas' ratios suite by suite.
    """
    regret = complete(normalized(regrets(results), results, "median", 1.0))
    area, last = areas(regret), regret.iloc[:, -1].unstack("method")
    ratio, end = ratio_of_means(area, OURS), ratio_of_means(last, OURS)
    mean, seconds, failed = average(regret), seconds_a_run(results), failures(results)
    rows = []
    for name in ratio.sort_values("ratio", kind="stable").index:
        signs = np.sign((area[name] - area[OURS]).round(9))
        counts = " / ".join(str((signs == sign).sum()) for sign in (1, 0, -1))
        means = [f"{mean.loc[name, n]:.3f}" for n in (1, 5, regret.shape[1])]
        cost = [f"{seconds[name]:.1f}", str(failed[name])]
        rows.append([name, _text(ratio.loc[name]), _text(end.loc[name]), counts, *means, *cost])
    header = ["method", "area / ours", "last regret / ours", "we win / equal / lose"]
    header += ["regret after 1", "5", str(regret.shape[1]), "s a run", "errors"]
    members = {"development": (*TUNING, *VALIDATION), "shipped": SHIPPED, "programs": PROGRAMS}
    groups = {name: [suite.name for suite in suites] for name, suites in members.items()}
    suites = suite_table(area[ratio.sort_values("ratio").index], OURS, groups)
    return f"{len(area)} targets\n\n{markdown_table(header, rows)}\n\n{suites}"


def _text(ratio: pd.Series) -> str:
    return f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: Those of the command line by default.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="run a design, or what is missing of it")
    one.add_argument("design", choices=DESIGNS)
    one.add_argument("--data", type=Path, required=True, help="the folder with the tables")
    one.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    one.add_argument("--targets", type=int, default=2, help="how many of each suite")
    one.add_argument("--time-limit", type=float, default=np.inf, help="minutes; no target later")
    told = commands.add_parser("report", help="print the tables of a run")
    told.add_argument("runs", type=Path, help="the file runs.csv.gz that a run leaves")
    options = parser.parse_args(arguments)
    if options.command == "report":
        print(report(pd.read_csv(options.runs)))
        return
    suites, rivals, evaluations = DESIGNS[options.design]
    every = problems(suites, options.data)
    of_suite = [[p for p in every if p.suite is suite][: options.targets] for suite in suites]
    # A target of each suite comes before the second of any.
    chosen = [of[n] for n in range(options.targets) for of in of_suite if n < len(of)]
    study = Study(chosen, rivals, [0], Budget(evaluations, initial=2))
    run_missing(study, options.out, 1, progress=True, time_limit=60 * options.time_limit)
    table = gather(options.out, [problem.name for problem in chosen], list(rivals))
    table.drop(columns=UNUSED, errors="ignore").to_csv(options.out / "runs.csv.gz", index=False)


if __name__ == "__main__":
    main()
