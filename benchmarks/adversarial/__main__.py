"""What misleading history costs: `python -m benchmarks.adversarial --out out/adversarial`.

Each family's targets meet histories that are helpful, irrelevant, inverted, shifted, shuffled,
or mixed. The tables of real runs need the folder that holds them, `--data FOLDER`; without it they
are left out. The study can be interrupted and goes on where it stopped; `--methods` runs a part of
it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from benchmarks.adversarial.analysis import (
    STARTS,
    bounds_table,
    regret_table,
    scaled_regrets,
)
from benchmarks.adversarial.compositions import hedging_table, oracle_table
from benchmarks.adversarial.histories import FAMILIES, HISTORIES, synthetic_problem
from benchmarks.adversarial.methods import plain, transferring
from benchmarks.adversarial.tables import table_problems
from benchmarks.adversarial.verdicts import verdict_table, verdicts
from benchmarks.studies import TableProblem, run_study
from benchmarks.studies.methods import Method
from benchmarks.studies.run import Budget
from benchmarks.studies.study import Study

BUDGET = Budget(evaluations=40, initial=3)
TABLES = ("svm", "rf")
NUM_TARGETS = 10


@dataclass(frozen=True)
class Part:
    """Problems with the methods that run on them.

    Args:
        problems: The problems.
        methods: The methods by name.
    """

    problems: Sequence[TableProblem]
    methods: Mapping[str, Method]

    def only(self, names: Sequence[str] | None) -> Part:
        """The part with some of its methods; all by default."""
        chosen = {name: m for name, m in self.methods.items() if names is None or name in names}
        return Part(self.problems, chosen)


def synthetic_parts(seeds: Sequence[int]) -> list[Part]:
    """Plans the synthetic part; the method without transfer runs once a seed.

    Args:
        seeds: The seeds.

    Returns:
        Small parts, so that an interrupted study has finished seeds.
    """
    parts = []
    for seed in seeds:
        for family in FAMILIES:
            parts.append(Part([synthetic_problem(family, "none", seed)], plain()))
            problems = [synthetic_problem(family, history, seed) for history in HISTORIES]
            parts.append(Part(problems, transferring()))
    return parts


def run(parts: Sequence[Part], folder: Path, budget: Budget = BUDGET) -> pd.DataFrame:
    """Runs what is missing.

    Args:
        parts: The parts.
        folder: Where runs are kept, and `results.parquet`, one row an evaluation.
        budget: What each run may spend.

    Returns:
        The table of all parts.
    """
    tables = [
        run_study(Study(part.problems, part.methods, seeds=[0], budget=budget), folder)
        for part in tqdm(parts, unit="part")
        if part.methods
    ]
    results = pd.concat(tables, ignore_index=True)
    results.to_parquet(folder / "results.parquet")
    return results


def summary(results: pd.DataFrame, problems: Sequence[TableProblem]) -> str:
    """Lays out what the study found.

    Args:
        results: The table of runs.
        problems: Their problems.

    Returns:
        Markdown.
    """
    regret = scaled_regrets(results, problems)
    sections = ["Regret in per cent of the range, mean (median):", regret_table(regret)]
    for start in STARTS:
        sections += [
            f"Area under the regret curve after evaluation {start}, per cent of the range:",
            bounds_table(regret, start),
        ]
    sections += ["With random evaluations before the guarded model's:", hedging_table(regret)]
    sections += ["Had the first evaluation followed the history, at best:", oracle_table(regret)]
    return "\n\n".join([*sections, *report_summary(results, problems)])


def report_summary(results: pd.DataFrame, problems: Sequence[TableProblem]) -> list[str]:
    """Lays out what the report said.

    Args:
        results: The table of runs.
        problems: Their problems.

    Returns:
        Paragraphs of markdown; none if the guarded model did not run.
    """
    found = verdicts(results, [p for p in problems if p.name.split(" ")[0] in FAMILIES])
    if found.empty:
        return []
    return ["What the report says after ten evaluations:", verdict_table(found)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: Those of the command line by default.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/adversarial"))
    parser.add_argument("--data", type=Path, help="the folder with the tables")
    parser.add_argument("--seeds", type=int, default=20, help="the number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", help="some of the methods; all by default")
    options = parser.parse_args(arguments)
    parts = synthetic_parts(range(options.first_seed, options.first_seed + options.seeds))
    if options.data is not None:
        for name in TABLES:
            problems = table_problems(name, options.data, NUM_TARGETS)
            parts.append(Part(problems, plain() | transferring()))
    parts = [part.only(options.methods) for part in parts]
    results = run(parts, options.out)
    problems = [problem for part in parts for problem in part.problems]
    if options.methods is None:
        text = summary(results, problems)
        (options.out / "summary.md").write_text(text + "\n", encoding="utf-8")
    else:
        text = "\n\n".join(report_summary(results, problems))
    print(text)


if __name__ == "__main__":
    main()
