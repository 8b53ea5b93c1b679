"""Runs BoTorch's loops for ``SingleTaskGP`` with transfer models instead.

``python -m benchmarks.drop_in`` runs one step of each loop with each model. It prints the time
relative to ``SingleTaskGP``, or the error if a step fails. ``--searches NAME ...`` runs whole
searches, and prints the regret and the seconds of each search.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
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
from botorch.generation.sampling import ConstrainedMaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms.input import AppendFeatures, InputPerturbation, Normalize
from botorch.optim import optimize_acqf, optimize_acqf_mixed
from botorch.test_functions import Hartmann
from botorch.utils.multi_objective import Hypervolume, is_non_dominated
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from scipy.optimize import differential_evolution
from torch import Tensor

from benchmarks.markdown import markdown_table
from botorch_transfer import PretrainedGP, PretrainedPrior, ScaMLGP, TransferGP

BOUNDS = torch.tensor([[0.0] * 2, [1.0] * 2], dtype=torch.double)
SEARCH: dict[str, Any] = {"bounds": BOUNDS, "num_restarts": 2, "raw_samples": 32}
Build = Callable[..., Any]


def outcome(X: Tensor, shift: float = 0.0) -> Tensor:
    """Evaluates the function of a task, which is maximized.

    Args:
        X: An ``n x 2`` tensor of inputs.
        shift: The shift of the task.

    Returns:
        An ``n x 1`` tensor of outcomes.
    """
    bowl = -(X - 0.6 - shift).square().sum(dim=-1, keepdim=True)
    return bowl + 0.2 * torch.sin(6 * X[..., :1] + shift)


X = torch.rand(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
Y, CANDIDATES = outcome(X), torch.rand(64, 2, dtype=torch.double)


def history(of: Callable[[Tensor, float], Tensor], num_tasks: int = 4) -> list[Any]:
    """Makes source tasks of a function ``of(X, shift)`` with different shifts."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.rand(20, 2, dtype=torch.double, generator=generator) for _ in range(num_tasks)]
    return [(x, of(x, 0.05 * (task - 1.5))) for task, x in enumerate(inputs)]


def single_task(of: Any, train_X: Tensor, train_Y: Tensor, **options: Any) -> SingleTaskGP:
    """Builds the ``SingleTaskGP`` that transfer models replace; it has no old runs."""
    return SingleTaskGP(train_X, train_Y, **options)


def transfer(model_class: Any, of: Any, train_X: Tensor, train_Y: Tensor, **options: Any) -> Any:
    """Builds a transfer model. Pre-training on the same old runs happens only once."""
    return model_class(train_X, train_Y, history(of), **options)


def pretrained(of: Any, train_X: Tensor, train_Y: Tensor, **options: Any) -> PretrainedGP:
    """Builds a ``PretrainedGP`` with a network that is trained for 20 steps."""
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
    """Builds and fits a model of one outcome."""
    model = build(of, X, train_Y, **options)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def both(build: Build) -> ModelListGP:
    """Builds and fits a list of models of two outcomes."""
    models = []
    for sign in (1.0, -1.0):

        def of(x: Tensor, shift: float = 0.0, sign: float = sign) -> Tensor:
            return sign * outcome(x, shift) + x[..., 1:]

        models.append(build(of, X, of(X)))
    together = ModelListGP(*models)
    fit_gpytorch_mll(SumMarginalLogLikelihood(together.likelihood, together))
    return together


def optimized(acquisition: Any, q: int = 1, **options: Any) -> None:
    """Optimizes an acquisition function, and checks that candidates and value are finite."""
    candidate, value = optimize_acqf(acquisition, q=q, **SEARCH, **options)
    assert candidate.isfinite().all()
    assert value is not None
    assert value.isfinite().all()


def constrained(build: Build) -> None:
    """Optimizes hypervolume improvement, subject to a bound on the second outcome."""
    options: dict[str, Any] = {"constraints": [lambda samples: samples[..., 1] - 1.0]}
    options["objective"] = IdentityMCMultiOutputObjective(outcomes=[0, 1])
    reference = torch.tensor([-1.0, -1.0], dtype=torch.double)
    optimized(qLogNoisyExpectedHypervolumeImprovement(both(build), reference, X, **options))


