"""Writes the report of a study: tables in `README.md`, and a picture in the same folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.studies.definitions.definition import PRETRAINED
from benchmarks.studies.estimate import core_hours
from benchmarks.studies.methods.models import PRETRAINING_STEPS
from benchmarks.studies.metrics import areas, complete, failures, normalized, regrets
from benchmarks.studies.report.curves import regret_figure
from benchmarks.studies.report.tables import (
    calibration_table,
    comparison_table,
    cost_table,
    mean_table,
    rank_sentence,
    suite_table,
)
from benchmarks.studies.study import ABOUT, RESULTS

REFERENCE, SECOND_REFERENCE = "plain GP", "ScaML-GP"
AT = (1, 2, 3, 5, 10, 20, 30, 40)
AFTER = 10
ADDED = 0.02
NORMALIZED = {
    "worst": "normalized regret (0: the best value, 1: the worst)",
    "median": "normalized regret (0: the best value, 1: the median of random points)",
}
ACQUISITIONS = {
    "log_ei": "LogEI for all models, UCB before the first value",
    "mean_log_ei": "LogEI for all models, the posterior mean before the first value",
    "ucb": "UCB, three standard deviations, for all models",
    "paper": "the acquisition function of each paper",
}
COST_NOTE = (
    "Medians. The first step includes pre-training. Shared pre-training counts for the first "
    "method only. Wall-clock seconds are from a machine that may have been busy."
)


def write_report(folder: Path, out: Path, methods: Sequence[str] | None = None) -> str:
    """Writes the report of a study.

    Args:
        folder: The study's folder, with `results.parquet` and `study.json`.
        out: The folder of `README.md` and the picture.
        methods: The methods of the report; all by default.

    Returns:
        The report.

    Raises:
        ValueError: If all methods have not finished a common problem and seed, if the plain GP is
            missing, or if it is the only method.
    """
    results = pd.read_parquet(folder / RESULTS)
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    if methods is not None:
        results = results[results["method"].isin(methods)]
    found = set(results["method"])
    if REFERENCE not in found or len(found) == 1:
        raise ValueError(f"Methods are compared with the {REFERENCE}: run it and another method.")
    every = normalized(regrets(results), results, about["scale"], about["at_most"])
    regret = complete(every)
    if regret.empty:
        raise ValueError(
            f"There is no case that all methods have finished in {folder}: continue the study."
        )
    sections = [f"# {about['title']}", _introduction(about, results, regret)]
    sections += _comparisons(about, every, regret)
    if "z" in results and results["z"].notna().any():
        sections += [
            "## Calibration\n\nRoot mean square z-score of unseen points with noise, and per cent "
            "of unseen points inside 90 % bands, by number of evaluated points; medians over runs.",
            calibration_table(results),
        ]
    sections += ["## What a step costs", cost_table(results), COST_NOTE]
    text = "\n\n".join(sections) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(text, encoding="utf-8")
    regret_figure(regret, out / "regret.png", about["title"], "normalized regret")
    return text


def _comparisons(about: dict[str, Any], every: pd.DataFrame, regret: pd.DataFrame) -> list[str]:
    last = int(regret.columns[-1])
    at = [*(n for n in AT if n < last), last]
    sections = [
        f"## Against the {REFERENCE}",
        comparison_table(regret, REFERENCE),
        rank_sentence(areas(regret)),
    ]
    if about["groups"]:
        area, after = areas(every), every[min(AFTER, last)].unstack("method")[[*areas(every)]]
        sections += [
            f"## Suite by suite\n\nAreas divided by the {REFERENCE}'s areas:",
            suite_table(area, REFERENCE, about["groups"]),
            f"The same ratios with {ADDED} added to all areas, so that easy suites count less:",
            suite_table(area + ADDED, REFERENCE, about["groups"]),
            f"Regrets after {AFTER} evaluations divided by the {REFERENCE}'s regrets:",
            suite_table(after, REFERENCE, about["groups"]),
        ]
        if SECOND_REFERENCE in area:
            sections += [
                f"Areas divided by the areas of {SECOND_REFERENCE}:",
                suite_table(area, SECOND_REFERENCE, about["groups"]),
            ]
    return [
        *sections,
        f"## Regret\n\nMean ± standard error of the {NORMALIZED[about['scale']]}:",
        mean_table(regret, at),
        "![Mean regret curves](regret.png)",
    ]


def _introduction(about: dict[str, Any], results: pd.DataFrame, regret: pd.DataFrame) -> str:
    names = regret.index.unique("method")
    problems, seeds = (regret.index.unique(name).size for name in ("problem", "seed"))
    cases = len(regret) // names.size
    shown = results[pd.MultiIndex.from_frame(results[[*regret.index.names]]).isin(regret.index)]
    lines = [
        f"Setting: {about['source']}. {problems} target(s), {seeds} seed(s), {cases} cases that "
        f"all {names.size} methods have finished; {about['evaluations']} evaluations "
        f"per run, of which methods without a prior share the first {about['initial']}. "
        f'{ACQUISITIONS[about["acquisition"]]}; models fitted by the "{about["fitting"]}" rule.',
        f"{core_hours(shown):.2f} core-hours; {', '.join(sorted(set(shown['versions'])))}.",
        "Commands:\n\n" + "\n".join(f"    {command}" for command in about["commands"]),
    ]
    if told := [name for name in (*PRETRAINED, "H-EKL") if name in names]:
        lines.append(
            f"{', '.join(told)}: pre-trained in {PRETRAINING_STEPS} steps of Adam; the papers use "
            "many more steps and much more data."
        )
    failed = failures(results)
    if ended := [f"{count} run(s) of {name}" for name, count in failed[failed > 0].items()]:
        lines.append(
            f"Runs that ended with an error, and keep their last value: {', '.join(ended)}."
        )
    return "\n\n".join(lines)
