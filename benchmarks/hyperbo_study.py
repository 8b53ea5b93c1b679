"""HyperBO leave-one-task-out: `python -m benchmarks.hyperbo_study --data FOLDER`.

Each task of a table is the target once, and all others are its history, evaluated at the same
configurations as each other, so that the EKL applies; others for each seed. The folder holds the
public tables `rnn_optimizer` and `mlp` (`NAME.parquet` with its `NAME.space.json`); none of them is
shipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.markdown import markdown_table
from benchmarks.studies import Study, TableProblem, run_study
from benchmarks.studies.methods import (
    BayesianOptimization,
    Build,
    Method,
    RandomSearch,
    log_ei_or_ucb,
    plain_gp,
    pretrained,
)
from benchmarks.studies.metrics import average, normalized, regrets
from benchmarks.studies.problems import Problem
from benchmarks.studies.run import Budget, step_seed
from benchmarks.tables import read_shared
from botorch_transfer import ScaMLGP, SourceGPs
from botorch_transfer.gp.tasks import OutcomeScale
from botorch_transfer.hyperbo.objectives import Objective
from botorch_transfer.memo import Memo

AT = (1, 5, 20)
NUM_CONTEXT = (0, 5, 20)
"""Numbers of target points given which the rest is predicted."""


IDENTIFIERS = {
    "rnn_optimizer": ["config"],
    "mlp": ["alpha", "batch_size", "depth", "learning_rate_init", "width"],
}
"""The columns of each table that tell configurations apart."""

OUTCOME_SCALES: dict[str, OutcomeScale] = {
    "rnn_optimizer": "pooled",
    "mlp": "per_task",  # some data sets are easy, and some are not
}
"""The prior's units: tasks whose levels mean something are pooled."""


def read_problems(folder: Path, name: str, num_rows: int, seed: int = 0) -> list[TableProblem]:
    """Reads a table as one problem a task.

    Args:
        folder: The folder with the tables.
        name: The table.
        num_rows: How many configurations, drawn at random, can be evaluated.
        seed: The seed of the draw.

    Returns:
        The problems; outcomes are to be maximized, inputs lie in the unit cube.
    """
    table = read_shared(name, folder)
    frame = table.frame.set_index(IDENTIFIERS[name])
    configs = frame.index.unique().sort_values()
    kept = configs[np.random.default_rng(seed).permutation(len(configs))[:num_rows]]
    tasks = {}
    for task, rows in frame.groupby(table.task):
        chosen = torch.from_numpy(rows.index.get_indexer(kept))
        X, Y = table.tasks[str(task)]
        tasks[str(task)] = X[chosen], Y[chosen]
    distinct = _distinct_rows(next(iter(tasks.values()))[0])
    shared = {task: (X[distinct], Y[distinct]) for task, (X, Y) in tasks.items()}
    return [
        TableProblem(
            f"{name}: {target}",
            X,
            Y,
            history={task: data for task, data in shared.items() if task != target},
            matching=True,
        )
        for target, (X, Y) in shared.items()
    ]


def _distinct_rows(X: Tensor) -> Tensor:
    _, first = np.unique(X.numpy(), axis=0, return_index=True)
    return torch.from_numpy(np.sort(first))


# ------------------------------------------------------------------------------------ methods

PRETRAINED: dict[str, tuple[str, Objective]] = {
    "H-NLL": ("hyperbo", "nll"),
    "H-EKL": ("hyperbo", "ekl"),
    "FSBO": ("fsbo", "nll"),
    "ABLR": ("ablr", "nll"),
}
_sources = Memo(size=16)


def source_gps(problem: Problem) -> SourceGPs:
    """Fits ScaML-GP's sources on a problem's history, once."""
    return _sources.recall(problem.key(), lambda: SourceGPs.fit(problem.history, num_restarts=0))


def builders(table: str, steps: int, hold_out: float | None = None) -> dict[str, Build]:
    """The models for a table, by the methods' names."""
    suffix = "" if hold_out is None else f", {hold_out:g} held out"
    models = {
        f"{name}{suffix}": pretrained(preset, objective, steps, OUTCOME_SCALES[table], hold_out)
        for name, (preset, objective) in PRETRAINED.items()
    }
    models["ScaML-GP"] = lambda X, Y, problem: ScaMLGP(X, Y, source_gps(problem))
    models["plain GP"] = plain_gp
    return models


