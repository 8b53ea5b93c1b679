"""Noisy expected improvement, one row or four at a time, on tables: an average against ScaML-GP.

    python -m benchmarks.noisy_improvement --data FOLDER --out FILE [--targets 4]

Each of six tables gives some targets, with the history of the `development` study. The first row
has the largest prior mean; then `qLogNoisyExpectedImprovement` proposes rows not tried yet.
"""

from __future__ import annotations

import argparse
import warnings
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.studies.suites import TUNING, VALIDATION, SuiteProblem, problems
from botorch_transfer import ScaMLGP, TransferGP

TABLES = "svm", "mlp", "aryl", "rf", "rnn", "fcnet"
ROWS, AT, SEED = 17, (1, 4, 5, 8, 9, 13, 16, 17), 5


def search(problem: SuiteProblem, model_class: type, q: int) -> torch.Tensor:
    """Returns the regret after each row, over the median row's."""
    pool = problem.instance(SEED, None)
    sources, X, Y = list(pool.history.values()), pool.X[:0], pool.Y[:0]
    torch.manual_seed(SEED)
    while len(X) < ROWS:
        model = model_class(X, Y, sources)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        choices, _ = pool.unseen(X)
        if len(X) == 0:
            rows = choices[model.posterior(choices.unsqueeze(1)).mean.flatten().argmax()][None]
        else:
            sampler = SobolQMCNormalSampler(torch.Size([128]), seed=SEED)
            improvement = qLogNoisyExpectedImprovement(model, X, sampler, prune_baseline=True)
            rows, _ = optimize_acqf_discrete(improvement, q=q, choices=choices, unique=True)
        rows = rows.reshape(-1, X.shape[-1])
        values = torch.tensor([[pool.evaluate(row)] for row in rows]).to(Y)
        X, Y = torch.cat([X, rows]), torch.cat([Y, values])
    gap = pool.best_known - Y.flatten().cummax(dim=0).values
    return (gap / (pool.best_known - pool.landmarks.median)).clamp(0, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--targets", type=int, default=4)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    suites = [suite for suite in (*TUNING, *VALIDATION) if suite.name in TABLES]
    found, records = problems(suites, arguments.data), []
    for suite in suites:
        targets = [problem for problem in found if problem.suite == suite][: arguments.targets]
        for problem, model_class, q in product(targets, (TransferGP, ScaMLGP), (1, 4)):
            regret = search(problem, model_class, q)
            row = problem.name, SEED, model_class.__name__, q
            records += [(*row, k, round(float(regret[k - 1]), 5)) for k in AT]
            print(*row, [round(float(regret[k - 1]), 3) for k in AT], flush=True)
    names = ["problem", "seed", "model", "q", "evaluation", "regret"]
    pd.DataFrame(records, columns=names).to_csv(arguments.out, index=False)
