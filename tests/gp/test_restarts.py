from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import HalfNormalPrior, LogNormalPrior
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from botorch_transfer.gp import restarts as fitting
from botorch_transfer.gp.restarts import fit_from_starts

NAN = float("nan")


def wavy(n: int = 12, batch: int = 0) -> tuple[Tensor, Tensor]:
    X = torch.linspace(0, 1, n, dtype=torch.double).unsqueeze(-1)
    Y = (12 * X).sin() + 0.3 * (40 * X).cos()
    return (
        (X, Y)
        if not batch
        else (X.expand(batch, n, 1), Y * torch.arange(1, batch + 1)[:, None, None])
    )


def build(X: Tensor, Y: Tensor) -> ExactMarginalLogLikelihood:
    kernel = RBFKernel(batch_shape=X.shape[:-2], lengthscale_prior=LogNormalPrior(0.0, 3.0))
    model = SingleTaskGP(X, Y, covar_module=kernel, outcome_transform=None)
    return ExactMarginalLogLikelihood(model.likelihood, model).train()


def objective(mll: ExactMarginalLogLikelihood) -> Tensor:
    mll.train()
    with torch.no_grad():
        return mll(mll.model(*mll.model.train_inputs), mll.model.train_targets)


def state(mll: ExactMarginalLogLikelihood) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in mll.model.state_dict().items()}


def test_one_start_is_botorchs_fit() -> None:
    ours, theirs = build(*wavy()), build(*wavy())
    fit_from_starts(ours, num_restarts=0, seed=0)
    fit_gpytorch_mll_scipy(theirs)
    torch.testing.assert_close(objective(ours), objective(theirs), rtol=0, atol=1e-4)


def test_the_best_of_several_optima_is_kept() -> None:
    # From a long lengthscale, quick waves look like noise, and that is an optimum.
    X = torch.linspace(0, 1, 20, dtype=torch.double).unsqueeze(-1)
    alone, several = (build(X, (35 * X).sin()) for _ in range(2))
    for mll in (alone, several):
        mll.model.covar_module.lengthscale = 50.0
    fit_from_starts(alone, num_restarts=0, seed=0)
    fit_from_starts(several, num_restarts=6, seed=0)
    assert objective(several) > objective(alone) + 0.1


@pytest.mark.parametrize(
    "make_prior", [partial(LogNormalPrior, 0.0, 1.0), partial(HalfNormalPrior, 1.0)]
)
def test_starts_on_a_device_are_those_of_the_cpu(make_prior, device) -> None:
    """Also of priors that stay on the CPU when their module moves."""
    optima = []
    for name in ("cpu", device):
        X, Y = wavy()
        kernel = RBFKernel(lengthscale_prior=make_prior())
        model = SingleTaskGP(X, Y, covar_module=kernel, outcome_transform=None).to(name)
        mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
        brief = {"options": {"maxiter": 2}}
        fit_from_starts(mll, num_restarts=3, seed=0, **brief)
        optima.append(model.covar_module.lengthscale.detach())
    assert optima[1].device.type == device
    torch.testing.assert_close(optima[1].cpu(), optima[0])


def test_members_of_a_batch_keep_their_own_best() -> None:
    mll = build(*wavy(batch=2))
    fit_from_starts(mll, num_restarts=4, seed=0)
    for member in range(2):
        X, Y = (part[member] for part in wavy(batch=2))
        single = build(X, Y)
        fit_from_starts(single, num_restarts=4, seed=0)
        assert objective(mll)[member] > objective(single) - 1e-3


def test_starts_follow_the_seed_and_leave_the_random_state() -> None:
    mlls = [build(*wavy()) for _ in range(3)]
    before = torch.get_rng_state()
    for mll, seed in zip(mlls, (0, 0, 1), strict=True):
        fit_from_starts(mll, num_restarts=2, seed=seed, options={"maxiter": 2})
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = (objective(mll) for mll in mlls)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("num_restarts", [0, 2])
def test_all_starts_stop_in_time(num_restarts: int) -> None:
    stopped, stepped, seen = build(*wavy()), build(*wavy()), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_from_starts(
            stopped, num_restarts, 0, timeout_sec=0.0, callback=lambda *_: seen.append(1)
        )
    fit_from_starts(stepped, num_restarts, 0, options={"maxiter": 1})
    torch.testing.assert_close(objective(stopped), objective(stepped))
    assert len(seen) == (1 + num_restarts if num_restarts else 0)  # BoTorch's own stops before it


