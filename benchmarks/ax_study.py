"""Tunes a classifier with Ax's `Client`, with and without history.

    python -m benchmarks.ax_study --out DIR [--space gbm] [--seeds 10] [--methods NAME ...]

Each seed selects one of the demo's target tasks, and draws old runs on tasks of other data sets.
Each evaluation cross-validates a classifier. All methods are generation strategies in the same loop
with a `Client`; the reference is the strategy that Ax chooses by default. Each run writes one file
in DIR, so an interrupted study continues where it stopped.
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.generation_strategy.generation_strategy import GenerationStrategy

from benchmarks.demo import TASKS
from benchmarks.history_spaces import SPACES, evaluate
from benchmarks.markdown import markdown_table
from benchmarks.old_runs import METRIC, draw_old_runs, finished
from botorch_transfer import (
    FloatParameter,
    Hyperprior,
    IntegerParameter,
    PretrainedGP,
    PretrainedPrior,
    ScaMLGP,
    SequentialHierarchicalGP,
    SourceGPs,
    SourceHierarchy,
    TransferGP,
)
from botorch_transfer.ax import transfer_generation_strategy
from botorch_transfer.datasets import load_tuning_history, tuning_search_space
from botorch_transfer.memo import clear_memos

EVALUATIONS = 12
AT = (1, 2, 3, 5, 8, 12)
OLD_TASKS, OLD_RUNS = 10, 40
STEPS = 1000  # optimizer steps of HyperBO's pre-training
REFERENCE = "Ax's default"
FAST = {"num_restarts": 4, "raw_samples": 128}

Config = RangeParameterConfig | ChoiceParameterConfig


def ax_space(name: str) -> list[Config]:
    """Converts a search space of the tuning history to parameters of Ax's `Client`."""
    return [ax_parameter(parameter) for parameter in tuning_search_space(name).parameters]


def ax_parameter(parameter: Any) -> Config:
    """Converts a parameter to a parameter of Ax's `Client`."""
    if isinstance(parameter, FloatParameter | IntegerParameter):
        return RangeParameterConfig(
            parameter.name,
            (parameter.lower, parameter.upper),
            parameter_type="float" if isinstance(parameter, FloatParameter) else "int",
            scaling="log" if parameter.log else "linear",
        )
    numeric = not isinstance(parameter.values[0], str)
    return ChoiceParameterConfig(
        parameter.name,
        list(parameter.values),
        parameter_type="int" if numeric else "str",
        is_ordered=numeric,
    )


@dataclass(frozen=True)
class Setting:
    """Target task and old runs of a run.

    Args:
        space: The search space of the tuning history, which is also the classifier to tune.
        seed: The seed of the old runs, the target task and the client.
    """

    space: str
    seed: int

    @property
    def target(self) -> str:
        """Name of the task to tune."""
        return TASKS[self.seed % len(TASKS)]

    def runs(self) -> pd.DataFrame:
        """Draws old runs on tasks of other data sets."""
        return draw_old_runs(self.space, self.target, self.seed, OLD_TASKS, OLD_RUNS)

    def experiments(self) -> list[Client]:
        """Converts the old runs to Ax experiments, one per task."""
        return [
            old_experiment(str(task), ax_space(self.space), runs)
            for task, runs in self.runs().groupby("task")
        ]


def old_experiment(name: str, space: list[Config], runs: pd.DataFrame) -> Client:
    """Makes an Ax experiment whose trials are the given runs."""
    client = Client()
    client.configure_experiment(space, name=name)
    client.configure_optimization(f"-{METRIC}")
    for row in runs.drop(columns="task").to_dict("records"):
        config = {config.name: row[config.name] for config in space}
        client.complete_trial(client.attach_trial(config), {METRIC: row[METRIC]})
    return client


def _transfer(
    model: type, form: str = "runs", **options: Any
) -> Callable[[Setting], GenerationStrategy]:
    """Returns a function that makes the generation strategy for a setting.

    Args:
        model: The class of the transfer model.
        form: The method of `Setting` that returns the history: `"runs"` or `"experiments"`.
        **options: Further arguments of `transfer_generation_strategy`.
    """
    return lambda setting: transfer_generation_strategy(
        model, history=getattr(setting, form)(), optimizer_options=FAST, **options
    )


METHODS: dict[str, Callable[[Setting], GenerationStrategy]] = {
    REFERENCE: lambda setting: transfer_generation_strategy(),
    "TransferGP (b) table": _transfer(TransferGP),
    "ScaMLGP (a) experiments": _transfer(ScaMLGP, "experiments"),
    "ScaMLGP (b) table": _transfer(ScaMLGP),
    "SequentialHierarchicalGP (a) experiments": _transfer(SequentialHierarchicalGP, "experiments"),
    "SequentialHierarchicalGP (b) table": _transfer(SequentialHierarchicalGP),
    "PretrainedGP (b) table": _transfer(PretrainedGP, pretraining={"steps": STEPS}),
}


