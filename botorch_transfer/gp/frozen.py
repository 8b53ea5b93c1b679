r"""The posterior of an exact GP while its data and its hyperparameters stay as they are.

While an acquisition function is optimized, only the candidates change. What stays is prepared once:
the prior is written in values of stationary kernels between a candidate and fixed points,

.. code-block:: text

    φ_i(x) = k_i(x, X_i)
    m(x)     = m₀ + Σ_i φ_i(x) a_i
    k(x, x)  = v₀ + Σ_i φ_i(x) l_i + q_i φ_i(x) Q_i φ_i(x)ᵀ
    k(x, T)  = c₀ + Σ_i φ_i(x) C_i

where the fixed inputs ``T`` include those of the target's data. Read it for how parts add up to a
model's prior, and how that is conditioned on the data. An evaluation is then one distance matrix
and two matrix products for each part, whatever the model is made of, and a gradient one more. A
model gives its parts by ``TargetGP.expand``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.gp.conditioned import ConditionedBatch, in_parts
from botorch_transfer.gp.stationary import (
    FixedPoints,
    Stationary,
    gradient_in_inputs,
    stationary_function,
)

MAX_NUMBERS = 2**26
"""How many numbers a part may take; larger priors are evaluated by the general way."""

SMALL_CHUNKS = 8
"""By this factor fewer candidates are evaluated at once than memory allows: caches are smaller."""

MAX_ROUNDING = 1e-7
"""How large rounding errors of a variance may be, as a share of the prior's; where they may be
larger, as for many noiseless points, it is evaluated by the general way."""


@dataclass(frozen=True)
class Part:
    """Kernel values at fixed points, and their weights in mean and covariance.

    Args:
        kernel: ``B`` stationary kernels, with ``B x 1 x d`` lengthscales.
        points: A ``B x N x d`` tensor: the fixed points ``X_i`` of each.
        mean: A ``B x N`` tensor ``a``.
        linear: A ``B x N`` tensor ``l``.
        cross: A ``B x N x T`` tensor ``C``.
        quadratic: A ``B x n x n`` tensor ``Q``, symmetric, of the first ``n`` points.
        factor: A ``B`` tensor ``q``.
    """

    kernel: Stationary
    points: Tensor
    mean: Tensor
    linear: Tensor
    cross: Tensor
    quadratic: Tensor
    factor: Tensor

    @classmethod
    def of_kernel(cls, kernel: Stationary, T: Tensor, reference: Tensor | None = None) -> Part:
        """A kernel itself, as the covariance with the fixed inputs.

        Args:
            kernel: One stationary kernel.
            T: The fixed inputs, a ``T x d`` tensor.
            reference: An ``R x d`` tensor of further points, with which it has no covariance yet.

        Returns:
            The part, of ``T + R`` points.
        """
        points = T if reference is None else torch.cat([T, reference])
        cross = torch.eye(len(points), len(T)).to(points).unsqueeze(0)
        zero = cross.new_zeros(1, len(points))
        lengthscale = kernel.lengthscale.reshape(1, 1, -1)
        kernel = Stationary(kernel.name, lengthscale, kernel.scale.reshape(1))
        quadratic, factor = cross.new_zeros(1, 0, 0), cross.new_zeros(1)
        return cls(kernel, points.unsqueeze(0), zero, zero, cross, quadratic, factor)

    @classmethod
    def of_sources(cls, gps: ConditionedBatch, weights: Tensor, T: Tensor) -> Part:
        """The posterior of a weighted sum of conditioned GPs, each with a kernel of its own.

        Args:
            gps: The GPs.
            weights: A ``G`` tensor.
            T: The fixed inputs, a ``T x d`` tensor.

        Returns:
            The part, of each GP's own points and the fixed inputs.
        """
        own = gps.points.expand(len(weights), *gps.points.shape[-2:])
        precision, w = gps.summary.precision, weights.reshape(-1, 1)
        square = w.square().unsqueeze(-1)
        of_data = precision @ gps.flat_cross(T).mT
        of_points = torch.eye(len(T)).to(T).expand(len(weights), -1, -1)
        mean = pad(w * gps.alpha * gps.inside, (0, len(T)))
        return cls(
            kernel=Stationary(gps.kernel, gps.lengthscale.unsqueeze(-2), gps.outputscale),
            points=torch.cat([own, T.expand(len(weights), *T.shape)], dim=-2),
            mean=mean,
            linear=torch.zeros_like(mean),
            cross=square * torch.cat([-of_data, of_points], dim=-2),
            quadratic=precision,
            factor=-weights.square(),
        )

    def detached(self) -> Part:
        """The same without graph, in double precision."""
        kernel = self.kernel
        lengthscale, scale = (part.detach().double() for part in (kernel.lengthscale, kernel.scale))
        names = ("points", "mean", "linear", "cross", "quadratic", "factor")
        tensors = {name: getattr(self, name).detach().double() for name in names}
        return Part(Stationary(kernel.name, lengthscale, scale), **tensors)

    def mapped(self, matrix: Tensor) -> Part:
        """Multiplies mean, linear part of the variance and covariances by a matrix."""
        columns = self.columns @ matrix
        mean, linear, cross = columns[..., 0], columns[..., 1], columns[..., 2:]
        factor = matrix[1, 1] * self.factor
        return replace(self, mean=mean, linear=linear, cross=cross, factor=factor)

    @cached_property
    def fixed(self) -> FixedPoints:
        """The points, divided by the lengthscales."""
        return FixedPoints(self.points / self.kernel.lengthscale)

    @cached_property
    def columns(self) -> Tensor:
        """The weights of mean, linear part of the variance and covariances: ``B x N x (2 + T)``."""
        vectors = torch.stack([self.mean, self.linear], dim=-1)
        return torch.cat([vectors, self.cross], dim=-1)

    @property
    def rounding(self) -> Tensor:
        """How large rounding errors of the quadratic part may be."""
        sizes = self.quadratic.diagonal(dim1=-2, dim2=-1).abs().sum(dim=-1)
        sizes = sizes * self.factor.abs() * self.kernel.scale.square()
        return torch.finfo(sizes.dtype).eps * sizes.sum()

    def value(self, x: Tensor, differentiable: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Evaluates what the part adds.

        Args:
            x: A ``P x d`` tensor of inputs.
            differentiable: Whether :meth:`gradient` will be asked for.

        Returns:
            A ``P x (2 + T)`` tensor of mean, variance and covariances; and what the gradient needs.
        """
        kernel, n = self.kernel, self.quadratic.shape[-1]
        function, scaled = stationary_function(kernel.name), x / kernel.lengthscale
        r2, log_scale = self.fixed.squared_distance(scaled), kernel.scale.log()[:, None, None]
        if differentiable:
            values, slopes = function.value_and_derivative(r2, log_scale)
        else:
            values = slopes = function.value(r2, log_scale)
        result = (values @ self.columns).sum(dim=0)
        products = (values[..., :n] @ self.quadratic).mul_(self.factor[:, None, None])
        result[:, 1] += (values[..., :n] * products).sum(dim=(0, -1))
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
        H[..., : products.shape[-1]] += 2 * in_value[:, 1:2] * products
        of_scaled = gradient_in_inputs(H.mul_(slopes), scaled, self.fixed.points)
        return (of_scaled * (2 / self.kernel.lengthscale)).sum(dim=0)