def risk_averse(build: Build, environment: bool) -> None:
    """Optimizes the CVaR over an environment variable, or the mean over input perturbations."""
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
    """Optimizes joint or predictive entropy search with sampled optima."""
    model = fitted(build)
    inputs, outputs = get_optimal_samples(model, BOUNDS, num_optima=4, raw_samples=32)
    found = {"optimal_inputs": inputs}
    if acquisition is qJointEntropySearch:
        found["optimal_outputs"] = outputs
    optimized(acquisition(model, **found), options={"maxiter": 20})


#: Composite objective of two outcomes.
MINUS_SQUARE = GenericMCObjective(lambda samples, X: -samples.square().sum(dim=-1))


def evolution(build: Build) -> None:
    """Optimizes by an evolutionary optimizer instead of ``optimize_acqf``, like CMA-ES."""
    improvement = LogExpectedImprovement(fitted(build), Y.max())

    def value(x: Any) -> float:
        with torch.no_grad():
            return -float(improvement(torch.as_tensor(x).unsqueeze(0)))

    differential_evolution(value, [(0, 1)] * 2, maxiter=3, popsize=5, seed=0, polish=False)


def cross_validation(build: Build) -> None:
    """Fits all folds of a leave-one-out cross-validation as one batch of models."""

    class Folds:
        def __new__(cls, train_X: Tensor, train_Y: Tensor, **options: Any) -> Any:
            return build(outcome, train_X, train_Y, **options)

    model_class: Any = Folds
    batch_cross_validation(model_class, ExactMarginalLogLikelihood, gen_loo_cv_folds(X, Y))


