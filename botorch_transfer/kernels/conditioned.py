r"""A batch of Gaussian processes, each conditioned on its own data: again a batch of GPs.

With a prior mean ``m``, a kernel ``k`` and data ``(X, y)`` observed with noise ``σ²``,
conditioning gives

.. code-block:: text

    m'(x)    = m + k(x, X) [k(X, X) + σ²I]⁻¹ (y - m)
    k'(x, x') = k(x, x') - k(x, X) [k(X, X) + σ²I]⁻¹ k(X, x')

for every task of the batch at once. Everything that depends on the data alone is computed when the
object is built; a query costs one kernel evaluation and one matrix product, however many tasks
there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, TypeVar

import torch
from botorch.exceptions.errors import InputDataError
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.kernels.stationary import (
    StationaryFunction,
    squared_distance,
    stationary_function,
)


def masked_covariance(
    X: Tensor, lengthscale: Tensor, outputscale: Tensor, mask: Tensor, function: StationaryFunction
) -> Tensor:
    """Evaluates ``k(X, X)`` of every task, zero wherever padding is involved.

    Args:
        X: An ``M x N x d`` tensor of padded inputs.
        lengthscale: An ``M x d`` tensor.
        outputscale: An ``M`` tensor.
        mask: An ``M x N`` boolean tensor, ``True`` for data.
        function: The unit-variance stationary kernel.

    Returns:
        An ``M x N x N`` tensor.
    """
    scaled = X / lengthscale.unsqueeze(-2)
    signal = function.value(squared_distance(scaled, scaled)) * outputscale[:, None, None]
    return signal * (mask.unsqueeze(-1) & mask.unsqueeze(-2))


_PADDED = ("train_X", "train_Y", "mask", "noise")
_ESSENTIALS = (*_PADDED, "lengthscale", "outputscale", "mean_constant")


M = TypeVar("M", bound=Module)


def shallow_copy(module: M) -> M:
    """Copies a tree of modules without its tensors.

    Moving the copy or loading into it leaves the original as it is.

    Args:
        module: The module.

    Returns:
        A module with the same tensors in registers of its own.
    """
    twin = copy(module)
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    twin._modules = {
        name: None if child is None else shallow_copy(child)
        for name, child in module._modules.items()
    }
    return twin


class ConditionedGPs(Module):
    r"""``M`` independent GPs with stationary kernels, each conditioned on its own data.

    Tasks of different sizes are padded to ``N`` points; rows that ``mask`` marks as padding are
    exactly inert. All tensors are buffers: the object has nothing to fit.

    Args:
        train_X: An ``M x N x d`` tensor of inputs.
        train_Y: An ``M x N`` tensor of outcomes.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
        lengthscale: An ``M x d`` tensor.
        outputscale: An ``M`` tensor of signal variances.
        noise: An ``M x N`` tensor of observation noise variances.
        mean_constant: An ``M`` tensor of constant prior means; zero if omitted.
        kernel: The stationary kernel's name, see :func:`~.stationary.stationary_function`.
        task_names: Names of the tasks for messages.

    Raises:
        InputDataError: If the covariance matrix of a task's data is not positive definite.

    Example:
        >>> X = torch.rand(3, 10, 2, dtype=torch.double)
        >>> ones = torch.ones(3, 10, dtype=torch.double)
        >>> gps = ConditionedGPs(
        ...     X, X.sum(-1), ones.bool(), ones[:, :2], ones[:, 0], 1e-4 * ones
        ... )
        >>> gps.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([3, 5])
    """

    train_X: Tensor
    train_Y: Tensor
    mask: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor
    mean_constant: Tensor
    inverse_root: Tensor
    alpha: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        mask: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        noise: Tensor,
        mean_constant: Tensor | None = None,
        kernel: str = "rbf",
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        stationary_function(kernel)  # an unknown name is refused here, not at the first query
        if mean_constant is None:
            mean_constant = torch.zeros_like(outputscale)
        tensors = {
            "train_X": train_X,
            "train_Y": train_Y,
            "mask": mask,
            "lengthscale": lengthscale,
            "outputscale": outputscale,
            "noise": noise,
            "mean_constant": mean_constant,
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach())
        self._task_names = list(task_names or map(str, range(self.num_tasks)))
        inverse_root, alpha = self._factorize()
        self.register_buffer("inverse_root", inverse_root)
        self.register_buffer("alpha", alpha)

    @torch.no_grad()
    def _factorize(self) -> tuple[Tensor, Tensor]:
        """Computes ``L⁻¹`` and ``(L Lᵀ)⁻¹ (y - m)`` for the Cholesky factor ``L`` of each task."""
        # In double precision whatever the data's: this is done once, and the noise may be tiny.
        covariance = masked_covariance(
            self.train_X.double(),
            self.lengthscale.double(),
            self.outputscale.double(),
            self.mask,
            self._function,
        )
        # The padding's covariance is the identity: it adds nothing to a solve or a determinant.
        noise = torch.where(self.mask, self.noise.double(), 1.0)
        covariance.diagonal(dim1=-2, dim2=-1).add_(noise)
        root = self._cholesky(covariance)
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        inverse_root = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)
        residual = (self.train_Y.double() - self.mean_constant.double().unsqueeze(-1)) * self.mask
        alpha = inverse_root.mT @ (inverse_root @ residual.unsqueeze(-1))
        return inverse_root.to(self.train_X), alpha.squeeze(-1).to(self.train_X)

    @property
    def _function(self) -> StationaryFunction:
        return stationary_function(self.kernel)

    def _cholesky(self, covariance: Tensor) -> Tensor:
        try:
            return psd_safe_cholesky(covariance)
        except (NotPSDError, NanError) as error:
            _, info = torch.linalg.cholesky_ex(covariance)
            failed = [self._task_names[task] for task in info.nonzero().flatten().tolist()]
            raise InputDataError(
                f"The covariance matrix of source task {failed[0]!r} is not positive definite: "
                "check its inputs for extreme scales, or give it more observation noise."
            ) from error

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        # Views of a prior share its tensors: new ones are loaded into, not those.
        for name, buffer in self._buffers.items():
            self._buffers[name] = None if buffer is None else buffer.clone()
        super()._load_from_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> ConditionedGPs:
        # Nothing writes into the tensors, so copies of a model, each fantasy is one, share them.
        twin = shallow_copy(self)
        memo[id(self)] = twin
        return twin

    def essentials(self) -> dict[str, Tensor]:
        """The constructor's tensors, from which all others follow."""
        return {name: getattr(self, name) for name in _ESSENTIALS}

    def join(self, other: ConditionedGPs) -> ConditionedGPs:
        """Puts the tasks of two batches into one.

        Args:
            other: GPs with the same kernel and number of inputs.

        Returns:
            A new batch, this one's tasks first.
        """
        mine, theirs = self.essentials(), other.essentials()
        joined = {}
        for name in _ESSENTIALS:
            tasks = [*mine[name], *theirs[name]]
            joined[name] = (
                pad_sequence(tasks, batch_first=True) if name in _PADDED else torch.stack(tasks)
            )
        names = [*self._task_names, *other._task_names]
        return ConditionedGPs(**joined, kernel=self.kernel, task_names=names)

    @property
    def num_tasks(self) -> int:
        """The number of tasks ``M``."""
        return self.train_X.shape[0]

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the inputs."""
        return self.train_X.shape[-1]

    def _flat_kernel(self, x: Tensor, points: Tensor) -> Tensor:
        """Evaluates the kernels between ``P x d`` and ``[M x] n x d`` inputs: ``M x P x n``."""
        inverse_lengthscale = self.lengthscale.reciprocal().unsqueeze(-2)
        r2 = squared_distance(x * inverse_lengthscale, points * inverse_lengthscale)
        return self._function.value(r2) * self.outputscale[:, None, None]

    def _flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates ``k(x, X)`` for ``P x d`` inputs: ``M x P x N``, zero at the padding."""
        return self._flat_kernel(x, self.train_X) * self.mask.unsqueeze(-2)

    def cross(self, x: Tensor) -> Tensor:
        """Evaluates the kernels between inputs and each task's data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x M x n x N`` tensor, zero at the padding.
        """
        flat = self._flat_cross(x.reshape(-1, x.shape[-1]))
        return flat.reshape(-1, *x.shape[:-1], flat.shape[-1]).movedim(0, -3)

    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the kernels before conditioning.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` or ``n2 x d`` tensor of inputs.

        Returns:
            A ``batch_shape x M x n1 x n2`` tensor.
        """
        if x2.dim() == 2 and x1 is not x2:
            flat = self._flat_kernel(x1.reshape(-1, x1.shape[-1]), x2)
            return flat.reshape(-1, *x1.shape[:-1], x2.shape[-2]).movedim(0, -3)
        inverse_lengthscale = self.lengthscale.reciprocal().unsqueeze(-2)
        scaled1 = x1.unsqueeze(-3) * inverse_lengthscale
        scaled2 = scaled1 if x1 is x2 else x2.unsqueeze(-3) * inverse_lengthscale
        r2 = squared_distance(scaled1, scaled2)
        return self._function.value(r2) * self.outputscale[:, None, None]

    def mean(self, x: Tensor) -> Tensor:
        """Evaluates the posterior means of all tasks.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x M x n`` tensor.
        """
        cross = self._flat_cross(x.reshape(-1, x.shape[-1]))
        flat = self.mean_constant.unsqueeze(-1) + (cross @ self.alpha.unsqueeze(-1)).squeeze(-1)
        return flat.reshape(-1, *x.shape[:-1]).movedim(0, -2)

    def whiten(self, x: Tensor) -> Tensor:
        r"""Computes ``V(x) = L⁻¹ k(X, x)``, so that ``V(x)ᵀ V(x')`` is what the data explain.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            An ``M x N x batch_shape x n`` tensor; the tasks come first, because one matrix product
            a task serves all batches.
        """
        cross = self._flat_cross(x.reshape(-1, x.shape[-1]))
        return (self.inverse_root @ cross.mT).reshape(*self.mask.shape, *x.shape[:-1])

    def covariance(
        self, x1: Tensor, x2: Tensor | None = None, whitened2: Tensor | None = None
    ) -> Tensor:
        """Evaluates the posterior covariances of all tasks.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` or ``n2 x d`` tensor of inputs; ``x1`` if omitted.
            whitened2: ``whiten(x2)``, if it is known already.

        Returns:
            A ``batch_shape x M x n1 x n2`` tensor.
        """
        if x2 is None and x1.shape[-2] == 1:
            return self.variance(x1).unsqueeze(-1)
        whitened1 = self.whiten(x1)
        if x2 is None:
            x2, whitened2 = x1, whitened1
        elif whitened2 is None:
            whitened2 = self.whiten(x2)
        return self.prior_covariance(x1, x2) - _inner_products(whitened1, whitened2)

    def variance(self, x: Tensor) -> Tensor:
        """Evaluates the posterior variances of all tasks.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x M x n`` tensor.
        """
        explained = self.whiten(x).square().sum(dim=1)
        scale = self.outputscale.reshape(-1, *[1] * (x.dim() - 1))
        return (scale - explained).clamp_min(0.0).movedim(0, -2)


def _inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Computes ``V1ᵀ V2`` of whitened inputs, with the tasks moved behind the batch.

    Args:
        left: An ``M x N x batch_shape x n1`` tensor.
        right: An ``M x N x batch_shape x n2`` or ``M x N x n2`` tensor.

    Returns:
        A ``batch_shape x M x n1 x n2`` tensor.
    """
    if right.dim() == 3:
        # One set of second inputs serves all batches: one matrix product a task.
        flat = left.flatten(start_dim=2).mT @ right
        return flat.reshape(-1, *left.shape[2:], right.shape[-1]).movedim(0, -3)
    if left.shape[-1] == right.shape[-1] == 1:
        # Many batches of single points would be as many tiny matrix products.
        return (left * right).sum(dim=1).movedim(0, -2).unsqueeze(-1)
    return left.movedim((0, 1), (-3, -2)).mT @ right.movedim((0, 1), (-3, -2))
