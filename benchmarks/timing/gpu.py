"""Compares rows of the speed table on a GPU and on the CPU of its machine: `make bench-gpu`."""

import argparse
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile

import torch
from tqdm import tqdm

from benchmarks.markdown import markdown_table
from benchmarks.timing import hierarchy_posterior
from benchmarks.timing.measure import Sizes, medians, readable, threads
from benchmarks.timing.pretraining_step import adam_steps
from benchmarks.timing.target_step import improvement, priors_of, step, targets
from benchmarks.timing.tasks import Task, random_tasks
from botorch_transfer import ScaMLGP, SourceGPs, SourcePopulation, TransferGP
from botorch_transfer.gp.objective import keep_freed_memory
from botorch_transfer.models import BoostedHierarchicalGP, SequentialHierarchicalGP
from botorch_transfer.pretraining import SourceHierarchy, clear_memos

DTYPES = {"float64": torch.double, "float32": torch.float}


@dataclass(frozen=True)
class Place:
    """Device and data type of a measurement.

    Args:
        device: The device.
        dtype: The data type of the data. Source GPs always compute in double precision.
    """

    device: str
    dtype: torch.dtype

    def tasks(self, num_tasks: int, num_points: int, dim: int) -> list[Task]:
        """Draws the source tasks of the speed table on the device."""
        return [self.moved(task) for task in random_tasks(num_tasks, num_points, dim)]

    def moved(self, task: Task) -> Task:
        """Moves the data of a task to the device."""
        X, Y = (part.to(self.device, self.dtype) for part in task)
        return X, Y

    def points(self, *shape: int) -> torch.Tensor:
        """Draws random inputs on the device."""
        return torch.rand(*shape, dtype=torch.double).to(self.device, self.dtype)

    def finish(self) -> None:
        """Waits until the device has finished all work."""
        if self.device == "cuda":
            torch.cuda.synchronize()


Work = Callable[[int], object]


def source_fit(sizes: Sizes, place: Place, num_restarts: int) -> Work:
    tasks = place.tasks(sizes.num_tasks, sizes.num_points, sizes.dim)

    def run(_: int) -> SourceGPs:
        clear_memos()
        return SourceGPs.fit(tasks, num_restarts=num_restarts)

    return run


def source_posterior(sizes: Sizes, place: Place) -> Work:
    tasks = place.tasks(sizes.num_tasks, sizes.num_points, sizes.dim)
    sources = SourceGPs.fit(tasks, num_restarts=0)
    X = place.points(sizes.num_queries, 1, sizes.dim)
    return torch.no_grad()(lambda _: sources.moments(X))


def scaml_step(sizes: Sizes, place: Place) -> Work:
    tasks = place.tasks(sizes.num_tasks, sizes.num_points, sizes.dim)
    sources = SourceGPs.fit(tasks, num_restarts=0)
    data = [place.moved(target) for target in targets(sizes)]
    return lambda repeat: step(sizes, lambda X, Y: ScaMLGP(X, Y, sources), data[repeat])


def level_posterior(
    sizes: Sizes, place: Place, model_class: type[SequentialHierarchicalGP | BoostedHierarchicalGP]
) -> Work:
    *sources, target = place.tasks(sizes.num_levels + 1, sizes.num_level_points, sizes.dim)
    X, Y = (part[: sizes.num_target_points] for part in target)
    prior = SourceHierarchy.fit(sources, propagate=model_class.propagate, num_restarts=0)
    model, queries = model_class(X, Y, prior), place.points(sizes.num_level_queries, 1, sizes.dim)
    return torch.no_grad()(hierarchy_posterior.moments(model.eval(), queries))


def pretraining_steps(sizes: Sizes, place: Place) -> Work:
    tasks = place.tasks(sizes.num_pretraining_tasks, sizes.num_pretraining_points, sizes.dim)
    keep_freed_memory()
    return adam_steps(sizes, tasks)


def pretraining(sizes: Sizes, place: Place, num_tasks: int, num_points: int) -> Work:
    tasks = place.tasks(num_tasks, num_points, sizes.dim)

    def run(_: int) -> object:
        clear_memos()
        return SourcePopulation.fit(tasks), SourceGPs.fit(tasks)

    return run


def scoring(sizes: Sizes, place: Place, num_candidates: int) -> Work:
    tasks = place.tasks(sizes.num_fit_tasks, sizes.num_fit_points, sizes.dim)
    X, Y = place.moved(targets(sizes)[0])
    bounds = torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])
    acquisition = improvement(TransferGP(X, Y, priors_of(tasks)), bounds, X, Y)
    candidates = place.points(num_candidates, 1, sizes.dim)
    return torch.no_grad()(lambda _: acquisition(candidates))


