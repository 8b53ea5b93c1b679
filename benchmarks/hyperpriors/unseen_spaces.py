"""Real search spaces, each left out once: `python -m benchmarks.hyperpriors.unseen_spaces DATA`.

`DATA` is a folder of public tuning histories (six scikit-learn classifiers on PMLB; svm, rf, mlp),
which are not part of this project. Each search space has a hyperprior learned from all the others,
which drives the optimization of some of its tasks by expected improvement on the table's points:
by MAP under MPHD's and the universal hyperprior (HyperBO+'s), and averaged over the latter.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.hyperpriors.loop import Build, by_model, normalized_regrets
from benchmarks.hyperpriors.real_domains import read_domains
from benchmarks.hyperpriors.store import remembered, remembered_hyperprior
from benchmarks.hyperpriors.table_one import difference, random_score
from benchmarks.markdown import markdown_table
from botorch_transfer import FullyBayesianHyperpriorGP, Hyperprior, HyperpriorGP
from botorch_transfer.data import Domain
from botorch_transfer.memo import content_key

CHECKPOINTS = (5, 20, 50)
INITIAL = 3
METHODS = ("MPHD", "universal", "averaged", "SingleTaskGP", "random")
PLAIN = "SingleTaskGP"


def informed(hyperprior: Hyperprior, domain: Domain) -> Build:
    """MAP under a hyperprior, from the last step's values."""

    def build(X: Tensor, Y: Tensor, last: Any) -> HyperpriorGP:
        model = HyperpriorGP(X, Y, hyperprior, context=domain.context, warm_start=last)
        if last is None:
            return fitted(model, num_restarts=2)
        # One more point moves the optimum a little; what is left to go, the next step goes.
        return fitted(model, num_restarts=0, optimizer_kwargs={"options": {"maxiter": 25}})

    return build


def averaged(hyperprior: Hyperprior, domain: Domain) -> Build:
    """A GP averaged over a hyperprior."""

    def build(X: Tensor, Y: Tensor, last: Any) -> FullyBayesianHyperpriorGP:
        with warnings.catch_warnings():
            # Should few draws explain a table, it goes on with those.
            warnings.simplefilter("ignore", RuntimeWarning)
            return FullyBayesianHyperpriorGP(
                X, Y, hyperprior, context=domain.context, num_samples=1024, num_members=32
            )

    return build


def default(X: Tensor, Y: Tensor, last: Any) -> SingleTaskGP:
    """BoTorch's default model, which knows nothing of other search spaces."""
    with warnings.catch_warnings():
        # Outcomes that have not varied yet cannot be standardized.
        warnings.simplefilter("ignore", InputDataWarning)
        return fitted(SingleTaskGP(X, Y))


def fitted(model: Any, **options: Any) -> Any:
    """Fits a model, and returns it."""
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **options)
    return model


def improvement(model: Any, Y: Tensor) -> LogExpectedImprovement:
    """The acquisition function of all methods."""
    return LogExpectedImprovement(model, best_f=Y.max())


def learn(domains: Sequence[Domain], folder: Path, kernel: str = "matern52") -> Hyperprior:
    """Step 1 of all domains, once a kernel."""
    suffix = "" if kernel == "matern52" else f"-{kernel}"
    path = folder / "step-1" / f"real-{digest(domains)}{suffix}.safetensors"
    return remembered_hyperprior(
        path,
        lambda: Hyperprior.fit(
            domains, kind="universal", kernel=kernel, num_restarts=1, progress=True
        ),
    )


def regrets(
    domains: Sequence[Domain],
    targets: Sequence[Domain],
    num_tasks: int,
    seeds: Sequence[int],
    num_steps: int,
    folder: Path,
) -> dict[str, dict[str, list[list[float]]]]:
    """Runs every method on some tasks of every domain, or reads what was run before.

    Args:
        domains: The domains to learn from.
        targets: The same domains, with the points to choose from.
        num_tasks: The number of target tasks of each, or as many as there are.
        seeds: The seeds of the first points.
        num_steps: The number of evaluations, the first three included.
        folder: Where results are kept.

    Returns:
        For each domain and method, the regrets of every run after each evaluation.
    """
    everything, learned_from = learn(domains, folder), digest(domains)
    builds = {
        str(domain.name): _builds(everything, number, domain, folder / "step-2" / learned_from)
        for number, domain in enumerate(targets)
    }
    runs = folder / "unseen" / digest([domains, targets])
    found: dict[str, dict[str, list[list[float]]]] = {
        name: {label: [] for label in METHODS} for name in builds
    }
    # Domains innermost: an interrupted study has all of them, with fewer tasks.
    for task, seed in product(range(num_tasks), seeds):
        for domain in (each for each in targets if task < len(each.datasets)):
            name = str(domain.name)
            for label in METHODS:
                run = _run(domain, task, seed, label, builds[name][label], num_steps, runs)
                found[name][label].append(run)
    return found


def digest(content: Sequence[Any]) -> str:
    """Part of the names of files: other data, or others of their points, have other results."""
    return content_key(content)[:12]


