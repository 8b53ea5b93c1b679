r"""A batch of Gaussian processes, each conditioned on its own data: again a batch of GPs.

With a prior mean ``m``, a kernel ``k`` and data ``(X, y)`` observed with noise ``σ²``, conditioning
gives

.. code-block:: text

    m'(x)     = m + k(x, X) [k(X, X) + σ²I]⁻¹ (y - m)
    k'(x, x') = k(x, x') - k(x, X) [k(X, X) + σ²I]⁻¹ k(X, x')

for every task of the batch at once. Everything that depends on the data alone is computed when the
object is built; a query costs one kernel evaluation and one matrix product, however many tasks
there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.kernels.conditioned_batch import ConditionedBatch, inverse_cholesky
from botorch_transfer.kernels.stationary import squared_distance

CHUNK_ELEMENTS = 2**18
"""How many elements of covariance matrices are factorized at once."""


def pad_inputs(X: Tensor, mask: Tensor) -> Tensor:
    """Sets the padding to one of the task's own inputs.

    It is masked out wherever it enters, but must be finite, and near the data: the rounding
    errors of distances grow with the distances.

    Args:
        X: An ``M x N x d`` tensor of inputs.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.

    Returns:
        An ``M x N x d`` tensor.
    """
    first = mask.int().argmax(dim=-1)
    tasks = torch.arange(len(X), device=X.device)
    return torch.where(mask.unsqueeze(-1), X, X[tasks, first].unsqueeze(-2))


_PADDED = ("train_X", "train_Y", "mask", "noise")


class ConditionedGPs(ConditionedBatch):
    r"""``M`` independent GPs with stationary kernels, each conditioned on its own data.

    Tasks of different sizes are padded to ``N`` points; rows that ``mask`` marks as padding are
    exactly inert, whatever they hold. All tensors are buffers: the object has nothing to fit.

    Args:
        train_X: An ``M x N x d`` tensor of inputs.
        train_Y: An ``M x N`` tensor of outcomes.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
        lengthscale: An ``M x d`` tensor.
        outputscale: An ``M`` tensor of signal variances.
        noise: An ``M x N`` tensor of observation noise variances.
        prior_mean: An ``M`` tensor of constant prior means; zero if omitted.
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

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        mask: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        noise: Tensor,
        prior_mean: Tensor | None = None,
        kernel: str = "rbf",
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(lengthscale, outputscale, kernel, task_names)
        self.register(
            train_X=pad_inputs(train_X, mask),
            train_Y=torch.where(mask, train_Y, 0.0),
            mask=mask,
            # The padding's covariance is the identity: it adds nothing to a solve or a determinant.
            noise=torch.where(mask, noise, 1.0),
            prior_mean=torch.zeros_like(outputscale) if prior_mean is None else prior_mean,
        )
        self._factorize()

    @torch.no_grad()
    def _factorize(self) -> None:
        """Computes ``L⁻¹`` and ``(L Lᵀ)⁻¹ (y - m)`` for the Cholesky factor ``L`` of each task."""
        num_tasks, size = self.mask.shape
        inverse_root = self.train_X.new_empty(num_tasks, size, size)
        # What it takes on the way is several times the result: not of all tasks at once.
        tasks = torch.arange(num_tasks, device=self.mask.device)
        for chunk in tasks.split(max(1, CHUNK_ELEMENTS // size**2)):
            inverse_root[chunk] = self._inverse_roots(chunk)
        self.register(inverse_root=inverse_root)
        residual = (self.train_Y - self.prior_mean.unsqueeze(-1)) * self.mask
        self.register(alpha=self.solve(residual))

    def _inverse_roots(self, chunk: Tensor) -> Tensor:
        """Inverts the Cholesky factors of some tasks."""
        mask = self.mask[chunk]
        scaled = self.train_X[chunk] / self.lengthscale[chunk].unsqueeze(-2)
        log_scale = self.outputscale[chunk].log()[:, None, None]
        covariance = self.function.value(squared_distance(scaled, scaled), log_scale)
        covariance = covariance * (mask.unsqueeze(-1) & mask.unsqueeze(-2))
        covariance.diagonal(dim1=-2, dim2=-1).add_(self.noise[chunk])
        return inverse_cholesky(covariance, lambda task, _: self._task_names[int(chunk[task])])

    def aggregate(self, values: Tensor, dim: int) -> Tensor:
        """Leaves ``values`` as they are: every task has a kernel of its own."""
        return values

    def aggregate_at_data(self, values: Tensor) -> Tensor:
        """Leaves ``... x M x N`` values at the data as they are, zero at the padding."""
        return values * self.mask

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates ``k(x, X)`` for ``P x d`` inputs: ``M x P x N``, zero at the padding."""
        return self.flat_kernels(x, self.train_X) * self.mask.unsqueeze(-2)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the posterior means and variances, with one evaluation of the kernel for both.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            Two ``batch_shape x M x n`` tensors.
        """
        cross = self.flat_cross(self._flat(x))
        whitened = self._unflat(self.inverse_root @ cross.mT, x)
        return self._mean(cross, x), self._variance(whitened, x)

    def join(self, other: ConditionedGPs) -> ConditionedGPs:
        """Puts the tasks of two batches into one.

        Args:
            other: GPs with the same kernel and number of inputs.

        Returns:
            A new batch, this one's tasks first.
        """
        joined = {}
        for name, mine in self.tensors().items():
            tasks = [*mine, *getattr(other, name)]
            joined[name] = (
                pad_sequence(tasks, batch_first=True) if name in _PADDED else torch.stack(tasks)
            )
        names = [*self._task_names, *other._task_names]
        return ConditionedGPs(**joined, kernel=self.kernel, task_names=names)