LOOPS: dict[str, Callable[[Build], Any]] = {
    "constrained multi-objective": constrained,
    "risk-averse, environment": partial(risk_averse, environment=True),
    "risk-averse, perturbed inputs": partial(risk_averse, environment=False),
    "knowledge gradient": lambda build: optimized(
        qKnowledgeGradient(fitted(build), num_fantasies=4), q=5
    ),
    "max-value entropy": lambda build: optimized(qMaxValueEntropy(fitted(build), CANDIDATES)),
    "GIBBON": lambda build: optimized(qLowerBoundMaxValueEntropy(fitted(build), CANDIDATES)),
    "joint entropy search": partial(entropy_search, acquisition=qJointEntropySearch),
    "predictive entropy search": partial(entropy_search, acquisition=qPredictiveEntropySearch),
    "composite objective": lambda build: optimized(
        qLogExpectedImprovement(both(build), best_f=-1.0, objective=MINUS_SQUARE)
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


# ---------------------------------------------------------------------------------- whole searches

CUBE = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.double)
HARTMANN = Hartmann(6, bounds=[(-1.0, 2.0)] * 6, negate=True)
SEARCHES = ["TuRBO", "SCBO", "Thompson", "asynchronous", "mixed", "qLogNEI", "qLogNEHVI"]


def search(name: str, model_class: Any, seed: int, evaluations: int = 12) -> float:
    """Runs a loop on shifted Hartmann functions, and returns the final regret.

    There are five source tasks with 40 points and two outcomes. Loops with one objective use the
    first outcome. The second outcome is the second objective of qLogNEHVI, and has to be at least
    0.5 in SCBO.
    """
    torch.manual_seed(seed)
    shifts = 0.1 * torch.randn(6, 2, 1, 6, dtype=torch.double)
    outcomes = 2 if name in ("SCBO", "qLogNEHVI") else 1

    def evaluate(X: Tensor, task: int = 0) -> Tensor:
        Y = torch.stack([HARTMANN(X + shift) for shift in shifts[task]], dim=-1)
        return torch.stack([Y[:, 0], 0.5 - Y[:, 1]], dim=-1) if name == "SCBO" else Y

    inputs = torch.rand(5, 40, 6, dtype=torch.double)
    sources = [(x, evaluate(x, task + 1)) for task, x in enumerate(inputs)]
    X = torch.rand(2, 6, dtype=torch.double)
    while len(X) < evaluations:
        seen = X[:-1] if name == "asynchronous" else X  # the last point is pending
        Y, models = evaluate(seen), []
        for k in range(outcomes):
            history = [(x, y[:, [k]]) for x, y in sources]
            given = () if model_class is SingleTaskGP else (history,)
            models.append(model_class(seen, Y[:, [k]], *given))
            fit_gpytorch_mll(ExactMarginalLogLikelihood(models[-1].likelihood, models[-1]))
        X = torch.cat([X, propose(name, models, seen, Y, X[len(seen) :])])
    Y = evaluate(X)
    if name == "qLogNEHVI":
        return 3.32237 - Hypervolume(torch.zeros(2).double()).compute(Y[is_non_dominated(Y)]) ** 0.5
    return 3.32237 - max(float(score(name, Y).max()), 0.0)


def score(name: str, Y: Tensor) -> Tensor:
    """Returns the first outcome; in SCBO, infeasible points are worse than all feasible points."""
    return Y[:, 0].where(Y[:, 1] <= 0, -10 - Y[:, 1]) if name == "SCBO" else Y[:, 0]


def propose(name: str, models: list[Any], X: Tensor, Y: Tensor, pending: Tensor) -> Tensor:
    """Proposes the next point by one step of a loop, as in BoTorch's tutorials."""
    model, best = models[0], X[score(name, Y).argmax()]
    candidates = draw_sobol_samples(CUBE, n=512, q=1).squeeze(-2)
    if name in ("TuRBO", "SCBO"):
        known = hasattr(model, "lengthscales")
        lengthscales = model.lengthscales() if known else model.covar_module.lengthscale.flatten()
        half = (0.4 * lengthscales / lengthscales.log().mean().exp()).detach()
        low, high = (best - half).clamp(0, 1), (best + half).clamp(0, 1)
        candidates = low + (high - low) * candidates
    if name in ("TuRBO", "SCBO", "Thompson"):
        sampling: Any = MaxPosteriorSampling(model)
        if name == "SCBO":
            sampling = ConstrainedMaxPosteriorSampling(model, ModelListGP(models[1]))
        return sampling(candidates, num_samples=1).detach()
    improvement: Any = qLogNoisyExpectedImprovement(model, X)
    if name == "asynchronous":
        improvement = qLogExpectedImprovement(model, Y[:, 0].max(), X_pending=pending)
    elif name == "qLogNEHVI":
        reference = torch.zeros(2, dtype=torch.double)
        improvement = qLogNoisyExpectedHypervolumeImprovement(ModelListGP(*models), reference, X)
    options: dict[str, Any] = {"bounds": CUBE, "q": 1, "num_restarts": 4, "raw_samples": 64}
    if name == "mixed":
        fixed = [{5: value} for value in (0.0, 0.5, 1.0)]
        return optimize_acqf_mixed(improvement, fixed_features_list=fixed, **options)[0]
    return optimize_acqf(improvement, **options)[0]


def main(loops: list[str], models: list[str]) -> dict[str, list[str]]:
    """Runs the loops, and returns for each loop a row of relative times or errors."""
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
    parser.add_argument("--searches", nargs="*", choices=SEARCHES, help="run whole searches")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, seed in product(arguments.searches or [], arguments.seeds):
        for model_class in (SingleTaskGP, TransferGP):
            start = time.perf_counter()
            regret = search(name, model_class, seed)
            row = name, seed, model_class.__name__, f"{regret:.3f}"
            print(*row, f"{time.perf_counter() - start:.1f}", sep=",", flush=True)
    if arguments.searches:
        raise SystemExit
    found = main(arguments.loops, arguments.models)
    print(
        markdown_table(
            ["loop", "SingleTaskGP", *arguments.models], [[k, *v] for k, v in found.items()]
        )
    )
