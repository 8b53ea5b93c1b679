r"""The posterior of an exact GP while its data and its hyperparameters stay as they are.

While an acquisition function is optimized, only the candidates change. What stays is prepared once:
the prior is written in values of stationary kernels between a candidate and fixed points,

.. code-block:: text

    φ_i(x) = k_i(x, X_i)          w_i(x) = φ_i(x) R_iᵀ
    m(x)     = m₀ + Σ_i w_i(x) a_i
    k(x, x)  = v₀ + Σ_i w_i(x) l_i - w_i(x) S_i w_i(x)ᵀ
    k(x, T)  = c₀ + Σ_i w_i(x) C_i
    k(x, x') = v₀ + Σ_i (w_i(x) + w_i(x')) l_i / 2
                  + q_i (k_i(x, x') - k_i(x, x)) - w_i(x) S_i w_i(x')ᵀ

where the fixed inputs ``T`` include the target's inputs, and ``R_i`` whitens: products with the
inverse of a covariance, instead of its factor, would have a million times the rounding errors.
Read it for how parts add up to a model's prior, and how that is conditioned on the data. An
evaluation is then one distance matrix and two matrix products for each part, whatever the model
is made of, and a gradient two more. :func:`expand` reads the parts from a mean and a kernel.
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

from botorch_transfer.gp.conditioned import ConditionedBatch, in_parts
from botorch_transfer.gp.stationary import (
    FixedPoints,
    PriorKernel,
    Stationary,
    gradient_in_inputs,
    stationary_function,
)

MAX_NUMBERS = 2**26
"""Largest number of elements of a part; larger priors are evaluated the general way."""

SMALL_CHUNKS = 8
"""Divides the block of candidates that a CPU evaluates at once, so that it fits the cache."""


@dataclass(frozen=True)
class Part:
    """Kernel values at fixed points, whitened, and their weights in mean and covariance.

    Args:
        kernel: ``B`` stationary kernels, with ``B x 1 x d`` lengthscales.
        points: A ``B x N x d`` tensor: the fixed points ``X_i`` of each.
        root: A ``B x r x n`` tensor: the rows of ``R`` for the first ``n`` points. Values at the
            other points are not whitened.
        columns: A ``B x (r + N - n) x (2 + T)`` tensor: ``a``, ``l`` and ``C``, the weights of
            mean, linear part of the variance and covariances.
        squares: A ``B x r`` tensor: the diagonal of ``S``, zero for values that are not whitened.
        factor: A ``B`` tensor ``q``: how much of the kernels themselves is in the covariance.
    """

    kernel: Stationary
    points: Tensor
    root: Tensor
    columns: Tensor
    squares: Tensor
    factor: Tensor

    @classmethod
    def of_kernel(cls, kernel: Stationary, T: Tensor, reference: Tensor | None = None) -> Part:
        """Returns a kernel itself, as the covariance with the fixed inputs.

        Args:
            kernel: One stationary kernel.
            T: The fixed inputs, a ``T x d`` tensor.
            reference: An ``R x d`` tensor of further points, with which it has no covariance yet.

        Returns:
            The part, of ``T + R`` points.
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
        """The posterior of a weighted sum of conditioned GPs, each with a kernel of its own.

        Args:
            gps: The GPs.
            weights: A ``G`` tensor: the expected weights.
            T: The fixed inputs, a ``T x d`` tensor.
            squares: A ``G`` tensor: the expected squares of weights that are uncertain.

        Returns:
            The part, of each GP's own points and the fixed inputs.
        """
        squares = weights.square() if squares is None else squares
        own, number = gps.points.expand(len(weights), *gps.points.shape[-2:]), len(T)
        root = gps.summary.root
        # The last row of the root is the mean's, whose product counts as weights are uncertain.
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
        """Multiplies mean, variance and covariances by a matrix."""
        square = matrix[1, 1]
        squares, factor = square * self.squares, square * self.factor
        return replace(self, columns=self.columns @ matrix, squares=squares, factor=factor)

    @cached_property
    def fixed(self) -> FixedPoints:
        """The points, divided by the lengthscales."""
        return FixedPoints(self.points / self.kernel.lengthscale)

    @cached_property
    def of_kernel_values(self) -> tuple[Tensor, Tensor]:
        """The logarithm of the signal variance, and twice the inverse lengthscales."""
        return self.kernel.scale.log()[:, None, None], 2 / self.kernel.lengthscale

    def whiten(self, values: Tensor) -> Tensor:
        """Whitens ``B x P x N`` kernel values at the first points: ``B x P x r``."""
        n = self.root.shape[-1]
        return values[..., :n] @ self.root.mT if n > 0 else values[..., :0]

    def linear(self, values: Tensor, whitened: Tensor) -> Tensor:
        """Evaluates what is linear in kernel values: a ``P x (2 + T)`` tensor."""
        r, n = self.root.shape[-2:]
        result = values[..., n:] @ self.columns[:, r:]
        if n > 0:
            result = torch.baddbmm(result, whitened, self.columns[:, :r])
        return result.sum(dim=0)

    def value(self, x: Tensor, differentiable: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Evaluates what the part adds.

        Args:
            x: A ``P x d`` tensor of inputs.
            differentiable: Whether :meth:`gradient` will be asked for.

        Returns:
            A ``P x (2 + T)`` tensor of mean, variance and covariances; and the terms of the
            gradient.
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
        """Evaluates the gradient in the inputs: ``P x d``.

        Args:
            in_value: A ``P x (2 + T)`` tensor: the gradient in the value.
            scaled: What :meth:`value` returned besides, and so are the next ones.
            slopes: See there.
            products: See there.
        """
        H = in_value @ self.columns.mT
        if (r := products.shape[-1]) > 0:
            in_whitened = torch.addcmul(H[..., :r], in_value[:, 1:2], products, value=-2)
            H = torch.cat([in_whitened @ self.root, H[..., r:]], dim=-1)
        of_scaled = gradient_in_inputs(H.mul_(slopes), scaled, self.fixed)
        return (of_scaled * self.of_kernel_values[1]).sum(dim=0)


@dataclass(frozen=True)
class Expansion:
    """A prior as the sum of parts and constants.

    Args:
        parts: The parts.
        constants: A ``2 + T`` tensor in double precision: ``m₀``, ``v₀`` and ``c₀``.
    """

    parts: Sequence[Part]
    constants: Tensor

    def mapped(self, matrix: Tensor) -> Expansion:
        """Multiplies means, variances and covariances, as columns, by a matrix."""
        return Expansion([part.mapped(matrix) for part in self.parts], self.constants @ matrix)


def terms_of(kernel: Kernel) -> Iterator[Kernel]:
    """Yields the kernels that a kernel is the sum of."""
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        for term in kernel.kernels:
            yield from terms_of(cast(Kernel, term))
    else:
        yield kernel


@torch.no_grad()
def expand(mean: Mean, kernel: Kernel, T: Tensor) -> Expansion | None:
    """Writes a prior in kernel values at fixed inputs.

    Args:
        mean: The prior's mean.
        kernel: The prior's kernel.
        T: The fixed inputs, a ``T x d`` tensor.

    Returns:
        The expansion; ``None`` unless the kernel is a sum of stationary kernels and at most one
        :class:`PriorKernel`, and the mean is constant or belongs to the latter.

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
    """A GP's posterior at single inputs, for hyperparameters and data that stay.

    Args:
        prior: The prior at fixed inputs ``T``; the first ``n`` are the data's inputs.
        T: These inputs, transformed.
        Y: An ``n`` tensor of outcomes, standardized.
        noise: An ``n`` tensor of noise variances.
        transform: Transforms inputs; by default they are transformed already.
        mean: What was subtracted from the outcomes; nothing by default.
        std: What they were then divided by.
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
        # Means and covariances are linear in the prior's: (mean, variance, with the data,
        # with the others) become (mean, variance, whitened, with the others given the data).
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
            Means and variances, two ``P`` tensors, and the covariances with the fixed inputs that
            are not the data's, ``P x (T - n)``; all in the user's units.
        """
        values = in_parts(self._evaluate, x, self._width, -2, SMALL_CHUNKS).to(x.dtype)
        mean, variance, covariance = values.tensor_split((1, 2), dim=-1)
        return mean.squeeze(-1), variance.squeeze(-1), covariance

    def is_too_large(self, X: Tensor) -> bool:
        """Returns whether kernel values at all inputs at once would take too much memory."""
        most = MAX_NUMBERS // SMALL_CHUNKS if torch.is_grad_enabled() else MAX_NUMBERS
        return X.shape[:-1].numel() * self._width > most

    def joint(self, X: Tensor, further: FurtherData | None = None) -> tuple[Tensor, Tensor]:
        """Evaluates the joint posterior, in the units of the expansion.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            further: Further outcomes that the posterior is conditioned on.

        Returns:
            Means and covariances, ``batch_shape x q`` and ``batch_shape x q x q`` tensors.
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
        """Prepares further data: a Cholesky factor of their covariance is all that they need.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            Y: A ``[num_fantasies x] batch_shape x q`` tensor of outcomes.
            noise: A ``batch_shape x q`` tensor of noise variances.

        Returns:
            The data, with their graph.
        """
        points = JointInputs(self.expansion, X.double())
        root = psd_safe_cholesky(points.covariance(points) + noise.double().diag_embed())
        residual = (Y.double() - points.columns[..., 0]).unsqueeze(-1)
        return FurtherData(points, root, torch.cholesky_solve(residual, root))

    def whiten(self, x: Tensor) -> Tensor:
        """Evaluates the covariances with the data, whitened, for :meth:`draw_update`.

        Args:
            x: A ``batch_shape x q x d`` tensor of transformed inputs.

        Returns:
            A ``batch_shape x q x n`` tensor.
        """
        return JointInputs(self.expansion, x.double()).columns[..., 2 : 2 + self.num_points]

    def draw_update(self, values: Tensor) -> Tensor:
        """Turns draws from the prior into draws from the posterior, by Matheron's rule.

        Args:
            values: A ``... x n`` tensor: the draws at the data's inputs.

        Returns:
            A ``... x n`` tensor: its product with the whitened covariances is to be added.
        """
        whitening, Y, noise = self._draws_from
        return (Y - values - noise.sqrt() * torch.randn_like(values)) @ whitening

    def _evaluate(self, x: Tensor) -> Tensor:
        value: Any = _Value.apply(self._transform(x), self.expansion, self.num_points)
        return value


class _Value(torch.autograd.Function):
    """The posterior with its closed-form gradient: automatic differentiation takes twice as long.

    Means, variances and covariances with other inputs are the columns of the result.
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
        if torch.is_grad_enabled():  # it is to be differentiated itself
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
    """Evaluates the posterior, and what its closed-form gradient needs."""
    found = [part.value(x, differentiable) for part in posterior.parts]
    values = sum((value for value, _ in found), start=posterior.constants)
    whitened = values[:, 2 : 2 + n]
    variance = values[:, 1:2] - whitened.square().sum(dim=-1, keepdim=True)
    result = torch.cat([values[:, :1], variance.clamp_min(0.0), values[:, 2 + n :]], dim=-1)
    return result, [variance, whitened, *(each for _, saved in found for each in saved)]


@dataclass(frozen=True)
class JointInputs:
    """Inputs of a joint posterior, with precomputed terms and their graph.

    Args:
        posterior: A frozen posterior whose only fixed inputs are the data's.
        x: A ``batch_shape x q x d`` tensor of transformed inputs.
    """

    posterior: Expansion
    x: Tensor

    @cached_property
    def _flat(self) -> tuple[Tensor, list[Tensor]]:
        """Columns and each part's whitened kernel values, of the inputs of all batches."""
        flat, whitened = self.x.reshape(-1, self.x.shape[-1]), []
        total: Any = self.posterior.constants
        for part in self.posterior.parts:
            values = part.kernel.between(flat, part.points)
            whitened.append(part.whiten(values))
            total = total + part.linear(values, whitened[-1])
        return total, whitened

    @cached_property
    def columns(self) -> Tensor:
        """The posterior's columns but for the quadratic part, ``batch_shape x q x (2 + n)``."""
        return self._flat[0].unflatten(0, self.x.shape[:-1])

    @cached_property
    def whitened(self) -> list[Tensor]:
        """Each part's whitened kernel values, ``batch_shape x B x q x r``."""
        shape = self.x.shape[:-1]
        return [values.unflatten(1, shape).movedim(0, -3) for values in self._flat[1]]

    def covariance(self, other: JointInputs) -> Tensor:
        """Evaluates the posterior covariances with other inputs: ``batch_shape x q x q'``."""
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
    """Data added to a frozen posterior, such as fantasies.

    Args:
        points: Their inputs.
        root: A ``batch_shape x q x q`` tensor: the Cholesky factor of their covariance.
        weights: A ``[num_fantasies x] batch_shape x q x 1`` tensor: the weights of their
            covariances with other inputs in the mean.
    """

    points: JointInputs
    root: Tensor
    weights: Tensor
