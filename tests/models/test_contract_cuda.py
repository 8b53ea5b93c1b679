"""The contract of every model on a GPU, where there is one."""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import partial

import pytest
import torch
from botorch.acquisition import qKnowledgeGradient, qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.mlls import ExactMarginalLogLikelihood

from tests.families import SCALE, ShiftedSines
from tests.models.contract import BUDGET, bounds, where

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

CPU, CUDA = ShiftedSines(), ShiftedSines(device="cuda")


@pytest.fixture
def test_X():
    return CUDA.inputs(4, seed=95)


def target(case, n, family=CUDA, **kwargs):
    return case.build(*family.target(n), case.prior(family), **kwargs)


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_posterior_is_that_of_the_cpu(case, n, dtype, test_X):
    model = target(case, n, ShiftedSines(dtype=dtype, device="cuda"))
    X = test_X.to(dtype).requires_grad_()
    posterior = model.posterior(X)
    assert posterior.mean.device.type == posterior.variance.device.type == "cuda"
    assert posterior.mean.dtype == posterior.variance.dtype == dtype
    on_cpu = deepcopy(model).cpu().posterior(X.detach().cpu())
    tolerance = 1e-6 if dtype == torch.double else 1e-2
    torch.testing.assert_close(posterior.mean.cpu(), on_cpu.mean, rtol=0, atol=tolerance * SCALE)
    torch.testing.assert_close(
        posterior.variance.cpu(), on_cpu.variance, rtol=0, atol=tolerance * SCALE**2
    )
    (gradient,) = torch.autograd.grad(posterior.variance.sum() + posterior.mean.sum(), X)
    assert gradient.isfinite().all()


def test_every_tensor_is_on_the_gpu(case):
    model = target(case, 5)
    tensors = [*model.parameters(), *model.buffers(), *model.train_inputs, model.train_targets]
    assert {tensor.device.type for tensor in tensors} == {"cuda"}


@where(lambda case: case.source_argument == "prior")
def test_moving_a_model_leaves_the_prior(case, test_X):
    prior = case.prior(CUDA)
    model = case.build(*CPU.target(3), deepcopy(case.prior(CPU)))
    model.cuda().posterior(test_X)
    target(case, 3).cpu().posterior(test_X.cpu())
    assert {tensor.device.type for tensor in prior.buffers()} == {"cuda"}
    assert {tensor.device.type for tensor in case.prior(CPU).buffers()} == {"cpu"}


def synchronizations(run):
    """How often the CPU waits for the GPU, or copies from or to it."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in told)


def test_tasks_cost_no_synchronizations(case):
    X = CUDA.inputs(4, 1, seed=98).requires_grad_()

    def evaluate(model):
        posterior = model.posterior(X)
        torch.autograd.grad(posterior.mean.sum() + posterior.variance.sum(), X)

    counts = []
    for num_tasks in (2, 6):
        prior = case.pretrain(CUDA.sources((6,) * num_tasks), input_transform=None)
        model = case.build(*CUDA.target(4), prior)
        evaluate(model)  # what is computed once
        counts.append(synchronizations(partial(evaluate, model)))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("n", [0, 6])
def test_fit(case, n, test_X):
    before = torch.cuda.get_rng_state()
    models = [target(case, n) for _ in range(2)]
    for model in models:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert torch.equal(before, torch.cuda.get_rng_state())
    left, right = (model.posterior(test_X) for model in models)
    torch.testing.assert_close(left.mean, right.mean)
    assert left.mean.isfinite().all()


@pytest.mark.parametrize("known_noise", [False, True])
def test_batches_fit(case, known_noise, test_X):
    X = CUDA.inputs(3, 4, seed=96)
    Y = CUDA.value(X)
    noise = torch.full_like(Y, 0.3) if known_noise else None
    model = case.build(X, Y, case.prior(CUDA), train_Yvar=noise)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=1)
    assert model.posterior(test_X).mean.shape == (3, 4, 1)


@pytest.mark.gaussian  # BoTorch's ensembles don't support look-ahead acquisitions
@pytest.mark.parametrize("n", [0, 4])
def test_acquisition(case, n):
    model = target(case, n)
    acquisition = qKnowledgeGradient(model, num_fantasies=3)
    X, value = optimize_acqf(acquisition, bounds(CUDA), q=1, **BUDGET)
    assert X.device.type == "cuda"
    assert value.isfinite()


def test_noisy_acquisition(case):
    X, _ = CUDA.target(4)
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    acquisition = qLogNoisyExpectedImprovement(target(case, 4), X, sampler)
    candidates, value = optimize_acqf(acquisition, bounds(CUDA), q=2, **BUDGET)
    assert candidates.device.type == "cuda"
    assert value.isfinite()


@pytest.mark.parametrize("n", [0, 4])
def test_conditioning_and_paths(case, n, test_X):
    model = target(case, n)
    X = CUDA.inputs(2, seed=97)
    model.posterior(X)
    conditioned = model.condition_on_observations(X, CUDA.value(X))
    assert (conditioned.posterior(X).variance < model.posterior(X).variance).all()
    if not case.ensemble:
        paths = draw_matheron_paths(model, torch.Size([3]))
        assert paths(test_X).device.type == "cuda"
        assert paths(test_X).shape == (3, 4)


def test_states_travel(case, test_X):
    model, other = target(case, 4), target(case, 4, CPU)
    other.load_state_dict({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    expected = model.posterior(test_X).mean.cpu()
    torch.testing.assert_close(other.posterior(test_X.cpu()).mean, expected, rtol=1e-5, atol=1e-4)