def _builds(
    everything: Hyperprior, number: int, domain: Domain, folder: Path
) -> dict[str, Build | None]:
    """The methods for the domain of some number, which is left out; random search has no model."""
    mphd, universal = (
        remembered_hyperprior(
            folder / f"{domain.name}-{kind}.safetensors",
            lambda kind=kind: everything.refit(kind, without=number),  # type: ignore[misc]
        )
        for kind in ("mphd", "universal")
    )
    return {
        "MPHD": informed(mphd, domain),
        "universal": informed(universal, domain),
        "averaged": averaged(universal, domain),
        PLAIN: default,
        "random": None,
    }


def _run(
    domain: Domain,
    task: int,
    seed: int,
    label: str,
    build: Build | None,
    num_steps: int,
    folder: Path,
) -> list[float]:
    data = domain.datasets[task]

    def compute() -> list[float]:
        X, rows = distinct_points(data.X)
        Y = data.Y[rows]
        start = 1_000 * task + seed
        score = random_score(len(X), start)
        if build is not None:
            score = by_model(X, Y, build, improvement)
        return normalized_regrets(Y, score, INITIAL, num_steps - INITIAL, start)

    name = f"{domain.name}-{domain.task_names[task]}-{label}-{seed}-{num_steps}.json"
    return remembered(folder / name, compute)


def distinct_points(X: Tensor) -> tuple[Tensor, Tensor]:
    """Different points, and the first row of each."""
    points, inverse = torch.unique(X, dim=0, return_inverse=True)
    rows = torch.full((len(points),), len(X)).scatter_reduce(
        0, inverse, torch.arange(len(X)), reduce="amin"
    )
    return points, rows


def regret_table(
    found: Mapping[str, Mapping[str, list[list[float]]]], checkpoints: Sequence[int]
) -> str:
    """Lays out mean regrets at the checkpoints; a run that is over keeps its last regret."""
    header = ["left out", "runs", *(f"{label} @ {at}" for at in checkpoints for label in METHODS)]
    rows = [[name, *_cells(methods, checkpoints)] for name, methods in found.items()]
    together = {
        label: [run for methods in found.values() for run in methods[label]] for label in METHODS
    }
    return markdown_table(header, [*rows, ["all", *_cells(together, checkpoints)]])


def _cells(methods: Mapping[str, list[list[float]]], checkpoints: Sequence[int]) -> list[str]:
    cells = [str(len(methods[PLAIN]))]
    for at in checkpoints:
        cells += [f"{_at(methods[label], at).mean():.3f}" for label in METHODS]
    return cells


def _at(runs: Sequence[Sequence[float]], at: int) -> Tensor:
    return torch.tensor([run[min(at, len(run)) - 1] for run in runs], dtype=torch.double)


def paired_table(
    found: Mapping[str, Mapping[str, list[list[float]]]],
    num_seeds: int,
    checkpoints: Sequence[int],
) -> str:
    """Lays out each method's differences to the plain GP on the same task from the same points.

    Args:
        found: The regrets of every run, the seeds of a task one after another.
        num_seeds: The number of seeds of each task.
        checkpoints: After how many evaluations.

    Returns:
        Mean differences with 95 % intervals by bootstrapping tasks, below zero where a method is
        better; and on how many tasks it is better and worse.
    """
    rows = []
    for label in METHODS:
        if label == PLAIN:
            continue
        cells = []
        for at in checkpoints:
            of_domains = [
                _at(methods[label], at) - _at(methods[PLAIN], at) for methods in found.values()
            ]
            tasks = torch.cat(of_domains).reshape(-1, num_seeds).mean(dim=-1)
            better, worse = int((tasks < -1e-9).sum()), int((tasks > 1e-9).sum())
            cells.append(f"{difference(tasks)}, {better} : {worse}")
        rows.append([label, *cells])
    header = [f"minus {PLAIN}, better : worse", *(f"@ {at}" for at in checkpoints)]
    return markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=Path("out/hyperpriors"), help="results' folder")
    parser.add_argument("--source-tasks", type=int, default=24, help="tasks kept of each space")
    parser.add_argument("--points", type=int, default=100, help="points kept of each source task")
    parser.add_argument("--candidates", type=int, default=300, help="those of each target task")
    parser.add_argument("--tasks", type=int, default=4, help="target tasks of each space")
    parser.add_argument("--seeds", type=int, default=2, help="first points of each target task")
    parser.add_argument("--evaluations", type=int, default=max(CHECKPOINTS), help="of each run")
    given = parser.parse_args(arguments)
    domains, targets = (
        read_domains(given.data, given.source_tasks, points)
        for points in (given.points, given.candidates)
    )
    seeds, checkpoints = range(given.seeds), [at for at in CHECKPOINTS if at <= given.evaluations]
    found = regrets(domains, targets, given.tasks, seeds, given.evaluations, given.out)
    print(regret_table(found, checkpoints))
    print()
    print(paired_table(found, given.seeds, checkpoints))


if __name__ == "__main__":
    main()
