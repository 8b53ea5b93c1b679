r"""The posterior of an exact GP with fixed data and hyperparameters, in closed form.

While an acquisition function is optimized, only the candidates ``x`` change. All terms that do not
depend on ``x`` are computed once. The prior mean ``m`` and the prior covariance ``k`` are sums of
constants and parts. Part ``i`` depends on ``x`` only through the row ``φ_i(x)``, the values of a
stationary kernel ``k_i`` between ``x`` and fixed points ``X_i``:

.. code-block:: text

    φ_i(x) = k_i(x, X_i)          w_i(x) = φ_i(x) R_iᵀ
    m(x)     = m₀ + Σ_i w_i(x) a_i
    k(x, x)  = v₀ + Σ_i w_i(x) l_i - w_i(x) S_i w_i(x)ᵀ
    k(x, T)  = c₀ + Σ_i w_i(x) C_i
    k(x, x') = v₀ + Σ_i (w_i(x) + w_i(x')) l_i / 2
                  + q_i (k_i(x, x') - k_i(x, x)) - w_i(x) S_i w_i(x')ᵀ

The fixed inputs ``T`` start with the target's inputs. ``a_i``, ``l_i``, ``C_i``, ``S_i`` and
``q_i`` are coefficients, see :class:`Part`. ``R_i`` is a factor of an inverse covariance matrix,
which whitens the kernel values. Products with the inverse covariance matrix itself would have a
million times larger rounding errors. :func:`expand` builds this expansion from a mean and a kernel.
:class:`FrozenPosterior` conditions the prior on the data. The posterior then has an expansion of
the same form. An evaluation takes one distance matrix and two matrix products for each part, and a
gradient takes two more matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.means import ConstantMean, Mean
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.gp.posterior import ConditionedBatch, in_parts
from botorch_transfer.gp.stationary import (
    FixedPoints,
    PriorKernel,
    Stationary,
    gradient_in_inputs,
    stationary_function,
)

#: Maximum number of elements of a part. A prior with a larger part has no expansion.
MAX_NUMBERS = 2**26

#: Divides the number of candidates that are evaluated at once on a CPU, to fit the CPU cache.
SMALL_CHUNKS = 8


@dataclass(frozen=True)
class Part:
    """Part of an expansion: the fixed points and the coefficients of ``B`` stationary kernels.

    Args:
        kernel: ``B`` stationary kernels, with ``B x 1 x d`` lengthscales.
        points: A ``B x N x d`` tensor: the fixed points ``X_i`` of each kernel.
        root: A ``B x r x n`` tensor: the matrix ``R_i`` of each kernel, which whitens the kernel
            values at the first ``n`` points. Values at the remaining points are not whitened.
        columns: A ``B x (r + N - n) x (2 + T)`` tensor of coefficients, whose rows correspond to
            whitened values and to the remaining values. The columns are ``a`` for the mean, ``l``
            for the variance, and ``C`` for the covariances with the ``T`` fixed inputs.
        squares: A ``B x r`` tensor: the diagonal of ``S`` for whitened values. ``S`` is zero for
            values that are not whitened.
        factor: A ``B`` tensor: the factor ``q`` of each kernel in the covariance.
    """

    kernel: Stationary
    points: Tensor
    root: Tensor
    columns: Tensor
    squares: Tensor
    factor: Tensor

    @classmethod
    def of_kernel(cls, kernel: Stationary, T: Tensor, reference: Tensor | None = None) -> Part:
        """Builds the part of a stationary kernel that is one term of the prior covariance.

        Args:
            kernel: One stationary kernel.
            T: The fixed inputs, a ``T x d`` tensor.
            reference: An ``R x d`` tensor of additional points, whose coefficients are zero.

        Returns:
            The part with ``T + R`` points.
        """
        points = T if reference is None else torch.cat([T, reference])
        columns = pad(torch.eye(len(points), len(T)).to(points), (2, 0)).unsqueeze(0)
        lengthscale, scale = kernel.lengthscale.double(), kernel.scale.double()
        kernel = Stationary(kernel.name, lengthscale.reshape(1, 1, -1), scale.reshape(1))
        root, squares = columns.new_zeros(1, 0, 0), columns.new_zeros(1, 0)
        return cls(kernel, points.unsqueeze(0), root, columns, squares, columns.new_ones(1))

    @classmethod
    def of_sources(
        cls, gps: ConditionedBatch, weights: Tensor, T: Tensor, squares: Tensor | None = None
    ) -> Part:
        """Builds the part of a weighted sum of conditioned GPs with one kernel each.

        Args:
            gps: The GPs.
            weights: A ``G`` tensor of the expected weights.
            T: The fixed inputs, a ``T x d`` tensor.
            squares: A ``G`` tensor of the expected squares of the weights, for weights that are
                uncertain. By default, ``weights`` squared.

        Returns:
            The part. The points of each kernel are the points of its GP and the fixed inputs.
        """
        squares = weights.square() if squares is None else squares
        own, number = gps.points.expand(len(weights), *gps.points.shape[-2:]), len(T)
        root = torch.cat([gps.inverse_root, gps.alpha.unsqueeze(-2)], dim=-2)
        # The last row of the root gives the GP's mean. The variance of an uncertain weight, times
        # the squared mean, is added to the variance.
        of_rows = squares.unsqueeze(-1).repeat(1, root.shape[-2])
        of_rows[:, -1] = weights.square() - squares
        at_fixed = root @ gps.flat_cross(T).mT
        of_points = squares[:, None, None] * torch.eye(number).to(T)
        cross = torch.cat([-of_rows.unsqueeze(-1) * at_fixed, of_points], dim=-2)
        columns = pad(cross, (2, 0))
        columns[:, root.shape[-2] - 1, 0] = weights
        points = torch.cat([own, T.expand(len(weights), *T.shape)], dim=-2)
        return cls(gps.stationary, points, root, columns, of_rows, squares)

    def mapped(self, matrix: Tensor) -> Part:
        """Multiplies the columns (mean, variance and covariances) by a matrix."""
        square = matrix[1, 1]
        squares, factor = square * self.squares, square * self.factor
        return replace(self, columns=self.columns @ matrix, squares=squares, factor=factor)

    @cached_property
    def fixed(self) -> FixedPoints:
        """The points, divided by the lengthscales."""
        return FixedPoints(self.points / self.kernel.lengthscale)

    @cached_property
    def of_kernel_values(self) -> tuple[Tensor, Tensor]:
        """The log signal variances and twice the inverse lengthscales of the kernels."""
        return self.kernel.scale.log()[:, None, None], 2 / self.kernel.lengthscale

    def whiten(self, values: Tensor) -> Tensor:
        """Whitens ``B x P x N`` kernel values at the first ``n`` points, ``B x P x r``."""
        n = self.root.shape[-1]
        return values[..., :n] @ self.root.mT if n > 0 else values[..., :0]

    def linear(self, values: Tensor, whitened: Tensor) -> Tensor:
        """Evaluates the terms that are linear in kernel values, a ``P x (2 + T)`` tensor."""
        r, n = self.root.shape[-2:]
        result = values[..., n:] @ self.columns[:, r:]
        if n > 0:
            result = torch.baddbmm(result, whitened, self.columns[:, :r])
        return result.sum(dim=0)

    def value(self, x: Tensor, differentiable: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Evaluates the part's terms of the mean, the variance and the covariances.

        Args:
            x: A ``P x d`` tensor of inputs.
            differentiable: Whether :meth:`gradient` is called later.

        Returns:
            A ``P x (2 + T)`` tensor of these terms, in this order, and the last three arguments of
            :meth:`gradient`.
        """
        kernel = self.kernel
        function, scaled = stationary_function(kernel.name), x / kernel.lengthscale
        r2, (log_scale, _) = self.fixed.squared_distance(scaled), self.of_kernel_values
        if differentiable:
            values, slopes = function.value_and_derivative(r2, log_scale)
        else:
            values = slopes = function.value(r2, log_scale)
        products = whitened = self.whiten(values)
        result = self.linear(values, whitened)
        if self.root.numel() > 0:
            products = whitened * self.squares.unsqueeze(-2)
            result[:, 1] -= (whitened * products).sum(dim=(0, -1))
        return result, (scaled, slopes, products)

    def gradient(
        self, in_value: Tensor, scaled: Tensor, slopes: Tensor, products: Tensor
    ) -> Tensor:
        """Backpropagates a gradient through :meth:`value`, which returns the last three arguments.

        Args:
            in_value: The gradient with respect to the terms that :meth:`value` returns, a
                ``P x (2 + T)`` tensor.
            scaled: The inputs divided by the lengthscales.
            slopes: The derivatives of the kernels.
            products: The whitened values times ``squares``.

        Returns:
            The gradient with respect to the inputs, a ``P x d`` tensor.
        """
        H = in_value @ self.columns.mT
        if (r := products.shape[-1]) > 0:
            in_whitened = torch.addcmul(H[..., :r], in_value[:, 1:2], products, value=-2)
            H = torch.cat([in_whitened @ self.root, H[..., r:]], dim=-1)
        of_scaled = gradient_in_inputs(H.mul_(slopes), scaled, self.fixed)
        return (of_scaled * self.of_kernel_values[1]).sum(dim=0)


