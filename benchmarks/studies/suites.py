"""Suites of problems: tasks of real tables, with a small history of other tasks.

A suite has a table, the number of source tasks, and the number of evaluations of each source task.
In a run, one task is the target, and the source tasks are drawn. The draw depends on the names of
suite and target and on the seed, so all methods get the same problem.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from benchmarks.studies.problems import PoolProblem
from benchmarks.tables import TREATMENTS, Treatment, read_shared, read_shipped
from botorch_transfer.memo import content_key

#: Inputs, and outcomes to be maximized.
Rows = tuple[np.ndarray, np.ndarray]
#: Function that makes the outcomes of a source task misleading.
Spoil = Callable[[np.ndarray, np.random.Generator], np.ndarray]

MAX_ROWS, POOL_SIZE, MIN_ROWS = 2000, 1000, 26
#: Share of a task's worst outcomes that are raised to the best outcome among them.
CLIPPED = 0.05
MAX_TARGETS = 16
#: Prefix of the names of the package's own tables.
SHIPPED_TABLE = "shipped: "


@dataclass(frozen=True)
class Suite:
    """A table, and the size of the history in each run.

    Args:
        name: The name. Random draws depend on the name, so suites with equal names have equal
            draws.
        table: The name of the table.
        num_sources: The number of source tasks, drawn for each target and seed.
        num_points: The number of evaluations of each source task.
        min_rows: Tasks with fewer rows are left out.
        history: The name of the change that makes the history misleading; empty for no change.
    """

    name: str
    table: str
    num_sources: int
    num_points: int
    min_rows: int = MIN_ROWS
    history: str = ""

    @property
    def full_name(self) -> str:
        """The unique name of the suite."""
        return f"{self.name}_{self.history}" if self.history else self.name


def shuffled(y: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Permutes the outcomes, so that they do not depend on the inputs."""
    return generator.permutation(y)


