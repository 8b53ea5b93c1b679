"""Models without a closed form are fitted by autograd; test_objective.py has those with one."""

import warnings
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.optim.core import OptimizationResult
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor
from torch.testing import assert_close

from botorch_transfer.gp.objective import fit_from_starts
from tests.fits import log_posterior


def wavy(n: int = 12) -> tuple[Tensor, Tensor]:
    X = torch.linspace(0, 1, n, dtype=torch.double).unsqueeze(-1)
    return X, (12 * X).sin() + 0.3 * (40 * X).cos()


def build(X: Tensor, Y: Tensor) -> ExactMarginalLogLikelihood:
    kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 3.0))
    model = SingleTaskGP(X, Y, covar_module=kernel, outcome_transform=None)
    return ExactMarginalLogLikelihood(model.likelihood, model).train()


def test_one_start_is_botorchs_fit() -> None:
    ours, theirs = build(*wavy()), build(*wavy())
    fit_from_starts(ours, num_restarts=0, seed=0)
    fit_gpytorch_mll_scipy(theirs)
    assert_close(log_posterior(ours.model), log_posterior(theirs.model), rtol=0, atol=1e-4)


def test_the_best_of_several_optima_is_kept() -> None:
    # From a long lengthscale, quick waves look like noise, and that is an optimum.
    X = torch.linspace(0, 1, 20, dtype=torch.double).unsqueeze(-1)
    alone, several = (build(X, (35 * X).sin()) for _ in range(2))
    for mll in (alone, several):
        mll.model.covar_module.lengthscale = 50.0
    fit_from_starts(alone, num_restarts=0, seed=0)
    fit_from_starts(several, num_restarts=3, seed=0)
    assert log_posterior(several.model) > log_posterior(alone.model) + 0.1


def test_a_timeout_stops_a_start() -> None:
    stopped, full, before = build(*wavy()), build(*wavy()), log_posterior(build(*wavy()).model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_from_starts(stopped, num_restarts=1, seed=0, timeout_sec=0.0)
    fit_from_starts(full, num_restarts=1, seed=0)
    assert before <= log_posterior(stopped.model) < log_posterior(full.model) - 0.01


def test_a_callback_is_of_botorchs_optimizer() -> None:
    mll, steps = build(*wavy()), []

    def callback(parameters: dict[str, Tensor], result: OptimizationResult) -> None:
        assert parameters.keys() == dict(mll.named_parameters()).keys()
        steps.append(result.step)

    fit_from_starts(mll, num_restarts=1, seed=0, options={"maxiter": 2}, callback=callback)
    assert steps == [1, 2, 1, 2]


def break_down(monkeypatch: pytest.MonkeyPatch, when: Any, error: Exception) -> list[int]:
    """Has those evaluations fail for whose number ``when`` holds; returns their numbers."""
    calls: list[int] = []
    forward = ExactMarginalLogLikelihood.forward

    def fail(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(len(calls))
        if when(calls[-1]):
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setattr(ExactMarginalLogLikelihood, "forward", fail)
    return calls


CHOLESKY = torch.linalg.LinAlgError("linalg.cholesky: the input is not positive-definite")
BREAKDOWNS = [NotPSDError("broken"), NanError("broken"), CHOLESKY]


@pytest.mark.parametrize("error", BREAKDOWNS)
def test_a_start_that_breaks_down_is_left_out(error: Exception, monkeypatch) -> None:
    mll, before = build(*wavy()), log_posterior(build(*wavy()).model)
    with monkeypatch.context() as patched:
        calls = break_down(patched, lambda call: call == 0, error)
        fit_from_starts(mll, num_restarts=2, seed=0, options={"maxiter": 5})
    assert len(calls) > 3
    assert log_posterior(mll.model) > before


def test_within_its_time_a_fit_goes_on() -> None:
    mll = build(*wavy())
    fit_from_starts(mll, num_restarts=0, seed=0, timeout_sec=600.0, options={"maxiter": 2})
    assert log_posterior(mll.model) > log_posterior(build(*wavy()).model)