@dataclass(frozen=True)
class Expansion:
    """A prior as the sum of parts and constants.

    Args:
        parts: The parts.
        mean: The constant ``m₀``, a tensor without dimensions.
        variance: The constant ``v₀``.
        cross: A ``T`` tensor ``c₀``.
    """

    parts: Sequence[Part]
    mean: Tensor
    variance: Tensor
    cross: Tensor

    def detached(self) -> Expansion:
        """The same without graph, in double precision."""
        constants = (part.detach().double() for part in (self.mean, self.variance, self.cross))
        return Expansion([part.detached() for part in self.parts], *constants)

    def mapped(self, matrix: Tensor) -> Expansion:
        """Multiplies means, variances and covariances, as columns, by a matrix."""
        mean, variance, *_ = constants = self.constants @ matrix
        return Expansion(
            [part.mapped(matrix) for part in self.parts], mean, variance, constants[2:]
        )

    @cached_property
    def constants(self) -> Tensor:
        """All constants, a ``2 + T`` tensor."""
        return torch.cat([torch.stack([self.mean, self.variance]), self.cross])

    @property
    def is_exact(self) -> bool:
        """Whether rounding errors of variances are small."""
        rounding = sum(part.rounding for part in self.parts)
        return bool(rounding <= MAX_ROUNDING * self.variance)


