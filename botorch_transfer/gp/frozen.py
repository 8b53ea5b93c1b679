r"""The posterior of an exact GP while its data and its hyperparameters stay as they are.

While an acquisition function is optimized, only the candidates change. What stays is prepared once:
the prior is written in values of stationary kernels between a candidate and fixed points,

.. code-block:: text

    φ_i(x) = k_i(x, X_i)
    m(x)     = m₀ + Σ_i φ_i(x) a_i
    k(x, x)  = v₀ + Σ_i φ_i(x) l_i - q_i φ_i(x) Q_i φ_i(x)ᵀ
    k(x, T)  = c₀ + Σ_i φ_i(x) C_i
    k(x, x') = v₀ + Σ_i (φ_i(x) + φ_i(x')) l_i / 2
                  + q_i (k_i(x, x') - k_i(x, x) - φ_i(x) Q_i φ_i(x')ᵀ)

where the fixed inputs ``T`` include the target's inputs. Read it for how parts add up to a
model's prior, and how that is conditioned on the data. An evaluation is then one distance matrix
and two matrix products for each part, whatever the model is made of, and a gradient one more.
:func:`expand` reads the parts from a mean and a kernel.
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

FEW = 8
"""Up to how many candidates a product with a symmetric matrix is faster from the other side."""

MAX_ROUNDING = 1e-7
"""Largest rounding error of a variance, as a share of the prior's. Where it may be larger, as for
many noiseless points, the general way is taken."""


@dataclass(frozen=True)
class Part:
    """Kernel values at fixed points, and their weights in mean and covariance.

    Args:
        kernel: ``B`` stationary kernels, with ``B x 1 x d`` lengthscales.
        points: A ``B x N x d`` tensor: the fixed points ``X_i`` of each.
        columns: A ``B x N x (2 + T)`` tensor: ``a``, ``l`` and ``C``, the weights of mean, linear
            part of the variance and covariances.
        quadratic: A ``B x n x n`` tensor ``Q``, symmetric, of the first ``n`` points.
        factor: A ``B`` tensor ``q``: how much of the kernels themselves is in the covariance.
    """

    kernel: Stationary
    points: Tensor
    columns: Tensor
    quadratic: Tensor
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
        quadratic, factor = columns.new_zeros(1, 0, 0), columns.new_ones(1)
        return cls(kernel, points.unsqueeze(0), columns, quadratic, factor)

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
        precision, w = gps.summary.precision, weights[:, None, None]
        of_data = precision @ gps.flat_cross(T).mT
        of_points = torch.eye(len(T)).to(T).expand(len(weights), -1, -1)
        mean = w * (gps.alpha * gps.inside).unsqueeze(-1)
        cross = w.square() * torch.cat([-of_data, of_points], dim=-2)
        return cls(
            kernel=gps.stationary,
            points=torch.cat([own, T.expand(len(weights), *T.shape)], dim=-2),
            columns=torch.cat([pad(mean, (0, 1, 0, len(T))), cross], dim=-1),
            quadratic=precision,
            factor=weights.square(),
        )

    def mapped(self, matrix: Tensor) -> Part:
        """Multiplies mean, linear part of the variance and covariances by a matrix."""
        return replace(self, columns=self.columns @ matrix, factor=matrix[1, 1] * self.factor)

    @cached_property
    def fixed(self) -> FixedPoints:
        """The points, divided by the lengthscales."""
        return FixedPoints(self.points / self.kernel.lengthscale)

    @cached_property
    def of_kernel_values(self) -> tuple[Tensor, Tensor]:
        """The logarithm of the signal variance, and twice the inverse lengthscales."""
        return self.kernel.scale.log()[:, None, None], 2 / self.kernel.lengthscale

    @cached_property
    def signed_quadratic(self) -> Tensor:
        """The matrices of the quadratic part, ``-q Q``."""
        return -self.factor[:, None, None] * self.quadratic

    @property
    def rounding(self) -> Tensor:
        """Bounds the rounding errors of the quadratic part."""
        sizes = self.quadratic.diagonal(dim1=-2, dim2=-1).abs().sum(dim=-1)
        sizes = sizes * self.factor.abs() * self.kernel.scale.square()
        return torch.finfo(sizes.dtype).eps * sizes.sum()

    def value(self, x: Tensor, differentiable: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Evaluates what the part adds.

        Args:
            x: A ``P x d`` tensor of inputs.
            differentiable: Whether :meth:`gradient` will be asked for.

        Returns:
            A ``P x (2 + T)`` tensor of mean, variance and covariances; and the terms of the
            gradient.
        """
        kernel, n = self.kernel, self.quadratic.shape[-1]
        function, scaled = stationary_function(kernel.name), x / kernel.lengthscale
        r2, (log_scale, _) = self.fixed.squared_distance(scaled), self.of_kernel_values
        if differentiable:
            values, slopes = function.value_and_derivative(r2, log_scale)
        else:
            values = slopes = function.value(r2, log_scale)
        result = (values @ self.columns).sum(dim=0)
        of_points = products = values[..., :n]
        if n > 0:
            # For few rows, a product that gives columns takes half the time.
            Q, few = self.signed_quadratic, len(x) <= FEW
            products = (Q @ of_points.mT).mT if few else of_points @ Q
            result[:, 1] += (of_points * products).sum(dim=(0, -1))
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
        if products.shape[-1] > 0:
            H[..., : products.shape[-1]] += 2 * in_value[:, 1:2] * products
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

    @property
    def is_exact(self) -> bool:
        """Whether rounding errors of variances are small."""
        rounding = sum(part.rounding for part in self.parts)
        return bool(rounding <= MAX_ROUNDING * self.constants[1])


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
    def kernels(self) -> list[Tensor]:
        """Each part's kernel values, ``B x P x N`` tensors of the inputs of all batches."""
        flat = self.x.reshape(-1, self.x.shape[-1])
        return [part.kernel.between(flat, part.points) for part in self.posterior.parts]

    @cached_property
    def columns(self) -> Tensor:
        """The posterior's columns but for the quadratic part, ``batch_shape x q x (2 + n)``."""
        pairs = zip(self.kernels, self.posterior.parts, strict=True)
        value: Any = sum((kernels @ part.columns).sum(dim=0) for kernels, part in pairs)
        return (self.posterior.constants + value).unflatten(0, self.x.shape[:-1])

    def _apart(self, values: Tensor) -> Tensor:
        """Brings ``B x P x k`` values back into batches: ``batch_shape x B x q x k``."""
        return values.unflatten(1, self.x.shape[:-1]).movedim(0, -3)

    def covariance(self, other: JointInputs) -> Tensor:
        """Evaluates the posterior covariances with other inputs: ``batch_shape x q x q'``."""
        ours, theirs = self.columns, other.columns
        total = 0.5 * (ours[..., 1:2] + theirs[..., 1:2].mT) - ours[..., 2:] @ theirs[..., 2:].mT
        x1 = self.x.unsqueeze(-3)
        x2 = x1 if other is self else other.x.unsqueeze(-3)
        for part, phi1, phi2 in zip(self.posterior.parts, self.kernels, other.kernels, strict=True):
            n = part.quadratic.shape[-1]
            products = other._apart(phi2[..., :n] @ part.quadratic)
            values = part.kernel.between(x1, x2) - part.kernel.scale[:, None, None]
            values = values - self._apart(phi1[..., :n]) @ products.mT
            total = total + (part.factor[:, None, None] * values).sum(dim=-3)
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
