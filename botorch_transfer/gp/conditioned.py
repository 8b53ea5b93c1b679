r"""Gaussian processes conditioned on data: means, covariances and variances at new inputs.

All posteriors given source data are evaluated here: for independent tasks
(:class:`ConditionedGPs`), hierarchies (``hierarchy.prior``) and joint models
(``joint.conditional``). With a prior mean ``m``, a kernel ``k`` and data ``(X, y)`` observed with
noise variance ``σ²``, the posterior is

.. code-block:: text

    m'(x)     = m + k(x, X) [k(X, X) + σ²I]⁻¹ (y - m)
    k'(x, x') = k(x, x') - k(x, X) [k(X, X) + σ²I]⁻¹ k(X, x')

A batch of GPs is evaluated at once. All terms that depend only on the data are computed when the
GPs are conditioned. A prediction then takes one kernel evaluation and one matrix product, for any
number of GPs.

:class:`Conditioned` implements the formulas for any kernel. :class:`ConditionedBatch` adds
stationary kernels, and :class:`ConditionedGPs` builds independent GPs from data. The shapes use
these letters:

.. code-block:: text

    G    number of GPs           N    number of rows of data, or of inducing points
    Q    number of kernels       P    number of new inputs, of all batches together
    M    number of tasks         d    number of columns of an input

The GPs of a batch may have different numbers of rows. They are padded to ``N`` rows, and the
padding has no effect on results.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from botorch_transfer.gp.distilled import InducingPoints
from botorch_transfer.gp.state import Cache, DoubleState, savable, shallow_copy
from botorch_transfer.gp.stationary import (
    STATIONARY_FUNCTIONS,
    Stationary,
    stationary_function,
)


class Conditioned(ABC):
    r"""Base class of one or more GPs, each conditioned on ``N`` rows of data.

    ``L`` is the Cholesky factor of the data's covariance ``K = L Lᵀ``. The coefficients are
    ``α = K⁻¹ (y - m)`` and the whitened inputs are ``V(x) = L⁻¹ k(X, x)``:

    .. code-block:: text

        m'(x)     = m + k(x, X) α
        k'(x, x') = k(x, x') - V(x)ᵀ V(x')

    Subclasses evaluate the covariances between flat inputs and the data: the rows of one ``P x d``
    matrix are the inputs of all batches. Each GP then needs only one matrix product. In shapes,
    ``gps`` is the number of GPs that are evaluated at the same inputs, or the batch shape of the
    hyperparameters. Results have these dimensions after the batch dimensions of the inputs.
    """

    prior_mean: Tensor
    alpha: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the hyperparameters; batch shapes of inputs must end with it."""
        return torch.Size()

    @abstractmethod
    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates ``k(x, X)`` for flat inputs, ``gps x P x N``; zero at the padding."""

    @abstractmethod
    def flat_whiten(self, x: Tensor) -> Tensor:
        """Computes ``V(x)`` for flat inputs, ``gps x N x P``."""

    @abstractmethod
    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the prior covariances.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` or ``n2 x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n1 x n2`` tensor.
        """

    @abstractmethod
    def prior_variance(self, x: Tensor) -> Tensor:
        """Evaluates the prior variances, a tensor that broadcasts to ``... x gps x n``."""

    @property
    def _width(self) -> int:
        """Number of covariances between one input and the data of all GPs."""
        return self.alpha.numel()

    def signed(self, whitened: Tensor) -> Tensor:
        """Multiplies each row by its sign in ``V(x)ᵀ V(x')``, which is positive by default."""
        return whitened

    def _extra(self, x: Tensor) -> torch.Size:
        """Returns the batch dimensions of inputs that precede :attr:`batch_shape`."""
        shape = torch.broadcast_shapes(x.shape[:-2], self.batch_shape)
        return shape[: len(shape) - len(self.batch_shape)]

    def _flat(self, x: Tensor) -> Tensor:
        """Flattens ``extra x batch_shape x n x d`` inputs to ``batch_shape x P x d``."""
        own, extra = self.batch_shape, self._extra(x)
        x = x.expand(*extra, *own, *x.shape[-2:])
        places = range(len(extra)), range(-2 - len(extra), -2)
        return x.movedim(*map(tuple, places)).reshape(*own, -1, x.shape[-1])

    def _unflat(self, values: Tensor, x: Tensor) -> Tensor:
        """Reshapes ``gps x ... x P`` values to the batch dimensions of the inputs ``x``."""
        extra = self._extra(x)
        values = values.unflatten(-1, (*extra, x.shape[-2]))
        places = range(-1 - len(extra), -1), range(len(extra))
        return values.movedim(*map(tuple, places))

    #: The inputs of :meth:`sharing`, and the results at these inputs by method name.
    _shared: tuple[Tensor, dict[str, Tensor]] | None = None

    @contextmanager
    def sharing(self, x: Tensor) -> Iterator[None]:
        """Evaluates the kernel between ``x`` and the data only once within a context.

        The mean, the variance and the covariances of a prediction all use these kernel values. The
        shared results keep their graph, and are dropped at the end of the context.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs. Calls with a copy of this tensor do
                not share results.

        Example:
            >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
            >>> data = X, X.sum(-1), ones.bool()
            >>> gps = ConditionedGPs.from_data(*data, ones[:, :2], ones[:, 0], ones)
            >>> x = torch.rand(5, 2)
            >>> with gps.sharing(x):
            ...     mean, variance = gps.mean(x), gps.variance(x)
        """
        self._shared = x, {}
        try:
            yield
        finally:
            self._shared = None

    def _once(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Evaluates a method, or returns its earlier result for the inputs of :meth:`sharing`."""
        if self._shared is None:
            return function(x)
        shared, known = self._shared
        if x is not shared and x is not known.get("_flat"):
            return function(x)
        if function.__name__ not in known:
            known[function.__name__] = function(x)
        return known[function.__name__]

    def cross(self, x: Tensor) -> Tensor:
        """Evaluates the covariances between inputs and the data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n x N`` tensor, zero at the padding.
        """
        return self._unflat(self.flat_cross(self._flat(x)).mT, x).mT

    def mean(self, x: Tensor) -> Tensor:
        """Evaluates the posterior means.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n`` tensor.
        """

        def flat_mean(part: Tensor) -> Tensor:
            cross = self._once(self.flat_cross, part)
            return self.prior_mean.unsqueeze(-1) + (cross @ self.alpha.unsqueeze(-1)).squeeze(-1)

        return self._in_blocks(flat_mean, x).to(x.dtype)

    def whiten(self, x: Tensor) -> Tensor:
        r"""Computes ``V(x) = L⁻¹ k(X, x)``, so that ``V(x)ᵀ V(x')`` is the explained covariance.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x N x n`` tensor in double precision.
        """
        return self._in_blocks(lambda part: self._once(self.flat_whiten, part), x)

    def _in_blocks(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Evaluates a function of flat inputs in blocks of inputs, to limit the memory."""
        return self._unflat(in_parts(function, self._once(self._flat, x), self._width), x)

    def covariance(
        self, x1: Tensor, x2: Tensor | None = None, whitened2: Tensor | None = None
    ) -> Tensor:
        """Evaluates the posterior covariances.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` or ``n2 x d`` tensor of inputs; ``x1`` if omitted.
            whitened2: ``whiten(x2)``; computed if omitted.

        Returns:
            A ``batch_shape x gps x n1 x n2`` tensor.
        """
        if x2 is None and x1.shape[-2] == 1:
            return self.variance(x1).unsqueeze(-1)
        whitened1 = self.whiten(x1)
        if x2 is None:
            x2, whitened2 = x1, whitened1
        elif whitened2 is None:
            whitened2 = self.whiten(x2)
        # Unlike matmul, einsum does not copy inputs that all batches share.
        explained = torch.einsum("...np,...nq->...pq", whitened1, self.signed(whitened2))
        return (self.prior_covariance(x1, x2) - explained).to(x1.dtype)

    def variance(self, x: Tensor) -> Tensor:
        """Evaluates the posterior variances.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n`` tensor.
        """

        def explained(part: Tensor) -> Tensor:
            whitened = self._once(self.flat_whiten, part)
            # Sums before `_unflat` permutes dimensions: sums of permuted rows are ten times slower.
            return (whitened * self.signed(whitened)).sum(dim=-2)

        known = self._in_blocks(explained, x)
        return (self.prior_variance(x) - known).clamp_min(0.0).to(x.dtype)


#: Maximum number of elements of a covariance matrix, or of draws, that are evaluated at once: on a
#: CPU, and on any other device. On other devices, the calls of each block have more overhead.
MAX_ELEMENTS, MAX_ELEMENTS_ON_DEVICE = 2**22, 2**27


def max_elements(x: Tensor) -> int:
    """Returns the maximum number of elements to evaluate at once on a tensor's device."""
    return MAX_ELEMENTS if x.device.type == "cpu" else MAX_ELEMENTS_ON_DEVICE


def in_parts(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    width: int,
    dim: int = -1,
    cpu_divisor: int = 1,
) -> Tensor:
    """Evaluates a function of inputs in blocks of at most :func:`max_elements` elements.

    The backward pass evaluates each block again, which limits its memory as well.

    Args:
        function: The function to evaluate.
        x: A ``batch_shape x n x d`` tensor of inputs.
        width: Number of elements for each input, summed over all batches.
        dim: The dimension of the results that corresponds to the inputs.
        cpu_divisor: Divides the block size on a CPU, so that a block fits the CPU cache.

    Returns:
        The results for all inputs, concatenated along ``dim``.

    Example:
        >>> in_parts(lambda x: x.sum(-1), torch.ones(5, 2), width=2**21)
        tensor([2., 2., 2., 2., 2.])
    """
    width = max(1, width) * (cpu_divisor if x.device.type == "cpu" else 1)
    parts = x.split(max(1, max_elements(x) // width), dim=-2)
    if len(parts) == 1:
        return function(x)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(function, part, use_reentrant=False) for part in parts], dim)
    return torch.cat([function(part) for part in parts], dim)


def times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Multiplies matrices by one vector for each draw, without copying matrices for each draw.

    Args:
        matrices: A ``G x n x N`` tensor that all draws share, or a ``... x G x n x N`` tensor with
            matrices for each draw.
        vectors: A ``sample_shape x G x N`` tensor.

    Returns:
        A ``... x sample_shape x G x n`` tensor.

    Example:
        >>> times(torch.eye(2).unsqueeze(0), torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])).shape
        torch.Size([2, 1, 2])
    """
    return torch.einsum("...ij,...j->...i", matrices, vectors)


#: Number of rows of a triangular factor that are multiplied at once.
BLOCK = 512


def _whitened(cross: Tensor, inverse_root: Tensor) -> Tensor:
    """Computes ``L⁻¹ k(X, x)``; for a large factor, skips the zeros above the diagonal.

    Args:
        cross: A ``G x P x N`` tensor, ``k(x, X)``.
        inverse_root: The ``G x N x N`` lower triangular ``L⁻¹``.

    Returns:
        A ``G x N x P`` tensor.
    """
    # The factors are stored by columns, so this product of the transposes is twice as fast.
    if inverse_root.shape[-1] <= BLOCK:
        return (cross @ inverse_root.mT).mT
    parts, stop = [], 0
    for rows in inverse_root.split(BLOCK, dim=-2):
        stop += rows.shape[-2]
        parts.append(cross[..., :stop] @ rows[..., :stop].mT)
    return torch.cat(parts, dim=-1).mT


class Summary(NamedTuple):
    """Precomputed terms that depend only on the data of ``G`` GPs.

    Args:
        root: A ``G x (N + 1) x N`` tensor, zero at the padding. The first ``N`` rows are the
            inverse root: ``L⁻¹``, or ``F`` of ``gp.distilled``. The last row contains the
            coefficients ``α`` of the mean.
        reach: A ``G`` tensor: an upper bound of the absolute difference between the posterior mean
            and the prior mean at any input.
    """

    root: Tensor
    reach: Tensor


class ConditionedBatch(Conditioned, DoubleState):
    r"""Base class of ``G`` conditioned GPs that are built from ``Q`` stationary kernels.

    Each independent source task has its own stationary kernel. In a hierarchy, the kernel of a GP
    is the sum of the kernels of its levels. :meth:`aggregate` maps the values of the ``Q`` kernels
    to the ``G`` GPs. A prediction evaluates the kernels between the new inputs and ``points``,
    which are the data's inputs or inducing inputs. All tensors are buffers in double precision,
    because none is fitted. Predictions have the precision of the inputs.

    Args:
        lengthscale: A ``Q x d`` tensor.
        outputscale: A ``Q`` tensor of signal variances.
        kernel: The stationary kernel's name, see :func:`~.stationary.stationary_function`.
        task_names: Names of the ``Q`` tasks, for messages and the ``state_dict``.
    """

    kernel_index: Tensor
    _facts = (("kernel_index", tuple(STATIONARY_FUNCTIONS)),)
    lengthscale: Tensor
    outputscale: Tensor
    points: Tensor
    inverse_root: Tensor

    def __init__(
        self,
        lengthscale: Tensor,
        outputscale: Tensor,
        kernel: str,
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        stationary_function(kernel)  # raises for an unknown name now, not at the first query
        self.kernel = kernel
        self.task_names = list(task_names or range_names(len(outputscale)))
        self._summary = Cache(size=1, max_elements=math.inf)
        # A buffer, so that loading a state_dict of GPs with another kernel fails.
        index = list(STATIONARY_FUNCTIONS).index(kernel)
        kernel_index = torch.tensor(index, device=lengthscale.device)
        self.register(kernel_index=kernel_index, lengthscale=lengthscale, outputscale=outputscale)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors among the constructor's arguments by name."""
        names = inspect.getfullargspec(type(self)).args[1:-2]  # without kernel and task_names
        return {name: getattr(self, name) for name in names}

    def _flat(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.dim:
            raise BotorchTensorDimensionError(
                f"The inputs have {x.shape[-1]} columns, but the source tasks have {self.dim}: "
                "give the same columns as the source data."
            )
        return super()._flat(x).double()

    @property
    def num_tasks(self) -> int:
        """The number of source tasks."""
        return len(self.task_names)

    @property
    def inside(self) -> Tensor:
        """Mask of points that are not padding, a ``G x N`` boolean tensor."""
        return torch.ones_like(self.alpha, dtype=torch.bool)

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the inputs."""
        return self.lengthscale.shape[-1]

    @property
    def stationary(self) -> Stationary:
        """The ``Q`` kernels, for ``... x Q x n x d`` inputs."""
        return Stationary(self.kernel, self.lengthscale.unsqueeze(-2), self.outputscale)

    def aggregate(self, values: Tensor, dim: int) -> Tensor:
        """Combines the values of ``Q`` kernels along ``dim`` into the values of ``G`` GPs.

        By default, every GP has one kernel, and the values are returned unchanged.
        """
        return values

    def draw_coefficients(self, values: Tensor) -> Tensor:
        """Draws the coefficients that turn a prior draw into a posterior draw.

        The coefficients are ``K⁻¹ f`` plus a random term for the noise of the data. The covariance
        of the random term is ``Fᵀ (I - F k Fᵀ) F``, where ``F`` is ``inverse_root`` and ``k`` is
        the prior covariance at ``points``. For an exact posterior, it equals ``K⁻¹ (σ² I) K⁻¹``.

        Args:
            values: A ``... x Q x N`` tensor of the prior draws ``f`` of each kernel at ``points``.

        Returns:
            A ``... x G x N`` tensor ``v``: ``f(x) - k(x, points) v`` is a posterior draw minus the
            posterior mean.
        """
        F = self.inverse_root
        inside = self.inside.unsqueeze(-1) & self.inside.unsqueeze(-2)
        kernels = self.flat_kernels(self.points, self.points) * inside
        rest = torch.eye(F.shape[-1]).to(F) - F @ kernels @ F.mT
        root, info = torch.linalg.cholesky_ex(rest)
        if bool(info.any()):  # with little noise, rounding can make the matrix indefinite
            squares, vectors = torch.linalg.eigh(rest)
            root = vectors * squares.clamp_min(0.0).sqrt().unsqueeze(-2)
        normal = self.alpha.new_empty(*values.shape[:-2], *self.alpha.shape).normal_()
        return self.solve(values * self.inside) + times(F.mT, times(root, normal))

    @property
    def summary(self) -> Summary:
        """The terms that depend only on the data; the last result is cached."""
        # The factors may be large, so the cache compares them by identity, not by value.
        return self._summary(self._summarize, self.outputscale, self.inverse_root, self.alpha)

    def _summarize(self, outputscale: Tensor) -> Summary:
        variance, points = self.aggregate(outputscale, dim=0), self.points
        root = torch.cat([self.inverse_root, self.alpha.unsqueeze(-2)], dim=-2)
        root = root * self.inside.unsqueeze(-2)
        alpha = root[..., -1:, :].mT
        at_points = self.aggregate(self.flat_kernels(points, points), dim=0) @ alpha
        norm = (alpha * at_points).sum(dim=(-2, -1)).clamp_min(0.0)
        return Summary(root, (variance * norm).sqrt())

    def solve(self, values: Tensor) -> Tensor:
        """Computes ``K⁻¹ v`` for ``... x G x N`` values ``v`` at the data."""
        return times(self.inverse_root.mT, times(self.inverse_root, values))

    def flat_kernels(self, x: Tensor, points: Tensor) -> Tensor:
        """Evaluates the kernels between ``P x d`` and ``[... x Q x] n x d`` inputs."""
        return self.stationary.between(x, points)

    def flat_whiten(self, x: Tensor) -> Tensor:
        """Computes ``V(x)`` for ``P x d`` inputs, ``G x N x P``."""
        return _whitened(self._once(self.flat_cross, x), self.inverse_root)

    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the prior covariances."""
        if x2.dim() == 2 and x1 is not x2:
            flat = self.flat_kernels(self._flat(x1), x2.double())
            return self.aggregate(self._unflat(flat.mT, x1).mT, dim=-3)
        first = x1.double().unsqueeze(-3)
        second = first if x1 is x2 else x2.double().unsqueeze(-3)
        return self.aggregate(self.flat_kernels(first, second), dim=-3)

    @abstractmethod
    def distilled(self) -> Self:
        """Approximates the posterior on inducing points, which hides the data's outcomes."""

    def prior_variance(self, x: Tensor) -> Tensor:
        """Evaluates the prior variances, ``G x 1``."""
        return self.aggregate(self.outputscale, dim=0).unsqueeze(-1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Copies of a model, such as fantasy models, share the tensors: no code writes into them.
        return shallow_copy(self)


@contextmanager
def name_task_in_errors(*tasks: str) -> Iterator[None]:
    """Names the source tasks in the error of a failed Cholesky factorization.

    Args:
        tasks: The names of the source tasks.

    Raises:
        InputDataError: If a factorization within the context fails. This error replaces the
            original error.
    """
    try:
        yield
    except (NotPSDError, NanError) as error:
        names = ("source task " if len(tasks) == 1 else "source tasks ") + ", ".join(
            map(repr, tasks)
        )
        raise InputDataError(
            f"The covariance matrix of {names} is not positive definite: check the inputs for "
            "extreme scales, or give larger noise variances."
        ) from error


def by_columns(matrices: Tensor) -> Tensor:
    """Stores matrices by columns, because products with their transposes are then faster."""
    return matrices.mT.contiguous().mT


def range_names(number: int) -> list[str]:
    """Returns default names of tasks: ``"0"``, ``"1"`` and so on."""
    return [str(index) for index in range(number)]


def inverse_cholesky(covariance: Tensor, name: Callable[[int, int], str]) -> Tensor:
    """Inverts the Cholesky factors of a batch of covariance matrices.

    Args:
        covariance: A ``G x N x N`` tensor.
        name: Function that maps the indices of a matrix and of a row to the source task's name.

    Returns:
        A ``G x N x N`` tensor of lower triangular matrices.

    Raises:
        InputDataError: If a matrix is not positive definite, even with some jitter.
    """
    try:
        root = psd_safe_cholesky(covariance)
    except (NotPSDError, NanError):
        _, info = torch.linalg.cholesky_ex(covariance)
        matrix = int(info.nonzero()[0])
        # The message names the row at which the factorization fails; ``info`` counts from one.
        with name_task_in_errors(name(matrix, int(info[matrix]) - 1)):
            raise
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)


#: Maximum number of elements of the covariance matrices that are factorized at once.
FACTOR_ELEMENTS = 2**18


def pad_inputs(X: Tensor, mask: Tensor) -> Tensor:
    """Sets the padding to the first input of each task.

    Results do not depend on the padding. However, the padding must be finite and near the data,
    because inputs far away would increase the rounding errors of all distances.

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

    Use :meth:`from_data` to condition GPs on data. Tasks with many rows may be summarized on
    inducing points (``gp.distilled``). Tasks with few rows are padded.

    Args:
        points: An ``M x N x d`` tensor: the inputs of the data, or inducing inputs.
        mask: An ``M x N`` boolean tensor, ``True`` for points and ``False`` for padding.
        alpha: An ``M x N`` tensor: the coefficients of the mean.
        inverse_root: An ``M x N x N`` tensor: the inverse Cholesky factor of the data's covariance,
            or the factor ``F`` of ``gp.distilled`` for inducing points.
        lengthscale: An ``M x d`` tensor.
        outputscale: An ``M`` tensor of signal variances.
        prior_mean: An ``M`` tensor of constant prior means; zero if omitted.
        kernel: The stationary kernel's name, see :func:`~.stationary.stationary_function`.
        task_names: Names of the tasks for messages.

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
        self.register(points=points, mask=mask, prior_mean=prior_mean)
        self.register(alpha=alpha, inverse_root=by_columns(inverse_root))

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
        """Conditions GPs on data.

        Args:
            train_X: An ``M x N x d`` tensor of inputs.
            train_Y: An ``M x N`` tensor of outcomes.
            mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
            lengthscale: An ``M x d`` tensor.
            outputscale: An ``M`` tensor of signal variances.
            noise: An ``M x N`` tensor of observation noise variances.
            prior_mean: An ``M`` tensor of constant prior means; zero if omitted.
            kernel: The stationary kernel's name.
            task_names: Names of the tasks for messages.
            max_inducing: The maximum number of inducing points. Tasks with more rows are summarized
                on inducing points. If ``None``, all posteriors are exact.

        Returns:
            The conditioned GPs.

        Raises:
            InputDataError: If the covariance matrix of a task's data is not positive definite.
        """
        names = list(task_names or range_names(len(outputscale)))
        means = torch.zeros_like(outputscale) if prior_mean is None else prior_mean
        floats = train_X, train_Y - means.unsqueeze(-1), noise, lengthscale, outputscale
        X, residual, noise, lengths, scales = (part.detach().double() for part in floats)
        sizes = mask.sum(dim=-1)
        large = sizes > (max_inducing or train_X.shape[-2])
        small = (~large).nonzero().squeeze(-1)
        # In chunks, because the temporary memory is several times the size of the result.
        chunks = [*groups_of_like_size(sizes, small, FACTOR_ELEMENTS), *large.nonzero()]
        parts = []
        for chunk in chunks:
            size = int(mask[chunk].any(dim=0).nonzero().max()) + 1
            data = X[chunk, :size], residual[chunk, :size], mask[chunk, :size], noise[chunk, :size]
            own = Stationary(kernel, lengths[chunk].unsqueeze(-2), scales[chunk])
            if bool(large[chunk[0]]):
                with name_task_in_errors(names[int(chunk[0])]):
                    found = _distilled(*data, own, cast(int, max_inducing))
            else:
                found = _exact(*data, own, [names[i] for i in chunk.tolist()])
            parts.append(cls(*found, lengths[chunk], scales[chunk], means[chunk], kernel))
        found_in = torch.cat(chunks)
        gps = cls.joined(parts, [names[i] for i in found_in.tolist()])
        in_order = bool((found_in.diff() == 1).all())
        return gps if in_order else gps.select(found_in.argsort())

    @property
    def inside(self) -> Tensor:
        """Mask of points that are not padding, an ``M x N`` boolean tensor."""
        return self.mask

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates ``k(x, X)`` for ``P x d`` inputs, ``M x P x N``; zero at the padding."""
        return self.flat_kernels(x, self.points) * self.mask.unsqueeze(-2)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the posterior means and variances with only one kernel evaluation.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            Two ``batch_shape x M x n`` tensors.
        """
        with self.sharing(x):
            return self.mean(x), self.variance(x)

    def select(self, tasks: Sequence[int] | Tensor | slice) -> Self:
        """Selects tasks, without recomputing any factor.

        Args:
            tasks: The indices of the tasks. If a slice is given, the result shares the tensors.

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
        """Approximates each posterior on at most half as many inducing points as the task has rows.

        The outcomes of the data cannot be recovered from the result.
        """
        parts = []
        for task in range(self.num_tasks):
            own = self.select([task])
            kernel = Stationary(self.kernel, own.lengthscale, own.outputscale[0])
            points = own.points[0, own.mask[0]]
            inducing = InducingPoints.between(kernel, points)
            mean = (own.mean(inducing.points) - own.prior_mean.unsqueeze(-1)).mT
            found = inducing.project(mean, own.covariance(inducing.points)[0])
            Z, alpha, inverse_root = (part.unsqueeze(0) for part in found)
            mask = torch.ones_like(alpha[..., 0], dtype=torch.bool)
            hyperparameters = own.lengthscale, own.outputscale, own.prior_mean, self.kernel
            parts.append(type(self)(Z, mask, alpha[..., 0], inverse_root, *hyperparameters))
        return self.joined(parts, self.task_names)

    @classmethod
    def joined(cls, parts: Sequence[ConditionedGPs], names: Sequence[str]) -> Self:
        """Concatenates batches, and pads all tasks to the size of the largest task.

        Args:
            parts: Batches with the same kernel and number of inputs.
            names: The names of all tasks, in order.

        Returns:
            A new batch.
        """
        size = max(part.mask.shape[-1] for part in parts)

        def padded(tensor: Tensor, name: str) -> Tensor:
            missing = size - tensor.shape[1] if name in _PADDED else 0
            both = (0, missing) if name == "inverse_root" else (0, 0) if name == "points" else ()
            return pad(tensor, (*both, 0, missing)) if missing else tensor

        tensors = {
            name: torch.cat([padded(getattr(part, name), name) for part in parts])
            for name in parts[0].tensors()
        }
        tensors["points"] = pad_inputs(tensors["points"], tensors["mask"])
        return cls(**tensors, kernel=parts[0].kernel, task_names=names)


def groups_of_like_size(sizes: Tensor, tasks: Tensor, elements: int) -> Iterator[Tensor]:
    """Splits tasks into groups of similar size, the largest tasks first.

    Args:
        sizes: An ``M`` tensor: the number of points of each task.
        tasks: The indices of the tasks to split.
        elements: The maximum number of elements of all covariance matrices of a group, each padded
            to the largest matrix of the group. A group has at least one task.

    Yields:
        The indices of the tasks of each group, ascending.
    """
    tasks = tasks[sizes[tasks].argsort(stable=True, descending=True)]
    while len(tasks):
        number = max(1, elements // int(sizes[tasks[0]]) ** 2)
        yield tasks[:number].sort().values
        tasks = tasks[number:]


_PADDED = ("points", "mask", "alpha", "inverse_root")


def _exact(
    X: Tensor,
    residual: Tensor,
    mask: Tensor,
    noise: Tensor,
    kernel: Stationary,
    names: Sequence[str],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns points, mask, coefficients and inverse roots of the tasks' exact posteriors."""
    X = pad_inputs(X, mask)
    covariance = kernel.between(X, X) * (mask.unsqueeze(-1) & mask.unsqueeze(-2))
    # The covariance of the padding is the identity: it does not change solves or determinants.
    covariance.diagonal(dim1=-2, dim2=-1).add_(torch.where(mask, noise, 1.0))
    inverse_root = inverse_cholesky(covariance, lambda task, _: names[task])
    residual = torch.where(mask, residual, 0.0).unsqueeze(-1)
    alpha = inverse_root.mT @ (inverse_root @ residual)
    return X, mask, alpha.squeeze(-1), inverse_root


def _distilled(
    X: Tensor, residual: Tensor, mask: Tensor, noise: Tensor, kernel: Stationary, most: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns points, mask, coefficients and inverse root of one task's sparse posterior."""
    X, residual, noise = X[mask], residual[mask].unsqueeze(-1), noise[mask]
    own = Stationary(kernel.name, kernel.lengthscale[0], kernel.scale[0])
    inducing = InducingPoints.chosen(own, X, most, noise)
    whitened = inducing.whiten(X)
    weighted = whitened / noise
    found = inducing.condense(weighted @ whitened.mT, weighted @ residual)
    points, alpha, inverse_root = (part.unsqueeze(0) for part in found)
    return points, torch.ones_like(points[..., 0], dtype=torch.bool), alpha[..., 0], inverse_root
