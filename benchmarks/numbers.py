"""Record what every model and every kind of pre-training computes, and compare it later.

    python -m benchmarks.numbers record FILE
    python -m benchmarks.numbers compare FILE

A change that only moves code about must leave all numbers as they are. `record` computes them on a
few small tasks and writes them to FILE (safetensors, in double precision); the priors of the models
go to a folder beside it, `FILE.priors`. `compare` computes them again, prints for every group of
checks the largest deviation, and exits with status 1 if one is beyond its tolerance. The module
uses public names only, imported from the package and its rooms `models` and `pretraining`, and the
data are formulas, so the same file also runs on another checkout:

    PYTHONPATH=CHECKOUT python -P benchmarks/numbers.py record FILE

Models that average others are compared by their posteriors alone: they have no marginal likelihood.

Keys read `kind/case/quantity`. The kinds, with their tolerances:

* `fixed`: a model's numbers at the hyperparameters it is built with, and a prior's at those it was
  given: 1e-10, absolute and relative. Models take their priors from the folder, so that these
  numbers don't depend on the last digits of a fit.
* `fit`: log posteriors are no more than 1e-4 nats below the recorded ones, predictions within 1e-3
  standard deviations. Where the log posterior is better by more than that, predictions may differ:
  the case is listed as better. Some fits (the joint models') end elsewhere, by up to a tenth of a
  nat, once any rounding differs. `record` therefore repeats each model's fit on outcomes that
  differ by 1e-10, and the spread of the repetitions is added to the tolerances.
* `tight fit`: the same rule for one start, optimized until nothing changes.
* `estimate`: fitted hyperparameters and what follows from them: 1e-3, absolute and relative.
* `suggest`: suggested rows within 1e-3 of each parameter's encoded range, so choices and whole
  numbers are the same; their predictions within 0.01 standard deviations, their acquisition, the
  logarithm of an improvement, within 0.01; the old tasks named for them are the same. A search
  stops where the acquisition is nearly flat: outcomes that differ by 1e-10 move the second row of
  a batch by 4e-4 of a range, and its acquisition by as much. The tables, too, are therefore
  repeated, and the spread is added.
* `first losses`: the first 100 steps of Adam: 1e-8, absolute and relative.
* `final loss`: of a whole pre-training, one a seed: no further away than the seeds are from one
  another.

References are not kept in the repository: numbers depend on the versions of PyTorch and BoTorch,
and on the processor by more than 1e-10, as hyperpriors are built in single precision. Record one on
the revision to compare with, on the same machine.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from botorch import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from safetensors.torch import load_file, save_file
from torch import Tensor

import botorch_transfer
from botorch_transfer import (
    CategoricalParameter,
    Domain,
    FloatParameter,
    Hyperprior,
    IntegerParameter,
    PretrainedPrior,
    SearchSpace,
    SourceData,
    SourceGPs,
    SourceHierarchy,
    SourcePopulation,
    as_datasets,
    models,
    suggest,
)
from botorch_transfer.pretraining import NetworkOptions, clear_memos

EXACT = 1e-10
NATS = 1e-4
DEVIATIONS = 1e-3
ESTIMATE = 1e-3
LOSS = 1e-8
ROWS = 1e-3
SUGGESTED = 1e-2

NUM_LOSSES = 100
SEEDS = 4
REPETITIONS = 5
TARGET_SIZES = (0, 1, 6)
TIGHT: dict[str, Any] = {
    "num_restarts": 0,
    "optimizer_kwargs": {"options": {"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-8}},
}
SMALL = {"hidden": (8, 8)}
HYPERPRIORS = "hyperparameters"
"""The argument of priors' fits for the hyperpriors; its name is used nowhere else."""

Numbers = dict[str, Tensor]

# ------------------------------------------------------------------------------------------- data


def points(n: int, d: int = 2, shift: float = 0.0) -> Tensor:
    """Low-discrepancy points in the unit cube, without a random number generator."""
    root = {1: 1.618033988749895, 2: 1.324717957244746, 3: 1.2207440846057596}[d]
    steps = torch.tensor([root ** -(j + 1) for j in range(d)], dtype=torch.double)
    rows = torch.arange(1, n + 1, dtype=torch.double).unsqueeze(-1)
    return (shift + rows * steps).remainder(1.0)


def outcomes(X: Tensor, task: float) -> Tensor:
    """A smooth function that changes a little with the task, and something like noise."""
    first, last = X[:, :1], X[:, -1:]
    smooth = torch.sin(5 * first + 0.4 * task) + (1 + 0.2 * task) * (last - 0.3) ** 2
    return smooth + 0.3 * task + 0.05 * torch.cos(97 * first + 61 * last + task)


