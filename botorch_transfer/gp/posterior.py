r"""Gaussian processes conditioned on data: means, covariances and variances at new inputs.

All posteriors given source data are evaluated here: for independent tasks (``gp.conditioned``),
hierarchies (``hierarchy.prior``), the function that all tasks share (``population.kernel``) and
joint models (``joint.conditional``). With a prior mean ``m``, a kernel ``k`` and data ``(X, y)``
observed with noise variance ``σ²``, the posterior is

.. code-block:: text

    m'(x)     = m + k(x, X) [k(X, X) + σ²I]⁻¹ (y - m)
    k'(x, x') = k(x, x') - k(x, X) [k(X, X) + σ²I]⁻¹ k(X, x')

A batch of GPs is evaluated at once. All terms that depend only on the data are computed when the
GPs are conditioned. A prediction then takes one kernel evaluation and one matrix product, for any
number of GPs. :class:`Conditioned` implements the formulas for any kernel.
:class:`ConditionedBatch` adds stationary kernels. The shapes use these letters:

.. code-block:: text

    G    number of GPs           N    number of rows of data, or of inducing points
    Q    number of kernels       P    number of new inputs, of all batches together

The GPs of a batch may have different numbers of rows. They are padded to ``N`` rows. The padding
has no effect on results, because ``α`` and the columns of ``L⁻¹`` are zero at the padding.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from botorch_transfer.gp.state import Cache, DoubleState, shallow_copy
from botorch_transfer.gp.stationary import (
    STATIONARY_FUNCTIONS,
    Stationary,
    stationary_function,
)


class Shared(NamedTuple):
    """Results that a prediction uses several times, see :meth:`Conditioned.sharing`.

    Args:
        inputs: The inputs of the prediction.
        flat: The inputs of all batches as one matrix, for each GP of a batch of hyperparameters.
        results: The results at these inputs, by method name.
    """

    inputs: Tensor
    flat: Tensor
    results: dict[str, Any]


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
        """Evaluates ``k(x, X)`` for flat inputs, ``gps x P x N``."""

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

    _shared: Shared | None = None

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
        self._shared = Shared(x, self._flat(x), {})
        try:
            yield
        finally:
            self._shared = None

    def _once(self, function: Callable[[Tensor], Tensor], flat: Tensor) -> Tensor:
        """Evaluates a method, or returns its earlier result for the inputs of :meth:`sharing`."""
        if self._shared is None or flat is not self._shared.flat:
            return function(flat)
        results, name = self._shared.results, function.__name__
        if name not in results:
            results[name] = function(flat)
        return cast(Tensor, results[name])

    def cross(self, x: Tensor) -> Tensor:
        """Evaluates the covariances between inputs and the data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n x N`` tensor.
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
        shared = self._shared
        flat = shared.flat if shared is not None and x is shared.inputs else self._flat(x)
        return self._unflat(in_parts(function, flat, self._width), x)

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
        self.task_names = list(task_names or map(str, range(len(outputscale))))
        self._reach = Cache(size=1)
        # A buffer, so that loading a state_dict of GPs with another kernel fails.
        index = list(STATIONARY_FUNCTIONS).index(kernel)
        kernel_index = torch.tensor(index, device=lengthscale.device)
        self.register(kernel_index=kernel_index, lengthscale=lengthscale, outputscale=outputscale)

    def register(self, **tensors: Tensor) -> None:
        """Registers tensors; ``inverse_root`` by columns, as :func:`_whitened` needs it."""
        if "inverse_root" in tensors:
            tensors["inverse_root"] = tensors["inverse_root"].mT.contiguous().mT
        super().register(**tensors)

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
        kernels = self.stationary.between(self.points, self.points)
        rest = torch.eye(F.shape[-1]).to(F) - F @ kernels @ F.mT
        root, info = torch.linalg.cholesky_ex(rest)
        if bool(info.any()):  # with little noise, rounding can make the matrix indefinite
            squares, vectors = torch.linalg.eigh(rest)
            root = vectors * squares.clamp_min(0.0).sqrt().unsqueeze(-2)
        normal = self.alpha.new_empty(*values.shape[:-2], *self.alpha.shape).normal_()
        return self.solve(values) + times(F.mT, times(root, normal))

    @property
    def reach(self) -> Tensor:
        """Upper bounds of the absolute posterior mean minus the prior mean at any input, cached."""
        return self._reach(self._bound_mean, self.outputscale, self.points, self.alpha)

    def _bound_mean(self, outputscale: Tensor) -> Tensor:
        at_points = self.aggregate(self.stationary.between(self.points, self.points), dim=0)
        norm = (self.alpha * times(at_points, self.alpha)).sum(dim=-1).clamp_min(0.0)
        return (self.aggregate(outputscale, dim=0) * norm).sqrt()

    def solve(self, values: Tensor) -> Tensor:
        """Computes ``K⁻¹ v`` for ``... x G x N`` values ``v`` at the data."""
        return times(self.inverse_root.mT, times(self.inverse_root, values))

    def flat_whiten(self, x: Tensor) -> Tensor:
        """Computes ``V(x)`` for ``P x d`` inputs, ``G x N x P``."""
        return _whitened(self._once(self.flat_cross, x), self.inverse_root)

    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the prior covariances."""
        if x2.dim() == 2 and x1 is not x2:
            flat = self.stationary.between(self._flat(x1), x2.double())
            return self.aggregate(self._unflat(flat.mT, x1).mT, dim=-3)
        first = x1.double().unsqueeze(-3)
        second = first if x1 is x2 else x2.double().unsqueeze(-3)
        return self.aggregate(self.stationary.between(first, second), dim=-3)

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
        plural, names = "s" * (len(tasks) > 1), ", ".join(map(repr, tasks))
        raise InputDataError(
            f"The covariance matrix of source task{plural} {names} is not positive definite: check "
            "the inputs for extreme scales, or give larger noise variances."
        ) from error


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
