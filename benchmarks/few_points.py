"""Are predictions honest with few points? Root mean square z-scores of points not seen.

    python -m benchmarks.few_points --data FOLDER

A model gets the first 0, 1, 2, ... points of a random design (at least one if it needs target
data), is fitted as by default, and predicts 200 other points, observation noise included. The root
mean square of their z-scores is one for a model that is as wrong as it says. The problems are those
of `benchmarks.studies`, and Forrester's function; a seed has other histories, and on tables another
target. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from tqdm import tqdm

from benchmarks.markdown import markdown_table
from benchmarks.studies.definitions import DEFINITIONS
from benchmarks.studies.families import FamilyProblem
from benchmarks.studies.methods.registry import MODELS
from benchmarks.studies.problems import Problem, ProblemSource
from botorch_transfer.test_functions import ForresterFamily

POINTS = (0, 1, 2, 3, 5, 8)
NUM_UNSEEN = 200
FORRESTER = FamilyProblem("Forrester, three sources", ForresterFamily, 3, 12)


def problem_names(data: Path | None) -> list[str]:
    """The problems that can be had: without a folder of tables, only the synthetic ones."""
    studies = [name for name, each in DEFINITIONS.items() if data or not each.needs_data]
    return ["forrester-3", *studies]


def instance(name: str, data: Path | None, seed: int) -> Problem:
    """Makes a problem: a seed has other histories, and on a table another target.

    Args:
        name: The problem.
        data: The folder with the tables.
        seed: The seed.

    Returns:
        The problem.
    """
    if name == "forrester-3":
        return FORRESTER.instance(seed, None)
    problems: Sequence[ProblemSource] = DEFINITIONS[name].problems(data)
    budget = DEFINITIONS[name].budget
    return problems[seed % len(problems)].instance(seed, budget.history_size)


def data_of(problem: Problem, seed: int) -> tuple[Tensor, Tensor]:
    """Draws points, those to learn from first, and evaluates them with noise."""
    num_points = max(POINTS) + NUM_UNSEEN
    X = problem.design(min(num_points, len(getattr(problem, "X", range(num_points)))), seed)
    generator = torch.Generator().manual_seed(seed)
    Y = torch.tensor([[problem.evaluate(x)] for x in X], dtype=torch.double)
    return X, Y + problem.noise_std * torch.randn(Y.shape, generator=generator, dtype=Y.dtype)


def scores(model: SingleTaskGP, X: Tensor, Y: Tensor) -> dict[str, float]:
    """Fits a model and scores its predictions of points that it has not seen.

    Args:
        model: The model of the target's first points.
        X: An `n x d` tensor of other points.
        Y: An `n x 1` tensor of their outcomes.

    Returns:
        The root mean square z-score and the mean negative log density.
    """
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        posterior = model.posterior(X, observation_noise=True)
        z = (Y - posterior.mean) / posterior.variance.sqrt()
        density = torch.distributions.Normal(posterior.mean, posterior.variance.sqrt())
    nll = -density.log_prob(Y)
    return {"z": float(z.square().mean().sqrt()), "nll": float(nll.mean())}


def runs(
    names: Sequence[str], models: Sequence[str], seeds: Sequence[int], data: Path | None
) -> Iterator[dict[str, object]]:
    """Runs everything, one row a model and number of points."""
    for name in names:
        for seed in seeds:
            problem = instance(name, data, seed)
            X, Y = data_of(problem, seed)
            unseen = X[max(POINTS) :], Y[max(POINTS) :]
            for method in models:
                # A model that transfers nothing before the first point has no prediction there.
                first = int(MODELS[method].initial_design)
                for n in (each for each in POINTS if each >= first):
                    model = MODELS[method].build(X[:n], Y[:n], problem)
                    row = {"problem": name, "seed": seed, "model": method, "points": n}
                    yield row | scores(model, *unseen)


def table(results: pd.DataFrame, model: str) -> str:
    """The medians of a model's z-scores, and the worst seeds, as a markdown table."""
    own = results[results["model"] == model]
    z = own.groupby(["problem", "points"])["z"]
    cells = z.median().map("{:.2f}".format) + z.max().map(" ({:.1f})".format)
    by_points = cells.unstack("points", fill_value="")
    by_points = by_points.reindex(columns=list(POINTS), fill_value="")
    rows = [[name, *by_points.loc[name]] for name in own["problem"].unique()]
    return markdown_table(["problem", *(f"{n} points" for n in POINTS)], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: Those of the command line by default.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the folder with the tables")
    parser.add_argument("--problems", nargs="+", help="all by default")
    parser.add_argument("--models", nargs="+", default=["ScaML-GP"], choices=list(MODELS))
    parser.add_argument("--seeds", type=int, default=20, help="their number")
    parser.add_argument("--first-seed", type=int, default=100, help="hyperpriors were chosen below")
    parser.add_argument("--out", type=Path, default=Path("out/few_points.csv"))
    options = parser.parse_args(arguments)
    names = options.problems or problem_names(options.data)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    keys = ["problem", "seed", "model", "points"]
    known = pd.read_csv(options.out) if options.out.exists() else pd.DataFrame(columns=keys)
    done = set(known[known["points"] == max(POINTS)][keys[:-1]].itertuples(index=False, name=None))
    asked = [(n, s, m) for n in names for s in seeds for m in options.models]
    for name, seed, model in tqdm([each for each in asked if each not in done], unit="run"):
        new = pd.DataFrame(runs([name], [model], [seed], options.data))
        new.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
    results = pd.read_csv(options.out).drop_duplicates(keys, keep="last")
    results = results[results["problem"].isin(names) & results["seed"].isin(seeds)]
    for model in options.models:
        print(f"\n{model}: median (worst of {len(seeds)} seeds)\n\n{table(results, model)}")


if __name__ == "__main__":
    main()
