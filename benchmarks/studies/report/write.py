"""A whole report: tables in `README.md`, pictures beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.studies.claims import FEW, claims_list
from benchmarks.studies.definitions.claims import CLAIMS
from benchmarks.studies.definitions.definition import COMPETITORS, EMBEDDED, PRETRAINED
from benchmarks.studies.estimate import core_hours
from benchmarks.studies.methods.models import PRETRAINING_STEPS
from benchmarks.studies.metrics import areas, complete, failures, normalized, regrets
from benchmarks.studies.report.curves import mean_figure, median_figure, regret_figure
from benchmarks.studies.report.groups import chosen
from benchmarks.studies.report.profiles import profile_figure
from benchmarks.studies.report.ranks import rank_figure, rank_sentence
from benchmarks.studies.report.tables import (
    comparison_table,
    cost_table,
    mean_table,
    median_table,
)
from benchmarks.studies.study import RESULTS

REFERENCE = "plain GP"
ABOUT = "study.json"
AT = (1, 3, 5, 10, 20, 30, 40)
MAX_PANELS = 8
"""Of more problems there is no picture for each."""
NORMALIZED = {
    "worst": "normalized regret (0: the best value, 1: the worst)",
    "median": "normalized regret (0: the best value, 1: the median of random points)",
}
ACQUISITIONS = {
    "log_ei": "LogEI for all models, UCB before the first value",
    "ucb": "UCB, three standard deviations, for all models",
    "paper": "each paper's own acquisition",
}


def write_report(folder: Path, out: Path, methods: Sequence[str] | None = None) -> str:
    """Writes the report of a study.

    Args:
        folder: The study's folder, with `results.parquet` and `study.json`.
        out: Where to write `README.md` and its pictures.
        methods: Only these methods; all by default.

    Returns:
        The report.

    Raises:
        ValueError: If no problem and seed has been finished by all methods, or the plain GP is not
            among them, or alone.
    """
    results = pd.read_parquet(folder / RESULTS)
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    if methods is not None:
        results = results[results["method"].isin(methods)]
    found = set(results["method"])
    if REFERENCE not in found or len(found) == 1:
        raise ValueError(f"Methods are compared with the {REFERENCE}: run it, too, and another.")
    raw = complete(regrets(results))
    if raw.empty:
        raise ValueError(f"No case in {folder} has been finished by all methods: run it further.")
    regret = complete(normalized(regrets(results), results, about["scale"]))
    text = "\n\n".join(_sections(about, results, raw, regret)) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(text, encoding="utf-8")
    _draw(about, raw, regret, out)
    return text


def _sections(
    about: dict[str, Any], results: pd.DataFrame, raw: pd.DataFrame, regret: pd.DataFrame
) -> list[str]:
    last = int(regret.columns[-1])
    at = [*(n for n in AT if n < last), last]
    area = areas(regret)
    sections = [f"# {about['title']}", _introduction(about, results, regret)]
    verdicts = claims_list(CLAIMS.get(about["name"], ()), regret)
    if verdicts:
        sections += ["## Claims", verdicts, CLAIM_NOTE]
    sections += [
        f"## Against the {REFERENCE}",
        comparison_table(regret, REFERENCE),
        rank_sentence(area),
        "![Mean ranks with critical differences](ranks.png)",
        f"## Regret\n\nMean ± standard error of the {NORMALIZED[about['scale']]}:",
        mean_table(regret, at),
        "![Mean regret curves](mean.png)",
        "Median over runs [20th, 80th percentile]:",
        median_table(regret, at),
        "![Median regret curves](median.png)",
        "![Shares of runs that are good enough](profiles.png)",
    ]
    if _has_panels(raw):
        sections.append(f"![{about['regret']}, some methods problem by problem](problems.png)")
    sections += ["## What a step costs", cost_table(results), COST_NOTE]
    return sections


COST_NOTE = (
    "Medians. The first step pre-trains; what several methods pre-train alike counts for the one "
    "that came first. Seconds are the wall clock's, on a machine that may have had other work."
)
CLAIM_NOTE = (
    "Claims are those of the papers, unless they say whose they are; some were made of other data. "
    'Ratios of mean areas under the normalized regret curves, below 1 (1.05 for "joint best" and '
    '"as good as") where a claim holds, with 95 % intervals of a paired bootstrap over targets and '
    'then their seeds. "Rather" is said where the mean points that way, and the interval does not '
    f"exclude the opposite, or there are fewer than {FEW} targets. Intervals of about ten targets "
    "are somewhat short (nine of ten cover, not nineteen of twenty), and of many comparisons some "
    "are decided by chance: none is corrected for their number."
)
COMPETITORS_NOTE = (
    "{}: this project's readings of their papers (`benchmarks/competitors` says what is its own), "
    "not the authors' programs, with their papers' acquisition functions, and fitted anew at every "
    "step."
)
PRETRAINING_NOTE = (
    "{}: pre-trained in {} steps of Adam; the papers take many times more, on many times more data."
)


def _introduction(about: dict[str, Any], results: pd.DataFrame, regret: pd.DataFrame) -> str:
    problems, seeds = (regret.index.unique(name).size for name in ("problem", "seed"))
    cases = len(regret) // regret.index.unique("method").size
    shown = results[pd.MultiIndex.from_frame(results[[*regret.index.names]]).isin(regret.index)]
    lines = [
        f"Setting: {about['source']}. {problems} target(s), {seeds} seed(s), {cases} cases that "
        f"all {regret.index.unique('method').size} methods have finished; {about['evaluations']} "
        f"evaluations a run, the first {about['initial']} of methods without a prior being shared. "
        f"{ACQUISITIONS[about['acquisition']]}; models fitted by the "
        f'"{about["fitting"]}" rule.',
        "",
        f"{core_hours(shown):.2f} core-hours; {', '.join(sorted(set(shown['versions'])))}. "
        f"{_origin(about, results)}",
    ]
    notes = (
        ((*COMPETITORS, *EMBEDDED), COMPETITORS_NOTE),
        ((*PRETRAINED, "H-EKL"), PRETRAINING_NOTE),
    )
    for names, note in notes:
        if told := [name for name in names if name in regret.index.unique("method")]:
            lines += ["", note.format(", ".join(told), PRETRAINING_STEPS)]
    failed = failures(results)
    ended = [f"{count} run(s) of {name}" for name, count in failed[failed > 0].items()]
    if ended:
        lines += ["", f"Ended by an error, their last value kept: {', '.join(ended)}."]
    return "\n".join(lines)


def _origin(about: dict[str, Any], results: pd.DataFrame) -> str:
    """What made the runs; of a folder that grew in several ways, how many of them are there."""
    told = f"Run, or gone on with, by `{about['command']}`"
    extent = about.get("extent")
    if extent is None:  # a folder of an earlier revision
        return f"{told}."
    asked = extent["tasks"] * extent["seeds"] * results["method"].nunique()
    there = len(results[["problem", "method", "seed"]].drop_duplicates())
    missing = f"; {there} of the {asked} runs that it asks for are there" if there < asked else ""
    return f"{told}{missing}."


def _draw(about: dict[str, Any], raw: pd.DataFrame, regret: pd.DataFrame, out: Path) -> None:
    title, label = about["title"], "normalized regret"
    mean_figure(regret, out / "mean.png", title, label)
    median_figure(regret, out / "median.png", title, label)
    profile_figure(regret, out / "profiles.png", title)
    rank_figure(areas(regret), out / "ranks.png", title)
    if _has_panels(raw):
        shown = raw[raw.index.isin(chosen(list(raw.index.unique("method"))), level="method")]
        regret_figure(shown, out / "problems.png", title, about["regret"])


def _has_panels(raw: pd.DataFrame) -> bool:
    return 1 < raw.index.unique("problem").size <= MAX_PANELS
