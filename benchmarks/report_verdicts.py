"""Is what `transfer_report` says right? Verdicts on histories of which the truth is known.

    python -m benchmarks.report_verdicts --data FOLDER --out FOLDER

Each history has ten tasks of 32 points. Six kinds are synthetic, of Branin for even seeds and of
Hartmann's function with three inputs for odd ones; the others are tasks of public tables. The
default model gets 3, 10 and 20 points of a pool: two thirds at random, and the last ones where the
model fitted before predicts the best outcomes. After each stage the report is kept. No search by an
acquisition function is made: the verdicts are about the report, not about the points.

What is right: for kinds, see `RIGHT`. A shifted task, or one of a table, may be anything; there a
source's correlation with the target over the whole pool says what it is, and a verdict is right if
it is for one of three cutoffs, `CUTOFFS`, because relatedness has no sharp limit.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from tqdm import tqdm

from benchmarks.adversarial.histories import (
    FAMILIES,
    NUM_TASKS,
    POINTS_A_TASK,
    POOL_SIZE,
    synthetic_problem,
)
from benchmarks.adversarial.tables import MIN_POINTS
from benchmarks.markdown import markdown_table
from benchmarks.studies.problems import TableProblem
from benchmarks.tables import read_shared
from botorch_transfer import SourceGPs, SourcePopulation, TransferGP
from botorch_transfer.report import ALL, FEW_POINTS, SMALL

KINDS = ("helpful", "partly", "shifted", "irrelevant", "inverted", "mixed")
TABLES = ("svm", "fcnet", "mlp", "rf", "rnn_optimizer")
STAGES = (3, 10, 20)
GREEDY = 3
"""One of so many points is greedy."""

RIGHT = {
    "helpful": "helpful",
    "partly": "partly helpful",
    "irrelevant": "irrelevant",
    "inverted": "misleading",
    "mixed": "partly helpful",
}
CUTOFFS = (0.3, 0.5, 0.7)
"""Correlations from which a source counts as related to the target."""


def table_problems(name: str, data: Path, num_targets: int) -> list[TableProblem]:
    """Makes problems of a table, with as many tasks, points and rows in the pool as synthetic ones.

    Args:
        name: The table.
        data: The folder with the tables.
        num_targets: The number of targets; of a table with fewer tasks, some come again with
            another history.

    Returns:
        The problems.
    """
    table = read_shared(name, data).at_least(MIN_POINTS)
    names, problems = list(table.tasks), []
    for number in range(num_targets):
        target = names[number * max(1, len(names) // num_targets) % len(names)]
        seed = zlib.crc32(f"{name}/{target}/{number}".encode())
        generator = torch.Generator().manual_seed(seed)
        others = [task for task in names if task != target]
        drawn = [others[i] for i in torch.randperm(len(others), generator=generator)[:NUM_TASKS]]
        problem = table.problem(target, sources=drawn).subsample(POINTS_A_TASK, seed)
        finite = problem.Y.isfinite().squeeze(-1).nonzero().squeeze(-1)
        rows = finite[torch.randperm(len(finite), generator=generator)[:POOL_SIZE]]
        named = f"{name} {target} {number}"
        problems.append(replace(problem, name=named, X=problem.X[rows], Y=problem.Y[rows]))
    return problems


def correlations(problem: TableProblem, sources: SourceGPs) -> Tensor:
    """The correlation of each source's mean with the target, over the whole pool.

    Args:
        problem: The problem.
        sources: The source GPs of its history.

    Returns:
        An ``M`` tensor.
    """
    both = torch.cat([problem.Y.mT, sources.mean(problem.X)])
    return torch.corrcoef(both)[0, 1:].nan_to_num(nan=0.0)


def truth(related: Tensor, cutoff: float) -> str:
    """What a history is, of which the correlations with the target are known.

    Args:
        related: The sources' correlations.
        cutoff: That from which a source is helpful, or inverted.

    Returns:
        The right verdict.

    Example:
        >>> truth(torch.tensor([0.9, 0.1, 0.0]), 0.5)
        'partly helpful'
    """
    helpful = (related >= cutoff).double().mean()
    if helpful > 0.5:
        return "helpful"
    if helpful > 0:
        return "partly helpful"
    return "misleading" if (related <= -cutoff).double().mean() >= 0.25 else "irrelevant"


def reports(problem: TableProblem, kind: str, seed: int) -> Iterator[dict[str, object]]:
    """Reports on the default model at each stage.

    Args:
        problem: The problem.
        kind: The kind of its history, or the table's name.
        seed: Decides on the random points.

    Yields:
        One row a source, and one for the whole.
    """
    sources = SourceGPs.fit(problem.history)
    priors = {"population": SourcePopulation.fit(problem.history), "scaml": sources}
    related = correlations(problem, sources)
    rights = {RIGHT[kind]} if kind in RIGHT else {truth(related, cutoff) for cutoff in CUTOFFS}
    order = torch.randperm(len(problem.X), generator=torch.Generator().manual_seed(seed)).tolist()
    rows: list[int] = []
    model = TransferGP(problem.X[:0], problem.Y[:0], priors)
    for stage in STAGES:
        num_greedy = max(1, (stage - len(rows)) // GREEDY)
        fresh = [row for row in order if row not in rows]
        rows += fresh[: stage - len(rows) - num_greedy]
        with torch.no_grad():
            ranked = model.posterior(problem.X).mean.squeeze(-1).argsort(descending=True).tolist()
        rows += [row for row in ranked if row not in rows][:num_greedy]
        model = TransferGP(problem.X[rows], problem.Y[rows], priors)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        report = model.transfer_report()
        values = [*related.tolist(), float("nan")]
        for (name, row), correlation in zip(report.iterrows(), values, strict=True):
            yield {
                "kind": kind,
                "seed": seed,
                "problem": problem.name,
                "points": stage,
                "source": name,
                "correlation": correlation,
                **{str(key): value for key, value in row.items()},
                "right": " / ".join(sorted(rights)) if name == ALL else "",
            }


def is_right(verdict: str, right: str, points: int) -> bool:
    """Whether a verdict on a whole history is right; with few points, none is.

    Args:
        verdict: The verdict.
        right: Those that are right with enough points, apart by slashes.
        points: The number of points.

    Returns:
        Whether it is.
    """
    if points < FEW_POINTS:
        return verdict == "used, not yet tested"
    return verdict in right.split(" / ")


def summary(found: pd.DataFrame) -> str:
    """Lays out how often the verdict on the whole history is right.

    Args:
        found: The rows of :func:`reports`.

    Returns:
        A markdown table, and how many small sources are called helpful.
    """
    whole = found[found["source"] == ALL]
    right = pd.Series(
        list(map(is_right, whole["verdict"], whole["right"], whole["points"])), whole.index
    )
    rows = []
    for label, of_kind in [*whole.groupby("kind", sort=False), ("all", whole)]:
        cells = []
        for stage in STAGES:
            chosen = of_kind[of_kind["points"] == stage]
            said = ", ".join(f"{n} {v}" for v, n in chosen["verdict"].value_counts().items())
            cells.append(
                f"{right[chosen.index].mean():.0%}" + ("" if label == "all" else f" ({said})")
            )
        rows.append([str(label), str(of_kind["problem"].nunique()), *cells])
    heads = ["history", "number", *(f"right after {stage} points" for stage in STAGES)]
    sources = found[found["source"] != ALL]
    small = sources[(sources["verdict"] == "helpful") & (sources["prediction"] < SMALL)]
    helpful = sources[sources["verdict"] == "helpful"]
    inverted = sources[sources["verdict"] == "inverted"]
    lines = [
        f"Sources called helpful: {len(helpful)}, {len(small)} of them with a share below "
        f"{SMALL:.0%}; with a correlation below zero: {(helpful['correlation'] < 0).mean():.1%}.",
        f"Sources called inverted: {len(inverted)}; with a correlation above zero: "
        f"{(inverted['correlation'] > 0).mean():.1%}.",
    ]
    return "\n".join([markdown_table(heads, rows), "", *lines])


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the study; see the module.

    Args:
        arguments: Those of the command line.
    """
    parser = argparse.ArgumentParser(description="Are the verdicts of transfer_report right?")
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    parser.add_argument("--data", type=Path, help="folder with public tables; none by default")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), help="kinds of history")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--targets", type=int, default=8, help="number of targets of each table")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    families = list(FAMILIES)
    cases = [
        (synthetic_problem(families[seed % len(families)], kind, seed), kind, seed)
        for kind in options.kinds
        for seed in seeds
    ]
    for name in TABLES if options.data is not None else ():
        problems = table_problems(name, options.data, options.targets)
        cases += [(problem, name, seed) for seed, problem in enumerate(problems)]
    found = pd.DataFrame([row for case in tqdm(cases) for row in reports(*case)])
    options.out.mkdir(parents=True, exist_ok=True)
    found.to_csv(options.out / "verdicts.csv.gz", index=False, float_format="%.4g")
    text = summary(found)
    (options.out / "summary.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
