"""Model that predicts the failure of runs, for suggestions from tables, the Optuna sampler and Ax.

:class:`FeasibilityModel` is a Gaussian process on success and failure with a probit link.
:class:`FeasibleAcquisition` adds the log probability of success to an acquisition function.

Expectation propagation approximates the posterior [Rasmussen2006gaussian]_, with parallel updates
of all sites. Laplace's approximation is simpler, but its probabilities are far too uncertain after
one or two failures.

.. [Rasmussen2006gaussian]
    C. E. Rasmussen and C. K. I. Williams. Gaussian Processes for Machine Learning, section 3.6.
    MIT Press 2006.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.penalized import PenalizedAcquisitionFunction
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.special import log_ndtr, ndtri

from botorch_transfer.data.datasets import evenly_spaced

#: Prior success rate, and its weight as a number of runs.
SUCCESS_RATE, RATE_WEIGHT = 0.75, 1.0

#: Maximum weight of the old runs near a point, as a number of runs of this study.
OLD_WEIGHT = 4.0

#: Maximum number of old runs. From a longer history, evenly spaced runs are kept.
MAX_OLD = 1_000

#: Kernel on all inputs: its share of the variance, and its lengthscale divided by ``sqrt(d)``, in
#: units of the search space's widths.
JOINT_SHARE, JOINT_LENGTHSCALE = 0.2, 0.3

#: Lengthscale of the kernels on single inputs: runs may fail in a tenth of an input's range.
SINGLE_LENGTHSCALE = 0.1

#: Variance of the latent function. It is large, because failures are mostly deterministic.
VARIANCE = 64.0

#: Expectation propagation: maximum number of iterations, damping factor, and tolerance.
MAX_SWEEPS, DAMPING, TOLERANCE = 100, 0.7, 1e-6


class FeasibilityModel(torch.nn.Module):
    r"""Gaussian process classifier of success and failure.

    Use it if runs may fail without an outcome. The latent function ``f`` is a Gaussian process, and
    a run at ``x`` succeeds with probability ``Φ(f(x))``, which is never quite 0 or 1. The
    covariance of ``f`` is a sum of two parts. The first part is a kernel on all inputs. It
    describes regions in which runs fail. The second part is the average of ``d`` kernels, one for
    each input. It describes values of a single parameter at which runs always fail:

    .. code-block:: text

        k(x, x') = s² (α exp(-‖x - x'‖² / 2dℓ²) + (1 - α) / d · Σ_j exp(-(x_j - x'_j)² / 2λ²))

    with ``s² = VARIANCE``, ``α = JOINT_SHARE``, ``ℓ = JOINT_LENGTHSCALE`` and ``λ =
    SINGLE_LENGTHSCALE``.

    Old runs determine the prior mean. ``S`` is the sum of ``k_1(x, x_i)`` over all old successes
    ``x_i``, where ``k_1`` is the kernel on all inputs. ``F`` is the same sum over all old failures.
    Both sums are scaled so that ``S + F`` is less than ``OLD_WEIGHT``. With ``a = SUCCESS_RATE``
    and ``b = RATE_WEIGHT``, the prior probability of success is ``(S + ab) / (S + F + b)``. Because
    ``S + F`` is bounded, a few runs of this study outweigh any number of old runs.

    Pending and abandoned runs are not failures: leave them out.

    Args:
        succeeded: An ``s x d`` tensor of inputs of runs that succeeded; ``s`` may be zero.
        failed: An ``f x d`` tensor of inputs of runs that failed; ``f`` may be zero.
        old_succeeded: Inputs of other tasks' runs that succeeded; none by default.
        old_failed: Inputs of other tasks' runs that failed; none by default.
        bounds: A ``2 x d`` tensor of bounds of the search space; the unit cube by default.
        categorical: The indices of inputs without an order. The distance between two different
            values of such an input is the input's whole range.

    Raises:
        InputDataError: If an input is not finite.

    Example:
        >>> X = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.double)
        >>> feasibility = FeasibilityModel(succeeded=X[[0, 2]], failed=X[[1]])
        >>> log_p = feasibility.log_probability(X)
        >>> bool(log_p[1] < log_p[0])
        True
    """

    _X: Tensor
    _old_X: Tensor
    _old_succeeded: Tensor
    _width: Tensor
    _ordered: Tensor
    _root: Tensor
    _weights: Tensor

    def __init__(
        self,
        succeeded: Tensor,
        failed: Tensor,
        old_succeeded: Tensor | None = None,
        old_failed: Tensor | None = None,
        bounds: Tensor | None = None,
        categorical: Sequence[int] = (),
    ) -> None:
        super().__init__()
        d, X = succeeded.shape[-1], torch.cat([succeeded, failed])
        good, bad = (X[:0] if each is None else each for each in (old_succeeded, old_failed))
        old = torch.cat([good, bad]).to(X)
        if not bool(torch.cat([X, old]).isfinite().all()):
            raise InputDataError("An input is NaN or infinite: give finite inputs.")
        kept = evenly_spaced(len(old), MAX_OLD)
        lower, upper = torch.stack([X.new_zeros(d), X.new_ones(d)]) if bounds is None else bounds
        ordered = torch.ones(d, dtype=torch.bool, device=X.device)
        ordered[list(categorical)] = False
        self.register_buffer("_X", X)
        self.register_buffer("_old_X", old[kept].to(X))
        self.register_buffer("_old_succeeded", (torch.arange(len(old)) < len(good))[kept].to(X))
        self.register_buffer("_width", torch.where(upper > lower, upper - lower, 1.0).to(X))
        self.register_buffer("_ordered", ordered)
        with torch.no_grad():
            self._fit(torch.cat([torch.ones(len(succeeded)), -torch.ones(len(failed))]).to(X))

    def _squares(self, A: Tensor, B: Tensor) -> Tensor:
        """Computes the squared difference, divided by two, of each pair of points in each input.

        Differences are divided by the widths of the search space. In an input without an order, the
        difference of two points is 1 if their values differ, and otherwise 0.
        """
        differences = (A.unsqueeze(-2) - B.unsqueeze(-3)) / self._width
        differences = torch.where(self._ordered, differences, (differences != 0).to(A))
        return differences.square() / 2

    def _covariance(self, A: Tensor, B: Tensor) -> Tensor:
        squares = self._squares(A, B)
        single = (-squares / SINGLE_LENGTHSCALE**2).exp().mean(dim=-1)
        return VARIANCE * (JOINT_SHARE * _joint(squares) + (1 - JOINT_SHARE) * single)

    def _mean(self, X: Tensor) -> Tensor:
        """Computes the latent function's prior mean from the success rate of nearby old runs."""
        near = _joint(self._squares(X, self._old_X))
        good = (near * self._old_succeeded).sum(dim=-1)
        total = near.sum(dim=-1)
        scale = OLD_WEIGHT / (OLD_WEIGHT + total)
        rate = (scale * good + RATE_WEIGHT * SUCCESS_RATE) / (scale * total + RATE_WEIGHT)
        return math.sqrt(1 + VARIANCE) * ndtri(rate)

    def _fit(self, sign: Tensor) -> None:
        """Approximates the posterior by expectation propagation.

        For each run, a site ``N(f_i; ν_i / τ_i, 1 / τ_i)`` approximates the likelihood ``Φ(±f_i)``.
        The ``sign`` of a run is one for a success and minus one for a failure.
        """
        X = self._X
        K, mean = self._covariance(X, X), self._mean(X)
        tau, nu = torch.zeros_like(mean), torch.zeros_like(mean)
        for _ in range(MAX_SWEEPS):
            _, posterior_mean, variance = _posterior(K, mean, tau, nu)
            cavity = 1 / variance - tau
            centre, spread = (posterior_mean / variance - nu) / cavity, 1 / cavity
            scale = (1 + spread).sqrt()
            z = sign * centre / scale
            ratio = (-0.5 * z.square() - log_ndtr(z)).exp() / math.sqrt(2 * math.pi)
            matched = spread * (1 - spread * ratio * (z + ratio) / scale.square())
            new_tau = (1 / matched - cavity).clamp_min(1e-10)
            new_nu = (centre + sign * spread * ratio / scale) / matched - centre * cavity
            change = torch.cat([new_tau - tau, new_nu - nu])
            tau, nu = tau + DAMPING * (new_tau - tau), nu + DAMPING * (new_nu - nu)
            if len(X) == 0 or float(change.abs().max()) < TOLERANCE:
                break
        root = _posterior(K, mean, tau, nu)[0]
        self.register_buffer("_root", root)
        self.register_buffer("_weights", root.mT @ (root @ (nu / tau.clamp_min(1e-10) - mean)))

    def log_probability(self, X: Tensor) -> Tensor:
        """Computes the log probability of success of each run, differentiable in the inputs.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor of negative numbers.
        """
        cross = self._covariance(X, self._X)
        mean = self._mean(X) + cross @ self._weights
        explained = (cross @ self._root.mT).square().sum(dim=-1)
        return log_ndtr(mean / (1 + VARIANCE - explained).clamp_min(1).sqrt())

    def forward(self, X: Tensor) -> Tensor:
        """Computes the log probability that all runs of a batch succeed.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of negative numbers.
        """
        return self.log_probability(X).sum(dim=-1)


def _posterior(K: Tensor, mean: Tensor, tau: Tensor, nu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the posterior of the latent function given Gaussian sites, at the sites' points.

    The prior has the moments ``mean`` and ``K``. The sites are ``N(ν / τ, 1 / τ)``.

    Returns:
        A root of ``(K + diag(1 / τ))^-1``, the posterior mean, and the posterior variances.
    """
    root = tau.sqrt()
    inner = torch.eye(len(tau)).to(K) + root.unsqueeze(-1) * K * root
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), root.diag(), upper=False)
    explained = half @ K
    residual = nu - tau * mean
    posterior_mean = mean + K @ residual - explained.mT @ (explained @ residual)
    return half, posterior_mean, K.diagonal() - explained.square().sum(dim=-2)


def _joint(squares: Tensor) -> Tensor:
    """Computes the kernel on all inputs from the result of :meth:`FeasibilityModel._squares`."""
    return (-squares.mean(dim=-1) / JOINT_LENGTHSCALE**2).exp()


class FeasibleAcquisition(PenalizedAcquisitionFunction):
    """Acquisition function plus the log probability that all runs of a batch succeed.

    Use it if runs may fail. Added to a log expected improvement, the log probability gives the
    logarithm of the expected improvement of runs that may fail. In the same way,
    :class:`PriorUpperConfidenceBound` treats outcome constraints: the class adds the log
    probability that each outcome constraint holds.

    Args:
        acquisition: An acquisition function that is a logarithm, or that has values of order one.
        feasibility: The model of success.

    Example:
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> X = torch.rand(6, 2, dtype=torch.double)
        >>> improvement = LogExpectedImprovement(SingleTaskGP(X, X.sum(-1, keepdim=True)), 1.5)
        >>> feasibility = FeasibilityModel(succeeded=X[X[:, 0] < 0.7], failed=X[X[:, 0] >= 0.7])
        >>> FeasibleAcquisition(improvement, feasibility)(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    def __init__(self, acquisition: AcquisitionFunction, feasibility: FeasibilityModel) -> None:
        super().__init__(acquisition, feasibility, regularization_parameter=-1.0)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Sets the pending inputs of the wrapped acquisition function.

        Unlike BoTorch's method, this method also accepts an analytic acquisition function.

        Args:
            X_pending: A ``p x d`` tensor of inputs.
        """
        self.raw_acqf.set_X_pending(X_pending)
