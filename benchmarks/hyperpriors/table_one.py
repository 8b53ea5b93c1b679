"""HyperBO+'s Table 1 on super-dataset (S): `python -m benchmarks.hyperpriors.table_one`.

Setup A optimizes tasks of search spaces that were not trained on, setup B new tasks of those that
were. Each method chooses 50 of a task's 300 points by probability of improvement, after 5 random
ones; a hierarchical GP is 100 draws of its hyperprior, weighted by likelihood. As in the program
that the paper builds on, points may be chosen again: a model that takes signal for noise goes on
evaluating what it has. `--once` forbids it. Unlike in the paper, each seed has a super-dataset of
its own.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition.analytic import LogProbabilityOfImprovement
from botorch.utils.datasets import SupervisedDataset
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior
from torch import Tensor

from benchmarks.hyperpriors.loop import Build, Score, by_model, normalized_regrets
from benchmarks.hyperpriors.recovery import SMALL_SIZES, step_one
from benchmarks.hyperpriors.store import remembered, remembered_hyperprior
from benchmarks.hyperpriors.weighted_draws import WeightedDraws
from benchmarks.markdown import markdown_table
from botorch_transfer import FullyBayesianHyperpriorGP, Hyperprior
from botorch_transfer.data import Domain
from botorch_transfer.hyperprior.fit import DomainEstimates, HyperparameterDraws
from botorch_transfer.test_functions import SMALL_SUPER_DATASET

KERNEL = SMALL_SUPER_DATASET.kernel
NUM_TRAINING_DOMAINS, NUM_TRAINING_TASKS = 16, 8
INITIAL = 5

MARGIN = 0.1

PAPER: dict[str, dict[str, float | None]] = {
    "A": {
        "HyperBO+": 0.032,
        "*HyperBO+": 0.030,
        "truth": 0.022,
        "non-informative": 0.192,
        "hand-specified": 0.228,
        "random": None,
    },
    "B": {
        "HyperBO+": 0.015,
        "*HyperBO+": 0.013,
        "truth": 0.014,
        "HyperBO": 0.014,
        "non-informative": 0.180,
        "hand-specified": 0.207,
        "random": None,
    },
}
"""The paper's regrets; those of random search it only draws."""


def uninformed() -> dict[str, Hyperprior]:
    """The baselines' hyperpriors (Appendix C of HyperBO+'s paper)."""
    return {
        "non-informative": Hyperprior.specified(
            constant=UniformPrior(-100.0, 100.0),
            lengthscale=UniformPrior(0.001, 10.0),
            outputscale=UniformPrior(1e-6, 100.0),
            noise=UniformPrior(1e-8, 100.0),
            kernel=KERNEL,
        ),
        "hand-specified": Hyperprior.specified(
            constant=NormalPrior(0.0, 1.0),
            lengthscale=GammaPrior(1.0, 10.0),
            outputscale=GammaPrior(1.0, 5.0),
            noise=GammaPrior(10.0, 100.0),
            kernel=KERNEL,
        ),
    }


def averaged(hyperprior: Hyperprior, ensemble: tuple[int, int], seed: int) -> Build:
    """A GP averaged over a hyperprior, by an ensemble of so many draws and members."""
    num_samples, num_members = ensemble

    def build(X: Tensor, Y: Tensor, last: Any) -> FullyBayesianHyperpriorGP:
        with warnings.catch_warnings():
            # Collapsed ensembles are what the baselines are about.
            warnings.simplefilter("ignore", RuntimeWarning)
            return FullyBayesianHyperpriorGP(
                X, Y, hyperprior, num_samples=num_samples, num_members=num_members, seed=seed
            )

    return build


def improvement(model: Any, Y: Tensor) -> LogProbabilityOfImprovement:
    """The papers' probability of improving on the best value by 0.1, as a logarithm."""
    return LogProbabilityOfImprovement(model, best_f=Y.max() + MARGIN)


