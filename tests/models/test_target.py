from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from botorch_transfer.models.target import TargetGP
from tests.families import ShiftedSines
from tests.models.contract import assert_same_posterior

FAMILY = ShiftedSines()


class PlainTarget(TargetGP):
    """A target without any source tasks: all that is left is what the base class does."""

    source_argument = "prior"

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: object = None,
        mean_module: Mean | None = None,
        covar_module: Kernel | None = None,
        task_feature: int | None = None,
    ) -> None:
        super().__init__(
            train_X,
            train_Y,
            dim=None,
            mean_module=ConstantMean() if mean_module is None else mean_module,
            covar_module=ScaleKernel(RBFKernel()) if covar_module is None else covar_module,
            task_feature=task_feature,
        )


@pytest.mark.parametrize("n", [1, 4])
def test_with_data_it_is_a_single_task_gp(n: int) -> None:
    X, Y = FAMILY.target(n)
    model = PlainTarget(X, Y)
    twin = SingleTaskGP(
        X,
        Y,
        likelihood=model.likelihood,
        mean_module=model.mean_module,
        covar_module=model.covar_module,
        outcome_transform=None,
    )
    assert_same_posterior(model.posterior(FAMILY.inputs(3)), twin.posterior(FAMILY.inputs(3)))
    assert model.num_target_points == n


def test_without_data_it_is_its_prior() -> None:
    model = PlainTarget(*FAMILY.target(0))
    model.mean_module.constant = 3.0
    posterior = model.posterior(FAMILY.inputs(4))
    torch.testing.assert_close(posterior.mean, torch.full((4, 1), 3.0).double())
    covariance = model.covar_module(FAMILY.inputs(4)).to_dense()
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance)


def test_conditioning_on_the_first_points_makes_them_the_data() -> None:
    X, Y = FAMILY.target(3)
    empty = PlainTarget(*FAMILY.target(0)).eval()
    empty.posterior(FAMILY.inputs(1))
    conditioned = empty.condition_on_observations(X, Y)
    assert conditioned.num_target_points == 3
    assert empty.num_target_points == 0
    assert_same_posterior(
        conditioned.posterior(FAMILY.inputs(4)), PlainTarget(X, Y).posterior(FAMILY.inputs(4))
    )


def test_a_module_shared_by_mean_and_kernel_counts_once() -> None:
    class KernelMean(Mean):
        def __init__(self, kernel: Kernel) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, x: Tensor) -> Tensor:
            return self.kernel(x, torch.zeros_like(x[..., :1, :])).to_dense().squeeze(-1)

    kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0))
    model = PlainTarget(*FAMILY.target(3), mean_module=KernelMean(kernel), covar_module=kernel)
    priors = [prior for _, _, prior, _, _ in model.named_priors()]
    assert priors.count(kernel.lengthscale_prior) == 1


def test_a_task_column_is_no_input() -> None:
    X, Y = FAMILY.target(3)
    with_task = torch.cat([X, torch.ones(3, 1).double()], dim=-1)
    model = PlainTarget(with_task, Y, task_feature=2)
    assert model.num_inputs == 2
    at = torch.cat([FAMILY.inputs(4), torch.zeros(4, 1).double()], dim=-1)
    assert_same_posterior(model.posterior(at), PlainTarget(X, Y).posterior(FAMILY.inputs(4)))


def test_inputs_may_be_one_vector() -> None:
    family = ShiftedSines(dim=1)
    model, X = PlainTarget(*family.target(3)).eval(), family.inputs(5)
    torch.testing.assert_close(model(X.squeeze(-1)).mean, model(X).mean)
    with pytest.raises(
        BotorchTensorDimensionError, match="1 columns, but those of the model have 2"
    ):
        PlainTarget(*FAMILY.target(3)).eval()(X.squeeze(-1))


def test_fit_takes_what_it_knows_only() -> None:
    model = PlainTarget(*FAMILY.target(4))
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    with pytest.raises(ValueError, match="Unknown argument 'restarts': without an optimizer"):
        fit_gpytorch_mll(mll, restarts=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'maxiter'"):
        fit_gpytorch_mll(mll, optimizer_kwargs={"maxiter": 5})  # not among the options
    before = model.covar_module.outputscale.item()
    fit_gpytorch_mll(mll, num_restarts=0, optimizer_kwargs={"options": {"maxiter": 1}})
    assert model.covar_module.outputscale.item() != before
