"""Tunes gradient boosting live, with and without the history of other tasks: `make demo`.

    python -m benchmarks.demo [--out out]
    python -m benchmarks.demo --space svm --evaluations 15 --seeds 3 --tasks digits_3_vs_8 ...

Each evaluation cross-validates a classifier. Each target task is new: the history contains the
shipped runs on tasks of other data sets. The second command is a larger study of a support vector
machine.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from joblib import cpu_count
from pandas import DataFrame, concat
from torch import Tensor

from benchmarks.history_spaces import SPACES, evaluate
from benchmarks.history_tasks import TASKS as ALL_TASKS
from benchmarks.old_runs import data_set, without_data_set
from benchmarks.studies import LiveProblem, Study, run_study
from benchmarks.studies.methods import METHODS, Method
from benchmarks.studies.metrics import failures, regrets
from benchmarks.studies.problems import Problem
from benchmarks.studies.report import regret_figure, regret_table
from benchmarks.studies.run import Budget
from botorch_transfer import SearchSpace, from_dataframe, suggest
from botorch_transfer.data import as_datasets
from botorch_transfer.datasets import load_tuning_history, tuning_search_space
from botorch_transfer.suggestion import read_study, suggest_rows
from botorch_transfer.suggestion.page import suggestion_page

TASKS = ("breast_cancer", "wine_second_cultivar")
INITIAL, HISTORY_SIZE = 3, 40
AT = (1, 2, 3, 6, 10, 15)

INTRODUCTION = """\
Tuning {space} live on {tasks}: each evaluation cross-validates a classifier,
{evaluations} evaluations a run. `suggest` learns from {history} runs on each of the other data
sets, the plain GP from none.
"""


@dataclass(frozen=True)
class Score:
    """Negative cross-validated log loss of a classifier, as a function of encoded settings.

    Args:
        space: The search space of the tuning history.
        task: The name of the classification task.
    """

    space: str
    task: str

    def __call__(self, x: Tensor) -> float:
        """Cross-validates the classifier with the settings in a `d` tensor."""
        rows = tuning_search_space(self.space).decode(x.unsqueeze(0)).to_dict(orient="records")
        config = {str(name): value for name, value in rows[0].items()}
        return -evaluate(self.space, self.task, config)["log_loss"]


@dataclass(frozen=True)
class Suggest:
    """Method that calls `suggest` with tables of the old runs and of the target's runs.

    Args:
        space: The search space.
        initial_design: Whether runs start with an initial design.
    """

    space: SearchSpace
    initial_design: bool = False

    def suggest(self, problem: Problem, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """Returns the next row, encoded as a `d` tensor."""
        old = [
            self._table(data.X, data.Y).assign(task=name)
            for name, data in zip(problem.history, as_datasets(problem.history), strict=True)
        ]
        runs = self._table(X, Y.nan_to_num(nan=-torch.inf))
        row = suggest(self.space, concat(old, ignore_index=True), runs, seed=seed)
        return self.space.encode(row)[0]

    def _table(self, X: Tensor, Y: Tensor) -> DataFrame:
        return self.space.decode(X).assign(loss=-Y[:, 0].numpy())


def demo_methods(space: str) -> dict[str, Method]:
    """Returns the methods that the demo compares."""
    return {"suggest": Suggest(tuning_search_space(space)), "plain GP": METHODS["plain GP"]}


def problems(space: str, tasks: Sequence[str] = TASKS) -> list[LiveProblem]:
    """Makes a problem for each target task, with the shipped runs on other data sets as history.

    The history has no task of the target's data set, because both tasks would share samples.

    Args:
        space: The search space of the tuning history.
        tasks: Names of target tasks.

    Returns:
        The problems. The best known value of a problem is the best value in the shipped table.
    """
    own, frame = tuning_search_space(space), load_tuning_history(space)
    runs = from_dataframe(frame, own, "log_loss", "task", goal="min", robust=None)
    return [
        LiveProblem(
            name=task,
            function=Score(space, task),
            dim=own.dim,
            history={n: data for n, data in runs.items() if data_set(n) != data_set(task)},
            best_known=float(runs[task].Y.max()),
        )
        for task in tasks
    ]


def write_page(space: str, task: str, out: Path) -> None:
    """Writes the page of `suggest` for a study that starts with a task's first six shipped runs.

    Args:
        space: The search space of the tuning history.
        task: The target task.
        out: The path of the page.
    """
    frame = load_tuning_history(space)
    old = without_data_set(frame, task).groupby("task").head(20)
    runs = frame[frame["task"] == task].head(6).drop(columns="task")
    tables = read_study(tuning_search_space(space), old, runs, "log_loss", "min")
    out.write_text(suggestion_page(suggest_rows(tables), runs), encoding="utf-8")


def report(results: DataFrame, best_known: Mapping[str, float], evaluations: int, out: Path) -> str:
    """Saves the picture of a finished study, and returns the table of regrets.

    Args:
        results: The table of `run_study`.
        best_known: The best known value of each task before the study.
        evaluations: The number of evaluations of a run.
        out: The path of the picture.

    Returns:
        The table with an explanation.
    """
    regret = regrets(results, best_known)
    regret_figure(
        regret,
        out,
        title="Tuning a classifier on a data set never seen before",
        ylabel="log loss above the best known (nats)",
    )
    num_tasks, num_seeds = regret.index.unique("problem").size, regret.index.unique("seed").size
    lines = [
        f"Log loss above the best known, mean over {num_tasks} tasks × {num_seeds} seeds:",
        "",
        regret_table(regret, [n for n in AT if n <= evaluations], reference="plain GP"),
        "",
        f"The plain GP starts with {INITIAL} points of a Sobol sequence, `suggest` with the "
        f"history ({HISTORY_SIZE} runs a task,",
        "others for each seed; none on the target's own data set). Every evaluation counts.",
    ]
    failed = failures(results)
    lines += [f"{n} runs of {name} failed." for name, n in failed[failed > 0].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for all results")
    parser.add_argument("--space", choices=SPACES, default="gbm", help="the classifier")
    parser.add_argument("--tasks", nargs="+", choices=ALL_TASKS, default=TASKS, metavar="TASK")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each method on each task")
    parser.add_argument("--evaluations", type=int, default=6, help="evaluations of each run")
    parser.add_argument("--jobs", type=int, default=cpu_count(only_physical_cores=True))
    options = parser.parse_args(arguments)
    targets, evaluations = problems(options.space, options.tasks), options.evaluations
    budget = Budget(evaluations, min(INITIAL, evaluations), HISTORY_SIZE)
    study = Study(targets, demo_methods(options.space), range(options.seeds), budget)
    said = {"space": options.space, "tasks": ", ".join(options.tasks), "evaluations": evaluations}
    print(INTRODUCTION.format(**said, history=HISTORY_SIZE))
    with TemporaryDirectory() as folder:
        results = run_study(study, Path(folder), n_jobs=options.jobs, progress=True)
    options.out.mkdir(parents=True, exist_ok=True)
    picture, page = options.out / "demo.png", options.out / "demo.html"
    results.to_parquet(options.out / "demo.parquet")
    best_known = {problem.name: problem.best_known for problem in targets}
    print(report(results, best_known, evaluations, picture))
    write_page(options.space, options.tasks[0], page)
    print(
        f"\nPicture: {picture}. Page with the next row and why: {page}. All evaluations: "
        f"{options.out / 'demo.parquet'}."
    )


if __name__ == "__main__":
    main()