@dataclass(frozen=True)
class Expansion:
    """Expansion of a prior or a posterior: the sum of parts and constants.

    Args:
        parts: The parts.
        constants: A ``2 + T`` tensor in double precision: ``m₀``, ``v₀`` and ``c₀``.
    """

    parts: Sequence[Part]
    constants: Tensor

    def mapped(self, matrix: Tensor) -> Expansion:
        """Multiplies the columns (mean, variance and covariances) by a matrix."""
        return Expansion([part.mapped(matrix) for part in self.parts], self.constants @ matrix)


def terms_of(kernel: Kernel) -> Iterator[Kernel]:
    """Yields the summands of a kernel."""
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        for term in kernel.kernels:
            yield from terms_of(cast(Kernel, term))
    else:
        yield kernel


@torch.no_grad()
def expand(mean: Mean, kernel: Kernel, T: Tensor) -> Expansion | None:
    """Expands a prior in kernel values at fixed inputs.

    Args:
        mean: The prior's mean.
        kernel: The prior's kernel.
        T: The fixed inputs, a ``T x d`` tensor.

    Returns:
        The expansion, or ``None`` if the prior is not supported. The kernel must be a sum of
        stationary kernels and at most one :class:`PriorKernel`. If there is a :class:`PriorKernel`,
        its method ``expand`` must support the mean. Otherwise, the mean must be constant.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> len(expand(ConstantMean(), RBFKernel(), torch.rand(3, 2)).parts)
        1
    """
    terms = [(term, Stationary.of(term)) for term in terms_of(kernel)]
    known = [each for _, each in terms if each is not None]
    others = [term for term, each in terms if each is None]
    scale = torch.stack([each.scale.reshape(()) for each in known]).sum() if known else 0.0
    constants = T.new_zeros(2 + len(T), dtype=torch.double)
    constants[1] = scale
    rest = Expansion([Part.of_kernel(each, T) for each in known], constants)
    if not others and type(mean) is ConstantMean:
        constants[0] = mean.constant
        return rest
    if len(others) == 1 and isinstance(others[0], PriorKernel):
        return others[0].expand(mean, rest, T)
    return None


