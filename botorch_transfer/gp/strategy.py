r"""The posterior of a target model's exact GP, with cached terms that depend only on the data.

:class:`Strategy` replaces GPyTorch's prediction strategies. ``m`` is the prior mean, ``k`` is the
prior kernel, and ``(X, y)`` are the target's data with a diagonal noise covariance. Then,

.. code-block:: text

    K = k(X, X) + noise = L Lᵀ
    mean(x)           = m(x) + k(x, X) K⁻¹ (y - m(X))
    covariance(x, x') = k(x, x') - k(x, X) L⁻ᵀ L⁻¹ k(X, x')

For some priors, ``gp.frozen`` evaluates the posterior faster, in closed form. The closed form is
used for fantasies, and for predictions that need a gradient with respect to ``x``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from linear_operator import to_linear_operator
from linear_operator.operators import (
    DiagLinearOperator,
    LinearOperator,
    MatmulLinearOperator,
    SumLinearOperator,
)
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.memoize import cached
from torch import Tensor

from botorch_transfer.gp.combine import sharing_inputs
from botorch_transfer.gp.conditioned import max_elements
from botorch_transfer.gp.expansion import PriorKernel, evaluate, expand, terms_of
from botorch_transfer.gp.frozen import FrozenPosterior, FurtherData

#: The maximum number of points whose joint covariance is evaluated eagerly.
MAX_JOINT_POINTS = 512


def evaluated(covariance: LinearOperator) -> Tensor | LinearOperator:
    """Evaluates a lazy covariance matrix of predictions, unless the matrix is large.

    Noisy acquisition functions select blocks of the covariance matrix. If the matrix stayed
    lazy, each selection would evaluate the kernel again. Only a large matrix stays lazy, because it
    usually belongs to a plot of thousands of points, which needs only the variances.

    Args:
        covariance: A ``batch_shape x q x q`` operator.

    Returns:
        The matrix as a tensor. If ``q`` is larger than ``MAX_JOINT_POINTS``, the unchanged
        operator.
    """
    return covariance if covariance.shape[-1] > MAX_JOINT_POINTS else covariance.to_dense()


class LargeCovariance(SumLinearOperator):
    """Sum of large covariance matrices, evaluated in blocks of rows to limit the memory use.

    With blocks, the terms of the sum and the intermediate results of kernels are never stored as
    full matrices. If gradients are enabled, the sum is evaluated without blocks.
    """

    @cached
    def to_dense(self) -> Tensor:
        """Evaluates the sum as a dense tensor."""
        if torch.is_grad_enabled():
            return cast(Tensor, super().to_dense())
        total = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        number = max_elements(total) // total[..., 0, :].numel() + 1
        for start in range(0, total.shape[-1], number):
            rows, columns = slice(start, start + number), slice(0, start + number)
            block = self[..., rows, columns].to_dense()
            total[..., rows, columns] = block
            total[..., columns, rows] = block.mT
        return total

    def representation(self) -> tuple[Tensor, ...]:
        """Returns the representation of the evaluated sum, not of the separate terms."""
        return to_linear_operator(self.to_dense()).representation()

    def representation_tree(self) -> Any:
        """Returns the representation tree of the evaluated sum, not of the separate terms."""
        return to_linear_operator(self.to_dense()).representation_tree()


@dataclass(eq=False)
class Strategy:
    """Posterior of an exact GP, with cached terms that depend only on data and hyperparameters.

    This class replaces GPyTorch's prediction strategy. GPyTorch deletes a model's strategy when the
    model gets other data or is set to training mode. Copies and pickles of a model do not contain
    the strategy, and compute the cached terms again. As with GPyTorch's ``detach_test_caches``, the
    cached terms have no gradient with respect to the hyperparameters.

    Args:
        mean: The prior mean.
        kernel: The prior kernel.
        X: A ``batch_shape x n x d`` tensor of the data's transformed inputs.
        Y: A ``[num_fantasies x] batch_shape x n`` tensor of the data's transformed outcomes.
        get_noise: Function that returns the noise variances of ``Y``, a tensor that broadcasts to
            the shape of ``Y``. The function is called when the posterior is first evaluated, and
            the result is cached. Predictions from the prior do not call the function, because the
            hyperparameters may change after such a prediction.
        given: Closed-form posterior without the points that :meth:`with_data` added. ``None`` if
            no points were added, or if there is no closed form.
    """

    mean: Mean
    kernel: Kernel
    X: Tensor
    Y: Tensor
    get_noise: Callable[[], Tensor]
    given: FrozenPosterior | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    # ----------------------------------------------------------------------------- cached terms

    @cached_property
    def noise(self) -> Tensor:
        """The noise variances of the data."""
        return self.get_noise().detach()

    @property
    def _has_graph(self) -> bool:
        return self.X.requires_grad or self.Y.requires_grad

    @cached_property
    def root(self) -> Tensor:
        """Transposed inverse Cholesky factor ``L⁻ᵀ`` of the data's covariance matrix.

        The property is a ``batch_shape x n x n`` tensor.
        """
        # Fantasies need the autograd graph, even if the first prediction disables gradients.
        with torch.set_grad_enabled(self._has_graph):
            covariance = evaluate(self.kernel, self.X, self.X) + self.noise.diag_embed()
            try:
                root = psd_safe_cholesky(covariance)
            except NotPSDError as error:
                raise InputDataError(
                    "The covariance matrix of the target's data is not positive definite: give "
                    "inputs in the unit cube, and outcomes in the units of the source outcomes."
                ) from error
            eye = torch.eye(root.shape[-1]).to(root).expand_as(root)
            return torch.linalg.solve_triangular(root, eye, upper=False).mT

    @cached_property
    def weights(self) -> Tensor:
        """Coefficients ``K⁻¹ (y - m(X))`` of the posterior mean, where ``m`` is the prior mean.

        The property is a ``[num_fantasies x] batch_shape x n`` tensor.
        """
        with torch.set_grad_enabled(self._has_graph):
            residual = (self.Y - self.mean(self.X)).unsqueeze(-1)
            return (self.root @ (self.root.mT @ residual)).squeeze(-1)

    @cached_property
    def frozen(self) -> FrozenPosterior | None:
        """Closed-form posterior of transformed outcomes, or ``None``; see :meth:`frozen_at`."""
        return self.frozen_at(self.X.double())

    @torch.no_grad()
    def frozen_at(self, T: Tensor, *options: Any) -> FrozenPosterior | None:
        """Builds the closed-form posterior, see :class:`.FrozenPosterior`.

        Args:
            T: A ``T x d`` tensor of transformed inputs: the inputs of the data, optionally followed
                by other inputs. If there are other inputs, the posterior can also compute their
                covariances with candidates.
            *options: Further arguments of :class:`.FrozenPosterior`.

        Returns:
            The closed-form posterior. ``None`` if the prior is not supported, if the model is
            batched or has no data, or if the data require a gradient.
        """
        if self.Y.dim() > 1 or len(self.Y) == 0 or self._has_graph:
            return None
        if (prior := expand(self.mean, self.kernel, T)) is None:
            return None
        return FrozenPosterior(prior, T, self.Y.double(), self.noise.double(), *options)

    @cached_property
    @torch.enable_grad()  # keeps the graph even if the first prediction disables gradients
    def _further(self) -> FurtherData | None:
        """Terms that update :attr:`given` with the points that :meth:`with_data` added.

        ``None`` if :attr:`given` is ``None``.
        """
        if self.given is None:
            return None
        added = slice(self.given.num_points, None)
        return self.given.further(self.X[..., added, :], self.Y[..., added], self.noise[..., added])

    # ------------------------------------------------------------------------------ predictions

    def __call__(self, X: Tensor) -> MultivariateNormal:
        """Evaluates the posterior at new inputs.

        GPyTorch concatenates training inputs and new inputs. This method keeps them separate, so
        that the new inputs can require a gradient while the training inputs require none. The
        source posteriors at the training inputs can therefore be cached.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.

        Returns:
            The posterior. If there are no data, or in GPyTorch's ``prior_mode``, the prior.
        """
        is_prior = self.Y.shape[-1] == 0 or settings.prior_mode.on()
        without_variance = settings.skip_posterior_variances.on()
        is_large = X.shape[-2] > MAX_JOINT_POINTS
        if not (is_prior or is_large or without_variance):
            found = self._closed_form(X)
            if found is not None:
                return MultivariateNormal(found[0], to_linear_operator(found[1]))
        batch_shape = torch.broadcast_shapes(self.X.shape[:-2], self.Y.shape[:-1], X.shape[:-2])
        X = X.expand(*batch_shape, *X.shape[-2:])
        covariance: Any
        with sharing_inputs(self.mean, X):
            mean = self.mean(X)
            if is_large:  # stays lazy, because variances do not need the joint covariance
                covariance = self.kernel(X)
            elif X.shape[-2] == 1:
                covariance = evaluate(self.kernel, X, X, diag=True).unsqueeze(-1)
            else:
                covariance = evaluate(self.kernel, X, X)
            cross = None if is_prior else evaluate(self.kernel, X, self.X)
        if cross is None:
            # A constant mean has no graph, but optimizers need a gradient with respect to X.
            return MultivariateNormal(mean + 0.0 * X.sum(dim=-1), to_linear_operator(covariance))
        mean = mean + (cross @ self.weights.unsqueeze(-1)).squeeze(-1)
        if without_variance:
            return MultivariateNormal(mean, DiagLinearOperator(torch.zeros_like(mean)))
        # Unlike matmul, einsum does not copy the roots for every batch.
        explained = torch.einsum("...qn,...nk->...qk", cross, self.root)
        if is_large:
            known = MatmulLinearOperator(explained, -explained.mT)
            covariance = LargeCovariance(covariance, known)
        else:
            covariance = covariance - explained @ explained.mT
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def _closed_form(self, X: Tensor) -> tuple[Tensor, Tensor] | None:
        """Evaluates the posterior mean and covariance in closed form, or returns ``None``.

        The closed form is used only in two cases: (1) :meth:`with_data` added points; (2) the model
        has source GPs, and ``X`` requires a gradient. In both cases, the method returns ``None`` if
        :meth:`frozen_at` returns ``None``, or if the closed form would take too much memory.
        """
        posterior = self.given
        if posterior is None and X.requires_grad and settings.detach_test_caches.on():
            # Without source GPs, the general formula is equally fast.
            has_sources = any(isinstance(term, PriorKernel) for term in terms_of(self.kernel))
            posterior = self.frozen if has_sources else None
        if posterior is None or posterior.is_too_large(X):
            return None
        mean, covariance = posterior.joint(X, self._further)
        return mean, covariance.expand(*mean.shape, mean.shape[-1])

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Computes the leave-one-out prediction of each data point.

        Returns:
            Two ``batch_shape x n`` tensors: the means, and the variances without observation noise.
        """
        variance = 1 / self.root.square().sum(dim=-1)
        return self.Y - self.weights * variance, variance - self.noise

    # ------------------------------------------------------------------------------- other data

    def with_data(self, X: Tensor, Y: Tensor, noise: Tensor) -> Strategy:
        """Returns the posterior given additional data.

        Args:
            X: A ``batch_shape x q x d`` tensor of transformed inputs.
            Y: A ``[num_fantasies x] batch_shape x q`` tensor of transformed outcomes.
            noise: The noise variances of ``Y``, a tensor that broadcasts to the shape of ``Y``.

        Returns:
            The posterior given the previous and the additional data.
        """
        of_all = joined(self.noise, noise, event_dims=1)
        return replace(
            self,
            X=joined(self.X, X, event_dims=2),
            Y=joined(self.Y, Y, event_dims=1),
            get_noise=lambda: of_all,
            given=self.frozen if self.given is None else self.given,
        )

    def without_each(self) -> Strategy:
        """Returns the leave-one-out posteriors of all ``n`` data points.

        The result has a new first batch dimension of size ``n``. Its element ``i`` is the posterior
        given all data points except point ``i``.
        """
        n = self.Y.shape[-1]
        others = torch.arange(n).expand(n, n)[~torch.eye(n, dtype=torch.bool)].reshape(n, n - 1)
        others = others.to(self.Y.device)
        X = self.X[..., others, :].movedim(-3, 0)
        both = self.Y, self.noise.expand_as(self.Y)
        Y, noise = (values[..., others].movedim(-2, 0) for values in both)
        return replace(self, X=X, Y=Y, get_noise=lambda: noise, given=None)


def joined(first: Tensor, second: Tensor, event_dims: int) -> Tensor:
    """Concatenates the points of two tensors, and broadcasts their batch shapes.

    Args:
        first: A ``batch_shape x n [x d]`` tensor.
        second: A ``batch_shape x q [x d]`` tensor.
        event_dims: The number of dimensions after the batch dimensions.

    Returns:
        A ``batch_shape x (n + q) [x d]`` tensor.
    """
    batch = torch.broadcast_shapes(first.shape[:-event_dims], second.shape[:-event_dims])
    parts = [part.expand(*batch, *part.shape[-event_dims:]) for part in (first, second)]
    return torch.cat(parts, dim=-event_dims)
