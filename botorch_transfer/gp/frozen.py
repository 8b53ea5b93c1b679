r"""The posterior of an exact GP while its data and its hyperparameters stay as they are.

While an acquisition function is optimized, only the candidates change. What stays is prepared once:
the prior is written in values of stationary kernels between a candidate and fixed points,

.. code-block:: text

    φ_i(x) = k_i(x, X_i)
    m(x)     = m₀ + Σ_i φ_i(x) a_i
    k(x, x)  = v₀ + Σ_i φ_i(x) l_i + Σ_i s_i ‖φ_i(x) R_i‖²,  s_i = ±1
    k(x, T)  = c₀ + Σ_i φ_i(x) C_i

for fixed inputs ``T``, among them the target's. Read it for how such parts add up to a model's
prior, and are conditioned on its data. An evaluation is then one distance matrix and one matrix
product for each part, whatever the model is made of. A model gives its parts by
``TargetGP.expand``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.gp.conditioned import ConditionedBatch, in_parts, inverse_cholesky
from botorch_transfer.gp.stationary import FixedPoints, Stationary, stationary_function


@dataclass(frozen=True)
class Part:
    """Kernel values at fixed points, and what of them enters mean and covariance.

    Args:
        kernel: ``B`` stationary kernels, with ``B x 1 x d`` lengthscales.
        points: A ``B x N x d`` tensor: the fixed points ``X_i`` of each.
        mean: A ``B x N`` tensor ``a``.
        linear: A ``B x N`` tensor ``l``.
        cross: A ``B x N x T`` tensor ``C``.
        known: A ``B x N x K`` tensor: the roots ``R`` of what is subtracted from the variance.
        added: A ``B x N x A`` tensor: the roots of what is added to it.
    """

    kernel: Stationary
    points: Tensor
    mean: Tensor
    linear: Tensor
    cross: Tensor
    known: Tensor
    added: Tensor

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
        zero, none = cross.new_zeros(1, len(points)), cross[..., :0]
        lengthscale = kernel.lengthscale.reshape(1, 1, -1)
        kernel = Stationary(kernel.name, lengthscale, kernel.scale.reshape(1))
        return cls(kernel, points.unsqueeze(0), zero, zero, cross, none, none)

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
        size, w = own.shape[-2], weights.reshape(-1, 1)
        # Rows of the padding are zero, as the covariances with it are.
        inside = gps.inside.unsqueeze(-1)
        F = gps.inverse_root.mT * inside
        of_data = F @ (F.mT @ gps.flat_cross(T).mT)
        of_points = torch.eye(len(T)).to(T).expand(len(weights), -1, -1)
        mean = pad(w * gps.alpha * inside.squeeze(-1), (0, len(T)))
        return cls(
            kernel=Stationary(gps.kernel, gps.lengthscale.unsqueeze(-2), gps.outputscale),
            points=torch.cat([own, T.expand(len(weights), *T.shape)], dim=-2),
            mean=mean,
            linear=torch.zeros_like(mean),
            cross=w.square().unsqueeze(-1) * torch.cat([-of_data, of_points], dim=-2),
            known=pad(w.unsqueeze(-1) * F, (0, 0, 0, len(T))),
            added=F.new_zeros(len(weights), size + len(T), 0),
        )

    def detached(self) -> Part:
        """The same without graph, in double precision."""
        kernel = self.kernel
        lengthscale, scale = (part.detach().double() for part in (kernel.lengthscale, kernel.scale))
        names = ("points", "mean", "linear", "cross", "known", "added")
        tensors = {name: getattr(self, name).detach().double() for name in names}
        return Part(Stationary(kernel.name, lengthscale, scale), **tensors)

    @cached_property
    def _fixed(self) -> FixedPoints:
        return FixedPoints(self.points / self.kernel.lengthscale)

    @cached_property
    def _columns(self) -> Tensor:
        vectors = torch.stack([self.mean, self.linear], dim=-1)
        return torch.cat([vectors, self.cross, self.known, self.added], dim=-1)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates what is linear in the kernel values, and the sums of squares.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            A ``P x (2 + T)`` tensor of mean, linear part of the variance and covariances; and a
            ``P`` tensor of the variance's squares.
        """
        sizes = [2 + self.cross.shape[-1], self.known.shape[-1], self.added.shape[-1]]
        r2 = self._fixed.squared_distance(x / self.kernel.lengthscale)
        log_scale = self.kernel.scale.log()[:, None, None]
        values = stationary_function(self.kernel.name).value(r2, log_scale) @ self._columns
        linear, known, added = values.split(sizes, dim=-1)
        squares = added.square().sum(dim=(0, -1)) - known.square().sum(dim=(0, -1))
        return linear.sum(dim=0), squares


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

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluates the prior.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            Means and variances, two ``P`` tensors, and the ``P x T`` covariances with the fixed
            inputs.
        """
        mean, variance, cross = self.mean, self.variance, self.cross
        for part in self.parts:
            linear, squares = part(x)
            mean, variance = mean + linear[:, 0], variance + linear[:, 1] + squares
            cross = cross + linear[:, 2:]
        return mean, variance, cross


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

    Raises:
        InputDataError: If the covariance matrix of the data is not positive definite.
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
        self._prior, self._transform, self._units, n = prior, transform, (mean, std), len(Y)
        prior_mean, _, covariance = prior(T)
        K = covariance[:n, :n] + noise.diag()
        inverse_root = inverse_cholesky(K.unsqueeze(0), lambda *_: "of the target")[0]
        self._alpha = inverse_root.mT @ (inverse_root @ (Y - prior_mean[:n]))
        self._whitening = inverse_root.mT
        self._others = covariance[n:, :n] @ self._whitening
        self._width = sum(part.mean.numel() for part in prior.parts)

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
        prior_mean, variance, covariance = self._prior(self._transform(x))
        with_data, with_others = covariance.split([len(self._alpha), len(self._others)], dim=-1)
        whitened = with_data @ self._whitening
        mean, (shift, scale) = prior_mean + with_data @ self._alpha, self._units
        variance = (variance - whitened.square().sum(dim=-1)).clamp_min(0.0)
        moments = torch.stack([shift + scale * mean, scale.square() * variance], dim=-1)
        others = scale.square() * (with_others - whitened @ self._others.mT)
        return torch.cat([moments, others], dim=-1)
