"""Measure how much distilled priors differ from exact ones: predictions, a further task, regret.

    python -m benchmarks.measure_distillation --data FOLDER --out benchmarks/results/distillation

Predictions are those of the function that all tasks share, at random settings of the space. For the
log densities, in nats a point, one task is left out and has ten points. The exact prior of a few
random rows of the others is compared with the distilled ones of these rows and of many more. For
the regret, both choose some of the rows of the task that is left out.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import process_time
from typing import Any

import pandas as pd
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.distributions import Normal

from benchmarks.tables.shared import read_shared
from benchmarks.tables.shipped import read_shipped
from benchmarks.tables.table import Table
from botorch_transfer import PopulationGP, SourceGPs, SourcePopulation, TransferGP
from botorch_transfer.acquisition import AveragedImprovement

SHARED = ("mlp", "fcnet", "pmlb/GradientBoostingClassifier")
SHIPPED = ("svm", "gbm", "mlp", "forest")
COLUMNS = {
    "predictions": ("table", "rows", "inducing", "mean_error", "std_error", "std_ratio"),
    "densities": ("table", "target", "model", "prior", "rows", "log_density"),
    "areas": ("table", "target", "prior", "evaluation", "regret"),
}
INDUCING, QUERIES, TARGET_POINTS, EVALUATIONS = (512, 256), 500, 10, 15

Tasks = Mapping[str, tuple[Tensor, Tensor]]


def some_rows(tasks: Tasks, number: int) -> Tasks:
    """Draws rows of all tasks, the same number of each, or all that it has."""
    generator, kept = torch.Generator().manual_seed(0), {}
    for name, (X, Y) in tasks.items():
        rows = torch.randperm(len(X), generator=generator)[: number // len(tasks)]
        kept[name] = X[rows], Y[rows]
    return kept


@torch.no_grad()
def errors(table: Table, number: int) -> Iterator[tuple[Any, ...]]:
    """Compares predictions, all hyperparameters the same: a row for each number of points."""
    tasks = some_rows(table.tasks, number)
    queries = table.space.encode(table.space.sample(QUERIES, seed=0))
    exact = SourcePopulation.fit(tasks, max_inducing=number)
    mean, std = exact.mean(queries), exact.variance(queries).sqrt()
    for most in INDUCING:
        prior = SourcePopulation.fit(tasks, max_inducing=most)
        error = (prior.mean(queries) - mean) / std
        ratio = prior.variance(queries).sqrt() / std
        sizes = len(exact.gps.points), len(prior.gps.points)
        rms = [float(part.square().mean().sqrt()) for part in (error, ratio - 1)]
        yield table.name, *sizes, *rms, float(ratio.mean())


def densities(table: Table, target: str, few: int, many: int) -> Iterator[tuple[Any, ...]]:
    """Compares log densities of a target's held-out rows: a row for each prior and model."""
    sources = {name: task for name, task in table.tasks.items() if name != target}
    X, Y = some_rows({target: table.tasks[target]}, TARGET_POINTS + QUERIES)[target]
    exact: dict[str, Any] = {"max_inducing": few}
    for number, options in ((few, exact), (few, {}), (many, {})):
        tasks = some_rows(sources, number)
        rows = sum(len(Y) for _, Y in tasks.values())
        population, gps = SourcePopulation.fit(tasks, **options), SourceGPs.fit(tasks, **options)
        given = X[:TARGET_POINTS], Y[:TARGET_POINTS]
        average = TransferGP(*given, {"population": population, "scaml": gps})
        for model in (PopulationGP(*given, population), average):
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            with torch.no_grad():
                posterior = model.posterior(X[TARGET_POINTS:], observation_noise=True)
                normal = Normal(posterior.mean, posterior.variance.sqrt())
                density = float(normal.log_prob(Y[TARGET_POINTS:]).mean())
            prior, name = "exact" if options else "distilled", type(model).__name__
            yield table.name, target, name, prior, rows, density


def areas(table: Table, target: str, number: int) -> Iterator[tuple[Any, ...]]:
    """Searches the target's rows with an exact and a distilled prior: a row an evaluation."""
    X, Y = some_rows({target: table.tasks[target]}, QUERIES)[target]
    Y = Y.clamp_min(Y.quantile(0.05))  # the few worst, as in the studies
    sources = {name: task for name, task in table.tasks.items() if name != target}
    tasks, worst = some_rows(sources, number), float(Y.max() - Y.median())
    exact: dict[str, Any] = {"max_inducing": number}
    for name, options in (("exact", exact), ("distilled", {})):
        fits = SourcePopulation.fit(tasks, **options), SourceGPs.fit(tasks, **options)
        prior, done = dict(zip(("population", "scaml"), fits, strict=True)), list[int]()
        for evaluation in range(1, EVALUATIONS + 1):
            rest = torch.tensor([row for row in range(len(X)) if row not in done])
            model = TransferGP(X[done], Y[done], prior)
            if done:
                fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
                score = AveragedImprovement.from_model(model, Y[done].max(), X[rest])
                values = score(X[rest].unsqueeze(1))
            else:
                values = model.posterior(X[rest]).mean
            done.append(int(rest[values.argmax()]))
            regret = float(Y.max() - Y[done].max()) / worst
            yield table.name, target, name, evaluation, min(regret, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the tables")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--rows", type=int, default=3000, help="rows of the exact predictions")
    parser.add_argument("--few", type=int, default=2000, help="rows of exact densities")
    parser.add_argument("--many", type=int, default=10**9, help="of distilled ones; by default all")
    parser.add_argument("--targets", type=int, default=2, help="targets of each table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    shared = [read_shared(name, args.data) for name in SHARED]
    tables, start = [*shared, *map(read_shipped, SHIPPED)], process_time()
    found = {
        "predictions": (row for table in tables for row in errors(table, args.rows)),
        "densities": (
            row
            for table in shared
            for target in list(table.tasks)[: args.targets]
            for row in densities(table, target, args.few, args.many)
        ),
        "areas": (
            row
            for table in tables
            for target in list(table.tasks)[: args.targets]
            for row in areas(table, target, args.rows)
        ),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    for name, rows in found.items():
        frame = pd.DataFrame(rows, columns=COLUMNS[name])
        frame.to_csv(args.out / f"{name}.csv", index=False, float_format="%.4g")
    print(f"{process_time() - start:.0f} s of processor time")
