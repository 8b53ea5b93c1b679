"""The posterior of an exact GP with fixed data and hyperparameters, in closed form.

While an acquisition function is optimized, only the candidates change. All terms that do not depend
on a candidate are computed once. :class:`FrozenPosterior` takes the :class:`.Expansion` of the
prior, and conditions the prior on the data. The posterior has an expansion of the same form. An
evaluation takes one distance matrix and two matrix products for each kernel. A gradient takes two
more products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.gp.conditioned import in_parts
from botorch_transfer.gp.expansion import MAX_NUMBERS, Expansion

#: Gradients need this number of times the memory of the values.
FOR_GRADIENTS = 8


class FrozenPosterior:
    """Posterior of a GP with fixed hyperparameters and data, for many fast evaluations.

    Args:
        prior: The prior, expanded at the fixed inputs ``T``.
        T: A ``T x d`` tensor of transformed inputs. The first ``n`` rows are the inputs of the
            data. The other rows are inputs whose covariances with candidates are needed.
        Y: An ``n`` tensor of transformed outcomes.
        noise: An ``n`` tensor of noise variances.
        transform: The input transform of the model. By default, inputs are already transformed.
        mean: The mean that the outcome transform subtracted from the outcomes; zero by default.
        std: The standard deviation by which the outcome transform divided the outcomes; one by
            default.
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
        # fixed inputs. This matrix maps the prior's columns to the posterior's columns, and whitens
        # the covariances with the data. `_value` subtracts their squares from the variance.
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
        """Evaluates the posterior mean and variance at each input.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            Two ``P`` tensors, the means and the variances, and a ``P x (T - n)`` tensor: the
            covariances with the fixed inputs that are not inputs of the data. The constructor's
            ``mean=`` and ``std=`` define the units of all results.
        """
        values = in_parts(self._evaluate, x, self._width, -2).to(x.dtype)
        mean, variance, covariance = values.tensor_split((1, 2), dim=-1)
        return mean.squeeze(-1), variance.squeeze(-1), covariance

    def is_too_large(self, X: Tensor) -> bool:
        """Returns whether :meth:`joint` would take too much memory for the inputs ``X``."""
        most = MAX_NUMBERS // FOR_GRADIENTS if torch.is_grad_enabled() else MAX_NUMBERS
        return X.shape[:-1].numel() * self._width > most

    def joint(self, X: Tensor, further: FurtherData | None = None) -> tuple[Tensor, Tensor]:
        """Evaluates the posterior mean and the joint covariance matrix of ``q`` inputs.

        The results have the same units as the results of :meth:`__call__`.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            further: Additional data to condition on, see :meth:`further`.

        Returns:
            A ``batch_shape x q`` tensor of means, and a ``batch_shape x q x q`` tensor of
            covariances.
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
        """Precomputes the terms that :meth:`joint` needs to condition on data such as fantasies.

        This posterior does not change.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            Y: A ``[num_fantasies x] batch_shape x q`` tensor of outcomes.
            noise: A ``batch_shape x q`` tensor of noise variances.

        Returns:
            The inputs of the added data, and the precomputed terms. All tensors keep their autograd
            graph.
        """
        points = JointInputs(self.expansion, X.double())
        root = psd_safe_cholesky(points.covariance(points) + noise.double().diag_embed())
        residual = (Y.double() - points.columns[..., 0]).unsqueeze(-1)
        return FurtherData(points, root, torch.cholesky_solve(residual, root))

    def whiten(self, x: Tensor) -> Tensor:
        """Evaluates the whitened prior covariances between inputs and the data.

        Use the result to evaluate posterior samples, see :meth:`draw_update`.

        Args:
            x: A ``batch_shape x q x d`` tensor of transformed inputs.

        Returns:
            A ``batch_shape x q x n`` tensor, ``k(x, X) L⁻ᵀ`` in the units of :meth:`__call__`.
            ``L`` is the Cholesky factor of the covariance matrix of the data.
        """
        return JointInputs(self.expansion, x.double()).columns[..., 2 : 2 + self.num_points]

    def draw_update(self, values: Tensor) -> Tensor:
        """Draws coefficients that turn prior samples into posterior samples (Matheron's rule).

        A posterior sample at ``x`` is the prior sample at ``x`` plus the product of ``whiten(x)``
        and the coefficients.

        Args:
            values: A ``... x n`` tensor of prior samples at the inputs of the data.

        Returns:
            A ``... x n`` tensor of coefficients.
        """
        whitening, Y, noise = self._draws_from
        return (Y - values - noise.sqrt() * torch.randn_like(values)) @ whitening

    def _evaluate(self, x: Tensor) -> Tensor:
        return _Value.apply(self._transform(x), self.expansion, self.num_points)


class _Value(torch.autograd.Function):
    """Autograd function that evaluates a posterior, with a closed-form gradient.

    The gradient is twice as fast as automatic differentiation. The columns of the result are the
    mean, the variance, and the covariances with the fixed inputs that are not inputs of the data.
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
    """Returns a posterior's values at inputs, and the tensors that the values' gradient needs."""
    found = [part.value(x, differentiable) for part in posterior.parts]
    values = sum((value for value, _ in found), start=posterior.constants)
    whitened = values[:, 2 : 2 + n]
    variance = values[:, 1:2] - whitened.square().sum(dim=-1, keepdim=True)
    result = torch.cat([values[:, :1], variance.clamp_min(0.0), values[:, 2 + n :]], dim=-1)
    return result, [variance, whitened, *(each for _, saved in found for each in saved)]


@dataclass(frozen=True)
class JointInputs:
    """Inputs at which a GP is evaluated jointly, with cached kernel values.

    The cached tensors keep their autograd graph.

    Args:
        posterior: The expansion of a posterior. For :meth:`covariance`, the fixed inputs of the
            expansion must be exactly the inputs of the data.
        x: A ``batch_shape x q x d`` tensor of transformed inputs.
    """

    posterior: Expansion
    x: Tensor

    @cached_property
    def _flat(self) -> tuple[Tensor, list[Tensor]]:
        """The tensors of :attr:`columns` and :attr:`whitened`, with a single batch dimension."""
        flat, whitened = self.x.reshape(-1, self.x.shape[-1]), []
        total: Any = self.posterior.constants
        for part in self.posterior.parts:
            values = part.kernel.between(flat, part.points)
            whitened.append(part.whiten(values))
            total = total + part.linear(values, whitened[-1])
        return total, whitened

    @cached_property
    def columns(self) -> Tensor:
        """The constant and linear terms of mean, variance, and covariances with the fixed inputs.

        The quadratic terms (squares and products of whitened kernel values) are not included. The
        property is a ``batch_shape x q x (2 + T)`` tensor.
        """
        return self._flat[0].unflatten(0, self.x.shape[:-1])

    @cached_property
    def whitened(self) -> list[Tensor]:
        """Whitened kernel values: a ``batch_shape x B x q x r`` tensor for each :class:`Part`."""
        return [values.unflatten(1, self.x.shape[:-1]).movedim(0, -3) for values in self._flat[1]]

    def covariance(self, other: JointInputs) -> Tensor:
        """Evaluates the posterior covariances between these inputs and other inputs.

        Args:
            other: The ``q'`` other inputs, with the same attribute ``posterior`` as these inputs.

        Returns:
            A ``batch_shape x q x q'`` tensor.
        """
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
    """Data that are added to a :class:`FrozenPosterior`, such as fantasies.

    Args:
        points: The inputs of the added data.
        root: A ``batch_shape x q x q`` tensor: the Cholesky factor of the covariance matrix of the
            added outcomes.
        weights: A ``[num_fantasies x] batch_shape x q x 1`` tensor. The mean at an input changes by
            the input's covariances with the added data, multiplied by these weights.
    """

    points: JointInputs
    root: Tensor
    weights: Tensor
