"""How well a known hyperprior is recovered: `python -m benchmarks.hyperpriors.recovery`.

The first table is Fig. 5 of MPHD's paper (Fig. 4 of HyperBO+'s): the estimated shape of the
lengthscales' Gamma against the number of training domains of super-dataset (S); the truth is 10.
The second is its Fig. 6: the KL divergence from the true Gamma to the learned one, averaged over
all numbers of inputs of super-dataset (L), with and without the network.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributions import Gamma, kl_divergence

from benchmarks.hyperpriors.store import remembered, remembered_hyperprior
from benchmarks.markdown import markdown_table
from botorch_transfer import Hyperprior
from botorch_transfer.memo import content_key
from botorch_transfer.pretraining import NetworkOptions
from botorch_transfer.test_functions import (
    LARGE_SUPER_DATASET,
    SMALL_SUPER_DATASET,
    SuperDatasetFamily,
)

COUNTS = (2, 4, 8, 16)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a super-dataset.

    Args:
        num_domains: Training domains.
        num_tasks: Tasks of each domain.
        num_points: Points of each task.
    """

    num_domains: int
    num_tasks: int
    num_points: int


SMALL_SIZES = Sizes(16, 10, 300)
LARGE_SIZES = Sizes(16, 20, 100)


def step_one(
    name: str, family: SuperDatasetFamily, sizes: Sizes, seed: int, folder: Path
) -> Hyperprior:
    """Estimates the hyperparameters of the training domains, once.

    Args:
        name: The super-dataset's name, for the file.
        family: The family that it is drawn from.
        sizes: Its sizes.
        seed: Its seed.
        folder: Where results are kept.

    Returns:
        A hyperprior of kind "universal", with the estimates.
    """
    label = f"{name}-{sizes.num_domains}x{sizes.num_tasks}x{sizes.num_points}-{seed}"

    def learn() -> Hyperprior:
        drawn = family.draw(sizes.num_domains, sizes.num_tasks, sizes.num_points, seed)
        return Hyperprior.fit(
            drawn.domains,
            kind="universal",
            kernel=family.kernel,
            outcome_scale="raw",
            num_restarts=0,
        )

    return remembered_hyperprior(folder / "step-1" / f"{label}.safetensors", learn)


def some_domains(hyperprior: Hyperprior, count: int, seed: int) -> list[int]:
    """Draws which domains to leave out, so that `count` are left."""
    total = len(hyperprior.estimates.names)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(total, generator=generator)[count:].tolist()


def estimated_shape(hyperprior: Hyperprior, count: int, seed: int) -> float:
    """The shape of the lengthscales' Gamma, learned from some of the domains."""
    fewer = hyperprior.refit(without=some_domains(hyperprior, count, seed))
    return float(fewer.lengthscale_parameters[0])


def divergences(
    hyperprior: Hyperprior, count: int, seed: int, network: NetworkOptions
) -> dict[str, float]:
    """Learns from some of the domains, with and without the network.

    Args:
        hyperprior: The estimates of all domains.
        count: How many domains to learn from.
        seed: Which ones.
        network: How to train the network.

    Returns:
        The KL divergence from the true Gamma to the learned one, averaged over the numbers of
        inputs, of either kind.
    """
    low, high = LARGE_SUPER_DATASET.dims
    without = some_domains(hyperprior, count, seed)
    found = {}
    for kind in ("mphd", "universal"):
        learned = hyperprior.refit(kind, without=without, network=network)
        total = 0.0
        for dim in range(low, high + 1):
            truth = Gamma(*torch.tensor(LARGE_SUPER_DATASET.lengthscale_gamma(dim)).double())
            prior = learned.lengthscale_prior(dim)
            # All inputs of a domain have one context here.
            shape, rate = (part.reshape(-1)[0] for part in (prior.concentration, prior.rate))
            total += float(kl_divergence(truth, Gamma(shape, rate)))
        found[kind] = total / (high - low + 1)
    return found


def shape_table(seeds: Sequence[int], sizes: Sizes, folder: Path, counts: Sequence[int]) -> str:
    """Lays out the estimated shapes; a row a number of domains."""
    learned = [step_one("S", SMALL_SUPER_DATASET, sizes, seed, folder) for seed in seeds]
    rows = []
    for count in counts:
        shapes = torch.tensor(
            [estimated_shape(each, count, seed) for each, seed in zip(learned, seeds, strict=True)]
        )
        rows.append([str(count), f"{shapes.mean():.1f}", _deviation(shapes, ".1f")])
    return markdown_table(["domains", "shape (truth 10), mean", "deviation over seeds"], rows)


def divergence_table(
    seeds: Sequence[int],
    sizes: Sizes,
    folder: Path,
    counts: Sequence[int],
    network: NetworkOptions,
) -> str:
    """Lays out the divergences; a row a number of domains."""
    rows = []
    for count in counts:
        found = [_divergences(sizes, network, count, seed, folder) for seed in seeds]
        cells = []
        for kind in ("mphd", "universal"):
            values = torch.tensor([each[kind] for each in found])
            cells.append(f"{values.mean():.3f} ± {_deviation(values, '.3f')}")
        rows.append([str(count), *cells])
    return markdown_table(["domains", "KL with the network", "KL without"], rows)


def _divergences(
    sizes: Sizes, network: NetworkOptions, count: int, seed: int, folder: Path
) -> dict[str, float]:
    settings = content_key(sizes, network)[:12]
    label = f"{count}-{seed}-{settings}"

    def compute() -> dict[str, float]:
        hyperprior = step_one("L", LARGE_SUPER_DATASET, sizes, seed, folder)
        return divergences(hyperprior, count, seed, network)

    return remembered(folder / "divergence" / f"{label}.json", compute)


def _deviation(values: torch.Tensor, form: str) -> str:
    return format(float(values.std(correction=0)), form)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/hyperpriors"), help="results' folder")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--figures", type=int, nargs="+", default=[5, 6], choices=[5, 6])
    parser.add_argument("--tasks", type=int, help="tasks a domain; the default is 10 (S), 20 (L)")
    parser.add_argument("--points", type=int, help="points a task; the default is 300 (S), 100 (L)")
    parser.add_argument("--domains", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the network's training")
    options = parser.parse_args(arguments)
    small, large = (
        Sizes(
            max(options.domains),
            options.tasks or default.num_tasks,
            options.points or default.num_points,
        )
        for default in (SMALL_SIZES, LARGE_SIZES)
    )
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if 5 in options.figures:
        print(f"Super-dataset (S), {small.num_tasks} tasks × {small.num_points} points a domain:\n")
        print(shape_table(seeds, small, options.out, options.domains))
    if 6 in options.figures:
        print(
            f"\nSuper-dataset (L), {large.num_tasks} tasks × {large.num_points} points a domain:\n"
        )
        network = NetworkOptions(num_steps=options.steps)
        print(divergence_table(seeds, large, options.out, options.domains, network))


if __name__ == "__main__":
    main()
