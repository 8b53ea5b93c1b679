"""MTGP and MTKGP: free matrices between tasks."""

from __future__ import annotations

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP
from gpytorch.kernels import IndexKernel, RBFKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_transfer import IntrinsicCoregionalizationGP, LinearCoregionalizationGP
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(6, seed=31)


@pytest.mark.parametrize("rank", [1, 2, 3, None])
@pytest.mark.parametrize("model_class", [LinearCoregionalizationGP, IntrinsicCoregionalizationGP])
def test_rank(model_class, rank):
    model = model_class(*FAMILY.target(3), FAMILY.sources((5, 4)), rank=rank)
    expected = 3 if rank is None else rank
    assert (torch.linalg.matrix_rank(model.task_covariances) == expected).all()


@pytest.mark.parametrize("model_class", [LinearCoregionalizationGP, IntrinsicCoregionalizationGP])
@pytest.mark.parametrize("rank", [0, 4])
def test_impossible_ranks_are_refused(model_class, rank):
    with pytest.raises(ValueError, match=rf"rank={rank} is no rank .* 3 tasks .* choose 1 to 3"):
        model_class(*FAMILY.target(3), FAMILY.sources((5, 4)), rank=rank)


def test_shapes_of_task_covariances():
    data = (*FAMILY.target(3), FAMILY.sources((5, 4)))
    assert LinearCoregionalizationGP(*data).task_covariances.shape == (3, 3, 3)
    assert IntrinsicCoregionalizationGP(*data).task_covariances.shape == (3, 3)
    X, Y = FAMILY.target(3)
    batch = IntrinsicCoregionalizationGP(X.expand(2, 3, 2), Y.expand(2, 3, 1), data[2])
    assert batch.task_covariances.shape == (2, 3, 3)


def test_kernels_start_apart():
    """Kernels that start equal would have equal gradients, and stay equal."""
    model = LinearCoregionalizationGP(*FAMILY.target(6), FAMILY.sources((8,)))
    starts = torch.cat([kernel.lengthscale for kernel in model.covar_modules])
    torch.testing.assert_close(starts[:, 0], torch.tensor([0.25, 1.0], dtype=torch.double))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=0)
    first, second = model.task_covariances
    assert not torch.allclose(first, second, rtol=0.05)


def test_more_than_one_kernel_is_refused():
    with pytest.raises(ValueError, match=r"all tasks share one kernel.*LinearCoregionalizationGP"):
        IntrinsicCoregionalizationGP(
            *FAMILY.target(3), FAMILY.sources((5,)), covar_modules=[RBFKernel(), RBFKernel()]
        )


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # GPyTorch's index kernel
def test_intrinsic_model_is_botorchs_seen_through_the_target():
    """At equal hyperparameters, on the same standardized data."""
    (source_X, source_Y), (X, Y) = FAMILY.sources((9,))["task 0"], FAMILY.target(4)
    model = IntrinsicCoregionalizationGP(X, Y, [(source_X, source_Y)])
    model.likelihood.noise = 1e-3
    tasks = torch.cat([torch.zeros(9, 1), torch.ones(4, 1)]).double()
    train_Y = torch.cat([model.conditional.points.Y, model.train_targets]).unsqueeze(-1)
    data_kernel = RBFKernel(ard_num_dims=2, active_dims=[0, 1]).double()
    data_kernel.lengthscale = model.covar_modules[0].lengthscale.detach()
    theirs = MultiTaskGP(
        torch.cat([torch.cat([source_X, X]), tasks], dim=-1),
        train_Y,
        task_feature=-1,
        train_Yvar=torch.full_like(train_Y, 1e-3),
        covar_module=data_kernel,
        mean_module=ZeroMean(),
        output_tasks=[1],
        outcome_transform=None,
    )
    task_kernel = IndexKernel(num_tasks=2, rank=2, active_dims=[2]).double()
    with torch.no_grad():
        task_kernel.covar_factor.copy_(model.conditional.kernel.raw_factors[0])
        task_kernel.var = torch.full((2,), 1e-12)
    theirs.covar_module = data_kernel * task_kernel
    posterior = theirs.eval().posterior(TEST_X)
    scale, shift = model.outcome_transform.stdvs, model.outcome_transform.means
    ours = model.posterior(TEST_X)
    torch.testing.assert_close(ours.mean, posterior.mean * scale + shift, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.variance, posterior.variance * scale**2, rtol=1e-6, atol=1e-6)