class FrozenPosterior:
    """Posterior of a GP with fixed hyperparameters and data, for many fast evaluations.

    Args:
        prior: The prior, expanded at the fixed inputs ``T``.
        T: A ``T x d`` tensor of transformed inputs. The first ``n`` are the inputs of the data.
        Y: An ``n`` tensor of transformed outcomes.
        noise: An ``n`` tensor of noise variances.
        transform: The input transform of the model. By default, inputs are already transformed.
        mean: The mean that the outcome transform subtracted from the outcomes; zero by default.
        std: The standard deviation that the outcome transform divided by; one by default.
    """

    def __init__(
        self,
        prior: Expansion,
        T: Tensor,
        Y: Tensor,
        noise: Tensor,
        transform: Callable[[Tensor], Tensor] = torch.Tensor.double,
        mean: Tensor | float = 0.0,
        std: Tensor | float = 1.0,
    ) -> None:
        self._transform, n, std = transform, len(Y), torch.as_tensor(std).to(Y)
        values = JointInputs(prior, T).columns
        covariance, others = values[:, 2:], len(T) - n
        K = covariance[:n, :n] + noise.diag()
        root, eye = psd_safe_cholesky(K), torch.eye(n).to(K)
        whitening = torch.linalg.solve_triangular(root, eye, upper=False).mT
        alpha = whitening @ (whitening.mT @ (Y - values[:n, 0]))
        # The columns are mean, variance, covariances with the data, and covariances with the other
        # fixed inputs. The posterior's columns are linear in the prior's columns. In the posterior,
        # the covariances with the data are whitened.
        to_posterior = torch.eye(2 + len(T)).to(K)
        to_posterior[2 : 2 + n, 0] = alpha
        to_posterior[2 : 2 + n, 2 : 2 + n] = whitening
        to_posterior[2 : 2 + n, 2 + n :] = -whitening @ (covariance[n:, :n] @ whitening).mT
        square = std.square()
        units = torch.cat([std.expand(1), square.expand(1), std.expand(n), square.expand(others)])
        self.expansion = prior.mapped(to_posterior * units)
        self.expansion.constants[0] += mean
        self._draws_from = whitening, Y, noise
        self.num_points = n
        self._width = sum(part.points.shape[:-1].numel() for part in prior.parts)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluates the posterior.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            The means and variances, two ``P`` tensors, and a ``P x (T - n)`` tensor of covariances
            with the fixed inputs without data. All values are in the units that
            the constructor's ``mean`` and ``std`` define.
        """
        values = in_parts(self._evaluate, x, self._width, -2, SMALL_CHUNKS).to(x.dtype)
        mean, variance, covariance = values.tensor_split((1, 2), dim=-1)
        return mean.squeeze(-1), variance.squeeze(-1), covariance

    def is_too_large(self, X: Tensor) -> bool:
        """Returns whether the kernel values of all inputs would take too much memory."""
        most = MAX_NUMBERS // SMALL_CHUNKS if torch.is_grad_enabled() else MAX_NUMBERS
        return X.shape[:-1].numel() * self._width > most

    def joint(self, X: Tensor, further: FurtherData | None = None) -> tuple[Tensor, Tensor]:
        """Evaluates the joint posterior of several inputs, in the units of :meth:`__call__`.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            further: Additional data to condition on.

        Returns:
            The means, a ``batch_shape x q`` tensor, and the covariances, a ``batch_shape x q x q``
            tensor.
        """
        inputs = JointInputs(self.expansion, X.double())
        mean, covariance = inputs.columns[..., 0], inputs.covariance(inputs)
        if further is not None:
            cross = inputs.covariance(further.points)
            mean = mean + (cross @ further.weights).squeeze(-1)
            explained = torch.linalg.solve_triangular(further.root, cross.mT, upper=False)
            covariance = covariance - explained.mT @ explained
        return mean.to(X), covariance.to(X)

    def further(self, X: Tensor, Y: Tensor, noise: Tensor) -> FurtherData:
        """Precomputes the terms that :meth:`joint` needs to condition on additional data.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            Y: A ``[num_fantasies x] batch_shape x q`` tensor of outcomes.
            noise: A ``batch_shape x q`` tensor of noise variances.

        Returns:
            The inputs of the data and the terms, with their graph.
        """
        points = JointInputs(self.expansion, X.double())
        root = psd_safe_cholesky(points.covariance(points) + noise.double().diag_embed())
        residual = (Y.double() - points.columns[..., 0]).unsqueeze(-1)
        return FurtherData(points, root, torch.cholesky_solve(residual, root))

    def whiten(self, x: Tensor) -> Tensor:
        """Evaluates the whitened covariances with the data, for :meth:`draw_update`.

        Args:
            x: A ``batch_shape x q x d`` tensor of transformed inputs.

        Returns:
            A ``batch_shape x q x n`` tensor.
        """
        return JointInputs(self.expansion, x.double()).columns[..., 2 : 2 + self.num_points]

    def draw_update(self, values: Tensor) -> Tensor:
        """Computes the update that turns prior draws into posterior draws by Matheron's rule.

        Args:
            values: A ``... x n`` tensor of the prior draws at the inputs of the data.

        Returns:
            A ``... x n`` tensor of coefficients. Add the product of the whitened covariances and
            the coefficients to a prior draw.
        """
        whitening, Y, noise = self._draws_from
        return (Y - values - noise.sqrt() * torch.randn_like(values)) @ whitening

    def _evaluate(self, x: Tensor) -> Tensor:
        return _Value.apply(self._transform(x), self.expansion, self.num_points)


class _Value(torch.autograd.Function):
    """The posterior with a closed-form gradient, twice as fast as automatic differentiation.

    The columns of the result are the mean, the variance, and the covariances with the fixed inputs
    that are not inputs of the data.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, posterior: Expansion, n: int) -> Tensor:
        ctx.posterior, ctx.num_points = posterior, n
        result, saved = _value(x, posterior, n, ctx.needs_input_grad[0])
        ctx.save_for_backward(x, *saved)
        return result

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        x, variance, whitened, *saved = ctx.saved_tensors
        (gradient,) = grad_outputs
        if torch.is_grad_enabled():  # for second derivatives
            result, _ = _value(x, ctx.posterior, ctx.num_points, differentiable=False)
            (found,) = torch.autograd.grad(result, x, gradient, create_graph=True)
            return found, None, None
        in_variance = torch.where(variance > 0, gradient[:, 1:2], 0.0)
        in_values = [gradient[:, :1], in_variance, -2 * in_variance * whitened, gradient[:, 2:]]
        in_value, parts = torch.cat(in_values, dim=-1), ctx.posterior.parts
        each = [part.gradient(in_value, *saved[3 * i : 3 * i + 3]) for i, part in enumerate(parts)]
        return sum(each[1:], start=each[0]), None, None


