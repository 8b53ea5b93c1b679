"""Noisy expected improvement in batches of four, after the old studies of the story.

    python -m benchmarks.noisy_improvement --out FILE [--seeds 20] [--first 0]

The old runs are the complete trials of eight studies by TPE. The first row has the largest prior
mean; then four batches of four rows follow. The choices are 500 random configurations, and 500
configurations whose numbers are more often at the ends of their ranges.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import optuna
import pandas as pd
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.story import SPACE, Task, final_loss, old_studies
from botorch_transfer import ScaMLGP, TransferGP, from_dataframe
from botorch_transfer.acquisition import AveragedImprovement

METHODS = (TransferGP, "qLogNEI"), (ScaMLGP, "qLogNEI"), (TransferGP, "AveragedImprovement")
ROWS, AT = 17, (1, 4, 5, 8, 9, 13, 16, 17)


def old_runs(tasks: list[Task], seed: int) -> pd.DataFrame:
    """Returns the complete trials of the old studies."""
    with TemporaryDirectory() as folder:
        url, tables = f"sqlite:///{folder}/old.db", []
        for name in old_studies(url, tasks, seed):
            study = optuna.load_study(study_name=name, storage=url)
            tables.append(study.trials_dataframe().assign(task=name))
    old = pd.concat([t.rename(columns=lambda name: name.removeprefix("params_")) for t in tables])
    if "learning_rate" in old:
        old["lr"] = old["lr"].fillna(old["learning_rate"])
    return old[old["state"] == "COMPLETE"][["task", *SPACE.columns, "value"]]


def choices_of(seed: int) -> torch.Tensor:
    """Returns the encoded choices."""
    inside, outside = (SPACE.encode(SPACE.sample(500, seed=2 * seed + k)) for k in (0, 1))
    numbers = [SPACE.feature_names.index(name) for name in SPACE.number_columns]
    outside[:, numbers] = (0.5 + 1.4 * (outside[:, numbers] - 0.5)).clamp(0.0, 1.0)
    return torch.cat([inside, SPACE.round(outside)])


def search(
    choices: torch.Tensor,
    values: torch.Tensor,
    sources: dict,
    model_class: type,
    kind: str,
    seed: int,
) -> list[int]:
    """Returns the indices of the chosen rows."""
    torch.manual_seed(seed)
    taken: list[int] = []
    while len(taken) < ROWS:
        X, Y = choices[taken], values[taken]
        model = model_class(X, Y, sources)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        free = [i for i in range(len(choices)) if i not in taken]
        rest = choices[free]
        if not taken:
            with torch.no_grad():
                rows = rest[model.posterior(rest.unsqueeze(1)).mean.flatten().argmax()][None]
        else:
            if kind == "qLogNEI":
                sampler = SobolQMCNormalSampler(torch.Size([128]), seed=seed)
                improvement: Any = qLogNoisyExpectedImprovement(
                    model, X, sampler, prune_baseline=True
                )
            else:
                improvement = AveragedImprovement.from_model(model, Y.max(), rest[:512])
            rows, _ = optimize_acqf_discrete(
                improvement, q=4, choices=rest, unique=True, return_acq_values=False
            )
        for row in rows.reshape(-1, X.shape[-1]):
            taken.append(free[int((rest - row).abs().sum(dim=-1).argmin())])
    return taken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    records = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        rng = np.random.default_rng(seed)
        *old, new = [
            (-3 + 0.3 * rng.normal(), 4 + 0.8 * rng.normal(), 0.25 + 0.08 * rng.normal())
            for _ in range(9)
        ]
        sources = from_dataframe(old_runs(old, seed), SPACE, "value", "task", goal="min")
        choices = choices_of(seed)
        table = SPACE.decode(choices)
        losses = np.array([final_loss(dict(row), new) for _, row in table.iterrows()])
        values = -torch.tensor(losses).unsqueeze(-1)
        numbers = [SPACE.feature_names.index(n) for n in ("lr", "depth", "dropout")]
        at_end = ((choices[:, numbers] < 0.07) | (choices[:, numbers] > 0.93)).sum(-1).numpy()
        for model_class, kind in METHODS:
            taken = search(choices, values, sources, model_class, kind, seed)
            best = np.minimum.accumulate(losses[taken])
            regret = (best - losses.min()) / (np.median(losses) - losses.min())
            for k in AT:
                records.append(
                    (
                        seed,
                        model_class.__name__,
                        kind,
                        k,
                        regret[k - 1].round(5),
                        losses[taken[1:k]].mean().round(5) if k > 1 else np.nan,
                        at_end[taken[1:k]].mean().round(3) if k > 1 else np.nan,
                    )
                )
            print(*records[-1], flush=True)
    names = ["seed", "model", "acquisition", "evaluation", "regret", "mean_loss", "ends"]
    frame = pd.DataFrame(records, columns=names)
    frame.to_csv(arguments.out, index=False)
    print(
        frame.groupby(["evaluation", "acquisition", "model"])[["regret", "mean_loss", "ends"]]
        .mean()
        .unstack([1, 2])
        .round(3)
        .to_string()
    )
