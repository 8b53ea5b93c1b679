"""What ``transfer_report`` says after a few evaluations, against what the sources really are."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from benchmarks.adversarial.analysis import GUARDED
from benchmarks.markdown import markdown_table
from benchmarks.studies import TableProblem
from botorch_transfer import GuardedTransferGP
from botorch_transfer.report import ALL

NUM_EVALUATIONS = 10
SAYS = {"irrelevant": "irrelevant", "inverted": "misleading", "helpful": "helpful"}
"""What the report should say of a history of one kind."""


def verdicts(
    results: pd.DataFrame, problems: Sequence[TableProblem], method: str = GUARDED
) -> pd.DataFrame:
    """Reports on every synthetic problem, from the first evaluations of one method's run.

    Args:
        results: The table of runs.
        problems: The synthetic problems; the names of their sources say of which kind they are.
        method: The method whose evaluations are taken.

    Returns:
        One row a source: ``family``, ``history``, ``seed``, ``kind``, ``verdict``; and one row a
        problem with the kind ``"all"``.
    """
    rows = []
    for problem in problems:
        run = results[(results["problem"] == problem.name) & (results["method"] == method)]
        if run.empty:
            continue
        first = run.sort_values("evaluation").head(NUM_EVALUATIONS)
        X = torch.tensor(first["x"].tolist(), dtype=torch.double)
        Y = torch.tensor(first["value"].tolist(), dtype=torch.double).unsqueeze(-1)
        family, history, seed = problem.name.split(" ")
        of_problem = {"family": family, "history": history, "seed": int(seed)}
        report = GuardedTransferGP(X, Y, problem.history).transfer_report()
        for source, verdict in report["verdict"].items():
            kind = "all" if source == ALL else str(source).split(" ")[0]
            rows.append({**of_problem, "kind": kind, "verdict": verdict})
    return pd.DataFrame(rows)


def verdict_table(found: pd.DataFrame) -> str:
    """Lays out how often sources and whole histories are named as what they are.

    Args:
        found: What :func:`verdicts` gave.

    Returns:
        A markdown table: the share of sources, over all histories that have such; the share of
        seeds in which most sources of a pure history are named right; and in which the whole is.
    """
    rows = []
    for family, of_family in found.groupby("family"):
        for kind, says in SAYS.items():
            sources = of_family[of_family["kind"] == kind]
            pure = sources[sources["history"] == kind]
            named = (pure["verdict"] == kind).groupby(pure["seed"]).mean()
            whole = of_family[(of_family["kind"] == "all") & (of_family["history"] == kind)]
            rows.append(
                [
                    f"{family} {kind}",
                    f"{(sources['verdict'] == kind).mean():.0%} of {len(sources)}",
                    f"{(named > 0.5).mean():.0%} of {len(named)}",
                    f"{(whole['verdict'] == says).mean():.0%}",
                ]
            )
    return markdown_table(["sources", "named right", "most, by seed", "whole history"], rows)
