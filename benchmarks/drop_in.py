"""BoTorch's loops as one writes them for ``SingleTaskGP``, with transfer models in its place.

``python -m benchmarks.drop_in`` runs one step of each loop with each model, and prints how many
times as long as with ``SingleTaskGP`` it took; what fails is named.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement, qKnowledgeGradient
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.max_value_entropy_search import (
    qLowerBoundMaxValueEntropy,
    qMaxValueEntropy,
)
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
from botorch.acquisition.objective import ExpectationPosteriorTransform, GenericMCObjective
from botorch.acquisition.predictive_entropy_search import qPredictiveEntropySearch
from botorch.acquisition.risk_measures import CVaR
from botorch.acquisition.utils import get_optimal_samples
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds
from botorch.fit import fit_gpytorch_mll
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms.input import AppendFeatures, InputPerturbation, Normalize
from botorch.optim import optimize_acqf, optimize_acqf_mixed
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from scipy.optimize import differential_evolution
from torch import Tensor

from benchmarks.markdown import markdown_table
from botorch_transfer import PretrainedGP, PretrainedPrior, ScaMLGP, TransferGP

BOUNDS = torch.tensor([[0.0] * 2, [1.0] * 2], dtype=torch.double)
SEARCH: dict[str, Any] = {"bounds": BOUNDS, "num_restarts": 2, "raw_samples": 32}
Build = Callable[..., Any]


def outcome(X: Tensor, shift: float = 0.0) -> Tensor:
    """An outcome of a task, ``n x 1``, to be maximized."""
    bowl = -(X - 0.6 - shift).square().sum(dim=-1, keepdim=True)
    return bowl + 0.2 * torch.sin(6 * X[..., :1] + shift)


X = torch.rand(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
Y, CANDIDATES = outcome(X), torch.rand(64, 2, dtype=torch.double)


def history(of: Callable[[Tensor, float], Tensor], num_tasks: int = 4) -> list[Any]:
    """Old runs of an outcome."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.rand(20, 2, dtype=torch.double, generator=generator) for _ in range(num_tasks)]
    return [(x, of(x, 0.05 * (task - 1.5))) for task, x in enumerate(inputs)]


def single_task(of: Any, train_X: Tensor, train_Y: Tensor, **options: Any) -> SingleTaskGP:
    """The model in whose place the others come; it knows no old runs."""
    return SingleTaskGP(train_X, train_Y, **options)


def transfer(model_class: Any, of: Any, train_X: Tensor, train_Y: Tensor, **options: Any) -> Any:
    """A transfer model; old runs are pre-trained from once, and remembered."""
    return model_class(train_X, train_Y, history(of), **options)


def pretrained(of: Any, train_X: Tensor, train_Y: Tensor, **options: Any) -> PretrainedGP:
    """A model on a network that was trained briefly."""
    transform = options.get("input_transform")
    prior = PretrainedPrior.fit_once(history(of), steps=20, input_transform=transform)
    return PretrainedGP(train_X, train_Y, prior, **options)


MODELS: dict[str, Build] = {
    "SingleTaskGP": single_task,
    "ScaMLGP": partial(transfer, ScaMLGP),
    "TransferGP": partial(transfer, TransferGP),
    "PretrainedGP": pretrained,
}


def fitted(build: Build, of: Any = outcome, train_Y: Tensor = Y, **options: Any) -> Any:
    """A fitted model of one outcome."""
    model = build(of, X, train_Y, **options)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def both(build: Build) -> ModelListGP:
    """Models of two outcomes in a list."""
    models = []
    for sign in (1.0, -1.0):

        def of(x: Tensor, shift: float = 0.0, sign: float = sign) -> Tensor:
            return sign * outcome(x, shift) + x[..., 1:]

        models.append(build(of, X, of(X)))
    together = ModelListGP(*models)
    fit_gpytorch_mll(SumMarginalLogLikelihood(together.likelihood, together))
    return together


def optimized(acquisition: Any, q: int = 1, **options: Any) -> None:
    """Optimizes an acquisition, and checks what is found."""
    candidate, value = optimize_acqf(acquisition, q=q, **SEARCH, **options)
    assert candidate.isfinite().all()
    assert value is not None
    assert value.isfinite().all()


def multi_objective(build: Build, constrained: bool) -> None:
    """Hypervolume improvement, maybe subject to a bound on the second outcome."""
    model = both(build)
    options: dict[str, Any] = {}
    if constrained:
        options = {"constraints": [lambda samples: samples[..., 1] - 1.0]}
        options["objective"] = IdentityMCMultiOutputObjective(outcomes=[0, 1])
    reference = torch.tensor([-1.0, -1.0], dtype=torch.double)
    optimized(qLogNoisyExpectedHypervolumeImprovement(model, reference, X, **options))


def risk_averse(build: Build, environment: bool) -> None:
    """Conditional value at risk under an environment, or expectation under perturbations."""
    few = torch.rand(4, 2, dtype=torch.double)
    if environment:
        model = fitted(build, input_transform=AppendFeatures(few[:, :1]))
        improvement = qLogNoisyExpectedImprovement(
            model, X[:, :1], objective=CVaR(alpha=0.7, n_w=4), prune_baseline=False
        )
        first = {**SEARCH, "bounds": BOUNDS[:, :1]}
        optimize_acqf(improvement, q=1, **first)
    else:
        model = fitted(build, input_transform=InputPerturbation(0.1 * few))
        transform = ExpectationPosteriorTransform(n_w=4)
        optimized(LogExpectedImprovement(model, Y.max(), posterior_transform=transform))