def noises(X: Tensor) -> Tensor:
    return 0.01 + 0.02 * X[:, :1]


def history(
    known_noise: bool = False, change: float = 0.0, matching: bool = False
) -> dict[str, SourceData]:
    """Three ragged source tasks; matching ones, five at the same inputs, are for the EKL."""
    sizes = {"one": 8, "two": 11, "three": 15}
    if matching:
        sizes = dict.fromkeys(("one", "two", "three", "four", "five"), 10)
    tasks: dict[str, SourceData] = {}
    for number, (name, size) in enumerate(sizes.items()):
        X = points(size, shift=0.0 if matching else 0.37 * number)
        Y = outcomes(X, number) + change * X[:, :1]
        tasks[name] = (X, Y, noises(X)) if known_noise else (X, Y)
    return tasks


def balanced() -> list[SourceData]:
    """Tasks with as many outcomes of -1 as of 1, and a zero: standardizing them rounds nothing.

    Which points are kept where there are too many depends on the last bits of outcomes.
    """
    tasks: list[SourceData] = []
    for number, size in enumerate((9, 11, 15)):
        X = points(size, shift=0.37 * number)
        ranks = outcomes(X, number).argsort(dim=0).argsort(dim=0)
        tasks.append((X, (ranks - size // 2).sign().to(X)))
    return tasks


def target(n: int) -> tuple[Tensor, Tensor]:
    X = points(n, shift=0.81)
    return X, outcomes(X, 1.5)


def domains() -> list[Domain]:
    """Four search spaces of one to three inputs, two tasks each."""
    result = []
    for number, d in enumerate((1, 2, 3, 2)):
        inputs = [points(9 + task, d, 0.23 * number + 0.4 * task) for task in range(2)]
        tasks = [(X, outcomes(X, number + task)) for task, X in enumerate(inputs)]
        discrete = [0] if number == 3 else []
        result.append(Domain(tasks, discrete_dims=discrete, name=f"space {number}"))
    return result


TEST_X = points(5, shift=0.55)


def hand_made_models(standardize: bool) -> dict[str, SingleTaskGP]:
    """GPs of the source tasks with hyperparameters that are set, not fitted."""
    result = {}
    for number, (name, data) in enumerate(zip(history(), as_datasets(history()), strict=True)):
        base = MaternKernel(2.5, ard_num_dims=2) if standardize else RBFKernel(ard_num_dims=2)
        mean, noise = ConstantMean(), GaussianLikelihood()
        model = SingleTaskGP(
            data.X,
            data.Y,
            covar_module=ScaleKernel(base),
            mean_module=mean,
            likelihood=noise,
            outcome_transform=Standardize(1) if standardize else None,
            input_transform=Normalize(2, bounds=torch.tensor([[0.0, -1], [2, 1]]).double()),
        )
        model.double()  # first, or values are rounded to single precision
        base.lengthscale = torch.tensor([[0.2 + 0.1 * number, 0.6]], dtype=torch.double)
        model.covar_module.outputscale = 0.8 + 0.3 * number
        noise.noise = 0.01 * (number + 1)
        mean.constant = 0.1 * number
        result[name] = model.eval()
    return result


# ----------------------------------------------------------------------------------------- priors

PRIORS: dict[str, tuple[type[Any], Callable[[], Any]]] = {
    "sources": (SourceGPs, lambda: SourceGPs.fit(history(), num_restarts=0)),
    "population": (SourcePopulation, lambda: SourcePopulation.fit(history())),
    "hierarchy": (SourceHierarchy, lambda: SourceHierarchy.fit(history(), num_restarts=0)),
    "means": (SourceHierarchy, lambda: SourceHierarchy.fit(history(), "mean", num_restarts=0)),
    "hyperbo": (PretrainedPrior, lambda: pretrain("hyperbo", "nll", steps=50)),
    "fsbo": (PretrainedPrior, lambda: pretrain("fsbo", "nll", steps=50)),
    "ablr": (PretrainedPrior, lambda: pretrain("ablr", "nll", steps=50)),
    "ekl": (PretrainedPrior, lambda: pretrain("hyperbo", "ekl", steps=20)),
    "stationary": (PretrainedPrior, lambda: pretrain("stationary", "ekl", steps=20)),
    "mphd": (Hyperprior, lambda: fit_hyperprior("mphd")),
    "universal": (Hyperprior, lambda: fit_hyperprior("universal")),
}
"""The priors of the models, by file name."""


def pretrain(preset: str, objective: str, seed: int = 0, **options: Any) -> PretrainedPrior:
    arguments: dict[str, Any] = {} if preset == "stationary" else SMALL | {"seed": seed}
    data = history(matching=objective != "nll")
    prior: PretrainedPrior = getattr(PretrainedPrior, preset)(2, **arguments)
    return prior.fit(data, objective=objective, **options)  # type: ignore[arg-type]


def fit_hyperprior(kind: Any, **options: Any) -> Hyperprior:
    return Hyperprior.fit(domains(), kind, network=NetworkOptions(num_steps=300), **options)


def prior_folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.priors")


def write_priors(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, make) in PRIORS.items():
        make().save(folder / f"{name}.safetensors")


# ----------------------------------------------------------------------------------------- models


class ModelCase(NamedTuple):
    """A model to look at: its class, its prior's file (source data if empty), its options.

    A model of several priors has a mapping from their names to files.
    """

    model: str
    prior: str | Mapping[str, str] = ""
    options: Mapping[str, Any] = {}
    is_fitted: bool = True
    known_noise: bool = False

    @property
    def is_average(self) -> bool:
        """Whether it averages the posteriors of models: it has no likelihood of its own."""
        return self.model in ("TransferGP", "GuardedTransferGP")


MEMBERS = {"population": "population", "scaml": "sources"}

MODELS: dict[str, ModelCase] = {
    "ScaMLGP": ModelCase("ScaMLGP", "sources"),
    "ScaMLGP, known noise": ModelCase("ScaMLGP", "sources", known_noise=True),
    "SequentialHierarchicalGP": ModelCase("SequentialHierarchicalGP", "hierarchy"),
    "MeanHierarchicalGP": ModelCase("MeanHierarchicalGP", "means"),
    "MeanHierarchicalGP, combined deviations": ModelCase(
        "MeanHierarchicalGP", "means", {"deviation_weight": 1.0}, is_fitted=False
    ),
    "BoostedHierarchicalGP": ModelCase("BoostedHierarchicalGP", "means"),
    "JointHierarchicalGP": ModelCase("JointHierarchicalGP"),
    "WeightedSourceGP": ModelCase("WeightedSourceGP"),
    "WeightedSourceGP, normalized": ModelCase(
        "WeightedSourceGP", options={"normalize": True}, is_fitted=False
    ),
    "LinearCoregionalizationGP": ModelCase("LinearCoregionalizationGP"),
    "IntrinsicCoregionalizationGP": ModelCase("IntrinsicCoregionalizationGP"),
    "JointScaMLGP": ModelCase("JointScaMLGP"),
    "JointScaMLGP, known noise": ModelCase("JointScaMLGP", known_noise=True, is_fitted=False),
    "PretrainedGP, hyperbo": ModelCase("PretrainedGP", "hyperbo"),
    "PretrainedGP, fsbo": ModelCase("PretrainedGP", "fsbo"),
    "PretrainedGP, ablr": ModelCase("PretrainedGP", "ablr"),
    "PretrainedGP, ekl": ModelCase("PretrainedGP", "ekl"),
    "PretrainedGP, stationary": ModelCase("PretrainedGP", "stationary"),
    "PretrainedGP, finetuned": ModelCase("PretrainedGP", "hyperbo", {"finetune": True}),
    "HyperpriorGP, mphd": ModelCase("HyperpriorGP", "mphd"),
    "HyperpriorGP, universal": ModelCase("HyperpriorGP", "universal"),
    "FullyBayesianHyperpriorGP": ModelCase(
        "FullyBayesianHyperpriorGP", "universal", {"num_samples": 256, "num_members": 8}
    ),
    "PopulationGP": ModelCase("PopulationGP", "population"),
    "PopulationGP, known noise": ModelCase("PopulationGP", "population", known_noise=True),
    "RankWeightedGP": ModelCase("RankWeightedGP", "sources"),
    "TwoStageTransferGP": ModelCase("TwoStageTransferGP", "sources"),
    "GuardedTransferGP": ModelCase("GuardedTransferGP", "sources"),
    "GuardedTransferGP, sequential": ModelCase(
        "GuardedTransferGP",
        "hierarchy",
        {"transfer_model": models.SequentialHierarchicalGP},
        is_fitted=False,
    ),
    "TransferGP": ModelCase("TransferGP", MEMBERS),
    "TransferGP, known noise": ModelCase("TransferGP", MEMBERS, known_noise=True),
    "TransferGP, one member": ModelCase("TransferGP", "sources", is_fitted=False),
}


def build(case: ModelCase, n: int, folder: Path, repetition: int = 0) -> Any:
    """Builds a model; repetitions have outcomes that differ by 1e-10."""
    X, Y = target(n)
    Y = Y + 1e-10 * torch.sin(torch.arange(n).unsqueeze(-1) + repetition) * (repetition > 0)
    noise = noises(X) if case.known_noise else None
    prior: Any = history(case.known_noise, 1e-10 * repetition)
    if isinstance(case.prior, Mapping):
        prior = {member: load_prior(folder, name) for member, name in case.prior.items()}
    elif case.prior:
        prior = load_prior(folder, case.prior)
    torch.manual_seed(0)
    return getattr(models, case.model)(X, Y, prior, train_Yvar=noise, **case.options)


@cache
def load_prior(folder: Path, name: str) -> Any:
    return PRIORS[name][0].load(folder / f"{name}.safetensors")


def predictions(model: Any, X: Tensor) -> Numbers:
    """Mean, variance and joint covariance."""
    posterior = model.eval().posterior(X)
    covariance = posterior.distribution.covariance_matrix
    return {
        "mean": posterior.mean.squeeze(-1),
        "variance": posterior.variance.squeeze(-1),
        "covariance": covariance,
    }


def likelihood(model: Any) -> Numbers:
    """The marginal likelihood with all its terms, and its gradients."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    value = mll(model(*model.train_inputs), model.train_targets).sum()
    result = {"mll": value}
    if value.requires_grad:
        gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        result |= {
            f"mll by {name}": torch.zeros_like(parameters[name]) if gradient is None else gradient
            for name, gradient in zip(parameters, gradients, strict=True)
        }
    model.eval()
    return result


def fixed_numbers(model: Any, n: int, is_average: bool) -> Numbers:
    """What a model computes at the hyperparameters that it has."""
    X = TEST_X.clone().requires_grad_()
    result = predictions(model, X)
    (gradient,) = torch.autograd.grad(result["mean"].sum() + result["variance"].sum(), X)
    result["gradient"] = gradient
    noisy = model.posterior(TEST_X, observation_noise=True)
    result["variance with noise"] = noisy.variance.squeeze(-1)
    if n > 0 and not is_average:
        result |= likelihood(model)
    if n > 1 and hasattr(model, "loo_posterior"):
        loo = model.loo_posterior()
        result |= {"leave-one-out mean": loo.mean, "leave-one-out variance": loo.variance}
    return result


def fitted_numbers(model: Any, n: int, is_average: bool, **options: Any) -> Numbers:
    """What a model predicts after a fit, and the log posterior that the fit reached."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    torch.manual_seed(0)
    fit_gpytorch_mll(mll, **options)
    result: Numbers = {}
    if n > 0 and not is_average:
        result["log posterior"] = n * likelihood(model)["mll"]
    noisy = model.eval().posterior(TEST_X, observation_noise=True)
    result["deviation with noise"] = noisy.variance.squeeze(-1).sqrt()
    return result | as_fit(predictions(model, TEST_X))


def repeated_fits(case: ModelCase, n: int, folder: Path, number: int) -> Numbers:
    """Stacks the results of fits to outcomes that hardly differ, the given ones first."""
    return stacked(
        fitted_numbers(build(case, n, folder, index), n, case.is_average) for index in range(number)
    )


def stacked(repetitions: Iterable[Numbers]) -> Numbers:
    runs = list(repetitions)
    return {name: torch.stack([run[name].detach() for run in runs]) for name in runs[0]}


def as_fit(found: Numbers) -> Numbers:
    """Predictions for a comparison in standard deviations."""
    deviation = found["variance"].sqrt()
    result = {"mean": found["mean"], "deviation": deviation}
    if "covariance" in found:
        scale = deviation.unsqueeze(-1) * deviation.unsqueeze(-2)
        result["correlation"] = found["covariance"] / scale
    return result


def model_numbers(folder: Path, repetitions: int) -> Numbers:
    """The models' numbers before and after fits."""
    result: Numbers = {}
    for name, case in MODELS.items():
        joint = not case.prior
        for n in TARGET_SIZES:
            model, label = build(case, n, folder), f"{name}, {n} points"
            result |= keyed(f"fixed/{label}", fixed_numbers(model, n, case.is_average))
            if case.is_fitted and (n == 6 or (joint and n == 0)):
                fits = repeated_fits(case, n, folder, 1 + repetitions)
                result |= keyed(f"fit/{label}", fits)
                tight = fitted_numbers(model, n, case.is_average, **TIGHT)
                result |= keyed(f"tight fit/{label}", tight)
    return result


# ----------------------------------------------------------------------------------- pre-training


def prior_moments(prior: Any, X: Tensor = TEST_X) -> Numbers:
    """The posterior moments that a prior has a method for."""
    names = ("mean", "variance", "covariance")
    return {name: getattr(prior, name)(X) for name in names if hasattr(prior, name)}


def source_gp_numbers(folder: Path) -> Numbers:
    """Source GPs and hierarchies: fitted, appended to, and taken over from other models."""
    maximum_likelihood: dict[str, Any] = {HYPERPRIORS: None}
    learned: dict[str, Any] = {HYPERPRIORS: load_prior(folder, "universal")}
    fits: dict[str, Callable[[], Any]] = {
        f"SourceGPs, {kernel}, {starts} starts": partial(
            SourceGPs.fit, history(), kernel, num_restarts=starts - 1
        )
        for kernel in ("rbf", "matern52")
        for starts in (1, 4)
    }
    fits |= {
        "SourceGPs, known noise": lambda: SourceGPs.fit(history(known_noise=True)),
        "SourceGPs, pooled": lambda: SourceGPs.fit(history(), outcome_scale="pooled"),
        "SourceGPs, raw": lambda: SourceGPs.fit(history(), outcome_scale="raw"),
        "SourceGPs, maximum likelihood": lambda: SourceGPs.fit(history(), **maximum_likelihood),
        "SourceGPs, learned hyperpriors": lambda: SourceGPs.fit(history(), "matern32", **learned),
        "SourceGPs, appended": lambda: SourceGPs.fit(history(), num_restarts=0).append(
            {"four": target(6)}
        ),
    }
    propagated: tuple[Literal["covariance", "mean"], ...] = ("covariance", "mean")
    orders: tuple[Literal["given", "relatedness"], ...] = ("given", "relatedness")
    fits |= {
        f"SourceHierarchy, {propagate}, {order} order": partial(
            SourceHierarchy.fit, history(), propagate, order
        )
        for propagate in propagated
        for order in orders
    }
    result: Numbers = {}
    for name, fit in fits.items():
        prior = fit()
        found = {"log posterior": prior.log_posterior, **as_fit(prior_moments(prior))}
        result |= keyed(f"fit/{name}", found)
    for standardize in (False, True):
        kind = "Matern, standardized" if standardize else "RBF, raw"
        given = hand_made_models(standardize)
        taken: dict[str, Any] = {
            "SourceGPs": SourceGPs.from_models(given),
            "SourceHierarchy, covariance": SourceHierarchy.from_models(given),
            "SourceHierarchy, mean": SourceHierarchy.from_models(given, propagate="mean"),
        }
        for name, prior in taken.items():
            result |= keyed(f"fixed/{name} from models, {kind}", prior_moments(prior))
    return result


def population_numbers(folder: Path) -> Numbers:
    """Populations of source tasks: fitted, appended to, and restricted to some of the tasks."""
    learned: dict[str, Any] = {HYPERPRIORS: load_prior(folder, "universal")}
    fits: dict[str, Callable[[], SourcePopulation]] = {
        f"SourcePopulation, {kernel}": partial(SourcePopulation.fit, history(), kernel)
        for kernel in ("rbf", "matern52")
    }
    fits |= {
        "SourcePopulation, known noise": lambda: SourcePopulation.fit(history(known_noise=True)),
        "SourcePopulation, learned hyperpriors": lambda: SourcePopulation.fit(
            history(), "matern32", **learned
        ),
        "SourcePopulation, thinned": lambda: SourcePopulation.fit(
            balanced(), fit_points=25, max_inducing=20
        ),
        "SourcePopulation, appended": lambda: SourcePopulation.fit(history()).append(
            {"four": target(6)}
        ),
        "SourcePopulation, selected": lambda: SourcePopulation.fit(history()).select([2, 0]),
    }
    result: Numbers = {}
    for name, fit in fits.items():
        prior = fit()
        found = prior_moments(prior) | population_parts(prior)
        result |= keyed(f"estimate/{name}", found)
    return result


def population_parts(prior: SourcePopulation) -> Numbers:
    """Logarithms of the hyperparameters, and how tasks differ in scale and level."""
    names = ("lengthscale", "own_lengthscale", "outputscale", "own_outputscale", "noise")
    result = {name: getattr(prior.hyperparameters, name).log() for name in names}
    for name in ("typical_scale", "typical_level", "scale_log_std", "level_variance"):
        result[name] = torch.tensor(getattr(prior, name), dtype=torch.double)
    return result


def pretraining_numbers() -> Numbers:
    """Losses of Adam, one seed and several, and of L-BFGS."""
    result: Numbers = {}
    for preset in ("hyperbo", "fsbo", "ablr", "stationary"):
        for objective in ("nll", "ekl", "nll+ekl"):
            sampled: dict[str, Any] = {"optimizer": "adam", "batch_size": 5, "task_batch_size": 2}
            prior = pretrain(preset, objective, steps=NUM_LOSSES, **sampled)
            loss = torch.tensor(prior.learning_curve.loss, dtype=torch.double)
            result[f"first losses/{preset}, {objective}/adam"] = loss[:NUM_LOSSES]
    for preset in ("hyperbo", "fsbo", "ablr"):
        for objective, optimizer, steps in (("nll", "adam", 300), ("ekl", "lbfgs", 60)):
            final = [
                pretrain(preset, objective, seed, optimizer=optimizer, steps=steps)
                for seed in range(SEEDS)
            ]
            losses = [prior.learning_curve.loss[-1] for prior in final]
            key = f"final loss/{preset}, {objective}, {optimizer}/seeds"
            result[key] = torch.tensor(losses, dtype=torch.double)
    return result


def pretrained_prior_numbers(folder: Path) -> Numbers:
    """What loaded priors say of mean and covariance."""
    result: Numbers = {}
    for name, (kind, _) in PRIORS.items():
        prior = load_prior(folder, name)
        if kind is Hyperprior:
            draws = prior.sample(20, 2, None, 0)
            found = {part: getattr(draws, part) for part in ("constant", "outputscale", "noise")}
            result |= keyed(f"fixed/loaded {name}", found | {"lengthscale": draws.lengthscale})
        else:
            result |= keyed(f"fixed/loaded {name}", prior_moments(prior))
        if kind is SourcePopulation:
            result |= keyed(f"fixed/loaded {name}", population_parts(prior))
    return result


def hyperprior_numbers() -> Numbers:
    """Both steps of learning a hyperprior, for each of its kinds."""
    fits: dict[str, Callable[[], Hyperprior]] = {
        "mphd": lambda: fit_hyperprior("mphd"),
        "universal": lambda: fit_hyperprior("universal"),
        "empirical": lambda: fit_hyperprior("empirical"),
        "universal, raw": lambda: fit_hyperprior("universal", outcome_scale="raw"),
        "universal, adam": lambda: fit_hyperprior(
            "universal", max_points=1, num_steps=200, batch_size=5
        ),
    }
    result: Numbers = {}
    for name, fit in fits.items():
        prior = fit()
        found = {key: value.double() for key, value in prior.estimates.tensors().items()}
        likelihoods = found.pop("log_likelihood")
        result |= keyed(f"estimate/Hyperprior, {name}", found)
        draws = prior.sample(20, 2, None, 0)
        parts = {part: getattr(draws, part) for part in ("constant", "outputscale", "noise")}
        result |= keyed(f"estimate/draws of Hyperprior, {name}", parts)
        if bool(likelihoods.isfinite().all()):
            result[f"fit/Hyperprior, {name}/log posterior"] = likelihoods
    return result


# ----------------------------------------------------------------------------------------- tables

KERNELS = ("rbf", "linear", "cubic")
FLOATS = SearchSpace(
    [FloatParameter("rate", 1e-4, 1.0, log=True), FloatParameter("momentum", 0.0, 0.9)]
)
MIXED = SearchSpace(
    [
        *FLOATS.parameters,
        CategoricalParameter("kernel", KERNELS),
        IntegerParameter("depth", 1, 8),
        IntegerParameter("units", 4, 64, log=True),
    ]
)


class Tables(NamedTuple):
    """What rows are suggested from."""

    space: SearchSpace
    history: pd.DataFrame
    runs: pd.DataFrame
    n: int = 1


def table(n: int, task: float, change: float, is_mixed: bool) -> pd.DataFrame:
    """Runs of a task; the best rate differs between tasks."""
    units = points(n, 3, 0.37 * task)
    rows = []
    for number, (rate, momentum, other) in enumerate(units.tolist()):
        row: dict[str, Any] = {"rate": 10 ** (4 * rate - 4), "momentum": 0.9 * momentum}
        loss = (rate - 0.4 - 0.1 * task) ** 2 + 0.5 * (momentum - 0.6) ** 2
        loss += 0.01 * math.cos(40 * rate) + change * math.sin(number)
        if is_mixed:
            kernel, depth = KERNELS[number % 3], 1 + int(8 * other)
            nodes = round(4 * 16 ** ((0.618 * number + 0.1 * task) % 1))
            row |= {"kernel": kernel, "depth": depth, "units": nodes}
            loss += 0.1 * ((number + 1) % 3) + 0.02 * abs(depth - 4)
            loss += 0.05 * abs(math.log(nodes / 20))
        rows.append({"task": f"task {task:g}", **row, "loss": loss})
    return pd.DataFrame(rows)


def old_table(change: float, is_mixed: bool) -> pd.DataFrame:
    tasks = [table(n, task, change, is_mixed) for task, n in enumerate((9, 12, 15))]
    return pd.concat(tasks, ignore_index=True)


def incomplete_tables(change: float) -> Tables:
    """One run of each table has failed, another one is pending."""
    old, runs = old_table(change, is_mixed=True), table(9, 1.5, change, is_mixed=True)
    old.loc[4, "loss"] = math.nan
    runs["status"] = "completed"
    for row, status in ((2, "failed"), (7, "running")):
        runs.loc[row, "loss"] = math.nan
        runs.loc[row, "status"] = status
    return Tables(MIXED, old, runs, n=2)


SUGGESTIONS: dict[str, Callable[[float], Tables]] = {
    "floats": lambda change: Tables(
        FLOATS, old_table(change, is_mixed=False), table(6, 1.5, change, is_mixed=False)
    ),
    "mixed": lambda change: Tables(
        MIXED, old_table(change, is_mixed=True), table(6, 1.5, change, is_mixed=True)
    ),
    "pending and failed": incomplete_tables,
}


def suggested(tables: Tables) -> Numbers:
    """The rows, encoded, with what is said of each."""
    clear_memos()
    found = suggest(tables.space, tables.history, tables.runs, n=tables.n, seed=0)
    tasks = tables.history["task"].unique()
    named = [[float(task in text.split(", ")) for task in tasks] for text in found["sources"]]
    columns = {
        "mean": "predicted_mean",
        "deviation": "predicted_std",
        "acquisition": "acquisition",
    }
    return {
        "rows": tables.space.encode(found[[each.name for each in tables.space.parameters]]),
        "sources": torch.tensor(named, dtype=torch.double),
        **{name: torch.tensor(found[key].to_numpy(dtype=float)) for name, key in columns.items()},
    }


def suggestion_numbers(repetitions: int) -> Numbers:
    """Suggestions from tables, and from tables whose outcomes hardly differ."""
    result: Numbers = {}
    for name, make in SUGGESTIONS.items():
        runs = stacked(suggested(make(1e-10 * index)) for index in range(1 + repetitions))
        result |= keyed(f"suggest/{name}", runs)
    return result


# ---------------------------------------------------------------------------------------- compare


def keyed(prefix: str, numbers: Numbers) -> Numbers:
    return {f"{prefix}/{name}": value for name, value in numbers.items()}


def compute(folder: Path, repetitions: int = 0) -> Numbers:
    """All numbers, with the models' priors from a folder."""
    clear_memos()
    result = {
        **model_numbers(folder, repetitions),
        **pretrained_prior_numbers(folder),
        **source_gp_numbers(folder),
        **population_numbers(folder),
        **pretraining_numbers(),
        **hyperprior_numbers(),
        **suggestion_numbers(repetitions),
    }
    return {key: value.detach().double().contiguous().clone() for key, value in result.items()}


class Deviation(NamedTuple):
    """How far a number is from the recorded one."""

    key: str
    size: float
    tolerance: float

    @property
    def group(self) -> str:
        """The kind and the class or prior, for the table."""
        kind, case, _ = self.key.split("/", maxsplit=2)
        return f"{kind}: {case.split(',')[0]}"

    @property
    def is_violation(self) -> bool:
        """Whether it is too far."""
        return not self.size <= self.tolerance


def deviation_of(key: str, old: Numbers, new: Numbers) -> Deviation:
    """Compares one number (or tensor of them) by the rule of its kind."""
    kind = key.split("/")[0]
    before, after = old[key], new.get(key)
    if after is None or (not _has_repetitions(old, key) and before.shape != after.shape):
        return Deviation(key, math.inf, 0.0)
    if kind == "suggest":
        return _deviation_of_suggestion(key, old, after)
    if kind in ("fit", "tight fit"):
        return _deviation_of_fit(key, old, after)
    if not torch.equal(before.isnan(), after.isnan()):
        return Deviation(key, math.nan, 0.0)
    before, after = before.nan_to_num(), after.nan_to_num()
    if kind == "final loss":
        spread = float(before.max() - before.min())
        return Deviation(key, float((after - before).abs().max()), spread)
    relative = float(((after - before).abs() / (1 + before.abs())).max())
    tolerance = {"fixed": EXACT, "first losses": LOSS, "estimate": ESTIMATE}[kind]
    return Deviation(key, relative, tolerance)


def _has_repetitions(old: Numbers, key: str) -> bool:
    case, _, _ = key.rpartition("/")
    if key.startswith("suggest/"):
        return True
    return key.startswith("fit/") and case.startswith(tuple(f"fit/{name}" for name in MODELS))


def _deviation_of_fit(key: str, old: Numbers, after: Tensor) -> Deviation:
    case, _, quantity = key.rpartition("/")
    before, scale = old[key], torch.ones(())
    if quantity in ("mean", "deviation", "deviation with noise"):
        scale = old[f"{case}/deviation"]
    if not _has_repetitions(old, key):
        before, after = before.unsqueeze(0), after.unsqueeze(0)
        scale = scale.unsqueeze(0)
    first, scale = before[0], scale[0] if scale.dim() > 0 else scale
    if quantity == "log posterior":
        spread = float((first - before).max())
        loss = (first - after[0]).max().clamp_min(0)  # which, unlike max(), passes NaN on
        return Deviation(key, float(loss), NATS + spread)
    spread = float(((before - first).abs() / scale).max())
    return Deviation(key, float(((after[0] - first).abs() / scale).max()), DEVIATIONS + spread)


def _deviation_of_suggestion(key: str, old: Numbers, after: Tensor) -> Deviation:
    case, _, quantity = key.rpartition("/")
    before, scale, tolerance = old[key], torch.ones(()), SUGGESTED
    if before.shape[1:] != after.shape[1:]:
        return Deviation(key, math.inf, 0.0)
    if quantity in ("mean", "deviation"):
        scale = old[f"{case}/deviation"][0]
    elif quantity in ("rows", "sources"):
        tolerance = ROWS
    spread = float(((before - before[0]).abs() / scale).max())
    size = float(((after[0] - before[0]).abs() / scale).max())
    return Deviation(key, size, tolerance + spread)


def better_cases(old: Numbers, new: Numbers) -> dict[str, float]:
    """Fits that reached a log posterior above the recorded one, and by how many nats."""
    gains = {
        key.rpartition("/")[0]: float((new[key] - _first(old, key)).max())
        for key in old
        if key.endswith("/log posterior") and key in new
    }
    return {case: gain for case, gain in gains.items() if gain > NATS}


def _first(old: Numbers, key: str) -> Tensor:
    return old[key][0] if _has_repetitions(old, key) else old[key]


def compare(old: Numbers, new: Numbers) -> tuple[str, bool]:
    """Compares all numbers.

    Args:
        old: The recorded numbers.
        new: The present ones.

    Returns:
        The table, and whether there is no violation.
    """
    better = better_cases(old, new)
    groups: dict[str, list[Deviation]] = {}
    excused = []
    for key in old:
        found = deviation_of(key, old, new)
        case, _, quantity = key.rpartition("/")
        if found.is_violation and case in better and quantity != "log posterior":
            excused.append(found)
        else:
            groups.setdefault(found.group, []).append(found)
    violations = [found for group in groups.values() for found in group if found.is_violation]
    width = max(len(name) for name in groups)
    lines = [f"{'group':{width}}  numbers  deviation  tolerance"]
    for name, members in groups.items():
        worst = max(members, key=_badness)
        verdict = "  VIOLATION" if worst.is_violation else ""
        sizes = f"{worst.size:9.1e}  {worst.tolerance:9.1e}"
        lines.append(f"{name:{width}}  {len(members):7d}  {sizes}{verdict}")
    lines += [f"better by {gain:.2g} nats: {case}" for case, gain in better.items()]
    lines += [f"  other prediction there: {_told(found)}" for found in excused]
    lines += [f"violation: {_told(found)}" for found in violations]
    lines += [f"new, not compared: {key}" for key in new.keys() - old.keys()]
    lines.append(f"{len(old)} tensors compared, {len(violations)} violations")
    return "\n".join(lines), not violations


def _badness(found: Deviation) -> tuple[bool, float]:
    ratio = found.size / found.tolerance if found.tolerance > 0 else found.size
    return found.is_violation, ratio


def _told(found: Deviation) -> str:
    if math.isinf(found.size):
        return f"{found.key} is missing, or of another shape"
    return f"{found.key} {found.size:.2e} > {found.tolerance:.0e}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums are in one order then
    print(f"botorch_transfer of {Path(botorch_transfer.__file__).parent}")
    folder, start = prior_folder(options.file), time.perf_counter()
    if options.command == "record":
        write_priors(folder)
        numbers = compute(folder, REPETITIONS)
        save_file(numbers, options.file)
        print(f"{len(numbers)} tensors recorded in {time.perf_counter() - start:.0f} s")
        return 0
    table, agrees = compare(load_file(options.file), compute(folder))
    print(f"{table}, {time.perf_counter() - start:.0f} s")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