def methods(
    setup: str, seed: int, data: SupervisedDataset, number: int, options: Mapping[str, Any]
) -> dict[str, Callable[[], Score]]:
    """The methods of one setup.

    Args:
        setup: "A" or "B".
        seed: The seed.
        data: The table to optimize.
        number: The number of its domain.
        options: Those of the command.

    Returns:
        For each method what makes its score.
    """
    learned = _learned(setup, seed, options["out"])
    X, Y = data.X, data.Y
    hyperpriors = {
        "HyperBO+": learned,
        "*HyperBO+": learned.refit("empirical"),
        "truth": SMALL_SUPER_DATASET.hyperprior(X.shape[-1]),
        **uninformed(),
    }
    samples, members = options["ensemble"]

    def score(hyperprior: Hyperprior) -> Score:
        if members:
            return by_model(X, Y, averaged(hyperprior, (samples, members), seed), improvement)
        draws = hyperprior.sample(samples, X.shape[-1], seed=seed)
        return WeightedDraws(X, Y, draws, KERNEL, MARGIN)

    found: dict[str, Callable[[], Score]] = {
        name: partial(score, hyperprior) for name, hyperprior in hyperpriors.items()
    }
    if setup == "B":
        own = only_draw(learned.estimates.select([number]))
        found["HyperBO"] = partial(WeightedDraws, X, Y, own, KERNEL, MARGIN)
    found["random"] = lambda: random_score(len(X), seed)
    return {name: found[name] for name in PAPER[setup]}


def only_draw(estimates: DomainEstimates) -> HyperparameterDraws:
    """HyperBO: nothing but the hyperparameters of the task's own domain, as pre-trained."""
    return HyperparameterDraws(
        constant=estimates.constant,
        lengthscale=estimates.lengthscale.unsqueeze(0),
        outputscale=estimates.outputscale,
        noise=estimates.noise,
    )


def random_score(num_points: int, seed: int) -> Score:
    """Random search."""
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    return lambda chosen: torch.rand(num_points, generator=generator)


def _learned(setup: str, seed: int, folder: Path) -> Hyperprior:
    if setup == "A":
        return step_one("S", SMALL_SUPER_DATASET, SMALL_SIZES, seed, folder)

    def learn() -> Hyperprior:
        drawn = SMALL_SUPER_DATASET.draw(num_tasks=NUM_TRAINING_TASKS, seed=seed)
        return Hyperprior.fit(
            drawn.domains, "universal", KERNEL, outcome_scale="raw", num_restarts=0
        )

    return remembered_hyperprior(folder / "step-1" / f"S-seen-{seed}.safetensors", learn)


def test_tasks(
    setup: str, seed: int, num_domains: int, num_tasks: int
) -> list[tuple[int, int, Domain]]:
    """Numbers of domain and task, and the domain, of the tasks to optimize."""
    drawn = SMALL_SUPER_DATASET.draw(seed=seed).domains
    if setup == "A":
        numbers, first = range(NUM_TRAINING_DOMAINS, len(drawn))[:num_domains], 0
    else:
        numbers, first = range(len(drawn))[:num_domains], NUM_TRAINING_TASKS
    tasks = range(first, SMALL_SUPER_DATASET.num_tasks)[:num_tasks]
    return [(number, task, drawn[number]) for number in numbers for task in tasks]


