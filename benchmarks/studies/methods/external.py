"""Methods that run in their own process, in an environment with other versions of packages.

The process reads the history, the pool and the evaluations of a run from CSV files, and answers
with the next row. `benchmarks.rivals.worker` describes the files.
"""

import os
import select
import sys
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from time import process_time
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from benchmarks.rivals.worker import HISTORY, OUTCOME, POOL, ROW, RUNS, TASK
from benchmarks.studies.problems import Problem, RowsProblem, named_seed
from botorch_transfer.data import as_datasets

ROOT = Path(__file__).parents[3]
#: Folder of the virtual environments, one for each requirement file of `benchmarks/rivals`.
ENVIRONMENTS = Path("out/environments").absolute()


@dataclass
class External:
    """A rival in its own process, which chooses rows of a table.

    Args:
        rival: The module and the class of the rival, in the form `module:Class`.
        environment: The name of the virtual environment; the current environment if empty.
        initial_design: Whether a run starts with the shared initial rows.
        limit: The maximum wall-clock seconds of a suggestion. A slower suggestion ends the run.
    """

    rival: str
    environment: str = ""
    initial_design: bool = False
    limit: float = 1800.0
    #: Processor time of all answers.
    seconds: ClassVar[float] = 0.0
    _processes: ClassVar[dict[str, Popen[str]]] = {}
    _case: tuple[Problem, TemporaryDirectory[str]] | None = field(default=None, init=False)

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Writes the evaluated rows, and asks the process for the next row."""
        assert isinstance(problem, RowsProblem)
        if self._case is None or problem is not self._case[0]:
            self._case = problem, TemporaryDirectory()
            _write(problem, Path(self._case[1].name))
        folder = self._case[1].name
        rows = (X.unsqueeze(1) == problem.X).all(dim=-1).double().argmax(dim=-1).tolist()
        runs = pd.DataFrame({ROW: rows, OUTCOME: Y.flatten().tolist()})
        runs.to_csv(Path(folder, RUNS), index=False)
        own_seed = named_seed(problem.name, seed, len(X))
        return problem.X[self._ask(f"{self.rival} {folder} {own_seed}\n")]

    def _ask(self, line: str) -> int:
        """Sends a line to the process, and returns the row or raises the error of the answer."""
        process = self._processes.get(self.environment) or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        in_time = select.select([process.stdout], [], [], self.limit)[0]
        row, _, seconds = (process.stdout.readline() if in_time else "").partition(" ")
        if not row:
            process.kill()
            del self._processes[self.environment]
            raise TimeoutError(f"No answer within {self.limit:g} seconds, or the process ended.")
        if not row.isdigit():
            raise RuntimeError(f"{row} {seconds}")
        External.seconds += float(seconds)
        return int(row)

    def _start(self) -> Popen[str]:
        """Starts the process of the environment, which ends with the current process."""
        folder = ENVIRONMENTS / self.environment
        python = str(folder / "bin" / "python") if self.environment else sys.executable
        if not Path(python).exists():  # ends the study, because no run is possible
            raise SystemExit(
                f"{self.rival} needs an environment: python3 -m venv {folder} && {folder}/bin/pip "
                f"install -r benchmarks/rivals/requirements/{self.environment}.txt"
            )
        command = [python, "-m", "benchmarks.rivals.worker"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True, cwd=ROOT, env=env
        )
        return self._processes.setdefault(self.environment, process)


def processor_seconds() -> float:
    """Returns the processor time so far, including other processes."""
    return process_time() + External.seconds


def _write(problem: RowsProblem, folder: Path) -> None:
    columns = [f"x{number}" for number in range(problem.dim)]
    tasks = []
    for name, task in zip(problem.history, as_datasets(problem.history), strict=True):
        rows = pd.DataFrame(torch.cat([task.X, task.Y], dim=-1), columns=[*columns, OUTCOME])
        tasks.append(rows.assign(**{TASK: name}))
    pd.concat(tasks).to_csv(folder / HISTORY, index=False)
    pd.DataFrame(problem.X, columns=columns).to_csv(folder / POOL, index=False)