def flipped(y: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Changes the sign of the outcomes, so that the best inputs become the worst inputs."""
    return -y


SPOILED: Mapping[str, Spoil] = MappingProxyType({"shuffled": shuffled, "flipped": flipped})

TUNING = (
    Suite("svm", "svm", 10, 40),
    Suite("mlp", "mlp", 7, 50),
    Suite("aryl", "direct_arylation", 2, 60),
    Suite("pmlb_gb", "pmlb/GradientBoostingClassifier", 10, 30),
    Suite("pmlb_svc", "pmlb/SVC", 10, 30),
)
VALIDATION = (
    Suite("rf", "rf", 10, 40, min_rows=100),
    Suite("rnn", "rnn_optimizer", 8, 50),
    Suite("fcnet", "fcnet_relu", 3, 60),
    Suite("pmlb_rf", "pmlb/RandomForestClassifier", 10, 30),
    Suite("pmlb_dt", "pmlb/DecisionTreeClassifier", 10, 30),
)
#: Suites with shared grids, heavy-tailed outcomes, and histories that are often misleading.
HEAVY_TAILS = (
    Suite("nodejs", "nodejs", 10, 40),
    Suite("lingeling", "lingeling", 10, 40),
    Suite("gcc", "gcc", 10, 40),
)
SHIPPED = tuple(
    Suite(f"shipped_{space}", f"{SHIPPED_TABLE}{space}", 10, 30)
    for space in ("svm", "gbm", "mlp", "forest")
)
_BY_NAME = {suite.name: suite for suite in (*TUNING, *VALIDATION)}
#: Two suites for tuning and two for validation, with pools of many more than 25 rows.
MANY_ROWS = ("svm", "mlp", "rnn", "rf")
FEW_SOURCES = tuple(
    replace(_BY_NAME[name], name=f"{name}_{number}", num_sources=number)
    for name in MANY_ROWS
    for number in (1, 2, 3)
)
STRESS = {
    history: tuple(replace(_BY_NAME[name], history=history) for name in MANY_ROWS)
    for history in SPOILED
}


def tasks(suite: Suite, folder: Path, raw: bool = False) -> Mapping[str, Rows]:
    """Reads a suite's tasks.

    Args:
        suite: The suite.
        folder: The folder of the tables.
        raw: Whether outcomes stay as recorded, without clipping, logarithms or replaced values.

    Returns:
        The tasks with at least `min_rows` rows, at most `MAX_ROWS` rows of each. Bad outcomes are
        clipped.
    """
    return _read(suite.table, suite.min_rows, folder, raw)


@cache
def _read(table: str, min_rows: int, folder: Path, raw: bool) -> Mapping[str, Rows]:
    own, treatment = table.removeprefix(SHIPPED_TABLE), TREATMENTS.get(table, Treatment())
    if raw:
        treatment = replace(treatment, worst=None, log=False)
    every = (read_shared(table, folder, treatment) if own == table else read_shipped(own)).tasks
    enough = {name: (X.numpy(), Y[:, 0].numpy()) for name, (X, Y) in every.items()}
    share = 0.0 if raw else CLIPPED
    return {n: _trimmed(*rows, share) for n, rows in enough.items() if len(rows[1]) >= min_rows}


def _trimmed(X: np.ndarray, y: np.ndarray, clipped: float) -> Rows:
    if len(y) > MAX_ROWS:
        kept = np.random.default_rng(0).permutation(len(y))[:MAX_ROWS]
        X, y = X[kept], y[kept]
    return X, np.maximum(y, np.quantile(y, clipped))


def targets(names: list[str]) -> list[str]:
    """Chooses at most `MAX_TARGETS` evenly spaced tasks of a table as targets.

    Args:
        names: The names of all tasks.

    Returns:
        The names of the targets. Every second target comes first, so that the first few targets are
        evenly spaced, too.
    """
    ordered = sorted(names)
    chosen = ordered[:: max(1, len(ordered) // MAX_TARGETS)][:MAX_TARGETS]
    return [*chosen[::2], *chosen[1::2]]


@dataclass(frozen=True)
class SuiteProblem:
    """One target of a suite.

    Args:
        suite: The suite.
        target: The name of the target task.
        folder: The folder of the tables.
        raw: Whether outcomes stay as they are, as in `tasks`.
    """

    suite: Suite
    target: str
    folder: Path
    raw: bool = False

    @property
    def name(self) -> str:
        """The names of the suite and of the target."""
        return f"{self.suite.full_name}: {self.target}"

    def step_seed(self, seed: int, evaluation: int) -> int:
        """Returns the number of the evaluation; the problem is drawn with the seed of the run."""
        return seed if evaluation < 0 else max(evaluation - 1, 0)

    def instance(self, seed: int, history_size: int | None) -> PoolProblem:
        """Draws the source tasks, their evaluations and the pool, with the sizes of the suite.

        Misleading histories have the same evaluations and the same pool as the original history.
        """
        everything, suite = tasks(self.suite, self.folder, self.raw), self.suite
        entropy = sum(map(ord, suite.name + self.target)) * 1000 + seed
        generator, spoiling = np.random.default_rng(entropy), np.random.default_rng([entropy, 1])
        others = generator.permutation([name for name in sorted(everything) if name != self.target])
        history = {}
        for name in map(str, others[: suite.num_sources]):
            X, y = _some(*everything[name], suite.num_points, generator)
            if suite.history:
                y = SPOILED[suite.history](y, spoiling)
            history[name] = _tensors(X, y)
        X, y = everything[self.target]
        if len(y) > POOL_SIZE:
            X, y = _some(X, y, POOL_SIZE, generator)
        return PoolProblem(self.name, *_tensors(X, y), history, generator)

    def key(self) -> str:
        """Returns a hash of the name, the sizes of the suite, and whether outcomes are raw."""
        return content_key(self.name, astuple(self.suite), *["raw"] * self.raw)


def problems(suites: Sequence[Suite], folder: Path | None, raw: bool = False) -> list[SuiteProblem]:
    """Lists the problems of suites.

    Args:
        suites: The suites.
        folder: The folder of the tables.
        raw: Whether outcomes stay as they are, as in `tasks`.

    Returns:
        One problem per target.

    Raises:
        ValueError: If `folder` is `None`.
    """
    if folder is None:
        raise ValueError("The study needs the tables: add --data FOLDER.")
    return [
        SuiteProblem(suite, target, folder, raw)
        for suite in suites
        for target in targets(list(tasks(suite, folder, raw)))
    ]


def _some(X: np.ndarray, y: np.ndarray, number: int, generator: np.random.Generator) -> Rows:
    kept = generator.permutation(len(y))[:number]
    return X[kept], y[kept]


def _tensors(X: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.tensor(X, dtype=torch.double), torch.tensor(y, dtype=torch.double).unsqueeze(-1)
