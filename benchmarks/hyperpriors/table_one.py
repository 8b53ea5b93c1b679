"""HyperBO+'s Table 1 on super-dataset (S): `python -m benchmarks.hyperpriors.table_one`.

Setup A optimizes tasks of search spaces that were not trained on, setup B new tasks of those that
were. Each method chooses 50 of a task's 300 points by probability of improvement, after 5 random
ones. Unlike in the paper, each seed has a super-dataset of its own; and not every test task is
optimized, see `--domains` and `--tasks`.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition.analytic import LogProbabilityOfImprovement
from botorch.models import SingleTaskGP
from gpytorch.constraints import Positive
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior
from torch import Tensor

from benchmarks.hyperpriors.loop import Build, normalized_regrets
from benchmarks.hyperpriors.recovery import SMALL_SIZES, step_one
from benchmarks.hyperpriors.store import remembered, remembered_hyperprior
from benchmarks.markdown import markdown_table
from botorch_transfer import FullyBayesianHyperpriorGP, Hyperprior
from botorch_transfer.data import Domain
from botorch_transfer.hyperpriors.estimates import DomainEstimates
from botorch_transfer.kernels.stationary import stationary_function
from botorch_transfer.test_functions import SMALL_SUPER_DATASET

KERNEL = SMALL_SUPER_DATASET.kernel
NUM_TRAINING_DOMAINS, NUM_TRAINING_TASKS = 16, 8
INITIAL = 5

PAPER = {
    "A": {"HyperBO+": 0.032, "truth": 0.022, "non-informative": 0.192, "hand-specified": 0.228},
    "B": {
        "HyperBO+": 0.015,
        "truth": 0.014,
        "HyperBO": 0.014,
        "non-informative": 0.180,
        "hand-specified": 0.207,
    },
}


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


def hyperbo(estimates: DomainEstimates, number: int) -> Build:
    """HyperBO: the GP of the task's own domain, hyperparameters as pre-trained."""
    own = estimates.select([number])

    def build(X: Tensor, Y: Tensor, last: Any) -> SingleTaskGP:
        kernel = stationary_function(KERNEL).make_kernel(ard_num_dims=X.shape[-1])
        model = SingleTaskGP(
            X,
            Y,
            likelihood=GaussianLikelihood(noise_constraint=Positive()),
            covar_module=ScaleKernel(kernel),
            mean_module=ConstantMean(),
            outcome_transform=None,
        )
        model.mean_module.constant = own.constant[0]
        model.covar_module.outputscale = own.outputscale[0]
        model.covar_module.base_kernel.lengthscale = own.lengthscale
        model.likelihood.noise = own.noise[0]
        return model.eval()

    return build


def improvement(model: Any, Y: Tensor) -> LogProbabilityOfImprovement:
    """The papers' probability of improving on the best value by 0.1, as a logarithm."""
    return LogProbabilityOfImprovement(model, best_f=Y.max() + 0.1)


def methods(
    setup: str, seed: int, dim: int, number: int, ensemble: tuple[int, int], folder: Path
) -> dict[str, Build]:
    """The methods of one setup for tasks of one domain."""
    learned = _learned(setup, seed, folder)
    hyperpriors = {
        "HyperBO+": learned,
        "truth": SMALL_SUPER_DATASET.hyperprior(dim),
        **uninformed(),
    }
    builds = {name: averaged(each, ensemble, seed) for name, each in hyperpriors.items()}
    if setup == "B":
        builds["HyperBO"] = hyperbo(learned.estimates, number)
    return builds


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
        options: `steps`, the number of evaluations after the first five; `ensemble`, the numbers
            of draws and members; and `out`, the results' folder.

    Returns:
        For each method and seed, the regret at the end of each test task.
    """
    found: dict[str, list[list[float]]] = {name: [] for name in PAPER[setup]}
    for seed in seeds:
        for runs in found.values():
            runs.append([])
        for number, task, domain in test_tasks(setup, seed, num_domains, num_tasks):
            data = domain.datasets[task]
            builds = methods(setup, seed, domain.dim, number, options["ensemble"], options["out"])
            for name, build in builds.items():
                sizes = f"{options['steps']}-{'-'.join(map(str, options['ensemble']))}"
                label = f"{setup}-{seed}-{number}-{task}-{name}-{sizes}"
                path = options["out"] / "table-1" / f"{label}.json"
                run = remembered(
                    path,
                    lambda data=data, build=build, seed=seed: normalized_regrets(  # type: ignore[misc]
                        data.X, data.Y, build, improvement, INITIAL, options["steps"], seed
                    ),
                )
                found[name][-1].append(run[-1])
    return found


def regret_table(found: Mapping[str, Mapping[str, list[list[float]]]]) -> str:
    """Lays out mean regrets beside the paper's; deviations are those of the seeds' means."""
    rows = []
    for setup, runs in found.items():
        for name, per_seed in runs.items():
            means = torch.tensor([sum(values) / len(values) for values in per_seed])
            ours = f"{means.mean():.3f} ± {means.std(correction=0):.3f}"
            rows.append([setup, name, ours, f"{PAPER[setup][name]:.3f}"])
    return markdown_table(["setup", "hyperprior", "regret", "the paper's"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/hyperpriors"), help="results' folder")
    parser.add_argument("--setups", nargs="+", default=["A", "B"], choices=["A", "B"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--domains", type=int, default=4, help="test domains a seed")
    parser.add_argument("--tasks", type=int, default=1, help="test tasks a domain")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--samples", type=int, default=1024, help="draws of each hyperprior")
    parser.add_argument("--members", type=int, default=32, help="members of each ensemble")
    given = parser.parse_args(arguments)
    options = {
        "steps": given.steps,
        "ensemble": (given.samples, given.members),
        "out": given.out,
    }
    found = {
        setup: regrets(setup, range(given.seeds), given.domains, given.tasks, options)
        for setup in given.setups
    }
    print(regret_table(found))


if __name__ == "__main__":
    main()