@contextmanager
def counted_pretraining() -> Iterator[list[str]]:
    """Records each pre-training inside the context in the list that it yields."""
    made: list[str] = []
    with ExitStack() as stack:
        for prior in (SourceGPs, SourceHierarchy, Hyperprior, PretrainedPrior):
            counting = _counting(prior.fit, made)
            stack.enter_context(mock.patch.object(prior, "fit", counting))
        yield made


def _counting(function: Callable[..., Any], made: list[str]) -> Callable[..., Any]:
    def count(*args: Any, **kwargs: Any) -> Any:
        made.append(function.__qualname__)
        return function(*args, **kwargs)

    return count


def run(method: str, setting: Setting) -> dict[str, Any]:
    """Tunes the target task with one method.

    Args:
        method: One of `METHODS`.
        setting: Target, seed and old runs.

    Returns:
        The outcomes in the order of the trials, the seconds of each suggestion, and the number of
        pre-trainings.
    """
    clear_memos()
    values, seconds = [], []
    with counted_pretraining() as made:
        client = Client(random_seed=setting.seed)
        client.configure_experiment(ax_space(setting.space), name=setting.target)
        client.configure_optimization(f"-{METRIC}")
        torch.manual_seed(setting.seed)
        if method != REFERENCE:
            client.set_generation_strategy(METHODS[method](setting))
        for _ in range(EVALUATIONS):
            start = time.perf_counter()
            ((trial, config),) = client.get_next_trials(1).items()
            seconds.append(time.perf_counter() - start)
            values.append(evaluate(setting.space, setting.target, config)[METRIC])
            client.complete_trial(trial, {METRIC: values[-1]})
    return {
        "method": method,
        "seed": setting.seed,
        "task": setting.target,
        "values": values,
        "seconds": seconds,
        "pretrainings": len(made),
    }


def report(results: Sequence[dict[str, Any]], space: str) -> str:
    """Tabulates the results of the study.

    Args:
        results: The results of `run`.
        space: The search space of the classifier that was tuned.

    Returns:
        The table in Markdown, with one row per method. Its columns are:

        - the mean regret after some numbers of evaluations;
        - the number of evaluations until the mean regret reaches the reference's final mean regret;
        - the median number of evaluations until a run reaches the reference's final value for the
          same seed;
        - the share of seeds for which the run reaches this value;
        - the number of pre-trainings, and the seconds per suggestion.
    """
    frame = pd.DataFrame(results)
    best = pd.DataFrame(frame["values"].tolist(), index=frame.index).cummin(axis=1)
    known = load_tuning_history(space).groupby("task")[METRIC].min()
    least = best.iloc[:, -1].groupby(frame["task"]).min()
    regret = best.sub(frame["task"].map(least.combine(known, min, fill_value=float("inf"))), axis=0)
    final = best.loc[frame["method"] == REFERENCE].iloc[:, -1]
    goal = frame["seed"].map(dict(zip(frame["seed"][final.index], final, strict=True)))
    reached = best.le(goal, axis=0)
    needed = reached.idxmax(axis=1).add(1.0).where(reached.any(axis=1), float("inf"))
    header = ["method", "seeds", *(f"after {n}" for n in AT), "to default's final mean"]
    header += ["to its final of the seed", "seeds that reach it", "pre-trainings", "s a suggestion"]
    rows = []
    for method in [name for name in METHODS if name in set(frame["method"])]:
        mine = frame["method"] == method
        row = [method, str(int(mine.sum()))]
        row += [f"{regret.loc[mine, n - 1].mean():.4f}" for n in AT]
        seeds = frame["seed"].isin(frame["seed"][mine])
        goals = regret[seeds & (frame["method"] == REFERENCE)].iloc[:, -1].mean()
        curve = regret[mine].mean()
        row += [
            f"{1 + int(curve.le(goals).argmax())}"
            if curve.iloc[-1] <= goals
            else f"> {EVALUATIONS}"
        ]
        row += [f"{needed[mine].median():g}", f"{needed[mine].lt(float('inf')).mean():.0%}"]
        row += [f"{frame.loc[mine, 'pretrainings'].max()}"]
        row += [f"{frame.loc[mine, 'seconds'].map(lambda s: sum(s) / len(s)).mean():.1f}"]
        rows.append(row)
    return markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--space", choices=SPACES, default="gbm", help="the model to tune")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    options = parser.parse_args(arguments)
    logging.getLogger("ax").setLevel(logging.ERROR)
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for seed in range(options.seeds):
        for method in options.methods:
            path = options.out / f"{options.space}-{method.replace(' ', '_')}-{seed}.json"
            results.append(finished(path, partial(run, method, Setting(options.space, seed))))
    print(report(results, options.space))


if __name__ == "__main__":
    main()