def _value(
    x: Tensor, posterior: Expansion, n: int, differentiable: bool
) -> tuple[Tensor, list[Tensor]]:
    """Evaluates the posterior and the terms of its closed-form gradient."""
    found = [part.value(x, differentiable) for part in posterior.parts]
    values = sum((value for value, _ in found), start=posterior.constants)
    whitened = values[:, 2 : 2 + n]
    variance = values[:, 1:2] - whitened.square().sum(dim=-1, keepdim=True)
    result = torch.cat([values[:, :1], variance.clamp_min(0.0), values[:, 2 + n :]], dim=-1)
    return result, [variance, whitened, *(each for _, saved in found for each in saved)]


@dataclass(frozen=True)
class JointInputs:
    """Inputs of a joint posterior, with cached terms that keep their graph.

    Args:
        posterior: The expansion of a posterior whose fixed inputs are the inputs of the data.
        x: A ``batch_shape x q x d`` tensor of transformed inputs.
    """

    posterior: Expansion
    x: Tensor

    @cached_property
    def _flat(self) -> tuple[Tensor, list[Tensor]]:
        """The columns and each part's whitened kernel values, for the inputs of all batches."""
        flat, whitened = self.x.reshape(-1, self.x.shape[-1]), []
        total: Any = self.posterior.constants
        for part in self.posterior.parts:
            values = part.kernel.between(flat, part.points)
            whitened.append(part.whiten(values))
            total = total + part.linear(values, whitened[-1])
        return total, whitened

    @cached_property
    def columns(self) -> Tensor:
        """The columns without the ``S`` terms, a ``batch_shape x q x (2 + n)`` tensor."""
        return self._flat[0].unflatten(0, self.x.shape[:-1])

    @cached_property
    def whitened(self) -> list[Tensor]:
        """Each part's whitened kernel values, ``batch_shape x B x q x r``."""
        shape = self.x.shape[:-1]
        return [values.unflatten(1, shape).movedim(0, -3) for values in self._flat[1]]

    def covariance(self, other: JointInputs) -> Tensor:
        """Evaluates the posterior covariances with other inputs, ``batch_shape x q x q'``."""
        ours, theirs = self.columns, other.columns
        total = 0.5 * (ours[..., 1:2] + theirs[..., 1:2].mT) - ours[..., 2:] @ theirs[..., 2:].mT
        x1 = self.x.unsqueeze(-3)
        x2 = x1 if other is self else other.x.unsqueeze(-3)
        for part, w1, w2 in zip(self.posterior.parts, self.whitened, other.whitened, strict=True):
            values = part.kernel.between(x1, x2) - part.kernel.scale[:, None, None]
            values = part.factor[:, None, None] * values
            values = values - (w1 * part.squares.unsqueeze(-2)) @ w2.mT
            total = total + values.sum(dim=-3)
        return total


class FurtherData(NamedTuple):
    """Data that are added to a frozen posterior, such as fantasies.

    Args:
        points: The inputs of the added data.
        root: A ``batch_shape x q x q`` tensor, the Cholesky factor of the covariance of the data.
        weights: A ``[num_fantasies x] batch_shape x q x 1`` tensor. The data change the mean at an
            input by the covariances between this input and the data, times these weights.
    """

    points: JointInputs
    root: Tensor
    weights: Tensor
