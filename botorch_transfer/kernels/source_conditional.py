"""The factorized covariance of source data, and remembering it.

What the source data leave of a joint GP over source and target tasks: a GP of the target.

With the joint kernel ``k``, source data ``(X_s, y_s)`` and ``K = k(X_s, X_s) + noise``,

.. code-block:: text

    m_t(x)     = k(x, X_s) K⁻¹ y_s
    k_t(x, x') = k(x, x') - k(x, X_s) K⁻¹ k(X_s, x')

and ``log p(y_t, y_s) = log p(y_t | y_s) + log p(y_s)``. Target points only add rows to the Cholesky
factor of ``K``, whose source part stays as it is. Where the sources are independent of each other
(weighted sources, ScaML's kernel), ``K`` is block diagonal and so is its factor: that of all data
has the shape of an arrow.

The mean that the source data of a joint GP give the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.module import Module
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from botorch_transfer.kernels.cache import InputCache, collapse_batch, version_of
from botorch_transfer.kernels.coregionalization import CoregionalizationKernel, TaskPoints
from botorch_transfer.kernels.source_points import SourceNoise, SourcePoints


@dataclass(frozen=True)
class SourceFactor:
    """The factorized covariance of the source data, group by group.

    Args:
        roots: The Cholesky factors, ``batch_shape x N_g x N_g`` in double precision.
        alphas: ``K⁻¹ y_s``, ``batch_shape x N_g`` each.
        log_likelihood: ``log p(y_s)``, a ``batch_shape`` tensor.
    """

    roots: tuple[Tensor, ...]
    alphas: tuple[Tensor, ...]
    log_likelihood: Tensor


class FactorMemory:
    """Remembers one factor, as long as what it depends on has the same values.

    What a factor depends on is its state: a tuple of data tensors, compared by identity and
    version, and last a tensor of hyperparameters, compared by value, because GPyTorch sets them in
    ways that no version counter sees. Copies share what is remembered; pickles start empty.
    """

    def __init__(self) -> None:
        self._state: tuple[Tensor, ...] | None = None
        self._versions: list[int] = []
        self._factor: SourceFactor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> FactorMemory:
        twin = FactorMemory()  # the tensors are never written into, so copies share them
        twin.__dict__.update(self.__dict__)
        memo[id(self)] = twin
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return FactorMemory().__dict__

    def recall(self, state: tuple[Tensor, ...]) -> SourceFactor | None:
        """Recalls the factor.

        Args:
            state: What it depends on now.

        Returns:
            The factor, or ``None`` if the state is another one.
        """
        *data, values = state
        if self._state is None:
            return None
        *known_data, known_values = self._state
        same_data = all(one is other for one, other in zip(data, known_data, strict=True))
        if not same_data or self._versions != [version_of(tensor) for tensor in data]:
            return None
        same_type = values.dtype == known_values.dtype and values.device == known_values.device
        return self._factor if same_type and torch.equal(values, known_values) else None

    def remember(self, state: tuple[Tensor, ...], factor: SourceFactor) -> None:
        """Remembers a factor instead of the one before.

        Args:
            state: What it depends on.
            factor: The factor, without graph.
        """
        self._state = state
        self._versions = [version_of(tensor) for tensor in state[:-1]]
        self._factor = factor


def log_density(root: Tensor, whitened: Tensor) -> Tensor:
    """Evaluates ``log N(y; 0, L Lᵀ)``.

    Args:
        root: A ``batch_shape x N x N`` tensor ``L``.
        whitened: A ``batch_shape x N x 1`` tensor ``L⁻¹ y``.

    Returns:
        A ``batch_shape`` tensor.
    """
    log_determinant = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    constant = root.shape[-1] * math.log(2 * math.pi)
    return -0.5 * (whitened.square().sum(dim=(-2, -1)) + log_determinant + constant)


class SourceConditional(Module):
    """A joint GP's target task, conditioned on the data of its source tasks.

    In evaluation mode the factorized covariance of the source data is remembered, without graph,
    until a hyperparameter or the data change; copies take it along. In training mode it is
    computed anew, with its graph, whenever it is needed.

    Args:
        kernel: The kernel over inputs and tasks.
        points: The source data.
        noise: Their noise.
    """

    def __init__(
        self, kernel: CoregionalizationKernel, points: SourcePoints, noise: SourceNoise
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.points = points
        self.noise = noise
        self._memory = FactorMemory()
        self._whitened = InputCache()

    def __getitem__(self, index: Any) -> SourceConditional:
        """Selects from the batch."""
        return SourceConditional(self.kernel[index], self.points, self.noise[index])

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the hyperparameters."""
        return self.kernel.batch_shape

    @property
    def groups(self) -> list[tuple[TaskPoints, slice]]:
        """The groups of source points that are independent of each other."""
        return self.points.groups(self.kernel.sources_are_independent)

    @property
    def _has_graph(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def factor(self) -> SourceFactor:
        """Factorizes the covariance of the source data, or recalls the factor.

        Raises:
            InputDataError: If the covariance is not positive definite; the message names the
                tasks. In training mode the original error is raised, from which a fit recovers.
        """
        if self._has_graph:
            return self._factorize()
        state = self._state()
        factor = self._memory.recall(state)
        if factor is None:
            # Tensors made in inference mode could not enter a later gradient.
            with torch.inference_mode(False), torch.no_grad():
                factor = self._factorize()
            self._memory.remember(state, factor)
        return factor

    def _state(self) -> tuple[Tensor, ...]:
        """All that the factor depends on: the data, and the values of the hyperparameters."""
        values = [
            tensor.detach().flatten()
            for module in (self.kernel, self.noise)
            for tensor in (*module.parameters(), *module.buffers())
        ]
        return self.points.X, self.points.Y, self.points.Yvar, torch.cat(values)

    def _factorize(self) -> SourceFactor:
        variances = self.noise.variances(self.points)
        roots, alphas, log_likelihood = [], [], []
        for points, rows in self.groups:
            # In double precision whatever the data's: the noise may be tiny.
            covariance = self.kernel.covariance(points, points).double()
            covariance = covariance + torch.diag_embed(variances[..., rows].double())
            root = self._cholesky(covariance, points)
            Y = self.points.Y[rows].double().unsqueeze(-1).expand(*root.shape[:-1], 1)
            whitened = torch.linalg.solve_triangular(root, Y, upper=False)
            alpha = torch.linalg.solve_triangular(root.mT, whitened, upper=True)
            roots.append(root)
            alphas.append(alpha.squeeze(-1).to(variances))
            log_likelihood.append(log_density(root, whitened))
        total = torch.stack(log_likelihood).sum(dim=0).to(variances)
        return SourceFactor(tuple(roots), tuple(alphas), total)

    def _cholesky(self, covariance: Tensor, points: TaskPoints) -> Tensor:
        try:
            return psd_safe_cholesky(covariance)
        except (NotPSDError, NanError) as error:
            if self._has_graph:
                raise
            names = ", ".join(repr(self.points.names[task]) for task in points.tasks)
            raise InputDataError(
                f"The covariance matrix of the source data of {names} is not positive definite: "
                "check their inputs for extreme scales, or give them more observation noise."
            ) from error

    def _target(self, x: Tensor) -> TaskPoints:
        return TaskPoints(x, (self.kernel.num_tasks - 1,), (x.shape[-2],))

    def _flat(self, x: Tensor) -> Tensor:
        """Puts batches of inputs beyond the hyperparameters' into one: ``batch_shape x P x d``."""
        own = self.batch_shape
        x = x.expand(*torch.broadcast_shapes(x.shape[:-2], own), *x.shape[-2:])
        extra = x.shape[: x.dim() - 2 - len(own)]
        if len(extra) == 0:
            return x
        x = x.reshape(extra.numel(), *own, *x.shape[-2:]).movedim(0, -3)
        return x.reshape(*own, -1, x.shape[-1])

    def _unflat(self, values: Tensor, x: Tensor) -> Tensor:
        """Brings ``batch_shape x ... x P`` values of :meth:`_flat` inputs back into batches."""
        own = len(self.batch_shape)
        batch_shape = torch.broadcast_shapes(x.shape[:-2], self.batch_shape)
        extra = batch_shape[: len(batch_shape) - own]
        if len(extra) == 0:
            return values
        values = values.unflatten(-1, (extra.numel(), x.shape[-2])).movedim(-2, 0)
        return values.reshape(*extra, *values.shape[1:])

    def cross(self, x: Tensor) -> Tensor:
        """Evaluates the covariance of the target with the source data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n x N_s`` tensor.
        """
        target = self._target(self._flat(x))
        blocks = [self.kernel.covariance(points, target) for points, _ in self.groups]
        return self._unflat(torch.cat(blocks, dim=-2), x).mT

    def mean(self, x: Tensor, factor: SourceFactor | None = None) -> Tensor:
        """Evaluates the target's mean, given the source data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.
            factor: The result of :meth:`factor`, if it is known already.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        factor = self.factor() if factor is None else factor
        target = self._target(self._flat(x))
        mean = target.X.new_zeros(())
        for (points, _), alpha in zip(self.groups, factor.alphas, strict=True):
            cross = self.kernel.covariance(target, points)
            mean = mean + (cross @ alpha.unsqueeze(-1)).squeeze(-1)
        return self._unflat(mean, x)

    def whiten(self, x: Tensor, factor: SourceFactor | None = None) -> Tensor:
        r"""Computes ``V(x) = L⁻¹ k(X_s, x)``, so that ``V(x)ᵀ V(x')`` is what the sources explain.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.
            factor: The result of :meth:`factor`, if it is known already.

        Returns:
            A ``batch_shape x N_s x n`` tensor in double precision.
        """
        factor = self.factor() if factor is None else factor
        target = self._target(self._flat(x))
        whitened = [
            torch.linalg.solve_triangular(
                root, self.kernel.covariance(points, target).double(), upper=False
            )
            for (points, _), root in zip(self.groups, factor.roots, strict=True)
        ]
        return self._unflat(torch.cat(whitened, dim=-2), x)

    def covariance(
        self, x1: Tensor, x2: Tensor | None = None, factor: SourceFactor | None = None
    ) -> Tensor:
        """Evaluates the target's covariance, given the source data.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs; ``x1`` if omitted.
            factor: The result of :meth:`factor`, if it is known already.

        Returns:
            A ``batch_shape x n1 x n2`` tensor.
        """
        factor = self.factor() if factor is None else factor
        if x2 is None and x1.shape[-2] == 1:
            return self.variance(x1, factor).unsqueeze(-1)
        target1 = target2 = self._target(x1)
        whitened1 = whitened2 = self.whiten(x1, factor)
        if x2 is not None:
            target2, whitened2 = self._target(x2), self._whiten_once(x2, factor)
        prior = self.kernel.covariance(target1, target2)
        return prior - (whitened1.mT @ whitened2).to(prior)

    def _whiten_once(self, x: Tensor, factor: SourceFactor) -> Tensor:
        """Recalls :meth:`whiten` at the target's training inputs."""
        if self._has_graph or x.requires_grad:
            return self.whiten(x, factor)
        x = collapse_batch(x)
        return self._whitened(lambda x: self.whiten(x, factor), x, factor.log_likelihood)

    def variance(self, x: Tensor, factor: SourceFactor | None = None) -> Tensor:
        """Evaluates the target's variance, given the source data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.
            factor: The result of :meth:`factor`, if it is known already.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        explained = self.whiten(x, factor).square().sum(dim=-2)
        prior = self.kernel.variance(x, self.kernel.num_tasks - 1)
        return (prior - explained.to(prior)).clamp_min(0.0)


class SourceConditionalKernel(Kernel):
    """The target's covariance, given the source data of a joint GP.

    Args:
        conditional: The joint GP's target task.

    Example:
        >>> model.covar_module(torch.rand(4, 2, dtype=torch.double)).shape
        torch.Size([4, 4])
    """

    has_lengthscale = False

    def __init__(self, conditional: SourceConditional) -> None:
        super().__init__(batch_shape=conditional.batch_shape)
        self.conditional = conditional

    def __getitem__(self, index: Any) -> SourceConditionalKernel:
        """Selects from the batch."""
        if len(self.batch_shape) == 0:
            return self
        return SourceConditionalKernel(self.conditional[index])

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return ``k(x1_i, x2_i)`` only.
            **params: Ignored.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        without_graph = not (x1.requires_grad or x2.requires_grad)
        same = x1 is x2 or (without_graph and x1.shape == x2.shape and torch.equal(x1, x2))
        if not diag:
            return self.conditional.covariance(x1, None if same else x2)
        if same:
            return self.conditional.variance(x1)
        return self.conditional.covariance(x1, x2).diagonal(dim1=-2, dim2=-1)


class SourceConditionalMean(Mean):
    """The target's mean, given the source data of a joint GP.

    Args:
        conditional: The joint GP's target task.

    Example:
        >>> model.mean_module(torch.rand(4, 2, dtype=torch.double)).shape
        torch.Size([4])
    """

    def __init__(self, conditional: SourceConditional) -> None:
        super().__init__()
        self.conditional = conditional

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        return self.conditional.mean(x)
