"""The rows of the speed table on a GPU against the CPU of the same machine: `make bench-gpu`."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tqdm import tqdm

from benchmarks.markdown import markdown_table
from benchmarks.timing import hierarchy_posterior
from benchmarks.timing.measure import Sizes, medians, readable, threads
from benchmarks.timing.pretraining_step import adam_step, repeated
from benchmarks.timing.target_step import step
from benchmarks.timing.tasks import Task, random_tasks
from botorch_transfer import ScaMLGP, SourceGPs
from botorch_transfer.gp.optimize import keep_freed_memory
from botorch_transfer.models import BoostedHierarchicalGP, SequentialHierarchicalGP
from botorch_transfer.pretraining import SourceHierarchy, clear_memos

DTYPES = {"float64": torch.double, "float32": torch.float}


@dataclass(frozen=True)
class Place:
    """Where the data are, and in which precision.

    Args:
        device: The device.
        dtype: The data type; source GPs compute in double precision all the same.
    """

    device: str
    dtype: torch.dtype

    def tasks(self, num_tasks: int, num_points: int, dim: int, seed: int = 0) -> list[Task]:
        """The tasks of the speed table."""
        tasks = random_tasks(num_tasks, num_points, dim, seed)
        return [(X.to(self.device, self.dtype), Y.to(self.device, self.dtype)) for X, Y in tasks]

    def points(self, *shape: int) -> torch.Tensor:
        """Inputs."""
        return torch.rand(*shape, dtype=torch.double).to(self.device, self.dtype)

    def finish(self) -> None:
        """Waits until the device has done what it was asked for."""
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
    targets = [
        place.tasks(1, sizes.num_target_points, sizes.dim, seed=1 + repeat)[0]
        for repeat in range(sizes.repeats)
    ]
    return lambda repeat: step(sizes, lambda X, Y: ScaMLGP(X, Y, sources), targets[repeat])


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
    return repeated(adam_step(sizes, tasks), sizes.steps_at_once)


def works(sizes: Sizes) -> dict[str, Callable[[Place], Work]]:
    """What is measured: each takes the place, prepares its data there, and returns the work."""
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


def cells(sizes: Sizes, work: Callable[[Place], Work], device: str) -> list[str]:
    """Measures one row: for each precision the CPU's time, the device's, and their ratio."""
    found = []
    for dtype in DTYPES.values():
        sides = {}
        for place in (Place("cpu", dtype), Place(device, dtype)):
            sides[place.device] = _finished(work(place), place)
        times, _ = medians(sides, sizes.repeats)
        ratio = times["cpu"] / times[device]
        found += [readable(times["cpu"]), readable(times[device]), f"{ratio:.2g} ×"]
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
    rows = []
    with threads(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # single precision, and line searches that give up
        for what, work in tqdm(works(sizes).items(), unit="row"):
            rows.append([what, *cells(sizes, work, device)])
    header = [f"{dtype}, {side}" for dtype in DTYPES for side in ("CPU", "GPU", "faster by")]
    print(markdown_table(["what", *header], rows))
    name = torch.cuda.get_device_name() if device == "cuda" else device
    print(
        f"\nMedians of {sizes.repeats} interleaved measurements after one that does not count; "
        f"{name}; {torch.get_num_threads()} PyTorch threads on the CPU."
    )


if __name__ == "__main__":
    main()
