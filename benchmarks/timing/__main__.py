"""Measures the speed table: `python -m benchmarks.timing [--rows source-fit ...]`."""

import argparse
import platform
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from time import process_time
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.timing.measure import Sizes, threads, timing_table
from benchmarks.timing.rows import COMPARISONS


def main(arguments: Sequence[str] | None = None, sizes: Sizes | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--repeats", type=int, help="number of measurements of each side")
    parser.add_argument(
        "--many-tasks", type=int, help="number of source tasks of the row many-tasks"
    )
    parser.add_argument(
        "--threads", type=int, help="number of PyTorch threads; PyTorch's choice by default"
    )
    busy = "measure processor time (for busy machines, with OMP_NUM_THREADS=1)"
    parser.add_argument("--processor-time", action="store_true", help=busy)
    options = parser.parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    clock = process_time if options.processor_time else None
    given = {"repeats": options.repeats, "num_many_tasks": options.many_tasks, "clock": clock}
    changed: Any = {name: value for name, value in given.items() if value is not None}
    sizes = replace(sizes or Sizes(), **changed)
    rows = []
    with threads(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # line searches of fits may fail on either side
        for name in tqdm(options.rows, unit="comparison"):
            rows += COMPARISONS[name](sizes)
    print(timing_table(rows))
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "gpytorch", "botorch"))
    print(
        f"\nMedians of {sizes.repeats} interleaved measurements after one that does not count; "
        f"{'processor time, ' if options.processor_time else ''}"
        f"{torch.get_num_threads()} PyTorch threads, SciPy's linear algebra on one; "
        f"{platform.machine()}, {packages}."
    )


if __name__ == "__main__":
    main()