def entropy_search(build: Build, acquisition: Any) -> None:
    """Joint or predictive entropy search with sampled optima."""
    model = fitted(build)
    inputs, outputs = get_optimal_samples(model, BOUNDS, num_optima=4, raw_samples=32)
    found = {"optimal_inputs": inputs}
    if acquisition is qJointEntropySearch:
        found["optimal_outputs"] = outputs
    optimized(acquisition(model, **found), options={"maxiter": 20})


def minus_square(samples: Tensor, X: Tensor | None = None) -> Tensor:
    """A composite objective, of two outcomes."""
    return -samples.square().sum(dim=-1)


def trust_region(build: Build) -> None:
    """A step of TuRBO: a box that is shaped by lengthscales, Thompson samples inside."""
    model = fitted(build)
    known = hasattr(model, "lengthscales")
    lengthscales = model.lengthscales() if known else model.covar_module.lengthscale.flatten()
    half = 0.4 * lengthscales / lengthscales.log().mean().exp()
    box = torch.stack([X[Y.argmax()] - half, X[Y.argmax()] + half]).clamp(0, 1)
    with torch.no_grad():
        MaxPosteriorSampling(model)(box[0] + (box[1] - box[0]) * CANDIDATES, num_samples=2)


def evolution(build: Build) -> None:
    """An evolutionary optimizer in the place of ``optimize_acqf``, as CMA-ES is used."""
    improvement = LogExpectedImprovement(fitted(build), Y.max())

    def value(x: Any) -> float:
        with torch.no_grad():
            return -float(improvement(torch.as_tensor(x).unsqueeze(0)))

    differential_evolution(value, [(0, 1)] * 2, maxiter=3, popsize=5, seed=0, polish=False)


def cross_validation(build: Build) -> None:
    """All folds of a leave-one-out cross-validation as one batch of models."""

    class Folds:
        def __new__(cls, train_X: Tensor, train_Y: Tensor, **options: Any) -> Any:
            return build(outcome, train_X, train_Y, **options)

    model_class: Any = Folds
    batch_cross_validation(model_class, ExactMarginalLogLikelihood, gen_loo_cv_folds(X, Y))


LOOPS: dict[str, Callable[[Build], Any]] = {
    "closed loop": lambda build: optimized(qLogNoisyExpectedImprovement(fitted(build), X), q=2),
    "multi-objective": partial(multi_objective, constrained=False),
    "constrained multi-objective": partial(multi_objective, constrained=True),
    "risk-averse, environment": partial(risk_averse, environment=True),
    "risk-averse, perturbed inputs": partial(risk_averse, environment=False),
    "knowledge gradient": lambda build: optimized(
        qKnowledgeGradient(fitted(build), num_fantasies=4), q=5
    ),
    "max-value entropy": lambda build: optimized(qMaxValueEntropy(fitted(build), CANDIDATES)),
    "GIBBON": lambda build: optimized(qLowerBoundMaxValueEntropy(fitted(build), CANDIDATES)),
    "joint entropy search": partial(entropy_search, acquisition=qJointEntropySearch),
    "predictive entropy search": partial(entropy_search, acquisition=qPredictiveEntropySearch),
    "Thompson sampling": lambda build: MaxPosteriorSampling(fitted(build))(CANDIDATES, 2),
    "TuRBO": trust_region,
    "composite objective": lambda build: optimized(
        qLogExpectedImprovement(
            both(build), best_f=-1.0, objective=GenericMCObjective(minus_square)
        )
    ),
    "mixed space": lambda build: optimize_acqf_mixed(
        LogExpectedImprovement(fitted(build), Y.max()),
        q=1,
        fixed_features_list=[{1: 0.0}, {1: 1.0}],
        **SEARCH,
    ),
    "heteroskedastic": lambda build: optimized(
        qLogNoisyExpectedImprovement(fitted(build, train_Yvar=0.01 + 0.1 * Y.square()), X)
    ),
    "fixed features": lambda build: optimized(
        LogExpectedImprovement(fitted(build), Y.max()), fixed_features={0: 0.3}
    ),
    "normalized inputs": lambda build: optimized(
        LogExpectedImprovement(fitted(build, input_transform=Normalize(2)), Y.max())
    ),
    "batch cross-validation": cross_validation,
    "evolutionary optimizer": evolution,
}


def main(loops: list[str], models: list[str]) -> dict[str, list[str]]:
    """Runs the loops, and returns a row of ratios, or errors, for each."""
    rows = {}
    for name in loops:
        times: list[Any] = []
        for model in ["SingleTaskGP", *models]:
            for _ in range(2):  # the first run pre-trains
                torch.manual_seed(0)
                start = time.perf_counter()
                try:
                    LOOPS[name](MODELS[model])
                except Exception as error:
                    times.append(f"{type(error).__name__}: {error}"[:80])
                    break
                seconds = time.perf_counter() - start
            else:
                times.append(seconds)
        own, *others = times
        ratios = [each if isinstance(each, str) else f"{each / own:.1f}" for each in others]
        rows[name] = [f"{own:.2f} s", *ratios]
        print(name, rows[name], flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", nargs="*", default=list(LOOPS), choices=list(LOOPS))
    parser.add_argument("--models", nargs="*", default=list(MODELS)[1:], choices=list(MODELS)[1:])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = main(arguments.loops, arguments.models)
    print(
        markdown_table(
            ["loop", "SingleTaskGP", *arguments.models], [[k, *v] for k, v in found.items()]
        )
    )