def methods(table: str, steps: int, hold_out: float | None = None) -> dict[str, Method]:
    """All methods, those whose prior prefers some points without an initial design."""
    found: dict[str, Method] = {
        name: BayesianOptimization(
            build,
            log_ei_or_ucb,
            initial_design=name.startswith(("plain GP", "FSBO")),
            settings=f"{steps} steps" if name.startswith(tuple(PRETRAINED)) else "",
        )
        for name, build in builders(table, steps, hold_out).items()
    }
    return {**found, "random search": RandomSearch()}


# --------------------------------------------------------------------------------- prediction


def test_nll(problem: TableProblem, build: Build, num_context: int, seed: int) -> float:
    """How well a model predicts the target.

    Args:
        problem: The problem.
        build: Builds the model.
        num_context: The number of target points that it is given, drawn at random.
        seed: The seed of the draw.

    Returns:
        The mean negative log predictive density of the other points, each by itself, with outcomes
        in units of the target's standard deviation; NaN where the model needs more points.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(problem.X), generator=generator)
    X, Y = problem.X[order], problem.Y[order]
    if num_context == 0 and build is plain_gp:
        return float("nan")
    model: SingleTaskGP = build(X[:num_context], Y[:num_context], problem)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        posterior = model.posterior(X[num_context:].unsqueeze(-2), observation_noise=True)
    density = torch.distributions.Normal(posterior.mean, posterior.variance.sqrt())
    value = -density.log_prob(Y[num_context:].unsqueeze(-2)).mean()
    return float(value - problem.Y.std().log())


def nll_table(
    problems: Sequence[TableProblem], models: Mapping[str, Build], seeds: range, history_size: int
) -> str:
    """Medians over tasks of the mean test NLL over seeds, in markdown."""
    cases = [
        [(problem.instance(step_seed(problem, seed, -1), history_size), seed) for seed in seeds]
        for problem in problems
    ]
    rows = []
    for name, build in models.items():
        cells = []
        for n in NUM_CONTEXT:
            values = [
                np.mean([test_nll(case, build, n, seed) for case, seed in of_problem])
                for of_problem in cases
            ]
            cells.append(f"{np.median(values):.2f}")
        rows.append([name, *cells])
    return markdown_table(["method", *(f"given {n} points" for n in NUM_CONTEXT)], rows)


# ------------------------------------------------------------------------------------ regret


def regret_table(regret: pd.DataFrame) -> str:
    """Mean regrets over tasks and seeds, and the share of runs that beat the plain GP's."""
    mean = average(regret)
    last = regret[AT[-1]].unstack("method")
    rows = []
    for method in mean.index:
        wins = ((last[method] < last["plain GP"]) + 0.5 * (last[method] == last["plain GP"])).mean()
        rows.append([method, *(f"{mean.loc[method, n]:.3f}" for n in AT), f"{wins:.2f}"])
    header = ["method", *(f"after {n}" for n in AT), f"share better than plain GP after {AT[-1]}"]
    return markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the tables")
    parser.add_argument("--tables", nargs="+", choices=IDENTIFIERS, default=list(IDENTIFIERS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=500, help="configurations that can be had")
    parser.add_argument("--history", type=int, default=200, help="evaluations of a source task")
    parser.add_argument("--steps", type=int, default=3000, help="steps of Adam")
    parser.add_argument("--hold-out", type=float, help="share of source tasks to stop training by")
    parser.add_argument("--tasks", type=int, help="only the first tasks as targets")
    parser.add_argument("--out", type=Path, default=Path("out/hyperbo"))
    options = parser.parse_args(arguments)
    print_table: Callable[[str], None] = partial(print, flush=True)
    for name in options.tables:
        problems = read_problems(options.data, name, options.rows)[: options.tasks]
        print_table(f"\n{name}: {len(problems)} targets\n\ntest NLL\n")
        chosen = name, options.steps, options.hold_out
        seeds = range(options.seeds)
        print_table(nll_table(problems, builders(*chosen), seeds, options.history))
        budget = Budget(AT[-1], history_size=options.history)
        study = Study(problems, methods(*chosen), seeds, budget)
        results = run_study(study, options.out / name, n_jobs=1, progress=True)
        print_table("\nregret\n")
        # In units of the distance from a target's median to its best.
        print_table(regret_table(normalized(regrets(results), results, "median")))


if __name__ == "__main__":
    main()
