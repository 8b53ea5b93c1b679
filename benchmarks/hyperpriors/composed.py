"""Small source tasks with other spaces' hyperpriors: `python -m benchmarks.hyperpriors.composed D`.

`D` is the folder that `unseen_spaces` reads. Six search spaces are left out of the hyperprior in
turn, their siblings (the same algorithm in another table) with them. Their tasks are targets with
1, 2 and 4 source tasks of ten random points. ScaML-GP and the population GP get them as by default
and under the universal hyperprior of all other spaces, learned for the same kernel; beside them are
the hyperprior alone and BoTorch's default model, which know no sources. Measured are the negative
log density of the table's other points, given some random ones, and the regret of expected
improvement on the table, from one shared random point on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame
from torch import Tensor

from benchmarks.hyperpriors.loop import Build, by_model, first_points, normalized_regrets
from benchmarks.hyperpriors.real_domains import read_domains
from benchmarks.hyperpriors.store import remembered
from benchmarks.hyperpriors.table_one import difference
from benchmarks.hyperpriors.unseen_spaces import (
    default,
    digest,
    distinct_points,
    fitted,
    improvement,
    informed,
    learn,
)
from benchmarks.markdown import markdown_table
from botorch_transfer import Hyperprior, PopulationGP, ScaMLGP, SourceGPs, SourcePopulation
from botorch_transfer.data import Domain

SPACES = ("DecisionTreeClassifier", "GradientBoostingClassifier", "SVC", "svm", "rf", "mlp")
SIBLINGS = {"SVC": "svm", "svm": "SVC", "rf": "RandomForestClassifier"}
KERNELS = {"ScaML-GP": "rbf", "population": "matern52"}
"""Each model's own kernel, for which a hyperprior is learned."""

NUM_SOURCES = (1, 2, 4)
SOURCE_POINTS = 10
CONTEXT = (0, 2, 5)
"""Numbers of random target points given which the others are predicted."""

AT = (3, 6, 12)
WITHOUT_SOURCES = ("hyperprior alone", "plain GP")
WITH = ", hyperprior"

History = Mapping[str, tuple[Tensor, Tensor]]


def builds(history: History, hyperpriors: Mapping[str, Hyperprior]) -> dict[str, Build]:
    """The models of a history, without and with the hyperpriors of their kernels."""
    found: dict[str, Build] = {}
    for suffix in ("", WITH):
        chosen: Mapping[str, Hyperprior] = hyperpriors if suffix else {}
        found[f"ScaML-GP{suffix}"] = _scaml(history, chosen.get("rbf"))
        found[f"population{suffix}"] = _population(history, chosen.get("matern52"))
    return found


def _scaml(history: History, hyperprior: Hyperprior | None) -> Build:
    if hyperprior is None:
        sources = SourceGPs.fit(history)
        return lambda X, Y, last: fitted(ScaMLGP(X, Y, sources))
    sources = SourceGPs.fit(history, kernel=hyperprior.kernel, hyperpriors=hyperprior)
    return lambda X, Y, last: fitted(ScaMLGP(X, Y, sources, hyperpriors=hyperprior))


def _population(history: History, hyperprior: Hyperprior | None) -> Build:
    sources = SourcePopulation.fit(history, hyperpriors=hyperprior)
    return lambda X, Y, last: fitted(PopulationGP(X, Y, sources))


def draw_history(domain: Domain, target: int, num_sources: int) -> History:
    """Draws source tasks of a few random points; fewer tasks are among more.

    Args:
        domain: The search space.
        target: The number of the target task, which is left out and seeds the draw.
        num_sources: How many source tasks.

    Returns:
        The tasks' inputs and outcomes.
    """
    generator = torch.Generator().manual_seed(target)
    order = torch.randperm(len(domain.datasets), generator=generator).tolist()
    history: dict[str, tuple[Tensor, Tensor]] = {}
    for number in [each for each in order if each != target][:num_sources]:
        data = domain.datasets[number]
        rows = torch.randperm(len(data.X), generator=generator)[:SOURCE_POINTS]
        history[domain.task_names[number]] = data.X[rows], data.Y[rows]
    return history


def negative_log_density(X: Tensor, Y: Tensor, build: Build, num_context: int, seed: int) -> float:
    """Scores predictions of the points that a model doesn't know.

    Args:
        X: An `N x d` tensor of all points.
        Y: An `N x 1` tensor of their values.
        build: Builds the fitted model.
        num_context: How many random points it knows.
        seed: The seed of these points.

    Returns:
        The mean negative log density of single points, in units of the values' deviation.
    """
    known = first_points(len(Y), num_context, seed)
    unknown = torch.ones(len(Y), dtype=torch.bool)
    unknown[known] = False
    model = build(X[known], Y[known], None)
    with torch.no_grad():
        posterior = model.posterior(X[unknown].unsqueeze(-2), observation_noise=True)
    density = torch.distributions.Normal(posterior.mean, posterior.variance.sqrt())
    return float((-density.log_prob(Y[unknown].unsqueeze(-2)) - Y.std().log()).mean())


