"""Tune a support vector machine live, with and without the history of other tasks: `make demo`.

    python -m benchmarks.demo [--seeds 3] [--out out]

The function is real: each evaluation cross-validates an RBF SVM at some C and gamma. Each target
task is tuned as if it had just arrived, with the shipped runs on the other tasks as history.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from joblib import cpu_count
from pandas import DataFrame, concat
from torch import Tensor

from benchmarks.history_spaces import evaluate
from benchmarks.history_tasks import TASKS as ALL_TASKS
from benchmarks.studies import LiveProblem, Study, run_study
from benchmarks.studies.methods import METHODS, Method
from benchmarks.studies.metrics import failures, regrets
from benchmarks.studies.problems import Problem
from benchmarks.studies.report import regret_figure, regret_table
from benchmarks.studies.run import Budget
from botorch_transfer import SearchSpace, from_dataframe, suggest
from botorch_transfer.data import as_datasets
from botorch_transfer.datasets import load_tuning_history, tuning_search_space

SPACE = "svm"
# One task of each kind of data: images, tumours, irises, wines, travellers.
TASKS = (
    "digits_3_vs_8",
    "breast_cancer",
    "iris_versicolor",
    "wine_second_cultivar",
    "modechoice_car",
)
BUDGET = Budget(evaluations=15, initial=3, history_size=60)
AT = (1, 3, 5, 10, 15)

INTRODUCTION = """\
Tuning an RBF SVM live, 15 evaluations a run: each one cross-validates it at some C and gamma.
Targets: {tasks}.
"""


@dataclass(frozen=True)
class SVMScore:
    """Minus the cross-validated log loss of an SVM, over the unit square of log C and log gamma.

    Args:
        task: The name of the classification task.
    """

    task: str

    def __call__(self, x: Tensor) -> float:
        """Trains and validates at a `2` tensor."""
        (config,) = tuning_search_space(SPACE).decode(x.unsqueeze(0)).to_dict(orient="records")
        return -evaluate(SPACE, self.task, {str(k): v for k, v in config.items()})["log_loss"]


@dataclass(frozen=True)
class Suggest:
    """What a user of tables does: call `suggest` with the old runs and those so far.

    Args:
        space: The search space.
    """

    space: SearchSpace
    initial_design: bool = False

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """The next row, encoded."""
        old = [
            self._table(data.X, data.Y).assign(task=name)
            for name, data in zip(problem.history, as_datasets(problem.history), strict=True)
        ]
        runs = self._table(X, Y.nan_to_num(nan=-torch.inf))
        row = suggest(self.space, concat(old, ignore_index=True), runs, seed=seed)
        return self.space.encode(row)[0]

    def _table(self, X: Tensor, Y: Tensor) -> DataFrame:
        return self.space.decode(X).assign(loss=-Y[:, 0].numpy())


DEMO_METHODS: dict[str, Method] = {
    "suggest": Suggest(tuning_search_space(SPACE)),
    **{name: METHODS[name] for name in ("plain GP", "best of history", "random search")},
}


def problems(tasks: Sequence[str] = TASKS) -> list[LiveProblem]:
    """Each task as a target, with the shipped runs on tasks from other data sets as its history.

    Tasks that share their data set with the target are left out, too: digits 3 against 9 would
    know some of the very images of 3 against 8.

    Args:
        tasks: Names of target tasks.

    Returns:
        The problems; their best known values are those of the shipped table.
    """
    frame = load_tuning_history(SPACE)
    runs = from_dataframe(
        frame, tuning_search_space(SPACE), outcome="log_loss", task="task", goal="min"
    )
    return [
        LiveProblem(
            name=task,
            function=SVMScore(task),
            dim=2,
            history={
                name: data for name, data in runs.items() if _data_set(name) != _data_set(task)
            },
            best_known=float(runs[task].Y.max()),
        )
        for task in tasks
    ]


def _data_set(task: str) -> str:
    return task.split("_")[0]


def report(results: DataFrame, best_known: Mapping[str, float], out: Path) -> str:
    """Saves the picture of a finished study and writes its table.

    Args:
        results: The table of `run_study`.
        best_known: The best value of each task known beforehand.
        out: The picture's path.

    Returns:
        The table, with what it means.
    """
    regret = regrets(results, best_known)
    regret_figure(
        regret,
        out,
        title="Tuning an SVM on a data set never seen before",
        ylabel="log loss above the best known (nats)",
    )
    num_tasks, num_seeds = regret.index.unique("problem").size, regret.index.unique("seed").size
    lines = [
        f"Log loss above the best known, mean over {num_tasks} tasks × {num_seeds} seeds:",
        "",
        regret_table(regret, AT, reference="plain GP"),
        "",
        f"The plain GP and random search start with the same {BUDGET.initial} points of a Sobol "
        "sequence; the others have the history",
        f"instead ({BUDGET.history_size} runs a task, others for each seed; no run on the target's "
        "own data set). Every evaluation counts.",
    ]
    failed = failures(results)
    lines += [f"{n} runs of {name} failed." for name, n in failed[failed > 0].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for all results")
    parser.add_argument("--tasks", nargs="+", choices=ALL_TASKS, default=TASKS, metavar="TASK")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method on each task")
    parser.add_argument("--jobs", type=int, default=cpu_count(only_physical_cores=True))
    options = parser.parse_args(arguments)
    targets = problems(options.tasks)
    study = Study(targets, DEMO_METHODS, range(options.seeds), BUDGET)
    picture = options.out / "demo.png"
    print(INTRODUCTION.format(tasks=", ".join(options.tasks)))
    with TemporaryDirectory() as folder:
        results = run_study(study, Path(folder), n_jobs=options.jobs, progress=True)
    options.out.mkdir(parents=True, exist_ok=True)
    results.to_parquet(options.out / "demo.parquet")
    print(report(results, {problem.name: problem.best_known for problem in targets}, picture))
    print(f"\nRegret curves: {picture}; all evaluations: {options.out / 'demo.parquet'}")


if __name__ == "__main__":
    main()
