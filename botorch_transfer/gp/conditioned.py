"""Independent Gaussian processes (GPs) of source tasks, each conditioned on its task's data.

All tasks are evaluated as one batch, see ``gp.posterior``. The data of each task are padded to the
number of points of the largest task. The posteriors of tasks with many points can be approximated
on inducing points, see ``gp.distilled``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Self, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.gp.distilled import Coefficients, InducingPoints
from botorch_transfer.gp.posterior import ConditionedBatch, inverse_cholesky, name_task_in_errors
from botorch_transfer.gp.state import savable
from botorch_transfer.gp.stationary import Stationary

#: Maximum number of elements of the covariance matrices that are factorized at once.
FACTOR_ELEMENTS = 2**18


def pad_inputs(X: Tensor, mask: Tensor) -> Tensor:
    """Replaces the padding of each task by the task's first input.

    Predictions do not depend on the values of the padding. However, the values must be finite and
    near the data, because distant inputs would increase the rounding errors of all distances.

    Args:
        X: An ``M x N x d`` tensor of inputs.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.

    Returns:
        An ``M x N x d`` tensor.
    """
    first = mask.int().argmax(dim=-1)
    tasks = torch.arange(len(X), device=X.device)
    return torch.where(mask.unsqueeze(-1), X, X[tasks, first].unsqueeze(-2))


@savable
class ConditionedGPs(ConditionedBatch):
    r"""``M`` independent GPs with stationary kernels, each conditioned on its own data.

    Use :meth:`from_data` to build the GPs from data. Each task is padded to the number of points of
    the largest task. A task with many points can use inducing points instead of all its data.

    Args:
        points: An ``M x N x d`` tensor: the inputs of the data, or inducing inputs.
        mask: An ``M x N`` boolean tensor, ``True`` for points and ``False`` for padding.
        alpha: An ``M x N`` tensor: the coefficients ``α`` of the posterior mean, see
            :class:`.Conditioned`.
        inverse_root: An ``M x N x N`` tensor: the inverse Cholesky factor of the data's covariance,
            or the factor ``F`` of ``gp.distilled`` for inducing points.
        lengthscale: An ``M x d`` tensor.
        outputscale: An ``M`` tensor of signal variances.
        prior_mean: An ``M`` tensor of constant prior means; zero if omitted.
        kernel: The stationary kernel's name, see :func:`~.stationary.stationary_function`.
        task_names: Names of the tasks for error messages.

    Example:
        >>> X = torch.rand(3, 10, 2, dtype=torch.double)
        >>> ones = torch.ones(3, 10, dtype=torch.double)
        >>> gps = ConditionedGPs.from_data(
        ...     X, X.sum(-1), ones.bool(), ones[:, :2], ones[:, 0], 1e-4 * ones
        ... )
        >>> gps.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([3, 5])
    """

    mask: Tensor

    def __init__(
        self,
        points: Tensor,
        mask: Tensor,
        alpha: Tensor,
        inverse_root: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        prior_mean: Tensor | None = None,
        kernel: str = "rbf",
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(lengthscale, outputscale, kernel, task_names)
        prior_mean = torch.zeros_like(outputscale) if prior_mean is None else prior_mean
        if not bool(mask.all()):  # the padding must not change predictions
            inverse_root = inverse_root.masked_fill(~mask.unsqueeze(-2), 0.0)
        self.register(points=points, mask=mask, prior_mean=prior_mean)
        self.register(alpha=alpha, inverse_root=inverse_root)

    @classmethod
    @torch.no_grad()
    def from_data(
        cls,
        train_X: Tensor,
        train_Y: Tensor,
        mask: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        noise: Tensor,
        prior_mean: Tensor | None = None,
        kernel: str = "rbf",
        task_names: Sequence[str] | None = None,
        max_inducing: int | None = None,
    ) -> Self:
        """Builds GPs with given hyperparameters, and conditions each GP on its task's data.

        Args:
            train_X: An ``M x N x d`` tensor of inputs.
            train_Y: An ``M x N`` tensor of outcomes.
            mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
            lengthscale: An ``M x d`` tensor.
            outputscale: An ``M`` tensor of signal variances.
            noise: An ``M x N`` tensor of observation noise variances.
            prior_mean: An ``M`` tensor of constant prior means; zero if omitted.
            kernel: The stationary kernel's name.
            task_names: Names of the tasks for error messages.
            max_inducing: The maximum number of inducing points of a task. The posteriors of tasks
                with more data points are approximated on inducing points. If ``None``, all
                posteriors are exact.

        Returns:
            The conditioned GPs.

        Raises:
            InputDataError: If the covariance matrix of a task's data is not positive definite.
        """
        names = list(task_names or map(str, range(len(outputscale))))
        means = torch.zeros_like(outputscale) if prior_mean is None else prior_mean
        floats = train_X, train_Y - means.unsqueeze(-1), noise, lengthscale, outputscale
        X, residual, noise, lengths, scales = (part.detach().double() for part in floats)
        sizes = mask.sum(dim=-1)
        large = sizes > (max_inducing or train_X.shape[-2])
        small = (~large).nonzero().squeeze(-1)
        # Chunks limit the temporary memory: it is several times the memory of a chunk's result.
        chunks = [*groups_of_like_size(sizes, small, FACTOR_ELEMENTS), *large.nonzero()]
        parts = []
        for chunk in chunks:
            size = int(mask[chunk].any(dim=0).nonzero().max()) + 1
            data = X[chunk, :size], residual[chunk, :size], mask[chunk, :size], noise[chunk, :size]
            own = Stationary(kernel, lengths[chunk].unsqueeze(-2), scales[chunk])
            chunk_names = [names[i] for i in chunk.tolist()]
            if bool(large[chunk[0]]):
                with name_task_in_errors(*chunk_names):
                    sparse = _sparse(*data, own, cast(int, max_inducing))
                parts.append(cls._on_inducing_points(sparse, own, means[chunk]))
            else:
                exact = _exact(*data, own, chunk_names)
                parts.append(cls(*exact, lengths[chunk], scales[chunk], means[chunk], kernel))
        found_in = torch.cat(chunks)
        gps = cls.joined(parts, [names[i] for i in found_in.tolist()])
        in_order = bool((found_in.diff() == 1).all())
        return gps if in_order else gps.select(found_in.argsort())

    @classmethod
    def _on_inducing_points(cls, found: Coefficients, kernel: Stationary, mean: Tensor) -> Self:
        """Builds the GP of one task from its approximate posterior on inducing points."""
        points, alpha, inverse_root = (part.unsqueeze(0) for part in found)
        mask = torch.ones_like(alpha[..., 0], dtype=torch.bool)
        hyperparameters = kernel.lengthscale.reshape(1, -1), kernel.scale.reshape(1), mean
        return cls(points, mask, alpha[..., 0], inverse_root, *hyperparameters, kernel.name)

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates the kernel between inputs and each task's points.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            An ``M x P x N`` tensor.
        """
        return self.stationary.between(x, self.points)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the posterior mean and variance of each task with only one kernel evaluation.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            Two ``batch_shape x M x n`` tensors.
        """
        with self.sharing(x):
            return self.mean(x), self.variance(x)

    def select(self, tasks: Sequence[int] | Tensor | slice) -> Self:
        """Returns the GPs of selected tasks, without a new Cholesky factorization.

        Args:
            tasks: The indices of the tasks. If ``tasks`` is a slice, the result shares memory with
                this object.

        Returns:
            The GPs of these tasks, in the order of ``tasks``.
        """
        every = torch.arange(self.num_tasks, device=self.mask.device)
        index = tasks if isinstance(tasks, slice) else torch.as_tensor(tasks, device=every.device)
        names = [self.task_names[task] for task in every[index].tolist()]
        chosen = {name: tensor[index] for name, tensor in self.tensors().items()}
        return type(self)(**chosen, kernel=self.kernel, task_names=names)

    @torch.no_grad()
    def distilled(self) -> Self:
        """Approximates each task's posterior on inducing points, to hide the task's outcomes.

        Returns:
            The approximate GPs. A task has at most half as many inducing points as data points. A
            task with only one distinct input has one inducing point.
        """
        parts = []
        for task in range(self.num_tasks):
            own = self.select([task])
            kernel = Stationary(self.kernel, own.lengthscale, own.outputscale[0])
            inducing = InducingPoints.between(kernel, own.points[0, own.mask[0]])
            mean = (own.mean(inducing.points) - own.prior_mean.unsqueeze(-1)).mT
            found = inducing.project(mean, own.covariance(inducing.points)[0])
            parts.append(self._on_inducing_points(found, kernel, own.prior_mean))
        return self.joined(parts, self.task_names)

    @classmethod
    def joined(cls, parts: Sequence[ConditionedGPs], names: Sequence[str]) -> Self:
        """Concatenates batches of GPs, and pads all tasks to the size of the largest task.

        Args:
            parts: The batches of GPs, with the same kernel name and the same input dimension.
            names: The names of the tasks of all batches, in order.

        Returns:
            One batch of GPs.
        """
        size, pieces = max(part.mask.shape[-1] for part in parts), defaultdict(list)
        for part in parts:
            rows = 0, size - part.mask.shape[-1]
            margins: dict[str, tuple[int, ...]] = {"mask": rows, "alpha": rows}
            margins |= {"points": (0, 0, *rows), "inverse_root": (*rows, *rows)}
            for name, tensor in part.tensors().items():
                pieces[name].append(pad(tensor, margins.get(name, ())))
        tensors = {name: torch.cat(of_parts) for name, of_parts in pieces.items()}
        tensors["points"] = pad_inputs(tensors["points"], tensors["mask"])
        return cls(**tensors, kernel=parts[0].kernel, task_names=names)


def groups_of_like_size(sizes: Tensor, tasks: Tensor, elements: int) -> Iterator[Tensor]:
    """Splits tasks into groups, so that the tasks of a group have similar numbers of points.

    Args:
        sizes: An ``M`` tensor: the number of points of each task.
        tasks: The indices of the tasks to split.
        elements: The maximum total number of elements of a group's covariance matrices. All
            matrices of a group are padded to the size of the largest matrix. A group has at least
            one task, even if the task's matrix has more elements.

    Yields:
        The indices of the tasks of one group, ascending. The groups with the largest tasks come
        first.
    """
    tasks = tasks[sizes[tasks].argsort(stable=True, descending=True)]
    while len(tasks):
        number = max(1, elements // int(sizes[tasks[0]]) ** 2)
        yield tasks[:number].sort().values
        tasks = tasks[number:]


def _exact(
    X: Tensor,
    residual: Tensor,
    mask: Tensor,
    noise: Tensor,
    kernel: Stationary,
    names: Sequence[str],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes ``points``, ``mask``, ``alpha`` and ``inverse_root`` of the exact posteriors."""
    X = pad_inputs(X, mask)
    covariance = kernel.between(X, X) * (mask.unsqueeze(-1) & mask.unsqueeze(-2))
    # The covariance of the padding is the identity matrix: solutions for the data do not change.
    covariance.diagonal(dim1=-2, dim2=-1).add_(torch.where(mask, noise, 1.0))
    inverse_root = inverse_cholesky(covariance, lambda task, _: names[task])
    residual = torch.where(mask, residual, 0.0).unsqueeze(-1)
    alpha = inverse_root.mT @ (inverse_root @ residual)
    return X, mask, alpha.squeeze(-1), inverse_root


def _sparse(
    X: Tensor, residual: Tensor, mask: Tensor, noise: Tensor, kernel: Stationary, most: int
) -> Coefficients:
    """Approximates the posterior of one task on at most ``most`` inducing points."""
    X, residual, noise = X[mask], residual[mask].unsqueeze(-1), noise[mask]
    own = Stationary(kernel.name, kernel.lengthscale[0], kernel.scale[0])
    inducing = InducingPoints.chosen(own, X, most, noise)
    whitened = inducing.whiten(X)
    weighted = whitened / noise
    return inducing.condense(weighted @ whitened.mT, weighted @ residual)
