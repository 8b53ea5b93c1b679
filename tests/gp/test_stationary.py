"""The fast path of covariance matrices against GPyTorch's own."""

import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    ScaleKernel,
)
from hypothesis import given
from hypothesis import strategies as st
from linear_operator import to_dense

from botorch_transfer.gp.expansion import evaluate
from botorch_transfer.gp.stationary import Stationary, squared_distance, stationary_function
from botorch_transfer.hyperbo.features import FeatureKernel, FeatureNetwork, scaled_linear
from tests.gp.padded import KERNELS, plain_kernel, points
from tests.gp.single_task import perturbed

UNIT = torch.zeros((), dtype=torch.double)  # the logarithm of a unit signal variance
SLOPES_AT_ZERO = {"rbf": -1 / 2, "matern12": 0.0, "matern32": -3 / 2, "matern52": -5 / 6}


@pytest.mark.parametrize("name", KERNELS)
@given(n1=st.integers(1, 6), n2=st.integers(1, 6), dim=st.integers(1, 5))
def test_value_is_that_of_gpytorch(name: str, n1: int, n2: int, dim: int) -> None:
    x1, x2, lengthscale = points(n1, dim), points(n2, dim, seed=2), 0.1 + points(dim, seed=3)
    function = stationary_function(name)
    theirs = function.make_kernel(ard_num_dims=dim).double()
    theirs.lengthscale = lengthscale
    r2, log_scale = squared_distance(x1 / lengthscale, x2 / lengthscale), (2 + UNIT).log()
    ours = function.value(r2, log_scale)
    torch.testing.assert_close(ours, 2 * theirs(x1, x2).to_dense(), atol=1e-10, rtol=0)
    twin = 2 * plain_kernel(name, x1 / lengthscale, x2 / lengthscale)
    torch.testing.assert_close(ours, twin, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("name", "kind", "nu"),
    [
        ("rbf", RBFKernel, None),
        ("matern12", MaternKernel, 0.5),
        ("matern32", MaternKernel, 1.5),
        ("matern52", MaternKernel, 2.5),
    ],
)
def test_makes_the_gpytorch_kernel(name: str, kind: type, nu: float | None) -> None:
    kernel = stationary_function(name).make_kernel(ard_num_dims=3, batch_shape=torch.Size([2]))
    assert type(kernel) is kind
    assert getattr(kernel, "nu", None) == nu
    assert kernel.lengthscale.shape == (2, 1, 3)


