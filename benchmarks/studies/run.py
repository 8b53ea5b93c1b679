"""Executes one run: one method on one problem with one seed."""

import math
import subprocess
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from botorch.models import SingleTaskGP
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.studies.methods import BayesianOptimization, Method
from benchmarks.studies.methods.external import processor_seconds
from benchmarks.studies.problems import UNKNOWN, PoolProblem, Problem, ProblemSource
from botorch_transfer import __version__

PACKAGES = ("botorch", "gpytorch", "torch")
#: Numbers of points after which predictions are compared with the unseen outcomes of a pool.
CALIBRATED_AT = (0, 1, 2, 5, 10, 20)
#: Half-width of a 90 % band, in standard deviations.
BAND = math.sqrt(2) * float(torch.erfinv(torch.tensor(0.9, dtype=torch.double)))

Record = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """The budget of each run of a study.

    Args:
        evaluations: The number of evaluations, including the initial design.
        initial: The number of points in the design that methods without a prior start with.
        history_size: The number of evaluations of each source task in a run, drawn for each seed;
            all evaluations by default.
    """

    evaluations: int
    initial: int = 3
    history_size: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.evaluations:
            raise ValueError("initial must be at least 1, and at most the number of evaluations.")


def run(
    source: ProblemSource, method_name: str, method: Method, seed: int, budget: Budget
) -> Record:
    """Runs a method; an error ends the run, and is recorded with the earlier evaluations.

    Random numbers depend on the problem, the seed and the number of the evaluation, but not on the
    method. So all methods have the same random conditions. Computation uses one thread.

    Args:
        source: The source of the problem.
        method_name: The method's name.
        method: The method.
        seed: The run's seed.
        budget: The budget of the run.

    Returns:
        A dictionary with `method`, `problem`, `seed`, `versions`, `best_known`, `worst`, `median`
        (values to compute regret), `error` (a traceback or `None`) and `evaluations`. Each
        evaluation has `x`, `value` (without noise), `observed` (with noise), `suggest_seconds`,
        `evaluate_seconds` and `cpu_seconds` (of both, including other processes). Some evaluations
        of models on a pool also have `z` and `covered`, see `calibration`.
    """
    about: Record = {"best_known": math.nan, **UNKNOWN._asdict()}
    evaluations: list[Record] = []
    error = None
    with isolated():
        try:
            problem = source.instance(source.step_seed(seed, -1), budget.history_size)
            about = {"best_known": problem.best_known, **problem.landmarks._asdict()}
            seeds = [source.step_seed(seed, number) for number in range(budget.evaluations + 1)]
            for evaluation in _evaluations(problem, method, seeds, budget):
                evaluations.append(evaluation)
        except Exception:
            error = traceback.format_exc()
    return {
        "method": method_name,
        "problem": source.name,
        "seed": seed,
        "versions": versions(),
        **about,
        "error": error,
        "evaluations": evaluations,
    }


def versions() -> str:
    """Returns the versions of the packages, and the revision of this repository if there is one."""
    others = " ".join(f"{package} {version(package)}" for package in PACKAGES)
    found = f"botorch_transfer {__version__} {others}"  # a working copy may not be installed
    return f"{found} revision {revision()}" if revision() else found


@cache
def revision() -> str:
    """Returns Git's description of this repository's revision; empty without Git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    try:
        asked = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:  # Git is not installed
        return ""
    return asked.stdout.strip()


def _evaluations(
    problem: Problem, method: Method, seeds: Sequence[int], budget: Budget
) -> Iterator[Record]:
    shared = budget.initial if method.initial_design else 0
    design = problem.design(shared, seeds[0])
    points: list[Tensor] = []
    values: list[float] = []
    for number, now in enumerate(seeds[1:], start=1):
        torch.manual_seed(now)
        start, start_cpu = perf_counter(), processor_seconds()
        if number <= len(design):
            x = design[number - 1]
        else:
            Y = torch.tensor(values, dtype=torch.double).unsqueeze(-1)
            x = method.suggest(problem, _stack(points, problem.dim), Y, now).detach()
        suggested = perf_counter()
        value = problem.evaluate(x)
        generator = torch.Generator().manual_seed(now)
        noise = torch.randn((), generator=generator, dtype=torch.double)
        observed = value + problem.noise_std * float(noise)
        calibrated = number > len(design) and number - 1 in CALIBRATED_AT
        yield {
            "x": x.tolist(),
            "value": value,
            "observed": observed,
            "suggest_seconds": suggested - start,
            "evaluate_seconds": perf_counter() - suggested,
            "cpu_seconds": processor_seconds() - start_cpu,
            **(_calibration(problem, method, points) if calibrated else {}),
        }
        points.append(x)
        values.append(observed)


def _calibration(problem: Problem, method: Method, points: list[Tensor]) -> Record:
    """Measures the calibration of the last model on the unseen rows of a pool, if there are any."""
    if not isinstance(problem, PoolProblem) or not isinstance(method, BayesianOptimization):
        return {}
    assert method.fitted is not None
    return calibration(method.fitted, *problem.unseen(_stack(points, problem.dim)))


@torch.no_grad()
def calibration(model: SingleTaskGP, X: Tensor, Y: Tensor) -> Record:
    """Compares a model's predictions with unseen outcomes.

    Args:
        model: The model.
        X: An `N x d` tensor of points.
        Y: An `N x 1` tensor of their outcomes.

    Returns:
        A dictionary with `z`, the root mean square of the z-scores, and `covered`, the share of
        outcomes inside the central 90 % bands. The predictive variance includes the noise.
    """
    posterior = model.posterior(X.unsqueeze(-2), observation_noise=True)
    z = (Y - posterior.mean[:, 0]) / posterior.variance[:, 0].sqrt()
    covered = (z.abs() <= BAND).double().mean()
    return {"z": float(z.square().mean().sqrt()), "covered": float(covered)}


def _stack(points: list[Tensor], dim: int) -> Tensor:
    return torch.stack(points) if points else torch.empty(0, dim, dtype=torch.double)


@contextmanager
def isolated() -> Iterator[None]:
    """Uses one thread, restores the random state, and hides warnings that need no action."""
    with _one_thread(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Fits that fail are retried, and jitter is added.
        for message in (
            ".*Optimization failed",
            "A not p.d.",
            "Sparse invariant checks",
            r"Data \(outcome observations\) is not standardized",
        ):
            warnings.filterwarnings("ignore", message=message)
        yield


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limits PyTorch and BLAS to one thread, because sums over threads are not reproducible.

    Parallel runs use one core each. On busy cores, waiting BLAS threads would slow down SciPy's
    L-BFGS-B by orders of magnitude.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(threads)