class FrozenPosterior:
    """A GP's posterior at single inputs, for hyperparameters and data that stay.

    Args:
        prior: The prior, of fixed inputs ``T`` of which the first ``n`` are those of the data.
        T: These inputs, transformed.
        Y: An ``n`` tensor of outcomes, standardized.
        noise: An ``n`` tensor of noise variances.
        transform: Transforms inputs.
        mean: What was subtracted from the outcomes.
        std: What they were then divided by.
    """

    def __init__(
        self,
        prior: Expansion,
        T: Tensor,
        Y: Tensor,
        noise: Tensor,
        transform: Callable[[Tensor], Tensor],
        mean: Tensor,
        std: Tensor,
    ) -> None:
        self._transform, n = transform, len(Y)
        values = prior.constants + sum(part.value(T, False)[0] for part in prior.parts)
        covariance, others = values[:, 2:], len(T) - n
        K = covariance[:n, :n] + noise.diag()
        root, eye = psd_safe_cholesky(K), torch.eye(n).to(K)
        whitening = torch.linalg.solve_triangular(root, eye, upper=False).mT
        alpha = whitening @ (whitening.mT @ (Y - values[:n, 0]))
        # Means and covariances are linear in those of the prior: (mean, variance, with the data,
        # with the others) become (mean, variance, whitened, with the others given the data).
        to_posterior = torch.eye(2 + len(T)).to(K)
        to_posterior[2 : 2 + n, 0] = alpha
        to_posterior[2 : 2 + n, 2 : 2 + n] = whitening
        to_posterior[2 : 2 + n, 2 + n :] = -whitening @ (covariance[n:, :n] @ whitening).mT
        square = std.square()
        units = torch.cat([std.expand(1), square.expand(1), std.expand(n), square.expand(others)])
        posterior = prior.mapped(to_posterior * units)
        self._posterior = replace(posterior, mean=posterior.mean + mean)
        self._num_points = n
        self._width = SMALL_CHUNKS * sum(part.mean.numel() for part in prior.parts)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluates the posterior.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            Means and variances, two ``P`` tensors, and the covariances with those of the fixed
            inputs that are not the data's, ``P x (T - n)``; all in the user's units.
        """
        values = in_parts(self._evaluate, x, self._width, dim=-2).to(x.dtype)
        return values[:, 0], values[:, 1], values[:, 2:]

    def _evaluate(self, x: Tensor) -> Tensor:
        value: Any = _Value.apply(self._transform(x), self._posterior, self._num_points)
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
        return cast(Tensor, sum(each)), None, None


def _value(
    x: Tensor, posterior: Expansion, n: int, differentiable: bool
) -> tuple[Tensor, list[Tensor]]:
    """Evaluates the posterior, and what its closed-form gradient needs."""
    found = [part.value(x, differentiable) for part in posterior.parts]
    values = posterior.constants + sum(value for value, _ in found)
    whitened = values[:, 2 : 2 + n]
    variance = values[:, 1:2] - whitened.square().sum(dim=-1, keepdim=True)
    result = torch.cat([values[:, :1], variance.clamp_min(0.0), values[:, 2 + n :]], dim=-1)
    return result, [variance, whitened, *(each for _, saved in found for each in saved)]