def break_down(monkeypatch: pytest.MonkeyPatch, when: Any) -> list[int]:
    """Has fits fail for batches of starts for which ``when`` holds; returns their sizes."""
    sizes: list[int] = []

    def fit(mll: ExactMarginalLogLikelihood, **kwargs: Any) -> Any:
        sizes.append(len(mll.model.train_targets))
        if when(sizes):
            raise NotPSDError("broken")
        return fit_gpytorch_mll_scipy(mll, **kwargs)

    monkeypatch.setattr(fitting, "fit_gpytorch_mll_scipy", fit)
    return sizes


def test_starts_are_tried_one_by_one_where_the_batch_breaks_down(monkeypatch) -> None:
    expected, mll = build(*wavy()), build(*wavy())
    fit_from_starts(expected, num_restarts=2, seed=0)
    sizes = break_down(monkeypatch, lambda sizes: len(sizes) in (1, 3))
    fit_from_starts(mll, num_restarts=2, seed=0)
    assert sizes == [3, 1, 1, 1]  # the second start is left out
    assert objective(mll) > objective(build(*wavy()))


def test_more_starts_are_drawn_where_all_break_down(monkeypatch) -> None:
    mll = build(*wavy())
    sizes = break_down(monkeypatch, lambda sizes: len(sizes) < 5)
    fit_from_starts(mll, num_restarts=1, seed=0)
    assert sizes == [2, 1, 1, 1, 1]  # the second further one is found to do
    assert objective(mll) > objective(build(*wavy()))


def test_no_start_at_all(monkeypatch) -> None:
    mll = build(*wavy())
    before = state(mll)
    sizes = break_down(monkeypatch, lambda sizes: True)
    with pytest.raises(ModelFittingError, match="No start leads to an optimum of SingleTaskGP"):
        fit_from_starts(mll, num_restarts=1, seed=0)
    assert sizes == [2, *6 * [1]]
    for name, value in state(mll).items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("batch", [1, 2])
def test_members_that_share_parameters_are_refused(batch: int) -> None:
    mll = build(*wavy(batch=batch))
    mll.model.covar_module = RBFKernel().double()
    message = (
        rf"The RBFKernel has the batch shape \(\), but the model \({batch},\): build it with "
        rf"batch_shape=torch.Size\(\[{batch}\]\)\."
    )
    with pytest.raises(ValueError, match=message):
        fit_from_starts(mll, num_restarts=1, seed=0)
    mll = build(*wavy(batch=batch))
    mll.model.likelihood = mll.likelihood = GaussianLikelihood().double()
    with pytest.raises(ValueError, match=r"The HomoskedasticNoise has the batch shape \(\), but"):
        fit_from_starts(mll, num_restarts=1, seed=0)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_what_is_not_fitted_may_be_shared(batch: int) -> None:
    mlls = []
    for shape in (torch.Size(), torch.Size([batch])):
        mll = build(*wavy(batch=batch))
        likelihood = GaussianLikelihood(batch_shape=shape).double().requires_grad_(False)
        frozen = ScaleKernel(RBFKernel(batch_shape=shape), batch_shape=shape).double()
        mll.model.covar_module = mll.model.covar_module + frozen.requires_grad_(False)
        mll.model.likelihood = mll.likelihood = likelihood
        fit_from_starts(mll.train(), num_restarts=1, seed=0)
        mlls.append(mll)
    torch.testing.assert_close(objective(mlls[0]), objective(mlls[1]))


def test_an_objective_that_is_nan_everywhere_is_an_error(monkeypatch):
    mll = build(*wavy())
    monkeypatch.setattr(fitting, "fit_gpytorch_mll_scipy", lambda mll, **_: None)
    monkeypatch.setattr(type(mll), "forward", lambda mll, output, *_: output.mean.sum(-1) * NAN)
    before = {name: value.clone() for name, value in mll.named_parameters()}
    with pytest.raises(ModelFittingError, match="is NaN at the end of every start"):
        fit_from_starts(mll, num_restarts=1, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in mll.named_parameters())