def works(sizes: Sizes) -> dict[str, Callable[[Place], Work]]:
    """Returns functions by row name; each prepares its data on a `Place`, and returns the work."""
    sources = f"{sizes.num_tasks} × {sizes.num_points}"
    levels = f"{sizes.num_levels} × {sizes.num_level_points}"
    posteriors = {
        f"posterior of `{model.__name__}`, {levels}, at {sizes.num_level_queries:,} × 1": partial(
            level_posterior, sizes, model_class=model
        )
        for model in (SequentialHierarchicalGP, BoostedHierarchicalGP)
    }
    return {
        f"`SourceGPs.fit`, {sources}, one start": partial(source_fit, sizes, num_restarts=0),
        f"`SourceGPs.fit`, {sources}, {1 + sizes.num_restarts} starts": partial(
            source_fit, sizes, num_restarts=sizes.num_restarts
        ),
        f"mean and variance of {sources} at {sizes.num_queries} × 1": partial(
            source_posterior, sizes
        ),
        f"full step of `ScaMLGP`, {sources}": partial(scaml_step, sizes),
        **posteriors,
        f"{sizes.steps_at_once} Adam steps of HyperBO, {sizes.num_pretraining_tasks} × "
        f"{sizes.num_pretraining_points}, batch {sizes.batch_size}": partial(
            pretraining_steps, sizes
        ),
    }


def series(sizes: Sizes) -> dict[str, dict[str, Callable[[Place], Work]]]:
    """Returns functions like `works` for growing sizes, by row name and by size."""
    return {
        "pre-training of `TransferGP`": {
            f"{tasks} × {points:,}": partial(pretraining, sizes, num_tasks=tasks, num_points=points)
            for tasks, points in sizes.gpu_sources
        },
        "averaged improvement of `TransferGP`": {
            f"{number:,} candidates": partial(scoring, sizes, num_candidates=number)
            for number in sizes.gpu_candidates
        },
    }


def crossover(ratios: Mapping[str, float]) -> str:
    """Describes the size from which a GPU is faster than the CPU.

    Args:
        ratios: The speedup of the GPU for each size, in increasing order of sizes.

    Returns:
        The end of a sentence.
    """
    *_, first = "", *takewhile(lambda size: ratios[size] > 1, reversed(list(ratios)))
    return f"from {first} on" if first else "at no size measured"


def seconds(
    sizes: Sizes, work: Callable[[Place], Work], device: str
) -> dict[str, tuple[float, float]]:
    """Measures one row: the times on the CPU and on the device, for each data type."""
    found = {}
    for name, dtype in DTYPES.items():
        sides = {}
        for place in (Place("cpu", dtype), Place(device, dtype)):
            sides[place.device] = _finished(work(place), place)
        times, _ = medians(sides, sizes.repeats)
        found[name] = times["cpu"], times[device]
    return found


def _finished(work: Work, place: Place) -> Work:
    def run(repeat: int) -> None:
        work(repeat)
        place.finish()

    return run


def main(arguments: Sequence[str] | None = None, sizes: Sizes | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)  # for the tests
    device = parser.parse_args(arguments).device
    if device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here: nothing was measured.")
        return
    sizes = sizes or Sizes()
    growing = series(sizes)
    everything = works(sizes) | {
        f"{what}, {size}": work
        for what, by_size in growing.items()
        for size, work in by_size.items()
    }
    measured, rows = {}, []
    with threads(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # single precision, and failed line searches
        for what, work in tqdm(everything.items(), unit="row"):
            measured[what] = seconds(sizes, work, device)
            cells = (
                (readable(cpu), readable(gpu), f"{cpu / gpu:.2g} ×")
                for cpu, gpu in measured[what].values()
            )
            rows.append([what, *chain(*cells)])
    header = [f"{dtype}, {side}" for dtype in DTYPES for side in ("CPU", "GPU", "faster by")]
    print(markdown_table(["what", *header], rows))
    print()
    for what, by_size in growing.items():
        for dtype in DTYPES:
            pairs = {size: measured[f"{what}, {size}"][dtype] for size in by_size}
            found = crossover({size: cpu / gpu for size, (cpu, gpu) in pairs.items()})
            print(f"{what}, {dtype}: faster on the GPU {found}.")
    name = torch.cuda.get_device_name() if device == "cuda" else device
    print(
        f"\nMedians of {sizes.repeats} interleaved measurements after one that does not count; "
        f"{name}; {torch.get_num_threads()} PyTorch threads on the CPU."
    )


if __name__ == "__main__":
    main()
