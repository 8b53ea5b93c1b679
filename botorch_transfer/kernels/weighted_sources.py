"""Coregionalization kernels in which source tasks are independent, and weighted in the target.

.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_transfer.kernels.coregionalization import CoregionalizationKernel
from botorch_transfer.kernels.task_weights import TaskWeights


class _IndependentSourcesKernel(CoregionalizationKernel):
    """A kernel for each task; the target shares those of its sources, these share none.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        active_dims: The columns that the kernel looks at, task column last.
    """

    def __init__(
        self,
        data_kernels: Sequence[Kernel],
        task_weights: TaskWeights,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(data_kernels, len(data_kernels), task_weights.batch_shape, active_dims)
        self.task_weights = task_weights

    @property
    def support(self) -> list[list[bool]]:
        """``Q x T`` flags: a source's kernel is that source's and the target's."""
        target = self.num_tasks - 1
        tasks = range(self.num_tasks)
        return [[task in (index, target) for task in tasks] for index in tasks]

    def _factors(self, own: Tensor, targets: Tensor) -> Tensor:
        """Puts together factors.

        Args:
            own: A ``batch_shape x M x R`` tensor: each source's row in its kernel's factor.
            targets: A ``batch_shape x M x R`` tensor: the target's row there.

        Returns:
            A ``batch_shape x T x T x R`` tensor; the target's own kernel has factor one.
        """
        *batch_shape, num_sources, rank = own.shape
        factors = own.new_zeros(*batch_shape, num_sources + 1, num_sources + 1, rank)
        factors[..., -1, -1, 0] = 1.0
        eye = torch.eye(num_sources, dtype=own.dtype, device=own.device)
        factors[..., :-1, :-1, :] = own.unsqueeze(-2) * eye.unsqueeze(-1)
        factors[..., :-1, -1, :] = targets
        return factors


class WeightedSourceKernel(_IndependentSourcesKernel):
    r"""``k_i(x, x') δ_ij + Σ_ν w_ν (δ_iν + δ_it)(δ_jν + δ_jt) k_ν(x, x')``, the kernel of WSGP.

    Each source task is a function of its own, plus ``√w_ν`` times a function with the same kernel
    that it shares with the target.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        normalize: Whether to divide ``k_ν`` by ``1 + w_ν``, so that it is the source task's own
            covariance whatever its weight.
        active_dims: The columns that the kernel looks at, task column last.

    Example:
        >>> kernel = WeightedSourceKernel([RBFKernel(), RBFKernel()], TaskWeights(1))
        >>> kernel.task_covariances()[0]
        tensor([[2., 1.],
                [1., 1.]], grad_fn=<...>)
    """

    def __init__(
        self,
        data_kernels: Sequence[Kernel],
        task_weights: TaskWeights,
        normalize: bool = False,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(data_kernels, task_weights, active_dims)
        self.normalize = normalize

    def task_factors(self) -> Tensor:
        """The factors ``F_ν``, a ``batch_shape x T x T x 2`` tensor."""
        weights = self.task_weights.weights
        scale = 1 / (1 + weights) if self.normalize else torch.ones_like(weights)
        alone, shared = scale.sqrt(), (weights * scale).sqrt()
        own = torch.stack([alone, shared], dim=-1)
        return self._factors(own, torch.stack([torch.zeros_like(alone), shared], dim=-1))


class ScaMLKernel(_IndependentSourcesKernel):
    r"""``Cov(f_i, f_j)`` of independent sources ``f_m`` and a target ``f_t + Σ_m w_m f_m``.

    This is the kernel from which ScaML-GP follows by conditioning on the sources, Eq. (3) to (5) of
    [Tighineanu2023scaml]_: ``W_m`` is ``1`` at ``(m, m)``, ``w_m`` at ``(m, t)`` and ``w_m²`` at
    ``(t, t)``.

    Args:
        data_kernels: A kernel for each task, target last.
        task_weights: A weight for each source task.
        active_dims: The columns that the kernel looks at, task column last.

    Example:
        >>> kernel = ScaMLKernel([RBFKernel() for _ in range(3)], TaskWeights(2))
        >>> kernel.task_covariances()[0]
        tensor([[1.0000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.0000],
                [0.5000, 0.0000, 0.2500]], grad_fn=<...>)
    """

    def task_factors(self) -> Tensor:
        """The factors ``F_ν``, a ``batch_shape x T x T x 1`` tensor."""
        weights = self.task_weights.weights.unsqueeze(-1)
        return self._factors(torch.ones_like(weights), weights)