def measure(X: Tensor, Y: Tensor, build: Build, seed: int, needs_data: bool) -> dict[str, float]:
    """Scores a model on one target, by what is measured and after how many points."""
    regrets = normalized_regrets(Y, by_model(X, Y, build, improvement), 1, max(AT) - 1, seed)
    found = {f"regret @ {at}": regrets[min(at, len(regrets)) - 1] for at in AT}
    for n in CONTEXT:
        if n or not needs_data:
            found[f"NLL @ {n}"] = negative_log_density(X, Y, build, n, seed)
    return found


def runs(
    domains: Sequence[Domain], targets: Sequence[Domain], num_tasks: int, folder: Path
) -> DataFrame:
    """Runs everything, or reads what was run before.

    Args:
        domains: The domains to learn from.
        targets: The same domains, with the points to choose from.
        num_tasks: The number of target tasks of each.
        folder: Where results are kept.

    Returns:
        A row for each space, task, number of sources and method.
    """
    names = [str(domain.name) for domain in domains]
    learned = {kernel: learn(domains, folder, kernel) for kernel in set(KERNELS.values())}
    left_out = {
        name: {
            kernel: each.refit("universal", _left_out(names, name))
            for kernel, each in learned.items()
        }
        for name in SPACES
        if name in names
    }
    results = folder / "composed" / digest([domains, targets])
    rows = []
    for task in range(num_tasks):  # spaces inside: an interrupted study has all of them
        for domain in (each for each in targets if str(each.name) in left_out):
            if task < len(domain.datasets):
                rows += _rows(domain, task, left_out[str(domain.name)], results)
    return DataFrame(rows)


def _left_out(names: Sequence[str], space: str) -> list[str]:
    return [name for name in names if name in (space, SIBLINGS.get(space))]


def _rows(
    domain: Domain, task: int, hyperpriors: Mapping[str, Hyperprior], folder: Path
) -> list[dict[str, Any]]:
    X, chosen = distinct_points(domain.datasets[task].X)
    Y = domain.datasets[task].Y[chosen]
    alone: dict[str, Build] = {
        "hyperprior alone": informed(hyperpriors["matern52"], domain),
        "plain GP": default,
    }
    makers: dict[int, Callable[[], dict[str, Build]]] = {0: lambda: alone}
    for n in NUM_SOURCES:
        history = draw_history(domain, task, n)
        makers[n] = lambda history=history: builds(history, hyperpriors)  # type: ignore[misc]
    rows: list[dict[str, Any]] = []
    for n, make in makers.items():
        scores = remembered(
            folder / f"{domain.name}-{domain.task_names[task]}-{n}.json",
            lambda make=make: {  # type: ignore[misc]
                label: measure(X, Y, build, task, needs_data=label == "plain GP")
                for label, build in make().items()
            },
        )
        key = {"space": str(domain.name), "task": domain.task_names[task], "sources": n}
        rows += [{**key, "method": label, **found} for label, found in scores.items()]
    return rows


def score_table(results: DataFrame, measures: Sequence[str]) -> str:
    """Lays out means over tasks; log densities by their medians, as single ones are huge."""
    rows = []
    for (sources, method), part in results.groupby(["sources", "method"], sort=False):
        cells = [
            f"{part[name].median() if name.startswith('NLL') else part[name].mean():.3f}"
            for name in measures
        ]
        rows.append([str(sources), str(method), *cells])
    return markdown_table(["sources", "method", *measures], rows)


def paired_table(results: DataFrame, measures: Sequence[str]) -> str:
    """Lays out what the hyperprior changes on the same target with the same sources.

    Args:
        results: A row a run.
        measures: The columns.

    Returns:
        Mean differences of regrets with 95 % intervals by bootstrapping tasks, medians of those of
        log densities, below zero where the hyperprior helps; and on how many tasks it is better and
        worse.
    """
    rows = []
    for n in NUM_SOURCES:
        of_size = results[results["sources"] == n].set_index(["space", "task"])
        for model in KERNELS:
            bare, composed = (
                of_size[of_size["method"] == name] for name in (model, f"{model}{WITH}")
            )
            cells = []
            for name in measures:
                change = torch.tensor((composed[name] - bare[name]).tolist(), dtype=torch.double)
                better, worse = int((change < -1e-9).sum()), int((change > 1e-9).sum())
                mean = f"{change.median():+.3f}" if name.startswith("NLL") else difference(change)
                cells.append(f"{mean}, {better} : {worse}")
            rows.append([str(n), model, *cells])
    return markdown_table(["sources", "model", *measures], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=Path("out/hyperpriors"), help="results' folder")
    parser.add_argument("--source-tasks", type=int, default=12, help="tasks kept of each space")
    parser.add_argument("--points", type=int, default=50, help="points of each to learn from")
    parser.add_argument("--candidates", type=int, default=150, help="those of each target task")
    parser.add_argument("--tasks", type=int, default=4, help="target tasks of each space")
    given = parser.parse_args(arguments)
    domains, targets = (
        read_domains(given.data, given.source_tasks, points)
        for points in (given.points, given.candidates)
    )
    results = runs(domains, targets, given.tasks, given.out)
    results.to_csv(given.out / "composed.csv", index=False)
    for group in ([f"NLL @ {n}" for n in CONTEXT], [f"regret @ {at}" for at in AT]):
        print(f"\n{score_table(results, group)}\n\n{paired_table(results, group)}")


if __name__ == "__main__":
    main()