def regrets(
    setup: str, seeds: Sequence[int], num_domains: int, num_tasks: int, options: Mapping[str, Any]
) -> dict[str, list[list[float]]]:
    """Runs a setup, or reads what was run before.

    Args:
        setup: "A" or "B".
        seeds: The seeds.
        num_domains: The number of test domains of each seed, 4 at most in A, 20 in B.
        num_tasks: The number of test tasks of each, 10 at most in A, 2 in B.
        options: `steps`, the number of evaluations after the first five; `repeat`, whether a point
            may be evaluated again; `ensemble`, the numbers of draws and members; and `out`, the
            results' folder.

    Returns:
        For each method and seed, the mean regret at the end in each test domain.
    """
    found: dict[str, list[list[float]]] = {name: [] for name in PAPER[setup]}
    protocol = f"{options['steps']}-{'repeat' if options['repeat'] else 'once'}"
    sizes = "-".join(map(str, options["ensemble"]))
    for seed in seeds:
        tests = test_tasks(setup, seed, num_domains, num_tasks)
        of_domain: dict[tuple[str, int], list[float]] = {}
        for number, task, domain in tests:
            data = domain.datasets[task]
            for name, score in methods(setup, seed, data, number, options).items():
                label = f"{setup}-{seed}-{number}-{task}-{name}-{protocol}-{sizes}"
                path = options["out"] / "table-1" / f"{label}.json"
                run = remembered(
                    path,
                    lambda data=data, score=score, seed=seed: normalized_regrets(  # type: ignore[misc]
                        data.Y, score(), INITIAL, options["steps"], seed, options["repeat"]
                    ),
                )
                of_domain.setdefault((name, number), []).append(run[-1])
        numbers = sorted({number for number, _, _ in tests})
        for name, seeds_means in found.items():
            runs = [of_domain[name, number] for number in numbers]
            seeds_means.append([sum(values) / len(values) for values in runs])
    return found


def regret_table(found: Mapping[str, Mapping[str, list[list[float]]]]) -> str:
    """Lays out mean regrets beside the paper's.

    Deviations are those of the seeds' means, as in the paper. The last column is each method's
    difference to HyperBO+ on the same tasks, with a 95 % interval by bootstrapping domains.
    """
    rows = []
    for setup, runs in found.items():
        ours = flat(runs["HyperBO+"])
        for name, per_seed in runs.items():
            means = torch.tensor([sum(values) / len(values) for values in per_seed])
            paper = PAPER[setup][name]
            rows.append(
                [
                    setup,
                    name,
                    f"{means.mean():.3f} ± {means.std(correction=0):.3f}",
                    "" if paper is None else f"{paper:.3f}",
                    "" if name == "HyperBO+" else difference(flat(per_seed) - ours),
                ]
            )
    header = ["setup", "hyperprior", "regret", "the paper's", "minus HyperBO+"]
    return markdown_table(header, rows)


def flat(per_seed: Sequence[Sequence[float]]) -> Tensor:
    """A method's domains of all seeds, in one order."""
    return torch.tensor([value for values in per_seed for value in values], dtype=torch.double)


def difference(differences: Tensor, num_draws: int = 10_000) -> str:
    """The mean of paired differences and its 95 % bootstrap interval."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(differences), (num_draws, len(differences)), generator=generator)
    low, high = differences[drawn].mean(dim=-1).quantile(torch.tensor([0.025, 0.975]).double())
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/hyperpriors"), help="results' folder")
    parser.add_argument("--setups", nargs="+", default=["A", "B"], choices=["A", "B"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--domains", type=int, default=20, help="test domains a seed, at most")
    parser.add_argument("--tasks", type=int, default=10, help="test tasks a domain, at most")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--samples", type=int, default=100, help="draws of each hyperprior")
    parser.add_argument(
        "--members",
        type=int,
        default=0,
        help="members of FullyBayesianHyperpriorGP; 0 weights the draws instead, as the paper does",
    )
    parser.add_argument(
        "--once", action="store_true", help="evaluate no point twice, unlike the paper's program"
    )
    given = parser.parse_args(arguments)
    options = {
        "steps": given.steps,
        "ensemble": (given.samples, given.members),
        "repeat": not given.once,
        "out": given.out,
    }
    found = {
        setup: regrets(setup, range(given.seeds), given.domains, given.tasks, options)
        for setup in given.setups
    }
    print(regret_table(found))


if __name__ == "__main__":
    main()