@pytest.mark.parametrize("name", KERNELS)
@given(seed=st.integers(0, 1000))
def test_derivative_is_that_of_the_value(name: str, seed: int) -> None:
    function = stationary_function(name)
    r2 = (0.05 + 5 * points(10, seed=seed)).square().requires_grad_()
    value = function.value(r2, UNIT)
    (gradient,) = torch.autograd.grad(value.sum(), r2)
    both = function.value_and_derivative(r2.detach(), UNIT)
    torch.testing.assert_close(both, (value.detach(), gradient))
    near, h = r2.detach(), 1e-5 * r2.detach()
    differences = (function.value(near + h, UNIT) - function.value(near - h, UNIT)) / (2 * h)
    torch.testing.assert_close(gradient, differences, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_coincident_points(name: str) -> None:
    function, zero = stationary_function(name), torch.zeros(1, dtype=torch.double)
    assert function.value(zero, UNIT).item() == pytest.approx(1.0, abs=1e-14)
    _, derivative = function.value_and_derivative(zero, UNIT)
    assert derivative.item() == pytest.approx(SLOPES_AT_ZERO[name])


@pytest.mark.parametrize("name", KERNELS)
def test_gradient_stays_finite_where_points_coincide(name: str) -> None:
    x = points(4, 2)
    x[2] = x[0]
    x.requires_grad_()
    values = stationary_function(name).value(squared_distance(x, x), UNIT)
    (gradient,) = torch.autograd.grad(values[0].sum(), x)
    assert gradient.isfinite().all()
    # Nothing pulls two coincident points: what is left comes from the others.
    others = stationary_function(name).value(squared_distance(x[[0]], x[[1, 3]]), UNIT)
    (expected,) = torch.autograd.grad(others.sum(), x)
    torch.testing.assert_close(gradient[0] + gradient[2], expected[0], atol=1e-6, rtol=1e-6)


@given(batch=st.integers(1, 3), n1=st.integers(1, 5), n2=st.integers(1, 5), dim=st.integers(1, 4))
def test_squared_distance(batch: int, n1: int, n2: int, dim: int) -> None:
    x1, x2 = points(batch, n1, dim), points(batch, n2, dim, seed=2)
    r2 = squared_distance(x1, x2)
    torch.testing.assert_close(r2, torch.cdist(x1, x2).square(), atol=1e-12, rtol=0)
    assert (r2 >= 0).all()
    own = squared_distance(x1, x1)
    assert (own.diagonal(dim1=-2, dim2=-1) == 0).all()
    torch.testing.assert_close(own, own.mT, atol=1e-14, rtol=0)


def test_squared_distance_far_from_the_origin() -> None:
    x1, x2 = points(5, 3), points(4, 3, seed=2)
    far = squared_distance(x1 + 1e6, x2 + 1e6)
    torch.testing.assert_close(far, squared_distance(x1, x2), atol=1e-8, rtol=0)


def test_squared_distance_is_differentiable() -> None:
    x1, x2 = points(3, 2).requires_grad_(), points(4, 2, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(squared_distance, (x1, x2))
    assert torch.autograd.gradgradcheck(squared_distance, (x1, x2))
    assert torch.autograd.gradcheck(lambda x: squared_distance(x, x), (x1,))


def test_unknown_kernel() -> None:
    with pytest.raises(ValueError, match=r"Unknown kernel 'cubic': choose one of 'rbf'"):
        stationary_function("cubic")


GPYTORCH_KERNELS = {
    "rbf": lambda: RBFKernel(ard_num_dims=3),
    "matern12": lambda: MaternKernel(0.5, ard_num_dims=3),
    "matern32": lambda: MaternKernel(1.5, ard_num_dims=3),
    "matern52": lambda: ScaleKernel(MaternKernel(2.5, ard_num_dims=3)),
    "deep": lambda: FeatureKernel(
        ScaleKernel(MaternKernel(2.5, ard_num_dims=4)), FeatureNetwork(3, hidden=(5, 4))
    ),
    "linear": lambda: FeatureKernel(scaled_linear(4), FeatureNetwork(3, hidden=(4,))),
    "some columns": lambda: ScaleKernel(RBFKernel(active_dims=(0, 2))),
    "scaled columns": lambda: ScaleKernel(RBFKernel(ard_num_dims=2), active_dims=(0, 2)),
    "periodic": lambda: ScaleKernel(PeriodicKernel()),
    "sum": lambda: AdditiveKernel(RBFKernel(), LinearKernel()),
}


@pytest.fixture(params=GPYTORCH_KERNELS)
def kernel(request):
    return perturbed(GPYTORCH_KERNELS[request.param]())


@pytest.fixture
def X():
    X = torch.rand(2, 6, 3, dtype=torch.double)
    X[0, 3] = X[0, 4]  # points that coincide
    return X


def gradients(kernel, X, value):
    # Not symmetric: a gradient that takes half of the matrix for granted would show.
    weight = torch.linspace(-1, 2, value.numel(), dtype=torch.double).reshape(value.shape)
    return torch.autograd.grad((weight * value).sum(), [*kernel.parameters(), X])


def test_values_and_gradients(kernel, X):
    X.requires_grad_()
    expected = kernel(X).to_dense()
    value = evaluate(kernel, X, X)
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-9)
    pairs = zip(gradients(kernel, X, value), gradients(kernel, X, expected), strict=True)
    for left, right in pairs:
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("diag", [False, True])
def test_between_inputs(name, same, diag, X):
    theirs = GPYTORCH_KERNELS[name]().double()
    other = X if same else torch.rand(6, 3, dtype=torch.double)  # of other batches
    X.requires_grad_()
    value = Stationary.of(theirs).between(X, other, diag)
    expected = to_dense(theirs(X, other, diag=diag)).expand(value.shape)
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-9)
    if not (same and diag):  # GPyTorch's has no graph
        pairs = zip(gradients(theirs, X, value), gradients(theirs, X, expected), strict=True)
        for left, right in pairs:
            torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)
